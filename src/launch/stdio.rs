//! The standard streams, by kind, so that nothing of the harness rides in.
//!
//! Pipes, sockets and `/dev/null` pass. A terminal becomes one of the cell's
//! own. A regular file would tell its path by `/proc/self/fd`, and could be
//! opened anew for what its descriptor forbids: it becomes a pipe that the
//! launcher copies. A directory leads out of the cell by `..`, and any other
//! device is the host's: both are refused.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::unistd::pipe2;

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
        let mut stdio = Stdio {
            streams: [0, 1, 2].map(Stream::Descriptor),
            terminal: None,
            copies: vec![],
            given: vec![],
        };
        let mut copied: Vec<((u64, u64), usize)> = Vec::new();
        for (index, name) in NAMES.into_iter().enumerate() {
            let fd = open_stream(index, name)?;
            let file = File::from(fd);
            let stat = file
                .metadata()
                .map_err(|error| refuse(name, error.to_string()))?;
            match Kind::of_mode(stat.mode()) {
                Kind::Fifo | Kind::Socket => {}
                Kind::Device if stat.rdev() == NULL => {}
                Kind::Device if nix::unistd::isatty(&file).unwrap_or(false) => {
                    stdio.streams[index] = Stream::Terminal;
                    stdio.terminal.get_or_insert(file.into());
                }
                Kind::Device => {
                    return Err(refuse(
                        name,
                        "it is a device of the host other than /dev/null",
                    ));
                }
                Kind::Directory => {
                    return Err(refuse(
                        name,
                        "it is a directory, by which `..` leads out of the cell",
                    ));
                }
                Kind::File => {
                    // One file behind two streams keeps its order only through one pipe.
                    let identity = (stat.dev(), stat.ino());
                    let twin = copied
                        .iter()
                        .find(|(other, at)| *other == identity && *at > 0 && index > 0);
                    if let Some(&(_, twin)) = twin {
                        stdio.streams[index] = stdio.streams[twin];
                        continue;
                    }
                    copied.push((identity, index));
                    stdio
                        .copy(index, file)
                        .map_err(|errno| refuse(name, "no pipe can be made for it").errno(errno))?;
                }
            }
        }
        Ok(stdio)
    }

    fn copy(&mut self, index: usize, file: File) -> nix::Result<()> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        let (given, ours) = if index == 0 {
            (read, write)
        } else {
            (write, read)
        };
        fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        self.streams[index] = Stream::Descriptor(given.as_raw_fd());
        self.copies.push(match index {
            0 => Copy::ToProvider {
                file,
                pipe: File::from(ours),
                pending: Vec::new(),
            },
            _ => Copy::FromProvider {
                pipe: File::from(ours),
                file,
            },
        });
        self.given.push(given);
        Ok(())
    }
}

/// The device number of `/dev/null`, the same on every Linux.
const NULL: u64 = libc::makedev(1, 3);

fn open_stream(index: usize, name: &str) -> Result<OwnedFd, Error> {
    if fd::was_missing(index) {
        return Err(refuse(name, "it is closed"));
    }
    let stream = match index {
        0 => std::io::stdin().as_fd().try_clone_to_owned(),
        1 => std::io::stdout().as_fd().try_clone_to_owned(),
        _ => std::io::stderr().as_fd().try_clone_to_owned(),
    };
    stream.map_err(|error| refuse(name, error.to_string()))
}

fn refuse(name: &str, why: impl Into<String>) -> Error {
    Error::new(
        "descriptors",
        format!("{name} cannot be given to the provider"),
    )
    .cause(why)
    .remedy(format!(
        "redirect {name} from or to a pipe, a file, a terminal or /dev/null"
    ))
}

/// Checks the descriptors that are to be passed.
pub(super) fn check_passed(fds: &[i32]) -> Result<(), Error> {
    for &fd in fds {
        let error = |what: String| Error::new("descriptors", what);
        let stat = std::fs::metadata(format!("/proc/self/fd/{fd}"));
        match stat {
            Err(_) => {
                return Err(
                    error(format!("--pass-fd {fd}: descriptor {fd} is not open"))
                        .remedy("open it in the shell, as in `cellblock run --pass-fd 3 … 3<FILE`"),
                );
            }
            Ok(stat) if stat.is_dir() => {
                return Err(
                    error(format!("--pass-fd {fd}: descriptor {fd} is a directory"))
                        .cause("by a directory `..` leads out of the cell")
                        .remedy("show the directory with --ro-bind or --bind"),
                );
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Bytes that the launcher carries between a file and a pipe.
pub(super) enum Copy {
    /// Standard input.
    ToProvider {
        file: File,
        pipe: File,
        pending: Vec<u8>,
    },
    /// Standard output or error.
    FromProvider { pipe: File, file: File },
}

/// Enough for a pipe at once, and little to lose.
const CHUNK: usize = 64 * 1024;

impl Copy {
    pub fn poll(&self) -> PollFd<'_> {
        match self {
            Copy::ToProvider { pipe, .. } => PollFd::new(pipe.as_fd(), PollFlags::POLLOUT),
            Copy::FromProvider { pipe, .. } => PollFd::new(pipe.as_fd(), PollFlags::POLLIN),
        }
    }

    pub fn is_output(&self) -> bool {
        matches!(self, Copy::FromProvider { .. })
    }

    /// Carries what can be carried without waiting; false at the end.
    pub fn step(&mut self) -> bool {
        match self {
            Copy::ToProvider {
                file,
                pipe,
                pending,
            } => {
                if pending.is_empty() {
                    pending.resize(CHUNK, 0);
                    let got = file.read(pending).unwrap_or(0);
                    pending.truncate(got);
                    if got == 0 {
                        return false;
                    }
                }
                match pipe.write(pending) {
                    Ok(written) => {
                        pending.drain(..written);
                        true
                    }
                    Err(error) => error.kind() == ErrorKind::WouldBlock,
                }
            }
            Copy::FromProvider { pipe, file } => {
                let mut buffer = [0; CHUNK];
                match pipe.read(&mut buffer) {
                    Ok(0) => false,
                    // A file that takes no more ends the pipe, and the provider sees EPIPE.
                    Ok(got) => file.write_all(&buffer[..got]).is_ok(),
                    Err(error) => error.kind() == ErrorKind::WouldBlock,
                }
            }
        }
    }
}
