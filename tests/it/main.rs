//! The product as its users meet it, on the real kernel: one module for each
//! promise.

mod attack;
mod bad_input;
mod cell;
mod controls;
mod escape;
mod filters;
mod inject;
mod isolation;
mod layers;
mod lifecycle;
mod own_filter;
mod plan;
mod policy;
mod programs;
mod report;
mod site;
mod terminal;
mod user;
mod verify;
