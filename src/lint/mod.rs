//! `cellblock policy check`: known ways out of a cell that a policy leaves open.
//!
//! [`lint`] looks at a policy and at [`Facts`] alone. It goes by paths: what it
//! names is there, and what it does not name may be there all the same.

mod facts;
mod files;
mod missing;
mod places;
mod service;
mod set_gid;
mod views;

use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

pub use facts::{Facts, HarnessDirectory, Listener, Role, Unknown, Unread};
pub use missing::unused_variables;
pub use service::{Service, Socket};
pub use set_gid::SetGid;

use crate::error::{Error, printable};
use crate::git::fate::{Fate, Protected};
use crate::host::Host;
use crate::policy::secret::{is_model_key, looks_secret};
use crate::policy::{Layer, Mode, NetworkMode, Policy, ViewRole};

/// One known way out of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Warning {
    /// Which kind, in a word that stays the same: `socket-in-view`.
    pub name: &'static str,
    /// The place in the policy, or the key.
    pub origin: String,
    /// What is open.
    pub what: String,
    /// Why that matters.
    pub why: String,
    /// What to write or do instead.
    pub remedy: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Warning { name, origin, what, why, remedy } = self;
        Error::new(name, format!("{origin}: {what}")).cause(why).remedy(remedy).fmt(f)
    }
}

/// What `policy check --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report<'a> {
    /// The format of this document: 1.
    pub version: u32,
    /// Whether there is no warning.
    pub ok: bool,
    /// The warnings.
    pub warnings: &'a [Warning],
    /// The protected paths of a workspace that takes writes.
    pub protected: Vec<Protected>,
}

impl Report<'_> {
    /// With the version of today.
    pub fn new(warnings: &[Warning], protected: Vec<Protected>) -> Report<'_> {
        Report { version: 1, ok: warnings.is_empty(), warnings, protected }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let warnings: Vec<String> =
            self.warnings.iter().map(|warning| format!("warning: {warning}")).collect();
        f.write_str(if self.ok { "ok" } else { "" })?;
        f.write_str(&warnings.join("\n\n"))?;
        let mut last = None;
        for Protected { fate, path } in &self.protected {
            if last.replace(*fate) != Some(*fate) {
                f.write_str(match fate {
                    Fate::Held => "\n\nheld: the cell cannot change or make these protected paths",
                    Fate::Swept => {
                        "\n\nswept: what the run makes at these protected paths is removed after it"
                    }
                    Fate::Told => {
                        "\n\ntold: git tracks these protected paths; a run that changes one says so"
                    }
                })?;
            }
            write!(f, "\n  {}", printable(path))?;
        }
        Ok(())
    }
}

/// What would keep a run from starting, then the ways out that are known, those
/// of files first.
///
/// What the policy accepts by name is left out.
pub fn lint(policy: &Policy, facts: &Facts) -> Vec<Warning> {
    let mut warnings = missing::warnings(policy, facts);
    warnings.extend(files::warnings(policy, facts));
    warnings.extend(in_hosts_network(policy).then(|| network(policy, facts)).into_iter().flatten());
    warnings.extend(hidden(policy, facts));
    warnings.extend(set_gid::warnings(policy, facts));
    warnings.extend(groups(facts));
    warnings.extend(secrets(policy));
    warnings.extend(nested(policy));
    warnings.extend(devices(policy));
    warnings.extend(layers(policy));
    warnings.extend(unread(policy, facts));
    retain_unaccepted(policy, &mut warnings);
    warnings
}

fn retain_unaccepted(policy: &Policy, warnings: &mut Vec<Warning>) {
    let accepts = |name: &str| policy.accept.iter().any(|accepted| accepted == name);
    warnings.retain(|warning| match warning.name {
        // What listens on loopback is a part of the host's network.
        "loopback-listener" => !accepts("loopback-listener") && !accepts("host-network"),
        name => !accepts(name),
    });
}

/// What a run itself warns of: what gives the most away, as far as it can be told
/// by paths and without a look at sockets and tables.
pub fn at_start(policy: &Policy, host: &Host, set_gid: Option<SetGid>) -> Vec<Warning> {
    const OF_FILES: [&str; 4] =
        ["home-in-view", "credentials-in-view", "writable-startup", "harness-in-view"];
    if policy.views().next().is_none() && policy.run.hide.is_empty() {
        return Vec::new();
    }
    let facts = Facts { set_gid, ..Facts::at_start(policy, host) };
    let mut warnings = files::warnings(policy, &facts);
    warnings.retain(|warning| OF_FILES.contains(&warning.name));
    warnings.extend(hidden(policy, &facts));
    warnings.extend(set_gid::warnings(policy, &facts));
    retain_unaccepted(policy, &mut warnings);
    warnings
}

