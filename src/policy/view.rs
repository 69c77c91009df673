//! The views of a policy: which parts of the host the cell sees, where, and what
//! for. Whoever asks what a policy shows filters [`Policy::views`].

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{Access, Origin, Policy, RunScope};

/// One part of the host that the cell sees.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Path on the host.
    pub source: &'a Path,
    /// Path in the cell.
    pub place: &'a Path,
    /// What it is there for.
    pub role: ViewRole,
    /// Whether what the cell writes there is written on the host, and new names can appear.
    pub is_writable: bool,
    /// Whether a launch fails without its source.
    pub is_needed: bool,
    /// Where it was written.
    pub origin: &'a Origin,
}

/// What a view is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewRole {
    /// A part of the host's system, which no policy names.
    System,
    /// `filesystem.ro_bind`.
    ReadOnly,
    /// `filesystem.bind`.
    Writable,
    /// `run.expose`.
    Exposure,
    /// `channel.dir`.
    Channel,
    /// `channel.fifo`.
    Fifo,
    /// `channel.lock`.
    Lock,
    /// `channel.read_only`.
    Read,
    /// `channel.execute`.
    Execute,
    /// `workspace.dir`.
    Workspace,
}

impl ViewRole {
    /// Whether it is one of `filesystem`'s lists.
    pub fn is_bind(self) -> bool {
        matches!(self, ViewRole::ReadOnly | ViewRole::Writable)
    }

    /// Whether it is the channel's directory or one of its entries.
    pub fn is_of_the_channel(self) -> bool {
        use ViewRole::{Channel, Execute, Fifo, Lock, Read};
        matches!(self, Channel | Fifo | Lock | Read | Execute)
    }

    /// What messages call it.
    pub fn name(self) -> &'static str {
        match self {
            ViewRole::System | ViewRole::ReadOnly => "view",
            ViewRole::Writable => "writable view",
            ViewRole::Exposure => "exposure",
            ViewRole::Channel => "channel",
            ViewRole::Fifo | ViewRole::Lock | ViewRole::Read | ViewRole::Execute => "channel's",
            ViewRole::Workspace => "workspace",
        }
    }
}

impl View<'_> {
    /// Whether it shows `path` of the host: nothing between them is hidden.
    pub fn shows(&self, policy: &Policy, path: &Path) -> bool {
        path.starts_with(self.source) && !policy.run.hides_in(self.source, path)
    }

    /// Whether the cell can write to `path` of the host by it.
    pub fn is_writable_at(&self, policy: &Policy, path: &Path) -> bool {
        let workspace = policy.workspace.iter().filter(|_| self.role == ViewRole::Workspace);
        let mut protected = workspace.flat_map(|workspace| &workspace.protect);
        let mut is_protected = || protected.any(|protect| path.starts_with(self.source.join(&protect.path)));
        self.is_writable && self.shows(policy, path) && !is_protected()
    }

    /// Where the cell sees `path` of the host, if it lies in this view.
    pub fn place_of(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(self.source).ok().map(|below| self.place.join(below))
    }
}

impl Policy {
    /// Every view that the policy asks for.
    pub fn views(&self) -> impl Iterator<Item = View<'_>> {
        let view = |(source, place, role, is_writable, is_needed, origin)| View::<'_> {
            source,
            place,
            role,
            is_writable,
            is_needed,
            origin,
        };
        let filesystem = &self.filesystem;
        let read_only = filesystem.ro_bind.iter().map(|bind| (bind, ViewRole::ReadOnly, false));
        let writable = filesystem.bind.iter().map(|bind| (bind, ViewRole::Writable, true));
        let binds = read_only.chain(writable).map(|(bind, role, is_writable)| {
            (&*bind.src, &*bind.dest, role, is_writable, !bind.optional, &bind.origin)
        });
        let exposures = self.run.expose.iter().map(|expose| {
            (&*expose.path, &*expose.path, ViewRole::Exposure, true, !expose.create, &expose.origin)
        });
        let channel = self.channel.iter().flat_map(|channel| {
            let (dir, replaceable) = (&*channel.dir, channel.replaceable);
            let lists = [
                (&channel.fifo, ViewRole::Fifo),
                (&channel.lock, ViewRole::Lock),
                (&channel.read_only, ViewRole::Read),
                (&channel.execute, ViewRole::Execute),
            ];
            let entries = lists.into_iter().flat_map(|(list, role)| {
                list.iter().map(move |entry| (&*entry.path, &*entry.path, role, false, true, &entry.origin))
            });
            [(dir, dir, ViewRole::Channel, replaceable, true, &channel.origin)].into_iter().chain(entries)
        });
        let workspace = self.workspace.iter().map(|workspace| {
            let is_writable = workspace.access == Access::ReadWrite;
            (&*workspace.dir, &*workspace.at, ViewRole::Workspace, is_writable, true, &workspace.origin)
        });
        binds.chain(exposures).chain(channel).chain(workspace).map(view)
    }
}

impl RunScope {
    /// Whether a hidden path is or holds `path`.
    pub fn hides(&self, path: &Path) -> bool {
        self.hide.iter().any(|hidden| path.starts_with(&hidden.path))
    }

    /// Whether a view of `source` lacks `path`, as something between them is hidden.
    pub fn hides_in(&self, source: &Path, path: &Path) -> bool {
        let mut above = self.hide.iter().filter(|hidden| path.starts_with(&hidden.path));
        above.any(|hidden| hidden.path.starts_with(source))
    }

    /// The hidden paths, to look many others up in.
    pub fn hidden(&self) -> HashSet<&Path> {
        self.hide.iter().map(|hidden| &*hidden.path).collect()
    }
}
