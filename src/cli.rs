//! The command line as types. Nothing here opens, reads or prints; what the
//! flags mean is decided by [`crate::policy::load`].

mod verify;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, value_parser};
use thiserror::Error;

use crate::policy::{Layer, Mode, NetworkMode, profile};
pub use verify::{TestOptions, VerifyOptions};

/// Seals one AI agent in a cell of its own.
#[derive(Debug, Parser)]
#[command(name = "cellblock", version, args_override_self = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the provider in a cell.
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunOptions>),
    /// Build the cell, test it from within, and run nothing.
    #[command(after_help = verify::EXAMPLES)]
    Verify(Box<VerifyOptions>),
    /// Print the steps that `run` would take, and take none.
    Plan(Box<PlanOptions>),
    /// A fixture instance and a scripted agent that tries to read it; needs nothing.
    Demo(DemoOptions),
    /// The demo's harness process.
    #[command(hide = true)]
    DemoHarness(HarnessOptions),
    /// The demo's agent.
    #[command(hide = true)]
    DemoAgent {
        /// What to look for, as KEY=VALUE lines.
        facts: PathBuf,
    },
    /// The policy that the flags and files come to.
    #[command(subcommand)]
    Policy(PolicyCommand),
}

/// What to do with a policy.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Print the resolved policy, as a file that loads again.
    Show(Box<ShowOptions>),
    /// Load the policy and print `ok`, what is wrong with it, or the ways out that it leaves.
    Check(Box<CheckOptions>),
    /// Print the JSON Schema of a policy file.
    Schema,
    /// Print a built-in profile as it was written, with its variables: a policy
    /// file to begin one's own with.
    Profile {
        /// Which one.
        #[arg(value_parser = PossibleValuesParser::new(profile::names()))]
        name: String,
    },
}

/// `cellblock run`.
#[derive(Debug, Args)]
pub struct RunOptions {
    /// The cell.
    #[command(flatten)]
    pub cell: CellOptions,
    /// Write what was applied, and how the run ended, to FILE as JSON lines.
    #[arg(long, value_name = "FILE", help_heading = "Reporting")]
    pub report: Option<PathBuf>,
    /// Write the stages of the run to descriptor N as JSON lines.
    #[arg(long, value_name = "N", value_parser = value_parser!(RawFd).range(0..), help_heading = "Reporting")]
    pub json_status_fd: Option<RawFd>,
    /// Leave descriptor N open in the provider; all others from 3 on are closed.
    #[arg(long, value_name = "N", value_parser = value_parser!(RawFd).range(3..), help_heading = "Cell")]
    pub pass_fd: Vec<RawFd>,
    /// The test before the provider runs.
    #[command(flatten)]
    pub test: TestOptions,
    /// Say more on standard error; twice for still more.
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = "Reporting")]
    pub verbose: u8,
    /// The provider and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `cellblock plan`.
#[derive(Debug, Args)]
pub struct PlanOptions {
    /// The cell.
    #[command(flatten)]
    pub cell: CellOptions,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The provider and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `cellblock demo`.
#[derive(Debug, Args)]
pub struct DemoOptions {
    /// Turn LAYER off, to see what it was holding.
    #[arg(long, value_name = "LAYER", value_parser = own_layer())]
    pub without: Vec<Layer>,
}

/// What the demo tells its harness.
#[derive(Debug, Args)]
pub struct HarnessOptions {
    /// The case it judges, which nobody in a cell may learn.
    pub case: String,
    /// Its own directory.
    pub dir: PathBuf,
    /// The lock it holds.
    pub lock: PathBuf,
    /// Its directory in `/tmp`.
    pub in_tmp: PathBuf,
}

/// `cellblock policy show`.
#[derive(Debug, Args)]
pub struct ShowOptions {
    /// The cell.
    #[command(flatten)]
    pub cell: CellOptions,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `cellblock policy check`.
#[derive(Debug, Args)]
pub struct CheckOptions {
    /// The cell.
    #[command(flatten)]
    pub cell: CellOptions,
    /// Exit with 1 where there is a warning.
    #[arg(long)]
    pub strict: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The flags that describe a cell. They add to the policy; a single value
/// given twice is the last one. Relative paths on the host count from the
/// working directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct CellOptions {
    /// Read the policy file FILE; a later one adds to a former one.
    #[arg(long, value_name = "FILE", help_heading = "Policy")]
    pub policy: Vec<PathBuf>,
    /// Begin with the built-in profile NAME: codex, claude, opencode, runner-instance
    /// and what adds to it; `cellblock policy profile --help` has all.
    #[arg(long, value_name = "NAME", help_heading = "Policy")]
    pub profile: Vec<String>,
    /// Give `${NAME}` of the policy files a value; without one, the environment's.
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Policy")]
    pub var: Vec<OsString>,
    /// Read further options, NUL-separated, from descriptor FD, as if they stood here.
    #[arg(long, value_name = "FD", help_heading = "Policy")]
    pub args: Option<RawFd>,

