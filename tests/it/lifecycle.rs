//! How a run begins and ends: whole in every case, told as it was, and with
//! nothing of the caller's that was not handed in.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;

use crate::long::{self, rounds};
use crate::skip;
use crate::user::{self, User, end, eventually, text};

/// Daemons of every kind that outlive their parents.
const DAEMONS: &str = "setsid sleep 300 & (setsid sh -c 'sleep 300 & sleep 300' &); ";

/// A run that can be watched.
struct Run {
    launcher: Child,
    status: BufReader<PipeReader>,
}

impl Run {
    /// Starts a command in a cell.
    fn start(user: &User, options: &[&str], command: &[&str]) -> Run {
        Run::with(options, |options| user.cell(options, command))
    }

    /// Starts a shell script in a cell.
    fn script(user: &User, options: &[&str], script: &str) -> Run {
        Run::start(user, options, &["sh", "-c", script])
    }

    /// Starts what `launch` makes of the options and one for the status.
    fn with(options: &[&str], launch: impl FnOnce(&[&str]) -> Command) -> Run {
        let (status, writer) = io::pipe().expect("pipe");
        let number = writer.as_raw_fd().to_string();
        let mut command = launch(&[options, &["--json-status-fd", &number]].concat());
        user::keep(&mut command, writer.into());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let launcher = command.spawn().expect("the launcher starts");
        Run { launcher, status: BufReader::new(status) }
    }

    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.status.read_line(&mut line).expect("the status reads");
        (!line.is_empty()).then(|| serde_json::from_str(&line).expect("a line of JSON"))
    }

    /// The host's pids of init and of the provider, once it runs.
    fn provider(&mut self) -> (i32, i32) {
        let mut init = 0;
        loop {
            let line = self.next().expect("an exec line");
            if let Some(pid) = line["child-pid"].as_i64() {
                init = pid as i32;
            }
            if line["event"] == "exec" {
                let is_second =
                    |pid: &i32| user::status(*pid).is_some_and(|status| status["NSpid"].ends_with("\t2"));
                let provider = user::children(init).into_iter().find(is_second);
                return (init, provider.expect("init has a child"));
            }
        }
    }

    /// Waits until the provider has written this line.
    fn wait_for(&mut self, wanted: &str) {
        let stdout = self.launcher.stdout.as_mut().expect("a pipe");
        let mut seen = Vec::new();
        while !seen.ends_with(format!("{wanted}\n").as_bytes()) {
            let mut byte = [0];
            let got = stdout.read(&mut byte).expect("stdout reads");
            assert!(got == 1, "{:?}", String::from_utf8_lossy(&seen));
            seen.push(byte[0]);
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.launcher.id() as i32), signal).expect("a signal");
    }

    /// What the launcher and its status said in the end; they must agree.
    fn end(mut self) -> Told {
        let code = end(&mut self.launcher).code().expect("it exits");
        let mut output = String::new();
        let mut errors = String::new();
        let Child { stdout, stderr, .. } = &mut self.launcher;
        // Bytes that nobody read come first, and the cell has closed its ends.
        let _ = stdout.take().map(|mut out| out.read_to_string(&mut output));
        let _ = stderr.take().map(|mut err| err.read_to_string(&mut errors));
        let (mut last, mut executed) = (Value::Null, false);
        while let Some(line) = self.next() {
            executed |= line["event"] == "exec";
            last = line;
        }
        assert_eq!(last["event"], "exit", "the last line of the status");
        assert_eq!(last["exit-code"], code, "{last}");
        Told {
            code,
            outcome: last["outcome"].as_str().unwrap_or_default().to_owned(),
            signal: last["signal"].as_i64(),
            executed,
            output,
            errors,
        }
    }
}

/// What a run said.
#[derive(Debug)]
struct Told {
    code: i32,
    outcome: String,
    signal: Option<i64>,
    /// Whether that was said after the last look at the status.
    executed: bool,
    output: String,
    errors: String,
}

