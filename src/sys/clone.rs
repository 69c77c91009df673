//! clone(2), raw and through libc.

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use super::{Call, Errno, Failure, Result, check};

/// Which side of a clone this is.
#[derive(Debug)]
pub enum Side {
    /// The caller, with the child's pid and pidfd.
    Parent {
        /// In the caller's PID namespace.
        pid: i32,
        /// Close-on-exec.
        pidfd: OwnedFd,
    },
    /// The new process.
    Child,
}

/// Makes a child with a copy of this process's memory, in new namespaces.
///
/// Raw clone(2), because clone3(2) is often answered ENOSYS by filters, ours
/// among them. The child must come to its end by exec or [`exit`], and must
/// not use what the C library keeps of a thread (its cached id is the
/// parent's): no allocation, no lock, no panic.
///
/// Fails with EBUSY where the process has other threads: a lock that one of
/// them held would stay locked in the child. Without `/proc` that is not known,
/// and the error is the one of looking there.
pub fn into_namespaces(namespaces: c_int) -> Result<Side> {
    if threads()? != 1 {
        return Err(Failure { call: Call::Clone, errno: Errno::EBUSY });
    }
    let mut pidfd: RawFd = -1;
    let flags = (namespaces | libc::CLONE_PIDFD | libc::SIGCHLD) as libc::c_ulong;
    // SAFETY: without CLONE_VM the child has its own copy of everything, a null stack means the
    // copy of this one, and `pidfd` is written in the parent alone. The third argument is the same
    // on every architecture that we build for.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, &raw mut pidfd, 0usize, 0usize) };
    match check(Call::Clone, pid)? {
        0 => Ok(Side::Child),
        pid => {
            // SAFETY: the kernel has just given us this descriptor and nobody else has it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Side::Parent { pid: pid as i32, pidfd })
        }
    }
}

/// unshare(2).
pub fn unshare(namespaces: c_int) -> Result<()> {
    // SAFETY: no memory is involved; the flags are those of namespaces.
    check(Call::Unshare, unsafe { libc::unshare(namespaces) }.into()).map(drop)
}

/// How many threads the process has: the links of `/proc/self/task`, less two.
fn threads() -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let task = std::fs::metadata("/proc/self/task");
    let task = task.map_err(|error| Failure { call: Call::Fstat, errno: super::errno(&error) })?;
    Ok(task.nlink().saturating_sub(2))
}

/// Memory for the stack of a child that shares ours.
#[derive(Debug)]
#[repr(align(16))]
pub struct Stack([u8; 64 * 1024]);

impl Stack {
    /// A stack on the heap, made before it is needed.
    pub fn new() -> Box<Stack> {
        // SAFETY: bytes may hold anything, zeroes too.
        unsafe { Box::<Stack>::new_zeroed().assume_init() }
    }
}

/// How much of the caller a [`child`] shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// All of it; the caller waits until the child has called exec or exit.
    /// Copying no page tables saves a tenth of a millisecond.
    Shared,
    /// None; the child has a copy, and the caller goes on.
    Copied,
}

/// Runs `entry` in a child on a stack of its own; returns the child's pid.
///
/// `entry` must not return and, with [`Memory::Shared`], must leave nothing in
/// memory that the caller would trip over.
pub fn child<T>(stack: &mut Stack, memory: Memory, entry: fn(&T) -> !, argument: &T) -> Result<i32> {
    struct Start<'a, T> {
        entry: fn(&T) -> !,
        argument: &'a T,
    }
    extern "C" fn start<T>(start: *mut c_void) -> c_int {
        // SAFETY: `child` below passes a Start that lives until it returns, and in the child's copy
        // or in the waiting parent it stays alive until the child has ended or called exec.
        let start = unsafe { &*start.cast::<Start<T>>() };
        (start.entry)(start.argument)
    }
    let flags = match memory {
        Memory::Shared => libc::CLONE_VM | libc::CLONE_VFORK,
        Memory::Copied => 0,
    };
    let mut argument = Start { entry, argument };
    // SAFETY: the stack grows down from the end of memory that the caller has lent us. With CLONE_VM
    // comes CLONE_VFORK, so that the caller sleeps while the child uses its memory.
    let pid = unsafe {
        let top = stack.0.as_mut_ptr().add(stack.0.len());
        libc::clone(start::<T>, top.cast(), flags | libc::SIGCHLD, (&raw mut argument).cast())
    };
    check(Call::Clone, pid.into()).map(|pid| pid as i32)
}

/// fork(2) of a process that is itself a child; 0 in the copy, which is under
/// the same rules as the child of [`into_namespaces`].
pub fn copy() -> Result<i32> {
    copy_with(0)
}

/// As [`copy`], where both share what `flags` says, and not their memory.
pub(super) fn copy_with(flags: c_int) -> Result<i32> {
    let flags = (flags & !libc::CLONE_VM | libc::SIGCHLD) as libc::c_ulong;
    // SAFETY: without CLONE_VM the copy has its own memory, and a null stack means the copy of this one.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize) };
    check(Call::Clone, pid).map(|pid| pid as i32)
}

/// Uses up process numbers until the next one is above `least`; no more of them
/// than that, as numbers begin again somewhere.
pub fn pass_pids(least: i32) -> Result<()> {
    for _ in 0..least {
        let pid = copy()?;
        if pid == 0 {
            exit(0);
        }
        wait(pid)?;
        if pid >= least {
            break;
        }
    }
    Ok(())
}

/// A copy of this process that does nothing, until it is dropped.
#[derive(Debug)]
pub struct Idle(i32);

impl Idle {
    /// Makes one, with a number above `least` where the kernel counts so far.
    pub fn new(least: i32) -> Result<Idle> {
        pass_pids(least)?;
        let parent = std::process::id();
        let pid = copy()?;
        if pid != 0 {
            return Ok(Idle(pid));
        }
        if super::credentials::die_with_parent().is_err() || std::os::unix::process::parent_id() != parent {
            exit(0);
        }
        loop {
            // SAFETY: no memory is involved.
            unsafe { libc::pause() };
        }
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.0
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        // SAFETY: no memory is involved; the child is not reaped yet, so the number is its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        let _ = wait(self.0);
    }
}

/// _exit(2): no destructor, no flush of what the parent has buffered.
pub fn exit(code: c_int) -> ! {
    // SAFETY: it does not return.
    unsafe { libc::_exit(code) }
}

/// How a child ended, and what it and its own children used.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// As wait(2) has it.
    pub status: c_int,
    /// Of the child and of all that it waited for.
    pub usage: libc::rusage,
}

/// wait4(2) for one child.
pub fn wait(pid: i32) -> Result<End> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::uninit();
    loop {
        // SAFETY: `status` and `usage` have room for what the kernel writes.
        let result = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
        match check(Call::Wait, result.into()) {
            Err(Failure { errno: Errno::EINTR, .. }) => {}
            result => {
                result?;
                // SAFETY: wait4 succeeded, so it filled `usage`.
                let usage = unsafe { usage.assume_init() };
                return Ok(End { status, usage });
            }
        }
    }
}
