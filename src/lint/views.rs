//! What a policy shows of the host, by path alone.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::policy::{Origin, Policy, System, View, ViewRole};

/// The views of a policy, and what lies over them.
pub(super) struct Views<'a> {
    pub policy: &'a Policy,
    pub all: Vec<View<'a>>,
}

static OF_THE_SYSTEM: LazyLock<Origin> = LazyLock::new(|| "filesystem.system".into());

impl<'a> Views<'a> {
    pub fn of(policy: &'a Policy) -> Views<'a> {
        let usr = Path::new("/usr");
        let usr = View {
            source: usr,
            place: usr,
            role: ViewRole::System,
            is_writable: false,
            is_needed: false,
            origin: &OF_THE_SYSTEM,
        };
        let system = (policy.filesystem.system != System::None).then_some(usr);
        let asked = policy.views().filter(|view| !matches!(view.role, ViewRole::Fifo | ViewRole::Lock));
        Views { policy, all: system.into_iter().chain(asked).collect() }
    }

    /// Whether the cell sees `path` of the host by this view: it is not hidden,
    /// and no other entry lies over it.
    pub fn shows(&self, view: &View, path: &Path) -> bool {
        let Some(place) = view.place_of(path) else { return false };
        let mut covers = self.places().filter(|cover| *cover != view.place && cover.starts_with(view.place));
        view.shows(self.policy, path) && !covers.any(|cover| place.starts_with(cover))
    }

    /// Whether what the cell does to `path` is done on the host.
    pub fn lets_write(&self, view: &View, path: &Path) -> bool {
        view.is_writable_at(self.policy, path) && self.shows(view, path)
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
