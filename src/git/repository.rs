//! What git tracks of a workspace, and where it keeps its own files there.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{config, file, index};
use crate::policy::Protect;
use crate::sys::{Errno, fd};

/// How many files that git does not track are held one by one beside those it
/// tracks; of more, the directory is held whole.
const MOST_BESIDE: usize = 500;

/// How many directories below `.git/modules` and `.git/worktrees` are looked at.
const MOST_MODULES: usize = 5_000;

/// Where git keeps its files for a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GitDirectory {
    /// There is no `.git`, or one that git does not take.
    #[default]
    Nowhere,
    /// `.git` is that directory.
    Here,
    /// `.git` is a file that names it, as in a linked worktree or a submodule.
    Named(PathBuf),
}

/// What git tracks at the protected paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// Those that are, or lie in, a protected path.
    pub paths: BTreeSet<PathBuf>,
    /// The repositories of their own that the index names.
    pub gitlinks: BTreeSet<PathBuf>,
    /// Why nothing is known.
    pub problem: Option<String>,
}

/// A workspace as git sees it.
#[derive(Clone, Debug, Default)]
pub struct Repository {
    /// Where git keeps its files.
    pub directory: GitDirectory,
    /// What it tracks at protected paths.
    pub tracked: Tracked,
    /// Each protected directory with tracked files, and what lies in it beside
    /// them: its path, and whether it is a directory.
    pub beside: BTreeMap<PathBuf, Vec<(PathBuf, bool)>>,
    /// The directories of submodules below `.git/modules`.
    pub modules: Vec<PathBuf>,
}

impl Repository {
    /// Looks at the workspace `dir` before a run; every path is counted from it.
    pub fn look(dir: &Path, protected: &[&Path]) -> Repository {
        let Ok(root) = fd::open_path(fd::CWD, &c_string(dir)) else { return Repository::default() };
        let mut now = Repository::now(root.as_fd(), dir, protected);
        for path in protected {
            if !holds_some(&now.tracked.paths, path) {
                continue;
            }
            let mut untracked = Vec::new();
            match list_untracked(root.as_fd(), path, &now.tracked.paths, &mut untracked) {
                Some(()) => drop(now.beside.insert(path.to_path_buf(), untracked)),
                None => now.tracked.paths.retain(|tracked| !tracked.starts_with(path)),
            }
        }
        now
    }

    /// Looks at the workspace that is open as `root`, without what lies beside
    /// tracked files.
    pub fn now(root: BorrowedFd, dir: &Path, protected: &[&Path]) -> Repository {
        let directory = find(root, dir, Path::new(""));
        if directory == GitDirectory::Nowhere {
            return Repository::default();
        }
        let tracked = tracked(root, Path::new(""), &directory, protected);
        // A launch is not kept from starting by what is found out at its end.
        Repository { modules: modules(root).unwrap_or_default(), directory, tracked, beside: BTreeMap::new() }
    }
}

/// Whether one of `paths` lies in `directory`.
pub fn holds_some(paths: &BTreeSet<PathBuf>, directory: &Path) -> bool {
    paths
        .range(directory.to_owned()..)
        .find(|path| *path != directory)
        .is_some_and(|path| path.starts_with(directory))
}

/// Where the git directory of the tree at `tree` is.
pub fn find(root: BorrowedFd, dir: &Path, tree: &Path) -> GitDirectory {
    let git = tree.join(".git");
    if file::is_directory(root, &git) {
        return GitDirectory::Here;
    }
    let named = file::read(root, &git).ok().and_then(|text| text.strip_prefix(b"gitdir:").map(file::line));
    named.map_or(GitDirectory::Nowhere, |named| GitDirectory::Named(dir.join(tree).join(named)))
}

/// Reads the index of the tree at `tree`.
pub fn tracked(root: BorrowedFd, tree: &Path, directory: &GitDirectory, protected: &[&Path]) -> Tracked {
    let open = |name: &str| match directory {
        GitDirectory::Named(named) => {
            let named = fd::open_path(fd::CWD, &c_string(named)).map_err(|failure| failure.errno)?;
            file::open(named.as_fd(), Path::new(name))
        }
        _ => file::open(root, &tree.join(".git").join(name)),
    };
    let hash = hash_length(root, tree);
    let is_wanted = |name: &[u8]| {
        let name = name.strip_suffix(b"/").unwrap_or(name);
        protected.iter().any(|path| {
            let path = path.as_os_str().as_bytes();
            name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        })
    };
    let read = |file: File| index::read(file, hash, is_wanted).map_err(|error| error.to_string());
    let mut tracked = Tracked::default();
    let mut next = Some("index".to_owned());
    while let Some(name) = next {
        let index = match open(&name) {
            Ok(file) => read(file),
            // A repository without a commit has none.
            Err(Errno::ENOENT) if name == "index" => Ok(index::Index::default()),
            Err(errno) => Err(errno.desc().to_owned()),
        };
        let index = match index {
            Ok(index) => index,
            Err(problem) => return Tracked { problem: Some(problem), ..Tracked::default() },
        };
        for entry in index.entries {
            let path = PathBuf::from(OsStr::from_bytes(entry.name.strip_suffix(b"/").unwrap_or(&entry.name)));
            let set = if entry.is_gitlink { &mut tracked.gitlinks } else { &mut tracked.paths };
            set.insert(path);
        }
        // What it shares is not split again.
        next = index.shared.filter(|_| name == "index");
    }
    tracked
}

