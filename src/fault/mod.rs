//! The faults of hosts that break sandboxes, in one table: what every error's
//! cause and remedy are read from.

use std::path::Path;

use crate::error::Error;
use crate::plan::Stage;
use crate::plan::landlock::SCOPES;
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
    /// What to do besides, which root has done already.
    pub for_users: Option<&'static str>,
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
pub const FAULTS: [Fault; 14] = [
    Fault {
        name: "userns-refused",
        signs: &[sign(Stage::Namespaces, None, &[Errno::EPERM, Errno::EACCES, Errno::EINVAL, Errno::ENOSYS])],
        cause: "this host refuses a user namespace: a container's or service's seccomp filter, a security module, a \
                sysctl, a chroot, or a kernel without them",
        remedy: "in a container allow clone and unshare with namespace flags (Docker: --security-opt \
                 seccomp=unconfined, or a profile of your own); under systemd set RestrictNamespaces=no; on Debian \
                 set kernel.unprivileged_userns_clone=1; start outside of a chroot, or enter it by pivot_root",
        for_users: Some("where a sysctl refuses ordinary users alone, start with sudo and --run-as UID:GID"),
    },
    Fault {
        name: "namespace-limit",
        signs: &[sign(Stage::Namespaces, None, &[Errno::ENOSPC, Errno::EUSERS])],
        cause: "a limit on namespaces is used up or zero, here or in an outer user namespace; this is not disk space",
        remedy: "raise user.max_user_namespaces and its siblings (sysctl user), end what holds the namespaces (lsns), \
                 or start outside a sandbox that forbids inner ones; in a cell of mode nested, --allow-missing cgroup",
        for_users: None,
    },
    Fault {
        name: "uid-map-refused",
        signs: &[
            sign(Stage::Ids, Some(Call::Open), &[Errno::EACCES, Errno::EPERM]),
            sign(Stage::Ids, Some(Call::Write), &[Errno::EPERM, Errno::EACCES]),
        ],
        cause: "the user namespace was made, but its id map may not be written: AppArmor's rule on unprivileged user \
                namespaces (Ubuntu 23.10 and later), or root without CAP_SETFCAP",
        remedy: "install an AppArmor profile for cellblock that has `userns,`, or set \
                 kernel.apparmor_restrict_unprivileged_userns=0",
        for_users: Some("or start with sudo and --run-as UID:GID"),
    },
    Fault {
        name: "proc-read-only",
        signs: &[sign(Stage::Ids, Some(Call::Open), &[Errno::EROFS])],
        cause: "/proc is mounted read-only, so that no id map can be written",
        remedy: "leave /proc writable: under systemd take `/` and `/proc` out of ReadOnlyPaths=, or set \
                 ReadWritePaths=/proc",
        for_users: None,
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
                 procMount: Unmasked; elsewhere start where nothing is mounted below /proc (findmnt -R /proc)",
        for_users: None,
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
        remedy: "EACCES: Docker and Podman: --security-opt apparmor=unconfined, or label=disable for SELinux; \
                 Kubernetes: appArmorProfile type Unconfined; LXC: an AppArmor profile that allows mounts. EPERM: \
                 --security-opt seccomp=unconfined; and do not start inside another sandbox that uses Landlock",
        for_users: None,
    },
    Fault {
        name: "hostname-refused",
        signs: &[sign(Stage::Hostname, Some(Call::Sethostname), &[Errno::EPERM, Errno::ENOSYS])],
        cause: "sethostname(2) is refused by an outer filter, as systemd's ProtectHostname= and rootless Podman's \
                default filter do, though the host name is the cell's own",
        remedy: "under systemd set ProtectHostname=no; in a container allow sethostname (Podman: --security-opt \
                 seccomp=unconfined)",
        for_users: None,
    },
    Fault {
        name: "keyring-refused",
        signs: &[sign(Stage::Credentials, Some(Call::Keyctl), &[Errno::EPERM, Errno::ENOSYS])],
        cause: "keyctl(2) is refused by an outer filter, as systemd-nspawn's and Docker's do, and without it the \
                cell would keep the launcher's keyring",
        remedy: "allow keyctl in that filter: systemd-nspawn --system-call-filter=@keyring; Docker: --security-opt \
                 seccomp=unconfined",
        for_users: None,
    },
    Fault {
        name: "address-family-refused",
        signs: &[sign(Stage::Network, Some(Call::Socket), &[Errno::EAFNOSUPPORT])],
        cause: "an outer filter refuses sockets of IP, as systemd's RestrictAddressFamilies= does, and without one \
                the cell's loopback cannot be brought up",
        remedy: "add AF_INET to RestrictAddressFamilies=, or give the cell the host's network (--net host)",
        for_users: None,
    },
    Fault {
        name: "process-limit",
        signs: &[
            sign(Stage::Process, Some(Call::Clone), &[Errno::EAGAIN]),
            sign(Stage::Namespaces, Some(Call::Clone), &[Errno::EAGAIN]),
        ],
        cause: "a limit on processes is reached: the cgroup's pids.max (systemd's TasksMax=, Docker's --pids-limit) \
                or RLIMIT_NPROC (ulimit -u)",
        remedy: "raise that limit, or end what uses it up; a cell needs two processes and its provider's",
        for_users: None,
    },
    Fault {
        name: "mount-limit",
        signs: &[
            sign(Stage::Mounts, None, &[Errno::ENOSPC]),
            sign(Stage::Proc, None, &[Errno::ENOSPC]),
            sign(Stage::Dev, None, &[Errno::ENOSPC]),
            sign(Stage::Root, None, &[Errno::ENOSPC]),
        ],
        cause: "a mount namespace holds only so many mounts (fs.mount-max), and the cell begins with all of the host's; \
                this is not disk space",
        remedy: "raise fs.mount-max (sysctl), or unmount what the host does not need (findmnt | wc -l)",
        for_users: None,
    },
    LANDLOCK,
    KILLS,
    OTHER_PROC,
];

