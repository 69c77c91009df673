//! The command lines that are measured against each other.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::inside::Seen;
use super::stage::Stage;
use super::statistics::{CommandLine, command};

/// bubblewrap, from the distribution.
const BUBBLEWRAP: &str = "bwrap";

/// `cellblock run`.
pub fn cell(stage: &Stage, options: &[OsString], payload: &[OsString]) -> CommandLine {
    let mut line: CommandLine = vec![stage.cellblock().into(), "run".into()];
    line.extend_from_slice(options);
    line.push("--".into());
    line.extend_from_slice(payload);
    line
}

/// bubblewrap with the namespaces and mounts of the cell's plan.
///
/// It writes no made-up files into `/etc`, writes no sysctl, and has neither
/// Landlock nor a filter: what it leaves out only makes it faster.
pub fn bubblewrap(stage: &Stage, options: &[OsString], payload: &[OsString]) -> Result<CommandLine> {
    let plan = Command::new(stage.cellblock())
        .args(["plan", "--json"])
        .args(options)
        .args(["--", "true"])
        .output()?;
    ensure!(plan.status.success(), "cellblock plan: {}", String::from_utf8_lossy(&plan.stderr));
    let plan: Plan = serde_json::from_slice(&plan.stdout).context("the plan's JSON")?;
    ensure!(!plan.has_overlay(), "bubblewrap has no word for an overlay that hides something of a view");
    let mut line: CommandLine =
        [BUBBLEWRAP, "--unshare-all", "--die-with-parent", "--new-session"].map(OsString::from).to_vec();
    line.extend(
        plan.arguments(stage.empty().to_str().context("a path that is text")?)
            .into_iter()
            .map(OsString::from),
    );
    line.push("--".into());
    line.extend_from_slice(payload);
    Ok(line)
}

/// bubblewrap as its users write it: every namespace, the system, one writable
/// directory, and nothing for each entry of `/proc`.
pub fn bubblewrap_as_written(stage: &Stage, payload: &[OsString]) -> CommandLine {
    let line = "--unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup --unshare-net \
                --ro-bind /usr /usr --ro-bind /etc /etc --symlink usr/bin /bin --symlink usr/lib /lib \
                --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp";
    let mut line: CommandLine =
        [BUBBLEWRAP].into_iter().chain(line.split_whitespace()).map(OsString::from).collect();
    line.extend(["--bind".into(), stage.scratch().into(), stage.scratch().into(), "--".into()]);
    line.extend_from_slice(payload);
    line
}

/// Options that show this program in the cell, and the command that runs it.
pub fn with_inside(stage: &Stage, options: &[OsString], task: &[&str]) -> (Vec<OsString>, CommandLine) {
    let mut view = stage.xtask().into_os_string();
    view.push(":/opt/xtask");
    let mut options = options.to_vec();
    options.extend(["--ro-bind".into(), view]);
    let mut payload: CommandLine = vec!["/opt/xtask".into(), "inside".into()];
    payload.extend(task.iter().map(OsString::from));
    (options, payload)
}

/// Fails unless the cell holds, and bubblewrap has no more mounts and no fewer
/// namespaces than it.
pub fn verify(stage: &Stage, options: &[OsString]) -> Result<()> {
    let cell = hold(stage, options)?;
    let (options, payload) = with_inside(stage, options, &["look"]);
    let other = look(&bubblewrap(stage, &options, &payload)?)?;
    ensure!(other.seccomp == 0 && other.root_listing == 0, "bubblewrap has a layer that it should not have");
    all_new(&other).context("bubblewrap")?;
    ensure!(
        other.mounts <= cell.mounts,
        "bubblewrap has {} mounts and the cell has {}",
        other.mounts,
        cell.mounts
    );
    Ok(())
}

