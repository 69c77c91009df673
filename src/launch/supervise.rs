//! The launcher beside the running cell: signals, terminal, streams, timeout,
//! and the records of the child.

mod last;
mod waker;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;

use super::received::receive;
use super::signals;
use super::stdio::{Copy, Stdio, Unread};
use super::terminal::{Caller, Relay, Side};
use super::{notices, outlet};
use crate::child::Stream;
use crate::error::Error;
use crate::outcome::{Class, Outcome, Usage};
use crate::policy::Cell;
use crate::wire::{self, Record};

use crate::sys::{Failure, Result, clone, memory, signal};
use crate::verify::Answer;
use waker::Waker;

/// How often a relay in the background looks whether it is its turn.
const TURN: Duration = Duration::from_millis(200);

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
    /// Until init has closed the other end.
    status: Option<OwnedFd>,
    signals: SignalFd,
    copies: Vec<Copy>,
    unread: Option<Unread>,
    /// The caller's terminal, until the cell's own has come.
    terminal: Option<Caller>,
    relay: Option<Relay>,
    timeout: Option<Duration>,
    grace: Duration,
    started: Instant,
    /// How long the cell may take to come to its exec.
    pub patience: Option<Duration>,
    /// Why the launcher ends the cell itself.
    refused: Option<Error>,
    /// What went wrong beside a provider that runs.
    trouble: Option<Error>,
    state: State,
}

/// What is known of the run so far.
#[derive(Default)]
pub(super) struct State {
    /// A step that failed, by its place in the plan.
    pub failed: Option<(usize, Failure)>,
    /// The child is about to call exec.
    is_executing: bool,
    pub executed: bool,
    ended: Option<(i32, i32)>,
    timed_out: bool,
    killed: bool,
    canceled: bool,
    /// Since when the provider has been told to end and may take its grace.
    told_to_end: Option<Instant>,
    provider_is_stopped: bool,
    stop_is_asked: bool,
    /// Nothing of the cell lives; what it wrote last is carried.
    is_over: bool,
}

/// What the supervisor tells while it runs.
pub(super) enum Event<'a> {
    /// The provider waits at the gate: its host pid, and what the child tried.
    /// Who has much to do there asks from time to time whether to go on.
    AtGate { pid: i32, root_listing: i32, go_on: &'a mut dyn FnMut() -> bool },
    /// What came of a probe.
    Probed { probe: u32, answer: Answer },
    /// The provider runs.
    Executed,
    /// Nothing lives any more of a cell whose provider may have run; whether that
    /// was told to end.
    Gone { is_told: bool },
}

impl Running {
    /// Takes over the streams; the provider's ends of them are the cell's alone
    /// from here on.
    pub fn new(cell: Started, stdio: Stdio, limits: &Cell, started: Instant) -> Running {
        Running {
            pid: cell.pid,
            pidfd: cell.pidfd,
            report: Some(cell.report),
            status: Some(cell.status),
            signals: cell.signals,
            copies: stdio.copies,
            unread: stdio.unread,
            terminal: stdio
                .terminal
                .map(|terminal| Caller { terminal, alone: stdio.streams == [Stream::Terminal; 3] }),
            relay: None,
            timeout: limits.timeout,
            grace: limits.timeout_grace,
            started,
            patience: None,
            refused: None,
            trouble: None,
            state: State::default(),
        }
    }

    /// Stays with the cell until nothing of it is left.
    pub fn supervise(mut self, mut tell: impl FnMut(Event) -> std::result::Result<(), Error>) -> Ended {
        let (mut rest, mut is_at_rest) = (None, false);
        loop {
            if self.state.executed && !is_at_rest {
                rest.get_or_insert_with(|| Instant::now() + memory::REST);
            }
            let comes_to_rest = rest.take_if(|rest| *rest <= Instant::now()).is_some();
            is_at_rest |= comes_to_rest;
            let ready = match self.poll(rest, comes_to_rest) {
                Ok(ready) => ready,
                Err(errno) => {
                    self.cannot_wait(errno);
                    return self.finish(tell);
                }
            };
            if ready.signals {
                self.take_signals();
            }
            if ready.report {
                while self.take_report(&mut tell) {}
            }
            if ready.status {
                self.take_status();
            }
            let mut copies = ready.copies.into_iter();
            self.copies.retain_mut(|copy| {
                let step = if copies.next().unwrap_or(false) { copy.step() } else { Ok(true) };
                step.unwrap_or_else(|error| {
                    self.trouble.get_or_insert(error);
                    false
                })
            });
            notices::lock().carry();
            match self.relay.as_mut().map(|relay| relay.step(ready.relay)) {
                None | Some(Side::Both) => {}
                Some(Side::Caller) => self.relay = None,
                Some(Side::Cell) => self.terminal_has_hung_up(),
            }
            self.keep_time();
            if self.refused.is_some() {
                self.kill();
            }
            if ready.ended {
                return self.finish(tell);
            }
        }
    }

