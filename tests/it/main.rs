//! The product as its users meet it, on the real kernel: one module for each
//! promise.

mod attack;
mod cell;
mod controls;
mod escape;
mod isolation;
mod layers;
mod lifecycle;
mod policy;
mod programs;
mod terminal;
mod user;
