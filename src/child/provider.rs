//! PID 2 of the cell, until it becomes the provider.

use super::Child;
use crate::plan::Step;
use crate::sys::clone::exit;
use crate::sys::{Result, fd, signal};
use crate::wire::Record;

/// Takes the provider's steps, the last of which is exec.
///
/// It may run in the memory of init, which waits meanwhile, so it frees nothing
/// and leaves nothing changed there.
pub(super) fn run(child: &Child) -> ! {
    let first = child.plan.init.len();
    let mut ruleset = None;
    for (index, step) in child.plan.provider.iter().enumerate() {
        let result = match step {
            Step::Execute => execute(child),
            step => child.apply(step, &mut ruleset),
        };
        if let Err(failure) = result {
            child.fail(first + index, failure);
        }
    }
    exit(125)
}

/// Returns only on failure.
fn execute(child: &Child) -> Result<()> {
    fd::write(child.report, &Record::Executing.encode())?;
    signal::unblock_all()?;
    Err(child.image.execute())
}
