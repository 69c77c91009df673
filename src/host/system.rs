//! What of the host's own files a cell sees: `/usr` and its links, and the parts
//! of `/etc`, `/var/lib` and `/sys` that programs below `/usr` read.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{File, Kind, Lookup, links, look_up};
use crate::policy::System;
use crate::sys::fd::Identity;

/// One entry of the system view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemEntry {
    /// A link, and what it says. It leads to what the cell shows.
    Link(PathBuf),
    /// A directory, or a file too large to copy, by its real path.
    View(PathBuf, File),
    /// A file of `/etc`, by its content: a copy costs less than a mount, and
    /// does not stand in the mount table.
    Copy(Arc<[u8]>),
}

const ETC_DIR: &str = "/etc";

/// Beside `/usr`: links into it on a merged system, directories on others.
const BESIDE_USR: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// The names of `/etc` that `minimal` shows where the host has them, and who
/// reads each. None is meant to hold a secret, an account or an address of the
/// host. A `*` stands for any text.
///
/// Distributions keep the settings of these programs in `/etc` and leave links to
/// them in `/usr`, or the path is compiled in. Without them a program fails, or
/// gives another answer and says nothing.
///
/// A mount for each costs every launch, so what merely adapts a program that works
/// without it is left to `full`.
const ETC: [(&str, &[&str]); 13] = [
    ("the loader", &["ld.so.cache", "ld.so.conf", "ld.so.conf.d"]),
    ("Debian keeps cc, awk, which and sixty more behind these links", &["alternatives"]),
    (
        "the resolver",
        &["nsswitch.conf", "host.conf", "gai.conf", "resolv.conf", "hosts", "protocols", "services", "rpc"],
    ),
    ("certificates", &["ssl", "pki", "ca-certificates", "crypto-policies"]),
    ("time and the system's name", &["localtime", "timezone", "*-release", "*_version", "*-version"]),
    ("shells", &["profile", "bash.bashrc", "bashrc", "inputrc", "shells"]),
    ("Java: its security settings are links to here", &["java", "java-*", "maven*"]),
    ("PHP: its extensions are switched on here", &["php", "php.ini", "php.d", "php-*"]),
    ("languages that look for their paths and libraries here", &["R", "mono", "dotnet", "ocamlfind.conf"]),
    ("Matplotlib: it does not start without", &["matplotlibrc"]),
    ("fonts, pictures and types of files", &["fonts", "ImageMagick*", "ghostscript", "mime.types"]),
    ("browsers: they do not start without", &["chromium.d", "lynx*"]),
    ("TeX: its tree is links to here", &["texmf"]),
];

/// What lies elsewhere, and who reads it.
const ELSEWHERE: [(&str, &[&str]); 4] = [
    (
        "lists of what is installed, which /usr tells as well",
        &["/var/lib/dpkg", "/var/lib/rpm", "/var/lib/pacman/local"],
    ),
    ("openSUSE's certificates", &["/var/lib/ca-certificates"]),
    (
        "compilers and dictionaries whose files below /usr are links to here",
        &["/var/lib/ghc", "/var/lib/texmf", "/var/lib/ghostscript", "/var/lib/aspell"],
    ),
    ("how many processors there are: lscpu, Java, OpenMP", &["/sys/devices/system/cpu"]),
];

/// Links among the certificates that some distribution lets lead elsewhere.
const CERTIFICATES: [&str; 5] = [
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
];

/// The files of `/etc` that the cell has of its own, and the copies that tools
/// keep of them: `full` shows neither.
const OF_THE_CELL: [&str; 12] = [
    "passwd",
    "passwd-",
    "group",
    "group-",
    "hostname",
    "machine-id",
    "shadow",
    "gshadow",
    "subuid",
    "subuid-",
    "subgid",
    "subgid-",
];

/// Bytes of a file up to which a copy costs less than a mount.
const COPY_MAX: u64 = 64 << 10;

/// How many files below `/etc` are looked at for `full`.
const WALK_MAX: usize = 100_000;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// By place in the cell.
    pub entries: Vec<(PathBuf, SystemEntry)>,
    /// What lies below the entries and not every user may read.
    pub unreadable: Vec<PathBuf>,
    /// The directories that hold those.
    pub around: BTreeMap<PathBuf, Lookup>,
}

