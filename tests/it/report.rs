//! `--report` and `--json-status-fd`: what they say, that it is true, and that
//! the last line is there however a run ends.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cellblock::launch::status::StatusLine;
use cellblock::report::ReportLine;
use jsonschema::Validator;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::long::rounds;
use crate::site::Site;
use crate::skip;

/// A run that is over, as its two witnesses tell it.
struct Told {
    exit: Option<i32>,
    status: Vec<Value>,
    report: Vec<Value>,
}

impl Told {
    fn outcome(&self) -> &Value {
        self.report.last().expect("a last line")
    }
}

fn lines(text: &str, schema: &Validator) -> Vec<Value> {
    assert!(text.ends_with('\n'), "{text}");
    let lines = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).expect(line);
        if let Err(error) = schema.validate(&line) {
            panic!("{error}: {line}");
        }
        line
    });
    lines.collect()
}

fn report_schema() -> Validator {
    let schema = schemars::schema_for!(ReportLine);
    jsonschema::validator_for(schema.as_value()).unwrap()
}

fn status_schema() -> Validator {
    let schema = schemars::schema_for!(StatusLine);
    jsonschema::validator_for(schema.as_value()).unwrap()
}

/// Reads both witnesses of a run whose status went to its standard output.
fn told(site: &Site, exit: Option<i32>, status: &[u8]) -> Told {
    let report = fs::read_to_string(site.path("reports/r.jsonl")).expect("a report");
    let status = lines(std::str::from_utf8(status).unwrap(), &status_schema());
    let report = lines(&report, &report_schema());
    let last = status.last().expect("a last line");
    let outcome = report.last().expect("a last line");
    assert_eq!(last["event"], "exit");
    assert_eq!(outcome["event"], "outcome");
    for member in ["outcome", "exit-code", "signal", "retryable"] {
        assert_eq!(last[member], outcome[member], "{member}");
    }
    assert_eq!(outcome["exit-code"], json!(exit));
    assert!(outcome["wall-seconds"].as_f64().unwrap() > 0.0);
    let left = fs::read_dir(site.path("reports")).unwrap().count();
    assert_eq!(left, 1, "a temporary file is left");
    Told { exit, status, report }
}

fn start(site: &Site, options: &[&str], command: &[&str]) -> Command {
    let mut start = site.command(site.program());
    let report = site.text("reports/r.jsonl");
    start.args(["run", "--json-status-fd", "1", "--report", &report]).args(options).arg("--").args(command);
    start
}

fn run(site: &Site, options: &[&str], command: &[&str]) -> Told {
    let output = start(site, options, command).output().unwrap();
    told(site, output.status.code(), &output.stdout)
}

fn site() -> Option<Site> {
    let site = Site::new()?;
    site.directory("reports");
    site.directory("own");
    Some(site)
}

/// The value and the source of one member of the evidence.
fn member<'a>(told: &'a Told, layer: &str, name: &str) -> (&'a Value, &'a str) {
    let evidence = told.report[2]["evidence"].as_array().unwrap();
    let found = evidence.iter().find(|member| member["layer"] == layer && member["name"] == name);
    let found = found.unwrap_or_else(|| panic!("{layer} {name} is missing"));
    (&found["value"], found["source"].as_str().unwrap())
}

