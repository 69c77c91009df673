//! The loopback interface.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Call, Result, check};

/// Brings `lo` up; the kernel then gives it 127.0.0.1/8 and ::1 by itself.
pub fn loopback_up() -> Result<()> {
    // SAFETY: no memory is involved.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    let socket = check(Call::Socket, socket.into())?;
    // SAFETY: the kernel has just given us this descriptor and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket as i32) };

    // SAFETY: an all-zero ifreq is valid; the name is a NUL-terminated "lo".
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    check(Call::Ioctl, result.into()).map(drop)
}
