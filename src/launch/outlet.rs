//! Bytes on their way to a reader who may be slow, or not read at all.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::isatty;

use super::terminal;
use crate::host::Kind;
use crate::sys::fd;

/// One end of a copy; reading and writing it waits for nobody.
pub(super) enum End {
    /// A pipe, a terminal or a regular file.
    File(File),
    /// A pipe that waits; what poll calls writable takes `PIPE_BUF` bytes (pipe(7)).
    WaitingPipe(File),
    Socket(File),
}

impl End {
    /// A pipe and a terminal are opened anew, as they must not wait, and the flag
    /// for that belongs to a description that others share. A regular file never
    /// waits.
    pub fn new(file: File, is_input: bool) -> End {
        match file.metadata().map(|stat| Kind::of_mode(stat.mode())) {
            Ok(Kind::Socket) => End::Socket(file),
            Ok(Kind::Fifo) => {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                let mut options = File::options();
                options.read(is_input).write(!is_input).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
                // A pipe of another user's, as after su(1), cannot be.
                options.open(path).map_or(End::WaitingPipe(file), End::File)
            }
            Ok(Kind::Device) if isatty(&file).unwrap_or(false) => {
                terminal::open_anew(file.as_fd()).map_or(End::WaitingPipe(file), End::File)
            }
            _ => End::File(file),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            End::File(file) | End::WaitingPipe(file) => file.read(buffer),
            End::Socket(socket) => Ok(recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT)?),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            End::File(file) => file.write(bytes),
            End::WaitingPipe(pipe) => pipe.write(&bytes[..bytes.len().min(libc::PIPE_BUF)]),
            End::Socket(socket) => {
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                Ok(send(socket.as_raw_fd(), bytes, flags)?)
            }
        }
    }

    pub fn poll(&self, flags: PollFlags) -> PollFd<'_> {
        PollFd::new(self.file().as_fd(), flags)
    }

    /// How many bytes a pipe of ours holds. What has the other end can change that.
    pub fn held(&self) -> usize {
        fd::readable(self.file().as_fd())
    }

    fn file(&self) -> &File {
        match self {
            End::File(file) | End::WaitingPipe(file) | End::Socket(file) => file,
        }
    }
}

/// Where bytes go, and those that have not been taken yet.
pub(super) struct Outlet {
    to: End,
    waiting: Vec<u8>,
}

impl Outlet {
    pub fn new(to: End) -> Outlet {
        Outlet { to, waiting: Vec::new() }
    }

    /// For the launcher's own lines.
    pub fn to_descriptor(descriptor: OwnedFd) -> Outlet {
        Outlet::new(End::new(descriptor.into(), false))
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many bytes wait here.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many bytes wait here and, as far as the kernel tells, before the reader.
    pub fn before_the_reader(&self) -> usize {
        let in_between = match &self.to {
            End::Socket(socket) => fd::unsent(socket.as_fd()),
            end => end.held(),
        };
        self.len() + in_between
    }

    pub fn poll(&self) -> PollFd<'_> {
        self.to.poll(PollFlags::POLLOUT)
    }

    /// Reads up to `most` bytes that are to go out; 0 at the end.
    pub fn fill(&mut self, from: &mut End, most: usize) -> io::Result<usize> {
        let before = self.waiting.len();
        self.waiting.resize(before + most, 0);
        let got = from.read(&mut self.waiting[before..]);
        self.waiting.truncate(before + *got.as_ref().unwrap_or(&0));
        got
    }

    /// Writes what is taken at once, where poll has said that something is.
    pub fn write(&mut self) -> io::Result<()> {
        match self.to.write(&self.waiting) {
            Ok(written) => drop(self.waiting.drain(..written)),
            Err(error) if is_nothing_yet(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Adds a line, and writes what is taken without waiting.
    pub fn say(&mut self, line: &[u8]) -> io::Result<()> {
        self.waiting.extend_from_slice(line);
        self.carry()
    }

    fn takes_some(&self) -> bool {
        let mut fds = [self.poll()];
        wait(&mut fds, PollTimeout::ZERO).is_ok() && fds[0].any().unwrap_or(true)
    }

    /// Writes for as long as that waits for nobody.
    pub fn carry(&mut self) -> io::Result<()> {
        let mut before = usize::MAX;
        while !self.is_empty() && self.len() < before && self.takes_some() {
            before = self.len();
            self.write()?;
        }
        Ok(())
    }
}

/// poll(2), which a stop and a tracer may end early.
pub(super) fn wait(fds: &mut [PollFd], timeout: PollTimeout) -> nix::Result<()> {
    loop {
        match poll(fds, timeout) {
            Err(Errno::EINTR) => {}
            result => return result.map(drop),
        }
    }
}

/// Whether a read or a write only has to be tried again.
pub(super) fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Whether the other side has gone, which is its own wish: a pipe's or a
/// socket's reader, also one that left bytes unread in a socket (unix(7)).
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// How long a reader who takes nothing is waited for when the time is up, or
/// the run was told to end.
pub(super) const HURRIED: Duration = Duration::from_millis(500);

/// How long, where nothing presses.
pub(super) const PATIENT: Duration = Duration::from_secs(10);

/// Since when a reader has taken nothing.
pub(super) struct Stall {
    before_the_reader: usize,
    since: Instant,
}

impl Stall {
    pub fn new() -> Stall {
        Stall { before_the_reader: usize::MAX, since: Instant::now() }
    }

    /// How long it has been, given how much is before the reader now.
    pub fn lasts(&mut self, before_the_reader: usize) -> Duration {
        if before_the_reader < self.before_the_reader {
            self.since = Instant::now();
        }
        self.before_the_reader = before_the_reader;
        self.since.elapsed()
    }
}
