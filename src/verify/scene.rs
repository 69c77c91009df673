//! What stands where, as far as policy and host tell: which views the cell has,
//! and at which places a path of the host would be seen in it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Component, Path, PathBuf};

use nix::unistd::getppid;

use super::{Canary, Request};
use crate::error::Error;
use crate::host::{Host, Kind, Lookup, SystemEntry};
use crate::mounts::{Mount, Mounts, join};
use crate::policy::{Mode, Policy, Protect, ViewRole};
use crate::sys::errno;

/// Without the mounts, a path that must not be seen is looked for under its own name alone.
fn unknown_mounts(error: std::io::Error) -> Error {
    Error::new("verify", "the mount table /proc/self/mountinfo cannot be read")
        .errno(errno(&error))
        .cause("without it, it is not known under which other names the host shows what is hidden")
        .remedy("mount a procfs on /proc and nothing over its files (findmnt -R /proc)")
}

/// A view of the host.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub source: PathBuf,
    pub place: PathBuf,
    pub kind: Kind,
    pub role: ViewRole,
    pub is_writable: bool,
    /// Its file system, and which path of that it shows.
    pub located: Option<(String, PathBuf)>,
    /// What the host has mounted there and below.
    pub mounts: Vec<Mount>,
}

/// All of it.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub request: &'a Request,
    pub policy: &'a Policy,
    /// The canaries that are paths: as they are written, and where links lead.
    pub canaries: Vec<PathBuf>,
    /// What of the workspace is kept as it is.
    pub protected: Vec<Protect>,
    /// The group of the run.
    pub gid: u32,
    pub views: Vec<View>,
    windows: Windows,
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
    pub fn new(request: &'a Request, policy: &'a Policy, host: &Host) -> Result<Scene<'a>, Error> {
        let mounts = Mounts::own().map_err(unknown_mounts)?;
        let views = views(policy, host, &mounts);
        let parent = getppid().as_raw();
        let is_copy = |entry: &SystemEntry| matches!(entry, SystemEntry::Copy(_));
        let copies =
            host.system.iter().filter(|(_, entry)| is_copy(entry)).map(|(path, _)| path.clone()).collect();
        let (gid, canaries, windows) = (host.ids.gid, canaries(request), Windows::of(&views));
        let protect = policy.workspace.as_ref().map_or(&[][..], |workspace| &workspace.protect);
        let protected = host.repository.held(protect);
        let mut scene = Scene {
            request,
            policy,
            canaries,
            protected,
            gid,
            views,
            windows,
            copies,
            mounts,
            directory: None,
            parent,
        };
        scene.directory = std::env::current_dir().ok().filter(|directory| {
            let is_shown = scene.views.iter().any(|view| directory.starts_with(&view.source));
            !is_shown && !scene.stands(directory)
        });
        Ok(scene)
    }

    pub fn is_sealed(&self) -> bool {
        self.policy.mode == Mode::Sealed
    }

    /// The paths of the host that must not be seen: hidden ones and canaries.
    pub fn forbidden(&self) -> impl Iterator<Item = &Path> {
        let hidden = self.policy.run.hide.iter().map(|entry| &*entry.path);
        hidden.chain(self.canaries.iter().map(|canary| &**canary))
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
    fn shows_below(&self, hidden: &Path, path: &Path) -> bool {
        let mut views = self.views.iter().filter(|view| path.starts_with(&view.place));
        views.any(|view| view.place.starts_with(hidden) || view.place != view.source)
    }

    /// Whether the cell may have something of this name, and no copy of what the
    /// host has there.
    pub fn has_own(&self, path: &Path) -> bool {
        self.own_places().any(|place| path.starts_with(place)) && !self.copies.iter().any(|copy| copy == path)
    }

    /// Whether the cell is told of this name anyway: a view or a directory of
    /// its own has it, or it leads there.
    pub fn is_told(&self, hidden: &Path, path: &Path) -> bool {
        let tmpfs = self.policy.filesystem.tmpfs.iter().map(|tmpfs| &*tmpfs.path);
        let mut fresh = tmpfs.chain([&*self.policy.cell.home]);
        self.stands(path) || self.shows_below(hidden, path) || fresh.any(|place| path.starts_with(place))
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
        let by_path = self.views.iter().filter(|view| path.starts_with(&view.source));
        let by_path = by_path.map(|view| (place(view, path), view));
        let located = self.mounts.locate(path);
        let by_mount = located.iter().flat_map(|(device, inside)| {
            self.windows.above(device, inside).map(|(shown, window)| {
                let (view, at) = (&self.views[window.view], &window.at);
                (join(&place(view, at), inside.strip_prefix(shown).unwrap_or(Path::new(""))), view)
            })
        });
        for (place, view) in by_path.chain(by_mount) {
            if places.iter().all(|(known, _)| *known != place) {
                places.push((place, view));
            }
        }
        places
    }

    /// Where the host's message queues are files.
    pub fn queues(&self) -> impl Iterator<Item = &Path> {
        let mounts = self.mounts.below(Path::new("/")).filter(|mount| mount.kind == "mqueue");
        mounts.map(|mount| &*mount.point)
    }

    /// Where a part of what a path holds is seen, by a mount of the host that
    /// shows the same. What the policy itself takes out of it is granted.
    pub fn parts(&self, path: &Path) -> Vec<(PathBuf, &View)> {
        let Some((device, inside)) = self.mounts.locate(path) else { return Vec::new() };
        let granted: Vec<&View> = self.views.iter().filter(|view| view.source.starts_with(path)).collect();
        // File systems that have their own place below it.
        let below =
            self.mounts.below(path).filter(|mount| mount.point != path && self.mounts.is_first(mount));
        let below = below.filter(|mount| granted.iter().all(|view| !mount.point.starts_with(&view.source)));
        let of_mounts = below.flat_map(|mount| {
            let above = self.windows.above(&mount.device, &mount.root);
            above.chain(self.windows.below(&mount.device, &mount.root))
        });
        let is_own = |shown: &Path| {
            let mut own = granted.iter().filter_map(|view| view.located.as_ref());
            own.any(|(of, inside)| of == device && shown.starts_with(inside))
        };
        let own = self.windows.below(device, &inside).filter(|(shown, _)| !is_own(shown));
        let windows = own.chain(of_mounts).map(|(_, window)| window);
        windows
            .map(|window| (place(&self.views[window.view], &window.at), &self.views[window.view]))
            .collect()
    }
}

