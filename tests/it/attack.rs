//! A run's own state and channel as a former run of the same agent may have
//! left them: whatever lies there, no file outside is opened, made or changed.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::long::rounds;
use crate::skip;
use crate::user::{self, User};

/// An instance with what an agent may write, and a tree that it may not.
///
/// ```text
/// runs/own       the exposed state       chan      the channel
/// runs/made      to be created           work      the workspace
/// traces/made    to be created, a file   canary    what nobody may touch
/// ```
struct Ground<'a> {
    user: &'a User,
    root: PathBuf,
    canary: Canary,
}

impl Ground<'_> {
    fn new<'a>(user: &'a User, name: &str) -> Ground<'a> {
        let root = user.directory(name);
        for directory in ["runs/own", "traces", "chan", "work/sub", "canary/runs/own", "canary/deep"] {
            user.directory(&format!("{name}/{directory}"));
        }
        for (file, content) in [
            ("runs/own/who", "own"),
            ("chan/lock", ""),
            ("chan/descriptor", "own"),
            ("chan/helper", "#!/bin/sh\necho own\n"),
            ("canary/file", "canary"),
            ("canary/who", "canary"),
            ("canary/runs/own/who", "canary"),
            ("canary/deep/file", "canary"),
        ] {
            user.file(format!("{name}/{file}"), content);
        }
        let ground = Ground { user, canary: Canary::new(&root.join("canary")), root };
        ground.fifo("chan/fifo");
        let policy = format!(
            r#"version = 1

[run]
expose = [
    "{0}/runs/own",
    {{ path = "{0}/runs/made", create = true }},
    {{ path = "{0}/traces/made", kind = "file", create = true }},
]

[channel]
dir = "{0}/chan"
fifo = ["fifo"]
lock = ["lock"]
read_only = ["descriptor"]
execute = ["helper"]

[workspace]
dir = "{0}/work"
access = "read-write"
"#,
            ground.root.display()
        );
        user.file(format!("{name}/policy.toml"), policy);
        ground
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn fifo(&self, name: &str) {
        mkfifo(&self.path(name), Mode::from_bits_truncate(0o600)).expect("mkfifo");
        self.user.own(&self.path(name));
    }

    fn link(&self, name: &str, target: &str) {
        symlink(self.path(target), self.path(name)).expect("symlink");
    }

    /// Puts something else in the place of what is there.
    fn remove(&self, name: &str) {
        let path = self.path(name);
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            fs::remove_dir_all(path).expect("removed");
        } else {
            let _ = fs::remove_file(path);
        }
    }

    fn run(&self, by_root: bool, options: &[&str], script: &str) -> Command {
        let policy = self.path("policy.toml");
        let policy = ["--policy", policy.to_str().expect("a path"), "--timeout", "20s"];
        let options = [&policy[..], options].concat();
        let script = format!("cd {}; {script}", self.root.display());
        let command = ["sh", "-c", &script];
        match by_root {
            true => self.user.cell_by_root(&options, &command),
            false => self.user.cell(&options, &command),
        }
    }

    /// Launches in every way there is, and gives what each said.
    fn launch(&self, options: &[&str], script: &str) -> Vec<Output> {
        let ways = if user::is_root() { &[false, true][..] } else { &[false] };
        ways.iter().map(|&by_root| self.run(by_root, options, script).output().expect("a launch")).collect()
    }
}

/// All that can happen to a file but its closing, which a child that another
/// test forks does late.
const EVENTS: u32 = libc::IN_ALL_EVENTS & !libc::IN_CLOSE;

/// A tree, how it was, and everything that happens to it.
struct Canary {
    root: PathBuf,
    before: BTreeMap<PathBuf, String>,
    events: File,
}

impl Canary {
    fn new(root: &Path) -> Canary {
        let before = Canary::snapshot(root);
        // SAFETY: no memory is involved, and nobody else has the new descriptor.
        let events = unsafe {
            let fd = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
            assert!(fd >= 0, "inotify");
            File::from_raw_fd(fd)
        };
        for path in before.keys() {
            let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
            // SAFETY: `path` ends in NUL.
            let watch = unsafe { libc::inotify_add_watch(events.as_raw_fd(), path.as_ptr(), EVENTS) };
            assert!(watch >= 0, "inotify");
        }
        Canary { root: root.to_owned(), before, events }
    }

