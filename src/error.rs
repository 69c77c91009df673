//! The error a user sees: stage, what failed, errno, cause and remedy.

use std::fmt::{self, Write};

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
    /// 125, or 126 and 127 for a command that cannot be run.
    pub exit_code: u8,
    /// The name of the host's fault, which another machine may not have.
    pub fault: Option<&'static str>,
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
            exit_code: SETUP_FAILED,
            fault: None,
        }
    }

    /// With the kernel's answer.
    pub fn errno(mut self, errno: Errno) -> Error {
        self.errno = Some(errno);
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

    /// With another exit code.
    pub fn exit_code(mut self, code: u8) -> Error {
        self.exit_code = code;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Printable(f);
        write!(f, "{}: {}", self.stage, self.what)?;
        if let Some(errno) = self.errno {
            write!(f, ": {errno:?} {}", errno.desc())?;
        }
        if let Some(cause) = &self.cause {
            write!(f, "\ncause: {cause}")?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "\nremedy: {remedy}")?;
        }
        Ok(())
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

/// Whether a terminal obeys it instead of showing it: control characters, and
/// those that turn the direction of what follows.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes no control character but the end of a line: a path may be the agent's
/// choice, and the reader a terminal.
struct Printable<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Printable<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|character| match character {
            '\n' => self.0.write_char('\n'),
            control if is_hidden(control) => write!(self.0, "{}", control.escape_default()),
            printable => self.0.write_char(printable),
        })
    }
}

impl std::error::Error for Error {}
