//! An instance to seal a run against: what a harness has on a machine where
//! it starts agents, in a temporary directory.
//!
//! ```text
//! ROOT/harness/          files of the harness, which also listens here
//! ROOT/inst/runs/A       this run's own state
//! ROOT/inst/runs/B       another run's session database
//! ROOT/inst/db, secrets, data/run-logs, control-plane-state.json
//! ROOT/inst/chan/A       FIFO, lock, descriptor and helper
//! ROOT/work              the tree the provider works on
//! ROOT/bin               programs
//! /tmp/cell-MARK         what the harness left in /tmp
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::stat::Mode;
use nix::unistd::{Uid, gethostname, mkfifo};

use crate::sys::clone::pass_pids;
use crate::verify::OWN_PIDS;

use super::place;

/// The user and group that own a fixture and run its harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// An instance with its harness process; dropping it ends and removes both.
#[derive(Debug)]
pub struct Fixture {
    root: PathBuf,
    in_tmp: PathBuf,
    owner: Option<Owner>,
    facts: BTreeMap<String, String>,
    harness: Child,
}

impl Fixture {
    /// Makes the tree and starts a copy of `program`, with the arguments
    /// `WORDS… CASE DIR LOCK IN_TMP`, as its harness; another copy is the helper.
    ///
    /// The harness finds its secret in `HARNESS_SECRET`, says what it holds as
    /// KEY=VALUE lines ended by an empty one, and ends when its stdin does.
    /// Started by root, everything belongs to `owner` and the harness runs as
    /// that id; an ordinary user gives `None` and owns it himself.
    ///
    /// # Errors
    ///
    /// When a file cannot be made, or the harness does not start.
    pub fn new(owner: Option<Owner>, program: &Path, words: &[&str]) -> io::Result<Fixture> {
        let mark = mark();
        let root = place::find()
            .map_err(|error| at(Path::new("a place for the fixture"), error))?
            .join(format!("cell-{mark}"));
        let in_tmp = PathBuf::from(format!("/tmp/cell-{mark}-tmp"));
        let tree = Tree { root: &root, in_tmp: &in_tmp, owner };
        let started = tree.fill(&mark, program).and_then(|mut facts| {
            let harness = start(owner, words, &mut facts)?;
            Ok((facts, harness))
        });
        match started {
            Ok((facts, harness)) => {
                let fixture = Fixture { root, in_tmp, owner, facts, harness };
                fixture.write_facts()?;
                Ok(fixture)
            }
            Err(error) => {
                let _ = fs::remove_dir_all(&root);
                let _ = fs::remove_dir_all(&in_tmp);
                Err(error)
            }
        }
    }

    /// What the fixture calls `key`: a path, a number, a name.
    ///
    /// # Panics
    ///
    /// When there is no such key.
    pub fn get(&self, key: &str) -> &str {
        self.facts.get(key).unwrap_or_else(|| panic!("the fixture names no {key}"))
    }

    /// As [`Fixture::get`], a path.
    pub fn path(&self, key: &str) -> PathBuf {
        self.get(key).into()
    }

    /// The directory that holds everything.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The KEY=VALUE file, in the run's own state, that tells an agent what to
    /// look for.
    pub fn facts_file(&self) -> PathBuf {
        self.path("OWN").join("facts")
    }

    /// Copies a program into `ROOT/bin` and gives its path.
    ///
    /// # Errors
    ///
    /// When it cannot be copied.
    pub fn install(&self, program: &Path, name: &str) -> io::Result<PathBuf> {
        let path = self.root.join("bin").join(name);
        self.tree().program(program, &path)?;
        Ok(path)
    }

    fn write_facts(&self) -> io::Result<()> {
        let text: String = self.facts.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        self.tree().file(&self.facts_file(), text)
    }

    fn tree(&self) -> Tree<'_> {
        Tree { root: &self.root, in_tmp: &self.in_tmp, owner: self.owner }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.harness.stdin.take());
        let patience = Instant::now() + Duration::from_secs(2);
        while matches!(self.harness.try_wait(), Ok(None)) {
            if Instant::now() > patience {
                let _ = self.harness.kill();
                let _ = self.harness.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = fs::remove_dir_all(&self.root);
        let _ = fs::remove_dir_all(&self.in_tmp);
    }
}

/// An error that names its path.
fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A name that no other fixture has and that nothing in a host's tables holds
/// by chance.
fn mark() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let nanoseconds = now.as_nanos() as u64 & 0xff_ffff_ffff;
    format!("{:x}{nanoseconds:010x}", std::process::id())
}

struct Tree<'a> {
    root: &'a Path,
    in_tmp: &'a Path,
    owner: Option<Owner>,
}

