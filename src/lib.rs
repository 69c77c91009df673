//! Seals one AI agent in a cell of its own.
pub mod cli;
pub mod error;
pub mod policy;
