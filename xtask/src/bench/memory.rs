//! Memory of what stays beside the provider: the launcher and init.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::cells::{bubblewrap, cell};
use super::stage::Stage;
use super::statistics::{CommandLine, command, median};
use super::{Bar, Figure};

/// Cells of each kind.
const CELLS: usize = 7;

/// Measures both in turn. Init is not dumpable, so only root may read how much
/// it takes.
pub fn measure(stage: &Stage) -> Result<Vec<Figure>> {
    if !stage.user.started_by_root {
        eprintln!("memory is not measured: only root may look into init; start as root");
        return Ok(vec![]);
    }
    let sleep = ["/bin/sleep", "60"].map(Into::into);
    let run_as = format!("{}:{}", stage.user.uid, stage.user.gid);
    let options = ["--run-as".into(), run_as.into()];
    stage.verify_as_user()?;
    let full = cell(stage, &[], &sleep);
    let other = bubblewrap(stage, &options, &sleep)?;
    let (mut fulls, mut others) = (Vec::new(), Vec::new());
    for _ in 0..CELLS {
        fulls.push(memory_of(stage, &full)?);
        others.push(memory_of(stage, &other)?);
    }
    stage.verify_as_user()?;
    let [full, other] = [fulls, others].map(|sizes| median(&sizes));
    Ok(vec![Figure {
        name: "memory of launcher and init / bubblewrap's two".to_owned(),
        value: full / other,
        bar: Bar::AtMost(1.2),
        detail: format!("Pss {full:.0} kB / {other:.0} kB; medians of {CELLS}"),
    }])
}

/// Starts the cell, waits until its provider runs, and sums up the launcher
/// and init.
fn memory_of(stage: &Stage, line: &CommandLine) -> Result<f64> {
    let mut child = command(line).uid(stage.user.uid).gid(stage.user.gid).current_dir("/").spawn()?;
    let size = sum(&child);
    // The death of the launcher ends the cell.
    child.kill()?;
    child.wait()?;
    size
}

fn sum(launcher: &Child) -> Result<f64> {
    let init = only_child(launcher.id())?;
    let provider = only_child(init)?;
    let deadline = Instant::now() + Duration::from_secs(5);
    while fs::read_to_string(format!("/proc/{provider}/comm"))?.trim() != "sleep" {
        if Instant::now() > deadline {
            bail!("the provider was not started");
        }
        thread::sleep(Duration::from_millis(5));
    }
    // Let the launcher come to rest in its poll.
    thread::sleep(Duration::from_millis(50));
    Ok(proportional_size(launcher.id())? + proportional_size(init)?)
}

/// Kilobytes.
fn proportional_size(pid: u32) -> Result<f64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|line| line.trim().strip_suffix(" kB"))
        .and_then(|size| size.trim().parse().ok())
        .with_context(|| format!("smaps_rollup of {pid} has no Pss"))
}

/// The child of a process, once there is one.
fn only_child(pid: u32) -> Result<u32> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        for entry in fs::read_dir("/proc")? {
            let Some(other) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if parent(other) == Some(pid) {
                return Ok(other);
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    bail!("process {pid} has no child")
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold blanks and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}
