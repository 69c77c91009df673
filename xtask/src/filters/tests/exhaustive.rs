//! Every compiled program over every number, and over the edges of every condition.

use std::collections::BTreeSet;
use std::fs;

use super::{calls, numbers};
use crate::filters::decide::Decisions;
use crate::filters::table::Arch;
use crate::filters::{self, bpf, compile, load};

#[test]
fn programs_decide_as_their_sources() {
    for name in filters::names().unwrap() {
        let source = load(&name).unwrap();
        for arch in Arch::ALL {
            let decisions = Decisions::new(&source, arch).unwrap();
            let program = compile(&decisions).unwrap();
            for call in calls(&decisions, numbers(), u64::MAX) {
                let (answer, _) = bpf::run(&program, &call).unwrap();
                let action = decisions.action(&call);
                assert_eq!(answer, action.code(), "{name} {arch} {call:x?}: {action}");
            }
        }
    }
}

#[test]
fn every_call_is_decided_on_purpose() {
    for name in filters::names().unwrap() {
        let source = load(&name).unwrap();
        for arch in Arch::ALL {
            let decisions = Decisions::new(&source, arch).unwrap();
            for (number, call) in arch.calls().iter() {
                assert!(decisions.calls.contains_key(&number), "{name} says nothing of {call}");
            }
        }
    }
}

#[test]
fn every_group_is_included() {
    let mut included = BTreeSet::new();
    for name in filters::names().unwrap() {
        // A group may hold a set alone, which decides nothing by itself.
        let text = fs::read_to_string(filters::root().join(format!("filters/{name}.filter"))).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("include "));
        included.extend(lines.flat_map(str::split_whitespace).map(|group| format!("groups/{group}.filter")));
    }
    for entry in fs::read_dir(filters::root().join("filters/groups")).unwrap() {
        let file = format!("groups/{}", entry.unwrap().file_name().display());
        assert!(included.contains(&file), "no filter includes filters/{file}");
    }
}

#[test]
fn every_rule_can_be_reached() {
    for name in filters::names().unwrap() {
        let source = load(&name).unwrap();
        for arch in Arch::ALL {
            for decision in Decisions::new(&source, arch).unwrap().calls.values() {
                let registers = super::registers(decision, 0, u64::MAX);
                for rule in &decision.rules {
                    let place = &rule.clause.verdict.place;
                    let takes = |registers| std::ptr::eq(decision.rule(registers), rule);
                    assert!(registers.iter().any(takes), "{place}: takes no {} call", decision.call);
                }
            }
        }
    }
}

#[test]
fn programs_are_short_and_decide_soon() {
    for name in filters::names().unwrap() {
        let source = load(&name).unwrap();
        for arch in Arch::ALL {
            let decisions = Decisions::new(&source, arch).unwrap();
            let program = compile(&decisions).unwrap();
            assert!(program.len() <= 600, "{name} {arch}: {} instructions", program.len());
            for call in calls(&decisions, numbers(), u64::MAX) {
                let decision = decisions.calls.get(&call.number);
                if decision.is_none_or(|decision| decision.by_number().is_some()) {
                    let (_, steps) = bpf::run(&program, &call).unwrap();
                    assert!(steps <= 16, "{name} {arch} {call:x?}: {steps} instructions");
                }
            }
        }
    }
}
