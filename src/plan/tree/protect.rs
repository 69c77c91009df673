//! The workspace, and what of it stays as it is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{Content, Tree, VIEW, at, bind};
use crate::error::Error;
use crate::host::{Host, Kind, Lookup};
use crate::plan::landlock::Grant;
use crate::plan::{Made, Prepare};
use crate::policy::{Access, Mode, Policy, Protect, ProtectMissing, View, ViewRole, WAYS_AROUND, Workspace};
use crate::sys::mount::READ_ONLY;

/// The host paths that the protection rests on.
pub(super) fn paths(policy: &Policy) -> Vec<PathBuf> {
    let Some(workspace) = &policy.workspace else { return Vec::new() };
    let mut paths: Vec<PathBuf> = Vec::new();
    for protect in &workspace.protect {
        let below = protect.path.ancestors().filter(|part| *part != Path::new(""));
        paths.extend(below.map(|part| workspace.dir.join(part)));
    }
    if workspace.protect_missing == ProtectMissing::Overlay {
        paths.extend(beside(workspace).into_iter().flatten());
    }
    // A mount can have given each a second name.
    let dirs = writable(policy).map(|view| view.source).chain([&*workspace.dir]);
    let above = dirs.flat_map(Path::ancestors).filter(|path| path.parent().is_some());
    paths.extend(above.map(Path::to_owned).collect::<BTreeSet<_>>());
    paths
}

/// The directory that holds the workspace, and the overlay's own in it.
fn beside(workspace: &Workspace) -> Option<[PathBuf; 2]> {
    let parent = workspace.dir.parent()?;
    let name = workspace.dir.file_name()?.to_string_lossy();
    Some([parent.to_owned(), parent.join(format!(".{name}.cellblock-work"))])
}

impl Tree<'_> {
    pub(super) fn workspace(&mut self, policy: &Policy) -> Result<(), Error> {
        let Some(workspace) = &policy.workspace else {
            return Ok(());
        };
        let dir = self.find_kind(&workspace.dir, Kind::Directory, &workspace.origin)?;
        let (attributes, grant) = match workspace.access {
            Access::ReadOnly => (READ_ONLY | VIEW, Grant::ReadExecute),
            Access::ReadWrite => (VIEW, Grant::ReadWrite),
        };
        let stubs = self.stubs(policy, workspace);
        let by_overlay = workspace.protect_missing == ProtectMissing::Overlay;
        if by_overlay && workspace.access == Access::ReadWrite && policy.mode == Mode::Nested {
            return Err(at(&workspace.origin, "`protect_missing = \"overlay\"` does not hold in the nested mode")
                .cause("in a mount namespace of its own the run can remove what the overlay has there, and put another in its place")
                .remedy("write `protect_missing = \"sweep\"`, which looks at it when the run is over"));
        }
        let content = if by_overlay && workspace.access == Access::ReadOnly {
            self.overlay(&workspace.dir, dir, &workspace.at, &workspace.origin)?
        } else if stubs.is_empty() {
            bind(&workspace.dir, dir, attributes)
        } else {
            let [parent, work] = beside(workspace).expect("a view is below /");
            if self.host.without_overlay.contains(&workspace.at) {
                return Err(at(&workspace.origin, "the kernel refuses an overlay of the workspace")
                    .cause(format!(
                        "the file system of {} cannot be written to through one; overlay, NFS and FAT are such",
                        workspace.dir.display()
                    ))
                    .remedy("write `protect_missing = \"sweep\"`, or move the workspace to ext4, xfs, btrfs or tmpfs"));
            }
            let beside = self.find_kind(&parent, Kind::Directory, &workspace.origin)?;
            if self.host.file(&work) == Lookup::Missing {
                self.prepare.push(Prepare::new(&work, Made::WorkDirectory, &workspace.origin));
            } else {
                let file = self.find_kind(&work, Kind::Directory, &workspace.origin)?;
                if file.owner != self.host.ids.uid {
                    return Err(at(
                        &workspace.origin,
                        format!("{} belongs to the user {}", work.display(), file.owner),
                    )
                    .cause("what is written in the workspace goes through it, and that is another user's")
                    .remedy("remove it, or write `protect_missing = \"sweep\"`"));
                }
            }
            self.work_directory = Some(work.clone());
            Content::Stubs { source: workspace.dir.clone(), file: dir, parent: (parent, beside), work, stubs }
        };
        self.put(&workspace.at, content, grant, &workspace.origin)
    }

    /// What is protected and missing, where it is to be there and empty.
    fn stubs(&self, policy: &Policy, workspace: &Workspace) -> Vec<(PathBuf, bool)> {
        let by_overlay = workspace.protect_missing == ProtectMissing::Overlay;
        if workspace.access == Access::ReadOnly || !by_overlay {
            return Vec::new();
        }
        let missing = self
            .shown(policy, workspace)
            .into_iter()
            .filter(|protect| !is_way_around(&protect.path))
            .filter(|protect| self.host.file(&workspace.dir.join(&protect.path)) == Lookup::Missing)
            .filter(|protect| self.file_above(workspace, protect).is_none());
        // Lists of several sources add up, and one path may be in two.
        let mut stubs: Vec<(PathBuf, bool)> = Vec::new();
        for protect in missing {
            if stubs.iter().all(|(path, _)| *path != protect.path) {
                stubs.push((protect.path.clone(), protect.is_directory));
            }
        }
        stubs
    }

    /// The protected paths that the cell sees in the workspace: no other view
    /// stands there, or nearer to it, and none is hidden.
    fn shown(&self, policy: &Policy, workspace: &Workspace) -> Vec<Protect> {
        let elsewhere = |place: &Path| {
            let above = place.ancestors().take_while(|above| *above != workspace.at);
            above.into_iter().any(|above| self.nodes.contains_key(above))
        };
        outermost(self.host.repository.held(&workspace.protect))
            .into_iter()
            .filter(|protect| !policy.run.hides_in(&workspace.dir, &workspace.dir.join(&protect.path)))
            .filter(|protect| !elsewhere(&workspace.at.join(&protect.path)))
            .collect()
    }

    /// The file that a protected path would have to lie below, as `.git` is one
    /// in a worktree.
    fn file_above<'p>(&self, workspace: &Workspace, protect: &'p Protect) -> Option<&'p Path> {
        protect.path.ancestors().skip(1).find(|above| {
            let found = self.host.file(&workspace.dir.join(above));
            matches!(found, Lookup::Found(file) if file.kind != Kind::Directory)
        })
    }

    /// Mounts what is protected over itself, read-only. To be called when all
    /// else is in the tree.
    pub(super) fn protect(&mut self, policy: &Policy) -> Result<(), Error> {
        let Some(workspace) = policy.workspace.as_ref().filter(|w| w.access == Access::ReadWrite) else {
            return Ok(());
        };
        let has_stubs =
            self.nodes.get(&workspace.at).is_some_and(|node| matches!(node.content, Content::Stubs { .. }));
        let by_overlay = workspace.protect_missing == ProtectMissing::Overlay;
        for protect in outermost(self.host.repository.held(&workspace.protect)) {
            let source = workspace.dir.join(&protect.path);
            if by_overlay || self.host.file(&source) != Lookup::Missing {
                refuse_another_way(policy, self.host, &source)?;
            }
        }
        let shown = self.shown(policy, workspace);
        let is_link = |protect: &&Protect| {
            matches!(self.host.file(&workspace.dir.join(&protect.path)), Lookup::Link { .. })
        };
        let links: Vec<&Protect> = shown.iter().filter(is_link).collect();
        if let [first, ..] = &*links {
            return Err(protects_links(workspace, first, &links));
        }
        for protect in shown {
            // As long as that file stays, nothing can be made below it.
            let file_above = self.file_above(workspace, &protect).filter(|_| by_overlay);
            let path = file_above.unwrap_or(&protect.path);
            let (source, place) = (workspace.dir.join(path), workspace.at.join(path));
            // One file can stand in the way of several.
            if self.nodes.contains_key(&place) {
                continue;
            }
            let content = match self.host.file(&source) {
                Lookup::Missing if !has_stubs || is_way_around(&protect.path) => continue,
                Lookup::Missing => over_itself(&place, protect.is_directory, READ_ONLY),
                _ => {
                    let file = self.find(&source, &protect.origin)?;
                    match has_stubs {
                        true => over_itself(&place, file.kind == Kind::Directory, READ_ONLY),
                        false => bind(&source, file, READ_ONLY | VIEW),
                    }
                }
            };
            self.put(place, content, Grant::ReadExecute, &protect.origin)?;
        }
        Ok(())
    }
}

