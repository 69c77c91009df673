//! `[workspace] protect`: what existed stays as it was, and what the run has
//! made in its place is gone when the run is over.

use std::fs::{self, Permissions};

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::skip;
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
        // One of root's is nobody else's to read, and so to replace.
        let _ = fs::remove_file(&report);
        let usual = ["--timeout", "60s", "--policy", "p.toml", "--report", &report];
        let options = [&usual[..], options].concat();
        match by_root {
            true => self.user.cell_by_root(&options, &["sh", "-c", script]),
            false => self.user.cell(&options, &["sh", "-c", script]),
        }
    }

    fn run(&self, by_root: bool, options: &[&str], script: &str) -> Told {
        // One of root's is not for the user to replace.
        let _ = fs::remove_file(self.user.path("reports/r"));
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
    skip::has_programs(&["python3"])
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
    // What a process has by default; fewer than the tree is deep.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("it can be read");
    setrlimit(Resource::RLIMIT_NOFILE, most.min(1024), most).expect("it can be lowered");
    sweeps(&[
        (
            "",
            r#"python3 -c '
import os
os.mkdir(".vscode")
os.chdir(".vscode")
# Names that a directory which is moved up could want.
for n in range(60): open(str(n), "w") if n % 2 else os.makedirs(f"{n}/x")
for n in range(1500):
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
for d in range(40):
    os.makedirs(f".vscode/{d}/x")
    for f in range(20): open(f".vscode/{d}/x/{f}", "w")
for f in range(2000): open(f".vscode/f{f}", "w")
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
fn no_other_view_can_write_what_is_protected() {
    let Some(desk) = Desk::new("protect = [\".git/hooks/\", \".envrc\"]") else { return };
    desk.host("mkdir -p .git/hooks; touch .envrc .git/hooks/x");
    for view in
        ["work/.git:/g", "work/.git/hooks:/h", "work/.git/hooks/x:/x", "work:/w", ".:/all", "work/.envrc:/e"]
    {
        let told = desk.run(false, &["--bind", view], "true");
        assert_eq!(told.code, Some(125), "{view} {told:?}");
        assert!(told.stderr.contains("can write the protected"), "{view} {}", told.stderr);
        assert!(told.stderr.contains("remedy: show it read-only"), "{view} {}", told.stderr);
    }
    desk.user.directory("other");
    desk.run(false, &["--ro-bind", "work/.git:/g", "--bind", "other:/o"], "true").is_well();
}

#[test]
fn the_default_list_holds_in_a_workspace_below_a_hidden_path() {
    let Some(desk) = Desk::new("") else { return };
    desk.host("mkdir -p .git/hooks");
    let told = desk.run(false, &["--hide", "."], "touch .git/hooks/x || mv .git g");
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(told.stderr.contains("Read-only file system"), "{told:?}");
    assert!(told.stderr.contains("Device or resource busy"), "{told:?}");
}

#[test]
fn a_report_is_refused_in_a_view_named_like_the_scratch_directory() {
    let Some(desk) = Desk::new("protect = [\".envrc\"]\nprotect_missing = \"overlay\"") else { return };
    let told = desk.launch(false, &["--bind", "reports:/scratchy"], "true").output().expect("a launch");
    let said = String::from_utf8_lossy(&told.stderr);
    assert_eq!(told.status.code(), Some(125), "{said}");
    assert!(said.contains("lies where the cell can write"), "{said}");
    desk.run(false, &[], "true").is_well();
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
    if !skip::has_root() {
        return;
    }
    for by_root in starts() {
        desk.clear();
        desk.host("mkdir -p mine/b");
        let roots = desk.user.path("work/mine/b/root\ncellblock: all is well");
        fs::create_dir(&roots).expect("root can make it");
        fs::write(roots.join("kept"), "").expect("root can write");
        let script = "mv mine .vscode; echo a > .vscode/tasks.json; echo a > .vscode/b/a; echo a > .envrc; mkdir .idea";
        let started = Instant::now();
        let told = desk.run(by_root, &[], script);
        // What stays is not tried again until the time for it, two minutes, is up.
        assert!(started.elapsed() < Duration::from_secs(60), "{told:?}");
        assert_eq!((told.code, &told.outcome["code"]), (Some(125), &json!(0)), "{told:?}");
        assert_eq!(told.swept(), [".envrc", ".idea"], "{told:?}");
        let error = &told.outcome["error"];
        assert_eq!((&error["stage"], &error["errno"]), (&json!("sweep"), &json!("EACCES")), "{told:?}");
        assert!(error["remedy"].is_string());
        assert!(!told.stderr.contains("\ncellblock: all is well"), "{}", told.stderr);
        desk.host("test ! -e .vscode/tasks.json; test ! -e .vscode/b/a");
        // Out of its place, and what is left of it named.
        assert!(!desk.user.path("work/.vscode").exists());
        let cause = error["cause"].as_str().expect("a cause");
        let left = cause.split_whitespace().next().expect("a path").split('/').next().expect("a name");
        let left = desk.user.path("work").join(left).join("b").join(roots.file_name().expect("a name"));
        assert!(left.join("kept").exists(), "{told:?}");
        fs::remove_dir_all(left).expect("root can remove it");
    }
}

#[test]
fn what_the_host_has_mounted_is_not_entered() {
    let Some(desk) = Desk::new("") else { return };
    if !skip::has_root() {
        return;
    }
    desk.host("mkdir -p mine/m");
    let report = desk.user.path("reports/r").display().to_string();
    let (uid, gid) = desk.user.ids();
    let run = format!(
        "mount -t tmpfs -o mode=777 tmpfs work/mine/m && echo kept > work/mine/m/kept && \
         ./cellblock run --run-as {uid}:{gid} --policy p.toml --report {report} -- \
         sh -c 'echo a > mine/a; mv mine .vscode'; echo $?; cat work/.cellblock-swept-*/m/kept; ls work/.cellblock-swept-*"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &run]).current_dir(desk.user.path("")).stdin(Stdio::null());
    let told = desk.told(command.output().expect("unshare"));
    assert_eq!(told.stdout, "125\nkept\nm\n", "{told:?}");
    assert_eq!(told.outcome["error"]["errno"], "EXDEV", "{told:?}");
}

/// Somebody outside exchanges directories of the trees with links, again and
/// again, and the launcher is slow between the call that finds a directory and
/// the one that enters it: whatever it meets there, it stays in the tree.
#[test]
fn nobody_leads_the_sweep_out_of_the_tree() {
    let names: Vec<String> = (0..30).map(|number| format!("p{number}")).collect();
    let Some(desk) = Desk::new(&format!("protect = {names:?}")) else { return };
    if !skip::has_programs(&["strace"]) {
        return;
    }
    let kept: Vec<String> = (0..20).map(|number| format!("precious/{number}/file")).collect();
    for file in &kept {
        desk.user.directory(Path::new(file).parent().and_then(Path::to_str).expect("a directory"));
        desk.user.file(file, "kept");
    }
    let link = |name: &String| desk.user.path(format!("link-{name}"));
    for name in &names {
        std::os::unix::fs::symlink(desk.user.path("precious"), link(name)).expect("a link");
    }
    let script =
        "for i in $(seq 0 29); do mkdir -p p$i/d/a p$i/d/b; : > p$i/d/c; done; touch done; sleep 0.2";
    let run = desk.launch(false, &[], script);
    let mut strace = desk.user.command("strace");
    strace.args(["-o", "strace.log", "-e", "inject=unlinkat:delay_exit=5000"]);
    strace.arg(run.get_program()).args(run.get_args());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            eventually("the run has made all", || desk.user.path("work/done").exists().then_some(()));
            while !is_over.load(Ordering::Relaxed) {
                // Each tree is moved aside before it is removed, and found all the same.
                let trees = fs::read_dir(desk.user.path("work")).expect("a directory").flatten();
                for (tree, name) in trees.zip(names.iter().cycle()) {
                    let exchange = RenameFlags::RENAME_EXCHANGE;
                    let _ = renameat2(AT_FDCWD, &link(name), AT_FDCWD, &tree.path().join("d"), exchange);
                }
            }
        });
        strace.output().expect("strace");
        is_over.store(true, Ordering::Relaxed);
    });
    let log = fs::read_to_string(desk.user.path("strace.log")).expect("a log");
    let met_a_link = |line: &str| line.contains("\"d\"") && line.contains("ELOOP");
    assert!(log.lines().any(met_a_link), "the sweep has met no link: {log}");
    for file in &kept {
        assert_eq!(fs::read_to_string(desk.user.path(file)).expect("it is there"), "kept");
    }
}

