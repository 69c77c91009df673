//! The launcher: makes the cell and stays with it to its end.

mod explain;
pub mod ids;
mod prepare;
pub mod status;
mod stdio;
mod supervise;
mod sweep;
mod terminal;

use std::cell::Cell;
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use nix::unistd::pipe2;

use crate::child::{self, Child};
use crate::error::Error;
use crate::evidence::Report;
use crate::host::{Host, Ids};
use crate::outcome::Outcome;
use crate::plan::{self, Plan, Request, Stage};
use crate::policy::{Layer, Policy, System};
use crate::sys::clone::{Side, Stack, into_namespaces};
use crate::sys::exec::Image;
use crate::sys::{Errno, clone, credentials, signal};
use status::Status;
use stdio::Stdio;
use supervise::{Ended, Event, Running, Started};
use sweep::{Sweep, Swept};

/// What a launch takes beside the policy.
#[derive(Debug, Default)]
pub struct Options {
    /// Who the cell runs as.
    pub ids: Ids,
    /// Descriptors that the provider keeps.
    pub pass_fds: Vec<RawFd>,
    /// The file that the evidence goes to.
    pub report: Option<PathBuf>,
    /// The descriptor that the stages of the run go to.
    pub status_fd: Option<RawFd>,
}

/// Runs a command in a cell, to its end.
///
/// What goes wrong before the provider runs is in the outcome too: the report
/// and the status end with it in every case.
pub fn run(policy: &Policy, command: Vec<OsString>, options: &Options) -> Outcome {
    let started = Instant::now();
    // What the launcher makes is the run's own, whatever mask the harness had.
    credentials::set_umask(0o077);
    let (mut status, mut report) = (Status::default(), None);
    let outcome = open(options, &mut status, &mut report)
        .and_then(|()| launch(policy, command, options, &mut status, report.as_mut(), started))
        .unwrap_or_else(|error| Outcome::failed(error, started.elapsed()));
    conclude(outcome, status, report)
}

/// Ends a run that came to nothing before there was a policy to launch.
pub fn refuse(options: &Options, error: Error) -> Outcome {
    let (mut status, mut report) = (Status::default(), None);
    // The first failure is told; that its report failed too would hide it.
    let _ = open(options, &mut status, &mut report);
    conclude(Outcome::failed(error, Duration::ZERO), status, report)
}

/// Opens what the run is to be told by, before anything is started.
fn open(options: &Options, status: &mut Status, report: &mut Option<Report>) -> Result<(), Error> {
    // Before this process opens a descriptor that could be taken for one of these.
    let streams = stdio::check_open();
    let passed = stdio::check_inherited("--pass-fd", &options.pass_fds);
    if let Some(fd) = options.status_fd {
        if options.pass_fds.contains(&fd) {
            return Err(Error::new(
                "descriptors",
                format!("--json-status-fd {fd} is passed to the provider too"),
            )
            .cause("it could write a status of its own")
            .remedy("use another descriptor for one of them"));
        }
        stdio::check_inherited("--json-status-fd", &[fd])?;
        *status = Status::new(fd)?;
    }
    *report = options.report.as_deref().map(|place| Report::create(place, options.ids)).transpose()?;
    streams.and(passed)
}

/// Writes the last line of both.
fn conclude(mut outcome: Outcome, mut status: Status, report: Option<Report>) -> Outcome {
    if let Some(Err(error)) = report.map(|report| report.finish(&outcome)) {
        outcome.error.get_or_insert(error);
    }
    status.exit(&outcome);
    outcome
}

/// What stays the same however often a cell is begun.
struct Launch<'a> {
    policy: &'a Policy,
    options: &'a Options,
    request: &'a Request,
    started: Instant,
}

