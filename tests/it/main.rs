//! The tests, one module for each promise.

mod cell;
mod controls;
mod escape;
mod isolation;
