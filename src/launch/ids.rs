//! Which user the cell runs as, and the id maps that only root can write.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::unistd::{Gid, Uid, getegid, geteuid, setegid, seteuid, setgroups};

use crate::cli::RunAs;
use crate::error::Error;
use crate::host::Ids;
use crate::sys::{Errno, errno, fd};

/// Finds the id of the run: the caller's own or, for root, the one it names.
///
/// # Errors
///
/// Root that names nobody, and an ordinary user that names somebody else.
pub fn resolve(run_as: Option<RunAs>) -> Result<Ids, Error> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    if uid != 0 {
        if let Some(other) = run_as.filter(|run_as| (run_as.uid, run_as.gid) != (uid, gid)) {
            let what = format!("--run-as {}:{} names another user", other.uid, other.gid);
            return Err(Error::new("ids", what)
                .cause(format!("only root can run a cell as somebody else, and this is {uid}:{gid}"))
                .remedy("leave --run-as away, or start with sudo"));
        }
        return Ok(Ids { uid, gid, started_by_root: false });
    }
    match run_as.or_else(sudo_caller) {
        Some(RunAs { uid, gid }) => Ok(Ids { uid, gid, started_by_root: true }),
        None => Err(Error::new("ids", "started by root, and no other id is named")
            .cause(
                "a cell never keeps the kernel's user 0: without a capability it still owns the host's files",
            )
            .remedy(
                "name an ordinary id with --run-as UID:GID, or start with sudo from an ordinary account",
            )),
    }
}

/// Whose the report is: sudo's caller, where root was called so.
pub(super) fn caller() -> Option<(u32, u32)> {
    let caller = if geteuid().is_root() { sudo_caller() } else { None };
    caller.map(|RunAs { uid, gid }| (uid, gid))
}

/// Who called sudo(8), unless that was root.
fn sudo_caller() -> Option<RunAs> {
    let number = |name| std::env::var(name).ok()?.parse().ok().filter(|&id: &u32| id != 0);
    Some(RunAs { uid: number("SUDO_UID")?, gid: number("SUDO_GID")? })
}

/// Drops root's supplementary groups, which a child in a new user namespace
/// with `setgroups` denied could not drop by itself.
pub(super) fn drop_groups() -> Result<(), Error> {
    setgroups(&[]).map_err(|errno| {
        let error = Error::new("ids", "the supplementary groups cannot be dropped").errno(errno);
        // Denied for good where an ordinary user has made this namespace (user_namespaces(7)).
        if std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|word| word.trim() == "deny") {
            return error
                .cause("the user namespace that the launcher runs in denies setgroups(2), as `unshare -Ur` and systemd's PrivateUsers= make it; its root is one ordinary user")
                .remedy("start as that user itself, outside of the namespace");
        }
        error
            .cause("root lacks CAP_SETGID here")
            .remedy("give the container CAP_SETGID (Docker: --cap-add SETGID), or start as the ordinary user itself")
    })
}

/// Writes the maps of a child that root has made, and lets it go on.
pub(super) fn write_maps(child: i32, ids: Ids, report: BorrowedFd) -> Result<(), Error> {
    let Ids { uid, gid, .. } = ids;
    for (name, content) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ] {
        std::fs::write(format!("/proc/{child}/{name}"), content).map_err(|error| {
            let errno = errno(&error);
            let error = Error::new("ids", format!("{name} of the cell cannot be written")).errno(errno);
            let missing = missing_capabilities();
            if errno == Errno::EROFS {
                error
                    .cause("/proc is mounted read-only here, so that no id map can be written")
                    .remedy("leave /proc writable: under systemd take it out of ReadOnlyPaths=, or set ReadWritePaths=/proc")
            } else if missing.is_empty() {
                error
                    .cause(format!("{uid}:{gid} is not mapped in this container"))
                    .remedy("name an id that exists in this container (/proc/self/uid_map, gid_map)")
            } else {
                error
                    .cause(format!("root lacks {} here", missing.join(", ")))
                    .remedy("give the container these capabilities, or start as the ordinary user itself")
            }
        })?;
    }
    fd::write(report.as_raw_fd(), b"g")
        .map_err(|failure| Error::new("ids", "the child does not listen").errno(failure.errno))
}

/// What a privileged writer of id maps needs, and this process has not
/// (user_namespaces(7)).
fn missing_capabilities() -> Vec<String> {
    use caps::{CapSet, Capability, has_cap};
    [Capability::CAP_SETUID, Capability::CAP_SETGID, Capability::CAP_SETFCAP]
        .into_iter()
        .filter(|&capability| !has_cap(None, CapSet::Effective, capability).unwrap_or(true))
        .map(|capability| capability.to_string())
        .collect()
}

/// Does something in the file system as the id of the run, so that root never
/// follows where only root may go.
pub(super) fn as_run<T>(ids: Ids, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    // Inside another call of this function the process has that id already.
    if !ids.started_by_root || !Uid::effective().is_root() {
        return work();
    }
    let switch = |uid, gid| seteuid(Uid::from_raw(uid)).and(setegid(Gid::from_raw(gid)));
    let failed =
        |errno: Errno| Error::new("ids", format!("cannot become {}:{}", ids.uid, ids.gid)).errno(errno);
    setegid(Gid::from_raw(ids.gid)).map_err(failed)?;
    seteuid(Uid::from_raw(ids.uid)).map_err(failed)?;
    let result = work();
    switch(0, 0).map_err(failed)?;
    result
}