impl Tree<'_> {
    /// Makes every file and gives their names.
    fn fill(&self, mark: &str, program: &Path) -> io::Result<BTreeMap<String, String>> {
        let mut facts = BTreeMap::new();
        let mut name = |key: &str, path: &Path| {
            facts.insert(key.to_owned(), path.display().to_string());
        };

        let harness = self.root.join("harness");
        let inst = self.root.join("inst");
        let (own, other) = (inst.join("runs/A"), inst.join("runs/B"));
        let (db, secrets, data) = (inst.join("db"), inst.join("secrets"), inst.join("data"));
        let (logs, channel) = (data.join("run-logs"), inst.join("chan/A"));
        let work = self.root.join("work");
        for dir in [
            self.root,
            self.in_tmp,
            &self.root.join("bin"),
            &harness,
            &inst,
            &inst.join("runs"),
            &own,
            &other,
            &db,
            &db.join("pg_wal"),
            &secrets,
            &data,
            &logs,
            &inst.join("chan"),
            &channel,
            &work,
        ] {
            self.directory(dir)?;
        }
        for (key, path) in [
            ("ROOT", self.root),
            ("IN_TMP", self.in_tmp),
            ("HARNESS_DIR", &harness),
            ("INST", &inst),
            ("RUNS", &inst.join("runs")),
            ("OWN", &own),
            ("OTHER", &other),
            ("DB", &db),
            ("PG_WAL", &db.join("pg_wal")),
            ("SECRETS", &secrets),
            ("DATA", &data),
            ("CHANNEL", &channel),
            ("WORK", &work),
        ] {
            name(key, path);
        }

        let descriptor = format!("{{\"version\":1,\"run\":\"A\",\"mark\":\"{mark}\"}}");
        for (key, path, text) in [
            ("HARNESS_FILE", harness.join("verdict.json"), "{\"expected\": \"42\"}\n"),
            ("OTHER_DB", other.join("session.db"), "another run's session\n"),
            ("OTHER_FILE", other.join("notes.md"), "another run's notes\n"),
            ("WAL_FILE", db.join("pg_wal/000000010000000000000001"), "a database's log\n"),
            ("SECRET_FILE", secrets.join("key"), "a secret\n"),
            ("RUN_LOG", logs.join("B.ndjson"), "{\"run\":\"B\"}\n"),
            ("CONTROL_PLANE", inst.join("control-plane-state.json"), "{\"runs\":[\"A\",\"B\"]}\n"),
            ("TMP_FILE", self.in_tmp.join("left"), "a file in /tmp\n"),
            ("LOCK", channel.join("activity.lock"), ""),
            ("DESCRIPTOR", channel.join("descriptor.json"), &descriptor),
            ("WORK_FILE", work.join("README"), "the tree to work on\n"),
        ] {
            self.file(&path, text)?;
            name(key, &path);
        }
        let link = harness.join("current");
        symlink("verdict.json", &link)?;
        self.give(&link)?;
        name("HARNESS_LINK", &link);

        let fifo = channel.join("activity.fifo");
        mkfifo(&fifo, Mode::from_bits_truncate(0o600))?;
        self.give(&fifo)?;
        name("FIFO", &fifo);
        for (key, path) in [("HARNESS_EXE", harness.join("judge")), ("HELPER", channel.join("helper"))] {
            self.program(program, &path)?;
            name(key, &path);
        }

        let hostname = gethostname().map(|name| name.to_string_lossy().into_owned());
        facts.insert("HOSTNAME".into(), hostname?);
        for (key, path) in [("MACHINE_ID", "/etc/machine-id"), ("BOOT_ID", "/proc/sys/kernel/random/boot_id")]
        {
            let value = fs::read_to_string(path).unwrap_or_default();
            facts.insert(key.into(), value.trim().into());
        }
        facts.insert("CASE_ID".into(), format!("case-{mark}"));
        facts.insert("SECRET".into(), format!("secret-of-the-harness-{mark}"));
        facts.insert("DESCRIPTOR_TEXT".into(), descriptor);
        Ok(facts)
    }

    fn directory(&self, path: &Path) -> io::Result<()> {
        // Others must be able to walk through: the owner need not be who makes it.
        fs::DirBuilder::new().mode(0o755).create(path).map_err(|error| at(path, error))?;
        self.give(path)
    }

    fn file(&self, path: &Path, text: impl AsRef<[u8]>) -> io::Result<()> {
        fs::write(path, text).map_err(|error| at(path, error))?;
        self.give(path)
    }

    /// Copies a program by a new file, as one that is being run cannot be
    /// written.
    fn program(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut copy = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(to)?;
        io::copy(&mut fs::File::open(from)?, &mut copy)?;
        copy.set_permissions(fs::Permissions::from_mode(0o755))?;
        // A child that another thread is starting has this descriptor too until
        // its exec, and a file that is open for writing cannot be run. The lock
        // is held as long as anybody has it.
        copy.lock()?;
        drop(copy);
        fs::File::open(to)?.lock_shared()?;
        self.give(to)
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        match self.owner {
            Some(Owner { uid, gid }) => lchown(path, Some(uid), Some(gid)).map_err(|error| at(path, error)),
            None => Ok(()),
        }
    }
}

/// Starts the harness and adds what it says it holds.
fn start(owner: Option<Owner>, words: &[&str], facts: &mut BTreeMap<String, String>) -> io::Result<Child> {
    let mut command = Command::new(&facts["HARNESS_EXE"]);
    command
        .args(words)
        .args(["CASE_ID", "HARNESS_DIR", "LOCK", "IN_TMP"].map(|key| &facts[key]))
        .env_clear()
        .env("HARNESS_SECRET", &facts["SECRET"])
        .current_dir(&facts["HARNESS_DIR"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if let Some(Owner { uid, gid }) = owner
        && Uid::effective().is_root()
    {
        command.uid(uid).gid(gid);
    }
    // Whoever looks for it by its number must not find a process of the cell's own.
    pass_pids(OWN_PIDS).map_err(|failure| io::Error::from(failure.errno))?;
    let mut harness = command.spawn().map_err(|error| at(Path::new(&facts["HARNESS_EXE"]), error))?;
    facts.insert("HARNESS_PID".into(), harness.id().to_string());
    if let Some(said) = harness.stdout.take() {
        for line in BufReader::new(said).lines() {
            let line = line?;
            match line.split_once('=') {
                Some((key, value)) => facts.insert(key.into(), value.into()),
                None => return Ok(harness),
            };
        }
    }
    let status = harness.wait()?;
    Err(io::Error::other(format!("the harness ended at once: {status}")))
}
