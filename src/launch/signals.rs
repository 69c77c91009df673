//! The launcher's signals: which are passed on, and which tell the run to end.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::sys::signal;

/// The signals that are passed on to the provider.
const PASSED_ON: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
    Signal::SIGTSTP,
    Signal::SIGWINCH,
];

/// Those of them that tell the run to end.
const ENDING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

/// Whether the caller ignores a signal, as nohup(1) does and as a shell does for
/// a job in the background. The launcher ignores none of these itself.
pub(super) fn is_ignored(signal: Signal) -> bool {
    signal::is_ignored(signal as i32)
}

/// Whether a signal tells the run to end.
pub(super) fn is_ending(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

/// Whether a signal that tells the run to end has come and has not been read.
pub(super) fn is_told_to_end() -> bool {
    ENDING.into_iter().any(|signal| signal::is_pending(signal as i32) && !is_ignored(signal))
}

/// The launcher's signals, read instead of taken. What the caller ignores stays
/// unblocked, as the kernel keeps a blocked signal though it is ignored.
pub(super) fn open() -> nix::Result<SignalFd> {
    let mut set: SigSet = PASSED_ON.into_iter().filter(|&signal| !is_ignored(signal)).collect();
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    // A relay in the background must not be stopped for touching the terminal.
    set.add(Signal::SIGTTOU);
    set.add(Signal::SIGTTIN);
    set.thread_set_mask()?;
    Ok(signals)
}
