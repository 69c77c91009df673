//! What goes through the standard streams and what the launcher says itself:
//! all of it, to its reader alone, and never at the price of the run.

use std::fs::File;
use std::io::{self, IoSliceMut, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::skip::has;
use crate::user::{self, User, end, eventually, text};

/// A shell of the user's; `CELL` in its script is `cellblock run`.
fn shell(user: &User, script: &str) -> Command {
    let cell = format!("{} run", user.path("cellblock").display());
    let mut command = user.command("bash");
    command.args(["-c", &script.replace("CELL", &cell)]);
    command
}

fn said(user: &User, script: &str) -> String {
    text(&shell(user, script).output().expect("bash"))
}

#[test]
fn a_provider_cannot_choose_where_its_caller_reads_on() {
    let Some(user) = User::new() else { return };
    user.file("lines", "one\ntwo\nthree\n");
    // It takes what it was given, and writes as much as it likes in its place.
    let claims = |bytes: usize| {
        let forge = "dd bs=64k count=1 of=/dev/null 2> /dev/null; printf %s \"$0\" > /proc/self/fd/0";
        let claim = "x".repeat(bytes);
        let run = format!("CELL -- sh -c '{forge}' '{claim}'");
        said(&user, &format!("while read line; do echo \"<$line>\"; {run}; done < lines"))
    };
    for bytes in [0, 1, 4, 9, 11, 14, 17, 4000] {
        assert_eq!(claims(bytes), "<one>\n", "{bytes} bytes");
    }
    // As if it had read nothing; for the second run it is too much.
    assert_eq!(claims(10), "<one>\n<two>\n");

    user.file("big", vec![b'x'; 1 << 20]);
    let left = |run: &str| said(&user, &format!("{{ {run}; cat; }} < big | wc -c")).trim().to_owned();
    assert_eq!(left("CELL -- head -c 1 > /dev/null"), "0");
    assert_eq!(left("CELL -- head -c 300000 > /dev/null"), "0");
    assert_eq!(left("CELL -- true"), "1048576");
    // The provider has not run.
    assert_eq!(left("CELL -- no-such-program 2> /dev/null"), "1048576");
    assert_eq!(left("CELL --timeout 200ms -- sleep 60 2> /dev/null"), "1048576");
}

/// A pipe that takes nothing more.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().expect("pipe");
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("fcntl");
    while writer.write(&[b'x'; 4096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).expect("fcntl");
    (reader, writer)
}

/// Starts a run whose status goes to `status`.
fn with_status(user: &User, status: PipeWriter, options: &[&str], command: &[&str]) -> Command {
    let number = status.as_raw_fd().to_string();
    let mut run = user.cell(&[options, &["--json-status-fd", &number]].concat(), command);
    user::keep(&mut run, status.into());
    run
}

#[test]
fn a_reader_that_does_not_read_keeps_nobody() {
    let Some(user) = User::new() else { return };
    let waits = ["sh", "-c", "echo up; exec sleep 300"];
    for timeout in [true, false] {
        // More is said than a pipe takes.
        let options = ["-vv", "--without", "seccomp", "--timeout", if timeout { "300ms" } else { "300s" }];
        let (stderr, writer) = full_pipe();
        let mut run = user.cell(&options, &waits);
        let mut run = run.stderr(writer).stdout(Stdio::piped()).spawn().expect("a launch");
        ends(&mut run, timeout, if timeout { 124 } else { 143 });
        drop(stderr);

        let (status, writer) = full_pipe();
        let mut run = with_status(&user, writer, &options[1..], &waits);
        let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a launch");
        // Lines that were not taken are an error, and what the time did counts more.
        ends(&mut run, timeout, if timeout { 124 } else { 125 });
        let mut errors = String::new();
        run.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("lines");
        assert!(errors.contains("status: --json-status-fd has not taken every line"), "{errors}");
        drop(status);
    }
}

/// Waits for the end of a run, which TERM is to bring unless a timeout does.
fn ends(run: &mut Child, timeout: bool, code: i32) {
    let mut line = [0; 3];
    run.stdout.as_mut().expect("a pipe").read_exact(&mut line).expect("the provider runs");
    if !timeout {
        kill(Pid::from_raw(run.id() as i32), Signal::SIGTERM).expect("kill");
    }
    assert_eq!(end(run).code(), Some(code));
}

#[test]
fn a_slow_reader_gets_every_line_in_order() {
    let Some(user) = User::new() else { return };
    let (mut reader, writer) = full_pipe();
    let run = with_status(&user, writer, &[], &["true"]).spawn();
    let mut run = run.expect("a launch");
    std::thread::sleep(Duration::from_millis(1200));
    let mut status = Vec::new();
    reader.read_to_end(&mut status).expect("lines");
    let status = String::from_utf8(status).expect("text");
    let events: Vec<Value> = status
        .trim_start_matches('x')
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON")["event"].clone())
        .collect();
    assert_eq!(events, ["plan", "setup", "exec", "exit"]);
    assert_eq!(end(&mut run).code(), Some(0));

    let (mut reader, writer) = full_pipe();
    let log = |run: &mut Command| run.args(["-vv", "--", "true"]).stdout(Stdio::null()).spawn();
    let mut run = log(user.command(user.path("cellblock")).arg("run").stderr(writer)).expect("a launch");
    std::thread::sleep(Duration::from_millis(300));
    let mut late = Vec::new();
    reader.read_to_end(&mut late).expect("lines");
    assert_eq!(end(&mut run).code(), Some(0));
    let late = String::from_utf8(late).expect("text");
    let log = user.command(user.path("cellblock")).args(["run", "-vv", "--", "true"]).output();
    let log = String::from_utf8(log.expect("a launch").stderr).expect("text");
    // Pids and times differ.
    let words = |line: &str| line.chars().filter(|c| !c.is_ascii_digit()).take(30).collect::<String>();
    let lines = |log: &str| log.lines().map(words).collect::<Vec<_>>();
    assert_eq!(lines(late.trim_start_matches('x')), lines(&log));
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let Some(user) = User::new() else { return };
    let report = user.directory("reports").join("report");
    let options = format!("--json-status-fd 3 --report {}", report.display());
    let script = format!("ulimit -f 512; CELL {options} -- head -c 600000 /dev/zero 3>status >out");
    let output = shell(&user, &script).output().expect("bash");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(errors.contains("cellblock: output: stdout cannot be written any more: EFBIG"), "{errors}");
    assert!(errors.contains("remedy: raise the limit on file sizes (ulimit -f)"), "{errors}");
    for name in [user.path("status"), report] {
        let lines = std::fs::read_to_string(&name).expect("lines");
        let last = lines.lines().last().unwrap_or_default();
        assert!(last.contains("EFBIG") && last.contains("125"), "{name:?}: {last}");
    }

    // A datagram that is too long for its socket.
    let (_reader, writer) = UnixDatagram::pair().expect("sockets");
    nix::sys::socket::setsockopt(&writer, nix::sys::socket::sockopt::SndBuf, &4096).expect("setsockopt");
    let mut run = user.cell(&[], &["head", "-c", "60000", "/dev/zero"]);
    let output = run.stdout(OwnedFd::from(writer)).output().expect("a launch");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("EMSGSIZE") && output.status.code() == Some(125), "{errors}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let Some(user) = User::new() else { return };
    let script = "CELL --json-status-fd 3 -- seq 1000000 3>status | head -n 1; tail -n 1 status";
    let said = said(&user, script);
    assert!(said.starts_with("1\n") && said.contains("\"signal\":13"), "{said}");
    assert!(said.contains("\"error\":null"), "{said}");

    // Of a socket that is closed with bytes in it the other side hears more.
    let (mut reader, writer) = UnixStream::pair().expect("sockets");
    let mut run = user.cell(&[], &["sh", "-c", "trap '' PIPE; seq 1000000 2> /dev/null; exit 3"]);
    let mut run = run.stdout(OwnedFd::from(writer)).stderr(Stdio::piped()).spawn().expect("a launch");
    reader.read_exact(&mut [0]).expect("a byte");
    drop(reader);
    assert_eq!(end(&mut run).code(), Some(3));
}

#[test]
fn what_nobody_takes_after_the_end_is_an_error() {
    let Some(user) = User::new() else { return };
    for options in [&["--timeout", "1s"][..], &[]] {
        let (reader, writer) = full_pipe();
        let mut run = user.cell(options, &["sh", "-c", "echo lost; echo up >&2"]);
        let mut run = run.stdout(writer).stderr(Stdio::piped()).spawn().expect("a launch");
        let mut stderr = run.stderr.take().expect("a pipe");
        stderr.read_exact(&mut [0; 3]).expect("the provider runs");
        if options.is_empty() {
            eventually("the cell ends", || user::children(run.id() as i32).is_empty().then_some(()));
            kill(Pid::from_raw(run.id() as i32), Signal::SIGTERM).expect("kill");
        }
        assert_eq!(end(&mut run).code(), Some(125));
        let mut errors = String::new();
        stderr.read_to_string(&mut errors).expect("lines");
        assert!(errors.contains("output: the last 5 bytes of stdout were not taken"), "{errors}");
        drop(reader);
    }
}

#[test]
fn a_launcher_that_waits_for_a_reader_can_be_stopped() {
    let Some(user) = User::new() else { return };
    let mut run = user.cell(&[], &["head", "-c", "100000", "/dev/zero"]);
    let mut run = run.stdout(Stdio::piped()).spawn().expect("a launch");
    let pid = run.id() as i32;
    let mut stdout = run.stdout.take().expect("a pipe");
    stdout.read_exact(&mut [0]).expect("the provider runs");
    eventually("the cell ends", || user::children(pid).is_empty().then_some(()));
    kill(Pid::from_raw(pid), Signal::SIGTSTP).expect("kill");
    eventually("the launcher stops", || (user::state(pid) == Some('T')).then_some(()));
    kill(Pid::from_raw(pid), Signal::SIGCONT).expect("kill");
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).expect("a pipe");
    assert_eq!(rest.len(), 99_999);
    assert_eq!(end(&mut run).code(), Some(0));
}