    fn poll(&self, rest: Option<Instant>, comes_to_rest: bool) -> nix::Result<Ready> {
        let notices = notices::lock();
        let mut fds = vec![
            PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
        ];
        let pipes = [&self.status, &self.report].into_iter().flatten();
        fds.extend(pipes.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        fds.extend(self.active_copies().iter().map(Copy::poll));
        fds.extend(self.relay.iter().flat_map(Relay::poll));
        fds.extend(notices.poll());
        let waits = self.relay.as_ref().is_some_and(Relay::waits_for_its_turn);
        let turn = waits.then(|| Instant::now() + TURN);
        let next = self.deadline().into_iter().chain(turn).chain(rest).min();
        let timeout = next.map_or(PollTimeout::NONE, until);
        if comes_to_rest {
            // As late as can be: all that runs from here on is the call itself.
            memory::give_back_program();
        }
        outlet::wait(&mut fds, timeout)?;
        let mut flags = fds.iter().map(|fd| fd.revents().unwrap_or(PollFlags::POLLERR));
        let mut next = |is_there: bool| {
            let flags = if is_there { flags.next() } else { None };
            flags.unwrap_or(PollFlags::empty())
        };
        Ok(Ready {
            ended: !next(true).is_empty(),
            signals: !next(true).is_empty(),
            status: !next(self.status.is_some()).is_empty(),
            report: !next(self.report.is_some()).is_empty(),
            copies: self.active_copies().iter().map(|_| !next(true).is_empty()).collect(),
            relay: [next(self.relay.is_some()), next(self.relay.is_some())],
        })
    }

    /// Ends a cell that the launcher cannot stay with.
    fn cannot_wait(&mut self, errno: Errno) {
        let error = Error::new("launch", "the launcher cannot wait for the cell and has ended it")
            .errno(errno)
            .cause("the kernel has no memory left, or the limit on open files is too low (ulimit -n)")
            .remedy("free memory or raise the limit, and run again");
        let place = if self.state.executed { &mut self.trouble } else { &mut self.refused };
        place.get_or_insert(error);
        self.kill();
    }

    /// Nothing is carried before there is a provider: a launch that is begun
    /// again has taken nothing from the caller's streams.
    fn active_copies(&self) -> &[Copy] {
        if self.state.is_executing { &self.copies } else { &[] }
    }

    fn deadline(&self) -> Option<Instant> {
        if self.state.killed {
            return None;
        }
        // What lies beyond the clock never comes.
        let after = |time: Option<Duration>| self.started.checked_add(time?);
        let timeout = after(self.timeout);
        let timeout = if self.state.timed_out { timeout?.checked_add(self.grace) } else { timeout };
        let told = self.state.told_to_end.and_then(|told| told.checked_add(self.grace));
        let patience = after(self.patience).filter(|_| !self.state.executed);
        timeout.into_iter().chain(told).chain(patience).min()
    }

    /// TERM when the time is up, and KILL when the grace is over too.
    fn keep_time(&mut self) {
        if self.deadline().is_none_or(|deadline| Instant::now() < deadline) {
            return;
        }
        if self.state.told_to_end.is_some_and(|told| told.elapsed() >= self.grace) {
            return self.kill();
        }
        let is_late = |patience| self.started.elapsed() >= patience;
        if !self.state.executed && self.patience.is_some_and(is_late) {
            let error = Error::new("verify", "the test from within does not come to its end")
                .cause("something that is tried hangs, as a file system over the network may")
                .remedy("take it out of the policy, or start without --verify");
            self.refused.get_or_insert(error);
        } else if self.state.timed_out || !self.state.executed {
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
            if signals::is_ending(signal) {
                self.state.canceled = true;
                notices::hurry_from(Instant::now());
            }
            match (signal, &mut self.relay) {
                (Signal::SIGWINCH, Some(relay)) => relay.resize(),
                (Signal::SIGCONT, relay) => {
                    relay.iter_mut().for_each(Relay::resume);
                    self.state.provider_is_stopped = false;
                    self.state.stop_is_asked = false;
                    self.send(signal);
                }
                (Signal::SIGTERM, _) => self.tell_to_end(signal),
                (Signal::SIGTSTP, _) => {
                    self.state.stop_is_asked = true;
                    self.send(signal);
                    // What has stopped itself gives no answer, unless one of
                    // its own has woken it since.
                    if self.state.provider_is_stopped || self.state.is_over {
                        self.stop();
                    }
                }
                _ => self.send(signal),
            }
        }
    }

    /// Tells the provider to end. It gets its grace, and none when it is told again.
    fn tell_to_end(&mut self, signal: Signal) {
        if self.state.told_to_end.is_some() || self.state.timed_out {
            return self.kill();
        }
        self.state.told_to_end = Some(Instant::now());
        self.send(signal);
        // What has stopped itself could not take it.
        self.send(Signal::SIGCONT);
    }

    /// The caller has gone. The cell's own terminal hangs up with the relay, and
    /// a provider that ignores that gets its grace, unless the caller does so too.
    fn terminal_has_hung_up(&mut self) {
        self.relay = None;
        if self.state.told_to_end.is_none() && !signals::is_ignored(Signal::SIGHUP) {
            self.state.canceled = true;
            self.tell_to_end(Signal::SIGHUP);
        }
    }

    /// Ctrl-Z at a terminal gives that back to the caller's shell. Where there is
    /// none, nobody could wake the launcher; and a run with a timeout would
    /// outlast it, so that the provider is woken instead.
    fn provider_has_stopped(&mut self) {
        let has_shell = self.relay.as_ref().is_some_and(Relay::is_controlling);
        if self.state.stop_is_asked {
            self.stop();
        } else if has_shell && self.timeout.is_none() {
            self.stop_job();
        } else if self.relay.is_some() {
            self.send(Signal::SIGCONT);
        }
    }

    /// Stops the launcher, which was asked for.
    fn stop(&mut self) {
        self.state.stop_is_asked = false;
        if self.relay.as_ref().is_some_and(Relay::has_the_terminal) {
            return self.stop_job();
        }
        let _waker = Waker::at(self.deadline());
        // It cannot fail, and returns when somebody has sent CONT.
        let _ = raise(Signal::SIGSTOP);
    }

    /// Stops the caller's job, the launcher with it, with the terminal given back.
    fn stop_job(&mut self) {
        self.relay.iter_mut().for_each(Relay::suspend);
        let _waker = Waker::at(self.deadline());
        // What a terminal does at Ctrl-Z: the whole job stops, be it a pipeline,
        // but not one that no shell could wake (setpgid(2), orphaned groups).
        let stop: SigSet = [Signal::SIGTSTP].into_iter().collect();
        let _ = stop.thread_unblock();
        let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
        let _ = stop.thread_block();
        // Awake again, or never stopped. A CONT that woke us is still pending for the
        // process, so this one adds nothing. raise(3) would send a second one, to the
        // thread, and that could wake a provider that has been stopped again.
        let _ = kill(Pid::this(), Signal::SIGCONT);
    }

    /// Takes one record; false where there is none.
    fn take_report(&mut self, tell: &mut impl FnMut(Event) -> std::result::Result<(), Error>) -> bool {
        let Some(report) = &self.report else { return false };
        let message = match receive(report) {
            Ok(Some(message)) => message,
            // A reset comes before the records that were sent: a child that has
            // ended without reading what it was sent is told so first.
            Err(Errno::EINTR | Errno::EAGAIN | Errno::ECONNRESET) => return false,
            // Exec has closed the other end, or a failed child has.
            Ok(None) | Err(_) => {
                self.report = None;
                if self.state.is_executing && self.state.failed.is_none() {
                    self.state.executed = true;
                    self.refused = self.refused.take().or(tell(Event::Executed).err());
                }
                return false;
            }
        };
        match message.record {
            Some(Record::Failed { step, failure }) => {
                self.state.failed.get_or_insert((step as usize, failure));
            }
            Some(Record::Executing) => self.state.is_executing = true,
            Some(Record::Terminal) => {
                if let (Some(terminal), Some([master, slave])) = (self.terminal.take(), message.descriptors) {
                    match Relay::new(terminal, master, slave) {
                        Ok(relay) => self.relay = Some(relay),
                        Err(errno) => {
                            self.refused =
                                Some(Error::new("session", "the terminal cannot be relayed").errno(errno))
                        }
                    }
                }
            }
            Some(Record::AtGate { root_listing }) => {
                let go_on = &mut || {
                    self.take_signals();
                    self.keep_time();
                    !self.state.canceled && !self.state.killed && self.refused.is_none()
                };
                match (tell(Event::AtGate { pid: message.pid, root_listing, go_on }), &self.report) {
                    // A child that has gone meanwhile is seen by its end.
                    (Ok(()), Some(report)) => drop(crate::sys::fd::write(report.as_raw_fd(), b"g")),
                    (Ok(()), None) => {}
                    (Err(error), _) => self.refused = Some(error),
                }
            }
            Some(Record::Probed { probe, answer }) => {
                let answer = answer.map_or_else(Answer::Refused, Answer::Works);
                self.refused = self.refused.take().or(tell(Event::Probed { probe, answer }).err());
            }
            Some(Record::ProbeKilled { probe, signal }) => {
                let answer = Answer::Killed(signal);
                self.refused = self.refused.take().or(tell(Event::Probed { probe, answer }).err());
            }
            Some(Record::Ended { .. } | Record::Stopped) | None => {}
        }
        true
    }

    fn take_status(&mut self) {
        let mut bytes = [0; wire::LENGTH];
        while let Some(status) = &self.status {
            match nix::unistd::read(status, &mut bytes) {
                Ok(wire::LENGTH) => {}
                Err(Errno::EAGAIN | Errno::EINTR) => return,
                // Init has closed it and is on its way out; a pipe at its end
                // would keep poll awake until it has gone.
                _ => {
                    self.status = None;
                    return;
                }
            }
            match Record::decode(&bytes) {
                Some(Record::Ended { code, status }) => self.state.ended = Some((code, status)),
                Some(Record::Failed { step, failure }) => {
                    self.state.failed.get_or_insert((step as usize, failure));
                }
                Some(Record::Stopped) => {
                    self.state.provider_is_stopped = true;
                    self.provider_has_stopped();
                }
                _ => {}
            }
        }
    }

    fn finish(mut self, mut tell: impl FnMut(Event) -> std::result::Result<(), Error>) -> Ended {
        // The records were written before the end, so they are all there.
        self.take_status();
        while self.report.is_some() && self.state.failed.is_none() {
            self.take_report(&mut |event| match event {
                // Nobody waits there any more.
                Event::AtGate { .. } => Ok(()),
                event => tell(event),
            });
        }
        let end = clone::wait(self.pid);
        // At once: what comes to the streams from now on is not of the cell.
        let rest = self.take_the_rest();
        // Before the last output is carried: its reader may take its time.
        if self.state.failed.is_none() {
            let _ = tell(Event::Gone { is_told: self.state.canceled || self.state.timed_out });
        }
        self.carry_last_output(rest);
        // Gives the terminal back.
        drop(self.relay.take());
        let (state, wall) = (self.state, self.started.elapsed());
        Ended { end, state, wall, refused: self.refused, trouble: self.trouble }
    }
}

/// What poll takes for "until then": one millisecond more than is left, so that
/// it has passed by then.
fn until(deadline: Instant) -> PollTimeout {
    let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
}

/// What a poll found.
struct Ready {
    ended: bool,
    signals: bool,
    status: bool,
    report: bool,
    copies: Vec<bool>,
    relay: [PollFlags; 2],
}

/// A cell that is no more.
pub(super) struct Ended {
    end: Result<clone::End>,
    pub state: State,
    pub wall: Duration,
    /// What kept the launcher from letting the provider through the gate.
    pub refused: Option<Error>,
    /// What went wrong beside the provider: output that was lost, above all.
    pub trouble: Option<Error>,
}

impl Ended {
    /// Whether somebody or the clock has ended it.
    pub fn was_told_to_end(&self) -> bool {
        self.state.canceled || self.state.timed_out
    }

