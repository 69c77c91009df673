//! Trees that a group shares: their directories hand the group down by the
//! set-group-id bit, which the filter lets no program set.

use std::ffi::CString;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Facts, Warning, warning};
use crate::git::{config, file};
use crate::policy::{Access, Layer, Mode, Policy, View, ViewRole};
use crate::sys::fd;

/// Where git keeps what the members of a group share.
const OF_GIT: [&str; 3] = [".git", ".git/objects", ".git/refs"];

/// Why programs in a tree set the bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetGid {
    /// This directory has it, and so has each that is made in it.
    Directory(PathBuf),
    /// The settings in this file tell git to set it.
    SharedRepository(PathBuf),
}

impl SetGid {
    /// The first writable tree of this kind, where the filter is one that refuses the bit.
    pub fn probe(policy: &Policy) -> Option<SetGid> {
        let allows = policy.seccomp.filter.as_ref().is_some_and(|name| name.ends_with("-set-gid"));
        let is_refused = !allows && !policy.require.without.contains(&Layer::Seccomp);
        if !is_refused {
            return None;
        }
        let workspace = policy.workspace.as_ref().filter(|workspace| workspace.access == Access::ReadWrite);
        let of_git = workspace.iter().flat_map(|workspace| OF_GIT.map(|place| workspace.dir.join(place)));
        let mut places = writable(policy).into_iter().map(|view| view.source.to_owned()).chain(of_git);
        let directory = places.find(|place| hands_down(place)).map(SetGid::Directory);
        directory.or_else(|| shared_repository(&workspace?.dir).map(SetGid::SharedRepository))
    }
}

/// The trees that the cell may write, and where the policy names them.
fn writable(policy: &Policy) -> Vec<View<'_>> {
    let trees = policy.views().filter(|view| view.is_writable && !view.role.is_of_the_channel());
    let mut trees: Vec<View> = trees.collect();
    trees.sort_by_key(|view| view.role != ViewRole::Workspace);
    trees
}

fn hands_down(place: &Path) -> bool {
    let found = fs::symlink_metadata(place);
    found.is_ok_and(|found| found.is_dir() && found.mode() & libc::S_ISGID != 0)
}

/// The file whose `core.sharedRepository` names somebody (git-config(1)).
fn shared_repository(workspace: &Path) -> Option<PathBuf> {
    // Somebody may put a link there at any time.
    let root = fd::open_path(fd::CWD, &CString::new(workspace.as_os_str().as_bytes()).ok()?).ok()?;
    let place = Path::new(".git/config");
    let settings = config::parse(&file::read(root.as_fd(), place).ok()?)?;
    let shared = settings.iter().rfind(|setting| setting.is("core", "sharedrepository"))?;
    let nobody: [&[u8]; 6] = [b"umask", b"false", b"no", b"off", b"0", b""];
    let is_nobody = nobody.iter().any(|nobody| shared.value.eq_ignore_ascii_case(nobody));
    (!is_nobody).then(|| workspace.join(place))
}

/// Says which filter lets programs work there.
pub(super) fn warnings(policy: &Policy, facts: &Facts) -> Option<Warning> {
    let (path, why) = match facts.set_gid.as_ref()? {
        SetGid::Directory(path) => (path, "has the set-group-id bit"),
        SetGid::SharedRepository(path) => (path, "sets core.sharedRepository"),
    };
    let origin = writable(policy).into_iter().find(|view| path.starts_with(view.source))?.origin;
    let path: PathBuf = path.components().collect();
    let filter = if policy.mode == Mode::Nested { "nested-set-gid" } else { "provider-set-gid" };
    Some(warning(
        "set-gid-tree",
        origin,
        format!(
            "{} {why}, and no program in the cell may set the set-group-id bit: git and cp -a fail with \
             \"Operation not permitted\" (--seccomp {filter} lets them)",
            path.display()
        ),
        "directories there hand their group down by that bit, and the filter refuses it with the other set-id bits",
        format!(
            "use the filter that lets programs set this bit alone: filter = \"{filter}\" under [seccomp]"
        ),
    ))
}
