//! The command line as types. Nothing here opens, reads or prints; what the
//! flags mean is decided by [`crate::policy::load`].

mod args;
mod deferred;
mod examples;
mod habits;
mod refusal;
mod verify;

use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PathBufValueParser, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};

use crate::error::Error;
use crate::policy::{Layer, Mode, NetworkMode, Telling, profile};
pub use args::{ArgsError, expand_args};
pub use deferred::Deferred;
pub use refusal::Refusal;
pub use verify::{TestOptions, VerifyOptions};

/// Runs an AI agent in a sandbox, its cell.
#[derive(Debug, Parser)]
#[command(name = "cellblock", version, args_override_self = true, after_help = examples::ALL)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program, the provider, in a cell.
    #[command(after_help = examples::RUN)]
    Run(Deferred<RunOptions>),
    /// Build the cell, test it from within, and run nothing.
    #[command(after_help = examples::VERIFY)]
    Verify(Deferred<VerifyOptions>),
    /// Print the steps that `run` would take, and take none.
    #[command(after_help = examples::PLAN)]
    Plan(Deferred<PlanOptions>),
    /// Show what a program can reach of a made-up harness, outside a cell and inside one.
    #[command(after_help = examples::DEMO)]
    Demo(DemoOptions),
    /// The demo's harness process.
    #[command(hide = true)]
    DemoHarness(HarnessOptions),
    /// Print or check a policy, its schema, or a profile.
    #[command(subcommand, after_help = examples::POLICY)]
    Policy(PolicyCommand),
    /// Print a manual page for man(1).
    #[command(after_help = examples::MAN)]
    Man {
        /// A command, such as run or policy-check, or policy.5 for the policy file.
        #[arg(default_value = "cellblock")]
        page: String,
    },
    /// Print the completions for a shell.
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Whether all that it prints is to be JSON.
    pub fn is_json(&self) -> bool {
        match self {
            Command::Verify(options) => options.0.json,
            Command::Plan(options) => options.0.json,
            Command::Policy(PolicyCommand::Show(options)) => options.0.json,
            Command::Policy(PolicyCommand::Check(options)) => options.0.json,
            _ => false,
        }
    }
}