impl Told {
    fn is(&self, code: i32, outcome: &str, signal: Option<i64>) {
        assert!(
            (self.code, &*self.outcome, self.signal) == (code, outcome, signal),
            "wanted {code} {outcome} {signal:?}: {self:?}"
        );
    }
}

/// Waits until no init is left whose launcher has gone. The kernel ends all of
/// a PID namespace before its first process becomes a zombie
/// (pid_namespaces(7)), so nothing of the cells is left then.
fn no_orphans() {
    let own = std::process::id() as i32;
    let is_init =
        |pid: &i32| user::status(*pid).is_some_and(|status| status["NSpid"].split_whitespace().count() > 1);
    for init in user::children(own).into_iter().filter(is_init) {
        eventually("an orphaned init ends", || {
            let still = waitpid(Pid::from_raw(init), Some(WaitPidFlag::WNOHANG));
            (still != Ok(WaitStatus::StillAlive)).then_some(())
        });
    }
}

/// Makes the orphans of a launcher children of the tests.
fn adopt_orphans() {
    set_child_subreaper(true).expect("prctl");
}

/// Numbers without a pattern, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides
    }
}

#[test]
fn killing_the_launcher_at_any_instant_ends_the_cell() {
    let Some(user) = User::new() else { return };
    adopt_orphans();
    let script = format!("{DAEMONS} sleep 300");
    let started = Instant::now();
    text(&user.cell(&[], &["true"]).output().expect("a launch"));
    // From before the clone until well into the run, on slow machines too.
    let span = started.elapsed().max(Duration::from_millis(8));
    let mut dice = Dice(1);
    for round in 0..rounds(40, 300) {
        let command = ["sh", "-c", &script];
        let mut start = match user::is_root() && round % 2 == 1 {
            true => user.cell_by_root(&[], &command),
            false => user.cell(&[], &command),
        };
        let mut launcher = start.spawn().expect("the launcher starts");
        std::thread::sleep(Duration::from_micros(dice.roll(span.as_micros() as u64)));
        launcher.kill().expect("a signal");
        assert_eq!(end(&mut launcher).signal(), Some(9));
        no_orphans();
    }
}

#[test]
fn killing_init_or_the_provider_ends_the_cell_and_is_told() {
    let Some(user) = User::new() else { return };
    for victim in ["init", "provider"] {
        let mut run = Run::script(&user, &[], &format!("{DAEMONS} echo up; sleep 300"));
        let (init, provider) = run.provider();
        run.wait_for("up");
        let pid = if victim == "init" { init } else { provider };
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("a signal");
        run.end().is(137, "signaled", Some(9));
        assert_eq!(user::state(init), None, "{victim}");
    }
}

#[test]
fn killing_init_during_set_up_is_told_as_a_provider_that_never_ran() {
    let Some(user) = User::new() else { return };
    let mut dice = Dice(4);
    for _ in 0..rounds(20, 100) {
        let mut run = Run::start(&user, &[], &["sleep", "300"]);
        let init = loop {
            let line = run.next().expect("a setup line");
            if let Some(pid) = line["child-pid"].as_i64() {
                break pid as i32;
            }
        };
        std::thread::sleep(Duration::from_micros(dice.roll(4000)));
        kill(Pid::from_raw(init), Signal::SIGKILL).expect("a signal");
        let told = run.end();
        if told.executed {
            told.is(137, "signaled", Some(9));
        } else {
            told.is(125, "setup-failed", None);
            assert!(told.errors.starts_with("cellblock: "), "{told:?}");
        }
    }
}

