//! The settings by which git runs something in a workspace, and what it runs there.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use super::config::{self, Setting};
use super::file::{self, Print};
use super::repository::{self, GitDirectory};
use super::runs;
use crate::sys::Errno;

/// How many files of settings are read, and how many repositories are known.
const MOST: usize = 2_000;

/// How many bytes of settings are read in all.
const MOST_TEXT: usize = 4 << 20;

/// How many entries at the top of the workspace are looked at for a repository
/// before a run.
const MOST_ENTRIES: usize = 10_000;

/// What git would run in some repositories of a workspace, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// What each file sets by which git runs something.
    files: BTreeMap<PathBuf, Result<Vec<Setting>, Unread>>,
    /// How many bytes that was read from.
    length: usize,
    /// Whether some were not read.
    is_cut: bool,
    /// The repositories in the workspace that are compared: those that the index of
    /// it or of another one names, and those directly in it, where editors look.
    pub inner: BTreeSet<PathBuf>,
    /// What leads git on, and what it runs: hooks that nothing holds, and the files
    /// that settings name. Of a link, what it leads to as well.
    ways: BTreeMap<PathBuf, (Print, Option<Print>)>,
}

/// Why settings of git's are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The file cannot be read.
    File(Errno),
    /// Git does not take it either.
    Malformed,
    /// There are more than are read.
    TooMany,
}

/// What a file of settings has that it had not.
#[derive(Debug, PartialEq, Eq)]
pub enum New {
    /// Something that git runs, or reads more settings from.
    Runs(Setting),
    /// The same, in a file that was not looked at before.
    Has(Setting),
    /// That is not known.
    Unread(Unread),
}

impl Settings {
    /// Looks at the workspace `dir`, open as `root`, before a run.
    pub fn before(
        root: BorrowedFd,
        dir: &Path,
        gitlinks: &BTreeSet<PathBuf>,
        modules: &[PathBuf],
    ) -> Settings {
        let inner = find_inner(root, dir, gitlinks);
        Settings::look(root, dir, inner, modules)
    }

    /// Looks at the same repositories after it.
    pub fn after(&self, root: BorrowedFd, dir: &Path, modules: &[PathBuf]) -> Settings {
        Settings::look(root, dir, self.inner.clone(), modules)
    }

    fn look(root: BorrowedFd, dir: &Path, inner: BTreeSet<PathBuf>, modules: &[PathBuf]) -> Settings {
        let mut settings = Settings::default();
        for tree in &inner {
            settings.add_tree(root, dir, tree);
        }
        settings.add_tree(root, dir, Path::new(""));
        settings.inner = inner;
        for module in modules {
            settings.add_directory(root, dir, module, Path::new(""));
        }
        let worktrees = file::list(root, Path::new(".git/worktrees"), MOST).unwrap_or_default();
        for worktree in worktrees.into_iter().map(|(name, _)| Path::new(".git/worktrees").join(name)) {
            settings.add_directory(root, dir, &worktree, Path::new(""));
            let way = worktree.join("commondir");
            // As git writes it.
            if !file::read(root, &way).is_ok_and(|named| *file::line(&named) == *"../..") {
                settings.add_way(root, way);
            }
        }
        settings
    }

    /// Adds what git would run for the tree at `tree`.
    pub fn add_tree(&mut self, root: BorrowedFd, dir: &Path, tree: &Path) {
        // As a directory it leads nowhere else.
        if !file::is_directory(root, &tree.join(".git")) {
            self.add_way(root, tree.join(".git"));
        }
        for directory in git_directories(root, dir, tree) {
            self.add_directory(root, dir, &directory, tree);
            // What leads on from the workspace's own is held or swept.
            if directory != Path::new(".git") {
                self.add_way(root, directory.join("commondir"));
                self.add_hooks(root, &directory.join("hooks"));
            }
        }
    }

    fn add_directory(&mut self, root: BorrowedFd, dir: &Path, directory: &Path, tree: &Path) {
        for name in ["config", "config.worktree"] {
            self.add(root, dir, directory.join(name), tree);
        }
    }

    /// Adds one file of settings, what it includes, and the files that git runs for
    /// it in `tree`.
    fn add(&mut self, root: BorrowedFd, dir: &Path, first: PathBuf, tree: &Path) {
        let mut waiting = vec![first];
        while let Some(path) = waiting.pop() {
            if self.is_cut || self.files.contains_key(&path) {
                continue;
            }
            let settings = match file::read(root, &path) {
                Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
                Err(errno) => Err(Unread::File(errno)),
                Ok(text) if self.files.len() >= MOST || self.length + text.len() > MOST_TEXT => {
                    self.is_cut = true;
                    Err(Unread::TooMany)
                }
                Ok(text) => {
                    self.length += text.len();
                    config::parse(&text).ok_or(Unread::Malformed)
                }
            };
            let settings =
                settings.map(|settings| settings.into_iter().filter(runs::runs).collect::<Vec<_>>());
            for setting in settings.iter().flatten() {
                if runs::includes(setting) {
                    let base = path.parent().unwrap_or(Path::new(""));
                    waiting.extend(file::below(dir, base, &setting.value));
                } else {
                    self.add_files_of(root, dir, tree, setting);
                }
            }
            self.files.insert(path, settings);
        }
    }

