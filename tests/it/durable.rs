//! What the cell wrote is on the host, however the run ends; and it is nowhere
//! else.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::Value;

use crate::cell::{PROBE, probe_program};
use crate::install::install;
use crate::skip;
use crate::snapshot::{Snapshot, is_as_before, snapshot};
use crate::user::{self, User, end, eventually};

/// Who is killed.
const VICTIMS: [&str; 4] = ["nobody", "provider", "init", "launcher"];
/// How many lines must have been told of before the end comes.
const LINES: usize = 200;

/// An instance that grants one place of each kind.
///
/// ```text
/// inst/runs/own     exposed          inst/traces/own   exposed, a file
/// inst/data         bound to /data   inst/tree/work    the workspace
/// inst/chan         a replaceable channel
/// inst/runs/other, inst/traces/other, inst/other       not granted
/// ```
struct Ground {
    user: User,
}

/// A granted place on the host, and the file that the cell writes by its name
/// in the cell.
struct Place {
    granted: PathBuf,
    file: PathBuf,
    inside: String,
}

impl Ground {
    fn new() -> Option<Ground> {
        let user = User::new()?;
        install(probe_program(), &user.path("probe"));
        for directory in ["runs/own", "runs/other", "traces", "data", "tree/work/.git", "chan", "other/deep"]
        {
            user.directory(&format!("inst/{directory}"));
        }
        for file in
            ["runs/other/session", "traces/own", "traces/other", "other/deep/file", "tree/work/README"]
        {
            user.file(format!("inst/{file}"), "as it was\n");
        }
        for (file, content) in [("lock", ""), ("descriptor", "{}\n"), ("helper", "#!/bin/sh\n")] {
            user.file(format!("inst/chan/{file}"), content);
        }
        let fifo = user.path("inst/chan/fifo");
        mkfifo(&fifo, Mode::from_bits_truncate(0o600)).expect("mkfifo");
        user.own(&fifo);
        let root = user.path("inst").display().to_string();
        user.file(
            "policy.toml",
            format!(
                r#"version = 1

[cell]
timeout = "60s"

[filesystem]
ro_bind = [{{ src = "{probe}", dest = "{PROBE}" }}]
bind = [{{ src = "{root}/data", dest = "/data" }}]

[run]
expose = ["{root}/runs/own", {{ path = "{root}/traces/own", kind = "file" }}]

[channel]
dir = "{root}/chan"
fifo = ["fifo"]
lock = ["lock"]
read_only = ["descriptor"]
execute = ["helper"]
replaceable = true

[workspace]
dir = "{root}/tree/work"
"#,
                probe = user.path("probe").display(),
            ),
        );
        user.file("overlay.toml", "version = 1\n[workspace]\nprotect_missing = \"overlay\"\n");
        Some(Ground { user })
    }

    fn places(&self) -> Vec<Place> {
        let root = self.user.path("inst");
        let place = |granted: &str, file: &str, inside: &str| Place {
            granted: root.join(granted),
            file: root.join(file),
            inside: if inside.is_empty() { root.join(file).display().to_string() } else { inside.to_owned() },
        };
        vec![
            place("runs/own", "runs/own/new", ""),
            place("traces/own", "traces/own", ""),
            place("data", "data/new", "/data/new"),
            place("tree/work", "tree/work/new", "/work/new"),
            place("chan", "chan/new", ""),
        ]
    }

    /// Starts a journal of so many rounds in every place, in a cell.
    fn start(&self, options: &[&str], rounds: &str) -> Run {
        let (status, writer) = io::pipe().expect("pipe");
        let number = writer.as_raw_fd().to_string();
        let policy = self.user.path("policy.toml");
        let given = ["--policy", policy.to_str().expect("a path"), "--json-status-fd", &number];
        let places = self.places();
        let mut words = vec![PROBE, "journal", rounds];
        words.extend(places.iter().map(|place| &*place.inside));
        let mut command = self.user.cell(&[&given, options].concat(), &words);
        user::keep(&mut command, writer.into());
        let mut launcher = command.stdout(Stdio::piped()).spawn().expect("the launcher starts");
        drop(command);
        let said = BufReader::new(launcher.stdout.take().expect("a pipe"));
        Run { launcher, status: BufReader::new(status), said, lines: Vec::new() }
    }

    /// All but what is granted, and this.
    fn around(&self, besides: &[&str]) -> Snapshot {
        let mut except: Vec<PathBuf> = self.places().into_iter().map(|place| place.granted).collect();
        except.extend(besides.iter().map(|name| self.user.path("inst").join(name)));
        let except: Vec<_> = except.iter().map(PathBuf::as_path).collect();
        snapshot(&self.user.path(""), &except)
    }

    /// Ends a journal by the death of one process, or lets it come to its end.
    fn end(&self, options: &[&str], victim: &str, what: &str) {
        let rounds = if victim == "nobody" { "1000" } else { "100000000" };
        let mut run = self.start(options, rounds);
        let (init, provider) = run.pids();
        run.read(LINES);
        let pid = match victim {
            "provider" => provider.expect("init has a child"),
            "init" => init,
            _ => run.launcher.id() as i32,
        };
        if victim != "nobody" {
            kill(Pid::from_raw(pid), Signal::SIGKILL).expect("a signal");
        }
        run.rest();
        end(&mut run.launcher);
        eventually("the cell ends", || user::state(init).is_none().then_some(()));
        self.has(&run.lines, what);
    }

