//! What a probe found, and how one is run.

use std::fmt::Display;
use std::io;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;

use crate::call::why;
use crate::facts::Facts;

/// What a probe found.
pub enum Verdict {
    /// The kernel refused, or there was nothing to be had.
    Denied(String),
    /// It was had.
    Leak(String),
    /// There is nothing here to try it on.
    Na(String),
}

pub use Verdict::{Denied, Leak, Na};

/// One way out, or one thing to be learnt.
pub struct Probe {
    /// Its number in the catalogue.
    pub id: &'static str,
    /// What it tries, in a few words.
    pub what: &'static str,
    /// Tries it.
    pub run: fn(&Facts) -> Verdict,
}

/// One line of a table of probes.
pub const fn probe(id: &'static str, what: &'static str, run: fn(&Facts) -> Verdict) -> Probe {
    Probe { id, what, run }
}

/// Success is a leak, an error a denial.
pub fn reached<T>(result: io::Result<T>) -> Verdict {
    match result {
        Ok(_) => Leak("ok".into()),
        Err(error) => Denied(why(&error)),
    }
}

/// One success of several is a leak.
pub fn any_reached<N: Display, T>(tries: impl IntoIterator<Item = (N, io::Result<T>)>) -> Verdict {
    let mut refusals: Vec<String> = Vec::new();
    for (name, result) in tries {
        match result {
            Ok(_) => return Leak(format!("{name}: ok")),
            Err(error) => {
                let why = why(&error);
                if !refusals.contains(&why) {
                    refusals.push(why);
                }
            }
        }
    }
    Denied(refusals.join(" "))
}

/// A filter answers with one of four errnos; any other answer shows that the
/// call itself was reached.
pub fn filtered<T>(result: io::Result<T>) -> Verdict {
    match result {
        Ok(_) => Leak("ok".into()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EAFNOSUPPORT) => Denied(why(&error)),
            _ => Leak(format!("reached: {}", why(&error))),
        },
    }
}

/// Runs a probe in a process of its own and gives its line: a death by signal
/// is `killed`, never a denial.
pub fn line(probe: &Probe, facts: &Facts) -> io::Result<String> {
    const SECONDS: u32 = 8;
    let outcome = in_child(SECONDS, || match (probe.run)(facts) {
        Denied(detail) => format!("denied\t{detail}"),
        Leak(detail) => format!("leak\t{detail}"),
        Na(detail) => format!("na\t{detail}"),
    })?;
    Ok(format!("{}\t{outcome}", probe.id))
}

/// Runs `body` in a forked child and gives what it returned, or
/// `killed<TAB>SIGNAL`.
pub fn in_child(seconds: u32, body: impl FnOnce() -> String) -> io::Result<String> {
    let (mut reader, mut writer) = io::pipe()?;
    // SAFETY: this program has one thread whenever it forks.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(reader);
        // SAFETY: both change the state of this process alone.
        unsafe {
            libc::alarm(seconds);
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
        }
        let text = body().replace('\n', " ");
        let _ = writer.write_all(text.as_bytes());
        // SAFETY: ends the child without running what the parent has at exit.
        unsafe { libc::_exit(0) };
    }
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    drop(writer);
    let status = wait(pid)?;
    if libc::WIFSIGNALED(status) {
        return Ok(format!("killed\t{}", signal_name(libc::WTERMSIG(status))));
    }
    // A grandchild may still hold the writer, so what is there is taken, not
    // the end waited for.
    let mut text = vec![0; 4096];
    set_nonblocking(&reader)?;
    let read = reader.read(&mut text).unwrap_or(0);
    text.truncate(read);
    if text.is_empty() {
        return Ok(format!("killed\texit {}", libc::WEXITSTATUS(status)));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Waits for a child and gives its wait status.
pub fn wait(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: `status` lives through the call.
        let ended = unsafe { libc::waitpid(pid, &mut status, 0) };
        if ended == pid {
            return Ok(status);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn set_nonblocking(fd: &impl std::os::fd::AsRawFd) -> io::Result<()> {
    // SAFETY: changes a flag of a descriptor that the caller holds.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Takes over a descriptor that a C call has just made.
pub fn owned(fd: i32) -> io::Result<std::os::fd::OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller has it from the call before and nothing else owns it.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
}

fn signal_name(signal: i32) -> String {
    match signal {
        libc::SIGSYS => "SIGSYS".into(),
        libc::SIGALRM => "SIGALRM".into(),
        libc::SIGSEGV => "SIGSEGV".into(),
        libc::SIGKILL => "SIGKILL".into(),
        libc::SIGABRT => "SIGABRT".into(),
        libc::SIGBUS => "SIGBUS".into(),
        other => format!("signal {other}"),
    }
}
