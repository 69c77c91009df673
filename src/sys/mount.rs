//! The mount API of Linux 5.2 and later: fsopen(2), fsconfig(2), fsmount(2),
//! open_tree(2), move_mount(2), mount_setattr(2), and pivot_root(2).

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use super::fd::{CWD, Identity, must_be, must_have_number, open_path, open_path_beneath};
use super::{Call, Result, check};

/// Attributes of a mount, as mount_setattr(2) has them.
pub type Attributes = u64;

/// `MOUNT_ATTR_RDONLY`
pub const READ_ONLY: Attributes = libc::MOUNT_ATTR_RDONLY;
/// `MOUNT_ATTR_NOSUID`
pub const NO_SUID: Attributes = libc::MOUNT_ATTR_NOSUID;
/// `MOUNT_ATTR_NODEV`
pub const NO_DEV: Attributes = libc::MOUNT_ATTR_NODEV;
/// `MOUNT_ATTR_NOEXEC`
pub const NO_EXEC: Attributes = libc::MOUNT_ATTR_NOEXEC;

/// A fresh instance of a file system, not yet attached. An option with an empty
/// value is a flag.
pub fn make<'a>(
    kind: &CStr,
    options: impl Iterator<Item = (&'a CStr, &'a CStr)>,
    attributes: Attributes,
) -> Result<OwnedFd> {
    // SAFETY: `kind` ends in NUL.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) };
    let context = owned(check(Call::Fsopen, context)?);
    for (key, value) in options {
        match value.is_empty() {
            true => configure(&context, FSCONFIG_SET_FLAG, key.as_ptr(), ptr::null())?,
            false => configure(&context, FSCONFIG_SET_STRING, key.as_ptr(), value.as_ptr())?,
        }
    }
    configure(&context, FSCONFIG_CMD_CREATE, ptr::null(), ptr::null())?;
    // SAFETY: no memory is involved.
    let mount = unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, attributes) };
    check(Call::Fsmount, mount).map(owned)
}

fn configure(
    context: &OwnedFd,
    command: u32,
    key: *const libc::c_char,
    value: *const libc::c_char,
) -> Result<()> {
    // SAFETY: `key` and `value` are null, where the command takes none, or end in NUL.
    let result = unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key, value, 0) };
    check(Call::Fsconfig, result).map(drop)
}

/// A private copy of the mounts at and below `path`, not yet attached.
///
/// The file must be the one that was found when the plan was made.
pub fn copy(path: &CStr, expected: Option<Identity>) -> Result<OwnedFd> {
    let Some(expected) = expected else { return copy_descriptor(&open_path(CWD, path)?) };
    // Whatever the path goes through, the root of the copy is that file or no other.
    let tree = open_tree(CWD, path, libc::AT_SYMLINK_NOFOLLOW)?;
    must_be(tree.as_fd(), expected)?;
    Ok(tree)
}

/// As [`copy`], of a path in the new root.
pub fn copy_inside(path: &CStr, inode: Option<u64>) -> Result<OwnedFd> {
    let source = open_path_beneath(CWD, path)?;
    if let Some(inode) = inode {
        must_have_number(source.as_fd(), inode)?;
    }
    copy_descriptor(&source)
}

/// Fails with ESTALE unless a path of the new root is the file that was found
/// when the plan was made.
pub fn must_be_inside(path: &CStr, expected: Identity) -> Result<()> {
    must_be(open_path_beneath(CWD, path)?.as_fd(), expected)
}

/// mount(2) of a mount of the new tree at one more path of it. The second has the
/// attributes of the first. Both paths are followed where they are
/// links. A directory over a file, or the reverse, is ENOTDIR, and then the kernel
/// waits for all processors to let go of the copy.
pub fn bind_again(mount: &CStr, path: &CStr) -> Result<()> {
    // SAFETY: both paths end in NUL; a bind takes neither a type nor data.
    let result =
        unsafe { libc::mount(mount.as_ptr(), path.as_ptr(), ptr::null(), libc::MS_BIND, ptr::null()) };
    check(Call::Mount, result.into()).map(drop)
}

