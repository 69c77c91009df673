//! The child, from clone to exec.
//!
//! It interprets the steps of the plan and nothing more: it allocates nothing,
//! takes no lock, formats no text. A step that fails is reported as its place
//! in the plan, the call and the errno; the launcher, which holds the plan,
//! makes the words.

mod apply;
mod init;
mod provider;
mod verify;

use std::cell::Cell;
use std::os::fd::RawFd;

use crate::plan::Plan;
use crate::sys::clone::{Stack, exit};
use crate::sys::exec::Image;
use crate::sys::memory::Shared;
use crate::sys::{Failure, fd};
use crate::wire::Record;

pub use init::run;
pub use verify::take;

/// All that the child needs, made before the clone.
pub struct Child<'a> {
    /// What to do.
    pub plan: &'a Plan,
    /// What to become in the end.
    pub image: Image<'a>,
    /// The stack of the provider's process.
    pub stack: &'a Cell<Option<Box<Stack>>>,
    /// A socket to the launcher, for what goes wrong and for the gate. Exec
    /// closes it, and the launcher knows by that.
    pub report: RawFd,
    /// A pipe to the launcher, for how the provider ended. Init keeps it.
    pub status: RawFd,
    /// The launcher's ends of both, which would hide its death.
    pub launcher: [RawFd; 2],
    /// What the standard streams are to be.
    pub stdio: [Stream; 3],
    /// What lets into the cell's own cgroup, where the plan has one; else -1.
    pub cgroup: RawFd,
    /// Which probe the tester is at, where there are any.
    pub probe: Option<Shared>,
    /// The process that makes the network namespace, once init has started it.
    pub network: Cell<i32>,
    /// The slave of the cell's own terminal, once init has opened it.
    pub terminal: Cell<RawFd>,
}

/// What one standard stream is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// This descriptor.
    Descriptor(RawFd),
    /// The cell's `/dev/null`. By a descriptor of the host's mount of it, the
    /// times of the host's node could be set.
    Null,
    /// The terminal of the cell's own.
    Terminal,
}

impl Child<'_> {
    /// Reports a failed step and ends the process.
    fn fail(&self, step: usize, failure: Failure) -> ! {
        let record = Record::Failed { step: step as u32, failure };
        // A launcher that has gone needs no report.
        let _ = fd::write(self.report, &record.encode());
        exit(125)
    }
}
