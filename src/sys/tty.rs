//! Terminals and sessions.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::fd::{CWD, open};
use super::{Call, Result, check};

/// A new pseudo-terminal of the devpts instance that holds `ptmx`: its master
/// and its slave.
pub fn open_pair(ptmx: &CStr) -> Result<(OwnedFd, OwnedFd)> {
    let master = open(CWD, ptmx, libc::O_RDWR | libc::O_NOCTTY, 0)?;
    let unlocked: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int.
    let result = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) };
    check(Call::Ioctl, result.into())?;
    let slave = open_slave(master.as_fd())?;
    Ok((master, slave))
}

/// The slave of a master, whichever devpts instance it is of.
fn open_slave(master: BorrowedFd) -> Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: TIOCGPTPEER takes open flags by value.
    let slave = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    // SAFETY: the kernel has just given us this descriptor and nobody else has it.
    check(Call::Ioctl, slave.into()).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// setsid(2).
pub fn new_session() -> Result<()> {
    // SAFETY: no memory is involved.
    check(Call::Setsid, unsafe { libc::setsid() }.into()).map(drop)
}

/// Makes `terminal` the controlling terminal of this session.
pub fn take_control(terminal: RawFd) -> Result<()> {
    // SAFETY: TIOCSCTTY takes an int by value; 0 steals from nobody.
    check(Call::Ioctl, unsafe { libc::ioctl(terminal, libc::TIOCSCTTY, 0) }.into()).map(drop)
}

/// setpgid(2) to a process group of one's own.
pub fn new_process_group() -> Result<()> {
    // SAFETY: no memory is involved.
    check(Call::Setpgid, unsafe { libc::setpgid(0, 0) }.into()).map(drop)
}

/// Puts this process's group in the foreground of its terminal. TTOU must be
/// blocked: a group in the background is stopped by it otherwise.
pub fn take_foreground(terminal: RawFd) -> Result<()> {
    // SAFETY: getpgrp cannot fail, and TIOCSPGRP reads one pid_t.
    let result = unsafe {
        let group = libc::getpgrp();
        libc::ioctl(terminal, libc::TIOCSPGRP, &raw const group)
    };
    check(Call::Ioctl, result.into()).map(drop)
}

/// Gives `to` the window size of `from`; a terminal without one keeps its own.
pub fn copy_size(from: RawFd, to: RawFd) {
    let mut size = std::mem::MaybeUninit::<libc::winsize>::uninit();
    // SAFETY: TIOCGWINSZ fills one winsize, and only then TIOCSWINSZ reads it.
    unsafe {
        if libc::ioctl(from, libc::TIOCGWINSZ, size.as_mut_ptr()) == 0 {
            libc::ioctl(to, libc::TIOCSWINSZ, size.as_ptr());
        }
    }
}
