//! The launcher: makes the cell and stays with it to its end.

mod attempt;
mod changes;
mod explain;
pub mod first_calls;
pub mod ids;
pub mod notices;
mod outlet;
mod prepare;
pub mod program;
mod received;
mod remove;
mod screen;
mod signals;
pub mod status;
mod stdio;
mod supervise;
mod sweep;
mod terminal;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Error, printable};
use crate::fault;
use crate::git::Repository;
use crate::git::fate::{self, Protected};
use crate::host::{Host, Ids, Kind, Lookup, links, worktree};
use crate::limits::cgroup::Leaf;
use crate::lint::{self, Warning};
use crate::outcome::{Class, Outcome};
use crate::plan::{self, Plan, Request, Step};
use crate::policy::{Access, Mode, Policy, Workspace};
use crate::report::Report;
use crate::sys::{Call, Failure, credentials, errno};
use crate::verify::{self, Line};
use attempt::{Launch, Told, attempt};
use status::Status;
use stdio::Stdio;

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
    /// The launcher's own umask, which the policy may pass on.
    pub umask: u32,
    /// What the finished cell is tested for.
    pub test: Option<verify::Request>,
}

impl Options {
    /// Whether the command is run in the end, or the cell only tested.
    fn runs(&self) -> bool {
        self.test.as_ref().is_none_or(|test| test.runs)
    }
}

/// Runs a command in a cell, to its end.
///
/// What goes wrong before the provider runs is in the outcome too: the report
/// and the status end with it in every case.
pub fn run(policy: &Policy, command: Vec<OsString>, options: &Options) -> Outcome {
    let started = Instant::now();
    if let Some(time_is_up) = policy.cell.timeout.and_then(|timeout| started.checked_add(timeout)) {
        notices::hurry_from(time_is_up);
    }
    let (mut status, mut report) = (Status::default(), None);
    let outcome = open(Some(policy), options, &mut status, &mut report)
        .and_then(|()| {
            let mut told =
                Told { status: &mut status, report: report.as_mut(), lines: None, notes: Vec::new() };
            launch(policy, command, options, &mut told, started)
        })
        .unwrap_or_else(|error| Outcome::failed(error, started.elapsed()));
    conclude(outcome, status, report)
}

/// What a test came to.
#[derive(Debug)]
pub struct Tested {
    /// One each.
    pub lines: Vec<Line>,
    /// What the cell was built without.
    pub notes: Vec<String>,
}

/// Builds the cell and tests it from within; the command is not run.
///
/// # Errors
///
/// When the cell cannot be built, or ends before the test is over.
pub fn test(policy: &Policy, command: Vec<OsString>, options: &Options) -> Result<Tested, Error> {
    let started = Instant::now();
    let mut status = Status::default();
    open(Some(policy), options, &mut status, &mut None)?;
    let mut told = Told { status: &mut status, report: None, lines: None, notes: Vec::new() };
    let outcome = launch(policy, command, options, &mut told, started)?;
    let notes = told.notes;
    told.lines.map(|lines| Tested { lines, notes }).ok_or_else(|| {
        let ended = Error::new("verify", "the cell ended before the test from within was over");
        outcome.error.unwrap_or_else(|| ended.cause("the time was up, or it was told to end"))
    })
}

/// Ends a run that came to nothing before there was a policy to launch.
pub fn refuse(options: &Options, error: Error) -> Outcome {
    let (mut status, mut report) = (Status::default(), None);
    // The first failure is told; that its report failed too would hide it.
    let _ = open(None, options, &mut status, &mut report);
    conclude(Outcome::failed(error, Duration::ZERO), status, report)
}

/// Looks whether `/proc` is that of this PID namespace: id maps are written, and
/// evidence is read, by the number of a process.
///
/// # Errors
///
/// When it is another one, or none.
pub fn check_proc() -> Result<(), Error> {
    match std::fs::read_link("/proc/self") {
        Ok(number) if number.to_str() == Some(&std::process::id().to_string()) => Ok(()),
        other => Err(fault::other_proc(other.as_deref().map_err(errno))),
    }
}

