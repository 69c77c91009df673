//! Class S: calls that a provider has no need of. The arguments are bad ones,
//! so that the kernel answers without having done anything; any errno but a
//! filter's shows that the call was reached.

use std::io;
use std::os::fd::AsRawFd;

use crate::call::{CWD, NONE, c, call, call_fd, why};
use crate::facts::Facts;
use crate::verdict::{Denied, Leak, Na, Probe, Verdict, filtered, probe, wait};

/// Probes on the system call filter.
pub const PROBES: &[Probe] = &[
    probe("S01", "io_uring_setup", |_| refused(libc::SYS_io_uring_setup, &[1, 0])),
    probe("S02", "userfaultfd", |_| refused(libc::SYS_userfaultfd, &[NONE])),
    probe("S03", "perf_event_open", |_| refused(libc::SYS_perf_event_open, &[0, 0, NONE, NONE, 0])),
    probe("S04", "bpf", |_| refused(libc::SYS_bpf, &[NONE, 0, 0])),
    probe("S05", "keyctl", |_| refused(libc::SYS_keyctl, &[0, KEY_SPEC_SESSION_KEYRING, 0])),
    probe("S06", "add_key", |_| refused(libc::SYS_add_key, &[0, 0, 0, 0, KEY_SPEC_SESSION_KEYRING])),
    probe("S07", "request_key", |_| refused(libc::SYS_request_key, &[0, 0, 0, 0])),
    probe("S08", "kcmp", |_| refused(libc::SYS_kcmp, &[own_pid(), own_pid(), 99, 0, 0])),
    probe("S09", "ptrace of one's own child", ptrace_child),
    probe("S10", "process_vm_readv", |_| refused(libc::SYS_process_vm_readv, &[own_pid(), 0, 0, 0, 0, NONE])),
    probe("S11", "pidfd_getfd", |_| refused(libc::SYS_pidfd_getfd, &[NONE, 0, 0])),
    probe("S12", "mount", |_| refused(libc::SYS_mount, &[0, 0, 0, 0, 0])),
    probe("S13", "umount2", |_| refused(libc::SYS_umount2, &[0, NONE])),
    probe("S14", "pivot_root", |_| refused(libc::SYS_pivot_root, &[0, 0])),
    probe("S15", "chroot", |_| refused(libc::SYS_chroot, &[c"/".as_ptr() as usize])),
    probe("S16", "fsopen", |_| refused(libc::SYS_fsopen, &[0, NONE])),
    probe("S17", "fspick", |_| refused(libc::SYS_fspick, &[NONE, 0, NONE])),
    probe("S18", "fsconfig", |_| refused(libc::SYS_fsconfig, &[NONE, NONE, 0, 0, 0])),
    probe("S19", "fsmount", |_| refused(libc::SYS_fsmount, &[NONE, NONE, 0])),
    probe("S20", "open_tree", |_| refused(libc::SYS_open_tree, &[CWD, c"/".as_ptr() as usize, 1])),
    probe("S21", "move_mount", |_| refused(libc::SYS_move_mount, &[NONE, 0, NONE, 0, NONE])),
    probe("S22", "mount_setattr", |_| refused(libc::SYS_mount_setattr, &[NONE, 0, 0, 0, 0])),
    probe("S23", "open_tree_attr", |_| refused(OPEN_TREE_ATTR, &[CWD, c"/".as_ptr() as usize, 1, 0, 0])),
    probe("S24", "setns", |_| refused(libc::SYS_setns, &[NONE, 0])),
    probe("S25", "unshare(CLONE_NEWUSER)", |_| refused(libc::SYS_unshare, &[libc::CLONE_NEWUSER as usize])),
    probe("S26", "mount in a user namespace of one's own", nested_mount),
    probe("S27", "take covers off in a user namespace of one's own", peel),
    probe("S28", "clone(CLONE_NEWUSER)", |_| clone_user()),
    probe("S30", "name_to_handle_at", |_| refused(libc::SYS_name_to_handle_at, &[NONE, 0, 0, 0, NONE])),
    probe("S31", "open_by_handle_at", |_| refused(libc::SYS_open_by_handle_at, &[NONE, 0, 0])),
    probe("S32", "personality(ADDR_NO_RANDOMIZE)", |_| {
        refused(libc::SYS_personality, &[libc::ADDR_NO_RANDOMIZE as usize])
    }),
    probe("S33", "modify_ldt", |_| x86_refused(154, &[NONE, 0, 0])),
    probe("S34", "kexec_load", |_| refused(libc::SYS_kexec_load, &[0, NONE, 0, NONE])),
    probe("S35", "init_module", |_| refused(libc::SYS_init_module, &[0, 0, 0])),
    probe("S36", "finit_module", |_| refused(libc::SYS_finit_module, &[NONE, 0, NONE])),
    probe("S37", "quotactl", |_| refused(libc::SYS_quotactl, &[NONE, 0, 0, 0])),
    probe("S38", "quotactl_fd", |_| refused(libc::SYS_quotactl_fd, &[NONE, NONE, 0, 0])),
    probe("S39", "syslog", |_| refused(libc::SYS_syslog, &[10, 0, 0])),
    probe("S40", "vhangup", |_| refused(libc::SYS_vhangup, &[])),
    probe("S41", "acct", |_| refused(libc::SYS_acct, &[1])),
    probe("S42", "swapon", |_| refused(libc::SYS_swapon, &[0, NONE])),
    probe("S43", "reboot", |_| refused(libc::SYS_reboot, &[0, 0, 0, 0])),
    probe("S44", "iopl", |_| x86_refused(172, &[3])),
    probe("S45", "clock_settime", |_| refused(libc::SYS_clock_settime, &[99, 0])),
    probe("S46", "adjtimex that only reads", read_clock),
    probe("S47", "sethostname", |_| refused(libc::SYS_sethostname, &[0, NONE])),
    probe("S48", "move_pages", |_| refused(libc::SYS_move_pages, &[0, 0, 0, 0, 0, NONE])),
    probe("S49", "migrate_pages", |_| refused(libc::SYS_migrate_pages, &[0, NONE, 1, 1])),
    probe("S50", "fanotify_init", |_| refused(libc::SYS_fanotify_init, &[0, 0])),
    probe("S51", "process_madvise", |_| refused(libc::SYS_process_madvise, &[NONE, 0, 0, 0, NONE])),
    probe("S52", "a seccomp listener of one's own", |_| refused(libc::SYS_seccomp, &[1, 1 << 3, 0])),
    probe("S53", "run a program from a memfd", memfd_exec),
    probe("S54", "the i386 call gate", |_| i386()),
    probe("S57", "the x32 call numbers", |_| x32()),
    probe("S58", "a call of no kernel answers ENOSYS", unknown),
];