    /// Adds the files in the workspace that git runs by one setting.
    fn add_files_of(&mut self, root: BorrowedFd, dir: &Path, tree: &Path, setting: &Setting) {
        if runs::names_hooks(setting) {
            let Some(hooks) = file::below(dir, tree, &setting.value) else { return };
            self.add_hooks(root, &hooks);
            // As husky has it, whose hooks start those beside them.
            if hooks.ends_with("_") && hooks.components().count() > 1 {
                hooks.parent().into_iter().for_each(|beside| self.add_hooks(root, beside));
            }
            return;
        }
        for path in runs::files(&setting.value).filter_map(|named| file::below(dir, tree, named)) {
            self.add_way(root, path);
        }
    }

    fn add_hooks(&mut self, root: BorrowedFd, hooks: &Path) {
        // A link counts by itself.
        self.add_way(root, hooks.to_owned());
        let entries = match file::list(root, hooks, MOST) {
            Ok(entries) => entries,
            // It is not there, or not in the workspace.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EXDEV) => return,
            Err(errno) => return drop(self.files.insert(hooks.to_owned(), Err(Unread::File(errno)))),
        };
        for (name, is_directory) in entries {
            // Those that git brings are run by nobody.
            if !is_directory && !name.as_encoded_bytes().ends_with(b".sample") {
                self.add_way(root, hooks.join(name));
            }
        }
    }

    fn add_way(&mut self, root: BorrowedFd, path: PathBuf) {
        let print = file::print(root, &path);
        let leads_on = matches!(print, Print::Link(_) | Print::Unknown(_));
        let behind = leads_on.then(|| file::print_behind(root, &path));
        if !matches!(print, Print::Missing | Print::Other(_)) {
            self.ways.insert(path, (print, behind));
        }
    }

    /// Where git is led, or what it runs, that was not so in `before`.
    pub fn ways_since(&self, before: &Settings) -> Vec<PathBuf> {
        let changed = self.ways.iter().filter(|(path, print)| before.ways.get(*path) != Some(print));
        changed.map(|(path, _)| path.clone()).collect()
    }

    /// What is here and was not in `before`, with the file it stands in.
    pub fn new_since(&self, before: &Settings) -> Vec<(PathBuf, New)> {
        let mut new = Vec::new();
        for (path, settings) in &self.files {
            let former = before.files.get(path).and_then(|former| former.as_deref().ok());
            match settings {
                Ok(settings) => {
                    let added = added(former.unwrap_or_default(), settings);
                    new.extend(added.map(|setting| (path.clone(), New::Runs(setting.clone()))));
                }
                // Whether it is as it was is not known either.
                Err(unread) => new.push((path.clone(), New::Unread(*unread))),
            }
        }
        new
    }
}

/// Whether what stands at `path` is a file of settings that makes git run nothing.
pub fn is_harmless(root: BorrowedFd, path: &Path) -> bool {
    let is_file = matches!(file::print(root, path), Print::File(..));
    let settings = file::read(root, path).ok().filter(|_| is_file).and_then(|text| config::parse(&text));
    settings.is_some_and(|settings| !settings.iter().any(runs::runs))
}

/// Each of `settings` that is there oftener than in `former`.
fn added<'a>(former: &[Setting], settings: &'a [Setting]) -> impl Iterator<Item = &'a Setting> {
    let mut known: BTreeMap<Setting, usize> = BTreeMap::new();
    for setting in former {
        *known.entry(setting.clone()).or_default() += 1;
    }
    settings.iter().filter(move |setting| match known.get_mut(setting) {
        Some(left) if *left > 0 => {
            *left -= 1;
            false
        }
        _ => true,
    })
}

/// The repositories directly in the workspace, and those that an index names.
fn find_inner(root: BorrowedFd, dir: &Path, gitlinks: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let entries = file::list(root, Path::new(""), MOST_ENTRIES).unwrap_or_default();
    let directories = entries.into_iter().filter(|(name, is_directory)| *is_directory && name != ".git");
    let mut waiting: Vec<PathBuf> = directories.map(|(name, _)| PathBuf::from(name)).collect();
    waiting.extend(gitlinks.iter().cloned());
    let mut inner = BTreeSet::new();
    while let Some(tree) = waiting.pop().filter(|_| inner.len() < MOST) {
        if inner.contains(&tree) || !is_repository(root, &tree) {
            continue;
        }
        // `git status` goes on from each to those that its index names.
        let tracked = repository::tracked(root, &tree, &repository::find(root, dir, &tree), &[]);
        waiting.extend(tracked.gitlinks.iter().map(|link| tree.join(link)));
        inner.insert(tree);
    }
    inner
}

/// Whether git takes what is at `tree` for a tree, or for a bare repository.
fn is_repository(root: BorrowedFd, tree: &Path) -> bool {
    file::exists(root, &tree.join(".git"))
        || file::exists(root, &tree.join("HEAD")) && file::is_directory(root, &tree.join("objects"))
}

/// Where git would look for the settings of the tree at `tree`, as far as that
/// is in the workspace: in its `.git`, and in itself, as in a bare repository.
fn git_directories(root: BorrowedFd, dir: &Path, tree: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    match repository::find(root, dir, tree) {
        GitDirectory::Here => found.push(tree.join(".git")),
        GitDirectory::Named(named) => {
            found.extend(file::below(dir, Path::new(""), named.as_os_str().as_encoded_bytes()))
        }
        // It may be a link to one.
        GitDirectory::Nowhere => found.push(tree.join(".git")),
    }
    if file::exists(root, &tree.join("HEAD")) {
        found.push(tree.to_owned());
    }
    found
}
