//! Calls that are made in a child first, as a filter may kill who makes them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::clone::{Memory, Stack, child, exit};
use super::{Result, credentials};

/// One call, with arguments for which the kernel does nothing to others.
#[derive(Clone, Copy, Debug)]
pub struct Harmless {
    /// The name of its man page.
    pub name: &'static str,
    /// Its number on this machine.
    pub number: libc::c_long,
    /// The first argument; all others are [`NONE`].
    first: usize,
}

/// No descriptor, no address, no id, and flags that no call knows.
const NONE: usize = usize::MAX;

impl Harmless {
    const fn new(name: &'static str, number: libc::c_long) -> Harmless {
        Harmless { name, number, first: NONE }
    }
}

/// What a launcher calls, beside what no program of the C library does without.
/// `wait4` comes first: the launcher itself waits for the child only once it may.
pub const LAUNCHER: &[Harmless] = &[
    Harmless::new("wait4", libc::SYS_wait4),
    Harmless::new("openat2", libc::SYS_openat2),
    Harmless::new("getpid", libc::SYS_getpid),
    Harmless::new("umask", libc::SYS_umask),
    Harmless::new("statx", libc::SYS_statx),
    Harmless::new("fstatfs", libc::SYS_fstatfs),
    Harmless::new("sched_getaffinity", libc::SYS_sched_getaffinity),
    Harmless::new("sysinfo", libc::SYS_sysinfo),
    Harmless::new("getpeername", libc::SYS_getpeername),
    Harmless::new("getdents64", libc::SYS_getdents64),
    Harmless::new("pipe2", libc::SYS_pipe2),
    Harmless::new("socketpair", libc::SYS_socketpair),
    Harmless::new("setsockopt", libc::SYS_setsockopt),
    Harmless::new("rt_sigprocmask", libc::SYS_rt_sigprocmask),
    Harmless::new("signalfd4", libc::SYS_signalfd4),
    Harmless::new("pidfd_send_signal", libc::SYS_pidfd_send_signal),
    Harmless::new("recvmsg", libc::SYS_recvmsg),
    Harmless::new("madvise", libc::SYS_madvise),
    Harmless::new("ioctl", libc::SYS_ioctl),
    NAMESPACES,
];

/// A mount namespace cannot share its root directory with another: EINVAL.
const NAMESPACES: Harmless = {
    let all = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET;
    Harmless { first: (all | libc::CLONE_FS) as usize, ..Harmless::new("clone", libc::SYS_clone) }
};

/// What its child calls to build a tree and give itself up.
pub const CHILD: &[Harmless] = &[
    Harmless::new("close_range", libc::SYS_close_range),
    Harmless::new("mkdirat", libc::SYS_mkdirat),
    Harmless::new("symlinkat", libc::SYS_symlinkat),
    Harmless::new("fsopen", libc::SYS_fsopen),
    Harmless::new("fsconfig", libc::SYS_fsconfig),
    Harmless::new("fsmount", libc::SYS_fsmount),
    Harmless::new("open_tree", libc::SYS_open_tree),
    Harmless::new("mount", libc::SYS_mount),
    Harmless::new("mount_setattr", libc::SYS_mount_setattr),
    Harmless::new("move_mount", libc::SYS_move_mount),
    Harmless::new("pivot_root", libc::SYS_pivot_root),
    Harmless::new("umount2", libc::SYS_umount2),
    Harmless::new("fchdir", libc::SYS_fchdir),
    Harmless::new("chdir", libc::SYS_chdir),
    Harmless::new("sethostname", libc::SYS_sethostname),
    Harmless::new("rt_sigaction", libc::SYS_rt_sigaction),
    Harmless::new("setsid", libc::SYS_setsid),
    Harmless::new("keyctl", libc::SYS_keyctl),
    Harmless::new("capset", libc::SYS_capset),
    Harmless::new("setpgid", libc::SYS_setpgid),
    Harmless::new("dup3", libc::SYS_dup3),
    Harmless::new("rt_sigtimedwait", libc::SYS_rt_sigtimedwait),
    Harmless::new("waitid", libc::SYS_waitid),
];

