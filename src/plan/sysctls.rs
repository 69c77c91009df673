//! The sysctls of the cell's own namespaces. They are written while `/proc/sys`
//! takes writes, and while init has the capabilities for them.

use super::step::{Step, Text};
use crate::policy::Mode;

/// Of what the kernel counts for a user in all namespaces, the part that one cell
/// may take: a user has 128 inotify instances (fs.inotify.max_user_instances).
const SHARES: [(&str, &str); 2] = [("max_inotify_instances", "64"), ("max_inotify_watches", "65536")];

/// The kinds of namespace that a nested cell makes, each of which a user has some
/// thousands of.
const NAMESPACES: [&str; 6] = ["user", "mnt", "pid", "net", "ipc", "uts"];

/// The sysctls to write; `own_cgroup` says whether the cell has one, `own_network` is the group of a cell that has its own.
pub fn steps(mode: Mode, own_cgroup: bool, own_network: Option<u32>) -> Vec<Step> {
    let namespaces = |kind: &str, most: &str| write(&format!("user/max_{kind}_namespaces"), most);
    let mut steps = match mode {
        // The second layer of what the filter refuses.
        Mode::Sealed => vec![namespaces("user", "0")],
        Mode::Nested => NAMESPACES.map(|kind| namespaces(kind, "1024")).to_vec(),
    };
    if mode == Mode::Nested {
        // Its root is the cgroup of who makes it; that must not be the launcher's.
        steps.push(namespaces("cgroup", if own_cgroup { "1024" } else { "0" }));
    }
    steps.extend(SHARES.map(|(name, value)| write(&format!("user/{name}"), value)));
    if let Some(gid) = own_network {
        // Nobody but the cell is on its network: whoever wants to may listen on
        // port 80 and send a ping there.
        steps.push(write("net/ipv4/ip_unprivileged_port_start", "0"));
        steps.push(write("net/ipv4/ping_group_range", &format!("{gid} {gid}")));
    }
    steps
}

/// The next process of the cell is number 2 again (a kernel with CONFIG_CHECKPOINT_RESTORE has the file).
pub fn last_pid() -> Step {
    write("kernel/ns_last_pid", "1")
}

fn write(name: &str, value: &str) -> Step {
    Step::WriteSysctl {
        path: Text::new(format!("proc/sys/{name}")).expect("no NUL"),
        value: Text::new(value).expect("no NUL"),
    }
}
