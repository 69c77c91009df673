//! The result as a table and as JSON.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Line, Verdict};
use crate::error::printable;

/// What `cellblock verify --json` prints.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Document {
    /// The format of this document: 1.
    pub version: u32,
    /// Whether no line is wrong.
    pub sound: bool,
    /// One each.
    pub lines: Vec<Line>,
}

impl Document {
    /// The result; with `strict`, what could not be tried counts as wrong.
    pub fn new(lines: Vec<Line>, strict: bool) -> Document {
        let sound = lines.iter().all(|line| !line.is_wrong(strict));
        Document { version: 1, sound, lines }
    }
}

/// The result as a table with a summary behind it, in colour where asked for.
pub fn table(document: &Document, strict: bool, colour: bool) -> String {
    let width = |of: fn(&Line) -> usize| document.lines.iter().map(of).max().unwrap_or(0);
    let (names, objects) = (width(|line| line.name.len()), width(|line| line.object.chars().count()).min(60));
    let wanted = width(|line| line.expected.chars().count()).max("expected".len());
    let mut text = format!(
        "{:<11} {:<names$}  {:<objects$}  {:<wanted$}  seen\n",
        "verdict", "name", "object", "expected"
    );
    for line in &document.lines {
        let paint = match line.verdict {
            Verdict::Ok => "32",
            Verdict::KnownLimit | Verdict::Untestable => "33",
            Verdict::Leak | Verdict::Broken => "1;31",
        };
        let verdict = format!("{:<11}", line.verdict.name());
        let verdict = if colour { format!("\x1b[{paint}m{verdict}\x1b[0m") } else { verdict };
        let (object, seen) = (printable(&line.object), printable(&line.seen));
        text += &format!(
            "{verdict} {:<names$}  {object:<objects$}  {:<wanted$}  {seen}\n",
            line.name, line.expected
        );
    }
    let count = |verdict| document.lines.iter().filter(|line| line.verdict == verdict).count();
    let wrong = document.lines.iter().filter(|line| line.is_wrong(strict)).count();
    let verdict = match document.sound {
        true => "sound".to_owned(),
        false => format!("{wrong} wrong"),
    };
    text += &format!(
        "\n{verdict}: {} ok, {} leak, {} broken, {} known-limit, {} untestable\n",
        count(Verdict::Ok),
        count(Verdict::Leak),
        count(Verdict::Broken),
        count(Verdict::KnownLimit),
        count(Verdict::Untestable),
    );
    text
}
