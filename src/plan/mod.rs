//! What will be done: an ordered list of steps, made from a policy and the
//! facts about the host without touching either.

pub mod landlock;
mod limits;
pub mod own_filter;
mod probe;
pub mod render;
pub mod seccomp;
pub mod step;
mod sysctls;
mod tree;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::Error;
use crate::fault;
use crate::host::Host;
use crate::policy::{Entry, Layer, Mode, NetworkMode, Origin, PATH, Policy, Umask};
use crate::sys::Errno;
use crate::sys::landlock::Handled;
pub use probe::Probe;
pub use step::{IdFile, Stage, Step, Text};
pub use tree::{DEVICES, Hidden, Means, PROC_MASKS, paths, to_list};

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

/// A layer that does not stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Waiver {
    /// Which.
    pub layer: Layer,
    /// Why.
    pub reason: Reason,
}

/// Why a layer does not stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The host lacks it and the policy allows that.
    Missing,
    /// The host has less of it than the policy requires, and the policy allows
    /// that; what there is holds.
    Older,
    /// The user turned it off.
    Without,
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
            matches!(step, Step::StartNetwork | Step::EnterNetwork) || *step == sysctls::last_pid("1")
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
        names(&self.environment).collect()
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

    let mut namespaces =
        vec![Namespace::User, Namespace::Mount, Namespace::Pid, Namespace::Ipc, Namespace::Uts];
    namespaces.extend(stands(Layer::Cgroup).then_some(Namespace::Cgroup));
    namespaces.extend(network.then_some(Namespace::Network));

    let tree = tree::build(policy, host, with_rights)?;
    let leaf = request.cgroup && policy.mode == Mode::Nested && stands(Layer::Cgroup);
    // The namespace shows the cgroup in which it was made.
    let mut init = if leaf { vec![Step::EnterCgroup, Step::NewCgroupNamespace] } else { Vec::new() };
    init.extend(ids(host));
    init.push(Step::DieWithLauncher);
    let beside = network && host.beside;
    init.extend(beside.then_some(Step::StartNetwork));
    init.push(Step::NewRoot);
    init.extend(tree.mounts);
    // What is written below `/proc/sys/net` is of the writer's namespace.
    init.extend(beside.then_some(Step::EnterNetwork));
    init.extend(sysctls::steps(policy.mode, leaf, network.then_some(host.ids.gid)));
    // The provider is process 2 all the same.
    init.extend(beside.then(|| sysctls::last_pid("1")));
    if policy.mode == Mode::Sealed {
        // The second layer of what Landlock refuses there.
        init.push(Step::Seal { path: c"proc".into() });
    }
    init.extend(tree.covers);
    init.extend([Step::Seal { path: c".".into() }, Step::PivotRoot, Step::DetachOldRoot]);
    init.push(Step::SetHostname { name: text("hostname", &policy.cell.hostname)? });
    init.extend((network && !beside).then_some(Step::LoopbackUp));
    init.extend([
        Step::ResetSignals,
        Step::NewSession { terminal: request.terminal },
        Step::NewSessionKeyring,
        Step::DropCapabilities,
        Step::ClearCommandLine,
        Step::ClearDumpable,
        Step::StartProvider,
    ]);

    // Who is in init's session may lower its share of the processors by
    // /proc/self/autogroup, which Landlock and a read-only /proc refuse in sealed mode.
    // On a terminal the session must be init's, for Ctrl-Z to work.
    let leads_session = policy.mode == Mode::Nested && !request.terminal;
    let mut provider =
        vec![Step::NewProcessGroup { leads_session }, Step::SetDescriptors { keep: request.keep.clone() }];
    provider.extend(limits::steps(&policy.limits, &host.limits));
    provider.extend([
        Step::SetUmask {
            mask: match policy.cell.umask {
                Umask::Inherit => request.umask,
                Umask::Mask(mask) => mask,
            },
        },
        Step::ChangeDirectory { path: text("workdir", workdir(policy))? },
        Step::NoNewPrivs,
    ]);
    let mut notes = tree.notes;
    if stands(Layer::Landlock) {
        let handled = landlock::handled(host.landlock, with_rights, stands(Layer::LandlockScope));
        if handled == Handled::default() {
            // The kernel has no word for an empty ruleset but ENOMSG.
            notes.push(NO_DOMAIN.to_owned());
        } else {
            provider.push(Step::CreateRuleset { handled });
            provider.extend(tree.rules);
            provider.push(Step::RestrictSelf);
        }
    }
    // The last one laid on has the first say, and ours lets it be laid on.
    provider.extend(stands(Layer::Seccomp).then(|| built_in_filter(policy)).transpose()?);
    provider.extend(own_filter(policy, host)?);
    for expose in &policy.run.expose {
        provider.push(Step::MustBeReadable { path: text("exposure", &expose.path)? });
    }
    provider.extend(request.test.then_some(Step::TestFromWithin));
    provider.extend(request.gate.then_some(Step::WaitAtGate));
    provider.push(Step::Execute);

    if policy.mode == Mode::Nested && !leaf {
        notes.push(NO_CGROUP.to_owned());
    }
    let environment = environment(policy, request);
    Ok(Plan {
        version: 1,
        verified: false,
        mode: policy.mode,
        namespaces,
        init,
        provider,
        candidates: candidates(&environment, request)?,
        arguments: request
            .command
            .iter()
            .map(|argument| text("command", argument))
            .collect::<Result<_, _>>()?,
        environment: environment
            .into_iter()
            .map(|(mut entry, value)| {
                entry.push("=");
                entry.push(value);
                text("environment", entry)
            })
            .collect::<Result<_, _>>()?,
        waived,
        notes,
        hidden: tree.hidden,
        exposed: policy.run.expose.iter().map(|expose| expose.path.display().to_string()).collect(),
        prepare: tree.prepare,
        work_directory: tree.work_directory,
        probes: Vec::new(),
    })
}

