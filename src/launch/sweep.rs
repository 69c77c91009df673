//! What the run has made at protected paths, removed when its cell is gone; and
//! whether what stood at the others still does.
//!
//! Each component is opened from the one before it, through no symbolic link, so
//! that nothing outside of the workspace is reached, whatever the run has left
//! there and whoever moves things meanwhile.

use std::ffi::{CStr, CString};
use std::fs::{self, Permissions, ReadDir};
use std::ops::RangeFrom;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::ids;
use crate::error::{Error, printable};
use crate::host::{Host, Ids, Kind, Lookup};
use crate::policy::{Access, Mode, Policy, ProtectMissing, Workspace};
use crate::sys::fd::Identity;
use crate::sys::{Errno, Failure, errno, fd};

/// What a sweep came to.
#[derive(Default)]
pub(super) struct Swept {
    /// What was removed, relative to the workspace.
    pub removed: Vec<String>,
    /// Why something may be left.
    pub error: Option<Error>,
}

/// How many directories are open at once. What lies deeper is moved up first, so
/// that no tree is too deep for the descriptors of a process.
const DEPTH: usize = 32;

/// The protected paths of a run, from before its first step to the end of its cell.
pub(super) struct Sweep<'a> {
    workspace: &'a Workspace,
    ids: Ids,
    /// The directory that the cell sees.
    identity: Identity,
    /// Where nothing stood, so that the run can make something.
    missing: Vec<&'a Path>,
    /// What stood at the others. Held open, so that no later file gets its number.
    held: Vec<(&'a Path, OwnedFd)>,
    /// Whether the run could take them away itself (the nested mode).
    can_remove: bool,
}

