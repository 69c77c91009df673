//! Failure of every step: each call that the child makes between clone and
//! exec, and each of the launcher's own around them, is made to fail in turn.
//!
//! The calls that each step makes stand in one table, [`calls`], and an
//! undisturbed run must make these calls in this order: a step or a call that
//! the table does not know fails the test. The calls are counted and failed by
//! a tracer, as strace(1) does with `inject=`, but in one process alone: strace
//! counts in each process, so that the launcher's own call would fail first.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cellblock::cli::{self, Command as Cli};
use cellblock::host::Ids;
use cellblock::plan::{self, Plan, Request, Stage, Step};
use cellblock::policy::load::load;
use cellblock::sys::Errno;
use nix::pty::openpty;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::long;
use crate::site::Site;
use crate::skip;

const ERRNOS: [Errno; 8] = [
    Errno::EPERM,
    Errno::EACCES,
    Errno::ENOSYS,
    Errno::EINVAL,
    Errno::ENOSPC,
    Errno::ENOMEM,
    Errno::EMFILE,
    Errno::EAGAIN,
];

/// One call, by the name of its man page, and what its failure must come to.
#[derive(Clone, Copy, Debug)]
struct Call(&'static str, Judgement);

#[derive(Clone, Copy, Debug)]
enum Judgement {
    /// The launch fails and names the step's stage, the call and the errno.
    Fatal,
    /// The launch goes on, for this reason.
    Harmless(&'static str),
    /// The launch goes on, for this reason, and says so.
    Told(&'static str),
    /// This errno is no failure, for this reason; all others are fatal.
    Answer(Errno, &'static str),
    /// The kernel knows no failure of it, so none is tried.
    Infallible,
    /// It asks what the kernel has, and these answers all say that it has not.
    Question,
}
use Judgement::{Answer, Fatal, Harmless, Infallible, Question, Told};

const fn fatal(name: &'static str) -> Call {
    Call(name, Fatal)
}

const CLOSE: Call = Call("close", Harmless("close(2) frees the descriptor even where it fails"));
const UMASK: Call = Call("umask", Infallible);
const FSCONFIG: Call = fatal("fsconfig");

const AGAIN: &str = "the launch is begun again, with plain binds in the overlay's stead";

/// Of the network namespace that is made beside init.
const BY_CLONE: Judgement = Harmless("the launch is begun again, with the namespace made by clone(2)");

/// What init does before its first step.
const PREAMBLE: &[Call] = &[UMASK, CLOSE, CLOSE];

const ATTACH: [Call; 4] = [fatal("openat2"), fatal("move_mount"), CLOSE, CLOSE];

/// The calls that a step makes, in order.
fn calls(step: &Step) -> Vec<Call> {
    let all = |names: &[&'static str]| names.iter().map(|name| fatal(name)).collect::<Vec<_>>();
    let written = [fatal("openat"), fatal("write"), CLOSE];
    match step {
        Step::AwaitIdMaps => all(&["read"]),
        Step::SetIds { .. } => all(&["setresgid", "setresuid"]),
        Step::WriteSysctl { path, .. } if path.to_bytes() == b"proc/sys/kernel/ns_last_pid" => {
            vec![Call("openat", BY_CLONE), Call("write", BY_CLONE), CLOSE]
        }
        Step::WriteIdMap { .. } | Step::WriteSysctl { .. } => written.to_vec(),
        Step::DieWithLauncher => all(&["prctl", "poll"]),
        Step::NewRoot => {
            let made = [fatal("fsopen"), FSCONFIG, FSCONFIG, fatal("fsmount"), CLOSE];
            let attached = [fatal("move_mount"), fatal("fchdir"), CLOSE];
            [&made[..], &attached].concat()
        }
        Step::MakeDirectory { .. } => all(&["mkdirat"]),
        Step::MakeSymlink { .. } => all(&["symlinkat"]),
        Step::MakeFile { content, .. } if content.is_empty() => vec![fatal("openat"), CLOSE],
        Step::MakeFile { .. } => written.to_vec(),
        Step::Bind { identity, .. } => {
            let mut calls = match identity {
                Some(_) => all(&["open_tree", "fstat"]),
                None => vec![fatal("openat2"), fatal("open_tree"), CLOSE],
            };
            calls.push(fatal("mount_setattr"));
            calls.extend(ATTACH);
            calls
        }
        Step::Mount { filesystem, options, .. } => {
            let mut calls = all(&["fsopen"]);
            calls.extend(options.iter().map(|_| FSCONFIG));
            calls.extend([FSCONFIG, fatal("fsmount"), CLOSE]);
            calls.extend(ATTACH);
            if filesystem.to_bytes() == b"overlay" {
                let again = Told(AGAIN);
                // The workspace's has no stead.
                let is_writable = options.iter().any(|(key, _)| key.to_bytes() == b"upperdir");
                let fatal = |call: &&mut Call| !is_writable && matches!(call.1, Fatal);
                calls.iter_mut().filter(fatal).for_each(|call| call.1 = again);
            }
            calls
        }
        Step::Cover { inode, .. } => {
            let mut calls = all(&["openat2"]);
            calls.extend(inode.map(|_| fatal("fstat")));
            calls.extend([fatal("open_tree"), CLOSE, fatal("mount_setattr")]);
            calls.extend(ATTACH);
            calls
        }
        Step::Mask { path, .. } => {
            let is_there = Path::new("/").join(path.to_string()).exists();
            let looked_at = Call("fstat", Answer(Errno::ENOENT, "this kernel has no such entry"));
            [looked_at].into_iter().chain(is_there.then_some(fatal("mount"))).collect()
        }
        Step::MakeWhiteout { .. } => vec![Call("mknodat", Told(AGAIN))],
        Step::MustBe { .. } => vec![fatal("openat2"), fatal("fstat"), CLOSE],
        Step::Seal { .. } => all(&["mount_setattr"]),
        Step::Detach { .. } => all(&["umount2"]),
        Step::RemoveDirectory { .. } => all(&["unlinkat"]),
        Step::PivotRoot => all(&["pivot_root"]),
        Step::DetachOldRoot => all(&["umount2", "chdir"]),
        Step::SetHostname { .. } => all(&["sethostname"]),
        Step::LoopbackUp => vec![fatal("socket"), fatal("ioctl"), CLOSE],
        Step::StartNetwork => vec![Call("clone", BY_CLONE)],
        Step::EnterNetwork => {
            vec![Call("wait4", BY_CLONE), Call("ioctl", BY_CLONE), Call("setns", BY_CLONE), CLOSE, CLOSE]
        }
        Step::ResetSignals => {
            let mut calls = vec![fatal("rt_sigaction"); 64];
            for signal in [libc::SIGKILL, libc::SIGSTOP] {
                let unchangeable = Harmless("the kernel itself says that these cannot be changed");
                calls[signal as usize - 1] = Call("rt_sigaction", unchangeable);
            }
            calls
        }
        Step::NewSession { terminal: false } => all(&["setsid"]),
        Step::NewSession { terminal: true } => {
            let mut calls = all(&["setsid", "openat", "ioctl", "ioctl", "ioctl", "sendmsg"]);
            calls.push(CLOSE);
            calls
        }
        Step::NewSessionKeyring => all(&["keyctl"]),
        Step::DropCapabilities => {
            let unknown = "a kernel before this one does not know that capability";
            let mut calls = vec![fatal("prctl"); 64];
            // The highest that the kernel knows.
            calls[63 - last_capability()] = Call("prctl", Answer(Errno::EINVAL, unknown));
            for call in &mut calls[..63 - last_capability()] {
                *call = Call("prctl", Answer(Errno::EINVAL, "the kernel's own answer"));
            }
            calls.extend(all(&["prctl", "capset"]));
            calls
        }
        Step::ClearCommandLine | Step::ClearDumpable | Step::NoNewPrivs => all(&["prctl"]),
        Step::StartProvider => all(&["clone"]),
        Step::EnterCgroup => all(&["write"]),
        Step::NewCgroupNamespace => all(&["unshare"]),
        Step::NewProcessGroup { leads_session: true } => all(&["setsid"]),
        Step::NewProcessGroup { .. } => all(&["setpgid"]),
        Step::SetDescriptors { keep } => {
            // Standard input is /dev/null here, and opened in the cell.
            let mut calls = vec![fatal("openat"), fatal("dup3"), CLOSE];
            calls.extend(all(&["dup3", "dup3", "close_range"]));
            calls.extend(keep.iter().map(|_| fatal("dup3")));
            calls
        }
        Step::SetLimit { .. } => all(&["setrlimit"]),
        Step::SetUmask { .. } => vec![UMASK],
        Step::ChangeDirectory { .. } => all(&["chdir"]),
        Step::CreateRuleset { .. } => all(&["landlock_create_ruleset"]),
        Step::AllowPath { .. } => vec![fatal("openat2"), fatal("landlock_add_rule"), CLOSE],
        Step::RestrictSelf => vec![fatal("landlock_restrict_self"), CLOSE],
        Step::InstallFilter { .. } => all(&["seccomp"]),
        // What the copy does is not its doing.
        Step::TestFromWithin => all(&["clone", "wait4"]),
        Step::WaitAtGate => {
            let refused = Answer(Errno::EACCES, "what Landlock itself answers here");
            let mut calls = all(&["prctl"]);
            calls.push(Call("openat", refused));
            calls.extend(all(&["write", "read"]));
            calls
        }
        Step::MustBeReadable { .. } => vec![fatal("openat"), CLOSE],
        Step::Execute => all(&["write", "rt_sigprocmask", "execve"]),
    }
}

/// The calls of a plan that has a terminal, where they differ.
fn calls_with_terminal(step: &Step) -> Vec<Call> {
    let mut calls = calls(step);
    if matches!(step, Step::SetDescriptors { .. }) {
        calls.retain(|Call(name, _)| !["openat", "close"].contains(name));
    }
    if matches!(step, Step::NewProcessGroup { .. }) {
        calls.push(Call("getpgrp", Infallible));
        calls.push(fatal("ioctl"));
    }
    calls
}

fn last_capability() -> usize {
    // SAFETY: no memory is involved; a number that is no capability is refused.
    let is_known = |number: &usize| unsafe { libc::prctl(libc::PR_CAPBSET_READ, *number) } >= 0;
    (0..).take_while(is_known).last().unwrap()
}

/// The launcher's own calls that a launch rests on, whichever step they serve.
const LAUNCHERS: [&str; 10] = [
    "pipe2",
    "socketpair",
    "setsockopt",
    "prctl",
    "clone",
    "rt_sigprocmask",
    "signalfd4",
    "setgroups",
    "setresuid",
    "setresgid",
];

/// System calls by number, under the names that messages use.
const NAMES: [(i64, &str); 61] = [
    (libc::SYS_brk, "brk"),
    (libc::SYS_capset, "capset"),
    (libc::SYS_chdir, "chdir"),
    (libc::SYS_clone, "clone"),
    (libc::SYS_close, "close"),
    (libc::SYS_close_range, "close_range"),
    (libc::SYS_dup3, "dup3"),
    (libc::SYS_execve, "execve"),
    (libc::SYS_fchdir, "fchdir"),
    (libc::SYS_fcntl, "dup3"),
    (libc::SYS_fsconfig, "fsconfig"),
    (libc::SYS_fsmount, "fsmount"),
    (libc::SYS_fsopen, "fsopen"),
    (libc::SYS_fstat, "fstat"),
    (libc::SYS_getpgrp, "getpgrp"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_keyctl, "keyctl"),
    (libc::SYS_landlock_add_rule, "landlock_add_rule"),
    (libc::SYS_landlock_create_ruleset, "landlock_create_ruleset"),
    (libc::SYS_landlock_restrict_self, "landlock_restrict_self"),
    (libc::SYS_mkdirat, "mkdirat"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_mount_setattr, "mount_setattr"),
    (libc::SYS_move_mount, "move_mount"),
    (libc::SYS_mprotect, "mprotect"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_newfstatat, "fstat"),
    (libc::SYS_open_tree, "open_tree"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_openat2, "openat2"),
    (libc::SYS_pipe2, "pipe2"),
    (libc::SYS_pivot_root, "pivot_root"),
    (libc::SYS_poll, "poll"),
    (libc::SYS_prctl, "prctl"),
    (libc::SYS_prlimit64, "setrlimit"),
    (libc::SYS_read, "read"),
    (libc::SYS_rt_sigaction, "rt_sigaction"),
    (libc::SYS_rt_sigprocmask, "rt_sigprocmask"),
    (libc::SYS_seccomp, "seccomp"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_setgroups, "setgroups"),
    (libc::SYS_sethostname, "sethostname"),
    (libc::SYS_setpgid, "setpgid"),
    (libc::SYS_setresgid, "setresgid"),
    (libc::SYS_setresuid, "setresuid"),
    (libc::SYS_setrlimit, "setrlimit"),
    (libc::SYS_setsid, "setsid"),
    (libc::SYS_setsockopt, "setsockopt"),
    (libc::SYS_signalfd4, "signalfd4"),
    (libc::SYS_socket, "socket"),
    (libc::SYS_socketpair, "socketpair"),
    (libc::SYS_symlinkat, "symlinkat"),
    (libc::SYS_umask, "umask"),
    (libc::SYS_mount, "mount"),
    (libc::SYS_setns, "setns"),
    (libc::SYS_umount2, "umount2"),
    (libc::SYS_mknodat, "mknodat"),
    (libc::SYS_unlinkat, "unlinkat"),
    (libc::SYS_unshare, "unshare"),
    (libc::SYS_wait4, "wait4"),
    (libc::SYS_write, "write"),
];

/// The calls that a launch makes in all of its processes, by number.
pub fn calls_of(command: Command) -> BTreeSet<i64> {
    trace(command, None).calls.into_values().flatten().collect()
}

fn name(number: i64) -> String {
    let known = NAMES.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("call {number}"), |(_, name)| (*name).to_owned())
}

/// A launch: what is run, and the plan that it will take.
struct Scenario {
    site: Site,
    options: Vec<String>,
    terminal: bool,
    by_root: bool,
}

/// What the provider touches.
const MARKER: &str = "own/a/marker";

const POLICY: &str = r#"version = 1
[cell]
hostname = "injected"
[filesystem]
ro_bind = ["bin"]
tmpfs = ["/opt/scratch"]
[run]
expose = ["own", { path = "made/one", create = true }]
[channel]
dir = "channel"
fifo = ["activity.fifo"]
lock = ["activity.lock"]
read_only = ["descriptor.json"]
execute = ["helper"]
[workspace]
dir = "work"
access = "read-only"
"#;

impl Scenario {
    fn new(options: &[&str]) -> Option<Scenario> {
        let site = Site::new()?;
        for name in ["own", "own/a", "bin", "channel", "work", "reports"] {
            site.directory(name);
        }
        site.file("channel/activity.lock", "", 0o600);
        site.file("channel/descriptor.json", "{}", 0o600);
        site.file("channel/helper", "#!/bin/sh\n", 0o700);
        site.fifo("channel/activity.fifo");
        site.file("policy.toml", POLICY, 0o644);
        let policy = site.text("policy.toml");
        let mut words = vec!["--policy".to_owned(), policy];
        words.extend(options.iter().map(|option| (*option).to_owned()));
        Some(Scenario { site, options: words, terminal: false, by_root: false })
    }

    /// With the evidence at the gate, which makes the provider's process a copy.
    fn with_report(mut self) -> Scenario {
        let report = self.site.text("reports/r.jsonl");
        self.options.extend(["--report".to_owned(), report]);
        self
    }

    /// With the test from within, which forks once more.
    fn with_test(mut self) -> Scenario {
        self.options.push("--verify".to_owned());
        self
    }

    /// As the launcher itself plans it.
    fn plan(&self) -> Plan {
        let words = ["cellblock", "run"].into_iter().map(OsString::from);
        let words = words.chain(self.options.iter().map(OsString::from));
        let words = words.chain(["--", "/usr/bin/touch"].map(OsString::from));
        let cli = cli::parse(words.collect(), |_| unreachable!()).unwrap();
        let Cli::Run(run) = cli.command else { unreachable!() };
        let ids = Ids { started_by_root: self.by_root, ..self.site.ids };
        let policy = load(&run.0.cell, &|_| None, self.site.root()).unwrap();
        let request = Request {
            command: self.provider().map(OsString::from).to_vec(),
            gate: run.0.report.is_some() || run.0.test.verify,
            test: run.0.test.verify,
            terminal: self.terminal,
            ..Request::default()
        };
        plan::build(&policy, &cellblock::launch::probe(&policy, ids).unwrap().1, &request).unwrap()
    }

    /// Touches a file that shows that it ran.
    fn provider(&self) -> [String; 2] {
        ["/usr/bin/touch".to_owned(), self.site.text(MARKER)]
    }

    fn command(&self) -> Command {
        let mut command = match self.by_root {
            true => {
                let mut command = Command::new(self.site.program());
                let ids = self.site.ids;
                command.current_dir(self.site.root()).stdin(Stdio::null());
                command.args(["run", "--run-as", &format!("{}:{}", ids.uid, ids.gid)]);
                command
            }
            false => {
                let mut command = self.site.command(self.site.program());
                command.arg("run");
                command
            }
        };
        command.args(&self.options).args(["--json-status-fd", "1"]);
        command.arg("--").args(self.provider());
        command
    }

    fn run(&self, target: Option<Target>) -> Run {
        let mut command = self.command();
        // The other end stays open until the run is over.
        let _terminal = self.terminal.then(|| {
            let pair = openpty(None, None).unwrap();
            command.stdin(pair.slave);
            pair.master
        });
        trace(command, target)
    }

    /// Runs it undisturbed; returns its calls with the steps they belong to.
    fn survey(&self) -> Vec<Point> {
        // The first launch makes what is to be made, and looks at the host again.
        self.run(None);
        assert!(self.ran(), "the provider leaves a mark");
        let run = self.run(None);
        assert!(run.status.success(), "{}", run.stderr);
        assert!(self.ran(), "the provider leaves a mark");
        // Planned when what was to be made is there, as the launcher's own is.
        let plan = self.plan();

        let mut points = Vec::new();
        let judged = |step| match self.terminal {
            true => calls_with_terminal(step),
            false => calls(step),
        };
        let preamble = PREAMBLE.iter().map(|call| (None, *call));
        let init = plan.init.iter().flat_map(|step| {
            let calls = judged(step).into_iter();
            calls.map(move |call| (Some(step.clone()), call))
        });
        let init = preamble.chain(init).collect::<Vec<_>>();
        // What follows is behind the provider's start, and so behind its exec or
        // beside its own steps.
        let made = &run.calls[&Process::Init][..];
        points.extend(matched(Process::Init, &init, made));
        let provider = plan.provider.iter().flat_map(|step| {
            let calls = judged(step).into_iter();
            calls.map(move |call| (Some(step.clone()), call))
        });
        let provider = provider.collect::<Vec<_>>();
        let made = &run.calls[&Process::Provider];
        points.extend(matched(Process::Provider, &provider, made));
        assert_eq!(made.len(), provider.len(), "calls behind the last step");

        let mut launchers: Vec<_> = run.calls[&Process::Launcher].iter().enumerate().collect();
        let until = launchers
            .iter()
            .rposition(|(_, number)| name(**number) == "signalfd4")
            .map_or(launchers.len(), |last| last + 4);
        launchers.truncate(until);
        points.extend(launchers.into_iter().filter_map(|(index, number)| {
            let name = LAUNCHERS.iter().find(|known| **known == name(*number))?;
            let made = &run.calls[&Process::Launcher];
            let target = Target::of(Process::Launcher, made, index);
            let call = match (*name, target.nth) {
                ("prctl", 0) => Call(
                    name,
                    Harmless("it asks for a filter, and where that is not told the calls are tried"),
                ),
                ("prctl", 1) => Call(name, Question),
                // It unblocks what the launcher does not read, and nix drops its answer.
                ("rt_sigprocmask", 1) => return None,
                _ => fatal(name),
            };
            let step = None;
            Some(Point { target, step, call })
        }));
        points.extend(self.map_writes(&run.calls[&Process::Launcher]));
        points
    }

    /// The calls by which a launcher that is root writes the child's maps and
    /// lets it go on: the first of their kind behind the clone.
    fn map_writes(&self, made: &[i64]) -> Vec<Point> {
        let clone = made.iter().position(|number| name(*number) == "clone").unwrap();
        let first = |call: &'static str, count: usize| {
            let calls = (clone..made.len()).filter(move |index| name(made[*index]) == call);
            calls.take(if self.by_root { count } else { 0 }).map(move |index| Point {
                target: Target::of(Process::Launcher, made, index),
                step: None,
                call: fatal(call),
            })
        };
        first("openat", 3).chain(first("write", 4)).collect()
    }

    fn ran(&self) -> bool {
        fs::remove_file(self.site.path(MARKER)).is_ok()
    }

    /// Every path below the site.
    fn files(&self) -> Vec<String> {
        fn walk(dir: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                found.push(path.display().to_string());
                if path.is_dir() && !path.is_symlink() {
                    walk(&path, found);
                }
            }
        }
        let mut found = Vec::new();
        walk(self.site.root(), &mut found);
        found.sort();
        found
    }

    /// What is wrong with how the launch took this failure.
    fn judge(&self, point: &Point) -> Result<(), String> {
        match self.judge_once(point) {
            // Somebody has replaced a file of /etc meanwhile, as ldconfig(8) does.
            Err(what) if what.contains("ESTALE") => self.judge_once(point),
            result => result,
        }
    }

    fn judge_once(&self, point: &Point) -> Result<(), String> {
        let report = self.site.path("reports/r.jsonl");
        let _ = fs::remove_file(&report);
        let before = self.files();
        let run = self.run(Some(point.target));
        let ran = self.ran();
        let reported = fs::read_to_string(&report).ok();
        let _ = fs::remove_file(&report);
        let errno = point.target.errno;
        let Run { stderr, stdout, .. } = &run;
        let check = |right: bool, what: &str| match right {
            true => Ok(()),
            false => Err(format!("{what}: {} {stderr}{stdout}", run.status)),
        };
        check(run.hit, "the call was not made")?;
        check(!run.hung, "it hangs, or a process is left")?;
        check(self.files() == before, "files are left")?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        check(!mounts.contains(&self.site.text("")), "a mount is left")?;

        let Call(call, judgement) = point.call;
        let stage = match (&point.step, judgement) {
            (_, Infallible) => return Ok(()),
            (_, Harmless(why) | Told(why)) => Err(why),
            (_, Answer(answer, why)) if answer == errno => Err(why),
            // What the call had to show is missing.
            (Some(Step::WaitAtGate), _) if call == "openat" => Ok("evidence"),
            (Some(step), _) => Ok(step.stage().name()),
            (None, _) => Ok(""),
        };
        let stage = match stage {
            Ok(stage) => stage,
            Err(why) => {
                check(run.status.success() && ran, &format!("fatal, but {why}"))?;
                let told = stderr.ends_with("is built without an overlay\n");
                let is_right = if matches!(judgement, Told(_)) { told } else { stderr.is_empty() };
                return check(is_right, &format!("what is said, as {why}"));
            }
        };
        check(!ran, "the provider has run")?;
        let is_execve = call == "execve";
        let (exit, outcome) = match (is_execve, errno) {
            (true, Errno::ENOENT) => (127, "exec-failed"),
            (true, _) => (126, "exec-failed"),
            (false, _) => (125, "setup-failed"),
        };
        check(run.status.code() == Some(exit), "the exit status")?;
        let starts = stderr.starts_with(&format!("cellblock: {stage}"));
        check(starts, &format!("the stage is not {stage}"))?;
        let told = stderr.contains(&format!(": {errno:?} "));
        check(told || matches!(judgement, Question), "the errno is missing")?;
        let explained = ["\ncause: ", "\nremedy: "].iter().all(|word| stderr.contains(word));
        check(explained, "no cause or no remedy")?;
        let named = is_execve
            || point.step.is_none()
            || stage == "evidence"
            || stderr.contains(&format!(": {call}: "));
        check(named, "the call is missing")?;
        let last = stdout.lines().last().unwrap_or_default();
        let told = format!("\"outcome\":\"{outcome}\"");
        check(last.contains("\"event\":\"exit\""), "no exit line")?;
        check(last.contains(&told), "another outcome")?;
        if let Some(reported) = reported {
            let last = reported.lines().last().unwrap_or_default();
            check(last.contains(&told), "the report's last line")?;
        } else if self.options.iter().any(|option| option == "--report") {
            check(false, "no report")?;
        }
        Ok(())
    }
}

/// One call of an undisturbed run.
#[derive(Clone, Debug)]
struct Point {
    target: Target,
    /// None for the launcher's own, and for what init does first.
    step: Option<Step>,
    call: Call,
}

impl Point {
    /// What points that fail alike have in common.
    fn kind(&self) -> String {
        let step = format!("{:?}", self.step);
        let step = step.split([' ', '{', ')']).next().unwrap_or_default();
        let stage = self.step.as_ref().map(Step::stage);
        format!("{:?} {stage:?} {step} {:?}", self.target.process, self.call)
    }
}

/// Lays the expected calls over those that were made.
fn matched(process: Process, expected: &[(Option<Step>, Call)], made: &[i64]) -> Vec<Point> {
    let points = expected.iter().enumerate();
    let points = points.map(|(index, (step, call))| {
        assert_eq!(
            made.get(index).copied().map(name).as_deref(),
            Some(call.0),
            "call {index} of {process:?}, step {step:?}: teach the table what this step does"
        );
        Point { target: Target::of(process, made, index), step: step.clone(), call: *call }
    });
    points.collect()
}

/// Which failures to try. In the long run all of them on each kind of point once,
/// and on every other point one of them in turn; else one on each of the first few
/// points of a kind.
fn failures(points: Vec<Point>) -> Vec<Point> {
    const FEW: usize = 2;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    for (turn, point) in points.into_iter().enumerate() {
        let count = seen.entry(point.kind()).or_default();
        let one = &ERRNOS[turn % ERRNOS.len()..=turn % ERRNOS.len()];
        let errnos = match (long::is_asked_for(), *count) {
            (true, 0) => &ERRNOS[..],
            (false, FEW..) => &[],
            _ => one,
        };
        *count += 1;
        failures.extend(
            errnos.iter().map(|&errno| Point { target: Target { errno, ..point.target }, ..point.clone() }),
        );
    }
    failures
}

/// Tries the failures, four at a time, each thread with an instance of its own.
fn try_all(make: impl Fn() -> Option<Scenario> + Sync, wanted: impl Fn(&Point) -> bool) {
    // Which masks find something is seen in the host's own procfs.
    if !skip::has_whole_proc() {
        return;
    }
    let Some(first) = make() else { return };
    let points: Vec<Point> = first.survey().into_iter().filter(&wanted).collect();
    let calls = points.len();
    let failures = failures(points);
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for scenario in [Some(first), make(), make(), make()].into_iter().flatten() {
            let (next, wrong, failures) = (&next, &wrong, &failures);
            scope.spawn(move || {
                // The plan's exposure is made here, and is no leftover.
                scenario.run(None);
                scenario.ran();
                while let Some(point) = failures.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(what) = scenario.judge(point) {
                        let errno = point.target.errno;
                        let kind = point.kind();
                        let nth = point.target.nth + 1;
                        let what = format!("{kind} (no. {nth}), {errno:?}: {what}");
                        wrong.lock().unwrap().push(what);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    println!(
        "{} failures of {calls} calls in {:.1} s, {} wrong",
        failures.len(),
        started.elapsed().as_secs_f64(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_call_of_a_launch_can_fail() {
    try_all(|| Some(Scenario::new(&[])?.with_report()), |_| true);
}

#[test]
fn a_provider_that_shares_inits_memory_can_fail() {
    try_all(|| Scenario::new(&[]), |point| point.target.process == Process::Provider);
}

#[test]
fn a_test_from_within_can_fail() {
    let scenario = || Some(Scenario::new(&[])?.with_test());
    try_all(scenario, |point| point.step.as_ref().map(Step::stage) == Some(Stage::Verify));
}

#[test]
fn a_launch_on_a_terminal_can_fail() {
    let scenario = || {
        let mut scenario = Scenario::new(&[])?;
        scenario.terminal = true;
        Some(scenario)
    };
    try_all(scenario, |point| {
        let stage = point.step.as_ref().map(Step::stage);
        matches!(stage, Some(Stage::Session | Stage::Descriptors))
            && !matches!(point.step, Some(Step::ResetSignals))
    });
}

#[test]
fn a_launcher_that_cannot_wait_ends_the_run() {
    let Some(scenario) = Scenario::new(&[]) else { return };
    // The first launch makes what is to be made.
    scenario.run(None);
    let made = &scenario.run(None).calls[&Process::Launcher];
    let clone = made.iter().position(|number| name(*number) == "clone").unwrap();
    let mut said = 0;
    for index in (clone..made.len()).filter(|index| made[*index] == libc::SYS_poll) {
        let target = Target { errno: Errno::ENOMEM, ..Target::of(Process::Launcher, made, index) };
        let run = scenario.run(Some(target));
        assert!(!run.hung, "{target:?}: {}", run.stderr);
        let is_said =
            run.stderr.contains("launch: the launcher cannot wait for the cell and has ended it: ENOMEM");
        // What a line of the status asks poll is asked again later.
        assert_eq!(run.status.code(), Some(if is_said { 125 } else { 0 }), "{target:?}: {}", run.stderr);
        said += usize::from(is_said);
    }
    assert!(said > 0, "the loop calls poll(2)");
}

/// It closes what it has open below the status and above it.
#[test]
fn an_init_that_cannot_close_its_descriptors_says_so() {
    let Some(scenario) = Scenario::new(&[]) else { return };
    scenario.run(None);
    let made = &scenario.run(None).calls[&Process::Init];
    let closes = (0..made.len()).filter(|index| made[*index] == libc::SYS_close_range).collect::<Vec<_>>();
    assert_eq!(closes.len(), 2);
    for index in closes {
        let run =
            scenario.run(Some(Target { errno: Errno::EPERM, ..Target::of(Process::Init, made, index) }));
        assert_eq!(run.status.code(), Some(125), "{}", run.stderr);
        let said = "start the provider's process: close_range: EPERM ";
        assert!(run.stderr.contains(said) && run.stderr.contains("\nremedy: "), "{}", run.stderr);
    }
}

#[test]
fn a_provider_may_let_go_of_its_terminal() {
    let Some(site) = Site::new() else { return };
    let pair = openpty(None, None).unwrap();
    let mut command = site.command(site.program());
    let script = "exec < /dev/null; sleep 0.2; exec < /dev/tty && test -t 0";
    command.args(["run", "--", "sh", "-c", script]);
    let output = command.stdin(pair.slave).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_launch_with_hidden_paths_can_fail() {
    let scenario = || {
        let scenario = Scenario::new(&[])?;
        let site = &scenario.site;
        for name in
            ["instance", "instance/runs", "instance/runs/a", "instance/db", "shared", "shared/x", "around"]
        {
            site.directory(name);
        }
        site.directory("around/work");
        site.file("around/work/.envrc", "", 0o600);
        let policy = POLICY
            .replace("ro_bind = [\"bin\"]", "ro_bind = [\"bin\", \"instance\"]\nbind = [\"shared\"]")
            .replace("[run]\n", "[run]\nhide = [\"instance/runs\", \"instance/db\", \"shared/x\", \"own\", \"made\"]\n")
            .replace("\"own\", {", "\"own/a\", \"instance/runs/a\", {")
            .replace("dir = \"work\"\naccess = \"read-only\"", "dir = \"around/work\"\nprotect = [\".envrc\", \".git/hooks/\"]\nprotect_missing = \"overlay\"")
            .replace("[channel]", "create = [\"instance/runs/a/made\"]\n[channel]");
        site.file("policy.toml", policy, 0o600);
        Some(scenario)
    };
    try_all(scenario, |point| point.step.as_ref().map(Step::stage) == Some(Stage::Mounts));
}

#[test]
fn a_launch_by_root_can_fail() {
    if !skip::has_root() {
        return;
    }
    let scenario = || {
        let mut scenario = Scenario::new(&[])?;
        scenario.by_root = true;
        Some(scenario)
    };
    try_all(scenario, |point| {
        point.target.process == Process::Launcher || point.step.as_ref().map(Step::stage) == Some(Stage::Ids)
    });
}

/// Which process of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Process {
    Launcher,
    Init,
    Provider,
}

/// A call that is to fail.
#[derive(Clone, Copy, Debug)]
struct Target {
    process: Process,
    number: i64,
    /// Its place among the calls with this number of that process, from 0.
    nth: usize,
    errno: Errno,
}

impl Target {
    /// The call at `index` of those that a process has made.
    fn of(process: Process, made: &[i64], index: usize) -> Target {
        let number = made[index];
        let nth = made[..index].iter().filter(|made| **made == number).count();
        let errno = Errno::EPERM;
        Target { process, number, nth, errno }
    }
}

/// A traced launch that is over.
struct Run {
    status: ExitStatus,
    stdout: String,
    stderr: String,
    /// The calls of each process, those of the provider up to its exec.
    calls: BTreeMap<Process, Vec<i64>>,
    /// Whether the target was met, as the call that it had been.
    hit: bool,
    /// Whether anything of it had to be killed.
    hung: bool,
}

/// How long a launch may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs `command` under a tracer that makes one call fail.
fn trace(mut command: Command, target: Option<Target>) -> Run {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: ptrace(2) with PTRACE_TRACEME takes no memory and is safe after fork.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    // The tracer takes its end from waitpid(2).
    #[expect(clippy::zombie_processes, reason = "the tracer waits for it")]
    let child = command.spawn().expect("cellblock starts");
    let mut tracer = Tracer {
        target,
        pids: Arc::default(),
        found: Vec::new(),
        helpers: Vec::new(),
        calls: BTreeMap::new(),
        failing: false,
        hit: false,
        status: None,
    };
    let (over, watched) = channel::<()>();
    let pids = Arc::clone(&tracer.pids);
    let watchdog = std::thread::spawn(move || {
        let late = watched.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout);
        for pid in pids.lock().unwrap().iter().filter(|_| late) {
            let _ = kill(*pid, Signal::SIGKILL);
        }
        late
    });
    tracer.follow(&child);
    drop(over);
    let hung = watchdog.join().unwrap();
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child.stdout.unwrap().read_to_string(&mut stdout).unwrap();
    child.stderr.unwrap().read_to_string(&mut stderr).unwrap();
    Run {
        status: tracer.status.expect("the launcher has ended"),
        stdout,
        stderr,
        calls: tracer.calls,
        hit: tracer.hit,
        hung,
    }
}

struct Tracer {
    target: Option<Target>,
    /// Those that live.
    pids: Arc<Mutex<Vec<Pid>>>,
    /// The launcher, init and the provider, in the order of their making.
    found: Vec<Pid>,
    /// The launcher's children that are no cell: one tries its calls under a
    /// filter, one keeps what a test has made. And init's that is no provider.
    helpers: Vec<Pid>,
    calls: BTreeMap<Process, Vec<i64>>,
    /// Whether the target has been entered and not left.
    failing: bool,
    hit: bool,
    status: Option<ExitStatus>,
}

impl Tracer {
    /// Follows the launcher and all that comes of it, to the last one's end.
    fn follow(&mut self, launcher: &Child) {
        self.meet(Pid::from_raw(launcher.id() as i32));
        // Other threads have tracees too.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        while let Ok(status) = waitpid(None, Some(flags)) {
            self.take(status);
        }
    }

    fn meet(&mut self, pid: Pid) {
        if !self.found.contains(&pid) && !self.helpers.contains(&pid) {
            self.found.push(pid);
            self.pids.lock().unwrap().push(pid);
        }
    }

    fn take(&mut self, status: WaitStatus) {
        match status {
            WaitStatus::Exited(pid, code) => self.end(pid, code << 8),
            WaitStatus::Signaled(pid, signal, _) => self.end(pid, signal as i32),
            WaitStatus::PtraceSyscall(pid) => {
                self.stop(pid);
                self.go_on(pid, None);
            }
            WaitStatus::PtraceEvent(pid, _, event) => {
                if event == libc::PTRACE_EVENT_EXEC && self.process(pid) == Some(Process::Provider) {
                    // The rest is the provider's own.
                    let _ = ptrace::detach(pid, None);
                    self.forget(pid);
                    return;
                }
                if event != libc::PTRACE_EVENT_EXEC {
                    let child = Pid::from_raw(ptrace::getevent(pid).unwrap_or_default() as i32);
                    let flags = ptrace::getregs(pid).map_or(0, |registers| registers.rdi);
                    let has = |flag: libc::c_int| flags & flag as u64 != 0;
                    let taken_for = match self.process(pid) {
                        Some(Process::Launcher) if !has(libc::CLONE_NEWUSER) => Some(Process::Init),
                        Some(Process::Init) if has(libc::CLONE_FILES) => Some(Process::Provider),
                        _ => None,
                    };
                    if let Some(process) = taken_for {
                        // It may have begun before its parent's word.
                        self.found.retain(|found| *found != child);
                        self.calls.remove(&process);
                        self.helpers.push(child);
                    }
                    self.meet(child);
                }
                self.go_on(pid, None);
            }
            WaitStatus::Stopped(pid, Signal::SIGTRAP) if self.calls.is_empty() => {
                let options = Options::PTRACE_O_TRACESYSGOOD
                    | Options::PTRACE_O_TRACECLONE
                    | Options::PTRACE_O_TRACEFORK
                    | Options::PTRACE_O_TRACEVFORK
                    | Options::PTRACE_O_TRACEEXEC
                    | Options::PTRACE_O_EXITKILL;
                ptrace::setoptions(pid, options).unwrap();
                self.calls.insert(Process::Launcher, Vec::new());
                self.go_on(pid, None);
            }
            WaitStatus::Stopped(pid, Signal::SIGSTOP) if !self.is_running(pid) => {
                // A new child's first stop, which may come before its parent's word.
                self.meet(pid);
                if let Some(process) = self.process(pid) {
                    self.calls.insert(process, Vec::new());
                }
                self.go_on(pid, None);
            }
            WaitStatus::Stopped(pid, signal) => self.go_on(pid, signal),
            _ => {}
        }
    }

    fn is_running(&self, pid: Pid) -> bool {
        let process = self.process(pid);
        process.is_some_and(|process| self.calls.contains_key(&process))
    }

    fn process(&self, pid: Pid) -> Option<Process> {
        let index = self.found.iter().position(|found| *found == pid)?;
        let all = [Process::Launcher, Process::Init, Process::Provider];
        all.get(index).copied()
    }

    /// A stop at the beginning or the end of a call.
    fn stop(&mut self, pid: Pid) {
        let Some(process) = self.process(pid) else {
            return;
        };
        let (Ok(info), Ok(mut registers)) = (ptrace::syscall_info(pid), ptrace::getregs(pid)) else {
            return;
        };
        match info.op {
            libc::PTRACE_SYSCALL_INFO_ENTRY => {
                let number = registers.orig_rax as i64;
                // The standard library of a debug build looks before it closes.
                if number == libc::SYS_fcntl && registers.rsi == libc::F_GETFD as u64 {
                    return;
                }
                let calls = self.calls.entry(process).or_default();
                calls.push(number);
                let same = calls.iter().filter(|made| **made == number).count();
                let failing = !self.hit
                    && self.target.is_some_and(|target| {
                        (target.process, target.number, target.nth) == (process, number, same - 1)
                    });
                self.failing |= failing;
                self.hit |= failing;
                // close(2) does its work even where it fails.
                if failing && number != libc::SYS_close {
                    registers.orig_rax = u64::MAX;
                    let _ = ptrace::setregs(pid, registers);
                }
            }
            libc::PTRACE_SYSCALL_INFO_EXIT if self.failing => {
                let target = self.target.filter(|target| target.process == process);
                if let Some(target) = target {
                    registers.rax = (target.errno as i64).wrapping_neg() as u64;
                    let _ = ptrace::setregs(pid, registers);
                    self.failing = false;
                }
            }
            _ => {}
        }
    }

    fn go_on(&self, pid: Pid, signal: impl Into<Option<Signal>>) {
        // What has gone meanwhile tells so by itself.
        let _ = match self.hit && !self.failing {
            true => ptrace::cont(pid, signal),
            false => ptrace::syscall(pid, signal),
        };
    }

    fn forget(&self, pid: Pid) {
        self.pids.lock().unwrap().retain(|known| *known != pid);
    }

    fn end(&mut self, pid: Pid, status: i32) {
        self.forget(pid);
        if self.found.first() == Some(&pid) {
            self.status = Some(ExitStatus::from_raw(status));
        }
    }
}
