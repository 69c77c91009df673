//! The file tree: what stands where in the cell, in which order it is mounted,
//! and what Landlock grants on it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::landlock::{Grant, allow};
use super::step::{Stage, Step};
use super::{Text, made_up};
use crate::error::Error;
use crate::host::{File, Host, Kind, Lookup};
use crate::policy::{Access, ExposeKind, LockAccess, Mode, NetworkMode, Origin, Policy, System};
use crate::sys::Errno;
use crate::sys::mount::{Attributes, NO_DEV, NO_EXEC, NO_SUID, READ_ONLY};

/// One entry of the tree.
#[derive(Clone, Debug)]
struct Node {
    content: Content,
    grant: Grant,
    origin: Origin,
}

#[derive(Clone, Debug)]
enum Content {
    /// A view of the host.
    Bind {
        source: PathBuf,
        file: File,
        to_be_made: bool,
        attributes: Attributes,
    },
    /// A memory file system.
    Tmpfs {
        size: Option<u64>,
        mode: u32,
        attributes: Attributes,
    },
    /// Another fresh file system.
    Fresh {
        filesystem: &'static str,
        options: Vec<(Text, Text)>,
        attributes: Attributes,
    },
    /// A path of the new tree, over itself or over another.
    Cover {
        source: PathBuf,
        is_directory: bool,
        attributes: Attributes,
    },
    /// In the root's own tmpfs.
    Directory,
    Symlink {
        target: PathBuf,
    },
    File {
        content: Vec<u8>,
    },
}

impl Content {
    fn is_directory(&self) -> bool {
        match self {
            Content::Bind { file, .. } => file.kind == Kind::Directory,
            Content::Tmpfs { .. } | Content::Fresh { .. } | Content::Directory => true,
            Content::Cover { is_directory, .. } => *is_directory,
            Content::Symlink { .. } | Content::File { .. } => false,
        }
    }

    fn is_mounted(&self) -> bool {
        !matches!(
            self,
            Content::Directory | Content::Symlink { .. } | Content::File { .. }
        )
    }
}

/// The mounts and the Landlock rules, in the order of the kernel's needs.
pub(super) struct Built {
    pub mounts: Vec<Step>,
    /// Covers come last: a mask shows a device that is bound after `/proc`.
    pub covers: Vec<Step>,
    pub rules: Vec<Step>,
    pub notes: Vec<String>,
}

/// The host paths that must be looked up before the tree can be planned: every
/// source, and every mount point that lies in a view of the host.
pub fn paths(policy: &Policy) -> Vec<PathBuf> {
    let views: Vec<(&Path, &Path)> = views(policy).collect();
    let mut paths: Vec<PathBuf> = views
        .iter()
        .map(|(source, _)| source.to_path_buf())
        .collect();
    let places = views.iter().map(|(_, place)| *place);
    let places = places.chain(
        policy
            .filesystem
            .tmpfs
            .iter()
            .map(|tmpfs| tmpfs.path.as_path()),
    );
    for place in places {
        let below = views
            .iter()
            .filter(|(_, view)| place != *view && place.starts_with(view));
        let nearest = below.max_by_key(|(_, view)| view.components().count());
        if let Some((source, view)) = nearest {
            paths.extend(place.strip_prefix(view).ok().map(|rest| source.join(rest)));
        }
    }
    paths.extend(DEVICES.map(|name| Path::new("/dev").join(name)));
    paths
}

/// Every view of the host that a policy asks for: its source and its place.
fn views(policy: &Policy) -> impl Iterator<Item = (&Path, &Path)> {
    let filesystem = &policy.filesystem;
    let binds = filesystem
        .ro_bind
        .iter()
        .chain(&filesystem.bind)
        .map(|bind| (&*bind.src, &*bind.dest));
    let exposures = policy
        .run
        .expose
        .iter()
        .map(|expose| (&*expose.path, &*expose.path));
    let channel = policy.channel.iter().flat_map(|channel| {
        let entries = [
            &channel.fifo,
            &channel.lock,
            &channel.read_only,
            &channel.execute,
        ]
        .into_iter()
        .flatten();
        [&*channel.dir]
            .into_iter()
            .chain(entries.map(|entry| &*entry.path))
            .map(|path| (path, path))
    });
    let workspace = policy
        .workspace
        .iter()
        .map(|workspace| (&*workspace.dir, &*workspace.at));
    binds.chain(exposures).chain(channel).chain(workspace)
}

