//! What will be done: an ordered list of steps, made from a policy and the
//! facts about the host without touching either.

pub mod landlock;
mod limits;
pub mod own_filter;
mod probe;
mod program;
pub mod render;
pub mod seccomp;
pub mod step;
mod sysctls;
mod tree;
mod waivers;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::Error;
use crate::host::Host;
use crate::policy::{Layer, Mode, NetworkMode, Origin, Policy, Umask};
use crate::sys::landlock::Handled;
pub use probe::Probe;
pub use step::{IdFile, Stage, Step, Text};
pub use tree::{DEVICES, Hidden, Means, PROC_MASKS, paths, to_list};
pub use waivers::{Reason, Waiver};
use waivers::{stands, waive};

/// What is to be run, beside the policy.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The provider's command and its arguments.
    pub command: Vec<OsString>,
    /// The launcher's environment, for what the policy passes on.
    pub environment: BTreeMap<OsString, OsString>,
    /// Descriptors that the provider keeps beside 0-2.
    pub keep: Vec<i32>,
    /// Whether the provider waits at the gate before exec.
    pub gate: bool,
    /// Whether the finished cell is tested from within.
    pub test: bool,
    /// Whether one of the standard streams is a terminal.
    pub terminal: bool,
    /// Whether a nested cell has a cgroup of its own.
    pub cgroup: bool,
    /// The launcher's own umask, where the policy passes it on.
    pub umask: u32,
}

/// An ordered list of steps, and the program that stands at its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Plan {
    /// The format of this document.
    pub version: u32,
    /// A plan says what would be done, not what was.
    pub verified: bool,
    /// Which sandbox the provider lives in.
    pub mode: Mode,
    /// The namespaces that the clone makes.
    pub namespaces: Vec<Namespace>,
    /// What init does.
    pub init: Vec<Step>,
    /// What the provider's process does before it becomes the provider.
    pub provider: Vec<Step>,
    /// Where the program may be, in the order to try.
    pub candidates: Vec<Text>,
    /// Its arguments.
    pub arguments: Vec<Text>,
    /// Its environment, as `KEY=VALUE`; only the names are printed.
    #[serde(serialize_with = "names_of")]
    #[schemars(with = "Vec<String>")]
    pub environment: Vec<Text>,
    /// The layers that the host lacks or the user does not want.
    pub waived: Vec<Waiver>,
    /// What a layer holds alone where two should.
    pub notes: Vec<String>,
    /// How each hidden path is hidden.
    pub hidden: Vec<Hidden>,
    /// The run's own parts of the instance.
    pub exposed: Vec<String>,
    /// What the launcher has to make on the host before the plan is whole.
    #[serde(skip)]
    pub prepare: Vec<Prepare>,
    /// The directory that an overlay of the workspace needs beside it, and that
    /// the launcher removes again.
    #[serde(skip)]
    pub work_directory: Option<PathBuf>,
    /// What the test from within asks; added by the launcher, which plays a part in it.
    #[serde(skip)]
    pub probes: Vec<Probe>,
}

/// Something that the launcher makes on the host, as the run's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// Where.
    pub path: PathBuf,
    /// What.
    pub made: Made,
    /// Who wants it.
    pub origin: Origin,
}

/// What the launcher makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// A directory, mode 0700.
    Directory,
    /// An empty file, mode 0600.
    File,
    /// A directory of an overlay's own, which goes with the cell.
    WorkDirectory,
}

impl Prepare {
    fn new(path: &Path, made: Made, origin: &Origin) -> Prepare {
        Prepare { path: path.to_owned(), made, origin: origin.clone() }
    }
}

/// A namespace of the cell's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each is named as in namespaces(7)")]
pub enum Namespace {
    User,
    Mount,
    Pid,
    Ipc,
    Uts,
    Cgroup,
    Network,
}

impl Namespace {
    /// Its flag for clone(2).
    pub fn flag(self) -> i32 {
        match self {
            Namespace::User => libc::CLONE_NEWUSER,
            Namespace::Mount => libc::CLONE_NEWNS,
            Namespace::Pid => libc::CLONE_NEWPID,
            Namespace::Ipc => libc::CLONE_NEWIPC,
            Namespace::Uts => libc::CLONE_NEWUTS,
            Namespace::Cgroup => libc::CLONE_NEWCGROUP,
            Namespace::Network => libc::CLONE_NEWNET,
        }
    }

    /// Its name, as in `/proc/PID/ns`.
    pub fn name(self) -> &'static str {
        match self {
            Namespace::User => "user",
            Namespace::Mount => "mnt",
            Namespace::Pid => "pid",
            Namespace::Ipc => "ipc",
            Namespace::Uts => "uts",
            Namespace::Cgroup => "cgroup",
            Namespace::Network => "net",
        }
    }
}

impl Plan {
    /// What the clone is asked for: every namespace that no step makes.
    pub fn flags(&self) -> i32 {
        let made_by = |namespace: &Namespace| match namespace {
            Namespace::Cgroup => Some(Step::NewCgroupNamespace),
            Namespace::Network => Some(Step::StartNetwork),
            _ => None,
        };
        let has_step = |one: &&Namespace| made_by(one).is_some_and(|step| self.init.contains(&step));
        let asked = self.namespaces.iter().filter(|one| !has_step(one));
        asked.fold(0, |flags, namespace| flags | namespace.flag())
    }