/// What lays a Landlock domain on a process.
pub const LANDLOCK: &[Harmless] = &[
    Harmless::new("landlock_create_ruleset", libc::SYS_landlock_create_ruleset),
    Harmless::new("landlock_add_rule", libc::SYS_landlock_add_rule),
    Harmless::new("landlock_restrict_self", libc::SYS_landlock_restrict_self),
];

/// What lays a filter on a process.
pub const SECCOMP: &[Harmless] = &[Harmless::new("seccomp", libc::SYS_seccomp)];

/// What makes a network namespace, and brings its loopback interface up.
pub const NETWORK: &[Harmless] = &[
    Harmless::new("socket", libc::SYS_socket),
    Harmless::new("unshare", libc::SYS_unshare),
    Harmless::new("setns", libc::SYS_setns),
];

/// What makes a whiteout.
pub const WHITEOUTS: &[Harmless] = &[Harmless::new("mknodat", libc::SYS_mknodat)];

/// What root calls besides.
pub const ROOT: &[Harmless] = &[
    Harmless::new("setgroups", libc::SYS_setgroups),
    Harmless::new("setresgid", libc::SYS_setresgid),
    Harmless::new("setresuid", libc::SYS_setresuid),
    Harmless::new("fchown", libc::SYS_fchown),
];

/// What writes a file that has no name before it is whole.
pub const REPORT: &[Harmless] = &[
    Harmless::new("fallocate", libc::SYS_fallocate),
    Harmless::new("ftruncate", libc::SYS_ftruncate),
    Harmless::new("lseek", libc::SYS_lseek),
    Harmless::new("fsync", libc::SYS_fsync),
    Harmless::new("linkat", libc::SYS_linkat),
    Harmless::new("renameat", libc::SYS_renameat),
    Harmless::new("unlinkat", libc::SYS_unlinkat),
];

/// What a test makes for its child not to find.
pub const TEST: &[Harmless] = &[
    Harmless::new("socket", libc::SYS_socket),
    Harmless::new("bind", libc::SYS_bind),
    Harmless::new("listen", libc::SYS_listen),
    Harmless::new("getsockname", libc::SYS_getsockname),
    Harmless::new("shmget", libc::SYS_shmget),
    Harmless::new("shmctl", libc::SYS_shmctl),
    Harmless::new("mq_open", libc::SYS_mq_open),
    Harmless::new("mq_unlink", libc::SYS_mq_unlink),
];

/// Whether a seccomp filter may be laid on this process: it is, or the kernel
/// does not say.
pub fn is_filtered() -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) != 0 }
}

/// The child that made the calls, to be waited for, and how many it survived.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// The child, which has ended.
    pub pid: i32,
    /// The place of the call that it was killed for, or the number of them all.
    pub survived: usize,
}

/// Makes `calls` in a child, from the one at `first` on.
pub fn take(stack: &mut Stack, calls: &[Harmless], first: usize) -> Result<Taken> {
    struct Trial<'a> {
        calls: &'a [Harmless],
        at: AtomicUsize,
    }
    fn run(trial: &Trial) -> ! {
        // A killed child is no crash that a core file would explain.
        let _ = credentials::set_limit(libc::RLIMIT_CORE, 0);
        while let Some(call) = trial.calls.get(trial.at.load(Ordering::Relaxed)) {
            // SAFETY: for each call of the tables above the kernel refuses these arguments, or changes
            // nothing but this child (umask, setsid). No memory is mapped at the address `NONE`.
            unsafe { libc::syscall(call.number, call.first, NONE, NONE, NONE, 0usize, 0usize) };
            trial.at.fetch_add(1, Ordering::Relaxed);
        }
        exit(0)
    }
    let trial = Trial { calls, at: AtomicUsize::new(first) };
    let pid = child(stack, Memory::Shared, run, &trial)?;
    Ok(Taken { pid, survived: trial.at.load(Ordering::Relaxed) })
}
