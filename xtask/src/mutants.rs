//! `cargo xtask mutants`: changes of the code that decides, each of which a test must notice.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::tidy::root;

/// What is changed: code that needs no cell to be tested.
const CODE: [&str; 5] = [
    "src/plan/**/*.rs",
    "src/policy/**/*.rs",
    "src/lint/**/*.rs",
    "src/verify/judge.rs",
    "src/verify/gate.rs",
];

/// The tests of it, by parts of their names.
const TESTS: [&str; 6] = ["plan::", "policy::", "lint::", "shown::", "verify::judge", "verify::gate"];

/// Changes the code that decides and lists each change that no test notices (hours; needs cargo-mutants).
#[derive(clap::Args)]
pub struct Args {
    /// Files to change, as `src/lint/missing.rs`; all by default.
    files: Vec<String>,
}

/// Runs cargo-mutants.
pub fn run(args: &Args) -> Result<()> {
    let output = Command::new("cargo").args(["mutants", "--version"]).output().context("cargo")?;
    ensure!(output.status.success(), "cargo-mutants is missing: cargo install cargo-mutants");
    let default = CODE.map(str::to_owned);
    let files = if args.files.is_empty() { &default[..] } else { &args.files };
    let mut mutants = Command::new("cargo");
    mutants.current_dir(root()).args(["mutants", "--package", "cellblock", "--output", "target/mutants"]);
    for file in files {
        mutants.args(["--file", file]);
    }
    mutants.args(["--", "--lib", "--test", "it", "--"]).args(TESTS);
    match mutants.status()?.code() {
        Some(0) => Ok(()),
        Some(2) => bail!("no test notices some changes: target/mutants/mutants.out/missed.txt"),
        code => bail!("cargo mutants ended with {code:?}"),
    }
}
