//! Descriptors, and the files they are opened from.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::{Call, Errno, Failure, Result, check};

/// Where a path begins when no descriptor is given: the working directory.
pub const CWD: RawFd = libc::AT_FDCWD;

/// Which file a descriptor leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Device of the file system.
    pub device: u64,
    /// Number of the inode on it.
    pub inode: u64,
}

/// openat2(2) with `O_PATH`, through no symbolic link in any component.
///
/// A path that an agent may have planted a link in then fails with ELOOP
/// instead of leading elsewhere.
pub fn open_path(dir: RawFd, path: &CStr) -> Result<OwnedFd> {
    openat2(dir, path, libc::O_PATH | libc::O_CLOEXEC, libc::RESOLVE_NO_SYMLINKS)
}

/// As [`open_path`], and not out of `dir`.
pub fn open_path_beneath(dir: RawFd, path: &CStr) -> Result<OwnedFd> {
    openat2(dir, path, libc::O_PATH | libc::O_CLOEXEC, libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_BENEATH)
}

/// openat2(2), with every `..` and absolute link kept below `dir`.
pub fn open_in_root(dir: RawFd, path: &CStr) -> Result<OwnedFd> {
    openat2(dir, path, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK, libc::RESOLVE_IN_ROOT)
}

fn openat2(dir: RawFd, path: &CStr, flags: libc::c_int, resolve: u64) -> Result<OwnedFd> {
    // SAFETY: `open_how` is plain integers, for which zero is a valid value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = flags as u64;
    how.resolve = resolve;
    // SAFETY: `path` ends in NUL and `how` is a whole `open_how` of the size given.
    let fd = unsafe {
        libc::syscall(libc::SYS_openat2, dir, path.as_ptr(), &raw const how, size_of::<libc::open_how>())
    };
    // SAFETY: the kernel has just given us this descriptor and nobody else has it.
    check(Call::Openat2, fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// openat(2) with `O_CLOEXEC` added to `flags`.
pub fn open(dir: RawFd, path: &CStr, flags: libc::c_int, mode: libc::mode_t) -> Result<OwnedFd> {
    // SAFETY: `path` ends in NUL.
    let fd = unsafe { libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC, mode) };
    // SAFETY: the kernel has just given us this descriptor and nobody else has it.
    check(Call::Open, fd.into()).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// fstat(2), whole.
pub fn stat(fd: BorrowedFd) -> Result<libc::stat> {
    let mut stat = MaybeUninit::uninit();
    // SAFETY: `stat` has room for one `struct stat`.
    let result = unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) };
    check(Call::Fstat, result.into())?;
    // SAFETY: fstat succeeded, so it filled the struct.
    Ok(unsafe { stat.assume_init() })
}

