//! Medians, and the runs they are made of.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// The middle one.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[length / 2],
        length => (sorted[length / 2 - 1] + sorted[length / 2]) / 2.0,
    }
}

/// A program and its arguments.
pub type CommandLine = Vec<OsString>;

/// The environment of every measured program.
pub const ENVIRONMENT: [(&str, &str); 3] =
    [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("HOME", "/nonexistent")];

/// A command that std starts by `posix_spawn`: no id, no hook and no working
/// directory is set, which would make it fork and copy this process.
pub fn command(line: &[OsString]) -> Command {
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).env_clear().envs(ENVIRONMENT).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Runs a command to its end; returns the milliseconds that took.
pub fn time(line: &[OsString]) -> Result<f64> {
    let mut command = command(line);
    let started = Instant::now();
    let status = command.status().with_context(|| format!("{} cannot be started", line[0].display()))?;
    let elapsed = started.elapsed();
    ensure!(status.success(), "{line:?} ended with {status}");
    Ok(elapsed.as_secs_f64() * 1e3)
}

/// Runs the commands in turn, beginning with another one in each round, so
/// that none always follows the same; returns the milliseconds of each.
pub fn alternate<const N: usize>(lines: [&CommandLine; N], rounds: usize) -> Result<[Vec<f64>; N]> {
    let mut times = [const { Vec::new() }; N];
    // The first launch of each reads its program from the disk.
    for line in lines {
        time(line)?;
    }
    for round in 0..rounds {
        for index in (0..N).map(|index| (index + round) % N) {
            times[index].push(time(lines[index])?);
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
