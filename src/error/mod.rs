//! The error a user sees: stage, what failed, errno, cause and remedy.

mod usual;

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use crate::sys::Errno;

/// Why a launch came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The part of the work: `policy`, `mounts`, `landlock` …
    pub stage: &'static str,
    /// What failed, and on what.
    pub what: String,
    /// The kernel's answer, where there is one.
    pub errno: Option<Errno>,
    /// Why, as far as it is known.
    pub cause: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// What few errors have.
    more: Option<Box<More>>,
    /// 125, or 126 and 127 for a command that cannot be run.
    pub exit_code: u8,
    /// The name of the host's fault, which another machine may not have.
    pub fault: Option<&'static str>,
}

/// What few errors have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct More {
    detail: Vec<String>,
    also: Vec<Error>,
}

/// The exit code of a cell that failed before exec.
pub const SETUP_FAILED: u8 = 125;

impl Error {
    /// A failure of `stage`, with exit code 125.
    pub fn new(stage: &'static str, what: impl Into<String>) -> Error {
        Error {
            stage,
            what: what.into(),
            errno: None,
            cause: None,
            remedy: None,
            more: None,
            exit_code: SETUP_FAILED,
            fault: None,
        }
    }

    /// With the kernel's answer, and what that usually means where nothing better is said.
    pub fn errno(mut self, errno: Errno) -> Error {
        let (cause, remedy) = usual::words(errno);
        self.errno = Some(errno);
        self.cause.get_or_insert_with(|| cause.to_owned());
        self.remedy.get_or_insert_with(|| remedy.to_owned());
        self
    }

    /// With the reason.
    pub fn cause(mut self, cause: impl Into<String>) -> Error {
        self.cause = Some(cause.into());
        self
    }

    /// With what to do.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Error {
        self.remedy = Some(remedy.into());
        self
    }

    /// With what belongs to it and needs lines of its own: a line of a policy file.
    pub fn detail(mut self, lines: impl IntoIterator<Item = String>) -> Error {
        self.more.get_or_insert_default().detail.extend(lines);
        self
    }

    /// With what else is wrong, where all of it is known at once.
    pub fn also(mut self, errors: impl IntoIterator<Item = Error>) -> Error {
        self.more.get_or_insert_default().also.extend(errors);
        self
    }

    /// With another exit code.
    pub fn exit_code(mut self, code: u8) -> Error {
        self.exit_code = code;
        self
    }
}

impl Error {
    /// This error, and what else is wrong.
    pub fn all(&self) -> impl Iterator<Item = &Error> {
        [self].into_iter().chain(self.more.iter().flat_map(|more| &more.also))
    }

    /// One line each: what failed, its details, the cause, the remedy. No path,
    /// name or value that stands in one can begin another.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let errno = self.errno.map(|errno| format!(": {errno:?} {}", errno.desc())).unwrap_or_default();
        let what = printable(&format!("{}: {}{errno}", self.stage, self.what));
        let detail =
            self.more.iter().flat_map(|more| &more.detail).map(|line| format!("  {}", printable(line)));
        let cause = self.cause.iter().map(|cause| printable(&format!("cause: {cause}")));
        let remedy = self.remedy.iter().map(|remedy| printable(&format!("remedy: {remedy}")));
        [what].into_iter().chain(detail).chain(cause).chain(remedy)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.all().flat_map(Error::lines).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// An error as a machine reads it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Reason {
    /// The part of the work.
    pub stage: String,
    /// What failed.
    pub what: String,
    /// The kernel's answer, by name.
    pub errno: Option<String>,
    /// The host's fault, by name.
    pub fault: Option<String>,
    /// Why.
    pub cause: Option<String>,
    /// What to do.
    pub remedy: Option<String>,
    /// What belongs to it and needs lines of its own: a line of a policy file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub detail: Vec<String>,
    /// What else is wrong, where all of it is known at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Reason>,
}

impl From<&Error> for Reason {
    fn from(error: &Error) -> Reason {
        Reason {
            stage: error.stage.to_owned(),
            what: error.what.clone(),
            errno: error.errno.map(|errno| format!("{errno:?}")),
            fault: error.fault.map(str::to_owned),
            cause: error.cause.clone(),
            remedy: error.remedy.clone(),
            detail: error.more.as_ref().map(|more| more.detail.clone()).unwrap_or_default(),
            also: error.all().skip(1).map(Reason::from).collect(),
        }
    }
}

/// What a command with `--json` prints where it cannot do what it was asked for.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Document {
    /// The format of this document: 1.
    pub version: u32,
    /// Why.
    pub error: Reason,
    /// The command's exit code.
    pub exit_code: u8,
}

impl Document {
    /// As it is printed.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values serialize")
    }
}

impl From<&Error> for Document {
    fn from(error: &Error) -> Document {
        Document { version: 1, error: error.into(), exit_code: error.exit_code }
    }
}

/// A text on one line, with no control character in it.
pub fn printable(text: &str) -> String {
    let escaped = |character: char| match is_hidden(character) {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// Whether a terminal obeys it instead of showing it: control characters, other
/// ends of a line, and those that turn the direction of what follows.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_has_a_cause_and_a_remedy_unless_there_are_better_ones() {
        for errno in (1..=133).map(Errno::from_raw) {
            let error = Error::new("mounts", "x").errno(errno);
            assert!(error.cause.is_some_and(|cause| !cause.is_empty()), "{errno:?}");
            assert!(error.remedy.is_some_and(|remedy| !remedy.is_empty()), "{errno:?}");
        }
        let error = Error::new("mounts", "x").cause("own").errno(Errno::ENOSPC).remedy("own");
        assert_eq!((error.cause.as_deref(), error.remedy.as_deref()), (Some("own"), Some("own")));
    }

    #[test]
    fn no_name_begins_a_line() {
        let hostile = "a\nremedy: rm -rf /\x1b[31m\u{202e}\u{2028}b\rc";
        let error = Error::new("policy", hostile).cause(hostile).remedy(hostile);
        let error = error.detail([hostile.to_owned()]).also([Error::new("policy", hostile)]);
        let text = error.to_string();
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.chars().all(|character| character == '\n' || !is_hidden(character)), "{text}");
    }
}
