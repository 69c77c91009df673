//! The file tree: what stands where in the cell, in which order it is mounted,
//! and what Landlock grants on it.

mod channel;
mod dev;
mod hide;
mod made_up;
mod overlap;
mod proc;
mod protect;
mod scope;
mod steps;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::landlock::Grant;
use super::{Prepare, Text};
use crate::error::Error;
use crate::host::{File, Host, Kind, Lookup, SystemEntry};
use crate::policy::{NetworkMode, Origin, Policy, System};
use crate::sys::Errno;
use crate::sys::mount::{Attributes, NO_DEV, NO_SUID, READ_ONLY};
pub use dev::DEVICES;
pub use hide::{Hidden, Means};
pub use proc::MASKS as PROC_MASKS;
pub(super) use steps::Built;

/// One entry of the tree.
#[derive(Clone, Debug)]
struct Node {
    content: Content,
    grant: Grant,
    origin: Origin,
}

impl Node {
    fn is_built_in(&self) -> bool {
        self.origin.0 == BUILT_IN
    }

    /// Whether it shows a file of the host, itself or through an overlay.
    fn is_shown(&self) -> bool {
        self.content.is_of_the_host() || matches!(self.content, Content::Cover { inode: Some(_), .. })
    }
}

/// The origin of what every cell has.
const BUILT_IN: &str = "built in";

#[derive(Clone, Debug)]
enum Content {
    /// A view of the host.
    Bind {
        source: PathBuf,
        file: File,
        to_be_made: bool,
        /// One of many that nobody named.
        may_vanish: bool,
        attributes: Attributes,
    },
    /// A read-only view by inodes of the cell's own, with another layer over it.
    Overlay {
        source: PathBuf,
        file: File,
        upper: hide::Upper,
    },
    /// A writable view in which paths that the host lacks are there, and empty:
    /// directories where the flag is set, else files.
    Stubs {
        source: PathBuf,
        file: File,
        /// The directory that holds it, and the overlay's work directory too.
        parent: (PathBuf, File),
        work: PathBuf,
        stubs: Vec<(PathBuf, bool)>,
    },
    /// A tmpfs that holds mount points alone, and is made read-only.
    Sealed,
    /// A fresh file system.
    Fresh {
        filesystem: &'static str,
        options: Vec<(&'static str, String)>,
        attributes: Attributes,
    },
    /// A path of the new tree, over itself or over another.
    Cover {
        source: PathBuf,
        inode: Option<u64>,
        is_directory: bool,
        attributes: Attributes,
    },
    /// In the root's own tmpfs.
    Directory,
    Symlink {
        target: PathBuf,
    },
    File {
        content: Arc<[u8]>,
    },
}

impl Content {
    fn is_directory(&self) -> bool {
        match self {
            Content::Bind { file, .. } => file.kind == Kind::Directory,
            Content::Overlay { .. } | Content::Stubs { .. } => true,
            Content::Fresh { .. } | Content::Sealed | Content::Directory => true,
            Content::Cover { is_directory, .. } => *is_directory,
            // Nothing stands in it either way.
            Content::Symlink { .. } | Content::File { .. } => false,
        }
    }

    fn is_of_the_host(&self) -> bool {
        self.source().is_some()
    }

