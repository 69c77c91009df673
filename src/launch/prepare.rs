//! What the launcher makes on the host before the cell is built: missing
//! exposures, directories that a provider makes on first use, and the work
//! directory of an overlay.
//!
//! Each component is made and entered by descriptor, so that a link that a
//! former run has planted leads nowhere.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::ids;
use crate::error::Error;
use crate::host::Ids;
use crate::plan::{Made, Prepare};
use crate::sys::fd::Identity;
use crate::sys::{Errno, Failure, fd};

/// Makes what is missing.
pub(super) fn make_missing(missing: &[Prepare]) -> Result<(), Error> {
    missing.iter().try_for_each(make)
}

fn make(missing: &Prepare) -> Result<(), Error> {
    let failed = |failure: Failure| {
        let error =
            Error::new("prepare", format!("{}: {} cannot be made", missing.origin, missing.path.display()))
                .errno(failure.errno);
        match (failure.errno, missing.made) {
            (Errno::EACCES | Errno::EROFS, Made::WorkDirectory) => error
                .cause("an overlay needs a directory of its own beside the workspace")
                .remedy("let the run's user write there, or write `protect_missing = \"sweep\"`"),
            (Errno::EEXIST, _) => error
                .cause("something that is no file of that kind has its name, a symbolic link perhaps")
                .remedy("remove what stands there"),
            (Errno::ELOOP | Errno::ENOTDIR, _) => error
                .cause("a component of the path is a symbolic link or no directory")
                .remedy("remove what stands in the way, or name the real path"),
            (Errno::EACCES | Errno::EROFS, _) => {
                error.remedy("make it before the run, or expose a path that the run's user may make")
            }
            _ => error,
        }
    };
    let (Some(parent), Some(name)) = (missing.path.parent(), missing.path.file_name()) else {
        return Ok(());
    };
    let parent = enter(parent).map_err(failed)?;
    let name = component(name.as_bytes());
    if fd::open_path(parent.as_raw_fd(), &name).is_ok() {
        return Ok(());
    }
    match missing.made {
        Made::Directory | Made::WorkDirectory => fd::make_directory(parent.as_raw_fd(), &name, 0o700),
        Made::File => {
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
            match fd::open(parent.as_raw_fd(), &name, flags, 0o600) {
                // Another launch was faster. What it is, the next plan looks at.
                Err(Failure { errno: Errno::EEXIST, .. }) => Ok(()),
                made => made.map(drop),
            }
        }
    }
    .map_err(failed)
}

/// Opens a directory, making what is missing of it.
fn enter(path: &Path) -> Result<OwnedFd, Failure> {
    let mut directory = fd::open_path(fd::CWD, c"/")?;
    for part in path.components() {
        let Component::Normal(name) = part else {
            continue;
        };
        let name = component(name.as_bytes());
        directory = match fd::open_path(directory.as_raw_fd(), &name) {
            Err(Failure { errno: Errno::ENOENT, .. }) => {
                fd::make_directory(directory.as_raw_fd(), &name, 0o700)?;
                fd::open_path(directory.as_raw_fd(), &name)?
            }
            other => other?,
        };
    }
    Ok(directory)
}

fn component(name: &[u8]) -> CString {
    CString::new(name).expect("the policy holds no NUL bytes")
}

/// How often a work directory is made that others remove meanwhile.
const TRIES: usize = 8;

/// The directory that an overlay of the workspace needs beside it: locked while
/// the cell lives, and gone with it. One that a killed launcher has left is
/// taken over.
pub(super) struct WorkDirectory {
    ids: Ids,
    parent: OwnedFd,
    name: CString,
    directory: Flock<File>,
}

impl WorkDirectory {
    /// Takes it, or says that another run has it.
    pub fn take(path: &Path, ids: Ids) -> Result<WorkDirectory, Error> {
        let failed =
            |errno| Error::new("prepare", format!("{} cannot be opened", path.display())).errno(errno);
        let (parent, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
        let (parent, name) = (component(parent.as_os_str().as_bytes()), component(name.as_bytes()));
        let parent = fd::open_path(fd::CWD, &parent).map_err(|failure| failed(failure.errno))?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        for _ in 0..TRIES {
            let opened = fd::open(parent.as_raw_fd(), &name, flags, 0);
            let gone = matches!(opened, Err(Failure { errno: Errno::ENOENT, .. }));
            if !gone {
                let directory = File::from(opened.map_err(|failure| failed(failure.errno))?);
                let directory = Flock::lock(directory, FlockArg::LockExclusiveNonblock);
                let directory = directory.map_err(|(_, errno)| {
                    failed(errno)
                        .cause(
                            "another run has an overlay of this workspace, and two of one tree would spoil it",
                        )
                        .remedy("wait for its end, or write `protect_missing = \"sweep\"`")
                })?;
                if is_at(&directory, &parent, &name).map_err(|failure| failed(failure.errno))? {
                    return Ok(WorkDirectory { ids, parent, name, directory });
                }
            }
            // The run that had it has ended since, and removed it.
            fd::make_directory(parent.as_raw_fd(), &name, 0o700).map_err(|failure| failed(failure.errno))?;
        }
        Err(failed(Errno::EAGAIN)
            .cause("other runs with an overlay of this workspace come and go all the time")
            .remedy("start one at a time, or write `protect_missing = \"sweep\"`"))
    }
}

/// Whether a directory still has that name.
fn is_at(directory: &File, parent: &OwnedFd, name: &CString) -> Result<bool, Failure> {
    let own = fd::stat(directory.as_fd())?;
    let identity = Identity { device: own.st_dev, inode: own.st_ino };
    let named = fd::open_path(parent.as_raw_fd(), name);
    Ok(named.is_ok_and(|named| fd::must_be(named.as_fd(), identity).is_ok()))
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        let _ = ids::as_run(self.ids, || {
            // The kernel's two; what else is there is not the overlay's, and stays.
            for name in ["work", "index"] {
                let _ = unlinkat(&*self.directory, name, UnlinkatFlags::RemoveDir);
            }
            let _ = unlinkat(&self.parent, &*self.name, UnlinkatFlags::RemoveDir);
            Ok(())
        });
    }
}
