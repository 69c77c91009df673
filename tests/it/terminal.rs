//! An interactive program in a cell, on a real terminal: everything that a
//! person at it expects, and nothing that reaches the caller's own.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, Termios, tcgetattr};
use nix::unistd::Pid;

use crate::skip;
use crate::user::{self, PATIENCE, User, end, eventually};

/// Ctrl-C, Ctrl-D and Ctrl-Z, as a keyboard sends them.
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_Z: &str = "\x1a";

/// A program that shows apart what it was typed and what it says: the one is
/// the terminal's echo. In every script it is `$UP`.
const UP: &str = "sed -u y/abcdefghijklmnopqrstuvwxyz/ABCDEFGHIJKLMNOPQRSTUVWXYZ/";

const SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// A terminal with a shell at it. In its scripts `$CELL` is `cellblock run`.
struct Terminal {
    master: File,
    shell: Child,
    seen: String,
    /// Up to where it was waited for.
    read: usize,
}

impl Terminal {
    /// With an interactive bash.
    fn with_bash(user: &User) -> Terminal {
        let mut terminal = Terminal::with(user, &["bash", "--norc", "--noprofile", "-i"]);
        terminal.sees("outer> ");
        terminal
    }

    /// With a script, which does nothing for the terminal's settings by itself.
    fn with_script(user: &User, script: &str) -> Terminal {
        Terminal::with(user, &["sh", "-c", script])
    }

    fn with(user: &User, program: &[&str]) -> Terminal {
        let (master, slave) = pair();
        if user::is_root() {
            // As login(1) and sshd(8) do.
            let (uid, gid) = user.ids();
            nix::unistd::fchown(&slave, Some(uid.into()), Some(gid.into())).expect("fchown");
        }
        Terminal::on(user, master, slave, program)
    }

    fn on(user: &User, master: OwnedFd, slave: OwnedFd, program: &[&str]) -> Terminal {
        let stream = || slave.try_clone().expect("a descriptor");
        let shell = user
            .command("setsid")
            .arg("--ctty")
            .args(program)
            .env("PS1", "outer> ")
            .env("TERM", "dumb")
            .env("CELL", format!("{} run", user.path("cellblock").display()))
            .env("UP", UP)
            .env_remove("HISTFILE")
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .spawn()
            .expect("a shell");
        Terminal { master: master.into(), shell, seen: String::new(), read: 0 }
    }

    fn types(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("a keyboard");
    }

    /// Waits until the screen shows this, behind what was waited for before.
    fn sees(&mut self, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen[self.read..].find(wanted) {
                self.read += at + wanted.len();
                return;
            }
            let mut ready = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
            poll(&mut ready, 100u8).expect("poll");
            let is_ready = ready[0].any().unwrap_or(false);
            let mut bytes = [0; 4096];
            // Reading answers EIO once nobody has the other side.
            let got = is_ready.then(|| self.master.read(&mut bytes).unwrap_or(0));
            let ended = got == Some(0);
            self.seen.push_str(&String::from_utf8_lossy(&bytes[..got.unwrap_or(0)]));
            assert!(
                !ended && Instant::now() < deadline,
                "never seen: {wanted:?}\n{}\nread up to here: {:?}",
                self.seen,
                &self.seen[..self.read],
            );
        }
    }

    /// Types a line, and waits for what it says.
    fn asks(&mut self, line: &str, answer: &str) {
        self.types(&format!("{line}\n"));
        self.sees(answer);
    }

    fn settings(&self) -> Termios {
        tcgetattr(&self.master).expect("settings")
    }

    /// Waits until a launcher has taken the terminal over, or given it back.
    fn is_raw(&self, raw: bool) {
        eventually("the settings change", || {
            let echoes = self.settings().local_flags.contains(LocalFlags::ICANON);
            (echoes != raw).then_some(())
        });
    }

    /// The launcher that the shell has started.
    fn launcher(&self) -> i32 {
        let shell = self.shell.id() as i32;
        eventually("there is a launcher", || {
            let is_launcher =
                |pid: &i32| user::status(*pid).is_some_and(|status| status["Name"] == "cellblock");
            user::children(shell).into_iter().find(is_launcher)
        })
    }

    fn resizes(&self, ws_row: u16, ws_col: u16) {
        let size = Winsize { ws_row, ws_col, ..SIZE };
        // SAFETY: TIOCSWINSZ reads one winsize.
        let result = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(result, 0);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The kernel hangs up on the rest of the session.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    let pair = openpty(Some(&SIZE), None).expect("a terminal");
    for fd in [&pair.master, &pair.slave] {
        let cloexec = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
        nix::fcntl::fcntl(fd, cloexec).expect("fcntl");
    }
    (pair.master, pair.slave)
}

