//! The launcher beside the running cell: signals, terminal, streams, timeout,
//! and the records of the child.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg};

use super::stdio::{Copy, Stdio};
use super::terminal::Relay;
use crate::outcome::{Class, Outcome, Usage};
use crate::policy::Cell;
use crate::report::{self, Record};
use crate::sys::{Failure, Result, clone, signal};

/// The signals that are passed on to the provider.
const PASSED_ON: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
    Signal::SIGTSTP,
    Signal::SIGWINCH,
];

/// Those of them that tell the run to end.
const ENDING: [Signal; 4] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];

/// How long the outputs of a cell that has ended may keep the launcher: what a
/// pipe holds is there at once, and only a reader that hangs keeps it longer.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// The launcher's signals, read instead of taken.
pub(super) fn signals() -> nix::Result<SignalFd> {
    let mut set: SigSet = PASSED_ON.into_iter().collect();
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    // A relay in the background must not be stopped for touching the terminal.
    set.add(Signal::SIGTTOU);
    set.add(Signal::SIGTTIN);
    set.thread_set_mask()?;
    Ok(signals)
}

/// A cell that has been started.
pub(super) struct Started {
    pub pid: i32,
    pub pidfd: OwnedFd,
    pub report: OwnedFd,
    pub status: OwnedFd,
    pub signals: SignalFd,
}

/// A cell, and all that the launcher does for it.
pub(super) struct Running {
    pid: i32,
    pidfd: OwnedFd,
    /// Until exec closes the other end.
    report: Option<OwnedFd>,
    status: OwnedFd,
    signals: SignalFd,
    copies: Vec<Copy>,
    /// The caller's terminal, until the cell's own has come.
    terminal: Option<OwnedFd>,
    relay: Option<Relay>,
    timeout: Option<Duration>,
    grace: Duration,
    started: Instant,
    state: State,
}

/// What is known of the run so far.
#[derive(Default)]
pub(super) struct State {
    /// A step that failed, by its place in the plan.
    pub failed: Option<(usize, Failure)>,
    pub executed: bool,
    ended: Option<(i32, i32)>,
    timed_out: bool,
    killed: bool,
    canceled: bool,
    provider_is_stopped: bool,
    stop_is_asked: bool,
}

/// What the supervisor tells while it runs.
pub(super) enum Event {
    /// The provider waits at the gate: its host pid, and what the child tried.
    AtGate { pid: i32, root_listing: i32 },
    /// The provider runs.
    Executed,
}

impl Running {
    /// Takes over the streams; the provider's ends of them are the cell's alone
    /// from here on.
    pub fn new(cell: Started, stdio: Stdio, limits: &Cell, started: Instant) -> Running {
        Running {
            pid: cell.pid,
            pidfd: cell.pidfd,
            report: Some(cell.report),
            status: cell.status,
            signals: cell.signals,
            copies: stdio.copies,
            terminal: stdio.terminal,
            relay: None,
            timeout: limits.timeout,
            grace: limits.timeout_grace,
            started,
            state: State::default(),
        }
    }

    /// Stays with the cell until nothing of it is left.
    pub fn supervise(
        mut self,
        mut tell: impl FnMut(Event) -> std::result::Result<(), crate::error::Error>,
    ) -> Ended {
        let mut refused = None;
        loop {
            let ready = self.poll();
            if ready.signals {
                self.take_signals();
            }
            if ready.report {
                self.take_report(&mut |event| {
                    let result = tell(event);
                    if let Err(error) = result {
                        refused.get_or_insert(error);
                    }
                    refused.is_none()
                });
            }
            if ready.status {
                self.take_status();
            }
            self.move_streams();
            self.keep_time();
            if refused.is_some() {
                self.kill();
            }
            if ready.ended {
                return self.finish(refused, tell);
            }
        }
    }

