//! All that is wrong with one file, once something is: what is wrong is taken out
//! of the file as it was read, and the rest is read again.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::Origin;
use super::draft::Draft;
use super::error::{PolicyError, Problem};
use super::file::File;
use super::load::{Source, UNKNOWN};
use super::vars::Vars;

/// More errors than these help nobody.
const MANY: usize = 20;

/// The first error of `source`, with the others behind it.
pub(super) fn with_all(source: &Source, vars: &Vars, first: PolicyError) -> PolicyError {
    let mut found = Found { errors: vec![first], quiet: Vec::new() };
    // A text that is no TOML, or of another version, says nothing more.
    if let Ok(table) = variables(source, vars, &mut found) {
        entries(source, table, &mut found);
    }
    let mut errors = found.errors;
    errors.sort_by_key(|error| error.place.line());
    let mut errors = errors.into_iter();
    let mut first = errors.next().expect("one is there");
    first.also = errors.collect();
    first
}

/// What is wrong with references to variables. One that is not defined stands for
/// something from then on, as the next one of that string is not looked at before.
fn variables<'a>(
    source: &'a Source,
    vars: &Vars,
    found: &mut Found,
) -> Result<Spanned<DeTable<'a>>, PolicyError> {
    let mut vars = vars.with("", "");
    loop {
        let mut table = source.table()?;
        let mut is_whole = true;
        for (_, error) in source.expand_table(table.get_mut(), &vars) {
            if let Problem::UndefinedVariable(name) = &error.problem {
                vars = vars.with(name, UNKNOWN);
                is_whole = false;
            }
            found.add(error);
        }
        if is_whole || found.errors.len() >= MANY {
            return Ok(table);
        }
    }
}

/// What is wrong with keys and values.
fn entries(source: &Source, mut table: Spanned<DeTable>, found: &mut Found) {
    while found.errors.len() < MANY {
        let removed = match File::deserialize(Deserializer::from(table.clone())) {
            Err(error) => {
                let span = error.span();
                found.add(source.syntax(error));
                let Some(start) = span.map(|span| span.start) else { return };
                remove(table.get_mut(), &|span| span.contains(&start) || span.start == start)
            }
            Ok(file) => match Draft::default().add_file(file, source) {
                Ok(()) => return,
                Err(error) => {
                    let place = error.place.clone();
                    found.add(error);
                    remove(table.get_mut(), &|span| source.origin(span.start) == place)
                }
            },
        };
        if !removed {
            return;
        }
    }
}

struct Found {
    errors: Vec<PolicyError>,
    /// Where nothing is said, as the value is not known.
    quiet: Vec<Origin>,
}

impl Found {
    /// A variable that stands in twenty places is missing once; and what is wrong
    /// with an entry is wrong once.
    fn add(&mut self, error: PolicyError) {
        let what = error.problem.to_string();
        let is_variable = matches!(error.problem, Problem::UndefinedVariable(_));
        let is_known = |known: &PolicyError| {
            known.problem.to_string() == what || (!is_variable && known.place == error.place)
        };
        if what.contains(UNKNOWN) {
            self.quiet.push(error.place);
        } else if !self.errors.iter().any(is_known) && !self.quiet.contains(&error.place) {
            self.errors.push(error);
        }
    }
}

/// Takes the innermost entry out that is bad.
fn remove(table: &mut DeTable, is_bad: &dyn Fn(&Range<usize>) -> bool) -> bool {
    if table.iter_mut().any(|(_, value)| remove_in(value.get_mut(), is_bad)) {
        return true;
    }
    let bad = table.iter().find(|(key, value)| is_bad(&key.span()) || is_bad(&value.span()));
    match bad.map(|(key, _)| key.clone()) {
        Some(key) => table.remove(&key).is_some(),
        None => false,
    }
}

fn remove_in(value: &mut DeValue, is_bad: &dyn Fn(&Range<usize>) -> bool) -> bool {
    match value {
        DeValue::Table(table) => remove(table, is_bad),
        DeValue::Array(values) => {
            if values.iter_mut().any(|value| remove_in(value.get_mut(), is_bad)) {
                return true;
            }
            let Some(bad) = values.iter().position(|value| is_bad(&value.span())) else { return false };
            let kept = values.iter().enumerate().filter(|(index, _)| *index != bad);
            *values = kept.map(|(_, value)| value.clone()).collect();
            true
        }
        _ => false,
    }
}
