//! An instance with two runs of one user, for the tests of what a run may see.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::cell::{Ground, PROBE};
use crate::skip;
use crate::user;

/// How the instance is seen, beside what is exposed of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Read-only.
    ReadOnly,
    /// Writable.
    Writable,
    /// Not at all.
    None,
}

/// All of them.
pub const VIEWS: [View; 3] = [View::ReadOnly, View::Writable, View::None];

/// What a policy hides of the instance.
pub const HIDDEN: [&str; 6] = ["runs", "db", "secrets", "data", "control-plane-state.json", "chan"];

/// An instance with two runs, `A` and `B`, and a harness.
///
/// Beside what the fixture has: `../chan/A`, `../chan/B`, `public/README`, `public/sub`,
/// `latest`, which is a link to `runs/B`, and SQLite databases in `runs/A`, `runs/B` and `db`.
pub struct Instance {
    /// The fixture, and ways to run a command.
    pub ground: Ground,
}

impl Instance {
    /// Makes one, where the host has what a cell is made of.
    pub fn new() -> Option<Instance> {
        let ground = Ground::new().filter(|_| skip::has_programs(&["python3"]))?;
        let instance = Instance { ground };
        for directory in ["../chan", "../chan/A", "../chan/B", "public", "public/sub", "data/provider-traces"]
        {
            instance.directory(directory);
        }
        for run in ["A", "B"] {
            instance.file(&format!("runs/{run}/verdict.json"), "{}\n");
            instance.file(&format!("runs/{run}/live.lock"), "");
            instance.file(&format!("runs/{run}/notes.md"), "a run's notes\n");
            instance.file(&format!("data/provider-traces/{run}.ndjson"), "{}\n");
            instance.channel(run);
        }
        instance.file("public/README", "for every run\n");
        symlink("runs/B", instance.path("latest")).expect("symlink");
        symlink("verdict.json", instance.path("runs/A/current")).expect("symlink");
        symlink("verdict.json", instance.path("runs/B/current")).expect("symlink");
        for database in ["runs/A/session.db", "runs/B/session.db", "db/instance.db"] {
            instance.database(database);
        }
        for run in ["A", "B"] {
            instance.write_facts(run, "facts", &BTreeMap::new());
        }
        Some(instance)
    }

    /// A channel beside the instance: what a view of the instance grants could
    /// not be taken away below it.
    fn channel(&self, run: &str) {
        let dir = self.path("../chan").join(run);
        let fifo = dir.join("activity.fifo");
        mkfifo(&fifo, Mode::from_bits_truncate(0o600)).expect("mkfifo");
        self.own(&fifo);
        self.file(&format!("../chan/{run}/activity.lock"), "");
        self.file(&format!("../chan/{run}/descriptor.json"), self.ground.fixture.get("DESCRIPTOR_TEXT"));
        let words = [self.ground.fixture.path("HELPER"), dir.join("helper")];
        let copied = Command::new("cp").arg("-p").args(words).status();
        assert!(copied.is_ok_and(|status| status.success()), "cp");
    }

    /// A path in the instance, or beside it.
    pub fn path(&self, name: &str) -> PathBuf {
        match name.strip_prefix("../") {
            Some(beside) => self.root().join(beside),
            None => self.ground.fixture.path("INST").join(name),
        }
    }

    /// As [`Instance::path`], as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The directory that holds it.
    pub fn root(&self) -> &Path {
        self.ground.fixture.root()
    }

    /// What no other fixture's names hold.
    fn mark(&self) -> String {
        self.ground.fixture.get("CASE_ID").to_owned()
    }

    /// Gives something to the user.
    pub fn own(&self, path: &Path) {
        if user::is_root() {
            let owner = self.ground.user();
            chown(path, Some(owner.uid), Some(owner.gid)).expect("root can give files away");
        }
    }

