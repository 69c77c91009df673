//! What a cell wrote last, carried to its readers when nothing of it lives.

use std::os::fd::AsFd;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::super::outlet::{HURRIED, PATIENT, Stall, wait};
use super::super::stdio::{Copy, Rest};
use super::super::terminal::Relay;
use super::super::{explain, notices};
use super::Running;

impl Running {
    /// Takes what the outputs hold at this instant.
    pub fn take_the_rest(&mut self) -> Vec<Rest> {
        let copies = std::mem::take(&mut self.copies);
        if let Some(unread) = self.unread.take() {
            unread.give_back(&copies);
        }
        self.relay.iter_mut().for_each(Relay::take_the_rest);
        copies.into_iter().filter_map(Copy::into_rest).collect()
    }

    /// A reader may be slow, as a pager is. It is waited for, but not for long
    /// where the time is up or the launcher is told to end.
    pub fn carry_last_output(&mut self, mut rest: Vec<Rest>) {
        self.state.is_over = true;
        // How the provider ended is settled, whatever the launcher is told from here on.
        let canceled = self.state.canceled;
        let time_is_up = self.timeout.and_then(|timeout| self.started.checked_add(timeout));
        let mut stall = Stall::new();
        loop {
            rest.retain_mut(|rest| self.carry_rest(rest));
            self.relay.iter_mut().for_each(Relay::show);
            let unshown = self.relay.as_ref().map_or(0, Relay::unshown);
            if rest.is_empty() && unshown == 0 {
                break;
            }
            let is_urgent = self.state.canceled
                || self.state.timed_out
                || time_is_up.is_some_and(|time_is_up| Instant::now() >= time_is_up);
            let left: usize = rest.iter().map(|rest| rest.to.before_the_reader()).sum();
            let stalled = stall.lasts(left + unshown);
            if is_urgent && stalled >= HURRIED || rest.is_empty() && stalled >= PATIENT {
                self.give_up(&rest, unshown);
                break;
            }
            if let Err(errno) = self.wait_for_readers(&rest) {
                self.cannot_wait(errno);
                break;
            }
            self.take_signals();
            notices::lock().carry();
        }
        self.state.canceled = canceled;
    }

    /// False where nothing more is to be carried.
    fn carry_rest(&mut self, rest: &mut Rest) -> bool {
        rest.carry().unwrap_or_else(|error| {
            self.trouble.get_or_insert(error);
            false
        })
    }

    fn give_up(&mut self, rest: &[Rest], unshown: usize) {
        // Who did not read these is not waited for with the launcher's own lines.
        notices::hurry_from(Instant::now());
        let streams = rest.iter().map(|rest| (rest.name, rest.to.len()));
        let terminal = Some(("the terminal", unshown)).filter(|_| unshown > 0);
        if let Some((name, bytes)) = streams.chain(terminal).next() {
            self.trouble.get_or_insert(explain::not_taken(name, bytes));
        }
    }

    fn wait_for_readers(&self, rest: &[Rest]) -> nix::Result<()> {
        let notices = notices::lock();
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        fds.extend(rest.iter().map(|rest| rest.to.poll()));
        fds.extend(self.relay.iter().filter(|relay| relay.unshown() > 0).map(Relay::poll_caller));
        fds.extend(notices.poll());
        wait(&mut fds, PollTimeout::from(100u8))
    }
}
