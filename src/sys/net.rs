//! A network namespace, and its loopback interface.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::{Call, Errno, Failure, Result, check, clone, fd};

/// Starts a process that makes a network namespace with its loopback up. That is
/// the longest single thing that the kernel does for a cell, and this process goes
/// on beside it. It shares the table of descriptors, and ends by itself.
pub fn begin() -> Result<i32> {
    let pid = clone::copy_with(libc::CLONE_FILES)?;
    if pid == 0 {
        let made = clone::unshare(libc::CLONE_NEWNET).and_then(|()| socket_of_loopback());
        clone::exit(match made {
            Ok(socket) if socket < FAILED => socket,
            Ok(_) => FAILED + Errno::EMFILE as i32,
            Err(failure) => FAILED + failure.errno as i32,
        });
    }
    Ok(pid)
}

/// Added to an errno, which is below 134, in the exit status; what is below is the
/// number of a descriptor.
const FAILED: i32 = 122;

/// Waits for the process that [`begin`] has started, and enters its namespace.
pub fn join(pid: i32) -> Result<()> {
    let status = clone::wait(pid)?.status;
    let failed = |errno| Failure { call: Call::Unshare, errno };
    let socket = match libc::WIFEXITED(status).then_some(libc::WEXITSTATUS(status)) {
        Some(socket) if (3..FAILED).contains(&socket) => fd::received(socket),
        Some(code) => return Err(failed(Errno::from_raw(code - FAILED))),
        None => return Err(failed(Errno::EINTR)),
    };
    // SAFETY: SIOCGSKNS takes no argument, and gives a descriptor of the socket's namespace.
    let namespace = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    let namespace = fd::received(check(Call::Ioctl, namespace.into())? as RawFd);
    // SAFETY: no memory is involved.
    let result = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    check(Call::Setns, result.into()).map(drop)
}

// From linux/sockios.h; libc has it not.
const SIOCGSKNS: libc::Ioctl = 0x894c;

/// Brings `lo` up; the kernel then gives it 127.0.0.1/8 and ::1 by itself.
pub fn loopback_up() -> Result<()> {
    let socket = socket_of_loopback()?;
    // SAFETY: it was just made, and nobody else has it.
    drop(unsafe { OwnedFd::from_raw_fd(socket) });
    Ok(())
}

/// As [`loopback_up`]; the socket by which that was done stays open.
fn socket_of_loopback() -> Result<RawFd> {
    // SAFETY: no memory is involved.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    let socket = check(Call::Socket, socket.into())? as RawFd;

    // SAFETY: an all-zero ifreq is valid; the name is a NUL-terminated "lo".
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq.
    let result = unsafe { libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request) };
    check(Call::Ioctl, result.into())?;
    Ok(socket)
}
