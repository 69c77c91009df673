//! What no view may show: absent from a view that is read-only, masked in one
//! that is not.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::{Content, Node, Tree, at, made_up, wrong_kind};
use crate::error::Error;
use crate::host::{File, Host, Kind, Lookup};
use crate::plan::landlock::Grant;
use crate::policy::{self, Entry, Origin, Policy, ViewRole};
use crate::sys::fd::Identity;
use crate::sys::mount::{NO_EXEC, NO_SUID, READ_ONLY};

/// A path that is hidden, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Hidden {
    /// Its path on the host.
    pub path: String,
    /// The view that would show it, by its place in the cell.
    pub view: Option<String>,
    /// How.
    pub by: Means,
}

/// How a path is hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Means {
    /// No view would show it.
    NoView,
    /// The view is an overlay without it.
    Absent,
    /// An empty directory stands there, for what is shown below it.
    Emptied,
    /// Something empty stands there, and its name shows: the view is writable.
    Masked,
}

impl Means {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Means::NoView => "no-view",
            Means::Absent => "absent",
            Means::Emptied => "emptied",
            Means::Masked => "masked",
        }
    }
}

/// An overlay's upper layer, by the paths in the view.
pub(super) type Upper = BTreeMap<PathBuf, Over>;

/// One entry of an upper layer.
#[derive(Clone, Debug)]
pub(super) enum Over {
    /// A directory of this mode, in which the view shows through.
    Directory(u32),
    /// Nothing, whatever the view has there.
    Whiteout,
    /// A file of the cell's own.
    File(Arc<[u8]>),
}

/// The policy, where it also hides what of the system only some users may read.
pub(super) fn with_unreadable<'a>(policy: &'a Policy, host: &Host) -> Cow<'a, Policy> {
    if host.unreadable.is_empty() {
        return Cow::Borrowed(policy);
    }
    let origin = Origin("filesystem.system".into());
    let mut policy = policy.clone();
    let entries = host.unreadable.iter().map(|path| Entry { path: path.clone(), origin: origin.clone() });
    policy.run.hide.extend(entries);
    Cow::Owned(policy)
}

/// A view of the host, by its place.
struct View {
    place: PathBuf,
    source: PathBuf,
    file: File,
    is_writable: bool,
    /// What is laid over it already.
    upper: Upper,
    node: Node,
}

/// The host paths that the hiding rests on: the hidden ones and the views, with
/// what is above them, which a mount can have given a second name.
pub(super) fn paths(policy: &Policy) -> BTreeSet<PathBuf> {
    let hidden = policy.run.hide.iter().map(|entry| &*entry.path);
    let binds = binds(policy).map(|bind| bind.source).filter(|_| !policy.run.hide.is_empty());
    let paths: HashSet<&Path> = hidden.chain(binds).flat_map(Path::ancestors).collect();
    paths.into_iter().filter(|path| path.parent().is_some()).map(Path::to_owned).collect()
}

/// The directories of views that must be built of binds.
pub(super) fn to_list(policy: &Policy, host: &Host, view: &Path, source: &Path) -> Vec<PathBuf> {
    if !host.without_overlay.iter().any(|place| place == view) {
        return Vec::new();
    }
    let inside = policy.run.hide.iter().filter(|hidden| hidden.path.starts_with(source));
    let between = inside.flat_map(|hidden| {
        hidden.path.ancestors().skip(1).take_while(|above| above.starts_with(source)).map(Path::to_owned)
    });
    let own = (view == Path::new(made_up::ETC)).then(|| source.to_owned());
    between.chain(own).collect()
}