fn launch(
    policy: &Policy,
    command: Vec<OsString>,
    options: &Options,
    status: &mut Status,
    mut report: Option<&mut Report>,
    started: Instant,
) -> Result<Outcome, Error> {
    if options.ids.started_by_root {
        ids::drop_groups()?;
    }
    let stdio = Stdio::prepare(options.ids)?;
    let request = Request {
        command,
        environment: std::env::vars_os().collect(),
        keep: options.pass_fds.clone(),
        gate: report.is_some(),
        terminal: stdio.terminal.is_some(),
    };
    let (mut host, mut plan) = prepare(policy, options.ids, &request)?;
    // Kept until the cell has ended, which is what it is locked for.
    let take = |path: &PathBuf| ids::as_run(options.ids, || prepare::WorkDirectory::take(path, options.ids));
    let _work_directory = plan.work_directory.as_ref().map(take).transpose()?;
    let launch = Launch { policy, options, request: &request, started };
    let mut stdio = Some(stdio);
    loop {
        let streams = stdio.take().map_or_else(|| Stdio::prepare(options.ids), Ok)?;
        let (ended, swept) = attempt(&launch, &mut host, &mut plan, streams, status, &mut report)?;
        // Nothing has gone through the streams yet, as the provider has not run.
        let failed = ended.state.failed.map(|(step, failure)| (step, explain::step(&plan, step, failure)));
        let overlay = failed.as_ref().and_then(|(step, _)| plan.overlay(*step));
        if let (Some(place), Some((_, failed)), false) = (overlay, &failed, ended.was_told_to_end()) {
            tracing::info!("{failed}");
            plan = without_overlay(&launch, &mut host, &place).map_err(|error| Error {
                cause: error.cause,
                remedy: error.remedy,
                ..failed.clone()
            })?;
            // Standard error takes what it can; the report's notes have it too.
            let _ = writeln!(std::io::stderr(), "cellblock: {} is built without an overlay", place.display());
            continue;
        }
        let error = failed.map(|(_, error)| error).or(ended.refused.clone());
        let outcome = match error {
            Some(error) => Outcome { usage: ended.usage(), ..Outcome::failed(error, ended.wall) },
            None => ended.outcome(),
        };
        return Ok(Outcome { swept: swept.removed, error: outcome.error.or(swept.error), ..outcome });
    }
}

/// Plans again, for a kernel that refuses the overlay at `place`.
fn without_overlay(launch: &Launch, host: &mut Host, place: &Path) -> Result<Plan, Error> {
    let Launch { policy, options, request, .. } = *launch;
    host.without_overlay.push(place.to_owned());
    ids::as_run(options.ids, || {
        host.list(plan::to_list(policy, host));
        plan::build(policy, host, request)
    })
}

/// Builds the cell that is planned and stays with it to its end.
fn attempt(
    launch: &Launch,
    host: &mut Host,
    plan: &mut Plan,
    stdio: Stdio,
    status: &mut Status,
    report: &mut Option<&mut Report>,
) -> Result<(Ended, Swept), Error> {
    let Launch { policy, options, request, started } = *launch;
    let mut sweep = Sweep::prepare(policy, host)?;
    let cell = loop {
        #[cfg(feature = "test-hooks")]
        stay_in_the_hosts_tree(plan);
        if let Some(report) = report {
            report.refuse_inside(plan)?;
        }
        match start(plan, options.ids, &stdio) {
            Ok(cell) => break cell,
            Err(error) if error.stage == Stage::Namespaces.name() => {
                waive_namespace(policy, host, error)?;
                *plan = plan::build(policy, host, request)?;
            }
            Err(error) => return Err(error),
        }
    };
    announce(plan, &cell);
    status.setup(plan, cell.pid);
    if let Some(Err(error)) = report.as_mut().map(|report| report.plan(plan)) {
        end(cell.pid, &cell.pidfd);
        return Err(error);
    }
    let mut swept = Swept::default();
    let running = Running::new(cell, stdio, &policy.cell, started);
    let ended = running.supervise(|event| match (event, &mut *report) {
        (Event::AtGate { pid, root_listing }, Some(report)) => report.applied(plan, pid, root_listing),
        (Event::AtGate { .. }, None) => Ok(()),
        (Event::Executed, _) => {
            tracing::info!(after = ?started.elapsed(), "the provider runs");
            status.executed();
            Ok(())
        }
        (Event::Gone, _) => {
            swept = sweep.take().map(Sweep::finish).unwrap_or_default();
            Ok(())
        }
    });
    Ok((ended, swept))
}

/// Says what is being done, to who wants to know it.
fn announce(plan: &Plan, cell: &Started) {
    tracing::info!(steps = plan.init.len() + plan.provider.len(), init = cell.pid, "the cell is being built");
    for hidden in &plan.hidden {
        tracing::info!(by = ?hidden.by, view = hidden.view, "hidden: {}", hidden.path);
    }
    plan.exposed.iter().for_each(|path| tracing::info!("exposed: {path}"));
    plan.init.iter().chain(&plan.provider).for_each(|step| tracing::debug!("{step}"));
    for waiver in &plan.waived {
        // Standard error takes what it can; the report has it too.
        let _ = writeln!(std::io::stderr(), "cellblock: without {waiver}");
    }
}

