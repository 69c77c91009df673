//! seccomp(2).

use super::{Call, Result, check};

/// One instruction of classic BPF, laid out as `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// What it does.
    pub code: u16,
    /// Instructions to skip when the test holds.
    pub jt: u8,
    /// Instructions to skip when it does not.
    pub jf: u8,
    /// Its operand.
    pub k: u32,
}

impl Insn {
    /// An instruction of these four fields.
    pub const fn new(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
        Insn { code, jt, jf, k }
    }
}

/// Whether the kernel was built with seccomp filters.
pub fn is_available() -> bool {
    // SAFETY: with a null program the kernel fails: EFAULT where it has filters, EINVAL where not.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, 0, 0, 0) };
    result == -1 && super::Errno::last() == super::Errno::EFAULT
}

/// Lays a filter on this process; `no_new_privs` must be set.
pub fn install(program: &[Insn]) -> Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: `Insn` is laid out as `sock_filter`, the kernel only reads, and `len` of them are there.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0u32, &raw const program) };
    check(Call::Seccomp, result).map(drop)
}
