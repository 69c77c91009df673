//! The text of a filter: what `filters/README.md` describes, read into plain values.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::table::{self, Arch};

/// A filter as written, with everything it includes.
#[derive(Debug, Default)]
pub struct Source {
    /// The name on its `filter` line.
    pub name: String,
    /// What is decided, in the order of the text.
    pub entries: Vec<Entry>,
    /// The answer to a call made by another architecture's rules.
    pub foreign: Option<Verdict>,
    /// The answer to a call by x86_64's second numbering.
    pub x32: Option<Verdict>,
    /// The answer to every call that no entry names.
    pub unknown: Option<Verdict>,
    /// Named groups of constants.
    pub sets: HashMap<String, Vec<String>>,
}

/// One decision about one or more calls.
#[derive(Debug)]
pub struct Entry {
    /// The group it stands in, and why that group is.
    pub group: String,
    /// Why it is as it is; empty where the group says it all.
    pub reason: String,
    /// The one architecture that has these calls, if not all have.
    pub arch: Option<Arch>,
    /// The calls, each with the line that names it.
    pub calls: Vec<(String, Place)>,
    /// The first clause whose tests all hold decides; the last has none.
    pub clauses: Vec<Clause>,
}

/// One line of a decision.
#[derive(Clone, Debug)]
pub struct Clause {
    /// What happens to the call.
    pub verdict: Verdict,
    /// What must hold for that, all of it.
    pub tests: Vec<Test>,
}

/// An action, with the line that asks for it and its reason.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What the kernel is to do.
    pub action: Action,
    /// Why; may be empty.
    pub reason: String,
    /// Where it is written.
    pub place: Place,
}

/// A condition on one argument: `mode & S_IFMT in S_IFREG S_IFIFO`.
#[derive(Clone, Debug)]
pub struct Test {
    /// The argument's name.
    pub argument: String,
    /// The bits looked at; all of them when `None`.
    pub mask: Option<String>,
    /// How they are compared.
    pub operator: Operator,
    /// Numbers, constants or sets.
    pub values: Vec<String>,
}

/// How an argument is compared with values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `==`: it is the value.
    Equal,
    /// `!=`: it is not.
    NotEqual,
    /// `in`: it is one of the values.
    In,
    /// `not in`: it is none of them.
    NotIn,
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operator::Equal => "==",
            Operator::NotEqual => "!=",
            Operator::In => "in",
            Operator::NotIn => "not in",
        })
    }
}

/// What the kernel does with a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// The call is made.
    Allow,
    /// The call is not made and returns this errno.
    Refuse(String),
    /// The call is not made and says that it was.
    Ignore,
    /// The process ends by SIGSYS.
    Kill,
}

/// `SECCOMP_RET_ERRNO`, with an errno in the low half.
const ERRNO: u32 = 0x0005_0000;

impl Action {
    /// The value a filter returns for it.
    pub fn code(&self) -> u32 {
        match self {
            Action::Allow => 0x7fff_0000,
            Action::Kill => 0x8000_0000,
            Action::Ignore => ERRNO,
            // Errno values are the same on both architectures.
            Action::Refuse(errno) => ERRNO | Arch::NATIVE.constant(errno).unwrap_or_default() as u32,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Allow => f.write_str("allow"),
            Action::Refuse(errno) => write!(f, "refuse {errno}"),
            Action::Ignore => f.write_str("ignore"),
            Action::Kill => f.write_str("kill"),
        }
    }
}

/// A line of a file below `filters/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The file, from `filters/` on.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "filters/{}:{}", self.file, self.line)
    }
}

/// Why a filter cannot be compiled: where, what, and what to write instead.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {what}\n  write: {instead}")]
pub struct Error {
    /// The offending line.
    pub place: Place,
    /// What is wrong with it.
    pub what: String,
    /// What would be right.
    pub instead: String,
}

impl Error {
    /// An error at `place`.
    pub fn new(place: &Place, what: impl Into<String>, instead: impl Into<String>) -> Self {
        Error { place: place.clone(), what: what.into(), instead: instead.into() }
    }
}

/// Reads the filter in `file` and all it includes. `read` gives the text of a file below
/// `filters/`.
pub fn load(file: &str, read: &dyn Fn(&str) -> std::io::Result<String>) -> Result<Source, Error> {
    let mut source = Source::default();
    let start = Place { file: file.to_owned(), line: 1 };
    Reader { source: &mut source, read, open: Vec::new() }.file(file, &start)?;
    if source.name.is_empty() {
        return Err(Error::new(&start, "a filter without a name", "filter NAME: what it is for"));
    }
    check_once(&source)?;
    Ok(source)
}

struct Reader<'a> {
    source: &'a mut Source,
    read: &'a dyn Fn(&str) -> std::io::Result<String>,
    /// The files being read, outermost first.
    open: Vec<String>,
}

/// One line taken apart: `HEAD: reason`.
struct Line<'a> {
    place: Place,
    indented: bool,
    words: Vec<&'a str>,
    reason: &'a str,
}

