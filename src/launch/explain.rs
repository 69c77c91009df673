//! The words for what failed in the child, which has none itself.

use crate::error::Error;
use crate::fault;
use crate::plan::{Plan, Stage, Step};
use crate::sys::{Call, Errno, Failure};

/// The words for a clone that the kernel refused.
pub(super) fn namespaces(plan: &Plan, failure: Failure) -> Error {
    let names: Vec<&str> = plan.namespaces.iter().map(|namespace| namespace.name()).collect();
    let what = format!("{} with {} namespaces", failure.call.name(), names.join(", "));
    let error = Error::new(Stage::Namespaces.name(), what).errno(failure.errno);
    with_fault(error, Stage::Namespaces, failure)
}

/// The words for a step that failed in the child.
pub(super) fn step(plan: &Plan, index: usize, failure: Failure) -> Error {
    let Some(step) = plan.step(index) else {
        return Error::new("launch", format!("the child speaks of a step {index} that is not planned"));
    };
    let stage = step.stage();
    let error = Error::new(stage.name(), format!("{step}: {}", failure.call.name())).errno(failure.errno);
    match (step, failure.call, failure.errno) {
        (Step::Execute, Call::Execve, errno) => not_executed(plan, errno),
        (Step::Bind { source, .. }, Call::Identity, _) => error
            .cause(format!("{source} was replaced while the cell was built"))
            .remedy("find out who writes there; the launch may be tried again"),
        (Step::Bind { .. }, Call::Openat2, Errno::EACCES) => error
            .cause("the user that the cell runs as may not enter a directory of that path")
            .remedy("give that user search permission (chmod o+x), or move the tree"),
        (Step::Cover { source, inode: None, path, .. }, Call::Openat2, _)
            if source == path && plan.work_directory.is_some() =>
        {
            error
                .cause("a former run has left a device 0:0 or an attribute `user.overlay.…` there or above it, by which an overlay does not show what the host has")
                .remedy("remove that (find it with getfattr -R -d -m '^user.overlay', setfattr -x takes it away), or write `protect_missing = \"sweep\"`")
        }
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

fn with_fault(mut error: Error, stage: Stage, failure: Failure) -> Error {
    if let Some(fault) = fault::explain(stage, failure) {
        error.fault = Some(fault.name);
        error = error.cause(fault.cause).remedy(fault.remedy);
    }
    error
}

fn workdir(plan: &Plan) -> String {
    let goes_to = |step: &Step| match step {
        Step::ChangeDirectory { path } => Some(path.to_string()),
        _ => None,
    };
    plan.provider.iter().find_map(goes_to).unwrap_or_default()
}

fn not_executed(plan: &Plan, errno: Errno) -> Error {
    let command = plan.arguments.first().map(ToString::to_string).unwrap_or_default();
    let error = Error::new(Stage::Exec.name(), format!("{command} cannot be executed")).errno(errno);
    match errno {
        Errno::ENOENT | Errno::ENOTDIR if plan.arguments.len() == 1 && command.contains(' ') => error
            .cause("no shell takes the command apart: all of it is the name of a program")
            .remedy("give program and arguments as words of their own, or as one after `sh -c`")
            .exit_code(127),
        Errno::ENOENT | Errno::ENOTDIR if command.contains('/') && !command.starts_with('/') => error
            .cause(format!(
                "{} has no such program, or the cell not the interpreter that its first line names",
                workdir(plan)
            ))
            .remedy(
                "give its path in the cell from / on, start elsewhere with --chdir, or show the interpreter",
            )
            .exit_code(127),
        Errno::ENOENT | Errno::ENOTDIR => error
            .cause("the cell has no such program, or not the interpreter that its first line names")
            .remedy("show its directory with --ro-bind and give its path, or add that to PATH with --env")
            .exit_code(127),
        Errno::EACCES => error
            .cause("it is no executable file, or lies where the cell may not execute")
            .remedy("make it executable (chmod +x)")
            .exit_code(126),
        Errno::ENOEXEC => error
            .cause("it is neither a program for this machine nor a script with an interpreter line")
            .remedy("begin the script with `#!` and its interpreter")
            .exit_code(126),
        Errno::E2BIG => error
            .cause("arguments and environment together are larger than the kernel takes")
            .remedy("hand the data over in a file or by standard input")
            .exit_code(126),
        _ => error.exit_code(126),
    }
}