/// Plans the tree.
pub(super) fn build(policy: &Policy, host: &Host) -> Result<Built, Error> {
    let mut tree = Tree {
        nodes: BTreeMap::new(),
        host,
    };
    tree.own_directories(policy);
    if policy.filesystem.system == System::Minimal {
        tree.system(policy)?;
    }
    tree.proc(policy.mode);
    tree.dev()?;
    let mut asked = Tree {
        nodes: BTreeMap::new(),
        host,
    };
    asked.filesystem(policy)?;
    asked.exposures(policy)?;
    asked.channel(policy)?;
    asked.workspace(policy)?;
    for (place, node) in &asked.nodes {
        if ["/proc", "/dev"].iter().any(|own| place.starts_with(own)) {
            return Err(at(
                &node.origin,
                format!("{} is the cell's own", place.display()),
            )
            .remedy("put the entry elsewhere: /proc and /dev are always fresh"));
        }
    }
    // An entry of the policy takes the place of a built-in one, and of a link
    // that its path would go through.
    let var_tmp = Path::new("/var/tmp");
    if asked.nodes.keys().any(|place| place.starts_with(var_tmp)) {
        tree.nodes.remove(var_tmp);
    }
    // What lies below one goes too: the policy says what is seen there. But for
    // the home, without which HOME would lead nowhere.
    tree.nodes.retain(|place, _| {
        let mut above = asked.nodes.keys();
        *place == policy.cell.home || !above.any(|asked| place.starts_with(asked))
    });
    tree.nodes.extend(asked.nodes);
    tree.steps(policy)
}

struct Tree<'a> {
    /// By place; the order of a `BTreeMap` of paths puts what holds before what
    /// is held.
    nodes: BTreeMap<PathBuf, Node>,
    host: &'a Host,
}

/// The device nodes of every cell.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const VIEW: Attributes = NO_SUID | NO_DEV;

