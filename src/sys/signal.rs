//! Signals as init and the provider's process see them.

use std::mem::MaybeUninit;
use std::time::Duration;

use super::{Call, Errno, Result, check};

/// Every signal to its default, but for those that cannot be changed.
///
/// execve(2) resets handlers by itself and keeps what is ignored, which the
/// launcher's own start and the harness may have set.
pub fn reset_dispositions() -> Result<()> {
    for signal in 1..=64 {
        // Zeroes are SIG_DFL, no flags and an empty mask. Raw, as libc lets nobody
        // touch the signals it keeps for itself, and its own posix_spawn(3) leaves
        // just those ignored.
        let default = [0u64; 4];
        let null = std::ptr::null_mut::<u64>();
        let size = size_of::<u64>();
        // SAFETY: the kernel's sigaction is no longer than `default` on any machine, and its set of
        // signals is 8 bytes.
        let result = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, null, size) };
        match check(Call::Sigaction, result) {
            // These two cannot be changed.
            Err(_) if matches!(signal, libc::SIGKILL | libc::SIGSTOP) => {}
            result => drop(result?),
        }
    }
    Ok(())
}

/// Lets a write to a pipe that nobody reads fail with EPIPE, and one past the
/// limit on file sizes with EFBIG.
pub fn ignore_failing_writes() {
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        // SAFETY: SIG_IGN is a valid disposition.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Lets a child that has ended wait for the launcher. The kernel itself reaps the
/// children of one that ignores SIGCHLD, and what they used is lost (wait(2)).
pub fn keep_children() {
    // SAFETY: SIG_DFL is a valid disposition.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Blocks every signal.
pub fn block_all() -> Result<()> {
    // SAFETY: sigfillset fills the set that sigprocmask then reads.
    let result = unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigfillset(set.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut())
    };
    check(Call::Sigprocmask, result.into()).map(drop)
}

/// Unblocks every signal.
pub fn unblock_all() -> Result<()> {
    // SAFETY: sigemptyset fills the set that sigprocmask then reads.
    let result = unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut())
    };
    check(Call::Sigprocmask, result.into()).map(drop)
}

/// sigpending(2): whether a signal has come while it is blocked.
pub fn is_pending(signal: i32) -> bool {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigpending fills the set, which is read only then; sigismember fails for what is no signal.
    unsafe { libc::sigpending(set.as_mut_ptr()) == 0 && libc::sigismember(set.as_ptr(), signal) == 1 }
}

/// Whether this process ignores a signal.
pub fn is_ignored(signal: i32) -> bool {
    let mut disposition = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null action changes nothing; the call fills `disposition`, which is read only then.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), disposition.as_mut_ptr()) == 0
            && disposition.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// A signal that init was sent.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Its number.
    pub signal: i32,
    /// Whether it came from outside the PID namespace.
    pub from_outside: bool,
}

/// Waits for the next signal, for at most `rest` where it is given; all must be blocked.
///
/// The bare call, as the C library's would bring back far more of the program
/// than [`give_back_program`](super::memory::give_back_program) has left.
pub fn wait(rest: Option<Duration>) -> Option<Received> {
    let rest = rest.map(|rest| libc::timespec {
        tv_sec: rest.as_secs() as libc::time_t,
        tv_nsec: rest.subsec_nanos().into(),
    });
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let all = u64::MAX;
    loop {
        // SAFETY: the set has the kernel's 64 signals, and `info` has room for one siginfo_t.
        let signal = unsafe {
            libc::syscall(
                libc::SYS_rt_sigtimedwait,
                &raw const all,
                info.as_mut_ptr(),
                rest.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
                size_of_val(&all),
            )
        };
        if signal < 0 && Errno::last() == Errno::EAGAIN {
            return None;
        }
        if signal > 0 {
            // SAFETY: the call filled it; a sender outside the namespace has no id here and shows as 0.
            let sender = unsafe { info.assume_init_ref().si_pid() };
            return Some(Received { signal: signal as i32, from_outside: sender == 0 });
        }
    }
}

/// kill(2); a process that has gone is no failure.
pub fn send(pid: i32, signal: i32) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(pid, signal) };
}

/// getpgid(2); -1 where there is no such process.
pub fn group_of(pid: i32) -> i32 {
    // SAFETY: no memory is involved.
    unsafe { libc::getpgid(pid) }
}

/// How a child changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The child.
    pub pid: i32,
    /// `CLD_EXITED`, `CLD_KILLED`, `CLD_DUMPED` or `CLD_STOPPED`; `CLD_TRAPPED`
    /// where the child asked to be traced.
    pub code: i32,
    /// Its exit code, or the signal.
    pub status: i32,
}

/// The next change of any child, if there is one.
pub fn next_change() -> Option<Change> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG;
    // SAFETY: `info` has room for one siginfo_t, and was zeroed, so that no change reads as pid 0.
    let (result, info) = unsafe {
        let result = libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options);
        (result, info.assume_init())
    };
    // SAFETY: after waitid these fields are the ones of SIGCHLD.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    (result == 0 && pid != 0).then_some(Change { pid, code: info.si_code, status })
}

/// pidfd_send_signal(2); a process that has gone is no failure.
pub fn send_to(pidfd: std::os::fd::BorrowedFd, signal: i32) -> Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: a null siginfo asks for what kill(2) would send.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0u32,
        )
    };
    match check(Call::PidfdSendSignal, result) {
        Err(failure) if failure.errno == Errno::ESRCH => Ok(()),
        other => other.map(drop),
    }
}
