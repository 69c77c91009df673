//! The files of `/etc` that name the cell's user and host instead of the real ones.

use crate::host::Ids;
use crate::policy::Policy;

/// Their paths and contents.
pub(super) fn files(policy: &Policy, ids: Ids) -> [(&'static str, String); 5] {
    let Ids { uid, gid, .. } = ids;
    let home = policy.cell.home.display();
    let hostname = &policy.cell.hostname;
    [
        (
            "/etc/passwd",
            format!(
                "root:x:0:0:root:/root:/usr/sbin/nologin\n\
                 agent:x:{uid}:{gid}:agent:{home}:/bin/sh\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        ("/etc/group", format!("root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n")),
        ("/etc/hosts", format!("127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost {hostname}\n")),
        ("/etc/hostname", format!("{hostname}\n")),
        // The same in every cell: it tells apart neither hosts nor runs.
        ("/etc/machine-id", "ce11b10cce11b10cce11b10cce11b10c\n".to_owned()),
    ]
}
