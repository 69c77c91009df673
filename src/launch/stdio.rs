//! The standard streams, by kind, so that nothing of the harness rides in.
//!
//! Only `/dev/null` passes, as the cell's own. A terminal becomes one of the cell's own. What else
//! carries bytes becomes a pipe of the cell's own, which the launcher copies: a
//! file or a named pipe would tell its path and could be opened anew for what its
//! descriptor forbids; from an unnamed pipe the provider could read what others
//! write to it; a socket belongs to the host's network, and can be connected
//! anew. A directory leads out of the cell by `..`, and any other device is the
//! host's: both are refused.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{SockaddrStorage, getpeername};
use nix::unistd::{Gid, Uid, fchown, isatty, pipe2};

use super::explain;
use super::outlet::{End, Outlet, is_gone, is_nothing_yet};
use crate::child::Stream;
use crate::error::Error;
use crate::host::{Ids, Kind};
use crate::sys::{self, Errno, fd};

/// The three streams as the provider gets them, and what has to be copied.
pub(super) struct Stdio {
    pub streams: [Stream; 3],
    /// The first stream that is a terminal of the caller's.
    pub terminal: Option<OwnedFd>,
    pub copies: Vec<Copy>,
    /// A file on standard input, which goes back where the provider reads nothing.
    pub unread: Option<Unread>,
    /// The provider's ends of the pipes, to be closed once it has them.
    pub given: Vec<OwnedFd>,
}

const NAMES: [&str; 3] = ["stdin", "stdout", "stderr"];

impl Stdio {
    /// Looks at the launcher's own three streams.
    pub fn prepare(ids: Ids) -> Result<Stdio, Error> {
        let streams = [0, 1, 2].map(Stream::Descriptor);
        let (copies, given) = (Vec::new(), Vec::new());
        let mut stdio = Stdio { streams, terminal: None, copies, unread: None, given };
        let mut copied: Vec<((u64, u64), usize)> = Vec::new();
        for (index, name) in NAMES.into_iter().enumerate() {
            let file = File::from(duplicate(index).map_err(|error| no_pipe(name, sys::errno(&error)))?);
            let stat = file.metadata().map_err(|error| refuse(name, error.to_string()))?;
            match Kind::of_mode(stat.mode()) {
                Kind::Device if stat.rdev() == NULL => stdio.streams[index] = Stream::Null,
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
                Kind::Socket if leads_nowhere(file.as_raw_fd()) => {
                    return Err(refuse(name, "it is a socket that is not connected"));
                }
                Kind::File | Kind::Fifo | Kind::Socket => {
                    // One file behind two streams keeps its order only through one pipe.
                    let identity = (stat.dev(), stat.ino());
                    let twin = copied.iter().find(|(other, at)| *other == identity && *at > 0 && index > 0);
                    if let Some(&(_, twin)) = twin {
                        stdio.streams[index] = stdio.streams[twin];
                        continue;
                    }
                    copied.push((identity, index));
                    stdio.copy(index, file, ids).map_err(|errno| no_pipe(name, errno))?;
                }
            }
        }
        Ok(stdio)
    }

    /// Nothing to read and nowhere to write.
    pub fn nothing() -> Stdio {
        let (copies, given) = (Vec::new(), Vec::new());
        Stdio { streams: [Stream::Null; 3], terminal: None, copies, unread: None, given }
    }

    fn copy(&mut self, index: usize, file: File, ids: Ids) -> nix::Result<()> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        let (given, ours) = if index == 0 { (read, write) } else { (write, read) };
        fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        if ids.started_by_root {
            // Who may open /dev/stdin is decided by the pipe's owner.
            fchown(&given, Some(Uid::from_raw(ids.uid)), Some(Gid::from_raw(ids.gid)))?;
        }
        let taken = Rc::default();
        if index == 0 && file.metadata().is_ok_and(|stat| stat.is_file()) {
            self.unread = Unread::new(&file, &given, &taken).ok();
        }
        self.streams[index] = Stream::Descriptor(given.as_raw_fd());
        self.given.push(given);
        let (callers, ours) = (End::new(file, index == 0), End::File(ours.into()));
        let (from, to) = if index == 0 { (callers, ours) } else { (ours, callers) };
        self.copies.push(Copy { stream: index, from, to: Outlet::new(to), taken });
        Ok(())
    }
}

/// The device number of `/dev/null`, the same on every Linux.
const NULL: u64 = libc::makedev(1, 3);

fn duplicate(index: usize) -> io::Result<OwnedFd> {
    match index {
        0 => io::stdin().as_fd().try_clone_to_owned(),
        1 => io::stdout().as_fd().try_clone_to_owned(),
        _ => io::stderr().as_fd().try_clone_to_owned(),
    }
}

/// The words for a stream that nothing could be made for.
fn no_pipe(name: &str, errno: Errno) -> Error {
    let error = refuse(name, "no pipe can be made for it").errno(errno);
    match errno {
        Errno::EPERM => {
            error.cause("its pipe cannot be given to the user of the run: root lacks CAP_CHOWN here").remedy(
                "give the launcher CAP_CHOWN (systemd: CapabilityBoundingSet=), or start it as that user",
            )
        }
        _ => explain::with_limit(error),
    }
}

