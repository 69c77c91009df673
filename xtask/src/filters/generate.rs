//! `cargo xtask filters`: makes `filters/generated/` of the sources, or sees that it is what they
//! make.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::decide::Decisions;
use super::table::Arch;
use super::{compile, disasm, load, names, render, root};

/// A file below `filters/generated/`, by name, with its text.
type Generated = (String, String);

/// Runs `cargo xtask filters`.
pub fn write() -> anyhow::Result<()> {
    let directory = directory();
    let made = make()?;
    fs::create_dir_all(&directory)?;
    for path in left_over(&directory, &made) {
        fs::remove_file(&path).with_context(|| path.display().to_string())?;
    }
    for (file, text) in made {
        let path = directory.join(file);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Runs `cargo xtask filters --check`.
pub fn check() -> anyhow::Result<()> {
    let stale = stale(&directory(), &make()?);
    let list: String = stale.iter().map(|path| format!("\n  {}", path.display())).collect();
    ensure!(stale.is_empty(), "not what the sources in filters/ make:{list}\nrun: cargo xtask filters");
    Ok(())
}

fn directory() -> PathBuf {
    root().join("filters/generated")
}

fn make() -> anyhow::Result<Vec<Generated>> {
    let mut made = Vec::new();
    for name in names()? {
        let source = load(&name)?;
        for arch in Arch::ALL {
            let decisions = Decisions::new(&source, arch)?;
            let program = compile(&decisions)?;
            made.push((format!("{name}.{arch}.rs"), render::program(&name, &program)));
            made.push((format!("{name}.{arch}.txt"), disasm::disassemble(&program, arch)));
            made.push((format!("{name}.{arch}.decisions"), render::decisions(&decisions)));
        }
    }
    Ok(made)
}

/// Files that are missing, differ, or are of a filter that is gone.
fn stale(directory: &Path, made: &[Generated]) -> Vec<PathBuf> {
    let mut stale = left_over(directory, made);
    for (file, text) in made {
        let path = directory.join(file);
        if fs::read_to_string(&path).ok().as_ref() != Some(text) {
            stale.push(path);
        }
    }
    stale
}

fn left_over(directory: &Path, made: &[Generated]) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| !made.iter().any(|(file, _)| path.ends_with(file))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_committed_is_what_the_sources_make() {
        check().unwrap();
    }

    #[test]
    fn stale_files_are_found() {
        let directory = std::env::temp_dir().join(format!("filters-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        for (file, text) in [("same", "1"), ("differs", "old"), ("gone", "1")] {
            fs::write(directory.join(file), text).unwrap();
        }
        let made = [("same", "1"), ("differs", "new"), ("missing", "1")];
        let made = made.map(|(file, text)| (file.to_owned(), text.to_owned()));
        let stale = stale(&directory, &made);
        fs::remove_dir_all(&directory).unwrap();
        let expected = ["gone", "differs", "missing"].map(|file| directory.join(file));
        assert_eq!(stale, expected);
    }
}
