//! From the text to decisions: names become numbers, for one architecture.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::source::{Clause, Entry, Error, Operator, Place, Source, Test, Verdict, nearest};
use super::table::{self, Arch, Argument};

/// The bit that marks a call of x86_64's second numbering.
pub const X32_BIT: u32 = 0x4000_0000;

/// What a filter decides on one architecture.
pub struct Decisions<'s> {
    /// The filter's name.
    pub name: &'s str,
    /// The architecture.
    pub arch: Arch,
    /// The decision about each call, by number.
    pub calls: BTreeMap<u32, Decision<'s>>,
    /// The answer to calls of other architectures.
    pub foreign: &'s Verdict,
    /// The answer to numbers with [`X32_BIT`]; looked at on x86_64 only.
    pub x32: &'s Verdict,
    /// The answer to every other number.
    pub unknown: &'s Verdict,
}

/// The decision about one call.
pub struct Decision<'s> {
    /// The call's name.
    pub call: &'static str,
    /// The line that names it.
    pub place: &'s Place,
    /// Where it comes from.
    pub entry: &'s Entry,
    /// The clauses with their conditions as numbers.
    pub rules: Vec<Rule<'s>>,
}

/// A clause with its conditions as numbers.
pub struct Rule<'s> {
    /// The clause as written.
    pub clause: &'s Clause,
    /// What must hold, all of it.
    pub checks: Vec<Check>,
}

/// A condition on one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The argument.
    pub argument: Argument,
    /// The bits looked at.
    pub mask: u64,
    /// What they are compared with.
    pub values: BTreeSet<u64>,
    /// Whether it holds when they are none of `values`.
    pub negated: bool,
    /// The condition in words, with a set's members in place of its name.
    pub text: String,
}

/// What a filter is given: the kernel's `seccomp_data`, but for the instruction pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// `AUDIT_ARCH_…` of the entry the call was made by.
    pub audit: u32,
    /// Its number.
    pub number: u32,
    /// The six registers.
    pub arguments: [u64; 6],
}

impl fmt::Display for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.clause.verdict.action)?;
        for (index, check) in self.checks.iter().enumerate() {
            write!(f, " {} {}", if index == 0 { "if" } else { "and" }, check.text)?;
        }
        Ok(())
    }
}

impl Check {
    /// Whether the condition holds for these registers.
    pub fn holds(&self, arguments: &[u64; 6]) -> bool {
        let register = arguments[self.argument.index];
        let value = if self.argument.wide { register } else { u64::from(register as u32) };
        self.values.contains(&(value & self.mask)) != self.negated
    }
}

impl Decision<'_> {
    /// The rule that takes a call with these registers.
    pub fn rule(&self, arguments: &[u64; 6]) -> &Rule<'_> {
        let holds = |rule: &&Rule| rule.checks.iter().all(|check| check.holds(arguments));
        self.rules.iter().find(holds).expect("the last rule has no condition")
    }

    /// The rule for every such call, where no argument matters.
    pub fn by_number(&self) -> Option<&Rule<'_>> {
        (self.rules.len() == 1).then(|| &self.rules[0])
    }
}

impl<'s> Decisions<'s> {
    /// Resolves the names of `source` for `arch`.
    pub fn new(source: &'s Source, arch: Arch) -> Result<Self, Error> {
        let mut calls = BTreeMap::new();
        for entry in &source.entries {
            for (name, place) in &entry.calls {
                let Some((number, call)) = resolve_call(entry, name, place, arch)? else {
                    continue;
                };
                let rules = entry
                    .clauses
                    .iter()
                    .map(|clause| {
                        let checks = clause.tests.iter();
                        let checks = checks.map(|test| check(source, call, clause, test, arch));
                        Ok(Rule { clause, checks: checks.collect::<Result<_, _>>()? })
                    })
                    .collect::<Result<_, Error>>()?;
                calls.insert(number, Decision { call, place, entry, rules });
            }
        }
        let said = |verdict: &'s Option<Verdict>, word: &str| {
            verdict.as_ref().ok_or_else(|| {
                let place = Place { file: format!("{}.filter", source.name), line: 1 };
                let what = format!("nothing says what happens to {word} calls");
                Error::new(&place, what, format!("{word} refuse ENOSYS: why"))
            })
        };
        Ok(Decisions {
            name: &source.name,
            arch,
            calls,
            foreign: said(&source.foreign, "foreign")?,
            x32: said(&source.x32, "x32")?,
            unknown: said(&source.unknown, "unknown")?,
        })
    }

    /// What happens to this call: the meaning of a filter, which its program must have too.
    #[cfg(test)]
    pub fn action(&self, call: &Call) -> &super::source::Action {
        if call.audit != self.arch.audit() {
            return &self.foreign.action;
        }
        if self.arch == Arch::X86_64 && call.number >= X32_BIT {
            return &self.x32.action;
        }
        match self.calls.get(&call.number) {
            Some(decision) => &decision.rule(&call.arguments).clause.verdict.action,
            None => &self.unknown.action,
        }
    }

    /// The decision about the call of that name.
    pub fn named(&self, call: &str) -> Option<&Decision<'s>> {
        self.calls.get(&self.arch.calls().number(call)?)
    }
}

