//! What stands where, as far as policy and host tell: which views the cell has,
//! and at which places a path of the host would be seen in it.

use std::path::{Path, PathBuf};

use nix::unistd::getppid;

use super::mounts::{Mount, Mounts, join};
use super::{Canary, Request};
use crate::host::{Host, Kind, Lookup, SystemEntry};
use crate::policy::{Access, Mode, Policy};

/// A view of the host.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub source: PathBuf,
    pub place: PathBuf,
    pub kind: Kind,
    pub grant: Grant,
    /// Its file system, and which path of that it shows.
    located: Option<(String, PathBuf)>,
    /// What the host has mounted there and below.
    mounts: Vec<Mount>,
}

/// What a view is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    System,
    ReadOnly,
    Writable,
    Exposure,
    Channel,
    Fifo,
    Lock,
    Read,
    Execute,
    Workspace(Access),
}

impl Grant {
    /// Whether new names can appear in it.
    pub fn is_writable(self) -> bool {
        matches!(self, Grant::Writable | Grant::Exposure | Grant::Workspace(Access::ReadWrite))
    }
}

/// All of it.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub request: &'a Request,
    pub policy: &'a Policy,
    /// The group of the run.
    pub gid: u32,
    pub views: Vec<View>,
    /// Files of the host whose content is copied into the cell.
    copies: Vec<PathBuf>,
    pub mounts: Mounts,
    /// The launcher's working directory, where no view shows it and nothing of
    /// the cell has its name.
    pub directory: Option<PathBuf>,
    /// The launcher's parent.
    pub parent: i32,
}

impl<'a> Scene<'a> {
    pub fn new(request: &'a Request, policy: &'a Policy, host: &Host) -> Scene<'a> {
        let mounts = Mounts::own();
        let views = views(policy, host, &mounts);
        let parent = getppid().as_raw();
        let is_copy = |entry: &SystemEntry| matches!(entry, SystemEntry::Copy(_));
        let copies =
            host.system.iter().filter(|(_, entry)| is_copy(entry)).map(|(path, _)| path.clone()).collect();
        let mut scene =
            Scene { request, policy, gid: host.ids.gid, views, copies, mounts, directory: None, parent };
        scene.directory = std::env::current_dir().ok().filter(|directory| {
            let is_shown = scene.views.iter().any(|view| directory.starts_with(&view.source));
            !is_shown && !scene.stands(directory)
        });
        scene
    }

    pub fn is_sealed(&self) -> bool {
        self.policy.mode == Mode::Sealed
    }

    /// The paths of the host that must not be seen: hidden ones and canaries.
    pub fn forbidden(&self) -> impl Iterator<Item = &Path> {
        let canaries = self.request.canaries.iter().filter_map(|canary| match canary {
            Canary::Path(path) => Some(&**path),
            Canary::Port(_) => None,
        });
        self.policy.run.hide.iter().map(|entry| &*entry.path).chain(canaries)
    }

    /// Whether the cell has something of this name by itself, or leads through it.
    pub fn stands(&self, path: &Path) -> bool {
        // A link to /tmp, in most cells.
        let link = Path::new("/var/tmp");
        self.own_places().chain([link]).any(|place| place.starts_with(path))
    }

    /// Whether a view shows something at this path of the cell.
    pub fn shows(&self, path: &Path) -> bool {
        self.views.iter().any(|view| path.starts_with(&view.place))
    }

    /// Whether a view shows something at this path of the cell, which is `hidden` or
    /// below it: one that stands there, or one of another part of the host.
    pub fn shows_below(&self, hidden: &Path, path: &Path) -> bool {
        let mut views = self.views.iter().filter(|view| path.starts_with(&view.place));
        views.any(|view| view.place.starts_with(hidden) || view.place != view.source)
    }

    /// Whether the cell may have a file of its own of this name, and not the
    /// host's or a copy of that.
    pub fn has_own(&self, path: &Path) -> bool {
        self.own_places().any(|place| path.starts_with(place))
            && !self.shows(path)
            && !self.copies.iter().any(|copy| copy == path)
    }

    /// Every place where something stands in the cell.
    pub fn own_places(&self) -> impl Iterator<Item = &Path> {
        const OWN: [&str; 5] = ["/dev", "/etc", "/proc", "/run", "/tmp"];
        let policy = self.policy;
        let tmpfs = policy.filesystem.tmpfs.iter().map(|tmpfs| &*tmpfs.path);
        let views = self.views.iter().map(|view| &*view.place);
        OWN.into_iter().map(Path::new).chain([&*policy.cell.home]).chain(tmpfs).chain(views)
    }

    /// The views that show a path of the host, and where it is seen then: by its
    /// path, by a mount of the host that shows the same, and by one below a view.
    pub fn places(&self, path: &Path) -> Vec<(PathBuf, &View)> {
        let mut places: Vec<(PathBuf, &View)> = Vec::new();
        let mut add = |place: PathBuf, view| {
            if places.iter().all(|(known, _)| *known != place) {
                places.push((place, view));
            }
        };
        let located = self.mounts.locate(path);
        for view in &self.views {
            if let Ok(rest) = path.strip_prefix(&view.source) {
                add(join(&view.place, rest), view);
            }
            let Some((device, inside)) = &located else { continue };
            if let Some((_, shown)) = view.located.as_ref().filter(|(of, _)| of == device)
                && let Ok(rest) = inside.strip_prefix(shown)
            {
                add(join(&view.place, rest), view);
            }
            for mount in view.mounts.iter().filter(|mount| mount.device == *device) {
                if let (Ok(below), Ok(rest)) =
                    (mount.point.strip_prefix(&view.source), inside.strip_prefix(&mount.root))
                {
                    add(join(&join(&view.place, below), rest), view);
                }
            }
        }
        places
    }
}

fn views(policy: &Policy, host: &Host, mounts: &Mounts) -> Vec<View> {
    let view = |source: &Path, place: &Path, kind, grant| View {
        source: source.to_owned(),
        place: place.to_owned(),
        kind,
        grant,
        located: mounts.locate(source).map(|(device, inside)| (device.to_owned(), inside)),
        mounts: mounts.below(source).cloned().collect(),
    };
    let mut views = Vec::new();
    for (place, entry) in &host.system {
        if let SystemEntry::View(source, file) = entry {
            views.push(view(source, place, file.kind, Grant::System));
        }
    }
    let mut add = |source: &Path, place: &Path, grant| {
        // What is not there is an optional view that is left out.
        if let Lookup::Found(file) = host.file(source) {
            views.push(view(source, place, file.kind, grant));
        }
    };
    for bind in &policy.filesystem.ro_bind {
        add(&bind.src, &bind.dest, Grant::ReadOnly);
    }
    for bind in &policy.filesystem.bind {
        add(&bind.src, &bind.dest, Grant::Writable);
    }
    for expose in &policy.run.expose {
        add(&expose.path, &expose.path, Grant::Exposure);
    }
    if let Some(channel) = &policy.channel {
        add(&channel.dir, &channel.dir, Grant::Channel);
        for (entries, grant) in [
            (&channel.fifo, Grant::Fifo),
            (&channel.lock, Grant::Lock),
            (&channel.read_only, Grant::Read),
            (&channel.execute, Grant::Execute),
        ] {
            entries.iter().for_each(|entry| add(&entry.path, &entry.path, grant));
        }
    }
    if let Some(workspace) = &policy.workspace {
        add(&workspace.dir, &workspace.at, Grant::Workspace(workspace.access));
    }
    views
}
