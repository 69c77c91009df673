//! What a filter costs: to install, and to call under.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::time::Instant;

use anyhow::{Context, bail};

use super::statistics::median;
use super::{Bar, Figure};
use crate::filters::bpf::{self, EQUAL, Insn, LOAD, RETURN};
use crate::filters::decide::{Call, Decisions};
use crate::filters::install::Loaded;
use crate::filters::table::Arch;
use crate::filters::{self, compile};

/// Installations of each filter, taken in turn.
const INSTALLS: usize = 301;
/// Batches of calls under each filter, taken in turn, and calls in one batch.
const BATCHES: usize = 500;
const CALLS: u32 = 5_000;

/// Measures the figures of `provider`.
pub(super) fn measure() -> anyhow::Result<Vec<Figure>> {
    let source = filters::load("provider")?;
    let decisions = Decisions::new(&source, Arch::NATIVE)?;
    let program = compile(&decisions)?;
    let tree = Loaded::new(&program);
    let chain = Loaded::new(&chain(&decisions));
    let single = Loaded::new(&[Insn { code: RETURN, jt: 0, jf: 0, k: 0x7fff_0000 }]);
    let figure = |name: &str, value, bar, detail: String| {
        let (name, bar) = (name.to_owned(), Bar::AtMost(bar));
        Figure { name, value, bar, detail }
    };

    let (mut by_tree, mut by_chain) = (Vec::new(), Vec::new());
    for _ in 0..INSTALLS {
        by_tree.push(in_child(|| install_time(&tree))?);
        by_chain.push(in_child(|| install_time(&chain))?);
    }
    let (by_tree, by_chain) = (median(&by_tree), median(&by_chain));
    let detail = format!("{:.1} µs, as a chain {:.1} µs", by_tree * 1e6, by_chain * 1e6);
    let installed = figure("installing provider / as a linear chain", by_tree / by_chain, 0.45, detail);

    let depth = depth(&decisions, &program)?;
    let deep = figure("instructions to a decision by number", depth, 16.0, String::new());
    let long = figure("instructions of provider", program.len() as f64, 600.0, String::new());

    let by_number = || {
        // SAFETY: getppid takes nothing.
        black_box(unsafe { libc::getppid() });
    };
    let (under, alone) = call_times(&tree, &single, by_number)?;
    let detail = format!("getppid {under:.1} ns, under a single allow {alone:.1} ns");
    let fast = figure("a call decided by number / under a single allow", under / alone, 1.03, detail);

    let by_argument = || {
        // SAFETY: the path ends in NUL; what is opened is closed.
        unsafe { libc::close(libc::openat(libc::AT_FDCWD, c"/".as_ptr(), libc::O_PATH)) };
    };
    let (under, alone) = call_times(&tree, &single, by_argument)?;
    let detail = format!("openat, close {under:.1} ns, under a single allow {alone:.1} ns");
    let slow = figure("a call decided by argument / the same", under / alone, 1.08, detail);
    Ok(vec![installed, deep, long, fast, slow])
}

/// What the list would be without a tree: a comparison for each call, in order, and its answer.
/// Conditions are left out, which only makes the chain shorter.
fn chain(decisions: &Decisions) -> Vec<Insn> {
    let insn = |code, jt, jf, k| Insn { code, jt, jf, k };
    let mut chain = vec![
        insn(LOAD, 0, 0, 4),
        insn(EQUAL, 1, 0, decisions.arch.audit()),
        insn(RETURN, 0, 0, decisions.foreign.action.code()),
        insn(LOAD, 0, 0, 0),
    ];
    for (&number, decision) in &decisions.calls {
        let last = decision.rules.last().expect("a call has a rule");
        chain.push(insn(EQUAL, 0, 1, number));
        chain.push(insn(RETURN, 0, 0, last.clause.verdict.action.code()));
    }
    chain.push(insn(RETURN, 0, 0, decisions.unknown.action.code()));
    chain
}

fn depth(decisions: &Decisions, program: &[Insn]) -> anyhow::Result<f64> {
    let mut most = 0;
    for number in 0..1024 {
        let decision = decisions.calls.get(&number);
        if decision.is_none_or(|decision| decision.by_number().is_some()) {
            let call = Call { audit: decisions.arch.audit(), number, arguments: [0; 6] };
            let (_, steps) = bpf::run(program, &call).map_err(anyhow::Error::msg)?;
            most = most.max(steps);
        }
    }
    Ok(most as f64)
}

fn install_time(filter: &Loaded) -> io::Result<f64> {
    let start = Instant::now();
    filter.install()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Nanoseconds of a call under either filter: the least of many short batches, as what disturbs a
/// batch only ever makes it longer.
fn call_times(one: &Loaded, other: &Loaded, call: impl Fn()) -> anyhow::Result<(f64, f64)> {
    let batch = |filter: &Loaded| {
        in_child(|| {
            filter.install()?;
            let start = Instant::now();
            (0..CALLS).for_each(|_| call());
            Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS))
        })
    };
    let mut least = (f64::INFINITY, f64::INFINITY);
    for _ in 0..BATCHES {
        least = (least.0.min(batch(one)?), least.1.min(batch(other)?));
    }
    Ok(least)
}

/// Measures in a process of its own, as a filter never comes off again.
fn in_child(measure: impl FnOnce() -> io::Result<f64>) -> anyhow::Result<f64> {
    let (mut reader, mut writer) = io::pipe()?;
    // SAFETY: this program has one thread, so the child may do what it likes.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("fork"),
        0 => {
            let written = measure().and_then(|seconds| writer.write_all(&seconds.to_le_bytes()));
            // SAFETY: ends the child without running what the parent registered for its end.
            unsafe { libc::_exit(i32::from(written.is_err())) }
        }
        child => {
            drop(writer);
            let mut seconds = [0; 8];
            let read = reader.read_exact(&mut seconds);
            // SAFETY: `child` is ours and not reaped yet; its status is not asked for.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            if read.is_err() {
                bail!("the measuring process failed; may it install a seccomp filter?");
            }
            Ok(f64::from_le_bytes(seconds))
        }
    }
}