/// Whether it is a socket that leads to nobody: what is written there fails as it does
/// for a reader that has left.
pub(super) fn leads_nowhere(fd: RawFd) -> bool {
    getpeername::<SockaddrStorage>(fd) == Err(Errno::ENOTCONN)
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
        let leads_to = stat(number).map_err(|failure| error("cannot be looked at").errno(failure.errno))?;
        if Kind::of_mode(leads_to.st_mode) == Kind::Directory {
            return Err(error("is a directory")
                .cause("by a directory `..` leads out of the cell")
                .remedy("show the directory with --ro-bind or --bind"));
        }
    }
    Ok(())
}

/// Whether what is written to one descriptor can be taken for what is written to
/// the other, as of two to the same pipe. All may write to `/dev/null`.
pub(super) fn lead_to_the_same(one: RawFd, other: RawFd) -> bool {
    // One that is not open is refused by itself.
    let (Ok(file_of_one), Ok(file_of_other)) = (stat(one), stat(other)) else { return one == other };
    let identity = |file: &libc::stat| (file.st_dev, file.st_ino);
    let is_null = file_of_one.st_rdev == NULL && Kind::of_mode(file_of_one.st_mode) == Kind::Device;
    one == other || identity(&file_of_one) == identity(&file_of_other) && !is_null
}

/// fstat(2) by number.
fn stat(number: RawFd) -> sys::Result<libc::stat> {
    fd::stat(fd::duplicate(number)?.as_fd())
}

/// Bytes that the launcher carries from one descriptor to another.
pub(super) struct Copy {
    /// Which of the three streams it is.
    stream: usize,
    from: End,
    to: Outlet,
    /// How much was read in all.
    taken: Rc<Cell<u64>>,
}

/// A file on standard input, which the launcher reads ahead of the provider.
///
/// The caller shares its offset: in `while read line; do cellblock run …; done
/// < list`, and where a shell reads its script from there. So a provider must
/// not choose where the next reader goes on. The file is put back to where the
/// run began if the provider has read nothing, and to its end if it has read
/// anything. A provider can pretend either, and both are its right: every
/// program may leave its input alone, or read all of it.
pub(super) struct Unread {
    file: File,
    began_at: u64,
    /// How much the launcher has read, by its own count.
    taken: Rc<Cell<u64>>,
    /// The provider's end of the pipe.
    pipe: OwnedFd,
}

impl Unread {
    fn new(file: &File, pipe: &OwnedFd, taken: &Rc<Cell<u64>>) -> io::Result<Unread> {
        let mut file = file.try_clone()?;
        let began_at = file.stream_position()?;
        Ok(Unread { file, began_at, taken: Rc::clone(taken), pipe: pipe.try_clone()? })
    }

    /// Leaves the file to the caller, given the copies that are still under way.
    pub fn give_back(mut self, copies: &[Copy]) {
        let taken = self.taken.get();
        let went_to = self.began_at + taken;
        let is_ours = self.file.stream_position().is_ok_and(|at| at == went_to);
        if taken == 0 || !is_ours {
            // Somebody else reads there too, and goes on from where it is.
            return;
        }
        let pending: usize = copies.iter().filter(|copy| copy.stream == 0).map(|copy| copy.to.len()).sum();
        // The provider can write to its pipe, so this number is a claim of its own.
        let claimed = fd::readable(self.pipe.as_fd()) + pending;
        let place = if claimed as u64 == taken {
            self.began_at
        } else {
            self.file.metadata().map_or(went_to, |stat| stat.len().max(went_to))
        };
        // Where this fails, the file stays where the launcher has read to.
        let _ = self.file.seek(SeekFrom::Start(place));
    }
}

/// What a pipe holds, by default.
const CHUNK: usize = 64 * 1024;

impl Copy {
    pub fn poll(&self) -> PollFd<'_> {
        match self.to.is_empty() {
            true => self.from.poll(PollFlags::POLLIN),
            false => self.to.poll(),
        }
    }

    /// Carries on where poll has said that it can; false at the end.
    ///
    /// # Errors
    ///
    /// When bytes are lost, other than by the wish of who would read them. What
    /// takes no more ends the pipe, and the provider sees EPIPE.
    pub fn step(&mut self) -> Result<bool, Error> {
        let carried = match self.to.is_empty() {
            true => self.to.fill(&mut self.from, CHUNK).map(|got| {
                self.taken.update(|taken| taken + got as u64);
                got > 0
            }),
            false => self.to.write().map(|()| true),
        };
        match carried {
            Err(error) if is_nothing_yet(&error) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            carried => carried.map_err(|error| explain::stream(NAMES[self.stream], sys::errno(&error))),
        }
    }

    /// What is left of an output when the cell is no more: what its pipe holds at
    /// this instant. What is written there later is not of the cell, whoever it
    /// has sent the other end to.
    pub fn into_rest(mut self) -> Option<Rest> {
        if self.stream == 0 {
            return None;
        }
        let mut left = self.from.held();
        while left > 0 {
            match self.to.fill(&mut self.from, left.min(CHUNK)) {
                Ok(got @ 1..) => left -= got,
                // Somebody reads there too.
                _ => break,
            }
        }
        Some(Rest { name: NAMES[self.stream], to: self.to })
    }
}

/// The last bytes of an output.
pub(super) struct Rest {
    pub name: &'static str,
    pub to: Outlet,
}

impl Rest {
    /// Writes what is taken without waiting; true where more is left.
    pub fn carry(&mut self) -> Result<bool, Error> {
        match self.to.carry() {
            Ok(()) => Ok(!self.to.is_empty()),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(explain::stream(self.name, sys::errno(&error))),
        }
    }
}