/// A repository with one commit, hooks and settings, as a harness hands it over.
const REPOSITORY: &str = r#"
    export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    git init -q -b main . && echo one > file && git add file && git commit -qm first
    rm -rf .git/hooks; mkdir -p .git/hooks a/b/c .claude
    echo 'exit 1' > .git/hooks/pre-push; chmod 755 .git/hooks/pre-push
    echo export A=b > .envrc; echo '{}' > .claude/settings.json; echo kept > a/b/c/kept
"#;

/// Changes to what is protected, by name. Given a directory, each change is made in a
/// copy of it.
const CHANGES: &str = r#"
import ctypes, fcntl, os, shutil, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
hook, rc, settings, deep = ".git/hooks/pre-push", ".envrc", ".claude/settings.json", "a/b/c/kept"
def exchange(one, other):
    if libc.renameat2(-100, one.encode(), -100, other.encode(), 2) < 0:
        raise OSError(ctypes.get_errno(), "")
def reopen(path):
    fd = os.open(path, os.O_RDONLY)
    os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
def flags(path):
    # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS with FS_NODUMP_FL
    fd = os.open(path, os.O_RDONLY)
    had, = struct.unpack("l", fcntl.ioctl(fd, 0x80086601, struct.pack("l", 0)))
    fcntl.ioctl(fd, 0x40086602, struct.pack("l", had ^ 0x40))
