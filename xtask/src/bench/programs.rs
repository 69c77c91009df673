//! Real programs: the same work in a cell and outside.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::cells::{cell, nothing, verify};
use super::stage::Stage;
use super::statistics::{CommandLine, command, median, time};
use super::{Bar, Figure};

/// Files that `git status` looks at.
const FILES: usize = 50_000;

/// Rounds of one run inside and one outside.
const STATUS_ROUNDS: usize = 30;
const BUILD_ROUNDS: usize = 12;

/// Measures `git status` and `cargo build`, launches and all.
pub fn measure(stage: &Stage) -> Result<Vec<Figure>> {
    Ok(vec![git_status(stage)?, cargo_build(stage)?])
}

fn git_status(stage: &Stage) -> Result<Figure> {
    let repository = stage.scratch().join("repository");
    make_repository(&repository)?;
    let outside = words(["git", "-C"]).chain([repository.clone().into(), "status".into()]).collect();
    let options: Vec<OsString> = vec!["--workspace".into(), repository.into()];
    let inside = cell(stage, &options, &words(["git", "status"]).collect::<Vec<_>>());
    let name = format!("git status over {FILES} files, in the cell / outside");
    compare(stage, name, &options, [&inside, &outside], STATUS_ROUNDS, || Ok(()))
}

fn cargo_build(stage: &Stage) -> Result<Figure> {
    let project = stage.scratch().join("project");
    make_project(&project)?;
    let toolchain = stage.toolchain()?;
    let mut path = OsString::from("PATH=");
    path.push(toolchain.join("bin"));
    path.push(":/usr/local/bin:/usr/bin:/bin");
    let build = |project: &Path| -> CommandLine {
        let target = project.join("target");
        let mut manifest = OsString::from("--manifest-path=");
        manifest.push(project.join("Cargo.toml"));
        let mut home = OsString::from("CARGO_HOME=");
        home.push(target.join("home"));
        words(["/usr/bin/env"])
            .chain([path.clone(), home])
            .chain(words(["cargo", "build", "--quiet", "--offline"]))
            .chain([manifest])
            .collect()
    };
    let options: Vec<OsString> =
        vec!["--ro-bind".into(), toolchain.clone().into(), "--workspace".into(), project.clone().into()];
    let inside = cell(stage, &options, &build(Path::new("/work")));
    let outside = build(&project);
    let name = "cargo build, in the cell / outside".to_owned();
    let target = project.join("target");
    compare(stage, name, &options, [&inside, &outside], BUILD_ROUNDS, || {
        if target.exists() {
            fs::remove_dir_all(&target)?;
        }
        Ok(())
    })
}

/// Runs both in turn; `prepare` is not part of the time.
fn compare(
    stage: &Stage,
    name: String,
    options: &[OsString],
    lines: [&CommandLine; 2],
    rounds: usize,
    prepare: impl Fn() -> Result<()>,
) -> Result<Figure> {
    verify(stage, options)?;
    // The launch alone, to tell what the program itself takes in the cell.
    let launch = cell(stage, options, &nothing());
    let [inside, outside] = lines;
    let lines = [inside, outside, &launch];
    let mut times = [vec![], vec![], vec![]];
    for line in lines {
        prepare()?;
        time(line)?;
    }
    for round in 0..rounds {
        for index in [round % 2, (round + 1) % 2, 2] {
            prepare()?;
            times[index].push(time(lines[index])?);
        }
    }
    verify(stage, options)?;
    let [inside, outside, launch] = times.map(|times| median(&times));
    Ok(Figure {
        name,
        value: inside / outside,
        bar: Bar::AtMost(1.05),
        detail: format!(
            "{inside:.1} ms / {outside:.1} ms; without the launch of {launch:.1} ms {:.3}; medians of {rounds}",
            (inside - launch) / outside
        ),
    })
}

fn make_repository(path: &Path) -> Result<()> {
    /// Files of one directory.
    const EACH: usize = 100;
    for directory in 0..FILES / EACH {
        let directory = path.join(format!("{:02}/{directory:03}", directory % 20));
        fs::create_dir_all(&directory)?;
        for file in 0..EACH {
            fs::write(directory.join(format!("file{file:02}.txt")), format!("{file}\n"))?;
        }
    }
    let git = |arguments: &[&str]| {
        let line: CommandLine = words(["git", "-C"])
            .chain([path.as_os_str().to_owned()])
            .chain(arguments.iter().map(OsString::from))
            .collect();
        let output = command(&line).output()?;
        ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    git(&["init", "--quiet"])?;
    git(&["config", "user.name", "bench"])?;
    git(&["config", "user.email", "bench@example.invalid"])?;
    git(&["config", "gc.auto", "0"])?;
    git(&["add", "."])?;
    git(&["commit", "--quiet", "--message", "files"])
}

/// A crate that takes about a second to build.
fn make_project(path: &Path) -> Result<()> {
    const FUNCTIONS: usize = 40;
    fs::create_dir_all(path.join("src"))?;
    fs::write(
        path.join("Cargo.toml"),
        "[package]\nname = \"project\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n",
    )?;
    let mut source = String::new();
    for index in 0..FUNCTIONS {
        writeln!(
            source,
            "pub fn f{index}(words: &[String]) -> std::collections::BTreeMap<String, [u8; {size}]> {{
    words.iter().map(|word| (format!(\"{{word}} {index}\"), [0; {size}])).collect()
}}",
            size = index % 8 + 1
        )?;
    }
    source.push_str("fn main() {\n");
    for index in 0..FUNCTIONS {
        writeln!(source, "    println!(\"{{:?}}\", f{index}(&[]));")?;
    }
    source.push_str("}\n");
    fs::write(path.join("src/main.rs"), source).context("src/main.rs")
}

fn words<const N: usize>(words: [&'static str; N]) -> impl Iterator<Item = OsString> {
    words.into_iter().map(OsString::from)
}
