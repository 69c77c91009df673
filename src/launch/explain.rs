//! The words for what failed in the child, which has none itself.

use std::fs;

use nix::unistd::geteuid;

use crate::error::Error;
use crate::fault;
use crate::plan::{Plan, Stage, Step};
use crate::sys::{Call, Errno, Failure};

/// The words for a clone that the kernel refused.
pub(super) fn namespaces(plan: &Plan, failure: Failure) -> Error {
    if failure.call == Call::Fstat {
        return Error::new("launch", "the launcher's threads cannot be counted in /proc/self/task")
            .errno(failure.errno)
            .cause("a cell is cloned by a process of one thread only, and /proc is not there to tell")
            .remedy("mount a procfs on /proc");
    }
    let names: Vec<&str> = plan.namespaces.iter().map(|namespace| namespace.name()).collect();
    let what = format!("{} with {} namespaces", failure.call.name(), names.join(", "));
    let error = with_fault(
        Error::new(Stage::Namespaces.name(), what).errno(failure.errno),
        Stage::Namespaces,
        failure,
    );
    if failure.errno == Errno::EPERM && is_in_a_chroot() {
        return error
            .cause("the launcher runs in a chroot, where the kernel makes no user namespace")
            .remedy(
                "start outside of it, or enter the tree by pivot_root(2) instead (unshare --mount, bwrap)",
            );
    }
    error
}

/// In a chroot no mount has the place `/` (user_namespaces(7), EPERM).
fn is_in_a_chroot() -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    !mounts.is_empty() && !mounts.lines().any(|line| line.split(' ').nth(4) == Some("/"))
}

/// The words for a step that failed in the child.
pub(super) fn step(plan: &Plan, index: usize, failure: Failure) -> Error {
    let Some(step) = plan.step(index) else {
        return Error::new("launch", format!("the child speaks of a step {index} that is not planned"));
    };
    let stage = step.stage();
    let error = Error::new(stage.name(), format!("{step}: {}", failure.call.name())).errno(failure.errno);
    match (step, failure.call, failure.errno) {
        (Step::Bind { source, .. }, Call::Identity, _) => error
            .cause(format!("{source} was replaced while the cell was built"))
            .remedy("find out who writes there; the launch may be tried again"),
        (Step::Bind { .. }, Call::Openat2 | Call::OpenTree, Errno::EACCES) => error
            .cause("the user that the cell runs as may not enter a directory of that path")
            .remedy("give that user search permission (chmod o+x), or move the tree"),
        (Step::Cover { source, inode: None, path, .. }, Call::Openat2, _)
            if source == path && plan.work_directory.is_some() =>
        {
            error
                .cause("a former run has left a device 0:0 or an attribute `user.overlay.…` there or above it, by which an overlay does not show what the host has")
                .remedy("remove that (find it with getfattr -R -d -m '^user.overlay', setfattr -x takes it away), or write `protect_missing = \"sweep\"`")
        }
        (_, Call::Write, Errno::EFBIG) => error
            .cause("the launcher may write no file of that size")
            .remedy("raise the limit on file sizes (ulimit -f)"),
        (Step::ChangeDirectory { .. }, _, Errno::EACCES) => error
            .cause("its mode or owner does not let the run's user in")
            .remedy("give it to that user (chown), or set its mode (chmod u+rwX)"),
        (Step::ChangeDirectory { .. }, _, Errno::ENOENT) => error
            .cause("the cell has no such directory")
            .remedy("make it part of the cell, or name another with --chdir"),
        (Step::MustBeReadable { .. }, _, Errno::EACCES) => error
            .cause("it is granted, but its mode or owner does not let the run's user read it")
            .remedy("give it to that user (chown), or set its mode (chmod u+rwX)"),
        _ => with_fault(error, stage, failure),
    }
}

/// Adds cause and remedy where the limit on open files is what was in the way.
pub(super) fn with_limit(error: Error) -> Error {
    match error.errno {
        Some(Errno::EMFILE) => error
            .cause("the launcher may have no more files open")
            .remedy("raise the limit on open files (ulimit -n)"),
        _ => error,
    }
}

/// For a standard stream of the caller's that fails, so that bytes are lost.
pub(super) fn stream(name: &str, errno: Errno) -> Error {
    let what = if name == "stdin" { "cannot be read" } else { "cannot be written" };
    let error = Error::new("output", format!("{name} {what} any more")).errno(errno);
    let error = if name == "stdin" {
        error.cause("the provider has got only what came before")
    } else {
        error.cause("what the provider wrote after that is lost")
    };
    match errno {
        Errno::ENOSPC => {
            error.remedy(format!("make room in the file system that {name} leads to, and run again"))
        }
        Errno::EDQUOT => error.remedy(format!("raise the quota where {name} leads to, or make room there")),
        Errno::EFBIG => error.remedy("raise the limit on file sizes (ulimit -f), and run again"),
        Errno::EMSGSIZE => error.remedy(format!("redirect {name} to a pipe or a stream socket")),
        _ => error.remedy(format!("redirect {name} from or to a pipe or another file system, and run again")),
    }
}

/// For a reader that was not waited for any longer.
pub(super) fn not_taken(name: &str, bytes: usize) -> Error {
    Error::new("output", format!("the last {bytes} bytes of {name} were not taken"))
        .cause("nobody read them while the launcher waited")
        .remedy(format!("read {name} to its end, or redirect it to a file"))
}

fn with_fault(mut error: Error, stage: Stage, failure: Failure) -> Error {
    if let Some(fault) = fault::explain(stage, failure) {
        error.fault = Some(fault.name);
        error = error.cause(fault.cause).remedy(fault.remedy(geteuid().is_root()));
    }
    error
}
