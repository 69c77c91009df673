//! What becomes of each protected path of a workspace, before a run.

use std::os::fd::AsFd;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Repository, file, repository};
use crate::policy::{Access, ProtectMissing, WAYS_AROUND, Workspace};
use crate::sys::fd;

/// What becomes of a protected path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// The cell sees it read-only, or cannot make it.
    Held,
    /// If the run makes it, it is removed at the end.
    Swept,
    /// Git tracks it. The run can change it, and the change is told.
    Told,
}

/// One protected path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct Protected {
    /// What becomes of it.
    pub fate: Fate,
    /// Where, relative to the workspace.
    pub path: String,
}

/// The protected paths of a workspace in the order of what becomes of them.
pub fn of(workspace: &Workspace) -> Vec<Protected> {
    let dir = repository::c_string(&workspace.dir);
    let Some(root) = fd::open_path(fd::CWD, &dir).ok().filter(|_| workspace.access == Access::ReadWrite)
    else {
        return Vec::new();
    };
    let paths: Vec<&Path> = workspace.protect.iter().map(|protect| &*protect.path).collect();
    let repository = Repository::look(&workspace.dir, &paths);
    let of = |fate, path: &Path| Protected { fate, path: path.to_string_lossy().into_owned() };
    let untracked = |path: &Path| match file::exists(root.as_fd(), path) {
        true => of(Fate::Held, path),
        false if workspace.protect_missing == ProtectMissing::Sweep => of(Fate::Swept, path),
        false if WAYS_AROUND.iter().any(|around| path == Path::new(around)) => of(Fate::Swept, path),
        false => of(Fate::Held, path),
    };
    let mut all: Vec<Protected> =
        repository.held(&workspace.protect).iter().map(|held| untracked(&held.path)).collect();
    all.extend(repository.tracked.paths.iter().map(|path| of(Fate::Told, path)));
    // What is new in a directory of tracked files.
    all.extend(repository.beside.keys().map(|path| of(Fate::Swept, path)));
    all.sort();
    all.dedup();
    all
}
