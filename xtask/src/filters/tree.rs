//! From decisions to a graph of comparisons, with equal parts shared.
//!
//! Every level works alike: pick one word of the input (the number, or half an argument under a
//! mask), cut its values into ranges that decide alike, and search them by halves. So a call
//! without conditions ends in the first level, which the kernel then takes into its bitmap of
//! calls that need no filter run at all.

use std::collections::{BTreeSet, HashMap};

use super::decide::{Check, Decisions, Rule, X32_BIT};
use super::source::Action;
use super::table::Arch;

/// Offset of the call's number in the input.
pub const NUMBER: u32 = 0;
/// Offset of the architecture in the input.
pub const ARCH: u32 = 4;
/// Offset of the first argument's low half; its high half is 4 on, the next argument 8 on.
pub const ARGUMENTS: u32 = 16;

/// A node's place in its graph.
pub type Id = usize;

/// One step of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// The end.
    Return(Action),
    /// Takes up a word of the input, under a mask, for the jumps that follow.
    Load { offset: u32, mask: u32, then: Id },
    /// Goes on at `yes` if the word is `value`, at `no` otherwise.
    Equal { value: u32, yes: Id, no: Id },
    /// Goes on at `yes` if the word is `value` or more, at `no` otherwise.
    AtLeast { value: u32, yes: Id, no: Id },
}

/// Nodes, each made once.
#[derive(Default)]
pub struct Graph {
    /// A node comes after all that it leads to.
    pub nodes: Vec<Node>,
    known: HashMap<Node, Id>,
}

/// A condition on one word of the input.
#[derive(Clone, Debug)]
struct WordTest {
    offset: u32,
    mask: u32,
    values: BTreeSet<u32>,
    negated: bool,
}

/// Tests that must all hold, and what happens then.
#[derive(Clone)]
struct Case<'a> {
    tests: Vec<WordTest>,
    action: &'a Action,
}

impl Graph {
    /// The graph of a filter, and where it begins.
    pub fn new(decisions: &Decisions) -> (Self, Id) {
        let mut graph = Graph::default();
        let unknown = graph.end(&decisions.unknown.action);
        let mut ranges = vec![(0, unknown)];
        for (&number, decision) in &decisions.calls {
            let cases = decision.rules.iter().flat_map(cases).collect();
            let id = graph.cases(cases);
            push(&mut ranges, number, id);
            push(&mut ranges, number + 1, unknown);
        }
        let mut numbers = graph.search(&ranges);
        if decisions.arch == Arch::X86_64 {
            let x32 = graph.end(&decisions.x32.action);
            numbers = graph.add(Node::AtLeast { value: X32_BIT, yes: x32, no: numbers });
        }
        let native = graph.add(Node::Load { offset: NUMBER, mask: u32::MAX, then: numbers });
        let foreign = graph.end(&decisions.foreign.action);
        let value = decisions.arch.audit();
        let guard = graph.add(Node::Equal { value, yes: native, no: foreign });
        let start = graph.add(Node::Load { offset: ARCH, mask: u32::MAX, then: guard });
        (graph, start)
    }

    fn add(&mut self, node: Node) -> Id {
        *self.known.entry(node.clone()).or_insert_with(|| {
            self.nodes.push(node);
            self.nodes.len() - 1
        })
    }

    fn end(&mut self, action: &Action) -> Id {
        self.add(Node::Return(action.clone()))
    }

    /// The first case whose tests hold decides.
    fn cases(&mut self, cases: Vec<Case>) -> Id {
        let Some(test) = cases[0].tests.first() else {
            return self.end(cases[0].action);
        };
        let (offset, mask) = (test.offset, test.mask);
        let on_word = |test: &&WordTest| (test.offset, test.mask) == (offset, mask);
        let tests = cases.iter().flat_map(|case| &case.tests).filter(on_word);
        let mut starts = BTreeSet::from([0]);
        for &value in tests.flat_map(|test| &test.values) {
            starts.insert(value);
            starts.extend(value.checked_add(1));
        }
        let mut ranges = Vec::new();
        for start in starts {
            let id = self.cases(given(&cases, offset, mask, start));
            push(&mut ranges, start, id);
        }
        match ranges[..] {
            [(_, same)] => same,
            _ => {
                let then = self.search(&ranges);
                self.add(Node::Load { offset, mask, then })
            }
        }
    }

    /// Finds the range a word lies in: in the fewest steps, then with the fewest nodes. A range
    /// begins at its first value and ends before the next one's.
    fn search(&mut self, ranges: &[(u32, Id)]) -> Id {
        let plan = Plan::new(ranges);
        self.build(ranges, &plan, 0, ranges.len())
    }