/// Sends its standard output to a socket, where it is received later or never.
const PARK: &str = "import socket, array, sys
c = socket.socket(socket.AF_UNIX)
c.connect(sys.argv[1])
c.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [1]))])
print('the end')";

#[test]
fn what_a_cell_has_sent_away_does_not_speak_for_it() {
    let Some(user) = User::new() else { return };
    if !has("programs", Path::new("/usr/bin/python3").exists()) {
        return;
    }
    let sockets = user.directory("sockets");
    let socket = UnixListener::bind(sockets.join("s")).expect("a socket");
    user.own(&sockets.join("s"));
    let view = format!("{}:/sockets", sockets.display());
    let cell = user.cell(&["--ro-bind", &view], &["/usr/bin/python3", "-c", PARK, "/sockets/s"]);
    let mut control = user.command("/usr/bin/python3");
    control.args(["-c", PARK]).arg(sockets.join("s"));
    for (mut command, is_cell) in [(control, false), (cell, true)] {
        let mut run = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut stdout = run.stdout.take().expect("a pipe");
        assert_eq!(end(&mut run).code(), Some(0));
        let mut parked = File::from(receive(&socket));
        let written = parked.write_all(b"after the end\n");
        drop(parked);
        let mut said = String::new();
        stdout.read_to_string(&mut said).expect("lines");
        let spoke = said != "the end\n";
        assert_eq!((spoke, written.is_ok()), (!is_cell, !is_cell), "{said}");
    }

    // The same of a terminal.
    let pair = openpty(None, None).expect("a terminal");
    let mut run = user.cell(&["--ro-bind", &view], &["/usr/bin/python3", "-c", PARK, "/sockets/s"]);
    let mut run = run.stdout(pair.slave).spawn().expect("a launch");
    assert_eq!(end(&mut run).code(), Some(0));
    assert!(File::from(receive(&socket)).write_all(b"after the end\n").is_err());
    let mut said = [0; 100];
    let got = File::from(pair.master).read(&mut said).expect("a terminal");
    assert_eq!(String::from_utf8_lossy(&said[..got]).trim_end(), "the end");
}

