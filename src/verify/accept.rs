//! Which leaks a warning of `policy check` explains, so that accepting the
//! warning by name accepts them too.

use super::{Line, Verdict, checks};
use crate::plan::{Plan, Reason};
use crate::policy::{Layer, Mode, NetworkMode, Policy};

/// The line, as `accepted` where the policy accepts a warning that explains it.
/// What is granted and does not work is never accepted, nor is a canary.
pub(super) fn line(policy: &Policy, plan: &Plan, line: Line) -> Line {
    let warning = match line.verdict {
        Verdict::Leak => of_leak(policy, plan, &line.name),
        Verdict::Untestable if line.name == "run:hidden" && line.seen == checks::MISSING => {
            Some("hidden-missing")
        }
        _ => None,
    };
    match warning.filter(|warning| policy.accept.iter().any(|accepted| accepted == warning)) {
        Some(warning) => {
            Line { verdict: Verdict::Accepted, seen: format!("{}: accepted by {warning}", line.seen), ..line }
        }
        None => line,
    }
}

fn of_leak(policy: &Policy, plan: &Plan, name: &str) -> Option<&'static str> {
    let is_in_hosts_network = policy.network.mode == NetworkMode::Host;
    match name {
        "environment:secret" => Some("secret-variable"),
        "view:socket" => Some("socket-in-view"),
        "channel:ungranted" if policy.mode == Mode::Nested => Some("nested-mode"),
        "harness:tcp" | "harness:udp" | "namespace:net" if is_in_hosts_network => Some("host-network"),
        name => {
            let layer = layer(name)?;
            let waiver = plan.waived.iter().find(|waiver| waiver.layer == layer)?;
            Some(if waiver.reason == Reason::Without { "layer-off" } else { "layer-optional" })
        }
    }
}

/// The layer that alone keeps a line from being a leak.
fn layer(name: &str) -> Option<Layer> {
    Some(match name {
        "layer:landlock" | "landlock:root-listing" | "channel:lock-read" | "channel:fifo-read" => {
            Layer::Landlock
        }
        "layer:landlock-scope" | "harness:abstract-socket" => Layer::LandlockScope,
        "layer:seccomp" | "seccomp:refused-call" | "seccomp:mode" | "seccomp:filters" => Layer::Seccomp,
        "layer:network" | "harness:tcp" | "harness:udp" | "namespace:net" => Layer::Network,
        "layer:cgroup" | "namespace:cgroup" => Layer::Cgroup,
        _ => return None,
    })
}
