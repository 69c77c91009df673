//! Where the fixture stands.
//!
//! Not in `/tmp`, which every cell has for itself and may write, so that no
//! narrower right can stand below it; nor in `/dev`, which is the cell's own too.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access, getegid, geteuid};

use crate::sys::credentials;

/// What the cell has for itself.
const CELLS_OWN: [&str; 3] = ["/tmp", "/dev", "/proc"];

/// Where memory may be mounted, in this process's own mounts: what is there is
/// seen by everybody else as before.
const COVERED: [&str; 5] = ["/var/tmp", "/var", "/srv", "/mnt", "/opt"];

/// A directory that takes the fixture: that of `TMPDIR`, `/var/tmp`, or memory.
///
/// # Errors
///
/// When neither takes it and no memory can be mounted.
pub(super) fn find() -> io::Result<PathBuf> {
    let named = std::env::var_os("TMPDIR").map(PathBuf::from);
    let candidates = named.into_iter().chain([PathBuf::from("/var/tmp")]);
    let base =
        candidates.filter_map(|place| fs::canonicalize(place).ok()).find(|place| takes_the_fixture(place));
    let has_tmp = is_writable(Path::new("/tmp"));
    match base {
        Some(base) if has_tmp => Ok(base),
        base => {
            own_mounts()?;
            if !has_tmp {
                mount_memory(Path::new("/tmp"))?;
            }
            let base = base.map_or_else(memory, Ok)?;
            if !geteuid().is_root() {
                // What the mounts were made with goes before anything of the cell is done.
                credentials::drop_capabilities().map_err(|failure| io::Error::from(failure.errno))?;
            }
            Ok(base)
        }
    }
}

fn takes_the_fixture(place: &Path) -> bool {
    let is_cells_own = CELLS_OWN.iter().any(|own| place.starts_with(own));
    let is_noexec = statvfs(place).is_ok_and(|fs| fs.flags().contains(FsFlags::ST_NOEXEC));
    // Root makes it for somebody else, who has to come there.
    let lets_in = |above: &Path| fs::metadata(above).is_ok_and(|stat| stat.permissions().mode() & 0o001 != 0);
    let is_open = !geteuid().is_root() || place.ancestors().all(lets_in);
    place.is_dir() && !is_cells_own && !is_noexec && is_open && is_writable(place)
}

fn is_writable(place: &Path) -> bool {
    access(place, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// Memory over one of the directories that are there.
fn memory() -> io::Result<PathBuf> {
    let places = COVERED.iter().filter_map(|place| fs::canonicalize(place).ok());
    let mut places = places.filter(|place| !CELLS_OWN.iter().any(|own| place.starts_with(own)));
    let place = places.next().ok_or_else(|| io::Error::other("there is no directory to mount memory on"))?;
    mount_memory(&place)?;
    Ok(place)
}

fn mount_memory(place: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), place, Some("tmpfs"), flags, Some("mode=1777")).map_err(io::Error::from)
}

/// Gives this process mounts of its own; an ordinary user has to make a user
/// namespace for that, in which it stays who it is.
fn own_mounts() -> io::Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    if uid.is_root() {
        unshare(CloneFlags::CLONE_NEWNS)?;
    } else {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    // What is mounted from here on is nobody else's.
    let none: Option<&Path> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    Ok(())
}