const INNER: &str = "$CELL --env TERM=dumb --env UP --env 'PS1=inner> ' -- bash --norc --noprofile -i";

#[test]
fn an_interactive_shell_works_whole() {
    let Some(user) = User::new() else { return };
    let mut terminal = Terminal::with_bash(&user);
    terminal.asks(INNER, "inner> ");

    terminal.asks("tty", "/dev/pts/0\r\n");
    terminal.asks("echo by-'tty' > /dev/tty", "by-tty\r\n");
    terminal.asks("stty size", "24 80\r\n");

    terminal.types("$UP\n");
    terminal.asks("one", "ONE\r\n");
    terminal.types(CTRL_Z);
    terminal.sees("Stopped");
    terminal.asks("jobs", "Stopped");
    terminal.asks("fg", "UP\r\n");
    terminal.asks("two", "TWO\r\n");
    terminal.types(CTRL_Z);
    terminal.sees("Stopped");
    // Now it reads in the background, and is stopped for that.
    terminal.asks("bg; wait %1; jobs", "UP &");
    terminal.sees("Stopped");
    terminal.asks("kill -KILL %1; sleep 300 & jobs", "Running");
    terminal.asks("kill %sleep; wait %sleep; echo \"code <$?>\"", "code <143>");

    // Quotes keep what is waited for apart from the echo of what is typed.
    terminal.asks("sh -c 'echo \"go\"es; exec sleep 300'", "goes\r\n");
    terminal.types(CTRL_C);
    terminal.asks("echo \"code <$?>\"", "code <130>");

    terminal.asks("exit 7", "outer> ");
    terminal.asks("echo \"code <$?>\"", "code <7>");
    assert!(!terminal.seen.contains("no job control"), "{}", terminal.seen);
}

#[test]
fn the_window_size_is_handed_on_and_its_change_is_told() {
    let Some(user) = User::new() else { return };
    let mut terminal = Terminal::with_bash(&user);
    let script = "trap \"stty size\" WINCH; echo \"watch\"es; while :; do sleep 0.02; done";
    terminal.asks(&format!("$CELL -- sh -c '{script}'"), "watches\r\n");
    for (rows, columns) in [(30, 100), (50, 7), (1, 1)] {
        terminal.resizes(rows, columns);
        terminal.sees(&format!("{rows} {columns}\r\n"));
    }
    terminal.types(CTRL_C);
    terminal.sees("outer> ");
}

#[test]
fn what_the_terminal_answers_late_is_not_typed_into_the_callers_shell() {
    let Some(user) = User::new() else { return };
    let mut terminal = Terminal::with_bash(&user);
    // It asks where the cursor is and for the status, and waits for neither.
    terminal.types("$CELL -- printf '<\\033[6n\\033[5n>'\n");
    terminal.sees("<\x1b[6n\x1b[5n>");
    // The launcher's own question, which a terminal answers behind the others.
    terminal.sees("\x1b[5n");
    std::thread::sleep(Duration::from_millis(100));
    terminal.types("\x1b[1;1R\x1b[0n");
    terminal.types("\x1b[0necho 'ty'ped ahead\r");
    terminal.sees("outer> ");
    terminal.sees("typed ahead\r\n");
    assert!(!terminal.seen.contains("1R"), "{}", terminal.seen);

    // One that answers no status at all, and answers late what it does answer.
    terminal.types("$CELL -- printf '<\\033[c>'\n");
    terminal.sees("<\x1b[c>");
    terminal.sees("\x1b[5n");
    std::thread::sleep(Duration::from_millis(150));
    terminal.types("\x1b[?62;c");
    terminal.sees("outer> ");
    terminal.asks("echo 'cle'an", "clean\r\n");
    assert!(!terminal.seen.contains("62;c"), "{}", terminal.seen);
}

#[test]
fn what_a_program_leaves_set_is_reset() {
    let Some(user) = User::new() else { return };
    let mut terminal = Terminal::with_bash(&user);
    terminal.types("$CELL -- printf '<\\033[?2004h\\033[?1049h\\033[?25l\\033[31m\\033='\n");
    terminal.sees("<\x1b[?2004h");
    terminal.sees("\x1b[?25h\x1b[?1049l\x1b[?2004l\x1b[m\x1b>");
    terminal.sees("outer> ");
    // And one that leaves nothing is not followed by anything.
    terminal.types("$CELL -- printf '<\\033[31mred\\033[0m>'\n");
    terminal.sees("<\x1b[31mred\x1b[0m>outer> ");
}

