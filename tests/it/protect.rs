//! `[workspace] protect`: what existed stays as it was, and what the run has
//! made in its place is gone when the run is over.

use std::fs::{self, Permissions};

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::user::{self, User, end, eventually, text};

/// A workspace of the user's, and a policy that makes it the cell's.
struct Desk {
    user: User,
}

/// What a run said in the end.
#[derive(Debug)]
struct Told {
    code: Option<i32>,
    /// The report's last line.
    outcome: Value,
    stdout: String,
    stderr: String,
}

impl Told {
    fn swept(&self) -> Vec<&str> {
        let swept = self.outcome["swept"].as_array().expect("a list");
        swept.iter().map(|path| path.as_str().expect("a path")).collect()
    }

    /// The provider ended well, and nothing had to be swept.
    fn is_well(&self) {
        assert_eq!((self.code, self.swept()), (Some(0), vec![]), "{self:?}");
    }
}

impl Desk {
    /// Where the host has what a cell is made of; `keys` are more of `[workspace]`.
    fn new(keys: &str) -> Option<Desk> {
        let user = User::new()?;
        user.directory("work");
        user.directory("reports");
        user.file("p.toml", format!("version = 1\n[workspace]\ndir = \"work\"\n{keys}\n"));
        Some(Desk { user })
    }

    /// The launch of a shell script in a cell.
    fn launch(&self, by_root: bool, options: &[&str], script: &str) -> Command {
        let report = self.user.path("reports/r").display().to_string();
        let usual = ["--timeout", "60s", "--policy", "p.toml", "--report", &report];
        let options = [&usual[..], options].concat();
        match by_root {
            true => self.user.cell_by_root(&options, &["sh", "-c", script]),
            false => self.user.cell(&options, &["sh", "-c", script]),
        }
    }

    fn run(&self, by_root: bool, options: &[&str], script: &str) -> Told {
        self.told(self.launch(by_root, options, script).output().expect("a launch"))
    }