    /// Who sandboxes the provider's tools.
    #[arg(long, value_name = "MODE", help_heading = "Cell")]
    pub mode: Option<Mode>,
    /// Set the variable KEY, or pass it from the environment.
    #[arg(long, value_name = "KEY[=VALUE]", help_heading = "Cell")]
    pub env: Vec<OsString>,
    /// Start the provider in PATH, as the cell sees it.
    #[arg(long, value_name = "PATH", help_heading = "Cell")]
    pub chdir: Option<PathBuf>,
    /// Name the host NAME inside.
    #[arg(long, value_name = "NAME", help_heading = "Cell")]
    pub hostname: Option<String>,
    /// Run as this user and group when started by root; by default, sudo's caller.
    #[arg(long, value_name = "UID:GID", help_heading = "Cell")]
    pub run_as: Option<RunAs>,
    /// End the run after DURATION: 90s, 30m, 1h30m.
    #[arg(long, value_name = "DURATION", help_heading = "Cell")]
    pub timeout: Option<String>,

    /// Show SRC read-only, at DEST in the cell.
    #[arg(long, value_name = "SRC[:DEST]", help_heading = "Files")]
    pub ro_bind: Vec<OsString>,
    /// Show SRC writable, at DEST in the cell.
    #[arg(long, value_name = "SRC[:DEST]", help_heading = "Files")]
    pub bind: Vec<OsString>,
    /// Mount a fresh memory file system at PATH.
    #[arg(long, value_name = "PATH", help_heading = "Files")]
    pub tmpfs: Vec<PathBuf>,
    /// Let no view show PATH of the host.
    #[arg(long, value_name = "PATH", help_heading = "Files")]
    pub hide: Vec<PathBuf>,
    /// Show the directory PATH, this run's own state, writable at the same path.
    #[arg(long, value_name = "PATH", help_heading = "Files")]
    pub expose: Vec<PathBuf>,
    /// The directory by which the provider reports activity.
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    pub channel: Option<PathBuf>,
    /// The tree the provider works on, at /work in the cell; `:ro` for read-only.
    #[arg(long, value_name = "DIR[:ro]", help_heading = "Files")]
    pub workspace: Option<OsString>,

    /// Which network the cell has.
    #[arg(long, value_name = "NETWORK", help_heading = "Layers")]
    pub net: Option<NetworkMode>,
    /// Install the built-in system call filter FILTER (provider, nested), or, where
    /// FILTER is a path (./own.bpf, own.json), that one on top of it.
    #[arg(long, value_name = "FILTER", help_heading = "Layers")]
    pub seccomp: Vec<String>,
    /// Go on without LAYER where the host lacks it.
    #[arg(long, value_name = "LAYER", help_heading = "Layers")]
    pub allow_missing: Vec<Layer>,
    /// Turn LAYER off.
    #[arg(long, value_name = "LAYER", value_parser = own_layer(), help_heading = "Layers")]
    pub without: Vec<Layer>,
}

/// The user and group of a cell started by root; neither is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAs {
    /// User id on the host.
    pub uid: u32,
    /// Group id on the host.
    pub gid: u32,
}

impl FromStr for RunAs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let user = text.split(':').next().unwrap_or(text);
        let numbers = || match user.parse::<u32>() {
            Ok(_) => "write UID:GID, two numbers".to_owned(),
            Err(_) => format!("write UID:GID, two numbers, as in $(id -u {user}):$(id -g {user})"),
        };
        let number = |id: &str| id.parse().map_err(|_| numbers());
        let (uid, gid) = text.split_once(':').ok_or_else(numbers)?;
        let run_as = RunAs { uid: number(uid)?, gid: number(gid)? };
        if run_as.uid == 0 || run_as.gid == 0 {
            return Err("a cell never runs as root; give an ordinary user and group".to_owned());
        }
        Ok(run_as)
    }
}

/// The layers that can be turned off; the others go with one of these.
fn own_layer() -> impl TypedValueParser<Value = Layer> {
    PossibleValuesParser::new(["landlock", "seccomp", "network"])
        .try_map(|name| Layer::from_str(&name, false))
}