/// Refuses what contradicts the hidden paths.
pub(super) fn check(policy: &Policy, host: &Host) -> Result<(), Error> {
    for hidden in &policy.run.hide {
        check_path(hidden, host)?;
    }
    for bind in binds(policy) {
        if let Some(hidden) = hider(policy, bind.source) {
            return Err(at(bind.origin, format!("{} is hidden", bind.source.display()))
                .cause(format!("no view may show what lies in {} ({})", hidden.path.display(), hidden.origin))
                .remedy("expose it, where it is this run's own; else take one of the two away"));
        }
    }
    let hidden = policy.run.hidden();
    for view in policy.views() {
        let what = match view.role {
            ViewRole::Channel => "the channel",
            ViewRole::Read | ViewRole::Execute => "the channel's",
            ViewRole::Workspace if hidden.contains(view.source) => "the workspace",
            _ => continue,
        };
        refuse_revealing(policy, what, view.source, view.origin)?;
    }
    refuse_aliases(policy, host)
}

fn check_path(hidden: &Entry, host: &Host) -> Result<(), Error> {
    if ["/proc", "/dev"].iter().any(|own| hidden.path.starts_with(own)) {
        return Err(at(&hidden.origin, format!("{} is the cell's own", hidden.path.display()))
            .cause("/proc and /dev are always fresh, and what stands there is no file of the host's tree")
            .remedy("leave it out"));
    }
    let Lookup::Link { real, .. } = host.file(&hidden.path) else { return Ok(()) };
    let error = at(&hidden.origin, format!("{} is reached through a symbolic link", hidden.path.display()))
        .cause("what it leads to would show under its own name");
    Err(match real {
        Some((real, _)) => error.remedy(format!("hide {}", real.display())),
        None => error.remedy("hide the path of what is meant, through no link"),
    })
}

/// What is shown may not be what is hidden, nor hold it.
pub(super) fn refuse_revealing(
    policy: &Policy,
    what: &str,
    path: &Path,
    origin: &Origin,
) -> Result<(), Error> {
    match policy.run.hide.iter().find(|hidden| hidden.path.starts_with(path)) {
        None => Ok(()),
        Some(hidden) => {
            Err(at(origin, format!("{what} {} reveals {}", path.display(), hidden.path.display()))
                .cause(format!("that is hidden ({})", hidden.origin))
                .remedy("name only what lies below it and is this run's own"))
        }
    }
}

/// The hidden path that a view of `path` would show a part of: one that no entry
/// of the run's own between them takes out of it.
fn hider<'a>(policy: &'a Policy, path: &Path) -> Option<&'a Entry> {
    use ViewRole::{Channel, Exposure, Workspace};
    let is_taken_out = |hidden: &Entry| {
        let mut own = policy.views().filter(|view| matches!(view.role, Exposure | Channel | Workspace));
        own.any(|own| path.starts_with(own.source) && own.source.starts_with(&hidden.path))
    };
    policy.run.hide.iter().find(|hidden| path.starts_with(&hidden.path) && !is_taken_out(hidden))
}

/// The views of `filesystem`.
fn binds(policy: &Policy) -> impl Iterator<Item = policy::View<'_>> {
    policy.views().filter(|view| view.role.is_bind())
}

