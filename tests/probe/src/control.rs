//! Controls: what a provider must be able to do. A cell that fails one of
//! these is of no use, however tight it is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::call::{CWD, NONE, c, call, call_fd, errno_name, why};
use crate::facts::Facts;
use crate::verdict::{in_child, owned, wait};

/// One thing that must work.
pub struct Control {
    /// Its number.
    pub id: &'static str,
    /// What it does, in a few words.
    pub what: &'static str,
    run: fn(&Facts) -> io::Result<()>,
}

const fn control(id: &'static str, what: &'static str, run: fn(&Facts) -> io::Result<()>) -> Control {
    Control { id, what, run }
}

/// Everything that must work.
pub const CONTROLS: &[Control] = &[
    control("C01", "own state: write, read, rename, link, remove", own_state),
    control("C02", "the FIFO takes exact bytes", fifo),
    control("C03", "threads", threads),
    control("C04", "fork, exec and wait", spawn),
    control("C05", "socket pair", socket_pair),
    control("C06", "abstract socket between own processes", abstract_socket),
    control("C07", "pathname socket in own state, descriptor passed", pathname_socket),
    control("C08", "TCP on loopback between own processes", |_| {
        tcp(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?)
    }),
    control("C09", "UDP on loopback", udp),
    control("C10", "TCP on loopback, IPv6", tcp6),
    control("C11", "inotify on own state", inotify),
    control("C12", "byte locks and shared mapping between processes", wal),
    control("C13", "shared memory in /dev/shm", shm),
    control("C14", "SysV shared memory", sysv_shm),
    control("C15", "SysV semaphores and queues", sysv_other),
    control("C16", "POSIX message queue", queue),
    control("C17", "1 MiB through a pipe", pipe),
    control("C18", "pty: open, write, read", pty),
    control("C19", "timerfd and epoll", timer),
    control("C20", "signalfd and a signal to oneself", signal_fd),
    control("C21", "eventfd", event_fd),
    control("C22", "memfd, sealed and mapped", memfd),
    control("C23", "executable memory", executable_memory),
    control("C24", "flock on an own file, between processes", flock),
    control("C25", "sendfile, splice and copy_file_range", copy_calls),
    control("C26", "getrandom", |_| {
        call(libc::SYS_getrandom, &[[0u8; 16].as_mut_ptr() as usize, 16, 0]).map(drop)
    }),
    control("C27", "scheduler: yield, affinity, nice", scheduler),
    control("C28", "futex between processes", futex),
    control("C29", "process group of a child, stopped, continued, ended", process_group),
    control("C30", "/proc/self", proc_self),
    control("C31", "/dev/null, zero, full, random, urandom", devices),
    control("C32", "a filter of one's own without listener", own_filter),
    control("C33", "lower an own limit", limits),
    control("C34", "temporary files: O_TMPFILE, /tmp, linkat", temporary),
    control("C35", "extended stat, access and attributes of own files", attributes),
    control("C36", "chmod and chdir in own state", modes),
    control("C37", "clocks and sleep", clocks),
    control("C38", "pidfd of a child", pidfd),
    control("C39", "read the descriptor, run the helper", channel),
    control("C40", "netlink route socket lists interfaces", interfaces),
    control("C41", "a daemon is adopted", daemon),
];

/// Runs a control in a process of its own and gives its line.
pub fn line(control: &Control, facts: &Facts) -> io::Result<String> {
    const SECONDS: u32 = 10;
    let outcome = in_child(SECONDS, || match (control.run)(facts) {
        Ok(()) => "ok\t".into(),
        Err(error) => format!("fail\t{}", why(&error)),
    })?;
    Ok(format!("{}\t{outcome}", control.id))
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

fn same(got: impl AsRef<[u8]>, wanted: impl AsRef<[u8]>) -> io::Result<()> {
    if got.as_ref() == wanted.as_ref() {
        return Ok(());
    }
    Err(wrong(format!("{:?}, not {:?}", got.as_ref(), wanted.as_ref())))
}

/// Runs `body` in a child and waits for it; its error is this one's.
fn fork(body: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let answer = in_child(8, || match body() {
        Ok(()) => "ok".into(),
        Err(error) => why(&error),
    })?;
    if answer == "ok" { Ok(()) } else { Err(wrong(format!("child: {answer}"))) }
}

/// Starts `body` in a child and gives its pid.
fn start(body: impl FnOnce() -> io::Result<()>) -> io::Result<i32> {
    // SAFETY: a control forks before it starts any thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = i32::from(body().is_err());
        // SAFETY: ends the child without running what the parent has at exit.
        unsafe { libc::_exit(code) };
    }
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) }
}

