//! The Landlock domain: which rights it handles, and what each entry is granted.

use landlock::{ABI, Access, AccessFs, BitFlags, Scope};
use serde::Serializer;

use super::Text;
use super::step::Step;
use crate::sys::landlock::Handled;

/// The first ABI with scopes for signals and abstract sockets.
pub const SCOPES: u32 = 6;

/// What a place in the tree may be used for.
///
/// Landlock cannot take away below a place what the place itself grants, so
/// nothing is granted on `/`, nor on any directory above something narrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Read files, list directories, execute programs.
    ReadExecute,
    /// Read files and list directories.
    Read,
    /// List directories.
    List,
    /// All but the making of device nodes and their ioctls.
    ReadWrite,
    /// Write to the file, and nothing else: not even read it.
    Write,
    /// Read, write and control devices, and list them.
    Device,
    /// No right at all.
    Nothing,
}

/// The domain of a host with this ABI, without its rules.
pub fn handled(abi: u32, with_files: bool, with_scopes: bool) -> Handled {
    let abi = known(abi);
    let fs = if with_files { AccessFs::from_all(abi).bits() } else { 0 };
    let scoped = if with_scopes { Scope::from_all(abi).bits() } else { 0 };
    Handled { fs, net: 0, scoped }
}

/// The rights that `grant` stands for, as far as this ABI has them.
pub fn access(abi: u32, grant: Grant, is_directory: bool) -> u64 {
    let abi = known(abi);
    let all = AccessFs::from_all(abi);
    let wanted = match grant {
        Grant::ReadExecute => AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute,
        Grant::Read => AccessFs::ReadFile | AccessFs::ReadDir,
        Grant::List => AccessFs::ReadDir.into(),
        Grant::ReadWrite => all & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev),
        // Truncation too: a shell's `>` opens with O_TRUNC, which a FIFO ignores.
        Grant::Write => AccessFs::WriteFile | AccessFs::Truncate,
        Grant::Device => {
            AccessFs::ReadFile
                | AccessFs::ReadDir
                | AccessFs::WriteFile
                | AccessFs::Truncate
                | AccessFs::IoctlDev
        }
        Grant::Nothing => BitFlags::EMPTY,
    };
    // A right that only directories have is EINVAL in a rule on anything else.
    let legal = if is_directory { all } else { AccessFs::from_file(abi) };
    (wanted & legal).bits()
}

/// The step that grants `access` on `path`.
pub fn allow(path: Text, access: u64) -> Step {
    Step::AllowPath { path, access }
}

/// The newest ABI that both the host and the landlock crate know.
fn known(abi: u32) -> ABI {
    ABI::from(i32::try_from(abi).unwrap_or(i32::MAX))
}

/// The names of file rights.
pub fn rights(bits: u64) -> Vec<String> {
    BitFlags::<AccessFs>::from_bits_truncate(bits).iter().map(|right| format!("{right:?}")).collect()
}

/// The names of scopes.
pub fn scopes(bits: u64) -> Vec<String> {
    BitFlags::<Scope>::from_bits_truncate(bits).iter().map(|scope| format!("{scope:?}")).collect()
}

pub(super) fn right_names<S: Serializer>(bits: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(rights(*bits))
}
