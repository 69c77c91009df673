//! The channel: what a provider writes to its FIFO arrives as from outside a
//! cell, and nothing else can be done there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::cell::{PROBE, probe_program};
use crate::install::install;
use crate::skip;
use crate::snapshot::{is_as_before, snapshot};
use crate::user::{self, PATIENCE, User, end, text};

/// The largest write that a pipe takes whole or not at all.
const PIPE_BUF: usize = 4096;
/// The entries that a provider may not change.
const FIXED: [&str; 3] = ["activity.lock", "descriptor.json", "helper"];
/// The tables of `[channel]` that the tests have by default.
const ENTRIES: &str = "fifo = [\"activity.fifo\"]\nlock = [\"activity.lock\"]\n\
    read_only = [\"descriptor.json\"]\nexecute = [\"helper\"]\n";

/// An instance with a channel.
///
/// ```text
/// inst/chan/A      activity.fifo, activity.lock, descriptor.json, helper
/// inst/discovery   a directory that the harness rotates files in
/// inst/own         the run's own state
/// ```
struct Ground {
    user: User,
}

impl Ground {
    fn new() -> Option<Ground> {
        let user = User::new()?;
        install(probe_program(), &user.path("probe"));
        let ground = Ground { user };
        ground.lay_out("inst");
        Some(ground)
    }