#[test]
fn a_line_ends_in_one_carriage_return() {
    let Some(user) = User::new() else { return };
    let mut terminal = Terminal::with_bash(&user);
    for command in
        ["$CELL -- seq 900 < /dev/null", "echo | $CELL -- seq 900", "$CELL -- sh -c 'seq 900 >&2' | cat"]
    {
        terminal.asks(command, "\r\n900\r\n");
        terminal.sees("outer> ");
    }
    // In the background, too.
    terminal.asks("$CELL -- seq 900 &", "\r\n900\r\n");
    terminal.asks("wait; echo 'do'ne", "done\r\n");
    assert!(!terminal.seen.contains("\r\r"), "{:?}", terminal.seen);
    // What goes back to the line's start stays.
    terminal.asks("$CELL -- printf 'one\\rtwo\\r' < /dev/null", "one\rtwo\r");
}

#[test]
fn ctrl_z_of_a_plain_program_brings_back_the_callers_shell() {
    let Some(user) = User::new() else { return };
    let mut terminal = Terminal::with_bash(&user);
    terminal.types("$CELL -- $UP\n");
    terminal.is_raw(true);
    terminal.asks("hello", "HELLO\r\n");
    for _ in 0..3 {
        terminal.types(CTRL_Z);
        terminal.sees("Stopped");
        terminal.asks("echo 'out'side", "outside\r\n");
        terminal.asks("fg", "UP\r\n");
        terminal.asks("again", "AGAIN\r\n");
    }
    terminal.types(CTRL_D);
    terminal.sees("outer> ");
    terminal.asks("echo \"code <$?>\"", "code <0>");
}

#[test]
fn the_callers_shell_wakes_the_provider_once() {
    // A second CONT could come behind the next Ctrl-Z, and undo it.
    let Some(user) = User::new() else { return };
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !skip::has_programs(&["strace"]) || !skip::has("ptrace", matches!(scope.trim(), "" | "0")) {
        return;
    }
    let mut terminal = Terminal::with_bash(&user);
    terminal.types("$CELL -- $UP\n");
    terminal.is_raw(true);
    terminal.asks("hello", "HELLO\r\n");
    let launcher = terminal.launcher();
    let calls = user.path("calls");
    let mut strace = Command::new("strace")
        .args(["-qq", "-e", "trace=pidfd_send_signal", "-o"])
        .arg(&calls)
        .args(["-p", &launcher.to_string()])
        .spawn()
        .expect("strace");
    eventually("strace is attached", || (user::status(launcher)?["TracerPid"] != "0").then_some(()));
    terminal.types(CTRL_Z);
    terminal.sees("Stopped");
    terminal.asks("fg", "UP\r\n");
    terminal.asks("again", "AGAIN\r\n");
    terminal.types(CTRL_D);
    terminal.sees("outer> ");
    strace.wait().expect("strace");
    let calls = std::fs::read_to_string(calls).expect("what strace has seen");
    assert_eq!(calls.matches("SIGCONT").count(), 1, "{calls}");
}

#[test]
fn ctrl_z_stops_the_whole_pipeline() {
    let Some(user) = User::new() else { return };
    let mut terminal = Terminal::with_bash(&user);
    terminal.types("$CELL -- $UP | cat\n");
    terminal.is_raw(true);
    terminal.asks("hello", "HELLO\r\n");
    terminal.types(CTRL_Z);
    terminal.sees("Stopped");
    terminal.asks("echo 'out'side", "outside\r\n");
    terminal.asks("fg", "UP | cat\r\n");
    terminal.asks("again", "AGAIN\r\n");
    terminal.types(CTRL_C);
    terminal.sees("outer> ");
}

#[test]
fn the_settings_are_restored_in_every_case() {
    let Some(user) = User::new() else { return };
    // Settings that no program would choose for itself.
    let script = "stty -echok -iexten werase ^Y; read go; $CELL -- $UP; echo \"code <$?>\"; read line";
    type Way<'a> = (&'a str, fn(&mut Terminal), &'a str);
    let ways: [Way; 4] = [
        ("it exits", |terminal| terminal.types(CTRL_D), "code <0>"),
        ("it is killed", |terminal| terminal.types(CTRL_C), "code <130>"),
        (
            "the launcher is told to end",
            |terminal| kill(Pid::from_raw(terminal.launcher()), Signal::SIGTERM).expect("kill"),
            "code <143>",
        ),
        (
            "init is killed",
            |terminal| {
                let init = user::children(terminal.launcher())[0];
                kill(Pid::from_raw(init), Signal::SIGKILL).expect("kill");
            },
            "code <137>",
        ),
    ];
    for (how, act, code) in ways {
        let mut terminal = Terminal::with_script(&user, script);
        eventually("stty has run", || {
            let flags = terminal.settings().local_flags;
            (!flags.contains(LocalFlags::ECHOK)).then_some(())
        });
        let before = terminal.settings();
        terminal.types("\n");
        terminal.is_raw(true);
        // The cell's own terminal is there once it echoes.
        terminal.asks("x", "X\r\n");
        act(&mut terminal);
        terminal.sees(code);
        assert_eq!(terminal.settings(), before, "{how}");
    }
}

