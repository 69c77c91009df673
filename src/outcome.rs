//! How a run ended, in one class.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Error;

/// The end of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Why it ended.
    pub class: Class,
    /// The provider's exit code, where it exited.
    pub code: Option<i32>,
    /// The signal that ended the provider, where one did.
    pub signal: Option<i32>,
    /// What kept the provider from running, where something did; or what went
    /// wrong when it had ended.
    pub error: Option<Error>,
    /// What the run had made at protected paths and was removed, relative to the
    /// workspace.
    pub swept: Vec<String>,
    /// What the run changed that others will run, and that stays.
    pub told: Vec<Told>,
    /// From before the clone to the end of the cell.
    pub wall: Duration,
    /// What the cell used.
    pub usage: Usage,
}

/// One change of a run's that somebody should see before anything runs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Told {
    /// Where, relative to the workspace.
    pub path: String,
    /// What the run did there.
    pub what: String,
    /// The command that shows it, for a shell in the workspace.
    pub command: String,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The provider exited.
    Exited,
    /// A signal ended the provider.
    Signaled,
    /// SIGSYS ended the provider. A process can send itself that signal, so
    /// this is the best knowledge there is.
    SeccompKilled,
    /// The time was up.
    TimedOut,
    /// The cell could not be built; the provider has not run.
    SetupFailed,
    /// The cell stood, and the provider's program could not be executed.
    ExecFailed,
    /// The launcher was told to end, and passed that on.
    Canceled,
    /// The cell stood, and a test from within found a leak or a grant that does
    /// not work; the provider has not run.
    LeakFound,
}

/// What the cell used: init and every process it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Usage {
    /// Seconds in user mode.
    pub user_seconds: f64,
    /// Seconds in the kernel.
    pub system_seconds: f64,
    /// Peak resident memory of the largest process, in KiB.
    pub max_rss_kib: i64,
    /// Page faults that needed I/O.
    pub major_faults: i64,
    /// Context switches, voluntary and not.
    pub context_switches: i64,
}

impl From<&libc::rusage> for Usage {
    fn from(usage: &libc::rusage) -> Usage {
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Usage {
            user_seconds: seconds(usage.ru_utime),
            system_seconds: seconds(usage.ru_stime),
            max_rss_kib: usage.ru_maxrss,
            major_faults: usage.ru_majflt,
            context_switches: usage.ru_nvcsw + usage.ru_nivcsw,
        }
    }
}

impl Outcome {
    /// A run that came to nothing.
    pub fn failed(error: Error, wall: Duration) -> Outcome {
        let class = if matches!(error.exit_code, 126 | 127) { Class::ExecFailed } else { Class::SetupFailed };
        Outcome {
            class,
            code: None,
            signal: None,
            error: Some(error),
            swept: Vec::new(),
            told: Vec::new(),
            wall,
            usage: Usage::default(),
        }
    }

    /// The launcher's own exit code.
    pub fn exit_code(&self) -> u8 {
        match (self.class, &self.error, self.signal, self.code) {
            (Class::TimedOut, ..) => 124,
            (_, Some(error), ..) => error.exit_code,
            (_, _, Some(signal), _) => 128u8.saturating_add(signal as u8),
            (_, _, _, code) => code.map_or(crate::error::SETUP_FAILED, |code| code as u8),
        }
    }

    /// Whether the run may go well elsewhere: true for faults of the host alone.
    pub fn is_retryable(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.fault.is_some())
    }
}
