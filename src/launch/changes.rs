//! What a run changed that git tracks or runs, for whoever uses git there next.
//!
//! It is found out without git, which runs what its settings say.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use crate::error::printable;
use crate::git::file::{self, Print};
use crate::git::settings::New;
use crate::git::{Repository, Settings, repository};
use crate::outcome::Told;
use crate::policy::Workspace;

/// A git that runs nothing of what the agent may have set up, to look with.
const SAFE: &str = "git -c core.fsmonitor=false -c core.hooksPath=/dev/null";

/// A workspace as git had it before the run.
pub(super) struct Changes {
    prints: BTreeMap<PathBuf, Print>,
    settings: Settings,
    /// The commit that it was at.
    head: Option<String>,
}

impl Changes {
    /// Looks at the workspace, open as `root`, before the cell is started.
    pub fn prepare(root: BorrowedFd, workspace: &Workspace, repository: &Repository) -> Changes {
        let tracked = repository.tracked.paths.iter();
        Changes {
            prints: tracked.map(|path| (path.clone(), file::print(root, path))).collect(),
            settings: settings(root, workspace, repository),
            head: repository::head(root),
        }
    }

    /// What has changed up to `now`, the cell being gone.
    pub fn tell(&self, root: BorrowedFd, workspace: &Workspace, now: &Repository) -> Vec<Told> {
        let mut told = Vec::new();
        if let Some(problem) = &now.tracked.problem {
            told.push(Told {
                path: ".git/index".to_owned(),
                what: format!("git's list of tracked files cannot be read: {}", printable(problem)),
                command: format!("{SAFE} fsck"),
            });
        }
        let paths = self
            .prints
            .keys()
            .chain(now.tracked.paths.iter().filter(|path| !self.prints.contains_key(*path)));
        told.extend(paths.filter_map(|path| self.tracked(root, path)));
        let settings = settings(root, workspace, now);
        told.extend(
            settings.new_since(&self.settings).into_iter().map(|(path, new)| of_setting(&path, &new)),
        );
        told.extend(settings.ways_since(&self.settings).iter().map(|path| of_way(path)));
        told.extend(settings.inner.difference(&self.settings.inner).map(|tree| Told {
            path: shown(tree),
            what: "the run made a repository here, and `git status` outside of it runs what its settings say".to_owned(),
            command: format!("{SAFE} status --ignore-submodules=all"),
        }));
        told
    }

    fn tracked(&self, root: BorrowedFd, path: &Path) -> Option<Told> {
        let before = self.prints.get(path).unwrap_or(&Print::Missing);
        let after = file::print(root, path);
        if *before == after {
            return None;
        }
        let what = match (before, &after) {
            (Print::Missing, _) => "git tracks it, and the run made it",
            (_, Print::Missing) => "git tracks it, and the run removed it",
            _ => "git tracks it, and the run changed it",
        };
        let quoted = format!("'{}'", shown(path).replace('\'', r"'\''"));
        let command = match &self.head {
            Some(head) => format!("{SAFE} diff --no-ext-diff --no-textconv {} -- {quoted}", &head[..12]),
            None => format!("cat {quoted}"),
        };
        Some(Told { path: shown(path), what: what.to_owned(), command })
    }
}

fn settings(root: BorrowedFd, workspace: &Workspace, repository: &Repository) -> Settings {
    Settings::read(root, &workspace.dir, &repository.tracked.gitlinks, &repository.modules)
}

fn of_setting(path: &Path, new: &New) -> Told {
    let what = match new {
        New::Runs(setting) => {
            format!(
                "the run set {}, by which git runs a program or reads settings",
                printable(&setting.key())
            )
        }
        New::Unreadable(errno) => format!("settings of git's that cannot be read: {}", errno.desc()),
        New::Malformed(line) => format!("settings that git does not take, in line {line}"),
    };
    let path = shown(path);
    let command = format!("cat '{}'", path.replace('\'', r"'\''"));
    Told { path, what, command }
}

fn of_way(path: &Path) -> Told {
    let path = shown(path);
    Told {
        what: "the run changed it, and git runs it or finds hooks and settings by it".to_owned(),
        command: format!("cat '{}'", path.replace('\'', r"'\''")),
        path,
    }
}

/// A path as part of a message: the run has chosen the names in it.
fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}
