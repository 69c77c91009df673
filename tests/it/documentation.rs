//! The documents: their commands print what they say, and nothing that a user can
//! write is missing from them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::site::{Site, stderr};
use crate::skip;

/// Each block of commands, and the output below it, if there is any. What is not to be
/// run here, since it changes the host or needs an agent, is a block of `console`.
fn blocks(document: &'static str) -> Vec<(&'static str, &'static str)> {
    let blocks = document.split("```sh\n").skip(1);
    let block = |text: &'static str| {
        let (commands, rest) = text.split_once("```\n").unwrap();
        let output = rest.trim_start().strip_prefix("```text\n");
        (commands, output.map_or("", |output| output.split_once("```").unwrap().0))
    };
    blocks.map(block).collect()
}

/// Runs all commands of a document in one shell, whose home is `place` of the document.
fn compare(document: &'static str, place: &str) {
    let Some(site) = Site::new().filter(|_| skip::has_scopes()) else { return };
    // With the name that the document's own place has.
    let home = site.directory(place.rsplit('/').next().unwrap());
    let home = home.to_str().unwrap();
    let mut script =
        format!("umask 022; exec 2>&1; export HOME={home} PATH={}:$PATH\n", site.root().display());
    for (commands, _) in blocks(document) {
        writeln!(script, "{}echo '@@@'", commands.replace(place, home)).unwrap();
    }
    site.file("commands.sh", script, 0o644);
    let output = site.beside("bash", &["commands.sh"]).unwrap();
    let said = String::from_utf8_lossy(&output.stdout).replace(home, place);
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
    let said: Vec<&str> = said.split("@@@\n").collect();
    assert_eq!(said.len(), blocks(document).len() + 1, "{said:#?}");
    for ((commands, wanted), said) in blocks(document).into_iter().zip(said) {
        // The kind of this host's file system, and its root, are its own.
        if commands.contains("mountinfo") {
            assert_eq!(said.lines().count(), wanted.lines().count(), "{commands}\n{said}");
        } else if skip::has("upper-overlay", !said.contains("the kernel refuses an overlay")) {
            assert_eq!(said, wanted, "{commands}");
        }
    }
}

#[test]
fn the_commands_of_the_readme_print_what_it_says() {
    compare(include_str!("../../README.md"), "/home/me");
}

#[test]
fn the_commands_of_the_run_scope_print_what_it_says() {
    compare(include_str!("../../docs/run-scope.md"), "/var/tmp/scope");
}

#[test]
fn the_commands_of_the_test_from_within_print_what_it_says() {
    compare(include_str!("../../docs/verify.md"), "/home/me");
}

#[test]
fn the_commands_of_the_report_print_what_it_says() {
    compare(include_str!("../../docs/report.md"), "/home/me");
}

/// The examples of docs/policy.md, one for each table of a policy file.
fn examples_of_keys() -> String {
    let document = include_str!("../../docs/policy.md");
    let sections =
        document.split("\n### ").filter(|text| text.starts_with("Top level") || text.starts_with("`["));
    let example = |text: &'static str| text.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0;
    sections.map(example).collect()
}

#[test]
fn every_key_of_a_policy_is_explained_with_an_example_that_loads() {
    let Some(site) = Site::new() else { return };
    let document = include_str!("../../docs/policy.md");
    let file = site.file("keys.toml", examples_of_keys(), 0o644);
    let words = ["policy", "show", "--var=state=/srv/state", "--policy", file.to_str().unwrap()];
    let output = site.beside(site.program().to_str().unwrap(), &words).unwrap();
    assert!(output.status.success(), "{}", stderr(&output));

    let schema: Value = serde_json::from_str(&cellblock::policy::schema::schema()).unwrap();
    let resolve = |value: &Value| match value["$ref"].as_str() {
        Some(target) => schema.pointer(&target[1..]).unwrap().clone(),
        None => value.clone(),
    };
    let keys = |value: &Value| resolve(value)["properties"].as_object().cloned().unwrap_or_default();
    let example: toml::Table = examples_of_keys().parse().unwrap();
    for (name, value) in keys(&schema) {
        assert!(example.contains_key(&name), "{name}");
        for (key, value) in keys(&value) {
            assert!(document.contains(&format!("- `{name}.{key}`: ")), "{name}.{key}");
            let example = &example[&name][&key];
            let tables = resolve(&value)["items"]["anyOf"].as_array().cloned().unwrap_or_default();
            for inner in tables.iter().flat_map(|table| keys(table).into_iter().map(|(inner, _)| inner)) {
                // A writable view is no overlay.
                let is_shown = example.as_array().unwrap().iter().any(|entry| entry.get(&inner).is_some());
                assert!(is_shown || (name == "filesystem" && key == "bind"), "{name}.{key}: {inner}");
            }
        }
    }
}

/// The long options of a command and of those below it.
fn options(command: &clap::Command) -> BTreeSet<String> {
    let shown = |argument: &&clap::Arg| !argument.is_hide_set();
    let own = command.get_arguments().filter(shown).filter_map(|argument| argument.get_long());
    let own = own.map(|long| format!("--{long}")).collect::<Vec<_>>();
    let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set()).flat_map(options);
    own.into_iter().chain(inner).collect()
}

#[test]
fn the_manual_has_every_option_and_no_other() {
    let (_, flags) = include_str!("../../docs/policy.md").split_once("\n## Flags\n").unwrap();
    let (flags, _) = flags.split_once("\nFlags of other launchers").unwrap();
    let quoted =
        flags.split('`').skip(1).step_by(2).filter(|words| words.starts_with("--") && words.len() > 2);
    let written = quoted.map(|words| words.split(' ').next().unwrap().to_owned());
    let command = cellblock::cli::command();
    let mut known = options(&command);
    known.retain(|option| !["--help", "--version"].contains(&option.as_str()));
    assert_eq!(written.collect::<BTreeSet<_>>(), known);
}

#[test]
fn every_line_of_the_test_from_within_is_explained() {
    let Some(site) = Site::new() else { return };
    let output = site.beside(site.program().to_str().unwrap(), &["verify", "--json"]).unwrap();
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let document = include_str!("../../docs/verify.md");
    for line in result["lines"].as_array().unwrap() {
        let name = line["name"].as_str().unwrap();
        // The document writes a namespace, and a line about the parent, in short.
        let short = name.strip_prefix("namespace:").unwrap_or(name).replace(":parent-", ":");
        assert!([name, &short].iter().any(|name| document.contains(&format!("`{name}`"))), "{name}");
    }
}

/// A heading as GitHub names it in a link.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let in_docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let in_root = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    for file in in_docs.chain(in_root).filter(|path| path.extension().is_some_and(|end| end == "md")) {
        let text = fs::read_to_string(&file).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
        for link in links.filter(|link| !link.contains("://")) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { file.clone() } else { file.parent().unwrap().join(path) };
            assert!(target.exists(), "{}: {link}", file.display());
            let has_heading = || {
                let text = fs::read_to_string(&target).unwrap();
                text.lines()
                    .filter(|line| line.starts_with('#'))
                    .any(|line| anchor(line.trim_start_matches('#')) == heading)
            };
            assert!(heading.is_empty() || has_heading(), "{}: {link}", file.display());
        }
    }
}
