//! The commands of docs/run-scope.md, which print what it says they print.

use std::fmt::Write as _;

use crate::site::{Site, stderr};
use crate::skip;

const DOCUMENT: &str = include_str!("../../docs/run-scope.md");

/// Where the document works.
const PLACE: &str = "/var/tmp/scope";

/// Each block of commands, and the output that stands below it, if any does.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let blocks = DOCUMENT.split("```sh\n").skip(1);
    let block = |text: &'static str| {
        let (commands, rest) = text.split_once("```\n").unwrap();
        let output = rest.trim_start().strip_prefix("```text\n");
        (commands, output.map_or("", |output| output.split_once("```").unwrap().0))
    };
    blocks.map(block).collect()
}

#[test]
fn the_example_of_the_run_scope_says_what_it_says() {
    let Some(site) = Site::new().filter(|_| skip::has_scopes()) else { return };
    let place = site.text("scope");
    let mut script = format!("umask 022; exec 2>&1; export PATH={}:$PATH\n", site.root().display());
    for (commands, _) in blocks() {
        writeln!(script, "{}echo '@@@'", commands.replace(PLACE, &place)).unwrap();
    }
    site.file("scope.sh", script, 0o644);
    let output = site.beside("bash", &["scope.sh"]).unwrap();
    let said = String::from_utf8_lossy(&output.stdout).replace(&place, PLACE);
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
    let said: Vec<&str> = said.split("@@@\n").collect();
    assert_eq!(said.len(), blocks().len() + 1);
    for ((commands, wanted), said) in blocks().into_iter().zip(said) {
        // The kind of this host's file system, and its root, are its own.
        if commands.contains("mountinfo") {
            assert_eq!(said.lines().count(), wanted.lines().count(), "{commands}\n{said}");
        } else if skip::has("upper-overlay", !said.contains("the kernel refuses an overlay")) {
            assert_eq!(said, wanted, "{commands}");
        }
    }
}
