//! The product as its users meet it, on the real kernel: one module for each
//! promise.

mod attack;
mod bad_input;
mod cell;
mod channel;
mod controls;
mod durable;
mod escape;
mod filters;
mod hiding;
mod inject;
mod instance;
mod isolation;
mod layers;
mod lifecycle;
mod lint;
mod own_filter;
mod plan;
mod policy;
mod programs;
mod report;
mod scope;
mod site;
mod snapshot;
mod terminal;
mod user;
