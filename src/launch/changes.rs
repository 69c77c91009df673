//! What a run changed that git tracks or runs, for whoever uses git there next.
//!
//! It is found out without git, which runs what its settings say.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::printable;
use crate::git::config::Setting;
use crate::git::deep::{self, Deep};
use crate::git::file::{self, Print};
use crate::git::settings::{New, Unread};
use crate::git::{Repository, Settings, repository};
use crate::outcome::Told;
use crate::policy::Workspace;

/// A git that runs nothing of what the agent may have set up, to look with.
const SAFE: &str = "git -c core.fsmonitor=false -c core.hooksPath=/dev/null";

/// How many changes are told one by one.
const MOST: usize = 1_000;

/// How far the time that files get may be behind the clock.
const TICK: Duration = Duration::from_millis(10);

/// A workspace as git had it before the run.
pub(super) struct Changes {
    prints: BTreeMap<PathBuf, Print>,
    settings: Settings,
    /// The commit that it was at.
    head: Option<String>,
    start: SystemTime,
}

impl Changes {
    /// Looks at the workspace, open as `root`, before the cell is started.
    pub fn prepare(root: BorrowedFd, workspace: &Workspace, repository: &Repository) -> Changes {
        let Repository { tracked, modules, .. } = repository;
        let print = |path: &PathBuf| (path.clone(), file::print(root, path));
        Changes {
            prints: tracked.paths.iter().map(print).collect(),
            settings: Settings::before(root, &workspace.dir, &tracked.gitlinks, modules),
            head: repository::head(root),
            start: SystemTime::now() - TICK,
        }
    }

    /// What has changed up to `now`, the cell being gone. It takes as long as
    /// `go_on` says.
    pub fn tell(
        &self,
        root: BorrowedFd,
        workspace: &Workspace,
        now: &Repository,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Vec<Told> {
        let mut told = Vec::new();
        if let Some(problem) = &now.tracked.problem {
            told.push(Told {
                path: ".git/index".to_owned(),
                what: format!("git's list of tracked files cannot be read: {}", printable(problem)),
                command: format!("{SAFE} fsck"),
            });
        }
        let more = now.tracked.paths.iter().filter(|path| !self.prints.contains_key(*path));
        told.extend(self.prints.keys().chain(more).filter_map(|path| self.tracked(root, path)));
        let settings = self.settings.after(root, &workspace.dir, &now.modules);
        let new = settings.new_since(&self.settings);
        told.extend(new.into_iter().map(|(path, new)| of_setting(&path, &new)));
        told.extend(settings.ways_since(&self.settings).iter().map(|path| of_way(path)));
        told.extend(of_deep(deep::look(root, &workspace.dir, &settings.inner, self.start, go_on)));
        let mut known = BTreeSet::new();
        told.retain(|one| known.insert((one.path.clone(), one.what.clone())));
        if told.len() > MOST {
            let what = format!("{} more changes like those above", told.len() - MOST);
            told.truncate(MOST);
            told.push(Told { path: ".".to_owned(), what, command: find(".git") });
        }
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
        let quoted = quoted(&shown(path));
        let command = match &self.head {
            Some(head) => format!("{SAFE} diff --no-ext-diff --no-textconv {} -- {quoted}", &head[..12]),
            None => format!("cat {quoted}"),
        };
        Some(Told { path: shown(path), what: what.to_owned(), command })
    }
}

fn of_setting(path: &Path, new: &New) -> Told {
    let what = match new {
        New::Runs(setting) => {
            format!("the run set {}, by which git runs a program or reads settings", key(setting))
        }
        New::Has(setting) => {
            format!(
                "the run wrote it, and it sets {}, by which git runs a program or reads settings",
                key(setting)
            )
        }
        New::Unread(Unread::File(errno)) => {
            format!("settings of git's that cannot be read: {}", errno.desc())
        }
        New::Unread(Unread::Malformed) => "settings that git does not take".to_owned(),
        New::Unread(Unread::TooMany) => {
            let what = "these settings of git's and further ones were not read, as there are too many";
            return Told { path: shown(path), what: what.to_owned(), command: find("config") };
        }
    };
    seen_by_cat(path, what)
}

/// The run may have chosen a long one.
fn key(setting: &Setting) -> String {
    printable(&setting.key().chars().take(200).collect::<String>())
}

fn of_way(path: &Path) -> Told {
    seen_by_cat(path, "the run changed it, and git runs it or finds hooks and settings by it".to_owned())
}

fn of_deep(deep: Deep) -> impl Iterator<Item = Told> {
    let made = deep.made.into_iter().map(|tree| Told {
        path: shown(&tree),
        what: "the run made a repository here, and `git status` runs what its settings say".to_owned(),
        command: format!("{SAFE} status --ignore-submodules=all"),
    });
    let new = deep.new.into_iter().map(|(path, new)| of_setting(&path, &new));
    let ways = deep.ways.into_iter().map(|path| of_way(&path));
    let closed = deep.closed.into_iter().map(|directory| Told {
        path: shown(&directory),
        what: "the run closed this directory, so nobody knows whether a repository is in it".to_owned(),
        command: format!("ls -la {}", quoted(&shown(&directory))),
    });
    let cut = deep.is_cut.then(|| Told {
        path: ".".to_owned(),
        what: "the workspace was not searched to its end for repositories that the run made".to_owned(),
        command: find(".git"),
    });
    made.chain(new).chain(ways).chain(closed).chain(cut)
}

fn seen_by_cat(path: &Path, what: String) -> Told {
    let path = shown(path);
    Told { command: format!("cat {}", quoted(&path)), path, what }
}

fn find(name: &str) -> String {
    format!("find . -name {name}")
}

fn quoted(path: &str) -> String {
    format!("'{}'", path.replace('\'', r"'\''"))
}

/// A path as part of a message: the run has chosen the names in it.
fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}
