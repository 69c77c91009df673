//! Resource limits, as getrlimit(2) knows them.

use serde::Serialize;

use crate::sys::credentials;

/// A resource that the kernel limits for a process, or for all of a user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each is named as in messages")]
pub enum Resource {
    CoreFile,
    FileSize,
    LockedMemory,
    MessageQueues,
    OpenFiles,
    PendingSignals,
    Processes,
}

impl Resource {
    const ALL: [Resource; 7] = [
        Resource::CoreFile,
        Resource::FileSize,
        Resource::LockedMemory,
        Resource::MessageQueues,
        Resource::OpenFiles,
        Resource::PendingSignals,
        Resource::Processes,
    ];

    /// Its number for setrlimit(2).
    pub fn number(self) -> u32 {
        match self {
            Resource::CoreFile => libc::RLIMIT_CORE,
            Resource::FileSize => libc::RLIMIT_FSIZE,
            Resource::LockedMemory => libc::RLIMIT_MEMLOCK,
            Resource::MessageQueues => libc::RLIMIT_MSGQUEUE,
            Resource::OpenFiles => libc::RLIMIT_NOFILE,
            Resource::PendingSignals => libc::RLIMIT_SIGPENDING,
            Resource::Processes => libc::RLIMIT_NPROC,
        }
    }

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Resource::CoreFile => "core file",
            Resource::FileSize => "file size",
            Resource::LockedMemory => "locked memory",
            Resource::MessageQueues => "message queues",
            Resource::OpenFiles => "open files",
            Resource::PendingSignals => "pending signals",
            Resource::Processes => "processes",
        }
    }
}

/// The hard limits of a process, by resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimits([u64; 7]);

impl Rlimits {
    /// Those of this process. One that the kernel does not tell is taken for none.
    pub fn own() -> Rlimits {
        let hard = |resource: Resource| credentials::hard_limit(resource.number());
        Rlimits(Resource::ALL.map(|resource| hard(resource).unwrap_or(libc::RLIM_INFINITY)))
    }

    /// That of one resource; `RLIM_INFINITY` is the largest number.
    pub fn hard(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }
}

impl Default for Rlimits {
    fn default() -> Self {
        Rlimits([libc::RLIM_INFINITY; 7])
    }
}
