//! What people do every day: devices, umask, reports in their place, a first policy.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::skip;
use crate::user::{self, User, text};

#[test]
fn the_umask_is_022_or_what_is_asked_for() {
    let Some(user) = User::new() else { return };
    let umask = |options: &str| {
        let script = format!("umask 0037; exec ./cellblock run {options} -- sh -c umask");
        text(&user.command("sh").args(["-c", &script]).output().unwrap())
    };
    assert_eq!(umask(""), "0022\n");
    assert_eq!(umask("--umask inherit"), "0037\n");
    assert_eq!(umask("--umask 007"), "0007\n");
    user.file("p.toml", "version = 1\ncell.umask = 'inherit'\n");
    assert_eq!(umask("--policy p.toml"), "0037\n");
}

/// A device that every host has, under another name than those of every cell.
#[test]
fn a_device_is_there_when_it_is_named_and_is_a_device() {
    let Some(user) = User::new() else { return };
    let run = |options: &[&str], script: &str| user.script(options, script).output().unwrap();
    let device = ["/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/loop-control", "/dev/hwrng", "/dev/kmsg"];
    let device = device.into_iter().find(|path| Path::new(path).exists());
    if !skip::has("device", device.is_some()) {
        return;
    }
    let device = device.unwrap();
    let is_there = format!("test -c {device} && test ! -e /dev/mem");
    assert_eq!(text(&run(&["--device", device], &format!("{is_there} && stat -c %t:%T {device}"))), {
        text(&user.command("stat").args(["-c", "%t:%T", device]).output().unwrap())
    });
    assert!(!run(&[], &is_there).status.success());
    user.directory("d");
    let d = user.path("d").display().to_string();
    for (path, refusal) in [
        ("/dev/nothing", "does not exist"),
        ("/dev/null", "the cell's own"),
        ("/dev/pts/0", ""),
        ("/dev", "not below /dev"),
        (&d, "not below /dev"),
        ("/dev/shm", "is a directory, where a device node is needed"),
    ] {
        let output = run(&["--device", path], "true");
        assert_eq!(output.status.code(), Some(125), "{path}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(refusal), "{path}: {said}");
    }
}

#[test]
fn a_report_replaces_nothing_but_a_report() {
    let Some(user) = User::new() else { return };
    user.directory("reports");
    let run = |report: &str| user.cell(&["--report", report], &["true"]).output().unwrap();
    for (name, content) in [("policy.toml", "version = 1\n"), ("notes", "{\"version\":1}\n"), ("x", "\n")] {
        let file = user.file(format!("reports/{name}"), content);
        let output = run(&format!("reports/{name}"));
        assert_eq!(output.status.code(), Some(125), "{name}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("it is no earlier report") && said.contains("remedy:"), "{said}");
        assert_eq!(fs::read_to_string(file).unwrap(), content);
    }
    let empty = user.file("reports/empty", "");
    for report in ["reports/empty", "reports/empty", "reports/new", "reports/new"] {
        assert_eq!(run(report).status.code(), Some(0), "{report}");
    }
    assert!(fs::read_to_string(empty).unwrap().ends_with("}\n"));
    // A run that came to nothing leaves a report too.
    assert_eq!(user.cell(&["--report", "reports/new"], &["/nowhere"]).status().unwrap().code(), Some(127));
    assert_eq!(run("reports/new").status.code(), Some(0));
}

#[test]
fn a_report_belongs_to_the_caller_of_sudo() {
    let Some(user) = User::new() else { return };
    if !skip::has("root", user::is_root()) {
        return;
    }
    let (uid, gid) = user.ids();
    user.directory("reports");
    for (name, sudo, owner) in [("sudo", true, (uid, gid)), ("root", false, (0, 0))] {
        let mut run = user.cell_by_root(&["--report", &format!("reports/{name}")], &["true"]);
        run.env_remove("SUDO_UID").env_remove("SUDO_GID");
        if sudo {
            run.env("SUDO_UID", uid.to_string()).env("SUDO_GID", gid.to_string());
        }
        assert!(run.status().unwrap().success());
        let report = fs::metadata(user.path(format!("reports/{name}"))).unwrap();
        assert_eq!((report.uid(), report.gid(), report.mode() & 0o777), (owner.0, owner.1, 0o600), "{name}");
    }
}

/// What everybody writes first: a workspace, the run's state beside it, and one
/// directory of the workspace hidden.
#[test]
fn the_first_policy_of_an_evaluation_works() {
    let Some(user) = User::new() else { return };
    for directory in ["repo/answers", "state/r1", "state/r2"] {
        user.directory(directory);
    }
    user.file("repo/answers/expected", "42");
    let policy = "version = 1\n[run]\nhide = [\"repo/answers\"]\nexpose = [\"state/r1\"]\n[workspace]\ndir = \"repo\"\n";
    user.file("p.toml", policy);
    let state = user.path("state").display().to_string();
    let script = format!("test ! -e answers/expected && touch a {state}/r1/b && test ! -e {state}/r2");
    let output = user.script(&["--policy", "p.toml"], &script).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(user.path("state/r1/b").exists() && user.path("repo/a").exists());
}

#[test]
fn a_run_in_a_tree_that_a_group_shares_names_the_filter() {
    let Some(user) = User::new() else { return };
    let run = |options: &[&str]| {
        let output = user.cell(&[options, &["--workspace", "work"]].concat(), &["true"]).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let work = user.directory("work");
    user.directory("work/.git");
    assert_eq!(run(&[]), "");
    for settings in ["[core]\nsharedRepository = group\n", "[Core]\n\tSHAREDREPOSITORY = 0660\n"] {
        user.file("work/.git/config", settings);
        let said = run(&[]);
        assert!(said.contains("/work/.git/config sets core.sharedRepository"), "{said}");
        assert!(
            said.contains("--seccomp provider-set-gid") && said.contains("--accept set-gid-tree"),
            "{said}"
        );
    }
    user.file("work/.git/config", "[core]\nsharedRepository = umask\n");
    assert_eq!(run(&[]), "");
    fs::set_permissions(&work, fs::Permissions::from_mode(0o2755)).unwrap();
    let said = run(&[]);
    assert!(said.contains("/work has the set-group-id bit"), "{said}");
    assert!(run(&["--mode", "nested"]).contains("--seccomp nested-set-gid"));
    assert_eq!(run(&["--accept", "set-gid-tree"]), "");
    assert_eq!(run(&["--seccomp", "provider-set-gid"]), "");
}

#[test]
fn a_run_warns_of_a_home_in_view_unless_that_is_accepted() {
    let Some(user) = User::new() else { return };
    user.directory("home/.ssh");
    user.directory("home/project");
    let run = |options: &[&str]| {
        let mut run = user.cell(options, &["true"]);
        let output = run.env("HOME", user.path("home")).current_dir(user.path("home")).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&["--workspace", "."]);
    assert_eq!(code, Some(0), "{said}");
    for name in ["home-in-view", "credentials-in-view", "writable-startup"] {
        assert_eq!(said.matches(&format!("(--accept {name})")).count(), 1, "{said}");
    }
    let (_, said) = run(&["--workspace", ".", "--accept", "home-in-view", "--accept", "credentials-in-view"]);
    assert!(!said.contains("home-in-view") && said.contains("writable-startup"), "{said}");
    assert_eq!(run(&["--workspace", "project"]), (Some(0), String::new()));
    assert_eq!(run(&[]), (Some(0), String::new()));
    let (code, said) = run(&["--accept", "home-in-sight"]);
    assert!(code == Some(125) && said.contains("did you mean `home-in-view`?"), "{said}");
}