def file(path, content=""):
    with open(path, "w") as f: f.write(content)
    return path
def directory(path):
    os.mkdir(path)
    return path
changes = {}
for path in hook, rc, settings, deep:
    changes |= {
        f"write {path}": lambda p=path: os.open(p, os.O_WRONLY),
        f"append {path}": lambda p=path: os.open(p, os.O_WRONLY | os.O_APPEND),
        f"reopen {path}": lambda p=path: reopen(p),
        f"open {path} with O_TRUNC": lambda p=path: os.open(p, os.O_RDONLY | os.O_TRUNC),
        f"truncate {path}": lambda p=path: os.truncate(p, 0),
        f"unlink {path}": lambda p=path: os.unlink(p),
        f"rename {path}": lambda p=path: os.rename(p, "elsewhere"),
        f"rename over {path}": lambda p=path: os.rename(file("new"), p),
        f"exchange {path}": lambda p=path: exchange(file("new"), p),
        f"link {path}": lambda p=path: os.link(p, "elsewhere"),
        f"chmod {path}": lambda p=path: os.chmod(p, 0o777),
        f"chown {path}": lambda p=path: os.chown(p, os.getuid(), -1),
        f"utime {path}": lambda p=path: os.utime(p),
        f"setxattr {path}": lambda p=path: os.setxattr(p, "user.a", b"b"),
        f"flags {path}": lambda p=path: flags(p),
    }
for above in ".git/hooks", ".git", ".claude", "a/b/c", "a/b", "a":
    changes |= {
        f"rename {above}": lambda p=above: os.rename(p, "elsewhere"),
        f"exchange {above}": lambda p=above: exchange(directory("new"), p),
        f"exchange {above} with a link": lambda p=above: (os.symlink("x", "new"), exchange("new", p)),
        f"exchange {above} with a file": lambda p=above: exchange(file("new"), p),
    }