/// Opens what the run is to be told by, before anything is started.
fn open(
    policy: Option<&Policy>,
    options: &Options,
    status: &mut Status,
    report: &mut Option<Report>,
) -> Result<(), Error> {
    // Before this process opens a descriptor that could be taken for one of these.
    let streams = stdio::check_open();
    let passed = stdio::check_inherited("--pass-fd", &options.pass_fds);
    if let Some(fd) = options.status_fd {
        if options.pass_fds.iter().any(|&passed| stdio::lead_to_the_same(passed, fd)) {
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
    first_calls::survive(policy, options)?;
    options.status_fd.map_or(Ok(()), Status::check)?;
    check_proc()?;
    // What the launcher makes is the run's own, whatever mask the harness had.
    credentials::set_umask(0o077);
    let create = |place| Report::create(place, options.ids, ids::caller());
    *report = options.report.as_deref().map(create).transpose()?;
    streams.and(passed)
}

/// Writes the last line of both.
fn conclude(mut outcome: Outcome, mut status: Status, report: Option<Report>) -> Outcome {
    if let Some(Err(error)) = report.map(|report| report.finish(&outcome)) {
        outcome.error.get_or_insert(error);
    }
    if let Err(error) = status.exit(&outcome) {
        outcome.error.get_or_insert(error);
    }
    outcome
}

fn launch(
    policy: &Policy,
    command: Vec<OsString>,
    options: &Options,
    told: &mut Told,
    started: Instant,
) -> Result<Outcome, Error> {
    if options.ids.started_by_root {
        ids::drop_groups()?;
    }
    let streams = || if options.runs() { Stdio::prepare(options.ids) } else { Ok(Stdio::nothing()) };
    let stdio = streams()?;
    let leaf = (policy.mode == Mode::Nested).then(Leaf::make).flatten();
    let request = Request {
        command,
        environment: std::env::vars_os().collect(),
        keep: options.pass_fds.clone(),
        gate: told.report.is_some() || options.test.is_some(),
        test: options.test.is_some(),
        terminal: stdio.terminal.is_some(),
        cgroup: leaf.is_some(),
        umask: options.umask,
    };
    let (policy, mut host, mut plan) = prepare(policy, options.ids, &request)?;
    let policy = &*policy;
    if options.runs() {
        let looked = || Ok((lint::SetGid::probe(policy), hint_at_repository(policy, &host)));
        let (set_gid, hint) = ids::as_run(options.ids, looked)?;
        for Warning { name, origin, what, .. } in lint::at_start(policy, &host, set_gid) {
            notices::say(&format!("warning: {origin}: {what} (--accept {name})"));
        }
        hint.iter().for_each(|hint| notices::say(hint));
    }
    // Kept until the cell has ended, which is what it is locked for.
    let take = |path: &PathBuf| ids::as_run(options.ids, || prepare::WorkDirectory::take(path, options.ids));
    let _work_directory = plan.work_directory.as_ref().map(take).transpose()?;
    let launch = Launch { policy, options, request: &request, leaf: leaf.as_ref(), started };
    let mut stdio = Some(stdio);
    loop {
        let stdio = stdio.take().map_or_else(streams, Ok)?;
        let (ended, swept) = attempt(&launch, &mut host, &mut plan, stdio, told)?;
        // Nothing has gone through the streams yet, as the provider has not run.
        let explain = |(step, failure): (usize, Failure)| match (plan.step(step), failure.call) {
            (Some(Step::Execute), Call::Execve) => {
                let run = program::Run { policy, ids: options.ids, request: &request, plan: &plan };
                (step, program::not_executed(&run, failure.errno))
            }
            _ => (step, explain::step(&plan, step, failure)),
        };
        let failed = ended.state.failed.map(explain);
        if let Some((_, failed)) = failed.as_ref().filter(|(step, _)| plan.is_beside(*step))
            && !ended.was_told_to_end()
        {
            // By clone(2), as the other namespaces: what is refused then has its words.
            tracing::info!("{failed}");
            host.beside = false;
            plan = plan::build(policy, &host, &request)?;
            continue;
        }
        let overlay = failed.as_ref().and_then(|(step, _)| plan.overlay(*step));
        if let (Some(place), Some((_, failed)), false) = (overlay, &failed, ended.was_told_to_end()) {
            tracing::info!("{failed}");
            plan = without_overlay(&launch, &mut host, &place).map_err(|error| {
                let mut failed = failed.clone();
                (failed.cause, failed.remedy) = (error.cause, error.remedy);
                failed
            })?;
            told.note(
                options,
                format!("{} is built without an overlay", printable(&place.to_string_lossy())),
            );
            continue;
        }
        let outcome = match failed.map(|(_, error)| error).or(ended.refused.clone()) {
            Some(error) => {
                let outcome = Outcome::failed(error, ended.wall);
                let is_leak = told.lines.iter().flatten().any(|line| line.is_wrong(false));
                let class = if is_leak { Class::LeakFound } else { outcome.class };
                Outcome { class, usage: ended.usage(), ..outcome }
            }
            None => ended.outcome(),
        };
        return Ok(Outcome {
            swept: swept.removed,
            told: swept.told,
            error: outcome.error.or(ended.trouble).or(swept.error),
            ..outcome
        });
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

/// Makes what the policy wants made, and plans; but first whether the rest of
/// the policy stands, so that a refused launch has made nothing.
fn prepare<'a>(
    policy: &'a Policy,
    ids: Ids,
    request: &Request,
) -> Result<(Cow<'a, Policy>, Host, Plan), Error> {
    let (policy, host) = probe(policy, ids)?;
    let plan = plan::build(&policy, &host, request)?;
    if plan.is_whole() {
        return Ok((policy, host, plan));
    }
    ids::as_run(ids, || prepare::make_missing(&plan.prepare))?;
    let host = Host { links: host.links, ..ids::as_run(ids, || Ok(look(&policy, ids)))? };
    let plan = plan::build(&policy, &host, request)?;
    Ok((policy, host, plan))
}

/// Looks at all that a plan for this policy rests on, as the id of the run:
/// what root alone can see is not what the run will find. Links that only root can
/// change are followed: the policy then has what they lead to.
///
/// # Errors
///
/// When this process cannot take that id.
pub fn probe(policy: &Policy, ids: Ids) -> Result<(Cow<'_, Policy>, Host), Error> {
    ids::as_run(ids, || {
        let host = look(policy, ids);
        let is_link = |path: &Path| matches!(host.files.get(path), Some(Lookup::Link { .. }));
        let followed = match host.files.keys().any(|path| is_link(path)) {
            true => links::followed(policy, is_link),
            false => None,
        };
        Ok(match followed {
            None => (Cow::Borrowed(policy), host),
            Some((policy, links)) => {
                let host = Host { links, ..look(&policy, ids) };
                (Cow::Owned(policy), host)
            }
        })
    })
}

fn look(policy: &Policy, ids: Ids) -> Host {
    let own_filter = policy.seccomp.file.as_ref().map(|file| &*file.path);
    let mut host = Host::probe(ids, policy.filesystem.system, own_filter, plan::paths(policy));
    look_at_repository(policy, &mut host);
    host
}

/// What becomes of each protected path of the workspace, as the id of the run sees it.
///
/// # Errors
///
/// When this process cannot take that id.
pub fn protected(policy: &Policy, ids: Option<Ids>) -> Result<Vec<Protected>, Error> {
    let look = || Ok(policy.workspace.as_ref().map(fate::of).unwrap_or_default());
    ids.map_or_else(look, |ids| ids::as_run(ids, look))
}

/// Looks at what git tracks of the protected paths, and at what is held for that.
fn look_at_repository(policy: &Policy, host: &mut Host) {
    let is_written = |workspace: &&Workspace| workspace.access == Access::ReadWrite;
    let Some(Workspace { dir, protect, .. }) = policy.workspace.as_ref().filter(is_written) else { return };
    let protected: Vec<&Path> = protect.iter().map(|protect| &*protect.path).collect();
    if protected.is_empty() {
        return;
    }
    host.repository = Repository::look(dir, &protected);
    let held = host.repository.held(protect);
    let paths = held.iter().flat_map(|held| held.path.ancestors()).filter(|path| *path != Path::new(""));
    host.look_at(paths.map(|path| dir.join(path)).collect::<BTreeSet<_>>());
}

/// Says which repository a workspace without one of its own lacks.
fn hint_at_repository(policy: &Policy, host: &Host) -> Option<String> {
    let link = policy.workspace.as_ref()?.dir.join(".git");
    if !matches!(host.files.get(&link), Some(Lookup::Found(file)) if file.kind == Kind::File) {
        return None;
    }
    let repository = worktree::unseen(policy)?;
    let repository = printable(&repository.to_string_lossy()).to_string();
    Some(format!(
        "git finds no repository in the workspace: it is in {repository}, which the cell does not see (--bind \
         {repository} --ro-bind {repository}/hooks --ro-bind {repository}/config)"
    ))
}
