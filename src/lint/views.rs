//! What a policy shows of the host, by path alone.

use std::path::{Path, PathBuf};

use crate::policy::{Access, Origin, Policy, System};

/// One part of the host that the cell sees.
pub(super) struct View<'a> {
    /// Path on the host.
    pub source: &'a Path,
    /// Path in the cell.
    pub place: &'a Path,
    /// Whether what the cell writes there lands on the host.
    pub is_writable: bool,
    /// What messages call it.
    pub kind: &'static str,
    pub origin: Origin,
}

/// The views of a policy, and what lies over them.
pub(super) struct Views<'a> {
    pub policy: &'a Policy,
    pub all: Vec<View<'a>>,
}

/// The kinds that rules ask for.
pub(super) const EXPOSURE: &str = "exposure";
pub(super) const CHANNEL: &str = "channel";
pub(super) const WORKSPACE: &str = "workspace";

impl<'a> Views<'a> {
    pub fn of(policy: &'a Policy) -> Views<'a> {
        let mut all = Vec::new();
        let mut add = |source: &'a Path, place: &'a Path, is_writable, kind, origin: &Origin| {
            all.push(View { source, place, is_writable, kind, origin: origin.clone() });
        };
        if policy.filesystem.system != System::None {
            let usr = Path::new("/usr");
            add(usr, usr, false, "view", &"filesystem.system".into());
        }
        for bind in &policy.filesystem.ro_bind {
            add(&bind.src, &bind.dest, false, "view", &bind.origin);
        }
        for bind in &policy.filesystem.bind {
            add(&bind.src, &bind.dest, true, "writable view", &bind.origin);
        }
        for expose in &policy.run.expose {
            add(&expose.path, &expose.path, true, EXPOSURE, &expose.origin);
        }
        if let Some(channel) = &policy.channel {
            add(&channel.dir, &channel.dir, channel.replaceable, CHANNEL, &channel.origin);
            for entry in channel.read_only.iter().chain(&channel.execute) {
                add(&entry.path, &entry.path, false, "channel's", &entry.origin);
            }
        }
        if let Some(workspace) = &policy.workspace {
            let is_writable = workspace.access == Access::ReadWrite;
            add(&workspace.dir, &workspace.at, is_writable, WORKSPACE, &workspace.origin);
        }
        Views { policy, all }
    }

    /// Whether the cell sees `path` of the host by this view: it is not hidden,
    /// and no other entry lies over it.
    pub fn shows(&self, view: &View, path: &Path) -> bool {
        let Ok(rest) = path.strip_prefix(view.source) else { return false };
        let place = view.place.join(rest);
        let mut covers = self.places().filter(|cover| *cover != view.place && cover.starts_with(view.place));
        !self.policy.run.hides_in(view.source, path) && !covers.any(|cover| place.starts_with(cover))
    }

    /// Whether what the cell does to `path` is done on the host.
    pub fn lets_write(&self, view: &View, path: &Path) -> bool {
        let workspace = self.policy.workspace.iter().filter(|_| view.kind == WORKSPACE);
        let mut protected = workspace
            .flat_map(|workspace| workspace.protect.iter().map(|protect| workspace.dir.join(&protect.path)));
        view.is_writable && self.shows(view, path) && !protected.any(|protect| path.starts_with(protect))
    }

    /// The view that a path of the cell leads to, and what it stands for on the host.
    pub fn behind(&self, place: &Path) -> Option<(&View<'a>, PathBuf)> {
        let views = self.all.iter().filter(|view| place.starts_with(view.place));
        let view = views.max_by_key(|view| view.place.components().count())?;
        let path = view.source.join(place.strip_prefix(view.place).ok()?);
        self.shows(view, &path).then_some((view, path))
    }

    /// Where something stands in the cell, in the order of the policy.
    fn places(&self) -> impl Iterator<Item = &Path> {
        let tmpfs = self.policy.filesystem.tmpfs.iter().map(|tmpfs| &*tmpfs.path);
        let home = [&*self.policy.cell.home].into_iter();
        self.all.iter().map(|view| view.place).chain(tmpfs).chain(home)
    }
}
