//! One cell, from its clone to its end.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use nix::unistd::pipe2;

use super::notices;
use super::signals;
use super::status::Status;
use super::stdio::Stdio;
use super::supervise::{Ended, Event, Running, Started};
use super::sweep::{Sweep, Swept};
use super::{Options, explain, ids};
use crate::child::{self, Child};
use crate::error::{Error, printable};
use crate::host::Host;
use crate::limits::cgroup::Leaf;
use crate::plan::{self, Plan, Request, Stage};
use crate::policy::{Layer, NetworkMode, Policy};
use crate::report::{self, Report};
use crate::sys::clone::{Side, Stack, into_namespaces};
use crate::sys::exec::Image;
use crate::sys::memory::Shared;
use crate::sys::{Errno, clone, credentials, signal};
use crate::verify::{self, Line};

/// How long a cell that is tested may take to come to its exec.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long it may take to remove what the run has made at protected paths.
const SWEEP: Duration = Duration::from_secs(120);

/// What stays the same however often a cell is begun.
pub(super) struct Launch<'a> {
    pub policy: &'a Policy,
    pub options: &'a Options,
    pub request: &'a Request,
    pub leaf: Option<&'a Leaf>,
    pub started: Instant,
}

/// Who is told of a launch, and what the test of the cell came to.
pub(super) struct Told<'a> {
    pub status: &'a mut Status,
    pub report: Option<&'a mut Report>,
    pub lines: Option<Vec<Line>>,
    /// What the cell is built without. Of a run it is said at once, and once,
    /// however often the launch begins again.
    pub notes: Vec<String>,
}

impl Told<'_> {
    /// Says what the cell is built without: on standard error, or in the result of
    /// the test.
    pub fn note(&mut self, options: &Options, note: String) {
        if self.notes.contains(&note) {
            return;
        }
        if options.runs() {
            notices::say(&note);
        }
        self.notes.push(note);
    }
}

/// Builds the cell that is planned and stays with it to its end.
pub(super) fn attempt(
    launch: &Launch,
    host: &mut Host,
    plan: &mut Plan,
    stdio: Stdio,
    told: &mut Told,
) -> Result<(Ended, Swept), Error> {
    let Launch { policy, options, request, started, .. } = *launch;
    let test = |asked| ids::as_run(options.ids, || verify::Test::new(asked, policy, host));
    let mut test = options.test.as_ref().map(test).transpose()?;
    let mut sweep = Sweep::prepare(policy, host)?;
    let cell = loop {
        plan.probes = test.as_ref().map(verify::Test::probes).unwrap_or_default();
        #[cfg(feature = "test-hooks")]
        stay_in_the_hosts_tree(plan);
        if let Some(report) = &told.report {
            report.refuse_inside(plan)?;
        }
        match start(plan, launch, &stdio) {
            Ok(cell) => break cell,
            Err(error) if error.stage == Stage::Namespaces.name() => {
                waive_namespaces(policy, host, error)?;
                *plan = plan::build(policy, host, request)?;
            }
            Err(error) => return Err(error),
        }
    };
    announce(plan, &cell);
    plan.waived.iter().for_each(|waiver| told.note(options, format!("without {waiver}")));
    told.status.setup(plan, cell.pid);
    if let Some(Err(error)) = told.report.as_mut().map(|report| report.plan(plan)) {
        end(cell.pid, &cell.pidfd);
        return Err(error);
    }
    let mut swept = Swept::default();
    let mut running = Running::new(cell, stdio, &policy.cell, started);
    running.patience = test.is_some().then_some(PATIENCE);
    let ended = running.supervise(|event| match event {
        Event::Probed { probe, answer } => {
            test.iter_mut().for_each(|test| test.take(probe, answer));
            Ok(())
        }
        Event::AtGate { pid, root_listing, go_on } => {
            let evidence = report::collect(plan, pid, root_listing)?;
            let kernel = |layer: &str, name: &str| report::value(&evidence, layer, name);
            told.lines = test.take().map(|test| test.judge(plan, &kernel));
            if let Some(report) = &mut told.report {
                report.applied(plan, pid, evidence, go_on)?;
                told.lines.iter().try_for_each(|lines| report.verified(lines.clone()))?;
            }
            for line in
                told.lines.iter().flatten().filter(|_| options.runs()).filter(|line| verify::is_silent(line))
            {
                let (name, object) = (&line.name, printable(&line.object));
                notices::say(&format!("{name} {object} was not tested: {}", line.seen));
            }
            match told.lines.as_deref().and_then(verify::leak) {
                Some(error) => Err(error),
                None if options.runs() => Ok(()),
                None => Err(Error::new("verify", "the test is over, and nothing is to run")),
            }
        }
        Event::Executed => {
            tracing::info!(after = ?started.elapsed(), "the provider runs");
            told.status.executed();
            Ok(())
        }
        Event::Gone { is_told } => {
            // Whoever has told the run to end waits for the grace, as for the provider.
            let patience = if is_told { policy.cell.timeout_grace } else { SWEEP };
            let deadline = Instant::now().checked_add(patience);
            let mut go_on =
                || !signals::is_told_to_end() && deadline.is_none_or(|deadline| Instant::now() < deadline);
            swept = sweep.take().map(|sweep| sweep.finish(&mut go_on)).unwrap_or_default();
            Ok(())
        }
    });
    Ok((ended, swept))
}

