//! The faults of hosts that break sandboxes, in one table: what every error's
//! cause and remedy are read from.

use crate::error::Error;
use crate::plan::Stage;
use crate::policy::Layer;
use crate::sys::{Call, Errno, Failure};

/// One condition of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its stable name.
    pub name: &'static str,
    /// How the kernel shows it, as far as one failed call can tell.
    signs: &'static [Sign],
    /// Why.
    pub cause: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

/// A failed call that speaks for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sign {
    stage: Stage,
    /// Any, where there is none.
    call: Option<Call>,
    errno: &'static [Errno],
}

const fn sign(stage: Stage, call: Option<Call>, errno: &'static [Errno]) -> Sign {
    Sign { stage, call, errno }
}

/// The table. Where two faults show alike, the first one answers.
pub const FAULTS: [Fault; 6] = [
    Fault {
        name: "userns-refused",
        signs: &[sign(Stage::Namespaces, None, &[Errno::EPERM, Errno::EACCES, Errno::EINVAL, Errno::ENOSYS])],
        cause: "this host lets an ordinary user make no user namespace: a container's or service's seccomp filter, a \
                security module, a chroot, or a kernel without them",
        remedy: "in a container allow clone and unshare with namespace flags (Docker: --security-opt \
                 seccomp=PROFILE.json); under systemd set RestrictNamespaces=no; on Debian set \
                 kernel.unprivileged_userns_clone=1; leave a chroot by pivot_root; or start with sudo and --run-as \
                 UID:GID",
    },
    Fault {
        name: "namespace-limit",
        signs: &[sign(Stage::Namespaces, None, &[Errno::ENOSPC, Errno::EUSERS])],
        cause: "a limit on namespaces is used up or zero, here or in an outer user namespace; this is not disk space",
        remedy: "raise user.max_user_namespaces and its siblings (sysctl user), end what holds the namespaces (lsns), \
                 or start outside a sandbox that forbids inner ones",
    },
    Fault {
        name: "uid-map-refused",
        signs: &[
            sign(Stage::Ids, Some(Call::Open), &[Errno::EACCES, Errno::EPERM]),
            sign(Stage::Ids, Some(Call::Write), &[Errno::EPERM, Errno::EACCES]),
        ],
        cause: "the user namespace was made, but its id map may not be written: AppArmor's rule on unprivileged user \
                namespaces (Ubuntu 23.10 and later), or root without CAP_SETFCAP",
        remedy: "start with sudo and --run-as UID:GID, install an AppArmor profile for cellblock that has `userns,`, \
                 or set kernel.apparmor_restrict_unprivileged_userns=0",
    },
    Fault {
        name: "proc-too-revealing",
        signs: &[
            sign(Stage::Proc, Some(Call::Fsmount), &[Errno::EPERM]),
            sign(Stage::Proc, Some(Call::Fsconfig), &[Errno::EPERM]),
        ],
        cause: "the present /proc is partly covered, as in most containers, so the kernel refuses a fresh one \
                (dmesg: `VFS: Mount too revealing`)",
        remedy: "Docker: --security-opt systempaths=unconfined; Podman: --security-opt unmask=ALL; Kubernetes: \
                 procMount: Unmasked; systemd: ProtectKernelTunables=no and ProcSubset=all",
    },
    Fault {
        name: "mount-refused",
        signs: &[
            sign(Stage::Mounts, None, &[Errno::EPERM, Errno::ENOSYS]),
            sign(Stage::Mounts, Some(Call::Fsmount), &[Errno::EACCES]),
            sign(Stage::Mounts, Some(Call::MoveMount), &[Errno::EACCES]),
            sign(Stage::Mounts, Some(Call::OpenTree), &[Errno::EACCES]),
            sign(Stage::Dev, None, &[Errno::EPERM, Errno::ENOSYS]),
            sign(Stage::Root, None, &[Errno::EPERM, Errno::EACCES, Errno::ENOSYS]),
        ],
        cause: "the namespaces are there, but mounting is refused: by AppArmor or SELinux (EACCES), by an outer \
                Landlock domain or seccomp filter (EPERM), or by a kernel before 5.14 (ENOSYS)",
        remedy: "Docker: --security-opt apparmor=unconfined, or label=disable for SELinux; Kubernetes: \
                 appArmorProfile type Unconfined; do not start inside another sandbox that uses Landlock",
    },
    LANDLOCK,
];

const LANDLOCK: Fault = Fault {
    name: "landlock-too-old",
    signs: &[sign(
        Stage::Landlock,
        Some(Call::LandlockCreateRuleset),
        &[Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::EINVAL, Errno::ENOMSG],
    )],
    cause: "Landlock is not built in, not among the kernel's active security modules, hidden by an outer filter, or \
            older than the policy asks for",
    remedy: "boot with `landlock` in lsm= (kernel 5.13 and later), or lower `[require] landlock`",
};

/// The fault that a failed call speaks for.
pub fn explain(stage: Stage, failure: Failure) -> Option<&'static Fault> {
    FAULTS.iter().find(|fault| {
        fault.signs.iter().any(|sign| {
            sign.stage == stage
                && sign.call.is_none_or(|call| call == failure.call)
                && sign.errno.contains(&failure.errno)
        })
    })
}

/// The error of a host whose Landlock is too old for a layer.
pub fn landlock(layer: Layer, found: u32, needed: u32) -> Error {
    let what = match found {
        0 => format!("no Landlock, where ABI {needed} is needed"),
        found => format!("Landlock ABI {found}, where {needed} is needed"),
    };
    let waiver = format!("{}, or waive the layer by name: --allow-missing {}", LANDLOCK.remedy, layer.name());
    let mut error = Error::new("landlock", what).cause(LANDLOCK.cause).remedy(waiver);
    error.fault = Some(LANDLOCK.name);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (index, fault) in FAULTS.iter().enumerate() {
            assert!(FAULTS[index + 1..].iter().all(|other| other.name != fault.name), "{}", fault.name);
        }
    }

    #[test]
    fn every_fault_is_the_first_to_claim_its_signs() {
        for fault in &FAULTS {
            for sign in fault.signs {
                for &errno in sign.errno {
                    let failure = Failure { call: sign.call.unwrap_or(Call::Clone), errno };
                    assert_eq!(explain(sign.stage, failure).map(|found| found.name), Some(fault.name));
                }
            }
        }
    }

    #[test]
    fn an_errno_that_speaks_for_no_fault_is_left_alone() {
        let failure = Failure { call: Call::Openat2, errno: Errno::ENOENT };
        assert_eq!(explain(Stage::Mounts, failure), None);
    }
}