fn finish(pid: i32) -> io::Result<()> {
    match wait(pid)? {
        0 => Ok(()),
        status => Err(wrong(format!("child ended with {status:#x}"))),
    }
}

/// A shared mapping of one page, of a file or of nothing; it lasts as long as
/// the process.
fn map(fd: Option<&File>, protection: i32) -> io::Result<*mut u8> {
    let (flags, fd) = match fd {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd() as usize),
        None => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, NONE),
    };
    call(libc::SYS_mmap, &[0, 4096, protection as usize, flags as usize, fd, 0])
        .map(|address| address as *mut u8)
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn own_state(f: &Facts) -> io::Result<()> {
    let dir = f.own("c01");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir)?;
    fs::write(dir.join("a"), b"state")?;
    fs::rename(dir.join("a"), dir.join("b"))?;
    fs::hard_link(dir.join("b"), dir.join("c"))?;
    std::os::unix::fs::symlink("c", dir.join("d"))?;
    same(fs::read(dir.join("d"))?, b"state")?;
    let file = OpenOptions::new().append(true).open(dir.join("b"))?;
    file.set_len(3)?;
    file.sync_all()?;
    same(fs::read(dir.join("c"))?, b"sta")?;
    fs::remove_dir_all(dir)
}

fn fifo(f: &Facts) -> io::Result<()> {
    OpenOptions::new().write(true).open(f.path("FIFO"))?.write_all(crate::ACTIVITY)
}

fn threads(_: &Facts) -> io::Result<()> {
    let sum: u32 =
        (0..8).map(|n| std::thread::spawn(move || n)).map(|thread| thread.join().unwrap_or(100)).sum();
    if sum == 28 { Ok(()) } else { Err(wrong(format!("{sum}"))) }
}

fn spawn(_: &Facts) -> io::Result<()> {
    let output = std::process::Command::new("/proc/self/exe").args(["echo", "spawned"]).output()?;
    same(output.stdout, b"spawned\n")
}

fn socket_pair(_: &Facts) -> io::Result<()> {
    let (mut left, mut right) = UnixStream::pair()?;
    let child = start(move || right.write_all(b"pair"))?;
    let mut got = [0; 4];
    left.read_exact(&mut got)?;
    finish(child)?;
    same(got, b"pair")
}

fn abstract_socket(_: &Facts) -> io::Result<()> {
    let name = UnixAddr::from_abstract_name("cell-own")?;
    let listener = UnixListener::bind_addr(&name)?;
    let child = start(|| UnixStream::connect_addr(&name)?.write_all(b"here"))?;
    let mut got = [0; 4];
    listener.accept()?.0.read_exact(&mut got)?;
    finish(child)?;
    same(got, b"here")
}

fn pathname_socket(f: &Facts) -> io::Result<()> {
    let path = f.own("c07");
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    let (mut reader, writer) = io::pipe()?;
    let child = start(|| send_fd(&UnixStream::connect(&path)?, &writer))?;
    let received = receive_fd(&listener.accept()?.0)?;
    finish(child)?;
    File::from(received).write_all(b"passed")?;
    drop(writer);
    let mut got = [0; 6];
    reader.read_exact(&mut got)?;
    fs::remove_file(path)?;
    same(got, b"passed")
}

/// A message of one byte with room for one descriptor.
fn with_message<T>(body: impl FnOnce(&mut libc::msghdr) -> io::Result<T>) -> io::Result<T> {
    let mut byte = [b'x'];
    let mut control = [0usize; 4];
    let mut io = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: all zeroes is a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut io;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: computes a size.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as _;
    body(&mut message)
}

