//! Seals one AI agent in a cell of its own.

fn main() {}