    fn poll(&self) -> Ready {
        let mut fds = vec![
            PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.status.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(
            self.report
                .as_ref()
                .map(|report| PollFd::new(report.as_fd(), PollFlags::POLLIN)),
        );
        fds.extend(self.copies.iter().map(Copy::poll));
        if let Some(relay) = &self.relay {
            fds.extend(relay.poll());
        }
        let timeout = self.deadline().map_or(PollTimeout::NONE, |deadline| {
            // One millisecond more than is left, so that it has passed by then.
            let left =
                deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        if poll(&mut fds, timeout).is_err() {
            return Ready::default();
        }
        let any = |index: usize| fds.get(index).is_some_and(|fd| fd.any().unwrap_or(false));
        Ready {
            ended: any(0),
            signals: any(1),
            status: any(2),
            report: self.report.is_some() && any(3),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        if self.state.killed {
            return None;
        }
        let timeout = self.started + self.timeout?;
        Some(if self.state.timed_out {
            timeout + self.grace
        } else {
            timeout
        })
    }

    /// TERM when the time is up, and KILL when the grace is over too.
    fn keep_time(&mut self) {
        if self
            .deadline()
            .is_none_or(|deadline| Instant::now() < deadline)
        {
            return;
        }
        if self.state.timed_out || !self.state.executed {
            self.state.timed_out = true;
            self.kill();
        } else {
            self.state.timed_out = true;
            self.send(Signal::SIGTERM);
            // What has stopped itself could not take it.
            self.send(Signal::SIGCONT);
        }
    }

    fn kill(&mut self) {
        self.state.killed = true;
        self.send(Signal::SIGKILL);
    }

    fn send(&self, signal: Signal) {
        // The only failure is that the cell has ended, and that is seen elsewhere.
        let _ = signal::send_to(self.pidfd.as_fd(), signal as i32);
    }

    fn take_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let Ok(signal) = Signal::try_from(info.ssi_signo as i32) else {
                continue;
            };
            self.state.canceled |= ENDING.contains(&signal);
            match (signal, &mut self.relay) {
                (Signal::SIGWINCH, Some(relay)) => relay.resize(),
                (Signal::SIGCONT, relay) => {
                    relay.iter_mut().for_each(Relay::resume);
                    self.state.provider_is_stopped = false;
                    self.send(signal);
                }
                (Signal::SIGTSTP, _) if self.state.provider_is_stopped => self.stop(),
                (Signal::SIGTSTP, _) => {
                    self.state.stop_is_asked = true;
                    self.send(signal);
                }
                _ => self.send(signal),
            }
        }
    }

    /// Stops the launcher itself, with the caller's terminal given back.
    fn stop(&mut self) {
        self.state.stop_is_asked = false;
        self.relay.iter_mut().for_each(Relay::suspend);
        // It cannot fail, and returns when somebody has sent CONT.
        let _ = raise(Signal::SIGSTOP);
    }

    fn take_report(&mut self, tell: &mut impl FnMut(Event) -> bool) {
        let Some(report) = &self.report else { return };
        let (record, pid, descriptor) = match receive(report) {
            Ok(Some(message)) => message,
            // A reset comes before the records that were sent: a child that has
            // ended without reading what it was sent is told so first.
            Err(Errno::EINTR | Errno::EAGAIN | Errno::ECONNRESET) => return,
            // Exec has closed the other end, or a failed child has.
            Ok(None) | Err(_) => {
                self.report = None;
                if self.state.failed.is_none() {
                    self.state.executed = true;
                    tell(Event::Executed);
                }
                return;
            }
        };
        match record {
            Some(Record::Failed { step, failure }) => {
                self.state.failed.get_or_insert((step.into(), failure));
            }
            Some(Record::Terminal) => {
                if let (Some(terminal), Some(master)) = (self.terminal.take(), descriptor) {
                    self.relay = Relay::new(terminal, master).ok();
                }
            }
            Some(Record::AtGate { root_listing }) => {
                if tell(Event::AtGate { pid, root_listing }) {
                    // A child that has gone meanwhile is seen by its end.
                    let _ = crate::sys::fd::write(report.as_raw_fd(), b"g");
                }
            }
            Some(Record::Ended { .. } | Record::Stopped) | None => {}
        }
    }

    fn take_status(&mut self) {
        let mut bytes = [0; report::LENGTH];
        while let Ok(report::LENGTH) = nix::unistd::read(&self.status, &mut bytes) {
            match Record::decode(&bytes) {
                Some(Record::Ended { code, status }) => self.state.ended = Some((code, status)),
                Some(Record::Stopped) => {
                    self.state.provider_is_stopped = true;
                    // Without a terminal nobody could wake the launcher, and
                    // the timeout would not be kept.
                    if self.relay.is_some() || self.state.stop_is_asked {
                        self.stop();
                    }
                }
                _ => {}
            }
        }
    }

    fn move_streams(&mut self) {
        self.copies.retain_mut(Copy::step);
        if self.relay.as_mut().is_some_and(|relay| !relay.step()) {
            self.relay = None;
        }
    }

    fn finish(
        mut self,
        refused: Option<crate::error::Error>,
        mut tell: impl FnMut(Event) -> std::result::Result<(), crate::error::Error>,
    ) -> Ended {
        // The records were written before the end, so they are all there.
        self.take_status();
        while self.report.is_some() && self.state.failed.is_none() {
            self.take_report(&mut |event| {
                // Nobody waits at the gate any more.
                matches!(event, Event::Executed) && tell(event).is_ok()
            });
        }
        let end = clone::wait(self.pid);
        let deadline = Instant::now() + LAST_OUTPUT;
        self.copies.retain(Copy::is_output);
        while !self.copies.is_empty() && Instant::now() < deadline {
            self.copies.retain_mut(Copy::step);
        }
        if let Some(mut relay) = self.relay.take() {
            relay.finish();
        }
        Ended {
            end,
            state: self.state,
            wall: self.started.elapsed(),
            refused,
        }
    }
}

/// What a poll found.
#[derive(Default)]
struct Ready {
    ended: bool,
    signals: bool,
    status: bool,
    report: bool,
}

/// One message of the report socket: its record, its sender's pid, and the
/// descriptor that came along; `None` at the end.
fn receive(report: &OwnedFd) -> nix::Result<Option<(Option<Record>, i32, Option<OwnedFd>)>> {
    let mut bytes = [0; report::LENGTH];
    let mut space = nix::cmsg_space!(std::os::fd::RawFd, UnixCredentials);
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(
        report.as_raw_fd(),
        &mut iov,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT,
    )?;
    let (mut pid, mut descriptor) = (0, None);
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::ScmCredentials(credentials) => pid = credentials.pid(),
            ControlMessageOwned::ScmRights(fds) => {
                descriptor = fds.first().map(|&fd| crate::sys::fd::received(fd))
            }
            _ => {}
        }
    }
    let length = message.bytes;
    Ok((length > 0).then(|| (Record::decode(&bytes[..length]), pid, descriptor)))
}

