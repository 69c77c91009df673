//! What the child tells the launcher: fixed records of 16 bytes, which the
//! child can write without allocating and a pipe takes whole.

use crate::sys::{Call, Errno, Failure};

/// Bytes of one record.
pub const LENGTH: usize = 16;

/// One message of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A step of the plan failed; the provider has not run.
    Failed {
        /// Its place in the plan.
        step: u32,
        /// What failed in it.
        failure: Failure,
    },
    /// The provider's terminal; its master and its slave come along as
    /// descriptors.
    Terminal,
    /// The provider waits at the gate, with every layer on.
    AtGate {
        /// What opening the cell's root for reading gave: 0, or the errno.
        root_listing: i32,
    },
    /// The kernel's answer to a probe.
    Probed {
        /// Its place in the plan.
        probe: u32,
        /// A number, or the errno.
        answer: Result<i32, Errno>,
    },
    /// The tester was killed at a probe.
    ProbeKilled {
        /// Its place in the plan.
        probe: u32,
        /// By this signal.
        signal: i32,
    },
    /// Every step is taken but exec; the end of the socket then means success.
    Executing,
    /// The provider's own process has ended.
    Ended {
        /// `CLD_EXITED`, `CLD_KILLED` or `CLD_DUMPED`.
        code: i32,
        /// Its exit code, or the signal.
        status: i32,
    },
    /// The provider's own process was stopped from inside.
    Stopped,
}

const FAILED: u8 = 1;
const TERMINAL: u8 = 2;
const AT_GATE: u8 = 3;
const ENDED: u8 = 4;
const STOPPED: u8 = 5;
const EXECUTING: u8 = 6;
const PROBED: u8 = 7;
const PROBE_KILLED: u8 = 8;

impl Record {
    /// The record as bytes.
    pub fn encode(self) -> [u8; LENGTH] {
        let (kind, call, step, first, second) = match self {
            Record::Failed { step, failure } => (FAILED, failure.call as u8, step, failure.errno as i32, 0),
            Record::Terminal => (TERMINAL, 0, 0, 0, 0),
            Record::AtGate { root_listing } => (AT_GATE, 0, 0, root_listing, 0),
            Record::Ended { code, status } => (ENDED, 0, 0, code, status),
            Record::Stopped => (STOPPED, 0, 0, 0, 0),
            Record::Probed { probe, answer: Ok(value) } => (PROBED, 0, probe, 0, value),
            Record::Probed { probe, answer: Err(errno) } => (PROBED, 0, probe, errno as i32, 0),
            Record::ProbeKilled { probe, signal } => (PROBE_KILLED, 0, probe, signal, 0),
            Record::Executing => (EXECUTING, 0, 0, 0, 0),
        };
        let mut bytes = [0; LENGTH];
        bytes[0] = kind;
        bytes[1] = call;
        bytes[4..8].copy_from_slice(&step.to_ne_bytes());
        bytes[8..12].copy_from_slice(&first.to_ne_bytes());
        bytes[12..16].copy_from_slice(&second.to_ne_bytes());
        bytes
    }

    /// The record that `bytes` hold, if they hold one.
    pub fn decode(bytes: &[u8]) -> Option<Record> {
        let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
        let number = |at| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let step = u32::from_ne_bytes(number(4));
        let [first, second] = [8, 12].map(|at| i32::from_ne_bytes(number(at)));
        Some(match bytes[0] {
            FAILED => Record::Failed {
                step,
                failure: Failure { call: Call::from_number(bytes[1])?, errno: Errno::from_raw(first) },
            },
            TERMINAL => Record::Terminal,
            AT_GATE => Record::AtGate { root_listing: first },
            ENDED => Record::Ended { code: first, status: second },
            STOPPED => Record::Stopped,
            EXECUTING => Record::Executing,
            PROBED => Record::Probed {
                probe: step,
                answer: if first == 0 { Ok(second) } else { Err(Errno::from_raw(first)) },
            },
            PROBE_KILLED => Record::ProbeKilled { probe: step, signal: first },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_survives_the_pipe() {
        for record in [
            Record::Failed { step: 70_000, failure: Failure { call: Call::Write, errno: Errno::ENOSPC } },
            Record::Terminal,
            Record::AtGate { root_listing: 13 },
            Record::Ended { code: libc::CLD_KILLED, status: 31 },
            Record::Stopped,
            Record::Executing,
            Record::Probed { probe: 70_000, answer: Ok(7) },
            Record::Probed { probe: 0, answer: Err(Errno::ENOENT) },
            Record::ProbeKilled { probe: 9, signal: 31 },
        ] {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn what_is_no_record_is_none() {
        assert_eq!(Record::decode(&[0; LENGTH]), None);
        assert_eq!(Record::decode(&[FAILED; 3]), None);
        assert_eq!(Record::decode(&[255; LENGTH]), None);
    }
}
