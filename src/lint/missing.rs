//! What the policy names and the host has not.

use std::path::Path;

use super::{Facts, Warning, retain_unaccepted, warning};
use crate::policy::{Origin, Policy};

/// What a run needs on the host, and where the policy says so.
pub(super) fn needed(policy: &Policy) -> impl Iterator<Item = (&Path, &Origin)> {
    let sources = policy.views().filter(|view| view.is_needed).map(|view| (view.source, view.origin));
    sources.chain(policy.seccomp.file.iter().map(|file| (&*file.path, &file.origin)))
}

/// A run would end with an error for each of these.
pub(super) fn warnings(policy: &Policy, facts: &Facts) -> Vec<Warning> {
    let is_made = |path: &Path| policy.run.create.iter().any(|made| made.path == path);
    let missing = needed(policy).filter(|(path, _)| facts.missing.iter().any(|missing| missing == path));
    let missing = missing.filter(|(path, _)| !is_made(path));
    let missing = missing.map(|(path, origin)| {
        warning(
            "source-missing",
            origin,
            format!("this host has no {}", path.display()),
            "a run with this policy does not start here",
            "make it first, correct the name, or write `optional = true` for a view that may be absent",
        )
    });
    missing.chain(repository(policy, facts)).collect()
}

/// A linked worktree and a submodule hold a file `.git` that names a directory.
fn repository(policy: &Policy, facts: &Facts) -> Option<Warning> {
    let (workspace, repository) = (policy.workspace.as_ref()?, facts.repository.as_ref()?.display());
    let dir = workspace.dir.display();
    Some(warning(
        "repository-not-shown",
        &workspace.origin,
        format!("git finds no repository in {dir}: it is in {repository}, which no view shows"),
        "the workspace is a linked worktree or a submodule, and git in the cell says `not a git repository`",
        format!(
            "show it at its own path (--bind {repository} --ro-bind {repository}/hooks --ro-bind \
             {repository}/config), and write `at = \"{dir}\"` for the workspace: elsewhere `git worktree prune` in \
             the cell would take it for gone"
        ),
    ))
}

/// The variables of `--var` that no file has asked for.
pub fn unused_variables(policy: &Policy, names: &[String]) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = names.iter().map(|name| unused_variable(name)).collect();
    retain_unaccepted(policy, &mut warnings);
    warnings
}

fn unused_variable(name: &str) -> Warning {
    warning(
        "unused-variable",
        "--var",
        format!("no policy file asks for `${{{name}}}`"),
        "a name that is mistyped gives nothing a value",
        "correct the name, or leave it out",
    )
}
