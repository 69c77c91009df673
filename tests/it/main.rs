//! The product as its users meet it, on the real kernel: one module for each
//! promise.

mod attack;
mod bad_input;
mod cell;
mod controls;
mod documentation;
mod escape;
mod filters;
mod inject;
mod isolation;
mod layers;
mod lifecycle;
mod lint;
mod own_filter;
mod plan;
mod plan_mode;
mod policy;
mod programs;
mod protect;
mod report;
mod runner_instance;
mod site;
mod terminal;
mod user;
