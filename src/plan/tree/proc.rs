//! `/proc`: fresh, and in a sealed cell without what speaks of the host.

use std::path::Path;

use super::{Content, Tree};
use crate::plan::landlock::Grant;
use crate::policy::Mode;
use crate::sys::mount::{Attributes, NO_DEV, NO_EXEC, NO_SUID, READ_ONLY};

/// Entries of `/proc` that speak of the host or command it. Each one that the
/// cell's own procfs has is covered, whatever the launcher's `/proc` shows.
/// Those that only root may read are covered too: each layer holds alone.
///
/// Left as they are, since common programs read them: `cpuinfo`, `meminfo`,
/// `stat`, `uptime`, `loadavg`, `version`, `filesystems`, `pressure`, and
/// `vmstat`, without which vmstat(8) ends and psutil warns. `device-tree` is a
/// link into `/sys`, which a cell has not.
pub const MASKS: [&str; 55] = [
    "acpi",
    "allocinfo",
    "asound",
    "bootconfig",
    "buddyinfo",
    "bus",
    "cgroups",
    "cmdline",
    "config.gz",
    "consoles",
    "crypto",
    "devices",
    "diskstats",
    "dma",
    "driver",
    "dynamic_debug",
    "execdomains",
    "fb",
    "fs",
    "interrupts",
    "iomem",
    "ioports",
    "irq",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "locks",
    "mdstat",
    "misc",
    "modules",
    "mtd",
    "mtrr",
    "pagetypeinfo",
    "partitions",
    "profile",
    "sched_debug",
    "schedstat",
    "scsi",
    "slabinfo",
    "softirqs",
    "spl",
    "swaps",
    "sysrq-trigger",
    "timer_list",
    "tty",
    "vmallocinfo",
    "vmcore",
    "xen",
    "zoneinfo",
];

/// What stands over a file.
pub(super) const NULL: &str = "/dev/null";

/// What stands over a directory: nothing is mounted on it, and nobody else may
/// put anything there.
pub(super) const EMPTY: &str = "/dev/empty";

/// What neither may do. A device on a `nodev` mount could not be opened.
pub(super) const ATTRIBUTES: Attributes = READ_ONLY | NO_SUID | NO_EXEC;

impl Tree<'_> {
    pub(super) fn proc(&mut self, mode: Mode) {
        // Without ptrace rights over a process its directory is not there at all
        // (proc(5)); PID 1 is non-dumpable, so nobody in the cell has them.
        let options = vec![("hidepid", "ptraceable".to_owned())];
        let attributes = NO_SUID | NO_DEV | NO_EXEC;
        self.put_own("/proc", Content::Fresh { filesystem: "proc", options, attributes }, Grant::Read);
        if mode == Mode::Nested {
            // One covered entry makes the kernel refuse an inner /proc
            // (mount_too_revealing).
            return;
        }
        self.put_own(EMPTY, Content::Directory, Grant::Nothing);
        for name in MASKS {
            self.put_own(Path::new("/proc").join(name), Content::Mask, Grant::Nothing);
        }
        let attributes = READ_ONLY | NO_SUID | NO_DEV | NO_EXEC;
        let sys = Content::Cover { source: "/proc/sys".into(), inode: None, is_directory: true, attributes };
        self.put_own("/proc/sys", sys, Grant::Nothing);
    }
}