#[test]
fn a_report_is_whole_when_the_provider_ends_at_once() {
    let Some(site) = site() else { return };
    let sum = site.beside("sha256sum", &["/usr/bin/true"]).unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    let sum = sum.split_whitespace().next().unwrap();
    let size = fs::metadata("/usr/bin/true").unwrap().size();
    let script = "\"$@\" | sha256sum";
    let plan = site.beside(
        "sh",
        &[
            "-c",
            script,
            "sh",
            site.program().to_str().unwrap(),
            "plan",
            "--json",
            "--expose",
            "own",
            "--",
            "true",
        ],
    );
    let plan = String::from_utf8(plan.unwrap().stdout).unwrap();
    let digest = plan.split_whitespace().next().unwrap();

    for _ in 0..rounds(5, 50) {
        let told = run(&site, &["--expose", "own"], &["true"]);
        let events: Vec<&Value> = told.report.iter().map(|line| &line["event"]).collect();
        assert_eq!(events, ["plan", "provider", "applied", "outcome"]);
        let events: Vec<&Value> = told.status.iter().map(|line| &line["event"]).collect();
        assert_eq!(events, ["plan", "setup", "exec", "exit"]);
        assert!(told.status[1]["child-pid"].as_i64().unwrap() > 1);

        assert_eq!(told.report[0]["digest"], digest);
        assert_eq!(told.report[0]["mode"], "sealed");
        assert_eq!(told.report[0]["waived"], json!([]));
        assert_eq!(told.report[1]["path"], "/usr/bin/true");
        assert_eq!(told.report[1]["size"], size);
        assert_eq!(told.report[1]["sha256"], sum);
        assert_eq!(told.outcome()["outcome"], "exited");
        assert_eq!(told.outcome()["code"], 0);
        assert_eq!(told.outcome()["error"], Value::Null);
        assert!(told.outcome()["usage"]["max-rss-kib"].as_i64().unwrap() > 0);
    }
    let mode = fs::metadata(site.path("reports/r.jsonl")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
}

#[test]
fn every_member_of_the_evidence_has_its_source() {
    let Some(site) = site() else { return };
    let id = format!("{0} {0} {0} {0}", site.ids.uid);
    let map = json!([site.ids.uid.to_string(), site.ids.uid.to_string(), "1"]);
    let told = run(&site, &["--env", "A=b"], &["true"]);
    let none = "0000000000000000";
    for (layer, name, value, source) in [
        ("namespaces", "uid_map", map, "kernel"),
        ("credentials", "Uid", json!(id), "kernel"),
        ("credentials", "CapInh", json!(none), "kernel"),
        ("credentials", "CapPrm", json!(none), "kernel"),
        ("credentials", "CapEff", json!(none), "kernel"),
        ("credentials", "CapBnd", json!(none), "kernel"),
        ("credentials", "CapAmb", json!(none), "kernel"),
        ("credentials", "NoNewPrivs", json!("1"), "kernel"),
        ("seccomp", "Seccomp", json!("2"), "kernel"),
        ("seccomp", "filter", json!("provider"), "installed"),
        ("landlock", "list /", json!("EACCES"), "probed"),
    ] {
        assert_eq!(member(&told, layer, name), (&value, source), "{layer} {name}");
    }
    for namespace in ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"] {
        let (value, source) = member(&told, "namespaces", namespace);
        let own = fs::read_link(format!("/proc/self/ns/{namespace}")).unwrap();
        assert_ne!(value.as_str(), own.to_str(), "{namespace} is the host's");
        assert_eq!(source, "kernel");
    }
    let (mounts, source) = member(&told, "mounts", "mountinfo");
    let mounts: Vec<&str> = mounts.as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    assert_eq!(source, "kernel");
    for place in [" / / ro,", " /usr ro,", " /proc ", " /tmp "] {
        assert!(mounts.iter().any(|line| line.contains(place)), "{place}");
    }
    let (open, source) = member(&told, "descriptors", "open");
    let open: Vec<&str> = open.as_object().unwrap().keys().map(|fd| &**fd).collect();
    assert_eq!((&*open, source), (&["0", "1", "2"][..], "kernel"));
    let (names, source) = member(&told, "environment", "names");
    assert!(names.as_array().unwrap().contains(&json!("A")), "{names}");
    assert!(!told.report[2].to_string().contains("A=b"), "a value is told");
    assert_eq!(source, "installed");
    let (rules, source) = member(&told, "landlock", "rules");
    // One for each of /dev, /dev/mqueue, /dev/shm, /etc, the home, /proc, /tmp and /usr; more where
    // the system has directories beside /usr.
    assert!(rules.as_u64().unwrap() >= 8, "{rules}");
    assert_eq!(source, "installed");
}