const LANDLOCK: Fault = Fault {
    name: "landlock-too-old",
    signs: &[sign(
        Stage::Landlock,
        Some(Call::LandlockCreateRuleset),
        &[Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::EINVAL, Errno::ENOMSG],
    )],
    cause: "Landlock is not built in, not among the kernel's active security modules, or hidden by an outer filter, as \
            systemd-nspawn's and systemd's SystemCallFilter= hide it",
    remedy: "boot with `landlock` in lsm= (kernel 5.13 and later); where /sys/kernel/security/lsm names it, allow \
             landlock_create_ruleset, landlock_add_rule and landlock_restrict_self in the outer filter \
             (systemd-nspawn --system-call-filter=)",
    for_users: None,
};

/// It shows by no failed call: who makes one is killed.
const KILLS: Fault = Fault {
    name: "filter-kills",
    signs: &[],
    cause: "a seccomp filter around the launcher kills a process for a call that the launch needs, as systemd's \
            SystemCallFilter= does",
    remedy: "allow these calls in that filter (systemd: SystemCallFilter=, the sets @system-service @mount @sandbox \
             and the names above), or start outside of it",
    for_users: None,
};

/// It shows by no failed call: what is asked there by number is another process.
const OTHER_PROC: Fault = Fault {
    name: "proc-not-own",
    signs: &[],
    cause: "/proc is no procfs, or that of another PID namespace than the launcher is in, where its processes have \
            other numbers or none",
    remedy: "mount a procfs of this PID namespace on /proc: where `unshare --pid` made the namespace add \
             --mount-proc, with bwrap --unshare-pid add --proc /proc, as root use `mount -t proc proc /proc`",
    for_users: None,
};

impl Fault {
    /// What to do, for root or for an ordinary user.
    pub fn remedy(&self, is_root: bool) -> String {
        let besides = self.for_users.filter(|_| !is_root);
        [self.remedy].into_iter().chain(besides).collect::<Vec<_>>().join("; ")
    }
}

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

/// The kernel that first has each Landlock ABI, from 1 on.
const KERNELS: [&str; 7] = ["5.13", "5.19", "6.2", "6.7", "6.10", "6.12", "6.15"];

/// The error of a host that kills for these calls.
pub fn killed_for(calls: &[&str]) -> Error {
    let what = format!("a filter kills for {}", calls.join(", "));
    let mut error = Error::new("launch", what).cause(KILLS.cause).remedy(KILLS.remedy);
    error.fault = Some(KILLS.name);
    error
}

/// The error of a host whose `/proc` does not show this process by its number.
pub fn other_proc(found: Result<&Path, Errno>) -> Error {
    let own = std::process::id();
    let what = match found {
        Ok(other) => format!("/proc/self is process {}, and the launcher is process {own}", other.display()),
        Err(_) => "/proc/self cannot be read".to_owned(),
    };
    let mut error = Error::new("proc", what).cause(OTHER_PROC.cause).remedy(OTHER_PROC.remedy);
    (error.fault, error.errno) = (Some(OTHER_PROC.name), found.err());
    error
}

