//! Wakes a stopped launcher when its run's time is up: a stopped process keeps no time.

use std::thread::sleep;
use std::time::Instant;

use crate::sys::{clone, credentials, signal};

/// A process that sends CONT to the launcher, and dies with it.
pub(super) struct Waker {
    pid: i32,
}

impl Waker {
    /// None where there is no deadline, or no process can be made.
    pub fn at(deadline: Option<Instant>) -> Option<Waker> {
        let (deadline, launcher) = (deadline?, std::process::id() as i32);
        let pid = clone::copy().ok()?;
        if pid == 0 {
            let _ = credentials::die_with_parent();
            sleep(deadline.saturating_duration_since(Instant::now()));
            signal::send(launcher, libc::SIGCONT);
            clone::exit(0);
        }
        Some(Waker { pid })
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        signal::send(self.pid, libc::SIGKILL);
        let _ = clone::wait(self.pid);
    }
}
