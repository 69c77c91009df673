//! Sockets that lie in a view.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::scene::Scene;
use super::{Check, Expect, text};
use crate::host::Kind;
use crate::mounts::Mounts;
use crate::plan::Probe;
use crate::policy::ViewRole;
use crate::sockets;

/// Sockets that lie in a view: connect(2) asks nothing of the mount. The kernel
/// tells of those in the launcher's own network by the path they were bound to;
/// the others are looked for in the views themselves.
pub(super) fn checks(scene: &Scene, checks: &mut Vec<Check>) {
    let mut places: BTreeMap<PathBuf, i32> = BTreeMap::new();
    for view in &scene.views {
        match view.kind {
            Kind::Socket => drop(places.insert(view.place.clone(), libc::SOCK_STREAM)),
            Kind::Directory if view.role != ViewRole::System => {
                let found = below(&view.source, &scene.mounts).into_iter();
                let found = found.filter_map(|path| Some(path.strip_prefix(&view.source).ok()?.to_owned()));
                places.extend(found.map(|below| (view.place.join(below), libc::SOCK_STREAM)));
            }
            _ => {}
        }
    }
    match bound() {
        Ok(bound) => {
            for (path, kind) in bound {
                places.extend(scene.places(&path).into_iter().map(|(place, _)| (place, kind)));
            }
        }
        Err(error) => {
            let why = format!("the host's sockets are not known: {}", error.kind());
            checks.push(Check::untestable("view:socket", sockets::TABLE, why));
        }
    }
    for (place, kind) in places {
        let probe = Probe::ConnectPath { path: text(&place), kind };
        checks.push(Check::new("view:socket", place.display().to_string(), Expect::Denied, probe));
    }
}

/// As many entries of a view are looked at for a socket, and as many directories.
const ENTRIES: usize = 512;
const DIRECTORIES: usize = 32;

/// The sockets among the first entries of a directory, those at the top before
/// those below. What is mounted there may be a file system that does not answer.
fn below(top: &Path, mounts: &Mounts) -> Vec<PathBuf> {
    let (mut sockets, mut left) = (Vec::new(), ENTRIES);
    let mut directories = vec![top.to_owned()];
    let mut next = 0;
    while let Some(directory) = directories.get(next) {
        next += 1;
        let entries: Vec<_> = fs::read_dir(directory).into_iter().flatten().flatten().take(left).collect();
        left -= entries.len();
        for entry in entries {
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            if kind.is_socket() {
                sockets.push(path);
            } else if kind.is_dir() && directories.len() < DIRECTORIES && !mounts.has(&path) {
                directories.push(path);
            }
        }
    }
    sockets
}

/// Path and type of every socket that takes connections or datagrams. A path is
/// told as it was given: it may go through a link, and one that is relative
/// counts from where some process was.
fn bound() -> io::Result<Vec<(PathBuf, i32)>> {
    let table = sockets::table()?;
    let (absolute, relative): (Vec<_>, Vec<_>) =
        sockets::bound(&table).partition(|(path, _)| path.is_absolute());
    let mut directories: BTreeMap<&Path, Option<PathBuf>> = BTreeMap::new();
    let mut found = Vec::new();
    for (path, kind) in absolute {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
        let real = directories.entry(parent).or_insert_with(|| parent.canonicalize().ok());
        found.push((real.as_deref().unwrap_or(parent).join(name), kind));
    }
    let directories = if relative.is_empty() { BTreeSet::new() } else { working_directories()? };
    for (path, kind) in relative {
        let places = directories.iter().map(|directory| directory.join(path));
        let is_socket =
            |place: &PathBuf| fs::symlink_metadata(place).is_ok_and(|it| it.file_type().is_socket());
        found.extend(places.filter(is_socket).filter_map(|place| Some((place.canonicalize().ok()?, kind))));
    }
    Ok(found)
}

/// Those of every process that the launcher may look at.
fn working_directories() -> io::Result<BTreeSet<PathBuf>> {
    let processes = fs::read_dir("/proc")?.flatten();
    let numbers = processes.filter(|entry| entry.file_name().as_bytes()[0].is_ascii_digit());
    Ok(numbers.filter_map(|entry| fs::read_link(entry.path().join("cwd")).ok()).collect())
}
