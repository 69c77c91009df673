//! What a policy gives away by its file tree.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::facts::in_homes;
use super::places::STARTUP;
use super::views::Views;
use super::{Facts, HarnessDirectory, Role, Service, Warning, listed_paths, plural, warning};
use crate::policy::{Channel, Entry, Layer, LockAccess, Mode, PATH, Policy, View, ViewRole};

/// The warnings about files, view by view.
pub(super) fn warnings(policy: &Policy, facts: &Facts) -> Vec<Warning> {
    let views = Views::of(policy);
    let mut warnings = Vec::new();
    for view in &views.all {
        warnings.extend(sockets(&views, view, facts));
        warnings.extend(host_path(&views, view, facts));
        warnings.extend(home(&views, view, facts));
        warnings.extend(credentials(&views, view, facts));
        warnings.extend(harness(&views, view, facts));
        warnings.extend(policy_files(&views, view, facts));
    }
    warnings.extend(cell_path(&views, facts));
    if let Some(channel) = &policy.channel {
        warnings.extend(channel_in_rights(&views, channel));
        warnings.extend(channel_granted_whole(policy, channel));
    }
    warnings
}

fn sockets(views: &Views, view: &View, facts: &Facts) -> Vec<Warning> {
    let policy = views.policy;
    // From ABI 9 on Landlock has a right of its own for connect(2) to a path, and
    // a read-only view does not grant it.
    let holds = policy.mode == Mode::Sealed && !policy.require.without.contains(&Layer::Landlock);
    if holds && facts.landlock >= 9 && !view.is_writable {
        return Vec::new();
    }
    let mut shown: BTreeMap<Service, Vec<&Path>> = BTreeMap::new();
    for socket in facts.sockets.iter().filter(|socket| views.shows(view, &socket.path)) {
        shown.entry(socket.service).or_default().push(&socket.path);
    }
    shown
        .into_iter()
        .map(|(service, paths)| {
            let sockets = plural(&paths, "the socket", "the sockets");
            let what = format!(
                "{} shows {sockets} {} of {}",
                named(view),
                listed_paths(paths.iter().copied()),
                service.name()
            );
            let why =
                format!("connect(2) asks nothing of a mount, and {} {}", service.name(), service.power());
            warning("socket-in-view", view.origin, what, why, keep_out(view, &paths))
        })
        .collect()
}

fn host_path(views: &Views, view: &View, facts: &Facts) -> Option<Warning> {
    let paths = writable(views, view, &facts.path);
    (!paths.is_empty()).then(|| {
        warning(
            "writable-path",
            view.origin,
            format!("{} holds {}, on PATH of the caller", named(view), listed_paths(paths.iter().copied())),
            "a program that the cell leaves there is run outside of it, by the name of another",
            "bind it read-only, or take the directory off PATH",
        )
    })
}

/// Directories of the cell's own `PATH` that outlast it.
fn cell_path(views: &Views, facts: &Facts) -> Vec<Warning> {
    let environment = &views.policy.environment;
    let of_the_caller = || std::env::join_paths(&facts.path).unwrap_or_default();
    let path = match environment.set.get("PATH") {
        Some(path) => path.into(),
        None if environment.pass.iter().any(|name| name == "PATH") => of_the_caller(),
        None => PATH.into(),
    };
    let mut found: Vec<(PathBuf, &View)> = Vec::new();
    for place in std::env::split_paths(OsStr::new(&path)).filter(|place| place.is_absolute()) {
        let Some((view, behind)) = views.behind(&place) else { continue };
        if views.lets_write(view, &behind) && found.iter().all(|(former, _)| *former != place) {
            found.push((place, view));
        }
    }
    found
        .into_iter()
        .map(|(place, view)| {
            warning(
                "writable-cell-path",
                view.origin,
                format!("{} makes {} writable, on PATH in the cell", named(view), place.display()),
                "a program that one run leaves there is run by the next, by the name of another",
                "bind it read-only, or take the directory off PATH",
            )
        })
        .collect()
}

fn home(views: &Views, view: &View, facts: &Facts) -> Vec<Warning> {
    let homes: Vec<&Path> =
        facts.homes.iter().map(|home| &**home).filter(|home| views.shows(view, home)).collect();
    let startup: Vec<PathBuf> = in_homes(&facts.homes, &STARTUP).collect();
    let startup = writable(views, view, &startup);
    let mut warnings = Vec::new();
    if !homes.is_empty() {
        warnings.push(warning(
            "home-in-view",
            view.origin,
            format!(
                "{} shows {} {}",
                named(view),
                plural(&homes, "the home", "the homes"),
                listed_paths(homes)
            ),
            "a home holds histories, keys, mail and other work",
            "bind the directories that are needed one by one",
        ));
    }
    if !startup.is_empty() {
        warnings.push(warning(
            "writable-startup",
            view.origin,
            format!("{} lets the cell write {}", named(view), listed_paths(startup)),
            "shells, sessions, ssh, git and agents outside of the cell run what stands there",
            "bind it read-only, or give the run a directory of its own",
        ));
    }
    warnings
}

fn credentials(views: &Views, view: &View, facts: &Facts) -> Option<Warning> {
    let shown: Vec<&Path> =
        facts.credentials.iter().map(|path| &**path).filter(|path| views.shows(view, path)).collect();
    (!shown.is_empty()).then(|| {
        warning(
            "credentials-in-view",
            view.origin,
            format!("{} shows {}", named(view), listed_paths(shown.iter().copied())),
            "the cell can read these credentials, and use them wherever it can connect",
            keep_out(view, &shown),
        )
    })
}

