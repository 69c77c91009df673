//! Which repository a workspace belongs to that holds none itself.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::links;
use crate::policy::Policy;

/// More than the longest path that git writes into one of these files.
const FILE_MAX: u64 = 8 << 10;

/// The directory that git needs for `workspace`, a linked worktree or a
/// submodule. The agent can write the file in the workspace that names it, so the
/// repository has to confirm it: by its own note of the worktree, or by being the
/// git directory of a module.
fn repository(workspace: &Path) -> Option<PathBuf> {
    let link = workspace.join(".git");
    let named = line(&link, b"gitdir: ")?;
    let private = links::join(workspace, &named).canonicalize().ok()?;
    let Some(back) = line(&private.join("gitdir"), b"") else {
        let is_module = ["HEAD", "config"].iter().all(|name| private.join(name).is_file())
            && private.join("objects").is_dir()
            && private.components().any(|part| part.as_os_str() == "modules");
        return is_module.then_some(private);
    };
    if links::join(&private, &back).canonicalize().ok()? != link.canonicalize().ok()? {
        return None;
    }
    let common = line(&private.join("commondir"), b"")?;
    links::join(&private, &common).canonicalize().ok()
}

/// The path in a file of one line, behind `prefix`.
fn line(path: &Path, prefix: &[u8]) -> Option<PathBuf> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut content = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut content).ok()?;
    let path = content.strip_prefix(prefix)?.strip_suffix(b"\n")?;
    let is_path = !path.is_empty() && path.iter().all(|byte| !byte.is_ascii_control());
    is_path.then(|| Path::new(OsStr::from_bytes(path)).to_owned())
}

/// The repository of a policy's workspace, where the cell does not see it.
pub fn unseen(policy: &Policy) -> Option<PathBuf> {
    let workspace = policy.workspace.as_ref()?;
    let repository = repository(&workspace.dir)?;
    let mut views = policy.views().filter(|view| !view.role.is_of_the_channel());
    let is_seen = views.any(|view| view.place_of(&repository).as_ref() == Some(&repository));
    (!is_seen).then_some(repository)
}