/// A cell that is no more.
pub(super) struct Ended {
    end: Result<clone::End>,
    pub state: State,
    pub wall: Duration,
    /// What kept the launcher from letting the provider through the gate.
    pub refused: Option<crate::error::Error>,
}

impl Ended {
    /// Whether init has ended by itself and told of no provider's end.
    pub fn gave_up(&self) -> bool {
        let exited = |end: &clone::End| libc::WIFEXITED(end.status);
        self.state.ended.is_none() && self.end.as_ref().is_ok_and(exited)
    }

    /// The outcome of a provider that ran.
    pub fn outcome(&self) -> Outcome {
        let usage = self
            .end
            .as_ref()
            .map(|end| Usage::from(&end.usage))
            .unwrap_or_default();
        // Init itself is only ever killed: by its own kernel's memory pressure, or from outside.
        let (code, signal) = match self.state.ended {
            Some((libc::CLD_EXITED, code)) => (Some(code), None),
            Some((_, signal)) => (None, Some(signal)),
            None => (None, Some(libc::SIGKILL)),
        };
        let class = match signal {
            _ if self.state.timed_out => Class::TimedOut,
            Some(_) if self.state.canceled => Class::Canceled,
            Some(libc::SIGSYS) => Class::SeccompKilled,
            Some(_) => Class::Signaled,
            None => Class::Exited,
        };
        Outcome {
            class,
            code,
            signal,
            error: None,
            wall: self.wall,
            usage,
        }
    }

    pub fn usage(&self) -> Usage {
        self.end
            .as_ref()
            .map(|end| Usage::from(&end.usage))
            .unwrap_or_default()
    }
}
