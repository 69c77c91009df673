//! Becomes the untidy parent from which a harness starts its cells, then runs
//! a command: everything here is what must not ride in.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::call::{c, call, call_fd};
use crate::facts::Facts;
use crate::verdict::owned;

/// The group that rides in where nothing drops it.
const GROUP: u32 = 4242;

/// Makes this process untidy and runs `command`; returns only on failure.
pub fn run(facts: &Facts, command: &[String]) -> io::Error {
    match make(facts) {
        Ok(()) => Command::new(&command[0]).args(&command[1..]).exec(),
        Err(error) => error,
    }
}

fn make(facts: &Facts) -> io::Result<()> {
    // A session with a terminal that is on none of the descriptors 0 to 2.
    call(libc::SYS_setsid, &[])?;
    let master = OpenOptions::new().read(true).write(true).open("/dev/ptmx")?;
    let unlock = 0i32;
    call(
        libc::SYS_ioctl,
        &[master.as_raw_fd() as usize, libc::TIOCSPTLCK as usize, &raw const unlock as usize],
    )?;
    let slave = call_fd(
        libc::SYS_ioctl,
        &[master.as_raw_fd() as usize, libc::TIOCGPTPEER as usize, libc::O_RDWR as usize],
    )?;
    call(libc::SYS_ioctl, &[slave.as_raw_fd() as usize, libc::TIOCSCTTY as usize, 0])?;

    // A key in the session keyring.
    call(libc::SYS_keyctl, &[1, 0])?;
    let (kind, name) = (c("user"), c("cellblock-harness"));
    const SESSION: usize = -3isize as usize;
    call(
        libc::SYS_add_key,
        &[kind.as_ptr() as usize, name.as_ptr() as usize, b"key".as_ptr() as usize, 3, SESSION],
    )?;

    // Descriptors: a directory, a file that takes writes, and the terminal.
    let dir = File::open(facts.path("HARNESS_DIR"))?;
    let secret = OpenOptions::new().read(true).write(true).open(facts.path("HARNESS_FILE"))?;
    for (fd, wanted) in [(dir.as_raw_fd(), 7), (secret.as_raw_fd(), 8), (master.as_raw_fd(), 9)] {
        // SAFETY: makes a copy that stays open across the exec.
        let _stays = owned(unsafe { libc::dup2(fd, wanted) })?.into_raw_fd();
    }

    std::env::set_current_dir(facts.path("HARNESS_DIR"))?;
    let blocked = 1u64 << (libc::SIGUSR2 - 1);
    // SAFETY: all of them change the state of this process alone.
    unsafe {
        libc::umask(0);
        libc::signal(libc::SIGUSR1, libc::SIG_IGN);
    }
    call(libc::SYS_rt_sigprocmask, &[libc::SIG_BLOCK as usize, &raw const blocked as usize, 0, 8])?;
    // SAFETY: the process has one thread, and nothing has read the environment.
    unsafe { std::env::set_var("HARNESS_SECRET", facts.get("SECRET")) };
    Ok(())
}

/// Becomes an ordinary user with one group too many; does nothing when it is
/// one already.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: only asks.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(());
    }
    let groups = [gid, GROUP];
    call(libc::SYS_setgroups, &[groups.len(), groups.as_ptr() as usize])?;
    call(libc::SYS_setresgid, &[gid as usize, gid as usize, gid as usize])?;
    call(libc::SYS_setresuid, &[uid as usize, uid as usize, uid as usize])?;
    // After a change of ids the kernel keeps a process from being looked at,
    // itself included: the launcher could not write its own uid map.
    call(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as usize, 1, 0, 0, 0]).map(drop)
}

/// Enters namespaces of its own, in which this process has every capability:
/// what an ordinary user cannot reach for want of one is then within reach.
pub fn become_able() -> io::Result<()> {
    // SAFETY: both only ask.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC;
    call(libc::SYS_unshare, &[namespaces as usize])?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}