    fn snapshot(path: &Path) -> BTreeMap<PathBuf, String> {
        let facts = path.symlink_metadata().expect("facts");
        let times = (facts.mtime(), facts.mtime_nsec(), facts.ctime(), facts.ctime_nsec());
        let what = format!(
            "{:o} {}:{} {} links {} bytes {times:?}",
            facts.mode(),
            facts.uid(),
            facts.gid(),
            facts.nlink(),
            facts.size()
        );
        let mut found = BTreeMap::from([(path.to_owned(), what)]);
        if facts.is_dir() {
            for entry in fs::read_dir(path).expect("a directory") {
                found.extend(Canary::snapshot(&entry.expect("an entry").path()));
            }
        }
        found
    }

    /// Asserts that nothing has happened.
    fn is_untouched(&self, what: &str) {
        let mut events = [0; 4096];
        let got = (&self.events).read(&mut events).unwrap_or(0);
        let event = |at: usize| u32::from_ne_bytes([at, at + 1, at + 2, at + 3].map(|at| events[at]));
        assert_eq!(got, 0, "{what}: an event of mask {:#x}", event(4));
        assert_eq!(Canary::snapshot(&self.root), self.before, "{what}");
        // The look itself has opened the directories.
        while (&self.events).read(&mut events).is_ok() {}
    }
}

/// What the provider does to everything it finds: it reads and overwrites.
const ABUSE: &str = "echo ran > /work/ran; \
    for at in runs/* traces/* chan/* /work/*; do \
        for path in \"$at\" \"$at\"/* \"$at\"/.[!.]*; do \
            [ -p \"$path\" ] || [ ! -e \"$path\" ] || [ -d \"$path\" ] || \
                { cat \"$path\"; echo x >> \"$path\"; chmod 777 \"$path\"; } \
        done; \
    done > /dev/null 2>&1; cat runs/own/who";

#[test]
fn a_state_full_of_traps_runs_and_nothing_outside_is_touched() {
    let Some(user) = User::new() else { return };
    let ground = Ground::new(&user, "traps");
    for (name, target) in [
        ("file", "canary/file"),
        ("directory", "canary"),
        ("up", ".."),
        ("missing", "canary/missing"),
        ("loop", "runs/own/loop"),
        ("proc", "/proc/1/root"),
        ("mem", "/proc/self/mem"),
    ] {
        ground.link(&format!("runs/own/{name}"), target);
        ground.link(&format!("traces/{name}"), target);
        ground.link(&format!("work/sub/{name}"), target);
    }
    // Names that a careless program splits, resolves or takes for something else.
    for name in ["..\n", ".. ", "...", "-rf", "a\nb", "null", "tty", "ptmx", " ", "\u{1b}[2J", "*"] {
        user.file(format!("traps/runs/own/{name}"), "own");
    }
    user.file(OsStr::from_bytes(b"traps/runs/own/\xff\xfe"), "own");
    fs::hard_link(ground.path("runs/own/who"), ground.path("runs/own/twin")).expect("link");
    ground.fifo("runs/own/fifo");
    let _socket = UnixListener::bind(ground.path("runs/own/socket")).expect("a socket");
    for output in ground.launch(&[], ABUSE) {
        let said = user::text(&output);
        assert!(said.starts_with("own"), "{said}");
    }
    assert!(ground.path("work/ran").exists(), "the provider has run");
    assert!(ground.path("runs/made").is_dir() && ground.path("traces/made").is_file());
    ground.canary.is_untouched("a state full of traps");
}