const EXAMPLES: &str = "\
Examples:
  cellblock demo                              see what a cell holds, and what it does not
  cellblock run --workspace . -- bash         a shell that sees this directory and the system
  cellblock plan --workspace . -- bash        the steps of that run
  cellblock verify                            is a cell sound on this host?
  cellblock policy check --policy cell.toml   is this file right?

Exit status:
  the provider's own; 124 timed out; 125 the cell failed before the provider ran;
  126 not executable; 127 not found; 128+N ended by signal N";

const RUN_EXAMPLES: &str = "\
Examples:
  cellblock run --workspace . --net host -- bash -l
  cellblock run --policy cell.toml --var run=r2 --timeout 30m -- codex exec -
  cellblock run --ro-bind /opt/toolchain --bind out:/data -- make
  cellblock run --args 3 3< <(printf '%s\\0' --env TOKEN=x) -- sh

  SRC:DEST holds one colon. A path that holds another is written in a policy file:
  ro_bind = [{ src = \"/srv/a:b\", dest = \"/data\" }]

Exit status:
  the provider's own; 124 timed out; 125 the cell failed before the provider ran;
  126 not executable; 127 not found; 128+N ended by signal N";

/// The exit status of a usage error: nothing was run, as with every failure
/// before the provider's exec.
pub const EXIT_USAGE: u8 = 125;

/// The whole command line, for the man page and the shell completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Reads the command line; `read` gives what a descriptor of `--args` holds.
///
/// # Errors
///
/// Clap's error, with a hint of our own where bubblewrap's habits or a missing
/// `--` explain it, and that of [`expand_args`]. `--help` and `--version` come
/// back as errors too; see [`exit_code`].
pub fn parse(
    args: Vec<OsString>,
    read: impl FnMut(RawFd) -> io::Result<Vec<u8>>,
) -> Result<Cli, clap::Error> {
    let args = expand_args(args, read).map_err(|error| command().error(ErrorKind::ValueValidation, error))?;
    Cli::try_parse_from(&args).map_err(|error| with_hint(&args, error))
}

/// The exit status for what [`parse`] returned: 0 for help and version that
/// were asked for, else [`EXIT_USAGE`].
pub fn exit_code(error: &clap::Error) -> u8 {
    if error.use_stderr() { EXIT_USAGE } else { 0 }
}

fn with_hint(args: &[OsString], mut error: clap::Error) -> clap::Error {
    let hint = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(stray))) => hint(args, stray),
        (ErrorKind::InvalidSubcommand, _) if error.get(ContextKind::SuggestedSubcommand).is_none() => {
            Some(commands(args))
        }
        _ => None,
    };
    if let Some(hint) = hint {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

/// The commands that could stand where the unknown one does.
fn commands(args: &[OsString]) -> String {
    let whole = command();
    let outer = args.get(1).and_then(|name| whole.find_subcommand(name)).unwrap_or(&whole);
    let names = outer.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
    format!("the commands are {}", names.collect::<Vec<_>>().join(", "))
}

/// What to write instead of a word that stands where it cannot.
fn hint(args: &[OsString], stray: &str) -> Option<String> {
    let options = args.split(|arg| arg == "--").next()?;
    // As bubblewrap and Docker call what has another name here.
    match stray {
        "--volume" => return Some("a view is '--bind SRC:DEST' or '--ro-bind SRC:DEST'".to_owned()),
        "--setenv" => return Some("write '--env NAME=VALUE'".to_owned()),
        "--cwd" | "--workdir" => return Some("write '--chdir PATH'".to_owned()),
        _ if stray.starts_with('-') => return None,
        _ => {}
    }
    let at = options.iter().position(|word| word == stray)?;
    let before = |back: usize| at.checked_sub(back).and_then(|at| options[at].to_str()).unwrap_or_default();
    match (before(2), before(1)) {
        (flag @ ("--ro-bind" | "--bind"), src) if !src.starts_with('-') => {
            return Some(format!("source and destination are one word here: write '{flag} {src}:{stray}'"));
        }
        ("--env", name) if !name.contains('=') => {
            return Some(format!("name and value are one word here: write '--env {name}={stray}'"));
        }
        (_, "-v") => return Some(format!("-v is --verbose; a view is '--bind {stray}'")),
        _ => {}
    }
    match args.get(1)?.to_str()? {
        "run" | "plan" | "verify" => Some(format!("the command comes after '--': write '-- {stray}'")),
        "policy" => Some(format!("a policy file is named by a flag: write '--policy {stray}'")),
        _ => None,
    }
}

/// Why the data of `--args` cannot be used.
#[derive(Debug, Error)]
pub enum ArgsError {
    /// `--args` is the last word, or its value is no descriptor.
    #[error("--args: a descriptor number is needed")]
    NoDescriptor,
    /// The descriptor could not be read.
    #[error("--args {fd}: cannot read descriptor {fd}: {source}{}", if_closed(*fd, source))]
    Read {
        /// The descriptor.
        fd: RawFd,
        /// What the kernel said.
        source: io::Error,
    },
    /// The data names `--args` again.
    #[error("--args {0}: the data holds --args itself")]
    Nested(RawFd),
    /// The data ends the options.
    #[error("--args {0}: the data holds `--`; only options are read, the command stays outside")]
    Command(RawFd),
}

fn if_closed(fd: RawFd, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EBADF) => format!("; open it in the shell: --args {fd} {fd}<FILE"),
        _ => String::new(),
    }
}

