//! The product as its users meet it, on the real kernel.

mod lifecycle;
mod policy;
mod terminal;
mod user;
