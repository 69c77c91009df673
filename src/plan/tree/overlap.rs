//! What may lie in what.

use std::path::Path;

use super::{Content, Node, Tree, VIEW, at, bind, protect, wrong_kind};
use crate::error::Error;
use crate::host::{Kind, Lookup};
use crate::plan::landlock::{Grant, access};
use crate::policy::{Mode, Policy};
use crate::sys::mount::READ_ONLY;

/// An entry at its place.
type Entry<'a> = (&'a Path, &'a Node);

/// Whether `entry` may lie in `holder`, the nearest entry above it.
pub(super) fn check(tree: &Tree, policy: &Policy, entry: Entry, holder: Entry) -> Result<(), Error> {
    let ((place, node), (around, outer)) = (entry, holder);
    let shown = place.display();
    if let Content::Symlink { target } = &outer.content {
        return Err(at(&node.origin, format!("{shown} goes through the link {}", around.display()))
            .remedy(format!("write the path that the link stands for ({})", target.display())));
    }
    if !outer.content.is_directory() {
        return Err(at(&node.origin, format!("{shown} lies below the file {}", around.display()))
            .remedy("choose a place that lies in no file"));
    }
    check_rights(tree, policy, entry, holder)?;
    check_mount_point(tree, entry, holder)
}

/// Landlock adds up along a path, so an entry cannot have fewer rights than
/// one that it lies in.
fn check_rights(tree: &Tree, policy: &Policy, entry: Entry, holder: Entry) -> Result<(), Error> {
    let (place, node) = entry;
    if is_held_by_its_mount(policy, entry, holder) {
        return Ok(());
    }
    let Some((around, outer)) = tree.granter(entry) else { return Ok(()) };
    let around = around.display();
    let remedy = match outer.content {
        Content::Fresh { .. } => {
            format!("keep the instance out of {around}, for example in /var/tmp or /srv")
        }
        _ => "keep the channel out of every other view".to_owned(),
    };
    Err(at(&node.origin, format!("{} lies in {around}", place.display()))
        .cause(format!("what the cell may do in {around} ({}) cannot be taken away below it", outer.origin))
        .remedy(remedy))
}

/// Whether the holder grants more on files than the entry itself.
pub(super) fn inherits(node: &Node, outer: &Node) -> bool {
    /// Any ABI tells them apart.
    const ABI: u32 = 1;
    let own = access(ABI, node.grant, true);
    let listing = access(ABI, Grant::List, true);
    access(ABI, outer.grant, true) & !own & !listing != 0
}

/// Makes a mount point of every directory between a writable view and a
/// narrower entry in it. The entry's own place cannot be renamed, as something
/// is mounted there; but one above it could be, with the entry, and another one
/// made in its stead.
pub(super) fn pin_parents(tree: &mut Tree) -> Result<(), Error> {
    let mut pins = Vec::new();
    tree.each(|place, node, around| {
        let Some(&(around, outer)) = around.last() else { return Ok(()) };
        let (source, attributes) = match &outer.content {
            Content::Bind { source, attributes, .. } => (source, *attributes),
            Content::Stubs { source, .. } => (source, VIEW),
            _ => return Ok(()),
        };
        if attributes & READ_ONLY != 0 || !inherits(node, outer) {
            return Ok(());
        }
        for between in place.ancestors().skip(1).take_while(|above| *above != around) {
            if let Content::Stubs { .. } = outer.content {
                // A part of the overlay, be it the host's or a stub's parent.
                let content = protect::over_itself(between, true, attributes);
                pins.push((between.to_owned(), Node { content, ..outer.clone() }));
                continue;
            }
            let source = source.join(between.strip_prefix(around).unwrap_or(between));
            // Where there is no such directory, there is nothing to mount on either, which is told later.
            if let Lookup::Found(file) = tree.host.file(&source) {
                let content = bind(&source, file, attributes);
                pins.push((between.to_owned(), Node { content, ..outer.clone() }));
            }
        }
        Ok(())
    })?;
    tree.nodes.extend(pins);
    Ok(())
}

