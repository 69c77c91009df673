//! What a provider sees of the host and of itself.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::cell::{Ground, PROBE, text};
use crate::skip;

#[test]
fn no_capability_no_new_privilege_and_a_filter() {
    let Some(ground) = Ground::new() else { return };
    let status = ground.show(&[], &["status"]);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status[set], ["0000000000000000"], "{set}");
    }
    assert_eq!(status["NoNewPrivs"], ["1"]);
    assert_eq!(status["Seccomp"], ["2"]);
}

#[test]
fn hidden_things_are_absent_not_forbidden() {
    let Some(ground) = Ground::new() else { return };
    let ids = [
        "F01", "F02", "F03", "F05", "F07", "F08", "F09", "F12", "F13", "F14", "F15", "F16", "F17", "F18",
        "F19", "F20", "F21", "F22", "F29", "N02", "N03", "N04", "N22", "N23", "P17", "P18",
    ];
    let found = ground.inside(&[], "run", &ids);
    let wrong: Vec<_> = found.iter().filter(|(_, finding)| finding.detail != "ENOENT").collect();
    assert!(wrong.is_empty(), "not ENOENT: {wrong:#?}");
}

#[test]
fn the_harness_is_in_no_file_of_proc() {
    let Some(ground) = Ground::new() else { return };
    let tokens = ["CASE_ID", "SECRET", "COMM", "HARNESS_DIR"].map(|key| ground.fixture.get(key));
    // Every file that the provider can open, but its own argv and environment,
    // which say what this test hands in.
    let script = "find /proc -maxdepth 3 -type f ! -path '/proc/sys/*' ! -name pagemap ! -name mem \
        -exec grep -aHsF -f /work/tokens {} + 2>/dev/null; echo end";
    let mut lines = tokens.join("\n");
    lines.push('\n');
    fs::write(ground.fixture.path("WORK").join("tokens"), lines).unwrap();
    let output = text(&ground.cell(&["--timeout", "60s"], ["/bin/sh", "-c", script]));
    assert_eq!(output, "end\n");
}

#[test]
fn own_state_is_writable_and_stays() {
    let Some(ground) = Ground::new() else { return };
    let made = ground.fixture.path("OWN").join("made");
    let script = format!("echo content > {}", made.display());
    text(&ground.cell(&[], ["/bin/sh", "-c", &script]));
    assert_eq!(fs::read_to_string(&made).unwrap(), "content\n");
    let facts = fs::metadata(ground.fixture.facts_file()).unwrap();
    let (mine, owner) = (fs::metadata(&made).unwrap(), facts.uid());
    assert_eq!(mine.uid(), owner);
}

#[test]
fn the_system_and_a_read_only_workspace_take_no_writes() {
    let Some(ground) = Ground::new() else { return };
    let script = "cat /work/README; for at in /work /usr /usr/bin /etc / /lib /opt; do \
        (: > $at/new) 2>/dev/null && echo wrote $at; done; true";
    let output = text(&ground.cell(&[], ["/bin/sh", "-c", script]));
    assert_eq!(output, "the tree to work on\n");
    assert!(!ground.fixture.path("WORK").join("new").exists());
}

#[test]
fn a_workspace_takes_writes_when_the_policy_says_so() {
    let Some(ground) = Ground::new() else { return };
    let work = ground.fixture.path("WORK");
    let policy = ground.fixture.root().join("writable.toml");
    let text_of = format!("version = 1\n[workspace]\ndir = \"{}\"\n", work.display());
    fs::write(&policy, text_of).unwrap();
    let words = ["/bin/sh", "-c", "echo written > new; pwd"];
    let output = text(&ground.cell_of(&policy, &[], words));
    assert_eq!(output, "/work\n");
    assert_eq!(fs::read_to_string(work.join("new")).unwrap(), "written\n");
}

