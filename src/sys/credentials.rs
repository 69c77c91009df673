//! Ids, capabilities, and what else a process is known by.

use std::ffi::CStr;

use super::{Call, Errno, Failure, Result, check};

/// Gives up every id but these: real, effective and saved.
pub fn set_ids(uid: u32, gid: u32) -> Result<()> {
    // SAFETY: no memory is involved.
    let result = unsafe { libc::setresgid(gid, gid, gid) };
    check(Call::Setresgid, result.into())?;
    // SAFETY: no memory is involved.
    let result = unsafe { libc::setresuid(uid, uid, uid) };
    check(Call::Setresuid, result.into()).map(drop)
}

/// Drops every capability the kernel knows from the bounding set, then empties
/// the ambient, effective, permitted and inheritable sets.
pub fn drop_capabilities() -> Result<()> {
    // From above, as the numbers that the kernel does not know are all there:
    // below the first that it knows, EINVAL is a failure like any other.
    let mut known = false;
    for capability in (0..64).rev() {
        match prctl(libc::PR_CAPBSET_DROP, capability, 0) {
            Err(Failure { errno: Errno::EINVAL, .. }) if !known && capability > 0 => {}
            result => {
                result?;
                known = true;
            }
        }
    }
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0)?;

    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    let sets = [0u32; 6];
    // SAFETY: version 3 takes a header and two structs of three u32, which the kernel only reads.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    check(Call::Capset, result).map(drop)
}

/// `PR_SET_DUMPABLE`: whether processes of the same user may look into this one.
pub fn set_dumpable(dumpable: bool) -> Result<()> {
    prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(dumpable), 0)
}

/// `PR_SET_NO_NEW_PRIVS`.
pub fn set_no_new_privs() -> Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)
}

/// `PR_SET_PDEATHSIG`: be killed when the parent dies. A change of the user id
/// clears it.
pub fn die_with_parent() -> Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0)
}

fn prctl(operation: libc::c_int, first: libc::c_ulong, second: libc::c_ulong) -> Result<()> {
    // SAFETY: the operations above take integers alone.
    check(Call::Prctl, unsafe { libc::prctl(operation, first, second, 0, 0) }.into()).map(drop)
}

/// Empties `/proc/PID/cmdline`, `environ` and `auxv` of this process, which
/// would otherwise show the launcher's arguments.
///
/// `PR_SET_MM_MAP` needs no capability as long as it names no executable
/// (prctl(2)). The other fields only serve `/proc/PID/stat`; brk keeps its value.
pub fn clear_command_line() -> Result<()> {
    /// `struct prctl_mm_map`
    #[repr(C)]
    struct Map {
        start_code: u64,
        end_code: u64,
        start_data: u64,
        end_data: u64,
        start_brk: u64,
        brk: u64,
        start_stack: u64,
        arg_start: u64,
        arg_end: u64,
        env_start: u64,
        env_end: u64,
        auxv: *const u64,
        auxv_size: u32,
        exe_fd: u32,
    }
    // SAFETY: sbrk(0) only reports the present end of the heap.
    let brk = unsafe { libc::sbrk(0) } as u64;
    let somewhere = brk & !0xfff;
    let map = Map {
        start_code: somewhere,
        end_code: somewhere + 1,
        start_data: somewhere,
        end_data: somewhere + 1,
        start_brk: somewhere,
        brk,
        start_stack: somewhere,
        arg_start: somewhere,
        arg_end: somewhere,
        env_start: somewhere,
        env_end: somewhere,
        auxv: std::ptr::null(),
        auxv_size: 0,
        exe_fd: u32::MAX,
    };
    // SAFETY: `map` is a whole `prctl_mm_map` of the size given, which the kernel only reads.
    let result =
        unsafe { libc::prctl(libc::PR_SET_MM, libc::PR_SET_MM_MAP, &raw const map, size_of::<Map>(), 0) };
    check(Call::Prctl, result.into()).map(drop)
}

/// Leaves the session keyring for a new, empty one: keyrings outlive exec and
/// namespaces (keyrings(7)).
pub fn join_new_session_keyring() -> Result<()> {
    // SAFETY: a null name asks for an anonymous keyring.
    let result = unsafe {
        libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>())
    };
    check(Call::Keyctl, result).map(drop)
}

/// sethostname(2).
pub fn set_hostname(name: &CStr) -> Result<()> {
    let name = name.to_bytes();
    // SAFETY: `name` is readable for its length.
    check(Call::Sethostname, unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }.into()).map(drop)
}

/// umask(2), which cannot fail; returns the former one.
pub fn set_umask(mask: u32) -> u32 {
    // SAFETY: no memory is involved.
    unsafe { libc::umask(mask) }
}

/// The hard limit of a resource.
pub fn hard_limit(resource: u32) -> Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` has room for one `rlimit`.
    check(Call::Getrlimit, unsafe { libc::getrlimit(resource as _, &raw mut limit) }.into())?;
    Ok(limit.rlim_max)
}

/// Sets both limits of a resource.
pub fn set_limit(resource: u32, value: u64) -> Result<()> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: `limit` is one `rlimit`, which the kernel only reads.
    check(Call::Setrlimit, unsafe { libc::setrlimit(resource as _, &raw const limit) }.into()).map(drop)
}
