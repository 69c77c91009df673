//! Every option of the command line stands in the documents.

use super::Finding;

/// The document that lacks an option, to name in the finding.
const DOCUMENT: &str = "docs/policy.md";

pub fn check(command: &clap::Command, documents: &[&str]) -> Vec<Finding> {
    let mut missing: Vec<String> = flags(command)
        .into_iter()
        .filter(|flag| !documents.iter().any(|document| mentions(document, flag)))
        .collect();
    missing.sort();
    missing.dedup();
    missing
        .into_iter()
        .map(|flag| Finding {
            path: DOCUMENT.to_owned(),
            line: 1,
            what: format!("{flag} is explained neither here nor in README.md"),
        })
        .collect()
}

fn flags(command: &clap::Command) -> Vec<String> {
    let own = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let own = own.filter_map(|argument| argument.get_long()).map(|long| format!("--{long}"));
    own.chain(command.get_subcommands().flat_map(flags))
        .filter(|flag| !["--help", "--version"].contains(&flag.as_str()))
        .collect()
}

/// Whether the flag stands there as a word: `--bind` is not in `--ro-bind`,
/// nor in `--binding`.
fn mentions(document: &str, flag: &str) -> bool {
    document.match_indices(flag).any(|(at, _)| {
        let is_part = |c: char| c.is_alphanumeric() || c == '-';
        !document[..at].ends_with(is_part) && !document[at + flag.len()..].starts_with(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn an_option_without_words_is_found() {
        let run = clap::Command::new("run")
            .arg(clap::Arg::new("bind").long("bind"))
            .arg(clap::Arg::new("ro-bind").long("ro-bind"));
        let command = clap::Command::new("cellblock").subcommand(run);
        assert_eq!(check(&command, &["`--ro-bind`", "--binding"]).len(), 1);
        assert!(check(&command, &["`--ro-bind`", "`--bind SRC`"]).is_empty());
    }
}
