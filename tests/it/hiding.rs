//! How a path is hidden, in every kind of view, whatever the host does
//! meanwhile; and what contradicts it.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cell::{PROBE, text};
use crate::instance::{Instance, VIEWS, View, are_absent};
use crate::long::rounds;
use crate::skip;
use crate::snapshot::{changes, snapshot};
use crate::user;

#[test]
fn a_thousand_siblings_are_as_absent_as_one() {
    const SIBLINGS: usize = 1200;
    let Some(instance) = Instance::new() else { return };
    for number in 0..SIBLINGS {
        for place in ["runs", "data/run-logs", "chan"] {
            instance.directory(&format!("{place}/sibling-{number}"));
        }
        instance.file(&format!("runs/sibling-{number}/session.db"), "another run's\n");
    }
    let inst = instance.text("");
    let script = format!(
        "for name in {inst}runs/* {inst}chan/*; do echo $name; done; cat {inst}runs/sibling-7/* 2>&1"
    );
    let output = instance.run("A", View::ReadOnly, &[], &["sh", "-c", &script]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.lines().filter(|line| line.contains("sibling")).all(|line| line.contains("No such file")),
        "{said}"
    );
}

/// Makes, renames and removes entries of a directory until it is over.
fn churn(instance: &Instance, place: &str, is_over: &AtomicBool) {
    let name = |number: usize| instance.path(&format!("{place}/churn-{number}"));
    for round in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        // Each may find that a former round is in its way.
        let slot = round % 8;
        let _ = fs::create_dir(name(slot));
        let _ = fs::write(name(slot).join("file"), "content");
        let _ = fs::rename(name(slot), name(slot + 10));
        if round % 3 == 0 {
            let _ = fs::remove_dir_all(name(slot + 10));
        }
        let _ = symlink("/etc/passwd", name(slot + 20));
        let _ = fs::remove_file(name(slot + 20));
    }
}

#[test]
fn what_comes_and_goes_meanwhile_does_no_harm() {
    let launches = rounds(20, 100);
    let Some(instance) = Instance::new() else { return };
    let is_over = AtomicBool::new(false);
    let inst = instance.text("");
    let own = instance.text("runs/A");
    let script =
        format!("cat {inst}public/README && cat {own}/notes.md && ls {inst}runs/churn-* {inst}db 2>&1");
    std::thread::scope(|scope| {
        for place in ["runs", "db", "public", "chan", "."] {
            scope.spawn(|| churn(&instance, place, &is_over));
        }
        let wrong: Vec<String> = (0..launches)
            .filter_map(|round| {
                let view = VIEWS[round % VIEWS.len()];
                let output =
                    instance.command("A", view, &[], &["sh", "-c", &script]).output().expect("it starts");
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let errors = String::from_utf8_lossy(&output.stderr).into_owned();
                let wanted = match view {
                    View::None => said.is_empty(),
                    _ => said.starts_with("for every run\na run's notes\n"),
                };
                let leaks =
                    said.lines().any(|line| line.contains("churn-") && !line.contains("runs/churn-*"));
                let is_right =
                    errors.lines().all(|line| !line.starts_with("cellblock: ")) && wanted && !leaks;
                (!is_right).then(|| format!("{view:?}: {}: {said}{errors}", output.status))
            })
            .collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(wrong.is_empty(), "{} of {launches}, the first: {}", wrong.len(), wrong[0]);
    });
}

/// A launch on a host that refuses an overlay of the instance, as something is
/// mounted in it.
fn refused_an_overlay(instance: &Instance, launch: &Command) -> Command {
    let script = "mount -t tmpfs none $0 && echo seen > $0/mounted && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, &instance.text("public/sub")]);
    command.arg(launch.get_program()).args(launch.get_args()).current_dir(instance.root());
    command.stdin(Stdio::null());
    command
}