#[test]
fn a_provider_that_misbehaves_takes_its_whole_cell_along() {
    let Some(user) = User::new() else { return };
    let grace = user.file("grace.toml", "version = 1\n[cell]\ntimeout_grace = \"300ms\"\n");
    let grace = ["--policy", grace.to_str().unwrap()];
    let short = [&grace[..], &["--timeout", "500ms"]].concat();
    let long = [&grace[..], &["--timeout", "60s"]].concat();
    let ignore = "trap '' TERM INT HUP QUIT USR1 USR2";
    // What it does and how, then the exit code, the outcome and the signal.
    type Case<'a> = (&'a str, &'a [&'a str], String, i32, &'a str, Option<i64>);
    let table: [Case; 16] = [
        ("leaves daemons", &long, format!("{DAEMONS} exit 3"), 3, "exited", None),
        (
            "leaves daemons that ignore signals",
            &long,
            format!("{ignore}; {DAEMONS} exit 4"),
            4,
            "exited",
            None,
        ),
        (
            "ignores signals for ever",
            &short,
            format!("{ignore}; {DAEMONS} while :; do sleep 1; done"),
            124,
            "timed-out",
            Some(9),
        ),
        (
            "ends when it is asked to",
            &short,
            "trap 'exit 0' TERM; sleep 300 & wait".into(),
            124,
            "timed-out",
            None,
        ),
        ("sleeps too long", &short, "exec sleep 300".into(), 124, "timed-out", Some(15)),
        ("closes its descriptors", &long, "exec <&- >&- 2>&-; exit 5".into(), 5, "exited", None),
        (
            "works on without descriptors",
            &long,
            "exec <&- >&- 2>&-; sleep 0.1; exit 6".into(),
            6,
            "exited",
            None,
        ),
        ("stops itself for ever", &short, "kill -STOP $$; exit 1".into(), 124, "timed-out", Some(15)),
        (
            "stops itself and is woken",
            &long,
            "(sleep 0.1; kill -CONT $$) & kill -STOP $$; exit 7".into(),
            7,
            "exited",
            None,
        ),
        ("floods a pipe nobody reads", &short, "exec yes".into(), 124, "timed-out", Some(15)),
        (
            "floods it and ignores signals",
            &short,
            format!("{ignore}; {DAEMONS} yes >&2 & yes"),
            124,
            "timed-out",
            Some(9),
        ),
        (
            "signals init",
            &long,
            "for s in KILL STOP TERM TSTP INT HUP CONT USR1; do kill -$s 1; done; exit 8".into(),
            8,
            "exited",
            None,
        ),
        ("signals everybody", &long, format!("{DAEMONS} kill -9 -1; exit 9"), 9, "exited", None),
        ("aborts", &long, "kill -ABRT $$".into(), 134, "signaled", Some(6)),
        ("crashes", &long, "kill -SEGV $$".into(), 139, "signaled", Some(11)),
        ("seems to hit the filter", &long, "kill -SYS $$".into(), 159, "seccomp-killed", Some(31)),
    ];
    for (what, options, script, code, outcome, signal) in table {
        let started = Instant::now();
        let mut run = Run::script(&user, options, &script);
        let (init, _) = match what {
            // It may have ended before it can be looked at.
            _ if code != 124 => (0, 0),
            _ => run.provider(),
        };
        let status = end(&mut run.launcher);
        let took = started.elapsed();
        assert_eq!(status.code(), Some(code), "a provider that {what}");
        assert!(init == 0 || user::state(init).is_none(), "a provider that {what}");
        let told = run.end();
        println!("{what}: {took:?}");
        assert_eq!((&*told.outcome, told.signal), (outcome, signal), "{what}: {told:?}");
        let waits = code == 124;
        assert!(!waits || took >= Duration::from_millis(500), "{what}: {took:?}");
        assert!(took < Duration::from_secs(10), "{what}: {took:?}");
    }
}