fn send_fd(socket: &UnixStream, fd: &impl AsRawFd) -> io::Result<()> {
    with_message(|message| {
        // SAFETY: the control buffer is aligned and has room for one header
        // with one descriptor.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd.as_raw_fd());
        }
        call(libc::SYS_sendmsg, &[socket.as_raw_fd() as usize, &raw const *message as usize, 0]).map(drop)
    })
}

fn receive_fd(socket: &UnixStream) -> io::Result<OwnedFd> {
    with_message(|message| {
        call(libc::SYS_recvmsg, &[socket.as_raw_fd() as usize, &raw mut *message as usize, 0])?;
        // SAFETY: the kernel has filled the control buffer, or left no header.
        let fd = unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            if header.is_null() { -1 } else { libc::CMSG_DATA(header).cast::<i32>().read_unaligned() }
        };
        owned(fd)
    })
}

fn tcp(listener: TcpListener) -> io::Result<()> {
    let address = listener.local_addr()?;
    let child = start(|| TcpStream::connect(address)?.write_all(b"stream"))?;
    let mut got = [0; 6];
    listener.accept()?.0.read_exact(&mut got)?;
    finish(child)?;
    same(got, b"stream")
}

fn tcp6(_: &Facts) -> io::Result<()> {
    match TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        // A host without IPv6 has none to give.
        Err(error)
            if error.raw_os_error() == Some(libc::EAFNOSUPPORT) && !fs::exists("/proc/net/if_inet6")? =>
        {
            Ok(())
        }
        listener => tcp(listener?),
    }
}

fn udp(_: &Facts) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = socket.local_addr()?;
    socket.set_read_timeout(Some(Duration::from_secs(4)))?;
    let child = start(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.send_to(b"datagram", address).map(drop))?;
    let mut got = [0; 8];
    socket.recv(&mut got)?;
    finish(child)?;
    same(got, b"datagram")
}

fn inotify(f: &Facts) -> io::Result<()> {
    let mut events = File::from(call_fd(libc::SYS_inotify_init1, &[0])?);
    let path = c(f.path("OWN"));
    call(
        libc::SYS_inotify_add_watch,
        &[events.as_raw_fd() as usize, path.as_ptr() as usize, libc::IN_CREATE as usize],
    )?;
    let file = f.own("c11");
    let _ = fs::remove_file(&file);
    fork(|| fs::write(&file, b""))?;
    let mut event = [0; 512];
    let read = events.read(&mut event)?;
    fs::remove_file(file)?;
    if event[..read].windows(3).any(|name| name == b"c11") { Ok(()) } else { Err(wrong("no event")) }
}

fn byte_lock(file: &File, kind: i32, command: i32) -> io::Result<()> {
    // SAFETY: all zeroes is a valid `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = 120;
    lock.l_len = 1;
    call(libc::SYS_fcntl, &[file.as_raw_fd() as usize, command as usize, &raw const lock as usize]).map(drop)
}

/// As SQLite's WAL index does: a mapped file and locks on bytes of it.
fn wal(f: &Facts) -> io::Result<()> {
    let path = f.own("c12-shm");
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let file = open()?;
    file.set_len(4096)?;
    let page = map(Some(&file), READ_WRITE)?;
    byte_lock(&file, libc::F_WRLCK, libc::F_SETLK)?;
    let (mut told, mut tell) = io::pipe()?;
    let child = start(|| {
        let file = open()?;
        if byte_lock(&file, libc::F_WRLCK, libc::F_SETLK).is_ok() {
            return Err(wrong("two hold one lock"));
        }
        tell.write_all(b"x")?;
        byte_lock(&file, libc::F_WRLCK, libc::F_SETLKW)?;
        // SAFETY: the page is mapped until the process ends; the lock is held.
        unsafe { page.add(100).write_volatile(42) };
        byte_lock(&file, libc::F_UNLCK, libc::F_SETLK)
    })?;
    told.read_exact(&mut [0])?;
    byte_lock(&file, libc::F_UNLCK, libc::F_SETLK)?;
    finish(child)?;
    // SAFETY: the page is mapped until the process ends; the writer has ended.
    let seen = unsafe { page.add(100).read_volatile() };
    fs::remove_file(path)?;
    same([seen], [42])
}

