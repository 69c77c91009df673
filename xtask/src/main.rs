//! `cargo xtask`: what the project makes and checks of itself. One module a task.

mod bench;
mod compat;
mod filters;

use std::process::ExitCode;

use clap::Parser;

/// What the project makes and checks of itself.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    Filters(filters::Args),
    #[command(subcommand)]
    Bench(bench::Args),
    Compat(compat::Args),
}

fn main() -> ExitCode {
    let done = match Task::parse() {
        Task::Filters(args) => filters::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Compat(args) => compat::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
