//! A provider's work with a channel's FIFO, and a journal of what it wrote.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::call::why;
use crate::verdict::wait;

/// The byte that stands at `offset` of what [`send`] writes.
fn pattern(offset: usize) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 16)) as u8
}

/// Writes `length` bytes in as few calls as the kernel takes them.
pub fn send(fifo: &Path, length: usize) -> io::Result<()> {
    let bytes: Vec<u8> = (0..length).map(pattern).collect();
    OpenOptions::new().write(true).open(fifo)?.write_all(&bytes)
}

/// Starts `writers` processes that write `count` records each, at once; the
/// lengths take turns. A record is a byte for the writer, a `!`, its length and
/// its number, and then the writer's byte.
pub fn records(fifo: &Path, writers: u8, count: u32, lengths: &[usize]) -> io::Result<()> {
    // So that the reader sees no end before the last writer has gone.
    let _open = OpenOptions::new().write(true).open(fifo)?;
    let (mut start, starter) = io::pipe()?;
    let mut started = Vec::new();
    for writer in b'a'..b'a' + writers {
        // SAFETY: this program has one thread.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        if pid > 0 {
            started.push(pid);
            continue;
        }
        let wrote = OpenOptions::new().write(true).open(fifo).and_then(|mut fifo| {
            // SAFETY: the parent's end, of which this process has a copy that it
            // uses no more.
            unsafe { libc::close(starter.as_raw_fd()) };
            start.read_to_end(&mut Vec::new())?;
            (0..count).try_for_each(|number| {
                let length = lengths[number as usize % lengths.len()];
                let mut record = vec![writer; length];
                record[1] = b'!';
                record[2..4].copy_from_slice(&(length as u16).to_le_bytes());
                record[4..8].copy_from_slice(&number.to_le_bytes());
                // One call: what it does not take at once is a failure.
                match fifo.write(&record)? {
                    wrote if wrote == length => Ok(()),
                    wrote => Err(io::Error::other(format!("{wrote} of {length} bytes"))),
                }
            })
        });
        // SAFETY: ends the child without running what the parent has at exit.
        unsafe { libc::_exit(i32::from(wrote.is_err())) };
    }
    drop(starter);
    let failed = started.into_iter().map(wait).filter(|status| !matches!(status, Ok(0))).count();
    if failed == 0 { Ok(()) } else { Err(io::Error::other(format!("{failed} writers failed"))) }
}

/// What an open for writing answers; without `waits` it does not wait for a
/// reader.
pub fn open(fifo: &Path, waits: bool) -> String {
    let flags = if waits { 0 } else { libc::O_NONBLOCK };
    let opened = OpenOptions::new().write(true).custom_flags(flags).open(fifo);
    opened.map_or_else(|error| why(&error), |_| "ok".into())
}

/// Writes until its reader has gone, and then once more; `dies` where SIGPIPE
/// does what it does by default.
pub fn outlive(fifo: &Path, dies: bool) -> io::Result<String> {
    // SAFETY: changes this process's own disposition.
    unsafe { libc::signal(libc::SIGPIPE, if dies { libc::SIG_DFL } else { libc::SIG_IGN }) };
    let mut fifo = OpenOptions::new().write(true).open(fifo)?;
    fifo.write_all(b"x")?;
    let mut poll = libc::pollfd { fd: fifo.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: `poll` is one entry and lives through the call.
    unsafe { libc::poll(&mut poll, 1, 10_000) };
    Ok(fifo.write(b"y").map_or_else(|error| why(&error), |_| "ok".into()))
}

/// Appends a numbered line to each file in turn, and says the number when
/// every write has returned; for ever, or `rounds` times.
pub fn journal(rounds: u64, files: &[&str]) -> io::Result<()> {
    let open = |file: &&str| OpenOptions::new().append(true).create(true).mode(0o640).open(file);
    let mut files: Vec<File> = files.iter().map(open).collect::<io::Result<_>>()?;
    for round in 0..rounds {
        let line = format!("{round:010}\n");
        for file in &mut files {
            if file.write(line.as_bytes())? != line.len() {
                return Err(io::Error::other("a short write"));
            }
        }
        crate::say(&line[..line.len() - 1])?;
    }
    Ok(())
}