fn shm(_: &Facts) -> io::Result<()> {
    let path = "/dev/shm/cell-own";
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    file.set_len(4096)?;
    let page = map(Some(&file), READ_WRITE)?;
    fork(|| {
        // SAFETY: the page is mapped until the process ends.
        unsafe { page.write_volatile(7) };
        Ok(())
    })?;
    // SAFETY: the page is mapped until the process ends; the writer has ended.
    let seen = unsafe { page.read_volatile() };
    fs::remove_file(path)?;
    same([seen], [7])
}

fn sysv_shm(_: &Facts) -> io::Result<()> {
    let id = call(libc::SYS_shmget, &[libc::IPC_PRIVATE as usize, 4096, (libc::IPC_CREAT | 0o600) as usize])?;
    let attached = call(libc::SYS_shmat, &[id, 0, 0]);
    call(libc::SYS_shmctl, &[id, libc::IPC_RMID as usize, 0])?;
    let page = attached? as *mut u8;
    fork(|| {
        // SAFETY: the segment is attached until the process ends.
        unsafe { page.write_volatile(9) };
        Ok(())
    })?;
    // SAFETY: the segment is attached until the process ends.
    same([unsafe { page.read_volatile() }], [9])
}

fn sysv_other(_: &Facts) -> io::Result<()> {
    let private = libc::IPC_PRIVATE as usize;
    let mode = (libc::IPC_CREAT | 0o600) as usize;
    let semaphore = call(libc::SYS_semget, &[private, 1, mode])?;
    call(libc::SYS_semctl, &[semaphore, 0, libc::IPC_RMID as usize, 0])?;
    let queue = call(libc::SYS_msgget, &[private, mode])?;
    call(libc::SYS_msgctl, &[queue, libc::IPC_RMID as usize, 0]).map(drop)
}

fn queue(_: &Facts) -> io::Result<()> {
    let name = c"cell-own".as_ptr() as usize;
    let flags = (libc::O_CREAT | libc::O_RDWR) as usize;
    let queue = call_fd(libc::SYS_mq_open, &[name, flags, 0o600, 0])?;
    let fd = queue.as_raw_fd() as usize;
    let sent = fork(|| call(libc::SYS_mq_timedsend, &[fd, b"queued".as_ptr() as usize, 6, 0, 0]).map(drop));
    let mut got = [0u8; 8192];
    let received = call(libc::SYS_mq_timedreceive, &[fd, got.as_mut_ptr() as usize, got.len(), 0, 0]);
    call(libc::SYS_mq_unlink, &[name])?;
    sent?;
    same(&got[..received?], b"queued")
}

fn pipe(_: &Facts) -> io::Result<()> {
    const SIZE: usize = 1 << 20;
    let (mut reader, mut writer) = io::pipe()?;
    let child = start(|| writer.write_all(&vec![b'p'; SIZE]))?;
    drop(writer);
    let mut got = Vec::new();
    reader.read_to_end(&mut got)?;
    finish(child)?;
    if got.len() == SIZE { Ok(()) } else { Err(wrong(format!("{} bytes", got.len()))) }
}

fn pty(_: &Facts) -> io::Result<()> {
    let mut master = OpenOptions::new().read(true).write(true).open("/dev/ptmx")?;
    let fd = master.as_raw_fd() as usize;
    let (unlock, mut number) = (0i32, 0i32);
    call(libc::SYS_ioctl, &[fd, libc::TIOCSPTLCK as usize, &raw const unlock as usize])?;
    call(libc::SYS_ioctl, &[fd, libc::TIOCGPTN as usize, &raw mut number as usize])?;
    call_fd(libc::SYS_ioctl, &[fd, libc::TIOCGPTPEER as usize, (libc::O_RDWR | libc::O_NOCTTY) as usize])?;
    let path = c(format!("/dev/pts/{number}"));
    fork(|| {
        call(libc::SYS_setsid, &[])?;
        let slave = call_fd(libc::SYS_openat, &[CWD, path.as_ptr() as usize, libc::O_RDWR as usize])?;
        call(libc::SYS_ioctl, &[slave.as_raw_fd() as usize, libc::TIOCSCTTY as usize, 0])?;
        OpenOptions::new().write(true).open("/dev/tty")?.write_all(b"line")
    })?;
    let mut got = [0; 4];
    master.read_exact(&mut got)?;
    same(got, b"line")
}

