//! A host whose facts are absent, or that fails for a moment: no protection
//! depends on what the launcher's `/proc` shows, and a waiver takes only what is
//! not there.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};

use crate::skip::{has, has_programs, has_root, has_scopes};
use crate::user::User;

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Runs a script of root's in mounts of its own, where `$CELLBLOCK` is the launcher
/// as the user.
fn in_own_mounts(user: &User, script: &str) -> Output {
    let (uid, gid) = user.ids();
    let drop = format!("setpriv --reuid {uid} --regid {gid} --clear-groups ./cellblock");
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-ec", script]).current_dir(user.path("")).stdin(Stdio::null());
    unshare.env("CELLBLOCK", drop).output().expect("unshare")
}

/// What the test of a cell says first of a socket in a view.
#[track_caller]
fn socket(output: &Output) -> [String; 2] {
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
    let mut lines = document["lines"].as_array().expect("lines").iter();
    let line = lines.find(|line| line["name"] == "view:socket").expect("a line");
    ["object", "verdict"].map(|member| line[member].as_str().expect("text").to_owned())
}

#[track_caller]
fn is_refused(output: &Output, words: &str) {
    assert_eq!(output.status.code(), Some(125), "{words}: {}", said(output));
    assert!(said(output).contains(words), "{words}: {}", said(output));
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
        in_own_mounts(
            &user,
            &format!(
                "mount -t proc -o subset=pid proc /proc; test ! -e /proc/stat; exec $CELLBLOCK {script}"
            ),
        )
    };
    let plain = user.script(&[], UNCOVERED).output().expect("a launch");
    let shown = said(&plain);
    assert!(plain.status.success() && shown.contains("meminfo"), "{shown}");
    for name in cellblock::plan::PROC_MASKS {
        assert!(!shown.lines().any(|line| line == name), "{name} is not covered: {shown}");
    }
    let hidden = subset(&format!("run -- sh -c \"{}\"", UNCOVERED.replace('$', "\\$")));
    assert_eq!(said(&hidden), shown);
    let tested = said(&subset("verify --ro-bind /opt -- true"));
    assert!(tested.contains("sound: "), "{tested}");
}