impl Tree<'_> {
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
        let node = Node {
            content,
            grant,
            origin: origin.clone(),
        };
        match self.nodes.insert(place.clone(), node) {
            Some(former) => Err(at(origin, format!("two entries on {}", place.display()))
                .cause(format!("the other is {}", former.origin))
                .remedy("remove one of them")),
            None => Ok(()),
        }
    }

    fn put_own(&mut self, place: impl Into<PathBuf>, content: Content, grant: Grant) {
        self.nodes.insert(
            place.into(),
            Node {
                content,
                grant,
                origin: Origin("built in".into()),
            },
        );
    }

    fn own_directories(&mut self, policy: &Policy) {
        let home = &policy.cell.home;
        let node = Node {
            content: tmpfs(None, 0o700, VIEW),
            grant: Grant::ReadWrite,
            origin: Origin("cell.home".into()),
        };
        self.nodes.insert(home.clone(), node);
        self.put_own("/tmp", tmpfs(None, 0o1777, VIEW), Grant::ReadWrite);
        self.put_own(
            "/var/tmp",
            Content::Symlink {
                target: "../tmp".into(),
            },
            Grant::Nothing,
        );
        self.put_own("/run", Content::Directory, Grant::Nothing);
    }

    /// `/usr` and its links, and what `/etc` needs to hold.
    fn system(&mut self, policy: &Policy) -> Result<(), Error> {
        for (path, lookup) in &self.host.system {
            // Without a network a resolver has nobody to ask.
            if path == Path::new("/etc/resolv.conf") && policy.network.mode == NetworkMode::None {
                continue;
            }
            let grant = if path.starts_with("/etc") {
                Grant::Read
            } else {
                Grant::ReadExecute
            };
            match lookup {
                Lookup::Link {
                    target,
                    real: Some((real, _)),
                } if real.starts_with("/usr") => {
                    self.put_own(
                        path,
                        Content::Symlink {
                            target: target.clone(),
                        },
                        Grant::Nothing,
                    );
                }
                Lookup::Link {
                    real: Some((real, file)),
                    ..
                } => {
                    self.put_own(path, bind(real, *file, READ_ONLY | VIEW), grant);
                }
                Lookup::Found(file) => {
                    self.put_own(path, bind(path, *file, READ_ONLY | VIEW), grant)
                }
                Lookup::Link { real: None, .. } | Lookup::Missing | Lookup::Failed(_) => {}
            }
        }
        self.put_own("/etc", Content::Directory, Grant::Read);
        for (path, content) in made_up::files(policy, self.host.ids) {
            self.put_own(
                path,
                Content::File {
                    content: content.into_bytes(),
                },
                Grant::Nothing,
            );
        }
        Ok(())
    }

    fn proc(&mut self, mode: Mode) {
        // Without ptrace rights over a process its directory is not there at all
        // (proc(5)); PID 1 is non-dumpable, so nobody in the cell has them.
        let options = vec![(c"hidepid".into(), c"ptraceable".into())];
        let attributes = NO_SUID | NO_DEV | NO_EXEC;
        self.put_own(
            "/proc",
            Content::Fresh {
                filesystem: "proc",
                options,
                attributes,
            },
            Grant::Read,
        );
        if mode == Mode::Nested {
            // One covered entry makes the kernel refuse an inner /proc
            // (mount_too_revealing).
            return;
        }
        for name in &self.host.proc_masks {
            let source = "/dev/null".into();
            let attributes = READ_ONLY | NO_SUID | NO_EXEC;
            let mask = Content::Cover {
                source,
                is_directory: false,
                attributes,
            };
            self.put_own(Path::new("/proc").join(name), mask, Grant::Nothing);
        }
        let attributes = READ_ONLY | NO_SUID | NO_DEV | NO_EXEC;
        let sys = Content::Cover {
            source: "/proc/sys".into(),
            is_directory: true,
            attributes,
        };
        self.put_own("/proc/sys", sys, Grant::Nothing);
    }

    fn dev(&mut self) -> Result<(), Error> {
        self.put_own("/dev", Content::Directory, Grant::List);
        for name in DEVICES {
            let path = Path::new("/dev").join(name);
            let Lookup::Found(file) = self.host.file(&path) else {
                return Err(
                    Error::new("dev", format!("the host has no {}", path.display()))
                        .remedy("start cellblock where /dev holds the usual devices"),
                );
            };
            self.put_own(&path, bind(&path, file, NO_SUID | NO_EXEC), Grant::Device);
        }
        let pts = vec![
            (c"mode".into(), c"0620".into()),
            (c"ptmxmode".into(), c"0666".into()),
        ];
        let pts = Content::Fresh {
            filesystem: "devpts",
            options: pts,
            attributes: NO_SUID | NO_EXEC,
        };
        self.put_own("/dev/pts", pts, Grant::Device);
        self.put_own(
            "/dev/shm",
            tmpfs(None, 0o1777, VIEW | NO_EXEC),
            Grant::ReadWrite,
        );
        for (name, target) in [
            ("ptmx", "pts/ptmx"),
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ] {
            let link = Content::Symlink {
                target: target.into(),
            };
            self.put_own(Path::new("/dev").join(name), link, Grant::Nothing);
        }
        Ok(())
    }

    fn filesystem(&mut self, policy: &Policy) -> Result<(), Error> {
        let filesystem = &policy.filesystem;
        let read_only = filesystem
            .ro_bind
            .iter()
            .map(|bind| (bind, READ_ONLY | VIEW, Grant::ReadExecute));
        let writable = filesystem
            .bind
            .iter()
            .map(|bind| (bind, VIEW, Grant::ReadWrite));
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
                    return Err(at(
                        &entry.origin,
                        format!("{} is a device", entry.src.display()),
                    )
                    .cause("no view of the host may hold a device")
                    .remedy(format!(
                        "leave it out: of devices a cell has its own {}",
                        DEVICES.join(", ")
                    )));
                }
                Kind::Directory | Kind::File | Kind::Socket => {}
            }
            self.put(
                &entry.dest,
                bind(&entry.src, file, attributes),
                grant,
                &entry.origin,
            )?;
        }
        for entry in &filesystem.tmpfs {
            self.put(
                &entry.path,
                tmpfs(entry.size, 0o1777, VIEW),
                Grant::ReadWrite,
                &entry.origin,
            )?;
        }
        Ok(())
    }

    fn exposures(&mut self, policy: &Policy) -> Result<(), Error> {
        for entry in &policy.run.expose {
            let kind = match entry.kind {
                ExposeKind::Directory => Kind::Directory,
                ExposeKind::File => Kind::File,
            };
            self.refuse_wide_exposure(policy, &entry.path, &entry.origin)?;
            let content = if entry.create && self.host.file(&entry.path) == Lookup::Missing {
                to_be_made(&entry.path, kind)
            } else {
                bind(
                    &entry.path,
                    self.find_kind(&entry.path, kind, &entry.origin)?,
                    VIEW,
                )
            };
            self.put(&entry.path, content, Grant::ReadWrite, &entry.origin)?;
        }
        Ok(())
    }

    /// An exposure that holds others would show what they are carved out of.
    fn refuse_wide_exposure(
        &self,
        policy: &Policy,
        path: &Path,
        origin: &Origin,
    ) -> Result<(), Error> {
        let inner = views(policy)
            .map(|(source, _)| source)
            .find(|other| *other != path && other.starts_with(path));
        match inner {
            None => Ok(()),
            Some(inner) => Err(at(
                origin,
                format!("the exposure {} holds {}", path.display(), inner.display()),
            )
            .cause("what it shows cannot be taken away again below it")
            .remedy("expose the run's own directories one by one")),
        }
    }

    fn channel(&mut self, policy: &Policy) -> Result<(), Error> {
        let Some(channel) = &policy.channel else {
            return Ok(());
        };
        let dir = self.find_kind(&channel.dir, Kind::Directory, &channel.origin)?;
        let (attributes, grant) = if channel.replaceable {
            (VIEW, Grant::ReadWrite)
        } else {
            (READ_ONLY | VIEW, Grant::List)
        };
        self.put(
            &channel.dir,
            bind(&channel.dir, dir, attributes),
            grant,
            &channel.origin,
        )?;

        for entry in &channel.fifo {
            let fifo = self.find_kind(&entry.path, Kind::Fifo, &entry.origin)?;
            // Read-only: a FIFO takes writes all the same, but not chmod.
            let view = bind(&entry.path, fifo, READ_ONLY | VIEW);
            self.put(&entry.path, view, Grant::Write, &entry.origin)?;
        }
        let lock = match channel.lock_access {
            LockAccess::None => Grant::Nothing,
            LockAccess::Read => Grant::Read,
        };
        for entry in &channel.lock {
            let file = self.find_kind(&entry.path, Kind::File, &entry.origin)?;
            self.put(
                &entry.path,
                bind(&entry.path, file, READ_ONLY | VIEW),
                lock,
                &entry.origin,
            )?;
        }
        let read = channel.read_only.iter().map(|entry| (entry, Grant::Read));
        let execute = channel
            .execute
            .iter()
            .map(|entry| (entry, Grant::ReadExecute));
        for (entry, grant) in read.chain(execute) {
            let file = self.find(&entry.path, &entry.origin)?;
            if !matches!(file.kind, Kind::Directory | Kind::File) {
                return Err(wrong_kind(
                    &entry.path,
                    file.kind,
                    "a file or a directory",
                    &entry.origin,
                ));
            }
            self.put(
                &entry.path,
                bind(&entry.path, file, READ_ONLY | VIEW),
                grant,
                &entry.origin,
            )?;
        }
        Ok(())
    }

    fn workspace(&mut self, policy: &Policy) -> Result<(), Error> {
        let Some(workspace) = &policy.workspace else {
            return Ok(());
        };
        let dir = self.find_kind(&workspace.dir, Kind::Directory, &workspace.origin)?;
        let (attributes, grant) = match workspace.access {
            Access::ReadOnly => (READ_ONLY | VIEW, Grant::ReadExecute),
            Access::ReadWrite => (VIEW, Grant::ReadWrite),
        };
        self.put(
            &workspace.at,
            bind(&workspace.dir, dir, attributes),
            grant,
            &workspace.origin,
        )
    }

    /// A source, which must be there and be reached through no symbolic link.
    fn find(&self, path: &Path, origin: &Origin) -> Result<File, Error> {
        let shown = path.display();
        if path.starts_with("/proc") {
            return Err(at(origin, format!("{shown} shows the host's processes"))
                .cause("their command lines and environments can be read there")
                .remedy("leave it out: a cell has a /proc of its own"));
        }
        match self.host.file(path) {
            Lookup::Found(file) => Ok(file),
            Lookup::Missing => Err(at(origin, format!("{shown} does not exist"))
                .remedy("correct the path, or make it before the run")),
            Lookup::Link {
                real: Some((real, _)),
                ..
            } => Err(at(
                origin,
                format!("{shown} is reached through a symbolic link"),
            )
            .cause("who can write beside a link decides where it leads")
            .remedy(format!("write {}", real.display()))),
            Lookup::Link { real: None, .. } => Err(at(
                origin,
                format!("{shown} is reached through a symbolic link that leads nowhere"),
            )
            .remedy("write the path of what is meant, through no link")),
            Lookup::Failed(errno) => {
                let error = at(origin, format!("{shown} cannot be looked at")).errno(errno);
                Err(match errno {
                    Errno::EACCES => error
                        .cause(
                            "the user that the cell runs as may not enter a directory of that path",
                        )
                        .remedy("give that user search permission (chmod o+x), or move the tree"),
                    _ => error,
                })
            }
        }
    }

    fn find_kind(&self, path: &Path, wanted: Kind, origin: &Origin) -> Result<File, Error> {
        let file = self.find(path, origin)?;
        if file.kind == wanted {
            return Ok(file);
        }
        Err(wrong_kind(path, file.kind, wanted.name(), origin))
    }

    /// Turns the entries into steps: each mount point is made where it is ours
    /// to make, and was looked up where it is not.
    fn steps(self, policy: &Policy) -> Result<Built, Error> {
        let mut built = Built {
            mounts: Vec::new(),
            covers: Vec::new(),
            rules: Vec::new(),
            notes: Vec::new(),
        };
        let mut directories = BTreeSet::from([PathBuf::from("/")]);
        for (place, node) in &self.nodes {
            let holder = self.holder(place);
            if let Some((holder_place, holder)) = holder {
                self.check_holder(place, node, holder_place, holder)?;
                built
                    .notes
                    .extend(check_rights(policy, place, node, holder_place, holder)?);
            }
            if holder.is_none_or(|(_, holder)| {
                !matches!(holder.content, Content::Bind { .. } | Content::Cover { .. })
            }) && !matches!(node.content, Content::Cover { .. })
            {
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
            if policy.mode == Mode::Sealed {
                let rule = allow(
                    self.host.landlock,
                    text(place)?,
                    node.grant,
                    node.content.is_directory(),
                );
                built.rules.extend(rule);
            }
        }
        Ok(built)
    }

    /// The nearest entry that `place` lies in.
    fn holder(&self, place: &Path) -> Option<(&Path, &Node)> {
        place
            .ancestors()
            .skip(1)
            .find_map(|above| self.nodes.get_key_value(above))
            .map(|(place, node)| (place.as_path(), node))
    }

    fn check_holder(
        &self,
        place: &Path,
        node: &Node,
        holder_place: &Path,
        holder: &Node,
    ) -> Result<(), Error> {
        let shown = place.display();
        if let Content::Symlink { target } = &holder.content {
            return Err(at(
                &node.origin,
                format!("{shown} goes through the link {}", holder_place.display()),
            )
            .remedy(format!(
                "write the path that the link stands for ({})",
                target.display()
            )));
        }
        if !holder.content.is_directory() {
            return Err(at(
                &node.origin,
                format!("{shown} lies below the file {}", holder_place.display()),
            )
            .remedy("put the entry elsewhere: only a directory holds others"));
        }
        let Content::Bind { source, .. } = &holder.content else {
            return Ok(());
        };
        let rest = place.strip_prefix(holder_place).unwrap_or(place);
        let point = source.join(rest);
        match self.host.file(&point) {
            Lookup::Found(file)
                if (file.kind == Kind::Directory) == node.content.is_directory() =>
            {
                Ok(())
            }
            Lookup::Found(file) => Err(wrong_kind(
                &point,
                file.kind,
                if node.content.is_directory() {
                    "a directory"
                } else {
                    "a file"
                },
                &node.origin,
            )),
            Lookup::Missing
                // Only its own source is going to be made, at the same path on the host.
                if matches!(
                    &node.content,
                    Content::Bind {
                        to_be_made: true,
                        source,
                        ..
                    } if *source == point
                ) =>
            {
                Ok(())
            }
            _ => Err(at(
                &node.origin,
                format!("there is no {} to mount on", point.display()),
            )
            .cause(format!(
                "{shown} lies in the view {} ({})",
                holder_place.display(),
                holder.origin
            ))
            .remedy("make it on the host first: cellblock creates nothing inside a view")),
        }
    }
}

