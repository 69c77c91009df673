//! All that can be tried on an entry of a channel, and what holding one does.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::call::{CWD, c, call, call_fd, why};
use crate::files::touch;
use crate::verdict::in_child;

/// An entry, and a place where everything is allowed.
struct Target<'a> {
    entry: &'a Path,
    own: &'a Path,
}

impl Target<'_> {
    fn dir(&self) -> &Path {
        self.entry.parent().unwrap_or(Path::new("/"))
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// A new file in the own place.
    fn file(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.own.join(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, "planted\n")?;
        Ok(path)
    }

    fn open(&self, flags: i32) -> io::Result<File> {
        let path = c(self.entry);
        call_fd(libc::SYS_openat, &[CWD, path.as_ptr() as usize, flags as usize]).map(File::from)
    }

    fn rename(&self, from: &Path, to: &Path, flags: u32) -> io::Result<()> {
        let (from, to) = (c(from), c(to));
        let words = [CWD, from.as_ptr() as usize, CWD, to.as_ptr() as usize, flags as usize];
        call(libc::SYS_renameat2, &words).map(drop)
    }
}

type Attempt = (&'static str, fn(&Target) -> io::Result<()>);

/// What changes an entry, its directory or who may use them.
const ATTEMPTS: &[Attempt] = &[
    ("write", |t| t.open(libc::O_WRONLY).map(drop)),
    ("read-write", |t| t.open(libc::O_RDWR).map(drop)),
    ("append", |t| t.open(libc::O_WRONLY | libc::O_APPEND).map(drop)),
    ("create", |t| OpenOptions::new().write(true).create(true).truncate(false).open(t.entry).map(drop)),
    ("open-truncate", |t| t.open(libc::O_RDONLY | libc::O_TRUNC).map(drop)),
    ("write-truncate", |t| t.open(libc::O_WRONLY | libc::O_TRUNC).map(drop)),
    ("truncate", |t| {
        let path = c(t.entry);
        call(libc::SYS_truncate, &[path.as_ptr() as usize, 0]).map(drop)
    }),
    ("reopen", |t| {
        let file = t.open(libc::O_PATH)?;
        OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd())).map(drop)
    }),
    ("unlink", |t| fs::remove_file(t.entry)),
    ("rename", |t| t.rename(t.entry, &t.beside("moved"), 0)),
    ("rename-out", |t| t.rename(t.entry, &t.own.join("taken"), 0)),
    ("rename-over", |t| t.rename(&t.file("over")?, t.entry, 0)),
    ("plant", |t| {
        fs::write(t.beside("plant"), "planted\n")?;
        t.rename(&t.beside("plant"), t.entry, 0)
    }),
    ("exchange-beside", |t| {
        fs::write(t.beside("exchanged"), "planted\n")?;
        t.rename(&t.beside("exchanged"), t.entry, libc::RENAME_EXCHANGE)
    }),
    ("exchange", |t| t.rename(&t.file("exchange")?, t.entry, libc::RENAME_EXCHANGE)),
    ("link-out", |t| {
        let link = t.own.join("link");
        let _ = fs::remove_file(&link);
        fs::hard_link(t.entry, link)
    }),
    ("link-beside", |t| fs::hard_link(t.entry, t.beside("linked"))),
    ("link-in", |t| fs::hard_link(t.file("in")?, t.beside("in"))),
    ("new-file", |t| OpenOptions::new().write(true).create_new(true).open(t.beside("new")).map(drop)),
    ("new-directory", |t| fs::create_dir(t.beside("new-directory"))),
    ("new-symlink", |t| symlink("/", t.beside("new-symlink"))),
    ("new-fifo", |t| {
        let path = c(t.beside("new-fifo"));
        call(libc::SYS_mknodat, &[CWD, path.as_ptr() as usize, (libc::S_IFIFO | 0o600) as usize]).map(drop)
    }),
    ("new-socket", |t| std::os::unix::net::UnixListener::bind(t.beside("new-socket")).map(drop)),
    ("temporary", |t| {
        let flags = libc::O_TMPFILE | libc::O_WRONLY;
        OpenOptions::new().write(true).custom_flags(flags).open(t.dir()).map(drop)
    }),
    ("chmod", |t| fs::set_permissions(t.entry, fs::Permissions::from_mode(0o666))),
    ("chmod-descriptor", |t| {
        let file = t.open(libc::O_PATH)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))
    }),
    ("chmod-directory", |t| fs::set_permissions(t.dir(), fs::Permissions::from_mode(0o777))),
    ("chown", |t| {
        let of = fs::symlink_metadata(t.entry)?;
        std::os::unix::fs::lchown(t.entry, Some(of.uid()), Some(of.gid()))
    }),
    ("utimens", |t| touch(t.entry).map(drop)),
    ("utimens-directory", |t| touch(t.dir()).map(drop)),
    ("setxattr", |t| xattr(t.entry)),
    ("setxattr-directory", |t| xattr(t.dir())),
    ("rename-directory", |t| t.rename(t.dir(), &with(t.dir(), ".moved"), 0)),
    ("rename-parent", |t| {
        let parent = t.dir().parent().unwrap_or(t.dir());
        t.rename(parent, &with(parent, ".moved"), 0)
    }),
    ("exchange-directory", |t| {
        let _ = fs::create_dir(t.own.join("directory"));
        t.rename(&t.own.join("directory"), t.dir(), libc::RENAME_EXCHANGE)
    }),
    ("remove-directory", |t| {
        // Gone, or refused for another reason than that something is in it.
        match fs::remove_dir(t.dir()) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTEMPTY) => Ok(()),
            other => other,
        }
    }),
    ("lease-read", |t| {
        let file = t.open(libc::O_RDONLY)?;
        lease(&file, libc::F_RDLCK)
    }),
    ("lease-write", |t| {
        let file = t.open(libc::O_RDONLY)?;
        lease(&file, libc::F_WRLCK)
    }),
    ("mount", |t| {
        let (from, to) = (c(t.file("mount")?), c(t.entry));
        let words = [from.as_ptr() as usize, to.as_ptr() as usize, 0, libc::MS_BIND as usize, 0];
        call(libc::SYS_mount, &words).map(drop)
    }),
    ("move-mount", |t| {
        let (from, to) = (c(t.file("mount")?), c(t.entry));
        let tree = call_fd(libc::SYS_open_tree, &[CWD, from.as_ptr() as usize, 1])?;
        let words = [tree.as_raw_fd() as usize, c"".as_ptr() as usize, CWD, to.as_ptr() as usize, 4];
        call(libc::SYS_move_mount, &words).map(drop)
    }),
    ("unmount", |t| {
        let entry = c(t.entry);
        call(libc::SYS_umount2, &[entry.as_ptr() as usize, libc::MNT_DETACH as usize]).map(drop)
    }),
    ("remount", |t| {
        let entry = c(t.entry);
        let flags = (libc::MS_REMOUNT | libc::MS_BIND) as usize;
        call(libc::SYS_mount, &[0, entry.as_ptr() as usize, 0, flags, 0]).map(drop)
    }),
    // Where the cell's filter is one that lets sandboxes be made.
    ("write-as-inner-root", |t| {
        crate::dirty::become_able()?;
        let (entry, dir) = (c(t.entry), c(t.dir()));
        let flags = (libc::MS_REMOUNT | libc::MS_BIND) as usize;
        for path in [&entry, &dir] {
            let _ = call(libc::SYS_umount2, &[path.as_ptr() as usize, libc::MNT_DETACH as usize]);
            let _ = call(libc::SYS_mount, &[0, path.as_ptr() as usize, 0, flags, 0]);
        }
        t.open(libc::O_WRONLY).map(drop)
    }),
];

