//! Ways around a mount: another name for what it stands on, another file in its
//! place, another mount namespace.

use std::fs;
use std::os::unix::fs::chown;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::long::rounds;
use crate::skip;
use crate::user::{User, eventually, text};

fn has_python() -> bool {
    skip::has_programs(&["python3"])
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A policy with the workspace `work`, and more.
fn policy(user: &User, more: &str) {
    user.directory("work");
    user.file("p.toml", format!("version = 1\n{more}\n[workspace]\ndir = \"work\"\n"));
}

fn run(user: &User, options: &[&str], script: &str) -> Output {
    let options = [&["--timeout", "60s", "--policy", "p.toml"], options].concat();
    user.script(&options, script).output().expect("a launch")
}

fn refused(output: &Output, why: &str) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains(why), "{said}");
}

/// Opens a directory, leaves every mount of the cell behind, and goes on there.
const ELSEWHERE: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def done(result):
    if result: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
there = os.open(sys.argv[1], os.O_RDONLY)
ids = os.getuid(), os.getgid()
done(libc.unshare(0x10020000))
for file, text in ("setgroups", "deny"), ("uid_map", f"{ids[0]} {ids[0]} 1"), ("gid_map", f"{ids[1]} {ids[1]} 1"):
    open(f"/proc/self/{file}", "w").write(text)
done(libc.mount(b"n", b"/tmp", b"tmpfs", 0, None))
os.mkdir("/tmp/old")
os.chdir("/tmp")
done(libc.syscall({"x86_64": 155, "aarch64": 41}[os.uname().machine], b".", b"old"))
done(libc.umount2(b"old", 2))
exec(sys.argv[2])
"#;

#[test]
fn in_nested_mode_what_the_run_puts_in_a_protected_place_is_told() {
    let Some(user) = User::new().filter(|_| has_python()) else { return };
    policy(
        &user,
        "mode = \"nested\"\n[require]\nallow_missing = [\"landlock-scope\"]\n[filesystem]\nro_bind = [\"elsewhere.py\"]\n",
    );
    user.file("elsewhere.py", ELSEWHERE);
    let program = user.path("elsewhere.py").display().to_string();
    for (what, lost) in [
        ("os.unlink('.envrc', dir_fd=there)", ".envrc"),
        (
            "os.unlink('.envrc', dir_fd=there); open(os.open('.envrc', os.O_CREAT | os.O_WRONLY, dir_fd=there), 'w').write('x')",
            ".envrc",
        ),
        (
            "os.rename('.git', 'git', src_dir_fd=there, dst_dir_fd=there); os.mkdir('.git', dir_fd=there); os.mkdir('.git/hooks', dir_fd=there)",
            ".git/hooks",
        ),
        (
            "os.rename('.git', 'git', src_dir_fd=there, dst_dir_fd=there); os.symlink('git', '.git', dir_fd=there)",
            ".git/hooks",
        ),
    ] {
        let work = user.path("work");
        user.command("chmod").args(["-R", "u+rwX", "work"]).status().expect("chmod");
        fs::remove_dir_all(&work).expect("an old workspace");
        for directory in ["work", "work/.git", "work/.git/hooks"] {
            user.directory(directory);
        }
        user.file("work/.envrc", "");
        let options = ["--timeout", "60s", "--policy", "p.toml"];
        let output = user.cell(&options, &["python3", &program, "/work", what]).output().expect("a launch");
        refused(&output, &format!("what stood at {lost} in {} is not there any more", work.display()));
    }
    assert!(fs::symlink_metadata(user.path("work/.git")).is_err(), "the link is still there");
    user.file("work/.envrc", "");
    // Without such a thing all is well; and the report says what is not held.
    let output = run(&user, &["--report", "r"], "true");
    let report = fs::read_to_string(user.path("r")).expect("a report");
    assert!(output.status.success() && report.contains("the nested mode lets the run move"), "{report}");
    refused(
        &run(&user, &["--policy", &text_of(&user, "protect_missing = \"overlay\"")], "true"),
        "does not hold in the nested mode",
    );
}