#[test]
fn signals_are_passed_on() {
    let Some(user) = User::new() else { return };
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"] {
        let number: Signal = format!("SIG{signal}").parse().expect("a signal");
        let script = format!("trap 'echo got {signal}; exit 10' {signal}; echo up; sleep 300 & wait");
        let mut run = Run::script(&user, &[], &script);
        run.wait_for("up");
        run.signal(number);
        let told = run.end();
        told.is(10, "exited", None);
        assert_eq!(told.output, format!("got {signal}\n"));

        // And one that does not care is ended by it.
        let mut run = Run::script(&user, &[], "echo up; exec sleep 300");
        run.wait_for("up");
        run.signal(number);
        let ends = ["TERM", "INT", "HUP", "QUIT"].contains(&signal);
        let outcome = if ends { "canceled" } else { "signaled" };
        let number = number as i32;
        run.end().is(128 + number, outcome, Some(number.into()));
    }
}

#[test]
fn a_signal_during_set_up_is_not_lost() {
    let Some(user) = User::new() else { return };
    let mut dice = Dice(2);
    for _ in 0..rounds(15, 50) {
        let run = Run::start(&user, &[], &["sleep", "300"]);
        std::thread::sleep(Duration::from_micros(dice.roll(8000)));
        run.signal(Signal::SIGTERM);
        let mut launcher = run.launcher;
        let status = end(&mut launcher);
        // Before its own first line the launcher is ended as any program is.
        assert!(status.code() == Some(143) || status.signal() == Some(15), "{status}");
    }
}

#[test]
fn tstp_stops_the_group_and_the_launcher_and_cont_wakes_both() {
    let Some(user) = User::new() else { return };
    let script = "trap 'echo woken; exit 11' CONT; sleep 300 & echo up; while :; do wait; done";
    let mut run = Run::script(&user, &[], script);
    let (_, provider) = run.provider();
    run.wait_for("up");
    let launcher = run.launcher.id() as i32;
    let sleep = user::children(provider)[0];
    run.signal(Signal::SIGTSTP);
    for pid in [launcher, provider, sleep] {
        eventually("it is stopped", || (user::state(pid) == Some('T')).then_some(()));
    }
    run.signal(Signal::SIGCONT);
    let told = run.end();
    told.is(11, "exited", None);
    assert_eq!(told.output, "woken\n");
}

#[test]
fn the_timeout_of_a_stopped_launcher_holds() {
    let Some(user) = User::new() else { return };
    let mut run = Run::script(&user, &["--timeout", "1500ms"], "echo up; exec sleep 300");
    run.provider();
    run.wait_for("up");
    let launcher = run.launcher.id() as i32;
    run.signal(Signal::SIGTSTP);
    eventually("it is stopped", || (user::state(launcher) == Some('T')).then_some(()));
    run.end().is(124, "timed-out", Some(15));
}

#[test]
fn tstp_stops_again_what_was_woken_from_inside() {
    let Some(user) = User::new() else { return };
    // Not as a child of the shell: one that is stopped between vfork and exec keeps
    // its parent from stopping.
    let script = "(sleep 0.1; kill -CONT $$) & kill -STOP $$; echo up; exec sleep 300";
    let mut run = Run::script(&user, &[], script);
    let (_, provider) = run.provider();
    run.wait_for("up");
    run.signal(Signal::SIGTSTP);
    for pid in [run.launcher.id() as i32, provider] {
        eventually("it is stopped", || (user::state(pid) == Some('T')).then_some(()));
    }
    run.signal(Signal::SIGCONT);
    run.signal(Signal::SIGTERM);
    run.end().is(143, "canceled", Some(15));
}

#[test]
fn every_exit_code_is_passed_through() {
    let Some(user) = User::new() else { return };
    let codes = if long::is_asked_for() {
        (0..=255).collect()
    } else {
        vec![0, 1, 2, 77, 124, 125, 126, 127, 128, 255]
    };
    for code in codes {
        let status = user.script(&[], &format!("exit {code}")).status();
        assert_eq!(status.expect("a launch").code(), Some(code));
    }
}