    /// What of the host it shows.
    fn source(&self) -> Option<&Path> {
        match self {
            Content::Bind { source, .. }
            | Content::Overlay { source, .. }
            | Content::Stubs { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Whether the launcher makes `path` on the host for it.
    fn makes(&self, path: &Path) -> bool {
        matches!(self, Content::Bind { to_be_made: true, source, .. } if source == path)
    }

    /// Whether what lies below it is there already, and not ours to make.
    fn shows_what_is_there(&self) -> bool {
        match self {
            Content::Bind { .. }
            | Content::Overlay { .. }
            | Content::Stubs { .. }
            | Content::Cover { .. } => true,
            Content::Fresh { filesystem, .. } => *filesystem != TMPFS,
            Content::Sealed | Content::Directory | Content::Symlink { .. } | Content::File { .. } => false,
        }
    }
}

const TMPFS: &str = "tmpfs";

/// The host paths that must be looked up before the tree can be planned: every
/// source, and every mount point that lies in a view of the host. Each once, as
/// each is asked of the kernel.
pub fn paths(policy: &Policy) -> BTreeSet<PathBuf> {
    let by_place: HashMap<&Path, &Path> = policy.views().map(|view| (view.place, view.source)).collect();
    let mut paths: BTreeSet<PathBuf> = by_place.values().map(|source| source.to_path_buf()).collect();
    let tmpfs = policy.filesystem.tmpfs.iter().map(|tmpfs| &*tmpfs.path);
    for place in policy.views().map(|view| view.place).chain(tmpfs) {
        let nearest = place.ancestors().skip(1).find_map(|above| Some((above, by_place.get(above)?)));
        let Some((view, source)) = nearest else {
            // It may lie in a view of the system, which shows the host's own path.
            paths.insert(place.to_owned());
            continue;
        };
        let within = place.ancestors().take_while(|above| *above != view);
        paths.extend(within.filter_map(|above| above.strip_prefix(view).ok()).map(|rest| source.join(rest)));
    }
    paths.extend(dev::paths(policy));
    paths.extend(hide::paths(policy));
    paths.extend(protect::paths(policy));
    paths.extend(policy.run.create.iter().map(|entry| entry.path.clone()));
    paths
}

/// Refuses what contradicts itself, as far as this host's facts tell.
pub(super) fn check(policy: &Policy, host: &Host) -> Result<(), Error> {
    hide::check(policy, host)?;
    scope::check(policy, host)
}

/// Plans the tree; `with_rights` where Landlock grants on files.
pub(super) fn build(policy: &Policy, host: &Host, with_rights: bool) -> Result<Built, Error> {
    check(policy, host)?;
    let mut tree = Tree::new(host);
    tree.own_directories(policy);
    if policy.filesystem.system != System::None {
        tree.system(policy);
    }
    tree.proc(policy.mode);
    tree.dev(policy)?;
    let mut asked = Tree::new(host);
    asked.filesystem(policy)?;
    asked.exposures(policy)?;
    asked.shared_directories(policy)?;
    asked.channel(policy)?;
    asked.workspace(policy)?;
    asked.protect(policy)?;
    for (place, node) in &asked.nodes {
        if ["/proc", "/dev"].iter().any(|own| place.starts_with(own)) {
            return Err(at(&node.origin, format!("{} is the cell's own", place.display()))
                .remedy("put the entry elsewhere: /proc and /dev are always fresh"));
        }
    }
    let own = asked.nodes.contains_key(Path::new(made_up::ETC)).then(|| made_up::over_etc(&tree));
    // A view that is asked for shows what it has, with nothing built in laid
    // over it but the cell's own files of /etc, and the one link that is a mere convenience gives way to what
    // needs a directory there.
    // But for the home, without which HOME would lead nowhere.
    let is_view = |place: &Path| asked.nodes.get(place).is_some_and(|node| node.content.is_of_the_host());
    tree.nodes.retain(|place, _| *place == policy.cell.home || !place.ancestors().any(is_view));
    if asked.nodes.keys().any(|place| place.starts_with(VAR_TMP)) {
        tree.nodes.remove(Path::new(VAR_TMP));
    }
    tree.nodes.extend(asked.nodes);
    tree.work(policy);
    (tree.prepare, tree.notes, tree.work_directory) = (asked.prepare, asked.notes, asked.work_directory);
    if let Some(own) = own {
        made_up::lay_over(&mut tree, policy, own);
    }
    tree.names_of_links(policy);
    tree.devices(policy)?;
    let hidden = hide::apply(&mut tree, &hide::with_unreadable(policy, host))?;
    overlap::pin_parents(&mut tree)?;
    steps::order(tree, policy, with_rights, hidden)
}

/// The directories whose entries must be known, beside [`paths`], where an
/// overlay was refused.
pub fn to_list(policy: &Policy, host: &Host) -> Vec<PathBuf> {
    let system = host.system.iter().filter_map(|(place, entry)| match entry {
        SystemEntry::View(real, _) => Some((&**real, &**place)),
        SystemEntry::Link(_) | SystemEntry::Copy(_) => None,
    });
    let views = policy.views().map(|view| (view.source, view.place)).chain(system);
    let hiding = hide::with_unreadable(policy, host);
    views.flat_map(|(source, place)| hide::to_list(&hiding, host, place, source)).collect()
}

struct Tree<'a> {
    /// By place; the order of a `BTreeMap` of paths puts what holds before what
    /// is held.
    nodes: BTreeMap<PathBuf, Node>,
    host: &'a Host,
    /// What the launcher has to make on the host first.
    prepare: Vec<Prepare>,
    /// What a layer holds alone where two should.
    notes: Vec<String>,
    /// The overlay's own directory beside the workspace.
    work_directory: Option<PathBuf>,
}

/// Programs that want files to outlast a reboot need not have that in a cell.
const VAR_TMP: &str = "/var/tmp";

/// Where scripts look for the workspace, whatever its path.
const WORK: &str = "/work";

const VIEW: Attributes = NO_SUID | NO_DEV;

impl<'a> Tree<'a> {
    fn new(host: &'a Host) -> Tree<'a> {
        Tree { nodes: BTreeMap::new(), host, prepare: Vec::new(), notes: Vec::new(), work_directory: None }
    }

    fn put(
        &mut self,
        place: impl Into<PathBuf>,
        content: Content,
        grant: Grant,
        origin: &Origin,
    ) -> Result<(), Error> {
        let place = place.into();
        if place == Path::new("/") {
            return Err(at(origin, "the root of the cell cannot be a view")
                .cause("it is built of single entries, so that nothing is seen that was not named")
                .remedy("name the directories that are needed"));
        }
        let node = Node { content, grant, origin: origin.clone() };
        match self.nodes.insert(place.clone(), node) {
            Some(former) => Err(at(origin, format!("two entries on {}", place.display()))
                .cause(format!("the other is {}", former.origin))
                .remedy("remove one of them")),
            None => Ok(()),
        }
    }

    fn put_own(&mut self, place: impl Into<PathBuf>, content: Content, grant: Grant) {
        self.nodes.insert(place.into(), Node { content, grant, origin: Origin(BUILT_IN.into()) });
    }

    fn own_directories(&mut self, policy: &Policy) {
        let home = Node {
            content: tmpfs(policy.limits.tmp, 0o700, VIEW),
            grant: Grant::ReadWrite,
            origin: Origin("cell.home".into()),
        };
        self.nodes.insert(policy.cell.home.clone(), home);
        self.put_own("/tmp", tmpfs(policy.limits.tmp, 0o1777, VIEW), Grant::ReadWrite);
        self.put_own(VAR_TMP, Content::Symlink { target: "../tmp".into() }, Grant::Nothing);
        self.put_own("/run", Content::Directory, Grant::Nothing);
    }

    /// A workspace at its own path is found at `/work` too, unless something else
    /// is there.
    fn work(&mut self, policy: &Policy) {
        let Some(workspace) = policy.workspace.as_ref().filter(|workspace| workspace.at == workspace.dir)
        else {
            return;
        };
        if !self.nodes.contains_key(Path::new(WORK)) && !workspace.at.starts_with(WORK) {
            let target = workspace.at.clone();
            self.put_own(WORK, Content::Symlink { target }, Grant::Nothing);
        }
    }

    /// What the host has of it, and the cell's own files of `/etc`.
    fn system(&mut self, policy: &Policy) {
        let hidden = policy.run.hidden();
        for (path, entry) in &self.host.system {
            // Without a network there is nobody to ask, and no other host to name.
            let names_hosts = ["/etc/resolv.conf", "/etc/hosts"].iter().any(|name| path == Path::new(name));
            if names_hosts && policy.network.mode == NetworkMode::None
                || path.ancestors().any(|above| hidden.contains(above))
            {
                continue;
            }
            let is_settings = ["/etc", "/var", "/sys"].iter().any(|settings| path.starts_with(settings));
            let grant = if is_settings { Grant::Read } else { Grant::ReadExecute };
            match entry {
                SystemEntry::Link(target) => {
                    self.put_own(path, Content::Symlink { target: target.clone() }, Grant::Nothing);
                }
                SystemEntry::View(real, file) => {
                    self.put_own(path, bind(real, *file, READ_ONLY | VIEW), grant)
                }
                SystemEntry::Copy(content) => {
                    self.put_own(path, Content::File { content: content.clone() }, Grant::Nothing);
                }
            }
        }
        self.put_own("/etc", Content::Directory, Grant::Read);
        // Programs look here for limits: there is none to see.
        self.put_own("/sys/fs/cgroup", Content::Directory, Grant::Read);
        for (path, content) in made_up::files(policy, self.host.ids) {
            if self.nodes.contains_key(Path::new(path)) {
                continue;
            }
            self.put_own(path, Content::File { content: content.into_bytes().into() }, Grant::Nothing);
        }
    }

    fn filesystem(&mut self, policy: &Policy) -> Result<(), Error> {
        let filesystem = &policy.filesystem;
        let read_only = filesystem.ro_bind.iter().map(|bind| (bind, READ_ONLY | VIEW, Grant::ReadExecute));
        let writable = filesystem.bind.iter().map(|bind| (bind, VIEW, Grant::ReadWrite));
        for (entry, attributes, grant) in read_only.chain(writable) {
            if entry.optional && self.host.file(&entry.src) == Lookup::Missing {
                continue;
            }
            let file = self.find(&entry.src, &entry.origin)?;
            match file.kind {
                Kind::Fifo => {
                    return Err(at(&entry.origin, format!("{} is a FIFO", entry.src.display()))
                        .cause("a view is a directory or a file; a FIFO takes writes by a right of its own")
                        .remedy("name its directory as `[channel] dir` and the FIFO under `fifo`"));
                }
                Kind::Device => {
                    return Err(at(&entry.origin, format!("{} is a device", entry.src.display()))
                        .cause(
                            "a view of the host holds no device; a cell has its own null, zero, random, tty",
                        )
                        .remedy(format!("grant it by name: --device {}", entry.src.display())));
                }
                Kind::Directory | Kind::File | Kind::Socket => {}
            }
            let content = match entry.overlay {
                true => self.overlay(&entry.src, file, &entry.dest, &entry.origin)?,
                false => bind(&entry.src, file, attributes),
            };
            self.put(&entry.dest, content, grant, &entry.origin)?;
        }
        for entry in &filesystem.tmpfs {
            self.put(
                &entry.path,
                tmpfs(entry.size.or(policy.limits.tmp), 0o1777, VIEW),
                Grant::ReadWrite,
                &entry.origin,
            )?;
        }
        Ok(())
    }

    /// A read-only view that the mount table does not name the source of.
    fn overlay(&self, source: &Path, file: File, place: &Path, origin: &Origin) -> Result<Content, Error> {
        if file.kind != Kind::Directory {
            return Err(wrong_kind(source, file.kind, "a directory for an overlay", origin));
        }
        if self.host.without_overlay.iter().any(|other| other == place) {
            return Err(at(origin, format!("the kernel refuses an overlay of {}", source.display()))
                .cause("something is mounted below it, or its file system cannot be a layer")
                .remedy("show what is mounted there by an entry of its own, or leave `overlay` out"));
        }
        Ok(Content::Overlay { source: source.to_owned(), file, upper: Default::default() })
    }

    /// A source, which must be there and be reached through no symbolic link.
    fn find(&self, path: &Path, origin: &Origin) -> Result<File, Error> {
        let shown = path.display();
        match self.host.file(path) {
            Lookup::Found(file) if file.is_on_proc => {
                Err(at(origin, format!("{shown} shows the host's processes"))
                    .cause("their command lines and environments can be read there")
                    .remedy("leave it out: a cell has a /proc of its own"))
            }
            Lookup::Found(file) => Ok(file),
            Lookup::Missing => Err(at(origin, format!("{shown} does not exist"))
                .remedy("correct the path, or make it before the run")),
            Lookup::Link { real: Some((real, _)), .. } => {
                Err(at(origin, format!("{shown} is reached through a symbolic link"))
                    .cause("who can write beside a link decides where it leads")
                    .remedy(format!("write {}", real.display())))
            }
            Lookup::Link { real: None, .. } => {
                Err(at(origin, format!("{shown} is reached through a symbolic link that leads nowhere"))
                    .remedy("write the path of what is meant, through no link"))
            }
            Lookup::Failed(errno) => {
                let error = at(origin, format!("{shown} cannot be looked at")).errno(errno);
                Err(match errno {
                    Errno::EACCES => error
                        .cause("the user that the cell runs as may not enter a directory of that path")
                        .remedy("give that user search permission (chmod o+x), or move the tree"),
                    Errno::ENOSYS => error
                        .cause(
                            "openat2(2) is refused: by the filter of another sandbox or of a systemd unit \
                             (RestrictSUIDSGID=, which DynamicUser= sets too), or by a kernel before 5.6",
                        )
                        .remedy(
                            "set RestrictSUIDSGID=no and DynamicUser=no in the unit, or start outside of that \
                             sandbox; a cell starts inside a cell of mode nested",
                        ),
                    Errno::ENAMETOOLONG => {
                        error.remedy("write a shorter path: a name has at most 255 bytes, a path 4095")
                    }
                    _ => error,
                })
            }
        }
    }

    fn find_kind(&self, path: &Path, wanted: Kind, origin: &Origin) -> Result<File, Error> {
        let file = self.find(path, origin).map_err(|error| match (self.host.file(path), wanted) {
            (Lookup::Missing, Kind::Fifo) => error.remedy(format!("mkfifo {}", path.display())),
            _ => error,
        })?;
        if file.kind == wanted {
            return Ok(file);
        }
        Err(wrong_kind(path, file.kind, wanted.name(), origin))
    }

    /// The nearest entry around this one that grants more on files than it does:
    /// Landlock adds up along the whole path.
    fn granter(&self, (place, node): (&Path, &Node)) -> Option<(&Path, &Node)> {
        let around = place.ancestors().skip(1).filter_map(|above| self.nodes.get_key_value(above));
        around
            .map(|(place, outer)| (place.as_path(), outer))
            .find(|(_, outer)| overlap::inherits(node, outer))
    }

    /// Every entry in order, with those that it lies in, the nearest last.
    fn each<'t>(
        &'t self,
        mut tell: impl FnMut(&'t Path, &'t Node, &[(&'t Path, &'t Node)]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut around: Vec<(&Path, &Node)> = Vec::new();
        for (place, node) in &self.nodes {
            while around.pop_if(|(outer, _)| !place.starts_with(outer)).is_some() {}
            tell(place, node, &around)?;
            around.push((place, node));
        }
        Ok(())
    }

    /// The nearest entry that `place` lies in.
    fn holder(&self, place: &Path) -> Option<(&Path, &Node)> {
        place
            .ancestors()
            .skip(1)
            .find_map(|above| self.nodes.get_key_value(above))
            .map(|(place, node)| (place.as_path(), node))
    }
}

fn at(origin: &Origin, what: impl std::fmt::Display) -> Error {
    Error::new("policy", format!("{origin}: {what}"))
}

fn wrong_kind(path: &Path, kind: Kind, wanted: &str, origin: &Origin) -> Error {
    let error = at(origin, format!("{} is {}, where {wanted} is needed", path.display(), kind.name()));
    match kind {
        Kind::Fifo | Kind::Socket => error
            .cause("the provider reads and makes files below this path, and only a directory holds any")
            .remedy("grant the private directory that holds it, and name the FIFO under `[channel] fifo`"),
        _ => error.remedy(format!("name {wanted} in its place")),
    }
}

fn bind(source: &Path, file: File, attributes: Attributes) -> Content {
    Content::Bind { source: source.to_owned(), file, to_be_made: false, may_vanish: false, attributes }
}

fn to_be_made(source: &Path, kind: Kind) -> Content {
    let identity = crate::sys::fd::Identity { device: 0, inode: 0 };
    Content::Bind {
        source: source.to_owned(),
        file: File { identity, kind, character_device: None, is_on_proc: false, mode: 0o700, owner: 0 },
        to_be_made: true,
        may_vanish: false,
        attributes: VIEW,
    }
}

fn tmpfs(size: Option<u64>, mode: u32, attributes: Attributes) -> Content {
    let mut options = vec![("mode", format!("{mode:04o}"))];
    options.extend(size.map(|size| ("size", size.to_string())));
    Content::Fresh { filesystem: TMPFS, options, attributes }
}

fn text(path: &Path) -> Result<Text, Error> {
    text_of(path.as_os_str().as_bytes())
}

fn text_of(bytes: impl Into<Vec<u8>>) -> Result<Text, Error> {
    CString::new(bytes).map(Text::from).map_err(|error| {
        Error::new("policy", format!("{:?} holds a NUL byte", String::from_utf8_lossy(&error.into_vec())))
    })
}
