//! `verify` and `run --verify`: each planted hole is found and named, on the
//! real kernel, and a sound cell is called sound.

use std::fs;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use cellblock::report::ReportLine;
use cellblock::verify::Document;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use serde_json::{Value, json};

use crate::cell::Ground;
use crate::site::{Site, stderr};
use crate::skip;
use crate::user::eventually;

/// A site with this run's state, another's, a tool and a secret.
fn site() -> Option<Site> {
    let site = Site::new()?;
    for name in ["runs", "runs/a", "runs/b", "tool", "secrets", "reports", "elsewhere"] {
        site.directory(name);
    }
    site.file("runs/b/session.db", "b", 0o644);
    site.file("secrets/key", "k", 0o644);
    site.file("tool/program", "#!/bin/sh\n", 0o755);
    Some(site)
}

/// What `verify --json` says.
fn document(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let document: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{}", stderr(output)));
    let schema = schemars::schema_for!(Document);
    let schema = jsonschema::validator_for(schema.as_value()).unwrap();
    if let Err(error) = schema.validate(&document) {
        panic!("{error}: {document}");
    }
    assert_eq!(output.status.code(), Some(i32::from(document["sound"] != true)), "{document:#}");
    document
}

fn verify(site: &Site, options: &[&str]) -> Value {
    let mut command = site.command(site.program());
    document(&command.args(["verify", "--json"]).args(options).output().unwrap())
}

/// The lines of a verdict, as `name object`.
fn of(document: &Value, verdict: &str) -> Vec<String> {
    let lines = document["lines"].as_array().unwrap().iter();
    let lines = lines.filter(|line| line["verdict"] == verdict);
    lines.map(|line| format!("{} {}", line["name"], line["object"]).replace('"', "")).collect()
}

/// The wrong lines are exactly these.
#[track_caller]
fn wrong(document: &Value, expected: &[&str]) {
    let found = [of(document, "leak"), of(document, "broken")].concat();
    assert_eq!(found, expected, "{document:#}");
}

/// The line has this verdict.
#[track_caller]
fn has(document: &Value, verdict: &str, line: &str) {
    let found = of(document, verdict);
    assert!(found.iter().any(|found| found == line), "{line} is not {verdict}: {document:#}");
}

#[test]
fn a_sound_cell_is_sound() {
    let Some(ground) = Ground::new() else { return };
    let policy = ground.policy();
    let program = ground.run_words::<&str>(&[], [])[0].clone();
    let words = [&program, "verify", "--json", "--policy", policy.to_str().unwrap()].map(str::to_owned);
    // From a parent without anything to hide: its groups cannot be dropped.
    let found = document(&ground.beside(words));
    assert_eq!(found["sound"], true);
    wrong(&found, &[]);
    let names = of(&found, "ok");
    for name in [
        "run:sibling",
        "run:exposure-readable",
        "run:exposure-writable",
        "channel:fifo-write",
        "channel:fifo-read",
        "channel:lock-read",
        "channel:read-only",
        "channel:executable",
        "workspace:read-only",
        "harness:tcp",
        "harness:udp",
        "harness:abstract-socket",
        "harness:shared-memory",
        "harness:message-queue",
        "harness:cmdline",
        "init:hidden",
        "landlock:root-listing",
        "seccomp:refused-call",
        "seccomp:user-namespace",
        "seccomp:mode",
        "namespace:net",
        "credentials:capabilities",
        "mounts:procfs",
        "environment:value",
        "descriptors:inherited",
    ] {
        assert!(names.iter().any(|line| line.starts_with(name)), "{name} is not ok: {found:#}");
    }
    let limits = of(&found, "known-limit");
    assert!(limits.iter().any(|line| line.starts_with("kernel:boot-id")), "{limits:?}");
}

#[test]
fn without_a_policy_the_demos_fixture_is_tested() {
    let Some(site) = Site::new() else { return };
    let found = verify(&site, &[]);
    wrong(&found, &[]);
    let names = of(&found, "ok");
    for name in [
        "run:other-durable-session",
        "run:run-log",
        "run:pg-wal",
        "run:control-plane-state",
        "run:secret",
        "harness:process",
        "harness:cmdline",
        "harness:environment",
        "harness:socket",
    ] {
        assert!(names.iter().any(|line| line.starts_with(name)), "{name} is not ok: {found:#}");
    }
}