/// Landlock adds up along a path, so an entry cannot have fewer rights than the
/// one that holds it. Returns what the mount alone then holds.
fn check_rights(
    policy: &Policy,
    place: &Path,
    node: &Node,
    holder_place: &Path,
    holder: &Node,
) -> Result<Option<String>, Error> {
    let shown = place.display();
    let around = holder_place.display();
    if holder.grant == Grant::ReadWrite
        && node.grant == Grant::ReadWrite
        && is_shown_by(place, node, holder_place, holder)
    {
        return Err(at(
            &node.origin,
            format!("{shown} is visible and writable already"),
        )
        .cause(format!("it lies in {around} ({})", holder.origin))
        .remedy("remove one of the two entries"));
    }
    let inherits = match (holder.grant, node.grant) {
        (Grant::ReadWrite, grant) => grant != Grant::ReadWrite,
        (Grant::ReadExecute, grant) => !matches!(grant, Grant::ReadExecute | Grant::ReadWrite),
        _ => false,
    };
    if !inherits {
        return Ok(None);
    }
    let in_replaceable_channel = policy
        .channel
        .as_ref()
        .is_some_and(|channel| channel.replaceable && channel.dir == holder_place);
    if node.grant == Grant::ReadExecute || in_replaceable_channel {
        return Ok(Some(format!(
            "{shown}: held by its mount alone, as {around} is granted whole"
        )));
    }
    Err(
        at(&node.origin, format!("{shown} lies in the view {around}"))
            .cause(format!(
                "what {} grants cannot be taken away below it",
                holder.origin
            ))
            .remedy("keep the channel out of every other view"),
    )
}

