//! The documents: their commands print what they say, and nothing that a user can
//! write is missing from them.

use std::fmt::Write as _;

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