#[test]
fn where_overlay_is_refused_a_view_of_binds_hides_as_much() {
    let launches = rounds(10, 40);
    if !skip::has_root() {
        return;
    }
    let Some(instance) = Instance::new() else { return };
    let _live = instance.live("B", View::ReadOnly);
    let paths = instance.hidden("A", View::ReadOnly);
    let words = instance.reach_words("A", &paths);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let report = instance.root().join("report");
    let launch = |options: &[&str], command: &[&str]| {
        refused_an_overlay(&instance, &instance.command("A", View::ReadOnly, options, command))
    };
    let output = launch(&["--report", report.to_str().expect("a path")], &words).output().expect("it starts");
    are_absent(&paths, &text(&output), "of binds");
    let report = fs::read_to_string(report).expect("a report");
    assert!(report.contains("built of single binds, as the kernel refuses an overlay"), "{report}");

    let inst = instance.text("");
    let script = format!(
        "cat {inst}public/README {inst}public/sub/mounted {inst}runs/A/notes.md && ls -d {inst}* && \
        cat /proc/self/mountinfo"
    );
    let hidden = ["/db", "/secrets", "/data", "/control-plane", "/inst/chan", "runs/B"];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for place in ["runs", "db", "public", "."] {
            scope.spawn(|| churn(&instance, place, &is_over));
        }
        let wrong: Vec<String> = (0..launches)
            .filter_map(|_| {
                let output = launch(&[], &["sh", "-c", &script]).output().expect("it starts");
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let is_right = output.status.success()
                    && said.starts_with("for every run\nseen\na run's notes\n")
                    && !hidden.iter().any(|name| said.contains(name));
                let errors = String::from_utf8_lossy(&output.stderr);
                (!is_right).then(|| format!("{}: {said}{errors}", output.status))
            })
            .collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(wrong.is_empty(), "{} of {launches}, the first: {}", wrong.len(), wrong[0]);
    });
}

#[test]
fn where_overlay_is_refused_the_system_is_still_there() {
    if !skip::has_root() {
        return;
    }
    let Some(instance) = Instance::new() else { return };
    let words = ["run", "--hide", "/usr/share/doc", "--hide", "/usr/local", "--", "sh", "-c"];
    let launch = instance.as_user(&[&words[..], &["ls -d /usr/share/doc /usr/local; ls /usr"]].concat());
    // In a mount namespace of its own.
    let script = "mount -t tmpfs none /usr/local && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(launch.get_program()).args(launch.get_args());
    let said = text(&command.current_dir(instance.root()).output().expect("it starts"));
    let names: Vec<&str> = said.lines().collect();
    assert!(names.contains(&"bin") && names.contains(&"share") && !names.contains(&"local"), "{said}");
    assert!(!said.contains("/usr/"), "{said}");
}

#[test]
fn what_the_harness_replaces_stays_absent_from_a_read_only_view() {
    let Some(instance) = Instance::new() else { return };
    let (state, db) = (instance.text("control-plane-state.json"), instance.text("db"));
    let script = format!("while read go; do cat {state} {db}/fresh 2> /dev/null || echo none; done");
    let command = instance.command("A", View::ReadOnly, &[], &["sh", "-c", &script]);
    let refused = user::is_root().then(|| refused_an_overlay(&instance, &command));
    for mut command in [command].into_iter().chain(refused) {
        let mut provider = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut said = BufReader::new(provider.stdout.take().expect("a pipe")).lines();
        let mut go = provider.stdin.take().expect("a pipe");
        for round in 0..5 {
            io::Write::write_all(&mut go, b"go\n").expect("it listens");
            assert_eq!(said.next().expect("a line").expect("it speaks"), "none", "round {round}");
            instance.file("new-state", "the harness's\n");
            fs::rename(instance.path("new-state"), &state).expect("renamed");
            fs::rename(&db, instance.path("old-db")).expect("renamed");
            instance.directory("db");
            instance.file("db/fresh", "the harness's\n");
            fs::remove_dir_all(&db).expect("removed");
            fs::rename(instance.path("old-db"), &db).expect("renamed");
            instance.file("db/fresh", "the harness's\n");
        }
        drop(go);
        user::end(&mut provider);
    }
}