/// A view of a file system.
#[derive(Debug)]
struct Window {
    /// The policy's view that it lies in, by its number.
    view: usize,
    /// At which path of the host.
    at: PathBuf,
}

/// Those of each file system, by the path of it that they show: a host may have
/// thousands of mounts below a view.
#[derive(Debug, Default)]
struct Windows(BTreeMap<String, BTreeMap<PathBuf, Vec<Window>>>);

impl Windows {
    fn of(views: &[View]) -> Windows {
        let mut windows = Windows::default();
        for (number, view) in views.iter().enumerate() {
            let own = view.located.iter().map(|(device, shown)| (device, shown, &view.source));
            let below = view.mounts.iter().filter(|mount| mount.point != view.source);
            let below = below.map(|mount| (&mount.device, &mount.root, &mount.point));
            for (device, shown, at) in own.chain(below) {
                let roots = windows.0.entry(device.clone()).or_default();
                roots.entry(shown.clone()).or_default().push(Window { view: number, at: at.clone() });
            }
        }
        windows
    }

    /// Those that show a path, or what it lies in.
    fn above<'a>(&'a self, device: &str, path: &'a Path) -> impl Iterator<Item = (&'a Path, &'a Window)> {
        let roots = self.0.get(device);
        let above = path.ancestors().filter_map(move |above| roots?.get_key_value(above));
        above.flat_map(|(shown, windows)| windows.iter().map(move |window| (&**shown, window)))
    }

    /// Those that show something below a path.
    fn below<'a>(&'a self, device: &str, path: &'a Path) -> impl Iterator<Item = (&'a Path, &'a Window)> {
        let range = (Bound::Excluded(path), Bound::Unbounded);
        let roots = self.0.get(device).into_iter().flat_map(move |roots| roots.range::<Path, _>(range));
        let below = roots.take_while(move |(shown, _)| shown.starts_with(path));
        below.flat_map(|(shown, windows)| windows.iter().map(move |window| (&**shown, window)))
    }
}

/// Where a view shows a path of the host that lies in it.
fn place(view: &View, path: &Path) -> PathBuf {
    join(&view.place, path.strip_prefix(&view.source).unwrap_or(Path::new("")))
}

/// A link may lead to what a view shows by another name.
fn canaries(request: &Request) -> Vec<PathBuf> {
    let mut paths = BTreeSet::new();
    for canary in &request.canaries {
        let Canary::Path(path) = canary else { continue };
        let real = path.canonicalize().ok();
        // The cell has no such name, and the kernel takes `..` of what a link leads to.
        if real.is_none() || !path.components().any(|part| part == Component::ParentDir) {
            paths.insert(path.clone());
        }
        paths.extend(real);
    }
    paths.into_iter().collect()
}

fn views(policy: &Policy, host: &Host, mounts: &Mounts) -> Vec<View> {
    let view = |source: &Path, place: &Path, kind, role, is_writable| View {
        source: source.to_owned(),
        place: place.to_owned(),
        kind,
        role,
        is_writable,
        located: mounts.locate(source).map(|(device, inside)| (device.to_owned(), inside)),
        mounts: mounts.below(source).cloned().collect(),
    };
    let system = host.system.iter().filter_map(|(place, entry)| match entry {
        SystemEntry::View(source, file) => Some(view(source, place, file.kind, ViewRole::System, false)),
        _ => None,
    });
    let asked = policy.views().filter_map(|asked| match host.file(asked.source) {
        Lookup::Found(file) => {
            Some(view(asked.source, asked.place, file.kind, asked.role, asked.is_writable))
        }
        // What is not there is an optional view that is left out.
        _ => None,
    });
    system.chain(asked).collect()
}
