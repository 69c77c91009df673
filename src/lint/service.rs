//! What answers behind a socket, as far as its path tells.

use std::path::{Path, PathBuf};

/// A path socket that somebody listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Where it is.
    pub path: PathBuf,
    /// What answers there.
    pub service: Service,
}

/// What answers behind a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// Docker, Podman, containerd, LXD, libvirt and their like.
    Containers,
    /// systemd's own.
    ServiceManager,
    /// D-Bus.
    MessageBus,
    /// An agent of ssh.
    SshAgent,
    /// An agent of GnuPG.
    GpgAgent,
    /// X11 or Wayland.
    Display,
    /// tmux or screen.
    Terminals,
    /// Something else.
    Other,
}

impl Service {
    /// What usually answers at a path.
    pub fn of(path: &Path) -> Service {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let parent = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let engines = ["docker.sock", "podman.sock", "containerd.sock", "crio.sock", "buildkitd.sock"];
        let below = |directory: &str| path.iter().any(|part| part == directory);
        match (&*parent, &*name) {
            (_, name) if engines.contains(&name) => Service::Containers,
            ("lxd" | "incus", "unix.socket") => Service::Containers,
            _ if below("libvirt") => Service::Containers,
            ("systemd", "private") => Service::ServiceManager,
            ("dbus", "system_bus_socket") => Service::MessageBus,
            (_, "bus") if below("user") => Service::MessageBus,
            (_, name) if name.starts_with("dbus-") => Service::MessageBus,
            ("keyring", "ssh") => Service::SshAgent,
            (parent, name) if parent.starts_with("ssh-") && name.starts_with("agent.") => Service::SshAgent,
            (_, name) if name.starts_with("S.gpg-agent") => Service::GpgAgent,
            (".X11-unix", _) => Service::Display,
            (_, name) if name.starts_with("wayland-") => Service::Display,
            (parent, _) if parent.starts_with("tmux-") || parent.starts_with("S-") => Service::Terminals,
            _ => Service::Other,
        }
    }

    /// What to call its socket.
    pub fn name(self) -> &'static str {
        match self {
            Service::Containers => "a container engine or hypervisor",
            Service::ServiceManager => "the service manager",
            Service::MessageBus => "a message bus",
            Service::SshAgent => "an ssh agent",
            Service::GpgAgent => "a GnuPG agent",
            Service::Display => "a display",
            Service::Terminals => "a terminal multiplexer",
            Service::Other => "a program",
        }
    }

    /// What can be had from it.
    pub fn power(self) -> &'static str {
        match self {
            Service::Containers => "starts what it is told to, with any directory of the host, often as root",
            Service::ServiceManager => "starts programs outside of the cell",
            Service::MessageBus => "leads to services that start programs outside of the cell",
            Service::SshAgent => "signs with every key it holds, and so logs in elsewhere",
            Service::GpgAgent => "signs and decrypts with every key it holds",
            Service::Display => "lets a client see the screen, or type into other windows",
            Service::Terminals => "types into shells outside of the cell",
            Service::Other => "answers to whoever can open its socket",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Service;

    #[test]
    fn paths_tell_the_service() {
        for (path, service) in [
            ("/run/docker.sock", Service::Containers),
            ("/run/user/1000/podman/podman.sock", Service::Containers),
            ("/run/containerd/containerd.sock", Service::Containers),
            ("/var/lib/incus/unix.socket", Service::Containers),
            ("/run/libvirt/libvirt-sock", Service::Containers),
            ("/run/systemd/private", Service::ServiceManager),
            ("/run/dbus/system_bus_socket", Service::MessageBus),
            ("/run/user/1000/bus", Service::MessageBus),
            ("/tmp/dbus-Xyz", Service::MessageBus),
            ("/tmp/ssh-XXXX/agent.77", Service::SshAgent),
            ("/home/me/.gnupg/S.gpg-agent.extra", Service::GpgAgent),
            ("/tmp/.X11-unix/X0", Service::Display),
            ("/run/user/1000/wayland-0", Service::Display),
            ("/tmp/tmux-1000/default", Service::Terminals),
            ("/srv/harness/control.sock", Service::Other),
            ("/srv/bus", Service::Other),
        ] {
            assert_eq!(Service::of(path.as_ref()), service, "{path}");
        }
    }
}