/// A mount can give one directory two paths.
fn refuse_aliases(policy: &Policy, host: &Host) -> Result<(), Error> {
    // What is hidden below each directory, and the directories by what they are.
    let mut below: HashMap<&Path, Vec<(usize, &Entry)>> = HashMap::new();
    for hidden in policy.run.hide.iter().enumerate() {
        for above in hidden.1.path.ancestors().filter(|above| above.parent().is_some()) {
            below.entry(above).or_default().push(hidden);
        }
    }
    let mut known: BTreeMap<Identity, Vec<&Path>> = BTreeMap::new();
    for above in below.keys() {
        if let Some(identity) = host.identity(above) {
            known.entry(identity).or_default().push(above);
        }
    }
    let named = |path: &Path| host.identity(path).and_then(|own| known.get(&own)).into_iter().flatten();
    for view in policy.views().filter(|view| !view.role.is_of_the_channel()) {
        let others = named(view.source).filter(|alias| **alias != view.source);
        let hidden = others.flat_map(|alias| below[alias].iter().map(move |hidden| (alias, hidden)));
        let hidden = hidden.filter(|(_, (_, hidden))| !hidden.path.starts_with(view.source));
        let first = hidden.min_by_key(|(alias, (number, _))| (*number, Reverse(alias.as_os_str().len())));
        if let Some((alias, (_, hidden))) = first {
            let (source, alias) = (view.source.display(), alias.display());
            return Err(at(view.origin, format!("{source} shows {} by another path", hidden.path.display()))
                .cause(format!("{source} and {alias} are one directory, mounted twice"))
                .remedy(format!("name it as {alias}")));
        }
    }
    for bind in binds(policy) {
        let others = bind.source.ancestors().flat_map(named);
        let hidden = others.flat_map(|path| below[path].iter().filter(|(_, hidden)| hidden.path == **path));
        let hidden = hidden.filter(|(_, hidden)| !bind.source.starts_with(&hidden.path));
        if let Some((_, hidden)) = hidden.min_by_key(|(number, _)| *number) {
            let (source, path) = (bind.source.display(), hidden.path.display());
            return Err(at(bind.origin, format!("{source} shows what lies in {path} by another path"))
                .cause(format!("a directory above {source} and {path} are one, mounted twice"))
                .remedy("take one of the two away"));
        }
    }
    Ok(())
}

/// Takes the hidden paths out of every view of the tree.
pub(super) fn apply(tree: &mut Tree, policy: &Policy) -> Result<Vec<Hidden>, Error> {
    // One that lies in another needs nothing of its own.
    let paths = policy.run.hidden();
    let is_outermost = |hidden: &&Entry| !hidden.path.ancestors().skip(1).any(|above| paths.contains(above));
    let outermost: BTreeMap<&Path, (usize, &Entry)> =
        (policy.run.hide.iter().filter(is_outermost).enumerate())
            .map(|(number, hidden)| (&*hidden.path, (number, hidden)))
            .collect();
    tree.nodes.retain(|_, node| match &node.content {
        Content::Bind { source, .. } if node.is_built_in() => {
            !source.ancestors().any(|above| paths.contains(above))
        }
        _ => true,
    });
    if outermost.is_empty()
        && !tree.nodes.values().any(|node| matches!(node.content, Content::Overlay { .. }))
    {
        return Ok(Vec::new());
    }
    let mut report = Vec::new();
    let mut shown: BTreeSet<&Path> = BTreeSet::new();
    for view in views(tree) {
        let mut upper = view.upper.clone();
        let mut is_touched = !upper.is_empty();
        let inside = outermost.range::<&Path, _>(&*view.source..);
        let inside = inside.map_while(|(path, hidden)| path.starts_with(&view.source).then_some(*hidden));
        let mut inside: Vec<(usize, &Entry)> = inside.collect();
        inside.sort_unstable_by_key(|(number, _)| *number);
        for (_, hidden) in inside {
            let Some(means) = hide_in(tree, &view, hidden, &mut upper)? else { continue };
            is_touched = true;
            if means == Means::Masked {
                let place = view.place.join(hidden.path.strip_prefix(&view.source).unwrap_or(&hidden.path));
                tree.notes.push(format!(
                    "{}: masked, and its name shows, as {} is writable; what the host puts in its place by rename is seen",
                    place.display(),
                    view.place.display()
                ));
            }
            shown.insert(&hidden.path);
            report.push(Hidden {
                path: hidden.path.display().to_string(),
                view: Some(view.place.display().to_string()),
                by: means,
            });
        }
        if is_touched && !view.is_writable {
            if tree.host.without_overlay.contains(&view.place) {
                rebuild(tree, policy, &view, upper);
            } else {
                let content = Content::Overlay { source: view.source, file: view.file, upper };
                tree.nodes.insert(view.place, Node { content, ..view.node });
            }
        }
    }
    for hidden in &policy.run.hide {
        if !hidden.path.ancestors().any(|above| shown.contains(above)) {
            let path = hidden.path.display().to_string();
            report.push(Hidden { path, view: None, by: Means::NoView });
        }
    }
    Ok(report)
}

