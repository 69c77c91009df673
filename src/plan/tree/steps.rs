//! From entries to steps: each mount point is made where it is ours to make,
//! and was looked up where it is not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{Content, Tree, overlap, text, text_of};
use crate::error::Error;
use crate::plan::Text;
use crate::plan::landlock::{access, allow};
use crate::plan::step::{Stage, Step};
use crate::policy::Policy;

/// The mounts and the Landlock rules, in the order of the kernel's needs.
pub(in crate::plan) struct Built {
    pub mounts: Vec<Step>,
    /// Covers come last: a mask shows a device that is bound after `/proc`.
    pub covers: Vec<Step>,
    pub rules: Vec<Step>,
    /// What a layer holds alone where two should.
    pub notes: Vec<String>,
}

/// Orders the entries of a tree; `with_rights` where Landlock grants on files.
pub(super) fn order(tree: &Tree, policy: &Policy, with_rights: bool) -> Result<Built, Error> {
    let mut built = Built { mounts: Vec::new(), covers: Vec::new(), rules: Vec::new(), notes: Vec::new() };
    let mut directories = BTreeSet::from([PathBuf::from("/")]);
    for (place, node) in &tree.nodes {
        let holder = tree.holder(place);
        if let Some(holder) = &holder {
            overlap::check(tree, policy, (place, node), *holder)?;
        }
        built.notes.extend(overlap::note(policy, (place, node), holder, with_rights));

        let is_ours = holder.is_none_or(|(_, holder)| !holder.content.shows_what_is_there());
        if is_ours && !matches!(node.content, Content::Cover { .. }) {
            make_parents(place, &mut directories, &mut built.mounts)?;
            make_place(place, &node.content, &mut built.mounts)?;
        }
        // Made, or found in a view: it stands from here on.
        if node.content.is_directory() {
            directories.insert(place.clone());
        }
        match mount(place, &node.content)? {
            Some(step @ Step::Cover { .. }) => built.covers.push(step),
            step => built.mounts.extend(step),
        }
        if with_rights {
            let abi = tree.host.landlock;
            let wanted = access(abi, node.grant, node.content.is_directory());
            // Rights add up along a path: what the holder grants need not be said twice.
            let inherited = holder.map_or(0, |(_, holder)| access(abi, holder.grant, true));
            if wanted & !inherited != 0 {
                built.rules.push(allow(text(place)?, wanted));
            }
        }
    }
    Ok(built)
}

fn make_parents(place: &Path, made: &mut BTreeSet<PathBuf>, steps: &mut Vec<Step>) -> Result<(), Error> {
    let Some(parent) = place.parent() else { return Ok(()) };
    if made.contains(parent) {
        return Ok(());
    }
    make_parents(parent, made, steps)?;
    made.insert(parent.to_owned());
    steps.push(Step::MakeDirectory { path: text(relative(parent))?, mode: 0o755 });
    Ok(())
}

fn make_place(place: &Path, content: &Content, steps: &mut Vec<Step>) -> Result<(), Error> {
    let path = text(relative(place))?;
    steps.push(match content {
        Content::Symlink { target } => Step::MakeSymlink { path, target: text(target)? },
        Content::File { content } => Step::MakeFile { path, content: content.clone() },
        content if content.is_directory() => Step::MakeDirectory { path, mode: 0o755 },
        _ => Step::MakeFile { path, content: Default::default() },
    });
    Ok(())
}

fn mount(place: &Path, content: &Content) -> Result<Option<Step>, Error> {
    let path = text(relative(place))?;
    let stage = stage(place);
    Ok(match content {
        Content::Bind { source, file, to_be_made, attributes } => Some(Step::Bind {
            source: text(source)?,
            identity: (!to_be_made).then_some(file.identity),
            path,
            attributes: *attributes,
            stage,
        }),
        Content::Fresh { filesystem, options, attributes } => Some(Step::Mount {
            filesystem: text_of(*filesystem)?,
            options: options
                .iter()
                .map(|(key, value)| Ok((text_of(*key)?, text_of(value.as_str())?)))
                .collect::<Result<Vec<(Text, Text)>, Error>>()?,
            path,
            attributes: *attributes,
            stage,
        }),
        Content::Cover { source, attributes, .. } => {
            Some(Step::Cover { source: text(relative(source))?, path, attributes: *attributes })
        }
        Content::Directory | Content::Symlink { .. } | Content::File { .. } => None,
    })
}

fn stage(place: &Path) -> Stage {
    if place.starts_with("/proc") {
        Stage::Proc
    } else if place.starts_with("/dev") {
        Stage::Dev
    } else {
        Stage::Mounts
    }
}

/// A place of the cell as the child names it: from the new root, which is its
/// working directory.
fn relative(place: &Path) -> &Path {
    place.strip_prefix("/").unwrap_or(place)
}