#[test]
fn the_demo_shows_what_is_reached_outside_and_denied_inside() {
    let Some(site) = Site::new() else { return };
    let demo = |options: &[&str]| {
        let output = site.command(site.program()).arg("demo").args(options).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output))
    };
    let (code, text) = demo(&[]);
    assert_eq!(code, Some(0), "{text}");
    let denied: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.contains("outside  "))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .collect();
    assert!(denied.len() > 15, "{text}");
    for line in denied {
        let is_reached = ["works", "there", "entries"].iter().any(|word| line.contains(word));
        assert!(line.contains('✓') && is_reached, "{line}");
    }
    let (code, text) = demo(&["--without", "network"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("✗ harness:tcp") && text.contains("Without network"), "{text}");
    let (code, text) = demo(&["--without", "landlock", "--without", "seccomp"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("✓ run:secret ") && text.contains("Without landlock, seccomp"), "{text}");
}

#[test]
fn root_verifies_as_the_user_it_names() {
    if !skip::has_root() {
        return;
    }
    let Some(site) = site() else { return };
    let run_as = format!("{0}:{0}", site.ids.uid);
    for options in [&["--expose", "runs/a"][..], &[]] {
        let mut command = Command::new(site.program());
        command.args(["verify", "--json", "--run-as", &run_as]).args(options);
        let found = document(&command.current_dir(site.root()).stdin(Stdio::null()).output().unwrap());
        wrong(&found, &[]);
        has(&found, "ok", "credentials:groups supplementary groups");
    }
}

#[test]
fn a_layer_that_is_off_is_named() {
    let Some(site) = site() else { return };
    let expose = ["--expose", "runs/a"];
    wrong(
        &verify(&site, &[&expose[..], &["--without", "seccomp"]].concat()),
        &[
            "seccomp:refused-call pidfd_getfd",
            "layer:seccomp seccomp",
            "seccomp:mode Seccomp",
            "seccomp:filters Seccomp_filters",
        ],
    );
    wrong(
        &verify(&site, &[&expose[..], &["--without", "landlock"]].concat()),
        &["landlock:root-listing /", "layer:landlock landlock"],
    );
    if !skip::has_scopes() {
        return;
    }
    for options in [&["--net", "host"][..], &["--without", "network"]] {
        let found = verify(&site, &[&expose[..], options].concat());
        let leaks = of(&found, "leak");
        for name in ["harness:tcp", "harness:udp", "namespace:net"] {
            assert!(leaks.iter().any(|line| line.starts_with(name)), "{name}: {leaks:?}");
        }
        assert_eq!(leaks.iter().any(|line| line == "layer:network network"), options[0] == "--without");
    }
}

#[test]
fn a_parent_that_is_exposed_shows_the_other_runs() {
    let Some(site) = site() else { return };
    let other = site.text("runs/b/session.db");
    let found = verify(&site, &["--expose", "runs", "--canary", &other]);
    let line = format!("canary:path {other}");
    wrong(&found, &[&line, &line]);
    let found = verify(&site, &["--expose", "runs/a", "--canary", &other]);
    wrong(&found, &[]);
    has(&found, "ok", &line);
    has(&found, "ok", &format!("run:sibling {}", site.text("runs/b")));
}

#[test]
fn two_runs_at_once_find_nothing_of_each_other() {
    let Some(site) = site() else { return };
    let mut other = site.command(site.program());
    let script = "echo a > \"$0\"/state; touch \"$0\"/started; exec sleep 60";
    other.args([
        "run",
        "--expose",
        "runs/a",
        "--timeout",
        "50s",
        "--",
        "sh",
        "-c",
        script,
        &site.text("runs/a"),
    ]);
    let mut other = other.spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(20);
    while !site.path("runs/a/started").exists() {
        assert!(Instant::now() < limit, "the other run does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    let state = site.text("runs/a/state");
    let found = verify(&site, &["--expose", "runs/b", "--canary", &state]);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(other.id() as i32), nix::sys::signal::SIGTERM).unwrap();
    other.wait().unwrap();
    wrong(&found, &[]);
    has(&found, "ok", &format!("canary:path {state}"));
    has(&found, "ok", &format!("run:sibling {}", site.text("runs/a")));
    has(&found, "ok", "harness:processes /proc");
}

/// Runs `script`, and then `verify` with these options, where it may mount.
fn mounted(site: &Site, script: &str, options: &str) -> Value {
    let (uid, gid) = (site.ids.uid, site.ids.gid);
    let script = format!(
        "set -e; {script}; exec unshare --user --map-user={uid} --map-group={gid} \
         ./cellblock verify --json {options}"
    );
    let mut command = site.command("/usr/bin/unshare");
    let output = command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).output();
    document(&output.unwrap())
}

#[test]
fn a_second_path_to_what_is_hidden_is_found() {
    let Some(site) = site() else { return };
    site.directory("tool/in");
    let found = mounted(&site, "mount --bind secrets tool/in", "--ro-bind tool:/opt/tool --hide secrets");
    let secrets = site.text("secrets");
    wrong(&found, &[&format!("run:hidden {secrets}, at /opt/tool/in")]);
    has(&found, "ok", &format!("run:hidden {secrets}"));

    // The runs beside this one, by an alias of what holds them.
    let found = mounted(&site, "mount --bind runs tool/in", "--ro-bind tool:/opt/tool --expose runs/a");
    wrong(&found, &[&format!("run:sibling {}, at /opt/tool/in/b", site.text("runs/b"))]);
}

#[test]
fn a_second_procfs_is_found() {
    let Some(site) = site() else { return };
    site.directory("tool/p");
    let found = mounted(&site, "mount --rbind /proc tool/p", "--ro-bind tool:/opt/tool");
    has(&found, "leak", "mounts:procfs /opt/tool/p");
}

#[test]
fn a_descriptor_that_rides_in_is_found() {
    let Some(site) = site() else { return };
    let verify = |redirect: &str| {
        let script = format!("exec ./cellblock verify --json --pass-fd 5 {redirect}");
        document(&site.beside("/bin/sh", &["-c", &script]).unwrap())
    };
    wrong(&verify("5<secrets/key"), &["descriptors:inherited 5"]);
    let found = document(
        &site
            .beside("/bin/sh", &["-c", "true | ./cellblock verify --json --pass-fd 5 5<&0 <&-  0</dev/null"])
            .unwrap(),
    );
    wrong(&found, &[]);
    has(&found, "known-limit", "descriptors:inherited 5");

    let (socket, _other) = UnixStream::pair().unwrap();
    fcntl(socket.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let number = socket.as_raw_fd().to_string();
    let mut command = site.command(site.program());
    let output = command.args(["verify", "--json", "--pass-fd", &number]).output().unwrap();
    wrong(&document(&output), &[&format!("descriptors:inherited {number}")]);
}

#[test]
fn a_variable_that_tells_is_found() {
    let Some(site) = site() else { return };
    let (secrets, own) = (site.text("secrets/key"), site.text("runs/a/log"));
    let with = |variable: &str, value: &str, options: &[&str]| {
        let mut command = site.command(site.program());
        command.env(variable, value).current_dir(site.path("elsewhere"));
        command.args(
            ["verify", "--json", "--expose", "../runs/a", "--env", variable]
                .iter()
                .map(|word| word.replace("../runs/a", &site.text("runs/a"))),
        );
        document(&command.args(options).output().unwrap())
    };
    let (runs, hidden) = (site.text("runs"), site.text("secrets"));
    let hide = ["--hide", &*hidden, "--hide", &*runs];
    wrong(&with("WHERE", &format!("file://{secrets}"), &hide), &["environment:value WHERE"]);
    wrong(
        &with("WHERE", &format!("/usr/bin:{secrets}"), &["--canary", &secrets]),
        &["environment:value WHERE"],
    );
    wrong(&with("WHERE", &site.text("elsewhere"), &[]), &["environment:value WHERE"]);
    // A view of what is around it shows the rest alone; one in its place shows its own.
    let around = ["--ro-bind", &*hidden, "--hide", &*secrets, "--hide", &*runs];
    wrong(&with("WHERE", &secrets, &around), &["environment:value WHERE"]);
    let other = format!("{}:{hidden}", site.text("tool"));
    wrong(&with("WHERE", &secrets, &["--ro-bind", &other, "--hide", &hidden, "--hide", &runs]), &[]);
    wrong(&with("WHERE", &own, &hide), &[]);
    wrong(&with("GITHUB_TOKEN", "x", &[]), &["environment:secret GITHUB_TOKEN"]);
    let found = with("ANTHROPIC_API_KEY", "x", &[]);
    wrong(&found, &[]);
    has(&found, "known-limit", "environment:secret ANTHROPIC_API_KEY");
}

#[test]
fn a_socket_in_a_view_is_found() {
    let Some(site) = site() else { return };
    let path = site.path("tool/agent.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    site.own(&path);
    let found = verify(&site, &["--ro-bind", &format!("{}:/opt/tool", site.text("tool"))]);
    wrong(&found, &["view:socket /opt/tool/agent.sock"]);
    let bind = format!("{}:/run/agent.sock", path.display());
    wrong(&verify(&site, &["--ro-bind", &bind]), &["view:socket /run/agent.sock"]);

    // Renamed, it is known to the kernel by another path than it has.
    fs::rename(&path, site.path("tool/other.sock")).unwrap();
    let found = verify(&site, &["--ro-bind", &format!("{}:/opt/tool", site.text("tool"))]);
    wrong(&found, &["view:socket /opt/tool/other.sock"]);
}

#[test]
fn canaries_that_sing_are_found() {
    let Some(site) = site() else { return };
    let key = site.text("secrets/key");
    let line = format!("canary:path {key}");
    wrong(&verify(&site, &["--ro-bind", "secrets", "--canary", &key]), &[&line, &line]);
    wrong(&verify(&site, &["--canary", "secrets/key"]), &[]);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let line = format!("canary:port 127.0.0.1:{port}");
    has(&verify(&site, &["--canary", &port]), "ok", &line);
    if skip::has_scopes() {
        has(&verify(&site, &["--net", "host", "--canary", &port]), "leak", &line);
    }
}

#[test]
fn what_a_replaceable_channel_cannot_hold_is_a_known_limit() {
    let Some(site) = site() else { return };
    site.directory("channel");
    site.file("channel/lock", "", 0o600);
    site.fifo("channel/fifo");
    let policy =
        "version = 1\n[channel]\ndir = 'channel'\nfifo = ['fifo']\nlock = ['lock']\nreplaceable = true\n";
    site.file("p.toml", policy, 0o644);
    let found = verify(&site, &["--policy", "p.toml"]);
    wrong(&found, &[]);
    has(&found, "known-limit", &format!("channel:fifo-read {}", site.text("channel/fifo")));
    has(&found, "known-limit", &format!("channel:lock-read {}", site.text("channel/lock")));
    has(&found, "ok", &format!("channel:lock-write {}", site.text("channel/lock")));
}

#[test]
fn what_cannot_be_tested_is_wrong_where_that_is_asked_for() {
    let Some(site) = site() else { return };
    let missing = site.text("none");
    let found = verify(&site, &["--canary", &missing]);
    assert_eq!(of(&found, "untestable"), [format!("canary:path {missing}")]);
    assert_eq!(found["sound"], true);
    assert_eq!(verify(&site, &["--canary", &missing, "--strict"])["sound"], false);
    assert_eq!(verify(&site, &["--expose", "runs/a", "--strict"])["sound"], true);
    // A run says so, as the canary may be mistyped.
    let mut command = site.command(site.program());
    let output = command.args(["run", "--verify", "--canary", &missing, "--", "true"]).output().unwrap();
    assert!(output.status.success());
    let said = format!("cellblock: canary:path {missing} was not tested: ");
    assert!(stderr(&output).starts_with(&said), "{}", stderr(&output));
}

#[test]
fn a_grant_that_does_not_work_is_broken() {
    let Some(site) = site() else { return };
    fs::set_permissions(site.path("runs/a"), fs::Permissions::from_mode(0o500)).unwrap();
    let found = verify(&site, &["--expose", "runs/a"]);
    wrong(&found, &[&format!("run:exposure-writable {}", site.text("runs/a"))]);
    has(&found, "broken", &format!("run:exposure-writable {}", site.text("runs/a")));
}

#[test]
fn groups_that_stay_are_a_known_limit() {
    if !skip::has_root() {
        return;
    }
    let Some(site) = site() else { return };
    let id = site.ids.uid.to_string();
    let mut command = Command::new("/usr/bin/setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--groups", &format!("{id},61234")]);
    command.arg(site.program()).args(["verify", "--json"]).current_dir(site.root()).stdin(Stdio::null());
    let found = document(&command.output().unwrap());
    wrong(&found, &[]);
    has(&found, "known-limit", "credentials:groups supplementary groups");
}

#[test]
fn what_nested_mode_does_not_hold_is_a_known_limit() {
    let Some(ground) = Ground::new().filter(|_| skip::has_scopes()) else { return };
    let policy = ground.policy();
    let program = ground.run_words::<&str>(&[], [])[0].clone();
    let words = [&program, "verify", "--json", "--mode", "nested", "--policy", policy.to_str().unwrap()]
        .map(str::to_owned);
    let found = document(&ground.beside(words));
    wrong(&found, &[]);
    has(&found, "known-limit", &format!("channel:lock-read {}", ground.fixture.get("LOCK")));
    has(&found, "known-limit", &format!("channel:fifo-read {}", ground.fixture.get("FIFO")));
    has(&found, "ok", "nested:user-namespace unshare");
}

/// Kills at kill(2), which only the tester calls before exec.
const KILLS: &str = r#"{"main": {"mismatch_action": "allow", "match_action": "kill_process",
    "filter": [{"syscall": "kill"}]}}"#;

