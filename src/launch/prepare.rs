//! What the launcher makes before anything is planned: missing exposures.
//!
//! Each component is made and entered by descriptor, so that a link that a
//! former run has planted leads nowhere.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use crate::error::Error;
use crate::policy::{Expose, ExposeKind};
use crate::sys::{Errno, Failure, fd};

/// Makes those exposures that are missing and are to be created.
pub(super) fn make_missing(exposures: &[Expose]) -> Result<(), Error> {
    exposures.iter().filter(|expose| expose.create).try_for_each(make)
}

fn make(expose: &Expose) -> Result<(), Error> {
    let failed = |failure: Failure| {
        let error =
            Error::new("prepare", format!("{}: {} cannot be made", expose.origin, expose.path.display()))
                .errno(failure.errno);
        match failure.errno {
            Errno::EEXIST => error
                .cause("something that is no file of that kind has its name, a symbolic link perhaps")
                .remedy("remove what stands there"),
            Errno::ELOOP | Errno::ENOTDIR => error
                .cause("a component of the path is a symbolic link or no directory")
                .remedy("remove what stands in the way, or name the real path"),
            Errno::EACCES | Errno::EROFS => {
                error.remedy("make it before the run, or expose a path that the run's user may make")
            }
            _ => error,
        }
    };
    let (Some(parent), Some(name)) = (expose.path.parent(), expose.path.file_name()) else {
        return Ok(());
    };
    let parent = enter(parent).map_err(failed)?;
    let name = component(name.as_bytes());
    if fd::open_path(parent.as_raw_fd(), &name).is_ok() {
        return Ok(());
    }
    match expose.kind {
        ExposeKind::Directory => fd::make_directory(parent.as_raw_fd(), &name, 0o700),
        ExposeKind::File => {
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
            fd::open(parent.as_raw_fd(), &name, flags, 0o600).map(drop)
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
