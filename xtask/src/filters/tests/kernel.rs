//! Every call made for real, in a process of its own, without the filter and with it.
//!
//! Arguments are wrong on purpose, descriptor -1 and address -1, so that a call that reaches the
//! kernel comes back with some error or does nothing that lasts. Started by root this is worth
//! most: then the kernel itself refuses little, and a refusal is the filter's.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::filters::decide::{Decision, Decisions};
use crate::filters::install::Loaded;
use crate::filters::source::Action;
use crate::filters::table::Arch;
use crate::filters::{self, compile};

/// What became of a process that made one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The call returned something.
    Done,
    /// The call returned this errno.
    Failed(i32),
    /// The process ended before the call returned.
    Exited,
    /// A signal ended it.
    Killed(i32),
    /// Nothing came about in time.
    Waits,
}

/// How long a call may take, in milliseconds: `sync` as long as the disk needs, while `pause`
/// would take for ever.
fn patience(call: &str) -> i32 {
    if call == "pause" { 300 } else { 60_000 }
}

/// Combinations of arguments tried for one call at most.
const MOST: u64 = 400;

#[test]
fn the_kernel_does_as_decided() {
    let mut told_apart = BTreeMap::new();
    for name in filters::names().unwrap() {
        let source = filters::load(&name).unwrap();
        let decisions = Decisions::new(&source, Arch::NATIVE).unwrap();
        let filter = Loaded::new(&compile(&decisions).unwrap());
        for (&number, decision) in &decisions.calls {
            let patience = patience(decision.call);
            for registers in arguments(decision) {
                let without = outcome(number, &registers, None, patience);
                let with = outcome(number, &registers, Some(&filter), patience);
                let made = format!("{name}: {} {registers:x?}", decision.call);
                match &decision.rule(&registers).clause.verdict.action {
                    Action::Allow => assert_eq!(with, without, "{made} is allowed"),
                    Action::Refuse(errno) => {
                        let errno = Arch::NATIVE.constant(errno).unwrap() as i32;
                        assert_eq!(with, Outcome::Failed(errno), "{made} is refused");
                        let absent = decision.entry.group.starts_with("absent: ");
                        *told_apart.entry(decision.call).or_insert(absent) |= with != without;
                    }
                    Action::Ignore => assert_eq!(with, Outcome::Done, "{made} is ignored"),
                    Action::Kill => assert_eq!(with, Outcome::Killed(libc::SIGSYS), "{made}"),
                }
            }
        }
    }
    // Root is refused little by the kernel, so that what differs is the filter's doing.
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        told_apart.retain(|_, told| !*told);
        assert!(told_apart.is_empty(), "the kernel itself refuses {told_apart:?}");
    }
}

#[test]
fn numbers_without_a_call_are_not_there() {
    let source = filters::load("provider").unwrap();
    let decisions = Decisions::new(&source, Arch::NATIVE).unwrap();
    let filter = Loaded::new(&compile(&decisions).unwrap());
    for number in (0..1024).filter(|number| !decisions.calls.contains_key(number)) {
        let with = outcome(number, &[u64::MAX; 6], Some(&filter), patience(""));
        assert_eq!(with, Outcome::Failed(libc::ENOSYS), "{number}");
    }
}

/// Arguments that reach every rule of a call and harm nobody.
fn arguments(decision: &Decision) -> Vec<[u64; 6]> {
    match decision.call {
        // Each namespace alone, none, and all; always with a signal, so that the parent can wait,
        // and never with shared memory, in which parent and child would run on one stack.
        "clone" => {
            let bits = decision.rules.iter().flat_map(|rule| &rule.checks).map(|check| check.mask);
            let bits = bits.fold(0, |all, bits| all | bits);
            let each = (0..64).map(|bit| 1 << bit).filter(|bit| bits & bit != 0);
            let all = [0, 0x80, bits, 1 << 40, bits | 1 << 40];
            each.chain(all).map(|flags| [flags | libc::SIGCHLD as u64, 0, 0, 0, 0, 0]).collect()
        }
        // What flags of all ones would create outlives its maker.
        "msgget" | "semget" | "shmget" => vec![[u64::MAX, 0, 0, 0, 0, 0]],
        _ if decision.by_number().is_some() => vec![[u64::MAX; 6]],
        _ => super::registers(decision, u64::MAX, MOST),
    }
}

/// Makes the call in a new process, and waits `patience` milliseconds for it.
fn outcome(number: u32, registers: &[u64; 6], filter: Option<&Loaded>, patience: i32) -> Outcome {
    let (reader, writer) = pipe();
    // SAFETY: the child makes system calls only, and leaves by _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        make(number, registers, filter, &writer);
    }
    drop(writer);

    let mut ready = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut answer = [0u8; 8];
    // SAFETY: `ready` is one pollfd, `answer` has the eight bytes that are asked for.
    let (waited, got) = unsafe {
        let waited = libc::poll(&mut ready, 1, patience);
        let got = match waited {
            1 => libc::read(reader.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len()),
            _ => 0,
        };
        (waited, got)
    };
    let mut status = 0;
    // SAFETY: `child` is ours and not reaped yet, and `status` is an int.
    unsafe {
        if waited != 1 {
            libc::kill(child, libc::SIGKILL);
        }
        libc::waitpid(child, &mut status, libc::__WALL);
    }
    match (waited, got) {
        (0, _) => Outcome::Waits,
        (_, 8) => match i64::from_le_bytes(answer) {
            error @ -4095..0 => Outcome::Failed(-error as i32),
            _ => Outcome::Done,
        },
        _ if libc::WIFSIGNALED(status) => Outcome::Killed(libc::WTERMSIG(status)),
        _ => Outcome::Exited,
    }
}

/// The child: a session of its own, so that no terminal is near, then the call, then its answer.
fn make(number: u32, registers: &[u64; 6], filter: Option<&Loaded>, writer: &OwnedFd) -> ! {
    // SAFETY: plain system calls; the one under test is made with arguments that are no valid
    // address. What it leaves of this process is only asked for `write` and `_exit`.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        if filter.is_some_and(|filter| filter.install().is_err()) {
            libc::_exit(1);
        }
        let me = libc::getpid();
        let answer = syscall(number, registers);
        // The call may have made another of us.
        if libc::getpid() == me {
            libc::write(writer.as_raw_fd(), (&raw const answer).cast(), 8);
        }
        libc::_exit(0)
    }
}

/// The call itself. Always inlined: after `vfork` parent and child return on one stack.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
unsafe fn syscall(number: u32, registers: &[u64; 6]) -> i64 {
    let answer;
    // SAFETY: the caller's; the kernel keeps all registers but rax, rcx and r11.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") i64::from(number) => answer,
            in("rdi") registers[0],
            in("rsi") registers[1],
            in("rdx") registers[2],
            in("r10") registers[3],
            in("r8") registers[4],
            in("r9") registers[5],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

/// The call itself.
#[inline(always)]
#[cfg(target_arch = "aarch64")]
unsafe fn syscall(number: u32, registers: &[u64; 6]) -> i64 {
    let answer;
    // SAFETY: the caller's; the kernel keeps all registers but x0.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") u64::from(number),
            inlateout("x0") registers[0] => answer,
            in("x1") registers[1],
            in("x2") registers[2],
            in("x3") registers[3],
            in("x4") registers[4],
            in("x5") registers[5],
        );
    }
    answer
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which are then owned here alone.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}
