//! `/proc`: fresh, and in a sealed cell without what speaks of the host.

use super::{Content, Tree};
use crate::plan::landlock::Grant;
use crate::plan::step::{EMPTY_DIRECTORY, Step, Text};
use crate::policy::Mode;
use crate::sys::mount::{NO_DEV, NO_EXEC, NO_SUID, READ_ONLY};

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

/// Nothing is mounted on it, and nobody else may put anything there.
const EMPTY: &str = "/dev/empty";

impl Tree<'_> {
    pub(super) fn proc(&mut self, mode: Mode) {
        // Without ptrace rights over a process its directory is not there at all
        // (proc(5)); PID 1 is non-dumpable, so nobody in the cell has them.
        let options = vec![("hidepid", "ptraceable".to_owned())];
        let attributes = NO_SUID | NO_DEV | NO_EXEC;
        self.put_own("/proc", Content::Fresh { filesystem: "proc", options, attributes }, Grant::Read);
        if mode == Mode::Sealed {
            self.put_own(EMPTY, Content::Directory, Grant::Nothing);
        }
    }
}

/// The covers of `/proc`. One covered entry makes the kernel refuse an inner
/// `/proc` (mount_too_revealing), so a nested cell has none.
pub(super) fn covers(mode: Mode) -> Vec<Step> {
    if mode == Mode::Nested {
        return Vec::new();
    }
    let [empty, path] = [EMPTY_DIRECTORY, EMPTY_DIRECTORY].map(Text::from);
    let attributes = READ_ONLY | NO_SUID | NO_DEV | NO_EXEC;
    let mut steps = vec![Step::Cover { source: empty, inode: None, path, attributes }];
    steps.extend(
        MASKS.iter().filter_map(|name| Text::new(format!("proc/{name}"))).map(|path| Step::Mask { path }),
    );
    steps
}