    /// Makes an instance by that name.
    fn lay_out(&self, name: &str) {
        for directory in ["chan/A", "discovery", "own"] {
            self.user.directory(&format!("{name}/{directory}"));
        }
        self.fifo(&format!("{name}/chan/A/activity.fifo"));
        self.user.file(format!("{name}/chan/A/activity.lock"), "");
        self.user.file(format!("{name}/chan/A/descriptor.json"), "first\n");
        self.user.file(format!("{name}/discovery/descriptor.json"), "first\n");
        let helper = self.user.file(format!("{name}/chan/A/helper"), "#!/bin/sh\necho helped\n");
        fs::set_permissions(helper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.user.path("inst").join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn channel(&self, name: &str) -> PathBuf {
        match name {
            "" => self.path("chan/A"),
            name => self.path("chan/A").join(name),
        }
    }

    fn fifo(&self, name: &str) -> PathBuf {
        let path = self.user.path(name);
        mkfifo(&path, Mode::from_bits_truncate(0o600)).expect("mkfifo");
        self.user.own(&path);
        path
    }

    /// A policy with these lines under `[channel]`.
    fn policy(&self, channel: &str) -> String {
        let policy = self.user.file(
            "policy.toml",
            format!(
                "version = 1\n[cell]\ntimeout = \"60s\"\n\
                [filesystem]\nro_bind = [{{ src = \"{}\", dest = \"{PROBE}\" }}]\n\
                [run]\nexpose = [\"{}\"]\n[channel]\ndir = \"{}\"\n{channel}",
                self.user.path("probe").display(),
                self.text("own"),
                self.text("chan/A"),
            ),
        );
        policy.display().to_string()
    }

    /// The probe in a cell with the default channel.
    fn cell(&self, words: &[&str]) -> Command {
        self.cell_of(ENTRIES, &[], &[&[PROBE], words].concat())
    }

    /// A command in a cell with this channel.
    fn cell_of(&self, channel: &str, options: &[&str], command: &[&str]) -> Command {
        let policy = self.policy(channel);
        self.user.cell(&[&["--policy", &policy], options].concat(), command)
    }

    /// The probe in no cell.
    fn beside(&self, words: &[&str]) -> Command {
        let mut command = self.user.command(self.user.path("probe"));
        command.args(words);
        command
    }

    /// The same in no cell and in one.
    fn both(&self, words: &[&str]) -> [(&'static str, Command); 2] {
        [("beside", self.beside(words)), ("in a cell", self.cell(words))]
    }
}

/// Opens a FIFO for reading, with no writer there yet.
fn reader(fifo: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK).open(fifo).expect("the FIFO opens")
}

/// All that comes from a FIFO until this process has ended, but not for ever.
fn drain(mut fifo: File, writer: &mut Child) -> Vec<u8> {
    let deadline = Instant::now() + PATIENCE;
    let mut got = Vec::new();
    let mut has_ended = false;
    loop {
        // Nobody writes yet, or any more; or nothing is there yet.
        let before = got.len();
        let read = fifo.read_to_end(&mut got);
        let is_empty = got.len() == before;
        if is_empty && has_ended {
            return got;
        }
        if let Err(error) = read {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
        assert!(Instant::now() < deadline, "{} bytes, and then nothing", got.len());
        has_ended = writer.try_wait().expect("wait").is_some();
        if is_empty && !has_ended {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// A process that is told when to go on by lines, and answers by lines.
struct Talk {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Talk {
    fn start(mut command: Command) -> Talk {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Talk { child, said }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("it speaks");
        line.trim_end().to_owned()
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().expect("a pipe").write_all(b"go\n").expect("it listens");
    }

    /// Ends its stdin, and gives what it still says.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).expect("it speaks");
        end(&mut self.child);
        rest
    }
}

/// The lines `NAME<TAB>ANSWER` of a probe.
fn answers(said: &str) -> BTreeMap<String, String> {
    let pairs = said.lines().map(|line| line.split_once('\t').expect("a name and an answer"));
    pairs.map(|(name, answer)| (name.to_owned(), answer.to_owned())).collect()
}

#[test]
fn bytes_arrive_exact_and_in_order() {
    let Some(ground) = Ground::new() else { return };
    let fifo = ground.channel("activity.fifo");
    for length in [1, PIPE_BUF - 1, PIPE_BUF, PIPE_BUF + 1, 64 << 10, 1 << 20] {
        let wanted: Vec<u8> = (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
        for (place, mut command) in
            ground.both(&["fifo", "send", fifo.to_str().unwrap(), &length.to_string()])
        {
            let reader = reader(&fifo);
            let mut writer = command.spawn().expect("it starts");
            let got = drain(reader, &mut writer);
            assert!(end(&mut writer).success(), "{length} bytes {place}");
            assert!(got == wanted, "{length} bytes {place}: {} arrived", got.len());
        }
    }
}

#[test]
fn writers_at_once_never_mix_what_a_pipe_takes_whole() {
    const WRITERS: u8 = 6;
    const COUNT: u32 = 400;
    let Some(ground) = Ground::new() else { return };
    let fifo = ground.channel("activity.fifo");
    for lengths in [&["8"][..], &["4096"], &["4095", "8", "4096", "513", "64"]] {
        let (writers, count) = (WRITERS.to_string(), COUNT.to_string());
        let words = [&["fifo", "records", fifo.to_str().unwrap(), &writers, &count], lengths].concat();
        for (place, mut command) in ground.both(&words) {
            let what = format!("records of {lengths:?} {place}");
            let reader = reader(&fifo);
            let mut writer = command.spawn().expect("it starts");
            let got = drain(reader, &mut writer);
            assert!(end(&mut writer).success(), "{what}");
            let mut next = BTreeMap::new();
            let mut rest = &got[..];
            while !rest.is_empty() {
                assert!(rest.len() >= 8 && rest[1] == b'!', "{what}: no record begins here");
                let writer = rest[0];
                let length = usize::from(u16::from_le_bytes([rest[2], rest[3]]));
                let number = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]);
                assert_eq!(length.to_string(), lengths[number as usize % lengths.len()], "{what}");
                assert!(rest[8..length].iter().all(|byte| *byte == writer), "{what}: records are mixed");
                let wanted = next.entry(writer).or_insert(0);
                assert_eq!(number, *wanted, "{what}: the order of one writer");
                *wanted += 1;
                rest = &rest[length..];
            }
            let all: BTreeMap<u8, u32> = (b'a'..b'a' + WRITERS).map(|writer| (writer, COUNT)).collect();
            assert_eq!(next, all, "{what}");
        }
    }
}

#[test]
fn without_a_reader_a_writer_is_told_or_waits() {
    let Some(ground) = Ground::new() else { return };
    let fifo = ground.channel("activity.fifo");
    let name = fifo.to_str().unwrap();
    for (place, mut command) in ground.both(&["fifo", "open", name, "now"]) {
        assert_eq!(text(&command.output().expect("it starts")), "opening\nENXIO\n", "{place}");
    }
    for (place, command) in ground.both(&["fifo", "open", name, "wait"]) {
        let mut writer = Talk::start(command);
        assert_eq!(writer.line(), "opening");
        std::thread::sleep(Duration::from_millis(150));
        assert!(writer.child.try_wait().expect("wait").is_none(), "{place}: it did not wait");
        let _reader = reader(&fifo);
        assert_eq!(writer.line(), "ok", "{place}");
        writer.end();
    }
}

#[test]
fn a_writer_whose_reader_has_gone_is_told() {
    let Some(ground) = Ground::new() else { return };
    let fifo = ground.channel("activity.fifo");
    for (how, answer) in [("lives", "EPIPE\n"), ("dies", "")] {
        for (place, command) in ground.both(&["fifo", "outlive", fifo.to_str().unwrap(), how]) {
            let mut reader = reader(&fifo);
            let mut writer = Talk::start(command);
            let mut byte = [0];
            user::eventually("a byte", || matches!(reader.read(&mut byte), Ok(1)).then_some(()));
            drop(reader);
            let mut said = String::new();
            writer.said.read_to_string(&mut said).expect("it speaks");
            assert_eq!(said, answer, "{place}");
            let status = end(&mut writer.child);
            match (how, place) {
                ("lives", _) => assert!(status.success(), "{place}: {status}"),
                (_, "beside") => assert_eq!(status.signal(), Some(libc::SIGPIPE)),
                _ => assert_eq!(status.code(), Some(128 + libc::SIGPIPE)),
            }
        }
    }
}

/// Writes by a descriptor that was opened before the endpoint was replaced, and
/// by its name afterwards.
const KEEP_WRITING: &str =
    "exec 3> $0; echo one >&3; read go; echo two >&3; read go; (echo three > $0) 2> /dev/null; echo $?";

#[test]
fn an_endpoint_that_is_replaced_stays_without_replaceable_and_is_found_with_it() {
    let Some(ground) = Ground::new() else { return };
    let fifo = ground.channel("activity.fifo");
    for (replaceable, name_leads_to) in [("", "old"), ("replaceable = true\n", "new")] {
        let channel = format!("{ENTRIES}{replaceable}");
        let words = ["sh", "-c", KEEP_WRITING, fifo.to_str().unwrap()];
        let mut old = reader(&fifo);
        let mut writer = Talk::start(ground.cell_of(&channel, &[], &words));
        let next = |fifo: &mut File| {
            let mut got = [0; 16];
            user::eventually("a line", || match fifo.read(&mut got) {
                Ok(0) | Err(_) => None,
                Ok(length) => Some(String::from_utf8_lossy(&got[..length]).into_owned()),
            })
        };
        assert_eq!(next(&mut old), "one\n");
        let new = ground.fifo("new.fifo");
        fs::rename(new, &fifo).expect("the harness replaces its endpoint");
        let mut new = reader(&fifo);
        writer.go();
        assert_eq!(next(&mut old), "two\n", "an open descriptor goes on leading where it led");
        writer.go();
        assert_eq!(writer.line(), "0", "the endpoint takes writes by its name ({replaceable:?})");
        let (found, other) = match name_leads_to {
            "old" => (&mut old, &mut new),
            _ => (&mut new, &mut old),
        };
        assert_eq!(next(found), "three\n", "the name leads to the {name_leads_to} one");
        assert!(!matches!(other.read(&mut [0; 16]), Ok(1..)));
        writer.end();
    }
}

/// Reads a file each time it is told to.
const READ_ANEW: &str = "while read go; do cat \"$0\" || echo none; done 2> /dev/null";

fn replace(ground: &Ground, path: &Path, content: &str) {
    let new = ground.user.file("new", content);
    fs::rename(new, path).expect("the harness replaces its file");
}

#[test]
fn a_discovery_directory_shows_what_the_harness_rotates_into_it() {
    let Some(ground) = Ground::new() else { return };
    let discovery = ground.text("discovery");
    let channel = format!(
        "fifo = [\"activity.fifo\"]\nread_only = [\"{discovery}\", \"descriptor.json\"]\nexecute = [\"helper\"]\n"
    );
    let descriptor = ground.path("discovery/descriptor.json");
    let words = ["sh", "-c", READ_ANEW, descriptor.to_str().unwrap()];
    let mut provider = Talk::start(ground.cell_of(&channel, &[], &words));
    for round in 0..50 {
        replace(&ground, &descriptor, &format!("{round}\n"));
        provider.go();
        assert_eq!(provider.line(), round.to_string());
    }
    provider.end();

    let attempts =
        ground.cell_of(&channel, &[], &[PROBE, "entry", descriptor.to_str().unwrap(), &ground.text("own")]);
    is_refused(attempts, "the descriptor in a discovery directory", &[]);
}

#[test]
fn a_descriptor_that_is_named_by_itself_stays_the_one_that_was_bound() {
    let Some(ground) = Ground::new() else { return };
    let descriptor = ground.channel("descriptor.json");
    let words = ["sh", "-c", READ_ANEW, descriptor.to_str().unwrap()];
    let mut provider = Talk::start(ground.cell_of(ENTRIES, &[], &words));
    provider.go();
    assert_eq!(provider.line(), "first");
    replace(&ground, &descriptor, "second\n");
    provider.go();
    assert_eq!(provider.line(), "first", "a mount keeps its file: use a discovery directory");
    provider.end();
}

/// Asserts that each attempt was refused, apart from these, which must work.
fn is_refused(mut command: Command, what: &str, allowed: &[&str]) {
    let found = answers(&text(&command.output().expect("it starts")));
    let listed = Command::new(probe_program()).arg("entries").output().expect("it starts");
    assert_eq!(found.len(), text(&listed).lines().count(), "{what}: {found:?}");
    let worked: BTreeSet<&str> =
        found.iter().filter(|(_, answer)| *answer == "ok").map(|(name, _)| &**name).collect();
    assert_eq!(worked, allowed.iter().copied().collect(), "{what}: {found:?}");
    let strange: Vec<_> = found.iter().filter(|(_, answer)| answer.starts_with("killed")).collect();
    assert!(strange.is_empty(), "{what}: {strange:?}");
}

/// What needs mounts, which nobody may make beside a cell either.
const OF_MOUNTS: [&str; 4] = ["mount", "move-mount", "unmount", "remount"];

#[test]
fn the_attempts_work_where_there_is_no_cell() {
    let Some(ground) = Ground::new() else { return };
    let listed = Command::new(probe_program()).arg("entries").output().expect("it starts");
    for name in text(&listed).lines() {
        let tree = format!("beside/{name}");
        ground.lay_out(&tree);
        let root = ground.user.path(&tree);
        let (entry, own) = (root.join("chan/A/activity.lock"), root.join("own"));
        let words = ["entry", entry.to_str().unwrap(), own.to_str().unwrap(), name];
        let found = answers(&text(&ground.beside(&words).output().expect("it starts")));
        let wanted = if OF_MOUNTS.contains(&name) { "EPERM" } else { "ok" };
        assert_eq!(found[name], wanted, "{name}");
    }
}

#[test]
fn lock_descriptor_and_helper_cannot_be_changed_moved_or_leased() {
    let Some(ground) = Ground::new() else { return };
    let own = ground.text("own");
    for (channel, options) in [
        (ENTRIES.to_owned(), &[][..]),
        (format!("{ENTRIES}lock_access = \"read\"\n"), &[]),
        (ENTRIES.to_owned(), &["--without", "landlock"]),
        (ENTRIES.to_owned(), skip::NESTED),
    ] {
        for entry in FIXED {
            let path = ground.channel(entry);
            let before = snapshot(&ground.path("chan"), &[]);
            let words = [PROBE, "entry", path.to_str().unwrap(), &own];
            let what = format!("{entry} with {channel}{options:?}");
            is_refused(ground.cell_of(&channel, options, &words), &what, &[]);
            is_as_before(&before, &snapshot(&ground.path("chan"), &[]), &what);
        }
    }
}

#[test]
fn a_replaceable_channel_takes_new_entries_and_keeps_those_of_the_harness() {
    let Some(ground) = Ground::new() else { return };
    let own = ground.text("own");
    let channel = format!("{ENTRIES}replaceable = true\n");
    let of_the_directory = [
        "new-file",
        "new-directory",
        "new-symlink",
        "new-fifo",
        "new-socket",
        "temporary",
        "chmod-directory",
        "utimens-directory",
        "setxattr-directory",
    ];
    for entry in FIXED {
        let path = ground.channel(entry);
        let before = snapshot(&path, &[]);
        let words = [PROBE, "entry", path.to_str().unwrap(), &own];
        is_refused(ground.cell_of(&channel, &[], &words), entry, &of_the_directory);
        is_as_before(&before, &snapshot(&path, &[]), entry);
        let made = ["new", "new-symlink", "new-fifo", "new-socket", "new-directory", "plant", "exchanged"];
        for name in made {
            let new = ground.channel(name);
            assert!(new.symlink_metadata().is_ok(), "{name} is on the host");
            let _ = fs::remove_file(&new).or_else(|_| fs::remove_dir(&new));
        }
    }
}

/// A limit: the kernel takes a mount away with the file that it stands on.
#[test]
fn what_the_harness_replaces_in_a_replaceable_channel_is_held_no_more() {
    let Some(ground) = Ground::new() else { return };
    let channel = format!("{ENTRIES}replaceable = true\n");
    let descriptor = ground.channel("descriptor.json");
    let script = "while read go; do (echo agent > \"$0\") 2> /dev/null && echo written || echo held; done";
    let words = ["sh", "-c", script, descriptor.to_str().unwrap()];
    let mut provider = Talk::start(ground.cell_of(&channel, &[], &words));
    provider.go();
    assert_eq!(provider.line(), "held");
    replace(&ground, &descriptor, "second\n");
    provider.go();
    assert_eq!(provider.line(), "written");
    provider.end();
}

/// Takes both kinds of lock that a harness may use; `false` where another has one.
fn take(file: &File) -> bool {
    // SAFETY: all zeroes is a valid `flock`.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = libc::F_WRLCK as i16;
    // SAFETY: `whole` lives through the call.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &whole) };
    file.try_lock().is_ok() && answer == 0
}

/// A child that another test has forked holds a copy of a lock until its exec.
fn eventually_taken(file: &File, what: &str) {
    user::eventually(what, || take(file).then_some(()));
}

#[test]
fn no_lock_in_the_cell_meets_one_of_the_harness() {
    let Some(ground) = Ground::new() else { return };
    for options in [&[][..], &["--without", "landlock"], skip::NESTED] {
        for entry in FIXED {
            let what = format!("{entry} with {options:?}");
            let path = ground.channel(entry);
            let words = [PROBE, "hold", path.to_str().unwrap()];
            let open = || File::options().read(true).write(true).open(&path).expect("the harness's own");

            let mut holder = Talk::start(ground.cell_of(ENTRIES, options, &words));
            let alone = holder.line();
            let harness = open();
            eventually_taken(&harness, &format!("{what}: the cell holds {alone}"));
            holder.end();
            assert!(!take(&open()), "{what}: the harness has lost its lock");

            // It is held before the next cell begins, and until after its end.
            let mut holder = Talk::start(ground.cell_of(ENTRIES, options, &words));
            let together = holder.line();
            assert_eq!(together, alone, "{what}: the cell can tell that the harness holds its lock");
            assert!(!take(&open()), "{what}: the harness has lost its lock");
            holder.end();
            assert!(!take(&open()), "{what}: the harness has lost its lock");
            drop(harness);
            eventually_taken(&open(), &what);
        }
    }
}

#[test]
fn a_lock_that_may_be_read_is_the_harness_s_own() {
    let Some(ground) = Ground::new() else { return };
    let channel = format!("{ENTRIES}lock_access = \"read\"\n");
    let lock = ground.channel("activity.lock");
    let mut holder = Talk::start(ground.cell_of(&channel, &[], &[PROBE, "hold", lock.to_str().unwrap()]));
    let held = holder.line();
    assert!(held.ends_with("flock ok"), "{held}");
    let open = || File::options().read(true).write(true).open(&lock).expect("the harness's own");
    assert!(!take(&open()), "the harness does not see that its helper has the lock");
    holder.end();
    eventually_taken(&open(), "after the cell's end");
}

#[test]
fn the_cell_sees_no_use_that_the_harness_makes_of_its_files() {
    let Some(ground) = Ground::new() else { return };
    let paths: Vec<String> = FIXED.iter().map(|name| ground.channel(name).display().to_string()).collect();
    let mut words = vec![PROBE, "watch"];
    words.extend(paths.iter().map(String::as_str));
    for options in [&[][..], &["--without", "landlock"]] {
        let mut provider = Talk::start(ground.cell_of(ENTRIES, options, &words));
        assert_eq!(provider.line(), "watching");
        for path in &paths {
            let mut file = File::options().read(true).append(true).open(path).expect("the harness's own");
            eventually_taken(&file, path);
            file.read_to_end(&mut Vec::new()).expect("read");
            file.write_all(b"\n").expect("written");
        }
        let seen = answers(&provider.end());
        assert_eq!(seen.len(), paths.len());
        assert!(seen.values().all(|answer| answer != "events"), "{options:?}: {seen:?}");
    }
}

#[test]
fn what_nested_mode_cannot_hold_is_in_the_plan_and_in_the_evidence() {
    let Some(ground) = Ground::new() else { return };
    let policy = ground.policy(ENTRIES);
    let report = ground.user.path("report");
    for (mode, is_noted) in [(&[][..], false), (skip::NESTED, true)] {
        let mut plan = ground.user.command(ground.user.path("cellblock"));
        plan.args(["plan", "--policy", &policy]).args(mode).args(["--", "true"]);
        let options = [&["--policy", &policy, "--report", report.to_str().unwrap()], mode].concat();
        text(&ground.user.cell(&options, &["true"]).output().expect("it starts"));
        let evidence = fs::read_to_string(&report).expect("a report");
        for said in [text(&plan.output().expect("it starts")), evidence] {
            for entry in ["activity.fifo", "activity.lock"] {
                let note = format!("{}: can be opened for reading", ground.channel(entry).display());
                assert_eq!(said.contains(&note), is_noted, "{mode:?}: {note}: {said}");
            }
        }
    }
}

/// A policy that is refused: its options, the lines under `[channel]` if there
/// is one, and what the message says.
type Mistake<'a> = (&'a [&'a str], Option<&'a str>, &'a [&'a str]);

#[test]
fn what_is_no_directory_is_not_granted_as_one() {
    let Some(ground) = Ground::new() else { return };
    let fifo = ground.text("chan/A/activity.fifo");
    let lock = ground.text("chan/A/activity.lock");
    let socket = ground.text("socket");
    drop(UnixListener::bind(&socket).expect("a socket"));
    let directory = "remedy: grant the private directory that holds it";
    let mistakes: &[Mistake] = &[
        (&["--expose", &fifo], None, &["is a FIFO", directory]),
        (&["--bind", &fifo], None, &["is a FIFO", "remedy: name its directory as `[channel] dir`"]),
        (&["--ro-bind", &fifo], None, &["is a FIFO", "remedy: name its directory as `[channel] dir`"]),
        (&["--workspace", &fifo], None, &["is a FIFO", directory]),
        (&["--channel", &fifo], None, &["is a FIFO", directory]),
        (&["--expose", &socket], None, &["is a socket", directory]),
        (&["--workspace", &socket], None, &["is a socket", directory]),
        (&["--channel", &socket], None, &["is a socket", directory]),
        (&["--expose", "/dev/null"], None, &["is a device", "remedy: "]),
        (&["--bind", "/dev/null:/data"], None, &["is a device", "remedy: "]),
        (&["--ro-bind", "/dev/null:/data"], None, &["is a device", "remedy: "]),
        (&["--workspace", "/dev/null"], None, &["is a device", "remedy: "]),
        (&["--channel", "/dev/null"], None, &["is a device", "remedy: "]),
        (&["--expose", &lock], None, &["is a regular file, where a directory is needed", "remedy: "]),
        (&["--workspace", &lock], None, &["is a regular file, where a directory is needed", "remedy: "]),
        (&["--channel", &lock], None, &["is a regular file, where a directory is needed", "remedy: "]),
    ];
    mistakes.iter().for_each(|mistake| refused(&ground, mistake));
}

#[test]
fn an_entry_that_is_not_what_the_policy_says_is_refused() {
    let Some(ground) = Ground::new() else { return };
    let chan = ground.path("chan/A");
    drop(UnixListener::bind(chan.join("socket")).expect("a socket"));
    ground.user.directory("inst/chan/A/directory");
    for (link, target) in [("fifo", "activity.fifo"), ("lock", "activity.lock"), ("dangling", "nothing")] {
        symlink(target, chan.join(format!("{link}.link"))).expect("symlink");
    }
    symlink("A", ground.path("chan/link")).expect("symlink");
    let linked = ground.text("chan/link");
    let link = "is reached through a symbolic link";
    let mistakes: &[Mistake] = &[
        (&[], Some("fifo = [\"activity.lock\"]"), &["is a regular file, where a FIFO is needed", "remedy: "]),
        (&[], Some("fifo = [\"directory\"]"), &["is a directory, where a FIFO is needed", "remedy: "]),
        (&[], Some("fifo = [\"socket\"]"), &["is a socket, where a FIFO is needed", "remedy: "]),
        (&[], Some("fifo = [\"fifo.link\"]"), &[link, "remedy: write "]),
        (&[], Some("fifo = [\"dangling.link\"]"), &[link, "remedy: write "]),
        (&[], Some("fifo = [\"none\"]"), &["does not exist", "remedy: mkfifo "]),
        (&[], Some("lock = [\"activity.fifo\"]"), &["is a FIFO, where a regular file is needed", "remedy: "]),
        (&[], Some("lock = [\"directory\"]"), &["is a directory, where a regular file", "remedy: "]),
        (&[], Some("lock = [\"lock.link\"]"), &[link, "remedy: write "]),
        (&[], Some("lock = [\"none\"]"), &["does not exist", "remedy: "]),
        (
            &[],
            Some("read_only = [\"activity.fifo\"]"),
            &["is a FIFO, where a file or a directory", "remedy: "],
        ),
        (&[], Some("read_only = [\"socket\"]"), &["is a socket, where a file or a directory", "remedy: "]),
        (&[], Some("read_only = [\"lock.link\"]"), &[link, "remedy: write "]),
        (&[], Some("execute = [\"activity.fifo\"]"), &["is a FIFO, where a file or a directory", "remedy: "]),
        (&[], Some("execute = [\"lock.link\"]"), &[link, "remedy: write "]),
        (&["--channel", &linked], None, &[link, "remedy: write "]),
    ];
    mistakes.iter().for_each(|mistake| refused(&ground, mistake));
}

#[test]
fn an_entry_of_another_user_is_refused_and_one_of_roots_is_not() {
    if !skip::has_root() {
        return;
    }
    let Some(ground) = Ground::new() else { return };
    let other = 54322;
    for name in ["activity.fifo", "activity.lock", "descriptor.json", "helper", ""] {
        let path = ground.channel(name);
        chown(&path, Some(0), None).expect("chown");
        if name != "activity.fifo" {
            let words = ["sh", "-c", "echo up"];
            let up = ground.cell_of(ENTRIES, &[], &words).output().expect("it starts");
            assert_eq!(text(&up), "up\n", "{name} of root's");
        }
        chown(&path, Some(other), None).expect("chown");
        refused(&ground, &(&[], Some(ENTRIES), &[path.to_str().unwrap(), "54322", "remedy: "]));
        ground.user.own(&path);
    }
}

/// Asserts that a launch is refused with words, before anything is started or
/// made.
fn refused(ground: &Ground, (options, channel, says): &Mistake) {
    let own = ground.text("own");
    let mark = format!("{own}/mark");
    let command = ["touch", &mark];
    let before = snapshot(&ground.path(""), &[]);
    let mut launch = match channel {
        Some(channel) => ground.cell_of(channel, options, &command),
        None => ground.user.cell(&[&["--expose", &own], *options].concat(), &command),
    };
    let output = launch.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let what = format!("{options:?} {channel:?}: {said}");
    assert_eq!(output.status.code(), Some(125), "{what}");
    assert!(said.starts_with("cellblock: policy: "), "{what}");
    says.iter().for_each(|words| assert!(said.contains(words), "{words}: {what}"));
    is_as_before(&before, &snapshot(&ground.path(""), &[]), &what);
}