/// Puts what the descriptors of `--args FD` hold in the place of the flag.
/// Words from the first `--` on are the command's and are left alone.
///
/// # Errors
///
/// [`ArgsError`], which names the descriptor.
pub fn expand_args(
    args: Vec<OsString>,
    mut read: impl FnMut(RawFd) -> io::Result<Vec<u8>>,
) -> Result<Vec<OsString>, ArgsError> {
    let mut expanded = Vec::with_capacity(args.len());
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let fd = if arg == "--args" {
            args.next()
        } else if let Some(fd) = arg.as_bytes().strip_prefix(b"--args=") {
            Some(OsStr::from_bytes(fd).to_owned())
        } else if arg == "--" {
            expanded.push(arg);
            expanded.extend(args);
            break;
        } else {
            expanded.push(arg);
            continue;
        };
        let fd: RawFd = fd
            .and_then(|fd| fd.to_str()?.parse().ok())
            .filter(|fd| *fd >= 0)
            .ok_or(ArgsError::NoDescriptor)?;
        let data = read(fd).map_err(|source| ArgsError::Read { fd, source })?;
        for word in words(&data) {
            if word == b"--args" || word.starts_with(b"--args=") {
                return Err(ArgsError::Nested(fd));
            }
            if word == b"--" {
                return Err(ArgsError::Command(fd));
            }
            expanded.push(OsString::from_vec(word.to_vec()));
        }
    }
    Ok(expanded)
}

