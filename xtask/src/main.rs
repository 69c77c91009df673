//! `cargo xtask`: what the project makes and checks of itself. One module a task.

mod bench;
mod compat;
mod filters;
mod man;
mod mutants;
mod schema;
mod tidy;

use std::process::ExitCode;

use clap::Parser;

/// What the project makes and checks of itself.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    Bench(bench::Args),
    #[command(hide = true, subcommand)]
    Inside(bench::inside::Task),
    Compat(compat::Args),
    Filters(filters::Args),
    Tidy(tidy::Args),
    Man(man::ManArgs),
    Mutants(mutants::Args),
    Completions(man::CompletionsArgs),
    Schema(schema::Args),
}

fn main() -> ExitCode {
    let done = match Task::parse() {
        Task::Bench(args) => bench::run(args),
        Task::Inside(task) => bench::inside::run(task),
        Task::Compat(args) => compat::run(&args),
        Task::Filters(args) => filters::run(&args),
        Task::Tidy(args) => tidy::run(args),
        Task::Man(args) => man::man(args),
        Task::Mutants(args) => mutants::run(&args),
        Task::Completions(args) => man::completions(args),
        Task::Schema(args) => schema::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
