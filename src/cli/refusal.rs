//! The words for a command line that cannot be used.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{command, habits};
use crate::error::Error;
use crate::nearest::nearest;

/// Why a command line comes to nothing.
#[derive(Debug)]
pub enum Refusal {
    /// Help or the version is printed instead.
    Help(clap::Error),
    /// It cannot be used.
    Error(Box<Error>),
}

/// What clap says, and what to write instead.
pub(super) fn refusal(args: &[OsString], error: clap::Error) -> Refusal {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(error.kind(), DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion) {
        return Refusal::Help(error);
    }
    let said = Said::by(&error);
    let mut what = said.what;
    // What a parser of ours says of a value is what to write instead.
    let of_value = std::error::Error::source(&error).map(ToString::to_string);
    if let Some(rest) = of_value.as_ref().and_then(|words| what.strip_suffix(&format!(": {words}"))) {
        what = rest.to_owned();
    }
    let remedy = own_remedy(args, &error).or(of_value).or(said.tip).unwrap_or_else(|| usage(args));
    Refusal::Error(Box::new(Error::new("usage", what).remedy(remedy)))
}

/// The first paragraph of clap's message.
struct Said {
    what: String,
    /// A value that is near the wrong one.
    tip: Option<String>,
}

/// How the command is written, and where it is explained.
fn usage(args: &[OsString]) -> String {
    let mut whole = command();
    whole.build();
    let mut command = &whole;
    for word in &args[1.min(args.len())..] {
        let Some(inner) = word.to_str().and_then(|name| command.find_subcommand(name)) else { break };
        command = inner;
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    format!("write {usage}; `{} --help` explains it", command.get_bin_name().unwrap_or("cellblock"))
}

impl Said {
    fn by(error: &clap::Error) -> Said {
        let text = error.render().to_string();
        let what = text.split("\n\n").next().unwrap_or_default();
        let what = what.strip_prefix("error: ").unwrap_or(what);
        let what: Vec<&str> = what.lines().map(str::trim).collect();
        let tip = match error.get(ContextKind::SuggestedValue) {
            Some(ContextValue::String(value)) => Some(format!("did you mean '{value}'?")),
            _ => None,
        };
        Said { what: what.join(" "), tip }
    }
}

/// What to write instead, where a habit or a slip explains the mistake.
fn own_remedy(args: &[OsString], error: &clap::Error) -> Option<String> {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(stray))) => hint(args, stray),
        (ErrorKind::InvalidSubcommand | ErrorKind::MissingSubcommand, _) => Some(commands(args)),
        _ => None,
    }
}

/// The commands that could stand where the unknown one does.
fn commands(args: &[OsString]) -> String {
    let whole = command();
    let inner = args.get(1).and_then(|name| whole.find_subcommand(name));
    let shown = inner.unwrap_or(&whole).get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<&str> = shown.map(clap::Command::get_name).collect();
    let rest = args.iter().skip(if inner.is_some() { 2 } else { 1 });
    let stray = rest.map(|word| word.to_string_lossy()).find(|word| word != "--");
    if let Some(near) = stray.as_deref().and_then(|stray| nearest(stray, names.iter().copied())) {
        return format!("did you mean '{near}'?");
    }
    let names = format!("the commands are {}", names.join(", "));
    match stray {
        Some(program) if inner.is_none() && !program.starts_with('-') => {
            format!("{names}; a program is run by 'cellblock run -- {program}'")
        }
        _ => names,
    }
}