#[test]
fn two_launchers_at_one_terminal_restore_its_settings() {
    let Some(user) = User::new() else { return };
    // The second one begins when the first has the terminal, and ends before it or behind it.
    for [first, second] in [["0.3", "0.6"], ["0.6", "0.3"]] {
        let script = format!(
            "read go; $CELL -- sh -c 'echo up; sleep {first}' | (read up; exec $CELL -- sleep {second}); echo \
             'do'ne; read line"
        );
        let mut terminal = Terminal::with_script(&user, &script);
        let before = terminal.settings();
        terminal.types("\n");
        terminal.is_raw(true);
        terminal.sees("done");
        assert_eq!(terminal.settings(), before, "{first} {second}");
    }
}

#[test]
fn the_settings_are_restored_while_the_job_is_stopped() {
    let Some(user) = User::new() else { return };
    // A shell that watches jobs and leaves the settings alone.
    let script =
        "set -m; read go; $CELL -- $UP; echo 'stop'ped; read line; fg; echo \"code <$?>\"; read line";
    let mut terminal = Terminal::with(&user, &["bash", "-c", script]);
    let before = terminal.settings();
    terminal.types("\n");
    terminal.is_raw(true);
    terminal.asks("x", "X\r\n");
    terminal.types(CTRL_Z);
    terminal.sees("stopped\r\n");
    assert_eq!(terminal.settings(), before);
    terminal.types("\n");
    terminal.is_raw(true);
    terminal.asks("y", "Y\r\n");
    terminal.types(CTRL_D);
    terminal.sees("code <0>");
    assert_eq!(terminal.settings(), before);
}

#[test]
fn ctrl_z_stops_nothing_that_nobody_could_wake() {
    let Some(user) = User::new() else { return };
    // A session with no shell that watches jobs, as under ssh or in a container.
    let mut terminal = Terminal::with_script(&user, "exec $CELL -- $UP");
    terminal.is_raw(true);
    terminal.asks("x", "X\r\n");
    terminal.types(CTRL_Z);
    terminal.sees("^Z");
    terminal.asks("y", "Y\r\n");
    terminal.types(CTRL_D);
    assert!(end(&mut terminal.shell).success());
}

#[test]
fn nothing_can_be_typed_into_the_callers_terminal() {
    let Some(user) = User::new() else { return };
    let push = "for my $to (\"/dev/tty\", \"/dev/stdin\") { open(my $tty, \"+<\", $to) or next; \
                ioctl($tty, 0x5412, $_) for split //, \"echo pwn\" . \"ed\\n\" }; print \"push\", \"ed\\n\"";
    let script = user.file("push.pl", push);
    if !skip::has_programs(&["perl"]) {
        return;
    }
    for without in ["", "--without seccomp", "--without landlock"] {
        let mut terminal = Terminal::with_bash(&user);
        let bind = format!("--ro-bind {}:/opt/push.pl", script.display());
        terminal.asks(&format!("$CELL {without} {bind} -- perl /opt/push.pl"), "pushed\r\n");
        terminal.sees("outer> ");
        terminal.asks("echo 'cle'an", "clean\r\n");
        // Its echo on the cell's own terminal is shown; nobody has run it.
        assert!(!terminal.seen.contains("\npwned"), "{}", terminal.seen);
    }
}

#[test]
fn a_terminal_and_a_pipe_stay_what_they_are() {
    let Some(user) = User::new() else { return };
    let mut terminal = Terminal::with_bash(&user);
    let kinds = "for n in 0 1 2; do test -t $n && echo -n \"<$n is a tty>\" >&2; done; tty";
    terminal.types(&format!("$CELL -- sh -c '{kinds}' | cat\n"));
    terminal.sees("tty' | cat\r\n");
    terminal.sees("outer> ");
    // What others write there has whole line ends all the while.
    for said in ["<0 is a tty><2 is a tty>", "/dev/pts/0\r\n"] {
        assert!(terminal.seen.contains(said), "{said}: {}", terminal.seen);
    }
    terminal.asks(&format!("echo | $CELL -- sh -c '{kinds}'"), "<1 is a tty><2 is a tty>");
    terminal.sees("not a tty");
}

