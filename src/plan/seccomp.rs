//! The filters, compiled by `cargo xtask filters` from `filters/`.

use crate::policy::Mode;
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
