//! What a cell may use of what it shares with others, and what it may do with
//! its own network that the host keeps for root.

use crate::cell;
use crate::cell::{Ground, PROBE};
use crate::user::{User, text};

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
    assert_eq!(run(&user, &["--mode", "nested"], read), "64\n1024\n");
}

#[test]
fn a_network_of_its_own_has_every_port_and_ping() {
    let Some(ground) = Ground::new() else { return };
    for options in [&[][..], &["--mode", "nested"]] {
        assert_eq!(cell::text(&ground.cell(options, [PROBE, "low-port"])), "ok\n");
    }
    let hosts = ground.cell(&["--net", "host"], [PROBE, "low-port"]);
    assert!(!hosts.status.success(), "the host's ports below 1024 are root's: {hosts:?}");
}