fn views(tree: &Tree) -> Vec<View> {
    let view = |(place, node): (&PathBuf, &Node)| {
        let (source, file, upper, is_writable) = match &node.content {
            Content::Bind { source, file, attributes, .. } if file.kind == Kind::Directory => {
                (source, file, Upper::new(), attributes & READ_ONLY == 0)
            }
            // One that is to be without a name, which may have something to hide too.
            Content::Overlay { source, file, upper } => (source, file, upper.clone(), false),
            Content::Stubs { source, file, .. } => (source, file, Upper::new(), true),
            _ => return None,
        };
        let (place, source) = (place.clone(), source.clone());
        Some(View { place, source, file: *file, is_writable, upper, node: node.clone() })
    };
    tree.nodes.iter().filter_map(view).collect()
}

/// Hides one path in one view; `None` where the view does not show it.
fn hide_in(tree: &mut Tree, view: &View, hidden: &Entry, upper: &mut Upper) -> Result<Option<Means>, Error> {
    let Ok(below) = hidden.path.strip_prefix(&view.source) else { return Ok(None) };
    let place = view.place.join(below);
    // Something else stands there, or nearer to it.
    let is_shown = tree.holder(&place).is_some_and(|(holder, _)| holder == view.place);
    if tree.nodes.contains_key(&place) || !is_shown || below == Path::new("") {
        return Ok(None);
    }
    let found = tree.host.file(&hidden.path);
    // What lies below a place comes right behind it in the order of paths.
    let mut behind = tree.nodes.range(place.clone()..);
    let holds_something = behind.next().is_some_and(|(other, _)| other.starts_with(&place));
    let emptied = Node { content: Content::Sealed, grant: Grant::Nothing, origin: hidden.origin.clone() };
    if view.is_writable {
        let content = match found {
            Lookup::Found(file) if file.kind == Kind::Directory => Content::Sealed,
            Lookup::Found(_) => null(),
            _ => return Err(not_maskable(view, hidden)),
        };
        tree.nodes.insert(place, Node { content, ..emptied });
        return Ok(Some(Means::Masked));
    }
    if holds_something {
        if let Lookup::Found(file) = found
            && file.kind != Kind::Directory
        {
            return Err(wrong_kind(&hidden.path, file.kind, Kind::Directory.name(), &hidden.origin));
        }
        make_way(tree.host, view, below, upper);
        tree.nodes.insert(place, emptied);
        return Ok(Some(Means::Emptied));
    }
    white_out(tree.host, view, hidden, below, upper)?;
    Ok(Some(Means::Absent))
}

/// /dev/null, mounted once more.
fn null() -> Content {
    let attributes = READ_ONLY | NO_SUID | NO_EXEC;
    Content::Cover { source: "/dev/null".into(), inode: None, is_directory: false, attributes }
}

fn not_maskable(view: &View, hidden: &Entry) -> Error {
    let (path, around) = (hidden.path.display(), view.place.display());
    at(&hidden.origin, format!("{path} cannot be masked in the writable view {around}"))
        .cause("only what is there, and can be looked at, can be covered; what comes later would show")
        .remedy(format!(
            "make it on the host first, or show {around} read-only: {} makes it writable",
            view.node.origin
        ))
}

/// Directories down to a mount point that the view may lack.
fn make_way(host: &Host, view: &View, below: &Path, upper: &mut Upper) {
    for directory in down_to(below) {
        if !matches!(host.file(&view.source.join(directory)), Lookup::Found(_)) {
            upper.insert(directory.to_owned(), Over::Directory(0o755));
        }
    }
}

