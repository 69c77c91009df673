//! The seccomp filters: text → decisions → graph → program.
//!
//! [`source`] reads the text, [`decide`] puts numbers for names, [`tree`] makes comparisons of the
//! decisions and [`bpf`] instructions of the comparisons. The rest shows what came of it.

pub mod bpf;
pub mod decide;
mod diff;
mod disasm;
mod generate;
pub mod install;
mod news;
mod render;
pub mod source;
pub mod table;
#[cfg(test)]
mod tests;
mod trace;
pub mod tree;
mod why;

use std::fs;
use std::path::Path;

use anyhow::Context;

use bpf::Insn;
use decide::Decisions;
use source::{Place, Source};

/// Compile the filters, or ask about them.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Write nothing; fail if what is committed is not what the sources make
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    question: Option<Question>,
}

#[derive(clap::Subcommand)]
enum Question {
    Diff(diff::Args),
    Why(why::Args),
    Trace(trace::Args),
    News(news::Args),
}

/// Runs `cargo xtask filters`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.question {
        None if args.check => generate::check(),
        None => generate::write(),
        Some(Question::Diff(args)) => diff::run(args),
        Some(Question::Why(args)) => why::run(args),
        Some(Question::Trace(args)) => trace::run(args),
        Some(Question::News(args)) => news::run(args),
    }
}

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is below the root")
}

/// The names of all filters: a filter is a file `filters/NAME.filter`.
pub fn names() -> anyhow::Result<Vec<String>> {
    let directory = root().join("filters");
    let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        let file = entry?.file_name();
        names.extend(file.to_string_lossy().strip_suffix(".filter").map(ToOwned::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Reads the filter of that name from the work tree.
pub fn load(name: &str) -> Result<Source, source::Error> {
    let read = |file: &str| fs::read_to_string(root().join("filters").join(file));
    source::load(&format!("{name}.filter"), &read)
}

/// The program for `decisions`.
pub fn compile(decisions: &Decisions) -> Result<Vec<Insn>, source::Error> {
    let (graph, start) = tree::Graph::new(decisions);
    let place = Place { file: format!("{}.filter", decisions.name), line: 1 };
    bpf::assemble(&graph, start, &place)
}