#[test]
fn verify_finds_each_cover_that_is_missing() {
    let Some(user) = User::new().filter(|_| has_programs(&["strace"])) else { return };
    // One that every kernel has as a file, and one that every kernel has as a directory.
    for name in ["cmdline", "bus"] {
        let path = format!("proc/{name}");
        let tampering = ["-P", &path, "-e", "trace=newfstatat", "-e", "inject=newfstatat:error=ENOENT"];
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
    // In the host's network a cell needs the scopes.
    let Some(user) = User::new().filter(|_| has_programs(&["strace"]) && has_scopes()) else { return };
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
    let mut plan = cellblock::plan::build(&policy, &host.1, &request).expect("a plan");
    let own = std::process::id() as i32;
    for namespace in std::mem::take(&mut plan.namespaces) {
        plan.namespaces = vec![namespace];
        let error = cellblock::report::collect(&plan, own, 13).expect_err("this process is no cell");
        let expected = format!("the {} namespace is the launcher's own", namespace.name());
        assert!(error.what.contains(&expected), "{error}");
    }
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
    user.file("file", "of the host");
    let run =
        |mount: &str| in_own_mounts(&user, &format!("{mount}; exec $CELLBLOCK run -- cat /proc/kallsyms"));
    let control = run("true");
    assert!(control.status.success() && control.stdout.is_empty(), "{}", said(&control));
    is_refused(&run("mount --bind file /dev/null"), "/dev/null is a regular file");
    for (name, number) in cellblock::plan::DEVICES {
        let other = if name == "zero" { "full" } else { "zero" };
        let found = std::fs::metadata(format!("/dev/{name}")).expect("a device");
        assert_eq!(found.rdev(), number, "{name}");
        let output = run(&format!("mount --bind /dev/{other} /dev/{name}"));
        is_refused(&output, &format!("/dev/{name} is the character device 1:"));
    }
    let block = "mount -t tmpfs none /mnt; mknod -m 666 /mnt/null b 1 3; mount --bind /mnt/null /dev/null";
    is_refused(&run(block), "/dev/null is a device, where the character device 1:3 is needed");
}

#[test]
fn verify_without_a_mount_table_is_no_test() {
    let Some(user) = User::new().filter(|_| has_root()) else { return };
    user.file("empty", "");
    user.file("other", "no mount table\n");
    std::fs::set_permissions(user.file("closed", ""), Permissions::from_mode(0o000)).expect("a mode");
    for file in ["empty", "other", "closed"] {
        let script = format!("mount --bind {file} /proc/$$/mountinfo; exec $CELLBLOCK verify --ro-bind /opt");
        is_refused(&in_own_mounts(&user, &script), "the mount table /proc/self/mountinfo cannot be read");
    }
}

#[test]
fn sockets_are_found_by_what_the_launchers_own_process_shows() {
    let Some(user) = User::new().filter(|_| has_root()) else { return };
    // More entries than are looked at one by one, so that the kernel's table tells of it alone.
    let view = user.directory("view/deep");
    (0..600).for_each(|number| drop(user.file(format!("view/{number}"), "")));
    let path = view.join("socket");
    let _socket = UnixListener::bind(&path).expect("a socket");
    user.own(&path);
    let verify = |mounts: &str| {
        in_own_mounts(
            &user,
            &format!("{mounts}; exec $CELLBLOCK verify --json --ro-bind {}", user.path("view").display()),
        )
    };
    let found = [path.to_str().expect("text"), "leak"];
    assert_eq!(socket(&verify("true")), found);
    assert_eq!(socket(&verify("mount -t proc -o subset=pid proc /proc")), found);
}

#[test]
fn a_table_that_cannot_be_read_is_no_clean_bill() {
    let Some(user) = User::new().filter(|_| has_programs(&["strace"])) else { return };
    let unread = |names: &[&str], command: &[&str]| {
        let paths = names.iter().flat_map(|name| ["-P".to_owned(), format!("/proc/self/net/{name}")]);
        let paths: Vec<String> = paths.collect();
        let mut tampering: Vec<&str> = paths.iter().map(String::as_str).collect();
        tampering.extend(["-e", "trace=openat", "-e", "inject=openat:error=ENOENT"]);
        tampered(&user, &tampering, command)
    };
    let output = unread(&["unix"], &["verify", "--json", "--ro-bind", "/opt"]);
    assert_eq!(socket(&output), ["/proc/self/net/unix", "untestable"]);
    for (net, files) in [("none", &["unix"][..]), ("host", &["unix", "tcp", "udp"])] {
        let said = said(&unread(&["unix", "tcp", "udp"], &["policy", "check", "--net", net]));
        let unread =
            said.lines().filter_map(|line| line.strip_prefix("warning: host-unread: host: /proc/self/net/"));
        assert_eq!(unread.filter_map(|line| line.split(' ').next()).collect::<Vec<_>>(), files, "{said}");
    }
}

#[test]
fn a_source_that_may_lie_on_a_procfs_is_refused() {
    let Some(user) = User::new().filter(|_| has_programs(&["strace"])) else { return };
    let tampering = ["-e", "trace=fstatfs", "-e", "inject=fstatfs:error=EIO"];
    is_refused(&tampered(&user, &tampering, &["run", "--ro-bind", "/opt", "--", "true"]), "EIO");
}

#[test]
fn a_proc_of_another_pid_namespace_is_named() {
    let Some(user) = User::new().filter(|_| has_root()) else { return };
    for (mounts, words) in [
        ("true", "proc: /proc/self is process "),
        ("mount -t tmpfs none /proc", "proc: /proc/self cannot be read: ENOENT"),
    ] {
        for command in ["run -- true", "verify", "verify --ro-bind /opt", "demo"] {
            is_refused(
                &in_own_mounts(&user, &format!("{mounts}; exec unshare --pid --fork $CELLBLOCK {command}")),
                words,
            );
        }
    }
    let status = "unshare --pid --fork ./cellblock run --run-as 1:1 --json-status-fd 1 -- true";
    let output = in_own_mounts(&user, status);
    assert!(said(&output).contains(r#""fault":"proc-not-own""#), "{}", said(&output));
    let remedy = "exec unshare --pid --fork --mount-proc ./cellblock run --run-as 1:1 -- echo ran";
    assert_eq!(said(&in_own_mounts(&user, remedy)), "ran\n");
}