changes |= {
    "create a hook": lambda: file(".git/hooks/pre-commit"),
    "link a hook": lambda: os.link("file", ".git/hooks/pre-commit"),
    "symlink a hook": lambda: os.symlink("x", ".git/hooks/pre-commit"),
    "rename to a hook": lambda: os.rename("file", ".git/hooks/pre-commit"),
    "mkdir in hooks": lambda: os.mkdir(".git/hooks/a"),
    "mkfifo in hooks": lambda: os.mkfifo(".git/hooks/a"),
    "O_TMPFILE in hooks": lambda: os.open(".git/hooks", os.O_TMPFILE | os.O_WRONLY),
    "chmod hooks": lambda: os.chmod(".git/hooks", 0o700),
}
of = sys.argv[1] if sys.argv[1:] else None
for number, name in enumerate(changes):
    if of: os.chdir(shutil.copytree(of, f"{of}-{number}", symlinks=True))
    try: changes[name](); print(f"{name}: done")
    except OSError as error: print(f"{name}: {os.strerror(error.errno)}")
    for left in "new", "elsewhere":
        if not of and os.path.lexists(left): os.rmdir(left) if os.path.isdir(left) else os.unlink(left)
"#;

const KEYS: &str = r#"protect = [".git/hooks/", ".envrc", ".claude/settings.json", "a/b/c/kept", ".idea/"]"#;

/// What `stat` says of everything that is protected, and its content.
const LOOK: &str = "stat -c '%n %i %a %u %s %y %z %h' .git .git/hooks .git/hooks/* .envrc .claude/settings.json a/b/c/kept; \
                    cat .git/hooks/* .envrc .claude/settings.json a/b/c/kept; ls -A .git/hooks; \
                    stat -c '%n %i' a a/b a/b/c .claude";

#[test]
fn what_existed_cannot_be_changed_or_moved() {
    for more in ["", "protect_missing = \"overlay\""] {
        let Some(desk) = Desk::new(&format!("{KEYS}\n{more}")) else { return };
        if !skip::has_programs(&["git", "python3"]) {
            return;
        }
        let mut names = Vec::new();
        for by_root in starts() {
            desk.clear();
            desk.host(REPOSITORY);
            // The directory `.git` itself takes new entries, and so changes its times.
            let look = LOOK.replacen(".git ", "", 1);
            let before = desk.host(&look);
            let told = desk.run(by_root, &[], &format!("python3 -c '{CHANGES}'"));
            told.is_well();
            names =
                told.stdout.lines().filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect();
            assert_eq!(names.len(), 4 * 15 + 6 * 4 + 8, "{told:?}");
            let refusals = [
                ": Read-only file system",
                ": Device or resource busy",
                ": Invalid cross-device link",
                ": Permission denied",
            ];
            for line in told.stdout.lines() {
                assert!(refusals.iter().any(|refusal| line.ends_with(refusal)), "{more} {line}");
            }
            assert_eq!(desk.host(&look), before);
        }
        // Outside each of them is done.
        if more.is_empty() {
            desk.clear();
            desk.host(REPOSITORY);
            let mut python = desk.user.command("python3");
            python.args(["-c", CHANGES]).arg(desk.user.path("work"));
            let done: String = names.iter().map(|name| format!("{name}: done\n")).collect();
            assert_eq!(text(&python.output().expect("python3")), done);
        }
    }
}

