//! Every probe of the catalogue: denied inside, and had by the same user
//! outside. Death by a filter's signal is never a denial.

use crate::cell::{self, Ground};
use crate::skip;

/// Probes that leak outside only to one who has capabilities in namespaces of
/// his own, as every user can.
const WITH_CAPABILITIES: [&str; 13] =
    ["N12", "N13", "N14", "S14", "S15", "S16", "S17", "S19", "S20", "S21", "S23", "S42", "S47"];

/// Probes with nothing to reach outside, and why.
const WITHOUT_CONTROL: [(&str, &str); 14] = [
    ("F25", "the tests hand no host file as stdio to a bare probe"),
    ("F28", "device nodes are root's"),
    ("F29", "PID 1 of the host is another user's"),
    ("P09", "PID 1 of the host is another user's"),
    ("P19", "no mount of the host names the fixture"),
    ("P20", "no mount of the host names the fixture"),
    ("P21", "no mount of the host names the fixture"),
    ("P22", "no mount of the host names the fixture"),
    ("P42", "the session's leader is in the same PID namespace"),
    ("P43", "needs a terminal, see isolation::the_terminal_is_the_cells_own"),
    ("P48", "the user is an ordinary one"),
    ("P49", "the kernel checks credentials"),
    ("S27", "covers are locked in every user namespace"),
    ("S58", "no kernel has the call"),
];

/// Probes that some hosts answer as a cell does, and why; a line says where
/// the control is missing.
const HOST_MAY_DENY: [(&str, &str); 35] = [
    ("F27", "/dev may hold the harmless devices alone"),
    ("H05", "the file system may have no user attributes"),
    ("N04", "no such service may run"),
    ("N10", "the kernel may be built without the family"),
    ("N11", "the kernel may be built without the family"),
    ("N15", "the kernel may be built without the family"),
    ("N16", "the kernel may be built without the family"),
    ("N17", "the kernel may be built without audit"),
    ("N19", "the kernel may be built without netfilter"),
    ("P05", "PID 1 may be hidden"),
    ("P14", "Yama may forbid it"),
    ("P15", "Yama may forbid it"),
    ("P16", "Yama may forbid it"),
    ("P24", "there may be no cgroups"),
    ("P25", "there may be no cgroups"),
    ("P28", "the one knob an ordinary user may open may not be built in"),
    ("P29", "the one file an ordinary user may read may not be built in"),
    ("P38", "the user may be in no other group"),
    ("P40", "the hard limit may be 0"),
    ("P50", "there may be no outer PID namespace to show"),
    ("P51", "the host may be idle"),
    ("R01", "other programs may have taken all events"),
    ("R02", "other programs may have taken all terminals"),
    ("R03", "fs.inotify.max_user_instances may be small"),
    ("R04", "the hard limit may be low"),
    ("R07", "standard input may be no /dev/null"),
    ("S01", "kernel.io_uring_disabled may forbid it"),
    ("S02", "vm.unprivileged_userfaultfd may forbid it"),
    ("S03", "kernel.perf_event_paranoid may forbid it"),
    ("S04", "kernel.unprivileged_bpf_disabled may forbid it"),
    ("S33", "the kernel may be built without it"),
    ("S48", "the kernel may be built without NUMA"),
    ("S49", "the kernel may be built without NUMA"),
    ("S54", "32-bit calls may be off"),
    ("S57", "the kernel may be built without x32"),
];

/// Probes of what came with Linux 6.13 and later, by the feature without which they
/// have no control.
const OF_NEWER_KERNELS: [(&str, &str); 3] =
    [("R09", "pidfd-info"), ("S23", "open_tree_attr"), ("S31", "connectable-handle")];

/// Probes of what a procfs has beside processes.
const OF_WHOLE_PROC: [&str; 3] = ["P33", "P34", "P35"];

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
    found.retain(|id, finding| finding.verdict != "leak" && !ROOT_ALONE.contains(&id.as_str()));
    found.retain(|id, _| WITHOUT_CONTROL.iter().all(|(name, _)| name != id));
    if !skip::has_whole_proc() {
        found.retain(|id, _| !OF_WHOLE_PROC.contains(&id.as_str()));
    }
    for (id, feature) in OF_NEWER_KERNELS {
        if !ground.has(feature) {
            found.remove(id);
        }
    }
    for (id, why) in HOST_MAY_DENY {
        if let Some(finding) = found.remove(id) {
            println!("no control for {id} on this host: {why}: {finding:?}");
        }
    }
    assert!(found.is_empty(), "not had outside: {found:#?}");
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
    let named = WITHOUT_CONTROL
        .iter()
        .chain(&HOST_MAY_DENY)
        .chain(&OF_NEWER_KERNELS)
        .chain(&VISIBLE)
        .map(|(id, _)| *id);
    for id in named.chain(WITH_CAPABILITIES).chain(OF_WHOLE_PROC).chain(ROOT_ALONE) {
        assert!(ids.contains(id), "no probe {id}");
    }
}