#[test]
fn the_root_holds_what_was_named_and_nothing_else() {
    let Some(ground) = Ground::new() else { return };
    let known = "bin dev etc home lib lib32 lib64 libx32 opt proc run sbin tmp usr var work";
    let script = "for name in /*; do echo \"${name#/}\"; done";
    let listed = text(&ground.cell(&[], ["/bin/sh", "-c", script]));
    // A root that cannot be listed gives back the pattern itself.
    let strange: Vec<&str> =
        listed.lines().filter(|name| *name != "*" && !known.split(' ').any(|known| known == *name)).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

#[test]
fn no_mount_of_the_host_is_left() {
    let Some(ground) = Ground::new() else { return };
    let shown = ground.show(&[], &["mountinfo"]);
    // Field 5 is the place; after the dash stands the file system.
    let places: Vec<&str> = shown["mountinfo"].iter().filter_map(|line| line.split(' ').nth(4)).collect();
    let roots: Vec<_> =
        shown["mountinfo"].iter().filter(|line| line.split(' ').nth(4) == Some("/")).collect();
    assert_eq!(roots.len(), 1, "one root: {roots:?}");
    assert!(roots[0].contains(" - tmpfs "), "{roots:?}");
    let fixture = ground.fixture.root().to_str().unwrap();
    let known = [
        "/usr",
        "/etc",
        "/var/lib",
        "/sys/devices/system/cpu",
        "/bin",
        "/sbin",
        "/lib",
        "/dev",
        "/proc",
        "/tmp",
        "/home/agent",
        "/work",
        PROBE,
        fixture,
    ];
    let strange: Vec<_> = places
        .iter()
        .filter(|place| **place != "/" && !known.iter().any(|known| place.starts_with(known)))
        .collect();
    assert!(strange.is_empty(), "{strange:?}");
}

#[test]
fn no_mount_has_set_id_files_and_what_is_not_to_change_is_read_only() {
    let Some(ground) = Ground::new() else { return };
    let own = ground.fixture.get("OWN");
    let fixed = [
        "/usr",
        "/etc",
        "/var/lib",
        "/sys",
        "/proc",
        "/work",
        "/dev/empty",
        PROBE,
        ground.fixture.get("CHANNEL"),
    ];
    for line in &ground.show(&[], &["mountinfo"])["mountinfo"] {
        let mut fields = line.split(' ').skip(4);
        let (place, options) = (fields.next().unwrap(), fields.next().unwrap());
        let has = |option: &str| options.split(',').any(|given| given == option);
        assert!(has("nosuid"), "{line}");
        // Devices are taken one by one; a mask is /dev/null.
        assert!(has("nodev") || place.starts_with("/dev/") || line.contains("/null /proc/"), "{line}");
        // A device takes writes all the same.
        let is_device =
            line.contains("- devtmpfs ") || place.starts_with("/dev/") && line.contains(" /null ");
        let is_fixed = place == "/" || is_device || fixed.iter().any(|fixed| place.starts_with(fixed));
        assert_eq!(has("ro"), is_fixed, "{line}");
        assert!(!has("noexec") || place != own, "{line}");
    }
}

#[test]
fn only_own_processes_are_there_and_pid_1_is_not() {
    let Some(ground) = Ground::new() else { return };
    let shown = ground.show(&[], &["pids", "session"]);
    assert_eq!(shown["pids"], ["2"]);
    assert_eq!(shown["pid"], ["2"]);
    // A session and a process group of the cell's own.
    assert_eq!(shown["sid"], ["1"]);
    assert_eq!(shown["pgid"], ["2"]);
}

#[test]
fn the_environment_is_what_the_policy_says() {
    let Some(ground) = Ground::new() else { return };
    let shown = ground.show(&["--env", "GIVEN=yes"], &["env"]);
    let names: Vec<&str> = shown.keys().filter_map(|key| key.strip_prefix("env ")).collect();
    assert_eq!(names, ["GIVEN", "HOME", "LANG", "PATH", "TMPDIR", "USER"]);
    assert_eq!(shown["env HOME"], ["/home/agent"]);
}

#[test]
fn no_descriptor_directory_umask_or_signal_rides_in() {
    let Some(ground) = Ground::new() else { return };
    let shown = ground.show(&[], &["fds", "cwd", "status"]);
    let fds: Vec<&str> = shown.keys().filter_map(|key| key.strip_prefix("fd ")).collect();
    assert_eq!(fds, ["0", "1", "2"]);
    assert_eq!(shown["cwd"], ["/work"]);
    assert_eq!(shown["Umask"], ["0022"]);
    assert_eq!(shown["SigBlk"], ["0000000000000000"]);
    // Asked of a program that sets none itself: Rust's ignores SIGPIPE.
    let status = text(&ground.cell(&[], ["/bin/cat", "/proc/self/status"]));
    assert!(status.contains("SigIgn:\t0000000000000000"), "{status}");
}

#[test]
fn host_and_user_have_names_of_the_cells_own() {
    let Some(ground) = Ground::new() else { return };
    let shown = ground.show(&["--hostname", "box"], &["hostname", "uid_map", "cgroup"]);
    assert_eq!(shown["hostname"], ["box"]);
    assert_eq!(shown["uid_map"].len(), 1);
    assert!(shown["uid_map"][0].trim_end().ends_with(" 1"), "one id: {:?}", shown["uid_map"]);
    assert!(shown["cgroup"].iter().all(|line| line.ends_with(":/")), "{:?}", shown["cgroup"]);
}

#[test]
fn the_terminal_is_the_cells_own() {
    let Some(ground) = Ground::new() else { return };
    let facts = ground.fixture.facts_file();
    let facts = facts.to_str().unwrap();
    let command = [PROBE, "run", facts, "P41", "P42", "P43"];
    let output = text(&ground.on_terminal(ground.run_words(&[], command)));
    let lines: Vec<&str> = output.lines().map(str::trim_end).collect();
    assert_eq!(lines[0], "P41\tdenied\tone of the cell's own", "{output}");
    assert!(lines[1].starts_with("P42\tdenied"), "{output}");
    assert_eq!(lines[2], "P43\tdenied\tone of the cell's own", "{output}");
    let outside = text(&ground.on_terminal([ground.fixture.get("HELPER"), "run", facts, "P41"]));
    assert!(outside.starts_with("P41\tleak"), "{outside}");
}

#[test]
fn root_becomes_another_user_and_gives_up_its_groups() {
    if !skip::has_root() {
        return;
    }
    let Some(ground) = Ground::new() else { return };
    let output = text(&ground.cell_by_root(&[], [PROBE, "show", "status", "uid_map"]));
    let uid = ground.user().uid;
    let ids = format!("{uid}\t{uid}\t{uid}\t{uid}");
    assert!(output.contains(&format!("Uid\t{ids}\n")), "{output}");
    assert!(output.contains("CapBnd\t0000000000000000\n"), "{output}");
    let groups = output.lines().find_map(|line| line.strip_prefix("Groups\t")).unwrap();
    assert!(groups.trim().is_empty() || groups.trim() == ground.user().gid.to_string(), "{groups}");
}

#[test]
fn root_needs_to_be_told_whom_to_become() {
    if !skip::has_root() {
        return;
    }
    let Some(ground) = Ground::new() else { return };
    let output = ground.cell_by_root_as_nobody(["/bin/true"]);
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--run-as"), "{said}");
}

#[test]
fn stdio_by_kind() {
    let Some(ground) = Ground::new() else { return };
    let log = ground.fixture.root().join("harness/out.log");
    let (probe, cell) = (PROBE, ground.run_words(&[], [PROBE, "show", "fds"]).join(" "));
    // A file on the host becomes a pipe, and what is written still arrives.
    let script = format!("{cell} < {} > {}", ground.fixture.get("HARNESS_FILE"), log.display());
    let script = script.replace("'", "");
    text(&ground.beside(["/bin/sh", "-c", &script]));
    let shown = fs::read_to_string(&log).unwrap();
    for fd in ["0", "1"] {
        let line = shown.lines().find(|line| line.starts_with(&format!("fd {fd}\t"))).unwrap_or_default();
        assert!(line.contains("pipe:["), "{probe}: {shown}");
    }
    // A directory would be a way out.
    let script = format!("{cell} < /");
    let output = ground.beside(["/bin/sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(125));
    assert!(output.stdout.is_empty());
}
