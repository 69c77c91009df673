//! One step: one operation of the kernel on one object.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::limits::rlimits::Resource;
use crate::sys::fd::Identity;
use crate::sys::landlock::Handled;
use crate::sys::mount::{Attributes, NO_DEV, NO_EXEC, NO_SUID, READ_ONLY};
use crate::sys::seccomp::Insn;

/// A string that the kernel is given.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(CString);

impl Text {
    /// The string; `None` where it holds a NUL.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Option<Text> {
        CString::new(bytes).ok().map(Text)
    }
}

impl From<CString> for Text {
    fn from(string: CString) -> Text {
        Text(string)
    }
}

impl From<&CStr> for Text {
    fn from(string: &CStr) -> Text {
        Text(string.to_owned())
    }
}

impl std::ops::Deref for Text {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        &self.0
    }
}

impl AsRef<CStr> for Text {
    fn as_ref(&self) -> &CStr {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.to_string_lossy().fmt(f)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Text {
    fn schema_name() -> Cow<'static, str> {
        String::schema_name()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

/// What [`Step::Mask`] puts over a file: a mount that every cell has, which may be
/// neither written nor executed.
pub const EMPTY_FILE: &CStr = c"dev/null";

/// What it puts over a directory: a mount of the same attributes.
pub const EMPTY_DIRECTORY: &CStr = c"dev/empty";

/// A part of the set-up, by which errors name where they arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The clone into new namespaces.
    Namespaces,
    /// User and group ids.
    Ids,
    /// The file tree.
    Mounts,
    /// `/proc`.
    Proc,
    /// `/dev`.
    Dev,
    /// The change of root.
    Root,
    /// Host name.
    Hostname,
    /// Network.
    Network,
    /// Keyring, capabilities, and what else init gives up.
    Credentials,
    /// Standard streams and inherited descriptors.
    Descriptors,
    /// The clone of the provider's process.
    Process,
    /// Session and terminal.
    Session,
    /// Resource limits.
    Limits,
    /// The working directory.
    Workdir,
    /// The Landlock domain.
    Landlock,
    /// The system call filter.
    Seccomp,
    /// The run's own state.
    Exposures,
    /// The test from within.
    Verify,
    /// The provider's program.
    Exec,
}

impl Stage {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Namespaces => "namespaces",
            Stage::Ids => "ids",
            Stage::Mounts => "mounts",
            Stage::Proc => "proc",
            Stage::Dev => "dev",
            Stage::Root => "root",
            Stage::Hostname => "hostname",
            Stage::Network => "network",
            Stage::Credentials => "credentials",
            Stage::Descriptors => "descriptors",
            Stage::Process => "process",
            Stage::Session => "session",
            Stage::Limits => "limits",
            Stage::Workdir => "workdir",
            Stage::Landlock => "landlock",
            Stage::Seccomp => "seccomp",
            Stage::Exposures => "exposures",
            Stage::Verify => "verify",
            Stage::Exec => "exec",
        }
    }
}

/// The files of `/proc/self` that hold the id maps, in the order the kernel
/// wants them written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IdFile {
    /// `deny`, without which an unprivileged process may not map groups.
    Setgroups,
    /// The user id.
    UidMap,
    /// The group id.
    GidMap,
}

impl IdFile {
    /// Its path.
    pub fn path(self) -> &'static CStr {
        match self {
            IdFile::Setgroups => c"/proc/self/setgroups",
            IdFile::UidMap => c"/proc/self/uid_map",
            IdFile::GidMap => c"/proc/self/gid_map",
        }
    }
}

