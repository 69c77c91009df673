//! Class F: files of the harness and of other runs.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::call::{CWD, c, call, call_fd, why};
use crate::facts::Facts;
use crate::verdict::{Denied, Leak, Probe, Verdict, any_reached, filtered, probe, reached};

/// Probes on files.
pub const PROBES: &[Probe] = &[
    probe("F01", "read a harness file", |f| reached(fs::read(f.path("HARNESS_FILE")))),
    probe("F02", "list the harness directory", |f| reached(fs::read_dir(f.path("HARNESS_DIR")))),
    probe("F03", "stat a harness file", |f| reached(fs::symlink_metadata(f.path("HARNESS_FILE")))),
    probe("F04", "tell a hidden name that exists from one that does not", existence_oracle),
    probe("F05", "read another run's session database", |f| reached(fs::read(f.path("OTHER_DB")))),
    probe("F06", "list runs/", |f| lists(&f.path("RUNS"), &[&f.path("OTHER")])),
    probe("F07", "list db/pg_wal", |f| reached(fs::read_dir(f.path("PG_WAL")))),
    probe("F08", "read secrets/key", |f| reached(fs::read(f.path("SECRET_FILE")))),
    probe("F09", "read control-plane-state.json", |f| reached(fs::read(f.path("CONTROL_PLANE")))),
    probe("F10", "list the instance root", instance_root),
    probe("F11", "walk through /proc/PID/root and /proc/PID/cwd", magic_links),
    probe("F12", "follow a symlink of one's own to a secret", own_symlink),
    probe("F13", "hard-link another run's file into one's own state", hard_link),
    probe("F14", "rename another run's file into one's own state", rename_in),
    probe("F15", "O_PATH on a hidden directory", |f| reached(open_path(&f.path("HARNESS_DIR")))),
    probe("F16", "chdir into a hidden directory", |f| {
        reached(std::env::set_current_dir(f.path("HARNESS_DIR")))
    }),
    probe("F17", "inotify watch on a hidden directory", watch),
    probe("F18", "readlink of a hidden symlink", |f| reached(fs::read_link(f.path("HARNESS_LINK")))),
    probe("F19", "listxattr of a hidden file", list_xattr),
    probe("F20", "statfs of a hidden directory", statfs),
    probe("F21", "chmod of a hidden file", |f| {
        reached(fs::set_permissions(f.path("HARNESS_FILE"), fs::Permissions::from_mode(0o600)))
    }),
    probe("F22", "utimens of a hidden file", |f| reached(touch(&f.path("HARNESS_FILE")))),
    probe("F23", "a file handle of one's own state", handle),
    probe("F24", "descriptors above 2 from the parent", inherited),
    probe("F25", "stdio that names or opens a host file", stdio),
    probe("F26", "the parent's working directory", cwd),
    probe("F27", "device nodes beyond the harmless ones", devices),
    probe("F28", "make a device node in one's own state", mknod),
    probe("F29", "write /proc/1/exe", |_| reached(OpenOptions::new().write(true).open("/proc/1/exe"))),
    probe("F30", "make a file outside one's own state", write_outside),
    probe("F31", "setuid bit on a file of one's own", setuid),
];

/// Sets the times of `path` to now, without following a link.
pub fn touch(path: &Path) -> io::Result<usize> {
    let path = c(path);
    call(libc::SYS_utimensat, &[CWD, path.as_ptr() as usize, 0, libc::AT_SYMLINK_NOFOLLOW as usize])
}

fn existence_oracle(f: &Facts) -> Verdict {
    let real = f.path("HARNESS_FILE");
    let mut absent = real.clone();
    absent.set_extension("absent");
    let answer = |path: &Path| {
        let path = c(path);
        match call(libc::SYS_faccessat, &[CWD, path.as_ptr() as usize, libc::F_OK as usize]) {
            Ok(_) => "exists".to_owned(),
            Err(error) => why(&error),
        }
    };
    let (real, absent) = (answer(&real), answer(&absent));
    if real == absent { Denied(real) } else { Leak(format!("{real} against {absent}")) }
}