#[test]
fn a_filter_that_kills_does_not_end_the_test() {
    let Some(site) = site() else { return };
    site.file("kills.json", KILLS, 0o644);
    let found = verify(&site, &["--seccomp", "./kills.json", "--expose", "runs/a"]);
    wrong(&found, &[]);
    let lines = found["lines"].as_array().unwrap();
    let killed = lines.iter().filter(|line| line["seen"] == "killed by signal 31");
    assert_eq!(killed.count(), 2, "{found:#}");
    has(&found, "ok", "seccomp:user-namespace unshare");
}

#[test]
fn a_run_with_a_leak_does_not_start() {
    let Some(site) = site().filter(|_| skip::has_scopes()) else { return };
    let run = |options: &[&str]| {
        let mut command = site.command(site.program());
        command.args(["run", "--verify", "--json-status-fd", "1", "--report", "reports/r.jsonl"]);
        command.args(["--expose", "runs/a"]).args(options);
        command.args(["--", "touch", &site.text("runs/a/ran")]).output().unwrap()
    };
    let schema = schemars::schema_for!(ReportLine);
    let schema = jsonschema::validator_for(schema.as_value()).unwrap();
    let report = || -> Vec<Value> {
        let text = fs::read_to_string(site.path("reports/r.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.inspect(|line| schema.validate(line).unwrap()).collect()
    };

    let output = run(&["--net", "host"]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{told}");
    assert!(!site.path("runs/a/ran").exists());
    for name in ["leak: harness:tcp 127.0.0.1:", "leak: harness:udp 127.0.0.1:", "leak: namespace:net "] {
        assert!(told.contains(name), "{told}");
    }
    let status = String::from_utf8_lossy(&output.stdout).into_owned();
    let last: Value = serde_json::from_str(status.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["outcome"]), (&json!("exit"), &json!("leak-found")));
    assert_eq!((&last["retryable"], &last["exit-code"]), (&json!(false), &json!(125)));
    assert!(!status.contains("\"exec\""), "{status}");
    let lines = report();
    let events: Vec<&Value> = lines.iter().map(|line| &line["event"]).collect();
    assert_eq!(events, ["plan", "provider", "applied", "verified", "outcome"]);
    assert_eq!(lines[3]["sound"], false);
    assert_eq!(lines[4]["outcome"], "leak-found");

    let output = run(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(site.path("runs/a/ran").exists());
    let lines = report();
    assert_eq!((&lines[3]["event"], &lines[3]["sound"]), (&json!("verified"), &json!(true)));
    assert_eq!(lines[4]["outcome"], "exited");
}

#[test]
fn nothing_of_the_test_stays() {
    let Some(site) = site() else { return };
    let script = "ls /proc/self/fd; ls -d /proc/[0-9]*; ls -A \"$0\"";
    let own = site.text("runs/a");
    let run = |verify: &[&str]| {
        let mut command = site.command(site.program());
        command.arg("run").args(verify).args(["--expose", "runs/a", "--", "sh", "-c", script, &own]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        // The numbers of processes go on from the tester's.
        String::from_utf8(output.stdout).unwrap().lines().count()
    };
    assert_eq!(run(&["--verify"]), run(&[]));
    // Nothing was made, and removed again, where it was granted.
    let changed = || fs::metadata(&own).unwrap().modified().unwrap();
    let before = changed();
    verify(&site, &["--expose", "runs/a", "--", "touch", &site.text("runs/a/ran")]);
    assert_eq!(changed(), before);

    let mut command = site.command(site.program());
    let mut launcher = command.args(["run", "--verify", "--", "true"]).spawn().unwrap();
    let pid = launcher.id().to_string();
    assert!(launcher.wait().unwrap().success());
    // key shmid perms size cpid …; other tests, and other programs, have theirs.
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let is_the_launchers = |line: &&str| line.split_ascii_whitespace().nth(4) == Some(&pid);
    assert_eq!(table.lines().find(is_the_launchers), None);
}

#[test]
fn a_launcher_that_is_killed_leaves_no_segment_and_no_queue() {
    let Some(site) = site() else { return };
    let mut killed = Vec::new();
    for milliseconds in 0..12 {
        let mut launcher = site.command(site.program()).arg("verify").stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        let _ = launcher.kill();
        launcher.wait().unwrap();
        killed.push(launcher.id().to_string());
    }
    // key shmid perms size cpid …; a cell may still be ending with its launcher.
    let is_left =
        |line: &str| line.split_ascii_whitespace().nth(4).is_some_and(|pid| killed.contains(&pid.to_owned()));
    let segments = || fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    eventually("segments go", || (!segments().lines().any(is_left)).then_some(()));
    // Other tests have queues too, which go with them.
    let queues = || {
        let names =
            fs::read_dir("/dev/mqueue").into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("cellblock-")).collect::<Vec<_>>()
    };
    let left = queues();
    eventually("queues go", || (!queues().iter().any(|name| left.contains(name))).then_some(()));
}

#[test]
fn a_reader_of_the_channel_is_not_told_of_the_test() {
    let Some(site) = site() else { return };
    site.directory("channel");
    let fifo = site.fifo("channel/activity.fifo");
    site.file("p.toml", "version = 1\n[channel]\ndir = 'channel'\nfifo = ['activity.fifo']\n", 0o644);
    let mut options = fs::File::options();
    let reader = options.read(true).custom_flags(libc::O_NONBLOCK).open(fifo).unwrap();
    let has_had_a_writer = || {
        let mut fds = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, 0u16).unwrap() > 0
    };
    let run = |command: &[&str]| {
        let mut run = site.command(site.program());
        let output =
            run.args(["run", "--verify", "--policy", "p.toml", "--"]).args(command).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    };
    run(&["true"]);
    assert!(!has_had_a_writer());
    run(&["sh", "-c", &format!("echo > {}", site.text("channel/activity.fifo"))]);
    assert!(has_had_a_writer());
}

#[test]
fn a_cell_that_cannot_be_built_is_neither_sound_nor_leaking() {
    let Some(site) = site() else { return };
    for words in [
        &["verify", "--ro-bind", "none"][..],
        &["verify", "--chdir", "/none"],
        &["verify", "--policy", "none.toml"],
        &["verify", "--pass-fd", "77"],
        // Without the test a canary would say nothing.
        &["run", "--canary", "secrets/key", "--", "true"],
    ] {
        let output = site.command(site.program()).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

/// A process of the user's that listens on a socket, until it is dropped.
struct Listener(std::process::Child);

impl Listener {
    /// Binds it in `directory` to `name`, which may be relative, and not text.
    fn new(site: &Site, directory: &str, name: &str) -> Listener {
        let script = "import os,socket,sys; s=socket.socket(socket.AF_UNIX); \
                      s.bind(eval(sys.argv[1])); s.listen(); print(flush=True); sys.stdin.read()";
        let mut command = site.command("/usr/bin/python3");
        command.args(["-c", script, name]).current_dir(site.path(directory));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = [0; 1];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        Listener(child)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn a_socket_is_found_however_it_was_bound() {
    let Some(site) = site().filter(|_| skip::has_programs(&["python3"])) else { return };
    let deep = "tool/d/e/f";
    let long = format!("tool/{}/{}", "n".repeat(60), "m".repeat(60));
    for path in ["tool/d", "tool/d/e", deep, long.rsplit_once('/').unwrap().0, &long] {
        site.directory(path);
    }
    // More than is looked at by itself.
    for number in 0..40 {
        site.directory(&format!("tool/a{number}"));
    }
    std::os::unix::fs::symlink("tool", site.path("link")).unwrap();
    let tool = format!("{}:/opt/tool", site.text("tool"));
    let found = |line: &str| wrong(&verify(&site, &["--ro-bind", &tool]), &[line]);
    {
        let _relative = Listener::new(&site, deep, "'r.sock'");
        found("view:socket /opt/tool/d/e/f/r.sock");
    }
    fs::remove_file(site.path("tool/d/e/f/r.sock")).unwrap();
    {
        let _by_link = Listener::new(&site, ".", &format!("'{}/l.sock'", site.text("link/d/e/f")));
        // A name that is no text must not hide the others.
        let _other = Listener::new(&site, ".", r"b'\0cellblock-\xff\xfe'");
        found("view:socket /opt/tool/d/e/f/l.sock");
    }
    fs::remove_file(site.path("tool/d/e/f/l.sock")).unwrap();
    let _long = Listener::new(&site, &long, "'s'");
    let found = verify(&site, &["--ro-bind", &site.text(&long)]);
    wrong(&found, &[&format!("view:socket {}", site.text(&format!("{long}/s")))]);
}

#[test]
fn a_socket_that_the_kernel_does_not_tell_of_is_found_below_a_view() {
    let Some(site) = site().filter(|_| skip::has_programs(&["python3"])) else { return };
    site.directory("tool/in");
    // In a network namespace of its own, as a container has.
    let path = site.text("tool/in/x.sock");
    let script = format!(
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.bind('{path}'); s.listen(); \
         print(flush=True); sys.stdin.read()"
    );
    let mut command = site.command("/usr/bin/unshare");
    command.args(["--user", "--net", "python3", "-c", &script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let found = verify(&site, &["--ro-bind", &format!("{}:/opt/tool", site.text("tool"))]);
    drop(child.stdin.take());
    child.wait().unwrap();
    wrong(&found, &["view:socket /opt/tool/in/x.sock"]);
}

#[test]
fn a_second_path_to_a_part_of_what_is_hidden_is_found() {
    let Some(site) = site() else { return };
    for name in ["tool/in", "secrets/db", "runs/b/state", "runs/a/x", "runs/a/y"] {
        site.directory(name);
    }
    let secrets = site.text("secrets");
    let line = format!("run:hidden {secrets}, at /opt/tool/in");
    let options = "--ro-bind tool:/opt/tool --hide secrets";
    wrong(&mounted(&site, "mount --bind secrets/db tool/in", options), &[&line]);
    // The kernel tells of mounts by names that need not be text.
    let script =
        "n=$(printf 'elsewhere/\\377'); mkdir \"$n\"; mount -t tmpfs t \"$n\"; mount --bind secrets tool/in";
    wrong(&mounted(&site, script, options), &[&line]);
    // Another file system that has its place there.
    let script = "mount -t tmpfs t secrets/db; touch secrets/db/f; mount --bind secrets/db tool/in";
    wrong(&mounted(&site, script, options), &[&line]);

    let line = format!("run:sibling {}, at /opt/tool/in", site.text("runs/b"));
    let found =
        mounted(&site, "mount --bind runs/b/state tool/in", "--ro-bind tool:/opt/tool --expose runs/a");
    wrong(&found, &[&line]);
    // A view that the policy names is granted, as it would be by the neighbour's own name.
    let found =
        mounted(&site, "mount --bind runs/b/state tool/in", "--ro-bind tool/in:/opt/in --expose runs/a");
    wrong(&found, &[]);
    // A part of what is granted is no part of what is hidden.
    wrong(&mounted(&site, "mount --bind runs/a/x runs/a/y", "--hide runs --expose runs/a"), &[]);
}

#[test]
fn another_way_to_what_is_protected_is_found() {
    let Some(site) = site() else { return };
    for name in ["work", "work/.codex", "tool/in"] {
        site.directory(name);
    }
    // Below a view, where only the mount table tells of it.
    let found = mounted(&site, "mount --bind work tool/in", "--workspace work:/work --bind tool:/opt/e");
    wrong(&found, &["workspace:protected /opt/e/in/.codex"]);
    has(&found, "ok", "workspace:protected /work/.codex");
}

#[test]
fn another_way_to_the_channel_is_found() {
    let Some(site) = site() else { return };
    site.directory("channel");
    site.file("channel/lock", "", 0o600);
    site.file("channel/about", "", 0o600);
    site.file("channel/other", "", 0o600);
    site.fifo("channel/fifo");
    let policy =
        "version = 1\n[channel]\ndir = 'channel'\nfifo = ['fifo']\nlock = ['lock']\nread_only = ['about']\n";
    site.file("p.toml", policy, 0o644);
    let lock = format!("{}:/opt/lock", site.text("channel/lock"));
    let found = verify(&site, &["--policy", "p.toml", "--ro-bind", &lock]);
    wrong(&found, &["channel:lock-read /opt/lock"]);
    let found = mounted(&site, "mount --bind channel elsewhere", "--policy p.toml --bind elsewhere:/opt/e");
    let lines = [
        "fifo-read /opt/e/fifo",
        "lock-read /opt/e/lock",
        "lock-write /opt/e/lock",
        "read-only /opt/e/about",
    ];
    wrong(&found, &lines.map(|line| format!("channel:{line}")).each_ref().map(|line| &**line));

    // Landlock holds what is granted to nobody, and nested mode has none.
    let line = format!("channel:ungranted {}", site.text("channel/other"));
    let found = verify(&site, &["--policy", "p.toml"]);
    wrong(&found, &[]);
    has(&found, "ok", &line);
    if skip::has_scopes() {
        wrong(&verify(&site, &["--policy", "p.toml", "--mode", "nested"]), &[&line]);
    }
}

#[test]
fn a_canary_is_found_by_whatever_name_it_is_given() {
    let Some(site) = site() else { return };
    std::os::unix::fs::symlink("secrets", site.path("link")).unwrap();
    std::os::unix::fs::symlink("secrets/key", site.path("key")).unwrap();
    let view = format!("{}:/opt/s", site.text("secrets"));
    let line = format!("canary:path {}, at /opt/s/key", site.text("secrets/key"));
    let name = site.root().file_name().unwrap().to_str().unwrap();
    for canary in ["link/key", "key", &format!("../{name}/secrets/key"), "./secrets//key"] {
        wrong(&verify(&site, &["--ro-bind", &view, "--canary", canary]), &[&line]);
    }
    // A view of a part of it.
    let view = format!("{}:/opt/key", site.text("secrets/key"));
    let line =
        format!("canary:path {}, of it {}, at /opt/key", site.text("secrets"), site.text("secrets/key"));
    wrong(&verify(&site, &["--ro-bind", &view, "--canary", "secrets"]), &[&line]);
    // A number that is no port is looked for by nobody.
    for canary in ["0", "65536", "/"] {
        let output = site.command(site.program()).args(["verify", "--canary", canary]).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0), "{canary}");
    }
}

#[test]
fn what_a_former_run_leaves_is_no_leak() {
    let Some(site) = site() else { return };
    site.directory("work");
    let fifo = site.fifo("work/.envrc");
    let run = || wrong(&verify(&site, &["--workspace", "work"]), &[]);
    run();
    fs::remove_file(&fifo).unwrap();
    drop(UnixListener::bind(&fifo).unwrap());
    site.own(&fifo);
    run();
}

#[test]
fn a_program_that_runs_is_no_leak() {
    let Some(site) = site() else { return };
    let program = site.path("tool/program");
    fs::copy("/usr/bin/sleep", &program).unwrap();
    site.own(&program);
    let mut child = site.command(&program).arg("60").spawn().unwrap();
    let view = format!("{}:/opt/program", program.display());
    let (read, write) = (verify(&site, &["--ro-bind", &view]), verify(&site, &["--bind", &view]));
    child.kill().unwrap();
    child.wait().unwrap();
    wrong(&read, &[]);
    has(&read, "ok", "view:read-only /opt/program");
    wrong(&write, &[]);
}

#[test]
fn a_view_at_the_place_of_neighbours_is_no_leak() {
    let Some(site) = site() else { return };
    site.directory("tool/a");
    for name in ["b", "c", "d", "e"] {
        site.file(&format!("tool/{name}"), "", 0o644);
    }
    let view = format!("{}:{}", site.text("tool"), site.text("runs"));
    let found = verify(&site, &["--expose", "runs/a", "--ro-bind", &view]);
    wrong(&found, &[]);
    has(&found, "ok", &format!("run:sibling {}", site.text("runs/b")));
}

#[test]
fn the_cells_own_home_may_be_named() {
    let Some(site) = site() else { return };
    wrong(&verify(&site, &["--hide", "/home"]), &[]);
    wrong(&verify(&site, &["--canary", "/home", "--canary", "/tmp"]), &[]);
    let value = format!("WHERE=/opt|{}", site.text("secrets"));
    wrong(&verify(&site, &["--hide", "secrets", "--env", &value]), &["environment:value WHERE"]);
}

#[test]
fn a_name_that_is_no_text_is_tested() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let Some(site) = site() else { return };
    let view = [site.path("tool").as_os_str().as_bytes(), b":/opt/\xff"].concat();
    let mut command = site.command(site.program());
    command.args(["verify", "--json", "--ro-bind"]).arg(OsStr::from_bytes(&view));
    wrong(&document(&command.output().unwrap()), &[]);
    let mut command = site.command(site.program());
    command.args(["run", "--report", "reports/r", "--ro-bind"]).arg(OsStr::from_bytes(&view));
    let output = command.args(["--", "true"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_filter_that_stops_the_question_is_no_answer() {
    let Some(site) = site() else { return };
    // The view is a leak that nobody can see by this call.
    let filter = KILLS.replace("\"kill\"", "\"newfstatat\"");
    site.file("kills.json", &filter, 0o644);
    site.file("refuses.json", filter.replace("\"kill_process\"", "{\"errno\": 1}"), 0o644);
    let view = format!("{}:/opt/s", site.text("secrets"));
    let key = site.text("secrets/key");
    let line = format!("canary:path {key}, at /opt/s/key");
    for filter in ["./kills.json", "./refuses.json"] {
        let found = verify(&site, &["--seccomp", filter, "--ro-bind", &view, "--canary", &key]);
        has(&found, "untestable", &line);
    }
}

#[test]
fn the_status_cannot_be_passed_on_by_another_number() {
    let Some(site) = site() else { return };
    for (redirect, code) in [("5>s 6>&5", 125), ("5>s 6>t", 0), ("5>/dev/null 6>&5", 0)] {
        let script = format!("exec ./cellblock run --json-status-fd 5 --pass-fd 6 -- true {redirect}");
        let output = site.beside("/bin/sh", &["-c", &script]).unwrap();
        assert_eq!(output.status.code(), Some(code), "{redirect}: {}", stderr(&output));
    }
    let script = "{ ./cellblock run --json-status-fd 5 --pass-fd 6 -- true 5>&1 6>&1; echo $?; } | tail -n 1";
    let output = site.beside("/bin/sh", &["-c", script]).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "125\n", "{}", stderr(&output));
}

#[test]
fn a_run_with_many_leaks_ends_though_nobody_listens() {
    let Some(site) = site() else { return };
    let listeners: Vec<UnixListener> = (0..400)
        .map(|number| {
            let path = site.path(&format!("tool/{number}.sock"));
            let listener = UnixListener::bind(&path).unwrap();
            site.own(&path);
            listener
        })
        .collect();
    let view = format!("{}:/opt/{}", site.text("tool"), "t".repeat(200));
    let mut command = site.command(site.program());
    command.args(["run", "--verify", "--ro-bind", &view, "--", "true"]).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(20);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > limit => {
                child.kill().unwrap();
                panic!("it waits for a reader");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    drop(listeners);
    let told = stderr(&child.wait_with_output().unwrap());
    assert_eq!(status.code(), Some(125), "{told}");
    assert!(told.contains("400 of ") && told.contains(" more\n"), "{told}");
}

#[test]
fn the_hosts_message_queues_in_a_view_are_found() {
    let Some(site) = site() else { return };
    site.directory("tool/in");
    let (uid, gid) = (site.ids.uid, site.ids.gid);
    let script = format!(
        "mount -t mqueue queues tool/in && exec unshare --user --map-user={uid} --map-group={gid} \
         ./cellblock verify --json --ro-bind tool:/opt/tool"
    );
    let mut command = site.command("/usr/bin/unshare");
    command.args(["--user", "--map-root-user", "--mount", "--ipc", "sh", "-c", &script]);
    let found = document(&command.output().unwrap());
    let leaks = of(&found, "leak");
    let is_queue = |line: &String| {
        line.starts_with("harness:message-queue ") && line.contains(", at /opt/tool/in/cellblock-")
    };
    assert!(leaks.len() == 1 && leaks.iter().all(is_queue), "{found:#}");
}

#[test]
fn a_name_that_a_terminal_would_obey_is_shown() {
    let Some(site) = site() else { return };
    // A canary that is not there cannot be tried, and so has a line of its own.
    let names = ["\u{1b}[2J", "a\nok", "\u{202e}ko"].map(|name| format!("runs/{name}"));
    let canaries = names.iter().flat_map(|name| ["--canary", name]);
    let output = site.command(site.program()).args(["verify", "--expose", "runs/a"]).args(canaries).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(text.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'), "{text}");
    for shown in ["/\\u{1b}[2J\n", "/a\\nok\n", "/\\u{202e}ko\n"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
}

#[test]
fn a_launcher_that_is_told_to_end_leaves_nothing() {
    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, socket,
    };
    let Some(site) = site() else { return };
    // A port that does not answer, as nobody accepts and its queue is full.
    let server = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(server.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    listen(&server, Backlog::new(0).unwrap()).unwrap();
    let port = getsockname::<SockaddrIn>(server.as_raw_fd()).unwrap().port();
    let _first = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let port = port.to_string();
    let mut command = site.command(site.program());
    // With a flag of the cell: what is told to end leaves the demo's fixture behind.
    command.args(["verify", "--hostname", "cell"]);
    command.args(["--canary", &port].repeat(20)).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(400));
    assert!(child.try_wait().unwrap().is_none(), "the port answers");
    let pid = child.id();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::SIGTERM).unwrap();
    child.wait().unwrap();
    // key shmid perms size cpid …
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let is_left = |line: &str| line.split_ascii_whitespace().nth(4) == Some(&pid.to_string());
    assert!(!table.lines().any(is_left), "{table}");
}

/// Only what the named warning explains, and only as long as it stays a leak.
#[test]
fn a_leak_is_accepted_by_the_name_of_its_warning() {
    let Some(site) = site() else { return };
    let expose = ["--expose", "runs/a"];
    let with = |options: &[&str]| verify(&site, &[&expose[..], options].concat());
    let found = with(&["--net", "host", "--accept", "host-network"]);
    wrong(&found, &[]);
    let accepted = of(&found, "accepted");
    for name in ["harness:tcp", "harness:udp", "namespace:net"] {
        assert!(accepted.iter().any(|line| line.starts_with(name)), "{name}: {accepted:?}");
    }
    let found = with(&["--without", "landlock", "--accept", "layer-off"]);
    wrong(&found, &[]);
    has(&found, "accepted", "landlock:root-listing /");
    // Another name, another layer, and what the caller says must not be reached.
    let found = with(&["--net", "host", "--accept", "layer-off"]);
    assert!(of(&found, "leak").iter().any(|line| line.starts_with("harness:tcp")), "{found:?}");
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = port.local_addr().map(|address| (port, address.port())).unwrap();
    let found = with(&["--net", "host", "--accept", "host-network", "--canary", &port.1.to_string()]);
    has(&found, "leak", &format!("canary:port 127.0.0.1:{}", port.1));
    // A run that is tested starts, and tells in its report what was accepted.
    let mut command = site.command(site.program());
    command.args(["run", "--verify", "--report", "reports/r.jsonl", "--net", "host"]);
    let output = command.args(["--accept", "host-network", "--", "true"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report = fs::read_to_string(site.path("reports/r.jsonl")).unwrap();
    assert!(report.contains("\"verdict\":\"accepted\"") && report.contains("\"sound\":true"), "{report}");
}

#[test]
fn a_missing_hidden_path_is_accepted_by_name_under_strict() {
    let Some(site) = site() else { return };
    let strict = |options: &[&str]| {
        let mut command = site.command(site.program());
        command.args(["verify", "--strict", "--hide", "nowhere"]).args(options);
        command.output().unwrap().status.code()
    };
    assert_eq!(strict(&[]), Some(1));
    assert_eq!(strict(&["--accept", "hidden-missing"]), Some(0));
}