fn timer(_: &Facts) -> io::Result<()> {
    let timer = call_fd(libc::SYS_timerfd_create, &[libc::CLOCK_MONOTONIC as usize, 0])?;
    let in_a_millisecond = [0i64, 0, 0, 1_000_000];
    call(libc::SYS_timerfd_settime, &[timer.as_raw_fd() as usize, 0, in_a_millisecond.as_ptr() as usize, 0])?;
    let epoll = call_fd(libc::SYS_epoll_create1, &[0])?;
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 5 };
    let fd = epoll.as_raw_fd() as usize;
    call(
        libc::SYS_epoll_ctl,
        &[fd, libc::EPOLL_CTL_ADD as usize, timer.as_raw_fd() as usize, &raw mut event as usize],
    )?;
    let ready = call(libc::SYS_epoll_pwait, &[fd, &raw mut event as usize, 1, 4000, 0, 8])?;
    if ready == 1 { Ok(()) } else { Err(wrong("no event")) }
}

fn signal_fd(_: &Facts) -> io::Result<()> {
    let mask = 1u64 << (libc::SIGUSR1 - 1);
    call(libc::SYS_rt_sigprocmask, &[libc::SIG_BLOCK as usize, &raw const mask as usize, 0, 8])?;
    let mut signals = File::from(call_fd(libc::SYS_signalfd4, &[NONE, &raw const mask as usize, 8, 0])?);
    call(libc::SYS_kill, &[std::process::id() as usize, libc::SIGUSR1 as usize])?;
    let mut info = [0; 128];
    signals.read_exact(&mut info)?;
    same([info[0]], [libc::SIGUSR1 as u8])
}

fn event_fd(_: &Facts) -> io::Result<()> {
    let event = File::from(call_fd(libc::SYS_eventfd2, &[0, 0])?);
    let mut other = event.try_clone()?;
    fork(|| (&event).write_all(&3u64.to_ne_bytes()))?;
    let mut got = [0; 8];
    other.read_exact(&mut got)?;
    same(got, 3u64.to_ne_bytes())
}

fn memfd(_: &Facts) -> io::Result<()> {
    let flags = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as usize;
    let memory = File::from(call_fd(libc::SYS_memfd_create, &[c"cell".as_ptr() as usize, flags])?);
    memory.set_len(4096)?;
    map(Some(&memory), READ_WRITE)?;
    call(
        libc::SYS_fcntl,
        &[memory.as_raw_fd() as usize, libc::F_ADD_SEALS as usize, libc::F_SEAL_SHRINK as usize],
    )
    .map(drop)
}

fn executable_memory(_: &Facts) -> io::Result<()> {
    // As a JIT does: written first, made executable afterwards.
    let page = map(None, READ_WRITE)?;
    call(libc::SYS_mprotect, &[page as usize, 4096, (libc::PROT_READ | libc::PROT_EXEC) as usize])?;
    map(None, READ_WRITE | libc::PROT_EXEC).map(drop)
}

fn flock(f: &Facts) -> io::Result<()> {
    let path = f.own("c24");
    let mine = File::create(&path)?;
    mine.lock()?;
    fork(|| match File::open(&path)?.try_lock() {
        Err(fs::TryLockError::WouldBlock) => Ok(()),
        other => Err(wrong(format!("{other:?}"))),
    })?;
    mine.unlock()?;
    fs::remove_file(path)
}

