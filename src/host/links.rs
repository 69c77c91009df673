//! Links that root alone can change.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::readlinkat;

use super::is_on_proc;
use crate::policy::Policy;
use crate::sys::fd;

/// How many links one path may go through, as in the kernel.
const LINKS_MAX: usize = 40;

/// The policy with what links lead to in place of their names, and each such name
/// with what stands for it now. `None` where nothing changes. Of the paths,
/// `is_link` says which go through a link at all.
pub fn followed(
    policy: &Policy,
    is_link: impl Fn(&Path) -> bool,
) -> Option<(Policy, Vec<(PathBuf, PathBuf)>)> {
    let mut policy = policy.clone();
    let mut links = Vec::new();
    for path in policy.host_paths_mut().filter(|path| is_link(path)) {
        if let Some(real) = follow(path) {
            links.push((std::mem::replace(path, real.clone()), real));
        }
    }
    links.sort();
    links.dedup();
    (!links.is_empty()).then_some((policy, links))
}

/// Where a path leads that goes through links. `None` where it goes through none,
/// or through one that somebody else than root could turn elsewhere: each link,
/// and each directory on the way to it, must belong to root and let nobody else
/// write.
///
/// What lies behind the last link need not be there yet.
pub(super) fn follow(path: &Path) -> Option<PathBuf> {
    let mut left: Vec<OsString> = names(path);
    let mut walk = Walk::from_root()?;
    let mut links = 0;
    while let Some(name) = left.pop() {
        let Some(found) = walk.look(&name) else {
            // Nothing here, or nothing that may be entered: the rest is as it is written.
            walk.path.push(name);
            walk.path.extend(left.into_iter().rev());
            return (links > 0).then_some(walk.path);
        };
        match found {
            Step::Link(Some(text)) if walk.is_roots && links < LINKS_MAX => {
                links += 1;
                left.extend(names(&text));
                if text.is_absolute() {
                    walk = Walk::from_root()?;
                }
            }
            Step::Link(_) => return None,
            Step::Entry(file, is_roots) => walk.enter(name, file, is_roots),
        }
    }
    (links > 0).then_some(walk.path)
}

/// What a link in `directory` says, as a path, without a look at any file.
pub(super) fn join(directory: &Path, text: &Path) -> PathBuf {
    let mut path = PathBuf::new();
    for part in directory.join(text).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// The names of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}

/// A file on the way, by descriptor.
struct Walk {
    path: PathBuf,
    file: OwnedFd,
    /// Whether root alone can change what is in it, and in all directories above it.
    is_roots: bool,
}

/// What is found under a name.
enum Step {
    /// A link, and what it says if it is root's.
    Link(Option<PathBuf>),
    /// Anything else, and whether it is a directory in which root alone can write.
    Entry(OwnedFd, bool),
}

impl Walk {
    fn from_root() -> Option<Walk> {
        let file = fd::open_path(fd::CWD, c"/").ok()?;
        let is_roots = is_roots(&fd::stat(file.as_fd()).ok()?);
        Some(Walk { path: "/".into(), file, is_roots })
    }

    fn look(&self, name: &OsStr) -> Option<Step> {
        let name = CString::new(name.as_bytes()).ok()?;
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let file = fd::open(self.file.as_raw_fd(), &name, flags, 0).ok()?;
        let stat = fd::stat(file.as_fd()).ok()?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFLNK {
            return Some(Step::Entry(file, is_roots(&stat)));
        }
        // What a link of procfs says is not where it leads.
        let is_elsewhere = is_on_proc(&file) == Ok(false);
        let text = readlinkat(&file, "").ok().filter(|_| stat.st_uid == 0 && is_elsewhere);
        Some(Step::Link(text.map(PathBuf::from)))
    }

    fn enter(&mut self, name: OsString, file: OwnedFd, is_roots: bool) {
        match name == ".." {
            true => drop(self.path.pop()),
            false => self.path.push(name),
        }
        self.file = file;
        self.is_roots &= is_roots;
    }
}

/// Whether it belongs to root, and nobody else may write in it.
fn is_roots(stat: &libc::stat) -> bool {
    stat.st_uid == 0 && stat.st_mode & 0o022 == 0
}