fn harness(views: &Views, view: &View, facts: &Facts) -> Vec<Warning> {
    // A workspace is where one stands, and was named for that.
    let is_meant = |directory: &HarnessDirectory| {
        let stands = matches!(directory.role, Role::WorkingDirectory | Role::ParentsWorkingDirectory);
        stands && view.role == ViewRole::Workspace && directory.path == view.source
    };
    let shown =
        facts.harness.iter().filter(|directory| views.shows(view, &directory.path) && !is_meant(directory));
    shown
        .map(|HarnessDirectory { path, role }| {
            let (whose, why) = match role {
                Role::WorkingDirectory => (
                    "the launcher's working directory",
                    "what starts and judges the run keeps its files there",
                ),
                Role::ParentsWorkingDirectory => (
                    "the working directory of what starts the launcher",
                    "what starts and judges the run keeps its files there",
                ),
                Role::ParentsProgram => (
                    "the directory of the program that starts the launcher",
                    "the program that starts and judges the run can be read there",
                ),
                Role::Launcher if views.lets_write(view, path) => {
                    ("the directory of cellblock itself", "the cell can put another program in its place")
                }
                Role::Launcher => ("the directory of cellblock itself", "what lies beside it can be read"),
            };
            let what = format!("{} shows {}, {whose}", named(view), path.display());
            warning("harness-in-view", view.origin, what, why, keep_out(view, &[path]))
        })
        .collect()
}

fn policy_files(views: &Views, view: &View, facts: &Facts) -> Option<Warning> {
    let shown: Vec<&Path> =
        facts.policy_files.iter().map(|path| &**path).filter(|path| views.shows(view, path)).collect();
    let why = match shown.iter().any(|path| views.lets_write(view, path)) {
        true => "the cell can change what the next run is held by",
        false => "it names what is hidden, and how",
    };
    (!shown.is_empty()).then(|| {
        let files = plural(&shown, "the policy file", "the policy files");
        let what = format!("{} shows {files} {}", named(view), listed_paths(shown.iter().copied()));
        warning("policy-in-view", view.origin, what, why, keep_out(view, &shown))
    })
}

/// Landlock adds up along a path, so that nothing below a directory can have
/// fewer rights than the directory grants.
fn channel_in_rights(views: &Views, channel: &Channel) -> Vec<Warning> {
    let policy = views.policy;
    let outside = |entry: &&Entry| !entry.path.starts_with(&channel.dir);
    let entries = channel.fifo.iter().chain(&channel.lock).chain(&channel.read_only).filter(outside);
    let entries = entries.map(|entry| (&*entry.path, &entry.origin));

    let home = (&*policy.cell.home, "cell.home".to_owned());
    let tmpfs = policy.filesystem.tmpfs.iter().map(|tmpfs| (&*tmpfs.path, tmpfs.origin.to_string()));
    let built_in = ["/tmp", "/dev/shm"].map(|path| (Path::new(path), "built in".to_owned()));
    let fresh: Vec<_> = [home].into_iter().chain(tmpfs).chain(built_in).collect();
    let others = views.all.iter().filter(|view| !view.role.is_of_the_channel());
    let shown: Vec<_> = others
        .flat_map(|view| [view.source, view.place].map(|path| (path, view.origin.to_string())))
        .collect();

    [(&*channel.dir, &channel.origin)]
        .into_iter()
        .chain(entries)
        .filter_map(|(path, origin)| {
            // A directory that is granted whole has no fewer rights than a tmpfs.
            let fresh = fresh.iter().filter(|_| !channel.replaceable || path != channel.dir);
            let around = fresh.chain(&shown).filter(|(holder, _)| path.starts_with(holder));
            let (holder, from) = around.max_by_key(|(holder, _)| holder.components().count())?;
            let (path, holder) = (path.display(), holder.display());
            Some(warning(
                "channel-in-rights",
                origin,
                format!("{path} lies in {holder}, where the cell has rights on files ({from})"),
                "Landlock cannot take away below a directory what it grants there: a run is refused",
                "keep the channel out of every other entry, of /tmp and of the home",
            ))
        })
        .collect()
}

fn channel_granted_whole(policy: &Policy, channel: &Channel) -> Option<Warning> {
    let locks: Vec<&Path> = channel.lock.iter().map(|entry| &*entry.path).collect();
    // In nested mode the same is said of the mode.
    let is_news =
        channel.replaceable && channel.lock_access == LockAccess::None && policy.mode == Mode::Sealed;
    (is_news && !locks.is_empty()).then(|| {
        warning(
            "channel-granted-whole",
            &channel.origin,
            format!("the channel is replaceable, and grants rights on {} too", listed_paths(locks)),
            "a lock below a directory with rights on files is held by its mount alone: it can be opened for \
             reading, and locked",
            "leave `replaceable` out, unless the provider must replace the FIFO",
        )
    })
}

/// Those of `paths` that the cell can write to by this view.
fn writable<'a>(views: &Views, view: &View, paths: &'a [PathBuf]) -> Vec<&'a Path> {
    paths.iter().map(|path| &**path).filter(|path| views.lets_write(view, path)).collect()
}

fn named(view: &View) -> String {
    format!("the {} {}", view.role.name(), view.source.display())
}

/// How `paths` are kept out of a view.
fn keep_out(view: &View, paths: &[impl AsRef<Path>]) -> String {
    let source = view.source.display();
    let paths = || paths.iter().map(AsRef::as_ref);
    if paths().any(|path| path == view.source) {
        return "leave this entry out".to_owned();
    }
    // Nothing can be hidden in what is the run's own.
    if matches!(view.role, ViewRole::Exposure | ViewRole::Channel) {
        return format!("keep {} out of {source}", listed_paths(paths()));
    }
    let hidden: Vec<String> = paths().map(|path| format!("{:?}", path.display().to_string())).collect();
    format!("show less of {source}, or write in [run]: hide = [{}]", hidden.join(", "))
}
