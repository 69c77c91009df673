//! The run's own scope: what a launch pays for hiding, for a channel, for
//! protected paths, and for the test of all that from within.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::cells::{cell, hold, nothing};
use super::stage::Stage;
use super::statistics::{CommandLine, alternate, command, median};
use super::{Bar, Figure};

/// Runs in the instance, one of them the cell's own.
const RUNS: usize = 1_200;

/// Rounds of one cell and one other each.
const ROUNDS: usize = 300;

/// The same where the one takes many times as long.
const ROUNDS_ONE_BY_ONE: usize = 50;

/// Milliseconds that a part of the scope may add to a launch, and the test.
const BAR: f64 = 2.0;
const TEST_BAR: f64 = 5.0;

const READ_ONLY: &str = "[filesystem]\nro_bind = ['instance']\n";
const WRITABLE: &str = "[filesystem]\nbind = ['instance']\n";
const HIDDEN: &str = "[run]\nhide = ['instance/runs']\nexpose = ['instance/runs/own']\n";
const CHANNEL: &str = "[channel]\ndir = 'channel'\nfifo = ['activity.fifo']\nlock = ['activity.lock']\n\
                       read_only = ['descriptor.json']\n";
const WORKSPACE: &str = "[workspace]\ndir = 'workspace'\n";

/// Tests of the shell, in the directory of the instance.
const ALL_SEEN: &str = "test -s runs/0001/state -a -s runs/own/state";
const NONE_SEEN: &str = "test ! -e runs/0001 -a ! -e runs/1199 -a -w runs/own/state";
const OTHERS_UNSEEN: &str = "test ! -e runs/0001 -a ! -e runs/1199 -a -s runs/own/state";
const BY_OVERLAY: &str = "grep -q '/instance .* - overlay ' /proc/self/mountinfo";

/// Measures each part of the scope against the same cell without it.
pub fn measure(stage: &Stage) -> Result<Vec<Figure>> {
    let site = Site::lay_out(stage)?;
    let view = site.cell("view", &[READ_ONLY], ALL_SEEN)?;
    let hidden = site.cell("hidden", &[READ_ONLY, HIDDEN], &format!("{NONE_SEEN} && {BY_OVERLAY}"))?;
    let each = one_by_one();
    let one_by_one =
        site.cell("one-by-one", &[READ_ONLY, &each], &format!("{OTHERS_UNSEEN} && {BY_OVERLAY}"))?;
    let writable = site.cell("writable", &[WRITABLE], ALL_SEEN)?;
    let masked = site.cell("masked", &[WRITABLE, HIDDEN], NONE_SEEN)?;
    let channel =
        site.cell("channel", &[CHANNEL], "grep -q '/channel .* - overlay ' /proc/self/mountinfo")?;
    let replaceable = [CHANNEL, "replaceable = true\n"];
    let replaceable =
        site.cell("replaceable", &replaceable, "! grep -q ' - overlay ' /proc/self/mountinfo")?;
    let protected =
        site.cell("protected", &[WORKSPACE], "! touch /work/.git/hooks/pre-commit 2> /dev/null")?;
    let unprotected = [WORKSPACE, "protect = []\n"];
    let unprotected = site.cell("unprotected", &unprotected, "touch /work/.git/hooks/pre-commit")?;
    let siblings = RUNS - 1;
    Ok(vec![
        more(stage, &format!("{siblings} runs hidden in one, one exposed"), BAR, [&hidden, &view], ROUNDS)?,
        more(
            stage,
            &format!("{siblings} runs hidden one by one"),
            BAR,
            [&one_by_one, &view],
            ROUNDS_ONE_BY_ONE,
        )?,
        more(stage, "the same in one, in a writable view", BAR, [&masked, &writable], ROUNDS)?,
        more(stage, "a channel by overlay, above one of binds", BAR, [&channel, &replaceable], ROUNDS)?,
        more(stage, "the default protected paths", BAR, [&protected, &unprotected], ROUNDS)?,
    ])
}

/// Measures `--verify` on a cell with all of the scope.
pub fn verify(stage: &Stage) -> Result<Vec<Figure>> {
    let site = Site::lay_out(stage)?;
    let sound = site.cell("sound", &[READ_ONLY, HIDDEN, CHANNEL], NONE_SEEN)?;
    let mut tested = Cell { options: sound.options.clone(), check: sound.check.clone() };
    tested.options.push("--verify".into());
    Ok(vec![more(stage, "--verify", TEST_BAR, [&tested, &sound], ROUNDS)?])
}

/// What a cell is launched with, and a payload that fails unless it is what
/// was meant.
struct Cell {
    options: CommandLine,
    check: CommandLine,
}

impl Cell {
    fn verify(&self, stage: &Stage) -> Result<()> {
        hold(stage, &self.options)?;
        let line = cell(stage, &self.options, &self.check);
        let status = command(&line).status()?;
        ensure!(status.success(), "{line:?} ended with {status}: the cell is not what was meant");
        Ok(())
    }
}

/// The milliseconds that a launch of the first takes more than one of the second.
fn more(stage: &Stage, what: &str, bar: f64, cells: [&Cell; 2], rounds: usize) -> Result<Figure> {
    let verify = || cells.iter().try_for_each(|cell| cell.verify(stage));
    verify()?;
    let [with, without] = cells.map(|one| cell(stage, &one.options, &nothing()));
    let [with, without] = alternate([&with, &without], rounds)?.map(|times| median(&times));
    verify()?;
    Ok(Figure {
        name: format!("ms more: {what}"),
        value: with - without,
        bar: Bar::AtMost(bar),
        detail: format!("{with:.2} ms, {without:.2} ms without; medians of {rounds}"),
    })
}

/// An instance with many runs, a channel, and a workspace.
struct Site {
    dir: PathBuf,
}

impl Site {
    fn lay_out(stage: &Stage) -> Result<Site> {
        let dir = stage.scratch().join("scope");
        let site = Site { dir };
        if site.dir.exists() {
            return Ok(site);
        }
        let others = (1..RUNS).map(|run| format!("{run:04}"));
        for run in others.chain(["own".to_owned()]) {
            let run = site.dir.join("instance/runs").join(run);
            fs::create_dir_all(&run)?;
            fs::write(run.join("state"), "state\n")?;
        }
        for directory in ["channel", "workspace/.git/hooks", "workspace/.vscode", "workspace/.claude"] {
            fs::create_dir_all(site.dir.join(directory))?;
        }
        mkfifo(&site.dir.join("channel/activity.fifo"), Mode::S_IRUSR | Mode::S_IWUSR)?;
        for file in ["channel/activity.lock", "channel/descriptor.json", "workspace/.claude/settings.json"] {
            fs::write(site.dir.join(file), "{}\n")?;
        }
        Ok(site)
    }

    fn cell(&self, name: &str, policy: &[&str], check: &str) -> Result<Cell> {
        let file = self.dir.join(name).with_extension("toml");
        fs::write(&file, format!("version = 1\n{}", policy.concat())).with_context(|| format!("{file:?}"))?;
        // The directory is not there in every cell.
        let script = format!("cd \"$0\" 2> /dev/null; {check}");
        let check = ["/bin/sh".into(), "-c".into(), script.into(), self.dir.join("instance").into()];
        Ok(Cell { options: vec!["--policy".into(), file.into()], check: check.into() })
    }
}

fn one_by_one() -> String {
    let mut policy = "[run]\nhide = [\n".to_owned();
    for run in 1..RUNS {
        writeln!(policy, "'instance/runs/{run:04}',").expect("a string takes all");
    }
    policy.push_str("]\n");
    policy
}