#[test]
fn every_fatal_signal_is_128_more() {
    let Some(user) = User::new() else { return };
    for signal in [1, 2, 3, 6, 8, 9, 10, 11, 12, 13, 14, 15] {
        let run = Run::script(&user, &[], &format!("kill -{signal} $$"));
        run.end().is(128 + signal, "signaled", Some(signal.into()));
    }
}

#[test]
fn the_status_ends_with_an_exit_line_in_every_case() {
    let Some(user) = User::new() else { return };
    let plain = user.file("plain", "no program\n");
    let plain = plain.to_str().unwrap();
    let odd = user.file("odd.toml", "version = 1\nodd = true\n");
    let odd = odd.to_str().unwrap();
    let table: [(&[&str], &[&str], i32, &str); 8] = [
        (&[], &["true"], 0, "exited"),
        (&[], &["no-such-program"], 127, "exec-failed"),
        (&["--ro-bind", &format!("{plain}:/opt/plain")], &["/opt/plain"], 126, "exec-failed"),
        (&["--chdir", "/no/such/place"], &["true"], 125, "setup-failed"),
        (&["--ro-bind", "/no/such/place"], &["true"], 125, "setup-failed"),
        (&["--policy", odd], &["true"], 125, "setup-failed"),
        (&["--policy", "/no/such/file"], &["true"], 125, "setup-failed"),
        (&["--timeout", "10ms"], &["sleep", "300"], 124, "timed-out"),
    ];
    for (options, command, code, outcome) in table {
        let told = Run::start(&user, options, command).end();
        assert_eq!((told.code, &*told.outcome), (code, outcome), "{told:?}");
        assert_eq!(told.output, "", "stdout is the provider's");
        assert_eq!(told.errors.starts_with("cellblock: "), code >= 124, "{told:?}");
    }
}

#[test]
fn a_status_that_nobody_reads_changes_nothing() {
    let Some(user) = User::new() else { return };
    let mut run = Run::script(&user, &[], "echo up; exit 12");
    drop(run.status);
    assert_eq!(end(&mut run.launcher).code(), Some(12));
}

#[test]
fn a_file_as_standard_stream_is_copied_exactly() {
    let Some(user) = User::new() else { return };
    let mut dice = Dice(3);
    let bytes: Vec<u8> = (0..10 << 20).map(|_| dice.roll(256) as u8).collect();
    let big = user.file("big", &bytes);
    let copy = user.file("copy", "");
    let write = || File::create(&copy).expect("a file");
    let shell = |script: &str| {
        let cell = user.path("cellblock").display().to_string();
        let script = script.replace("CELL", &format!("{cell} run --"));
        text(&user.command("sh").args(["-c", &script]).output().expect("sh"))
    };

    let mut run = user.cell(&[], &["cat"]);
    run.stdin(File::open(&big).expect("a file")).stdout(write());
    assert!(run.status().expect("a launch").success());
    assert!(fs::read(&copy).expect("a file") == bytes, "10 MiB through cat");

    let mut run = user.cell(&[], &["sh", "-c", "cat >&2"]);
    run.stdin(File::open(&big).expect("a file")).stderr(write());
    assert!(run.status().expect("a launch").success());
    assert!(fs::read(&copy).expect("a file") == bytes, "10 MiB through stderr");

    // One file behind two streams keeps its order.
    let turns = "for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; done";
    shell(&format!("CELL sh -c '{turns}' > copy 2>&1"));
    let wanted: String = (1..10).map(|i| format!("out {i}\nerr {i}\n")).collect();
    assert_eq!(fs::read_to_string(&copy).expect("a file"), wanted);

    // What is there stays: appending, and behind what the caller wrote.
    shell("echo a > copy; CELL echo b >> copy; { echo c; CELL echo d; echo e; } >> copy");
    assert_eq!(fs::read_to_string(&copy).expect("a file"), "a\nb\nc\nd\ne\n");
    shell("{ echo a; CELL echo b; echo c; } > copy");
    assert_eq!(fs::read_to_string(&copy).expect("a file"), "a\nb\nc\n");

    // Reading begins where the caller stopped.
    user.file("lines", "one\ntwo\nthree\n");
    assert_eq!(shell("{ read first; CELL cat; } < lines"), "two\nthree\n");

    // What a provider leaves unread is the caller's again.
    assert_eq!(
        shell("while read line; do CELL true; echo \"<$line>\"; done < lines"),
        "<one>\n<two>\n<three>\n"
    );
    // All of it, or nothing where it has read a part.
    assert_eq!(shell("{ CELL sh -c 'read first; echo \"<$first>\"'; cat; } < lines"), "<one>\n");

    // Its path is not told, and it cannot be opened anew.
    let told = shell("CELL sh -c 'readlink /proc/self/fd/0 && ls -lL /proc/self/fd/' < lines");
    assert!(told.starts_with("pipe:["), "{told}");
    assert!(!told.contains(user.path("").to_str().unwrap()), "{told}");
}

