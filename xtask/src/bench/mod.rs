//! `cargo xtask bench`: what things cost, on this machine, now.

mod filters;

/// Measure, and fail where a figure is not reached
#[derive(clap::Subcommand)]
pub enum Args {
    /// What installing a filter and calling under it cost
    Filters,
}

/// Runs `cargo xtask bench`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match args {
        Args::Filters => filters::run(),
    }
}

/// The middle of these values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One line of a report, and whether its figure is reached.
fn report(what: &str, measured: f64, limit: f64) -> bool {
    let reached = measured <= limit;
    println!("{what:<56} {measured:8.3}  ≤ {limit}  {}", if reached { "ok" } else { "MISSED" });
    reached
}
