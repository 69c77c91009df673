//! Built-in profiles: what a provider needs and how an instance is laid out, as
//! policy files in the binary.

/// The profiles, by the name that `--profile` and `extends` know.
const PROFILES: [(&str, &str); 8] = [
    ("claude", include_str!("profiles/claude.toml")),
    ("codex", include_str!("profiles/codex.toml")),
    ("opencode", include_str!("profiles/opencode.toml")),
    ("runner-instance", include_str!("profiles/runner-instance.toml")),
    ("runner-instance-acpx", include_str!("profiles/runner-instance-acpx.toml")),
    ("runner-instance-codex", include_str!("profiles/runner-instance-codex.toml")),
    ("runner-instance-opencode", include_str!("profiles/runner-instance-opencode.toml")),
    ("runner-instance-trace", include_str!("profiles/runner-instance-trace.toml")),
];

/// Their names.
pub fn names() -> impl Iterator<Item = &'static str> {
    PROFILES.iter().map(|(name, _)| *name)
}

/// The policy file of the profile `name`.
pub fn find(name: &str) -> Option<&'static str> {
    PROFILES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
