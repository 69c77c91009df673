//! What the filters must be, tried on every number, on random sources, against a second compiler
//! and against the kernel.

mod bad_input;
mod exhaustive;
mod kernel;
mod random;
mod second;

use std::collections::BTreeSet;

use super::decide::{Call, Check, Decision, Decisions};
use super::source::{self, Source};
use super::table::Arch;

/// i386's `AUDIT_ARCH_…`; the kernel of x86_64 takes its calls through `int 0x80`.
const I386: u32 = 0x4000_0003;

/// Every number there is, all that the issue of a new one could bring, and far ones.
fn numbers() -> impl Iterator<Item = u32> {
    (0..1024).chain([0x3fff_ffff, 0x7fff_ffff, u32::MAX])
}

/// Reads a filter from text; included groups are the committed ones.
fn parse(text: &str) -> Result<Source, source::Error> {
    let read = |file: &str| match file {
        "test.filter" => Ok(text.to_owned()),
        _ => std::fs::read_to_string(super::root().join("filters").join(file)),
    };
    source::load("test.filter", &read)
}

/// Register values at which a condition may change its mind: what it names and the values beside
/// it, with other bits set in the low and in the high half.
fn edges(checks: &[&Check]) -> Vec<u64> {
    let mut edges = BTreeSet::from([0, 1, u64::MAX, 1 << 31, 1 << 32, u64::MAX << 32]);
    for check in checks {
        for &value in &check.values {
            edges.extend([value, value.wrapping_sub(1), value.wrapping_add(1), value << 32]);
            edges.extend([value | 1 << 32, value | 1 << 63, value ^ 1 << 31]);
            edges.insert(value | !check.mask);
        }
        edges.extend([check.mask, !check.mask, check.mask & check.mask.wrapping_neg()]);
    }
    edges.into_iter().collect()
}

/// Registers for a call: combinations of its conditions' edges, with `rest` elsewhere; all of
/// them, or `at_most` spread over them.
fn registers(decision: &Decision, rest: u64, at_most: u64) -> Vec<[u64; 6]> {
    let values: [Vec<u64>; 6] = std::array::from_fn(|index| {
        let checks = decision.rules.iter().flat_map(|rule| &rule.checks);
        let checks: Vec<&Check> = checks.filter(|check| check.argument.index == index).collect();
        if checks.is_empty() { vec![rest] } else { edges(&checks) }
    });
    let count = values.iter().map(|values| values.len() as u64).product::<u64>();
    let step = (count / at_most) | 1;
    (0..count.min(at_most))
        .map(|index| {
            let mut left = index * step % count;
            std::array::from_fn(|index| {
                let values = &values[index];
                let value = values[(left % values.len() as u64) as usize];
                left /= values.len() as u64;
                value
            })
        })
        .collect()
}

/// Calls of these numbers on every architecture and with the x32 bit; on the filter's own with
/// `at_most` combinations of registers for a call with conditions.
fn calls(
    decisions: &Decisions,
    numbers: impl Iterator<Item = u32>,
    at_most: u64,
) -> impl Iterator<Item = Call> {
    numbers.flat_map(move |number| {
        let mut registers = vec![[0; 6], [u64::MAX; 6]];
        if let Some(decision) = decisions.calls.get(&number) {
            registers.extend(self::registers(decision, 0, at_most));
        }
        let native = registers.iter().map(move |&arguments| (decisions.arch.audit(), number, arguments));
        let others =
            [I386, 0x4000_0028].into_iter().chain(Arch::ALL.map(Arch::audit)).flat_map(move |audit| {
                [number, number | super::decide::X32_BIT].map(|number| (audit, number, [0; 6]))
            });
        let all: Vec<_> = native.chain(others).collect();
        all.into_iter().map(|(audit, number, arguments)| Call { audit, number, arguments })
    })
}
