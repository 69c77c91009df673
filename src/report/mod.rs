//! `--report`: what was applied, each member with its source, and how it ended.

mod evidence;
mod file;

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Reason;
use crate::outcome::{Class, Told, Usage};
use crate::plan::{Hidden, Waiver};
use crate::verify::Line;
pub use evidence::{collect, value};
pub use file::{Report, digest};

/// One line of the report.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ReportLine {
    /// The format of this line: 1.
    pub version: u32,
    /// What it tells.
    #[serde(flatten)]
    pub event: ReportEvent,
}

/// What a line of the report tells.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum ReportEvent {
    /// What was to be done.
    Plan {
        /// SHA-256, in hexadecimal, of what `cellblock plan --json` prints for this run.
        digest: String,
        /// `sealed` or `nested`.
        mode: crate::policy::Mode,
        /// The layers left out, and why.
        waived: Vec<Waiver>,
        /// What a layer holds alone where two should.
        notes: Vec<String>,
        /// How each hidden path is hidden.
        hidden: Vec<Hidden>,
        /// The run's own parts of the instance.
        exposed: Vec<String>,
    },
    /// The program, as found in the cell before exec.
    Provider {
        /// Its path in the cell.
        path: String,
        /// Bytes.
        size: u64,
        /// SHA-256 of its content; none where it is larger than a gibibyte, as
        /// an agent may have made it to keep the launcher busy, or where the run
        /// was told to end meanwhile.
        sha256: Option<String>,
    },
    /// What the kernel was told, and what it says of it.
    Applied {
        /// One member each.
        evidence: Vec<Evidence>,
    },
    /// What a test from within found, before the provider ran.
    Verified {
        /// Whether no line is wrong.
        sound: bool,
        /// One each.
        lines: Vec<Line>,
    },
    /// How it ended. This line is written in every case.
    Outcome {
        /// Why.
        outcome: Class,
        /// The launcher's exit code.
        exit_code: u8,
        /// The provider's own, where it exited.
        code: Option<i32>,
        /// The signal that ended the provider, where one did.
        signal: Option<i32>,
        /// From before the clone to the end of the cell.
        wall_seconds: f64,
        /// What the cell used.
        usage: Usage,
        /// Whether the run may go well on another host.
        retryable: bool,
        /// What kept the provider from running, where something did; or what went
        /// wrong when it had ended.
        error: Option<Reason>,
        /// What the run had made at protected paths and was removed, relative to
        /// the workspace.
        swept: Vec<String>,
        /// What the run changed that others will run, and that stays.
        told: Vec<Told>,
    },
}

/// One thing that is known of the cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Evidence {
    /// The layer it belongs to.
    pub layer: String,
    /// What.
    pub name: String,
    /// Its value.
    pub value: serde_json::Value,
    /// How that is known.
    pub source: Source,
}

/// How a member of the evidence is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Read from the kernel.
    Kernel,
    /// Tried from inside.
    Probed,
    /// Given to a call that succeeded.
    Installed,
}