/// Whether an entry shows at its place what the view around it shows there too.
fn is_shown_by(place: &Path, node: &Node, holder_place: &Path, holder: &Node) -> bool {
    let (Content::Bind { source, .. }, Content::Bind { source: around, .. }) =
        (&node.content, &holder.content)
    else {
        return false;
    };
    place
        .strip_prefix(holder_place)
        .is_ok_and(|rest| around.join(rest) == *source)
}

fn at(origin: &Origin, what: impl std::fmt::Display) -> Error {
    Error::new("policy", format!("{origin}: {what}"))
}

fn wrong_kind(path: &Path, kind: Kind, wanted: &str, origin: &Origin) -> Error {
    let error = at(
        origin,
        format!(
            "{} is {}, where {wanted} is needed",
            path.display(),
            kind.name()
        ),
    );
    match kind {
        Kind::Fifo | Kind::Socket => error
            .cause("a provider's sandbox looks for names beneath what it is granted, and dies where there can be none")
            .remedy("grant the private directory that holds it, and name the FIFO under `[channel] fifo`"),
        _ => error.remedy(format!("name {wanted} in its place")),
    }
}

fn bind(source: &Path, file: File, attributes: Attributes) -> Content {
    Content::Bind {
        source: source.to_owned(),
        file,
        to_be_made: false,
        attributes,
    }
}

