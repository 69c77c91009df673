//! `/dev`: what every cell has there, and the devices that a policy names.

use std::path::{Path, PathBuf};

use super::{BUILT_IN, Content, Tree, VIEW, at, bind, tmpfs, wrong_kind};
use crate::error::Error;
use crate::host::{File, Kind};
use crate::plan::landlock::Grant;
use crate::policy::{Entry, Origin, Policy};
use crate::sys::mount::{NO_EXEC, NO_SUID, READ_ONLY};

/// The device nodes of every cell, and their numbers on every kernel.
pub const DEVICES: [(&str, u64); 6] = [
    ("null", libc::makedev(1, 3)),
    ("zero", libc::makedev(1, 5)),
    ("full", libc::makedev(1, 7)),
    ("random", libc::makedev(1, 8)),
    ("urandom", libc::makedev(1, 9)),
    ("tty", libc::makedev(5, 0)),
];

/// The device nodes that are bound.
pub(super) fn paths(policy: &Policy) -> impl Iterator<Item = PathBuf> {
    let own = DEVICES.into_iter().map(|(name, _)| Path::new("/dev").join(name));
    own.chain(policy.filesystem.devices.iter().map(|device| device.path.clone()))
}

impl Tree<'_> {
    pub(super) fn dev(&mut self, policy: &Policy) -> Result<(), Error> {
        // One rule for all of them: each rule makes every open(2) of a path longer,
        // and nothing here has fewer rights than a device.
        self.put_own("/dev", Content::Directory, Grant::Device);
        for (name, number) in DEVICES {
            let path = Path::new("/dev").join(name);
            let origin = Origin(BUILT_IN.into());
            let file = self.find(&path, &origin)?;
            if file.character_device != Some(number) {
                return Err(in_the_place_of(&path, number, file, &origin));
            }
            // A device takes reads and writes on a read-only mount too; the times of
            // the host's node, which all cells see, stay as they are.
            let attributes = READ_ONLY | NO_SUID | NO_EXEC;
            self.put_own(&path, bind(&path, file, attributes), Grant::Device);
        }
        // All instances share one pool of the host (kernel.pty.max).
        let pts = [("mode", "0620"), ("ptmxmode", "0666"), ("max", "256")];
        let pts = pts.map(|(key, value)| (key, value.to_owned())).to_vec();
        let pts = Content::Fresh { filesystem: "devpts", options: pts, attributes: NO_SUID | NO_EXEC };
        self.put_own("/dev/pts", pts, Grant::Device);
        self.put_own("/dev/shm", tmpfs(policy.limits.tmp, 0o1777, VIEW | NO_EXEC), Grant::ReadWrite);
        // The kernel opens queues in a mount of its own, and Landlock looks for a
        // rule on its root, which is the same directory as this one's.
        let attributes = VIEW | NO_EXEC;
        let queues = Content::Fresh { filesystem: "mqueue", options: Vec::new(), attributes };
        self.put_own("/dev/mqueue", queues, Grant::ReadWrite);
        for (name, target) in [
            ("ptmx", "pts/ptmx"),
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ] {
            let link = Content::Symlink { target: target.into() };
            self.put_own(Path::new("/dev").join(name), link, Grant::Nothing);
        }
        Ok(())
    }

    /// Devices of the host that the policy names, each by itself.
    pub(super) fn devices(&mut self, policy: &Policy) -> Result<(), Error> {
        for Entry { path, origin } in &policy.filesystem.devices {
            let file = self.find(path, origin)?;
            if file.kind != Kind::Device {
                return Err(wrong_kind(path, file.kind, "a device node", origin));
            }
            let own = ["/dev/pts", "/dev/shm", "/dev/mqueue"].iter().any(|own| path.starts_with(own));
            if own || self.nodes.contains_key(path) {
                return Err(at(origin, format!("{} is the cell's own", path.display()))
                    .remedy("leave it out: every cell has it"));
            }
            // Read-only, which is about its times and owner: a device takes writes.
            self.put(path, bind(path, file, READ_ONLY | NO_SUID | NO_EXEC), Grant::Device, origin)?;
            self.notes
                .push(format!("the cell may open and control the device {} of the host", path.display()));
        }
        Ok(())
    }
}

/// The error for what stands at `path`, where the device `number` belongs.
fn in_the_place_of(path: &Path, number: u64, file: File, origin: &Origin) -> Error {
    let (major, minor) = (libc::major(number), libc::minor(number));
    let found = match file.character_device {
        Some(other) => format!("the character device {}:{}", libc::major(other), libc::minor(other)),
        None => file.kind.name().to_owned(),
    };
    let shown = path.display();
    at(origin, format!("{shown} is {found}, where the character device {major}:{minor} is needed"))
        .cause("something stands in the place of this host's device node, and the cell would be given that")
        .remedy(format!("put the device node back: `mknod -m 666 {shown} c {major} {minor}` makes it"))
}
