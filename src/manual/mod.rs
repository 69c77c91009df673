//! The manual pages and shell completions, made of the command line's own
//! definition and of the policy's schema. No launch comes by here.

mod policy;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::cli;

/// What the foot of each page names.
const SOURCE: &str = concat!("cellblock ", env!("CARGO_PKG_VERSION"));

/// One page.
pub struct Page {
    /// Its file's name: `cellblock-run.1`.
    pub file: String,
    /// Its text, in roff.
    pub text: String,
}

/// All pages, that of the program first.
pub fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    add(&mut pages, &cli::command());
    pages.push(Page { file: "cellblock-policy.5".to_owned(), text: policy::page() });
    pages
}

/// The page called `name`, with or without the prefix `cellblock-` and the suffix `.1`.
pub fn find(name: &str) -> Option<Page> {
    let file = match name.strip_suffix(".1").unwrap_or(name) {
        "cellblock" => "cellblock".to_owned(),
        name => format!("cellblock-{}", name.strip_prefix("cellblock-").unwrap_or(name)),
    };
    pages().into_iter().find(|page| page.file == file || page.file == format!("{file}.1"))
}

/// The completions of a shell.
pub fn completions(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut cli::for_completion(), "cellblock", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn add(pages: &mut Vec<Page>, command: &Command) {
    let text = of_command(command).expect("a vector takes all that is written");
    let name = command.get_display_name().unwrap_or(command.get_name());
    pages.push(Page { file: format!("{name}.1"), text });
    let shown = command.get_subcommands().filter(|inner| !inner.is_hide_set());
    shown.for_each(|inner| add(pages, inner));
}

fn of_command(command: &Command) -> std::io::Result<String> {
    let man = Man::new(command.clone()).source(SOURCE);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    let usage = command.clone().render_usage().to_string();
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    synopsis.text([roman(usage.trim_start_matches("Usage: "))]);
    synopsis.to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.get_subcommands().any(|inner| !inner.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::new();
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    sections(&mut rest, &help);
    if command.get_arguments().any(|argument| argument.get_id() == "policy")
        || command.get_name() == "cellblock"
    {
        entries(&mut rest, "ENVIRONMENT", &ENVIRONMENT);
        entries(&mut rest, "FILES", &FILES);
    }
    rest.control("SH", ["SEE ALSO"]);
    rest.text([bold("cellblock"), roman("(1), "), bold("cellblock-policy"), roman("(5)")]);
    rest.to_writer(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What stands below the options in `--help`: a heading ends in a colon, and its
/// lines stay as they are.
fn sections(roff: &mut Roff, help: &str) {
    for paragraph in help.split("\n\n") {
        let (heading, lines) =
            paragraph.trim_start_matches('\n').split_once(":\n").unwrap_or(("Notes", paragraph));
        roff.control("SH", [&*heading.to_uppercase()]);
        example(roff, lines.lines());
    }
}

/// Lines that are not filled.
fn example<'a>(roff: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    roff.control("EX", []);
    for line in lines {
        roff.text([roman(line)]);
    }
    roff.control("EE", []);
}

const ENVIRONMENT: [(&str, &str); 4] = [
    ("SUDO_UID, SUDO_GID", "Started by root: the user and group of the cell, if `--run-as` names no others."),
    ("TMPDIR", "Where the fixture of `demo`, and of `verify` without a policy, is made."),
    ("HOME, PATH", "Where `policy check`, warnings and remedies look for homes and programs."),
    ("NO_COLOR, CLICOLOR, CLICOLOR_FORCE", "Whether messages have colour."),
];

const FILES: [(&str, &str); 4] = [
    ("FILE.toml", "A policy, named by `--policy` or by `extends`: cellblock-policy(5)."),
    ("/work", "In the cell: the workspace, if a policy file does not put it elsewhere."),
    ("/home/agent", "In the cell: the provider's home, in memory if the policy shows no directory there."),
    (
        "/var/tmp/cell-*",
        "On the host, or in TMPDIR: the fixture of `demo`, and of `verify` without a policy. It is removed at the end.",
    ),
];

/// A section of names, each with its words below it.
fn entries(roff: &mut Roff, heading: &str, entries: &[(&str, &str)]) {
    roff.control("SH", [heading]);
    for (name, words) in entries {
        roff.control("TP", []);
        roff.text([bold(*name)]);
        roff.text(words_of(words));
    }
}

/// A text in which `this` is bold.
fn words_of(text: &str) -> Vec<Inline> {
    let text = text.replace('\n', " ");
    let parts = text.split('`').enumerate();
    parts.map(|(index, part)| if index % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_sections() {
        let pages = pages();
        let files: Vec<&str> = pages.iter().map(|page| &*page.file).collect();
        assert!(files.starts_with(&["cellblock.1", "cellblock-run.1"]), "{files:?}");
        assert!(!files.iter().any(|file| file.contains("demo-") || file.contains("help")), "{files:?}");
        for section in ["SYNOPSIS", "EXAMPLES", "\"EXIT STATUS\"", "ENVIRONMENT", "FILES", "\"SEE ALSO\""] {
            for name in ["cellblock", "run", "cellblock-verify.1", "plan"] {
                let text = find(name).unwrap().text;
                assert!(text.contains(&format!(".SH {section}\n")), "{section} of {name}\n{text}");
            }
        }
        assert!(
            find("run").unwrap().text.contains("\\-\\-policy\\fR \\fI<FILE>"),
            "{}",
            find("run").unwrap().text
        );
        assert!(find("nosuch").is_none());
    }

    #[test]
    fn every_key_of_a_policy_has_an_entry() {
        let text = find("policy.5").unwrap().text;
        for key in ["timeout_grace", "ro_bind", "protect_missing", "lock_access", "allow_missing", "optional"]
        {
            assert!(text.contains(key), "{key}\n{text}");
        }
    }

    #[test]
    fn no_hidden_command_is_completed_and_profiles_are() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = completions(shell);
            assert!(!text.contains("demo-harness"), "{shell}");
            assert!(text.contains("runner-instance-codex"), "{shell}");
            assert!(text.contains("completions"), "{shell}");
        }
    }
}
