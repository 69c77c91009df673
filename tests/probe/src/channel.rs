//! Class H: the channel by which the provider reports activity.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::call::{CWD, c, call};
use crate::facts::Facts;
use crate::files::touch;
use crate::verdict::{Leak, Probe, Verdict, any_reached, probe, reached};

/// Probes on the channel.
pub const PROBES: &[Probe] = &[
    probe("H01", "open the lock for writing", |f| {
        any_reached([("write", open_write(&f.path("LOCK"))), ("read and write", open_both(&f.path("LOCK")))])
    }),
    probe("H02", "rename, hard-link or remove the lock", |f| displace(f, "LOCK")),
    probe("H03", "chmod the lock", |f| reached(chmod(&f.path("LOCK")))),
    probe("H04", "utimens of the lock", |f| reached(touch(&f.path("LOCK")))),
    probe("H05", "setxattr on the lock", set_xattr),
    probe("H06", "take the lock through a descriptor for reading", flock),
    probe("H07", "a lease on the lock", lease),
    probe("H08", "write the descriptor", |f| {
        any_reached([("write", open_write(&f.path("DESCRIPTOR"))), ("replace", replace(f, "DESCRIPTOR"))])
    }),
    probe("H09", "write or replace the helper", |f| {
        any_reached([("write", open_write(&f.path("HELPER"))), ("replace", replace(f, "HELPER"))])
    }),
    probe("H10", "swap the FIFO", |f| {
        any_reached([("displace", as_result(displace(f, "FIFO"))), ("replace", replace(f, "FIFO"))])
    }),
    probe("H11", "rename the channel directory", rename_dir),
    probe("H12", "read from the FIFO", read_fifo),
    probe("H13", "make entries in the channel directory", create),
    probe("H14", "chmod or utimens of the FIFO", |f| {
        any_reached([("chmod", chmod(&f.path("FIFO")).map(|()| 0)), ("utimens", touch(&f.path("FIFO")))])
    }),
];

fn open_write(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(path).map(drop)
}

fn open_both(path: &Path) -> io::Result<()> {
    OpenOptions::new().read(true).write(true).open(path).map(drop)
}

fn chmod(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o7777))
}

/// Renames and links an entry away; puts it back where that worked.
fn displace(f: &Facts, key: &str) -> Verdict {
    let path = f.path(key);
    let link = f.own("h-link");
    let beside = PathBuf::from(format!("{}.moved", path.display()));
    let moved = f.own("h-moved");
    let linked = fs::hard_link(&path, &link);
    let _ = fs::remove_file(&link);
    let renamed = fs::rename(&path, &beside);
    let _ = fs::rename(&beside, &path);
    let taken = fs::rename(&path, &moved);
    let _ = fs::rename(&moved, &path);
    any_reached([("link", linked), ("rename", renamed), ("rename into own state", taken)])
}

fn as_result(verdict: Verdict) -> io::Result<()> {
    match verdict {
        Leak(_) => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EACCES)),
    }
}

/// Puts a file of one's own over an entry; only a copy is left where that
/// worked, as outside a cell nothing else can be put back.
fn replace(f: &Facts, key: &str) -> io::Result<()> {
    let path = f.path(key);
    let new = f.own("h-new");
    let _ = fs::remove_file(&new);
    symlink("/dev/null", &new)?;
    let backup = f.own("h-backup");
    let kept = fs::rename(&path, &backup);
    let result = fs::rename(&new, &path);
    if kept.is_ok() {
        fs::rename(&backup, &path)?;
    }
    let _ = fs::remove_file(&new);
    result
}

fn set_xattr(f: &Facts) -> Verdict {
    let (path, name) = (c(f.path("LOCK")), c("user.probe"));
    reached(call(
        libc::SYS_setxattr,
        &[path.as_ptr() as usize, name.as_ptr() as usize, b"x".as_ptr() as usize, 1, 0],
    ))
}

fn flock(f: &Facts) -> Verdict {
    // To hold it or to be told that another does are both too much.
    match OpenOptions::new().read(true).open(f.path("LOCK")) {
        Err(error) => reached::<()>(Err(error)),
        Ok(file) => {
            let answer =
                call(libc::SYS_flock, &[file.as_raw_fd() as usize, (libc::LOCK_EX | libc::LOCK_NB) as usize]);
            Leak(format!("opened; flock: {answer:?}"))
        }
    }
}

fn lease(f: &Facts) -> Verdict {
    match OpenOptions::new().read(true).open(f.path("LOCK")) {
        Err(error) => reached::<()>(Err(error)),
        Ok(file) => {
            let answer = call(
                libc::SYS_fcntl,
                &[file.as_raw_fd() as usize, libc::F_SETLEASE as usize, libc::F_RDLCK as usize],
            );
            Leak(format!("opened; lease: {answer:?}"))
        }
    }
}

fn rename_dir(f: &Facts) -> Verdict {
    let dir = f.path("CHANNEL");
    let beside = PathBuf::from(format!("{}.moved", dir.display()));
    let result = fs::rename(&dir, &beside);
    let _ = fs::rename(&beside, &dir);
    reached(result)
}

fn read_fifo(f: &Facts) -> Verdict {
    let open = |read: bool, write: bool| {
        OpenOptions::new().read(read).write(write).custom_flags(libc::O_NONBLOCK).open(f.path("FIFO"))
    };
    any_reached([("read", open(true, false)), ("read and write", open(true, true))])
}

fn create(f: &Facts) -> Verdict {
    let path = f.path("CHANNEL").join("h13-probe");
    let c_path = c(&path);
    let mut tries = Vec::new();
    tries.push(("file", OpenOptions::new().write(true).create_new(true).open(&path).map(drop)));
    let _ = fs::remove_file(&path);
    tries.push(("directory", fs::create_dir(&path)));
    let _ = fs::remove_dir(&path);
    tries.push(("symlink", symlink("/", &path)));
    let _ = fs::remove_file(&path);
    let fifo = (libc::S_IFIFO | 0o600) as usize;
    tries.push(("fifo", call(libc::SYS_mknodat, &[CWD, c_path.as_ptr() as usize, fifo]).map(drop)));
    let _ = fs::remove_file(&path);
    any_reached(tries)
}