fn to_be_made(source: &Path, kind: Kind) -> Content {
    let identity = crate::sys::fd::Identity {
        device: 0,
        inode: 0,
    };
    Content::Bind {
        source: source.to_owned(),
        file: File { identity, kind },
        to_be_made: true,
        attributes: VIEW,
    }
}

fn tmpfs(size: Option<u64>, mode: u32, attributes: Attributes) -> Content {
    Content::Tmpfs {
        size,
        mode,
        attributes,
    }
}

fn make_parents(
    place: &Path,
    made: &mut BTreeSet<PathBuf>,
    steps: &mut Vec<Step>,
) -> Result<(), Error> {
    let Some(parent) = place.parent() else {
        return Ok(());
    };
    if made.contains(parent) {
        return Ok(());
    }
    make_parents(parent, made, steps)?;
    made.insert(parent.to_owned());
    steps.push(Step::MakeDirectory {
        path: text(relative(parent))?,
        mode: 0o755,
    });
    Ok(())
}

fn make_place(place: &Path, content: &Content, steps: &mut Vec<Step>) -> Result<(), Error> {
    let path = text(relative(place))?;
    steps.push(match content {
        Content::Symlink { target } => Step::MakeSymlink {
            path,
            target: text(target)?,
        },
        Content::File { content } => Step::MakeFile {
            path,
            content: text_of(content.clone())?,
        },
        content if content.is_directory() => Step::MakeDirectory { path, mode: 0o755 },
        _ => Step::MakeFile {
            path,
            content: c"".into(),
        },
    });
    Ok(())
}