/// The type and the permissions of what stands at `path` itself.
pub fn mode(path: &CStr) -> Result<u32> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `path` ends in NUL, and `stat` has room for one `struct stat`.
    let result = unsafe { libc::fstatat(CWD, path.as_ptr(), stat.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
    check(Call::Fstat, result.into())?;
    // SAFETY: fstatat succeeded, so it filled the struct.
    Ok(unsafe { stat.assume_init() }.st_mode)
}

/// Fails with ESTALE unless `fd` leads to the file that was `expected`.
pub fn must_be(fd: BorrowedFd, expected: Identity) -> Result<()> {
    let stat = stat(fd)?;
    if stat.st_dev == expected.device && stat.st_ino == expected.inode {
        return Ok(());
    }
    Err(Failure { call: Call::Identity, errno: Errno::ESTALE })
}

/// Fails with ESTALE unless `fd` leads to an inode of that number. An overlay
/// keeps the number of a file it shows, and not the device.
pub fn must_have_number(fd: BorrowedFd, inode: u64) -> Result<()> {
    if stat(fd)?.st_ino == inode {
        return Ok(());
    }
    Err(Failure { call: Call::Identity, errno: Errno::ESTALE })
}

/// mkdirat(2); a directory that is there already is left as it is.
pub fn make_directory(dir: RawFd, path: &CStr, mode: libc::mode_t) -> Result<()> {
    // SAFETY: `path` ends in NUL.
    let result = unsafe { libc::mkdirat(dir, path.as_ptr(), mode) };
    match check(Call::Mkdirat, result.into()) {
        Err(Failure { errno: Errno::EEXIST, .. }) => Ok(()),
        other => other.map(drop),
    }
}

/// Makes what an overlay takes for "nothing here": a character device of the
/// number 0:0, which needs no privilege.
pub fn make_whiteout(path: &CStr) -> Result<()> {
    // SAFETY: `path` ends in NUL.
    let result = unsafe { libc::mknodat(CWD, path.as_ptr(), libc::S_IFCHR, 0) };
    check(Call::Mknodat, result.into()).map(drop)
}

/// unlinkat(2) of an empty directory.
pub fn remove_directory(path: &CStr) -> Result<()> {
    // SAFETY: `path` ends in NUL.
    let result = unsafe { libc::unlinkat(CWD, path.as_ptr(), libc::AT_REMOVEDIR) };
    check(Call::Unlinkat, result.into()).map(drop)
}

/// symlinkat(2).
pub fn make_symlink(target: &CStr, path: &CStr) -> Result<()> {
    // SAFETY: both end in NUL.
    let result = unsafe { libc::symlinkat(target.as_ptr(), CWD, path.as_ptr()) };
    check(Call::Symlinkat, result.into()).map(drop)
}

/// Makes a new file that holds `content`.
pub fn make_file(path: &CStr, content: &[u8], mode: libc::mode_t) -> Result<()> {
    let fd = open(CWD, path, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW, mode)?;
    write(fd.as_raw_fd(), content)
}

/// Writes `content` to a file of the kernel's, which takes it whole or not at all.
pub fn write_file(path: &CStr, content: &[u8]) -> Result<()> {
    let fd = open(CWD, path, libc::O_WRONLY | libc::O_NOFOLLOW, 0)?;
    write(fd.as_raw_fd(), content)
}

/// write(2), until all is written: behind a part, the next call tells what is in the way.
pub fn write(fd: RawFd, mut content: &[u8]) -> Result<()> {
    while !content.is_empty() {
        // SAFETY: `content` is readable for its length.
        let written = unsafe { libc::write(fd, content.as_ptr().cast(), content.len()) };
        match check(Call::Write, written as libc::c_long)? {
            0 => return Err(Failure { call: Call::Write, errno: Errno::EIO }),
            written => content = &content[written as usize..],
        }
    }
    Ok(())
}

/// read(2) of one byte, as a wait; the other side's end is a failure with EPIPE.
pub fn wait_byte(fd: RawFd) -> Result<()> {
    let mut byte = 0u8;
    loop {
        // SAFETY: `byte` has room for the one byte asked for.
        let got = unsafe { libc::read(fd, (&raw mut byte).cast(), 1) };
        match check(Call::Read, got as libc::c_long) {
            Ok(0) => {
                return Err(Failure { call: Call::Read, errno: Errno::EPIPE });
            }
            Ok(_) => return Ok(()),
            Err(Failure { errno: Errno::EINTR, .. }) => {}
            Err(failure) => return Err(failure),
        }
    }
}

/// Whether nobody holds the reading end of the pipe `fd` any more.
pub fn reader_is_gone(fd: RawFd) -> Result<bool> {
    let mut poll = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: `poll` is one `pollfd`.
    let result = unsafe { libc::poll(&raw mut poll, 1, 0) };
    check(Call::Poll, result.into())?;
    Ok(poll.revents & libc::POLLERR != 0)
}

/// dup3(2) without `O_CLOEXEC`; `from` equal to `to` only clears the flag.
pub fn duplicate_to(from: RawFd, to: RawFd) -> Result<()> {
    let result = if from == to {
        // SAFETY: no memory is involved.
        unsafe { libc::fcntl(to, libc::F_SETFD, 0) }
    } else {
        // SAFETY: no memory is involved; whoever owns `to` has given it up for this.
        unsafe { libc::dup3(from, to, 0) }
    };
    check(Call::Dup, result.into()).map(drop)
}

/// Marks every descriptor from `first` on to be closed by exec.
pub fn close_on_exec(first: u32) -> Result<()> {
    close_range(first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes every descriptor but one.
pub fn close_all_but(kept: RawFd) -> Result<()> {
    let kept = kept as u32;
    if kept > 0 {
        close_range(0, kept - 1, 0)?;
    }
    close_range(kept + 1, u32::MAX, 0)
}

fn close_range(first: u32, last: u32, flags: u32) -> Result<()> {
    // SAFETY: no memory is involved; called in a child that gives up what it closes.
    check(Call::CloseRange, unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }).map(drop)
}

/// Closes what came along with a clone, and is owned on the other side.
pub fn close(fd: RawFd) {
    // SAFETY: no memory is involved; the child never uses it again.
    unsafe { libc::close(fd) };
}

/// Sends a message with two descriptors over a Unix socket.
pub fn send_descriptors(socket: RawFd, message: &[u8], fds: [BorrowedFd; 2]) -> Result<()> {
    let fds = fds.map(|fd| fd.as_raw_fd());
    let mut iov = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    // A cmsghdr must be aligned as its first member is; u64 is enough.
    let mut control = [0u64; 4];
    // SAFETY: an all-zero msghdr is valid: null pointers with zero lengths.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE of two ints is 24, and `control` has 32 bytes; the one that CMSG_FIRSTHDR
    // returns lies in `control`, and CMSG_DATA of it has room for the two written there.
    unsafe {
        header.msg_controllen = libc::CMSG_SPACE(size_of_val(&fds) as u32) as _;
        let control = libc::CMSG_FIRSTHDR(&raw const header);
        (*control).cmsg_level = libc::SOL_SOCKET;
        (*control).cmsg_type = libc::SCM_RIGHTS;
        (*control).cmsg_len = libc::CMSG_LEN(size_of_val(&fds) as u32) as _;
        libc::CMSG_DATA(control).cast::<[RawFd; 2]>().write_unaligned(fds);
        check(Call::Sendmsg, libc::sendmsg(socket, &raw const header, libc::MSG_NOSIGNAL) as libc::c_long)
            .map(drop)
    }
}

/// Takes over a descriptor that came in a message.
pub fn received(fd: RawFd) -> OwnedFd {
    // SAFETY: recvmsg has just made this descriptor for us, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A close-on-exec copy of a descriptor that the caller was started with.
pub fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: no memory is involved; the copy is above the standard streams.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: the kernel has just given us this descriptor and nobody else has it.
    check(Call::Dup, copy.into()).map(|copy| unsafe { OwnedFd::from_raw_fd(copy as RawFd) })
}

/// How many bytes a pipe holds.
pub fn readable(pipe: BorrowedFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int.
    let result = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    if result == 0 { bytes as usize } else { 0 }
}

/// How many bytes a socket has sent that its peer has not taken.
pub fn unsent(socket: BorrowedFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ, which is SIOCOUTQ too, writes one int.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { bytes as usize } else { 0 }
}

/// Whether a descriptor came with the process: what is open across execve(2)
/// has no close-on-exec flag, and all that this process opens has it.
pub fn is_inherited(fd: RawFd) -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::fcntl(fd, libc::F_GETFD) == 0 }
}