/// What to write instead of a word that stands where it cannot.
fn hint(args: &[OsString], stray: &str) -> Option<String> {
    let options = args.split(|arg| arg == "--").next()?;
    let name = args.get(1)?.to_str()?;
    if stray.starts_with('-') {
        return flag(options, name, stray);
    }
    let word = |at: usize| options[at].to_str().unwrap_or_default();
    for at in (1..options.len()).filter(|&at| options[at] == stray) {
        match (word(at.saturating_sub(2)), word(at - 1)) {
            (flag @ ("--ro-bind" | "--bind"), src) if !src.starts_with('-') => {
                return Some(format!(
                    "source and destination are one word here: write '{flag} {src}:{stray}'"
                ));
            }
            ("--env", name) if !name.contains('=') => {
                return Some(format!("name and value are one word here: write '--env {name}={stray}'"));
            }
            (_, "-v") => return Some(format!("-v is --verbose; a view is '--bind {stray}'")),
            _ => {}
        }
    }
    match name {
        "run" | "plan" | "verify" => Some(format!("the command comes after '--': write '-- {stray}'")),
        "policy" => Some(format!("a policy file is named by a flag: write '--policy {stray}'")),
        _ => None,
    }
}

/// What to write instead of a flag: what its name means elsewhere, or the flag
/// that it is nearest to.
fn flag(options: &[OsString], name: &str, stray: &str) -> Option<String> {
    let whole = command();
    let known = |of: &clap::Command| -> Vec<String> {
        of.get_arguments().filter_map(|argument| argument.get_long().map(str::to_owned)).collect()
    };
    // Options that every command with a cell takes are those of `run`.
    let of_run = known(whole.find_subcommand("run")?);
    let command = whole.find_subcommand(name).unwrap_or(&whole);
    let inner = options.get(2).and_then(|name| command.find_subcommand(name)).unwrap_or(command);
    let flags = known(inner);
    // `-net host`, which is taken apart into letters.
    let short = options.iter().filter_map(|word| word.to_str()).find(|word| {
        word.len() > 2 && word.starts_with('-') && !word.starts_with("--") && word.starts_with(stray)
    });
    if let Some(name) = short.and_then(|word| flags.iter().find(|flag| word[1..] == **flag)) {
        return Some(format!("write '--{name}'"));
    }
    if let Some(advice) = short.and_then(habits::instead_of).or_else(|| habits::instead_of(stray)) {
        return Some(advice.to_owned());
    }
    let bare = stray.trim_start_matches('-');
    if let Some(near) = nearest(bare, flags.iter().map(String::as_str)) {
        return Some(format!("did you mean '--{near}'?"));
    }
    (of_run.iter().any(|flag| flag == bare)).then(|| format!("{stray} is an option of 'cellblock run'"))
}

#[cfg(test)]
mod tests {
    use super::super::{Command, EXIT_USAGE, parse};
    use super::Refusal;
    use std::io;

    fn refusal(line: &str) -> Refusal {
        let args = line.split_whitespace().map(Into::into).collect();
        parse(args, |_| Err(io::Error::from_raw_os_error(libc::EBADF))).expect_err(line)
    }

    fn fails(line: &str) -> String {
        match refusal(line) {
            Refusal::Error(error) => {
                assert_eq!(error.exit_code, EXIT_USAGE, "{line}");
                assert!(error.remedy.is_some(), "{line}\n{error}");
                error.to_string()
            }
            Refusal::Help(help) => {
                assert!(help.use_stderr(), "{line}");
                help.to_string()
            }
        }
    }

    #[test]
    fn a_single_value_given_twice_is_the_last_one() {
        let line = "cellblock run --hostname a --hostname b --env A --env B -- true --env C";
        let args = line.split_whitespace().map(Into::into).collect();
        let Command::Run(run) = parse(args, |_| unreachable!()).unwrap().command else {
            panic!("{line}");
        };
        assert_eq!(run.0.cell.hostname.as_deref(), Some("b"));
        assert_eq!(run.0.cell.env, ["A", "B"]);
        assert_eq!(run.0.command, ["true", "--env", "C"]);
    }