fn copy_descriptor(source: &OwnedFd) -> Result<OwnedFd> {
    open_tree(source.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
}

fn open_tree(dir: RawFd, path: &CStr, flags: libc::c_int) -> Result<OwnedFd> {
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as u32 | (flags | libc::AT_RECURSIVE) as u32;
    // SAFETY: `path` ends in NUL.
    let tree = unsafe { libc::syscall(libc::SYS_open_tree, dir, path.as_ptr(), flags) };
    check(Call::OpenTree, tree).map(owned)
}

/// Sets attributes on every mount of a tree, and cuts it off from the events of
/// the host's mounts: a file system that the host mounts below a source later
/// would otherwise appear in the cell.
///
/// Attributes are only ever added. To clear one that an outer user namespace
/// has locked is EPERM.
pub fn restrict(tree: &OwnedFd, attributes: Attributes) -> Result<()> {
    set_attributes(
        tree.as_raw_fd(),
        c"",
        libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
        attributes,
        libc::MS_PRIVATE,
    )
}

/// Sets attributes on the mount at a path of the new root, on it alone; the
/// root itself is `.`.
pub fn restrict_one(path: &CStr, attributes: Attributes) -> Result<()> {
    set_attributes(CWD, path, libc::AT_SYMLINK_NOFOLLOW, attributes, 0)
}

fn set_attributes(
    dir: RawFd,
    path: &CStr,
    flags: i32,
    attributes: Attributes,
    propagation: u64,
) -> Result<()> {
    let change = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation, userns_fd: 0 };
    // SAFETY: `path` ends in NUL and `change` is a whole `mount_attr` of the size given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            dir,
            path.as_ptr(),
            flags,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    check(Call::MountSetattr, result).map(drop)
}

/// Attaches a tree to a path of the new root, over what is there.
pub fn attach(tree: &OwnedFd, path: &CStr) -> Result<()> {
    let target = open_path_beneath(CWD, path)?;
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, target.as_raw_fd(), c"", flags)
}

/// Attaches a tree over `/` and makes it the working directory. The root of the
/// process stays below it until [`pivot_root`], so that sources can be opened.
pub fn attach_over_root(tree: &OwnedFd) -> Result<()> {
    move_mount(tree, CWD, c"/", MOVE_MOUNT_F_EMPTY_PATH)?;
    // SAFETY: no memory is involved.
    check(Call::Fchdir, unsafe { libc::fchdir(tree.as_raw_fd()) }.into()).map(drop)
}

fn move_mount(tree: &OwnedFd, dir: RawFd, path: &CStr, flags: u32) -> Result<()> {
    // SAFETY: both paths end in NUL.
    let result = unsafe {
        libc::syscall(libc::SYS_move_mount, tree.as_raw_fd(), c"".as_ptr(), dir, path.as_ptr(), flags)
    };
    check(Call::MoveMount, result).map(drop)
}

/// pivot_root(2) to the working directory, with the old root stacked on the new.
pub fn pivot_root() -> Result<()> {
    // SAFETY: both paths end in NUL.
    let result = unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) };
    check(Call::PivotRoot, result).map(drop)
}

/// Takes the mounts at and below a path of the new root out of the namespace.
/// A file system that was made of them keeps them.
pub fn detach(path: &CStr) -> Result<()> {
    // SAFETY: `path` ends in NUL.
    let result = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) };
    check(Call::Umount, result.into()).map(drop)
}

/// Takes the old root, which [`pivot_root`] left on top, out of the namespace.
pub fn detach_old_root() -> Result<()> {
    // SAFETY: the path ends in NUL.
    let result = unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) };
    check(Call::Umount, result.into())?;
    change_directory(c"/")
}

/// chdir(2).
pub fn change_directory(path: &CStr) -> Result<()> {
    // SAFETY: `path` ends in NUL.
    check(Call::Chdir, unsafe { libc::chdir(path.as_ptr()) }.into()).map(drop)
}

fn owned(fd: libc::c_long) -> OwnedFd {
    // SAFETY: called with a descriptor that the kernel has just given us alone.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

// From linux/mount.h; libc has not all of them.
const FSOPEN_CLOEXEC: u32 = 1;
const FSMOUNT_CLOEXEC: u32 = 1;
const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const OPEN_TREE_CLONE: u32 = 1;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 4;
const MOVE_MOUNT_T_EMPTY_PATH: u32 = 0x40;
