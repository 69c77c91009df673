//! From flags, files and profiles to a [`Policy`]; the only reader of files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::draft::Draft;
use super::error::{PolicyError, Problem};
use super::file::File;
use super::schema::places_of;
use super::vars::{Env, Vars};
use super::{Origin, Policy, profile, recover};
use crate::cli::CellOptions;
use crate::input;
use crate::nearest::nearest;

/// How many files may extend each other in a row.
const DEPTH: usize = 8;

/// Bytes of a policy file; more is a device or a mistake.
const FILE_MAX: u64 = 1 << 20;

/// What stands for a variable that is not defined, and for a text whose variables
/// are wrong, while the rest of a file is read. Nothing is said of a value that
/// holds it.
pub(super) const UNKNOWN: &str = "cellblock.undefined";

/// The policy that `options` come to: profiles, then files, then flags, each
/// with what it extends before it. Lists append, tables merge, single values
/// replace. `cwd` is absolute.
///
/// Without a profile and a file no TOML is read.
///
/// # Errors
///
/// The first thing that is wrong, with its place, and with what else is wrong in
/// the same file.
pub fn load(options: &CellOptions, env: Env, cwd: &Path) -> Result<Policy, PolicyError> {
    load_and_unused(options, env, cwd).map(|(policy, _)| policy)
}

/// As [`load`], with the variables of `--var` that no file has asked for.
///
/// # Errors
///
/// Those of [`load`].
pub fn load_and_unused(
    options: &CellOptions,
    env: Env,
    cwd: &Path,
) -> Result<(Policy, Vec<String>), PolicyError> {
    let vars = Vars::new(&options.var, env).map_err(|problem| problem.at("--var"))?;
    let mut loader = Loader { vars, cwd, draft: Draft::default(), open: Vec::new(), done: Vec::new() };
    for name in &options.profile {
        loader.profile(name, &Origin("--profile".into()))?;
    }
    for path in &options.policy {
        loader.file(&plain(path), &cwd.join(path), &Origin("--policy".into()))?;
    }
    let mut draft = loader.draft;
    draft.add_flags(options, cwd)?;
    Ok((draft.finish()?, loader.vars.unused()))
}

struct Loader<'a> {
    vars: Vars<'a>,
    cwd: &'a Path,
    draft: Draft,
    /// The files that extend each other down to the one being read.
    open: Vec<String>,
    /// What was added; a file that two others extend counts once.
    done: Vec<String>,
}

impl Loader<'_> {
    fn profile(&mut self, name: &str, from: &Origin) -> Result<(), PolicyError> {
        let Some(text) = profile::find(name) else {
            let suggestion = nearest(name, profile::names()).map(str::to_owned);
            let name = name.to_owned();
            return Err(Problem::UnknownProfile { name, suggestion }.at(from));
        };
        // A profile names no place of its own: what is relative came by --var.
        self.add(&Source::new(format!("profile {name}"), text, self.cwd))
    }

    /// `shown` is the path as it was written, which messages and circles go by.
    fn file(&mut self, shown: &Path, path: &Path, from: &Origin) -> Result<(), PolicyError> {
        let name = shown.display().to_string();
        let failed = |source| {
            let near = similar(path, shown);
            Problem::Read { path: shown.to_owned(), source, near }.at(from)
        };
        let bytes = input::read(path, FILE_MAX).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => {
                Problem::TooLarge { path: shown.to_owned(), limit: FILE_MAX }.at(from)
            }
            _ => failed(error),
        })?;
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let offset = error.valid_up_to();
            let line = 1 + bytes[..offset].iter().filter(|byte| **byte == b'\n').count();
            Problem::NotUtf8 { offset }.at(Origin(format!("{name}:{line}")))
        })?;
        // A file's `..` and links end here, so that its entries hold none. One that
        // comes by a descriptor lies nowhere.
        let by_descriptor = ["/dev", "/proc"].iter().any(|place| path.starts_with(place));
        let dir = match by_descriptor {
            true => self.cwd.to_owned(),
            false => fs::canonicalize(path.parent().unwrap_or(path)).map_err(failed)?,
        };
        self.add(&Source::new(name, text, &dir))
    }

    fn add(&mut self, source: &Source) -> Result<(), PolicyError> {
        if self.done.contains(&source.name) {
            return Ok(());
        }
        let all = |first| recover::with_all(source, &self.vars, first);
        let file = source.parse(&self.vars).map_err(all)?;
        self.open.push(source.name.clone());
        for parent in &file.extends {
            self.extend(source, parent.value(), &source.origin(parent.offset()))?;
        }
        self.open.pop();
        let all = |first| recover::with_all(source, &self.vars, first);
        self.draft.add_file(file, source).map_err(all)?;
        self.done.push(source.name.clone());
        Ok(())
    }

    fn extend(&mut self, child: &Source, name: &str, from: &Origin) -> Result<(), PolicyError> {
        let is_file = name.contains('/') || name.ends_with(".toml");
        let shown = plain(&Path::new(&child.name).with_file_name(name));
        let opened = match is_file {
            true => shown.display().to_string(),
            false => format!("profile {name}"),
        };
        if self.open.contains(&opened) {
            let circle = format!("{} → {opened}", self.open.join(" → "));
            return Err(Problem::ExtendsCircle(circle).at(from));
        }
        if self.open.len() == DEPTH {
            return Err(Problem::ExtendsDepth(DEPTH).at(from));
        }
        match is_file {
            true => self.file(&shown, &child.dir.join(name), from),
            false => self.profile(name, from),
        }
    }
}

