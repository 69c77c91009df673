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

pub mod child;
pub mod cli;
pub mod error;
pub mod evidence;
pub mod fault;
pub mod host;
pub mod launch;
pub mod outcome;
pub mod plan;
pub mod policy;
pub mod report;
pub mod sys;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::RawFd;

use cli::{CellOptions, Command, PlanOptions, PolicyCommand, RunOptions};
use error::Error;
use policy::Policy;
use policy::error::PolicyError;

/// Does what the command line says; returns the exit code.
pub fn run(arguments: Vec<OsString>) -> u8 {
    let cli = match cli::parse(arguments, read_arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Where nobody reads the help, there is nobody to tell.
            let _ = error.print();
            return cli::exit_code(&error);
        }
    };
    let result = match cli.command {
        Command::Run(options) => return run_cell(*options),
        Command::Plan(options) => print_plan(*options),
        Command::Demo(_) => todo!(),
        Command::Policy(command) => print_policy(command),
    };
    match result.and_then(|text| print(&text)) {
        Ok(()) => 0,
        Err(error) => fail(&error),
    }
}

fn run_cell(options: RunOptions) -> u8 {
    if options.verbose > 0 {
        log_to_stderr(options.verbose);
    }
    let prepared = load(&options.cell)
        .and_then(|policy| Ok((policy, launch::ids::resolve(options.cell.run_as)?)));
    let outcome = match prepared {
        Ok((policy, ids)) => {
            let launch = launch::Options {
                ids,
                pass_fds: options.pass_fd,
                report: options.report,
                status_fd: options.json_status_fd,
            };
            launch::run(&policy, options.command, &launch)
        }
        Err(error) => launch::refuse(options.json_status_fd, options.report.as_deref(), error),
    };
    if let Some(error) = &outcome.error {
        fail(error);
    }
    outcome.exit_code()
}

fn print_plan(options: PlanOptions) -> Result<String, Error> {
    let policy = load(&options.cell)?;
    let ids = launch::ids::resolve(options.cell.run_as)?;
    let request = plan::Request {
        command: options.command,
        environment: std::env::vars_os().collect(),
        ..plan::Request::default()
    };
    let plan = plan::build(&policy, &launch::probe(&policy, ids), &request)?;
    Ok(if options.json {
        plan.to_json()
    } else {
        plan.to_string()
    })
}

fn print_policy(command: PolicyCommand) -> Result<String, Error> {
    match command {
        PolicyCommand::Show(options) => {
            let policy = load(&options.cell)?;
            let shown = if options.json {
                policy::show::show_json(&policy)
            } else {
                policy::show::show(&policy)
            };
            shown.map_err(policy_error)
        }
        PolicyCommand::Check(options) => load(&options.cell).map(|_| "ok".to_owned()),
        PolicyCommand::Schema => Ok(policy::schema::schema()),
    }
}

fn load(options: &CellOptions) -> Result<Policy, Error> {
    let cwd = std::env::current_dir().map_err(|error| {
        Error::new("policy", format!("the working directory is gone: {error}"))
            .remedy("go to a directory that exists")
    })?;
    policy::load::load(options, &|name| std::env::var_os(name), &cwd).map_err(policy_error)
}

fn policy_error(error: PolicyError) -> Error {
    let mut message = Error::new("policy", error.to_string());
    message.cause = error.excerpt().map(str::to_owned);
    message.remedy = error.remedy();
    message
}

/// Reads the options that `--args FD` stands for.
fn read_arguments(fd: RawFd) -> io::Result<Vec<u8>> {
    /// More than the kernel would take on a command line.
    const LIMIT: u64 = 4 << 20;
    let copy = sys::fd::duplicate(fd).map_err(|failure| io::Error::from(failure.errno))?;
    let mut data = Vec::new();
    File::from(copy).take(LIMIT + 1).read_to_end(&mut data)?;
    if data.len() as u64 > LIMIT {
        return Err(io::Error::other("more than 4 MiB of options"));
    }
    Ok(data)
}

fn print(text: &str) -> Result<(), Error> {
    match writeln!(io::stdout(), "{}", text.trim_end()) {
        // A reader that has had enough, as `| head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| Error::new("output", error.to_string())),
    }
}

fn fail(error: &Error) -> u8 {
    let _ = writeln!(io::stderr(), "cellblock: {error}");
    error.exit_code
}

fn log_to_stderr(verbose: u8) {
    let level = if verbose == 1 {
        tracing::Level::INFO
    } else {
        tracing::Level::DEBUG
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .without_time()
        .with_target(false)
        .init();
}