/// What the kernel is told, in the order of the plan. Paths without a leading
/// slash begin at the new root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "step")]
pub enum Step {
    /// Goes to the cgroup that the launcher has made for it.
    EnterCgroup,
    /// Makes a cgroup namespace, whose root is the cgroup it is in.
    NewCgroupNamespace,
    /// Waits until the launcher, which is root, has written the id maps.
    AwaitIdMaps,
    /// Becomes the id of the run.
    SetIds {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
    /// Writes one id map of the user namespace.
    WriteIdMap {
        /// Which.
        file: IdFile,
        /// What.
        content: Text,
    },
    /// Is killed when the launcher dies, and ends here if it has died already.
    DieWithLauncher,
    /// A tmpfs over `/`, in which the tree is built.
    NewRoot,
    /// A directory of the cell's own.
    MakeDirectory {
        /// Where.
        path: Text,
        /// Its mode.
        mode: u32,
    },
    /// A symbolic link of the cell's own.
    MakeSymlink {
        /// Where.
        path: Text,
        /// What it says.
        target: Text,
    },
    /// A file of the cell's own: a made-up one, or an empty one to mount over.
    MakeFile {
        /// Where.
        path: Text,
        /// What it holds.
        #[serde(serialize_with = "length", rename = "bytes")]
        #[schemars(with = "u64")]
        content: Arc<[u8]>,
    },
    /// What an overlay takes for "nothing here".
    MakeWhiteout {
        /// Where, in its upper layer.
        path: Text,
    },
    /// A view of the host's tree.
    Bind {
        /// Path on the host.
        source: Text,
        /// Which file that was when the plan was made; `None` for what will be
        /// made first.
        #[serde(skip)]
        identity: Option<Identity>,
        /// Left out where it has gone since: one of many that nobody named.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        may_vanish: bool,
        /// Where.
        path: Text,
        /// What it may not do.
        #[serde(serialize_with = "attribute_names")]
        #[schemars(with = "Vec<String>")]
        attributes: Attributes,
        /// The part of the set-up it belongs to.
        stage: Stage,
    },
    /// Makes sure that a part of a view is what it was when the plan was made.
    MustBe {
        /// Of the new root.
        path: Text,
        /// Which file.
        #[serde(skip)]
        identity: Identity,
    },
    /// A fresh file system.
    Mount {
        /// Its type.
        filesystem: Text,
        /// Its options.
        options: Vec<(Text, Text)>,
        /// Where.
        path: Text,
        /// What it may not do.
        #[serde(serialize_with = "attribute_names")]
        #[schemars(with = "Vec<String>")]
        attributes: Attributes,
        /// The part of the set-up it belongs to.
        stage: Stage,
    },
    /// A path of the new tree mounted once more, over itself or over another.
    Cover {
        /// What is seen then.
        source: Text,
        /// The number of its inode, where the plan knows it.
        #[serde(skip)]
        inode: Option<u64>,
        /// Where.
        path: Text,
        /// What it may not do.
        #[serde(serialize_with = "attribute_names")]
        #[schemars(with = "Vec<String>")]
        attributes: Attributes,
    },
    /// Covers what the cell's own procfs has of this name with something empty of
    /// its kind; nothing, where this kernel has no such entry.
    Mask {
        /// Where.
        path: Text,
    },
    /// Writes a sysctl of the cell's own namespaces.
    WriteSysctl {
        /// Its file.
        path: Text,
        /// Its value.
        value: Text,
    },
    /// Makes one mount read-only; `.` is the root's own tmpfs.
    Seal {
        /// Where.
        path: Text,
    },
    /// Takes a mount away that others were made of.
    Detach {
        /// Where.
        path: Text,
    },
    /// Removes an empty directory of the cell's own.
    RemoveDirectory {
        /// Where.
        path: Text,
    },
    /// Changes the root to the new tree.
    PivotRoot,
    /// Takes the host's tree out of the namespace.
    DetachOldRoot,
    /// Sets the host name.
    SetHostname {
        /// To this.
        name: Text,
    },
    /// Brings up the loopback interface.
    LoopbackUp,
    /// Has a process beside init make a network namespace and bring its loopback up.
    StartNetwork,
    /// Enters that namespace.
    EnterNetwork,
    /// Leaves the harness's session keyring.
    NewSessionKeyring,
    /// Every signal to its default disposition.
    ResetSignals,
    /// A session of the cell's own, with a terminal where the launcher has one.
    NewSession {
        /// Whether a pseudo-terminal of the cell's own controls it.
        terminal: bool,
    },
    /// Empties all five capability sets.
    DropCapabilities,
    /// Empties `/proc/1/cmdline` and `environ`.
    ClearCommandLine,
    /// Lets nobody look into init.
    ClearDumpable,
    /// Starts the provider's process; the steps behind this one are its own.
    StartProvider,
    /// A process group of its own, in the foreground of the terminal.
    NewProcessGroup {
        /// In a session of its own, too, which has no terminal.
        leads_session: bool,
    },
    /// Puts the standard streams in place and closes every other descriptor.
    SetDescriptors {
        /// But for these.
        keep: Vec<i32>,
    },
    /// Sets both limits of a resource.
    SetLimit {
        /// Which.
        resource: Resource,
        /// To this.
        value: u64,
    },
    /// Sets the mask for new files, whatever the harness's was.
    SetUmask {
        /// The bits that new files do not get.
        mask: u32,
    },
    /// Goes to the working directory.
    ChangeDirectory {
        /// Of the cell.
        path: Text,
    },
    /// Gives up every privilege that execve(2) could give.
    NoNewPrivs,
    /// Makes a Landlock ruleset.
    CreateRuleset {
        /// What it denies.
        #[serde(serialize_with = "handled_rights")]
        #[schemars(with = "BTreeMap<String, Vec<String>>")]
        handled: Handled,
    },
    /// Grants rights on one tree.
    AllowPath {
        /// Of the cell.
        path: Text,
        /// `LANDLOCK_ACCESS_FS_*`
        #[serde(serialize_with = "super::landlock::right_names")]
        #[schemars(with = "Vec<String>")]
        access: u64,
    },
    /// Enters the domain.
    RestrictSelf,
    /// Lays the filter on.
    InstallFilter {
        /// Its name.
        name: String,
        /// Its program.
        #[serde(serialize_with = "instruction_count", rename = "instructions")]
        #[schemars(with = "u64")]
        program: Cow<'static, [Insn]>,
    },
    /// Opens an exposure as the provider will: one that is granted and cannot be
    /// used would be found out too late.
    MustBeReadable {
        /// Of the cell.
        path: Text,
    },
    /// Takes the plan's probes, in a process of its own under every layer.
    TestFromWithin,
    /// Waits until the launcher has read what was applied.
    WaitAtGate,
    /// Becomes the provider.
    Execute,
}

impl Step {
    /// The part of the set-up that a failure of it belongs to.
    pub fn stage(&self) -> Stage {
        match self {
            Step::EnterCgroup | Step::NewCgroupNamespace => Stage::Namespaces,
            Step::AwaitIdMaps | Step::SetIds { .. } | Step::WriteIdMap { .. } | Step::DieWithLauncher => {
                Stage::Ids
            }
            Step::NewRoot
            | Step::MakeDirectory { .. }
            | Step::MakeSymlink { .. }
            | Step::MakeFile { .. }
            | Step::MakeWhiteout { .. }
            | Step::MustBe { .. }
            | Step::Detach { .. }
            | Step::RemoveDirectory { .. } => Stage::Mounts,
            Step::Bind { stage, .. } | Step::Mount { stage, .. } => *stage,
            Step::Cover { path, .. } if !path.to_bytes().starts_with(b"proc/") => Stage::Mounts,
            Step::Cover { .. } | Step::Mask { .. } | Step::WriteSysctl { .. } => Stage::Proc,
            Step::Seal { path } if path.to_bytes() == b"proc" => Stage::Proc,
            Step::Seal { path } if path.to_bytes() != b"." => Stage::Mounts,
            Step::Seal { .. } | Step::PivotRoot | Step::DetachOldRoot => Stage::Root,
            Step::SetHostname { .. } => Stage::Hostname,
            Step::LoopbackUp | Step::StartNetwork | Step::EnterNetwork => Stage::Network,
            Step::NewSessionKeyring
            | Step::DropCapabilities
            | Step::ClearCommandLine
            | Step::ClearDumpable
            | Step::NoNewPrivs => Stage::Credentials,
            Step::ResetSignals | Step::NewSession { .. } | Step::NewProcessGroup { .. } => Stage::Session,
            Step::StartProvider => Stage::Process,
            Step::SetDescriptors { .. } => Stage::Descriptors,
            Step::SetLimit { .. } | Step::SetUmask { .. } => Stage::Limits,
            Step::MustBeReadable { .. } => Stage::Exposures,
            Step::ChangeDirectory { .. } => Stage::Workdir,
            Step::CreateRuleset { .. } | Step::AllowPath { .. } | Step::RestrictSelf => Stage::Landlock,
            Step::InstallFilter { .. } => Stage::Seccomp,
            Step::TestFromWithin => Stage::Verify,
            Step::WaitAtGate | Step::Execute => Stage::Exec,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::EnterCgroup => f.write_str("enter the cell's own cgroup"),
            Step::NewCgroupNamespace => f.write_str("new cgroup namespace"),
            Step::AwaitIdMaps => f.write_str("wait for the id maps"),
            Step::SetIds { uid, gid } => write!(f, "become {uid}:{gid}"),
            Step::WriteIdMap { file, content } => {
                write!(f, "write {content:?} to {}", file.path().to_string_lossy())
            }
            Step::DieWithLauncher => f.write_str("die with the launcher"),
            Step::NewRoot => f.write_str("tmpfs over /"),
            Step::MakeDirectory { path, mode } => write!(f, "directory /{path} mode {mode:04o}"),
            Step::MakeSymlink { path, target } => write!(f, "link /{path} -> {target}"),
            Step::MakeFile { path, content } => {
                write!(f, "file /{path}, {} bytes", content.len())
            }
            Step::Bind { source, path, attributes, .. } => {
                write!(f, "bind {source} on /{path} ({})", Names(*attributes))
            }
            Step::Mount { filesystem, options, path, attributes, .. } => {
                write!(f, "{filesystem} on /{path} ({}", Names(*attributes))?;
                for (key, value) in options {
                    let equals = if value.is_empty() { "" } else { "=" };
                    write!(f, ",{key}{equals}{value}")?;
                }
                f.write_str(")")
            }
            Step::MakeWhiteout { path } => write!(f, "whiteout /{path}"),
            Step::MustBe { path, .. } => write!(f, "/{path} is what it was"),
            Step::Cover { source, path, attributes, .. } => {
                write!(f, "cover /{path} with /{source} ({})", Names(*attributes))
            }
            Step::Mask { path } => {
                write!(f, "cover /{path}, if there is one, with an empty entry of its kind")
            }
            Step::WriteSysctl { path, value } => write!(f, "write {value} to /{path}"),
            Step::Seal { path } if path.to_bytes() == b"." => f.write_str("make / read-only"),
            Step::Seal { path } => write!(f, "make /{path} read-only"),
            Step::Detach { path } => write!(f, "detach /{path}"),
            Step::RemoveDirectory { path } => write!(f, "remove directory /{path}"),
            Step::PivotRoot => f.write_str("change the root"),
            Step::DetachOldRoot => f.write_str("detach the old root"),
            Step::SetHostname { name } => write!(f, "host name {name}"),
            Step::LoopbackUp => f.write_str("bring up loopback"),
            Step::StartNetwork => f.write_str("make a network namespace in a process beside this one"),
            Step::EnterNetwork => f.write_str("enter that network namespace, whose loopback is up"),
            Step::NewSessionKeyring => f.write_str("join a new session keyring"),
            Step::ResetSignals => f.write_str("reset signals"),
            Step::NewSession { terminal: false } => f.write_str("new session"),
            Step::NewSession { terminal: true } => {
                f.write_str("new session, with a terminal of the cell's own")
            }
            Step::DropCapabilities => f.write_str("empty every capability set"),
            Step::ClearCommandLine => f.write_str("clear init's command line"),
            Step::ClearDumpable => f.write_str("make init non-dumpable"),
            Step::StartProvider => f.write_str("start the provider's process"),
            Step::NewProcessGroup { leads_session: false } => f.write_str("new process group"),
            Step::NewProcessGroup { leads_session: true } => f.write_str("new process group and session"),
            Step::SetDescriptors { keep } if keep.is_empty() => f.write_str("keep descriptors 0-2 alone"),
            Step::SetDescriptors { keep } => write!(f, "keep descriptors 0-2 and {keep:?}"),
            Step::SetLimit { resource, value } => write!(f, "limit {} to {value}", resource.name()),
            Step::SetUmask { mask } => write!(f, "umask {mask:04o}"),
            Step::ChangeDirectory { path } => write!(f, "go to {path}"),
            Step::NoNewPrivs => f.write_str("no new privileges"),
            Step::CreateRuleset { handled } => write!(
                f,
                "Landlock ruleset: {} file rights, {} scopes",
                handled.fs.count_ones(),
                handled.scoped.count_ones()
            ),
            Step::AllowPath { path, access } => {
                write!(f, "allow {path}: {}", super::landlock::rights(*access).join(","))
            }
            Step::RestrictSelf => f.write_str("enter the Landlock domain"),
            Step::InstallFilter { name, program } => {
                write!(f, "filter {name}, {} instructions", program.len())
            }
            Step::MustBeReadable { path } => write!(f, "open {path}"),
            Step::TestFromWithin => f.write_str("test the cell from within"),
            Step::WaitAtGate => f.write_str("wait at the gate"),
            Step::Execute => f.write_str("execute the provider"),
        }
    }
}

/// Mount attributes as mount(8) names them.
struct Names(Attributes);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 & READ_ONLY != 0 { "ro" } else { "rw" })?;
        for (bit, name) in [(NO_SUID, ",nosuid"), (NO_DEV, ",nodev"), (NO_EXEC, ",noexec")] {
            if self.0 & bit != 0 {
                f.write_str(name)?;
            }
        }
        Ok(())
    }
}

fn attribute_names<S: Serializer>(attributes: &Attributes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(Names(*attributes).to_string().split(','))
}

fn handled_rights<S: Serializer>(handled: &Handled, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeMap;
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry("fs", &super::landlock::rights(handled.fs))?;
    map.serialize_entry("scoped", &super::landlock::scopes(handled.scoped))?;
    map.end()
}

fn length<S: Serializer>(content: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    content.len().serialize(serializer)
}

fn instruction_count<S: Serializer>(program: &[Insn], serializer: S) -> Result<S::Ok, S::Error> {
    program.len().serialize(serializer)
}
