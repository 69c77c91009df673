//! A host whose facts are absent, or that fails for a moment: no protection
//! depends on what the launcher's `/proc` shows, and a waiver takes only what is
//! not there.

use std::process::{Command, Output, Stdio};

use crate::skip::{has, has_programs, has_root};
use crate::user::User;

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Runs the launcher under strace(1), which changes what the kernel answers.
fn tampered(user: &User, tampering: &[&str], arguments: &[&str]) -> Output {
    let mut strace = user.command("strace");
    strace.args(["-f", "-o", "/dev/null"]).args(tampering);
    strace.arg(user.path("cellblock")).args(arguments).output().expect("strace")
}

/// Prints the entries of `/proc` that nothing stands over, but `sys`.
const UNCOVERED: &str = "cd /proc; stat -c '%d %n' . [a-z]* | \
     while read device name; do case $name in .) own=$device;; sys) ;; *) [ $device != $own ] || echo $name;; esac; done";

#[test]
fn every_cover_of_proc_stands_whatever_the_launchers_proc_shows() {
    if !has_root() {
        return;
    }
    let Some(user) = User::new() else { return };
    let subset = |script: &str| {
        let script =
            format!("mount -t proc -o subset=pid proc /proc && test ! -e /proc/stat && exec {script}");
        let (uid, gid) = user.ids();
        let drop = format!(
            "setpriv --reuid {uid} --regid {gid} --clear-groups {}",
            user.path("cellblock").display()
        );
        let script = script.replace("cellblock", &drop);
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", &script]).output().expect("unshare")
    };
    let plain = user.script(&[], UNCOVERED).output().expect("a launch");
    let shown = said(&plain);
    assert!(plain.status.success() && shown.contains("meminfo"), "{shown}");
    for name in cellblock::plan::PROC_MASKS {
        assert!(!shown.lines().any(|line| line == name), "{name} is not covered: {shown}");
    }
    let hidden = subset(&format!("cellblock run -- sh -c \"{}\"", UNCOVERED.replace('$', "\\$")));
    assert_eq!(said(&hidden), shown);
    let tested = said(&subset("cellblock verify --ro-bind /opt -- true"));
    assert!(tested.contains("sound: "), "{tested}");
}

#[test]
fn verify_finds_each_cover_that_is_missing() {
    let Some(user) = User::new().filter(|_| has_programs(&["strace"])) else { return };
    // One that every kernel has as a file, and one that every kernel has as a directory.
    for name in ["cmdline", "bus"] {
        let path = format!("proc/{name}");
        let tampering = ["-P", &path, "-e", "trace=openat2", "-e", "inject=openat2:error=ENOENT"];
        let output = tampered(&user, &tampering, &["verify", "--ro-bind", "/opt", "--json"]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
        let lines = document["lines"].as_array().expect("lines").iter();
        let wrong: Vec<_> =
            lines.filter(|line| line["verdict"] == "leak").map(|line| &line["object"]).collect();
        assert_eq!(wrong, [&serde_json::json!(format!("/proc/{name}"))]);
    }
}

#[test]
fn a_clone_that_fails_for_a_moment_waives_no_namespace() {
    let Some(user) = User::new().filter(|_| has_programs(&["strace"])) else { return };
    for errno in ["ENOMEM", "EAGAIN", "EINTR", "EBUSY"] {
        let tampering = ["-e", &format!("inject=clone:error={errno}:when=1")];
        let allowed = ["run", "--allow-missing", "cgroup", "--allow-missing", "network", "--", "true"];
        let output = tampered(&user, &tampering, &allowed);
        assert_eq!(output.status.code(), Some(125), "{errno}: {}", said(&output));
        assert!(!said(&output).contains("without "), "{}", said(&output));
    }
}

#[test]
fn only_the_namespace_that_is_refused_goes() {
    let Some(user) = User::new().filter(|_| has_programs(&["strace"])) else { return };
    // The clone is begun without cgroup, then without network, then without both.
    for (failures, gone) in [(1, "cgroup"), (2, "network")] {
        let tampering = ["-e", &format!("inject=clone:error=ENOSPC:when=1..{failures}")];
        let allowed = ["run", "--allow-missing", "cgroup", "--allow-missing", "network", "--", "true"];
        let output = tampered(&user, &tampering, &allowed);
        let told: Vec<String> =
            said(&output).lines().filter(|line| line.contains("without ")).map(str::to_owned).collect();
        assert_eq!(told, [format!("cellblock: without {gone}, which this host lacks")], "{}", said(&output));
    }
}

#[test]
fn a_domain_that_does_not_hold_ends_the_launch() {
    let Some(user) = User::new().filter(|_| has_programs(&["strace"])) else { return };
    user.directory("reports");
    let report = user.path("reports/r.jsonl").display().to_string();
    let tampering = ["-e", "inject=landlock_restrict_self:retval=0"];
    let output = tampered(&user, &tampering, &["run", "--report", &report, "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    assert!(said(&output).contains("the domain does not hold"), "{}", said(&output));
}

#[test]
fn a_namespace_that_is_the_launchers_own_is_no_evidence() {
    let Some(user) = User::new() else { return };
    let policy =
        cellblock::policy::load::load(&Default::default(), &|_| None, &user.path("")).expect("a policy");
    let request = cellblock::plan::Request { command: vec!["true".into()], ..Default::default() };
    let host = cellblock::launch::probe(&policy, Default::default()).expect("a host");
    let plan = cellblock::plan::build(&policy, &host.1, &request).expect("a plan");
    let own = std::process::id() as i32;
    let error = cellblock::evidence::collect(&plan, own, 13).expect_err("this process is no cell");
    assert!(error.what.contains("the user namespace is the launcher's own"), "{error}");
}

#[test]
fn a_launcher_with_a_low_number_is_not_taken_for_a_process_of_the_cell() {
    let Some(user) = User::new() else { return };
    let program = user.path("cellblock").display().to_string();
    let own = ["--user", "--map-current-user", "--pid", "--fork", "--mount-proc"];
    let usable = user.command("unshare").args(own).arg("true").status().is_ok_and(|status| status.success());
    if !has("a procfs in a PID namespace", usable) {
        return;
    }
    for command in ["verify --strict", "demo"] {
        for script in [format!("exec {program} {command}"), format!("{program} {command}; exit $?")] {
            let output =
                user.command("unshare").args(own).args(["sh", "-c", &script]).output().expect("unshare");
            assert!(output.status.success(), "{script}: {}", said(&output));
        }
    }
}

#[test]
fn what_stands_in_the_place_of_a_device_is_not_shown() {
    let Some(user) = User::new().filter(|_| has_root()) else { return };
    let file = user.file("file", "of the host");
    let (uid, gid) = user.ids();
    let run = |mount: &str| {
        let script = format!(
            "{mount}; exec setpriv --reuid={uid} --regid={gid} --clear-groups ./cellblock run -- cat /proc/kallsyms"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", &script]).current_dir(user.path("")).stdin(Stdio::null());
        command.output().expect("unshare")
    };
    let control = run("true");
    assert!(control.status.success() && control.stdout.is_empty(), "{}", said(&control));
    let output = run(&format!("mount --bind {} /dev/null", file.display()));
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    assert!(
        output.stdout.is_empty() && said(&output).contains("/dev/null is a regular file"),
        "{}",
        said(&output)
    );
}
