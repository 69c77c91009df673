//! `--json-status-fd`: the stages of a run as JSON lines.

use std::os::fd::RawFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use schemars::JsonSchema;
use serde::Serialize;

use super::{notices, stdio};
use crate::error::Error;
use crate::outcome::{Class, Outcome, Told};
use crate::plan::Plan;
use crate::sys::fd;

/// One line of the status. Readers ignore what they do not know.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StatusLine {
    /// The format of this line: 1.
    pub version: u32,
    /// What happened.
    #[serde(flatten)]
    pub event: StatusEvent,
}

/// What happened to the run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum StatusEvent {
    /// What will be done is settled.
    Plan {
        /// How many steps it takes.
        steps: usize,
    },
    /// The cell's first process exists.
    Setup {
        /// Its pid on the host.
        child_pid: i32,
    },
    /// The provider runs.
    Exec,
    /// The run is over. This line is written in every case.
    Exit {
        /// The launcher's exit code, as in bubblewrap's status.
        exit_code: u8,
        /// Why it is over.
        outcome: Class,
        /// The signal that ended the provider, where one did.
        signal: Option<i32>,
        /// Whether it may go well on another host.
        retryable: bool,
        /// The message, where there was one.
        error: Option<String>,
        /// The fault of the host that kept the provider from running, by name,
        /// where one did.
        fault: Option<&'static str>,
        /// What the run had made at protected paths and was removed.
        swept: Vec<String>,
        /// What the run changed that others will run, and that stays.
        told: Vec<Told>,
    },
}

/// The words for these lines; by default nobody wants them.
#[derive(Default)]
pub(super) struct Status {
    is_wanted: bool,
}

fn refuse(number: RawFd, what: &str) -> Error {
    Error::new("status", format!("--json-status-fd {number}: {what}"))
}

impl Status {
    /// Writes to an inherited descriptor. Of 1 and 2 the provider has a copy, and
    /// could write a line there that looks like ours.
    pub fn new(number: RawFd) -> Result<Status, Error> {
        let unusable = |errno| refuse(number, "it cannot be used").errno(errno);
        let copy = fd::duplicate(number).map_err(|failure| unusable(failure.errno))?;
        let flags = fcntl(&copy, FcntlArg::F_GETFL).map_err(unusable)?;
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(refuse(number, "it is not open for writing")
                .remedy("open it in the shell, as in `cellblock run --json-status-fd 3 … 3>FILE`"));
        }
        notices::open_status(copy);
        Ok(Status { is_wanted: true })
    }

    /// Refuses a descriptor whose lines would reach nobody.
    pub fn check(fd: RawFd) -> Result<(), Error> {
        if !stdio::leads_nowhere(fd) {
            return Ok(());
        }
        Err(refuse(fd, "it is a socket that is not connected")
            .cause("what is written there reaches nobody")
            .remedy("connect it first, or give a pipe or a file"))
    }

    pub fn setup(&mut self, plan: &Plan, child_pid: i32) {
        self.write(StatusEvent::Plan { steps: plan.init.len() + plan.provider.len() });
        self.write(StatusEvent::Setup { child_pid });
    }

    pub fn executed(&mut self) {
        self.write(StatusEvent::Exec);
    }

    /// Writes the last line, and waits for who reads it.
    ///
    /// # Errors
    ///
    /// When not all lines have been taken, unless nobody holds the other end.
    pub fn exit(&mut self, outcome: &Outcome) -> Result<(), Error> {
        self.write(StatusEvent::Exit {
            exit_code: outcome.exit_code(),
            outcome: outcome.class,
            signal: outcome.signal,
            retryable: outcome.is_retryable(),
            error: outcome.error.as_ref().map(ToString::to_string),
            fault: outcome.error.as_ref().and_then(|error| error.fault),
            swept: outcome.swept.clone(),
            told: outcome.told.clone(),
        });
        notices::finish_status().map_err(|errno| {
            let error = Error::new("status", "--json-status-fd has not taken every line").errno(errno);
            match errno {
                Errno::EAGAIN => error
                    .cause("its other end is open, and nobody reads there")
                    .remedy("read it while the run lasts, or send it to a file"),
                _ => error.remedy("send it to a pipe, or to a file system with room for it"),
            }
        })
    }

    fn write(&mut self, event: StatusEvent) {
        if self.is_wanted {
            let line = StatusLine { version: 1, event };
            let line = serde_json::to_string(&line).expect("plain values serialize");
            notices::tell_status(&format!("{line}\n"));
        }
    }
}