/// Makes what the policy wants made, and plans; but first whether the rest of
/// the policy stands, so that a refused launch has made nothing.
fn prepare(policy: &Policy, ids: Ids, request: &Request) -> Result<(Host, Plan), Error> {
    ids::as_run(ids, || {
        let host = probe(policy, ids);
        let plan = plan::build(policy, &host, request)?;
        if plan.is_whole() {
            return Ok((host, plan));
        }
        prepare::make_missing(&plan.prepare)?;
        let host = probe(policy, ids);
        let plan = plan::build(policy, &host, request)?;
        Ok((host, plan))
    })
}

/// Looks at all that a plan for this policy rests on.
pub fn probe(policy: &Policy, ids: Ids) -> Host {
    let own_filter = policy.seccomp.file.as_ref().map(|file| &*file.path);
    Host::probe(ids, policy.filesystem.system == System::Minimal, own_filter, plan::paths(policy))
}

/// Takes the tree out of the plan, where a test asks for that.
#[cfg(feature = "test-hooks")]
fn stay_in_the_hosts_tree(plan: &mut Plan) {
    use Stage::{Dev, Mounts, Proc, Root};
    use plan::Step;
    if std::env::var_os("CELLBLOCK_TEST_HOST_TREE").is_none() {
        return;
    }
    // A rule on anything but a view would stand on what the host has by that name.
    let is_view = |rule: &plan::Text| {
        plan.init.iter().any(|step| matches!(step, Step::Bind { source, .. } if source == rule))
    };
    plan.provider.retain(|step| !matches!(step, Step::AllowPath { path, .. } if !is_view(path)));
    plan.init.retain(|step| !matches!(step.stage(), Mounts | Proc | Dev | Root));
}

/// Takes a namespace that the host refuses off the next plan, where the policy
/// allows that; cgroup first, as it holds least.
fn waive_namespace(policy: &Policy, host: &mut Host, error: Error) -> Result<(), Error> {
    let waivable = [Layer::Cgroup, Layer::Network]
        .into_iter()
        .find(|layer| policy.require.allow_missing.contains(layer) && !host.refused.contains(layer));
    host.refused.push(waivable.ok_or(error)?);
    Ok(())
}

/// Clones the child; on this side, returns what stays with it.
fn start(plan: &Plan, ids: Ids, stdio: &Stdio) -> Result<Started, Error> {
    let cannot = |what: &str, errno: Errno| Error::new("launch", what).errno(errno);
    let (status, child_status) =
        pipe2(OFlag::O_CLOEXEC).map_err(|errno| cannot("no pipe can be made", errno))?;
    fcntl(&status, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
        .map_err(|errno| cannot("the pipe is unusable", errno))?;
    let (report, child_report) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .map_err(|errno| cannot("no socket can be made", errno))?;
    // Each record then tells its sender's pid, as this namespace counts.
    setsockopt(&report, sockopt::PassCred, &true).map_err(|errno| cannot("the socket is unusable", errno))?;

    let child = Child {
        plan,
        image: Image::new(&plan.candidates, &plan.arguments, &plan.environment),
        stack: &Cell::new(Some(Stack::new())),
        report: child_report.as_raw_fd(),
        status: child_status.as_raw_fd(),
        launcher: [report.as_raw_fd(), status.as_raw_fd()],
        stdio: stdio.streams,
        terminal: Cell::new(-1),
    };
    // The child opens /proc/self/uid_map, which the kernel gives to root where
    // the launcher's binary is not readable.
    credentials::set_dumpable(true).map_err(|failure| cannot("prctl", failure.errno))?;
    // None may reach the child before it has forgotten the launcher's handlers.
    signal::block_all().map_err(|failure| cannot("signals cannot be blocked", failure.errno))?;
    let namespaces = plan.namespaces.iter().fold(0, |flags, namespace| flags | namespace.flag());
    let side = into_namespaces(namespaces);
    if matches!(side, Ok(Side::Child)) {
        child::run(&child);
    }
    let Side::Parent { pid, pidfd } = side.map_err(|failure| explain::namespaces(plan, failure))? else {
        unreachable!("the child does not return");
    };
    let signals = supervise::signals().map_err(|errno| cannot("signals cannot be read", errno));
    let maps = if ids.started_by_root { ids::write_maps(pid, ids, report.as_fd()) } else { Ok(()) };
    match maps.and(signals) {
        Ok(signals) => Ok(Started { pid, pidfd, report, status, signals }),
        Err(error) => {
            end(pid, &pidfd);
            Err(error)
        }
    }
}

/// Ends a cell that nobody will stay with; not even a zombie is left of it.
fn end(pid: i32, pidfd: &OwnedFd) {
    let _ = signal::send_to(pidfd.as_fd(), libc::SIGKILL);
    let _ = clone::wait(pid);
}
