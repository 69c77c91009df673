//! The files of `/etc` that name the cell's user and host instead of the real ones.

use std::path::Path;

use super::hide::{Over, Upper};
use super::{BUILT_IN, Content, Tree};
use crate::host::Ids;
use crate::policy::{Policy, System};
use crate::sys::mount::READ_ONLY;

/// Where they are.
pub(super) const ETC: &str = "/etc";

/// Those that the cell has of its own, or lacks, whatever is shown of `/etc`.
const OWN: [&str; 6] = ["passwd", "group", "hosts", "hostname", "machine-id", "resolv.conf"];

/// The cell's own files, as the built-in tree has them, for an overlay of `/etc`.
pub(super) fn over_etc(built_in: &Tree) -> Upper {
    let over = |name: &str| match built_in.nodes.get(&Path::new(ETC).join(name)).map(|node| &node.content) {
        Some(Content::File { content }) => Over::File(content.clone()),
        _ => Over::Whiteout,
    };
    OWN.iter().map(|name| (name.into(), over(name))).collect()
}

/// Lays the cell's own files over a read-only view of the host's `/etc`: with the
/// host's the cell's user and name would be unknown. What the policy puts there
/// itself stays.
pub(super) fn lay_over(tree: &mut Tree, policy: &Policy, mut own: Upper) {
    let etc = Path::new(ETC);
    if policy.filesystem.system == System::None {
        return;
    }
    own.retain(|name, _| !tree.nodes.contains_key(&etc.join(name)));
    let Some(node) = tree.nodes.get_mut(etc).filter(|node| node.origin.0 != BUILT_IN) else { return };
    match &mut node.content {
        Content::Bind { source, file, attributes, .. } if source == etc && *attributes & READ_ONLY != 0 => {
            node.content = Content::Overlay { source: source.clone(), file: *file, upper: own };
        }
        Content::Overlay { source, upper, .. } if source == etc => upper.extend(own),
        _ => {}
    }
}

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