/// Without `./`, so that one file has one name.
fn plain(path: &Path) -> PathBuf {
    let rest = path.strip_prefix(".").ok();
    let named = rest.filter(|rest| *rest != Path::new(""));
    named.unwrap_or(path).components().collect()
}

/// A policy file beside one that is not there, with a name like that.
fn similar(path: &Path, shown: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(path.parent()?).ok()?.flatten();
    let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let stems = names.iter().filter_map(|other| other.strip_suffix(".toml"));
    let name = path.file_stem()?.to_str()?;
    let near = nearest(name, stems.filter(|stem| *stem != name))?;
    Some(plain(&shown.with_file_name(format!("{near}.toml"))))
}

/// One text that a policy is read from.
pub(super) struct Source<'a> {
    /// What messages call it.
    pub name: String,
    /// The text.
    pub text: &'a str,
    /// Where its relative paths count from.
    pub dir: &'a Path,
    /// Where each line ends: every value is asked for its line.
    line_ends: Vec<usize>,
}

impl<'a> Source<'a> {
    fn new(name: String, text: &'a str, dir: &'a Path) -> Source<'a> {
        let line_ends = text.match_indices('\n').map(|(offset, _)| offset).collect();
        Source { name, text, dir, line_ends }
    }
}

impl Source<'_> {
    /// The place of the byte at `offset`.
    pub fn origin(&self, offset: usize) -> Origin {
        let line = 1 + self.line_ends.partition_point(|end| *end < offset);
        Origin(format!("{}:{line}", self.name))
    }

    fn parse(&self, vars: &Vars) -> Result<File, PolicyError> {
        let mut table = self.table()?;
        if let Some((_, error)) = self.expand_table(table.get_mut(), vars).into_iter().next() {
            return Err(error);
        }
        serde::Deserialize::deserialize(Deserializer::from(table)).map_err(|error| self.syntax(error))
    }

    /// The text as TOML, of this version.
    pub fn table(&self) -> Result<Spanned<DeTable<'_>>, PolicyError> {
        let table = DeTable::parse(self.text).map_err(|error| self.syntax(error))?;
        self.version(table.get_ref())?;
        Ok(table)
    }

    /// Fills variables in; what cannot be, by its offset.
    pub fn expand_table(&self, table: &mut DeTable, vars: &Vars) -> Vec<(usize, PolicyError)> {
        let mut errors = Vec::new();
        for (section, value) in table.iter_mut() {
            // Anywhere else a value may leave more than was meant: of
            // `runs/${run}` an empty one all runs, and `r1/keys` a part of another.
            let free_text = section.get_ref().as_ref() == "environment";
            self.expand(value, vars, free_text, &mut errors);
        }
        errors
    }

    /// First of all: a file of another version may hold anything.
    fn version(&self, table: &DeTable) -> Result<(), PolicyError> {
        let Some(version) = table.get("version") else {
            return Err(Problem::NoVersion.at(Origin(self.name.clone())));
        };
        match version.get_ref() {
            DeValue::Integer(number) if number.as_str() != "1" => {
                let number = number.as_str().to_owned();
                let place = self.origin(version.span().start);
                Err(Problem::UnknownVersion(number).at(&place))
            }
            _ => Ok(()),
        }
    }

    fn expand(
        &self,
        value: &mut Spanned<DeValue>,
        vars: &Vars,
        free_text: bool,
        errors: &mut Vec<(usize, PolicyError)>,
    ) {
        let offset = value.span().start;
        match value.get_mut() {
            DeValue::String(text) => match vars.expand(text, free_text) {
                Ok(Some(expanded)) => *text = expanded.into(),
                Ok(None) => {}
                Err(problem) => {
                    errors.push((offset, problem.at(self.origin(offset))));
                    *text = UNKNOWN.into();
                }
            },
            DeValue::Array(values) => {
                values.iter_mut().for_each(|value| self.expand(value, vars, free_text, errors));
            }
            DeValue::Table(table) => {
                table.iter_mut().for_each(|(_, value)| self.expand(value, vars, free_text, errors));
            }
            _ => {}
        }
    }

    pub fn syntax(&self, mut error: toml::de::Error) -> PolicyError {
        error.set_input(Some(self.text));
        let start = error.span().map(|span| span.start);
        let place = start.map_or_else(|| Origin(self.name.clone()), |start| self.origin(start));
        // "TOML parse error at …", a bar, the line, a mark below it, the message.
        let text = error.to_string();
        let shown = text.lines().skip(2).take_while(|line| line.contains('|'));
        let excerpt = shown.map(str::to_owned).collect();
        let key = start.map_or("", |start| self.key(start));
        let mut message = error.message().trim_end().replace('\n', ", ");
        if key == "without"
            && message.starts_with("unknown ")
            && let Some(end) = message.find(", expected")
        {
            // Serde names all layers, and some of them go with another alone.
            message.truncate(end);
        }
        let remedy = remedy(error.message(), key);
        Problem::Syntax { message, excerpt, remedy }.at(&place)
    }

    /// The key of the line that the byte at `offset` is in, without what leads to it.
    fn key(&self, offset: usize) -> &str {
        let start = self.text[..offset].rfind('\n').map_or(0, |end| end + 1);
        let key = self.text[start..].split(['=', '\n']).next().unwrap_or_default().trim();
        key.rsplit('.').next().unwrap_or(key)
    }
}