/// The error of a host without Landlock. The errno of the question for its
/// version says why (landlock_create_ruleset(2)).
pub fn no_landlock(errno: Option<Errno>) -> Error {
    let allow = "allow landlock_create_ruleset, landlock_add_rule and landlock_restrict_self in that filter \
                 (systemd: SystemCallFilter=; systemd-nspawn: --system-call-filter=; containers: their seccomp profile)";
    let (cause, remedy) = match errno {
        Some(Errno::EOPNOTSUPP) => (
            "it is built into this kernel, but is not among its active security modules",
            "boot with `landlock` added to lsm= (/sys/kernel/security/lsm lists the active ones)".to_owned(),
        ),
        None | Some(Errno::ENOSYS) => (
            "this kernel is older than 5.13 or built without it, or an outer filter hides it",
            format!("boot a kernel with CONFIG_SECURITY_LANDLOCK=y; or {allow}"),
        ),
        Some(_) => ("an outer system call filter refuses it, as systemd-nspawn's does", allow.to_owned()),
    };
    let remedy = format!("{remedy}; or waive the layer by name: --allow-missing landlock");
    let mut error = Error::new("landlock", "this host has no Landlock").cause(cause).remedy(remedy);
    (error.fault, error.errno) = (Some(LANDLOCK.name), errno);
    error
}

/// The error of a policy that requires a newer Landlock than this host has.
pub fn old_landlock(found: u32, needed: u32) -> Error {
    let mut error = Error::new("landlock", format!("this kernel has Landlock ABI {found}"))
        .cause(format!("[require] asks for ABI {needed}"))
        .remedy(format!("write `landlock = {found}` under [require], or boot {}", kernel_with(needed)));
    error.fault = Some(LANDLOCK.name);
    error
}

/// The error of a cell that needs Landlock's scopes, on a host that has none.
pub fn no_scopes(found: u32, why: &str) -> Error {
    let mut error = Error::new("landlock", format!("this kernel has Landlock ABI {found}, without scopes"))
        .cause(format!("{why} needs the scopes for signals and abstract sockets, of ABI {SCOPES}"))
        .remedy(format!(
            "boot {}, or waive the layer by name: --allow-missing landlock-scope",
            kernel_with(SCOPES)
        ));
    error.fault = Some(LANDLOCK.name);
    error
}

fn kernel_with(abi: u32) -> String {
    let first = (abi as usize).checked_sub(1).and_then(|index| KERNELS.get(index));
    let first = first.map_or("if there is one".to_owned(), |first| format!("Linux {first} or later"));
    format!("a kernel that has ABI {abi} ({first})")
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
    fn root_is_not_told_to_start_with_sudo() {
        for fault in &FAULTS {
            assert!(!fault.remedy(true).contains("sudo"), "{}", fault.name);
            assert!(!fault.cause.contains("ordinary user make"), "{}", fault.name);
        }
        assert!(FAULTS[0].remedy(false).contains("sudo"));
    }

    #[test]
    fn an_older_landlock_is_answered_with_its_kernel() {
        let error = no_scopes(2, "mode nested").remedy.unwrap();
        assert_eq!(
            error,
            "boot a kernel that has ABI 6 (Linux 6.12 or later), or waive the layer by name: --allow-missing landlock-scope"
        );
        let error = old_landlock(7, 99).remedy.unwrap();
        assert!(!error.contains("--allow-missing") && error.contains("`landlock = 7`"), "{error}");
    }

    #[test]
    fn the_errno_of_an_absent_landlock_says_which_remedy_fits() {
        for (errno, fits, other) in [
            (Errno::EOPNOTSUPP, "lsm=", "filter"),
            (Errno::ENOSYS, "CONFIG_SECURITY_LANDLOCK", "lsm="),
            (Errno::EPERM, "SystemCallFilter=", "lsm="),
        ] {
            let remedy = no_landlock(Some(errno)).remedy.unwrap();
            assert!(remedy.contains(fits) && !remedy.contains(other), "{errno}: {remedy}");
            assert!(remedy.contains("--allow-missing landlock"), "{remedy}");
        }
    }

    #[test]
    fn an_errno_that_speaks_for_no_fault_is_left_alone() {
        let failure = Failure { call: Call::Openat2, errno: Errno::ENOENT };
        assert_eq!(explain(Stage::Mounts, failure), None);
    }
}
