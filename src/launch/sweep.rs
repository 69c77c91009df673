//! What the run has made at protected paths, removed when its cell is gone; and
//! whether what stood at the others still does.
//!
//! Each component is opened from the one before it, through no symbolic link, so
//! that nothing outside of the workspace is reached, whatever the run has left
//! there and whoever moves things meanwhile.

use std::ffi::OsStr;
use std::ffi::{CStr, CString};
use std::fs::{self, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{RenameFlags, renameat2};

use super::changes::Changes;
use super::ids;
use super::remove::{Left, enter, remove};
use crate::error::{Error, printable};
use crate::git::{Repository, repository, settings};
use crate::host::{Host, Ids, Kind, Lookup};
use crate::outcome::Told;
use crate::policy::{Access, Mode, Policy, ProtectMissing, Telling, WAYS_AROUND, Workspace};
use crate::sys::fd::Identity;
use crate::sys::{Errno, Failure, fd};

/// What a sweep came to.
#[derive(Default)]
pub(super) struct Swept {
    /// What was removed, relative to the workspace.
    pub removed: Vec<String>,
    /// What the run changed that git tracks or runs.
    pub told: Vec<Told>,
    /// Why something may be left.
    pub error: Option<Error>,
}

/// The protected paths of a run, from before its first step to the end of its cell.
pub(super) struct Sweep<'a> {
    workspace: &'a Workspace,
    ids: Ids,
    /// The directory that the cell sees.
    identity: Identity,
    /// The workspace as git has it before the run.
    repository: Repository,
    changes: Changes,
    /// Where nothing stood, so that the run can make something.
    missing: Vec<PathBuf>,
    /// What stood at the others. Held open, so that no later file gets its number.
    held: Vec<(PathBuf, OwnedFd)>,
    /// Whether the run could take them away itself (the nested mode).
    can_remove: bool,
}