    fn told(&self, output: Output) -> Told {
        let report = fs::read_to_string(self.user.path("reports/r")).expect("a report");
        let last = report.lines().last().expect("a last line");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Told {
            code: output.status.code(),
            outcome: serde_json::from_str(last).expect("JSON"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Runs a script on the host, in the workspace.
    fn host(&self, script: &str) -> String {
        let mut shell = self.user.command("sh");
        text(&shell.args(["-ec", script]).current_dir(self.user.path("work")).output().expect("sh"))
    }

    /// An empty workspace again.
    fn clear(&self) {
        self.user.command("chmod").args(["-R", "u+rwX", "work"]).status().expect("chmod");
        fs::remove_dir_all(self.user.path("work")).expect("it can be removed");
        self.user.directory("work");
    }
}

/// Whether root starts the launcher, as far as that can be tried.
fn starts() -> Vec<bool> {
    if user::is_root() { vec![false, true] } else { vec![false] }
}

fn has_python() -> bool {
    user::has("programs", Path::new("/usr/bin/python3").exists())
}

/// What stands in the workspace before, what the run does, what is swept then,
/// and what holds on the host afterwards.
type Shape = (&'static str, &'static str, &'static [&'static str], &'static str);

fn sweeps(shapes: &[Shape]) {
    let Some(desk) = Desk::new("") else { return };
    for by_root in starts() {
        for (before, inside, swept, after) in shapes {
            desk.clear();
            desk.host(before);
            let told = desk.run(by_root, &[], &format!("set -e; {inside}"));
            assert_eq!(told.code, Some(0), "{inside}: {told:?}");
            assert_eq!(told.swept(), *swept, "{inside}: {told:?}");
            assert_eq!(told.outcome["error"], Value::Null, "{inside}: {told:?}");
            let line =
                format!("cellblock: removed what the run made at protected paths: {}\n", swept.join(", "));
            assert_eq!(told.stderr.contains(&line), !swept.is_empty(), "{inside}: {told:?}");
            desk.host(after);
        }
    }
}

#[test]
fn what_the_run_made_is_removed_and_nothing_else() {
    sweeps(&[
        ("", "echo a > a", &[], "test -f a"),
        (
            "",
            "mkdir -p .git/hooks .vscode; echo a > .git/hooks/pre-commit; echo a > .git/config; echo a > .envrc",
            &[".git/hooks", ".envrc", ".vscode"],
            "test -f .git/config; test ! -e .git/hooks; test ! -e .envrc; test ! -e .vscode",
        ),
        (
            "mkdir .git; echo a > .git/config",
            "mkdir .git/hooks; echo a > .git/hooks/pre-commit",
            &[".git/hooks"],
            "test -f .git/config; test ! -e .git/hooks",
        ),
        // A worktree.
        ("echo gitdir: /x > .git", "true", &[], "test -f .git"),
        (
            "echo gitdir: /x > .git",
            "rm .git; mkdir -p .git/hooks; echo a > .git/hooks/pre-commit",
            &[".git/hooks"],
            "test ! -e .git/hooks",
        ),
        // What stands beside it is the run's to keep.
        (
            "",
            "mkdir .claude; echo a > .claude/settings.json; echo a > .claude/notes",
            &[".claude/settings.json"],
            "test -f .claude/notes; test ! -e .claude/settings.json",
        ),
        // Another kind than is expected.
        (
            "",
            "mkdir -p .envrc/a/b; echo a > .envrc/a/b/c; echo a > .vscode",
            &[".envrc", ".vscode"],
            "test ! -e .envrc; test ! -e .vscode",
        ),
        ("", "mkfifo .envrc", &[".envrc"], "test ! -e .envrc"),
        ("echo a > a", "ln a .envrc", &[".envrc"], "test ! -e .envrc; test \"$(cat a)\" = a"),
        ("mkdir .git", "mv .git x", &[], "test -d x"),
    ]);
}

#[test]
fn what_existed_is_not_swept() {
    sweeps(&[
        (
            "mkdir -p .git/hooks .vscode; echo a > .git/hooks/pre-commit; echo a > .envrc",
            "mkdir .idea",
            &[".idea"],
            "test -f .git/hooks/pre-commit; test -f .envrc; test -d .vscode; test ! -e .idea",
        ),
        ("echo a > .mcp.json", "true", &[], "test -f .mcp.json"),
    ]);
}

#[test]
fn a_link_of_the_runs_is_removed_and_not_followed() {
    sweeps(&[
        (
            "mkdir src; echo a > src/a",
            "mkdir .git; ln -s ../src .git/hooks",
            &[".git/hooks"],
            "test ! -L .git/hooks; test -f src/a",
        ),
        (
            "",
            "mkdir -p x/hooks; echo a > x/hooks/pre-commit; ln -s x .git",
            &[".git"],
            "test ! -L .git; test -f x/hooks/pre-commit",
        ),
        // It was a directory when the run began.
        (
            "mkdir .git; echo a > .git/config",
            "mv .git x; mkdir x/hooks; ln -s x .git",
            &[".git"],
            "test ! -L .git; test -f x/config; test -d x/hooks",
        ),
        (
            "mkdir x; echo a > x/settings.json",
            "ln -s x .claude; ln -s x/settings.json .mcp.json",
            &[".mcp.json", ".claude"],
            "test ! -L .claude; test ! -L .mcp.json; test -f x/settings.json",
        ),
        (
            "",
            "ln -s .envrc .envrc; ln -s / .vscode",
            &[".envrc", ".vscode"],
            "test ! -L .envrc; test ! -L .vscode",
        ),
        ("", "ln -s /none .envrc", &[".envrc"], "test ! -L .envrc"),
        // Links in the tree.
        (
            "mkdir src; echo a > src/a",
            "mkdir .vscode; ln -s ../src .vscode/a; ln -s /usr .vscode/b",
            &[".vscode"],
            "test ! -e .vscode; test -f src/a",
        ),
    ]);
}

#[test]
fn closed_directories_are_no_obstacle_and_those_on_the_way_stay_closed() {
    sweeps(&[
        (
            "",
            "mkdir -p .vscode/a/b; echo a > .vscode/a/b/c; chmod 0 .vscode/a/b/c .vscode/a/b .vscode/a .vscode",
            &[".vscode"],
            "test ! -e .vscode",
        ),
        (
            "",
            "mkdir -p .git/hooks; echo a > .git/hooks/a; chmod 0 .git/hooks .git",
            &[".git/hooks"],
            "test \"$(stat -c %a .git)\" = 0; chmod 700 .git; test ! -e .git/hooks",
        ),
        (
            "mkdir .git; chmod 500 .git",
            "chmod 700 .git; mkdir .git/hooks; chmod 500 .git",
            &[".git/hooks"],
            "test \"$(stat -c %a .git)\" = 500; test ! -e .git/hooks",
        ),
    ]);
}

#[test]
fn no_tree_is_too_deep_too_wide_or_too_oddly_named() {
    if !has_python() {
        return;
    }
    sweeps(&[
        (
            "",
            r#"python3 -c '
import os
os.mkdir(".vscode")
os.chdir(".vscode")
# Names that a directory which is moved up could want.
for n in range(60): open(str(n), "w") if n % 2 else os.makedirs(f"{n}/x")
for n in range(3000):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
    open("f", "w")
    if n % 7 == 0: os.mkdir("e")
    if n % 5 == 0: os.chmod("..", 0)
'"#,
            &[".vscode"],
            "test ! -e .vscode",
        ),
        (
            "",
            r#"python3 -c '
import os
for d in range(200):
    os.makedirs(f".vscode/{d}/x")
    for f in range(50): open(f".vscode/{d}/x/{f}", "w")
for f in range(5000): open(f".vscode/f{f}", "w")
'"#,
            &[".vscode"],
            "test ! -e .vscode",
        ),
        (
            "",
            r#"python3 -c '
import os, socket
os.makedirs(b".vscode/a\nb/\xff\xfe/\x1b[2J")
open(b".vscode/a\nb/-rf", "w")
open(b".vscode/" + b"n" * 255, "w")
os.mkfifo(".vscode/fifo")
socket.socket(socket.AF_UNIX).bind(".vscode/socket")
socket.socket(socket.AF_UNIX).bind(".envrc")
held = open(".mcp.json", "w")
'"#,
            &[".envrc", ".vscode", ".mcp.json"],
            "test ! -e .vscode; test ! -e .envrc; test ! -e .mcp.json",
        ),
    ]);
}

#[test]
fn a_workspace_that_the_run_has_closed_is_swept_and_stays_closed() {
    let Some(desk) = Desk::new("") else { return };
    for by_root in starts() {
        let told = desk.run(by_root, &[], "mkdir -p .git/hooks; chmod 0 .");
        assert_eq!((told.code, told.swept()), (Some(0), vec![".git/hooks"]), "{told:?}");
        let work = desk.user.path("work");
        assert_eq!(fs::metadata(&work).expect("it is there").mode() & 0o777, 0);
        fs::set_permissions(&work, Permissions::from_mode(0o755)).expect("its owner may");
        desk.host("test -d .git; test ! -e .git/hooks");
    }
}

/// The one device that anybody may make is a whiteout.
#[test]
fn a_device_is_removed() {
    let Some(desk) = Desk::new("") else { return };
    let options = ["--without", "seccomp", "--without", "landlock"];
    for by_root in starts() {
        let told = desk.run(by_root, &options, "mknod .envrc c 0 0");
        assert_eq!((told.code, told.swept()), (Some(0), vec![".envrc"]), "{told:?}");
        desk.host("test ! -e .envrc");
    }
}

#[test]
fn however_the_run_ends_it_is_swept() {
    let Some(desk) = Desk::new("") else { return };
    let plant = "mkdir -p .git/hooks; echo a > .git/hooks/pre-commit; echo a > .envrc; echo up; ";
    for by_root in starts() {
        for (options, then, code, outcome) in [
            (&[][..], "exit 3", 3, "exited"),
            (&[], "kill -KILL $$", 137, "signaled"),
            (&[], "kill -SYS $$", 159, "seccomp-killed"),
            (&[], "setsid sleep 300 & exec >&- 2>&-; exit 0", 0, "exited"),
            (&["--timeout", "700ms"], "exec sleep 300", 124, "timed-out"),
        ] {
            let told = desk.run(by_root, options, &format!("{plant}{then}"));
            assert_eq!((told.code, &told.outcome["outcome"]), (Some(code), &json!(outcome)), "{told:?}");
            assert_eq!(told.swept(), [".git/hooks", ".envrc"], "{then}");
            desk.host("test -d .git; test ! -e .git/hooks; test ! -e .envrc");
        }
        for (signal, to_init, code, outcome) in
            [(Signal::SIGTERM, false, 143, "canceled"), (Signal::SIGKILL, true, 137, "signaled")]
        {
            let mut launch = desk.launch(by_root, &[], &format!("{plant}exec sleep 300"));
            let mut launcher =
                launch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
            let there = desk.user.path("work/.envrc");
            eventually("the run has made it", || there.exists().then_some(()));
            let launcher_pid = launcher.id() as i32;
            let pid = if to_init { user::children(launcher_pid)[0] } else { launcher_pid };
            kill(Pid::from_raw(pid), signal).expect("a signal");
            end(&mut launcher);
            let told = desk.told(launcher.wait_with_output().expect("it has ended"));
            assert_eq!((told.code, &told.outcome["outcome"]), (Some(code), &json!(outcome)), "{told:?}");
            assert_eq!(told.swept(), [".git/hooks", ".envrc"], "{signal}");
            desk.host("test ! -e .git/hooks; test ! -e .envrc");
        }
    }
}

/// A harness that reads slowly, or a pager, does not put it off.
#[test]
fn it_is_swept_before_the_last_output_is_read() {
    let Some(desk) = Desk::new("") else { return };
    let script = "echo a > .envrc; yes | head -c 200000";
    let mut launcher = desk.launch(false, &[], script).stdout(Stdio::piped()).spawn().expect("it starts");
    let there = desk.user.path("work/.envrc");
    eventually("the run has made it", || there.exists().then_some(()));
    // The pipes hold no more than 128 KiB: the provider waits until some is read.
    let mut stdout = launcher.stdout.take().expect("a pipe");
    std::io::Read::read_exact(&mut stdout, &mut [0; 100_000]).expect("it reads");
    eventually("it is swept", || (!there.exists()).then_some(()));
    assert_eq!(launcher.try_wait().expect("wait"), None, "there is output left");
    drop(stdout);
    end(&mut launcher);
}

#[test]
fn the_status_tells_it_too() {
    let Some(desk) = Desk::new("") else { return };
    let told = desk.run(false, &["--json-status-fd", "1"], "echo a > .envrc");
    let last: Value = serde_json::from_str(told.stdout.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&last["event"], &last["swept"]), (&json!("exit"), &json!([".envrc"])));
}

#[test]
fn a_name_is_printed_without_control_characters() {
    let Some(desk) = Desk::new(r#"protect = ["a\u001b[2J\nb"]"#) else { return };
    let told = desk.run(false, &[], r#"touch "$(printf 'a\033[2J\nb')""#);
    assert_eq!(told.swept(), ["a\u{1b}[2J\nb"]);
    assert!(told.stderr.contains(r"protected paths: a\u{1b}[2J\nb"), "{}", told.stderr);
}

#[test]
fn nothing_is_swept_where_nothing_can_be_made() {
    for keys in ["access = \"read-only\"", "protect = []"] {
        let Some(desk) = Desk::new(keys) else { return };
        for by_root in starts() {
            desk.clear();
            let mut launch = desk.launch(by_root, &[], "echo up; while ! test -e done; do sleep 0.01; done");
            let mut launcher =
                launch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
            let mut up = [0; 3];
            std::io::Read::read_exact(launcher.stdout.as_mut().expect("a pipe"), &mut up).expect("it starts");
            // By the host itself.
            desk.host("echo a > .envrc; echo a > done");
            end(&mut launcher);
            desk.told(launcher.wait_with_output().expect("it has ended")).is_well();
            desk.host("test -f .envrc");
        }
    }
}

#[test]
fn a_launch_that_is_refused_sweeps_nothing() {
    let Some(desk) = Desk::new("") else { return };
    let told = desk.run(false, &["--bind", "none"], "true");
    assert_eq!((told.code, told.swept()), (Some(125), vec![]));
}

#[test]
fn a_policy_adds_to_what_another_protects() {
    let Some(desk) = Desk::new("protect = [\"a\"]") else { return };
    desk.user.file("q.toml", "version = 1\nextends = [\"./p.toml\"]\n[workspace]\nprotect = [\"b/\"]\n");
    let told = desk.run(false, &["--policy", "q.toml"], "touch a .envrc; mkdir b");
    // The default list gives way to one that is written.
    assert_eq!(told.swept(), ["a", "b"]);
    desk.user.file("q.toml", "version = 1\nextends = [\"./p.toml\"]\n[workspace]\nprotect = []\n");
    let told = desk.run(false, &["--policy", "q.toml"], "touch a");
    assert_eq!(told.swept(), ["a"]);
    let told = desk.run(false, &["--workspace", "work"], "touch a");
    assert_eq!(told.swept(), ["a"]);
}

#[test]
fn a_workspace_that_was_replaced_is_left_alone_and_told() {
    let Some(desk) = Desk::new("") else { return };
    for by_root in starts() {
        for replace in ["mv ../work ../moved; mkdir -p ../work/.vscode", "mv ../work ../moved"] {
            let script = "echo a > .envrc; while ! test -e done; do sleep 0.01; done; exit 3";
            let mut launch = desk.launch(by_root, &[], script);
            let mut launcher =
                launch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
            let there = desk.user.path("work/.envrc");
            eventually("the run has made it", || there.exists().then_some(()));
            desk.host(&format!("{replace}; touch ../moved/done"));
            end(&mut launcher);
            let told = desk.told(launcher.wait_with_output().expect("it has ended"));
            assert_eq!(told.code, Some(125), "{told:?}");
            // The provider ran, and how it ended is told.
            assert_eq!((&told.outcome["outcome"], &told.outcome["code"]), (&json!("exited"), &json!(3)));
            assert_eq!(
                (&told.outcome["error"]["stage"], told.swept()),
                (&json!("sweep"), vec![]),
                "{told:?}"
            );
            assert!(told.stderr.contains("cellblock: sweep: "), "{told:?}");
            assert!(desk.user.path("moved/.envrc").exists());
            let _ = fs::remove_dir_all(desk.user.path("work"));
            fs::rename(desk.user.path("moved"), desk.user.path("work")).expect("it can be moved");
            desk.clear();
        }
    }
}

#[test]
fn what_cannot_be_removed_is_told_and_the_rest_is_removed() {
    let Some(desk) = Desk::new("") else { return };
    if !user::is_root() {
        return println!("skipped: only root can make what the user cannot remove");
    }
    for by_root in starts() {
        desk.clear();
        desk.host("mkdir -p mine/b");
        let roots = desk.user.path("work/mine/b/root\ncellblock: all is well");
        fs::create_dir(&roots).expect("root can make it");
        fs::write(roots.join("kept"), "").expect("root can write");
        let script = "mv mine .vscode; echo a > .vscode/tasks.json; echo a > .vscode/b/a; echo a > .envrc";
        let told = desk.run(by_root, &[], script);
        assert_eq!((told.code, &told.outcome["code"]), (Some(125), &json!(0)), "{told:?}");
        assert_eq!(told.swept(), [".envrc"], "{told:?}");
        let error = &told.outcome["error"];
        assert_eq!((&error["stage"], &error["errno"]), (&json!("sweep"), &json!("EACCES")), "{told:?}");
        assert!(error["remedy"].is_string());
        assert!(!told.stderr.contains("\ncellblock: all is well"), "{}", told.stderr);
        desk.host("test ! -e .vscode/tasks.json; test ! -e .vscode/b/a");
        assert!(
            desk.user.path("work/.vscode/b").join(roots.file_name().expect("a name")).join("kept").exists()
        );
    }
}

#[test]
fn what_the_host_has_mounted_is_not_entered() {
    let Some(desk) = Desk::new("") else { return };
    if !user::is_root() {
        return println!("skipped: only root can mount");
    }
    desk.host("mkdir -p mine/m");
    let report = desk.user.path("reports/r").display().to_string();
    let (uid, gid) = desk.user.ids();
    let run = format!(
        "mount -t tmpfs -o mode=777 tmpfs work/mine/m && echo kept > work/mine/m/kept && \
         ./cellblock run --run-as {uid}:{gid} --policy p.toml --report {report} -- \
         sh -c 'echo a > mine/a; mv mine .vscode'; echo $?; cat work/.vscode/m/kept; ls work/.vscode"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &run]).current_dir(desk.user.path("")).stdin(Stdio::null());
    let told = desk.told(command.output().expect("unshare"));
    assert_eq!(told.stdout, "125\nkept\nm\n", "{told:?}");
    assert_eq!(told.outcome["error"]["errno"], "EXDEV", "{told:?}");
}

/// Somebody outside exchanges a directory of the tree with a link, again and
/// again: whatever the sweep meets, it stays in the tree.
#[test]
fn nobody_leads_the_sweep_out_of_the_tree() {
    let Some(desk) = Desk::new("") else { return };
    let precious = desk.user.directory("precious");
    for name in 0..20 {
        desk.user.directory(&format!("precious/{name}"));
        desk.user.file(format!("precious/{name}/file"), "kept");
    }
    let script = "mkdir -p .vscode/d; cd .vscode/d; for i in $(seq 300); do mkdir -p $i; : > $i/file; done";
    for round in 0..12 {
        desk.clear();
        let link = desk.user.path("link");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&precious, &link).expect("a link");
        let place = desk.user.path("work/.vscode/d");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = renameat2(AT_FDCWD, &link, AT_FDCWD, &place, RenameFlags::RENAME_EXCHANGE);
                }
            });
            desk.run(user::is_root() && round % 2 == 1, &[], script);
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read_dir(&precious).expect("it is there").count(), 20);
        for name in 0..20 {
            assert_eq!(fs::read_to_string(precious.join(format!("{name}/file"))).expect("a file"), "kept");
        }
        if link.is_dir() && !link.is_symlink() {
            fs::remove_dir_all(&link).expect("it can be removed");
        }
    }
}