#[test]
fn what_is_masked_cannot_be_moved_nor_uncovered() {
    let Some(instance) = Instance::new() else { return };
    let inst = instance.text("public").replace("/public", "");
    let logs = instance.text("data/run-logs");
    let script = format!(
        "cd {inst}; mv -T data moved; mv -T data/run-logs data/moved; rmdir data/run-logs; rm -r data; \
        mkdir data/run-logs; mv -T control-plane-state.json moved; rm -f control-plane-state.json; \
        unshare -Urm sh -c 'mkdir /tmp/m; mount --bind {inst} /tmp/m; umount data/run-logs; \
        mount -o remount,rw,bind data/run-logs; cat /tmp/m/data/run-logs/* data/run-logs/*'; \
        ls data/run-logs; cat control-plane-state.json"
    );
    let state = instance.text("control-plane-state.json");
    let before = snapshot(&instance.path("data"), &[]);
    let report = instance.root().join("report");
    let report = report.to_str().expect("a path");
    for mode in [&[], skip::NESTED] {
        let words = ["run", "--report", report, "--bind", &inst, "--hide", &logs, "--hide", &state];
        let words = [&words[..], mode, &["--", "sh", "-c", &script]].concat();
        let output = instance.as_user(&words).output().expect("it starts");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{mode:?}");
        let evidence = fs::read_to_string(report).expect("a report");
        for name in [&logs, &state] {
            assert!(evidence.contains(&format!("{name}: masked, and its name shows")), "{evidence}");
        }
        // What is not hidden is the run's to remove.
        let kept = |name: &std::path::PathBuf| name.starts_with(&logs);
        let after = snapshot(&instance.path("data"), &[]);
        assert!(before.iter().filter(|(name, _)| kept(name)).eq(after.iter().filter(|(name, _)| kept(name))));
        assert!(fs::read_to_string(&state).expect("it stays").contains("runs"), "{mode:?}");
    }
}

/// A limit: the kernel takes a mount away with the file that it stands on.
#[test]
fn what_the_harness_replaces_is_masked_no_more() {
    let Some(instance) = Instance::new() else { return };
    let state = instance.text("control-plane-state.json");
    let script = format!("while read go; do cat {state}; echo end; done");
    let mut command = instance.command("A", View::Writable, &[], &["sh", "-c", &script]);
    let mut provider = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(provider.stdout.take().expect("a pipe")).lines();
    let mut go = provider.stdin.take().expect("a pipe");
    for wanted in ["end", "the harness's"] {
        io::Write::write_all(&mut go, b"go\n").expect("it listens");
        assert_eq!(said.next().expect("a line").expect("it speaks"), wanted);
        instance.file("new-state", "the harness's\n");
        fs::rename(instance.path("new-state"), &state).expect("renamed");
    }
    drop(go);
    user::end(&mut provider);
}

#[test]
fn a_hidden_path_that_comes_later_stays_absent() {
    let Some(instance) = Instance::new() else { return };
    let later = instance.path("later");
    let view = instance.text("");
    let script = format!("while read go; do ls -d {0} {0}/file 2> /dev/null; echo $?; done", later.display());
    let words = [
        "run",
        "--ro-bind",
        view.trim_end_matches('/'),
        "--hide",
        later.to_str().expect("a path"),
        "--",
        "sh",
        "-c",
        &script,
    ];
    let mut command = instance.as_user(&words);
    let mut provider = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(provider.stdout.take().expect("a pipe"));
    let mut go = provider.stdin.take().expect("a pipe");
    let mut ask = || {
        let mut line = String::new();
        io::Write::write_all(&mut go, b"go\n").expect("it listens");
        said.read_line(&mut line).expect("it speaks");
        line
    };
    assert_eq!(ask(), "2\n");
    instance.directory("later");
    instance.file("later/file", "content\n");
    assert_eq!(ask(), "2\n", "it has appeared");
    drop(go);
    user::end(&mut provider);
}