/// Where a narrower entry is wanted all the same: a read-only view in a
/// writable one, and all that lies in a channel that is granted whole.
fn is_held_by_its_mount(policy: &Policy, (_, node): Entry, (around, _): Entry) -> bool {
    let in_replaceable_channel = policy
        .channel
        .as_ref()
        .is_some_and(|channel| channel.replaceable && around.starts_with(&channel.dir));
    let is_mask = matches!(node.content, Content::Sealed | Content::Cover { .. });
    node.grant == Grant::ReadExecute || is_mask || in_replaceable_channel || node.is_built_in()
}

/// A mount point in a view of the host has to be there: nothing is created by
/// name where an agent can write.
fn check_mount_point(tree: &Tree, entry: Entry, holder: Entry) -> Result<(), Error> {
    let ((place, node), (around, outer)) = (entry, holder);
    let Some(source) = outer.content.source() else { return Ok(()) };
    let below = place.strip_prefix(around).unwrap_or(place);
    let is_ours = match &outer.content {
        Content::Overlay { upper, .. } => upper.contains_key(below),
        Content::Stubs { stubs, .. } => stubs.iter().any(|(stub, _)| stub.starts_with(below)),
        _ => false,
    };
    if is_ours {
        return Ok(());
    }
    let point = source.join(place.strip_prefix(around).unwrap_or(place));
    let is_directory = node.content.is_directory();
    match tree.host.file(&point) {
        Lookup::Found(file) if (file.kind == Kind::Directory) == is_directory => Ok(()),
        Lookup::Found(file) => {
            let wanted = if is_directory { "a directory" } else { "a file" };
            Err(wrong_kind(&point, file.kind, wanted, &node.origin))
        }
        // Its own source is going to be made, at the same path on the host, or
        // `create` names it.
        Lookup::Missing
            if node.content.makes(&point) || tree.prepare.iter().any(|made| made.path == point) =>
        {
            Ok(())
        }
        _ => Err(at(&node.origin, format!("there is no {} to mount on", point.display()))
            .cause(format!("{} lies in the view {} ({})", place.display(), around.display(), outer.origin))
            .remedy("make it on the host first: cellblock creates nothing inside a view")),
    }
}

/// What the run can move or remove all the same, for the evidence: a mount keeps
/// its place from being renamed or removed in the mount namespaces that it stands
/// in, and in nested mode the run can make one without it.
pub(super) fn note_of_nested(policy: &Policy, entry: Entry, holder: Option<Entry>) -> Option<String> {
    let (place, node) = entry;
    let (around, outer) = holder?;
    let takes_writes = match &outer.content {
        Content::Bind { attributes, .. } => attributes & READ_ONLY == 0,
        Content::Stubs { .. } => true,
        _ => false,
    };
    let is_narrower = inherits(node, outer) || matches!(node.content, Content::Fresh { .. });
    (policy.mode == Mode::Nested && takes_writes && is_narrower).then(|| {
        format!(
            "{}: the nested mode lets the run move or remove it, as {} is writable, and put another in its place",
            place.display(),
            around.display()
        )
    })
}

/// What the mount holds alone, for the evidence.
pub(super) fn note(tree: &Tree, policy: &Policy, entry: Entry, with_rights: bool) -> Option<String> {
    let (place, node) = entry;
    let shown = place.display();
    // What is not the channel's is a mask, whose content is empty anyway.
    let is_mask = node.is_built_in() || node.grant == Grant::Nothing && !node.is_shown();
    if is_mask {
        return None;
    }
    if !with_rights {
        let alone = matches!(node.grant, Grant::Write | Grant::Nothing);
        let locks = match node.content {
            Content::Cover { .. } => "; a lock taken on it is not the harness's",
            _ => "",
        };
        return alone.then(|| {
            format!("{shown}: can be opened for reading, as Landlock grants on no file here{locks}")
        });
    }
    let (around, outer) = tree.granter(entry)?;
    let holder = tree.holder(place)?;
    let alone = is_held_by_its_mount(policy, entry, holder) && inherits(node, outer);
    alone.then(|| {
        let around = around.display();
        format!("{shown}: held by its mount alone, as {around} is granted whole, until the host renames another over it")
    })
}
