//! What can be learnt of a path, and which files of `/proc` hold a word.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};

use crate::call::{CWD, c, call, call_fd, why};
use crate::files::touch;
use crate::verdict::in_child;

type Way = (&'static str, fn(&Path, &Path) -> io::Result<()>);

fn at(nr: libc::c_long, path: &Path, rest: &[usize]) -> io::Result<()> {
    let path = c(path);
    call(nr, &[&[CWD, path.as_ptr() as usize], rest].concat()).map(drop)
}

/// Ways to reach a path; the second argument is a directory of one's own.
const WAYS: &[Way] = &[
    ("read", |path, _| fs::read(path).map(drop)),
    ("list", |path, _| fs::read_dir(path).map(drop)),
    ("stat", |path, _| fs::metadata(path).map(drop)),
    ("lstat", |path, _| fs::symlink_metadata(path).map(drop)),
    ("access", |path, _| at(libc::SYS_faccessat, path, &[libc::F_OK as usize])),
    ("path", |path, _| at(libc::SYS_openat, path, &[libc::O_PATH as usize])),
    ("write", |path, _| OpenOptions::new().write(true).open(path).map(drop)),
    ("chdir", |path, _| std::env::set_current_dir(path)),
    ("readlink", |path, _| fs::read_link(path).map(drop)),
    ("watch", |path, _| {
        let inotify = call_fd(libc::SYS_inotify_init1, &[0])?;
        let path = c(path);
        let words = [inotify.as_raw_fd() as usize, path.as_ptr() as usize, libc::IN_ALL_EVENTS as usize];
        call(libc::SYS_inotify_add_watch, &words).map(drop)
    }),
    ("statfs", |path, _| {
        let path = c(path);
        let mut answer = [0u8; 256];
        call(libc::SYS_statfs, &[path.as_ptr() as usize, answer.as_mut_ptr() as usize]).map(drop)
    }),
    ("listxattr", |path, _| {
        let path = c(path);
        call(libc::SYS_listxattr, &[path.as_ptr() as usize, 0, 0]).map(drop)
    }),
    ("handle", |path, _| {
        let mut handle = [128u32; 40];
        let mut mount = 0i32;
        let words = [handle.as_mut_ptr() as usize, &raw mut mount as usize, 0];
        at(libc::SYS_name_to_handle_at, path, &words)
    }),
    ("connect", |path, _| UnixStream::connect(path).map(drop)),
    ("send", |path, _| UnixDatagram::unbound()?.send_to(b"x", path).map(drop)),
    ("chmod", |path, _| at(libc::SYS_fchmodat, path, &[0o600])),
    ("utimens", |path, _| touch(path).map(drop)),
    ("link", |path, own| fs::hard_link(path, own.join("scope-link"))),
    ("rename", |path, own| fs::rename(path, own.join("scope-moved"))),
    ("by-link", |path, own| {
        let link = own.join("scope-symlink");
        let _ = fs::remove_file(&link);
        symlink(path, &link)?;
        File::open(link).map(drop)
    }),
    ("unlink", |path, _| fs::remove_file(path)),
    ("rmdir", |path, _| fs::remove_dir(path)),
    ("create-below", |path, _| File::create_new(path.join("scope-new")).map(drop)),
    ("execute", |path, _| {
        let path = c(path);
        let arguments = [path.as_ptr() as usize, 0];
        let none = [0usize];
        let words = [path.as_ptr() as usize, arguments.as_ptr() as usize, none.as_ptr() as usize];
        call(libc::SYS_execve, &words).map(drop)
    }),
];

/// Tries every way to each path, and gives a line of each: `PATH<TAB>WAY<TAB>ok`
/// or the errno's name.
pub fn reach(own: &Path, paths: &[&str]) -> io::Result<()> {
    for path in paths {
        for (name, way) in WAYS {
            let answer = in_child(8, || match way(Path::new(path), own) {
                Ok(()) => "ok".into(),
                Err(error) => why(&error),
            })?;
            crate::say(&format!("{path}\t{name}\t{answer}"))?;
        }
    }
    Ok(())
}

/// Looks for the lines of a file in all of `/proc`, names and links too, and
/// says where each was found: `FILE<TAB>WORD`. At the end it says how many files
/// it has read.
pub fn search(words: &Path) -> io::Result<()> {
    /// More is in no file of `/proc` that is worth reading.
    const LIMIT: u64 = 8 << 20;
    /// The memory of this process holds the words.
    const OWN: [&str; 2] = ["mem", "pagemap"];
    let words = fs::read_to_string(words)?;
    let words: Vec<&str> = words.lines().filter(|word| !word.is_empty()).collect();
    let look = |path: &Path, content: &[u8]| -> io::Result<()> {
        let content = String::from_utf8_lossy(content);
        let mut found = words.iter().filter(|word| content.contains(**word));
        found.try_for_each(|word| crate::say(&format!("{}\t{word}", path.display())))
    };
    let mut read = 0;
    let mut left = vec![PathBuf::from("/proc")];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            look(&path, path.as_os_str().as_bytes())?;
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap_or_default();
                look(&path, target.as_os_str().as_bytes())?;
            } else if kind.is_dir() {
                left.push(path);
            } else if !OWN.iter().any(|own| entry.file_name() == *own) {
                let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
                let mut content = Vec::new();
                // As far as it can be read: an error is an end.
                if let Ok(file) = opened {
                    let _ = file.take(LIMIT).read_to_end(&mut content);
                    read += 1;
                }
                look(&path, &content)?;
            }
        }
    }
    crate::say(&format!("read\t{read}"))
}
