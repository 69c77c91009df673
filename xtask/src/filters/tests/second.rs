//! Against a second compiler: seccompiler's program and ours, for filters with the two outcomes
//! that it can express.

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use super::{calls, numbers, parse, random};
use crate::filters::bpf::{self, Insn};
use crate::filters::decide::{Check, Decision, Decisions};
use crate::filters::source::{Action, Source};
use crate::filters::table::Arch;
use crate::filters::{self, compile};

/// Alternatives, each of conditions that must all hold.
type Ways = Vec<Vec<SeccompCondition>>;

/// More alternatives than this are taken as beyond what it can express.
const MOST_WAYS: usize = 500;

#[test]
fn seccompiler_agrees_on_our_filters() {
    for name in filters::names().unwrap() {
        let mut source = filters::load(&name).unwrap();
        two_outcomes(&mut source);
        for arch in Arch::ALL {
            let decisions = Decisions::new(&source, arch).unwrap();
            let theirs = seccompiler(&decisions).expect("seccompiler can express it");
            let ours = compile(&decisions).unwrap();
            for call in calls(&decisions, numbers(), 20_000) {
                let (answer, _) = bpf::run(&ours, &call).unwrap();
                assert_eq!(Ok(answer), bpf::run(&theirs, &call).map(|run| run.0), "{name} {call:x?}");
            }
        }
    }
}

#[test]
fn seccompiler_agrees_on_random_sources() {
    let expressed = Cell::new(0);
    random::check(random::source(&["allow", "refuse ENOSYS"]), |text| {
        let mut source = parse(text).map_err(|error| TestCaseError::fail(error.to_string()))?;
        two_outcomes(&mut source);
        for arch in Arch::ALL {
            let decisions = Decisions::new(&source, arch).unwrap();
            let Some(theirs) = seccompiler(&decisions) else {
                continue;
            };
            expressed.set(expressed.get() + 1);
            let ours = compile(&decisions).unwrap();
            let numbers: Vec<u32> = decisions.calls.keys().copied().collect();
            for call in calls(&decisions, numbers.into_iter(), 24) {
                let (answer, _) = bpf::run(&ours, &call).unwrap();
                let theirs = bpf::run(&theirs, &call).map(|run| run.0);
                prop_assert_eq!(Ok(answer), theirs, "{} {:x?}", arch, call);
            }
        }
        Ok(())
    });
    println!("seccompiler could express {} of them", expressed.get());
    assert!(expressed.get() > 5_000);
}

/// seccompiler kills calls of another architecture, does not look at the x32 bit, and has one
/// answer for all that is not allowed.
fn two_outcomes(source: &mut Source) {
    let other = Action::Refuse("ENOSYS".to_owned());
    let others = [&mut source.x32, &mut source.unknown].into_iter().flatten();
    let clauses = source.entries.iter_mut().flat_map(|entry| &mut entry.clauses);
    for verdict in clauses.map(|clause| &mut clause.verdict) {
        if verdict.action != Action::Allow {
            verdict.action = other.clone();
        }
    }
    for verdict in others {
        verdict.action = other.clone();
    }
    if let Some(foreign) = &mut source.foreign {
        foreign.action = Action::Kill;
    }
}

/// Its program for these decisions, if it can express them.
fn seccompiler(decisions: &Decisions) -> Option<Vec<Insn>> {
    let mut rules = BTreeMap::new();
    for (&number, decision) in &decisions.calls {
        let ways = allowed(decision)?;
        if ways.iter().any(Vec::is_empty) {
            rules.insert(i64::from(number), Vec::new());
        } else if !ways.is_empty() {
            let ways = ways.into_iter().map(|way| SeccompRule::new(way).ok());
            rules.insert(i64::from(number), ways.collect::<Option<Vec<_>>>()?);
        }
    }
    let arch = match decisions.arch {
        Arch::X86_64 => TargetArch::x86_64,
        Arch::Aarch64 => TargetArch::aarch64,
    };
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch).ok()?;
    let program: BpfProgram = filter.try_into().ok()?;
    let insn =
        |insn: &seccompiler::sock_filter| Insn { code: insn.code, jt: insn.jt, jf: insn.jf, k: insn.k };
    Some(program.iter().map(insn).collect())
}

/// The ways to be allowed: by a rule, and by no refusal before it.
fn allowed(decision: &Decision) -> Option<Ways> {
    let mut allowed = Vec::new();
    let mut not_refused = vec![Vec::new()];
    for rule in &decision.rules {
        if rule.clause.verdict.action == Action::Allow {
            let mut ways = not_refused.clone();
            for check in &rule.checks {
                ways = both(&ways, &holds(check, false)?)?;
            }
            allowed.extend(ways);
        } else {
            let mut fails = Vec::new();
            for check in &rule.checks {
                fails.extend(holds(check, true)?);
            }
            not_refused = both(&not_refused, &fails)?;
        }
    }
    (allowed.len() <= MOST_WAYS).then_some(allowed)
}

fn both(left: &Ways, right: &Ways) -> Option<Ways> {
    let pairs =
        left.iter().flat_map(|left| right.iter().map(|right| [left.as_slice(), right.as_slice()].concat()));
    (left.len() * right.len() <= MOST_WAYS).then(|| pairs.collect())
}

/// The ways in which a check holds, or does not.
fn holds(check: &Check, not: bool) -> Option<Ways> {
    let width = if check.argument.wide { u64::MAX } else { u32::MAX.into() };
    let condition = |operator, value| {
        let length = match check.argument.wide {
            true => SeccompCmpArgLen::Qword,
            false => SeccompCmpArgLen::Dword,
        };
        SeccompCondition::new(check.argument.index as u8, length, operator, value).ok()
    };
    let masked = |value| Some(vec![condition(SeccompCmpOp::MaskedEq(check.mask), value)?]);
    if check.negated == not {
        return check.values.iter().map(|&value| masked(value)).collect();
    }
    if check.mask == width {
        let differ = check.values.iter().map(|&value| condition(SeccompCmpOp::Ne, value));
        return Some(vec![differ.collect::<Option<_>>()?]);
    }
    if let (1, Some(&value)) = (check.values.len(), check.values.first()) {
        // One bit differs at least.
        let bits = (0..u64::BITS).map(|bit| 1 << bit).filter(|bit| check.mask & bit != 0);
        let differs = |bit| Some(vec![condition(SeccompCmpOp::MaskedEq(bit), !value & bit)?]);
        return bits.map(differs).collect();
    }
    // It has no "differs under a mask": name all the other values that the mask leaves.
    let others = (check.mask.count_ones() <= 6).then(|| submasks(check.mask))?;
    others.into_iter().filter(|value| !check.values.contains(value)).map(masked).collect()
}

fn submasks(mask: u64) -> Vec<u64> {
    let mut all = vec![mask];
    let mut next = mask;
    while next != 0 {
        next = (next - 1) & mask;
        all.push(next);
    }
    all
}
