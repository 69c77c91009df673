//! `cargo xtask`: what the project makes and checks of itself.

mod bench;
mod filters;

use clap::Parser;

/// What the project makes and checks of itself.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    Bench(bench::Args),
    #[command(hide = true, subcommand)]
    Inside(bench::inside::Task),
    Filters(filters::Args),
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::Bench(args) => bench::run(args),
        Task::Inside(task) => bench::inside::run(task),
        Task::Filters(args) => filters::run(args),
    }
}
