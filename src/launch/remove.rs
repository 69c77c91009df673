//! Removes a tree that an agent has made, however deep and however large.
//!
//! One directory is open at a time. The way down is by name and through no link;
//! the way up is by `..`, and leads to the directory that it came from or ends.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::sweep::open_up;
use crate::sys::{Errno, errno, fd};

/// How many entries are removed between two questions whether to go on.
const TURN: u32 = 256;

/// Why something stays that was to be removed, and where it is.
pub(super) struct Left {
    pub path: PathBuf,
    pub errno: Errno,
}

/// Removes one entry of a directory, and all below it, for as long as `go_on`
/// says; EINTR where that was not long enough. The first thing that stays is told.
pub(super) fn remove(holder: &OwnedFd, name: &CStr, go_on: &mut dyn FnMut() -> bool) -> Result<(), Left> {
    match unlinkat(holder, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(Errno::EISDIR) => Removal { way: Vec::new(), left: None, removed: 0, go_on }.tree(holder, name),
        Err(errno) => Err(Left { path: PathBuf::new(), errno }),
    }
}

/// A directory on the way down.
struct Level {
    name: CString,
    /// The device and inode that `..` of the next one must lead to.
    identity: (u64, u64),
    /// The directories in it that are left to be removed.
    below: Vec<CString>,
    /// Whether something was removed since its entries were read.
    has_shrunk: bool,
}

struct Removal<'a> {
    /// From the tree's root to the directory that is open.
    way: Vec<Level>,
    left: Option<Left>,
    removed: u32,
    go_on: &'a mut dyn FnMut() -> bool,
}

impl Removal<'_> {
    fn tree(mut self, holder: &OwnedFd, name: &CStr) -> Result<(), Left> {
        let here = |errno| Left { path: PathBuf::new(), errno };
        let mut open = enter(holder, name).map_err(here)?;
        self.go_down(name.to_owned(), &open).map_err(here)?;
        while let Some(top) = self.way.last_mut() {
            let step = match top.below.pop() {
                Some(next) => match enter(&open, &next) {
                    Ok(below) => {
                        open = below;
                        self.go_down(next, &open)
                    }
                    Err(Errno::ENOENT) => Ok(()),
                    Err(errno) => {
                        self.stays(Some(&next), errno);
                        Ok(())
                    }
                },
                None => self.go_up(&mut open, holder),
            };
            // From here no way leads on.
            if let Err(errno) = step {
                self.stays(None, errno);
                break;
            }
        }
        self.left.map_or(Ok(()), Err)
    }

    /// Makes the directory that was opened the next one, and removes what is in it.
    fn go_down(&mut self, name: CString, open: &OwnedFd) -> nix::Result<()> {
        let stat = fd::stat(open.as_fd()).map_err(|failure| failure.errno)?;
        self.way.push(Level {
            name,
            identity: (stat.st_dev, stat.st_ino),
            below: Vec::new(),
            has_shrunk: false,
        });
        self.empty(open)
    }

    /// Removes the entries of the directory on top; its directories are put off.
    fn empty(&mut self, open: &OwnedFd) -> nix::Result<()> {
        for entry in fs::read_dir(own_name(open)).map_err(|error| errno(&error))? {
            let name = entry.map_err(|error| errno(&error))?.file_name();
            let name = CString::new(name.into_vec()).expect("no name holds a NUL byte");
            match unlinkat(open, &*name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) => self.has_removed()?,
                Err(Errno::ENOENT) => {}
                Err(Errno::EISDIR) => self.top().below.push(name),
                Err(errno) => self.stays(Some(&name), errno),
            }
        }
        Ok(())
    }

    /// Removes the directory that is open, which is empty if all went well.
    fn go_up(&mut self, open: &mut OwnedFd, holder: &OwnedFd) -> nix::Result<()> {
        let depth = self.way.len();
        let parent = match depth.checked_sub(2) {
            None => holder.try_clone().map_err(|error| errno(&error))?,
            Some(parent) => open_parent(open, self.way[parent].identity)?,
        };
        let is_gone = match unlinkat(&parent, &*self.way[depth - 1].name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => true,
            // Reading may pass over entries while others are removed.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if self.top().has_shrunk => {
                self.top().has_shrunk = false;
                return self.empty(open);
            }
            Err(errno) => {
                self.stays(None, errno);
                false
            }
        };
        self.way.pop();
        *open = parent;
        // What stays is no reason to read the directory above it again.
        if is_gone && !self.way.is_empty() { self.has_removed() } else { Ok(()) }
    }

    fn top(&mut self) -> &mut Level {
        self.way.last_mut().expect("a directory is open")
    }

    fn has_removed(&mut self) -> nix::Result<()> {
        self.top().has_shrunk = true;
        self.removed += 1;
        if self.removed.is_multiple_of(TURN) && !(self.go_on)() { Err(Errno::EINTR) } else { Ok(()) }
    }

    fn stays(&mut self, name: Option<&CStr>, errno: Errno) {
        let way = self.way.iter().skip(1).map(|level| &*level.name);
        let path = || way.chain(name).map(|part| OsStr::from_bytes(part.to_bytes())).collect();
        self.left.get_or_insert_with(|| Left { path: path(), errno });
    }
}

/// Opens a directory of the tree. What is mounted there is not part of it.
pub(super) fn enter(holder: &OwnedFd, name: &CStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let resolve =
        ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_XDEV;
    let directory = openat2(holder, name, OpenHow::new().flags(flags).resolve(resolve))?;
    open_up(&directory);
    Ok(directory)
}

/// Opens `..`, which somebody may have changed meanwhile.
fn open_parent(directory: &OwnedFd, identity: (u64, u64)) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let parent = openat(directory, "..", flags, Mode::empty())?;
    let stat = fd::stat(parent.as_fd()).map_err(|failure| failure.errno)?;
    if (stat.st_dev, stat.st_ino) == identity { Ok(parent) } else { Err(Errno::ESTALE) }
}

fn own_name(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