fn warning(
    name: &'static str,
    origin: impl fmt::Display,
    what: impl Into<String>,
    why: impl Into<String>,
    remedy: impl Into<String>,
) -> Warning {
    Warning { name, origin: origin.to_string(), what: what.into(), why: why.into(), remedy: remedy.into() }
}

fn in_hosts_network(policy: &Policy) -> bool {
    policy.network.mode == NetworkMode::Host || policy.require.without.contains(&Layer::Network)
}

fn network(policy: &Policy, facts: &Facts) -> Vec<Warning> {
    let origin = match policy.network.mode {
        NetworkMode::Host => "network.mode",
        NetworkMode::None => "require.without",
    };
    let on_loopback =
        |listener: &&Listener| listener.address.is_loopback() || listener.address.is_unspecified();
    let listeners: Vec<String> =
        facts.listeners.iter().filter(on_loopback).map(Listener::to_string).collect();
    let listening = (!listeners.is_empty()).then(|| {
        warning(
            "loopback-listener",
            origin,
            format!("in the host's network the cell reaches {}", listed(&listeners)),
            "what listens on loopback often trusts whoever can connect, the harness's own server among it",
            "leave the network at `none`, or let these ask for a secret that the cell does not have",
        )
    });
    let whole = (policy.network.mode == NetworkMode::Host).then(|| {
        warning(
            "host-network",
            origin,
            "the cell is in the host's network",
            "it reaches every address and port that the host reaches, services on loopback among them, and can \
             send there what it reads; `verify` takes that for a leak",
            "leave the network at `none`, or accept it (accept = [\"host-network\"])",
        )
    });
    let metadata = facts.cloud.map(|cloud| {
        warning(
            "cloud-metadata",
            origin,
            format!("this is a machine of {cloud}, and the cell reaches its metadata at 169.254.169.254"),
            "it gives the machine's own credentials to whoever asks",
            "leave the network at `none`, or refuse that address to this user in the host's firewall",
        )
    });
    whole.into_iter().chain(listening).chain(metadata).collect()
}

/// A mistyped path hides nothing. A profile names what only some instances have: of
/// its paths those matter that a view would show.
fn hidden<'a>(policy: &'a Policy, facts: &'a Facts) -> impl Iterator<Item = Warning> + 'a {
    let views = policy.views().filter(|view| view.role.is_bind() || view.role == ViewRole::Workspace);
    let views: Vec<&Path> = views.map(|view| view.source).collect();
    let missing = policy.run.hide.iter().filter(|hidden| facts.missing.contains(&hidden.path));
    // One that an exposure is to be made in has the name that was meant.
    let is_used = |path: &Path| policy.run.expose.iter().any(|expose| expose.path.starts_with(path));
    let missing = missing.filter(move |hidden| !is_used(&hidden.path));
    let is_shown = move |path: &Path| views.iter().any(|view| path.starts_with(view));
    let meant = missing.filter(move |hidden| !hidden.origin.is_of_a_profile() || is_shown(&hidden.path));
    meant.map(|hidden| {
        warning(
            "hidden-missing",
            &hidden.origin,
            format!("{} is hidden and not there", hidden.path.display()),
            "a name that is mistyped hides nothing, and what was meant may show",
            "correct it, or leave it if it is to be made later",
        )
    })
}

fn groups(facts: &Facts) -> Option<Warning> {
    let kept: Vec<&str> =
        places::GROUPS.into_iter().filter(|name| facts.groups.iter().any(|group| group == name)).collect();
    (!kept.is_empty()).then(|| {
        warning(
            "group-keeps-power",
            "caller",
            format!("the cell stays in {} {}", plural(&kept, "the group", "the groups"), kept.join(", ")),
            "a user namespace lets nobody drop a group: files and sockets of a view that are open to the group \
             are open to the cell",
            "start as root with --run-as UID:GID, which drops all groups but that one, or from an account in \
             none of these",
        )
    })
}

