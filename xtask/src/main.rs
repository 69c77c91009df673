//! `cargo xtask`: what the project makes and checks of itself.

fn main() {}