/// Number and name of a call, or nothing where it is for the other architecture.
fn resolve_call(
    entry: &Entry,
    name: &str,
    place: &Place,
    arch: Arch,
) -> Result<Option<(u32, &'static str)>, Error> {
    let on = entry.arch.unwrap_or(arch);
    let calls = on.calls();
    if let Some(number) = calls.number(name) {
        let call = calls.name(number).expect("the table is one to one");
        return Ok((on == arch).then_some((number, call)));
    }
    let has = |arch: &Arch| arch.calls().number(name).is_some();
    if let Some(other) = Arch::ALL.into_iter().find(has) {
        let what = format!("`{name}` is a call of {other} only");
        return Err(Error::new(place, what, format!("it below a line that ends in `on {other}`")));
    }
    let near = nearest(name, calls.iter().map(|(_, name)| name));
    let instead = format!("{near}, or add the call to xtask/src/filters/syscalls/{on}.txt");
    Err(Error::new(place, format!("no call is named `{name}`"), instead))
}

/// The argument a condition is about.
fn argument(call: &str, place: &Place, name: &str) -> Result<Argument, Error> {
    let arguments = table::arguments(call);
    if let Some(&argument) = arguments.iter().find(|argument| argument.name == name) {
        return Ok(argument);
    }
    let names: Vec<&str> = arguments.iter().map(|argument| argument.name).collect();
    let instead = match names[..] {
        [] => format!("`{call}` without a condition, it takes no argument"),
        _ => format!("one of: {}", names.join(" ")),
    };
    let what = format!("`{call}` has no argument `{name}`");
    Err(Error::new(place, what, instead))
}

fn check(
    source: &Source,
    call: &'static str,
    clause: &Clause,
    test: &Test,
    arch: Arch,
) -> Result<Check, Error> {
    let place = &clause.verdict.place;
    let argument = argument(call, place, &test.argument)?;
    let (bits, width) = match argument.wide {
        true => (64, u64::MAX),
        false => (32, u64::from(u32::MAX)),
    };
    let mut text = test.argument.clone();
    let mask = match &test.mask {
        None => width,
        Some(mask) => {
            let named = values(source, place, mask, arch)?;
            let names: Vec<&str> = named.iter().map(|&(name, _)| name).collect();
            text = format!("{text} & {}", names.join("|"));
            named.iter().fold(0, |mask, (_, bit)| mask | bit)
        }
    };
    if mask & !width != 0 || mask == 0 {
        let name = argument.name;
        let what = format!("{mask:#x} is no mask of `{name}`, the kernel reads {bits} bits of it");
        return Err(Error::new(place, what, "a mask of these bits, at least one"));
    }
    text = format!("{text} {}", test.operator);
    let mut found = BTreeSet::new();
    for word in &test.values {
        for (name, value) in values(source, place, word, arch)? {
            if value & !mask != 0 {
                let what = format!("the bits {mask:#x} of `{}` are never {name}", argument.name);
                return Err(Error::new(place, what, "a value within those bits"));
            }
            text = format!("{text} {name}");
            found.insert(value);
        }
    }
    let one = matches!(test.operator, Operator::Equal | Operator::NotEqual);
    if one && found.len() != 1 {
        let what = format!("`{}` compares with one value, {} is a set", test.operator, test.values[0]);
        return Err(Error::new(place, what, "in, or not in"));
    }
    let negated = matches!(test.operator, Operator::NotEqual | Operator::NotIn);
    Ok(Check { argument, mask, values: found, negated, text })
}

/// What a word stands for, by name and value: a number, a constant, or all of a set.
fn values<'a>(
    source: &'a Source,
    place: &Place,
    word: &'a str,
    arch: Arch,
) -> Result<Vec<(&'a str, u64)>, Error> {
    let members = match source.sets.get(word) {
        Some(members) => members.iter().map(String::as_str).collect(),
        None => vec![word],
    };
    let value = |name: &'a str| {
        let value = table::number(name).or_else(|| arch.constant(name));
        value.map(|value| (name, value)).ok_or_else(|| {
            let sets = source.sets.keys().map(String::as_str);
            let near = nearest(name, sets.chain(table::constant_names()));
            let instead = format!("{near}, or add it to xtask/src/filters/syscalls/constants.txt");
            Error::new(place, format!("nothing is known by the name `{name}`"), instead)
        })
    };
    members.into_iter().map(value).collect()
}
