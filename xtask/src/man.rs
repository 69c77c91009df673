//! `cargo xtask man` and `cargo xtask completions`, into `target/dist/`.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use clap_complete::{Shell, generate_to};

use crate::tidy::root;

/// Writes a man page for each command to target/dist/man.
#[derive(clap::Args)]
pub struct ManArgs {}

/// Writes completions for bash, zsh and fish to target/dist/completions.
#[derive(clap::Args)]
pub struct CompletionsArgs {}

/// Writes the man pages.
pub fn man(_: ManArgs) -> Result<()> {
    let directory = directory("man")?;
    for page in cellblock::manual::pages() {
        fs::write(directory.join(page.file), page.text)?;
    }
    println!("{}", directory.display());
    Ok(())
}

/// Writes the completions.
pub fn completions(_: CompletionsArgs) -> Result<()> {
    let directory = directory("completions")?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut cellblock::cli::for_completion(), "cellblock", &directory)?;
    }
    println!("{}", directory.display());
    Ok(())
}

fn directory(name: &str) -> Result<PathBuf> {
    let directory = root().join("target/dist").join(name);
    fs::create_dir_all(&directory)?;
    Ok(directory)
}
