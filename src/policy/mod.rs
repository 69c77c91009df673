//! What is asked for: a plain value, read from a file and from flags.
//!
//! Nothing here looks at the host; [`load`] is the only reader of files.

pub mod check;
mod draft;
pub mod error;
pub mod file;
pub mod load;
pub mod profile;
mod recover;
pub mod schema;
pub mod secret;
pub mod show;
pub mod vars;
mod view;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use view::{View, ViewRole};

/// The place an entry was written at: `policy.toml:12` or `--ro-bind`.
///
/// Every message about an entry begins with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin(pub String);

impl Origin {
    /// Whether a built-in profile has written it.
    pub fn is_of_a_profile(&self) -> bool {
        self.0.starts_with("profile ")
    }

    /// The line of a file; 0 of a flag.
    fn line(&self) -> usize {
        self.0.rsplit(':').next().and_then(|line| line.parse().ok()).unwrap_or(0)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Origin {
    fn from(place: &str) -> Self {
        Origin(place.to_owned())
    }
}

impl From<&Origin> for Origin {
    fn from(place: &Origin) -> Self {
        place.clone()
    }
}

/// A resolved policy: variables filled in, profiles merged, flags added,
/// every path absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which sandbox the provider lives in.
    pub mode: Mode,
    /// The cell itself.
    pub cell: Cell,
    /// The file tree.
    pub filesystem: Filesystem,
    /// The run's own part of a shared instance.
    pub run: RunScope,
    /// The directory by which the provider reports activity.
    pub channel: Option<Channel>,
    /// The tree the provider works on.
    pub workspace: Option<Workspace>,
    /// The provider's environment.
    pub environment: Environment,
    /// The provider's network.
    pub network: Network,
    /// The system call filter.
    pub seccomp: Seccomp,
    /// What the cell may use.
    pub limits: Limits,
    /// What the host must have and what may be left out.
    pub require: Require,
    /// The warnings that are known of and meant, by name.
    pub accept: Vec<String>,
}

/// Who is the sandbox of the provider's tools.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The cell does. All layers are applied, and nothing inside can make another sandbox.
    #[default]
    Sealed,
    /// The provider does, inside the cell.
    Nested,
}

/// The cell itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Host name inside.
    pub hostname: String,
    /// Where the provider starts; without it the workspace, else the home.
    pub workdir: Option<PathBuf>,
    /// `HOME`, and a tmpfs unless another entry makes it.
    pub home: PathBuf,
    /// Wall time after which the run is ended.
    pub timeout: Option<Duration>,
    /// Time between TERM and KILL at a timeout.
    pub timeout_grace: Duration,
    /// Which permissions new files do not get.
    pub umask: Umask,
}

/// The provider's umask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Umask {
    /// As the launcher's was when it started.
    Inherit,
    /// This one.
    Mask(u32),
}

/// The file tree of the cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filesystem {
    /// How much of the host's system is seen.
    pub system: System,
    /// Read-only views.
    pub ro_bind: Vec<Bind>,
    /// Writable views.
    pub bind: Vec<Bind>,
    /// Fresh memory file systems.
    pub tmpfs: Vec<Tmpfs>,
    /// Devices of the host, at the paths they have there.
    pub devices: Vec<Entry>,
}

/// How much of the host's system the cell sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// `/usr` and its links, and of `/etc` and `/var/lib` what programs below `/usr` read.
    #[default]
    Minimal,
    /// The same, and all of `/etc` that every user of the host may read.
    Full,
    /// Nothing: every file of the cell is named by the policy.
    None,
}

/// A view of a host path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Path on the host.
    pub src: PathBuf,
    /// Path in the cell.
    pub dest: PathBuf,
    /// Left out where the host has no such path.
    pub optional: bool,
    /// Shown through an overlay: the mount table does not name the source.
    pub overlay: bool,
    /// Where it was written.
    pub origin: Origin,
}

/// A fresh memory file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tmpfs {
    /// Path in the cell.
    pub path: PathBuf,
    /// Bytes it may hold; the kernel's default is half of the memory.
    pub size: Option<u64>,
    /// Where it was written.
    pub origin: Origin,
}

