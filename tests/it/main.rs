//! The product as its users meet it, on the real kernel: one module for each
//! promise.

mod cell;
mod controls;
mod escape;
mod filters;
mod isolation;
mod layers;
mod lifecycle;
mod policy;
mod terminal;
mod user;
