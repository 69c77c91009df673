//! `cargo xtask bench`: what a cell costs, beside bubblewrap with the same
//! mounts and namespaces and beside a bare fork and exec, on the same machine
//! in the same run.

mod calls;
mod cells;
mod filters;
pub mod inside;
mod launch;
mod memory;
mod programs;
mod scope;
mod stage;
mod statistics;

use std::fmt;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use stage::Stage;

/// Measures what a cell costs, beside bubblewrap and a bare fork and exec.
///
/// A figure that misses its bar is printed as missed and is no failure; a
/// measurement that is not valid is one.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure; everything by default.
    series: Vec<Series>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Measure launches against this cellblock too, as that of the commit before.
    #[arg(long, value_name = "FILE")]
    before: Option<std::path::PathBuf>,
    /// Measure with what an outer `bench`, started by root, has laid out.
    #[arg(long, hide = true)]
    stage: Option<std::path::PathBuf>,
}

/// One series of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Series {
    /// One launch after another.
    Launch,
    /// The same among 4,000 mounts.
    Mounts,
    /// Launches a second, two at a time.
    Throughput,
    /// Memory of launcher and init while the provider runs.
    Memory,
    /// Single system calls in the cell.
    Calls,
    /// `git status` and `cargo build` in the cell.
    Programs,
    /// Installing a filter, and calling under it.
    Filters,
    /// Hiding, a channel, and protected paths.
    Scope,
    /// The test from within.
    Verify,
}

/// One figure and what it should reach.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    name: String,
    /// A ratio, or what the name says.
    value: f64,
    /// What it should reach.
    bar: Bar,
    /// The measurements behind it.
    detail: String,
}

/// What a figure should reach.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bar {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

impl Bar {
    fn is_met(self, value: f64) -> bool {
        match self {
            Bar::AtMost(bar) => value <= bar,
            Bar::AtLeast(bar) => value >= bar,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bar::AtMost(bar) => write!(f, "≤ {bar:.2}"),
            Bar::AtLeast(bar) => write!(f, "≥ {bar:.2}"),
        }
    }
}

/// Builds the release binary, measures, and prints.
pub fn run(args: Args) -> Result<()> {
    let series = if args.series.is_empty() { Series::value_variants().to_vec() } else { args.series };
    if let Some(dir) = args.stage {
        let stage = Stage::enter(&dir)?;
        println!("{}", serde_json::to_string(&measure(&stage, &series)?)?);
        return Ok(());
    }
    let stage = Stage::build(args.before.as_deref())?;
    eprintln!("measuring as {}:{}", stage.user.uid, stage.user.gid);
    let (memory, others): (Vec<_>, Vec<_>) = series.into_iter().partition(|series| *series == Series::Memory);
    let mut figures = if others.is_empty() {
        vec![]
    } else if stage.user.started_by_root {
        stage.measure_as_user(&others)?
    } else {
        measure(&stage, &others)?
    };
    if !memory.is_empty() {
        figures.extend(memory::measure(&stage)?);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        print_table(&figures);
    }
    Ok(())
}

fn measure(stage: &Stage, series: &[Series]) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for one in series {
        eprintln!("measuring {one:?}");
        figures.extend(
            match one {
                Series::Launch => launch::one_at_a_time(stage),
                Series::Mounts => launch::among_mounts(stage),
                Series::Throughput => launch::two_at_a_time(stage),
                Series::Memory => memory::measure(stage),
                Series::Calls => calls::measure(stage),
                Series::Programs => programs::measure(stage),
                Series::Filters => filters::measure(),
                Series::Scope => scope::measure(stage),
                Series::Verify => scope::verify(stage),
            }
            .with_context(|| format!("{one:?} could not be measured"))?,
        );
    }
    ensure!(figures.iter().all(|figure| figure.value.is_finite()), "a measurement came to nothing");
    Ok(figures)
}

fn print_table(figures: &[Figure]) {
    let width = figures.iter().map(|figure| figure.name.chars().count()).max().unwrap_or(0);
    println!("{:width$}  {:>6}  {:>6}  met", "figure", "value", "bar");
    for figure in figures {
        let met = if figure.bar.is_met(figure.value) { "yes" } else { "NO" };
        println!(
            "{:width$}  {:>6.3}  {:>6}  {met:3}  {}",
            figure.name,
            figure.value,
            figure.bar.to_string(),
            figure.detail
        );
    }
}