fn copy_calls(f: &Facts) -> io::Result<()> {
    let (from, to) = (f.own("c25-from"), f.own("c25-to"));
    fs::write(&from, b"abcdef")?;
    let source = File::open(&from)?;
    let target = File::create(&to)?;
    let (source_fd, target_fd) = (source.as_raw_fd() as usize, target.as_raw_fd() as usize);
    call(libc::SYS_sendfile, &[target_fd, source_fd, 0, 2])?;
    call(libc::SYS_copy_file_range, &[source_fd, 0, target_fd, 0, 2, 0])?;
    let (reader, writer) = io::pipe()?;
    call(libc::SYS_splice, &[source_fd, 0, writer.as_raw_fd() as usize, 0, 2, 0])?;
    call(libc::SYS_splice, &[reader.as_raw_fd() as usize, 0, target_fd, 0, 2, 0])?;
    let got = fs::read(&to)?;
    fs::remove_file(from)?;
    fs::remove_file(to)?;
    same(got, b"abcdef")
}

fn scheduler(_: &Facts) -> io::Result<()> {
    let mut mask = [0u64; 128];
    let (size, address) = (size_of_val(&mask), mask.as_mut_ptr() as usize);
    call(libc::SYS_sched_yield, &[])?;
    call(libc::SYS_sched_getaffinity, &[0, size, address])?;
    call(libc::SYS_sched_setaffinity, &[0, size, address])?;
    call(libc::SYS_setpriority, &[libc::PRIO_PROCESS as usize, 0, 5]).map(drop)
}

fn futex(_: &Facts) -> io::Result<()> {
    let page = map(None, READ_WRITE)?;
    // SAFETY: the page is aligned, zeroed and mapped until the process ends.
    let word = unsafe { AtomicU32::from_ptr(page.cast()) };
    let child = start(|| {
        word.store(1, Ordering::SeqCst);
        call(libc::SYS_futex, &[word.as_ptr() as usize, libc::FUTEX_WAKE as usize, 1]).map(drop)
    })?;
    while word.load(Ordering::SeqCst) == 0 {
        match call(libc::SYS_futex, &[word.as_ptr() as usize, libc::FUTEX_WAIT as usize, 0, 0]) {
            Err(error) if error.raw_os_error() != Some(libc::EAGAIN) => return Err(error),
            _ => {}
        }
    }
    finish(child)
}

fn process_group(_: &Facts) -> io::Result<()> {
    let child = start(|| {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    })?;
    let group = -child as isize as usize;
    call(libc::SYS_setpgid, &[child as usize, child as usize])?;
    for signal in [libc::SIGSTOP, libc::SIGCONT, libc::SIGTERM] {
        call(libc::SYS_kill, &[group, signal as usize])?;
    }
    let status = wait(child)?;
    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTERM {
        Ok(())
    } else {
        Err(wrong(format!("{status:#x}")))
    }
}

fn proc_self(_: &Facts) -> io::Result<()> {
    for file in ["status", "stat", "maps", "cmdline", "environ", "mountinfo", "limits", "cgroup", "io"] {
        fs::read(format!("/proc/self/{file}")).map_err(|error| wrong(format!("{file}: {}", why(&error))))?;
    }
    for file in [
        "cpuinfo",
        "meminfo",
        "stat",
        "uptime",
        "filesystems",
        "sys/kernel/osrelease",
        "sys/vm/overcommit_memory",
        "net/dev",
    ] {
        fs::read(format!("/proc/{file}")).map_err(|error| wrong(format!("{file}: {}", why(&error))))?;
    }
    fs::read_link("/proc/self/exe")?;
    fs::read_dir("/proc/self/fd")?;
    fs::read_dir("/proc/self/task").map(drop)
}

fn devices(_: &Facts) -> io::Result<()> {
    fs::write("/dev/null", b"gone")?;
    let mut zeros = [1; 8];
    File::open("/dev/zero")?.read_exact(&mut zeros)?;
    same(zeros, [0; 8])?;
    let full = fs::write("/dev/full", b"x").err().and_then(|error| error.raw_os_error());
    if full != Some(libc::ENOSPC) {
        return Err(wrong(format!("/dev/full: {}", errno_name(full.unwrap_or(0)))));
    }
    for random in ["/dev/random", "/dev/urandom"] {
        File::open(random)?.read_exact(&mut zeros)?;
    }
    Ok(())
}

