//! The caller's terminal, relayed to the one of the cell's own.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};

use crate::sys::tty;

/// Both ends of the relay. Dropping it gives the caller's terminal back.
pub(super) struct Relay {
    /// The caller's.
    terminal: File,
    /// The cell's.
    master: File,
    /// Its other side: a provider that closes its last descriptor of it, and may
    /// open `/dev/tty` anew, would otherwise seem to have hung up.
    _slave: OwnedFd,
    /// The caller's settings, while ours are in force.
    saved: Option<Termios>,
    to_provider: Vec<u8>,
    to_caller: Vec<u8>,
}

const CHUNK: usize = 4096;

impl Relay {
    pub fn new(terminal: OwnedFd, master: OwnedFd) -> nix::Result<Relay> {
        fcntl(
            &master,
            FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK),
        )?;
        let slave = tty::open_slave(master.as_raw_fd()).map_err(|failure| failure.errno)?;
        let mut relay = Relay {
            terminal: reopen(terminal),
            master: master.into(),
            _slave: slave,
            saved: None,
            to_provider: Vec::new(),
            to_caller: Vec::new(),
        };
        relay.resume();
        Ok(relay)
    }

    /// Takes the terminal over, if this process is in its foreground; a
    /// background process that touched it would be stopped.
    pub fn resume(&mut self) {
        self.resize();
        if self.saved.is_some() || tcgetpgrp(&self.terminal) != Ok(getpgrp()) {
            return;
        }
        if let Ok(settings) = tcgetattr(&self.terminal) {
            let mut raw = settings.clone();
            cfmakeraw(&mut raw);
            if tcsetattr(&self.terminal, SetArg::TCSADRAIN, &raw).is_ok() {
                self.saved = Some(settings);
            }
        }
    }

    /// Gives the terminal back.
    pub fn suspend(&mut self) {
        if let Some(settings) = self.saved.take() {
            // A terminal that has hung up has no settings to lose.
            let _ = tcsetattr(&self.terminal, SetArg::TCSADRAIN, &settings);
        }
    }

    /// Hands the window's size on; the kernel tells the provider by SIGWINCH.
    pub fn resize(&self) {
        tty::copy_size(self.terminal.as_raw_fd(), self.master.as_raw_fd());
    }

    pub fn poll(&self) -> [PollFd<'_>; 2] {
        let mut terminal = PollFlags::empty();
        let mut master = PollFlags::empty();
        if self.saved.is_some() && self.to_provider.is_empty() {
            terminal |= PollFlags::POLLIN;
        }
        if !self.to_caller.is_empty() {
            terminal |= PollFlags::POLLOUT;
        } else {
            master |= PollFlags::POLLIN;
        }
        if !self.to_provider.is_empty() {
            master |= PollFlags::POLLOUT;
        }
        [
            PollFd::new(self.terminal.as_fd(), terminal),
            PollFd::new(self.master.as_fd(), master),
        ]
    }

    /// Carries what can be carried; false when the cell's side has ended.
    pub fn step(&mut self) -> bool {
        if self.saved.is_some() && self.to_provider.is_empty() {
            fill(&mut self.terminal, &mut self.to_provider);
        }
        drain(&mut self.to_provider, &mut self.master);
        drain(&mut self.to_caller, &mut self.terminal);
        !self.to_caller.is_empty() || fill(&mut self.master, &mut self.to_caller)
    }

    /// Shows what the provider wrote last.
    pub fn finish(&mut self) {
        while self.step() {
            let mut terminal = [PollFd::new(self.terminal.as_fd(), PollFlags::POLLOUT)];
            if self.to_caller.is_empty()
                || !matches!(nix::poll::poll(&mut terminal, 1000u16), Ok(1))
            {
                break;
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.suspend();
    }
}

/// A description of our own, which may be non-blocking without the caller's
/// shell seeing it. Where the terminal belongs to another user, as after su(1),
/// only the one we were given can be had.
fn reopen(terminal: OwnedFd) -> File {
    let path = format!("/proc/self/fd/{}", terminal.as_raw_fd());
    let flags = libc::O_NOCTTY | libc::O_NONBLOCK;
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
        .unwrap_or_else(|_| terminal.into())
}

/// Reads once; false at the end.
fn fill(from: &mut File, buffer: &mut Vec<u8>) -> bool {
    let mut chunk = [0; CHUNK];
    match from.read(&mut chunk) {
        Ok(0) => false,
        Ok(got) => {
            buffer.extend_from_slice(&chunk[..got]);
            true
        }
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

/// Writes what is taken without waiting.
fn drain(buffer: &mut Vec<u8>, to: &mut File) {
    if buffer.is_empty() {
        return;
    }
    match to.write(buffer) {
        Ok(written) => drop(buffer.drain(..written)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(_) => buffer.clear(),
    }
}