/// The words of NUL-separated data, with or without a NUL at the end.
fn words(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let data = data.strip_suffix(b"\0").unwrap_or(data);
    let count = if data.is_empty() { 0 } else { usize::MAX };
    data.split(|byte| *byte == 0).take(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(Into::into).collect()
    }

    fn parse_line(line: &str) -> Result<Cli, clap::Error> {
        parse(args(line), |_| Err(io::Error::from_raw_os_error(libc::EBADF)))
    }

    fn fails(line: &str) -> String {
        let error = parse_line(line).expect_err(line);
        assert_eq!(exit_code(&error), EXIT_USAGE, "{line}");
        error.to_string()
    }

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn a_single_value_given_twice_is_the_last_one() {
        let line = "cellblock run --hostname a --hostname b --env A --env B -- true --env C";
        let Command::Run(run) = parse_line(line).unwrap().command else {
            panic!("{line}");
        };
        assert_eq!(run.cell.hostname.as_deref(), Some("b"));
        assert_eq!(run.cell.env, ["A", "B"]);
        assert_eq!(run.command, ["true", "--env", "C"]);
    }

    #[test]
    fn what_was_meant_is_said() {
        for (line, hint) in [
            ("cellblock run --ro-bind /a /b -- true", "write '--ro-bind /a:/b'"),
            ("cellblock run --ro-bind /a /b true", "write '--ro-bind /a:/b'"),
            ("cellblock plan --tmpfs /t --bind a b --net host -- x", "write '--bind a:b'"),
            ("cellblock run -v /a:/b -- true", "a view is '--bind /a:/b'"),
            ("cellblock run --volume /a:/b -- true", "'--bind SRC:DEST'"),
            ("cellblock run --setenv A b -- true", "write '--env NAME=VALUE'"),
            ("cellblock run --env A b -- true", "write '--env A=b'"),
            ("cellblock run --env A=b bash", "the command comes after '--': write '-- bash'"),
            ("cellblock run --cwd /x -- true", "write '--chdir PATH'"),
            ("cellblock exec true", "the commands are run, verify, plan, demo, policy"),
            ("cellblock policy lint", "the commands are show, check, schema"),
            ("cellblock run bash", "the command comes after '--': write '-- bash'"),
            ("cellblock run --net host bash -c x", "write '-- bash'"),
            ("cellblock plan bash -- -x", "write '-- bash'"),
            ("cellblock run -x", "use '-- -x'"),
            ("cellblock run --nett host -- true", "'--net'"),
            ("cellblock run --unshare-net -- true", "unexpected argument '--unshare-net'"),
            ("cellblock rum -- true", "'run'"),
            ("cellblock run", "required"),
            ("cellblock run --", "required"),
            ("cellblock run --mode open -- true", "[possible values: sealed, nested]"),
            ("cellblock run --net egress -- true", "[possible values: none, host]"),
            ("cellblock run --without mounts -- true", "[possible values: landlock, "),
            ("cellblock run --run-as me -- true", "two numbers, as in $(id -u me):$(id -g me)"),
            ("cellblock run --run-as 0:0 -- true", "never runs as root"),
            ("cellblock run --run-as 1000:0 -- true", "never runs as root"),
            ("cellblock run --pass-fd 2 -- true", "2 is not in 3.."),
            ("cellblock plan --pass-fd 3 -- true", "unexpected argument '--pass-fd'"),
            ("cellblock run --args 9 -- true", "--args 9: cannot read descriptor 9: Bad file"),
            ("cellblock run --without cgroup -- true", "[possible values: landlock, seccomp, network]"),
            ("cellblock policy check p.toml", "write '--policy p.toml'"),
            ("cellblock demo x", "unexpected argument 'x'"),
            ("cellblock", "Usage: cellblock"),
        ] {
            let error = fails(line);
            assert!(error.contains(hint), "{line}\n{error}");
        }
    }

    #[test]
    fn help_and_version_are_no_failure() {
        for (line, text) in [
            ("cellblock --version", env!("CARGO_PKG_VERSION")),
            ("cellblock --help", "125 the cell failed"),
            ("cellblock run --help", "SRC:DEST holds one colon"),
        ] {
            let error = parse_line(line).expect_err(line);
            assert_eq!(exit_code(&error), 0, "{line}");
            let help = error.to_string();
            assert!(help.contains(text), "{line}\n{help}");
        }
    }

    fn expand(line: &str) -> Result<Vec<OsString>, String> {
        let read = |fd| match fd {
            3 => Ok(b"--env\0A=b c\0--net\0host\0".to_vec()),
            4 => Ok(b"--chdir\0/x".to_vec()),
            5 => Ok(Vec::new()),
            6 => Ok(b"--args\x003\0".to_vec()),
            7 => Ok(b"--env\0A\0--args=3\0".to_vec()),
            8 => Ok(b"--env\0A\0--\0true\0".to_vec()),
            10 => Ok(b"--env=\xff\0\0".to_vec()),
            _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
        };
        expand_args(args(line), read).map_err(|error| error.to_string())
    }

    #[test]
    fn the_data_stands_where_the_flag_stood() {
        let words = |line, words: &[&str]| {
            assert_eq!(expand(line).unwrap(), words, "{line}");
        };
        words(
            "a run --args 3 --chdir /y -- x --args 9",
            &["a", "run", "--env", "A=b c", "--net", "host", "--chdir", "/y", "--", "x", "--args", "9"],
        );
        words("a run --args=4 --args 5 -- x", &["a", "run", "--chdir", "/x", "--", "x"]);
        words("a run -- --args", &["a", "run", "--", "--args"]);
        let raw = expand("a --args 10").unwrap();
        assert_eq!(raw[1].as_bytes(), b"--env=\xff");
        assert_eq!(raw[2], "");
    }

    #[test]
    fn data_that_is_no_list_of_options_is_refused() {
        for (line, message) in [
            ("a --args", "--args: a descriptor number is needed"),
            ("a --args x", "--args: a descriptor number is needed"),
            ("a --args=-1", "--args: a descriptor number is needed"),
            (
                "a --args 9",
                "--args 9: cannot read descriptor 9: Bad file descriptor (os error 9); open it in the shell: --args 9 9<FILE",
            ),
            ("a --args 6", "--args 6: the data holds --args itself"),
            ("a --args 7", "--args 7: the data holds --args itself"),
            ("a --args 8", "--args 8: the data holds `--`; only options are read, the command stays outside"),
        ] {
            assert_eq!(expand(line), Err(message.to_owned()), "{line}");
        }
    }
}
