//! System calls by number, and the names of what they answer.

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Makes system call `nr`; its answer, or the errno.
pub fn call(nr: libc::c_long, args: &[usize]) -> io::Result<usize> {
    let arg = |i: usize| args.get(i).copied().unwrap_or(0);
    // SAFETY: a probe's arguments are numbers, null, addresses the kernel is
    // meant to refuse, or addresses of values that outlive the call and are as
    // large as the call says.
    let answer = unsafe { libc::syscall(nr, arg(0), arg(1), arg(2), arg(3), arg(4), arg(5)) };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer as usize)
}

/// As [`call`], for calls that answer with a new descriptor.
pub fn call_fd(nr: libc::c_long, args: &[usize]) -> io::Result<OwnedFd> {
    let fd = call(nr, args)?;
    // SAFETY: the kernel has just made this descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A path as the kernel takes it.
pub fn c(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_bytes()).expect("no NUL in a path of the fixture")
}

/// `-1`, as an argument.
pub const NONE: usize = usize::MAX;

/// `AT_FDCWD`, as an argument.
pub const CWD: usize = libc::AT_FDCWD as usize;

macro_rules! errno_names {
    ($($name:ident)*) => {
        /// The name of an errno, or its number.
        pub fn errno_name(errno: i32) -> String {
            match errno {
                $(libc::$name => stringify!($name).to_owned(),)*
                other => format!("errno {other}"),
            }
        }
    };
}

errno_names! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
    ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
    ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY
    ELOOP ENODATA EOVERFLOW ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT
    EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE
    EADDRNOTAVAIL ENETDOWN ENETUNREACH ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN
    ETIMEDOUT ECONNREFUSED EHOSTUNREACH EALREADY EINPROGRESS ESTALE EDQUOT ENOKEY EKEYEXPIRED
}

/// The name of what went wrong.
pub fn why(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => errno_name(errno),
        None => error.to_string(),
    }
}
