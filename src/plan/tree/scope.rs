//! The run's own parts of a shared instance: exposures, and what is made for
//! them.

use std::path::Path;

use super::{Content, Tree, VIEW, at, bind, hide, to_be_made, wrong_kind};
use crate::error::Error;
use crate::host::{Host, Kind, Lookup, SystemEntry};
use crate::plan::landlock::Grant;
use crate::plan::{Made, Prepare};
use crate::policy::{Expose, ExposeKind, Origin, Policy, View, ViewRole};

/// Refuses exposures that contradict the rest of the policy.
pub(super) fn check(policy: &Policy, host: &Host) -> Result<(), Error> {
    for entry in &policy.run.expose {
        hide::refuse_revealing(policy, "the exposure", &entry.path, &entry.origin)?;
        refuse_wide(policy, entry)?;
        refuse_visible(policy, host, "the exposure", &entry.path, &entry.origin)?;
    }
    Ok(())
}

impl Tree<'_> {
    pub(super) fn exposures(&mut self, policy: &Policy) -> Result<(), Error> {
        for entry in &policy.run.expose {
            let kind = match entry.kind {
                ExposeKind::Directory => Kind::Directory,
                ExposeKind::File => Kind::File,
            };
            let is_missing = self.host.file(&entry.path) == Lookup::Missing;
            let content = if entry.create && is_missing {
                let made = match entry.kind {
                    ExposeKind::Directory => Made::Directory,
                    ExposeKind::File => Made::File,
                };
                self.prepare.push(Prepare::new(&entry.path, made, &entry.origin));
                to_be_made(&entry.path, kind)
            } else {
                let file = self.find_kind(&entry.path, kind, &entry.origin).map_err(|error| {
                    if is_missing {
                        error.remedy("make it before the run, or write `create = true` in a policy file")
                    } else {
                        error
                    }
                })?;
                bind(&entry.path, file, VIEW)
            };
            self.put(&entry.path, content, Grant::ReadWrite, &entry.origin)?;
        }
        Ok(())
    }

    /// Directories that a provider makes on first use, and cannot where its view
    /// is read-only.
    pub(super) fn shared_directories(&mut self, policy: &Policy) -> Result<(), Error> {
        for entry in &policy.run.create {
            let shows = |view: View| !view.role.is_of_the_channel() && view.shows(policy, &entry.path);
            if !policy.views().any(shows) {
                return Err(at(&entry.origin, format!("{} is in no view", entry.path.display()))
                    .cause("what is made for the provider has to be seen by it")
                    .remedy("show a directory above it, or leave it out; what is above an exposure is made with it"));
            }
            match self.host.file(&entry.path) {
                Lookup::Missing => {
                    self.prepare.push(Prepare::new(&entry.path, Made::Directory, &entry.origin));
                }
                Lookup::Found(file) if file.kind != Kind::Directory => {
                    return Err(wrong_kind(&entry.path, file.kind, Kind::Directory.name(), &entry.origin));
                }
                _ => drop(self.find(&entry.path, &entry.origin)?),
            }
        }
        Ok(())
    }

    /// An exposure and the channel stand at their real paths; a link stands where the
    /// policy names them, unless something else is there.
    pub(super) fn names_of_links(&mut self, policy: &Policy) {
        for (name, real) in &self.host.links {
            let is_own = |view: View| view.role == ViewRole::Exposure || view.role.is_of_the_channel();
            let is_shown = policy.views().any(|view| view.source == real && is_own(view));
            let is_free = self.nodes.keys().all(|place| !place.starts_with(name))
                && self.holder(name).is_none_or(|(_, holder)| matches!(holder.content, Content::Directory));
            if is_free && is_shown {
                self.put_own(name, Content::Symlink { target: real.clone() }, Grant::Nothing);
            }
        }
    }
}

/// An exposure that holds the others would show what they are carved out of.
fn refuse_wide(policy: &Policy, entry: &Expose) -> Result<(), Error> {
    let path = &entry.path;
    let own = policy.views().filter(|view| matches!(view.role, ViewRole::Exposure | ViewRole::Channel));
    let inner = own.map(|view| view.source).find(|other| *other != path && other.starts_with(path));
    match inner {
        None => Ok(()),
        Some(inner) => {
            Err(at(&entry.origin, format!("the exposure {} holds {}", path.display(), inner.display()))
                .cause("what it shows cannot be taken away again below it")
                .remedy("expose the run's own directories one by one"))
        }
    }
}

/// What another view shows too, at whatever place, has the rights of that view
/// there; and that view shows its neighbours.
pub(super) fn refuse_visible(
    policy: &Policy,
    host: &Host,
    what: &str,
    path: &Path,
    origin: &Origin,
) -> Result<(), Error> {
    let system = host
        .system
        .iter()
        .find(|(_, entry)| matches!(entry, SystemEntry::View(real, _) if path.starts_with(real) && !policy.run.hides_in(real, path)));
    if let Some((place, _)) = system {
        return Err(at(origin, format!("{what} {} is visible already", path.display()))
            .cause(format!("{} of the system shows it, and all that lies beside it", place.display()))
            .remedy("move it out of there, or hide what it is a part of"));
    }
    let mut wide = policy.views().filter(|view| view.role.is_bind() || view.role == ViewRole::Workspace);
    match wide.find(|view| view.shows(policy, path)) {
        None => Ok(()),
        Some(View { source, origin: view, .. }) => {
            Err(at(origin, format!("{what} {} is visible already", path.display()))
                .cause(format!(
                    "the view of {} ({view}) shows it, and all that lies beside it",
                    source.display()
                ))
                .remedy("take that view away, or the exposure; or hide what it is a part of"))
        }
    }
}
