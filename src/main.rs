//! The `cellblock` command.
//!
//! It has no Rust runtime: that would open `/dev/null` in place of a standard
//! stream that is closed, where [`cellblock::run`] has to refuse it, and read
//! `/proc/self/maps` before every launch.

#![no_main]

use std::ffi::{c_char, c_int};

// `no_mangle` is the one unsafe attribute outside `src/sys`: the C library
// looks for its entry by this name, and no other crate here defines it.
#[unsafe(no_mangle)]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    // The C library has handed the arguments to the standard library before.
    cellblock::run(std::env::args_os().collect()).into()
}