/// Fails unless every layer of the cell stands; what it sees.
pub fn hold(stage: &Stage, options: &[OsString]) -> Result<Seen> {
    let (options, payload) = with_inside(stage, options, &["look"]);
    let cell = look(&cell(stage, &options, &payload))?;
    ensure!(cell.seccomp == 2, "Seccomp of the cell is {}", cell.seccomp);
    ensure!(cell.no_new_privs == 1, "NoNewPrivs of the cell is {}", cell.no_new_privs);
    ensure!(
        cell.root_listing == libc::EACCES,
        "Landlock let the cell list its root: errno {}",
        cell.root_listing
    );
    all_new(&cell).context("the cell")?;
    Ok(cell)
}

fn all_new(seen: &Seen) -> Result<()> {
    for (name, own) in Seen::look()?.namespaces {
        ensure!(
            seen.namespaces.get(&name).is_some_and(|id| *id != own),
            "the {name} namespace is not a new one"
        );
    }
    Ok(())
}

fn look(line: &[OsString]) -> Result<Seen> {
    let output = command(line).stdout(Stdio::piped()).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{line:?} ended with {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What bubblewrap needs to know of `cellblock plan --json`.
#[derive(Deserialize)]
struct Plan {
    init: Vec<Step>,
    provider: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
enum Step {
    MakeDirectory {
        path: String,
    },
    MakeSymlink {
        path: String,
        target: String,
    },
    Bind {
        source: String,
        path: String,
        attributes: Vec<String>,
    },
    Mount {
        filesystem: String,
        options: Vec<(String, String)>,
        path: String,
    },
    Cover {
        source: String,
        path: String,
    },
    Mask {
        path: String,
    },
    Seal {
        path: String,
    },
    SetHostname {
        name: String,
    },
    ChangeDirectory {
        path: String,
    },
    #[serde(other)]
    Other,
}

impl Step {
    fn path(&self) -> Option<&str> {
        match self {
            Step::MakeDirectory { path }
            | Step::MakeSymlink { path, .. }
            | Step::Bind { path, .. }
            | Step::Mount { path, .. }
            | Step::Cover { path, .. }
            | Step::Mask { path } => Some(path),
            _ => None,
        }
    }

    /// One operation in bubblewrap's words; none where its `--dev` does it.
    fn arguments(&self, empty: &str) -> Vec<String> {
        if self.path().is_some_and(|path| path.starts_with("dev/")) {
            return vec![];
        }
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        let place = |path: &str| format!("/{path}");
        match self {
            Step::MakeDirectory { path } if path == "dev" => words(&["--dev", "/dev"]),
            Step::MakeDirectory { path } => words(&["--dir", &place(path)]),
            Step::MakeSymlink { path, target } => words(&["--symlink", target, &place(path)]),
            Step::Bind { source, path, attributes } => {
                let read_only = attributes.iter().any(|name| name == "ro");
                words(&[if read_only { "--ro-bind" } else { "--bind" }, source, &place(path)])
            }
            Step::Mount { filesystem, path, .. } if filesystem == "proc" => words(&["--proc", &place(path)]),
            Step::Mount { options, path, .. } => {
                let mode = options.iter().find(|(key, _)| key == "mode");
                let mode = mode.map_or("0755", |(_, mode)| mode);
                words(&["--perms", mode, "--tmpfs", &place(path)])
            }
            // It binds from the host alone, where another directory of the cell is not.
            Step::Cover { source, path } => {
                let source =
                    if source == path || source == "dev/null" { place(source) } else { empty.to_owned() };
                words(&["--ro-bind", &source, &place(path)])
            }
            Step::Mask { path } => match std::fs::metadata(place(path)) {
                Err(_) => vec![],
                Ok(there) if there.is_dir() => words(&["--ro-bind", empty, &place(path)]),
                Ok(_) => words(&["--ro-bind", "/dev/null", &place(path)]),
            },
            Step::Seal { path } if path == "." => words(&["--remount-ro", "/"]),
            Step::Seal { path } => words(&["--remount-ro", &place(path)]),
            Step::SetHostname { name } => words(&["--hostname", name]),
            Step::ChangeDirectory { path } => words(&["--chdir", path]),
            Step::Other => vec![],
        }
    }
}

impl Plan {
    fn has_overlay(&self) -> bool {
        self.init.iter().any(|step| matches!(step, Step::Mount { filesystem, .. } if filesystem == "overlay"))
    }

    /// The arguments that come to the same tree; `empty` is a directory.
    fn arguments(&self, empty: &str) -> Vec<String> {
        let steps: Vec<&Step> = self.init.iter().chain(&self.provider).collect();
        // It makes mount points and parents by itself.
        let holds_others = |path: &str| {
            steps.iter().any(|step| {
                let other = step.path().unwrap_or_default();
                let is_mount = !matches!(step, Step::MakeDirectory { .. });
                other
                    .strip_prefix(path)
                    .is_some_and(|rest| rest.starts_with('/') || (rest.is_empty() && is_mount))
            })
        };
        steps
            .iter()
            .filter(
                |step| !matches!(step, Step::MakeDirectory { path } if path != "dev" && holds_others(path)),
            )
            .flat_map(|step| step.arguments(empty))
            .collect()
    }
}

/// A payload that does nothing.
pub fn nothing() -> CommandLine {
    vec![OsStr::new("/bin/true").to_owned()]
}

#[cfg(test)]
mod tests {
    use super::Plan;

    #[test]
    fn a_plan_in_bubblewraps_words() {
        let plan: Plan = serde_json::from_str(
            r#"{ "init": [
                { "step": "new-root" },
                { "step": "make-directory", "path": "dev", "mode": 493 },
                { "step": "make-directory", "path": "dev/shm", "mode": 493 },
                { "step": "make-directory", "path": "run", "mode": 493 },
                { "step": "make-directory", "path": "tmp", "mode": 493 },
                { "step": "mount", "filesystem": "tmpfs", "options": [["mode", "1777"]],
                  "path": "tmp", "attributes": ["rw"], "stage": "mounts" },
                { "step": "make-directory", "path": "usr", "mode": 493 },
                { "step": "bind", "source": "/usr", "path": "usr", "attributes": ["ro"], "stage": "mounts" },
                { "step": "mount", "filesystem": "tmpfs", "options": [["mode", "0755"]],
                  "path": "srv/runs", "attributes": ["rw"], "stage": "mounts" },
                { "step": "cover", "source": "dev/null", "path": "proc/keys", "attributes": ["ro"] },
                { "step": "cover", "source": "dev/mqueue", "path": "proc/acpi", "attributes": ["ro"] },
                { "step": "seal", "path": "srv/runs" },
                { "step": "seal", "path": "." }
            ], "provider": [ { "step": "change-directory", "path": "/home/agent" } ] }"#,
        )
        .unwrap();
        assert_eq!(
            plan.arguments("/empty").join(" "),
            "--dev /dev --dir /run --perms 1777 --tmpfs /tmp --ro-bind /usr /usr \
             --perms 0755 --tmpfs /srv/runs --ro-bind /dev/null /proc/keys \
             --ro-bind /empty /proc/acpi --remount-ro /srv/runs --remount-ro / --chdir /home/agent"
        );
    }

    #[test]
    fn an_overlay_is_noticed() {
        let plan: Plan = serde_json::from_str(
            r#"{ "init": [
                { "step": "make-directory", "path": "scratch", "mode": 448 },
                { "step": "make-whiteout", "path": "scratch/0/over/runs" },
                { "step": "mount", "filesystem": "overlay", "path": "srv", "attributes": ["ro"],
                  "options": [["lowerdir", "scratch/0/over:scratch/0/view"], ["xino", "off"]],
                  "stage": "mounts" },
                { "step": "must-be", "path": "srv" },
                { "step": "detach", "path": "scratch" },
                { "step": "remove-directory", "path": "scratch" }
            ], "provider": [] }"#,
        )
        .unwrap();
        assert!(plan.has_overlay());
    }
}
