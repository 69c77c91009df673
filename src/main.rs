//! The `cellblock` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(cellblock::run(std::env::args_os().collect()))
}
