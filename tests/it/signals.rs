//! Signals between the caller, the launcher and the provider: what is ignored,
//! who ends whom, and who may stop.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::skip;
use crate::user::{User, end, eventually, state, text};

/// Starts a shell that sets things up and becomes the launcher of `provider`;
/// returns when that has said `up`.
fn start(user: &User, set_up: &str, options: &str, provider: &str) -> Child {
    let script = format!("{set_up}; exec ./cellblock run {options} -- sh -c '{provider}'");
    let mut launcher =
        user.command("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(launcher.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "up\n");
    launcher
}

fn send(launcher: &Child, signal: Signal) {
    kill(Pid::from_raw(launcher.id() as i32), signal).expect("a signal");
}

#[test]
fn what_the_caller_ignores_ends_no_run() {
    let Some(user) = User::new() else { return };
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
        let name = signal.as_str().strip_prefix("SIG").expect("a signal's name");
        let provider = "echo up; sleep 0.3; exit 7";
        let mut launcher = start(&user, &format!("trap \"\" {name}"), "", provider);
        send(&launcher, signal);
        assert_eq!(end(&mut launcher).code(), Some(7), "{name}");

        let mut launcher = start(&user, "true", "", "echo up; exec sleep 300");
        send(&launcher, signal);
        assert_eq!(end(&mut launcher).code(), Some(128 + signal as i32), "{name}, which nobody ignores");
    }
}

#[test]
fn a_provider_that_ignores_term_has_its_grace_or_a_second_one() {
    let Some(user) = User::new() else { return };
    let provider = "trap \"echo heard\" TERM; echo up; while :; do sleep 0.1; done";
    user.file("grace.toml", "version = 1\n[cell]\ntimeout_grace = \"300ms\"\n");
    let mut launcher = start(&user, "true", "--policy grace.toml", provider);
    send(&launcher, Signal::SIGTERM);
    assert_eq!(end(&mut launcher).code(), Some(128 + 9));

    user.file("patient.toml", "version = 1\n[cell]\ntimeout_grace = \"1h\"\n");
    let mut launcher = start(&user, "true", "--policy patient.toml", provider);
    send(&launcher, Signal::SIGTERM);
    let mut line = String::new();
    BufReader::new(launcher.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "heard\n");
    send(&launcher, Signal::SIGTERM);
    assert_eq!(end(&mut launcher).code(), Some(128 + 9));
}

#[test]
fn usage_is_counted_though_the_caller_ignores_its_children() {
    let Some(user) = User::new().filter(|_| skip::has_programs(&["python3"])) else { return };
    let script = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])";
    let report = user.path("report").display().to_string();
    let cell =
        user.cell(&["--report", &report], &["sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]);
    let mut python = user.command("python3");
    python.args(["-c", script]).arg(cell.get_program()).args(cell.get_args());
    text(&python.output().expect("it starts"));
    let report = std::fs::read_to_string(report).expect("a report");
    let outcome: serde_json::Value =
        serde_json::from_str(report.lines().last().expect("a line")).expect("JSON");
    assert!(outcome["usage"]["user-seconds"].as_f64().expect("a number") > 0.0, "{outcome}");
    assert!(outcome["usage"]["max-rss-kib"].as_i64().expect("a number") > 0, "{outcome}");
}

/// Runs `$CELL` without a shell that could wake it: on a terminal that is not
/// the launcher's own, in a session of its own.
const ALONE: &str = "
import os, pty, subprocess, sys
master, slave = pty.openpty()
run = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=slave, start_new_session=True)
os.close(slave)
print(run.pid, flush=True)
said = b''
try:
    while True: said += os.read(master, 100)
except OSError: pass
print(run.wait(), said)
";

#[test]
fn a_provider_that_stops_itself_stops_no_launcher_that_nobody_can_wake() {
    let Some(user) = User::new().filter(|_| skip::has_programs(&["python3"])) else { return };
    let cell = user.cell(&[], &["sh", "-c", "kill -STOP $$; echo woken"]);
    let mut python: Command = user.command("python3");
    python.args(["-c", ALONE]).arg(cell.get_program()).args(cell.get_args());
    let said = text(&python.output().expect("it starts"));
    assert!(said.contains("\n0 b'woken"), "{said}");
}

#[test]
fn a_provider_that_has_stopped_hears_term() {
    let Some(user) = User::new() else { return };
    let mut launcher = start(&user, "true", "", "echo up; kill -STOP $$; exec sleep 300");
    let pid = launcher.id() as i32;
    // Without a terminal nobody stops the launcher, and nobody wakes the provider.
    eventually("the launcher waits", || (state(pid) == Some('S')).then_some(()));
    send(&launcher, Signal::SIGTERM);
    assert_eq!(end(&mut launcher).code(), Some(143));
}
