//! The caller's terminal, relayed to the one of the cell's own.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::ops::{BitAnd, BitXor};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{OutputFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};

use super::screen::Screen;
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
    /// The caller's settings and ours, while ours are in force.
    saved: Option<[Termios; 2]>,
    /// As [`Caller::alone`].
    alone: bool,
    to_provider: Vec<u8>,
    to_caller: Vec<u8>,
    /// The carriage return behind them, where the caller's terminal adds its own
    /// to the end of a line.
    held_return: bool,
    /// What the provider has made of the caller's terminal.
    screen: Screen,
    /// As it was when the terminal was given back for a while.
    left: Option<Screen>,
    /// How often the terminal has told its status.
    told_status: u32,
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

/// Asks a terminal for its status, and what it answers (ECMA-48, DSR).
const ASK_STATUS: &[u8] = b"\x1b[5n";
const STATUS: [u8; 4] = *b"\x1b[0n";

/// How long a terminal may take for its next answer, as one behind ssh does, and
/// for all of them.
const ANSWER: Duration = Duration::from_millis(300);
const ANSWERS: Duration = Duration::from_secs(1);

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
            held_return: false,
            screen: Screen::default(),
            left: None,
            told_status: 0,
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
                // The rest of a pipeline writes lines there.
                raw.output_flags = settings.output_flags;
            }
            // Not TCSADRAIN, which waits for a terminal that may be held up. What was
            // written before has its form already.
            if tcsetattr(&self.terminal, SetArg::TCSANOW, &raw).is_ok() {
                self.saved = Some([settings, raw]);
                if let Some(left) = self.left.take() {
                    self.to_caller.splice(0..0, left.again());
                }
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

    /// Gives the terminal back, as a shell expects it.
    pub fn suspend(&mut self) {
        if self.saved.is_some() {
            self.clear();
        }
        // A terminal that has hung up has no settings to lose.
        if let (Some(settings), Ok(mut present)) = (self.saved.take(), tcgetattr(&self.terminal)) {
            undo(settings, &mut present);
            let _ = tcsetattr(&self.terminal, SetArg::TCSANOW, &present);
        }
    }

    /// Resets what the provider has set, and lets nobody else read what it has
    /// made the terminal answer. What the caller has typed ahead stays where it
    /// is, unless the terminal was asked something: then it is told from the
    /// answers by a last question.
    fn clear(&mut self) {
        let mut bytes = self.screen.reset();
        let is_asked = self.screen.is_asked();
        if is_asked {
            bytes.extend(ASK_STATUS);
        }
        let is_written = write_within(&mut self.terminal, &bytes, ANSWER);
        if is_asked && is_written {
            let before = self.screen.asked_for_status().saturating_sub(self.told_status);
            discard_answers(&mut self.terminal, before + 1);
        }
        self.left = Some(self.screen.clone());
        self.screen.see(&bytes);
        self.screen.is_answered();
        self.told_status = 0;
    }

    /// Whether the caller's terminal puts a carriage return before the end of each
    /// line by itself, as the cell's own has done already.
    fn adds_returns(&self) -> bool {
        if self.saved.is_some() && self.alone {
            return false;
        }
        let adds = OutputFlags::OPOST | OutputFlags::ONLCR;
        tcgetattr(&self.terminal).is_ok_and(|settings| settings.output_flags.contains(adds))
    }

    /// Reads what the provider has written; `None` once nobody has the other side.
    fn take(&mut self) -> Option<usize> {
        let mut fresh = Vec::new();
        let is_there = fill(&mut self.master, &mut fresh);
        let adds_returns = self.adds_returns();
        for &byte in &fresh {
            if std::mem::take(&mut self.held_return) && byte != b'\n' {
                self.to_caller.push(b'\r');
            }
            self.held_return = byte == b'\r' && adds_returns;
            if !self.held_return {
                self.to_caller.push(byte);
            }
        }
        if !is_there {
            self.let_return_go();
        }
        is_there.then_some(fresh.len())
    }

    fn let_return_go(&mut self) {
        if std::mem::take(&mut self.held_return) {
            self.to_caller.push(b'\r');
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
        if terminal.contains(PollFlags::POLLIN) {
            if !fill(&mut self.terminal, &mut self.to_provider) {
                // EIO: somebody else has the terminal now, and its settings.
                self.saved = None;
            }
            let told = self.to_provider.windows(STATUS.len()).filter(|part| **part == STATUS);
            self.told_status = self.told_status.saturating_add(told.count() as u32);
        }
        if master.contains(PollFlags::POLLIN) {
            return if self.take().is_some() { Side::Both } else { Side::Caller };
        }
        if master.intersects(gone) && self.to_caller.is_empty() {
            return Side::Caller;
        }
        if master.contains(PollFlags::POLLOUT) {
            drain(&mut self.to_provider, &mut self.master);
        }
        if terminal.contains(PollFlags::POLLOUT) {
            self.show();
        }
        Side::Both
    }

    /// Takes what the cell has written, now that nothing of it lives. What comes
    /// later is not of the cell, whoever it has sent its terminal to.
    pub fn take_the_rest(&mut self) {
        self.slave = None;
        let limit = self.to_caller.len() + HELD;
        // Each read ends what is on its way inside the kernel; EAGAIN comes behind
        // the last byte, and EIO where nobody has the other side.
        while self.to_caller.len() < limit && self.take().is_some_and(|got| got > 0) {}
        self.let_return_go();
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
        let shown = drain(&mut self.to_caller, &mut self.terminal);
        self.screen.see(&shown);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.suspend();
    }
}

/// Undoes in `present` what the second settings changed in the first, and no more. Two
/// launchers in one pipeline share the terminal, and the second one to begin was
/// given the settings of the other.
fn undo([before, after]: [Termios; 2], present: &mut Termios) {
    present.input_flags = undone(before.input_flags, after.input_flags, present.input_flags);
    present.output_flags = undone(before.output_flags, after.output_flags, present.output_flags);
    present.control_flags = undone(before.control_flags, after.control_flags, present.control_flags);
    present.local_flags = undone(before.local_flags, after.local_flags, present.local_flags);
    let chars = present.control_chars;
    present.control_chars =
        std::array::from_fn(|at| undone(before.control_chars[at], after.control_chars[at], chars[at]));
}

/// The bits of `present`, but as in `before` where that and `after` differ.
fn undone<T: Copy + BitXor<Output = T> + BitAnd<Output = T>>(before: T, after: T, present: T) -> T {
    present ^ ((present ^ before) & (before ^ after))
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

/// Writes what is taken without waiting, and returns that.
fn drain(buffer: &mut Vec<u8>, to: &mut File) -> Vec<u8> {
    if buffer.is_empty() {
        return Vec::new();
    }
    match to.write(buffer) {
        Ok(written) => buffer.drain(..written).collect(),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Vec::new(),
        Err(_) => std::mem::take(buffer),
    }
}

/// Whether the terminal is ready for `wanted` before that time.
fn is_ready(terminal: &File, wanted: PollFlags, until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    let mut ready = [PollFd::new(terminal.as_fd(), wanted)];
    let found = poll(&mut ready, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO));
    found == Ok(1) && ready[0].revents().is_some_and(|flags| flags.contains(wanted))
}

/// Writes it all, to a terminal that takes it within that time.
fn write_within(terminal: &mut File, mut bytes: &[u8], time: Duration) -> bool {
    let until = Instant::now() + time;
    while !bytes.is_empty() && is_ready(terminal, PollFlags::POLLOUT, until) {
        match terminal.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
    bytes.is_empty()
}

/// Reads up to the last of so many answers to [`ASK_STATUS`], and no byte
/// further: behind it stands what was typed.
fn discard_answers(terminal: &mut File, mut answers: u32) {
    let end = Instant::now() + ANSWERS;
    let mut last = [0; STATUS.len()];
    let mut byte = [0];
    while answers > 0 && is_ready(terminal, PollFlags::POLLIN, end.min(Instant::now() + ANSWER)) {
        if !matches!(terminal.read(&mut byte), Ok(1)) {
            return;
        }
        last.rotate_left(1);
        last[STATUS.len() - 1] = byte[0];
        answers -= u32::from(last == STATUS);
    }
}