#[test]
fn pipes_and_sockets_are_carried_and_not_handed_over() {
    let Some(user) = User::new() else { return };
    let links = "cat; links=$(readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2); echo \"$links\" >&2";
    let links = ["sh", "-c", links];
    let inode = |fd: &dyn std::os::fd::AsFd| nix::sys::stat::fstat(fd).expect("a descriptor").st_ino;

    let (reader, mut writer) = io::pipe().expect("pipe");
    let callers = format!("pipe:[{}]", inode(&reader));
    let mut run = user.cell(&[], &links);
    run.stdin(reader).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = run.spawn().expect("a launch");
    writer.write_all(b"through a pipe\n").expect("a pipe");
    drop((writer, run));
    let output = child.wait_with_output().expect("a launch");
    assert_eq!(output.stdout, b"through a pipe\n");
    let told = String::from_utf8_lossy(&output.stderr);
    // A pipe's name opens it anew, for reading too: what the caller's others write there.
    assert!(told.matches("pipe:[").count() == 3 && !told.contains(&callers), "{told}");

    let (mut ours, theirs) = UnixStream::pair().expect("sockets");
    let mut run = user.cell(&[], &links);
    let socket = || std::os::fd::OwnedFd::from(theirs.try_clone().expect("a socket"));
    run.stdin(socket()).stdout(socket()).stderr(Stdio::piped());
    let child = run.spawn().expect("a launch");
    drop((run, theirs));
    ours.write_all(b"through a socket\n").expect("a socket");
    ours.shutdown(std::net::Shutdown::Write).expect("a socket");
    let mut echoed = String::new();
    ours.read_to_string(&mut echoed).expect("a socket");
    assert_eq!(echoed, "through a socket\n");
    let told = child.wait_with_output().expect("a launch").stderr;
    let told = String::from_utf8_lossy(&told);
    // A socket belongs to the host's network, and could be connected anew.
    assert_eq!(told.matches("pipe:[").count(), 3, "{told}");

    let mut run = user.cell(&[], &links);
    run.stdout(Stdio::null()).stderr(Stdio::piped());
    let told = run.output().expect("a launch").stderr;
    let told = String::from_utf8_lossy(&told);
    assert!(told.starts_with("/dev/null\n/dev/null\npipe:["), "{told}");
}

#[test]
fn a_slow_reader_gets_all_of_it() {
    let Some(user) = User::new() else { return };
    let mut run = user.cell(&[], &["head", "-c", "150000", "/dev/zero"]);
    let mut child = run.stdout(Stdio::piped()).spawn().expect("a launch");
    let mut stdout = child.stdout.take().expect("a pipe");
    // Longer than the provider lives.
    std::thread::sleep(Duration::from_millis(300));
    let mut got = Vec::new();
    stdout.read_to_end(&mut got).expect("a pipe");
    assert_eq!(got.len(), 150_000);
    assert!(child.wait().expect("a launch").success());
}