/// What to do with a policy.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Print the policy that flags, files and profiles come to, as a file that loads again.
    #[command(after_help = examples::SHOW)]
    Show(Deferred<ShowOptions>),
    /// Print `ok`, the errors of a policy, or the known ways out of the cell that it leaves open.
    #[command(after_help = examples::CHECK)]
    Check(Deferred<CheckOptions>),
    /// Print the JSON Schema of a policy file.
    #[command(after_help = examples::SCHEMA)]
    Schema,
    /// Print a built-in profile as it was written, to start your own from.
    #[command(after_help = examples::PROFILE)]
    Profile {
        /// The profile.
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
    #[arg(long, value_name = "FILE", value_parser = report(), help_heading = "Reporting")]
    pub report: Option<PathBuf>,
    /// Write the stages of the run to descriptor N as JSON lines.
    #[arg(long, value_name = "N", value_parser = descriptor(0), help_heading = "Reporting")]
    pub json_status_fd: Option<RawFd>,
    /// Leave descriptor N open in the provider. All others from 3 on are closed.
    #[arg(long, value_name = "N", value_parser = descriptor(3), help_heading = "Cell")]
    pub pass_fd: Vec<RawFd>,
    /// The test before the provider runs.
    #[command(flatten)]
    pub test: TestOptions,
    /// Say more on standard error. Give it twice for still more.
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
    /// Turn LAYER off, to see what it held.
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
    /// Exit with 1 if there is a warning.
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
    /// Read the policy file FILE. A later one adds to an earlier one.
    #[arg(long, value_name = "FILE", help_heading = "Policy")]
    pub policy: Vec<PathBuf>,
    /// Start from the built-in profile NAME: codex, claude, opencode, runner-instance, or
    /// another that `cellblock policy profile --help` lists.
    #[arg(long, value_name = "NAME", help_heading = "Policy")]
    pub profile: Vec<String>,
    /// Set `${NAME}` in policy files. Without VALUE it is taken from the environment.
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Policy")]
    pub var: Vec<OsString>,
    /// Read further options, separated by NUL, from descriptor FD.
    #[arg(long, value_name = "FD", help_heading = "Policy")]
    pub args: Option<RawFd>,

    /// Choose who sandboxes the provider's tools.
    #[arg(long, value_name = "MODE", help_heading = "Cell")]
    pub mode: Option<Mode>,
    /// Set the variable KEY in the cell. Without VALUE it is passed from the environment.
    #[arg(long, value_name = "KEY[=VALUE]", help_heading = "Cell")]
    pub env: Vec<OsString>,
    /// Start the provider in PATH, as the cell sees it.
    #[arg(long, value_name = "PATH", help_heading = "Cell")]
    pub chdir: Option<PathBuf>,
    /// Set the host name in the cell.
    #[arg(long, value_name = "NAME", help_heading = "Cell")]
    pub hostname: Option<String>,
    /// Run the cell as this user and group, if root starts it. The default is sudo's caller.
    #[arg(long, value_name = "UID:GID", help_heading = "Cell")]
    pub run_as: Option<RunAs>,
    /// Set the umask of the provider: an octal number, or `inherit`. The default is 022.
    #[arg(long, value_name = "MASK", help_heading = "Cell")]
    pub umask: Option<String>,
    /// End the run after DURATION: 90s, 30m, 1h30m.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, help_heading = "Cell")]
    pub timeout: Option<String>,
    /// Allow N processes and threads at one time. The default is 4096.
    #[arg(long, value_name = "N", help_heading = "Cell")]
    pub processes: Option<u64>,

    /// Show SRC read-only in the cell, at DEST or at the same path.
    #[arg(long, value_name = "SRC[:DEST]", help_heading = "File tree")]
    pub ro_bind: Vec<OsString>,
    /// Show SRC writable in the cell, at DEST or at the same path.
    #[arg(long, value_name = "SRC[:DEST]", help_heading = "File tree")]
    pub bind: Vec<OsString>,
    /// Mount an empty memory file system at PATH.
    #[arg(long, value_name = "PATH", help_heading = "File tree")]
    pub tmpfs: Vec<PathBuf>,
    /// Let the provider open and control a device, such as /dev/kvm.
    #[arg(long, value_name = "PATH", help_heading = "File tree")]
    pub device: Vec<PathBuf>,
    /// Hide PATH of the host in every view.
    #[arg(long, value_name = "PATH", help_heading = "File tree")]
    pub hide: Vec<PathBuf>,
    /// Show the directory PATH writable at the same path: this run's part of what `--hide` hides.
    #[arg(long, value_name = "PATH", help_heading = "File tree")]
    pub expose: Vec<PathBuf>,
    /// Show the directory DIR, by which the provider reports to the harness.
    #[arg(long, value_name = "DIR", help_heading = "File tree")]
    pub channel: Option<PathBuf>,
    /// Show the directory that the provider works on, writable, or read-only with `:ro`. The
    /// default of DEST is the same path, and with --policy /work. `same` is the same path.
    #[arg(long, value_name = "DIR[:DEST][:ro]", help_heading = "File tree")]
    pub workspace: Option<OsString>,
    /// Say what happens if the run changed something that git tracks or runs.
    #[arg(long, value_name = "HOW", help_heading = "File tree")]
    pub told: Option<Telling>,

    /// Choose the network of the cell.
    #[arg(long, value_name = "NETWORK", help_heading = "Layers")]
    pub net: Option<NetworkMode>,
    /// Install the system call filter FILTER: provider, nested, or either with -set-gid behind it. A path, such
    /// as ./own.bpf or own.json, installs that filter as well.
    #[arg(long, value_name = "FILTER", help_heading = "Layers")]
    pub seccomp: Vec<String>,
    /// Leave out the warning NAME of `policy check`, such as home-in-view.
    #[arg(long, value_name = "NAME", help_heading = "Policy")]
    pub accept: Vec<String>,
    /// Go on without LAYER if the host lacks it.
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

const NEVER_ROOT: &str = "a cell never runs as root; give an ordinary user and group";

impl FromStr for RunAs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let user = text.split(':').next().unwrap_or(text);
        let numbers = || match user.parse::<u32>() {
            Ok(_) => "write UID:GID, two numbers".to_owned(),
            Err(_) if user == "root" => NEVER_ROOT.to_owned(),
            Err(_) => format!("write UID:GID, two numbers, as in $(id -u {user}):$(id -g {user})"),
        };
        let number = |id: &str| id.parse().map_err(|_| numbers());
        let (uid, gid) = text.split_once(':').ok_or_else(numbers)?;
        let run_as = RunAs { uid: number(uid)?, gid: number(gid)? };
        if run_as.uid == 0 || run_as.gid == 0 {
            return Err(NEVER_ROOT.to_owned());
        }
        Ok(run_as)
    }
}

