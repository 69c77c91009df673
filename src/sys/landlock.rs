//! landlock_create_ruleset(2), landlock_add_rule(2), landlock_restrict_self(2).

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::fd::{CWD, open_path};
use super::{Call, Errno, Result, check};

/// What a domain handles, as `struct landlock_ruleset_attr` has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handled {
    /// `LANDLOCK_ACCESS_FS_*`
    pub fs: u64,
    /// `LANDLOCK_ACCESS_NET_*`
    pub net: u64,
    /// `LANDLOCK_SCOPE_*`
    pub scoped: u64,
}

impl Handled {
    /// Older kernels take a longer struct only where the rest is zero, so this
    /// whole one is right for every ABI as long as `fs`, `net` and `scoped` are.
    const SIZE: usize = size_of::<Handled>();
}

/// The highest ABI that the kernel offers; 0 where Landlock is absent or off.
pub fn abi() -> u32 {
    version().unwrap_or(0)
}

/// The highest ABI that the kernel offers, or the errno that says why there is none.
pub fn version() -> std::result::Result<u32, Errno> {
    // SAFETY: with this flag the kernel reads no attribute.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<Handled>(), 0usize, 1u32)
    };
    Errno::result(abi).map(|abi| u32::try_from(abi).unwrap_or(0))
}

/// A ruleset that denies all of `handled`.
pub fn create(handled: &Handled) -> Result<OwnedFd> {
    // SAFETY: `handled` is a whole attribute of the size given.
    let fd =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const *handled, Handled::SIZE, 0u32) };
    // SAFETY: the kernel has just given us this descriptor and nobody else has it.
    check(Call::LandlockCreateRuleset, fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Grants `access` on the file at `path` and on all below it.
pub fn allow(ruleset: &OwnedFd, path: &CStr, access: u64) -> Result<()> {
    #[repr(C, packed)]
    struct PathBeneath {
        allowed_access: u64,
        parent_fd: i32,
    }
    let parent = open_path(CWD, path)?;
    let rule = PathBeneath { allowed_access: access, parent_fd: parent.as_raw_fd() };
    const LANDLOCK_RULE_PATH_BENEATH: u32 = 1;
    // SAFETY: `rule` is a whole `struct landlock_path_beneath_attr`, packed as the kernel's.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            LANDLOCK_RULE_PATH_BENEATH,
            &raw const rule,
            0u32,
        )
    };
    check(Call::LandlockAddRule, result).map(drop)
}

/// Enters the domain; `no_new_privs` must be set.
pub fn restrict_self(ruleset: &OwnedFd) -> Result<()> {
    // SAFETY: no memory is involved.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) };
    check(Call::LandlockRestrictSelf, result).map(drop)
}