/// Looks at what `system` shows of this host.
pub(super) fn probe(system: System) -> Found {
    let mut found = Found::default();
    if system == System::None {
        return found;
    }
    let usr = Path::new("/usr");
    found.entries.extend(view(usr).map(|entry| (usr.to_owned(), entry)));
    found
        .entries
        .extend(BESIDE_USR.iter().filter_map(|path| Some((path.into(), beside_usr(Path::new(path))?))));
    found.etc(system);
    let elsewhere = ELSEWHERE.iter().flat_map(|(_, paths)| *paths).map(Path::new);
    found.entries.extend(elsewhere.filter_map(|path| Some((path.to_owned(), elsewhere_entry(path)?))));
    found.certificates();
    found
}

impl Found {
    /// One listing costs less than a look at each name of the table, and finds
    /// those that hold a version.
    fn etc(&mut self, system: System) {
        let mut left = WALK_MAX;
        // The mounts are made through no link, and /etc may be one.
        let etc = Path::new(ETC_DIR).canonicalize().unwrap_or_default();
        for entry in fs::read_dir(etc).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_shown = is_named(name.as_bytes())
                || system == System::Full && OF_THE_CELL.iter().all(|own| name != *own);
            let Some(kind) = entry.file_type().ok().filter(|_| is_shown) else { continue };
            let path = entry.path();
            let entry = if kind.is_symlink() {
                link(&path, system)
            } else if kind.is_file() && system == System::Minimal {
                copy(&path).map(SystemEntry::Copy).or_else(|| view(&path))
            } else {
                of_etc(&path, system)
            };
            let Some(entry) = entry else { continue };
            if system == System::Full
                && matches!(&entry, SystemEntry::View(_, file) if file.kind == Kind::Directory)
            {
                self.walk(&path, &mut left);
            }
            self.entries.push((Path::new(ETC_DIR).join(name), entry));
        }
    }

    /// Finds what not every user may read below a directory of `/etc`.
    fn walk(&mut self, directory: &Path, left: &mut usize) {
        let mut holds_some = false;
        let entries = fs::read_dir(directory);
        if entries.is_err() {
            // It cannot be told what is in it.
            return self.unreadable.push(directory.to_owned());
        }
        for entry in entries.into_iter().flatten().flatten() {
            let path = entry.path();
            *left = left.saturating_sub(1);
            // Without following a link: where it leads is shown by another entry or not at all.
            let Some(metadata) = entry.metadata().ok().filter(|_| *left > 0) else {
                self.unreadable.push(path);
                holds_some = true;
                continue;
            };
            if !is_for_all(metadata.mode()) {
                self.unreadable.push(path);
                holds_some = true;
            } else if metadata.is_dir() {
                let before = self.unreadable.len();
                self.walk(&path, left);
                holds_some |= self.unreadable.len() > before;
            }
        }
        if holds_some && let Ok(metadata) = fs::symlink_metadata(directory) {
            self.around.insert(directory.to_owned(), Lookup::Found(file_of(&metadata)));
        }
    }

    /// Shows what links of certificates lead to, under the name that they say.
    fn certificates(&mut self) {
        for path in CERTIFICATES.map(Path::new) {
            let Ok(text) = fs::read_link(path) else { continue };
            let target = links::join(path.parent().unwrap_or(path), &text);
            let is_shown = target.starts_with("/usr") || target.starts_with("/etc");
            if is_shown || self.entries.iter().any(|(place, _)| target.starts_with(place)) {
                continue;
            }
            let real = match look_up(&target) {
                Lookup::Found(_) => Some(target.clone()),
                Lookup::Link { .. } => links::follow(&target),
                Lookup::Missing | Lookup::Failed(_) => None,
            };
            if let Some(entry) = real.as_deref().and_then(view) {
                self.entries.push((target, entry));
            }
        }
    }
}

/// Whether the table has a name of `/etc`.
fn is_named(name: &[u8]) -> bool {
    let begins =
        |pattern: &&&str| matches!(pattern.as_bytes()[0], first if first == b'*' || first == name[0]);
    let patterns = ETC.iter().flat_map(|(_, names)| *names).filter(begins);
    patterns.into_iter().any(|pattern| match pattern.split_once('*') {
        None => name == pattern.as_bytes(),
        Some((head, tail)) => {
            name.len() >= head.len() + tail.len()
                && name.starts_with(head.as_bytes())
                && name.ends_with(tail.as_bytes())
        }
    })
}