#[test]
fn what_was_left_out_stands_in_the_report() {
    let Some(site) = site() else { return };
    let options = ["--without", "landlock", "--without", "seccomp", "--net", "host"];
    let told = run(&site, &options, &["true"]);
    let waived = json!([
        { "layer": "landlock", "reason": "without" },
        { "layer": "seccomp", "reason": "without" },
    ]);
    assert_eq!(told.report[0]["waived"], waived);
    let evidence = told.report[2]["evidence"].as_array().unwrap();
    assert!(evidence.iter().all(|member| member["layer"] != "landlock"));
    assert_eq!(member(&told, "seccomp", "Seccomp").0, "0");
    assert!(evidence.iter().all(|member| member["name"] != "net"));
}

#[test]
fn however_a_run_ends_the_last_line_tells_it() {
    let Some(site) = site() else { return };
    let sh = |script: &'static str| ["sh", "-c", script];
    for (options, command, exit, outcome, code, signal) in [
        (&[][..], &sh("exit 3")[..], 3, "exited", json!(3), json!(null)),
        (&[], &sh("exit 125"), 125, "exited", json!(125), json!(null)),
        (&[], &sh("kill -KILL $$"), 137, "signaled", json!(null), json!(9)),
        (&[], &sh("kill -SYS $$"), 159, "seccomp-killed", json!(null), json!(31)),
        (&["--timeout", "300ms"], &["sleep", "60"], 124, "timed-out", json!(null), json!(15)),
        (&[], &["none"], 127, "exec-failed", json!(null), json!(null)),
        (&[], &["/etc/passwd"], 126, "exec-failed", json!(null), json!(null)),
        (&["--chdir", "/none"], &["true"], 125, "setup-failed", json!(null), json!(null)),
        (&["--bind", "none"], &["true"], 125, "setup-failed", json!(null), json!(null)),
        (&["--pass-fd", "99"], &["true"], 125, "setup-failed", json!(null), json!(null)),
    ] {
        let told = run(&site, options, command);
        assert_eq!(told.exit, Some(exit), "{command:?}");
        let last = told.outcome();
        assert_eq!(last["outcome"], outcome, "{command:?}");
        assert_eq!(last["code"], code, "{command:?}");
        assert_eq!(last["signal"], signal, "{command:?}");
        let failed = outcome.ends_with("-failed");
        assert_eq!(last["error"].is_object(), failed, "{command:?} {last}");
        let executed = told.status.iter().any(|line| line["event"] == "exec");
        assert_eq!(executed, !failed, "{command:?}");
    }
}

#[test]
fn a_run_that_is_told_to_end_is_canceled() {
    let Some(site) = site() else { return };
    let script = "touch own/started; exec sleep 60";
    let mut start = start(&site, &["--expose", "own", "--chdir", &site.text("")], &["sh", "-c", script]);
    let child = start.stdout(Stdio::piped()).spawn().unwrap();
    wait_for(|| site.path("own/started").exists());
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = told(&site, output.status.code(), &output.stdout);
    assert_eq!(told.exit, Some(128 + 15));
    assert_eq!(told.outcome()["outcome"], "canceled");
    assert_eq!(told.outcome()["signal"], 15);
}

#[test]
fn a_report_takes_its_place_when_it_is_whole() {
    let Some(site) = site() else { return };
    let place = site.file("reports/r.jsonl", "{\"version\":1,\"event\":\"plan\"}\n", 0o644);
    let script = "touch own/started; while test -e own/started; do sleep 0.01; done";
    let mut start = start(&site, &["--expose", "own", "--chdir", &site.text("")], &["sh", "-c", script]);
    let child = start.stdout(Stdio::piped()).spawn().unwrap();
    wait_for(|| site.path("own/started").exists());
    // The former one would stand for this run, should the launcher be killed.
    assert!(!place.exists());
    fs::remove_file(site.path("own/started")).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = told(&site, output.status.code(), &output.stdout);
    assert_eq!(told.outcome()["outcome"], "exited");
}

