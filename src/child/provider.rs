//! PID 2 of the cell, until it becomes the provider.

use super::Child;
use crate::plan::Step;
use crate::sys::signal;

/// Takes the provider's steps, the last of which is exec.
///
/// It may run in the memory of init, which waits meanwhile, so it frees nothing
/// and leaves nothing changed there.
pub(super) fn run(child: &Child) -> ! {
    let first = child.plan.init.len();
    let mut ruleset = None;
    for (index, step) in child.plan.provider.iter().enumerate() {
        let result = match step {
            Step::Execute => signal::unblock_all().and_then(|()| Err(child.image.execute())),
            step => child.apply(step, &mut ruleset),
        };
        if let Err(failure) = result {
            child.fail(first + index, failure);
        }
    }
    crate::sys::clone::exit(125)
}