/// Tries everything, or what is named, and gives a line of each: `NAME<TAB>ok`
/// or the errno's name.
pub fn attempts(entry: &Path, own: &Path, names: &[&str]) -> io::Result<()> {
    for (name, attempt) in ATTEMPTS.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        let answer = in_child(8, || answer(attempt(&Target { entry, own })))?;
        crate::say(&format!("{name}\t{answer}"))?;
    }
    Ok(())
}

/// The names of all attempts.
pub fn names() -> impl Iterator<Item = &'static str> {
    ATTEMPTS.iter().map(|(name, _)| *name)
}

fn answer<T>(result: io::Result<T>) -> String {
    result.map_or_else(|error| why(&error), |_| "ok".into())
}

fn with(path: &Path, end: &str) -> PathBuf {
    PathBuf::from(format!("{}{end}", path.display()))
}

fn xattr(path: &Path) -> io::Result<()> {
    let path = c(path);
    let words = [path.as_ptr() as usize, c"user.probe".as_ptr() as usize, b"x".as_ptr() as usize, 1, 0];
    call(libc::SYS_setxattr, &words).map(drop)
}

fn lease(file: &File, kind: i32) -> io::Result<()> {
    call(libc::SYS_fcntl, &[file.as_raw_fd() as usize, libc::F_SETLEASE as usize, kind as usize]).map(drop)
}