/// A file of more keys of `[workspace]`.
fn text_of(user: &User, keys: &str) -> String {
    let path = user.file("more.toml", format!("version = 1\n[workspace]\ndir = \"work\"\n{keys}\n"));
    path.display().to_string()
}

fn start(user: &User, script: &str) -> Child {
    let mut launch = user.script(&["--timeout", "60s", "--policy", "p.toml"], script);
    launch.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a launch")
}

#[test]
fn what_the_end_of_another_run_unprotects_is_told() {
    let Some(user) = User::new() else { return };
    policy(&user, "");
    let is_there = |name: &str| eventually(name, || user.path(name).exists().then_some(()));
    let until = |name: &str| format!("until test -e {name}; do sleep 0.05; done");
    let first = start(&user, &format!("mkdir .vscode; {}", until("end")));
    is_there("work/.vscode");
    // It finds that directory there, and so protects it.
    let script = format!("touch begun; {}; mkdir .vscode; echo evil > .vscode/tasks.json", until("go on"));
    let second = start(&user, &script.replace("go on", "go"));
    is_there("work/begun");
    user.file("work/end", "");
    assert!(first.wait_with_output().expect("an end").status.success());
    user.file("work/go", "");
    let output = second.wait_with_output().expect("an end");
    refused(&output, "what stood at .vscode in ");
}