/// What to write instead, as far as the words of serde and toml tell: "unknown
/// field `ro_bnd`, expected one of `ro_bind`, `bind`". What they quote of a
/// string may be the value of a variable, and is not said again.
fn remedy(message: &str, key: &str) -> Option<String> {
    let mut names = message.split('`').skip(1).step_by(2);
    if message.starts_with("unknown ") {
        let name = names.next()?;
        let known: Vec<&str> = names.collect();
        let instead = instead_of(name, &known, key).or_else(|| place_for(message, name));
        return instead.or_else(|| (!known.is_empty()).then(|| format!("write {}", known.join(" or "))));
    }
    // A bare word is taken for what its first letter could begin.
    let bare = ["string values must be quoted", "invalid boolean", "invalid float", "invalid mantissa"];
    if bare.iter().any(|words| message.starts_with(words)) {
        return Some("a string stands in quotes".to_owned());
    }
    let (found, expected) = message.split_once(", expected ")?;
    if let Some(table) = expected.trim_end().strip_prefix("the table ") {
        return Some(format!("write {table} on a line of its own, and its keys below"));
    }
    match (expected.trim_end(), names.next()) {
        ("a sequence", _) => Some("write a list: [\"…\"]".to_owned()),
        ("a string", Some(number)) if key.starts_with("timeout") && found.contains("integer") => {
            Some(format!("write \"{number}s\""))
        }
        ("a string", None) => Some("write one string: \"…\"".to_owned()),
        ("u32", _) => Some("write a number like 1, without quotes".to_owned()),
        ("a string", Some(value)) => Some(format!("a string stands in quotes: \"{value}\"")),
        _ => None,
    }
}

/// What to write instead of `name`, where one of `known` was expected.
fn instead_of(name: &str, known: &[&str], key: &str) -> Option<String> {
    let is_layer = key == "without";
    let known = if is_layer { &["landlock", "seccomp", "network"] } else { known };
    if let Some(known) = nearest(name, known.iter().copied()) {
        return Some(format!("did you mean `{known}`?"));
    }
    if is_layer {
        return Some("use landlock, seccomp or network".to_owned());
    }
    let is_environment = known == ["pass", "set"];
    is_environment.then(|| format!("write set = {{ {name} = \"…\" }}"))
}

/// Where the key `name` stands, if another table has it.
fn place_for(message: &str, name: &str) -> Option<String> {
    let is_key = message.starts_with("unknown field");
    let places = if is_key { places_of(name) } else { Vec::new() };
    (!places.is_empty()).then(|| format!("it belongs {}", places.join(" or ")))
}