#[test]
fn a_part_of_the_system_can_be_hidden() {
    let Some(instance) = Instance::new() else { return };
    // The kernel refuses an overlay of what has another mount in it.
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
    if !skip::has("usr-of-one-mount", !mounts.contains(" /usr/")) {
        return;
    }
    let words = [
        "run",
        "--hide",
        "/usr/share/doc",
        "--hide",
        "/usr/bin/env",
        "--",
        "sh",
        "-c",
        "ls -d /usr/share/doc /usr/share/doc/bash /usr/bin/env; ls -d /usr/share/base-files /usr/bin; \
        ls /usr/share | grep -x doc; /usr/bin/env; uname; cat /proc/self/mountinfo",
    ];
    let output = instance.as_user(&words).output().expect("it starts");
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.contains("/usr/bin\n") && said.contains("Linux\n"), "{said}{errors}");
    assert!(!said.contains("/usr/share/doc") && !said.contains("doc\n"), "{said}");
    assert_eq!(errors.matches("No such file or directory").count(), 3, "{errors}");
}

#[test]
fn a_view_is_without_what_is_hidden_wherever_it_stands() {
    let Some(instance) = Instance::new() else { return };
    let (inst, hidden) = (instance.text("public").replace("/public", ""), instance.text("db"));
    let root = instance.root().display().to_string();
    let elsewhere = format!("{inst}:/data");
    let workspace = format!("{inst}:ro");
    // The views, and where they would show what is hidden.
    for (views, places) in [
        (&["--ro-bind", &*elsewhere][..], &["/data/db"][..]),
        (&["--ro-bind", &inst, "--ro-bind", &elsewhere], &["/data/db", &hidden]),
        (&["--ro-bind", &root, "--ro-bind", &inst], &[&hidden]),
        (&["--ro-bind", &root, "--ro-bind", &elsewhere], &["/data/db", &hidden]),
        (&["--workspace", &workspace], &["/work/db"]),
    ] {
        let script = format!("ls -d {} 2> /dev/null; cat /proc/self/mountinfo", places.join(" "));
        let words = [&["run", "--hide", &hidden][..], views, &["--", "sh", "-c", &script]].concat();
        let output = instance.as_user(&words).output().expect("it starts");
        let said = text(&output);
        assert!(!said.contains("/db\n") && !said.contains("/db "), "{views:?}: {said}");
    }
}

