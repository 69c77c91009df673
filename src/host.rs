//! What the host has: probed once, before anything is planned, and from then
//! on a plain value.

pub mod links;
mod system;
pub mod worktree;

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::sys::sysinfo::sysinfo;
use nix::unistd::Pid;

use crate::git::Repository;
use crate::input;
use crate::limits::rlimits::Rlimits;
use crate::policy::{Layer, System};
use crate::sys::fd::{self, Identity};
use crate::sys::{Errno, errno, landlock, seccomp};
pub use system::SystemEntry;

/// The facts about a host that a plan rests on.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The id that the cell runs as, in the launcher's user namespace.
    pub ids: Ids,
    /// The newest Landlock ABI; 0 where Landlock is absent.
    pub landlock: u32,
    /// Why it is absent.
    pub no_landlock: Option<Errno>,
    /// Whether the kernel has seccomp filters.
    pub seccomp: bool,
    /// The launcher's own resource limits.
    pub limits: Rlimits,
    /// What the policy's `filesystem.system` shows, where the host has it.
    pub system: Vec<(PathBuf, SystemEntry)>,
    /// What lies in those entries and not every user may read. No cell sees it.
    pub unreadable: Vec<PathBuf>,
    /// Where links lead that only root can change, by the path that the policy says.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// The content of the filter that the policy brings, if it brings one.
    pub own_filter: Option<Result<Vec<u8>, Errno>>,
    /// Whether a process beside init can make the network namespace: on a
    /// processor that is likely to be free, and where its number can be given out again.
    pub beside: bool,
    /// Layers whose namespace a first clone was refused.
    pub refused: Vec<Layer>,
    /// A number that no cell can guess.
    pub salt: u128,
    /// Every path that the policy names.
    pub files: BTreeMap<PathBuf, Lookup>,
    /// The places of the cell that the kernel refused an overlay for.
    pub without_overlay: Vec<PathBuf>,
    /// The names in the directories that are built of single views for that reason.
    pub listings: BTreeMap<PathBuf, Vec<OsString>>,
    /// The workspace as git sees it, where the policy protects something there.
    pub repository: Repository,
}

/// Who the provider is to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// User id, never 0.
    pub uid: u32,
    /// Group id; 0 only where an ordinary user has that group.
    pub gid: u32,
    /// Whether the launcher is root, and so writes the id maps for the child.
    pub started_by_root: bool,
}

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// A file, through no symbolic link.
    Found(File),
    /// A path that is, or goes through, a symbolic link.
    Link {
        /// What the last component says, where it is the link.
        target: PathBuf,
        /// Where it leads in the end, if it leads anywhere.
        real: Option<(PathBuf, File)>,
    },
    /// Nothing.
    Missing,
    /// The kernel would not say.
    Failed(Errno),
}

/// A file that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// Which one.
    pub identity: Identity,
    /// Of what kind.
    pub kind: Kind,
    /// Which character device it is, as `st_rdev` has it.
    pub character_device: Option<u64>,
    /// Whether it shows the host's processes.
    pub is_on_proc: bool,
    /// Its permission bits.
    pub mode: u32,
    /// The user it belongs to.
    pub owner: u32,
}

/// The kinds of file that mounts tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
}

impl Kind {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Directory => "a directory",
            Kind::File => "a regular file",
            Kind::Fifo => "a FIFO",
            Kind::Socket => "a socket",
            Kind::Device => "a device",
        }
    }

    /// The kind that `st_mode` tells.
    pub fn of_mode(mode: u32) -> Kind {
        match mode & libc::S_IFMT {
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFIFO => Kind::Fifo,
            libc::S_IFSOCK => Kind::Socket,
            libc::S_IFCHR | libc::S_IFBLK => Kind::Device,
            _ => Kind::File,
        }
    }
}

impl Host {
    /// Looks at the kernel, the system, the policy's own filter and each of `paths`.
    pub fn probe(
        ids: Ids,
        system: System,
        own_filter: Option<&Path>,
        paths: impl IntoIterator<Item = PathBuf>,
    ) -> Host {
        let system = system::probe(system);
        let mut files = system.around;
        files.extend(paths.into_iter().map(|path| {
            let lookup = look_up(&path);
            (path, lookup)
        }));
        let landlock = landlock::version();
        Host {
            ids,
            landlock: landlock.unwrap_or(0),
            no_landlock: landlock.err(),
            seccomp: seccomp::is_available(),
            limits: Rlimits::own(),
            system: system.entries,
            unreadable: system.unreadable,
            links: Vec::new(),
            salt: salt(),
            own_filter: own_filter.map(read_small),
            beside: Path::new("/proc/sys/kernel/ns_last_pid").exists() && has_a_free_processor(),
            refused: Vec::new(),
            without_overlay: Vec::new(),
            listings: BTreeMap::new(),
            repository: Repository::default(),
            files,
        }
    }