fn secrets(policy: &Policy) -> Vec<Warning> {
    let environment = &policy.environment;
    let passed: Vec<&str> = environment.pass.iter().map(String::as_str).collect();
    let set: Vec<&str> = environment.set.keys().map(String::as_str).collect();
    [("environment.pass", passed), ("environment.set", set)]
        .into_iter()
        .filter_map(|(origin, mut names)| {
            // Without the key of its own model no provider works.
            names.retain(|name| looks_secret(name) && !is_model_key(name));
            let (are, them) = (plural(&names, "is", "are"), plural(&names, "it", "them"));
            (!names.is_empty()).then(|| {
                warning(
                    "secret-variable",
                    origin,
                    format!("{} {are} in the provider's environment", names.join(", ")),
                    format!(
                        "everything in the cell can read {them}, and send {them} wherever it can write or connect"
                    ),
                    "give the run a secret of its own that may do little and not for long, or none",
                )
            })
        })
        .collect()
}

fn devices(policy: &Policy) -> impl Iterator<Item = Warning> {
    policy.filesystem.devices.iter().map(|device| {
        warning(
            "device-granted",
            &device.origin,
            format!("the cell may open and control {}", device.path.display()),
            "its driver is a part of the host's kernel that answers the cell directly, and may reach other \
             runs' memory or work on the same device",
            "leave it out, or give the run a device that nothing else uses",
        )
    })
}

fn nested(policy: &Policy) -> Option<Warning> {
    (policy.mode == Mode::Nested).then(|| {
        warning(
            "nested-mode",
            "mode",
            "the cell may make user namespaces and mounts, and Landlock grants on no file",
            "in a namespace of its own a process has every capability over a kernel that trusts it there; a \
             channel's lock can be opened and locked, and its FIFO read",
            "write `mode = \"sealed\"` and switch the provider's own sandbox off",
        )
    })
}

fn layers(policy: &Policy) -> Vec<Warning> {
    let require = &policy.require;
    let off = require.without.iter().map(|&layer| {
        let what = format!("the layer {} is turned off", layer.name());
        warning("layer-off", "require.without", what, not_held(layer), "take it out of `without`")
    });
    let optional =
        require.allow_missing.iter().filter(|layer| !require.without.contains(layer)).map(|&layer| {
            let what = format!("a host without the layer {} runs the cell all the same", layer.name());
            warning(
                "layer-optional",
                "require.allow_missing",
                what,
                not_held(layer),
                "take it out of `allow_missing`",
            )
        });
    off.chain(optional).collect()
}

/// A check that could not be made has not passed.
fn unread<'a>(policy: &'a Policy, facts: &'a Facts) -> impl Iterator<Item = Warning> + 'a {
    let matters = |unread: &&Unread| match unread.unknown {
        Unknown::Ports | Unknown::Cloud => in_hosts_network(policy),
        Unknown::Sockets | Unknown::Home | Unknown::Groups => true,
    };
    facts.unread.iter().filter(matters).map(|Unread { path, why, unknown }| {
        let hidden = match unknown {
            Unknown::Sockets => "which sockets in a view somebody listens on",
            Unknown::Ports => "which ports the cell reaches",
            Unknown::Cloud => "whether the cell reaches the metadata of a cloud",
            Unknown::Home => "whether the home of the run's user is in a view",
            Unknown::Groups => "whether the cell keeps a group that gives power over the host",
        };
        warning(
            "host-unread",
            "host",
            format!("{path} cannot be read: {why}"),
            format!("it is not known {hidden}"),
            "check the policy where that can be read, or look for it by hand",
        )
    })
}

/// What is open without a layer.
fn not_held(layer: Layer) -> &'static str {
    match layer {
        Layer::Landlock => {
            "without it a channel's lock can be opened and locked and its FIFO read, directories that lead to a \
             view can be listed, and nothing stands behind the mounts"
        }
        Layer::LandlockScope => {
            "without it a cell in the host's network reaches abstract sockets of the host"
        }
        Layer::Seccomp => {
            "without it nothing refuses io_uring, userfaultfd, vsock and 32-bit calls, and set-id files can be \
             left behind"
        }
        Layer::Network => "without it the cell reaches every port and abstract socket of the host",
        Layer::Cgroup => "without it /proc/self/cgroup names the host's cgroup, and often the job",
    }
}

/// Some of many, with the number of the others.
fn listed(names: &[String]) -> String {
    const SOME: usize = 8;
    match names.len() {
        0..=SOME => names.join(", "),
        count => format!("{} and {} more", names[..SOME].join(", "), count - SOME),
    }
}

fn listed_paths<'a>(paths: impl IntoIterator<Item = &'a Path>) -> String {
    listed(&paths.into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>())
}

fn plural<'a, T>(of: &[T], one: &'a str, many: &'a str) -> &'a str {
    if of.len() == 1 { one } else { many }
}