    /// The step at a place that a record names.
    pub fn step(&self, index: usize) -> Option<&Step> {
        self.init.iter().chain(&self.provider).nth(index)
    }

    /// Whether all that it needs is there: nothing waits to be made first.
    pub fn is_whole(&self) -> bool {
        self.prepare.is_empty()
    }

    /// Whether a step is of the network namespace that is made beside init.
    pub fn is_beside(&self, index: usize) -> bool {
        self.step(index).is_some_and(|step| {
            matches!(step, Step::StartNetwork | Step::EnterNetwork) || *step == sysctls::last_pid()
        })
    }

    /// The place of the overlay that a step mounts, or makes a whiteout for.
    pub fn overlay(&self, index: usize) -> Option<PathBuf> {
        let mut behind =
            self.init.iter().skip(index).skip_while(|step| matches!(step, Step::MakeWhiteout { .. }));
        let of_an_overlay = matches!(self.init.get(index)?, Step::MakeWhiteout { .. } | Step::Mount { .. });
        match behind.find(|step| matches!(step, Step::Mount { .. }))? {
            Step::Mount { filesystem, path, .. } if filesystem.to_bytes() == b"overlay" && of_an_overlay => {
                Some(Path::new("/").join(OsStr::from_bytes(path.to_bytes())))
            }
            _ => None,
        }
    }

    /// The names of the provider's variables, without their values.
    pub fn environment_names(&self) -> Vec<String> {
        program::names(&self.environment).collect()
    }

    /// Whether a layer stands, as far as the host has it.
    pub fn has(&self, layer: Layer) -> bool {
        stands(&self.waived, layer)
    }
}

/// What a nested cell without a cgroup of its own cannot do.
const NO_CGROUP: &str = "no cgroup namespace can be made in the cell, as its root would be the launcher's own \
    cgroup: of bubblewrap, `--unshare-all` fails, and the single `--unshare-` options work";

/// Plans a run.
///
/// # Errors
///
/// Where the policy and the host do not fit each other: a source that is missing,
/// of the wrong kind or behind a link; a layer that the host lacks and nobody
/// has waived; a command that is empty.
pub fn build(policy: &Policy, host: &Host, request: &Request) -> Result<Plan, Error> {
    let waived = waive(policy, host)?;
    let stands = |layer| stands(&waived, layer);
    let network = policy.network.mode == NetworkMode::None && stands(Layer::Network);
    let with_rights = policy.mode == Mode::Sealed && stands(Layer::Landlock);
    let leaf = request.cgroup && policy.mode == Mode::Nested && stands(Layer::Cgroup);

    let mut namespaces =
        vec![Namespace::User, Namespace::Mount, Namespace::Pid, Namespace::Ipc, Namespace::Uts];
    namespaces.extend(stands(Layer::Cgroup).then_some(Namespace::Cgroup));
    namespaces.extend(network.then_some(Namespace::Network));

    let tree::Built { mounts, covers, rules, mut notes, prepare, hidden, work_directory } =
        tree::build(policy, host, with_rights)?;
    let init = init(policy, host, request, Init { network, leaf, mounts, covers })?;
    let domain = match stands(Layer::Landlock) {
        true => domain(landlock::handled(host.landlock, with_rights, stands(Layer::LandlockScope)), rules),
        false => Some(Vec::new()),
    };
    // The kernel has no word for an empty ruleset but ENOMSG.
    notes.extend(domain.is_none().then(|| NO_DOMAIN.to_owned()));
    // The last one applied has the first say, and ours lets it be applied.
    let mut filters = Vec::from_iter(stands(Layer::Seccomp).then(|| seccomp::built_in(policy)).transpose()?);
    filters.extend(seccomp::own(policy, host)?);
    let provider = provider(policy, host, request, [domain.unwrap_or_default(), filters].concat())?;
    notes.extend((policy.mode == Mode::Nested && !leaf).then(|| NO_CGROUP.to_owned()));

    let environment = program::environment(policy, request);
    Ok(Plan {
        version: 1,
        verified: false,
        mode: policy.mode,
        namespaces,
        init,
        provider,
        candidates: program::candidates(&environment, request)?,
        arguments: program::arguments(request)?,
        environment: program::entries(environment)?,
        waived,
        notes,
        hidden,
        exposed: policy.run.expose.iter().map(|expose| expose.path.display().to_string()).collect(),
        prepare,
        work_directory,
        probes: Vec::new(),
    })
}

/// What init's steps depend on beside the policy.
struct Init {
    /// Whether the cell has a network namespace.
    network: bool,
    /// Whether it has a cgroup made for it.
    leaf: bool,
    mounts: Vec<Step>,
    covers: Vec<Step>,
}

