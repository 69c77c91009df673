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

/// What the words at the top of a profile say of a variable: "the root of the
/// instance".
pub fn variable(profile: &str, name: &str) -> Option<String> {
    let comment = find(profile)?.lines().map_while(|line| line.strip_prefix('#')).map(str::trim);
    let comment = comment.collect::<Vec<_>>().join("\n");
    let (_, rest) = comment.split_once(&format!("--var {name}="))?;
    // Behind the name of the value, up to the end of the sentence or the next variable.
    let words = rest.split_once([':', ' '])?.1;
    let end = [". ", ".\n", "\n\n", "\n--var"].iter().filter_map(|end| words.find(end)).min();
    let words = words[..end.unwrap_or(words.len())].split_whitespace().collect::<Vec<_>>().join(" ");
    Some(words.trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_variable_are_found() {
        assert_eq!(variable("claude", "state").as_deref(), Some("its CLAUDE_CONFIG_DIR on the host"));
        assert_eq!(variable("codex", "state").as_deref(), Some("its CODEX_HOME on the host"));
        let instance = variable("runner-instance", "instance").unwrap();
        assert!(instance.starts_with("the root of the instance"), "{instance}");
        assert!(variable("runner-instance", "workspace").unwrap().starts_with("where the launch works"));
        assert_eq!(variable("claude", "nosuch"), None);
    }
}