#[test]
fn a_provider_cannot_slow_init_down() {
    let Some(user) = User::new() else { return };
    let tries = "import os
for name, call in [('scheduler', lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))),
                   ('affinity', lambda: os.sched_setaffinity(1, {0})),
                   ('priority', lambda: os.setpriority(os.PRIO_PROCESS, 1, 19)),
                   ('priority of all', lambda: os.setpriority(os.PRIO_USER, 0, 19)),
                   ('group', lambda: os.setpgid(0, 1))]:
    try:
        call()
        print(name, 'allowed')
    except PermissionError:
        pass
os.setpriority(os.PRIO_PROCESS, 0, 5)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
print('its own')";
    if !skip::has_programs(&["python3"]) {
        return;
    }
    let said = text(&user.cell(&[], &["/usr/bin/python3", "-c", tries]).output().expect("a launch"));
    assert_eq!(said, "its own\n");
}

#[test]
fn a_limit_on_file_sizes_does_not_silence_the_launcher() {
    let Some(user) = User::new() else { return };
    let cell = user.path("cellblock").display().to_string();
    let script = format!(
        "ulimit -f 1; {cell} run --json-status-fd 3 -- head -c 1000000 /dev/zero 3>status >out; tail -n 1 status"
    );
    let said = text(&user.command("bash").args(["-c", &script]).output().expect("bash"));
    assert!(said.contains("\"event\":\"exit\""), "{said}");
}

#[test]
fn streams_that_lead_out_or_nowhere_are_refused() {
    let Some(user) = User::new() else { return };
    let table = [
        ("stdin", "< /"),
        ("stdin", "< ."),
        ("stdin", "< /dev/zero"),
        ("stdout", "> /dev/full"),
        ("stderr", "2> /dev/zero"),
        ("stdin", "<&-"),
        ("stdout", ">&-"),
        ("stderr", "2>&-"),
    ];
    for (name, redirection) in table {
        let cell = user.path("cellblock").display().to_string();
        let script = format!("{cell} run --json-status-fd 9 -- touch ran 9>status {redirection}");
        let output = user.command("sh").args(["-c", &script]).output().expect("sh");
        assert_eq!(output.status.code(), Some(125), "{redirection}");
        let status = fs::read_to_string(user.path("status")).expect("a file");
        let wanted = format!("descriptors: {name} cannot be given to the provider");
        assert!(status.contains(&wanted), "{redirection}: {status}");
        if name != "stderr" {
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(told.contains(&wanted) && told.contains("remedy: "), "{redirection}: {told}");
        }
    }
}

#[test]
fn nothing_of_the_caller_rides_in() {
    let Some(user) = User::new() else { return };
    let marks = user.directory("marks");
    let dirt = format!(
        "umask 0; trap '' INT TERM USR1 PIPE CHLD; exec 5</ 7<{0} 9>{0}/file 8<&0; cd {0}; \
         export SECRET=of-the-harness LD_PRELOAD= IFS=x; exec \"$@\"",
        marks.display()
    );
    let look = "umask; pwd; env | sort; ls /proc/self/fd | wc -w; \
                grep -E '^(Sig(Blk|Ign)|ShdPnd|SigPnd)' /proc/self/status";
    let cell = user.script(&[], look);
    let mut run = user.command("sh");
    run.args(["-c", &dirt, "sh"]).arg(cell.get_program()).args(cell.get_args());
    // SAFETY: sigfillset and sigprocmask are async-signal-safe; the set is filled before it is read.
    unsafe {
        run.pre_exec(|| {
            let mut set = std::mem::MaybeUninit::uninit();
            libc::sigfillset(set.as_mut_ptr());
            libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            Ok(())
        })
    };
    let seen = text(&run.output().expect("a launch"));
    let wanted = "0022\n/home/agent\nHOME=/home/agent\nLANG=C.UTF-8\n\
                  PATH=/usr/local/bin:/usr/bin:/bin\nPWD=/home/agent\nTMPDIR=/tmp\nUSER=agent\n4\n\
                  SigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n\
                  SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n";
    let seen: String = seen
        .lines()
        .filter(|line| !line.starts_with("_=") && !line.starts_with("SHLVL="))
        .map(|line| format!("{line}\n"))
        .collect();
    // `ls` itself has the directory open beside 0-2.
    assert_eq!(seen, wanted);
}

