//! Seals one AI agent in a cell of its own.
//!
//! A [`policy`] says what is asked for; [`host`] says what there is; [`plan`]
//! makes of both an ordered list of steps; [`launch`] clones a [`child`] that
//! takes them, one call of [`sys`] each, and stays beside it to its end.
//!
//! ```text
//! cli ──▶ policy ──▶ plan ◀── host
//!                     │
//!           launch ───┼──▶ child ──▶ sys
//!             ▲       │        │
//!             └── report ◀─────┘
//! ```

#![deny(unsafe_code)]

pub mod child;
pub mod cli;
pub mod demo;
pub mod error;
pub mod fault;
pub mod git;
pub mod host;
pub mod input;
pub mod launch;
pub mod limits;
pub mod lint;
pub mod manual;
pub mod message;
mod mounts;
pub mod nearest;
pub mod outcome;
pub mod plan;
pub mod policy;
pub mod report;
pub mod sockets;
#[expect(unsafe_code, reason = "the one place for it")]
pub mod sys;
pub mod verify;
pub mod wire;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cli::{
    CellOptions, CheckOptions, Command, Deferred, HarnessOptions, PlanOptions, PolicyCommand, Refusal, RunAs,
    RunOptions, ShowOptions, VerifyOptions,
};
use error::{Error, SETUP_FAILED};
use launch::notices;
use message::Look;
use policy::error::PolicyError;
use policy::{Layer, Policy};
use verify::Answer;

/// Does what the command line says; returns the exit code.
pub fn run(arguments: Vec<OsString>) -> u8 {
    let code = obey(arguments);
    notices::finish();
    code
}

fn obey(arguments: Vec<OsString>) -> u8 {
    // A write that fails is an error to look at, not a death.
    sys::signal::ignore_failing_writes();
    sys::signal::keep_children();
    let asks_for_json = cli::asks_for_json(&arguments);
    let cli = match cli::parse(arguments, read_arguments) {
        Ok(cli) => cli,
        Err(Refusal::Help(help)) => {
            // Where nobody reads the help, there is nobody to tell.
            let _ = help.print();
            return if help.use_stderr() { SETUP_FAILED } else { 0 };
        }
        Err(Refusal::Error(error)) => return fail(&error, asks_for_json),
    };
    let as_json = cli.command.is_json();
    let result = match cli.command {
        Command::Run(Deferred(options)) => return run_cell(*options),
        Command::Plan(Deferred(options)) => match print_plan(*options) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Policy(PolicyCommand::Show(Deferred(options))) => show_policy(*options),
        Command::Policy(PolicyCommand::Check(Deferred(options))) => match check_policy(*options) {
            Ok(false) => return 1,
            result => result.map(drop),
        },
        Command::Policy(PolicyCommand::Profile { name }) => {
            print(policy::profile::find(&name).unwrap_or_default())
        }
        Command::Policy(PolicyCommand::Schema) => print(&policy::schema::schema()),
        Command::Man { page } => print_manual(&page),
        Command::Completions { shell } => print(&manual::completions(shell)),
        Command::Verify(Deferred(options)) => match verify_cell(*options) {
            Ok(false) => return 1,
            result => result.map(drop),
        },
        Command::Demo(options) => match show_demo(options.without) {
            Ok(false) => return 1,
            result => result.map(drop),
        },
        Command::DemoHarness(HarnessOptions { case, dir, lock, in_tmp }) => {
            demo::harness::run(&case, &dir, &lock, &in_tmp).map_err(demo_error)
        }
    };
    match result {
        Ok(()) => 0,
        Err(error) => fail(&error, as_json),
    }
}

/// How many changes are told of one by one on standard error.
const MOST_TOLD: usize = 20;

fn run_cell(options: RunOptions) -> u8 {
    if options.verbose > 0 {
        log_to_stderr(options.verbose);
    }
    let prepared =
        load(&options.cell).and_then(|policy| Ok((policy, launch::ids::resolve(options.cell.run_as)?)));
    let mut launch = launch::Options {
        ids: host::Ids::default(),
        pass_fds: options.pass_fd,
        report: options.report,
        status_fd: options.json_status_fd,
        umask: 0o077,
        test: options.test.verify.then(|| test(options.test.canary, Vec::new(), true)),
    };
    let outcome = match prepared {
        Ok((policy, ids)) => {
            launch.ids = ids;
            launch.umask = callers_umask(&policy);
            launch::run(&policy, options.command, &launch)
        }
        Err(error) => launch::refuse(&launch, error),
    };
    if !outcome.swept.is_empty() {
        notices::say(&format!("removed what the run made at protected paths: {}", outcome.swept.join(", ")));
    }
    for told in outcome.told.iter().take(MOST_TOLD) {
        notices::say(&format!("{}: {}; see: {}", told.path, told.what, told.command));
    }
    if let Some(more) = outcome.told.len().checked_sub(MOST_TOLD).filter(|more| *more > 0) {
        notices::say(&format!("{more} more changes of that kind, which --report lists"));
    }
    if outcome.class == outcome::Class::TimedOut {
        // Below a second the milliseconds count.
        let whole = if outcome.wall.as_secs() == 0 {
            outcome.wall
        } else {
            Duration::from_secs(outcome.wall.as_secs())
        };
        notices::say(&format!("the time was up; ended after {}", policy::check::duration_text(whole)));
    }
    if let Some(error) = &outcome.error {
        fail(error, false);
    }
    outcome.exit_code()
}

