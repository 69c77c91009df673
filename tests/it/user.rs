//! The ordinary user that launches cells in these tests, and a directory of
//! its own.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::unistd::{Uid, getegid, geteuid};
use tempfile::TempDir;

use crate::install::install;
use crate::skip;

/// The user and group that root drops to: root proves nothing about what an
/// ordinary user can do.
const ID: u32 = 54321;

/// How long anything may take that should take no time.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// An ordinary user with a directory that holds `cellblock`.
pub struct User {
    home: TempDir,
}

impl User {
    /// Makes the directory; `None`, and a line that says so, where the host
    /// lacks what a cell is made of.
    pub fn new() -> Option<User> {
        let home = tempfile::Builder::new()
            .prefix("cell-test-")
            .permissions(fs::Permissions::from_mode(0o755))
            // Not /tmp, which every cell has for itself.
            .tempdir_in("/var/tmp")
            .expect("a directory can be made");
        let user = User { home };
        user.own(user.home.path());
        install(env!("CARGO_BIN_EXE_cellblock"), &user.path("cellblock"));
        let made = user.command("unshare").args(["--user", "--map-current-user", "true"]).status();
        let has_namespaces = made.is_ok_and(|status| status.success());
        (skip::has("userns", has_namespaces) && skip::has("landlock", cellblock::sys::landlock::abi() > 0))
            .then_some(user)
    }

    /// A path in the user's directory.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.home.path().join(name)
    }

    /// Its id and its group's.
    pub fn ids(&self) -> (u32, u32) {
        match is_root() {
            true => (ID, ID),
            false => (geteuid().as_raw(), getegid().as_raw()),
        }
    }

    /// Gives a file to the user.
    pub fn own(&self, path: &Path) {
        if is_root() {
            chown(path, Some(ID), Some(ID)).expect("root can give files away");
        }
    }

    /// Makes a directory of the user's, with what is missing above it.
    pub fn directory(&self, name: &str) -> PathBuf {
        let mut path = self.home.path().to_owned();
        for part in Path::new(name) {
            path.push(part);
            if !path.exists() {
                fs::create_dir(&path).expect("a directory can be made");
                self.own(&path);
            }
        }
        path
    }

    /// Makes a file of the user's.
    pub fn file(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("a file can be written");
        self.own(&path);
        path
    }

    /// A program as that user, in its directory, with nothing on stdin.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.home).stdin(Stdio::null());
        if is_root() {
            // Without groups: the standard library drops root's.
            command.uid(ID).gid(ID);
        }
        command
    }

    /// `cellblock run` with these options and this command.
    pub fn cell(&self, options: &[&str], command: &[&str]) -> Command {
        let mut run = self.command(self.path("cellblock"));
        run.arg("run").args(options).arg("--").args(command);
        run
    }

    /// As [`User::cell`], started by root for the user.
    pub fn cell_by_root(&self, options: &[&str], command: &[&str]) -> Command {
        let mut run = Command::new(self.path("cellblock"));
        run.current_dir(&self.home).stdin(Stdio::null());
        run.args(["run", "--run-as", &format!("{ID}:{ID}")]);
        run.args(options).arg("--").args(command);
        run
    }

    /// `cellblock run` of a shell script.
    pub fn script(&self, options: &[&str], script: &str) -> Command {
        self.cell(options, &["sh", "-c", script])
    }
}

/// Lets a program keep a descriptor of ours, by the same number.
pub fn keep(command: &mut Command, fd: OwnedFd) {
    let clear = move || match fcntl(&fd, FcntlArg::F_SETFD(FdFlag::empty())) {
        Ok(_) => Ok(()),
        Err(errno) => Err(errno.into()),
    };
    // SAFETY: fcntl is async-signal-safe, and nothing here allocates or locks.
    unsafe { command.pre_exec(clear) };
}

/// Whether these tests were started by root.
pub fn is_root() -> bool {
    Uid::effective().is_root()
}

/// Waits for a child to end, but not for ever.
pub fn end(child: &mut Child) -> ExitStatus {
    eventually("the child ends", || child.try_wait().expect("wait"))
}

/// What `look` finds, as soon as it finds something.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The stdout of a command that must have succeeded.
pub fn text(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    stdout
}

/// What `/proc/PID/status` says, by key; `None` for a process that is no more.
pub fn status(pid: i32) -> Option<BTreeMap<String, String>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let fields = status.lines().filter_map(|line| line.split_once(':'));
    Some(fields.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect())
}

/// The state letter of a process; a zombie and one that is no more have none.
pub fn state(pid: i32) -> Option<char> {
    let state = status(pid)?.get("State")?.chars().next();
    state.filter(|&letter| letter != 'Z' && letter != 'X')
}

/// The children of a process, zombies too.
pub fn children(parent: i32) -> Vec<i32> {
    let parent = parent.to_string();
    let processes = fs::read_dir("/proc").expect("/proc");
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| status(pid).is_some_and(|status| status["PPid"] == parent))
        .collect()
}
