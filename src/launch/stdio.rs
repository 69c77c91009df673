//! The standard streams, by kind, so that nothing of the harness rides in.
//!
//! Unnamed pipes, sockets and `/dev/null` pass. A terminal becomes one of the
//! cell's own. A regular file or a named pipe would tell its path by
//! `/proc/self/fd`, and could be opened anew for what its descriptor forbids: it
//! becomes a pipe that the launcher copies. A directory leads out of the cell
//! by `..`, and any other device is the host's: both are refused.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::statfs::{FsType, fstatfs};
use nix::unistd::{isatty, pipe2};

use crate::child::Stream;
use crate::error::Error;
use crate::host::Kind;
use crate::sys::fd;

/// The three streams as the provider gets them, and what has to be copied.
pub(super) struct Stdio {
    pub streams: [Stream; 3],
    /// The first stream that is a terminal of the caller's.
    pub terminal: Option<OwnedFd>,
    pub copies: Vec<Copy>,
    /// The provider's ends of the pipes, to be closed once it has them.
    pub given: Vec<OwnedFd>,
}

const NAMES: [&str; 3] = ["stdin", "stdout", "stderr"];

impl Stdio {
    /// Looks at the launcher's own three streams.
    pub fn prepare() -> Result<Stdio, Error> {
        let streams = [0, 1, 2].map(Stream::Descriptor);
        let mut stdio = Stdio { streams, terminal: None, copies: Vec::new(), given: Vec::new() };
        let mut copied: Vec<((u64, u64), usize)> = Vec::new();
        for (index, name) in NAMES.into_iter().enumerate() {
            let file = File::from(duplicate(index).map_err(|error| refuse(name, error.to_string()))?);
            let stat = file.metadata().map_err(|error| refuse(name, error.to_string()))?;
            match Kind::of_mode(stat.mode()) {
                Kind::Socket => {}
                Kind::Fifo if fstatfs(&file).is_ok_and(|fs| fs.filesystem_type() == PIPEFS_MAGIC) => {}
                Kind::Device if stat.rdev() == NULL => {}
                Kind::Device if isatty(&file).unwrap_or(false) => {
                    stdio.streams[index] = Stream::Terminal;
                    stdio.terminal.get_or_insert(file.into());
                }
                Kind::Device => {
                    return Err(refuse(name, "it is a device of the host other than /dev/null"));
                }
                Kind::Directory => {
                    return Err(refuse(name, "it is a directory, by which `..` leads out of the cell"));
                }
                Kind::File | Kind::Fifo => {
                    // One file behind two streams keeps its order only through one pipe.
                    let identity = (stat.dev(), stat.ino());
                    let twin = copied.iter().find(|(other, at)| *other == identity && *at > 0 && index > 0);
                    if let Some(&(_, twin)) = twin {
                        stdio.streams[index] = stdio.streams[twin];
                        continue;
                    }
                    copied.push((identity, index));
                    stdio
                        .copy(index, file, &stat)
                        .map_err(|errno| refuse(name, "no pipe can be made for it").errno(errno))?;
                }
            }
        }
        Ok(stdio)
    }

    fn copy(&mut self, index: usize, file: File, stat: &std::fs::Metadata) -> nix::Result<()> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        let (given, ours) = if index == 0 { (read, write) } else { (write, read) };
        fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        self.streams[index] = Stream::Descriptor(given.as_raw_fd());
        self.given.push(given);
        let ours = File::from(ours);
        // A named pipe that poll calls writable takes this much without waiting (pipe(7)).
        let at_once = if Kind::of_mode(stat.mode()) == Kind::Fifo { libc::PIPE_BUF } else { CHUNK };
        self.copies.push(match index {
            0 => Copy { from: file, to: ours, pending: Vec::new(), at_once: CHUNK, is_output: false },
            _ => Copy { from: ours, to: file, pending: Vec::new(), at_once, is_output: true },
        });
        Ok(())
    }
}

/// The file system of the pipes that have no name (linux/magic.h).
const PIPEFS_MAGIC: FsType = FsType(0x5049_5045);

