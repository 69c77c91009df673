//! The seccomp filters: text → decisions → graph → program.
//!
//! [`source`] reads the text, [`decide`] puts numbers for names, [`tree`] makes comparisons of the
//! decisions and [`bpf`] instructions of the comparisons. The rest shows what came of it.

pub mod bpf;
pub mod decide;
mod diff;
mod disasm;
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
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use bpf::Insn;
use decide::Decisions;
use source::{Place, Source};
use table::Arch;

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
        None => generate(args.check),
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
    let entries = fs::read_dir(&directory).with_context(|| format!("{}", directory.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "filter") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
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

fn generate(check: bool) -> anyhow::Result<()> {
    let mut made: Vec<(PathBuf, String)> = Vec::new();
    let directory = root().join("filters/generated");
    for name in names()? {
        let source = load(&name)?;
        for arch in Arch::ALL {
            let decisions = Decisions::new(&source, arch)?;
            let program = compile(&decisions)?;
            let mut add =
                |kind: &str, text| made.push((directory.join(format!("{name}.{arch}.{kind}")), text));
            add("rs", render::program(&name, &program));
            add("txt", disasm::disassemble(&program, arch));
            add("decisions", render::decisions(&decisions));
            if !check {
                println!("{name} {arch}: {} calls, {} instructions", decisions.calls.len(), program.len());
            }
        }
    }
    let stale: Vec<PathBuf> = fs::read_dir(&directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| !made.iter().any(|(ours, _)| ours == path))
        .collect();
    if check {
        let differs =
            |(path, text): &&(PathBuf, String)| fs::read_to_string(path).ok().as_ref() != Some(text);
        let changed = made.iter().filter(differs).map(|(path, _)| path).chain(&stale);
        let changed: Vec<String> = changed.map(|path| format!("\n  {}", path.display())).collect();
        if !changed.is_empty() {
            bail!("not what the sources in filters/ make:{}\nrun: cargo xtask filters", changed.concat());
        }
        return Ok(());
    }
    fs::create_dir_all(&directory)?;
    for path in stale {
        fs::remove_file(&path).with_context(|| format!("{}", path.display()))?;
    }
    for (path, text) in made {
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}