/// A whiteout at a path, or above it where the view ends: what is not there may
/// come. Not where a file stands on the way: that would be whited out with it,
/// or a directory in its place would show what is hidden.
fn white_out(host: &Host, view: &View, hidden: &Entry, below: &Path, upper: &mut Upper) -> Result<(), Error> {
    for part in down_to(below) {
        let path = view.source.join(part);
        match host.file(&path) {
            Lookup::Found(file) if part != below => {
                if file.kind != Kind::Directory {
                    return Err(wrong_kind(&path, file.kind, Kind::Directory.name(), &hidden.origin)
                        .cause(format!("{} is to be hidden, and lies below it", hidden.path.display()))
                        .remedy(format!("hide {}, or leave it out", path.display())));
                }
                // What is above the whiteout shows this directory's mode.
                upper.entry(part.to_owned()).or_insert(Over::Directory(file.mode));
            }
            _ => {
                upper.insert(part.to_owned(), Over::Whiteout);
                break;
            }
        }
    }
    Ok(())
}

/// `a`, `a/b`, `a/b/c`.
fn down_to(path: &Path) -> Vec<&Path> {
    let mut parts: Vec<&Path> = path.ancestors().filter(|part| *part != Path::new("")).collect();
    parts.reverse();
    parts
}

/// The view as a tmpfs, with a view for each entry that is not hidden; a plain
/// directory could not be made where it lies in another view.
fn rebuild(tree: &mut Tree, policy: &Policy, view: &View, upper: Upper) {
    tree.notes.push(format!(
        "{}: built of single binds, as the kernel refuses an overlay of {}; the mount table names what is in it",
        view.place.display(),
        view.source.display()
    ));
    tree.nodes.insert(view.place.clone(), Node { content: Content::Sealed, ..view.node.clone() });
    let absent: BTreeSet<PathBuf> = view
        .upper
        .iter()
        .filter(|(_, over)| matches!(over, Over::Whiteout))
        .map(|(below, _)| view.place.join(below))
        .collect();
    for (below, over) in upper {
        if let Over::File(content) = over {
            let node = Node { content: Content::File { content }, ..view.node.clone() };
            tree.nodes.insert(view.place.join(below), node);
        }
    }
    // A file system may know a name by other spellings than the policy's.
    let identity = |path: &Path| tree.host.identity(path);
    let hidden: BTreeSet<_> = policy.run.hide.iter().filter_map(|hidden| identity(&hidden.path)).collect();
    let listed: BTreeMap<_, _> =
        tree.host.listings.keys().filter_map(|path| Some((identity(path)?, path.clone()))).collect();
    let mut directories = vec![(view.place.clone(), view.source.clone())];
    while let Some((place, source)) = directories.pop() {
        for name in tree.host.listings.get(&source).into_iter().flatten() {
            let (place, source) = (place.join(name), source.join(name));
            let own = identity(&source);
            let is_hidden = policy.run.hides(&source) || own.is_some_and(|own| hidden.contains(&own));
            if tree.nodes.contains_key(&place) || is_hidden || absent.contains(&place) {
                continue;
            }
            if let Some(directory) = own.and_then(|own| listed.get(&own)) {
                // One that lies elsewhere is a mount of what is above something hidden.
                if directory.parent() == source.parent() {
                    let content = Content::Directory;
                    tree.nodes.insert(place.clone(), Node { content, ..view.node.clone() });
                    directories.push((place, directory.clone()));
                }
                continue;
            }
            let content = match tree.host.file(&source) {
                Lookup::Found(file) if file.kind != Kind::Device => Content::Bind {
                    source,
                    file,
                    to_be_made: false,
                    may_vanish: true,
                    attributes: READ_ONLY | super::VIEW,
                },
                // One that has no target any more is gone.
                Lookup::Link { target, .. } if target != Path::new("") => Content::Symlink { target },
                // Gone since, or nothing that a view shows.
                _ => continue,
            };
            tree.nodes.insert(place, Node { content, ..view.node.clone() });
        }
    }
}
