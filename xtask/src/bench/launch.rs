//! Whole launches: one at a time, among many mounts, and two at a time.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use super::cells::{bubblewrap, bubblewrap_as_written, cell, nothing, verify};
use super::stage::Stage;
use super::statistics::{CommandLine, alternate, median, time};
use super::{Bar, Figure};

/// Rounds of one cell, one bubblewrap and one bare process each.
const ROUNDS: usize = 300;

/// The same among many mounts, where bubblewrap takes a tenth of a second.
const ROUNDS_AMONG_MOUNTS: usize = 100;

/// Mounts of a busy host.
const MOUNTS: usize = 4000;

/// One launch after another.
pub fn one_at_a_time(stage: &Stage) -> Result<Vec<Figure>> {
    let full = cell(stage, &[], &nothing());
    let mut figures =
        vec![against_the_same_mounts(stage, "full cell / bubblewrap".to_owned(), ROUNDS, 0.80)?];
    let written = bubblewrap_as_written(stage, &nothing());
    let own = cell(stage, &["--expose".into(), stage.scratch().into()], &nothing());
    figures.push(compare(
        "full cell / bubblewrap as its users write it".to_owned(),
        ROUNDS,
        0.80,
        &own,
        &written,
    )?);
    if let Some(before) = stage.before() {
        let before = [vec![before.into()], full[1..].to_vec()].concat();
        figures.push(compare("full cell / the one before".to_owned(), ROUNDS, 1.02, &full, &before)?);
    }
    Ok(figures)
}

/// The same on a host with 4,000 mounts, which are made in a namespace of a
/// process of their own.
pub fn among_mounts(stage: &Stage) -> Result<Vec<Figure>> {
    let output = Command::new(stage.xtask())
        .args(["inside", "among-mounts"])
        .arg(stage.dir())
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the namespace could not be made");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Makes the mounts and measures, in this process's new namespaces.
pub fn in_namespace_with_mounts(dir: &Path) -> Result<Vec<Figure>> {
    let stage = Stage::enter(dir)?;
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).context("unshare")?;
    fs::write("/proc/self/setgroups", "deny").context("setgroups")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).context("uid_map")?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).context("gid_map")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("private /")?;
    let mounts = stage.scratch().join("mounts");
    fs::create_dir_all(&mounts)?;
    mount(Some("mounts"), &mounts, Some("tmpfs"), MsFlags::empty(), none).context("tmpfs")?;
    let source = mounts.join("source");
    fs::create_dir(&source)?;
    for index in 0..MOUNTS {
        let place = mounts.join(index.to_string());
        fs::create_dir(&place)?;
        mount(Some(&source), &place, none, MsFlags::MS_BIND, none)
            .with_context(|| format!("mount {index}"))?;
    }
    let name = format!("full cell / bubblewrap, {MOUNTS} mounts");
    Ok(vec![against_the_same_mounts(&stage, name, ROUNDS_AMONG_MOUNTS, 0.25)?])
}

fn against_the_same_mounts(stage: &Stage, name: String, rounds: usize, bar: f64) -> Result<Figure> {
    verify(stage, &[])?;
    let other = bubblewrap(stage, &[], &nothing())?;
    let figure = compare(name, rounds, bar, &cell(stage, &[], &nothing()), &other)?;
    verify(stage, &[])?;
    Ok(figure)
}

fn compare(name: String, rounds: usize, bar: f64, full: &CommandLine, other: &CommandLine) -> Result<Figure> {
    let [full, other, bare] = alternate([full, other, &nothing()], rounds)?;
    let [full, other, bare] = [full, other, bare].map(|times| median(&times));
    Ok(Figure {
        name,
        value: full / other,
        bar: Bar::AtMost(bar),
        detail: format!("{full:.2} ms / {other:.2} ms; bare fork and exec {bare:.2} ms; medians of {rounds}"),
    })
}

/// Launches a second with two launches under way at any time.
pub fn two_at_a_time(stage: &Stage) -> Result<Vec<Figure>> {
    /// Pairs of segments, and the launches of each thread in one.
    const SEGMENTS: usize = 10;
    const LAUNCHES: usize = 40;
    verify(stage, &[])?;
    let full = cell(stage, &[], &nothing());
    let other = bubblewrap(stage, &[], &nothing())?;
    let (mut fulls, mut others) = (Vec::new(), Vec::new());
    for segment in 0..SEGMENTS {
        let mut turns = [(&full, &mut fulls), (&other, &mut others)];
        // Neither always follows the other.
        if segment % 2 == 1 {
            turns.reverse();
        }
        for (line, rates) in turns {
            rates.push(rate(line, LAUNCHES)?);
        }
    }
    verify(stage, &[])?;
    let [full, other] = [fulls, others].map(|rates| median(&rates));
    Ok(vec![Figure {
        name: "launches a second, two at a time / bubblewrap".to_owned(),
        value: full / other,
        bar: Bar::AtLeast(1.35),
        detail: format!(
            "{full:.0}/s / {other:.0}/s; medians of {SEGMENTS} segments of {} launches",
            2 * LAUNCHES
        ),
    }])
}

fn rate(line: &CommandLine, launches: usize) -> Result<f64> {
    let started = Instant::now();
    let one = || (0..launches).try_for_each(|_| time(line).map(drop));
    thread::scope(|scope| {
        let other = scope.spawn(one);
        one()?;
        other.join().expect("the launches do not panic")
    })?;
    Ok(2.0 * launches as f64 / started.elapsed().as_secs_f64())
}
