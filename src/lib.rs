//! Seals one AI agent in a cell of its own.
pub mod child;
pub mod error;
pub mod fault;
pub mod host;
pub mod plan;
pub mod policy;
pub mod report;
pub mod sys;
