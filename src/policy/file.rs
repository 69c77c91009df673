//! A policy file as it is written: what `policy schema` describes, what
//! [`super::load`] reads and what [`super::show`] writes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{Access, ExposeKind, Layer, LockAccess, Mode, NetworkMode, ProtectMissing, System, Telling};

/// What a cell holds. `${name}` in a string is the value of `--var
/// name=VALUE`, `${env:NAME}` that of an environment variable, `$$` a dollar.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "cellblock policy")]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The version of this format; 1.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// Built-in profiles and files that this file adds to. A word with a `/` or `.toml` is a file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extends: Vec<At<String>>,
    /// Warnings of `policy check` to leave out, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accept: Vec<At<String>>,
    /// Who sandboxes the provider's tools. Default `sealed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The cell itself.
    #[serde(default)]
    pub cell: CellTable,
    /// The file tree.
    #[serde(default)]
    pub filesystem: FilesystemTable,
    /// The run's own part of a shared instance.
    #[serde(default, skip_serializing_if = "RunTable::is_empty")]
    pub run: RunTable,
    /// The directory by which the provider reports to the harness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<At<ChannelTable>>,
    /// The tree the provider works on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<At<WorkspaceTable>>,
    /// The provider's environment.
    #[serde(default, skip_serializing_if = "EnvironmentTable::is_empty")]
    pub environment: EnvironmentTable,
    /// The provider's network.
    #[serde(default)]
    pub network: NetworkTable,
    /// The system call filter.
    #[serde(default, skip_serializing_if = "SeccompTable::is_empty")]
    pub seccomp: SeccompTable,
    /// What the cell may use.
    #[serde(default, skip_serializing_if = "LimitsTable::is_empty")]
    pub limits: LimitsTable,
    /// What the host must have, and what may be missing or off.
    #[serde(default)]
    pub require: RequireTable,
}

/// The cell itself.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "the table [cell]")]
pub struct CellTable {
    /// Host name inside: up to 64 letters, digits, `-` and `.`. Default `cell`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<At<String>>,
    /// Where the provider starts, as the cell sees it; by default the
    /// workspace, else the home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<At<String>>,
    /// `HOME`. It is in memory unless another entry puts something there. Default `/home/agent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home: Option<At<String>>,
    /// Wall time after which the run ends: `90s`, `30m`, `1h30m`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<At<String>>,
    /// Time between TERM and KILL, at a timeout and when the launcher is sent TERM. Default `10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_grace: Option<At<String>>,
    /// The permissions that new files do not get: an octal number, or `inherit` for the
    /// launcher's own. Default `022`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub umask: Option<At<String>>,
}

/// The file tree.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "the table [filesystem]")]
pub struct FilesystemTable {
    /// How much of the host's system the cell sees. Default `minimal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<System>,
    /// Read-only views.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ro_bind: Vec<At<PathOr<BindTable>>>,
    /// Writable views.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bind: Vec<At<PathOr<BindTable>>>,
    /// Fresh memory file systems.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tmpfs: Vec<At<PathOr<TmpfsTable>>>,
    /// Device nodes below `/dev` that the cell may open and control: `/dev/kvm`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<At<String>>,
}

/// A view of a host path.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BindTable {
    /// Path on the host.
    pub src: String,
    /// Path in the cell. Default: the path of `src`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dest: Option<String>,
    /// Leave the entry out if the host has no such path. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub optional: bool,
    /// Show a directory through an overlay, so that the mount table does not name `src`. Only
    /// in `ro_bind`. FIFOs and sockets in it are not the host's. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overlay: bool,
}

/// A fresh memory file system.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TmpfsTable {
    /// Path in the cell.
    pub path: String,
    /// Its size: bytes, or a number with K, M, G or T in binary units. Default: `limits.tmp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
}

/// The run's own part of a shared instance.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "the table [run]")]
pub struct RunTable {
    /// Paths of the host that no view may show.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hide: Vec<At<String>>,
    /// Paths of the host that are writable at the same path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expose: Vec<At<PathOr<ExposeTable>>>,
    /// Directories to make on the host, with mode 0700, if they are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub create: Vec<At<String>>,
}

/// One writable part of the instance.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExposeTable {
    /// Path on the host and in the cell.
    pub path: String,
    /// What it is, and what is made if it is missing. Default `directory`.
    #[serde(default)]
    pub kind: ExposeKind,
    /// Make it if it is missing. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub create: bool,
}

