//! Files of a tree that nobody vouches for.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, readlinkat};
use sha2::{Digest, Sha256};

use crate::sys::{Errno, errno};

/// What of a file is read at the most.
const LIMIT: u64 = 1 << 20;

/// Opens what stands at `path` below `root`, through no link on the way.
fn open_at(root: BorrowedFd, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    open_how(root, path, flags | OFlag::O_NOFOLLOW, ResolveFlag::RESOLVE_NO_SYMLINKS)
}

/// Opens what `path` leads to, as git would, as long as that is below `root`.
fn follow_at(root: BorrowedFd, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    open_how(root, path, flags, ResolveFlag::RESOLVE_NO_MAGICLINKS)
}

fn open_how(root: BorrowedFd, path: &Path, flags: OFlag, resolve: ResolveFlag) -> Result<OwnedFd, Errno> {
    let path = if path == Path::new("") { Path::new(".") } else { path };
    let resolve = resolve | ResolveFlag::RESOLVE_BENEATH;
    openat2(root, path, OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve))
}

/// Opens a regular file for reading. What is no such file is EINVAL.
pub fn open(root: BorrowedFd, path: &Path) -> Result<File, Errno> {
    // A FIFO would keep the launcher waiting for its writer.
    let opened = follow_at(root, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?;
    let file = File::from(opened);
    let is_file = file.metadata().map_err(|error| errno(&error))?.is_file();
    if is_file { Ok(file) } else { Err(Errno::EINVAL) }
}

/// Reads a regular file; EFBIG where it is longer than a megabyte.
pub fn read(root: BorrowedFd, path: &Path) -> Result<Vec<u8>, Errno> {
    read_whole(open(root, path)?)
}

fn read_whole(file: File) -> Result<Vec<u8>, Errno> {
    let mut content = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut content).map_err(|error| errno(&error))?;
    if content.len() as u64 > LIMIT { Err(Errno::EFBIG) } else { Ok(content) }
}

/// Whether a directory stands there.
pub fn is_directory(root: BorrowedFd, path: &Path) -> bool {
    open_at(root, path, OFlag::O_PATH | OFlag::O_DIRECTORY).is_ok()
}

/// Whether anything stands there.
pub fn exists(root: BorrowedFd, path: &Path) -> bool {
    open_at(root, path, OFlag::O_PATH).is_ok()
}

/// The entries of a directory: each name, and whether it is a directory. EFBIG
/// where there are more than `most`.
pub fn list(root: BorrowedFd, path: &Path, most: usize) -> Result<Vec<(OsString, bool)>, Errno> {
    let directory = File::from(follow_at(root, path, OFlag::O_PATH | OFlag::O_DIRECTORY)?);
    let entries = fs::read_dir(own_name(&directory));
    let mut names = Vec::new();
    for entry in entries.map_err(|error| errno(&error))? {
        let entry = entry.map_err(|error| errno(&error))?;
        if names.len() == most {
            return Err(Errno::EFBIG);
        }
        names.push((entry.file_name(), entry.file_type().is_ok_and(|kind| kind.is_dir())));
    }
    Ok(names)
}

/// What stood at a path, so that it is known again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Print {
    /// Nothing.
    Missing,
    /// A file, by its content and whether it can be run.
    File([u8; 32], bool),
    /// A file too long to read: its inode, and when that was last changed.
    Long(u64, i64, i64),
    /// A link, by what it says.
    Link(OsString),
    /// A directory, FIFO, socket or device.
    Other(u32),
    /// It could not be looked at.
    Unknown(Errno),
}

/// Looks at what stands at `path`.
pub fn print(root: BorrowedFd, path: &Path) -> Print {
    print_of(open_at(root, path, OFlag::O_PATH))
}

/// Looks at what `path` leads to, as long as that is below `root`.
pub fn print_behind(root: BorrowedFd, path: &Path) -> Print {
    print_of(follow_at(root, path, OFlag::O_PATH))
}

fn print_of(opened: Result<OwnedFd, Errno>) -> Print {
    match opened.and_then(look) {
        Ok(print) => print,
        Err(Errno::ENOENT | Errno::ENOTDIR) => Print::Missing,
        Err(errno) => Print::Unknown(errno),
    }
}

fn look(found: OwnedFd) -> Result<Print, Errno> {
    let io_errno = |error: io::Error| errno(&error);
    let found = File::from(found);
    let metadata = found.metadata().map_err(io_errno)?;
    let kind = metadata.mode() & libc::S_IFMT;
    match kind {
        libc::S_IFLNK => Ok(Print::Link(readlinkat(found.as_fd(), "")?)),
        libc::S_IFREG if metadata.len() > LIMIT => {
            Ok(Print::Long(metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
        }
        libc::S_IFREG => {
            let readable = File::open(own_name(&found)).map_err(io_errno)?;
            let digest = Sha256::digest(read_whole(readable)?);
            Ok(Print::File(digest.into(), metadata.mode() & 0o111 != 0))
        }
        _ => Ok(Print::Other(kind)),
    }
}

/// When what stands at `path` was made, where the file system keeps that, and
/// when it last was changed in any way, which nobody can set.
pub fn times(root: BorrowedFd, path: &Path) -> Result<(Option<SystemTime>, SystemTime), Errno> {
    let found = File::from(open_at(root, path, OFlag::O_PATH)?);
    let metadata = found.metadata().map_err(|error| errno(&error))?;
    let since = |seconds: i64, nanoseconds: i64| {
        SystemTime::UNIX_EPOCH + Duration::new(seconds.max(0) as u64, nanoseconds as u32)
    };
    Ok((metadata.created().ok(), since(metadata.ctime(), metadata.ctime_nsec())))
}

fn own_name(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// A path that a file of git's names, counted from `base`, as one below the
/// workspace `dir`; `None` where it leads out of it.
pub fn below(dir: &Path, base: &Path, named: &[u8]) -> Option<PathBuf> {
    let named = Path::new(OsStr::from_bytes(named));
    let mut path = PathBuf::new();
    for part in dir.join(base).join(named).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    let is_of_a_home = named.as_os_str().as_bytes().starts_with(b"~");
    match path.strip_prefix(dir) {
        Ok(path) if !is_of_a_home => Some(path.to_owned()),
        _ if !is_of_a_home && named.is_relative() => None,
        // Links, or a home, may give the workspace a further name.
        _ => {
            let parts: Vec<Component> = named.components().skip(1).collect();
            let least = usize::from(!is_of_a_home);
            let is_name = |length: &usize| dir.ends_with(parts[..*length].iter().collect::<PathBuf>());
            let length = (least..=parts.len()).rev().find(is_name)?;
            Some(parts[length..].iter().collect())
        }
    }
}

/// The first line of a short file of git's, without what surrounds it.
pub fn line(content: &[u8]) -> OsString {
    let line = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
    OsString::from_vec(line.trim_ascii().to_vec())
}
