//! What a cell may use of what it shares with others, and what it may do with
//! its own network that the host keeps for root.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::cell::{self, Ground, PROBE};
use crate::skip;
use crate::user::{self, User, text};

fn run(user: &User, options: &[&str], script: &str) -> String {
    let output = user.cell(options, &["sh", "-c", script]).output().expect("a launch");
    text(&output)
}

#[test]
fn the_shell_turns_core_files_off_and_the_limit_stays_one() {
    let Some(user) = User::new() else { return };
    let script =
        "ulimit -c 0 && ulimit -H -c 0 && grep -o 'core file size *[0-9]* *[0-9]*' /proc/self/limits";
    let said = run(&user, &[], script);
    let limits: Vec<&str> = said.split_whitespace().skip(3).collect();
    assert_eq!(limits, ["1", "1"], "{said}");
}

#[test]
fn processes_files_and_memory_file_systems_have_the_limits_of_the_policy() {
    let Some(user) = User::new() else { return };
    let policy = "version = 1\n[filesystem]\ntmpfs = [\"/own\", { path = \"/large\", size = \"3M\" }]\n\
        [limits]\nprocesses = 12\nopen_files = 40\nfile_size = \"2M\"\ntmp = \"1M\"\n";
    let policy = user.file("limits.toml", policy);
    let options = ["--policy", policy.to_str().expect("a path")];
    let script = "ulimit -n; \
        for at in /tmp \"$HOME\" /dev/shm /own; do \
            head -c 1500000 /dev/zero 2>/dev/null > $at/file; stat -c %s $at/file; rm $at/file; \
        done; \
        trap '' XFSZ; head -c 2500000 /dev/zero 2>/dev/null > /large/file; stat -c %s /large/file; \
        i=0; while [ $i -lt 20 ]; do sleep 5 & i=$((i + 1)); done; echo never";
    // dash ends where it cannot fork.
    let output = user.cell(&options, &["sh", "-c", script]).output().expect("a launch");
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("40"), "{said}");
    for size in ["1048576", "1048576", "1048576", "1048576", "2097152"] {
        assert_eq!(lines.next(), Some(size), "{said}");
    }
    assert!(said.to_lowercase().contains("fork") && !said.contains("never"), "{said}");
    // A flag goes before the file, and a lower limit of the launcher's before both.
    let wider = [&options[..], &["--processes", "30"]].concat();
    let said = run(&user, &wider, "ulimit -u || grep processes /proc/self/limits");
    assert!(said.contains("30"), "{said}");
    for (limit, flag) in [("50", "100"), ("100", "50")] {
        let cell = user.path("cellblock").display().to_string();
        let script = format!(
            "ulimit -n {limit}; exec {cell} run --policy {} -- sh -c 'ulimit -n'",
            user.file(format!("{flag}.toml"), format!("version = 1\n[limits]\nopen_files = {flag}\n"))
                .display()
        );
        let output = user.command("sh").args(["-c", &script]).output().expect("a launch");
        assert_eq!(text(&output).trim(), "50");
    }
}

#[test]
fn what_is_counted_for_a_user_is_left_to_others_by_half() {
    let Some(user) = User::new() else { return };
    let read = "sed -n 's/^Max pending signals *\\([0-9]*\\) .*/\\1/p' /proc/self/limits";
    let outside = user.command("sh").args(["-c", read]).output().expect("sed");
    let outside: u64 = text(&outside).trim().parse().expect("a number");
    assert_eq!(run(&user, &[], read).trim(), (outside / 2).to_string());
    let read = "cat /proc/sys/user/max_inotify_instances /proc/sys/user/max_user_namespaces";
    assert_eq!(run(&user, &[], read), "64\n0\n");
    assert_eq!(run(&user, skip::NESTED, read), "64\n1024\n");
}

#[test]
fn a_network_of_its_own_has_every_port_and_ping() {
    let Some(ground) = Ground::new() else { return };
    for options in [&[][..], skip::NESTED] {
        assert_eq!(cell::text(&ground.cell(options, [PROBE, "low-port"])), "ok\n");
    }
    let hosts = ground.cell(&["--net", "host", "--allow-missing", "landlock-scope"], [PROBE, "low-port"]);
    assert!(!hosts.status.success(), "the host's ports below 1024 are root's: {hosts:?}");
}

/// The launcher's child, which is the cell's PID 1.
fn init_of(launcher: i32) -> i32 {
    user::eventually("init", || user::children(launcher).first().copied())
}

#[test]
fn init_keeps_its_share_of_the_processors() {
    let Some(user) = User::new() else { return };
    if !skip::has("autogroup", fs::exists("/proc/self/autogroup").is_ok_and(|there| there)) {
        return;
    }
    let script = "echo 19 > /proc/self/autogroup && echo written && exec sleep 20";
    let mut launcher = user.cell(skip::NESTED, &["sh", "-c", script]);
    let mut launcher = launcher.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("a launch");
    let mut said = String::new();
    let stdout = launcher.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut said).expect("a line");
    let init = init_of(launcher.id() as i32);
    let share = fs::read_to_string(format!("/proc/{init}/autogroup")).expect("init's");
    launcher.kill().and_then(|()| launcher.wait()).expect("it ends");
    assert_eq!(said, "written\n");
    assert!(share.ends_with(" nice 0\n"), "{share}");
    // In sealed mode it cannot be written, by Landlock and by the mount.
    for options in [&[][..], &["--without", "landlock"]] {
        let output = user.cell(options, &["sh", "-c", script]).output().expect("a launch");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("written"), "{options:?}");
    }
}

#[test]
fn a_cgroup_namespace_made_inside_shows_no_cgroup_of_the_harness() {
    let Some(user) = User::new() else { return };
    let mounted = "unshare --user --map-root-user --mount --cgroup sh -c \
        'mount -t cgroup2 none /tmp && wc -l < /tmp/cgroup.procs'";
    let outside = user.command("sh").args(["-c", mounted]).output().expect("sh");
    let Ok(outside) = String::from_utf8_lossy(&outside.stdout).trim().parse::<u32>() else {
        skip::has("cgroup2", false);
        return;
    };
    let inside = user.cell(skip::NESTED, &["sh", "-c", mounted]).output().expect("a launch");
    let said = String::from_utf8_lossy(&inside.stderr);
    match String::from_utf8_lossy(&inside.stdout).trim().parse::<u32>() {
        // The cell's own: PID 1, two shells and wc.
        Ok(inside) => assert!(inside <= 4, "{inside} of {outside} processes"),
        Err(_) => assert!(said.contains("No space left on device"), "{said}"),
    }
    // Every other namespace can be made, and each cell gets its part of them.
    let others = "unshare --user --map-root-user --mount --pid --fork --net --ipc --uts echo made";
    assert_eq!(run(&user, skip::NESTED, others), "made\n");
}