/// The descriptor that somebody has sent.
fn receive(socket: &UnixListener) -> OwnedFd {
    let (stream, _) = socket.accept().expect("a connection");
    let (mut bytes, mut space) = ([0; 8], nix::cmsg_space!([RawFd; 1]));
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut iov, Some(&mut space), MsgFlags::empty());
    for control in message.expect("a message").cmsgs().expect("descriptors") {
        if let ControlMessageOwned::ScmRights(fds) = control {
            return cellblock::sys::fd::received(fds[0]);
        }
    }
    panic!("no descriptor")
}

#[test]
fn a_socket_that_leads_to_nobody_is_refused() {
    let Some(user) = User::new() else { return };
    for (script, what) in [
        ("--json-status-fd 3 -- true 3>&0", "--json-status-fd 3: it is a socket that is not connected"),
        ("-- true >&0", "it is a socket that is not connected"),
    ] {
        let socket = nix::sys::socket::socket(
            nix::sys::socket::AddressFamily::Inet,
            nix::sys::socket::SockType::Stream,
            nix::sys::socket::SockFlag::empty(),
            None,
        );
        let mut command = user.command("sh");
        command.args(["-c", &format!("exec ./cellblock run {script} </dev/null")]);
        let output = command.stdin(socket.expect("a socket")).output().expect("a launch");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(what) && said.contains("remedy: "), "{said}");
    }
}
