//! Random sources: whatever they say, the program says the same.

use std::collections::BTreeSet;
use std::time::SystemTime;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};

use super::{calls, parse};
use crate::filters::decide::Decisions;
use crate::filters::table::{self, Arch};
use crate::filters::{bpf, compile};

const CASES: u32 = 10_000;

/// Values with bits in both halves, and close together, so that ranges touch.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..8,
        2 => (0u32..64).prop_map(|bit| 1 << bit),
        1 => (0u64..4, 0u64..4).prop_map(|(high, low)| high << 32 | low),
        1 => any::<u64>(),
        1 => Just(u64::MAX),
    ]
}

/// A condition on an argument of the call, within what the kernel reads of it.
fn test(call: &'static str) -> impl Strategy<Value = String> {
    let argument = prop::sample::select(table::arguments(call));
    let operator = prop::sample::select(vec!["==", "!=", "in", "not in"]);
    let values = prop::collection::vec(value(), 1..4);
    (argument, prop::option::of(value()), operator, values).prop_map(|(argument, mask, operator, values)| {
        let width = if argument.wide { u64::MAX } else { u32::MAX.into() };
        let mask = mask.map(|mask| mask & width).filter(|&mask| mask != 0);
        let values: Vec<String> = values
            .iter()
            .take(if operator.ends_with("in") { 4 } else { 1 })
            .map(|value| format!("{:#x}", value & width & mask.unwrap_or(width)))
            .collect();
        let mask = mask.map(|mask| format!("& {mask:#x} ")).unwrap_or_default();
        format!("{} {mask}{operator} {}", argument.name, values.join(" "))
    })
}

/// The text that decides one call.
fn decision(call: &'static str, actions: &'static [&'static str]) -> BoxedStrategy<String> {
    let action = || prop::sample::select(actions);
    let plain = action().prop_map(move |action| format!("{action}: why\n    {call}\n"));
    if table::arguments(call).is_empty() {
        return plain.boxed();
    }
    let clause = (action(), prop::collection::vec(test(call), 1..3))
        .prop_map(|(action, tests)| format!("    {action} if {}\n", tests.join(" and ")));
    let conditional = (prop::collection::vec(clause, 1..4), action())
        .prop_map(move |(clauses, last)| format!("call {call}: why\n{}    {last}\n", clauses.concat()));
    prop_oneof![1 => plain, 2 => conditional].boxed()
}

/// The text of a filter in which only these actions occur.
pub fn source(actions: &'static [&'static str]) -> impl Strategy<Value = String> {
    let everywhere = |name: &&str| Arch::Aarch64.calls().number(name).is_some();
    let names = Arch::X86_64.calls().iter().map(|(_, name)| name);
    let names: Vec<&str> = names.filter(everywhere).collect();
    let some = prop::collection::btree_set(0..names.len(), 0..8);
    let decisions = some.prop_flat_map(move |indices| {
        let decision = |index| decision(names[index], actions);
        indices.into_iter().map(decision).collect::<Vec<_>>()
    });
    let action = || prop::sample::select(actions);
    (action(), action(), action(), decisions).prop_map(|(foreign, x32, unknown, decisions)| {
        format!(
            "filter test: why\ngroup all: why\n\
             foreign {foreign}: why\nx32 {x32}: why\nunknown {unknown}: why\n{}",
            decisions.concat()
        )
    })
}

/// Runs `property` on random sources; a failure names the seed that brings it back.
pub fn check(sources: impl Strategy<Value = String>, property: impl Fn(&str) -> Result<(), TestCaseError>) {
    let seed = match std::env::var("CELLBLOCK_SEED") {
        Ok(seed) => seed.parse().expect("CELLBLOCK_SEED is a number"),
        Err(_) => SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64,
    };
    let config = Config {
        cases: CASES,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Config::default()
    };
    match TestRunner::new(config).run(&sources, |text| property(&text)) {
        Ok(()) => {}
        Err(TestError::Fail(why, text)) => panic!("CELLBLOCK_SEED={seed}: {why}\n{text}"),
        Err(error) => panic!("CELLBLOCK_SEED={seed}: {error}"),
    }
}

#[test]
fn programs_decide_as_random_sources() {
    let actions = &["allow", "kill", "refuse EPERM", "refuse ENOSYS", "refuse EINVAL"];
    check(source(actions), |text| {
        let source = parse(text).map_err(|error| TestCaseError::fail(error.to_string()))?;
        for arch in Arch::ALL {
            let decisions = Decisions::new(&source, arch).unwrap();
            let program = compile(&decisions).unwrap();
            // Numbers far from any decision are alike: the neighbours do.
            let near = decisions.calls.keys().flat_map(|&number| number.saturating_sub(1)..number + 2);
            let numbers: BTreeSet<u32> = near.chain([0, 1023]).collect();
            for call in calls(&decisions, numbers.into_iter(), 24) {
                let (answer, _) = bpf::run(&program, &call).unwrap();
                prop_assert_eq!(answer, decisions.action(&call).code(), "{} {:x?}", arch, call);
            }
        }
        Ok(())
    });
}