const KEY_SPEC_SESSION_KEYRING: usize = -3isize as usize;
/// Not yet in libc.
pub const OPEN_TREE_ATTR: libc::c_long = 467;

fn own_pid() -> usize {
    std::process::id() as usize
}

fn refused(nr: libc::c_long, args: &[usize]) -> Verdict {
    filtered(call(nr, args))
}

fn x86_refused(nr: libc::c_long, args: &[usize]) -> Verdict {
    if cfg!(target_arch = "x86_64") { refused(nr, args) } else { Na("no such call on this machine".into()) }
}

fn ptrace_child(_: &Facts) -> Verdict {
    match crate::process::trace_own_child() {
        Ok(answer) if answer == "ok" => Leak(answer),
        Ok(answer) => Denied(answer),
        Err(error) => Leak(format!("probe failed: {}", why(&error))),
    }
}

fn nested_mount(_: &Facts) -> Verdict {
    if let Err(error) = call(libc::SYS_unshare, &[(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as usize]) {
        return Denied(format!("unshare: {}", why(&error)));
    }
    let (kind, target) = (c("tmpfs"), c("/tmp"));
    match call(
        libc::SYS_mount,
        &[kind.as_ptr() as usize, target.as_ptr() as usize, kind.as_ptr() as usize, 0, 0],
    ) {
        Ok(_) => Leak("mounted".into()),
        Err(error) => Denied(format!("mount: {}", why(&error))),
    }
}

fn peel(_: &Facts) -> Verdict {
    if let Err(error) = call(libc::SYS_unshare, &[(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as usize]) {
        return Denied(format!("unshare: {}", why(&error)));
    }
    for cover in ["/proc/keys", "/proc/timer_list", "/proc/sys", "/proc"] {
        let path = c(cover);
        if call(libc::SYS_umount2, &[path.as_ptr() as usize, libc::MNT_DETACH as usize]).is_ok() {
            return Leak(format!("{cover} uncovered"));
        }
    }
    Denied("all locked".into())
}

fn clone_user() -> Verdict {
    let result = call(libc::SYS_clone, &[(libc::CLONE_NEWUSER | libc::SIGCHLD) as usize, 0, 0, 0, 0]);
    if let Ok(0) = result {
        // SAFETY: ends the child of the raw clone, which owns nothing.
        unsafe { libc::_exit(0) };
    }
    if let Ok(pid) = result {
        let _ = wait(pid as i32);
    }
    filtered(result)
}

fn read_clock(_: &Facts) -> Verdict {
    let mut clock = [0u64; 32];
    filtered(call(libc::SYS_adjtimex, &[clock.as_mut_ptr() as usize]))
}

/// Copies this program into memory and runs it from there.
fn memfd_exec(_: &Facts) -> Verdict {
    let run = || -> io::Result<i32> {
        let fd = call_fd(libc::SYS_memfd_create, &[c"probe".as_ptr() as usize, libc::MFD_CLOEXEC as usize])?;
        let mut memory = std::fs::File::from(fd);
        io::copy(&mut std::fs::File::open("/proc/self/exe")?, &mut memory)?;
        // SAFETY: this program has one thread whenever it forks.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let argv = [c"probe".as_ptr(), c"true".as_ptr(), std::ptr::null()];
            let envp = [std::ptr::null::<libc::c_char>()];
            let empty = c"";
            let _ = call(
                libc::SYS_execveat,
                &[
                    memory.as_raw_fd() as usize,
                    empty.as_ptr() as usize,
                    argv.as_ptr() as usize,
                    envp.as_ptr() as usize,
                    libc::AT_EMPTY_PATH as usize,
                ],
            );
            // SAFETY: ends the child without running what the parent has at exit.
            unsafe { libc::_exit(1) };
        }
        wait(pid)
    };
    match run() {
        Ok(0) => Leak("ran".into()),
        Ok(status) => Denied(format!("exec failed, status {status}")),
        Err(error) => Denied(why(&error)),
    }
}

#[cfg(target_arch = "x86_64")]
fn i386() -> Verdict {
    const GETPID: i64 = 20;
    let answer: i64;
    // SAFETY: the gate changes rax alone (r8 to r11 are named as well, as old
    // kernels clear them); the call reads nothing.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") GETPID => answer,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    if answer > 0 {
        Leak(format!("getpid {answer}"))
    } else {
        filtered::<()>(Err(io::Error::from_raw_os_error(-answer as i32)))
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn i386() -> Verdict {
    Na("no such gate on this machine".into())
}

fn x32() -> Verdict {
    const X32: libc::c_long = 0x4000_0000;
    if cfg!(target_arch = "x86_64") {
        refused(X32 | libc::SYS_getpid, &[])
    } else {
        Na("no such calls on this machine".into())
    }
}

fn unknown(_: &Facts) -> Verdict {
    match call(2000, &[]) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Denied("ENOSYS".into()),
        Err(error) => Leak(why(&error)),
        Ok(_) => Leak("ok".into()),
    }
}
