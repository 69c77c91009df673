//! The repositories that only a walk through the workspace finds.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::file;
use super::settings::{New, Settings, Unread};
use crate::sys::Errno;

/// How many entries the walk looks at.
const MOST: usize = 1_000_000;

/// What a run left in repositories that were not looked at before it. It is known
/// by the times that the file system keeps.
#[derive(Debug, Default)]
pub struct Deep {
    /// Repositories that it made.
    pub made: Vec<PathBuf>,
    /// The settings in them and in others by which git runs something, of each file
    /// that the run wrote.
    pub new: Vec<(PathBuf, New)>,
    /// What else it wrote there that git runs, or that leads it on.
    pub ways: Vec<PathBuf>,
    /// Directories that it closed, so that nobody can look into them.
    pub closed: Vec<PathBuf>,
    /// Whether there was more than could be looked at.
    pub is_cut: bool,
}

/// Walks through the workspace `dir`, open as `root`, past the trees that are `known`.
pub fn look(
    root: BorrowedFd,
    dir: &Path,
    known: &BTreeSet<PathBuf>,
    start: SystemTime,
    go_on: &mut dyn FnMut() -> bool,
) -> Deep {
    let mut deep = Deep::default();
    let mut settings = Settings::default();
    let mut left = MOST;
    let mut waiting = vec![PathBuf::new()];
    while let Some(tree) = waiting.pop() {
        if !go_on() {
            deep.is_cut = true;
            break;
        }
        let entries = match file::list(root, &tree, left) {
            Ok(entries) => entries,
            Err(Errno::EFBIG) => {
                deep.is_cut = true;
                break;
            }
            // Nobody comes that deep but by many steps.
            Err(Errno::ENAMETOOLONG) => {
                deep.is_cut = true;
                continue;
            }
            Err(_) => {
                let is_closed = file::times(root, &tree).is_ok_and(|(_, changed)| changed >= start);
                deep.closed.extend(is_closed.then_some(tree));
                continue;
            }
        };
        left -= entries.len();
        let has = |wanted: &str| entries.iter().any(|(name, _)| name == wanted);
        // A bare repository has both by themselves.
        let mark =
            if has(".git") { Some(".git") } else { (has("HEAD") && has("objects")).then_some("objects") };
        if let Some(mark) = mark.filter(|_| tree != Path::new("") && !known.contains(&tree)) {
            let times = file::times(root, &tree.join(mark));
            let is_new = times.is_ok_and(|(made, changed)| made.unwrap_or(changed) >= start);
            deep.made.extend(is_new.then(|| tree.clone()));
            settings.add_tree(root, dir, &tree);
        }
        let directories = entries.into_iter().filter(|(name, is_directory)| *is_directory && name != ".git");
        waiting.extend(directories.map(|(name, _)| tree.join(name)));
    }
    let is_written = |path: &Path| file::times(root, path).is_ok_and(|(_, changed)| changed >= start);
    let nothing = Settings::default();
    let new = settings.new_since(&nothing).into_iter();
    let new = new.filter(|(path, new)| *new == New::Unread(Unread::TooMany) || is_written(path));
    let may_be_old = |new| if let New::Runs(setting) = new { New::Has(setting) } else { new };
    deep.new = new.map(|(path, new)| (path, may_be_old(new))).collect();
    deep.ways = settings.ways_since(&nothing);
    deep.ways.retain(|path| is_written(path));
    deep
}
