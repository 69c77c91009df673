//! Two runs of one user in one instance: neither learns of the other, nor of
//! the harness, and each keeps what is its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::cell::{Finding, Ground, PROBE, text};
use crate::escape::VISIBLE;
use crate::snapshot::{changes, snapshot};
use crate::user;

/// How the instance is seen, beside what is exposed of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    ReadOnly,
    Writable,
    None,
}

const VIEWS: [View; 3] = [View::ReadOnly, View::Writable, View::None];

/// What a policy hides of the instance.
const HIDDEN: [&str; 6] = ["runs", "db", "secrets", "data", "control-plane-state.json", "chan"];

/// An instance with two runs, `A` and `B`, and a harness.
///
/// Beside what the fixture has: `../chan/A`, `../chan/B`, `public/README`, `latest`, which is a
/// link to `runs/B`, and SQLite databases in `runs/A`, `runs/B` and `db`.
struct Instance {
    ground: Ground,
}

impl Instance {
    fn new() -> Option<Instance> {
        let instance = Instance { ground: Ground::new()? };
        for directory in ["../chan", "../chan/A", "../chan/B", "public", "data/provider-traces"] {
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
    fn path(&self, name: &str) -> PathBuf {
        match name.strip_prefix("../") {
            Some(beside) => self.root().join(beside),
            None => self.ground.fixture.path("INST").join(name),
        }
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn root(&self) -> &Path {
        self.ground.fixture.root()
    }

    /// What no other fixture's names hold.
    fn mark(&self) -> String {
        self.ground.fixture.get("CASE_ID").to_owned()
    }

    fn own(&self, path: &Path) {
        if user::is_root() {
            let owner = self.ground.user();
            chown(path, Some(owner.uid), Some(owner.gid)).expect("root can give files away");
        }
    }

    fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).expect("a directory can be made");
        self.own(&path);
        path
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
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
    fn write_facts(&self, run: &str, name: &str, instead: &BTreeMap<String, String>) -> String {
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

    fn run(&self, run: &str, view: View, options: &[&str], command: &[&str]) -> Output {
        self.ground.cell_of(&self.policy(run, view), options, command)
    }

    /// As [`Instance::run`], started by root.
    fn run_by_root(&self, run: &str, view: View, options: &[&str], command: &[&str]) -> Output {
        let mut start = Command::new(self.root().join("bin/cellblock"));
        start.arg("run").arg("--policy").arg(self.policy(run, view)).args(options);
        start.arg("--").args(command).stdin(Stdio::null()).output().expect("it starts")
    }

    /// The launcher as the ordinary user.
    fn command(&self, run: &str, view: View, options: &[&str], command: &[&str]) -> Command {
        let policy = self.policy(run, view);
        let mut words = vec!["run", "--policy", policy.to_str().expect("a path")];
        words.extend(options);
        words.push("--");
        words.extend(command);
        self.as_user(&words)
    }

    /// The launcher as the ordinary user, with these words.
    fn as_user(&self, words: &[&str]) -> Command {
        let bin = self.root().join("bin");
        let owner = self.ground.user();
        let mut start = Command::new(bin.join("probe"));
        start.args(["user", &owner.uid.to_string(), &owner.gid.to_string()]).arg(bin.join("cellblock"));
        start.args(words).stdin(Stdio::null()).current_dir(self.root());
        start
    }

    /// Starts a run that has one of every thing that processes can share.
    fn live(&self, run: &str, view: View) -> Live {
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
}

fn other(run: &str) -> &'static str {
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
struct Live {
    launcher: Child,
    facts: BTreeMap<String, String>,
}

impl Drop for Live {
    fn drop(&mut self) {
        drop(self.launcher.stdin.take());
        user::end(&mut self.launcher);
    }
}

fn findings(output: &Output) -> BTreeMap<String, Finding> {
    let line = |line: &str| {
        let mut fields = line.splitn(3, '\t').map(str::to_owned);
        let mut next = || fields.next().unwrap_or_default();
        (next(), Finding { verdict: next(), detail: next() })
    };
    text(output).lines().map(line).collect()
}

/// What a probe may have where the view is writable, and why.
const OF_A_WRITABLE_VIEW: [(&str, &str); 4] = [
    ("F09", "a file that is masked can be read, and is empty"),
    ("F10", "what is masked can be listed"),
    ("F30", "the instance itself takes new entries"),
    ("P22", "a mask is a mount, which the mount table names"),
];

#[test]
fn no_probe_reaches_the_harness_or_a_run_beside_it() {
    let Some(instance) = Instance::new() else { return };
    for view in VIEWS {
        for run in ["A", "B"] {
            let live = instance.live(other(run), view);
            let facts = instance.text(&format!("runs/{run}/facts"));
            let beside = instance.write_facts(run, "beside", &live.facts);
            for (of, facts) in [("the harness", facts), ("the other run", beside)] {
                let found = findings(&instance.run(run, view, &[], &[PROBE, "run", &facts]));
                assert!(found.keys().eq(&crate::cell::ids("list")), "the probe came to its end");
                let is_wrong = |id: &str, verdict: &str| match id {
                    "P43" => verdict != "na",
                    id if VISIBLE.iter().any(|(name, _)| *name == id) => verdict == "killed",
                    id if OF_A_WRITABLE_VIEW.iter().any(|(name, _)| *name == id)
                        && view == View::Writable =>
                    {
                        verdict == "killed"
                    }
                    _ => verdict != "denied",
                };
                let wrong: Vec<_> =
                    found.iter().filter(|(id, finding)| is_wrong(id, &finding.verdict)).collect();
                assert!(wrong.is_empty(), "from {run}, of {of}, {view:?}: {wrong:#?}");
            }
        }
    }
}

/// Paths of the instance that `run` must not see. What stands beside a mask or
/// holds an entry has a name that shows; what lies below has none.
fn hidden(instance: &Instance, run: &str, view: View) -> Vec<String> {
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
    let mut paths: Vec<String> = names.iter().map(|name| instance.text(name)).collect();
    if run == "B" {
        // It leads to this run's own state.
        paths.retain(|path| !path.contains("/latest/"));
    }
    if view != View::Writable {
        let names = ["db", "secrets", "data", "control-plane-state.json", "chan"];
        paths.extend(names.iter().map(|name| instance.text(name)));
    }
    let fixture = &instance.ground.fixture;
    paths.extend(
        ["HARNESS_DIR", "HARNESS_FILE", "SOCKET", "TMP_SOCKET", "IN_TMP"].map(|key| fixture.get(key).into()),
    );
    paths
}

#[test]
fn a_hidden_path_is_to_every_call_one_that_never_was() {
    let Some(instance) = Instance::new() else { return };
    for (view, options) in [
        (View::ReadOnly, &[][..]),
        (View::Writable, &[]),
        (View::None, &[]),
        (View::ReadOnly, &["--without", "landlock"]),
        (View::ReadOnly, &["--without", "seccomp"]),
        (View::ReadOnly, &["--mode", "nested"]),
        (View::Writable, &["--without", "landlock"]),
        (View::ReadOnly, &["--run-as", "54321:54321"]),
        (View::Writable, &["--run-as", "54321:54321"]),
    ] {
        for run in ["A", "B"] {
            let _live = instance.live(other(run), view);
            let own = instance.text(&format!("runs/{run}"));
            let paths = hidden(&instance, run, view);
            let never: Vec<String> = paths.iter().map(|path| format!("{path}-never")).collect();
            let mut words = vec![PROBE, "reach", &own];
            words.extend(paths.iter().chain(&never).map(String::as_str));
            let mut answers: BTreeMap<(String, String), String> = BTreeMap::new();
            let output = match options {
                ["--run-as", _] if !user::is_root() => continue,
                ["--run-as", _] => instance.run_by_root(run, view, options, &words),
                _ => instance.run(run, view, options, &words),
            };
            for line in text(&output).lines() {
                let fields: Vec<&str> = line.split('\t').collect();
                answers.insert((fields[0].into(), fields[1].into()), fields[2..].join(" "));
            }
            for path in &paths {
                let what = format!("{path} from {run}, {view:?} {options:?}");
                assert_eq!(answers[&(path.clone(), "read".into())], "ENOENT", "{what}");
                for ((_, way), answer) in answers.iter().filter(|((at, _), _)| at == path) {
                    let of_never = &answers[&(format!("{path}-never"), way.clone())];
                    assert_eq!(answer, of_never, "{way} of {what}");
                    assert_ne!(answer, "ok", "{way} of {what}");
                }
            }
        }
    }
}

#[test]
fn no_file_of_proc_names_the_harness_or_the_other_run() {
    let Some(instance) = Instance::new() else { return };
    let get = |key: &str| instance.ground.fixture.get(key).to_owned();
    for view in VIEWS {
        for run in ["A", "B"] {
            let live = instance.live(other(run), view);
            let mut tokens =
                ["CASE_ID", "SECRET", "COMM", "ABSTRACT", "HARNESS_DIR", "IN_TMP"].map(get).to_vec();
            tokens.extend(["CASE_ID", "SECRET", "COMM", "ABSTRACT"].map(|key| live.facts[key].clone()));
            let other = other(run);
            tokens.extend([format!("runs/{other}"), format!("chan/{other}")]);
            tokens.extend(["pg_wal", "run-logs", "provider-traces", "session.db"].map(String::from));
            if view != View::Writable {
                tokens.extend(["inst/db", "inst/secrets", "inst/data", "control-plane"].map(String::from));
            }
            let words = instance.file(&format!("runs/{run}/tokens"), &(tokens.join("\n") + "\n"));
            let words = [PROBE, "search", words.to_str().expect("a path")];
            for options in [&[][..], &["--mode", "nested"]] {
                let said = text(&instance.run(run, view, options, &words));
                let (found, read) = said.trim_end().rsplit_once('\n').unwrap_or(("", said.trim_end()));
                assert_eq!(found, "", "from {run}, {view:?} {options:?}");
                let read: usize = read.strip_prefix("read\t").and_then(|n| n.parse().ok()).expect("a number");
                assert!(read > 100, "only {read} files were read");
            }
        }
    }
    // Outside the same search finds the harness.
    let words = instance.path("runs/A/tokens");
    let beside = instance.ground.beside([
        instance.root().join("bin/probe").to_str().expect("a path"),
        "search",
        words.to_str().expect("a path"),
    ]);
    let said = text(&beside);
    assert!(said.lines().any(|line| line.ends_with(&get("CASE_ID"))), "{said}");
}

#[test]
fn a_run_sees_and_keeps_what_is_its_own() {
    let Some(instance) = Instance::new() else { return };
    for view in VIEWS {
        for run in ["A", "B"] {
            let _live = instance.live(other(run), view);
            let own = instance.text(&format!("runs/{run}"));
            let script = format!(
                "cd {own} && cat notes.md && mkdir made && echo content > made/new && mv made/new made/file && \
                cat {1}/chan/{run}/descriptor.json > seen && for name in {0}/* {0}/runs/* {0}/chan/*; do \
                echo $name; done > listed; ({1}/chan/{run}/helper true && echo helped) 2>&1; \
                (echo note > {0}/public/{run}) 2> /dev/null; cat {0}/public/README 2> /dev/null; true",
                instance.text("").trim_end_matches('/'),
                instance.root().display(),
            );
            let said = text(&instance.run(run, view, &[], &["sh", "-c", &script]));
            let what = format!("{run}, {view:?}");
            assert!(said.starts_with("a run's notes\n") && said.contains("helped\n"), "{what}: {said}");
            assert_eq!(said.contains("for every run\n"), view != View::None, "{what}: {said}");
            let made = instance.path(&format!("runs/{run}/made"));
            assert_eq!(fs::read_to_string(made.join("file")).expect("it is on the host"), "content\n");
            fs::remove_dir_all(made).expect("removed");
            let note = instance.path(&format!("public/{run}"));
            assert_eq!(note.exists(), view == View::Writable, "{what}");
            let _ = fs::remove_file(note);
            let seen = fs::read_to_string(instance.path(&format!("runs/{run}/seen"))).expect("it was read");
            assert_eq!(seen, instance.ground.fixture.get("DESCRIPTOR_TEXT"), "{what}");

            // What can be listed of the instance: no name that is hidden.
            let listed = fs::read_to_string(instance.path(&format!("runs/{run}/listed"))).expect("a list");
            let inst = instance.text("");
            let names: BTreeSet<&str> =
                listed.lines().map(|name| name.strip_prefix(&inst).expect("a path")).collect();
            let names = names.into_iter().filter(|name| !name.ends_with('*'));
            let known = |name: &str| {
                let shows = view == View::Writable && HIDDEN.contains(&name);
                let own = ["runs", &format!("runs/{run}")].contains(&name);
                shows || own || ["public", "latest"].contains(&name)
            };
            let strange: Vec<_> = names.filter(|name| !known(name)).collect();
            assert!(strange.is_empty(), "{what}: {strange:?}");
        }
    }
}

#[test]
fn each_run_works_on_its_own_database_while_the_other_does() {
    let Some(instance) = Instance::new() else { return };
    if !Path::new("/usr/bin/python3").exists() {
        return println!("skipped: no python3 in /usr");
    }
    let script = "import sqlite3, sys, time\n\
        db = sqlite3.connect(sys.argv[1], timeout=20)\n\
        for n in range(1000, 1200):\n    \
            db.execute('insert into turns values (?, ?)', (n, sys.argv[2]))\n    \
            db.commit()\n\
        print(db.execute('select count(*) from turns').fetchone()[0])\n";
    for (round, view) in VIEWS.into_iter().enumerate() {
        let start = |run: &str| {
            let database = instance.text(&format!("runs/{run}/session.db"));
            let words = ["/usr/bin/python3", "-c", script, &database, run];
            let mut command = instance.command(run, view, &[], &words);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
        };
        let runs = [start("A"), start("B")];
        for run in runs {
            let output = run.wait_with_output().expect("it ends");
            assert_eq!(text(&output), format!("{}\n", 500 + 200 * (round + 1)), "{view:?}");
        }
    }
}

#[test]
fn nothing_that_happens_in_a_hidden_place_can_be_watched() {
    let Some(instance) = Instance::new() else { return };
    let places: Vec<String> = ["", "runs", "chan", "public"].map(|name| instance.text(name)).to_vec();
    let places: Vec<&str> = places.iter().map(|place| place.trim_end_matches('/')).collect();
    let words = [&[PROBE, "watch"], &places[..]].concat();
    let mut watcher = instance.command("A", View::ReadOnly, &[], &words);
    let mut watcher = watcher.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(watcher.stdout.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it speaks");
    assert_eq!(line, "watching\n");
    for name in ["runs/C", "runs/B/made", "chan/C", "db/made", "secrets/made", "made"] {
        instance.directory(name);
        fs::remove_dir(instance.path(name)).expect("removed");
    }
    drop(watcher.stdin.take());
    let seen: Vec<String> = said.lines().map(|line| line.expect("it speaks")).collect();
    user::end(&mut watcher);
    assert_eq!(seen.len(), places.len(), "{seen:?}");
    assert!(seen.iter().all(|line| !line.ends_with("\tevents")), "{seen:?}");
}

#[test]
fn a_thousand_siblings_are_as_absent_as_one() {
    const SIBLINGS: usize = 1200;
    const LAUNCHES: usize = 15;
    let Some(instance) = Instance::new() else { return };
    let median = || {
        let mut times: Vec<Duration> = (0..LAUNCHES)
            .map(|_| {
                let started = Instant::now();
                let output =
                    instance.command("A", View::ReadOnly, &[], &["true"]).output().expect("it starts");
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                started.elapsed()
            })
            .collect();
        times.sort();
        times[LAUNCHES / 2]
    };
    let few = median();
    for number in 0..SIBLINGS {
        for place in ["runs", "data/run-logs", "chan"] {
            instance.directory(&format!("{place}/sibling-{number}"));
        }
        instance.file(&format!("runs/sibling-{number}/session.db"), "another run's\n");
    }
    let many = median();
    println!("a launch with 2 runs: {few:?}; with {} more: {many:?}", SIBLINGS);
    let inst = instance.text("");
    let script = format!(
        "for name in {inst}runs/* {inst}chan/*; do echo $name; done; cat {inst}runs/sibling-7/* 2>&1"
    );
    let output = instance.run("A", View::ReadOnly, &[], &["sh", "-c", &script]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.lines().filter(|line| line.contains("sibling")).all(|line| line.contains("No such file")),
        "{said}"
    );
}

#[test]
fn what_comes_and_goes_meanwhile_does_no_harm() {
    const LAUNCHES: usize = 100;
    let Some(instance) = Instance::new() else { return };
    let is_over = AtomicBool::new(false);
    let churn = |place: &str| {
        let mut round = 0;
        while !is_over.load(Ordering::Relaxed) {
            let name = |number: usize| instance.path(&format!("{place}/churn-{number}"));
            round += 1;
            let slot = round % 8;
            let _ = fs::create_dir(name(slot));
            let _ = fs::write(name(slot).join("file"), "content");
            let _ = fs::rename(name(slot), name(slot + 10));
            if round % 3 == 0 {
                let _ = fs::remove_dir_all(name(slot + 10));
            }
            let _ = symlink("/etc/passwd", name(slot + 20));
            let _ = fs::remove_file(name(slot + 20));
        }
    };
    let inst = instance.text("");
    let own = instance.text("runs/A");
    let script =
        format!("cat {inst}public/README && cat {own}/notes.md && ls {inst}runs/churn-* {inst}db 2>&1");
    std::thread::scope(|scope| {
        for place in ["runs", "db", "public", "chan", "."] {
            scope.spawn(move || churn(place));
        }
        let wrong: Vec<String> = (0..LAUNCHES)
            .filter_map(|round| {
                let view = VIEWS[round % VIEWS.len()];
                let output =
                    instance.command("A", view, &[], &["sh", "-c", &script]).output().expect("it starts");
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let errors = String::from_utf8_lossy(&output.stderr).into_owned();
                let wanted = match view {
                    View::None => said.is_empty(),
                    _ => said.starts_with("for every run\na run's notes\n"),
                };
                let leaks =
                    said.lines().any(|line| line.contains("churn-") && !line.contains("runs/churn-*"));
                let is_right =
                    errors.lines().all(|line| !line.starts_with("cellblock: ")) && wanted && !leaks;
                (!is_right).then(|| format!("{view:?}: {}: {said}{errors}", output.status))
            })
            .collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(wrong.is_empty(), "{} of {LAUNCHES}, the first: {}", wrong.len(), wrong[0]);
    });
}

#[test]
fn a_hidden_path_that_comes_later_stays_absent() {
    let Some(instance) = Instance::new() else { return };
    let later = instance.path("later");
    let view = instance.text("");
    let script = format!("while read go; do ls -d {0} {0}/file 2> /dev/null; echo $?; done", later.display());
    let words = [
        "run",
        "--ro-bind",
        view.trim_end_matches('/'),
        "--hide",
        later.to_str().expect("a path"),
        "--",
        "sh",
        "-c",
        &script,
    ];
    let mut command = instance.as_user(&words);
    let mut provider = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(provider.stdout.take().expect("a pipe"));
    let mut go = provider.stdin.take().expect("a pipe");
    let mut ask = || {
        let mut line = String::new();
        io::Write::write_all(&mut go, b"go\n").expect("it listens");
        said.read_line(&mut line).expect("it speaks");
        line
    };
    assert_eq!(ask(), "2\n");
    instance.directory("later");
    instance.file("later/file", "content\n");
    assert_eq!(ask(), "2\n", "it has appeared");
    drop(go);
    user::end(&mut provider);
}

#[test]
fn a_part_of_the_system_can_be_hidden() {
    let Some(instance) = Instance::new() else { return };
    let words = [
        "run",
        "--hide",
        "/usr/share/doc",
        "--hide",
        "/usr/bin/env",
        "--",
        "sh",
        "-c",
        "ls -d /usr/share/doc /usr/share/doc/bash /usr/bin/env; ls -d /usr/share/base-files /usr/bin; \
        ls /usr/share | grep -x doc; /usr/bin/env; uname; cat /proc/self/mountinfo",
    ];
    let output = instance.as_user(&words).output().expect("it starts");
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.contains("/usr/bin\n") && said.contains("Linux\n"), "{said}{errors}");
    assert!(!said.contains("/usr/share/doc") && !said.contains("doc\n"), "{said}");
    assert_eq!(errors.matches("No such file or directory").count(), 3, "{errors}");
}

#[test]
fn a_view_is_without_what_is_hidden_wherever_it_stands() {
    let Some(instance) = Instance::new() else { return };
    let (inst, hidden) = (instance.text("public").replace("/public", ""), instance.text("db"));
    let root = instance.root().display().to_string();
    let elsewhere = format!("{inst}:/data");
    let workspace = format!("{inst}:ro");
    // The views, and where they would show what is hidden.
    for (views, places) in [
        (&["--ro-bind", &*elsewhere][..], &["/data/db"][..]),
        (&["--ro-bind", &inst, "--ro-bind", &elsewhere], &["/data/db", &hidden]),
        (&["--ro-bind", &root, "--ro-bind", &inst], &[&hidden]),
        (&["--ro-bind", &root, "--ro-bind", &elsewhere], &["/data/db", &hidden]),
        (&["--workspace", &workspace], &["/work/db"]),
    ] {
        let script = format!("ls -d {} 2> /dev/null; cat /proc/self/mountinfo", places.join(" "));
        let words = [&["run", "--hide", &hidden][..], views, &["--", "sh", "-c", &script]].concat();
        let output = instance.as_user(&words).output().expect("it starts");
        let said = text(&output);
        assert!(!said.contains("/db\n") && !said.contains("/db "), "{views:?}: {said}");
    }
}

#[test]
fn a_socket_of_a_view_works_where_it_is_bound_beside_the_overlay() {
    let Some(instance) = Instance::new() else { return };
    let socket = instance.path("public/service.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    instance.own(&socket);
    let (inst, hidden) = (instance.text("public").replace("/public", ""), instance.text("db"));
    let socket = socket.display().to_string();
    let probe = format!("{}:{PROBE}", instance.root().join("bin/probe").display());
    let words = ["run", "--ro-bind", &probe, "--ro-bind", &inst, "--ro-bind", &socket, "--hide", &hidden];
    let words = [&words[..], &["--", PROBE, "reach", "/tmp", &socket]].concat();
    let said = text(&instance.as_user(&words).output().expect("it starts"));
    assert!(said.contains("\tconnect\tok\n"), "{said}");
    drop(listener);
}

#[test]
fn what_is_to_be_created_is_made_for_the_run_alone() {
    let Some(instance) = Instance::new() else { return };
    let inst = instance.text("public").replace("/public", "");
    let policy = instance.root().join("create.toml");
    let content = format!(
        "version = 1\n[filesystem]\nro_bind = [\"{inst}\"]\n[run]\nhide = [\"{inst}/runs\", \"{inst}/db\"]\n\
        expose = [{{ path = \"{inst}/runs/new/state\", create = true }}, \
        {{ path = \"{inst}/runs/new.ndjson\", kind = \"file\", create = true }}]\n\
        create = [\"{inst}/public/shared/deep\"]\n"
    );
    fs::write(&policy, content).expect("a policy can be written");
    let script = format!(
        "echo a > {inst}/runs/new/state/a && echo b >> {inst}/runs/new.ndjson && ls -d {inst}/public/shared/deep"
    );
    let owner = fs::metadata(instance.path("runs/A")).expect("facts").uid();
    let policy = policy.to_str().expect("a path");
    let ids = format!("{0}:{0}", instance.ground.user().uid);
    let by_root = user::is_root().then(|| {
        let mut by_root = Command::new(instance.root().join("bin/cellblock"));
        by_root.args(["run", "--run-as", &ids, "--policy", policy, "--", "sh", "-c", &script]);
        by_root
    });
    let launches = [instance.as_user(&["run", "--policy", policy, "--", "sh", "-c", &script])];
    for mut launch in launches.into_iter().chain(by_root) {
        let said = text(&launch.output().expect("it starts"));
        assert_eq!(said, format!("{inst}/public/shared/deep\n"));
        for (name, mode) in [
            ("runs/new", 0o40700),
            ("runs/new/state", 0o40700),
            ("runs/new.ndjson", 0o100600),
            ("public/shared", 0o40700),
            ("public/shared/deep", 0o40700),
        ] {
            let facts = fs::symlink_metadata(instance.path(name)).expect("it is made");
            assert_eq!((facts.mode(), facts.uid()), (mode, owner), "{name}: {:o}", facts.mode());
        }
        fs::remove_dir_all(instance.path("runs/new")).expect("removed");
        fs::remove_dir_all(instance.path("public/shared")).expect("removed");
        fs::remove_file(instance.path("runs/new.ndjson")).expect("removed");
    }
}

/// Contradictions. `{i}` stands for the instance and `{r}` for what is above it.
const MISTAKES: &[(&str, &[&str])] = &[
    ("--hide {i}/latest", &["{i}/latest is reached through a symbolic link", "remedy: hide {i}/runs/B"]),
    ("--hide {i}/latest/notes.md", &["through a symbolic link", "remedy: hide {i}/runs/B/notes.md"]),
    ("--hide {i}/dangling", &["{i}/dangling is reached through a symbolic link", "remedy: hide the path of"]),
    ("--hide /", &["`/` is the whole host", "remedy: name a path below it"]),
    ("--hide {i}/../x", &["holds `..`", "remedy: write the path without `..`"]),
    ("--hide db/../x", &["`db/../x` holds `..`", "remedy: write the path without `..`"]),
    ("--hide /proc/cpuinfo", &["/proc/cpuinfo is the cell's own", "remedy: "]),
    ("--hide /dev/null", &["/dev/null is the cell's own", "remedy: "]),
    (
        "--ro-bind {i} --hide {i}/runs --expose {i}/runs",
        &[
            "the exposure {i}/runs reveals {i}/runs",
            "cause: that is hidden (--hide)",
            "remedy: name only what lies below",
        ],
    ),
    (
        "--hide {i}/runs/B --expose {i}/runs",
        &["the exposure {i}/runs reveals {i}/runs/B", "cause: that is hidden (--hide)", "remedy: "],
    ),
    (
        "--hide {i}/runs/B --expose {i}",
        &["the exposure {i} reveals {i}/runs/B", "cause: that is hidden (--hide)", "remedy: "],
    ),
    (
        "--hide {i}/runs --expose {r}/work",
        &[
            "the exposure {r}/work lies in nothing that is hidden",
            "remedy: hide the directory that it is a part of",
        ],
    ),
    (
        "--ro-bind {i} --hide {i}/db --expose {i}/runs/A",
        &["the exposure {i}/runs/A lies in nothing that is hidden", "remedy: hide the directory"],
    ),
    (
        "--ro-bind {i} --expose {i}/runs/A",
        &[
            "the exposure {i}/runs/A is visible already",
            "cause: the view of {i} (--ro-bind) shows it",
            "remedy: ",
        ],
    ),
    (
        "--bind {i}:/data --expose {i}/runs/A",
        &[
            "the exposure {i}/runs/A is visible already",
            "cause: the view of {i} (--bind) shows it",
            "remedy: ",
        ],
    ),
    (
        "--workspace {i} --expose {i}/runs/A",
        &["the exposure {i}/runs/A is visible already", "cause: the view of {i} (--workspace)", "remedy: "],
    ),
    (
        "--ro-bind {i} --hide {i}/runs --expose {i}/runs/C",
        &["{i}/runs/C does not exist", "remedy: make it before the run, or write `create = true`"],
    ),
    (
        "--hide {i}/runs --ro-bind {i}/runs/B",
        &["{i}/runs/B is hidden", "{i}/runs (--hide)", "remedy: expose it"],
    ),
    ("--hide {i}/runs --bind {i}/runs/B:/data", &["{i}/runs/B is hidden", "remedy: expose it"]),
    ("--hide {i}/runs --ro-bind {i}/runs", &["{i}/runs is hidden", "remedy: expose it"]),
    ("--hide {i} --ro-bind {i}/public", &["{i}/public is hidden", "remedy: expose it"]),
    ("--hide {i}/runs --workspace {i}/runs", &["the workspace {i}/runs reveals {i}/runs", "remedy: "]),
    ("--hide {r}/chan/A --channel {r}/chan", &["the channel {r}/chan reveals {r}/chan/A", "remedy: "]),
    ("--hide {r}/chan/A --channel {r}/chan/A", &["the channel {r}/chan/A reveals {r}/chan/A", "remedy: "]),
    (
        "--bind {i} --hide {i}/none",
        &["{i}/none cannot be masked in the writable view {i}", "remedy: make it on the host first"],
    ),
    (
        "--bind {i} --hide {i}/db/none",
        &["{i}/db/none cannot be masked in the writable view {i}", "remedy: make it on the host first"],
    ),
    (
        "--workspace {i} --hide {i}/none",
        &["{i}/none cannot be masked in the writable view /work", "remedy: make it on the host first"],
    ),
];

#[test]
fn a_scope_that_contradicts_itself_is_refused_with_its_rule() {
    let Some(instance) = Instance::new() else { return };
    symlink("nowhere", instance.path("dangling")).expect("symlink");
    let (inst, root) =
        (instance.text("public").replace("/public", ""), instance.root().display().to_string());
    // What would be made, were the launch to go on: in a view of its own.
    instance.directory("../seen");
    instance.directory("../seen/hidden");
    let policy = instance.root().join("made.toml");
    let content = format!(
        "version = 1\n[filesystem]\nro_bind = [\"{root}/seen\"]\n[run]\nhide = [\"{root}/seen/hidden\"]\n\
        expose = [{{ path = \"{root}/seen/hidden/made\", create = true }}]\ncreate = [\"{root}/seen/made\"]\n"
    );
    fs::write(&policy, content).expect("a policy can be written");
    let policy = policy.to_str().expect("a path");
    let mark = instance.text("public/mark");
    let mut before = snapshot(instance.root(), &[]);
    let mut wrong = Vec::new();
    for (options, says) in MISTAKES {
        let fill = |text: &str| text.replace("{i}", &inst).replace("{r}", &root);
        // Some are about there being no rule at all.
        let with = if options.contains("--hide") { &["run", "--policy", policy][..] } else { &["run"] };
        let options = fill(options);
        let words: Vec<&str> =
            with.iter().copied().chain(options.split(' ')).chain(["--", "touch", &mark]).collect();
        let output = instance.as_user(&words).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        let is_said = says.iter().all(|words| said.contains(&fill(words)));
        let begins = said.starts_with("cellblock: policy: --");
        if output.status.code() != Some(125) || !is_said || !begins {
            wrong.push(format!("{options}: {}: wanted {says:?}\n{said}", output.status));
        }
        let after = snapshot(instance.root(), &[]);
        wrong.extend(changes(&before, &after).into_iter().map(|change| format!("{options}: {change}")));
        before = after;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
