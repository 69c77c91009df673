//! The form of files: blanks, tabs, length, and what each Rust file says first.

use super::{Finding, Source};

/// Lines of a file in `src/`, beyond which it holds more than one thing.
const LENGTH: usize = 600;

pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = blanks(source);
    findings.extend(length(source));
    findings.extend(first_words(source));
    findings
}

fn blanks(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(source.text.lines()) {
        if line.contains('\t') {
            findings.push(source.finding(number, "a tab: indent with blanks"));
        }
        if line.ends_with(char::is_whitespace) {
            findings.push(source.finding(number, "blanks at the end of the line"));
        }
    }
    findings
}

fn length(source: &Source) -> Option<Finding> {
    let lines = source.text.lines().count();
    let is_long = source.path.starts_with("src/") && source.is_rust() && lines > LENGTH;
    is_long.then(|| source.finding(lines, format!("{lines} lines: split it; {LENGTH} are enough")))
}

fn first_words(source: &Source) -> Option<Finding> {
    let is_silent = source.is_rust() && !source.text.starts_with("//!");
    is_silent.then(|| source.finding(1, "begin with `//!` and what the file holds"))
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::{blanks, first_words, length};

    #[test]
    fn blanks_and_tabs_are_found() {
        let lines = |text| blanks(&source("src/a.rs", text)).iter().map(|f| f.line).collect::<Vec<_>>();
        assert_eq!(lines("//! A.\nlet a; \n\tlet b;\n"), [2, 3]);
        assert!(lines("//! A.\nlet a;\n").is_empty());
    }

    #[test]
    fn a_long_file_is_found() {
        let long = "\n".repeat(601);
        assert!(length(&source("src/a.rs", &long)).is_some());
        assert!(length(&source("tests/a.rs", &long)).is_none());
        assert!(length(&source("src/a.rs", "\n")).is_none());
    }

    #[test]
    fn a_file_says_what_it_holds() {
        assert!(first_words(&source("src/a.rs", "use std::fs;\n")).is_some());
        assert!(first_words(&source("src/a.rs", "//! A.\n")).is_none());
        assert!(first_words(&source("docs/a.md", "# A\n")).is_none());
    }
}
