//! The settings that git would read in a workspace, and what of them is new.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use super::config::{self, Setting};
use super::file::Print;
use super::repository::{self, GitDirectory};
use super::{file, runs};
use crate::sys::Errno;

/// How many files of settings are read, and how many repositories are looked into.
const MOST: usize = 2_000;

/// How many entries of the workspace are looked at for a repository.
const MOST_ENTRIES: usize = 10_000;

/// Every file of settings in a workspace, as it is at one moment.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    files: BTreeMap<PathBuf, Result<Vec<u8>, Errno>>,
    /// The repositories that lie in the workspace: those that the index of it or of
    /// another one names, and those directly in it, where editors look.
    pub inner: BTreeSet<PathBuf>,
    /// What leads git on from a repository in the workspace or a worktree, and the
    /// hooks that nothing holds.
    ways: BTreeMap<PathBuf, Print>,
}

/// What a file of settings has that it had not.
#[derive(Debug, PartialEq, Eq)]
pub enum New {
    /// Something that git runs, or reads more settings from.
    Runs(Setting),
    /// It cannot be read.
    Unreadable(Errno),
    /// Git does not take that line.
    Malformed(usize),
}

impl Settings {
    /// Reads them in the workspace `dir`, open as `root`.
    pub fn read(root: BorrowedFd, dir: &Path, gitlinks: &BTreeSet<PathBuf>, modules: &[PathBuf]) -> Settings {
        let mut settings = Settings::default();
        settings.inner = settings.find_inner(root, dir, gitlinks);
        let trees: Vec<PathBuf> = settings.inner.iter().cloned().chain([PathBuf::new()]).collect();
        let own = trees.into_iter().flat_map(|tree| git_directories(root, dir, &tree));
        let worktrees = file::list(root, Path::new(".git/worktrees"), MOST).unwrap_or_default();
        let worktrees = worktrees.into_iter().map(|(name, _)| Path::new(".git/worktrees").join(name));
        for directory in own.chain(modules.iter().cloned()).chain(worktrees.clone()) {
            for name in ["config", "config.worktree"] {
                settings.add(root, dir, &directory.join(name));
            }
        }
        settings.find_ways(root, dir, worktrees);
        settings
    }

    /// Looks at what git follows or runs and no setting names.
    fn find_ways(&mut self, root: BorrowedFd, dir: &Path, worktrees: impl Iterator<Item = PathBuf>) {
        for tree in self.inner.clone() {
            // As a directory it leads nowhere else.
            if !file::is_directory(root, &tree.join(".git")) {
                self.add_way(root, tree.join(".git"));
            }
            for directory in git_directories(root, dir, &tree) {
                self.add_way(root, directory.join("commondir"));
                self.add_hooks(root, &directory.join("hooks"));
            }
        }
        for way in worktrees.map(|worktree| worktree.join("commondir")) {
            // As git writes it.
            if !file::read(root, &way).is_ok_and(|named| *file::line(&named) == *"../..") {
                self.add_way(root, way);
            }
        }
        let hooks = self.value("core", "hookspath");
        if let Some(hooks) = hooks.and_then(|named| file::below(dir, Path::new(""), &named)) {
            self.add_hooks(root, &hooks);
        }
    }

    fn add_hooks(&mut self, root: BorrowedFd, hooks: &Path) {
        // A link, or more than are looked at.
        let Ok(entries) = file::list(root, hooks, MOST) else { return self.add_way(root, hooks.to_owned()) };
        for (name, _) in entries {
            let hook = hooks.join(name);
            // Git runs no file that cannot be executed, as its samples.
            if !matches!(file::print(root, &hook), Print::File(_, false) | Print::Other(_)) {
                self.add_way(root, hook);
            }
        }
    }

    fn add_way(&mut self, root: BorrowedFd, path: PathBuf) {
        let print = file::print(root, &path);
        if print != Print::Missing {
            self.ways.insert(path, print);
        }
    }

    fn find_inner(
        &mut self,
        root: BorrowedFd,
        dir: &Path,
        gitlinks: &BTreeSet<PathBuf>,
    ) -> BTreeSet<PathBuf> {
        let entries = file::list(root, Path::new(""), MOST_ENTRIES);
        if let Err(errno) = entries {
            self.files.insert(".".into(), Err(errno));
        }
        let directories = entries.into_iter().flatten().filter(|(_, is_directory)| *is_directory);
        let directories =
            directories.map(|(name, _)| PathBuf::from(name)).filter(|name| name != Path::new(".git"));
        let is_repository = |tree: &PathBuf| {
            // The second is what git takes for a bare one.
            file::exists(root, &tree.join(".git"))
                || file::exists(root, &tree.join("HEAD")) && file::is_directory(root, &tree.join("objects"))
        };
        let mut waiting: Vec<PathBuf> = directories.chain(gitlinks.iter().cloned()).collect();
        let mut inner = BTreeSet::new();
        while let Some(tree) = waiting.pop() {
            if inner.contains(&tree) || !is_repository(&tree) {
                continue;
            }
            if inner.len() == MOST {
                self.files.insert(".".into(), Err(Errno::EFBIG));
                break;
            }
            // `git status` goes on from each to those that its index names.
            let tracked = repository::tracked(root, &tree, &repository::find(root, dir, &tree), &[]);
            if tracked.problem.is_some() {
                self.files.insert(tree.join(".git/index"), Err(Errno::EINVAL));
            }
            waiting.extend(tracked.gitlinks.iter().map(|link| tree.join(link)));
            inner.insert(tree);
        }
        inner
    }