/// Says what is being done, to who wants to know it.
fn announce(plan: &Plan, cell: &Started) {
    tracing::info!(steps = plan.init.len() + plan.provider.len(), init = cell.pid, "the cell is being built");
    for hidden in &plan.hidden {
        let view = hidden.view.as_deref().map(printable);
        tracing::info!(by = hidden.by.name(), view, "hidden: {}", printable(&hidden.path));
    }
    plan.exposed.iter().for_each(|path| tracing::info!("exposed: {}", printable(path)));
    plan.init
        .iter()
        .chain(&plan.provider)
        .for_each(|step| tracing::debug!("{}", printable(&step.to_string())));
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

/// What to begin without where the host refuses the clone, in this order: the
/// cgroup namespace holds least, and neither goes where the other was the cause.
const REFUSALS: [&[Layer]; 3] = [&[Layer::Cgroup], &[Layer::Network], &[Layer::Cgroup, Layer::Network]];

/// Takes the namespaces that the host may lack off the next plan, where the
/// policy allows that. What the kernel could not do just now, it does not lack.
fn waive_namespaces(policy: &Policy, host: &mut Host, error: Error) -> Result<(), Error> {
    use Errno::{EINVAL, ENOSPC, ENOSYS, EPERM, EUSERS};
    let is_asked = |layer: &Layer| match layer {
        Layer::Network => policy.network.mode == NetworkMode::None,
        _ => true,
    };
    let may_go = |layer: &Layer| {
        let require = &policy.require;
        is_asked(layer) && require.allow_missing.contains(layer) && !require.without.contains(layer)
    };
    let tried = REFUSALS.iter().position(|layers| *layers == host.refused).map_or(0, |tried| tried + 1);
    let next = REFUSALS[tried..].iter().find(|layers| layers.iter().all(may_go));
    match (error.errno, next) {
        (Some(EINVAL | ENOSPC | ENOSYS | EPERM | EUSERS), Some(layers)) => host.refused = layers.to_vec(),
        _ => return Err(error),
    }
    Ok(())
}

/// Clones the child; on this side, returns what stays with it.
fn start(plan: &Plan, launch: &Launch, stdio: &Stdio) -> Result<Started, Error> {
    let ids = launch.options.ids;
    let cannot = |what: &str, errno: Errno| explain::with_limit(Error::new("launch", what).errno(errno));
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
        cgroup: launch.leaf.map_or(-1, Leaf::procs),
        probe: Some(plan.probes.len())
            .filter(|count| *count > 0)
            .map(|_| Shared::new())
            .transpose()
            .map_err(|errno| cannot("no memory can be shared", errno))?,
        network: Cell::new(-1),
        terminal: Cell::new(-1),
    };
    // The child opens /proc/self/uid_map, which the kernel gives to root where
    // the launcher's binary is not readable.
    credentials::set_dumpable(true).map_err(|failure| cannot("prctl", failure.errno))?;
    // None may reach the child before it has forgotten the launcher's handlers.
    signal::block_all().map_err(|failure| cannot("signals cannot be blocked", failure.errno))?;
    let namespaces = plan.flags();
    let side = into_namespaces(namespaces);
    if matches!(side, Ok(Side::Child)) {
        child::run(&child);
    }
    let Side::Parent { pid, pidfd } = side.map_err(|failure| explain::namespaces(plan, failure))? else {
        unreachable!("the child does not return");
    };
    let signals = signals::open().map_err(|errno| cannot("signals cannot be read", errno));
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
