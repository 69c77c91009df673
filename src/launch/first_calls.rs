//! A filter around the launcher may kill who makes a call that it does not
//! allow, as systemd's SystemCallFilter= does. A process that is killed can say
//! nothing, so a child makes the calls of a launch first.
//!
//! Where no filter is laid on this process, nothing is tried.

use super::Options;
use crate::error::Error;
use crate::fault;
use crate::policy::{Layer, NetworkMode, Policy};
use crate::sys::Failure;
use crate::sys::clone::{self, Stack};
use crate::sys::trial::{self, Harmless, is_filtered, take};

/// Makes sure that no call of this launch is one that kills. Without a policy
/// nothing is launched, and only the launcher's own part is tried.
///
/// # Errors
///
/// Where a filter kills for one of them.
pub fn survive(policy: Option<&Policy>, options: &Options) -> Result<(), Error> {
    if !is_filtered() {
        return Ok(());
    }
    let calls = calls(policy, options);
    let failed = |failure: Failure| {
        Error::new(
            "launch",
            format!("no child can be made to try the launch's calls: {}", failure.call.name()),
        )
        .errno(failure.errno)
    };
    let (mut stack, mut first, mut killers) = (Stack::new(), 0, Vec::new());
    while first < calls.len() {
        let taken = take(&mut stack, &calls, first).map_err(failed)?;
        let killer = calls.get(taken.survived).map(|call| call.name);
        if killer != Some("wait4") && !killers.contains(&"wait4") {
            clone::wait(taken.pid).map_err(failed)?;
        }
        killers.extend(killer);
        first = taken.survived + 1;
    }
    killers.dedup();
    if killers.is_empty() { Ok(()) } else { Err(fault::killed_for(&killers)) }
}

fn calls(policy: Option<&Policy>, options: &Options) -> Vec<Harmless> {
    let mut calls = trial::LAUNCHER.to_vec();
    let mut add = |used: bool, group: &[Harmless]| calls.extend(group.iter().filter(|_| used));
    add(options.report.is_some(), trial::REPORT);
    add(options.test.is_some(), trial::TEST);
    add(options.ids.started_by_root, trial::ROOT);
    if let Some(policy) = policy {
        let stands = |layer| !policy.require.without.contains(&layer);
        add(true, trial::CHILD);
        add(stands(Layer::Landlock), trial::LANDLOCK);
        add(stands(Layer::Seccomp), trial::SECCOMP);
        add(stands(Layer::Network) && policy.network.mode == NetworkMode::None, trial::NETWORK);
        add(!policy.run.hide.is_empty(), trial::WHITEOUTS);
    }
    calls
}
