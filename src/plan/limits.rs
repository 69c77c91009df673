//! The limits of the provider's process, which all that it starts inherits.

use super::step::Step;
use crate::limits::rlimits::{Resource, Rlimits};
use crate::policy::Limits;

/// What the kernel counts for all processes of a user, in every user namespace:
/// a cell takes at most half of what the launcher may, so that the harness of
/// that user has the other.
const SHARED: [Resource; 3] = [Resource::LockedMemory, Resource::MessageQueues, Resource::PendingSignals];

/// The limits to set. None is above the launcher's own, which only the host's
/// root could raise.
pub fn steps(limits: &Limits, launchers: &Rlimits) -> Vec<Step> {
    // With 1 the kernel starts no helper for a piped core_pattern, which ignores
    // every other limit, and writes no file either (core(5)).
    let mut wanted = vec![(Resource::CoreFile, 1), (Resource::Processes, limits.processes)];
    wanted.extend(limits.open_files.map(|count| (Resource::OpenFiles, count)));
    wanted.extend(limits.file_size.map(|bytes| (Resource::FileSize, bytes)));
    let halves = SHARED.map(|resource| (resource, launchers.hard(resource)));
    wanted.extend(halves.into_iter().filter(|(_, all)| *all != u64::MAX).map(|(one, all)| (one, all / 2)));
    let set = |(resource, value): (Resource, u64)| Step::SetLimit {
        resource,
        value: value.min(launchers.hard(resource)),
    };
    wanted.into_iter().map(set).collect()
}