/// The directory by which the provider reports to the harness. Its entries count
/// from `dir`.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "the table [channel]")]
pub struct ChannelTable {
    /// The directory, at the same path in the cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<At<String>>,
    /// FIFOs that take writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fifo: Vec<At<String>>,
    /// Locks of the harness.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lock: Vec<At<String>>,
    /// Whether a helper in the cell may take a lock for reading. Default `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_access: Option<LockAccess>,
    /// Files and directories to read. They may be outside of `dir`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_only: Vec<At<String>>,
    /// Programs to read and run. They may be outside of `dir`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub execute: Vec<At<String>>,
    /// Whether the directory itself takes new entries. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaceable: Option<bool>,
}

/// The tree the provider works on.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "the table [workspace]")]
pub struct WorkspaceTable {
    /// Path on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<At<String>>,
    /// Path in the cell, or `same` for the path that it has on the host. Default `/work`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<At<String>>,
    /// Whether it takes writes. Default `read-write`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// Paths below the workspace that the run must not change. One that ends in `/` is a
    /// directory. Default: what others run by themselves, such as hooks and the settings
    /// of editors and agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protect: Option<Vec<At<String>>>,
    /// What happens to a protected path that does not exist. Default `sweep`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protect_missing: Option<ProtectMissing>,
    /// What happens if the run changed a protected path that git tracks, or a setting by
    /// which git runs something. Default `warn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told: Option<Telling>,
}

/// The provider's environment, beside PATH, HOME, TMPDIR, LANG, USER and, on a
/// terminal, TERM.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "the table [environment]")]
pub struct EnvironmentTable {
    /// Variables taken from the launcher's environment, if it has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pass: Vec<At<String>>,
    /// Variables and their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, At<String>>,
}

/// The provider's network.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "the table [network]")]
pub struct NetworkTable {
    /// Which network the cell has. Default `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<NetworkMode>,
}

/// The system call filter.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "the table [seccomp]")]
pub struct SeccompTable {
    /// A built-in filter: `provider`, `nested`, or either with `-set-gid` behind it. Default: the filter of
    /// the mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<At<String>>,
    /// A filter of your own, installed in addition: a raw BPF program or, with a name in
    /// `.json`, seccompiler's JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<At<String>>,
}

/// What the cell may use. A lower limit of the launcher's holds in any case.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "the table [limits]")]
pub struct LimitsTable {
    /// Processes and threads of the cell at one time. Default 4096.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub processes: Option<At<u64>>,
    /// Open files and sockets of each process. Default: the launcher's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub open_files: Option<At<u64>>,
    /// Size of a file: bytes, or a number with K, M, G or T. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size: Option<At<String>>,
    /// Size of `/tmp`, the home, `/dev/shm` and each tmpfs without a size. Default: half of
    /// the memory each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tmp: Option<At<String>>,
}

/// What the host must have, and what may be missing or off.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "the table [require]")]
pub struct RequireTable {
    /// Lowest Landlock ABI. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub landlock: Option<At<u32>>,
    /// Layers that the host may lack.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_missing: Vec<Layer>,
    /// Layers to turn off: only `landlock`, `seccomp` and `network`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<At<Layer>>,
}

// Each takes its table apart, so that a key which is added and forgotten here does
// not compile: what `is_empty` overlooks is not shown.
impl RunTable {
    fn is_empty(&self) -> bool {
        let RunTable { hide, expose, create } = self;
        hide.is_empty() && expose.is_empty() && create.is_empty()
    }
}

impl EnvironmentTable {
    fn is_empty(&self) -> bool {
        let EnvironmentTable { pass, set } = self;
        pass.is_empty() && set.is_empty()
    }
}

impl LimitsTable {
    fn is_empty(&self) -> bool {
        let LimitsTable { processes, open_files, file_size, tmp } = self;
        processes.is_none() && open_files.is_none() && file_size.is_none() && tmp.is_none()
    }
}

impl SeccompTable {
    fn is_empty(&self) -> bool {
        let SeccompTable { filter, file } = self;
        filter.is_none() && file.is_none()
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

/// A value and the place in the file where it was written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct At<T>(Spanned<T>);

impl<T> At<T> {
    /// The value.
    pub fn value(&self) -> &T {
        self.0.get_ref()
    }

    /// The offset of its first byte in the file.
    pub fn offset(&self) -> usize {
        self.0.span().start
    }
}

impl<T> From<T> for At<T> {
    fn from(value: T) -> Self {
        At(Spanned::new(0..0, value))
    }
}

impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// A path alone, or a table that says more about it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PathOr{T}")]
#[serde(untagged)]
pub enum PathOr<T> {
    /// The path.
    Path(String),
    /// The table.
    Table(T),
}

// Derived, the errors of the table would be lost: serde then tries each variant
// and says only that none fits.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for PathOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = PathOr<T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a path or a table")
            }

            fn visit_str<E>(self, path: &str) -> Result<Self::Value, E> {
                Ok(PathOr::Path(path.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(table)).map(PathOr::Table)
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}