    /// Makes a directory of the user's.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).expect("a directory can be made");
        self.own(&path);
        path
    }

    /// Makes a file of the user's.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("a file can be written");
        self.own(&path);
        path
    }

    /// A database with a write-ahead log, as one leaves it that was not closed.
    fn database(&self, name: &str) {
        let script = "import os, sqlite3, sys\n\
            if os.path.exists(sys.argv[1]): os.unlink(sys.argv[1])\n\
            db = sqlite3.connect(sys.argv[1])\n\
            db.execute('pragma journal_mode = wal')\n\
            db.execute('create table turns (n integer, said text)')\n\
            db.executemany('insert into turns values (?, ?)', [(n, 'turn %d' % n) for n in range(500)])\n\
            db.commit()\n\
            os._exit(0)\n";
        let made = Command::new("python3").args(["-c", script, &self.text(name)]).status();
        assert!(made.is_ok_and(|status| status.success()), "python3 makes {name}");
        for end in ["", "-wal", "-shm"] {
            self.own(&self.path(&format!("{name}{end}")));
        }
    }

    /// Names what `run` shall look for, with these instead of the harness's.
    pub fn write_facts(&self, run: &str, name: &str, instead: &BTreeMap<String, String>) -> String {
        let written = fs::read_to_string(self.path("runs/A/facts")).expect("the fixture's facts");
        let mut facts: BTreeMap<String, String> = written
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(k, v)| (k.into(), v.into()))
            .collect();
        let other = other(run);
        for (key, name) in [
            ("OWN", format!("runs/{run}")),
            ("OTHER", format!("runs/{other}")),
            ("OTHER_DB", format!("runs/{other}/session.db")),
            ("OTHER_FILE", format!("runs/{other}/notes.md")),
            ("CHANNEL", format!("../chan/{run}")),
            ("FIFO", format!("../chan/{run}/activity.fifo")),
            ("LOCK", format!("../chan/{run}/activity.lock")),
            ("DESCRIPTOR", format!("../chan/{run}/descriptor.json")),
            ("HELPER", format!("../chan/{run}/helper")),
        ] {
            facts.insert(key.into(), self.text(&name));
        }
        facts.extend(instead.clone());
        let lines: String = facts.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        self.file(&format!("runs/{run}/{name}"), &lines).display().to_string()
    }

    /// The policy of a run that sees the instance in this way.
    fn policy(&self, run: &str, view: View) -> PathBuf {
        let inst = self.text("");
        let inst = inst.trim_end_matches('/');
        let (read_only, writable) = match view {
            View::ReadOnly => (format!(", \"{inst}\""), String::new()),
            View::Writable => (String::new(), format!("\"{inst}\"")),
            View::None => (String::new(), String::new()),
        };
        let hidden: String = HIDDEN.iter().map(|name| format!("\"{inst}/{name}\", ")).collect();
        let policy = self.root().join(format!("{run}-{view:?}.toml"));
        let content = format!(
            r#"version = 1

[cell]
timeout = "120s"

[filesystem]
ro_bind = [{{ src = "{root}/bin/probe", dest = "{PROBE}" }}{read_only}]
bind = [{writable}]

[run]
hide = [{hidden}"{root}/harness"]
expose = [{{ path = "{inst}/runs/{run}", create = true }}]

[channel]
dir = "{root}/chan/{run}"
fifo = ["activity.fifo"]
lock = ["activity.lock"]
read_only = ["descriptor.json"]
execute = ["helper"]

[workspace]
dir = "{root}/work"
access = "read-only"
"#,
            root = self.root().display(),
        );
        fs::write(&policy, content).expect("a policy can be written");
        policy
    }

    /// Runs a command in a cell of a run.
    pub fn run(&self, run: &str, view: View, options: &[&str], command: &[&str]) -> Output {
        self.ground.cell_of(&self.policy(run, view), options, command)
    }

    /// As [`Instance::run`], started by root.
    pub fn run_by_root(&self, run: &str, view: View, options: &[&str], command: &[&str]) -> Output {
        let mut start = Command::new(self.root().join("bin/cellblock"));
        start.arg("run").arg("--policy").arg(self.policy(run, view)).args(options);
        start.arg("--").args(command).stdin(Stdio::null()).output().expect("it starts")
    }

    /// The launcher as the ordinary user.
    pub fn command(&self, run: &str, view: View, options: &[&str], command: &[&str]) -> Command {
        let policy = self.policy(run, view);
        let mut words = vec!["run", "--policy", policy.to_str().expect("a path")];
        words.extend(options);
        words.push("--");
        words.extend(command);
        self.as_user(&words)
    }

    /// The launcher as the ordinary user, with these words.
    pub fn as_user(&self, words: &[&str]) -> Command {
        let bin = self.root().join("bin");
        let owner = self.ground.user();
        let mut start = Command::new(bin.join("probe"));
        start.args(["user", &owner.uid.to_string(), &owner.gid.to_string()]).arg(bin.join("cellblock"));
        start.args(words).stdin(Stdio::null()).current_dir(self.root());
        start
    }

    /// Starts a run that has one of every thing that processes can share.
    pub fn live(&self, run: &str, view: View) -> Live {
        let secret = format!("secret-of-run-{run}-{}", self.mark());
        let case = format!("{}-of-run-{run}", self.mark());
        let (own, lock) = (self.text(&format!("runs/{run}")), self.text(&format!("runs/{run}/live.lock")));
        let (status, writer) = io::pipe().expect("pipe");
        let number = writer.as_raw_fd().to_string();
        let options = ["--env", "HARNESS_SECRET", "--json-status-fd", &number];
        let _ = fs::remove_file(self.path(&format!("runs/{run}/judge.sock")));
        let mut command = self.command(run, view, &options, &[PROBE, "harness", &case, &own, &lock, "/tmp"]);
        user::keep(&mut command, writer.into());
        command.env("HARNESS_SECRET", &secret).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut launcher = command.spawn().expect("the launcher starts");
        drop(command);

        let mut facts = BTreeMap::from([
            ("CASE_ID".to_owned(), case),
            ("SECRET".to_owned(), secret),
            ("HARNESS_DIR".to_owned(), own.clone()),
            ("HARNESS_FILE".to_owned(), format!("{own}/verdict.json")),
            ("HARNESS_LINK".to_owned(), format!("{own}/current")),
        ]);
        for line in BufReader::new(launcher.stdout.take().expect("a pipe")).lines() {
            let line = line.expect("it speaks");
            let Some((key, value)) = line.split_once('=') else { break };
            facts.insert(key.into(), value.into());
        }
        assert!(facts.contains_key("SOCKET"), "the other run has started: {facts:?}");
        facts.insert("HARNESS_PID".into(), provider(status).to_string());
        Live { launcher, facts }
    }

    /// Paths of the instance that `run` must not see. What stands beside a mask or
    /// holds an entry has a name that shows; what lies below has none.
    pub fn hidden(&self, run: &str, view: View) -> Vec<String> {
        let other = other(run);
        let names = [
            &format!("runs/{other}"),
            &format!("runs/{other}/session.db"),
            &format!("runs/{other}/session.db-wal"),
            &format!("runs/{other}/judge.sock"),
            &format!("runs/{other}/current"),
            &format!("../chan/{other}"),
            &format!("../chan/{other}/activity.fifo"),
            "chan/A",
            "chan/A/activity.fifo",
            "db/instance.db",
            "db/instance.db-shm",
            "db/pg_wal",
            "db/pg_wal/000000010000000000000001",
            "secrets/key",
            "data/run-logs",
            "data/run-logs/B.ndjson",
            "data/provider-traces",
            "latest/session.db",
        ];
        let mut paths: Vec<String> = names.iter().map(|name| self.text(name)).collect();
        if run == "B" {
            // It leads to this run's own state.
            paths.retain(|path| !path.contains("/latest/"));
        }
        if view != View::Writable {
            let names = ["db", "secrets", "data", "control-plane-state.json", "chan"];
            paths.extend(names.iter().map(|name| self.text(name)));
        }
        let fixture = &self.ground.fixture;
        paths.extend(
            ["HARNESS_DIR", "HARNESS_FILE", "SOCKET", "TMP_SOCKET", "IN_TMP"]
                .map(|key| fixture.get(key).into()),
        );
        paths
    }

    /// The command that tries to reach these paths, and ones like them that
    /// never were.
    pub fn reach_words(&self, run: &str, paths: &[String]) -> Vec<String> {
        let mut words = vec![PROBE.to_owned(), "reach".into(), self.text(&format!("runs/{run}"))];
        words.extend(paths.iter().cloned());
        words.extend(paths.iter().map(|path| format!("{path}-never")));
        words
    }
}