impl Reader<'_> {
    fn file(&mut self, file: &str, from: &Place) -> Result<(), Error> {
        if self.open.iter().any(|open| open == file) {
            let chain = self.open.join(" → ");
            return Err(Error::new(
                from,
                format!("{file} includes itself ({chain} → {file})"),
                "the include in one of them only",
            ));
        }
        let text = (self.read)(file).map_err(|error| {
            Error::new(
                from,
                format!("filters/{file} cannot be read: {error}"),
                "`include NAME` for a file filters/groups/NAME.filter",
            )
        })?;
        self.open.push(file.to_owned());
        let mut lines =
            text.lines().enumerate().filter_map(|(index, text)| split(file, index + 1, text)).peekable();
        let mut group = String::new();
        while let Some(head) = lines.next() {
            let mut body = Vec::new();
            while let Some(line) = lines.next_if(|line| line.indented) {
                body.push(line);
            }
            self.item(&head, &body, &mut group)?;
        }
        self.open.pop();
        Ok(())
    }

    fn item(&mut self, head: &Line, body: &[Line], group: &mut String) -> Result<(), Error> {
        if head.indented {
            return Err(head.error("an indented line that belongs to nothing", ITEMS));
        }
        let bare = matches!(head.words[0], "filter" | "group" | "include" | "foreign" | "x32" | "unknown");
        if let (true, Some(line)) = (bare, body.first()) {
            let what = format!("nothing can stand below `{}`", head.words[0]);
            return Err(line.error(what, ITEMS));
        }
        match head.words[..] {
            ["filter", name] => {
                head.reasoned()?;
                if !self.source.name.is_empty() {
                    return Err(head.error("a second filter", "group NAME: why, in an included file"));
                }
                self.source.name = name.to_owned();
            }
            ["group", name] => {
                head.reasoned()?;
                *group = format!("{name}: {}", head.reason);
            }
            ["include", ref names @ ..] if !names.is_empty() => {
                for name in names {
                    self.file(&format!("groups/{name}.filter"), &head.place)?;
                }
            }
            ["set", name, "=", ref values @ ..] => self.set(head, name, values, body)?,
            ["foreign", ref action @ ..] => once(&mut self.source.foreign, head, action)?,
            ["x32", ref action @ ..] => once(&mut self.source.x32, head, action)?,
            ["unknown", ref action @ ..] => once(&mut self.source.unknown, head, action)?,
            ["call", ref words @ ..] => {
                head.reasoned()?;
                let (names, arch) = on_arch(head, words)?;
                let calls = names.iter().map(|name| (name.to_string(), head.place.clone()));
                let clauses = body.iter().map(clause).collect::<Result<Vec<_>, _>>()?;
                self.entry(head, group, arch, calls.collect(), clauses)?;
            }
            ["allow" | "refuse" | "kill", ..] => {
                let (words, arch) = on_arch(head, &head.words)?;
                let verdict = verdict(head, words)?;
                if verdict.action != Action::Allow {
                    head.reasoned()?;
                }
                let calls = body
                    .iter()
                    .flat_map(|line| line.words.iter().map(|word| (word.to_string(), line.place.clone())))
                    .collect();
                self.entry(head, group, arch, calls, vec![Clause { verdict, tests: Vec::new() }])?;
            }
            _ => return Err(head.error(format!("`{}` begins nothing", head.words[0]), ITEMS)),
        }
        Ok(())
    }

    fn set(&mut self, head: &Line, name: &str, values: &[&str], body: &[Line]) -> Result<(), Error> {
        let values = values.iter().chain(body.iter().flat_map(|line| &line.words));
        let values: Vec<String> = values.map(ToString::to_string).collect();
        if self.source.sets.insert(name.to_owned(), values).is_some() {
            return Err(head.error(format!("a second set `{name}`"), "another name for one of them"));
        }
        Ok(())
    }

    fn entry(
        &mut self,
        head: &Line,
        group: &str,
        arch: Option<Arch>,
        calls: Vec<(String, Place)>,
        clauses: Vec<Clause>,
    ) -> Result<(), Error> {
        if group.is_empty() {
            return Err(head.error("a decision outside of a group", "group NAME: why, above it"));
        }
        if calls.is_empty() {
            return Err(head.error("a decision about no call", "the calls, on indented lines below"));
        }
        match clauses.iter().position(|clause| clause.tests.is_empty()) {
            Some(index) if index + 1 == clauses.len() => {}
            Some(index) => {
                let place = &clauses[index + 1].verdict.place;
                let what = "no call comes this far, the line above takes all";
                return Err(Error::new(place, what, "the line without `if` last"));
            }
            None => {
                let what = "what happens when no condition holds is not said";
                return Err(head.error(what, "a last line without `if`: allow, or refuse ERRNO"));
            }
        }
        self.source.entries.push(Entry {
            group: group.to_owned(),
            reason: head.reason.to_owned(),
            arch,
            calls,
            clauses,
        });
        Ok(())
    }
}

const ITEMS: &str = "one of: filter, include, group, set, allow, refuse, kill, call, foreign, x32, unknown";

