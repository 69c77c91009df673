//! A program that cannot be executed: the message names what is missing and
//! where the host has it, and the flags that it prints are right.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use crate::site::{Site, stderr};
use crate::skip;

/// A home with programs as installers leave them, and a project.
fn site() -> Option<Site> {
    let site = Site::new()?;
    let directory = |name: &str| {
        let mut whole = String::new();
        for part in name.split('/') {
            whole = if whole.is_empty() { part.to_owned() } else { format!("{whole}/{part}") };
            if !site.path(&whole).exists() {
                site.directory(&whole);
            }
        }
    };
    let program = |name: &str| {
        fs::copy("/bin/true", site.path(name)).unwrap();
        site.own(&site.path(name));
    };
    let link = |target: &str, name: &str| symlink(target, site.path(name)).unwrap();
    for name in [
        "home/.local/bin",
        "home/.local/share/claude/versions",
        "home/.nvm/v20/bin",
        "home/.nvm/v20/lib/node_modules/codex/bin",
        "home/.pyenv/3.12/bin",
        "home/.pyenv/3.12/lib",
        "home/bin",
        "project/.venv/bin",
    ] {
        directory(name);
    }
    program("home/.local/share/claude/versions/2.0");
    link("../share/claude/versions/2.0", "home/.local/bin/claude");
    program("home/.nvm/v20/bin/node");
    site.file("home/.nvm/v20/lib/node_modules/codex/bin/codex.js", "#!/usr/bin/env node\n", 0o755);
    link("../lib/node_modules/codex/bin/codex.js", "home/.nvm/v20/bin/codex");
    program("home/.pyenv/3.12/bin/python3.12");
    link("python3.12", "home/.pyenv/3.12/bin/python3");
    program("home/mine");
    program("home/a b'c");
    let python = site.text("home/.pyenv/3.12/bin/python3");
    link(&python, "project/.venv/bin/python");
    link("/nowhere/python", "project/.venv/bin/dangling");
    link("python", "project/.venv/bin/python3");
    let line = format!("#!{}\n", site.text("project/.venv/bin/python"));
    for (name, content, mode) in [
        ("pip", &*line, 0o755),
        ("bad", "#!/nowhere/sh\n", 0o755),
        ("crlf", "#!/bin/sh\r\ntrue\r\n", 0o755),
        ("data", "data\n", 0o644),
        ("script", "#!/bin/sh\n", 0o644),
        ("evil", "#!/x\x1b[2Jy\n", 0o755),
    ] {
        site.file(&format!("project/{name}"), content, mode);
    }
    // A program of another C library names another loader.
    let mut program = fs::read("/bin/true").unwrap();
    let loader = program.windows(8).position(|name| name == b"ld-linux").unwrap_or(0);
    program[loader..loader + 8].copy_from_slice(b"ld-other");
    site.file("project/musl", program, 0o755);
    // Its group may execute it, and the user is not in it.
    let others = site.file("project/others", "#!/bin/sh\n", 0o010);
    assert!(others.exists());
    Some(site)
}

fn run(site: &Site, path: &str, options: &[&str], command: &[&str]) -> Output {
    let mut run = site.command(site.program());
    run.env("HOME", site.path("home")).env("PATH", path).current_dir(site.path("project"));
    run.args(["run", "--workspace", ".:/work"]).args(options).arg("--").args(command).output().unwrap()
}

