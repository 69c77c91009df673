//! Every probe of the catalogue: denied inside, and had by the same user
//! outside. Death by a filter's signal is never a denial.

use crate::cell::{self, Ground};

/// Probes that leak outside only to one who has capabilities in namespaces of
/// his own, as every user can.
const WITH_CAPABILITIES: [&str; 13] =
    ["N12", "N13", "N14", "S14", "S15", "S16", "S17", "S19", "S20", "S21", "S23", "S42", "S47"];

/// Probes with nothing to reach outside, and why.
const WITHOUT_CONTROL: [(&str, &str); 28] = [
    ("F25", "the tests hand no host file as stdio to a bare probe"),
    ("F28", "device nodes are root's"),
    ("F29", "PID 1 of the host is another user's"),
    ("N04", "the host may run no such service"),
    ("N11", "the kernel may be built without the family"),
    ("N15", "the kernel may be built without the family"),
    ("N16", "the kernel may be built without the family"),
    ("P05", "the host's PID 1 may be hidden"),
    ("P09", "PID 1 of the host is another user's"),
    ("P19", "no mount of the host names the fixture"),
    ("P20", "no mount of the host names the fixture"),
    ("P21", "no mount of the host names the fixture"),
    ("P22", "no mount of the host names the fixture"),
    ("P24", "the host may have no cgroups"),
    ("P25", "the host may have no cgroups"),
    ("P38", "an ordinary user may be in no other group"),
    ("P42", "the session's leader is in the same PID namespace"),
    ("P43", "needs a terminal, see isolation::the_terminal_is_the_cells_own"),
    ("P48", "the user is an ordinary one"),
    ("P49", "the kernel checks credentials"),
    ("P50", "the host has no outer PID namespace to show"),
    ("P51", "the host may be idle"),
    ("S02", "the sysctl vm.unprivileged_userfaultfd may forbid it"),
    ("S27", "covers are locked in every user namespace"),
    ("S57", "kernels are built without x32"),
    ("S58", "no kernel has the call"),
    ("S03", "the sysctl kernel.perf_event_paranoid may forbid it"),
    ("S04", "the sysctl kernel.unprivileged_bpf_disabled may forbid it"),
];

/// Calls that only the first user namespace's root can reach, or that few
/// kernels are built with.
const ROOT_ALONE: [&str; 9] = ["S34", "S35", "S36", "S39", "S40", "S41", "S43", "S44", "S50"];

/// What may stay visible in a cell, and why; whether it does depends on the
/// host as well.
pub const VISIBLE: [(&str, &str); 7] = [
    ("P20", "field 4 of mountinfo is the source of a bind, and cannot be masked for one process"),
    ("P30", "the boot id can be read: masking /proc/sys/kernel/random breaks programs"),
    ("P38", "an unprivileged user namespace cannot drop groups"),
    ("P51", "the count of tasks is a number, and programs read the load beside it"),
    ("S09", "debuggers trace the child that asks for it, and nobody else"),
    ("S46", "to read the clock's state is harmless, and setting it is refused"),
    ("S53", "vm.memfd_noexec cannot be set by an unprivileged user"),
];

#[test]
fn every_probe_leaks_outside() {
    let Some(ground) = Ground::new() else { return };
    let mut found = ground.outside("run", &[]);
    found.append(&mut ground.able(&WITH_CAPABILITIES));
    let without = |id: &str| WITHOUT_CONTROL.iter().any(|(name, _)| *name == id) || ROOT_ALONE.contains(&id);
    let wrong: Vec<_> =
        found.iter().filter(|(id, finding)| !without(id) && finding.verdict != "leak").collect();
    assert!(wrong.is_empty(), "not had outside: {wrong:#?}");
}

#[test]
fn every_probe_is_denied_inside() {
    let Some(ground) = Ground::new() else { return };
    let found = ground.inside(&[], "run", &[]);
    assert!(found.keys().eq(&cell::ids("list")), "the probe came to its end");
    let is_wrong = |id: &str, verdict: &str| match id {
        "P43" => verdict != "na",
        id if VISIBLE.iter().any(|(name, _)| *name == id) => verdict == "killed",
        _ => verdict != "denied",
    };
    let wrong: Vec<_> = found.iter().filter(|(id, finding)| is_wrong(id, &finding.verdict)).collect();
    assert!(wrong.is_empty(), "not as the catalogue has it: {wrong:#?}");
}

#[test]
fn the_tables_name_probes_that_exist() {
    let ids = cell::ids("list");
    let named = WITHOUT_CONTROL.iter().chain(&VISIBLE).map(|(id, _)| *id);
    for id in named.chain(WITH_CAPABILITIES).chain(ROOT_ALONE) {
        assert!(ids.contains(id), "no probe {id}");
    }
}