fn own_filter(_: &Facts) -> io::Result<()> {
    const SET_MODE_FILTER: usize = 1;
    let allow = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 }];
    let program = libc::sock_fprog { len: 1, filter: allow.as_ptr().cast_mut() };
    call(libc::SYS_prctl, &[libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0])?;
    call(libc::SYS_seccomp, &[SET_MODE_FILTER, 0, &raw const program as usize]).map(drop)
}

fn limits(_: &Facts) -> io::Result<()> {
    let files = [64u64, 64];
    call(libc::SYS_prlimit64, &[0, libc::RLIMIT_NOFILE as usize, files.as_ptr() as usize, 0]).map(drop)
}

fn temporary(f: &Facts) -> io::Result<()> {
    let dir = c(f.path("OWN"));
    let flags = (libc::O_TMPFILE | libc::O_RDWR) as usize;
    call_fd(libc::SYS_openat, &[CWD, dir.as_ptr() as usize, flags, 0o600])?;
    fs::write("/tmp/cell-own", b"x")?;
    fs::remove_file("/tmp/cell-own")
}

fn attributes(f: &Facts) -> io::Result<()> {
    let path = f.own("c35");
    fs::write(&path, b"x")?;
    fs::metadata(&path)?.created()?;
    let name = c(&path);
    call(
        libc::SYS_faccessat2,
        &[CWD, name.as_ptr() as usize, libc::R_OK as usize, libc::AT_EACCESS as usize],
    )?;
    call(libc::SYS_listxattr, &[name.as_ptr() as usize, 0, 0])?;
    call(libc::SYS_utimensat, &[CWD, name.as_ptr() as usize, 0, 0])?;
    fs::remove_file(path)
}

fn modes(f: &Facts) -> io::Result<()> {
    let path = f.own("c36");
    fs::write(&path, b"x")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    std::env::set_current_dir(f.path("OWN"))?;
    fs::remove_file("c36")
}

fn clocks(_: &Facts) -> io::Result<()> {
    let before = std::time::Instant::now();
    std::thread::sleep(Duration::from_millis(2));
    let mut times = [0i64; 4];
    call(libc::SYS_times, &[times.as_mut_ptr() as usize])?;
    call(libc::SYS_getrusage, &[0, [0u8; 256].as_mut_ptr() as usize])?;
    if before.elapsed() >= Duration::from_millis(2) { Ok(()) } else { Err(wrong("time stood still")) }
}

fn pidfd(_: &Facts) -> io::Result<()> {
    let child = start(|| Ok(()))?;
    let opened = call_fd(libc::SYS_pidfd_open, &[child as usize, 0]);
    finish(child)?;
    opened.map(drop)
}

fn channel(f: &Facts) -> io::Result<()> {
    same(fs::read(f.path("DESCRIPTOR"))?, f.get("DESCRIPTOR_TEXT"))?;
    let output = std::process::Command::new(f.path("HELPER")).args(["echo", "helped"]).output()?;
    same(output.stdout, b"helped\n")
}

fn interfaces(_: &Facts) -> io::Result<()> {
    // SAFETY: the list is freed by the call that frees it and not used after.
    let answer = unsafe {
        let mut list = std::ptr::null_mut();
        let answer = libc::getifaddrs(&mut list);
        if answer == 0 {
            libc::freeifaddrs(list);
        }
        answer
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn daemon(_: &Facts) -> io::Result<()> {
    let (mut reader, mut writer) = io::pipe()?;
    let child = start(|| {
        start(|| {
            call(libc::SYS_setsid, &[])?;
            std::thread::sleep(Duration::from_millis(20));
            writer.write_all(b"daemon")
        })
        .map(drop)
    })?;
    finish(child)?;
    let mut got = [0; 6];
    reader.read_exact(&mut got)?;
    same(got, b"daemon")
}