    fn build(&mut self, ranges: &[(u32, Id)], plan: &Plan, from: usize, to: usize) -> Id {
        match plan.step(from, to) {
            Step::Found => ranges[from].1,
            Step::Exception => {
                let (value, yes) = ranges[from + 1];
                self.add(Node::Equal { value, yes, no: ranges[from].1 })
            }
            Step::Split(at) => {
                let no = self.build(ranges, plan, from, at);
                let yes = self.build(ranges, plan, at, to);
                self.add(Node::AtLeast { value: ranges[at].0, yes, no })
            }
        }
    }
}

/// Adds a range, or lengthens the last one where it leads to the same node.
fn push(ranges: &mut Vec<(u32, Id)>, start: u32, id: Id) {
    ranges.pop_if(|last| last.0 == start);
    if ranges.last().is_none_or(|last| last.1 != id) {
        ranges.push((start, id));
    }
}

/// The best way to search every run of ranges.
struct Plan {
    steps: Vec<(usize, usize, Step)>,
    count: usize,
}

#[derive(Clone, Copy)]
enum Step {
    /// One range is left.
    Found,
    /// The middle one of three is a single value, and the outer two lead to the same node.
    Exception,
    /// The range with this index begins the upper half.
    Split(usize),
}

impl Plan {
    fn new(ranges: &[(u32, Id)]) -> Self {
        let count = ranges.len();
        let mut plan = Plan { steps: vec![(0, 0, Step::Found); (count + 1) * (count + 1)], count };
        for length in 2..=count {
            for from in 0..=count - length {
                let to = from + length;
                let exception = length == 3
                    && ranges[from].1 == ranges[from + 2].1
                    && ranges[from + 1].0 + 1 == ranges[from + 2].0;
                let best = if exception {
                    (1, 1, Step::Exception)
                } else {
                    let split = |at| {
                        let (low, high) = (plan.cost(from, at), plan.cost(at, to));
                        (1 + low.0.max(high.0), 1 + low.1 + high.1, Step::Split(at))
                    };
                    let splits = (from + 1..to).map(split);
                    splits.min_by_key(|&(depth, size, _)| (depth, size)).expect("two ranges")
                };
                plan.steps[from * (count + 1) + to] = best;
            }
        }
        plan
    }

    fn cost(&self, from: usize, to: usize) -> (usize, usize) {
        let (depth, size, _) = self.steps[from * (self.count + 1) + to];
        (depth, size)
    }

    fn step(&self, from: usize, to: usize) -> Step {
        self.steps[from * (self.count + 1) + to].2
    }
}

/// What is left of the cases once a word is known; those that cannot hold any more fall away,
/// and so do those behind one that must.
fn given<'a>(cases: &[Case<'a>], offset: u32, mask: u32, value: u32) -> Vec<Case<'a>> {
    let mut left = Vec::new();
    for case in cases {
        let on_word = |test: &WordTest| (test.offset, test.mask) == (offset, mask);
        let (known, tests): (Vec<_>, Vec<_>) = case.tests.iter().cloned().partition(on_word);
        if known.iter().all(|test| test.values.contains(&value) != test.negated) {
            let decided = tests.is_empty();
            left.push(Case { tests, action: case.action });
            if decided {
                break;
            }
        }
    }
    left
}

/// A rule as cases over words. A check of 64 bits becomes a case for each high half it names,
/// and a negated one a case more, for every other high half.
fn cases<'a>(rule: &'a Rule) -> Vec<Case<'a>> {
    let mut alternatives = vec![Vec::new()];
    for check in &rule.checks {
        let ways = words(check);
        alternatives = alternatives
            .iter()
            .flat_map(|tests: &Vec<WordTest>| ways.iter().map(move |way| [tests.as_slice(), way].concat()))
            .collect();
    }
    let action = &rule.clause.verdict.action;
    alternatives.into_iter().map(|tests| Case { tests, action }).collect()
}

fn words(check: &Check) -> Vec<Vec<WordTest>> {
    let offset = ARGUMENTS + 8 * check.argument.index as u32;
    let low =
        |values: BTreeSet<u32>| WordTest { offset, mask: check.mask as u32, values, negated: check.negated };
    let high = |values: BTreeSet<u32>, negated| WordTest {
        offset: offset + 4,
        mask: (check.mask >> 32) as u32,
        values,
        negated,
    };
    if check.mask >> 32 == 0 {
        return vec![vec![low(check.values.iter().map(|&value| value as u32).collect())]];
    }
    let highs: BTreeSet<u32> = check.values.iter().map(|value| (value >> 32) as u32).collect();
    let mut ways: Vec<Vec<WordTest>> = highs
        .iter()
        .map(|&half| {
            let same = check.values.iter().filter(|&&value| (value >> 32) as u32 == half);
            let lows = same.map(|&value| value as u32).collect();
            vec![high(BTreeSet::from([half]), false), low(lows)]
        })
        .collect();
    if check.negated {
        ways.push(vec![high(highs, true)]);
    }
    ways
}