/// Takes every lock that an entry gives, says what each call answered, and
/// holds them until its stdin ends.
pub fn hold(entry: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).open(entry);
    let on = |nr, words: &[usize]| match &file {
        Ok(file) => answer(call(nr, &[&[file.as_raw_fd() as usize], words].concat())),
        Err(error) => format!("open {}", why(error)),
    };
    // SAFETY: all zeroes is a valid `flock`.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = libc::F_RDLCK as i16;
    let lock = &raw const whole as usize;
    // SAFETY: as above.
    let mut asked: libc::flock = unsafe { std::mem::zeroed() };
    asked.l_type = libc::F_WRLCK as i16;
    let question = &raw mut asked as usize;
    let said = [
        format!("get-posix {}", on(libc::SYS_fcntl, &[libc::F_GETLK as usize, question])),
        format!("holder {}", i32::from(asked.l_type) != libc::F_UNLCK && file.is_ok()),
        format!("posix {}", on(libc::SYS_fcntl, &[libc::F_SETLK as usize, lock])),
        format!("ofd {}", on(libc::SYS_fcntl, &[libc::F_OFD_SETLK as usize, lock])),
        format!("flock-shared {}", on(libc::SYS_flock, &[(libc::LOCK_SH | libc::LOCK_NB) as usize])),
        format!("flock {}", on(libc::SYS_flock, &[(libc::LOCK_EX | libc::LOCK_NB) as usize])),
    ];
    crate::say(&said.join(", "))?;
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

/// Watches files, says so, and when its stdin ends how many events each had.
pub fn watch(files: &[&str]) -> io::Result<()> {
    let mut watches = Vec::new();
    for file in files {
        let inotify = call_fd(libc::SYS_inotify_init1, &[libc::IN_NONBLOCK as usize])?;
        let path: CString = c(file);
        let events = libc::IN_ALL_EVENTS as usize;
        let answer = call(
            libc::SYS_inotify_add_watch,
            &[inotify.as_raw_fd() as usize, path.as_ptr() as usize, events],
        );
        watches.push((file, File::from(inotify), answer));
    }
    crate::say("watching")?;
    io::stdin().read_to_end(&mut Vec::new())?;
    for (file, mut inotify, answer) in watches {
        let seen = inotify.read(&mut [0; 4096]).unwrap_or(0);
        crate::say(&match answer {
            Ok(_) if seen > 0 => format!("{file}\tevents"),
            Ok(_) => format!("{file}\tnone"),
            Err(error) => format!("{file}\t{}", why(&error)),
        })?;
    }
    Ok(())
}
