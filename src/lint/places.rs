//! Well-known places on a host.

/// Sockets that may have been bound in another network namespace; `~` is a
/// home, `$` the directory `XDG_RUNTIME_DIR`.
pub(super) const SOCKETS: [&str; 19] = [
    "/run/docker.sock",
    "$/docker.sock",
    "/run/podman/podman.sock",
    "$/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/buildkit/buildkitd.sock",
    "/var/lib/lxd/unix.socket",
    "/var/lib/incus/unix.socket",
    "/run/libvirt/libvirt-sock",
    "/run/systemd/private",
    "$/systemd/private",
    "/run/dbus/system_bus_socket",
    "$/bus",
    "~/.gnupg/S.gpg-agent",
    "$/gnupg/S.gpg-agent",
    "$/keyring/ssh",
    "/tmp/.X11-unix/X0",
    "$/wayland-0",
];

/// Credentials, below a home.
pub(super) const CREDENTIALS: [&str; 22] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".docker",
    ".kube",
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".npmrc",
    ".pypirc",
    ".cargo/credentials.toml",
    ".password-store",
    ".local/share/keyrings",
    ".vault-token",
    // Agents'.
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".local/share/opencode/auth.json",
    ".gemini/oauth_creds.json",
    ".config/github-copilot",
];

/// What a shell, a session, ssh, git or an agent runs or obeys by itself, below
/// a home, whether it is there or not.
pub(super) const STARTUP: [&str; 20] = [
    ".profile",
    ".bash_profile",
    ".bash_login",
    ".bashrc",
    ".zshenv",
    ".zprofile",
    ".zshrc",
    ".config/fish",
    ".xprofile",
    ".config/autostart",
    ".config/environment.d",
    ".config/systemd/user",
    ".local/share/systemd/user",
    ".ssh",
    ".gitconfig",
    ".config/git",
    ".claude/settings.json",
    ".codex/config.toml",
    ".config/opencode",
    ".gemini/settings.json",
];

/// Groups whose members reach past the ordinary.
pub(super) const GROUPS: [&str; 13] = [
    "root",
    "docker",
    "podman",
    "libvirt",
    "lxd",
    "incus",
    "incus-admin",
    "disk",
    "sudo",
    "wheel",
    "adm",
    "shadow",
    "systemd-journal",
];