/// Which parts of a shared instance are this run's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunScope {
    /// Paths of the host that no view may show.
    pub hide: Vec<Entry>,
    /// Writable at the path they have on the host.
    pub expose: Vec<Expose>,
    /// Directories that are made on the host where they are missing.
    pub create: Vec<Entry>,
}

/// One writable part of the instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expose {
    /// Path on the host and in the cell.
    pub path: PathBuf,
    /// What it is, and what is made when it is missing.
    pub kind: ExposeKind,
    /// Made, with the run's owner, when it is missing.
    pub create: bool,
    /// Where it was written.
    pub origin: Origin,
}

/// What an exposure is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExposeKind {
    /// A directory, made with mode 0700.
    #[default]
    Directory,
    /// A regular file, made with mode 0600.
    File,
}

/// The private directory by which the provider reports activity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The directory, at the path it has on the host.
    pub dir: PathBuf,
    /// FIFOs that take writes.
    pub fifo: Vec<Entry>,
    /// Locks that are the harness's own.
    pub lock: Vec<Entry>,
    /// Whether a helper in the cell may take a lock for reading.
    pub lock_access: LockAccess,
    /// Files and directories that may be read.
    pub read_only: Vec<Entry>,
    /// Programs that may be read and run.
    pub execute: Vec<Entry>,
    /// Whether the directory itself takes new entries.
    pub replaceable: bool,
    /// Where it was written.
    pub origin: Origin,
}

/// A path, absolute, as on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The path.
    pub path: PathBuf,
    /// Where it was written.
    pub origin: Origin,
}

/// What the cell may do with a lock file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LockAccess {
    /// Not even open it.
    #[default]
    None,
    /// Open it for reading, which is enough to take it.
    Read,
}

/// The tree the provider works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Path on the host.
    pub dir: PathBuf,
    /// Path in the cell.
    pub at: PathBuf,
    /// Whether it takes writes.
    pub access: Access,
    /// What stays as it is in a workspace that takes writes.
    pub protect: Vec<Protect>,
    /// How it is kept that way where it is missing.
    pub protect_missing: ProtectMissing,
    /// What it comes to when the run changed something that git tracks or runs.
    pub told: Telling,
    /// Where it was written.
    pub origin: Origin,
}

/// A part of the workspace that the provider may not change, as somebody else
/// will run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protect {
    /// Path below the workspace, relative.
    pub path: PathBuf,
    /// What stands for it where it is missing: a directory, or else a file.
    pub is_directory: bool,
    /// Where it was written.
    pub origin: Origin,
}

/// What is done about a protected path that the workspace does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProtectMissing {
    /// What the run made there is removed when it has ended.
    #[default]
    Sweep,
    /// It cannot be made: the workspace is an overlay that has it, empty.
    Overlay,
}

/// The warnings that can be accepted, by name; docs/policy.md explains each.
pub const WARNINGS: [&str; 25] = [
    "unused-variable",
    "set-gid-tree",
    "repository-not-shown",
    "socket-in-view",
    "credentials-in-view",
    "home-in-view",
    "writable-startup",
    "writable-path",
    "writable-cell-path",
    "harness-in-view",
    "policy-in-view",
    "channel-in-rights",
    "source-missing",
    "hidden-missing",
    "channel-granted-whole",
    "host-network",
    "loopback-listener",
    "cloud-metadata",
    "group-keeps-power",
    "secret-variable",
    "device-granted",
    "nested-mode",
    "layer-off",
    "layer-optional",
    "host-unread",
];

/// What a change comes to that is told at the end of a run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Telling {
    /// Print a line, which is in the report too.
    #[default]
    Warn,
    /// Also end the run with exit status 125.
    Error,
}

/// `PATH` of the provider where no policy says.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What is protected where no policy says: what a shell, a version control
/// system, an editor or an agent outside of the cell runs by itself.
pub const PROTECT: [&str; 14] = [
    ".git/hooks/",
    ".git/commondir",
    ".git/config.worktree",
    ".envrc",
    ".vscode/",
    ".mcp.json",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".codex/",
    ".opencode/",
    "opencode.json",
    ".gemini/settings.json",
    ".cursor/",
    ".idea/",
];