#[test]
fn beside_what_is_protected_everything_can_be_written() {
    if !skip::has_programs(&["git"]) {
        return;
    }
    for more in ["", "protect_missing = \"overlay\""] {
        let Some(desk) = Desk::new(&format!("{KEYS}\n{more}")) else { return };
        for by_root in starts() {
            desk.clear();
            desk.host(REPOSITORY);
            let script = "set -e; umask 027; echo two > file; echo new > new; mkdir dir; echo deep > dir/deep
                mv new dir/moved; ln dir/moved dir/link; ln -s moved dir/symlink; mkfifo -m 600 fifo
                mv dir dir2; rm -r dir2/deep; touch -d @1000000000 dir2/moved; chmod 604 dir2/moved
                echo a > a/b/c/other; echo a > .claude/notes; echo '[a]' >> .git/config; mkdir -p x/y; rmdir x/y
                printf longer > file; printf s > file";
            desk.run(by_root, &[], script).is_well();
            let (uid, gid) = desk.user.ids();
            let said = desk.host(
                "cat file dir2/moved dir2/link; readlink dir2/symlink; cat a/b/c/other .claude/notes; tail -n 1 .git/config
                 stat -c '%n %F %a %u %g %h' file fifo dir2 dir2/moved x a/b/c/other; stat -c %Y dir2/moved; ls -A dir2 x",
            );
            let expected = format!(
                "snew\nnew\nmoved\na\na\n[a]\n\
                 file regular file 644 {uid} {gid} 1\nfifo fifo 600 {uid} {gid} 1\ndir2 directory 750 {uid} {gid} 2\n\
                 dir2/moved regular file 604 {uid} {gid} 2\nx directory 750 {uid} {gid} 2\n\
                 a/b/c/other regular file 640 {uid} {gid} 1\n1000000000\ndir2:\nlink\nmoved\nsymlink\n\nx:\n"
            );
            assert_eq!(said, expected, "{more}");
        }
    }
}

/// What git is asked for in `$1`, a working tree, with nobody's settings.
const GIT: &str = r#"
    set -e
    export GIT_CONFIG_GLOBAL=/dev/null GIT_EDITOR=true
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    cd "$1"
    echo two >> file; git add file; git commit -qm second
    git config cell.a b; git checkout -q -b side HEAD~1; echo side > side; git add side; git commit -qm side
    echo three > side; git stash -q; git stash pop -q; git commit -qam third
    git rebase -q "$2"; git tag t; git branch -m side side2; git gc -q --prune=now; git fsck
    git log --format=%s; git status --porcelain --untracked-files=no; git config cell.a
"#;

#[test]
fn git_does_its_ordinary_work() {
    if !skip::has_programs(&["git"]) {
        return;
    }
    for more in ["", "protect_missing = \"overlay\""] {
        let Some(desk) = Desk::new(more) else { return };
        for by_root in starts() {
            desk.clear();
            desk.host(REPOSITORY);
            let told = desk.run(by_root, &[], &format!("sh -c '{GIT}' sh /work main"));
            assert_eq!((told.code, &*told.stdout), (Some(0), "third\nside\nsecond\nfirst\nb\n"), "{told:?}");
            assert_eq!(told.swept(), [""; 0]);
            assert_eq!(
                desk.host("git log --format=%s; git fsck; ls .git/hooks"),
                "third\nside\nsecond\nfirst\npre-push\n"
            );
        }
        // A repository that the run makes: its hooks go, and it is sound without.
        desk.clear();
        let told = desk.run(
            false,
            &[],
            "git init -q && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m a",
        );
        if more.is_empty() {
            assert_eq!((told.code, told.swept()), (Some(0), vec![".git/hooks"]), "{told:?}");
            assert_eq!(desk.host("git fsck; git log --format=%s; ls -d .git/hooks || true"), "a\n");
        }
    }
}