    /// Looks at what is in `directories`, too. One that cannot be read has nothing.
    pub fn list(&mut self, directories: impl IntoIterator<Item = PathBuf>) {
        for directory in directories {
            let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
            let names: Vec<OsString> = entries.map(|entry| entry.file_name()).collect();
            for name in &names {
                let path = directory.join(name);
                self.files.insert(path.clone(), look_up(&path));
            }
            self.listings.insert(directory, names);
        }
    }

    /// Looks at each of `paths`, too.
    pub fn look_at(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        for path in paths {
            self.files.entry(path).or_insert_with_key(|path| look_up(path));
        }
    }

    /// Whether `path` is or lies in `outer`, by its name or by that of another
    /// mount. The second is only known of paths that were looked at.
    pub fn lies_in(&self, path: &Path, outer: &Path) -> bool {
        let Some(own) = self.identity(outer) else { return path.starts_with(outer) };
        path.starts_with(outer) || path.ancestors().any(|above| self.identity(above) == Some(own))
    }

    /// Which file was found at `path`.
    pub fn identity(&self, path: &Path) -> Option<Identity> {
        match self.files.get(path)? {
            Lookup::Found(file) => Some(file.identity),
            _ => None,
        }
    }

    /// What was found at `path`.
    pub fn file(&self, path: &Path) -> Lookup {
        self.files.get(path).cloned().unwrap_or(Lookup::Missing)
    }
}

/// Whether one of the processors that this process may run on is likely to be free:
/// to wait for a process that waits for its turn takes longer than to do its work.
fn has_a_free_processor() -> bool {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let processors = (0..CpuSet::count()).filter(|&processor| set.is_set(processor).unwrap_or(false)).count();
    processors > 1 && sysinfo().is_ok_and(|info| info.load_average().0 < processors as f64)
}

/// 128 bits of the kernel's randomness, by way of the keys of a hash.
fn salt() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(()));
    half() << 64 | half()
}

/// Reads a file of at most a megabyte; EFBIG where it is larger.
fn read_small(path: &Path) -> Result<Vec<u8>, Errno> {
    input::read(path, 1 << 20).map_err(|error| errno(&error))
}

/// Looks at one path without following a link, and says where a link leads.
pub fn look_up(path: &Path) -> Lookup {
    match open_file(path) {
        Ok(file) => Lookup::Found(file),
        Err(Errno::ELOOP) => {
            let real = fs::canonicalize(path).ok();
            Lookup::Link {
                target: fs::read_link(path).unwrap_or_default(),
                real: real.and_then(|path| open_file(&path).ok().map(|file| (path, file))),
            }
        }
        Err(Errno::ENOENT | Errno::ENOTDIR) => Lookup::Missing,
        Err(errno) => Lookup::Failed(errno),
    }
}

/// Whether a file lies on a procfs.
fn is_on_proc(file: impl AsFd) -> Result<bool, Errno> {
    Ok(fstatfs(file)?.filesystem_type() == PROC_SUPER_MAGIC)
}

fn open_file(path: &Path) -> Result<File, Errno> {
    let path = CString::new(OsStr::as_bytes(path.as_ref())).map_err(|_| Errno::EINVAL)?;
    let opened = fd::open_path(fd::CWD, &path).map_err(|failure| failure.errno)?;
    let stat = fd::stat(opened.as_fd()).map_err(|failure| failure.errno)?;
    let is_character_device = stat.st_mode & libc::S_IFMT == libc::S_IFCHR;
    Ok(File {
        identity: Identity { device: stat.st_dev, inode: stat.st_ino },
        kind: Kind::of_mode(stat.st_mode),
        character_device: is_character_device.then_some(stat.st_rdev),
        is_on_proc: is_on_proc(&opened)?,
        mode: stat.st_mode & 0o7777,
        owner: stat.st_uid,
    })
}
