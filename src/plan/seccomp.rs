//! The filters, compiled by `cargo xtask filters` from `filters/`.

use super::{Step, own_filter};
use crate::error::Error;
use crate::host::Host;
use crate::policy::{Entry, Mode, Policy};
use crate::sys::Errno;
use crate::sys::seccomp::Insn;

/// The filters there are, by name.
pub const FILTERS: [(&str, &[Insn]); 4] = [
    ("provider", PROVIDER),
    ("provider-set-gid", PROVIDER_SET_GID),
    ("nested", NESTED),
    ("nested-set-gid", NESTED_SET_GID),
];

#[cfg(target_arch = "x86_64")]
const PROVIDER: &[Insn] = include!("../../filters/generated/provider.x86_64.rs");
#[cfg(target_arch = "x86_64")]
const PROVIDER_SET_GID: &[Insn] = include!("../../filters/generated/provider-set-gid.x86_64.rs");
#[cfg(target_arch = "x86_64")]
const NESTED: &[Insn] = include!("../../filters/generated/nested.x86_64.rs");
#[cfg(target_arch = "x86_64")]
const NESTED_SET_GID: &[Insn] = include!("../../filters/generated/nested-set-gid.x86_64.rs");
#[cfg(target_arch = "aarch64")]
const PROVIDER: &[Insn] = include!("../../filters/generated/provider.aarch64.rs");
#[cfg(target_arch = "aarch64")]
const PROVIDER_SET_GID: &[Insn] = include!("../../filters/generated/provider-set-gid.aarch64.rs");
#[cfg(target_arch = "aarch64")]
const NESTED: &[Insn] = include!("../../filters/generated/nested.aarch64.rs");
#[cfg(target_arch = "aarch64")]
const NESTED_SET_GID: &[Insn] = include!("../../filters/generated/nested-set-gid.aarch64.rs");

/// The filter that fits a mode where the policy names none.
pub fn default_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Sealed => "provider",
        Mode::Nested => "nested",
    }
}

/// The program of a filter.
pub fn program(name: &str) -> Option<&'static [Insn]> {
    FILTERS.iter().find(|(known, _)| *known == name).map(|&(_, program)| program)
}

/// The step that installs the built-in filter.
pub(super) fn built_in(policy: &Policy) -> Result<Step, Error> {
    let name = policy.seccomp.filter.as_deref().unwrap_or(default_name(policy.mode));
    let program = program(name).ok_or_else(|| {
        let known: Vec<&str> = FILTERS.iter().map(|(name, _)| *name).collect();
        let what = format!("--seccomp or seccomp.filter: there is no filter `{name}`");
        Error::new("policy", what)
            .remedy(format!("write one of: {}, or a path such as ./{name}.bpf", known.join(", ")))
    })?;
    Ok(Step::InstallFilter { name: name.to_owned(), program: program.into() })
}

/// The step that installs the filter that the policy brings.
pub(super) fn own(policy: &Policy, host: &Host) -> Result<Option<Step>, Error> {
    let (Some(Entry { path, origin }), Some(content)) = (&policy.seccomp.file, &host.own_filter) else {
        return Ok(None);
    };
    let refuse = |what: String| Error::new("policy", format!("{origin}: {}: {what}", path.display()));
    let content = content.as_ref().map_err(|&errno| {
        let cause = match errno {
            Errno::EOPNOTSUPP => "it is a terminal or another device",
            Errno::ETIMEDOUT => "it is a pipe, and nobody writes to it",
            Errno::EFBIG => "it is larger than a megabyte",
            _ => "the run's user cannot read it, or it is not there",
        };
        let error = refuse("it cannot be read".into()).errno(errno).cause(cause);
        error.remedy("name a readable file of at most a megabyte")
    })?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let program = own_filter::read(content, is_json).map_err(|error| refuse(error.to_string()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Some(Step::InstallFilter { name, program: program.into() }))
}
