//! A directory of the ordinary user that the tests run the launcher as, with
//! the launcher in it.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cellblock::host::Ids;
use nix::unistd::{getegid, geteuid};
use tempfile::TempDir;

use crate::install::install;
use crate::skip;
use crate::user::is_root;

/// The id that tests drop to when root starts them.
const USER: u32 = 54321;

/// The directory, and the user it belongs to.
pub struct Site {
    dir: TempDir,
    /// Who the launcher runs as.
    pub ids: Ids,
}

impl Site {
    /// Makes one, where the host has what a cell is made of.
    pub fn new() -> Option<Site> {
        // Not in /tmp, where every cell may write, so that nothing below it can
        // be granted less.
        let dir = tempfile::Builder::new()
            .prefix("cellblock-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in("/var/tmp")
            .unwrap();
        let (uid, gid) = match is_root() {
            true => (USER, USER),
            false => (geteuid().as_raw(), getegid().as_raw()),
        };
        let ids = Ids { uid, gid, started_by_root: false };
        let site = Site { dir, ids };
        chown(site.root(), Some(uid), Some(gid)).unwrap();
        install(env!("CARGO_BIN_EXE_cellblock"), &site.program());
        let userns = site.beside("/usr/bin/unshare", &["--user", "true"]);
        let userns = userns.is_ok_and(|output| output.status.success());
        let landlock = cellblock::sys::landlock::abi() > 0;
        (skip::has("userns", userns) && skip::has("landlock", landlock)).then_some(site)
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// A path below it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// A path below it, as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// The launcher.
    pub fn program(&self) -> PathBuf {
        self.path("cellblock")
    }

    /// Gives something to the user.
    pub fn own(&self, path: &Path) {
        chown(path, Some(self.ids.uid), Some(self.ids.gid)).unwrap();
    }

    /// Makes a directory of the user's.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        let made = fs::DirBuilder::new().mode(0o755).create(&path);
        made.unwrap();
        self.own(&path);
        path
    }

    /// Makes a file of the user's.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        self.own(&path);
        path
    }

    /// Makes a FIFO of the user's.
    pub fn fifo(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        self.own(&path);
        path
    }

    /// A program that the user starts, with nothing on its standard input.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(self.root()).stdin(Stdio::null()).env_remove("SUDO_UID").env_remove("SUDO_GID");
        if is_root() {
            command.uid(self.ids.uid).gid(self.ids.gid);
        }
        command
    }

    /// Runs a program as the user.
    pub fn beside(&self, program: &str, arguments: &[&str]) -> std::io::Result<Output> {
        self.command(program).args(arguments).output()
    }
}

/// What a program said on standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