impl<'a> Sweep<'a> {
    /// What there is to do at the end; `None` where that is nothing.
    pub fn prepare(policy: &'a Policy, host: &Host) -> Result<Option<Sweep<'a>>, Error> {
        let Some(workspace) = &policy.workspace else { return Ok(None) };
        let sweeps =
            workspace.access == Access::ReadWrite && workspace.protect_missing == ProtectMissing::Sweep;
        if !sweeps || workspace.protect.is_empty() {
            return Ok(None);
        }
        let Lookup::Found(file) = host.file(&workspace.dir) else {
            unreachable!("a plan was made with this workspace");
        };
        let mut sweep = Sweep {
            workspace,
            ids: host.ids,
            identity: file.identity,
            missing: Vec::new(),
            held: Vec::new(),
            can_remove: policy.mode == Mode::Nested,
        };
        ids::as_run(host.ids, || {
            workspace.protect.iter().try_for_each(|protect| sweep.add(&protect.path, host))
        })?;
        Ok(Some(sweep))
    }

    fn add(&mut self, path: &'a Path, host: &Host) -> Result<(), Error> {
        let whole = self.workspace.dir.join(path);
        let Lookup::Found(file) = host.file(&whole) else {
            self.missing.push(path);
            return Ok(());
        };
        let opened = fd::open_path(fd::CWD, &c_string(whole.as_os_str().as_bytes()));
        let held = opened.and_then(|held| fd::must_be(held.as_fd(), file.identity).map(|()| held));
        let held = held.map_err(|failure| {
            Error::new("sweep", format!("the protected {} cannot be held", shown(&whole)))
                .errno(failure.errno)
                .remedy("try again, when nobody replaces it")
        })?;
        self.held.push((path, held));
        Ok(())
    }

    /// Removes, as the id of the run, what stands where nothing stood.
    pub fn finish(self) -> Swept {
        let mut swept = Swept::default();
        let result = ids::as_run(self.ids, || self.sweep_paths(&mut swept.removed));
        swept.error = result.err();
        swept
    }

    fn sweep_paths(&self, removed: &mut Vec<String>) -> Result<(), Error> {
        let workspace = self.workspace;
        let root = self.open().map_err(|failure| replaced(workspace, failure.errno))?;
        let mut left: Vec<(&Path, Left)> = Vec::new();
        for path in &self.missing {
            match remove_at(&root, path) {
                Ok(Some(path)) => removed.push(path.to_string_lossy().into_owned()),
                Ok(None) => {}
                Err(why) => left.push((path, why)),
            }
        }
        let lost = self.held.iter().filter(|(path, held)| self.is_lost(&root, path, held));
        let lost: Vec<String> = lost.map(|(path, _)| shown(path)).collect();
        match &*left {
            [] if lost.is_empty() => Ok(()),
            [] => Err(not_protected(workspace, &lost.join(", "))),
            [(_, first), ..] => {
                let paths: Vec<String> = left.iter().map(|(path, _)| shown(path)).chain(lost).collect();
                Err(not_removed(workspace, &paths.join(", "), first))
            }
        }
    }

    /// The workspace, if it is still the one that the cell has seen.
    fn open(&self) -> Result<Entered, Failure> {
        let root = fd::open_path(fd::CWD, &c_string(self.workspace.dir.as_os_str().as_bytes()))?;
        fd::must_be(root.as_fd(), self.identity)?;
        Ok(Entered::new(root))
    }

    /// Whether another file stands at `path` than did. The kernel takes a mount
    /// away with the file that it stands on, whoever removes that: the protection
    /// has then gone with it, and the other file may be the run's.
    fn is_lost(&self, root: &Entered, path: &Path, held: &OwnedFd) -> bool {
        match reach(root, path).entry {
            Ok(found) => match (fd::stat(found.as_fd()), fd::stat(held.as_fd())) {
                (Ok(found), Ok(held)) => (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino),
                _ => true,
            },
            Err(Errno::ENOENT | Errno::ENOTDIR) => self.can_remove,
            Err(_) => true,
        }
    }
}

/// Why something stays that was to be removed, and where it is.
struct Left {
    path: PathBuf,
    errno: Errno,
}

/// How far a path leads through directories.
struct Reached {
    /// The directories on the way, without the root.
    way: Vec<Entered>,
    here: PathBuf,
    /// What stands at `here`.
    entry: Result<OwnedFd, Errno>,
}

/// Goes to `path`, or to where nothing or a link stands on the way there.
fn reach(root: &Entered, path: &Path) -> Reached {
    let mut way = Vec::new();
    let mut here = PathBuf::new();
    for part in path {
        here.push(part);
        let holder: &Entered = way.last().unwrap_or(root);
        match fd::open_path(holder.fd.as_raw_fd(), &c_string(part.as_bytes())) {
            Ok(entry) if here != path => way.push(Entered::new(entry)),
            entry => return Reached { way, here, entry: entry.map_err(|failure| failure.errno) },
        }
    }
    unreachable!("a protected path has a last component")
}

/// Removes what stands at `path`, or the first link on the way there: when the
/// run began there was none. Gives the path of what was removed.
fn remove_at(root: &Entered, path: &Path) -> Result<Option<PathBuf>, Left> {
    let Reached { way, here, entry } = reach(root, path);
    match entry {
        Ok(_) | Err(Errno::ELOOP) => {}
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
        Err(errno) => return Err(Left { path: here, errno }),
    }
    let name = c_string(here.file_name().unwrap_or_default().as_bytes());
    match remove(&way.last().unwrap_or(root).fd, &name) {
        Ok(()) => Ok(Some(here)),
        Err(left) => Err(Left { path: here.iter().chain(&left.path).collect(), ..left }),
    }
}

/// A directory on the way, in which one can look and remove until it is dropped.
struct Entered {
    fd: OwnedFd,
    /// The mode that it gets back.
    former: Option<u32>,
}

impl Entered {
    fn new(fd: OwnedFd) -> Entered {
        let former = open_up(&fd);
        Entered { fd, former }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(mode) = self.former {
            // It worked the other way round; nothing depends on it.
            let _ = set_mode(&self.fd, mode);
        }
    }
}

/// Gives the owner all rights on a directory that the run has closed to itself;
/// the former mode, where that was done. Whether it was enough, the next call says.
fn open_up(directory: &OwnedFd) -> Option<u32> {
    let mode = fd::stat(directory.as_fd()).ok()?.st_mode;
    let is_closed = Kind::of_mode(mode) == Kind::Directory && mode & 0o700 != 0o700;
    let mode = mode & 0o7777;
    (is_closed && set_mode(directory, mode | 0o700).is_ok()).then_some(mode)
}

/// chmod(2) of what an `O_PATH` descriptor leads to.
fn set_mode(fd: &OwnedFd, mode: u32) -> std::io::Result<()> {
    fs::set_permissions(own_name(fd), Permissions::from_mode(mode))
}

fn own_name(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Removes one entry of a directory, and all below it.
fn remove(holder: &OwnedFd, name: &CStr) -> Result<(), Left> {
    match unlinkat(holder, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(Errno::EISDIR) => remove_tree(holder, name),
        Err(errno) => Err(Left { path: PathBuf::new(), errno }),
    }
}

/// A directory whose entries are being removed.
struct Opened {
    name: CString,
    fd: OwnedFd,
    entries: ReadDir,
    /// Whether something was removed since its entries began to be read.
    has_shrunk: bool,
}

impl Opened {
    fn new(holder: &OwnedFd, name: &CStr) -> nix::Result<Opened> {
        let fd = enter(holder, name)?;
        let entries = read(&fd)?;
        Ok(Opened { name: name.to_owned(), fd, entries, has_shrunk: false })
    }
}

/// Opens a directory of the tree. What is mounted there is not part of it.
fn enter(holder: &OwnedFd, name: &CStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let resolve =
        ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_XDEV;
    let directory = openat2(holder, name, OpenHow::new().flags(flags).resolve(resolve))?;
    open_up(&directory);
    Ok(directory)
}

fn read(directory: &OwnedFd) -> nix::Result<ReadDir> {
    fs::read_dir(own_name(directory)).map_err(|error| errno(&error))
}

/// Removes a directory and all below it, as far as it goes; the first thing that
/// stays is told.
fn remove_tree(holder: &OwnedFd, name: &CStr) -> Result<(), Left> {
    let mut left = None;
    // Counted on from one to the next: the run may have taken any number of
    // names, and none may be tried twice.
    let mut spare = 0u64..;
    let root = Opened::new(holder, name).map_err(|errno| Left { path: PathBuf::new(), errno })?;
    let mut stack = vec![root];
    while let Some(top) = stack.last_mut() {
        let (path, errno) = match top.entries.next() {
            Some(Ok(entry)) => match remove_entry(&mut stack, entry.file_name().as_bytes(), &mut spare) {
                Ok(()) => continue,
                Err(errno) => (path_of(&stack).join(entry.file_name()), errno),
            },
            Some(Err(error)) => (path_of(&stack), errno(&error)),
            None => match remove_emptied(&mut stack, holder) {
                Ok(true) => return Ok(()),
                Ok(false) => continue,
                Err(errno) => {
                    let path = path_of(&stack);
                    stack.pop();
                    (path, errno)
                }
            },
        };
        left.get_or_insert(Left { path, errno });
    }
    left.map_or(Ok(()), Err)
}

/// Where the directory on top lies, counted from the tree's root.
fn path_of(stack: &[Opened]) -> PathBuf {
    stack
        .iter()
        .skip(1)
        .map(|opened| Path::new(std::ffi::OsStr::from_bytes(opened.name.to_bytes())))
        .collect()
}

/// Removes an entry of the directory on top; of a directory it makes the next.
fn remove_entry(stack: &mut Vec<Opened>, name: &[u8], spare: &mut RangeFrom<u64>) -> nix::Result<()> {
    let name = c_string(name);
    let depth = stack.len();
    let top = &mut stack[depth - 1];
    match unlinkat(&top.fd, &*name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) => top.has_shrunk = true,
        Err(Errno::ENOENT) => {}
        Err(Errno::EISDIR) if depth < DEPTH => {
            let below = Opened::new(&top.fd, &name)?;
            stack.push(below);
        }
        Err(Errno::EISDIR) => {
            move_up(&stack[0].fd, &stack[depth - 1].fd, &name, spare)?;
            stack[0].has_shrunk = true;
            stack[depth - 1].has_shrunk = true;
        }
        Err(errno) => return Err(errno),
    }
    Ok(())
}

/// Moves a directory from `holder` to the root of the tree, under a name to spare.
fn move_up(root: &OwnedFd, holder: &OwnedFd, name: &CStr, spare: &mut RangeFrom<u64>) -> nix::Result<()> {
    // It must be writable to be moved, as its `..` changes.
    enter(holder, name)?;
    for number in spare {
        match renameat(holder, name, root, number.to_string().as_str()) {
            // Taken: by a directory that is not empty, or by a file.
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            result => return result,
        }
    }
    Err(Errno::EEXIST)
}

/// Removes the directory on top when its entries have been read to the end; true
/// when that was the whole tree.
fn remove_emptied(stack: &mut Vec<Opened>, holder: &OwnedFd) -> nix::Result<bool> {
    let depth = stack.len();
    let parent = if depth > 1 { &stack[depth - 2].fd } else { holder };
    let top = &stack[depth - 1];
    match unlinkat(parent, &*top.name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => {}
        // Reading may pass over entries while others are removed.
        Err(Errno::ENOTEMPTY | Errno::EEXIST) if top.has_shrunk => {
            let top = &mut stack[depth - 1];
            top.entries = read(&top.fd)?;
            top.has_shrunk = false;
            return Ok(false);
        }
        Err(errno) => return Err(errno),
    }
    stack.pop();
    if let Some(parent) = stack.last_mut() {
        parent.has_shrunk = true;
    }
    Ok(stack.is_empty())
}

fn replaced(workspace: &Workspace, errno: Errno) -> Error {
    let what = format!("{} is no longer the directory that the cell has seen", shown(&workspace.dir));
    Error::new("sweep", what)
        .errno(errno)
        .cause("it was moved or replaced while the run went on, so nothing was removed in it")
        .remedy("look for the protected paths where it is now, and let no other view show what holds it")
}

fn not_protected(workspace: &Workspace, paths: &str) -> Error {
    let what = format!("what stood at {paths} in {} is not there any more", shown(&workspace.dir));
    Error::new("sweep", what)
        .cause("it was moved, removed or replaced meanwhile, and its protection went with it: what is there may be the run's")
        .remedy("look at it before anything is run in the workspace; let no two runs have one workspace at once")
}

fn not_removed(workspace: &Workspace, paths: &str, left: &Left) -> Error {
    let what = format!("what the run made in {} at {paths} is still there", shown(&workspace.dir));
    let first = shown(&left.path);
    let (cause, remedy) = match left.errno {
        Errno::EBUSY | Errno::EXDEV => {
            (format!("something is mounted at {first}"), "unmount it, and remove what is left")
        }
        Errno::EPERM => (
            format!("{first} cannot be removed: it is immutable, or another user's"),
            "remove it as root, with chattr -i before where lsattr shows an i",
        ),
        Errno::EACCES => (
            format!("{first} lies in a directory that the run's user may not change"),
            "remove it as the owner of that directory",
        ),
        _ => (format!("{first} cannot be removed"), "remove it before anything is run in the workspace"),
    };
    Error::new("sweep", what).errno(left.errno).cause(cause).remedy(remedy)
}

/// A path as part of a message: the run has chosen the names in it.
fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

fn c_string(bytes: &[u8]) -> CString {
    CString::new(bytes).expect("no path holds a NUL byte")
}
