//! Built-in profiles: what a provider needs, as policy files in the binary.

/// The names that `--profile` and `extends` know.
pub const NAMES: [&str; 3] = ["claude", "codex", "opencode"];

/// The policy file of the profile `name`.
pub fn find(name: &str) -> Option<&'static str> {
    match name {
        "claude" => Some(include_str!("profiles/claude.toml")),
        "codex" => Some(include_str!("profiles/codex.toml")),
        "opencode" => Some(include_str!("profiles/opencode.toml")),
        _ => None,
    }
}