/// The flags behind "show it: ", as a shell takes them apart.
fn printed_flags(said: &str) -> Vec<String> {
    let flags = said.lines().find_map(|line| line.strip_prefix("remedy: show it: ")).expect(said);
    let script = format!("printf '%s\\n' {flags}");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_flags_that_are_printed_show_the_program() {
    let Some(site) = site() else { return };
    let home = |names: &[&str]| -> String {
        let names = names.iter().map(|name| site.text(&format!("home/{name}")));
        names.chain(["/usr/bin:/bin".to_owned()]).collect::<Vec<_>>().join(":")
    };
    for (path, command, names) in [
        (home(&[".local/bin"]), "claude", "home/.local/bin/claude"),
        (home(&[".nvm/v20/bin"]), "codex", "home/.nvm/v20/bin/codex"),
        (home(&["none", ""]), "mine", "home/mine"),
        (home(&[""]), "a b'c", "home/a b'c"),
        (home(&[]), &*site.text("home/.local/bin/claude"), "home/.local/bin/claude"),
        (home(&[]), ".venv/bin/python", "home/.pyenv/3.12/bin/python3"),
        (home(&[]), ".venv/bin/python3", "home/.pyenv/3.12/bin/python3"),
        (home(&[]), "./pip", "project/.venv/bin/python"),
    ] {
        let output = run(&site, &path, &[], &[command, "x"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(127), "{command}\n{said}");
        assert!(said.contains(&site.text(names)), "{command}\n{said}");
        let flags = printed_flags(&said);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let output = run(&site, &path, &flags, &[command, "x"]);
        assert!(output.status.success(), "{command} {flags:?}\n{}", stderr(&output));
        // Not the whole home for the sake of one program.
        assert!(!flags.iter().any(|flag| Path::new(flag) == site.path("home")), "{flags:?}");
    }
    let output = run(&site, "", &["--env", "PATH="], &["true"]);
    assert!(stderr(&output).contains("PATH is empty"), "{}", stderr(&output));
}

#[test]
fn what_is_missing_is_named() {
    let Some(site) = site() else { return };
    for (command, code, says) in [
        (&["nosuch-program"][..], 127, &["the host has none in yours", "remedy: install it"][..]),
        (&["cd", "/"], 127, &["`cd` is a command of the shell", "sh -c"]),
        (
            &[".venv/bin/dangling"],
            127,
            &["/work/.venv/bin/dangling is a link to /nowhere/python", "the host has"],
        ),
        (&["./bad"], 127, &["names the interpreter /nowhere/sh", "neither the cell nor the host has"]),
        (&["./musl"], 127, &["/work/musl is built for the loader /lib", "neither the cell nor the host has"]),
        (&["./evil"], 127, &["names the interpreter /x\\u{1b}[2Jy"]),
        (&["./crlf"], 127, &["carriage return", "sed -i"]),
        (&["./data"], 126, &["it is data"]),
        (&["./script"], 126, &["its mode lets nobody execute it", "chmod +x"]),
        (&["."], 126, &["it is a directory"]),
        (&["./others"], 126, &["do not let the run's user execute it"]),
        (&["/etc/passwd"], 126, &["it is data"]),
        (&["/dev/null"], 126, &["it is no regular file"]),
        (&["/tmp/nosuch"], 127, &["neither the cell nor the host has /tmp/nosuch"]),
        (&["./nosuch"], 127, &["/work has no such program"]),
        (&["ls -l"], 127, &["no shell takes the command apart"]),
    ] {
        let output = run(&site, "/usr/bin:/bin", &[], command);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{command:?}\n{said}");
        for says in says {
            assert!(said.contains(says), "{command:?}: {says}\n{said}");
        }
        assert!(!said.contains('\x1b'), "{command:?}");
    }
}

#[test]
fn plan_verify_and_check_miss_it_too() {
    let Some(site) = site() else { return };
    let start = |words: &[&str]| site.command(site.program()).args(words).output().unwrap();
    let output = start(&["plan", "--", "nosuch-program"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).starts_with("cellblock: exec: nosuch-program cannot be executed: ENOENT"));
    assert!(String::from_utf8_lossy(&output.stdout).contains("verified: no"));
    assert_eq!(start(&["plan", "--", "true"]).status.code(), Some(0));
    let output = start(&["plan", "--json", "--", "nosuch-program"]);
    assert_eq!(output.status.code(), Some(127));
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&plan["verified"], &error["error"]["errno"]), (&false.into(), &"ENOENT".into()));
    // What an exposure shows below a hidden directory is there.
    site.file("project/tool", "#!/bin/sh\n", 0o755);
    let (root, project) = (site.text(""), site.text("project"));
    let words = ["--ro-bind", &root, "--hide", &project, "--expose", &site.text("project/.venv")];
    let own = site.text("project/.venv/run");
    site.file("project/.venv/run", "#!/bin/sh\n", 0o755);
    let plan = |program: &str| start(&[&["plan"][..], &words, &["--", program]].concat()).status.code();
    assert_eq!((plan(&own), plan(&site.text("project/tool"))), (Some(0), Some(127)));

    let output = start(&["verify", "--json", "--", "nosuch-program"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let lines = found["lines"].as_array().unwrap();
    let line = lines.iter().find(|line| line["name"] == "command:program").unwrap();
    assert_eq!((&line["object"], &line["verdict"]), (&"nosuch-program".into(), &"broken".into()));

    let output = start(&["policy", "check", "--workspace", "nosuch"]);
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("source-missing: --workspace: this host has no")
    );
    assert_eq!(start(&["policy", "check", "--strict", "--workspace", "nosuch"]).status.code(), Some(1));
}

#[test]
fn a_noexec_mount_is_named() {
    if !skip::has_root() {
        return;
    }
    let Some(site) = Site::new() else { return };
    let place = site.directory("noexec");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    let (uid, gid) = (site.ids.uid, site.ids.gid);
    let script = format!(
        "mount --make-rprivate / && mount -t tmpfs -o noexec,uid={uid} none {place} && cp /bin/true {place}/t && \
         cd {place} && setpriv --reuid {uid} --regid {gid} --clear-groups {program} run --workspace . -- ./t",
        place = place.display(),
        program = site.program().display(),
    );
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(126), "{said}");
    assert!(said.contains("noexec") && !said.contains("chmod"), "{said}");
}
