//! Runs a command on a terminal, as a person at one would.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::call::{call, call_fd};

/// Runs `command` with a new terminal on stdin, stdout and stderr, adds that
/// terminal to the facts, and copies what is written there; the exit code.
pub fn run(facts: &Path, command: &[String]) -> io::Result<u8> {
    let mut master = OpenOptions::new().read(true).write(true).open("/dev/ptmx")?;
    let fd = master.as_raw_fd() as usize;
    let unlock = 0i32;
    call(libc::SYS_ioctl, &[fd, libc::TIOCSPTLCK as usize, &raw const unlock as usize])?;
    let flags = (libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) as usize;
    let slave = std::fs::File::from(call_fd(libc::SYS_ioctl, &[fd, libc::TIOCGPTPEER as usize, flags])?);
    let meta = slave.metadata()?;
    writeln!(OpenOptions::new().append(true).open(facts)?, "TTY={}:{}", meta.dev(), meta.rdev())?;

    let mut start = Command::new(&command[0]);
    start.args(&command[1..]).stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave.try_clone()?);
    let session = || {
        call(libc::SYS_setsid, &[])?;
        call(libc::SYS_ioctl, &[0, libc::TIOCSCTTY as usize, 0]).map(drop)
    };
    // SAFETY: the child makes two system calls and allocates nothing.
    unsafe { start.pre_exec(session) };
    let mut child = start.spawn()?;
    drop((start, slave));
    let mut bytes = [0; 4096];
    // EIO is a terminal's end: nobody has it open any more.
    while let Ok(read @ 1..) = master.read(&mut bytes) {
        io::stdout().write_all(&bytes[..read])?;
    }
    Ok(child.wait()?.code().map_or(255, |code| code as u8))
}
