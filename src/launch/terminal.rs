//! The caller's terminal, relayed to the one of the cell's own.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::termios::{FlushArg, SetArg, Termios, cfmakeraw, tcflush, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};

use crate::sys::tty;

/// The terminal that the launcher was started on.
pub(super) struct Caller {
    pub terminal: OwnedFd,
    /// Whether nothing but the relay writes there, as far as the streams tell.
    pub alone: bool,
}

/// Both ends of the relay. Dropping it gives the caller's terminal back.
pub(super) struct Relay {
    /// The caller's.
    terminal: File,
    /// The cell's.
    master: File,
    /// The cell's own side, so that it never ends while the cell lives: a program
    /// may close it and open it again.
    slave: Option<OwnedFd>,
    /// The caller's settings, while ours are in force.
    saved: Option<Termios>,
    /// As [`Caller::alone`].
    alone: bool,
    to_provider: Vec<u8>,
    to_caller: Vec<u8>,
}

/// What of a relay is still there.
pub(super) enum Side {
    Both,
    /// The caller's terminal has hung up.
    Cell,
    /// Nobody in the cell has its terminal open.
    Caller,
}

const CHUNK: usize = 4096;

/// More than a pseudo-terminal holds: 4 KiB to be read, 8 KiB on the way there,
/// and what one write is ahead.
const HELD: usize = 64 * 1024;

impl Relay {
    pub fn new(caller: Caller, master: OwnedFd, slave: OwnedFd) -> nix::Result<Relay> {
        fcntl(&master, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
        let mut relay = Relay {
            terminal: reopen(caller.terminal),
            master: master.into(),
            slave: Some(slave),
            saved: None,
            alone: caller.alone,
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
            if !self.alone {
                // The rest of a pipeline writes lines there; the relay's own end
                // in a carriage return too many, which does not show.
                raw.output_flags = settings.output_flags;
            }
            // Not TCSADRAIN, which waits for a terminal that may be held up. What was
            // written before has its form already.
            if tcsetattr(&self.terminal, SetArg::TCSANOW, &raw).is_ok() {
                self.saved = Some(settings);
            }
        }
    }

    /// Whether the terminal is the one that this process is controlled by, so that
    /// a shell there may wake it.
    pub fn is_controlling(&self) -> bool {
        tcgetpgrp(&self.terminal).is_ok()
    }

    /// Whether this process reads the terminal, as its foreground job.
    pub fn has_the_terminal(&self) -> bool {
        self.saved.is_some()
    }

    /// Whether the terminal is in the hands of another job. No signal tells a
    /// job that was started in the background of its turn: a shell's `fg` sends
    /// CONT only to one that has stopped.
    pub fn waits_for_its_turn(&self) -> bool {
        self.saved.is_none() && self.is_controlling()
    }

    /// Gives the terminal back.
    pub fn suspend(&mut self) {
        if let Some(settings) = self.saved.take() {
            // A terminal that has hung up has no settings to lose.
            let _ = tcsetattr(&self.terminal, SetArg::TCSANOW, &settings);
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
        [PollFd::new(self.terminal.as_fd(), terminal), PollFd::new(self.master.as_fd(), master)]
    }

    /// Carries on where poll has said that it can, and says which side is left.
    pub fn step(&mut self, [terminal, master]: [PollFlags; 2]) -> Side {
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        if terminal.intersects(gone) {
            return Side::Cell;
        }
        if self.waits_for_its_turn() {
            self.resume();
        }
        if terminal.contains(PollFlags::POLLIN) && !fill(&mut self.terminal, &mut self.to_provider) {
            // EIO: somebody else has the terminal now, and its settings.
            self.saved = None;
        }
        if master.contains(PollFlags::POLLIN) {
            // EIO once nobody has the other side.
            let is_there = fill(&mut self.master, &mut self.to_caller);
            return if is_there { Side::Both } else { Side::Caller };
        }
        if master.intersects(gone) && self.to_caller.is_empty() {
            return Side::Caller;
        }
        if master.contains(PollFlags::POLLOUT) {
            drain(&mut self.to_provider, &mut self.master);
        }
        if terminal.contains(PollFlags::POLLOUT) {
            drain(&mut self.to_caller, &mut self.terminal);
        }
        Side::Both
    }

    /// Takes what the cell has written, now that nothing of it lives. What comes
    /// later is not of the cell, whoever it has sent its terminal to.
    pub fn take_the_rest(&mut self) {
        self.slave = None;
        let limit = self.to_caller.len() + HELD;
        let mut before = usize::MAX;
        // Each read ends what is on its way inside the kernel; EAGAIN comes behind
        // the last byte, and EIO where nobody has the other side.
        while self.to_caller.len() < limit && self.to_caller.len() != before {
            before = self.to_caller.len();
            if !fill(&mut self.master, &mut self.to_caller) {
                return;
            }
        }
    }

    /// How much has not been shown yet.
    pub fn unshown(&self) -> usize {
        self.to_caller.len()
    }

    /// For when there is something to show, and the cell is no more.
    pub fn poll_caller(&self) -> PollFd<'_> {
        PollFd::new(self.terminal.as_fd(), PollFlags::POLLOUT)
    }

    /// Shows what the caller's terminal takes.
    pub fn show(&mut self) {
        drain(&mut self.to_caller, &mut self.terminal);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if self.saved.is_some() {
            // What the terminal was made to answer must not be typed into the shell.
            let _ = tcflush(&self.terminal, FlushArg::TCIFLUSH);
        }
        self.suspend();
    }
}

/// As [`open_anew`]; of a terminal for which that fails, the description that we
/// were given.
fn reopen(terminal: OwnedFd) -> File {
    open_anew(terminal.as_fd()).unwrap_or_else(|_| terminal.into())
}

/// A description of our own, which may be non-blocking without the caller's
/// shell seeing it. A controlling terminal has a name that everybody may open,
/// even where it belongs to another user, as after su(1); of any other one that
/// does, only the description we were given can be had, and it is never read.
pub(super) fn open_anew(terminal: BorrowedFd) -> io::Result<File> {
    let path = if tcgetpgrp(terminal).is_ok() {
        "/dev/tty".to_owned()
    } else {
        format!("/proc/self/fd/{}", terminal.as_raw_fd())
    };
    let flags = libc::O_NOCTTY | libc::O_NONBLOCK;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
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
