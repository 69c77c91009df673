//! The program at the end of a plan: where it may be, its arguments, its environment.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::{Request, Text, text};
use crate::error::Error;
use crate::policy::{PATH, Policy};

/// Five variables, then what the policy passes on, then what it sets.
pub(super) fn environment(policy: &Policy, request: &Request) -> BTreeMap<OsString, OsString> {
    let mut environment: BTreeMap<OsString, OsString> = [
        ("PATH", PATH.as_ref()),
        ("HOME", policy.cell.home.as_os_str()),
        ("TMPDIR", "/tmp".as_ref()),
        ("LANG", "C.UTF-8".as_ref()),
        ("USER", "agent".as_ref()),
    ]
    .into_iter()
    .map(|(key, value)| (key.into(), value.to_owned()))
    .collect();
    // A program on a terminal cannot draw there without knowing its kind.
    let on_a_terminal = request.terminal.then_some("TERM");
    for key in on_a_terminal.into_iter().chain(policy.environment.pass.iter().map(String::as_str)) {
        if let Some(value) = request.environment.get(OsStr::new(key)) {
            environment.insert(key.into(), value.clone());
        }
    }
    environment.extend(policy.environment.set.iter().map(|(key, value)| (key.into(), value.into())));
    environment
}

/// Where execvp(3) would look for the command, in the cell.
pub(super) fn candidates(
    environment: &BTreeMap<OsString, OsString>,
    request: &Request,
) -> Result<Vec<Text>, Error> {
    let Some(command) = request.command.first() else {
        return Err(Error::new("command", "no command was given").remedy("write it behind `--`"));
    };
    if command.is_empty() {
        return Err(Error::new("command", "the command is an empty string")
            .cause("often a shell variable in quotes that is not set")
            .remedy("write the provider's command behind `--`")
            .exit_code(127));
    }
    if command.as_bytes().contains(&b'/') {
        return Ok(vec![text("command", command)?]);
    }
    let path = environment.get(OsStr::new("PATH")).cloned().unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .map(|directory: PathBuf| text("command", directory.join(command)))
        .collect()
}

/// The command and its arguments.
pub(super) fn arguments(request: &Request) -> Result<Vec<Text>, Error> {
    request.command.iter().map(|argument| text("command", argument)).collect()
}

/// Variables as execve(2) takes them.
pub(super) fn entries(environment: BTreeMap<OsString, OsString>) -> Result<Vec<Text>, Error> {
    let entries = environment.into_iter().map(|(mut entry, value)| {
        entry.push("=");
        entry.push(value);
        text("environment", entry)
    });
    entries.collect()
}

/// The names alone: a value may be a secret, and is told nowhere.
pub(super) fn names(environment: &[Text]) -> impl Iterator<Item = String> {
    environment.iter().map(|entry| {
        let entry = entry.to_string_lossy();
        entry.split('=').next().unwrap_or_default().to_owned()
    })
}