/// Checks what a policy says by itself, without a look at any host.
///
/// Fails where it names a filter that does not exist, and where its views and
/// exposures contradict what it hides.
pub fn check(policy: &Policy) -> Result<(), Error> {
    built_in_filter(policy)?;
    tree::check(policy, &Host::default())
}

/// What a nested cell without scopes is told.
const NO_DOMAIN: &str =
    "there is no Landlock domain: in mode nested it holds scopes alone, and those are waived";

fn stands(waived: &[Waiver], layer: Layer) -> bool {
    waived.iter().all(|waiver| waiver.layer != layer || waiver.reason == Reason::Older)
}

/// Which layers are left out, each by name.
fn waive(policy: &Policy, host: &Host) -> Result<Vec<Waiver>, Error> {
    let require = &policy.require;
    let without = |&layer: &Layer| Waiver { layer, reason: Reason::Without };
    let mut waived: Vec<Waiver> = require.without.iter().map(without).collect();
    let mut missing = |layer: Layer, reason: Reason, error: Error| -> Result<(), Error> {
        if waived.iter().any(|waiver| waiver.layer == layer) {
            return Ok(());
        }
        // Scopes are a part of Landlock.
        let is_allowed = |name| require.allow_missing.contains(&name);
        let as_a_part = layer == Layer::LandlockScope && is_allowed(Layer::Landlock);
        if !(is_allowed(layer) || as_a_part) {
            return Err(error);
        }
        waived.push(Waiver { layer, reason });
        Ok(())
    };

    for &layer in &host.refused {
        let error = Error::new("namespaces", format!("the {} namespace is refused", layer.name()));
        missing(layer, Reason::Missing, error)?;
    }
    if !host.seccomp {
        let error = Error::new("seccomp", "the kernel has no system call filters")
            .cause("it is built without them, or a filter around the launcher answers so")
            .remedy("use a kernel with CONFIG_SECCOMP_FILTER, or write `allow_missing = [\"seccomp\"]`");
        missing(Layer::Seccomp, Reason::Missing, error)?;
    }
    let (has, needed) = (host.landlock, require.landlock.max(1));
    if has == 0 {
        missing(Layer::Landlock, Reason::Missing, fault::no_landlock(host.no_landlock))?;
    } else if has < needed {
        missing(Layer::Landlock, Reason::Older, fault::old_landlock(has, needed))?;
    }
    // Without scopes a cell in the host's network reaches abstract sockets, and
    // a nested one has no Landlock at all.
    let why = if policy.mode == Mode::Nested { "mode nested" } else { "the host's network" };
    let needs_scopes = policy.mode == Mode::Nested
        || policy.network.mode == NetworkMode::Host
        || require.without.contains(&Layer::Network)
        || host.refused.contains(&Layer::Network);
    if has > 0 && has < landlock::SCOPES && needs_scopes && !require.without.contains(&Layer::Landlock) {
        missing(Layer::LandlockScope, Reason::Missing, fault::no_scopes(has, why))?;
    }
    Ok(waived)
}

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

