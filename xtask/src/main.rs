//! `cargo xtask`: what the project makes and checks of itself.

mod filters;

use clap::Parser;

/// What the project makes and checks of itself.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    Filters(filters::Args),
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::Filters(args) => filters::run(args),
    }
}
