//! Which file of the host a path of the cell leads to, by the plan and a look
//! at the host: for messages alone.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::plan::{Plan, Step, Text};

/// As many links as the kernel follows.
const LINKS: usize = 40;

/// What stands where in the cell that a plan makes.
pub(super) struct Tree<'a> {
    plan: &'a Plan,
    /// The mounts, by their places, in the order they are made.
    mounts: Vec<Mount>,
}

struct Mount {
    place: PathBuf,
    /// The host's path; none for a file system of the cell's own.
    source: Option<PathBuf>,
}

/// Where a path of the cell has led.
pub(super) struct Walk {
    /// The path without its links; or the one at which nothing is.
    pub at: PathBuf,
    pub end: End,
    /// The link that leads there, and what it says; none where the path itself does.
    pub link: Option<(PathBuf, PathBuf)>,
}

/// A link that is being followed.
struct Followed {
    link: PathBuf,
    target: PathBuf,
    /// How many parts of the path stand behind it.
    behind: usize,
}

/// What is there.
pub(super) enum End {
    /// A file or directory of the host.
    Host(PathBuf, Metadata),
    /// Something that the cell makes, or that cannot be looked at from outside.
    Own,
    /// A file that the cell makes, which is data.
    Made,
    /// Nothing.
    Missing,
    /// A directory that the user of the run may not enter.
    Refused(PathBuf),
}

enum Entry {
    End(End),
    Link(PathBuf),
}

impl<'a> Tree<'a> {
    pub fn of(plan: &'a Plan) -> Tree<'a> {
        let mut mounts: Vec<Mount> = Vec::new();
        for step in &plan.init {
            match step {
                Step::Bind { source, path, .. } => {
                    mounts.push(Mount { place: in_root(path), source: Some(in_root(source)) });
                }
                Step::Mount { path, options, .. } => {
                    let source =
                        lowest(options).and_then(|lowest| source_of(&mounts, &lowest)).map(|(_, host)| host);
                    mounts.push(Mount { place: in_root(path), source });
                }
                Step::Cover { path, .. } => mounts.push(Mount { place: in_root(path), source: None }),
                _ => {}
            }
        }
        Tree { plan, mounts }
    }

    /// Follows a path of the cell, links and all.
    pub fn walk(&self, path: &Path) -> Walk {
        let mut walk = Walk { at: "/".into(), end: End::Own, link: None };
        let mut rest: Vec<PathBuf> = parts(path);
        let mut followed: Vec<Followed> = Vec::new();
        let mut links = 0;
        while let Some(part) = rest.pop() {
            followed.retain(|link| rest.len() >= link.behind);
            if part == Path::new("..") {
                walk.at.pop();
                continue;
            }
            let at = walk.at.join(part);
            match self.entry(&at) {
                Entry::Link(target) if links < LINKS => {
                    links += 1;
                    if target.is_absolute() {
                        walk.at = "/".into();
                    }
                    followed.push(Followed { link: at, target: target.clone(), behind: rest.len() });
                    rest.extend(parts(&target));
                }
                Entry::Link(_) => return Walk { at, end: End::Missing, link: None },
                Entry::End(end @ (End::Missing | End::Refused(_))) => {
                    let at = rest.iter().rev().fold(at, |at, part| at.join(part));
                    let link = followed.pop().map(|followed| (followed.link, followed.target));
                    return Walk { at, end, link };
                }
                Entry::End(end) => (walk.at, walk.end) = (at, end),
            }
        }
        walk
    }

    fn entry(&self, place: &Path) -> Entry {
        for step in &self.plan.init {
            match step {
                Step::MakeSymlink { path, target } if in_root(path) == place => {
                    return Entry::Link(OsStr::from_bytes(target.to_bytes()).into());
                }
                Step::MakeDirectory { path, .. } if in_root(path) == place && !self.is_on_host(place) => {
                    return Entry::End(End::Own);
                }
                Step::MakeFile { path, .. } if in_root(path) == place && !self.is_on_host(place) => {
                    return Entry::End(End::Made);
                }
                _ => {}
            }
        }
        // A directory that is made for what is mounted in it, or over it.
        let leads_on = self.mounts.iter().any(|mount| mount.place.starts_with(place));
        let unless_it_leads_on = |end| Entry::End(if leads_on { End::Own } else { end });
        let Some((view, host)) = source_of(&self.mounts, place) else {
            // The kernel's own file systems fill themselves.
            let is_own = ["/proc", "/dev"].iter().any(|own| place.starts_with(own));
            return unless_it_leads_on(if is_own { End::Own } else { End::Missing });
        };
        // An exposure below what is hidden is a view of its own.
        let is_in_view = |hidden: &Path| hidden.starts_with(&view) && host.starts_with(hidden);
        if self.plan.hidden.iter().any(|hidden| is_in_view(Path::new(&hidden.path))) {
            return unless_it_leads_on(End::Missing);
        }
        match fs::symlink_metadata(&host) {
            Ok(metadata) if metadata.is_symlink() => {
                fs::read_link(&host).map_or(Entry::End(End::Own), Entry::Link)
            }
            Ok(metadata) => Entry::End(End::Host(host, metadata)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Entry::End(End::Refused(host.parent().unwrap_or(&host).to_owned()))
            }
            Err(_) => Entry::End(End::Missing),
        }
    }

    fn is_on_host(&self, place: &Path) -> bool {
        source_of(&self.mounts, place).is_some()
    }
}

/// What the last of the nearest mounts shows there: the view's own path on the
/// host, and that of the place.
fn source_of(mounts: &[Mount], place: &Path) -> Option<(PathBuf, PathBuf)> {
    let around = mounts.iter().filter(|mount| place.starts_with(&mount.place));
    let mount = around.max_by_key(|mount| mount.place.components().count())?;
    let rest = place.strip_prefix(&mount.place).ok()?;
    let view = mount.source.clone()?;
    // Not by `join` of nothing, which leaves a slash behind a file.
    let host = view.components().chain(rest.components()).collect();
    Some((view, host))
}

/// The lowest layer of an overlay, which is the view it is made for.
fn lowest(options: &[(Text, Text)]) -> Option<PathBuf> {
    let (_, layers) = options.iter().find(|(name, _)| name.to_bytes() == b"lowerdir")?;
    let lowest = layers.to_bytes().rsplit(|byte| *byte == b':').next()?;
    Some(Path::new("/").join(OsStr::from_bytes(lowest)))
}

fn in_root(path: &Text) -> PathBuf {
    Path::new("/").join(OsStr::from_bytes(path.to_bytes()))
}

/// The parts of a path, the first one last.
fn parts(path: &Path) -> Vec<PathBuf> {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    let mut parts: Vec<PathBuf> = parts.map(|part| part.as_os_str().into()).collect();
    parts.reverse();
    parts
}
