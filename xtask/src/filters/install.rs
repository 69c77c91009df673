//! Putting a filter on a process of our own, to try it against the kernel.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::bpf::Insn;

/// A program in the kernel's form.
#[derive(Clone)]
pub struct Loaded(Vec<libc::sock_filter>);

impl Loaded {
    /// Converts `program`.
    pub fn new(program: &[Insn]) -> Self {
        let insn = |&Insn { code, jt, jf, k }: &Insn| libc::sock_filter { code, jt, jf, k };
        Loaded(program.iter().map(insn).collect())
    }

    /// Puts the filter on the calling thread, for good. Allocates nothing, so it may follow a
    /// fork.
    ///
    /// # Errors
    ///
    /// What the kernel says to `no_new_privs` or to the program.
    pub fn install(&self) -> io::Result<()> {
        let program = libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: `program` points to `len` instructions that live until the call returns, and
        // the kernel only reads them.
        let installed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program) == 0
        };
        if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Has `command` run under the filter.
    pub fn around<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let filter = self.clone();
        // SAFETY: `install` is safe to call between fork and exec, it makes two system calls.
        unsafe { command.pre_exec(move || filter.install()) }
    }
}