fn mount(place: &Path, content: &Content) -> Result<Option<Step>, Error> {
    if !content.is_mounted() {
        return Ok(None);
    }
    let path = text(relative(place))?;
    let stage = if place.starts_with("/proc") {
        Stage::Proc
    } else if place.starts_with("/dev") {
        Stage::Dev
    } else {
        Stage::Mounts
    };
    Ok(match content {
        Content::Bind {
            source,
            file,
            to_be_made,
            attributes,
        } => Some(Step::Bind {
            source: text(source)?,
            identity: (!to_be_made).then_some(file.identity),
            path,
            attributes: *attributes,
            stage,
        }),
        Content::Tmpfs {
            size,
            mode,
            attributes,
        } => {
            let mut options = vec![(c"mode".into(), text_of(format!("{mode:04o}"))?)];
            if let Some(size) = size {
                options.push((c"size".into(), text_of(size.to_string())?));
            }
            Some(Step::Mount {
                filesystem: c"tmpfs".into(),
                options,
                path,
                attributes: *attributes,
                stage,
            })
        }
        Content::Fresh {
            filesystem,
            options,
            attributes,
        } => Some(Step::Mount {
            filesystem: text_of(*filesystem)?,
            options: options.clone(),
            path,
            attributes: *attributes,
            stage,
        }),
        Content::Cover {
            source, attributes, ..
        } => Some(Step::Cover {
            source: text(relative(source))?,
            path,
            attributes: *attributes,
        }),
        Content::Directory | Content::Symlink { .. } | Content::File { .. } => None,
    })
}

/// A place of the cell as the child names it: from the new root, which is its
/// working directory.
fn relative(place: &Path) -> &Path {
    place.strip_prefix("/").unwrap_or(place)
}

fn text(path: &Path) -> Result<Text, Error> {
    text_of(path.as_os_str().as_bytes())
}

fn text_of(bytes: impl Into<Vec<u8>>) -> Result<Text, Error> {
    CString::new(bytes).map(Text::from).map_err(|error| {
        Error::new(
            "policy",
            format!(
                "{:?} holds a NUL byte",
                String::from_utf8_lossy(&error.into_vec())
            ),
        )
    })
}