#[test]
fn a_socket_of_a_view_works_where_it_is_bound_beside_the_overlay() {
    let Some(instance) = Instance::new() else { return };
    let socket = instance.path("public/service.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    instance.own(&socket);
    let (inst, hidden) = (instance.text("public").replace("/public", ""), instance.text("db"));
    let socket = socket.display().to_string();
    let probe = format!("{}:{PROBE}", instance.root().join("bin/probe").display());
    let words = ["run", "--ro-bind", &probe, "--ro-bind", &inst, "--ro-bind", &socket, "--hide", &hidden];
    let words = [&words[..], &["--", PROBE, "reach", "/tmp", &socket]].concat();
    let said = text(&instance.as_user(&words).output().expect("it starts"));
    assert!(said.contains("\tconnect\tok\n"), "{said}");
    drop(listener);
}

#[test]
fn what_is_to_be_created_is_made_for_the_run_alone() {
    let Some(instance) = Instance::new() else { return };
    let inst = instance.text("public").replace("/public", "");
    let policy = instance.root().join("create.toml");
    let content = format!(
        "version = 1\n[filesystem]\nro_bind = [\"{inst}\"]\n[run]\nhide = [\"{inst}/runs\", \"{inst}/db\"]\n\
        expose = [{{ path = \"{inst}/runs/new/state\", create = true }}, \
        {{ path = \"{inst}/runs/new.ndjson\", kind = \"file\", create = true }}]\n\
        create = [\"{inst}/public/shared/deep\"]\n"
    );
    fs::write(&policy, content).expect("a policy can be written");
    let script = format!(
        "echo a > {inst}/runs/new/state/a && echo b >> {inst}/runs/new.ndjson && ls -d {inst}/public/shared/deep"
    );
    let owner = fs::metadata(instance.path("runs/A")).expect("facts").uid();
    let policy = policy.to_str().expect("a path");
    let ids = format!("{0}:{0}", instance.ground.user().uid);
    let by_root = user::is_root().then(|| {
        let mut by_root = Command::new(instance.root().join("bin/cellblock"));
        by_root.args(["run", "--run-as", &ids, "--policy", policy, "--", "sh", "-c", &script]);
        by_root
    });
    let launches = [instance.as_user(&["run", "--policy", policy, "--", "sh", "-c", &script])];
    for mut launch in launches.into_iter().chain(by_root) {
        let said = text(&launch.output().expect("it starts"));
        assert_eq!(said, format!("{inst}/public/shared/deep\n"));
        for (name, mode) in [
            ("runs/new", 0o40700),
            ("runs/new/state", 0o40700),
            ("runs/new.ndjson", 0o100600),
            ("public/shared", 0o40700),
            ("public/shared/deep", 0o40700),
        ] {
            let facts = fs::symlink_metadata(instance.path(name)).expect("it is made");
            assert_eq!((facts.mode(), facts.uid()), (mode, owner), "{name}: {:o}", facts.mode());
        }
        fs::remove_dir_all(instance.path("runs/new")).expect("removed");
        fs::remove_dir_all(instance.path("public/shared")).expect("removed");
        fs::remove_file(instance.path("runs/new.ndjson")).expect("removed");
    }
}

/// Contradictions. `{i}` stands for the instance and `{r}` for what is above it.
const MISTAKES: &[(&str, &[&str])] = &[
    ("--hide {i}/latest", &["{i}/latest is reached through a symbolic link", "remedy: hide {i}/runs/B"]),
    ("--hide {i}/latest/notes.md", &["through a symbolic link", "remedy: hide {i}/runs/B/notes.md"]),
    ("--hide {i}/dangling", &["{i}/dangling is reached through a symbolic link", "remedy: hide the path of"]),
    ("--hide /", &["`/` is the whole host", "remedy: name a path below it"]),
    ("--hide {i}/../x", &["holds `..`", "remedy: write the path without `..`"]),
    ("--hide db/../x", &["`db/../x` holds `..`", "remedy: write the path without `..`"]),
    ("--hide /proc/cpuinfo", &["/proc/cpuinfo is the cell's own", "remedy: "]),
    ("--hide /dev/null", &["/dev/null is the cell's own", "remedy: "]),
    (
        "--ro-bind {i} --hide {i}/runs --expose {i}/runs",
        &[
            "the exposure {i}/runs reveals {i}/runs",
            "cause: that is hidden (--hide)",
            "remedy: name only what lies below",
        ],
    ),
    (
        "--hide {i}/runs/B --expose {i}/runs",
        &["the exposure {i}/runs reveals {i}/runs/B", "cause: that is hidden (--hide)", "remedy: "],
    ),
    (
        "--hide {i}/runs/B --expose {i}",
        &["the exposure {i} reveals {i}/runs/B", "cause: that is hidden (--hide)", "remedy: "],
    ),
    (
        "--ro-bind {i} --hide {i}/db --expose {i}/runs/A",
        &["the exposure {i}/runs/A is visible already", "cause: the view of {i} (--ro-bind)", "remedy: "],
    ),
    (
        "--ro-bind {i} --expose {i}/runs/A",
        &[
            "the exposure {i}/runs/A is visible already",
            "cause: the view of {i} (--ro-bind) shows it",
            "remedy: ",
        ],
    ),
    (
        "--bind {i}:/data --expose {i}/runs/A",
        &[
            "the exposure {i}/runs/A is visible already",
            "cause: the view of {i} (--bind) shows it",
            "remedy: ",
        ],
    ),
    (
        "--workspace {i} --expose {i}/runs/A",
        &["the exposure {i}/runs/A is visible already", "cause: the view of {i} (--workspace)", "remedy: "],
    ),
    (
        "--expose /usr/share",
        &["the exposure /usr/share is visible already", "cause: /usr of the system", "remedy: "],
    ),
    (
        "--ro-bind {i} --hide {i}/runs --expose {i}/runs/C",
        &[
            "{i}/runs/C does not exist",
            "remedy: make it before the run, or write `create = true` in a policy file",
        ],
    ),
    (
        "--hide {i}/runs --ro-bind {i}/runs/B",
        &["{i}/runs/B is hidden", "{i}/runs (--hide)", "remedy: expose it"],
    ),
    ("--hide {i}/runs --bind {i}/runs/B:/data", &["{i}/runs/B is hidden", "remedy: expose it"]),
    ("--hide {i}/runs --ro-bind {i}/runs", &["{i}/runs is hidden", "remedy: expose it"]),
    ("--hide {i} --ro-bind {i}/public", &["{i}/public is hidden", "remedy: expose it"]),
    ("--hide {i}/runs --workspace {i}/runs", &["the workspace {i}/runs reveals {i}/runs", "remedy: "]),
    ("--hide {r}/chan/A --channel {r}/chan", &["the channel {r}/chan reveals {r}/chan/A", "remedy: "]),
    ("--hide {r}/chan/A --channel {r}/chan/A", &["the channel {r}/chan/A reveals {r}/chan/A", "remedy: "]),
    (
        "--bind {i} --hide {i}/none",
        &[
            "{i}/none cannot be masked in the writable view {i}",
            "remedy: make it on the host first, or show {i} read-only: --bind makes it writable",
        ],
    ),
    (
        "--bind {i} --hide {i}/db/none",
        &["{i}/db/none cannot be masked in the writable view {i}", "remedy: make it on the host first"],
    ),
    (
        "--workspace {i} --hide {i}/none",
        &["{i}/none cannot be masked in the writable view /work", "remedy: make it on the host first"],
    ),
];

#[test]
fn nothing_counts_what_is_hidden_in_a_directory() {
    let Some(user) = user::User::new() else { return };
    for name in ["inst/deep/x/y", "inst/s1", "inst/s2", "inst/s3", "inst/deep/s4"] {
        user.directory(name);
    }
    let inst = user.path("inst").display().to_string();
    // Sizes, links, inode numbers, and how much of its file system each is.
    let script =
        format!("cd {inst} && stat -c '%s %h %i %b' . deep deep/x && stat -f -c '%c %d %b %f' . deep");
    let told = |hidden: &[&str]| {
        let hidden = hidden.iter().flat_map(|name| ["--hide".to_owned(), format!("{inst}/{name}")]);
        let options: Vec<String> = ["--ro-bind".to_owned(), inst.clone()].into_iter().chain(hidden).collect();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        user::text(&user.script(&options, &script).output().expect("it starts"))
    };
    let few = told(&["deep/x/y"]);
    assert_eq!(told(&["deep/x/y", "s1", "s2", "s3", "deep/s4", "deep/x/absent"]), few);
}

#[test]
fn a_scope_that_contradicts_itself_is_refused_with_its_rule() {
    let Some(instance) = Instance::new() else { return };
    symlink("nowhere", instance.path("dangling")).expect("symlink");
    let (inst, root) =
        (instance.text("public").replace("/public", ""), instance.root().display().to_string());
    // What would be made, were the launch to go on: in a view of its own.
    instance.directory("../seen");
    instance.directory("../seen/hidden");
    let policy = instance.root().join("made.toml");
    let content = format!(
        "version = 1\n[filesystem]\nro_bind = [\"{root}/seen\"]\n[run]\nhide = [\"{root}/seen/hidden\"]\n\
        expose = [{{ path = \"{root}/seen/hidden/made\", create = true }}]\ncreate = [\"{root}/seen/made\"]\n"
    );
    fs::write(&policy, content).expect("a policy can be written");
    let policy = policy.to_str().expect("a path");
    let mark = instance.text("public/mark");
    let mut before = snapshot(instance.root(), &[]);
    let mut wrong = Vec::new();
    for (options, says) in MISTAKES {
        let fill = |text: &str| text.replace("{i}", &inst).replace("{r}", &root);
        // Some are about there being no rule at all.
        let with = if options.contains("--hide") { &["run", "--policy", policy][..] } else { &["run"] };
        let options = fill(options);
        let words: Vec<&str> =
            with.iter().copied().chain(options.split(' ')).chain(["--", "touch", &mark]).collect();
        let output = instance.as_user(&words).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        let is_said = says.iter().all(|words| said.contains(&fill(words)));
        let begins = said.starts_with("cellblock: policy: --");
        if output.status.code() != Some(125) || !is_said || !begins {
            wrong.push(format!("{options}: {}: wanted {says:?}\n{said}", output.status));
        }
        let after = snapshot(instance.root(), &[]);
        wrong.extend(changes(&before, &after).into_iter().map(|change| format!("{options}: {change}")));
        before = after;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
