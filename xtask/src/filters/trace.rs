//! `cargo xtask filters trace`: what a filter would have said to a program that `strace` watched.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail};

use super::decide::{Check, Decision, Decisions};
use super::source::Action;
use super::table::{self, Arch};
use super::why;

/// Calls in the output of `strace -f` that a filter refuses, and allowed calls that no trace uses
#[derive(clap::Args)]
pub struct Args {
    /// Files written by `strace -f -o FILE`
    #[arg(required = true)]
    logs: Vec<PathBuf>,
    /// The filter
    #[arg(long, default_value = "provider")]
    filter: String,
    /// The architecture of the traced programs
    #[arg(long, default_value_t = Arch::NATIVE)]
    arch: Arch,
}

/// Runs `cargo xtask filters trace`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let source = super::load(&args.filter)?;
    let decisions = Decisions::new(&source, args.arch)?;
    let mut used = BTreeSet::new();
    let mut said: BTreeMap<String, Said> = BTreeMap::new();
    for path in &args.logs {
        let log = fs::read(path).with_context(|| path.display().to_string())?;
        let log = String::from_utf8_lossy(&log);
        for (index, line) in log.lines().enumerate() {
            let Some((call, arguments)) = call(line) else {
                continue;
            };
            used.insert(call.to_owned());
            let Some((answer, sure)) = answer(&decisions, call, &arguments, args.arch) else {
                continue;
            };
            let first = || Said {
                answer,
                sure,
                count: 0,
                first: format!("{}:{}: {line}", path.display(), index + 1),
            };
            said.entry(format!("{call} {sure}")).or_insert_with(first).count += 1;
        }
    }
    if used.is_empty() {
        bail!("no system call in {}; write it with strace -f -o FILE COMMAND", args.logs[0].display());
    }
    for (key, Said { answer, sure, count, first }) in &said {
        let call = key.split(' ').next().unwrap_or_default();
        let perhaps = if *sure { "" } else { " perhaps (the trace does not show an argument)" };
        println!("{call}: {answer}{perhaps}, {count} times\n  {first}");
    }
    let allowed = decisions.calls.values().filter(|decision| decides(decision, &Action::Allow));
    let unused: Vec<&str> =
        allowed.map(|decision| decision.call).filter(|call| !used.contains(*call)).collect();
    println!("allowed and not used here, {} calls: {}", unused.len(), unused.join(" "));
    Ok(())
}

/// What the filter says to a call of a trace, and the first line that makes it.
struct Said {
    answer: Action,
    sure: bool,
    count: usize,
    first: String,
}

fn decides(decision: &Decision, action: &Action) -> bool {
    decision.rules.iter().any(|rule| rule.clause.verdict.action == *action)
}

/// Name and arguments of the call a line shows: `[pid 7] openat(AT_FDCWD, "x", O_RDONLY) = 3`.
fn call(line: &str) -> Option<(&str, Vec<&str>)> {
    let open = line.find('(')?;
    let name = line[..open].rsplit([' ', ']']).next()?;
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(valid) || line.contains("resumed>") {
        return None;
    }
    Some((name, arguments(&line[open + 1..])))
}