#[test]
fn what_was_put_in_an_entrys_place_is_refused() {
    let Some(user) = User::new() else { return };
    type Plant = fn(&Ground, &str);
    type Case<'a> = (&'a str, &'a [(&'a str, Plant)], &'a str);
    let to_directory: Plant = |ground, name| ground.link(name, "canary");
    let to_file: Plant = |ground, name| ground.link(name, "canary/file");
    let to_missing: Plant = |ground, name| ground.link(name, "canary/new");
    let up: Plant = |ground, name| symlink("../canary", ground.path(name)).expect("symlink");
    let file: Plant = |ground, name| drop(ground.user.file(ground.path(name), "own"));
    let directory: Plant = |ground, name| {
        fs::create_dir(ground.path(name)).expect("mkdir");
        ground.user.own(&ground.path(name));
    };
    let fifo: Plant = |ground, name| ground.fifo(name);
    let socket: Plant = |ground, name| drop(UnixListener::bind(ground.path(name)).expect("a socket"));
    let nothing: Plant = |_, _| {};

    let link = "through a symbolic link";
    let table: [Case; 10] = [
        (
            "runs/own",
            &[
                ("a link to a directory", to_directory),
                ("a relative link", up),
                ("a link to a file", to_file),
                ("a link to nothing", to_missing),
            ],
            link,
        ),
        (
            "runs/own",
            &[("a file", file), ("a FIFO", fifo), ("a socket", socket)],
            "where a directory is needed",
        ),
        ("runs/own", &[("nothing", nothing)], "does not exist"),
        (
            "runs/made",
            &[
                ("a link to a directory", to_directory),
                ("a link to nothing", to_missing),
                ("a file", file),
                ("a FIFO", fifo),
                ("a socket", socket),
            ],
            "runs/made",
        ),
        (
            "traces/made",
            &[
                ("a link to a file", to_file),
                ("a link to nothing", to_missing),
                ("a directory", directory),
                ("a FIFO", fifo),
                ("a socket", socket),
            ],
            "traces/made",
        ),
        (
            "traces",
            &[("a link to a directory", to_directory), ("a link to nothing", to_missing), ("a file", file)],
            "traces/made",
        ),
        (
            "chan/fifo",
            &[
                ("a file", file),
                ("a directory", directory),
                ("a socket", socket),
                ("a link to a file", to_file),
                ("a link to nothing", to_missing),
                ("nothing", nothing),
            ],
            "chan/fifo",
        ),
        (
            "chan/lock",
            &[
                ("a directory", directory),
                ("a FIFO", fifo),
                ("a link to a file", to_file),
                ("a socket", socket),
            ],
            "chan/lock",
        ),
        (
            "chan/helper",
            &[("a FIFO", fifo), ("a socket", socket), ("a link to a file", to_file), ("nothing", nothing)],
            "chan/helper",
        ),
        ("work", &[("a link to a directory", to_directory), ("a file", file), ("a FIFO", fifo)], "work"),
    ];
    for (case, (entry, plants, message)) in table.into_iter().enumerate() {
        for (number, (what, plant)) in plants.iter().enumerate() {
            let ground = Ground::new(&user, &format!("case-{case}-{number}"));
            ground.remove(entry);
            plant(&ground, entry);
            for output in ground.launch(&[], ABUSE) {
                let said = String::from_utf8_lossy(&output.stderr);
                let what = format!("{entry} is {what}: {said}");
                assert_eq!(output.status.code(), Some(125), "{what}");
                assert!(said.starts_with("cellblock: ") && said.contains(message), "{what}");
                assert!(!ground.path("work/ran").exists(), "{what}");
                ground.canary.is_untouched(&what);
            }
        }
    }
}

#[test]
fn a_link_above_an_entry_is_refused() {
    let Some(user) = User::new() else { return };
    for (number, holder) in ["runs", "chan"].into_iter().enumerate() {
        let ground = Ground::new(&user, &format!("above-{number}"));
        // The canary has the same names, so that following it would work.
        fs::rename(ground.path(holder), ground.path("away")).expect("rename");
        ground.link(holder, if holder == "runs" { "canary/runs" } else { "away" });
        for output in ground.launch(&[], ABUSE) {
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{holder}: {said}");
            assert!(said.contains("symbolic link"), "{holder}: {said}");
            ground.canary.is_untouched(holder);
        }
    }
}

#[test]
fn a_mount_point_behind_a_link_in_the_workspace_is_refused() {
    let Some(user) = User::new() else { return };
    let ground = Ground::new(&user, "mountpoint");
    ground.remove("work/sub");
    ground.link("work/sub", "canary");
    let view = format!("{}:/work/sub/deep", user.directory("mountpoint/other").display());
    for output in ground.launch(&["--ro-bind", &view], ABUSE) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("/work/sub/deep") || said.contains("work/sub"), "{said}");
        ground.canary.is_untouched("a mount point behind a link");
    }
}