#[test]
fn no_key_of_the_callers_session_rides_in() {
    let Some(user) = User::new() else { return };
    let python = "/usr/bin/python3";
    if !skip::has_programs(&["python3"]) {
        return;
    }
    let search = format!(
        "import ctypes; libc = ctypes.CDLL(None); \
         print(libc.syscall({}, {}, -3, b'user', b'canary', 0) > 0)",
        libc::SYS_keyctl,
        libc::KEYCTL_SEARCH
    );
    let look = |mut command: Command| {
        // SAFETY: system calls alone, on strings that end in NUL.
        unsafe {
            command.pre_exec(|| {
                let session = libc::KEY_SPEC_SESSION_KEYRING;
                libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, 0);
                let (kind, name) = (c"user".as_ptr(), c"canary".as_ptr());
                match libc::syscall(libc::SYS_add_key, kind, name, name, 6usize, session) {
                    -1 => Err(io::Error::last_os_error()),
                    _ => Ok(()),
                }
            })
        };
        text(&command.output().expect("python"))
    };
    let mut outside = user.command(python);
    outside.args(["-c", &search]);
    assert_eq!(look(outside), "True\n");
    // Without the filter, so that the keyring alone must answer.
    let inside = user.cell(&["--without", "seccomp"], &[python, "-c", &search]);
    assert_eq!(look(inside), "False\n");
}

#[test]
fn many_launches_leave_nothing() {
    let Some(user) = User::new() else { return };
    adopt_orphans();
    let before = Traces::of(&user);
    let launches = rounds(100, 2000);
    for _ in 0..launches {
        let status = user.cell(&[], &["true"]).status().expect("a launch");
        assert!(status.success(), "{status}");
    }
    no_orphans();
    before.are_all_there_is(&user, launches);
}

#[test]
fn many_at_once_leave_nothing() {
    let Some(user) = User::new() else { return };
    adopt_orphans();
    let before = Traces::of(&user);
    let launches = rounds(40, 200);
    let mut runs: Vec<Run> =
        (0..launches).map(|n| Run::script(&user, &[], &format!("read line; exit {n}"))).collect();
    for (n, run) in runs.drain(..).enumerate() {
        assert_eq!(run.end().code, n as i32);
    }
    no_orphans();
    before.are_all_there_is(&user, launches);
}

/// What a launch could leave behind on the host.
struct Traces {
    mounts: String,
    files: Vec<OsString>,
    open: Option<usize>,
}

impl Traces {
    fn of(user: &User) -> Traces {
        let names = fs::read_dir(user.path("")).expect("a directory");
        let open =
            skip::has_whole_proc().then(|| fs::read_to_string("/proc/sys/fs/file-nr").expect("file-nr"));
        Traces {
            mounts: fs::read_to_string("/proc/self/mountinfo").expect("mountinfo"),
            files: names.map(|entry| entry.expect("an entry").file_name()).collect(),
            open: open.map(|open| open.split('\t').next().expect("a number").parse().expect("a number")),
        }
    }

    /// Asserts that so many launches have left nothing. Others open files
    /// meanwhile, but not one for each launch.
    fn are_all_there_is(&self, user: &User, launches: usize) {
        let now = Traces::of(user);
        assert_eq!(now.mounts, self.mounts);
        assert_eq!(now.files, self.files);
        assert!(now.open <= self.open.map(|open| open + launches - 1), "{:?} {:?}", self.open, now.open);
    }
}
