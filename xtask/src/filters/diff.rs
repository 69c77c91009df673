//! `cargo xtask filters diff`: what a change of the sources changes for programs.

use std::collections::BTreeSet;
use std::io;
use std::process::Command;

use anyhow::{Context, bail};

use super::decide::Decisions;
use super::source::{self, Source};
use super::table::Arch;
use super::{names, render, root};

/// What changed, by call and argument, between two revisions
#[derive(clap::Args)]
pub struct Args {
    /// The older revision, as git names it
    from: String,
    /// The newer one; the work tree if left out
    to: Option<String>,
}

/// Runs `cargo xtask filters diff`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let old = names_at(&args.from)?;
    let new = args.to.as_deref().map_or_else(names, names_at)?;
    let all: BTreeSet<&String> = old.iter().chain(&new).collect();
    for name in all {
        let at = |names: &[String], revision: Option<&str>| {
            names.contains(name).then(|| load_at(revision, name)).transpose()
        };
        let from = at(&old, Some(&args.from)).with_context(|| format!("{name} at {}", args.from))?;
        let to = at(&new, args.to.as_deref())?;
        for arch in Arch::ALL {
            let decisions = |source: &Option<Source>| -> Result<_, source::Error> {
                Ok(match source {
                    Some(source) => lines(&Decisions::new(source, arch)?),
                    None => Vec::new(),
                })
            };
            for line in changes(&decisions(&from)?, &decisions(&to)?) {
                println!("{name} {arch}  {line}");
            }
        }
    }
    Ok(())
}

/// A call, or a kind of them, and the lines that decide about it.
type Decided = (String, Vec<String>);

fn lines(decisions: &Decisions) -> Vec<Decided> {
    let others = [
        ("(another architecture)", decisions.foreign),
        ("(x32)", decisions.x32),
        ("(unknown)", decisions.unknown),
    ];
    let others = others.map(|(kind, verdict)| (kind.to_owned(), vec![verdict.action.to_string()]));
    let calls = decisions.calls.values();
    let calls = calls.map(|decision| (decision.call.to_owned(), render::lines(decision)));
    others.into_iter().chain(calls).collect()
}

/// One line for each call decided otherwise, or one for each clause that came or went.
fn changes(from: &[Decided], to: &[Decided]) -> Vec<String> {
    let clauses = |all: &[Decided], name: &str| {
        let found = all.iter().find(|(call, _)| call == name);
        found.map(|(_, clauses)| clauses.clone()).unwrap_or_default()
    };
    let names: BTreeSet<&String> = from.iter().chain(to).map(|(call, _)| call).collect();
    let mut changes = Vec::new();
    for name in names {
        let (old, new) = (clauses(from, name), clauses(to, name));
        match (&old[..], &new[..]) {
            _ if old == new => {}
            ([], new) => changes.push(format!("+ {name}: {}", new.join("; "))),
            (old, []) => changes.push(format!("- {name}: {}", old.join("; "))),
            ([old], [new]) => changes.push(format!("! {name}: {old} → {new}")),
            _ => {
                let same: BTreeSet<&String> = old.iter().filter(|line| new.contains(line)).collect();
                let gone = old.iter().filter(|line| !same.contains(line));
                changes.extend(gone.map(|line| format!("- {name}: {line}")));
                let added = new.iter().filter(|line| !same.contains(line));
                changes.extend(added.map(|line| format!("+ {name}: {line}")));
                if old.len() == same.len() && new.len() == same.len() {
                    changes.push(format!("! {name}: now in this order: {}", new.join("; ")));
                }
            }
        }
    }
    changes
}

fn load_at(revision: Option<&str>, name: &str) -> Result<Source, source::Error> {
    let Some(revision) = revision else {
        return super::load(name);
    };
    let read = |file: &str| {
        let text = git(&["show", &format!("{revision}:filters/{file}")]);
        text.map_err(|error| io::Error::other(format!("{error:#}")))
    };
    source::load(&format!("{name}.filter"), &read)
}

fn names_at(revision: &str) -> anyhow::Result<Vec<String>> {
    let files = git(&["ls-tree", "--name-only", revision, "filters/"])?;
    let names = files.lines().filter_map(|file| file.strip_prefix("filters/")?.strip_suffix(".filter"));
    Ok(names.map(ToOwned::to_owned).collect())
}

fn git(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").current_dir(root()).args(arguments).output().context("git")?;
    if !output.status.success() {
        bail!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::{Decided, changes};

    fn decided(lines: &[(&str, &[&str])]) -> Vec<Decided> {
        let clauses = |clauses: &[&str]| clauses.iter().map(ToString::to_string).collect();
        lines.iter().map(|(call, lines)| (call.to_string(), clauses(lines))).collect()
    }

    #[test]
    fn changes_by_call_and_clause() {
        let old = decided(&[
            ("bpf", &["refuse EPERM"]),
            ("clone", &["refuse EPERM if flags == 1", "allow"]),
            ("mseal", &["allow"]),
            ("read", &["allow"]),
        ]);
        let new = decided(&[
            ("bpf", &["refuse ENOSYS"]),
            ("clone", &["refuse EPERM if flags == 3", "allow"]),
            ("read", &["allow"]),
            ("statx", &["allow"]),
        ]);
        assert_eq!(
            changes(&old, &new),
            [
                "! bpf: refuse EPERM → refuse ENOSYS",
                "- clone: refuse EPERM if flags == 1",
                "+ clone: refuse EPERM if flags == 3",
                "- mseal: allow",
                "+ statx: allow",
            ]
        );
    }

    #[test]
    fn an_order_that_changed() {
        let old = decided(&[("clone", &["allow if flags == 1", "kill if flags == 1", "allow"])]);
        let new = decided(&[("clone", &["kill if flags == 1", "allow if flags == 1", "allow"])]);
        let changes = changes(&old, &new);
        assert_eq!(changes.len(), 1);
        assert!(changes[0].starts_with("! clone: now in this order: kill"), "{changes:?}");
    }
}
