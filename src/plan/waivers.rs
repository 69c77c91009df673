//! The layers that a cell goes without, each by name.

use serde::Serialize;

use super::landlock;
use crate::error::Error;
use crate::fault;
use crate::host::Host;
use crate::policy::{Layer, Mode, NetworkMode, Policy};

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

/// Whether a layer stands, as far as the host has it.
pub(super) fn stands(waived: &[Waiver], layer: Layer) -> bool {
    waived.iter().all(|waiver| waiver.layer != layer || waiver.reason == Reason::Older)
}

/// Which layers are left out, each by name.
pub(super) fn waive(policy: &Policy, host: &Host) -> Result<Vec<Waiver>, Error> {
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