    /// The outcome of a cell whose steps all went well.
    pub fn outcome(&self) -> Outcome {
        // Init itself is only ever killed: by the kernel for want of memory, or from outside.
        let (code, signal) = match self.state.ended {
            Some((libc::CLD_EXITED, code)) => (Some(code), None),
            Some((_, signal)) => (None, Some(signal)),
            None => (None, Some(libc::SIGKILL)),
        };
        let class = match signal {
            _ if self.state.timed_out => Class::TimedOut,
            Some(_) if self.state.canceled => Class::Canceled,
            _ if !self.state.executed => return self.not_built(),
            Some(libc::SIGSYS) => Class::SeccompKilled,
            Some(_) => Class::Signaled,
            None => Class::Exited,
        };
        let (error, swept, told) = (None, Vec::new(), Vec::new());
        Outcome { class, code, signal, error, swept, told, wall: self.wall, usage: self.usage() }
    }

    /// A child that ended without a word.
    fn not_built(&self) -> Outcome {
        let error = Error::new("process", "the cell's init ended without a word while it built the cell")
            .cause(
                "it was sent a signal, the kernel had no memory left, or an outer filter refused it a call",
            )
            .remedy("look into dmesg, and try the launch again outside of other sandboxes");
        Outcome { usage: self.usage(), ..Outcome::failed(error, self.wall) }
    }

    pub fn usage(&self) -> Usage {
        self.end.as_ref().map(|end| Usage::from(&end.usage)).unwrap_or_default()
    }
}