#[test]
fn names_that_others_have_taken_keep_no_report_from_its_place() {
    let Some(site) = site() else { return };
    let run = start(&site, &[], &["true"]);
    // The name that a launcher of this pid would take, if it took one by its pid.
    let script = "touch reports/.cellblock-report.$$; exec \"$@\"";
    let mut shell = site.command("sh");
    shell.args(["-c", script, "sh"]).arg(run.get_program()).args(run.get_args());
    let output = shell.current_dir(site.root()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report = fs::read_to_string(site.path("reports/r.jsonl")).unwrap();
    assert_eq!(lines(&report, &report_schema()).last().unwrap()["outcome"], "exited");
}

#[test]
fn a_program_that_takes_long_to_hash_keeps_neither_time_nor_signals() {
    let Some(site) = site() else { return };
    // Just small enough to be hashed, and without a block of data.
    let program = site.file("own/large", "#!/bin/sh\n", 0o755);
    fs::File::options().write(true).open(&program).unwrap().set_len(1 << 30).unwrap();
    let options = ["--expose", "own", "--timeout", "100ms"];
    let timed = run(&site, &options, &[&site.text("own/large")]);
    assert_eq!((timed.exit, &timed.outcome()["outcome"]), (Some(124), &json!("timed-out")));
    assert_eq!(timed.report[1]["sha256"], Value::Null, "{:?}", timed.report[1]);

    let mut start = start(&site, &["--expose", "own"], &[&site.text("own/large")]);
    let child = start.stdout(Stdio::piped()).spawn().unwrap();
    let launcher = Pid::from_raw(child.id() as i32);
    // It has the program open for as long as it hashes it.
    let is_open = |entry: std::io::Result<fs::DirEntry>| {
        fs::read_link(entry.unwrap().path()).is_ok_and(|to| to.ends_with("own/large"))
    };
    let descriptors = format!("/proc/{launcher}/fd");
    wait_for(|| fs::read_dir(&descriptors).is_ok_and(|mut entries| entries.any(is_open)));
    kill(launcher, Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = told(&site, output.status.code(), &output.stdout);
    assert_eq!((told.exit, &told.outcome()["outcome"]), (Some(143), &json!("canceled")));
    assert_eq!(told.report[1]["sha256"], Value::Null, "{:?}", told.report[1]);
}

#[test]
fn root_reports_on_the_user_it_names() {
    if !skip::has_root() {
        return;
    }
    let Some(site) = site() else { return };
    let id = site.ids.uid;
    let mut start = Command::new(site.program());
    let report = site.text("reports/r.jsonl");
    start.args(["run", "--json-status-fd", "1", "--report", &report]).args([
        "--run-as",
        &format!("{id}:{id}"),
        "--",
        "id",
        "-u",
    ]);
    let output = start.stdin(Stdio::null()).output().unwrap();
    let status: Vec<u8> = output
        .stdout
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| line.starts_with(b"{"))
        .flatten()
        .copied()
        .collect();
    let told = told(&site, output.status.code(), &status);
    let uid = format!("{id} {id} {id} {id}");
    assert_eq!(member(&told, "credentials", "Uid"), (&json!(uid), "kernel"));
    assert_eq!(member(&told, "credentials", "Groups").0, "");
    let (uid, gid) = (site.ids.uid, site.ids.gid);
    let owner = fs::metadata(report).unwrap();
    assert_ne!((owner.uid(), owner.gid()), (uid, gid), "the provider's user owns it");
}

#[test]
fn the_schemas_refuse_what_is_no_line() {
    let (report, status) = (report_schema(), status_schema());
    for wrong in [
        json!({ "version": 1 }),
        json!({ "version": 1, "event": "none" }),
        json!({ "version": 1, "event": "outcome", "outcome": "well" }),
        json!({ "event": "exit", "exit-code": 0, "outcome": "exited", "retryable": false }),
    ] {
        assert!(!report.is_valid(&wrong), "{wrong}");
        assert!(!status.is_valid(&wrong), "{wrong}");
    }
}

fn wait_for(what: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(10);
    while !what() {
        assert!(Instant::now() < limit, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
