//! A small program that the tests run inside and outside a cell.

fn main() {}