    /// Asserts that all that was told of is on the host, whole, and removes it.
    fn has(&self, told: &[String], what: &str) {
        assert!(!told.is_empty(), "{what}: nothing was told");
        for place in self.places() {
            let content = fs::read_to_string(&place.file).expect("the file is on the host");
            let written: Vec<&str> = content
                .split_inclusive('\n')
                .map(str::trim_end)
                .filter(|line| *line != "as it was")
                .collect();
            let what = format!("{what}: {}", place.file.display());
            assert!(written.len() >= told.len(), "{what}: {} lines of {}", written.len(), told.len());
            // More may be there: what the launcher had yet to copy was lost with it. The
            // last line may be cut, as KILL ends a write(2) between two pages.
            for (number, line) in written.iter().enumerate() {
                let whole = format!("{number:010}");
                let is_cut = number >= told.len() && number + 1 == written.len() && whole.starts_with(line);
                assert!(*line == whole || is_cut, "{what}: line {number} is {line:?}");
            }
            if place.granted == place.file {
                fs::write(&place.file, "as it was\n").expect("written");
            } else {
                fs::remove_file(&place.file).expect("removed");
            }
        }
    }
}

/// A run that says on its stdout what it has written.
struct Run {
    launcher: Child,
    status: BufReader<PipeReader>,
    said: BufReader<std::process::ChildStdout>,
    lines: Vec<String>,
}

impl Run {
    /// The host's pids of init and of the provider, which runs, or has run.
    fn pids(&mut self) -> (i32, Option<i32>) {
        let mut init = 0;
        loop {
            let mut line = String::new();
            self.status.read_line(&mut line).expect("the status reads");
            let line: Value = serde_json::from_str(&line).expect("a line of JSON");
            init = line["child-pid"].as_i64().map_or(init, |pid| pid as i32);
            if line["event"] == "exec" {
                let is_second =
                    |pid: &i32| user::status(*pid).is_some_and(|status| status["NSpid"].ends_with("\t2"));
                return (init, user::children(init).into_iter().find(is_second));
            }
        }
    }

    fn read(&mut self, lines: usize) {
        while self.lines.len() < lines {
            let mut line = String::new();
            self.said.read_line(&mut line).expect("it speaks");
            assert!(line.ends_with('\n'), "it ended after {} lines", self.lines.len());
            self.lines.push(line.trim_end().to_owned());
        }
    }

    /// What it still says until its end; a line that was cut off is none.
    fn rest(&mut self) {
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).expect("it speaks");
        let whole = rest.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        self.lines.extend(whole.map(|line| line.trim_end().to_owned()));
    }
}

#[test]
fn a_write_that_has_returned_outlives_every_end() {
    let Some(ground) = Ground::new() else { return };
    let before = ground.around(&[]);
    for options in [&[][..], skip::NESTED, &["--without", "landlock"]] {
        for victim in VICTIMS {
            let what = format!("{victim} is killed, {options:?}");
            ground.end(options, victim, &what);
            is_as_before(&before, &ground.around(&[]), &what);
        }
    }
}

/// The overlay needs a directory beside the workspace, which it makes there.
#[test]
fn a_write_through_an_overlay_outlives_every_end_too() {
    let Some(ground) = Ground::new() else { return };
    let before = ground.around(&["tree"]);
    // One whose launcher was killed leaves the directory, and the next takes it.
    for victim in VICTIMS.into_iter().chain(["nobody"]) {
        let what = format!("{victim} is killed");
        ground.end(&["--policy", "overlay.toml"], victim, &what);
        is_as_before(&before, &ground.around(&["tree"]), &what);
        let left = fs::read_dir(ground.user.path("inst/tree")).expect("a directory");
        let left: BTreeSet<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
        let (workspace, overlay) = ("work".into(), ".work.cellblock-work".into());
        let wanted = match victim {
            "launcher" => BTreeSet::from([workspace, overlay]),
            _ => BTreeSet::from([workspace]),
        };
        assert_eq!(left, wanted, "{what}");
    }
}
#[test]
fn what_the_cell_makes_where_nothing_is_granted_ends_with_it() {
    let Some(ground) = Ground::new() else { return };
    let before = snapshot(&ground.user.path(""), &[]);
    let root = ground.user.path("inst").display().to_string();
    let script = format!(
        "for at in / /etc /usr /usr/bin /opt /var /var/tmp /srv {root} {root}/runs {root}/traces {root}/other; do \
            (mkdir $at/made; : > $at/new) 2> /dev/null; \
        done; \
        for at in /tmp /dev/shm $HOME /dev/mqueue; do (: > $at/new-in-memory) || echo $at; done"
    );
    let policy = ground.user.path("policy.toml");
    let options = ["--policy", policy.to_str().expect("a path")];
    let output = ground.user.cell(&options, &["sh", "-c", &script]).output().expect("it starts");
    assert_eq!(user::text(&output), "");
    is_as_before(&before, &snapshot(&ground.user.path(""), &[]), &script);
    for at in ["/tmp", "/var/tmp", "/dev/shm", "/home/agent", "/dev/mqueue", "/usr", "/", "/srv"] {
        for name in ["new", "new-in-memory", "made"] {
            assert!(!PathBuf::from(at).join(name).exists(), "{at}/{name} is on the host");
        }
    }
}
