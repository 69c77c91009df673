//! Where the measurements take place: the binaries, and the ordinary user who
//! starts them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, chown, getegid, geteuid, setgroups, setresgid, setresuid};

use super::{Figure, Series};

/// The directory with everything that is measured, and who measures.
pub struct Stage {
    dir: PathBuf,
    /// Whose programs are timed.
    pub user: User,
    /// Removes the directory in the end; the inner `bench` only borrows it.
    _temporary: Option<tempfile::TempDir>,
}

/// An ordinary user.
#[derive(Clone, Copy, Debug)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub started_by_root: bool,
}

/// `nobody` of Debian and most others.
const NOBODY: u32 = 65534;

impl User {
    /// The caller or, where that is root, who called sudo, or nobody.
    fn find() -> User {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        if uid != 0 {
            return User { uid, gid, started_by_root: false };
        }
        let number = |name| std::env::var(name).ok()?.parse().ok();
        let id = |name| number(name).filter(|&id: &u32| id != 0).unwrap_or(NOBODY);
        User { uid: id("SUDO_UID"), gid: id("SUDO_GID"), started_by_root: true }
    }
}

impl Stage {
    /// Builds cellblock and lays it out, with this program, where the user can
    /// run both: a checkout may lie below a home that others cannot enter.
    pub fn build(before: Option<&Path>) -> Result<Stage> {
        let temporary = tempfile::Builder::new()
            .prefix("cellblock-bench.")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in("/var/tmp")?;
        let stage =
            Stage { dir: temporary.path().to_owned(), user: User::find(), _temporary: Some(temporary) };
        fs::copy(release_binary()?, stage.cellblock()).context("cellblock cannot be copied")?;
        if let Some(before) = before {
            fs::copy(before, stage.dir.join("before"))
                .with_context(|| format!("{} cannot be copied", before.display()))?;
        }
        fs::copy(std::env::current_exe()?, stage.xtask()).context("xtask cannot be copied")?;
        fs::create_dir(stage.empty())?;
        fs::create_dir(stage.scratch())?;
        fs::create_dir(stage.dir.join("toolchain"))?;
        if stage.user.started_by_root {
            let owner = (Some(Uid::from_raw(stage.user.uid)), Some(Gid::from_raw(stage.user.gid)));
            chown(&stage.scratch(), owner.0, owner.1)?;
        } else {
            fs::remove_dir(stage.dir.join("toolchain"))?;
            std::os::unix::fs::symlink(sysroot()?, stage.dir.join("toolchain"))?;
        }
        Ok(stage)
    }

    /// Measures in a process of the ordinary user's.
    pub fn measure_as_user(&self, series: &[Series]) -> Result<Vec<Figure>> {
        let names = series.iter().map(|series| {
            clap::ValueEnum::to_possible_value(series).expect("every series has a name").get_name().to_owned()
        });
        let output = Command::new(self.xtask())
            .args(["bench", "--stage"])
            .arg(&self.dir)
            .args(names)
            .stderr(Stdio::inherit())
            .output()?;
        ensure!(output.status.success(), "the measurement failed");
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Verifies the cell in a process of the ordinary user's.
    pub fn verify_as_user(&self) -> Result<()> {
        let status = Command::new(self.xtask()).args(["inside", "verify"]).arg(&self.dir).status()?;
        ensure!(status.success(), "the cell does not hold");
        Ok(())
    }

    /// Becomes the ordinary user of a stage that root has laid out.
    pub fn enter(dir: &Path) -> Result<Stage> {
        let user = User::find();
        if user.started_by_root {
            // The toolchain often lies in root's home. It is shown to the user
            // in a mount namespace of this process alone.
            unshare(CloneFlags::CLONE_NEWNS)?;
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            let toolchain = dir.join("toolchain");
            mount(Some(&sysroot()?), &toolchain, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?;
            setgroups(&[])?;
            let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
            setresgid(gid, gid, gid)?;
            setresuid(uid, uid, uid)?;
            // A change of ids makes /proc/self root's, and with it uid_map.
            cellblock::sys::credentials::set_dumpable(true)
                .map_err(|failure| failure.errno)
                .context("prctl")?;
        }
        Ok(Stage { dir: dir.to_owned(), user, _temporary: None })
    }

    /// The directory itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The release binary.
    pub fn cellblock(&self) -> PathBuf {
        self.dir.join("cellblock")
    }

    /// That of another commit, where one is given.
    pub fn before(&self) -> Option<PathBuf> {
        Some(self.dir.join("before")).filter(|path| path.exists())
    }

    /// This program.
    pub fn xtask(&self) -> PathBuf {
        self.dir.join("xtask")
    }

    /// A directory with nothing in it.
    pub fn empty(&self) -> PathBuf {
        self.dir.join("empty")
    }

    /// A directory of the user's.
    pub fn scratch(&self) -> PathBuf {
        self.dir.join("scratch")
    }

    /// The Rust toolchain, at a path without links.
    pub fn toolchain(&self) -> Result<PathBuf> {
        Ok(fs::canonicalize(self.dir.join("toolchain"))?)
    }
}

fn release_binary() -> Result<PathBuf> {
    let arguments = ["build", "--release", "--package=cellblock", "--message-format=json-render-diagnostics"];
    let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the release build failed");
    for line in output.stdout.split(|&byte| byte == b'\n') {
        let message: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
        if message["target"]["name"] == "cellblock"
            && let Some(path) = message["executable"].as_str()
        {
            return Ok(path.into());
        }
    }
    bail!("cargo built no cellblock");
}

fn sysroot() -> Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim_end().into())
}