/// Tests a cell from within and prints what came of it; whether it is sound.
fn verify_cell(mut options: VerifyOptions) -> Result<bool, Error> {
    let run_as = options.cell.run_as.take();
    let is_bare = options.cell == CellOptions::default();
    options.cell.run_as = run_as;
    let demo = is_bare.then(|| fixture(&mut options.cell, run_as)).transpose()?;
    let policy = load(&options.cell)?;
    let checks = demo.as_ref().map(demo::Demo::checks).unwrap_or_default();
    let launch = launch::Options {
        ids: launch::ids::resolve(options.cell.run_as)?,
        pass_fds: options.pass_fd,
        test: Some(test(options.canary, checks, false)),
        ..launch::Options::default()
    };
    // Something has to stand there; it is not run.
    let command = if options.command.is_empty() { vec!["true".into()] } else { options.command.clone() };
    let launch::Tested { mut lines, notes } = launch::test(&policy, command, &launch)?;
    if !options.command.is_empty() {
        lines.push(program_line(&policy, launch.ids, options.command)?);
    }
    drop(demo);
    // Standard output may have no reader, and the launch has left signals blocked.
    let _ = sys::signal::unblock_all();
    let document = verify::Document::new(lines, notes, options.strict);
    if options.json {
        print(&serde_json::to_string_pretty(&document).expect("plain values serialize"))?;
    } else {
        print(&verify::table(&document, options.strict, options.verbose, Look::of_stdout()))?;
    }
    Ok(document.sound)
}

/// The fixture of the demo, with a cell of its run.
fn fixture(cell: &mut CellOptions, run_as: Option<RunAs>) -> Result<demo::Demo, Error> {
    launch::check_proc()?;
    let owner = run_as.map(|RunAs { uid, gid }| demo::fixture::Owner { uid, gid });
    let demo = demo::Demo::new(owner)?;
    cell.policy.push(demo.policy());
    cell.run_as = demo.owner().map(|owner| RunAs { uid: owner.uid, gid: owner.gid });
    Ok(demo)
}

/// Tests a cell of the fixture, and asks the same outside; whether the cell is sound.
fn show_demo(without: Vec<Layer>) -> Result<bool, Error> {
    let mut cell = CellOptions { without: without.clone(), ..CellOptions::default() };
    let demo = fixture(&mut cell, None)?;
    let checks = demo.checks();
    let take = |probe: &_| child::take(probe).map_or_else(Answer::Refused, Answer::Works);
    let outside: Vec<verify::Line> = checks.iter().map(|check| check.line(take)).collect();
    let launch = launch::Options {
        ids: launch::ids::resolve(cell.run_as)?,
        test: Some(test(Vec::new(), checks, false)),
        ..launch::Options::default()
    };
    let inside = launch::test(&load(&cell)?, vec!["true".into()], &launch)?.lines;
    let page = demo.page(&outside, &inside, &without, Look::of_stdout());
    // Before anything is printed: a reader that has had enough ends this
    // process, and the fixture would stay.
    drop(demo);
    let _ = sys::signal::unblock_all();
    print(&page)?;
    Ok(inside.iter().all(|line| !line.is_wrong(false)))
}

/// Whether the program is there that a run would execute.
fn program_line(policy: &Policy, ids: host::Ids, command: Vec<OsString>) -> Result<verify::Line, Error> {
    let object = command[0].to_string_lossy().into_owned();
    let request = request(policy, command);
    let (policy, host) = launch::probe(policy, ids)?;
    let plan = plan::build(&policy, &host, &request)?;
    let error = launch::program::check(&launch::program::Run {
        policy: &policy,
        ids,
        request: &request,
        plan: &plan,
    });
    let seen =
        error.map(|error| [error.cause, error.remedy].into_iter().flatten().collect::<Vec<_>>().join("; "));
    Ok(verify::Line::of_program(object, seen))
}

fn request(policy: &Policy, command: Vec<OsString>) -> plan::Request {
    plan::Request {
        command,
        umask: callers_umask(policy),
        environment: std::env::vars_os().collect(),
        cgroup: limits::cgroup::is_possible(),
        ..plan::Request::default()
    }
}

/// The umask that this process was started with, where the policy passes it on.
fn callers_umask(policy: &Policy) -> u32 {
    if policy.cell.umask != policy::Umask::Inherit {
        return 0o077;
    }
    let mask = sys::credentials::set_umask(0o077);
    sys::credentials::set_umask(mask);
    mask
}

fn test(canaries: Vec<PathBuf>, checks: Vec<verify::Check>, runs: bool) -> verify::Request {
    let base = std::env::current_dir().unwrap_or_else(|_| Path::new("/").into());
    let canaries = canaries.iter().map(|canary| verify::Canary::new(canary, &base)).collect();
    verify::Request { canaries, checks, runs }
}