/// How long the names of objects are.
fn hash_length(root: BorrowedFd, tree: &Path) -> usize {
    let settings = file::read(root, &tree.join(".git/config")).ok();
    let is_long = |text: &Vec<u8>| {
        text.windows(6).any(|word| word.eq_ignore_ascii_case(b"sha256"))
            && config::parse(text).is_some_and(|settings| {
                let format = settings.iter().rfind(|setting| setting.is("extensions", "objectformat"));
                format.is_some_and(|format| format.value == b"sha256")
            })
    };
    if settings.as_ref().is_some_and(is_long) { 32 } else { 20 }
}

/// What lies in a protected directory beside tracked files; `None` where that
/// cannot be held one by one.
fn list_untracked(
    root: BorrowedFd,
    directory: &Path,
    tracked: &BTreeSet<PathBuf>,
    untracked: &mut Vec<(PathBuf, bool)>,
) -> Option<()> {
    if !file::is_directory(root, directory) {
        return Some(());
    }
    for (name, is_directory) in file::list(root, directory, index::MOST).ok()? {
        let path = directory.join(name);
        if tracked.contains(&path) {
            continue;
        }
        if is_directory && holds_some(tracked, &path) {
            list_untracked(root, &path, tracked, untracked)?;
            continue;
        }
        // No mount can stand on a link.
        let is_link = matches!(file::print(root, &path), file::Print::Link(_));
        if is_link || untracked.len() == MOST_BESIDE {
            return None;
        }
        untracked.push((path, is_directory));
    }
    Some(())
}

/// All that lies at or below `path` and is, or holds, nothing that is `known`.
///
/// # Errors
///
/// Where a directory cannot be read, or has too many entries.
pub fn unknown(
    root: BorrowedFd,
    path: &Path,
    known: &BTreeSet<PathBuf>,
    found: &mut Vec<PathBuf>,
) -> Result<(), Errno> {
    if known.contains(path) || file::print(root, path) == file::Print::Missing {
        return Ok(());
    }
    // What cannot be looked at may be a link on the way there, or closed.
    if !holds_some(known, path) {
        found.push(path.to_owned());
        return Ok(());
    }
    if !file::is_directory(root, path) && file::exists(root, path) {
        found.push(path.to_owned());
        return Ok(());
    }
    for (name, _) in file::list(root, path, index::MOST)? {
        unknown(root, &path.join(name), known, found)?;
    }
    Ok(())
}

/// The git directories of submodules; `None` where there are too many to look at.
pub fn modules(root: BorrowedFd) -> Option<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut looked_at = 0;
    let mut waiting = vec![PathBuf::from(".git/modules")];
    while let Some(directory) = waiting.pop() {
        if !file::is_directory(root, &directory) {
            continue;
        }
        if file::exists(root, &directory.join("HEAD")) {
            waiting.push(directory.join("modules"));
            found.push(directory);
            continue;
        }
        looked_at += 1;
        // The name of a submodule may have several components.
        let entries = file::list(root, &directory, MOST_MODULES).ok()?;
        waiting.extend(
            entries
                .into_iter()
                .filter(|(_, is_directory)| *is_directory)
                .map(|(name, _)| directory.join(name)),
        );
        if looked_at + waiting.len() > MOST_MODULES {
            return None;
        }
    }
    found.sort();
    Some(found)
}

/// The commit that the workspace is at, where that can be told.
pub fn head(root: BorrowedFd) -> Option<String> {
    let read = |path: &Path| file::read(root, &Path::new(".git").join(path)).ok();
    let is_name = |text: &str| text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let head = file::line(&read(Path::new("HEAD"))?).into_string().ok()?;
    let Some(name) = head.strip_prefix("ref: ") else { return Some(head).filter(|head| is_name(head)) };
    if let Some(loose) = read(Path::new(name)) {
        return file::line(&loose).into_string().ok().filter(|commit| is_name(commit));
    }
    let packed = String::from_utf8(read(Path::new("packed-refs"))?).ok()?;
    let line = packed.lines().find_map(|line| line.split_once(' ').filter(|(_, other)| *other == name));
    line.map(|(commit, _)| commit.to_owned()).filter(|commit| is_name(commit))
}

pub(super) fn c_string(path: &Path) -> std::ffi::CString {
    // No path of the kernel's holds a NUL byte; one of an agent's file leads nowhere then.
    std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// What leads git past the settings and hooks of a directory of its own.
const WAYS: [&str; 3] = ["hooks", "commondir", "config.worktree"];

impl Repository {
    /// What is kept as it is of the protected paths: all but what git tracks, as
    /// its ordinary work writes that. Beside the hooks of the repository itself
    /// those of its submodules are kept.
    pub fn held(&self, protected: &[Protect]) -> Vec<Protect> {
        let mut held = Vec::new();
        for protect in protected {
            let like = |path: &Path, is_directory| Protect {
                path: path.to_owned(),
                is_directory,
                ..protect.clone()
            };
            match self.beside.get(&protect.path) {
                Some(beside) => {
                    held.extend(beside.iter().map(|(path, is_directory)| like(path, *is_directory)))
                }
                None if self.tracked.paths.contains(&protect.path) => {}
                None => held.push(protect.clone()),
            }
        }
        let Some(of_git) = protected.iter().find(|protect| protect.path.starts_with(".git")) else {
            return held;
        };
        for path in self.ways_around() {
            let is_directory = path.ends_with("hooks");
            held.push(Protect { path, is_directory, ..of_git.clone() });
        }
        held
    }

    /// The hooks of submodules, and what leads git to others.
    pub fn ways_around(&self) -> Vec<PathBuf> {
        self.modules.iter().flat_map(|module| WAYS.map(|name| module.join(name))).collect()
    }
}
