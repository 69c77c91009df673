//! PID 1 of the cell: builds the tree, gives itself up, starts the provider,
//! reaps, and passes signals on.

use super::{Child, provider};
use crate::plan::Step;
use crate::sys::clone::{Memory, child, exit};
use crate::sys::{credentials, fd, memory, signal};
use crate::wire::Record;

/// The whole life of init.
pub fn run(child: &Child) -> ! {
    // Modes are as the plan says, whatever mask the harness had.
    credentials::set_umask(0);
    child.launcher.into_iter().for_each(fd::close);
    let mut provider = None;
    for (index, step) in child.plan.init.iter().enumerate() {
        let result = match step {
            Step::StartProvider => start_provider(child).map(|pid| provider = Some((index, pid))),
            step => child.apply(step, &mut None),
        };
        if let Err(failure) = result {
            child.fail(index, failure);
        }
    }
    match provider {
        Some((step, provider)) => {
            if let Err(failure) = fd::close_all_but(child.status) {
                // The report may be closed already.
                let record = Record::Failed { step: step as u32, failure };
                let _ = fd::write(child.status, &record.encode());
                exit(125)
            }
            watch(child, provider)
        }
        None => exit(125),
    }
}

fn start_provider(init: &Child) -> crate::sys::Result<i32> {
    let waits_at_gate = init.plan.provider.contains(&Step::WaitAtGate);
    let memory = if waits_at_gate { Memory::Copied } else { Memory::Shared };
    let Some(mut stack) = init.stack.take() else { exit(125) };
    let pid = child(&mut stack, memory, provider::run, init);
    // Freeing is no business of PID 1.
    std::mem::forget(stack);
    pid
}

/// Reaps and forwards until the provider's process has ended; the kernel then
/// ends everything else in the cell together with PID 1.
fn watch(child: &Child, provider: i32) -> ! {
    let mut is_at_rest = false;
    loop {
        while let Some(change) = signal::next_change() {
            if change.pid != provider {
                continue;
            }
            let record = match change.code {
                libc::CLD_STOPPED => Record::Stopped,
                code @ (libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) => {
                    Record::Ended { code, status: change.status }
                }
                // One that has asked to be traced stops at every exec, for nobody.
                _ => continue,
            };
            // A launcher that has gone takes the cell along by itself.
            let _ = fd::write(child.status, &record.encode());
            if matches!(record, Record::Ended { .. }) {
                exit(0);
            }
        }
        let Some(received) = signal::wait((!is_at_rest).then_some(memory::REST)) else {
            // All that runs from here on is the wait.
            is_at_rest = true;
            memory::give_back_program();
            continue;
        };
        // What the provider sends to PID 1 is nobody's order.
        if received.from_outside {
            pass_on(provider, received.signal);
        }
    }
}

fn pass_on(provider: i32, number: i32) {
    match number {
        libc::SIGCHLD => {}
        // Whole groups stop and go on; nothing else is sent to more than the provider.
        libc::SIGTSTP => send_to_group(provider, libc::SIGSTOP),
        libc::SIGCONT => send_to_group(provider, libc::SIGCONT),
        number => {
            wake(provider);
            signal::send(provider, number);
        }
    }
}

/// Gives a provider that leads a session its share of the processors back: one
/// that has made it small would come late to its signal. It may do so again, and
/// in sealed mode it cannot; then this fails.
fn wake(provider: i32) {
    if provider == FIRST_CHILD {
        let _ = fd::write_file(c"/proc/2/autogroup", b"0");
    }
}

/// The number of the first process that PID 1 starts.
const FIRST_CHILD: i32 = 2;

/// To the group that the provider was given, and to the provider where it has
/// gone to another; not to it twice, as the second one could undo what it does
/// after the first.
fn send_to_group(provider: i32, number: i32) {
    signal::send(-provider, number);
    if signal::group_of(provider) != provider {
        signal::send(provider, number);
    }
}