#[test]
fn git_does_its_ordinary_work_in_a_worktree() {
    if !skip::has_programs(&["git"]) {
        return;
    }
    let Some(desk) = Desk::new("") else { return };
    let work = desk.user.path("work").display().to_string();
    for more in ["", "protect_missing = \"overlay\""] {
        desk.user
            .file("p.toml", format!("version = 1\n[workspace]\ndir = \"work\"\nat = \"{work}\"\n{more}\n"));
        for by_root in starts() {
            // The worktree in the workspace, and made by the run.
            desk.clear();
            desk.host(&format!("{REPOSITORY}\ngit worktree add -q -b tree wt"));
            let script =
                format!("sh -c '{GIT}' sh wt tree && git worktree add -q -b other wt2 && cat wt2/file");
            let told = desk.run(by_root, &[], &script);
            assert_eq!(
                (told.code, &*told.stdout),
                (Some(0), "third\nside\nsecond\nfirst\nb\none\n"),
                "{told:?}"
            );
            desk.host("git worktree remove wt2; git fsck");
        }
        // The workspace is the worktree; its repository is shown beside it.
        desk.clear();
        desk.host(&format!("mkdir main wt; cd main\n{REPOSITORY}\ngit worktree add -q -b tree ../wt"));
        desk.user.file(
            "p.toml",
            format!("version = 1\n[workspace]\ndir = \"work/wt\"\nat = \"{work}/wt\"\n{more}\n[filesystem]\nbind = [\"work/main/.git\"]\n"),
        );
        let told = desk.run(false, &[], &format!("sh -c '{GIT}' sh . tree"));
        assert_eq!((told.code, &*told.stdout), (Some(0), "third\nside\nsecond\nfirst\nb\n"), "{told:?}");
    }
}

/// All that stands in the user's directory, but for the reports.
fn listing(desk: &Desk) -> String {
    let mut find = desk.user.command("find");
    let found = find.args([".", "-path", "./reports", "-prune", "-o", "-print"]).output().expect("find");
    // An overlay's work directory lets nobody in.
    String::from_utf8(found.stdout).expect("UTF-8")
}