/// Each protected path once, without those that lie in another: it is read-only
/// with all that is in it.
fn outermost(mut all: Vec<Protect>) -> Vec<Protect> {
    let paths: BTreeSet<PathBuf> = all.iter().map(|protect| protect.path.clone()).collect();
    let mut known = BTreeSet::new();
    all.retain(|protect| {
        let is_inside = protect.path.ancestors().skip(1).any(|above| paths.contains(above));
        !is_inside && known.insert(protect.path.clone())
    });
    all
}

/// What leads git elsewhere and is missing. An empty file there would keep git
/// itself from working, so the run may make it, and it is swept.
fn is_way_around(path: &Path) -> bool {
    WAYS_AROUND.iter().any(|around| path == Path::new(around))
}

/// A part of the workspace's overlay as a mount of its own.
pub(super) fn over_itself(place: &Path, is_directory: bool, attributes: u64) -> Content {
    Content::Cover { source: place.to_owned(), inode: None, is_directory, attributes: attributes | VIEW }
}

/// A writable view of the same place, or of one above it, is not held by the
/// mounts in the workspace.
fn refuse_another_way(policy: &Policy, host: &Host, source: &Path) -> Result<(), Error> {
    let is_way = |view: &Path| host.lies_in(source, view) || host.lies_in(view, source);
    match writable(policy).find(|view| is_way(view.source)) {
        None => Ok(()),
        Some(View { source: view, origin, .. }) => Err(at(
            origin,
            format!("the view of {} can write the protected {}", view.display(), source.display()),
        )
        .cause("`workspace.protect` keeps it as it is in the workspace alone")
        .remedy("show it read-only, or list in `workspace.protect` what is to be protected, without it")),
    }
}

/// What beside the workspace takes writes.
fn writable(policy: &Policy) -> impl Iterator<Item = View<'_>> {
    policy.views().filter(|view| view.is_writable && view.role != ViewRole::Workspace)
}

fn protects_links(workspace: &Workspace, first: &Protect, links: &[&Protect]) -> Error {
    let paths: Vec<String> = links.iter().map(|protect| protect.path.display().to_string()).collect();
    let what = match links {
        [_] => "the protected path is reached through a symbolic link",
        _ => "these protected paths are reached through symbolic links",
    };
    at(&first.origin, format!("{what} in {}: {}", workspace.dir.display(), paths.join(", ")))
        .cause("no mount can stand on a link, so that it could be replaced by another")
        .remedy("put what it leads to in its place, or list in `workspace.protect` what is to be protected, without it")
}