/// The other of the two runs.
pub fn other(run: &str) -> &'static str {
    if run == "A" { "B" } else { "A" }
}

/// The host's pid of the provider that a status tells of.
fn provider(status: PipeReader) -> i32 {
    let mut status = BufReader::new(status);
    loop {
        let mut line = String::new();
        status.read_line(&mut line).expect("the status reads");
        let line: serde_json::Value = serde_json::from_str(&line).expect("a line of JSON");
        if let Some(init) = line["child-pid"].as_i64() {
            return user::eventually("init has a child", || user::children(init as i32).first().copied());
        }
    }
}

/// A run that goes on until it is dropped.
pub struct Live {
    launcher: Child,
    /// What it holds, by the names that a fixture gives these things.
    pub facts: BTreeMap<String, String>,
}

impl Drop for Live {
    fn drop(&mut self) {
        drop(self.launcher.stdin.take());
        user::end(&mut self.launcher);
    }
}

/// Asserts, of what that command said, that no call can tell the paths from
/// ones that never were.
pub fn are_absent(paths: &[String], said: &str, what: &str) {
    let mut answers: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for line in said.lines() {
        let mut fields = line.splitn(3, '\t');
        let mut next = || fields.next().expect("three fields");
        answers.insert((next(), next()), next());
    }
    for path in paths {
        assert_eq!(answers[&(&**path, "read")], "ENOENT", "{path} {what}");
        for ((_, way), answer) in answers.iter().filter(|((at, _), _)| at == path) {
            let never = format!("{path}-never");
            assert_eq!(*answer, answers[&(&*never, *way)], "{way} of {path} {what}");
            assert_ne!(*answer, "ok", "{way} of {path} {what}");
        }
    }
}