/// The ways by which git takes its hooks and settings from elsewhere. Who
/// protects something in `.git` protects these.
pub const WAYS_AROUND: [&str; 2] = [".git/commondir", ".git/config.worktree"];

/// Whether a tree takes writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Every write is EROFS.
    ReadOnly,
    /// Writes land on the host.
    #[default]
    ReadWrite,
}

/// The provider's environment, beside PATH, HOME, TMPDIR, LANG, USER and, on a
/// terminal, TERM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Variables taken from the launcher's environment, where it has them.
    pub pass: Vec<String>,
    /// Variables and their values.
    pub set: BTreeMap<String, String>,
}

/// The provider's network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Which network namespace.
    pub mode: NetworkMode,
}

/// Which network the cell has.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkMode {
    /// A namespace with nothing but loopback.
    #[default]
    None,
    /// The network of the host.
    Host,
}

/// The system call filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seccomp {
    /// A name from `filters/`; without it the one that fits the mode.
    pub filter: Option<String>,
    /// A filter of one's own, laid on beside it.
    pub file: Option<Entry>,
}

/// What the cell may use. A lower limit of the launcher's holds in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many processes and threads.
    pub processes: u64,
    /// How many descriptors a process may have; without it, as many as the launcher.
    pub open_files: Option<u64>,
    /// How many bytes a file may grow to.
    pub file_size: Option<u64>,
    /// How many bytes each memory file system holds that has no size of its own;
    /// without it, half of the memory.
    pub tmp: Option<u64>,
}

/// What the host must have, and what may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Require {
    /// Lowest Landlock ABI.
    pub landlock: u32,
    /// Layers that may be missing on the host.
    pub allow_missing: Vec<Layer>,
    /// Layers that are turned off.
    pub without: Vec<Layer>,
}

/// A layer that can be waived by name.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// The Landlock domain.
    Landlock,
    /// Landlock's scopes for signals and abstract sockets.
    LandlockScope,
    /// The system call filter.
    Seccomp,
    /// The network namespace.
    Network,
    /// The cgroup namespace.
    Cgroup,
}

impl Policy {
    /// Every path on the host that the cell is built of.
    pub fn host_paths_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let Filesystem { ro_bind, bind, .. } = &mut self.filesystem;
        let RunScope { hide, expose, create } = &mut self.run;
        let channel = self.channel.iter_mut().flat_map(|channel| {
            let Channel { dir, fifo, lock, read_only, execute, .. } = channel;
            let entries = [fifo, lock, read_only, execute].into_iter().flatten();
            entries.map(|entry| &mut entry.path).chain([dir])
        });
        let binds = ro_bind.iter_mut().chain(bind).map(|bind| &mut bind.src);
        let scope = hide.iter_mut().chain(create).map(|entry| &mut entry.path);
        let exposures = expose.iter_mut().map(|expose| &mut expose.path);
        let workspace = self.workspace.iter_mut().map(|workspace| &mut workspace.dir);
        binds.chain(scope).chain(exposures).chain(channel).chain(workspace)
    }
}

impl Layer {
    /// Its name, as in a policy.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Landlock => "landlock",
            Layer::LandlockScope => "landlock-scope",
            Layer::Seccomp => "seccomp",
            Layer::Network => "network",
            Layer::Cgroup => "cgroup",
        }
    }
}

impl Default for Cell {
    fn default() -> Self {
        Cell {
            hostname: "cell".into(),
            workdir: None,
            home: "/home/agent".into(),
            timeout: None,
            timeout_grace: Duration::from_secs(10),
            umask: Umask::Mask(0o022),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        // Twice what Podman gives a container; builds and browsers need hundreds.
        Limits { processes: 4096, open_files: None, file_size: None, tmp: None }
    }
}

impl Default for Require {
    fn default() -> Self {
        Require { landlock: 1, allow_missing: Vec::new(), without: Vec::new() }
    }
}
