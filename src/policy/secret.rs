//! Which environment variables are likely to hold a secret, by their names.

/// Parts of a name, between `_`, that speak for a secret.
const SECRET: [&str; 17] = [
    "KEY",
    "APIKEY",
    "TOKEN",
    "SECRET",
    "SECRETS",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PASS",
    "PWD",
    "CREDENTIAL",
    "CREDENTIALS",
    "AUTH",
    "COOKIE",
    "DSN",
    "PAT",
    "PRIVATE",
];

/// Names that end so without holding one.
const ORDINARY: [&str; 5] = ["PWD", "OLDPWD", "SSH_AUTH_SOCK", "KEYMAP", "XAUTHORITY"];

/// Keys of the providers' own models, without which they do not work.
const MODEL: [&str; 16] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "AWS_BEARER_TOKEN_BEDROCK",
    "AZURE_OPENAI_API_KEY",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CODEX_API_KEY",
    "CODEX_ACCESS_TOKEN",
    "DEEPSEEK_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "GROQ_API_KEY",
    "MISTRAL_API_KEY",
    "OPENAI_API_KEY",
    "OPENCODE_API_KEY",
    "OPENROUTER_API_KEY",
    "XAI_API_KEY",
];

/// Whether a variable of this name is likely to hold a secret; a guess by the
/// words of the name, which says nothing of its value.
pub fn looks_secret(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    if ORDINARY.contains(&&*upper) {
        return false;
    }
    let glued = ["TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "APIKEY"];
    upper.split(['_', '-', '.']).any(|word| SECRET.contains(&word))
        || glued.iter().any(|word| upper.contains(word))
}

/// Whether it is the key of a model that providers take from the environment.
pub fn is_model_key(name: &str) -> bool {
    MODEL.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_speak_for_themselves() {
        for name in [
            "GITHUB_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "PGPASSWORD",
            "DB_PASS",
            "npm_config__auth",
            "NPM_TOKEN",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "SENTRY_DSN",
            "OPENAI_API_KEY",
            "apikey",
            "GH_PAT",
        ] {
            assert!(looks_secret(name), "{name}");
        }
        for name in
            ["PATH", "HOME", "TERM", "PWD", "LANG", "KEYBOARD", "PATTERN", "AUTHOR", "XDG_RUNTIME_DIR"]
        {
            assert!(!looks_secret(name), "{name}");
        }
    }

    #[test]
    fn a_models_key_is_a_secret_too() {
        for name in MODEL {
            assert!(looks_secret(name) && is_model_key(name), "{name}");
        }
        assert!(!is_model_key("GITHUB_TOKEN"));
    }
}
