//! `cargo xtask tidy`: what the compiler does not hold and this project does.

mod code;
mod imports;
mod lines;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Checks the imports between modules, `unsafe` and its comments, attributes, and
/// the form of files.
#[derive(clap::Args)]
pub struct Args {}

/// A file of the project.
struct Source {
    /// From the root of the project, with `/`.
    path: String,
    text: String,
}

/// A rule that is broken, and where.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// Counted from 1.
    line: usize,
    what: String,
}

impl Source {
    fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Prints every broken rule; fails where there is one.
pub fn run(_: Args) -> Result<()> {
    let root = root();
    let mut sources = Vec::new();
    for place in ["src", "xtask", "tests", "docs", "filters", ".ci"] {
        collect(&root, Path::new(place), &mut sources)?;
    }
    for entry in fs::read_dir(&root)? {
        let path = entry?.path();
        if path.is_file() && is_ours(&path) {
            sources.push(read(&root, path.strip_prefix(&root)?)?);
        }
    }
    sources.sort_by(|one, other| one.path.cmp(&other.path));
    let text = |path: &str| {
        let source = sources.iter().find(|source| source.path == path);
        source.map(|source| source.text.as_str()).with_context(|| format!("{path} is missing"))
    };

    let mut findings = imports::check(&sources, text("docs/architecture.md")?)?;
    for source in &sources {
        findings.extend(lines::check(source));
        if source.is_rust() {
            findings.extend(code::check(source));
        }
    }
    for Finding { path, line, what } in &findings {
        println!("{path}:{line}: {what}");
    }
    match findings.len() {
        0 => Ok(()),
        count => bail!("{count} rules are broken"),
    }
}

/// The root of the project.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

fn collect(root: &Path, place: &Path, sources: &mut Vec<Source>) -> Result<()> {
    let directory = root.join(place);
    if !directory.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = place.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            // What is generated or recorded has the form that its maker gave it.
            if !["generated", "snapshots", "target"].contains(&&*entry.file_name().to_string_lossy()) {
                collect(root, &path, sources)?;
            }
        } else if is_ours(&path) {
            sources.push(read(root, &path)?);
        }
    }
    Ok(())
}

fn is_ours(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default();
    path == Path::new(".ci/run") || ["rs", "md", "toml", "filter"].iter().any(|known| extension == *known)
}

fn read(root: &Path, path: &Path) -> Result<Source> {
    let text = fs::read_to_string(root.join(path)).with_context(|| path.display().to_string())?;
    Ok(Source { path: path.to_string_lossy().into_owned(), text })
}

#[cfg(test)]
fn source(path: &str, text: &str) -> Source {
    Source { path: path.to_owned(), text: text.to_owned() }
}
