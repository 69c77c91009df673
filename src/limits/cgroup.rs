//! A cgroup of a nested cell's own.
//!
//! A cgroup namespace that is made in the cell shows, as its root, the cgroup that
//! its maker is in: that of the launcher and the harness, unless the cell has one
//! of its own. Where it is delegated to the user, who mounts it there could freeze
//! and kill them.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};
use nix::unistd::{AccessFlags, UnlinkatFlags, access, unlinkat};

use crate::mounts::{Mount, join};
use crate::sys::fd;

/// What the run may make below its own cgroup, so that its removal has an end.
const MOST: [(&CStr, &[u8]); 2] = [(c"cgroup.max.descendants", b"256"), (c"cgroup.max.depth", b"8")];

/// How its name begins; a random number follows.
const PREFIX: &str = "cellblock-";

/// How often one is made that another launcher takes for a left-over.
const TRIES: usize = 4;

/// The cgroup of one cell: a directory beside the launcher's processes that bounds
/// what is below it, and the cell's own in it. Locked while the launcher lives, and
/// gone with it; one that a killed launcher has left is removed by the next.
#[derive(Debug)]
pub struct Leaf {
    parent: OwnedFd,
    name: CString,
    _lock: Flock<File>,
    procs: OwnedFd,
}

/// Whether one can probably be made.
pub fn is_possible() -> bool {
    own_directory().is_some_and(|directory| access(&directory, AccessFlags::W_OK).is_ok())
}

impl Leaf {
    /// Makes one; `None` where the launcher's cgroup takes none.
    pub fn make() -> Option<Leaf> {
        let directory = own_directory()?;
        let parent = open(fd::CWD, &CString::new(directory.as_os_str().as_bytes()).ok()?)?;
        let is_cgroup = fstatfs(&parent).is_ok_and(|fs| fs.filesystem_type() == CGROUP2_SUPER_MAGIC);
        if !is_cgroup {
            return None;
        }
        remove_left_overs(&parent);
        (0..TRIES).find_map(|_| Leaf::make_in(parent.try_clone().ok()?))
    }

    fn make_in(parent: OwnedFd) -> Option<Leaf> {
        let number = RandomState::new().build_hasher().finish();
        let name = CString::new(format!("{PREFIX}{number:016x}")).ok()?;
        fd::make_directory(parent.as_raw_fd(), &name, 0o755).ok()?;
        let made = || {
            let outer = open(parent.as_raw_fd(), &name)?;
            let lock = Flock::lock(File::from(outer), FlockArg::LockExclusiveNonblock).ok()?;
            for (limit, value) in MOST {
                let file = fd::open(lock.as_raw_fd(), limit, libc::O_WRONLY, 0).ok()?;
                fd::write(file.as_raw_fd(), value).ok()?;
            }
            fd::make_directory(lock.as_raw_fd(), c"cell", 0o755).ok()?;
            let procs = fd::open(lock.as_raw_fd(), c"cell/cgroup.procs", libc::O_WRONLY, 0).ok()?;
            Some((lock, procs))
        };
        match made() {
            Some((lock, procs)) => Some(Leaf { name, procs, _lock: lock, parent }),
            None => {
                remove(&parent, &name);
                None
            }
        }
    }

    /// What a process writes itself to, to enter it.
    pub fn procs(&self) -> RawFd {
        self.procs.as_raw_fd()
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        remove(&self.parent, &self.name);
    }
}

fn open(parent: RawFd, name: &CStr) -> Option<OwnedFd> {
    fd::open(parent, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0).ok()
}

/// Where this process's cgroup is mounted; `None` where there are hierarchies of
/// the first version beside the second. They can be mounted as well, and few may
/// make a cgroup in each of them.
fn own_directory() -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = Path::new(own.strip_prefix("0::")?.strip_suffix('\n').filter(|path| !path.contains('\n'))?);
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let mounts = table.split(|byte| *byte == b'\n').filter_map(Mount::parse);
    let mut places = mounts.filter(|mount| mount.kind == "cgroup2").filter_map(|mount| {
        // A path that leads out of this cgroup namespace begins with `..`.
        Some(join(&mount.point, path.strip_prefix(&mount.root).ok()?))
    });
    places.next().filter(|_| !own.contains("/.."))
}

/// Removes the cgroups of launchers that have been killed.
fn remove_left_overs(parent: &OwnedFd) {
    for name in children(parent) {
        let is_ours = name.to_bytes().starts_with(PREFIX.as_bytes());
        let Some(found) = is_ours.then(|| open(parent.as_raw_fd(), &name)).flatten() else { continue };
        if Flock::lock(File::from(found), FlockArg::LockExclusiveNonblock).is_ok() {
            remove(parent, &name);
        }
    }
}

/// Removes a cgroup and what is below it, as deep as [`MOST`] lets it be. One with a process
/// in it stays.
fn remove(parent: &OwnedFd, name: &CStr) {
    if let Some(directory) = open(parent.as_raw_fd(), name) {
        children(&directory).iter().for_each(|child| remove(&directory, child));
    }
    let _ = unlinkat(parent.as_fd(), name, UnlinkatFlags::RemoveDir);
}

fn children(directory: &OwnedFd) -> Vec<CString> {
    let listing = std::fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let entries = listing.into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.filter_map(|entry| CString::new(entry.file_name().into_vec()).ok()).collect()
}