/// What PID 1 does.
fn init(policy: &Policy, host: &Host, request: &Request, cell: Init) -> Result<Vec<Step>, Error> {
    let Init { network, leaf, mounts, covers } = cell;
    let beside = network && host.beside;
    // The namespace shows the cgroup in which it was made.
    let mut steps = if leaf { vec![Step::EnterCgroup, Step::NewCgroupNamespace] } else { Vec::new() };
    steps.extend(ids(host));
    steps.push(Step::DieWithLauncher);
    steps.extend(beside.then_some(Step::StartNetwork));
    steps.push(Step::NewRoot);
    steps.extend(mounts);
    // What is written below `/proc/sys/net` is of the writer's namespace.
    steps.extend(beside.then_some(Step::EnterNetwork));
    steps.extend(sysctls::steps(policy.mode, leaf, network.then_some(host.ids.gid)));
    // The provider is process 2 all the same.
    steps.extend(beside.then(sysctls::last_pid));
    // The second layer of what Landlock refuses there.
    steps.extend((policy.mode == Mode::Sealed).then(|| Step::Seal { path: c"proc".into() }));
    steps.extend(covers);
    steps.extend([Step::Seal { path: c".".into() }, Step::PivotRoot, Step::DetachOldRoot]);
    steps.push(Step::SetHostname { name: text("hostname", &policy.cell.hostname)? });
    steps.extend((network && !beside).then_some(Step::LoopbackUp));
    steps.extend([
        Step::ResetSignals,
        Step::NewSession { terminal: request.terminal },
        Step::NewSessionKeyring,
        Step::DropCapabilities,
        Step::ClearCommandLine,
        Step::ClearDumpable,
        Step::StartProvider,
    ]);
    Ok(steps)
}

/// What PID 2 does before it becomes the provider. `seals` are the Landlock domain
/// and the filters.
fn provider(policy: &Policy, host: &Host, request: &Request, seals: Vec<Step>) -> Result<Vec<Step>, Error> {
    // Who is in init's session may lower its share of the processors by
    // /proc/self/autogroup, which Landlock and a read-only /proc refuse in sealed mode.
    // On a terminal the session must be init's, for Ctrl-Z to work.
    let leads_session = policy.mode == Mode::Nested && !request.terminal;
    let mut steps =
        vec![Step::NewProcessGroup { leads_session }, Step::SetDescriptors { keep: request.keep.clone() }];
    steps.extend(limits::steps(&policy.limits, &host.limits));
    let mask = match policy.cell.umask {
        Umask::Inherit => request.umask,
        Umask::Mask(mask) => mask,
    };
    steps.extend([
        Step::SetUmask { mask },
        Step::ChangeDirectory { path: text("workdir", workdir(policy))? },
        Step::NoNewPrivs,
    ]);
    steps.extend(seals);
    for expose in &policy.run.expose {
        steps.push(Step::MustBeReadable { path: text("exposure", &expose.path)? });
    }
    steps.extend(request.test.then_some(Step::TestFromWithin));
    steps.extend(request.gate.then_some(Step::WaitAtGate));
    steps.push(Step::Execute);
    Ok(steps)
}

/// The steps of a Landlock domain; none where it would hold nothing.
fn domain(handled: Handled, rules: Vec<Step>) -> Option<Vec<Step>> {
    let ruleset = (handled != Handled::default()).then_some(Step::CreateRuleset { handled })?;
    Some([ruleset].into_iter().chain(rules).chain([Step::RestrictSelf]).collect())
}

/// Checks what a policy says by itself, without a look at any host.
///
/// Fails where it names a filter that does not exist, and where its views and
/// exposures contradict what it hides.
pub fn check(policy: &Policy) -> Result<(), Error> {
    seccomp::built_in(policy)?;
    tree::check(policy, &Host::default())
}

/// What a nested cell without scopes is told.
const NO_DOMAIN: &str =
    "there is no Landlock domain: in mode nested it holds scopes alone, and those are waived";

/// How the cell gets its one user and one group.
fn ids(host: &Host) -> Vec<Step> {
    let crate::host::Ids { uid, gid, started_by_root } = host.ids;
    if started_by_root {
        // An id other than its own may be mapped by the launcher alone
        // (user_namespaces(7)).
        return vec![Step::AwaitIdMaps, Step::SetIds { uid, gid }];
    }
    let write = |file, content: String| Step::WriteIdMap {
        file,
        content: Text::new(content).expect("numbers hold no NUL"),
    };
    vec![
        write(IdFile::Setgroups, "deny".to_owned()),
        write(IdFile::UidMap, format!("{uid} {uid} 1")),
        write(IdFile::GidMap, format!("{gid} {gid} 1")),
    ]
}

fn workdir(policy: &Policy) -> &Path {
    let workspace = policy.workspace.as_ref().map(|workspace| &workspace.at);
    policy.cell.workdir.as_ref().or(workspace).unwrap_or(&policy.cell.home)
}

fn text(what: &'static str, string: impl AsRef<OsStr>) -> Result<Text, Error> {
    Text::new(string.as_ref().as_bytes())
        .ok_or_else(|| Error::new("policy", format!("the {what} holds a NUL byte")))
}

fn names_of<S: serde::Serializer>(environment: &[Text], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(program::names(environment))
}
