//! Class R: what the kernel counts for a whole user or host, and what every cell
//! sees of the host's devices.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use crate::call::{CWD, call, call_fd, why};
use crate::verdict::{Denied, Leak, Na, Probe, Verdict, filtered, probe, reached};

/// Probes on what is shared.
pub const PROBES: &[Probe] = &[
    probe("R01", "events of asynchronous I/O", |_| events()),
    probe("R02", "three hundred pseudo-terminals", |_| many(300, || File::open("/dev/ptmx"))),
    probe("R03", "a hundred inotify instances", |_| many(100, || call_fd(libc::SYS_inotify_init1, &[0]))),
    probe("R04", "more processes than a cell needs", |_| above(libc::RLIMIT_NPROC as usize, 4096)),
    probe("R05", "the size of a pipe", |_| pipe_size()),
    probe("R06", "the times of a device node", |_| reached(set_times(CWD, c"/dev/zero".as_ptr() as usize))),
    probe("R07", "the times of the device on standard input", |_| standard_input()),
    probe("R08", "a limit by which a crash starts the host's helper", |_| core_limit()),
    probe("R09", "the id of the host's cgroup, by a pidfd", |_| cgroup_id()),
];

fn events() -> Verdict {
    let mut context = 0usize;
    filtered(call(libc::SYS_io_setup, &[1, &raw mut context as usize]))
}

/// Whether so many can be had at one time.
fn many<T>(count: usize, make: impl Fn() -> io::Result<T>) -> Verdict {
    let mut had = Vec::new();
    for _ in 0..count {
        match make() {
            Ok(one) => had.push(one),
            Err(error) => return Denied(format!("{} after {}", why(&error), had.len())),
        }
    }
    Leak(format!("{count}"))
}

fn limit(resource: usize) -> io::Result<[u64; 2]> {
    let mut limit = [0u64; 2];
    call(libc::SYS_prlimit64, &[0, resource, 0, limit.as_mut_ptr() as usize])?;
    Ok(limit)
}

fn above(resource: usize, most: u64) -> Verdict {
    match limit(resource) {
        Ok([_, hard]) if hard > most => Leak(format!("hard limit {hard}")),
        Ok([_, hard]) => Denied(format!("hard limit {hard}")),
        Err(error) => Denied(why(&error)),
    }
}

fn pipe_size() -> Verdict {
    match io::pipe() {
        Ok((pipe, _writer)) => {
            filtered(call(libc::SYS_fcntl, &[pipe.as_raw_fd() as usize, libc::F_SETPIPE_SZ as usize, 4096]))
        }
        Err(error) => Na(why(&error)),
    }
}

fn set_times(directory: usize, path: usize) -> io::Result<usize> {
    call(libc::SYS_utimensat, &[directory, path, 0, 0])
}

fn standard_input() -> Verdict {
    let stat = File::open("/proc/self/fd/0").and_then(|file| file.metadata());
    match stat {
        Ok(stat) if stat.file_type().is_char_device() && stat.rdev() == libc::makedev(1, 3) => {
            reached(set_times(0, 0))
        }
        _ => Na("it is no /dev/null".into()),
    }
}

/// Any limit but 1 lets a piped core_pattern run.
fn core_limit() -> Verdict {
    let none = [0u64; 2];
    let core = libc::RLIMIT_CORE as usize;
    let by_prlimit = call(libc::SYS_prlimit64, &[0, core, none.as_ptr() as usize, 0]);
    let by_setrlimit = call(libc::SYS_setrlimit, &[core, none.as_ptr() as usize]);
    let mut old = none;
    let with_old = call(libc::SYS_prlimit64, &[0, core, none.as_ptr() as usize, old.as_mut_ptr() as usize]);
    match limit(core) {
        Ok([1, 1]) if by_prlimit.is_err() || by_setrlimit.is_err() => {
            Leak("programs that turn core files off would end".into())
        }
        Ok([1, 1]) if with_old.is_ok() => Leak("the old limit is answered with nothing".into()),
        Ok([1, 1]) => Denied("it stays 1".into()),
        Ok(now) => Leak(format!("{now:?}")),
        Err(error) => Denied(why(&error)),
    }
}

fn cgroup_id() -> Verdict {
    // In the sizes of Linux 6.13 to 6.17.
    match [64, 72, 80].into_iter().flat_map(pidfd_cgroup).find(|id| *id != 0) {
        Some(id) => Leak(format!("{id}")),
        None => Denied("not told".into()),
    }
}

/// The cgroup's id by PIDFD_GET_INFO, of a struct pidfd_info of that size. Its first
/// field asks for the cgroup by bit 2.
pub fn pidfd_cgroup(size: usize) -> io::Result<u64> {
    const CGROUP: u64 = 1 << 2;
    let mut info = [0u64; 16];
    info[0] = CGROUP;
    let command = 3 << 30 | size << 16 | 0xff0b;
    let pidfd = call_fd(libc::SYS_pidfd_open, &[std::process::id() as usize, 0])?;
    call(libc::SYS_ioctl, &[pidfd.as_raw_fd() as usize, command, info.as_mut_ptr() as usize])?;
    Ok(info[1])
}

/// What a network of one's own allows that the host keeps for root.
pub fn low_port() -> io::Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:80")?;
    std::net::TcpStream::connect(listener.local_addr()?)?;
    for (family, protocol) in [(libc::AF_INET, libc::IPPROTO_ICMP), (libc::AF_INET6, libc::IPPROTO_ICMPV6)] {
        call_fd(libc::SYS_socket, &[family as usize, libc::SOCK_DGRAM as usize, protocol as usize])?;
    }
    println!("ok");
    Ok(())
}