/// Splits at commas that are in no string, bracket or comment, up to the call's own bracket.
fn arguments(text: &str) -> Vec<&str> {
    let mut arguments = Vec::new();
    let (mut depth, mut start, mut quoted, mut escaped) = (0, 0, false, false);
    for (index, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => {
                arguments.push(text[start..index].trim());
                return arguments;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(text[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    arguments.push(text[start..].trim_end_matches("<unfinished ...>").trim());
    arguments
}

/// What the filter answers if it does not allow the call, and whether that is certain.
fn answer(decisions: &Decisions, call: &str, shown: &[&str], arch: Arch) -> Option<(Action, bool)> {
    let Some(decision) = decisions.named(call) else {
        return Some((decisions.unknown.action.clone(), arch.calls().number(call).is_some()));
    };
    let mut sure = true;
    for rule in &decision.rules {
        let action = &rule.clause.verdict.action;
        let holds: Vec<Option<bool>> =
            rule.checks.iter().map(|check| holds(check, call, shown, arch)).collect();
        if holds.contains(&Some(false)) {
            continue;
        }
        let certain = !holds.contains(&None);
        match (action, certain) {
            (Action::Allow, true) => return None,
            (Action::Allow, false) => sure = false,
            (_, certain) => return Some((action.clone(), sure && certain)),
        }
    }
    None
}

/// Whether a check holds for what the trace shows of its argument; nothing if that is not enough.
fn holds(check: &Check, call: &str, shown: &[&str], arch: Arch) -> Option<bool> {
    let name = check.argument.name;
    // strace names the arguments of clone, and orders them its own way.
    let named = shown.iter().find_map(|shown| shown.strip_prefix(name)?.strip_prefix('='));
    let text = match named {
        Some(text) => text,
        None => match shown.get(check.argument.index) {
            Some(text) => text,
            // open leaves out the mode when it does not matter.
            None if table::arguments(call).len() > shown.len() => "0",
            None => return None,
        },
    };
    let text = text.split("/*").next().unwrap_or_default().trim();
    if let Some(value) = why::value(text, arch) {
        let mut registers = [0; 6];
        registers[check.argument.index] = value;
        return Some(check.holds(&registers));
    }
    // A name we do not know is none of those that the filter names.
    let word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    // Under a mask it may be: flags are joined. The commands of ioctl are not.
    let whole = call == "ioctl" || check.mask & u64::from(u32::MAX) == u64::from(u32::MAX);
    (whole && text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(word))
        .then_some(check.negated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filters;

    fn verdict(line: &str) -> Option<(String, bool)> {
        let source = filters::load("provider").unwrap();
        let decisions = Decisions::new(&source, Arch::X86_64).unwrap();
        let (call, arguments) = call(line).expect("a call");
        answer(&decisions, call, &arguments, Arch::X86_64).map(|(action, sure)| (action.to_string(), sure))
    }

    fn refuse(errno: &str) -> Option<(String, bool)> {
        Some((format!("refuse {errno}"), true))
    }

    #[test]
    fn lines_without_a_call() {
        for line in [
            "--- SIGCHLD {si_signo=SIGCHLD} ---",
            "+++ exited with 0 +++",
            "7 <... read resumed>\"\", 1) = 0",
        ] {
            assert!(call(line).is_none(), "{line}");
        }
    }

    #[test]
    fn arguments_as_strace_writes_them() {
        let (name, arguments) = call(r#"[pid 12] write(1</dev/pts/0>, "a, \"b\")", 8) = 8"#).unwrap();
        assert_eq!((name, arguments), ("write", vec!["1</dev/pts/0>", r#""a, \"b\")""#, "8"]));
        let (_, arguments) = call("7 poll([{fd=5, events=POLLIN}], 1, -1 <unfinished ...>").unwrap();
        assert_eq!(arguments, ["[{fd=5, events=POLLIN}]", "1", "-1"]);
    }

    #[test]
    fn decisions_about_traced_calls() {
        assert_eq!(verdict(r#"openat(AT_FDCWD, "x", O_RDONLY|O_CLOEXEC) = 3"#), None);
        assert_eq!(verdict(r#"9 openat(AT_FDCWD, "x", O_WRONLY|O_CREAT|O_TRUNC, 0644) = 3"#), None);
        assert_eq!(verdict(r#"openat(AT_FDCWD, "x", O_WRONLY|O_CREAT, 04755) = 3"#), refuse("EPERM"));
        assert_eq!(
            verdict("clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD, child_tidptr=0x7f) = 9"),
            None
        );
        assert_eq!(verdict("clone(child_stack=NULL, flags=CLONE_NEWNS|SIGCHLD) = 9"), refuse("EPERM"));
        assert_eq!(verdict("clone3({flags=CLONE_VM, exit_signal=SIGCHLD}, 88) = 9"), refuse("ENOSYS"));
        assert_eq!(verdict("ioctl(0, TCGETS, {c_iflag=ICRNL, ...}) = 0"), None);
        assert_eq!(verdict("ioctl(0, TIOCSTI, \"x\") = 0"), refuse("EPERM"));
        assert_eq!(verdict("socket(AF_NETLINK, SOCK_RAW|SOCK_CLOEXEC, NETLINK_ROUTE) = 4"), None);
        assert_eq!(verdict("socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP) = 4"), refuse("EPROTONOSUPPORT"));
        assert_eq!(verdict("personality(0xffffffff) = 0 (PER_LINUX)"), None);
        assert_eq!(verdict("unshare(CLONE_NEWUSER) = 0"), refuse("EPERM"));
        assert_eq!(verdict("prlimit64(0, RLIMIT_NOFILE, NULL, {rlim_cur=1024}) = 0"), None);
    }

    #[test]
    fn an_argument_the_trace_does_not_show() {
        let unsure = Some(("refuse EPERM".to_owned(), false));
        assert_eq!(verdict("chmod(\"x\", ???) = 0"), unsure);
    }
}