#[test]
fn with_an_overlay_nothing_can_be_made_at_a_protected_path() {
    let Some(desk) = Desk::new("protect_missing = \"overlay\"") else { return };
    if !has_python() {
        return;
    }
    let script = r#"
import os
def file(path): open(path, "w").close()
def attempt(name, what):
    try: what(); print(f"{name}: done")
    except OSError as error: print(f"{name}: {os.strerror(error.errno)}")
file("f"); os.mkdir("d")
for path in ".envrc", ".mcp.json", "opencode.json", ".claude/settings.json":
    attempt(f"create {path}", lambda: file(path))
    attempt(f"create {path} anew", lambda: os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    attempt(f"mkdir {path}", lambda: os.mkdir(path))
    attempt(f"symlink {path}", lambda: os.symlink("x", path))
    attempt(f"link {path}", lambda: os.link("f", path))
    attempt(f"mkfifo {path}", lambda: os.mkfifo(path))
    attempt(f"rename {path}", lambda: os.rename("f", path))
    attempt(f"unlink {path}", lambda: os.unlink(path))
for path in ".git/hooks", ".vscode", ".codex", ".opencode", ".cursor", ".idea":
    attempt(f"mkdir {path}", lambda: os.mkdir(path))
    attempt(f"create in {path}", lambda: file(f"{path}/a"))
    attempt(f"symlink {path}", lambda: os.symlink("x", path))
    attempt(f"rename {path}", lambda: os.rename("d", path))
    attempt(f"rmdir {path}", lambda: os.rmdir(path))
    attempt(f"rename {path} away", lambda: os.rename(path, "away"))
for path in ".git", ".claude":
    attempt(f"rename {path} away", lambda: os.rename(path, "away"))
    attempt(f"rmdir {path}", lambda: os.rmdir(path))
os.unlink("f"); os.rmdir("d")
"#;
    for by_root in starts() {
        desk.clear();
        let before = listing(&desk);
        let told = desk.run(by_root, &[], &format!("python3 -c '{script}'"));
        told.is_well();
        assert_eq!(told.stdout.lines().count(), 4 * 8 + 6 * 6 + 4, "{told:?}");
        for line in told.stdout.lines() {
            let refusals = [
                "Read-only file system",
                "File exists",
                "Device or resource busy",
                "Directory not empty",
                "Permission denied",
                "Not a directory",
                "Invalid cross-device link",
            ];
            assert!(refusals.iter().any(|refusal| line.ends_with(refusal)), "{line}");
        }
        // The ways to a protected path may have been made, the stubs and a work directory not.
        let after = listing(&desk);
        let more: Vec<&str> = after.lines().filter(|line| !before.lines().any(|old| old == *line)).collect();
        assert!(
            more.iter().all(|path| ["./work/.git", "./work/.claude", "./work/.gemini"].contains(path)),
            "{more:?}"
        );
    }
}

#[test]
fn with_an_overlay_a_file_on_the_way_stays_in_the_way() {
    let Some(desk) = Desk::new("protect_missing = \"overlay\"") else { return };
    for by_root in starts() {
        desk.clear();
        desk.host("echo gitdir: /x > .git; echo a > a");
        let script = "rm -f .git; mv .git x; mv a .git; echo b > .git; mkdir .git; chmod 600 .git; rm -rf .git; cat .git";
        let told = desk.run(by_root, &[], script);
        told.is_well();
        assert_eq!(told.stdout, "gitdir: /x\n");
        desk.host("test \"$(cat .git)\" = 'gitdir: /x'; test \"$(stat -c %a .git)\" = 644");
    }
}

#[test]
fn an_overlay_leaves_nothing_behind_however_the_run_ends() {
    let Some(desk) = Desk::new("protect_missing = \"overlay\"") else { return };
    let before = listing(&desk);
    for by_root in starts() {
        // What the first leaves, the second takes over and removes.
        for victim in ["launcher", "nobody", "provider", "init"] {
            desk.clear();
            let mut launch = desk.launch(by_root, &[], "echo kept > file; read wait");
            let launch = launch.stdin(Stdio::piped()).stderr(Stdio::null());
            let mut launcher = launch.spawn().expect("it starts");
            let file = desk.user.path("work/file");
            eventually("the run has begun", || file.exists().then_some(()));
            let init = user::children(launcher.id() as i32)[0];
            let pid = match victim {
                "nobody" => None,
                "provider" => Some(user::children(init)[0]),
                "init" => Some(init),
                _ => Some(launcher.id() as i32),
            };
            match pid {
                Some(pid) => kill(Pid::from_raw(pid), Signal::SIGKILL).expect("a signal"),
                None => drop(launcher.stdin.take()),
            }
            end(&mut launcher);
            eventually("the cell ends", || user::state(init).is_none().then_some(()));
            assert_eq!(fs::read_to_string(&file).expect("it is kept"), "kept\n", "{victim}");
            fs::remove_file(&file).expect("it is there");
            let after = listing(&desk);
            let more: Vec<&str> = after.lines().filter(|line| !before.contains(*line)).collect();
            // The work directory that only the launcher would have removed; the next run does.
            let left: &[&str] = match victim {
                "launcher" => &["./.work.cellblock-work", "./.work.cellblock-work/work"],
                _ => &[],
            };
            assert_eq!(more, left, "{victim}");
        }
    }
}

#[test]
fn with_an_overlay_nothing_is_swept() {
    let Some(desk) = Desk::new("protect_missing = \"overlay\"") else { return };
    // What the host does in the directory below a mounted overlay is not seen in it.
    let mut launch = desk.launch(false, &[], "echo up; read wait || true");
    let launch = launch.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut launcher = launch.spawn().expect("it starts");
    std::io::Read::read_exact(launcher.stdout.as_mut().expect("a pipe"), &mut [0; 3]).expect("it starts");
    desk.host("echo a > .idea");
    drop(launcher.stdin.take());
    end(&mut launcher);
    desk.told(launcher.wait_with_output().expect("it has ended")).is_well();
    desk.host("test -f .idea");
}

#[test]
fn a_path_may_be_in_two_lists() {
    let keys = "protect = [\".codex/config\", \".codex/config\"]\nprotect_missing = \"overlay\"";
    let Some(desk) = Desk::new(keys) else { return };
    let script = "test ! -s /work/.codex/config && ! echo > /work/.codex/config";
    desk.run(false, &[], script).is_well();
}
