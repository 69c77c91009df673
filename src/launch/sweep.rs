//! What the run has made at protected paths, removed when its cell is gone.
//!
//! Each component is opened from the one before it, through no symbolic link, so
//! that nothing outside of the workspace is reached, whatever the run has left
//! there and whoever moves things meanwhile.

use std::ffi::{CStr, CString};
use std::fs::{self, Permissions, ReadDir};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::ids;
use crate::error::{Error, printable};
use crate::host::{Host, Kind, Lookup};
use crate::policy::{Access, Policy, ProtectMissing, Workspace};
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

/// Removes, as the id of the run, what stands at the protected paths that were
/// missing when the plan was made.
pub(super) fn sweep(policy: &Policy, host: &Host) -> Swept {
    let mut swept = Swept::default();
    if let Some(workspace) = &policy.workspace {
        let missing: Vec<&Path> = missing(workspace, host).collect();
        if !missing.is_empty() {
            let result = ids::as_run(host.ids, || sweep_paths(workspace, host, &missing, &mut swept.removed));
            swept.error = result.err();
        }
    }
    swept
}

/// The protected paths that nothing stood at, and that the run could make.
fn missing<'a>(workspace: &'a Workspace, host: &'a Host) -> impl Iterator<Item = &'a Path> {
    let sweeps = workspace.access == Access::ReadWrite && workspace.protect_missing == ProtectMissing::Sweep;
    let paths = workspace.protect.iter().filter(move |_| sweeps).map(|protect| &*protect.path);
    paths.filter(|path| host.file(&workspace.dir.join(path)) == Lookup::Missing)
}

fn sweep_paths(
    workspace: &Workspace,
    host: &Host,
    paths: &[&Path],
    removed: &mut Vec<String>,
) -> Result<(), Error> {
    let root = open(workspace, host).map_err(|failure| replaced(workspace, failure.errno))?;
    let mut left: Vec<(&Path, Left)> = Vec::new();
    for path in paths {
        match remove_at(&root, path) {
            Ok(Some(path)) => removed.push(path.to_string_lossy().into_owned()),
            Ok(None) => {}
            Err(why) => left.push((path, why)),
        }
    }
    match &*left {
        [] => Ok(()),
        [(_, first), ..] => {
            let paths: Vec<String> = left.iter().map(|(path, _)| shown(path)).collect();
            Err(not_removed(workspace, &paths.join(", "), first))
        }
    }
}

/// The workspace, if it is still the one that the cell has seen.
fn open(workspace: &Workspace, host: &Host) -> Result<Entered, Failure> {
    let Lookup::Found(file) = host.file(&workspace.dir) else {
        unreachable!("a plan was made with this workspace");
    };
    let root = fd::open_path(fd::CWD, &c_string(workspace.dir.as_os_str().as_bytes()))?;
    fd::must_be(root.as_fd(), file.identity)?;
    Ok(Entered::new(root))
}

/// Why something stays that was to be removed, and where it is.
struct Left {
    path: PathBuf,
    errno: Errno,
}

/// Removes what stands at `path`, or the first link on the way there: when the
/// run began there was none. Gives the path of what was removed.
fn remove_at(root: &Entered, path: &Path) -> Result<Option<PathBuf>, Left> {
    let mut way = Vec::new();
    let mut here = PathBuf::new();
    for part in path {
        let holder = way.last().unwrap_or(root);
        here.push(part);
        let name = c_string(part.as_bytes());
        match fd::open_path(holder.fd.as_raw_fd(), &name) {
            Ok(entry) if here != path => way.push(Entered::new(entry)),
            Ok(_) | Err(Failure { errno: Errno::ELOOP, .. }) => {
                return match remove(&holder.fd, &name) {
                    Ok(()) => Ok(Some(here)),
                    Err(left) => Err(Left { path: here.iter().chain(&left.path).collect(), ..left }),
                };
            }
            Err(Failure { errno: Errno::ENOENT | Errno::ENOTDIR, .. }) => break,
            Err(Failure { errno, .. }) => return Err(Left { path: here, errno }),
        }
    }
    Ok(None)
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
    let root = Opened::new(holder, name).map_err(|errno| Left { path: PathBuf::new(), errno })?;
    let mut stack = vec![root];
    while let Some(top) = stack.last_mut() {
        let (path, errno) = match top.entries.next() {
            Some(Ok(entry)) => match remove_entry(&mut stack, entry.file_name().as_bytes()) {
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
fn remove_entry(stack: &mut Vec<Opened>, name: &[u8]) -> nix::Result<()> {
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
            move_up(&stack[0].fd, &stack[depth - 1].fd, &name)?;
            stack[0].has_shrunk = true;
            stack[depth - 1].has_shrunk = true;
        }
        Err(errno) => return Err(errno),
    }
    Ok(())
}

/// Moves a directory from `holder` to the root of the tree, under any name.
fn move_up(root: &OwnedFd, holder: &OwnedFd, name: &CStr) -> nix::Result<()> {
    // It must be writable to be moved, as its `..` changes.
    enter(holder, name)?;
    for number in 0u64.. {
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
