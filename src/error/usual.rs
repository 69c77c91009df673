//! What an errno usually means to a launch, and what to do: for every call that has no
//! better words of its own.

use crate::sys::Errno;

/// The cause and the remedy.
pub(super) fn words(errno: Errno) -> (&'static str, &'static str) {
    match errno {
        Errno::EPERM | Errno::EACCES => (
            "the mode or owner of a file does not let the run's user, or a security module or a filter around the \
             launcher refuses the call",
            "give that user the permission; if no file is in question, look into the host's log (dmesg, ausearch) \
             for what refuses it, and start outside of that",
        ),
        Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ESTALE | Errno::EEXIST => (
            "what has this name was removed or replaced meanwhile, or this host has it in another form",
            "run again; if it fails again, find out who writes there",
        ),
        Errno::ENOMEM => (
            "the kernel has no memory left, for the host or for the launcher's cgroup",
            "free memory, or raise the cgroup's limit (memory.max; systemd: MemoryMax=), and run again",
        ),
        Errno::ENOSPC => (
            "the file system is full, or a limit of the kernel is used up",
            "make room in it (df, df -i), or raise the limit, and run again",
        ),
        Errno::EDQUOT => ("a quota is used up", "raise the quota or make room, and run again"),
        Errno::EMFILE => (
            "the process has as many descriptors open as its limit allows",
            "raise that limit (ulimit -n), and run again",
        ),
        Errno::ENFILE => (
            "the host has as many files open as its limit allows",
            "raise fs.file-max (sysctl), or close what uses it up, and run again",
        ),
        Errno::EAGAIN => (
            "the host lacks for the moment what the call needs: processes, memory or a reader",
            "run again; if it fails again, raise the limit on processes (pids.max, ulimit -u)",
        ),
        Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::ENODEV => (
            "this kernel does not know the call or one of its options, or a filter around the launcher answers so",
            "boot Linux 5.14 or later, or start outside of that filter",
        ),
        Errno::EROFS => ("the file system is read-only", "mount it for writing, or name another place"),
        Errno::EIO => ("the file system or its device has failed", "look into the kernel's log (dmesg)"),
        _ => ("the kernel says no more than this", "look into the kernel's log (dmesg), and run again"),
    }
}