/// One of the entries beside `/usr`.
fn beside_usr(path: &Path) -> Option<SystemEntry> {
    match fs::read_link(path) {
        Ok(text) if links::join(Path::new("/"), &text).starts_with("/usr") => Some(SystemEntry::Link(text)),
        Ok(_) => view(&path.canonicalize().ok()?),
        Err(_) => view(path),
    }
}

/// One of the entries outside of `/etc`. Fedora's list of packages is a link into `/usr`.
fn elsewhere_entry(path: &Path) -> Option<SystemEntry> {
    match look_up(path) {
        Lookup::Found(file) => Some(SystemEntry::View(path.to_owned(), file)),
        Lookup::Link { real: Some((real, _)), .. } if real.starts_with("/usr") => {
            Some(SystemEntry::Link(real))
        }
        _ => None,
    }
}

/// A directory or a file as it is; `None` where there is none.
fn view(path: &Path) -> Option<SystemEntry> {
    let metadata = fs::symlink_metadata(path).ok()?;
    let file = file_of(&metadata);
    let is_shown = !metadata.is_symlink() && matches!(file.kind, Kind::Directory | Kind::File);
    is_shown.then(|| SystemEntry::View(path.to_owned(), file))
}

/// A file or directory of `/etc`, by its real path.
fn of_etc(path: &Path, system: System) -> Option<SystemEntry> {
    let entry = view(path)?;
    let SystemEntry::View(_, file) = &entry else { return None };
    if system == System::Full && !is_for_all(file.mode) {
        return None;
    }
    match file.kind {
        Kind::File => Some(copy(path).map_or(entry, SystemEntry::Copy)),
        _ => Some(entry),
    }
}

/// A link of `/etc`. One into `/usr` stays a link; what another leads to is shown
/// in its place, since the cell may not have it under its own name.
fn link(path: &Path, system: System) -> Option<SystemEntry> {
    let text = fs::read_link(path).ok()?;
    let said = links::join(Path::new("/etc"), &text);
    if is_the_cells(&said) || system == System::Full && said.starts_with("/etc") {
        return Some(SystemEntry::Link(text));
    }
    let real = path.canonicalize().ok().filter(|real| !is_the_cells(real))?;
    match real.starts_with("/usr") {
        true if said.starts_with("/usr") => Some(SystemEntry::Link(text)),
        true => Some(SystemEntry::Link(real)),
        false => of_etc(&real, system),
    }
}

/// Whether a cell has something of its own there, and never the host's.
fn is_the_cells(path: &Path) -> bool {
    ["/proc", "/dev"].iter().any(|own| path.starts_with(own))
}

/// The content of a small file that can be read.
fn copy(path: &Path) -> Option<Arc<[u8]>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() > COPY_MAX {
        return None;
    }
    // One byte more than it holds: one call reads it and sees its end.
    let mut content = vec![0; metadata.len() as usize + 1];
    let read = file.read(&mut content).ok()?;
    (read as u64 == metadata.len()).then(|| content[..read].into())
}

/// Whether any user may read a file, or list and enter a directory.
fn is_for_all(mode: u32) -> bool {
    let needed = if mode & libc::S_IFMT == libc::S_IFDIR { 0o005 } else { 0o004 };
    mode & needed == needed
}

fn file_of(metadata: &fs::Metadata) -> File {
    File {
        identity: Identity { device: metadata.dev(), inode: metadata.ino() },
        kind: Kind::of_mode(metadata.mode()),
        // The cell does not see devices of the host here, and links into /proc stay links.
        character_device: None,
        is_on_proc: false,
        mode: metadata.mode() & 0o7777,
        owner: metadata.uid(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_of_the_hosts_proc_is_shown_by_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        symlink("/proc/version", &one).unwrap();
        symlink(&one, &two).unwrap();
        for system in [System::Minimal, System::Full] {
            assert!(matches!(link(&one, system), Some(SystemEntry::Link(said)) if said == *"/proc/version"));
            assert!(link(&two, system).is_none());
        }
    }
}