    /// Reads one file, and what it includes.
    fn add(&mut self, root: BorrowedFd, dir: &Path, first: &Path) {
        let mut waiting = vec![first.to_owned()];
        while let Some(path) = waiting.pop() {
            if self.files.contains_key(&path) {
                continue;
            }
            let content = match file::read(root, &path) {
                Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
                // There are more than are looked at.
                _ if self.files.len() == MOST => {
                    return drop(self.files.insert(".".into(), Err(Errno::EFBIG)));
                }
                content => content,
            };
            let includes = content
                .as_ref()
                .is_ok_and(|text| text.windows(7).any(|word| word.eq_ignore_ascii_case(b"include")));
            if includes && let Ok(settings) = config::parse(content.as_ref().map_or(&[], Vec::as_slice)) {
                let included =
                    settings.iter().filter(|setting| ["include", "includeif"].contains(&&*setting.section));
                let named = included
                    .filter_map(|setting| setting.value.as_deref().filter(|_| setting.name == "path"));
                let base = path.parent().unwrap_or(Path::new(""));
                waiting.extend(named.filter_map(|named| file::below(dir, base, named)));
            }
            self.files.insert(path, content);
        }
    }

    /// The last value of a setting of the workspace's own repository.
    pub fn value(&self, section: &str, name: &str) -> Option<Vec<u8>> {
        let text = self.files.get(Path::new(".git/config"))?.as_ref().ok()?;
        let settings = config::parse(text).ok()?;
        settings.into_iter().rfind(|setting| setting.is(section, name))?.value
    }

    /// Where git is led, or what it runs, that was not so in `before`. Of a
    /// repository that was not there, the repository itself says it all.
    pub fn ways_since(&self, before: &Settings) -> Vec<PathBuf> {
        let is_new = |path: &Path| self.inner.difference(&before.inner).any(|tree| path.starts_with(tree));
        let changed = self.ways.iter().filter(|(path, print)| before.ways.get(*path) != Some(print));
        changed.map(|(path, _)| path.clone()).filter(|path| !is_new(path)).collect()
    }

    /// What is here and was not in `before`, with the file it stands in.
    pub fn new_since(&self, before: &Settings) -> Vec<(PathBuf, New)> {
        let changed = self.files.iter().filter(|(path, content)| before.files.get(*path) != Some(content));
        changed
            .flat_map(|(path, content)| {
                let new = new_in(before.files.get(path).and_then(|former| former.as_deref().ok()), content);
                new.into_iter().map(|new| (path.clone(), new))
            })
            .collect()
    }
}

fn new_in(former: Option<&[u8]>, content: &Result<Vec<u8>, Errno>) -> Vec<New> {
    let settings = match content {
        Ok(text) => config::parse(text),
        Err(errno) => return vec![New::Unreadable(*errno)],
    };
    let settings = match settings {
        Ok(settings) => settings,
        Err(config::BadLine(line)) => return vec![New::Malformed(line)],
    };
    let mut known = former.and_then(|text| config::parse(text).ok()).unwrap_or_default();
    let mut new = Vec::new();
    for setting in settings.into_iter().filter(runs::runs) {
        match known.iter().position(|known| *known == setting) {
            Some(place) => drop(known.swap_remove(place)),
            None => new.push(New::Runs(setting)),
        }
    }
    new
}

/// Whether a file of settings makes git run nothing.
pub fn is_harmless(root: BorrowedFd, path: &Path) -> bool {
    let settings = file::read(root, path).ok().and_then(|text| config::parse(&text).ok());
    settings.is_some_and(|settings| !settings.iter().any(runs::runs))
}

/// Where git would look for the settings of the tree at `tree`, as far as that
/// is in the workspace: in its `.git`, and in itself, as in a bare repository.
fn git_directories(root: BorrowedFd, dir: &Path, tree: &Path) -> Vec<PathBuf> {
    let mut found = match repository::find(root, dir, tree) {
        GitDirectory::Here => vec![tree.join(".git")],
        GitDirectory::Named(named) => {
            let named = named.strip_prefix(dir).ok().map(|named| named.as_os_str().to_owned());
            named
                .and_then(|named| file::below(dir, Path::new(""), named.as_encoded_bytes()))
                .into_iter()
                .collect()
        }
        GitDirectory::Nowhere => Vec::new(),
    };
    if file::exists(root, &tree.join("HEAD")) {
        found.push(tree.to_owned());
    }
    found
}