/// Of the demo's own processes, which a user does not start.
fn demo_error(error: io::Error) -> Error {
    Error::new("demo", error.to_string())
}

/// Prints the plan; the exit code of a run that would not come to its program.
fn print_plan(options: PlanOptions) -> Result<u8, Error> {
    let policy = load(&options.cell)?;
    let ids = launch::ids::resolve(options.cell.run_as)?;
    let request = request(&policy, options.command);
    let for_plan = launch::Options { ids, ..launch::Options::default() };
    launch::first_calls::survive(Some(&policy), &for_plan)?;
    let (policy, host) = launch::probe(&policy, ids)?;
    let plan = plan::build(&policy, &host, &request)?;
    let run = launch::program::Run { policy: &policy, ids, request: &request, plan: &plan };
    let missing = launch::program::check(&run);
    print(&if options.json { plan.to_json() } else { plan.to_string() })?;
    match missing {
        Some(error) if options.json => {
            // Standard output holds the plan.
            notices::tell(&format!("{}\n", error::Document::from(&error).to_json()));
            Ok(error.exit_code)
        }
        Some(error) => Err(error),
        None => Ok(0),
    }
}

fn print_manual(name: &str) -> Result<(), Error> {
    let page = manual::find(name).ok_or_else(|| {
        let pages: Vec<String> = manual::pages().into_iter().map(|page| page.file).collect();
        Error::new("man", format!("there is no page `{name}`"))
            .remedy(format!("the pages are {}", pages.join(", ")))
    })?;
    print(&page.text)
}

fn show_policy(options: ShowOptions) -> Result<(), Error> {
    let policy = load(&options.cell)?;
    let shown = if options.json { policy::show::show_json(&policy) } else { policy::show::show(&policy) };
    print(&shown.map_err(policy_error)?)
}

/// Prints the ways out that the policy leaves; false where `--strict` makes a
/// failure of one.
fn check_policy(options: CheckOptions) -> Result<bool, Error> {
    let (policy, unused) = load_and_unused(&options.cell)?;
    plan::check(&policy)?;
    let policy = host::links::followed(&policy, |_| true).map_or(policy, |(policy, _)| policy);
    // Root may check a policy without a word on who shall run it.
    let ids = launch::ids::resolve(options.cell.run_as).ok();
    let facts = lint::Facts::probe(&policy, &options.cell.policy, ids);
    let mut warnings = lint::unused_variables(&policy, &unused);
    warnings.extend(lint::lint(&policy, &facts));
    let report = lint::Report::new(&warnings, launch::protected(&policy, ids)?);
    print(&match options.json {
        true => serde_json::to_string_pretty(&report).expect("plain values"),
        false => report.to_string(),
    })?;
    Ok(warnings.is_empty() || !options.strict)
}

fn load(options: &CellOptions) -> Result<Policy, Error> {
    load_and_unused(options).map(|(policy, _)| policy)
}

fn load_and_unused(options: &CellOptions) -> Result<(Policy, Vec<String>), Error> {
    let cwd = std::env::current_dir().map_err(|error| {
        Error::new("policy", format!("the working directory is gone: {error}"))
            .remedy("go to a directory that exists")
    })?;
    policy::load::load_and_unused(options, &|name| std::env::var_os(name), &cwd).map_err(policy_error)
}

fn policy_error(error: PolicyError) -> Error {
    let mut message = Error::new("policy", error.to_string()).detail(error.excerpt().to_vec());
    message.remedy = error.remedy();
    message.also(error.also.into_iter().map(policy_error))
}

/// Reads the options that `--args FD` stands for.
fn read_arguments(fd: RawFd) -> io::Result<Vec<u8>> {
    /// More than the kernel would take on a command line.
    const LIMIT: u64 = 4 << 20;
    let copy = sys::fd::duplicate(fd).map_err(|failure| io::Error::from(failure.errno))?;
    input::read_from(&File::from(copy), LIMIT)
}

fn print(text: &str) -> Result<(), Error> {
    // The standard library takes a closed stream for one that swallows all.
    if !sys::fd::is_inherited(1) {
        return Err(Error::new("output", "standard output is closed").remedy("redirect it, as to /dev/null"));
    }
    match writeln!(io::stdout(), "{}", text.trim_end()) {
        // A reader that has had enough, as `| head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| Error::new("output", error.to_string())),
    }
}

/// Says why the command came to nothing: on standard error, or, asked for JSON,
/// as the one document on standard output.
fn fail(error: &Error, as_json: bool) -> u8 {
    if as_json {
        if let Err(unwritten) = print(&error::Document::from(error).to_json()) {
            notices::tell(&Look::of_stderr().error(&unwritten));
        }
    } else {
        notices::tell(&Look::of_stderr().error(error));
    }
    error.exit_code
}

fn log_to_stderr(verbose: u8) {
    let level = if verbose == 1 { tracing::Level::INFO } else { tracing::Level::DEBUG };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(Look::of_stderr().colour)
        .with_writer(|| notices::Log)
        .without_time()
        .with_target(false)
        .init();
}
