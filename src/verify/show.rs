//! The result as text and as JSON.

use std::collections::BTreeMap;

use anstyle::{AnsiColor, Style};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Line, Verdict};
use crate::error::printable;
use crate::message::{Look, wrap};

/// What `cellblock verify --json` prints.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Document {
    /// The format of this document: 1.
    pub version: u32,
    /// Whether no line is wrong.
    pub sound: bool,
    /// What the cell was built without.
    pub notes: Vec<String>,
    /// One each.
    pub lines: Vec<Line>,
}

impl Document {
    /// The result; with `strict`, what could not be tried counts as wrong.
    pub fn new(lines: Vec<Line>, notes: Vec<String>, strict: bool) -> Document {
        let sound = lines.iter().all(|line| !line.is_wrong(strict));
        Document { version: 1, sound, notes, lines }
    }
}

/// Columns that every terminal has.
const WIDTH: usize = 80;

/// Where the text of a line begins that has more to say.
const INDENT: usize = 4;

/// The result as text: what is well in counts, then each line that is not, the
/// wrong ones last, and a summary.
/// With `all`, what is well line by line too.
pub fn table(document: &Document, strict: bool, all: bool, look: Look) -> String {
    let width = look.width.unwrap_or(WIDTH).min(WIDTH);
    let mut text: String = document.notes.iter().map(|note| wrap(note, Some(width), INDENT) + "\n").collect();
    if !all {
        text += &counts(document, width, look);
    }
    let rank = |line: &&Line| {
        (line.is_wrong(strict), line.verdict != Verdict::Ok, line.verdict == Verdict::Untestable)
    };
    let mut rest: Vec<&Line> =
        document.lines.iter().filter(|line| all || line.verdict != Verdict::Ok).collect();
    rest.sort_by_key(rank);
    for line in rest {
        text += &one(line, strict, width, look);
    }
    let count = |verdict| document.lines.iter().filter(|line| line.verdict == verdict).count();
    let verdict = match document.lines.iter().filter(|line| line.is_wrong(strict)).count() {
        0 => look.paint(GOOD, "sound"),
        wrong => look.paint(BAD, &format!("{wrong} wrong")),
    };
    text += &format!(
        "\n{verdict}: {} ok, {} leak, {} broken, {} accepted, {} known-limit, {} untestable\n",
        count(Verdict::Ok),
        count(Verdict::Leak),
        count(Verdict::Broken),
        count(Verdict::Accepted),
        count(Verdict::KnownLimit),
        count(Verdict::Untestable),
    );
    text
}

const GOOD: Style = AnsiColor::Green.on_default();
const FAIR: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// What is as it should be: each category with its names, and how often.
fn counts(document: &Document, width: usize, look: Look) -> String {
    let mut names: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for line in document.lines.iter().filter(|line| line.verdict == Verdict::Ok) {
        let (category, thing) = line.name.split_once(':').unwrap_or(("", &line.name));
        *names.entry(category).or_default().entry(thing).or_default() += 1;
    }
    let mut text = String::new();
    for (category, things) in names {
        let total: usize = things.values().sum();
        let named = |(thing, count): (&&str, &usize)| match count {
            1 => (*thing).to_owned(),
            count => format!("{thing}\u{a0}{count}"),
        };
        let things: Vec<String> = things.iter().map(named).collect();
        let line = format!("ok {total:>4} {category:<12} {}", things.join(", "));
        let wrapped = wrap(&line, Some(width), "ok    1 ".len() + 13).replace('\u{a0}', " ");
        text += &format!("{}{}\n", look.paint(GOOD, "ok"), &wrapped["ok".len()..]);
    }
    text
}

/// One line in full.
fn one(line: &Line, strict: bool, width: usize, look: Look) -> String {
    let style = match line.verdict {
        Verdict::Ok => GOOD,
        _ if line.is_wrong(strict) => BAD,
        _ => FAIR,
    };
    let (verdict, object, seen) = (line.verdict.name(), printable(&line.object), printable(&line.seen));
    let head = wrap(&format!("{verdict} {} {object}", line.name), Some(width), INDENT);
    let indent = " ".repeat(INDENT);
    let what = wrap(&format!("{indent}expected {}, seen: {seen}", line.expected), Some(width), INDENT);
    format!("{}{}\n{what}\n", look.paint(style, verdict), &head[verdict.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, object: &str, verdict: Verdict) -> Line {
        let (expected, seen) = ("denied".to_owned(), "works".to_owned());
        Line { name: name.to_owned(), object: object.to_owned(), expected, seen, verdict }
    }

    #[test]
    fn it_fits_counts_what_is_well_and_ends_with_what_is_wrong() {
        let mut lines = vec![line("harness:tcp", &"words of some length ".repeat(9), Verdict::Leak)];
        lines.extend((0..64).map(|_| line("run:sibling", "/srv/instance/runs/x", Verdict::Ok)));
        lines.extend((0..30).map(|n| line(&format!("harness:thing-{n}"), "x", Verdict::Ok)));
        lines.push(line("canary:path", "/a\nb\x1b[2J", Verdict::Untestable));
        lines.push(line("kernel:boot-id", "/proc/sys/kernel/random/boot_id", Verdict::KnownLimit));
        let document = Document::new(lines, vec!["without seccomp, which was turned off".to_owned()], false);
        let text = table(&document, false, false, Look::default());
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("ok   64 run          sibling 64\n"), "{text}");
        let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word}\n{text}"));
        assert!(at("known-limit kernel:boot-id") < at("untestable canary:path"), "{text}");
        assert!(at("untestable canary:path") < at("leak harness:tcp"), "{text}");
        assert!(
            text.ends_with("\n1 wrong: 94 ok, 1 leak, 0 broken, 0 accepted, 1 known-limit, 1 untestable\n"),
            "{text}"
        );
        assert!(!text.contains('\x1b') && text.contains("/a\\nb\\u{1b}[2J"), "{text}");
        let strict = table(&document, true, false, Look { colour: true, width: Some(200) });
        assert!(strict.contains("\x1b[31m2 wrong\x1b[0m"), "{strict:?}");
    }
}