fn lists(dir: &Path, hidden: &[&Path]) -> Verdict {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return Denied(why(&error)),
    };
    for entry in entries.flatten() {
        if hidden.iter().any(|path| path.file_name() == Some(&entry.file_name())) {
            return Leak(format!("names {}", entry.file_name().display()));
        }
    }
    Denied("names nothing hidden".into())
}

fn instance_root(f: &Facts) -> Verdict {
    let hidden = ["DB", "SECRETS", "DATA", "CONTROL_PLANE"].map(|key| f.path(key));
    lists(&f.path("INST"), &hidden.each_ref().map(PathBuf::as_path))
}

fn magic_links(f: &Facts) -> Verdict {
    let file = f.path("HARNESS_FILE");
    let from_root = file.strip_prefix("/").unwrap_or(&file);
    let name = Path::new(file.file_name().unwrap_or_default());
    let own = std::process::id().to_string();
    let mut tries = Vec::new();
    for pid in pids().into_iter().filter(|pid| *pid != own) {
        for path in [
            Path::new("/proc").join(&pid).join("root").join(from_root),
            Path::new("/proc").join(&pid).join("cwd").join(name),
        ] {
            // The runner itself stands where it was started; F26 asks for that.
            let parent = std::os::unix::process::parent_id().to_string();
            if pid != parent {
                tries.push((path.display().to_string(), File::open(&path)));
            }
        }
    }
    let direct = Path::new("/proc").join(f.harness().to_string()).join("cwd").join(name);
    tries.push((direct.display().to_string(), File::open(&direct)));
    any_reached(tries)
}

/// The process ids that `/proc` lists.
pub fn pids() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .collect()
}

fn own_symlink(f: &Facts) -> Verdict {
    let link = f.own("f12");
    let _ = fs::remove_file(&link);
    if let Err(error) = symlink(f.path("SECRET_FILE"), &link) {
        return Leak(format!("probe failed: own state takes no symlink: {}", why(&error)));
    }
    reached(fs::read(link))
}

fn hard_link(f: &Facts) -> Verdict {
    let link = f.own("f13");
    let _ = fs::remove_file(&link);
    let result = fs::hard_link(f.path("OTHER_DB"), &link);
    let _ = fs::remove_file(&link);
    reached(result)
}

fn rename_in(f: &Facts) -> Verdict {
    let (theirs, mine) = (f.path("OTHER_FILE"), f.own("f14"));
    let result = fs::rename(&theirs, &mine);
    let _ = fs::rename(&mine, &theirs);
    reached(result)
}

fn open_path(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)
}

fn watch(f: &Facts) -> Verdict {
    let inotify = match call_fd(libc::SYS_inotify_init1, &[0]) {
        Ok(fd) => fd,
        Err(error) => return Leak(format!("probe failed: no inotify: {}", why(&error))),
    };
    let path = c(f.path("HARNESS_DIR"));
    use std::os::fd::AsRawFd;
    reached(call(
        libc::SYS_inotify_add_watch,
        &[inotify.as_raw_fd() as usize, path.as_ptr() as usize, libc::IN_ALL_EVENTS as usize],
    ))
}

fn list_xattr(f: &Facts) -> Verdict {
    let path = c(f.path("HARNESS_FILE"));
    reached(call(libc::SYS_listxattr, &[path.as_ptr() as usize, 0, 0]))
}

fn statfs(f: &Facts) -> Verdict {
    let path = c(f.path("HARNESS_DIR"));
    let mut answer = [0u8; 256];
    reached(call(libc::SYS_statfs, &[path.as_ptr() as usize, answer.as_mut_ptr() as usize]))
}

fn handle(f: &Facts) -> Verdict {
    const BYTES: u32 = 128;
    let path = c(f.path("OWN"));
    // struct file_handle: its size, its type, its bytes.
    let mut handle = [0u32; 2 + BYTES as usize / 4];
    handle[0] = BYTES;
    let mut mount = 0i32;
    filtered(call(
        libc::SYS_name_to_handle_at,
        &[CWD, path.as_ptr() as usize, handle.as_mut_ptr() as usize, &raw mut mount as usize, 0],
    ))
}

