//! Which variables look like secrets.

/// Whether a variable of this name is likely to hold a secret. Only the name is
/// looked at: a value is told nowhere.
pub fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"].iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::looks_secret;

    #[test]
    fn names_of_secrets_are_known() {
        for name in
            ["ANTHROPIC_API_KEY", "GITHUB_TOKEN", "npm_token", "PGPASSWORD", "AWS_SECRET", "MY_CREDENTIALS"]
        {
            assert!(looks_secret(name), "{name}");
        }
        for name in ["PATH", "TERM", "LANG", "RUN_ID", "CODEX_HOME"] {
            assert!(!looks_secret(name), "{name}");
        }
    }
}