#[test]
fn what_the_host_removes_or_changes_in_place_is_no_fault_of_the_run() {
    let Some(user) = User::new() else { return };
    policy(&user, "");
    user.file("work/.envrc", "a");
    user.directory("work/.vscode");
    let script = "touch begun; until test -e end; do sleep 0.05; done";
    let run = start(&user, script);
    eventually("it runs", || user.path("work/begun").exists().then_some(()));
    user.file("work/.envrc", "b");
    fs::remove_dir(user.path("work/.vscode")).expect("removed");
    user.file("work/end", "");
    let output = run.wait_with_output().expect("an end");
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_replaceable_channel_around_the_workspace_is_refused() {
    let Some(user) = User::new() else { return };
    user.directory("chan/work");
    user.file("chan/work/.envrc", "");
    let channel = "version = 1\n[channel]\ndir = \"chan\"\nreplaceable = REPLACEABLE\n[workspace]\ndir = \"chan/work\"\n";
    for (replaceable, code) in [("true", 125), ("false", 0)] {
        user.file("p.toml", channel.replace("REPLACEABLE", replaceable));
        let output = run(&user, &[], "true");
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
        assert_eq!(said(&output).contains("can write the protected"), code != 0, "{}", said(&output));
    }
}

/// `cellblock run` in a mount namespace in which `work` and `hidden` have second
/// names below `alias`.
fn with_aliases(user: &User, options: &[&str], command: &[&str]) -> Output {
    let script = "set -e; mount --bind . alias; exec unshare --user --map-user=1000 --map-group=1000 \"$@\"";
    let mut launch: Command = user.command("unshare");
    launch.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", "./cellblock", "run"]);
    launch.args(options).arg("--").args(command).output().expect("a launch")
}

#[test]
fn what_lies_in_a_hidden_or_protected_place_is_refused_by_the_name_of_another_mount() {
    let Some(user) = User::new() else { return };
    policy(&user, "");
    user.directory("alias");
    user.directory("hidden/deep/down");
    user.directory("work/.git/hooks");
    user.file("hidden/deep/down/secret", "secret");
    let name = |path: &str| user.path(path).display().to_string();
    let (hidden, view) = (name("hidden"), name("alias/hidden/deep/down"));
    let secret = format!("{view}/secret");
    let control = with_aliases(&user, &["--ro-bind", &view], &["cat", &secret]);
    assert_eq!(text(&control), "secret");
    for kind in ["--ro-bind", "--bind"] {
        refused(
            &with_aliases(&user, &[kind, &view, "--hide", &hidden], &["true"]),
            &format!("shows what lies in {hidden} by another path"),
        );
    }
    for view in ["alias/hidden", "alias"] {
        refused(
            &with_aliases(&user, &["--ro-bind", &name(view), "--hide", &hidden], &["true"]),
            &format!("{} shows {hidden} by another path", name(view)),
        );
    }
    for view in ["alias/work/.git/hooks", "alias/work/.git", "alias/work", "alias"] {
        let view = name(view);
        refused(
            &with_aliases(&user, &["--policy", "p.toml", "--bind", &view], &["true"]),
            &format!("the view of {view} can write the protected"),
        );
    }
}

#[test]
fn what_would_have_to_lie_below_a_file_cannot_be_hidden() {
    let Some(user) = User::new() else { return };
    user.directory("seen");
    user.file("seen/file", "");
    let name = |path: &str| user.path(path).display().to_string();
    let options = ["--ro-bind", &name("seen"), "--hide", &name("seen/file/later")];
    let output = user.cell(&options, &["true"]).output().expect("a launch");
    refused(&output, &format!("{} is a regular file, where a directory is needed", name("seen/file")));
}

#[test]
fn names_that_the_run_has_taken_do_not_keep_the_sweep_busy() {
    let Some(user) = User::new().filter(|_| has_python()) else { return };
    policy(&user, "");
    // The names that the sweep would use, and many directories that it has to move.
    let many = rounds(1500, 6000);
    let plant = format!(
        r#"
import os
os.mkdir("/work/.vscode"); os.chdir("/work/.vscode")
for name in range({many}): open(str(name), "w")
for depth in range(30): os.mkdir("d"); os.chdir("d")
for name in range({many}): os.makedirs(f"{{name}}/a/b/c")
"#
    );
    let started = Instant::now();
    let output = user.cell(&["--policy", "p.toml"], &["python3", "-c", &plant]).output().expect("a launch");
    assert!(output.status.success(), "{}", said(&output));
    assert!(!user.path("work/.vscode").exists());
    // Minutes, where each name is tried for each directory.
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

#[test]
fn a_work_directory_of_another_users_is_refused() {
    let Some(user) = User::new().filter(|_| skip::has_root()) else { return };
    policy(&user, "");
    let work = user.directory(".work.cellblock-work");
    let options = ["--policy", &text_of(&user, "protect_missing = \"overlay\"")];
    assert!(run(&user, &options, "true").status.success());
    user.directory(".work.cellblock-work");
    chown(&work, Some(1234), None).expect("chown");
    refused(&run(&user, &options, "true"), "belongs to the user 1234");
}

#[test]
fn what_a_former_run_tells_the_overlay_of_the_next_is_no_riddle() {
    let Some(user) = User::new().filter(|_| has_python()) else { return };
    policy(&user, "");
    for (file, attribute, value) in
        [(".git", "opaque", "y"), (".git", "redirect", "/etc"), (".envrc", "metacopy", "")]
    {
        fs::remove_dir_all(user.path("work")).expect("an old workspace");
        user.directory("work/.git");
        user.file("work/.envrc", "");
        let plant = format!("import os; os.setxattr('/work/{file}', 'user.overlay.{attribute}', b'{value}')");
        let unprotected = text_of(&user, "protect = [\"x\"]");
        let options = ["--policy", &unprotected, "--timeout", "60s"];
        text(&user.cell(&options, &["python3", "-c", &plant]).output().expect("a launch"));
        let overlay = user.file(
            "overlay.toml",
            "version = 1\n[workspace]\ndir = \"work\"\nprotect_missing = \"overlay\"\n",
        );
        let output = run(&user, &["--policy", overlay.to_str().expect("a path")], "true");
        refused(&output, "an attribute `user.overlay.…` there or above it");
    }
}

#[test]
fn runs_that_want_one_overlay_at_once_find_it_free_or_in_use() {
    let Some(user) = User::new() else { return };
    policy(&user, "");
    let overlay = text_of(&user, "protect_missing = \"overlay\"");
    let storm = || {
        (0..rounds(8, 40)).for_each(|_| {
            let output = run(&user, &["--policy", &overlay], "true");
            let said = said(&output);
            assert!(output.status.success() || said.contains("another run has an overlay"), "{said}");
        });
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(storm))));
    assert!(!user.path(".work.cellblock-work").exists());
}