impl<'a> Sweep<'a> {
    /// What there is to do at the end; `None` where that is nothing.
    pub fn prepare(policy: &'a Policy, host: &Host) -> Result<Option<Sweep<'a>>, Error> {
        let Some(workspace) = &policy.workspace else { return Ok(None) };
        if workspace.access == Access::ReadOnly || workspace.protect.is_empty() {
            return Ok(None);
        }
        let Lookup::Found(file) = host.file(&workspace.dir) else {
            unreachable!("a plan was made with this workspace");
        };
        ids::as_run(host.ids, || {
            let root = fd::open_path(fd::CWD, &c_string(workspace.dir.as_os_str().as_bytes()))
                .and_then(|root| fd::must_be(root.as_fd(), file.identity).map(|()| root))
                .map_err(|failure| replaced(workspace, failure.errno))?;
            let mut sweep = Sweep {
                workspace,
                ids: host.ids,
                identity: file.identity,
                changes: Changes::prepare(root.as_fd(), workspace, &host.repository),
                repository: host.repository.clone(),
                missing: Vec::new(),
                held: Vec::new(),
                can_remove: policy.mode == Mode::Nested,
            };
            let by_overlay = workspace.protect_missing == ProtectMissing::Overlay;
            for protect in host.repository.held(&workspace.protect) {
                // An overlay has something at the others.
                if !by_overlay || is_swept_below_an_overlay(&protect.path) {
                    sweep.add(protect.path, host)?;
                }
            }
            Ok(Some(sweep))
        })
    }

    fn add(&mut self, path: PathBuf, host: &Host) -> Result<(), Error> {
        let whole = self.workspace.dir.join(&path);
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
    /// It takes as long as `go_on` says; what is left then is told.
    pub fn finish(self, go_on: &mut dyn FnMut() -> bool) -> Swept {
        let mut swept = Swept::default();
        let result = ids::as_run(self.ids, || self.sweep_paths(&mut swept, go_on));
        swept.error = result.err();
        let is_wrong = self.workspace.told == Telling::Error && swept.error.is_none();
        if let Some(first) = swept.told.first().filter(|_| is_wrong) {
            swept.error = Some(changed(self.workspace, first));
        }
        swept
    }

    fn sweep_paths(&self, swept: &mut Swept, go_on: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let workspace = self.workspace;
        let root = self.open().map_err(|failure| replaced(workspace, failure.errno))?;
        let protected: Vec<&Path> = workspace.protect.iter().map(|protect| &*protect.path).collect();
        let now = Repository::now(root.fd.as_fd(), &workspace.dir, &protected);
        let mut left: Vec<(PathBuf, Left)> = Vec::new();
        let made = self.made(root.fd.as_fd(), &now).unwrap_or_else(|why| {
            left.push((why.path.clone(), why));
            Vec::new()
        });
        for path in made {
            match remove_at(&root, &path, go_on) {
                Ok(Some(path)) => swept.removed.push(path.to_string_lossy().into_owned()),
                Ok(None) => {}
                Err(why) => left.push((path, why)),
            }
        }
        swept.told = self.changes.tell(root.fd.as_fd(), workspace, &now, go_on);
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

    /// What the run has made and git does not track `now`: at protected paths where
    /// nothing stood, and beside the tracked files of a protected directory.
    fn made(&self, root: BorrowedFd, now: &Repository) -> Result<Vec<PathBuf>, Left> {
        let stood = self.held.iter().map(|(path, _)| path);
        let tracked = now.tracked.paths.iter().chain(&self.repository.tracked.paths);
        let known = tracked.chain(stood).cloned().collect();
        let places = self.missing.iter().chain(self.repository.beside.keys());
        let mut made = Vec::new();
        for path in places.cloned().chain(now.ways_around()) {
            repository::unknown(root, &path, &known, &mut made).map_err(|errno| Left { path, errno })?;
        }
        // `git sparse-checkout` keeps its settings there.
        made.retain(|path| !path.ends_with("config.worktree") || !settings::is_harmless(root, path));
        Ok(made)
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
            // What stands beside tracked files moves with their directory.
            Err(Errno::ENOENT | Errno::ENOTDIR) => {
                let is_beside = |entries: &Vec<(PathBuf, bool)>| entries.iter().any(|(one, _)| one == path);
                self.can_remove || self.repository.beside.values().any(is_beside)
            }
            Err(_) => true,
        }
    }
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
fn remove_at(root: &Entered, path: &Path, go_on: &mut dyn FnMut() -> bool) -> Result<Option<PathBuf>, Left> {
    let Reached { way, here, entry } = reach(root, path);
    match entry {
        Ok(_) | Err(Errno::ELOOP) => {}
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
        Err(errno) => return Err(Left { path: here, errno }),
    }
    let holder = &way.last().unwrap_or(root).fd;
    let name = c_string(here.file_name().unwrap_or_default().as_bytes());
    // Out of its place at once: to remove it may take long, and be cut short.
    let aside = move_aside(holder, &name, &root.fd);
    let (holder, name, moved) = match &aside {
        Some(aside) => (&root.fd, aside, PathBuf::from(OsStr::from_bytes(aside.to_bytes()))),
        None => (holder, &name, here.clone()),
    };
    match remove(holder, name, go_on) {
        Ok(()) => Ok(Some(here)),
        Err(left) => Err(Left { path: moved.iter().chain(&left.path).collect(), ..left }),
    }
}

/// Moves a directory to the top of the workspace, under a name that nobody can
/// foresee. `None` where it cannot be moved: something may be mounted there.
fn move_aside(holder: &OwnedFd, name: &CStr, root: &OwnedFd) -> Option<CString> {
    // It must be writable to be moved, as its `..` changes.
    enter(holder, name).ok()?;
    // The standard library takes the keys of its hashes from the kernel's random numbers.
    let number = RandomState::new().build_hasher().finish();
    let aside = c_string(format!(".cellblock-swept-{number:016x}").as_bytes());
    renameat2(holder, name, root, &*aside, RenameFlags::RENAME_NOREPLACE).ok()?;
    Some(aside)
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
pub(super) fn open_up(directory: &OwnedFd) -> Option<u32> {
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

fn changed(workspace: &Workspace, first: &Told) -> Error {
    Error::new("sweep", format!("the run changed what git tracks or runs in {}", shown(&workspace.dir)))
        .cause(format!("{}: {}; `workspace.told` is `error`", first.path, first.what))
        .remedy(format!("look at it before git is used there: {}", first.command))
}

fn not_removed(workspace: &Workspace, paths: &str, left: &Left) -> Error {
    let what = format!("what the run made in {} at {paths} is still there", shown(&workspace.dir));
    let first = shown(&left.path);
    let (cause, remedy) = match left.errno {
        Errno::EINTR => (
            format!("the time for it was up; what is left of it lies at {first}"),
            "remove that before anything is run in the workspace",
        ),
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

/// An empty file there would keep git itself from working.
fn is_swept_below_an_overlay(path: &Path) -> bool {
    WAYS_AROUND.iter().any(|around| path == Path::new(around))
}

/// A path as part of a message: the run has chosen the names in it.
fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

fn c_string(bytes: &[u8]) -> CString {
    CString::new(bytes).expect("no path holds a NUL byte")
}
