//! How a message looks: one prefix, and on a terminal colour and lines that
//! break between words.

use std::io::{Stderr, Stdout};

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use terminal_size::{Width, terminal_size_of};

use crate::error::{Error, printable};

/// Longer lines are hard to read, however wide the terminal is.
const WIDEST: usize = 100;

/// What every message begins with.
const PREFIX: &str = "cellblock:";

const ERROR: Style = AnsiColor::Red.on_default().bold();
const NOTICE: Style = AnsiColor::Yellow.on_default().bold();
const LABEL: Style = Style::new().bold();

/// How a stream shows text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Whether it shows colour. `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE` have
    /// the last word.
    pub colour: bool,
    /// How many columns it has; none where it is no terminal, and lines stay whole.
    pub width: Option<usize>,
}

impl Look {
    /// That of standard error.
    pub fn of_stderr() -> Look {
        let stderr: Stderr = std::io::stderr();
        Look { colour: takes_colour(&stderr), width: terminal_size_of(&stderr).map(columns) }
    }

    /// That of standard output.
    pub fn of_stdout() -> Look {
        let stdout: Stdout = std::io::stdout();
        Look { colour: takes_colour(&stdout), width: terminal_size_of(&stdout).map(columns) }
    }

    /// `text` in this style, where there is colour.
    pub fn paint(self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    /// An error, with all that is wrong beside it.
    pub fn error(self, error: &Error) -> String {
        error.all().map(|error| self.one_error(error)).collect()
    }

    fn one_error(self, error: &Error) -> String {
        let mut text = String::new();
        for (index, line) in error.lines().enumerate() {
            let label = ["cause:", "remedy:"].into_iter().find(|label| line.starts_with(label));
            text += &match label {
                _ if index == 0 => self.labelled(ERROR, PREFIX, &line),
                Some(label) => self.labelled(LABEL, label, line[label.len()..].trim_start()),
                // A detail is laid out already.
                None => format!("{line}\n"),
            };
        }
        text
    }

    /// Something that the caller should know and that is no error.
    pub fn notice(self, text: &str) -> String {
        self.labelled(NOTICE, PREFIX, &printable(text))
    }

    fn labelled(self, style: Style, label: &str, text: &str) -> String {
        let wrapped = wrap(&format!("{label} {text}"), self.width, 2);
        format!("{}{}\n", self.paint(style, label), &wrapped[label.len()..])
    }
}

fn takes_colour(stream: &impl RawStream) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}

fn columns((Width(columns), _): (Width, terminal_size::Height)) -> usize {
    usize::from(columns).min(WIDEST)
}

/// Breaks a line between words where it is longer than `width`; what goes on
/// is indented. A word that is longer by itself stays whole.
pub fn wrap(line: &str, width: Option<usize>, indent: usize) -> String {
    let Some(width) = width else { return line.to_owned() };
    let mut text = String::new();
    let mut column = 0;
    for (index, word) in line.split(' ').enumerate() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            text += &format!("\n{:indent$}", "");
            column = indent;
        } else if index > 0 {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += length;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_alone() {
        assert_eq!(wrap("a bb ccc", Some(4), 2), "a bb\n  ccc");
        assert_eq!(wrap("a /a/long/path b", Some(6), 2), "a\n  /a/long/path\n  b");
        assert_eq!(wrap("a  b", Some(80), 2), "a  b");
        assert_eq!(wrap("a bb ccc", None, 2), "a bb ccc");
    }

    #[test]
    fn every_error_has_the_prefix_and_colour_only_where_it_is_taken() {
        let error = Error::new("policy", "a: wrong").cause("why").remedy("what to do");
        let error = error.also([Error::new("policy", "b: wrong")]);
        let plain =
            "cellblock: policy: a: wrong\ncause: why\nremedy: what to do\ncellblock: policy: b: wrong\n";
        assert_eq!(Look::default().error(&error), plain);
        let coloured = Look { colour: true, width: Some(80) }.error(&error);
        assert!(coloured.starts_with("\x1b[1m\x1b[31mcellblock:\x1b[0m policy: a: wrong\n"), "{coloured:?}");
        assert_eq!(Look::default().notice("a\nb"), "cellblock: a\\nb\n");
    }
}