    #[test]
    fn what_was_meant_is_said() {
        for (line, hint) in [
            ("cellblock run --ro-bind /a /b -- true", "write '--ro-bind /a:/b'"),
            ("cellblock run --ro-bind /usr /usr -- true", "write '--ro-bind /usr:/usr'"),
            ("cellblock run --ro-bind /a /b true", "write '--ro-bind /a:/b'"),
            ("cellblock plan --tmpfs /t --bind a b --net host -- x", "write '--bind a:b'"),
            ("cellblock run -v /a:/b -- true", "a view is '--bind /a:/b'"),
            ("cellblock run --volume /a:/b -- true", "'--bind SRC:DEST'"),
            ("cellblock run --setenv A b -- true", "write '--env NAME=VALUE'"),
            ("cellblock run --env A b -- true", "write '--env A=b'"),
            ("cellblock run --env A=b bash", "the command comes after '--': write '-- bash'"),
            ("cellblock run --cwd /x -- true", "write '--chdir PATH'"),
            ("cellblock run --ro /opt -- true", "remedy: write '--ro-bind SRC"),
            ("cellblock run --memory 2g -- true", "MemoryMax="),
            ("cellblock run --memory=2g -- true", "MemoryMax="),
            ("cellblock run --allow-net -- true", "'--net host'"),
            ("cellblock run -it -- sh", "leave it out"),
            ("cellblock run -net host -- true", "write '--net'"),
            ("cellblock run --unshare-net -- true", "unexpected argument '--unshare-net'"),
            ("cellblock run --unshare-all -- true", "remedy: leave it out"),
            ("cellblock verify --settings x", "write '--policy FILE'"),
            ("cellblock run --nett host -- true", "did you mean '--net'?"),
            ("cellblock run --worksapce . -- true", "did you mean '--workspace'?"),
            ("cellblock run --reprot x -- true", "did you mean '--report'?"),
            ("cellblock exec true", "a program is run by 'cellblock run -- exec'"),
            ("cellblock bash", "the commands are run, verify, plan, demo, policy"),
            ("cellblock -- ls", "a program is run by 'cellblock run -- ls'"),
            ("cellblock policy lint", "the commands are show, check, "),
            ("cellblock run bash", "the command comes after '--': write '-- bash'"),
            ("cellblock run --net host bash -c x", "write '-- bash'"),
            ("cellblock plan bash -- -x", "write '-- bash'"),
            (
                "cellblock run -x",
                "remedy: write cellblock run [OPTIONS] -- <COMMAND>...; `cellblock run --help` explains it",
            ),
            ("cellblock rum -- true", "did you mean 'run'?"),
            ("cellblock run", "required"),
            ("cellblock run", "write cellblock run [OPTIONS] -- <COMMAND>..."),
            (
                "cellblock policy profile",
                "write cellblock policy profile <NAME>; `cellblock policy profile --help`",
            ),
            ("cellblock run --", "required"),
            ("cellblock run --mode open -- true", "[possible values: sealed, nested]"),
            ("cellblock run --mode seald -- true", "remedy: did you mean 'sealed'?"),
            ("cellblock run --net egress -- true", "[possible values: none, host]"),
            ("cellblock run --without mounts -- true", "[possible values: landlock, "),
            ("cellblock run --run-as me -- true", "two numbers, as in $(id -u me):$(id -g me)"),
            ("cellblock run --run-as root:root -- true", "remedy: a cell never runs as root"),
            ("cellblock run --report - -- true", "remedy: write the name of a file"),
            ("cellblock run --run-as 0:0 -- true", "never runs as root"),
            ("cellblock run --run-as 1000:0 -- true", "never runs as root"),
            ("cellblock run --pass-fd 2 -- true", "write the number of a descriptor, from 3 on"),
            ("cellblock run --json-status-fd x -- true", "write the number of a descriptor, from 0 on"),
            ("cellblock plan --pass-fd 3 -- true", "unexpected argument '--pass-fd'"),
            ("cellblock plan --pass-fd 3 -- true", "an option of 'cellblock run'"),
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
            ("cellblock --help", "125  the command line"),
            ("cellblock run --help", "SRC:DEST holds one colon"),
        ] {
            let Refusal::Help(help) = refusal(line) else { panic!("{line}") };
            assert!(!help.use_stderr(), "{line}");
            let help = help.to_string();
            assert!(help.contains(text), "{line}\n{help}");
        }
    }
}