/// Ends a thread with the scope, be it by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_place_that_is_swapped_during_the_launch_leads_nowhere_else() {
    let Some(user) = User::new() else { return };
    // What is swapped with what, and what the launch must never take for it.
    let table = [
        ("runs/own", "canary/runs/own"),
        ("runs", "canary/runs"),
        ("traces", "canary"),
        ("chan/descriptor", "canary/file"),
        ("chan", "canary"),
        ("work", "canary/deep"),
    ];
    for (case, (place, target)) in table.into_iter().enumerate() {
        let ground = Ground::new(&user, &format!("race-{case}"));
        let other = format!("{place}.other");
        ground.link(&other, target);
        let stop = AtomicBool::new(false);
        let (mut ran, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            let swap = || {
                let (place, other) = (ground.path(place), ground.path(&other));
                while !stop.load(Ordering::Relaxed) {
                    renameat2(AT_FDCWD, &place, AT_FDCWD, &other, RenameFlags::RENAME_EXCHANGE)
                        .expect("an exchange");
                }
            };
            scope.spawn(swap);
            let _stop = Stop(&stop);
            for round in 0..rounds(15, 100) {
                let by_root = user::is_root() && round % 2 == 1;
                let mut run = ground.run(by_root, &[], "cat runs/own/who chan/descriptor; touch runs/made/x");
                let output = run.output().expect("a launch");
                let said = String::from_utf8_lossy(&output.stderr);
                match output.status.code() {
                    Some(0) => {
                        ran += 1;
                        // After the launch the swap hides what is mounted there.
                        let shown = String::from_utf8_lossy(&output.stdout);
                        assert!(["own", "ownown"].contains(&&*shown), "{place}: {shown}");
                    }
                    // It has run, and its workspace is a link at the end.
                    Some(125) if place == "work" && said.starts_with("cellblock: sweep: ") => ran += 1,
                    Some(125) => {
                        refused += 1;
                        assert!(said.starts_with("cellblock: ") && output.stdout.is_empty(), "{said}");
                    }
                    _ => panic!("{place}: {}: {said}", output.status),
                }
            }
        });
        println!("{place}: {ran} have run, {refused} were refused");
        ground.canary.is_untouched(place);
    }
}

#[test]
fn paths_with_dots_are_refused_wherever_they_stand() {
    let Some(user) = User::new() else { return };
    let ground = Ground::new(&user, "dots");
    let dotted = ground.path("runs/own/../../canary").display().to_string();
    let view = format!("{dotted}:/opt/view");
    for options in [
        ["--expose", &dotted],
        ["--channel", &dotted],
        ["--workspace", &dotted],
        ["--bind", &view],
        ["--ro-bind", &view],
        ["--chdir", &dotted],
        ["--tmpfs", &dotted],
    ] {
        for output in ground.launch(&options, ABUSE) {
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{options:?}: {said}");
            assert!(said.contains(".."), "{options:?}: {said}");
        }
    }
    ground.canary.is_untouched("paths with dots");
}

#[test]
fn what_holds_a_narrower_entry_cannot_be_renamed_away() {
    let Some(user) = User::new() else { return };
    user.directory("work/.git/hooks");
    let hooks = user.file("work/.git/hooks/pre-commit", "of the owner");
    let bind = format!("{}:/work/.git/hooks", user.path("work/.git/hooks").display());
    let script = "mv .git old && mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit; \
                  rm -rf .git; echo more > .git/index";
    let options = ["--workspace", "work:/work", "--ro-bind", &bind];
    let output = user.script(&options, script).output().expect("a launch");
    assert_eq!(fs::read_to_string(hooks).unwrap(), "of the owner", "{}", user::text(&output));
    assert_eq!(fs::read_to_string(user.path("work/.git/index")).unwrap(), "more\n");
}

#[test]
fn a_provider_too_large_to_hash_keeps_no_launcher_busy() {
    let Some(user) = User::new() else { return };
    user.directory("work");
    let program = user.file("work/run.sh", "#!/bin/sh\nexit 7\n");
    File::options().write(true).open(&program).unwrap().set_len(900 << 30).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let options = ["--timeout", "20s", "--workspace", "work", "--report", "r"];
    let status = user.cell(&options, &["./run.sh"]).status().expect("a launch");
    assert_eq!(status.code(), Some(7));
    let report = fs::read_to_string(user.path("r")).unwrap();
    assert!(report.contains("\"sha256\":null"), "{report}");
}

#[test]
fn root_follows_no_planted_link_to_a_report() {
    if !skip::has_root() {
        return;
    }
    let Some(user) = User::new() else { return };
    let roots = user.path("roots");
    fs::create_dir(&roots).unwrap();
    symlink(&roots, user.path("logs")).unwrap();
    let report = user.path("logs/report").display().to_string();
    let output = user.cell_by_root(&["--report", &report], &["true"]).output().expect("a launch");
    assert_eq!(output.status.code(), Some(125), "{}", user::text(&output));
    assert_eq!(fs::read_dir(&roots).unwrap().count(), 0);
}
