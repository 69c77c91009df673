//! What the launcher itself says: lines on standard error, the log, the status.
//!
//! None of it waits while a cell runs: what its reader does not take at once is
//! kept, in order, and written beside the launcher's other work. There is one
//! place for it in the process, as the log can be written from anywhere.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::outlet::{HURRIED, Outlet, PATIENT, Stall, is_gone, wait};
use super::signals;
use crate::message::Look;

static NOTICES: Mutex<Notices> =
    Mutex::new(Notices { stderr: None, status: None, status_failed: None, time_is_up: None });

/// The lines on their way.
pub(super) struct Notices {
    /// From the first line on.
    stderr: Option<Outlet>,
    /// Where somebody wants one.
    status: Option<Outlet>,
    /// What ended the status before its last line.
    status_failed: Option<Errno>,
    /// When the run's time is up.
    time_is_up: Option<Instant>,
}

/// Says something on standard error that the caller should know.
pub fn say(notice: &str) {
    tell(&Look::of_stderr().notice(notice));
}

/// Writes lines to standard error as they are.
pub fn tell(lines: &str) {
    lock().tell(lines.as_bytes());
}

/// Where the log goes: beside what is said.
pub struct Log;

impl Write for Log {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        lock().tell(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits for the reader of standard error, but not for one that does not read.
pub fn finish() {
    lock().wait_while(|notices| notices.stderr.as_ref().is_some_and(|stderr| !stderr.is_empty()));
}

/// From now on the status has a reader.
pub(super) fn open_status(descriptor: OwnedFd) {
    lock().status = Some(Outlet::to_descriptor(descriptor));
}

/// Adds a line to the status.
pub(super) fn tell_status(line: &str) {
    lock().tell_status(line);
}

/// Waits until the status has been taken. Fails with what kept it from that;
/// with EAGAIN where its reader does not read.
pub(super) fn finish_status() -> nix::Result<()> {
    let mut notices = lock();
    notices.wait_while(|notices| notices.status.as_ref().is_some_and(|status| !status.is_empty()));
    let is_left = notices.status.take().is_some_and(|status| !status.is_empty());
    match notices.status_failed.take().or(is_left.then_some(Errno::EAGAIN)) {
        Some(errno) => Err(errno),
        None => Ok(()),
    }
}

/// From this instant on, nobody is waited for who does not read.
pub(super) fn hurry_from(instant: Instant) {
    let time_is_up = &mut lock().time_is_up;
    *time_is_up = Some(time_is_up.map_or(instant, |earlier| earlier.min(instant)));
}

pub(super) fn lock() -> MutexGuard<'static, Notices> {
    NOTICES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Notices {
    fn tell(&mut self, lines: &[u8]) {
        if self.stderr.is_none() {
            let stderr = io::stderr().as_fd().try_clone_to_owned();
            self.stderr = stderr.ok().map(Outlet::to_descriptor);
            if self.stderr.is_none() {
                say_at_once(lines);
            }
        }
        // Where nobody reads, there is nobody to tell.
        if self.stderr.as_mut().is_some_and(|stderr| stderr.say(lines).is_err()) {
            self.stderr = None;
        }
    }

    fn tell_status(&mut self, line: &str) {
        let said = self.status.as_mut().map(|status| status.say(line.as_bytes()));
        self.status_is(said);
    }

    fn status_is(&mut self, said: Option<io::Result<()>>) {
        if let Some(Err(error)) = said {
            self.status = None;
            if !is_gone(&error) {
                self.status_failed = Some(crate::sys::errno(&error));
            }
        }
    }

    /// What has to be waited for, so that more of it can be written.
    pub fn poll(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.waiting().map(Outlet::poll)
    }

    fn waiting(&self) -> impl Iterator<Item = &Outlet> {
        [&self.stderr, &self.status].into_iter().flatten().filter(|outlet| !outlet.is_empty())
    }

    /// Writes what is taken without waiting.
    pub fn carry(&mut self) {
        if self.stderr.as_mut().is_some_and(|stderr| stderr.carry().is_err()) {
            self.stderr = None;
        }
        let said = self.status.as_mut().map(Outlet::carry);
        self.status_is(said);
    }

    /// Carries on while its readers take something now and then.
    fn wait_while(&mut self, is_needed: impl Fn(&Notices) -> bool) {
        let mut stall = Stall::new();
        while is_needed(self) {
            let left = self.waiting().map(Outlet::before_the_reader).sum();
            let is_urgent = signals::is_told_to_end()
                || self.time_is_up.is_some_and(|time_is_up| Instant::now() >= time_is_up);
            let patience = if is_urgent { HURRIED } else { PATIENT };
            let mut fds: Vec<PollFd> = self.poll().collect();
            if stall.lasts(left) >= patience || wait(&mut fds, TURN.into()).is_err() {
                return;
            }
            self.carry();
        }
    }
}

/// Says what can be said without waiting, where no descriptor is left for an outlet.
fn say_at_once(lines: &[u8]) {
    let mut stderr = io::stderr();
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    if wait(&mut fds, PollTimeout::ZERO).is_err() || fds[0].any().unwrap_or(true) {
        // A pipe that is writable takes as much.
        let _ = stderr.write(&lines[..lines.len().min(libc::PIPE_BUF)]);
    }
}

/// How often it is looked whether a reader reads, in milliseconds.
const TURN: u8 = 50;
