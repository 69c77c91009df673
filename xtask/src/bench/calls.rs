//! Single system calls: what the layers of a full cell add to each.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cellblock::sys::seccomp::Insn;
use cellblock::sys::{Failure, credentials, landlock, seccomp};
use serde::{Deserialize, Serialize};

use super::cells::{bubblewrap, cell, verify, with_inside};
use super::stage::Stage;
use super::statistics::command;
use super::{Bar, Figure};

/// Interleaved batches, of which the least counts.
const BATCHES: usize = 20;

/// Calls of one kind in a batch.
const CALLS: u32 = 2_000;

/// Nanoseconds of one call.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Batch {
    open_close: f64,
    stat: f64,
    getpid: f64,
    read: f64,
}

/// Measures both cells in turn.
pub fn measure(stage: &Stage) -> Result<Vec<Figure>> {
    verify(stage, &[])?;
    let (options, payload) = with_inside(stage, &[], &["calls"]);
    let mut full = Measured::start(&cell(stage, &options, &payload))?;
    let (options, payload) = with_inside(stage, &[], &["calls", "--minimal"]);
    let mut minimal = Measured::start(&bubblewrap(stage, &options, &payload)?)?;
    for batch in 0..BATCHES {
        let mut turns = [&mut full, &mut minimal];
        if batch % 2 == 1 {
            turns.reverse();
        }
        for cell in turns {
            cell.batch()?;
        }
    }
    let full = full.finish()?;
    let minimal = minimal.finish()?;
    let figure = |name: &str, of: fn(&Batch) -> f64| {
        let least = |batches: &[Batch]| batches.iter().map(of).fold(f64::INFINITY, f64::min);
        let (full, minimal) = (least(&full), least(&minimal));
        Figure {
            name: format!("{name}, full cell / minimal cell"),
            value: full / minimal,
            bar: Bar::AtMost(1.08),
            detail: format!("{full:.0} ns / {minimal:.0} ns; least of {BATCHES} batches of {CALLS}"),
        }
    };
    Ok(vec![
        figure("openat and close", |batch| batch.open_close),
        figure("stat", |batch| batch.stat),
        figure("getpid", |batch| batch.getpid),
        figure("read", |batch| batch.read),
    ])
}

/// A cell whose payload makes a batch of calls for each line it gets.
struct Measured {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    batches: Vec<Batch>,
}

impl Measured {
    fn start(line: &[std::ffi::OsString]) -> Result<Measured> {
        let mut child = command(line).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().context("stdin")?;
        let answers = BufReader::new(child.stdout.take().context("stdout")?);
        Ok(Measured { child, orders, answers, batches: vec![] })
    }

    fn batch(&mut self) -> Result<()> {
        writeln!(self.orders)?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        self.batches.push(serde_json::from_str(&line).context("the cell's answer")?);
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Batch>> {
        drop(self.orders);
        let status = self.child.wait()?;
        ensure!(status.success(), "the cell ended with {status}");
        Ok(self.batches)
    }
}

/// Enters the same layers with as little in them as can be: one rule, and a
/// filter that allows everything.
pub fn enter_minimal_layers() -> Result<()> {
    let failed = |failure: Failure| failure.errno;
    let allow_all: &'static [Insn] = Box::leak(Box::new([Insn {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    }]));
    credentials::set_no_new_privs().map_err(failed)?;
    let handled = cellblock::plan::landlock::handled(landlock::abi(), true, true);
    let ruleset = landlock::create(&handled).map_err(failed)?;
    landlock::allow(&ruleset, c"/", handled.fs).map_err(failed)?;
    landlock::restrict_self(&ruleset).map_err(failed)?;
    seccomp::install(allow_all).map_err(failed)?;
    Ok(())
}

/// Makes one batch of each call. The calls are bare, as this program may be
/// built without optimization.
pub fn batch() -> Result<Batch> {
    let path = c"/usr/bin/env".as_ptr();
    // SAFETY: the path ends in NUL.
    let zero = unsafe { libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    ensure!(zero >= 0, "/dev/zero: {}", std::io::Error::last_os_error());
    let batch = Batch {
        open_close: each("openat", || {
            // SAFETY: the path ends in NUL, and the descriptor is nobody else's.
            unsafe { libc::close(libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC)) }
        })?,
        stat: each("stat", || {
            let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
            // SAFETY: the path ends in NUL, and there is room for a `stat`.
            unsafe { libc::stat(path, stat.as_mut_ptr()) }
        })?,
        // SAFETY: no memory is involved.
        getpid: each("getpid", || unsafe { black_box(libc::getpid()) }.min(0))?,
        read: each("read", || {
            let mut byte = 0u8;
            // SAFETY: there is room for the one byte.
            let got = unsafe { libc::read(zero, (&raw mut byte).cast(), 1) };
            if got == 1 { 0 } else { -1 }
        })?,
    };
    // SAFETY: the descriptor is this function's own.
    unsafe { libc::close(zero) };
    Ok(batch)
}

fn each(name: &str, call: impl Fn() -> libc::c_int) -> Result<f64> {
    let started = Instant::now();
    let mut failed = 0;
    for _ in 0..CALLS {
        failed |= call();
    }
    let elapsed = started.elapsed();
    ensure!(failed == 0, "{name} failed");
    Ok(elapsed.as_nanos() as f64 / f64::from(CALLS))
}
