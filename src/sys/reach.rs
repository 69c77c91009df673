//! Calls that find out whether something can be reached, and change nothing.
//!
//! Each gives the kernel's answer: a number where it works, or the errno. None
//! waits for anybody for longer than a tenth of a second.

use std::ffi::CStr;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::fd::{self, CWD, Identity};
use super::{Errno, Failure};

/// What the kernel says: a number whose meaning is the call's, or why not.
pub type Answer = Result<i32, Errno>;

/// How long a connection may take, in milliseconds.
const PATIENCE: i32 = 100;

fn errno(failure: Failure) -> Errno {
    failure.errno
}

/// fstatat(2) of the name itself; 1 where it is `file`, else 0.
pub fn stat(path: &CStr, file: Option<Identity>) -> Answer {
    Ok((file == Some(identity(path)?)).into())
}

/// 1 where `path` lies on the file system that `/proc` shows, so that nothing is
/// mounted over it; else 0.
pub fn uncovered(path: &CStr) -> Answer {
    Ok((identity(path)?.device == identity(c"/proc")?.device).into())
}

/// fstatat(2) of the name itself.
fn identity(path: &CStr) -> Result<Identity, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `path` ends in NUL and `stat` has room for one `struct stat`.
    let result = unsafe { libc::fstatat(CWD, path.as_ptr(), stat.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
    Errno::result(result)?;
    // SAFETY: fstatat succeeded, so it filled the struct.
    let stat = unsafe { stat.assume_init() };
    Ok(Identity { device: stat.st_dev, inode: stat.st_ino })
}

/// openat(2), without waiting, and closed again.
pub fn open(path: &CStr, flags: i32) -> Answer {
    match fd::open(CWD, path, flags | libc::O_NONBLOCK | libc::O_NOCTTY, 0) {
        // That a program runs is told before its mount is asked.
        Err(Failure { errno: Errno::ETXTBSY, .. }) => access(path, libc::W_OK),
        result => result.map(|_| 0).map_err(errno),
    }
}

/// statvfs(3): EROFS where the mount takes no writes. access(2) does not tell of
/// FIFOs and sockets, which are not written to the file system.
pub fn writable_mount(path: &CStr) -> Answer {
    let mut statvfs = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` ends in NUL and `statvfs` has room for one `struct statvfs`.
    Errno::result(unsafe { libc::statvfs(path.as_ptr(), statvfs.as_mut_ptr()) })?;
    // SAFETY: statvfs succeeded, so it filled the struct.
    let flags = unsafe { statvfs.assume_init() }.f_flag;
    if flags & libc::ST_RDONLY == 0 { Ok(0) } else { Err(Errno::EROFS) }
}

/// Whether a directory takes a new file: one without a name, so that nothing
/// appears there. Where the file system has no such files, what faccessat(2) says.
pub fn make(path: &CStr) -> Answer {
    match fd::open(CWD, path, libc::O_TMPFILE | libc::O_RDWR, 0o600) {
        Err(Failure { errno: Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL, .. }) => {
            access(path, libc::W_OK | libc::X_OK)
        }
        result => result.map(|_| 0).map_err(errno),
    }
}

/// faccessat(2).
pub fn access(path: &CStr, mode: i32) -> Answer {
    // SAFETY: `path` ends in NUL.
    Errno::result(unsafe { libc::faccessat(CWD, path.as_ptr(), mode, 0) })
}

/// Lists a directory; how many entries it has beside `.` and `..`, as far as
/// the first pages tell.
pub fn list(path: &CStr) -> Answer {
    // More than a policy has names in one directory.
    const PAGES: usize = 16;
    let mut count = 0;
    entries(path, PAGES, |name| count += i32::from(name != b"." && name != b".."))?;
    Ok(count)
}

/// How many processes `/proc` shows beside PID 1, the caller and its parent.
pub fn other_processes() -> Answer {
    // SAFETY: both take nothing and cannot fail.
    let own = unsafe { [1, libc::getpid(), libc::getppid()] };
    let mut count = 0;
    // More than a cell can have at this point, and an end in every case.
    const PAGES: usize = 64;
    entries(c"/proc", PAGES, |name| {
        let digits = name.iter().try_fold(0i32, |number, byte| {
            let digit = char::from(*byte).to_digit(10)?;
            number.checked_mul(10)?.checked_add(digit as i32)
        });
        count += i32::from(digits.is_some_and(|pid| !own.contains(&pid)));
    })?;
    Ok(count)
}

/// Calls `each` with the names in the first pages of a directory.
fn entries(path: &CStr, pages: usize, mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
    /// As `struct linux_dirent64` is aligned.
    #[repr(align(8))]
    struct Page([u8; 4096]);
    let directory = fd::open(CWD, path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK, 0);
    let directory = directory.map_err(errno)?;
    for _ in 0..pages {
        let mut page = Page([0; 4096]);
        let size = page.0.len();
        // SAFETY: `page` has room for the bytes asked for.
        let got =
            unsafe { libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), page.0.as_mut_ptr(), size) };
        let got = Errno::result(got)? as usize;
        if got == 0 {
            return Ok(());
        }
        let mut rest = &page.0[..got];
        const NAME: usize = offset_of!(libc::dirent64, d_name);
        const LENGTH: usize = offset_of!(libc::dirent64, d_reclen);
        while rest.len() > NAME {
            let length = usize::from(u16::from_ne_bytes([rest[LENGTH], rest[LENGTH + 1]]));
            let Some(entry) = rest.get(..length).filter(|entry| entry.len() > NAME) else {
                return Err(Errno::EIO);
            };
            each(entry[NAME..].split(|byte| *byte == 0).next().unwrap_or_default());
            rest = &rest[length..];
        }
    }
    Ok(())
}

/// kill(2) with signal 0.
pub fn signal(pid: i32) -> Answer {
    // SAFETY: no memory is involved; signal 0 is sent to nobody.
    Errno::result(unsafe { libc::kill(pid, 0) })
}

/// connect(2) to a Unix socket of type `kind`, by its path or, where the name
/// is abstract, by the name.
pub fn connect_unix(name: &CStr, is_abstract: bool, kind: i32) -> Answer {
    // SAFETY: an all-zero sockaddr_un is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let start = usize::from(is_abstract);
    // One stays zero: the end of a path. A longer path has a shorter name.
    let mut short = ([0; MAGIC], None);
    let mut name = name;
    if start + name.to_bytes().len() >= address.sun_path.len() {
        if is_abstract {
            return Err(Errno::ENAMETOOLONG);
        }
        let file = fd::open(CWD, name, libc::O_PATH | libc::O_NOFOLLOW, 0).map_err(errno)?;
        short.0 = magic_link(&file);
        short.1 = Some(file);
        name = CStr::from_bytes_until_nul(&short.0).map_err(|_| Errno::ENAMETOOLONG)?;
    }
    let name = name.to_bytes();
    for (to, from) in address.sun_path[start..].iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let length = offset_of!(libc::sockaddr_un, sun_path) + start + name.len() + usize::from(!is_abstract);
    let socket = socket(libc::AF_UNIX, kind)?;
    connect(&socket, (&raw const address).cast(), length)
}

const MAGIC: usize = c"/proc/self/fd/2147483647".count_bytes() + 1;

/// By what name `/proc` knows a descriptor; formatted by hand, as nothing may be
/// allocated.
fn magic_link(file: &OwnedFd) -> [u8; MAGIC] {
    const BEFORE: &[u8] = b"/proc/self/fd/";
    let mut link = [0; MAGIC];
    link[..BEFORE.len()].copy_from_slice(BEFORE);
    let number = file.as_raw_fd().unsigned_abs();
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    for (place, digit) in link[BEFORE.len()..][..digits].iter_mut().zip((0..digits as u32).rev()) {
        *place = b'0' + (number / 10u32.pow(digit) % 10) as u8;
    }
    link
}

/// connect(2) to a TCP port of the loopback interface.
pub fn connect_tcp(port: u16, v6: bool) -> Answer {
    match v6 {
        false => {
            let address = loopback(port);
            let socket = socket(libc::AF_INET, libc::SOCK_STREAM)?;
            connect(&socket, (&raw const address).cast(), size_of_val(&address))
        }
        true => {
            // SAFETY: an all-zero sockaddr_in6 is valid.
            let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            address.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            address.sin6_port = port.to_be();
            address.sin6_addr.s6_addr[15] = 1;
            let socket = socket(libc::AF_INET6, libc::SOCK_STREAM)?;
            connect(&socket, (&raw const address).cast(), size_of_val(&address))
        }
    }
}

/// Sends an empty datagram to a UDP port of the loopback interface, which says
/// at once where nobody has it: ECONNREFUSED.
pub fn send_udp(port: u16) -> Answer {
    let address = loopback(port);
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    connect(&socket, (&raw const address).cast(), size_of_val(&address))?;
    let (nothing, flags) = ([0u8; 1], libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    // SAFETY: `nothing` is readable for the no bytes sent.
    let sent = unsafe { libc::send(socket.as_raw_fd(), nothing.as_ptr().cast(), 0, flags) };
    Errno::result(sent)?;
    let mut answer = [0u8; 1];
    // SAFETY: `answer` has room for the one byte asked for.
    let got = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT) };
    match Errno::result(got) {
        Ok(_) | Err(Errno::EAGAIN) => Ok(0),
        Err(errno) => Err(errno),
    }
}

fn loopback(port: u16) -> libc::sockaddr_in {
    // SAFETY: an all-zero sockaddr_in is valid.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from_be_bytes([127, 0, 0, 1]).to_be();
    address
}

fn socket(family: i32, kind: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: no memory is involved.
    let socket = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    // SAFETY: the kernel has just given us this descriptor and nobody else has it.
    Errno::result(socket).map(|socket: RawFd| unsafe { OwnedFd::from_raw_fd(socket) })
}

fn connect(socket: &OwnedFd, address: *const libc::sockaddr, length: usize) -> Answer {
    // SAFETY: the callers pass an address and its own length.
    let result = unsafe { libc::connect(socket.as_raw_fd(), address, length as libc::socklen_t) };
    match Errno::result(result) {
        Err(Errno::EINPROGRESS) => connected(socket),
        result => result,
    }
}

/// What came of a connection that was begun.
fn connected(socket: &OwnedFd) -> Answer {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: `poll` is one `pollfd`.
    if Errno::result(unsafe { libc::poll(&raw mut poll, 1, PATIENCE) })? == 0 {
        return Err(Errno::ETIMEDOUT);
    }
    let (mut error, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: SO_ERROR writes one int, of the length given.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast(),
            &raw mut length,
        )
    };
    Errno::result(result)?;
    if error == 0 { Ok(0) } else { Err(Errno::from_raw(error)) }
}

/// `IPC_STAT` of a segment that is there; EINVAL where it is not.
pub fn shared_memory(id: i32) -> Answer {
    let mut facts = MaybeUninit::<libc::shmid_ds>::uninit();
    // SAFETY: `facts` has room for what the kernel writes.
    Errno::result(unsafe { libc::shmctl(id, libc::IPC_STAT, facts.as_mut_ptr()) }).map(|_| 0)
}

/// mq_open(2) of a queue that is there; `name` without its slash, as the kernel
/// has it.
pub fn message_queue(name: &CStr) -> Answer {
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: `name` ends in NUL; without O_CREAT the other two are not read.
    let queue = unsafe { libc::syscall(libc::SYS_mq_open, name.as_ptr(), flags, 0, 0usize) };
    let queue = Errno::result(queue)?;
    fd::close(queue as RawFd);
    Ok(0)
}

/// unshare(2) into a user namespace of one's own.
pub fn user_namespace() -> Answer {
    // SAFETY: no memory is involved.
    Errno::result(unsafe { libc::unshare(libc::CLONE_NEWUSER) })
}

/// pidfd_getfd(2) of nothing: EBADF, unless a filter refuses the call itself.
pub fn descriptor_of_another() -> Answer {
    // SAFETY: no memory is involved, and there is no descriptor -1.
    Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_getfd, -1, -1, 0u32) }).map(|_| 0)
}