impl Line<'_> {
    fn error(&self, what: impl Into<String>, instead: impl Into<String>) -> Error {
        Error::new(&self.place, what, instead)
    }

    fn reasoned(&self) -> Result<(), Error> {
        if self.reason.is_empty() {
            let head = self.words.join(" ");
            return Err(self.error(format!("`{head}` without a reason"), format!("{head}: why")));
        }
        Ok(())
    }
}

fn split<'a>(file: &str, line: usize, text: &'a str) -> Option<Line<'a>> {
    let content = text.trim();
    if content.is_empty() || content.starts_with('#') {
        return None;
    }
    let (head, reason) = content.split_once(':').unwrap_or((content, ""));
    Some(Line {
        place: Place { file: file.to_owned(), line },
        indented: text.starts_with(char::is_whitespace),
        words: head.split_whitespace().collect(),
        reason: reason.trim(),
    })
    .filter(|line| !line.words.is_empty())
}

fn once(slot: &mut Option<Verdict>, head: &Line, action: &[&str]) -> Result<(), Error> {
    head.reasoned()?;
    match slot.replace(verdict(head, action)?) {
        Some(first) => {
            let what = format!("`{}` is decided already at {}", head.words[0], first.place);
            Err(head.error(what, "one of the two only"))
        }
        None => Ok(()),
    }
}

/// Splits `… on ARCH` from the end of a line.
fn on_arch<'a, 'w>(line: &Line, words: &'w [&'a str]) -> Result<(&'w [&'a str], Option<Arch>), Error> {
    let [words @ .., "on", name] = words else {
        return Ok((words, None));
    };
    match Arch::named(name) {
        Some(arch) => Ok((words, Some(arch))),
        None => Err(line.error(format!("no filter is made for `{name}`"), "on x86_64, or on aarch64")),
    }
}

fn verdict(line: &Line, words: &[&str]) -> Result<Verdict, Error> {
    let action = match words {
        ["allow"] => Action::Allow,
        ["ignore"] => Action::Ignore,
        ["kill"] => Action::Kill,
        ["refuse", errno] if errno.starts_with('E') && Arch::NATIVE.constant(errno).is_some() => {
            Action::Refuse(errno.to_string())
        }
        ["refuse", errno] => {
            let near = nearest(errno, table::constant_names().filter(|name| name.starts_with('E')));
            return Err(line.error(format!("no errno is named `{errno}`"), format!("refuse {near}")));
        }
        _ => {
            let what = format!("`{}` is no action", words.join(" "));
            return Err(line.error(what, "allow, ignore, kill, or refuse ERRNO"));
        }
    };
    Ok(Verdict { action, reason: line.reason.to_owned(), place: line.place.clone() })
}

fn clause(line: &Line) -> Result<Clause, Error> {
    let mut parts = line.words.splitn(2, |word| *word == "if");
    let verdict = verdict(line, parts.next().unwrap_or_default())?;
    let tests = match parts.next() {
        None => Vec::new(),
        Some(tests) => {
            tests.split(|word| *word == "and").map(|words| test(line, words)).collect::<Result<_, _>>()?
        }
    };
    Ok(Clause { verdict, tests })
}

fn test(line: &Line, words: &[&str]) -> Result<Test, Error> {
    let (argument, mask, comparison) = match words {
        [argument, "&", mask, comparison @ ..] => (argument, Some(mask.to_string()), comparison),
        [argument, comparison @ ..] => (argument, None, comparison),
        [] => (&"", None, words),
    };
    let (operator, values) = match comparison {
        ["==", value] => (Operator::Equal, std::slice::from_ref(value)),
        ["!=", value] => (Operator::NotEqual, std::slice::from_ref(value)),
        ["in", values @ ..] if !values.is_empty() => (Operator::In, values),
        ["not", "in", values @ ..] if !values.is_empty() => (Operator::NotIn, values),
        _ => {
            let what = format!("`{}` is no condition", words.join(" "));
            return Err(line.error(what, "ARGUMENT == VALUE, != VALUE, in VALUE…, or not in VALUE…; ARGUMENT & MASK to look at some bits; `and` between two"));
        }
    };
    let values = values.iter().map(ToString::to_string).collect();
    Ok(Test { argument: argument.to_string(), mask, operator, values })
}

/// No call may be decided twice, not even on one architecture.
fn check_once(source: &Source) -> Result<(), Error> {
    for arch in Arch::ALL {
        let mut decided: BTreeMap<&str, &Place> = BTreeMap::new();
        let here = |entry: &&Entry| entry.arch.is_none_or(|only| only == arch);
        for entry in source.entries.iter().filter(here) {
            for (call, place) in &entry.calls {
                if let Some(first) = decided.insert(call, place) {
                    let what = format!("`{call}` is decided already at {first}");
                    return Err(Error::new(place, what, "the call in one of the two places only"));
                }
            }
        }
    }
    Ok(())
}

/// The name most like `word`.
pub fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> String {
    let near = |name: &&str| (strsim::osa_distance(word, name), name.to_string());
    names.min_by_key(near).unwrap_or_default().to_owned()
}