/// The device number of `/dev/null`, the same on every Linux.
const NULL: u64 = libc::makedev(1, 3);

fn duplicate(index: usize) -> io::Result<OwnedFd> {
    match index {
        0 => io::stdin().as_fd().try_clone_to_owned(),
        1 => io::stdout().as_fd().try_clone_to_owned(),
        _ => io::stderr().as_fd().try_clone_to_owned(),
    }
}

fn refuse(name: &str, why: impl Into<String>) -> Error {
    Error::new("descriptors", format!("{name} cannot be given to the provider"))
        .cause(why)
        .remedy(format!("redirect {name} from or to a pipe, a file, a terminal or /dev/null"))
}

/// Checks that none of the three streams is closed: what this process opens
/// next would take its number.
pub(super) fn check_open() -> Result<(), Error> {
    let closed = (0..).zip(NAMES).find(|&(number, _)| !fd::is_inherited(number));
    closed.map_or(Ok(()), |(_, name)| Err(refuse(name, "it is closed")))
}

/// Checks the descriptors that the caller has named, before any is opened here.
pub(super) fn check_inherited(flag: &str, fds: &[RawFd]) -> Result<(), Error> {
    for &number in fds {
        let error =
            |what: &str| Error::new("descriptors", format!("{flag} {number}: descriptor {number} {what}"));
        if !fd::is_inherited(number) {
            return Err(error("is not open")
                .remedy(format!("open it in the shell, as in `cellblock run {flag} 3 … 3<>FILE`")));
        }
        let leads_to = std::fs::metadata(format!("/proc/self/fd/{number}"));
        if leads_to.is_ok_and(|file| file.is_dir()) {
            return Err(error("is a directory")
                .cause("by a directory `..` leads out of the cell")
                .remedy("show the directory with --ro-bind or --bind"));
        }
    }
    Ok(())
}

/// Bytes that the launcher carries from one descriptor to another.
pub(super) struct Copy {
    from: File,
    to: File,
    /// Read and not yet written.
    pending: Vec<u8>,
    /// How much may be written when poll says that some may.
    at_once: usize,
    is_output: bool,
}

/// Enough for a pipe at once, and little to lose.
const CHUNK: usize = 64 * 1024;

impl Copy {
    pub fn poll(&self) -> PollFd<'_> {
        match self.pending.is_empty() {
            true => PollFd::new(self.from.as_fd(), PollFlags::POLLIN),
            false => PollFd::new(self.to.as_fd(), PollFlags::POLLOUT),
        }
    }

    /// Carries on where poll has said that it can; false at the end.
    pub fn step(&mut self) -> bool {
        if self.pending.is_empty() {
            self.pending.resize(CHUNK, 0);
            let got = self.from.read(&mut self.pending);
            self.pending.truncate(*got.as_ref().unwrap_or(&0));
            return match got {
                Ok(got) => got > 0,
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            };
        }
        let some = self.pending.len().min(self.at_once);
        match self.to.write(&self.pending[..some]) {
            Ok(written) => {
                self.pending.drain(..written);
                true
            }
            // What takes no more ends the pipe, and the provider sees EPIPE.
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// How long the outputs of a cell that has ended may keep the launcher: what is
/// left of them is there at once, and only a reader that hangs keeps it longer.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// Carries what is left of the outputs.
pub(super) fn finish(mut copies: Vec<Copy>) {
    let deadline = Instant::now() + LAST_OUTPUT;
    copies.retain(|copy| copy.is_output);
    while !copies.is_empty() && Instant::now() < deadline {
        let ready = ready(&copies);
        let mut ready = ready.into_iter();
        copies.retain_mut(|copy| !ready.next().unwrap_or(false) || copy.step());
    }
}

fn ready(copies: &[Copy]) -> Vec<bool> {
    let mut fds: Vec<PollFd> = copies.iter().map(Copy::poll).collect();
    match poll(&mut fds, 100u16) {
        Ok(_) => fds.iter().map(|fd| fd.any().unwrap_or(true)).collect(),
        Err(_) => vec![false; copies.len()],
    }
}