fn inherited(f: &Facts) -> Verdict {
    if f.inherited.is_empty() { Denied("none".into()) } else { Leak(format!("{:?}", f.inherited)) }
}

fn stdio(f: &Facts) -> Verdict {
    let root = f.get("ROOT");
    let mut seen = Vec::new();
    for fd in 0..3 {
        let path = format!("/proc/self/fd/{fd}");
        let Ok(target) = fs::read_link(&path) else {
            continue;
        };
        let target = target.to_string_lossy().into_owned();
        if target.starts_with(root) {
            return Leak(format!("{fd} is {target}"));
        }
        let meta = fs::metadata(&path);
        if let Ok(meta) = meta
            && (meta.is_dir() || meta.is_file())
        {
            return Leak(format!("{fd} is a file or directory, {target}"));
        }
        seen.push(target);
    }
    Denied(seen.join(" "))
}

fn cwd(f: &Facts) -> Verdict {
    if f.cwd.starts_with(f.get("HARNESS_DIR")) || f.cwd.starts_with('(') {
        Leak(f.cwd.clone())
    } else {
        Denied(f.cwd.clone())
    }
}

fn devices(_: &Facts) -> Verdict {
    const HARMLESS: [&str; 8] = ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"];
    let mut found = Vec::new();
    let mut dirs = vec![PathBuf::from("/dev")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(meta) = fs::symlink_metadata(entry.path()) else {
                continue;
            };
            let name = entry.file_name().to_string_lossy().into_owned();
            if meta.is_dir() && name != "pts" {
                dirs.push(entry.path());
            } else if meta.file_type().is_block_device()
                || meta.file_type().is_char_device() && !HARMLESS.contains(&name.as_str())
            {
                found.push(name);
            }
        }
    }
    if found.is_empty() {
        return Denied("none".into());
    }
    found.truncate(5);
    Leak(found.join(" "))
}

fn mknod(f: &Facts) -> Verdict {
    let make = |name: &str, kind: u32, major, minor| {
        let path = f.own(name);
        let _ = fs::remove_file(&path);
        let path = c(path);
        let device = libc::makedev(major, minor) as usize;
        call(libc::SYS_mknodat, &[CWD, path.as_ptr() as usize, (kind | 0o600) as usize, device])
    };
    any_reached([
        ("block 8:0", make("f28b", libc::S_IFBLK, 8, 0)),
        ("char 1:1", make("f28c", libc::S_IFCHR, 1, 1)),
    ])
}

fn write_outside(f: &Facts) -> Verdict {
    let mut dirs: Vec<PathBuf> = [
        "/",
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/home",
        "/lib",
        "/opt",
        "/proc",
        "/proc/sys",
        "/root",
        "/run",
        "/sbin",
        "/srv",
        "/sys",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/usr/local/bin",
        "/var",
        "/var/lib",
        "/var/spool",
        "/work",
    ]
    .map(PathBuf::from)
    .to_vec();
    dirs.extend(
        ["ROOT", "HARNESS_DIR", "INST", "RUNS", "OTHER", "DB", "SECRETS", "CHANNEL"].map(|key| f.path(key)),
    );
    let mut tries = Vec::new();
    for dir in dirs {
        let path = dir.join("f30-probe");
        let result = OpenOptions::new().write(true).create_new(true).open(&path);
        if result.is_ok() {
            let _ = fs::remove_file(&path);
        }
        tries.push((dir.display().to_string(), result));
    }
    any_reached(tries)
}

fn setuid(f: &Facts) -> Verdict {
    let path = f.own("f31");
    let _ = fs::remove_file(&path);
    if let Err(error) = fs::write(&path, b"#!/bin/sh\n") {
        return Leak(format!("probe failed: own state takes no file: {}", why(&error)));
    }
    let result = fs::set_permissions(&path, fs::Permissions::from_mode(0o4755));
    let mode = fs::metadata(&path).map(|meta| meta.mode());
    let _ = fs::remove_file(&path);
    match (result, mode) {
        (_, Ok(mode)) if mode & 0o4000 != 0 => Leak(format!("mode {mode:o}")),
        (Err(error), _) => Denied(why(&error)),
        (Ok(()), _) => Denied("the bit was dropped".into()),
    }
}