#[test]
fn a_launcher_in_the_background_takes_the_terminal_when_its_turn_comes() {
    let Some(user) = User::new() else { return };
    let mut terminal = Terminal::with_bash(&user);
    let script = "echo \"in back\"ground; read line; echo \"got <$line>\"";
    terminal.asks(&format!("$CELL -- bash -c '{script}' &"), "in background");
    terminal.asks("echo 'still'here", "stillhere\r\n");
    terminal.asks("fg", "line>");
    terminal.is_raw(true);
    terminal.asks("typed", "got <typed>");
    terminal.sees("outer> ");

    // And after a stop that was ended in the background.
    terminal.types("$CELL -- $UP\n");
    terminal.is_raw(true);
    terminal.asks("one", "ONE\r\n");
    terminal.types(CTRL_Z);
    terminal.sees("Stopped");
    terminal.asks("bg", "UP &");
    terminal.asks("echo 'still'here", "stillhere\r\n");
    terminal.asks("fg", "UP\r\n");
    terminal.is_raw(true);
    terminal.asks("two", "TWO\r\n");
    terminal.types(CTRL_D);
    terminal.sees("outer> ");
}

#[test]
fn a_provider_that_lets_go_of_its_terminal_lives_on() {
    let Some(user) = User::new() else { return };
    let script = "exec <&- >&- 2>&-; sleep 0.2; echo \"still\"there > /dev/tty; exit 6";
    let script = format!("$CELL -- sh -c '{script}'; echo \"code <$?>\"; read line");
    let mut terminal = Terminal::with_script(&user, &script);
    terminal.sees("stillthere\r\n");
    terminal.sees("code <6>");
}

#[test]
fn what_was_written_last_is_shown() {
    let Some(user) = User::new() else { return };
    let script = "$CELL -- sh -c 'seq 20000; exit 3'; echo \"code <$?>\"; read line";
    let mut terminal = Terminal::with_script(&user, script);
    terminal.sees("code <3>");
    let numbers: String = (1..=20000).map(|n| format!("{n}\r\n")).collect();
    assert!(terminal.seen.starts_with(&numbers), "{}", terminal.seen);
}

#[test]
fn a_terminal_that_hangs_up_ends_the_run() {
    let Some(user) = User::new() else { return };
    for script in ["exec $UP", "trap \"\" HUP; exec $UP"] {
        let mut terminal =
            Terminal::with_script(&user, &format!("trap '' HUP; $CELL --env UP -- sh -c '{script}'"));
        terminal.is_raw(true);
        terminal.asks("x", "X\r\n");
        let launcher = terminal.launcher();
        let init = user::children(launcher)[0];
        terminal.master = File::open("/dev/null").expect("/dev/null");
        eventually("all has ended", || {
            let ended = |pid| user::state(pid).is_none();
            (ended(launcher) && ended(init)).then_some(())
        });
        end(&mut terminal.shell);
    }
}

#[test]
fn a_provider_that_outlives_its_terminal_costs_the_launcher_nothing() {
    let Some(user) = User::new() else { return };
    let script = "trap '' HUP; $CELL -- sh -c 'trap \"\" HUP; echo \"sle\"eps; exec sleep 300'";
    let mut terminal = Terminal::with_script(&user, script);
    terminal.sees("sleeps\r\n");
    let launcher = terminal.launcher();
    let init = user::children(launcher)[0];
    terminal.master = File::open("/dev/null").expect("/dev/null");
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{launcher}/stat")).expect("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
        // utime and stime, the 14th and 15th of proc_pid_stat(5).
        fields[12].parse::<u64>().expect("a number") + fields[13].parse::<u64>().expect("a number")
    };
    let before = ticks();
    std::thread::sleep(Duration::from_millis(500));
    let spent = ticks() - before;
    kill(Pid::from_raw(init), Signal::SIGKILL).expect("kill");
    assert!(spent < 10, "{spent} ticks of 10 ms in half a second");
    end(&mut terminal.shell);
}

#[test]
fn a_terminal_of_another_user_is_relayed_and_the_time_is_kept() {
    if !skip::has_root() {
        return;
    }
    let Some(user) = User::new() else { return };
    let (master, slave) = pair();
    let script = "$CELL --timeout 1s -- $UP; echo \"code <$?>\"; read line";
    let mut terminal = Terminal::on(&user, master, slave, &["sh", "-c", script]);
    terminal.is_raw(true);
    terminal.asks("x", "X\r\n");
    terminal.sees("code <124>");
}