/// The layers that can be turned off; the others go with one of these.
fn own_layer() -> impl TypedValueParser<Value = Layer> {
    PossibleValuesParser::new(["landlock", "seccomp", "network"])
        .try_map(|name| Layer::from_str(&name, false))
}

/// The exit status of a usage error: nothing was run, as with every failure
/// before the provider's exec.
pub const EXIT_USAGE: u8 = crate::error::SETUP_FAILED;

/// The whole command line, for the man page and the shell completions, without the
/// command `help`, which would repeat all others.
pub fn command() -> clap::Command {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    command
}

/// The command line as shells complete it: without hidden commands, and with the
/// names of profiles, which the policy checks otherwise.
pub fn for_completion() -> clap::Command {
    let whole = command();
    let shown = whole.get_subcommands().filter(|command| !command.is_hide_set());
    clap::Command::new("cellblock")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(shown.cloned().map(with_values))
}

fn with_values(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| match argument.get_id().as_str() {
        "profile" => argument.value_parser(PossibleValuesParser::new(profile::names())),
        "ro_bind" | "bind" => argument.value_hint(ValueHint::AnyPath),
        "workspace" | "channel" | "expose" => argument.value_hint(ValueHint::DirPath),
        "policy" | "report" => argument.value_hint(ValueHint::FilePath),
        "command" => argument.value_hint(ValueHint::CommandName),
        _ => argument,
    });
    command.mut_subcommands(with_values)
}

/// Reads the command line; `read` gives what a descriptor of `--args` holds.
///
/// # Errors
///
/// What is wrong with it, and what to write instead. `--help` and `--version` come
/// back as errors too.
pub fn parse(args: Vec<OsString>, read: impl FnMut(RawFd) -> io::Result<Vec<u8>>) -> Result<Cli, Refusal> {
    let args = expand_args(args, read).map_err(|error| {
        Refusal::Error(Box::new(Error::new("usage", error.to_string()).remedy(error.remedy())))
    })?;
    Cli::try_parse_from(&args).map_err(|error| refusal::refusal(&args, error))
}

/// Whether a command line that cannot be read asks for JSON.
pub fn asks_for_json(args: &[OsString]) -> bool {
    args.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// Standard output is the provider's.
fn report() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|file| match file.to_str() {
        Some("-") => {
            Err("write the name of a file: standard output is the provider's; ./- is a file of that name")
        }
        _ => Ok(file),
    })
}

/// A descriptor's number, from `lowest` on.
fn descriptor(lowest: RawFd) -> impl TypedValueParser<Value = RawFd> {
    StringValueParser::new().try_map(move |text| {
        let number = text.parse().ok().filter(|number| *number >= lowest);
        number.ok_or_else(|| format!("write the number of a descriptor, from {lowest} on"))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_definition_is_sound() {
        super::command().debug_assert();
    }
}