fn built_in_filter(policy: &Policy) -> Result<Step, Error> {
    let name = policy.seccomp.filter.as_deref().unwrap_or(seccomp::default_name(policy.mode));
    let program = seccomp::program(name).ok_or_else(|| {
        let known: Vec<&str> = seccomp::FILTERS.iter().map(|(name, _)| *name).collect();
        let what = format!("--seccomp or seccomp.filter: there is no filter `{name}`");
        Error::new("policy", what)
            .remedy(format!("write one of: {}, or a path such as ./{name}.bpf", known.join(", ")))
    })?;
    Ok(Step::InstallFilter { name: name.to_owned(), program: program.into() })
}

fn own_filter(policy: &Policy, host: &Host) -> Result<Option<Step>, Error> {
    let (Some(Entry { path, origin }), Some(content)) = (&policy.seccomp.file, &host.own_filter) else {
        return Ok(None);
    };
    let refuse = |what: String| Error::new("policy", format!("{origin}: {}: {what}", path.display()));
    let content = content.as_ref().map_err(|&errno| {
        let cause = match errno {
            Errno::EOPNOTSUPP => "it is a terminal or another device",
            Errno::ETIMEDOUT => "it is a pipe, and nobody writes to it",
            Errno::EFBIG => "it is larger than a megabyte",
            _ => "the run's user cannot read it, or it is not there",
        };
        let error = refuse("it cannot be read".into()).errno(errno).cause(cause);
        error.remedy("name a readable file of at most a megabyte")
    })?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let program = own_filter::read(content, is_json).map_err(|error| refuse(error.to_string()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Some(Step::InstallFilter { name, program: program.into() }))
}

/// Five variables, then what the policy passes on, then what it sets.
fn environment(policy: &Policy, request: &Request) -> BTreeMap<OsString, OsString> {
    let mut environment: BTreeMap<OsString, OsString> = [
        ("PATH", PATH.as_ref()),
        ("HOME", policy.cell.home.as_os_str()),
        ("TMPDIR", "/tmp".as_ref()),
        ("LANG", "C.UTF-8".as_ref()),
        ("USER", "agent".as_ref()),
    ]
    .into_iter()
    .map(|(key, value)| (key.into(), value.to_owned()))
    .collect();
    // A program on a terminal cannot draw there without knowing its kind.
    let on_a_terminal = request.terminal.then_some("TERM");
    for key in on_a_terminal.into_iter().chain(policy.environment.pass.iter().map(String::as_str)) {
        if let Some(value) = request.environment.get(OsStr::new(key)) {
            environment.insert(key.into(), value.clone());
        }
    }
    environment.extend(policy.environment.set.iter().map(|(key, value)| (key.into(), value.into())));
    environment
}

/// Where execvp(3) would look for the command, in the cell.
fn candidates(environment: &BTreeMap<OsString, OsString>, request: &Request) -> Result<Vec<Text>, Error> {
    let Some(command) = request.command.first() else {
        return Err(Error::new("command", "no command was given").remedy("write it behind `--`"));
    };
    if command.is_empty() {
        return Err(Error::new("command", "the command is an empty string")
            .cause("often a shell variable in quotes that is not set")
            .remedy("write the provider's command behind `--`")
            .exit_code(127));
    }
    if command.as_bytes().contains(&b'/') {
        return Ok(vec![text("command", command)?]);
    }
    let path = environment.get(OsStr::new("PATH")).cloned().unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .map(|directory: PathBuf| text("command", directory.join(command)))
        .collect()
}

fn text(what: &'static str, string: impl AsRef<OsStr>) -> Result<Text, Error> {
    Text::new(string.as_ref().as_bytes())
        .ok_or_else(|| Error::new("policy", format!("the {what} holds a NUL byte")))
}

fn names_of<S: serde::Serializer>(environment: &[Text], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(names(environment))
}

/// The names alone: a value may be a secret, and is told nowhere.
fn names(environment: &[Text]) -> impl Iterator<Item = String> {
    environment.iter().map(|entry| {
        let entry = entry.to_string_lossy();
        entry.split('=').next().unwrap_or_default().to_owned()
    })
}
