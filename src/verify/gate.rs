//! What the launcher alone can see: the process at the gate, as the kernel
//! describes it, the layers that were left out, and the environment.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::scene::Scene;
use super::{Line, Verdict};
use crate::mounts::Mount;
use crate::plan::{Plan, Reason, Step};
use crate::policy::secret::{is_model_key, looks_secret};
use crate::policy::{Layer, NetworkMode};

/// What the kernel says of a member of a layer.
type Kernel<'a> = &'a dyn Fn(&str, &str) -> Option<Value>;

/// All lines of the gate.
pub(super) fn lines(scene: &Scene, plan: &Plan, kernel: Kernel) -> Vec<Line> {
    let mut lines = layers(scene, plan);
    lines.extend(namespaces(kernel));
    lines.extend(credentials(scene, kernel));
    lines.extend(filter(plan, kernel));
    lines.extend(descriptors(kernel));
    lines.extend(mounts(scene, kernel));
    lines.extend(environment(scene, plan));
    lines
}

fn line(
    name: &str,
    object: impl Into<String>,
    expected: &str,
    seen: impl Into<String>,
    verdict: Verdict,
) -> Line {
    Line {
        name: name.to_owned(),
        object: object.into(),
        expected: expected.to_owned(),
        seen: seen.into(),
        verdict,
    }
}

fn ok_or_leak(ok: bool) -> Verdict {
    if ok { Verdict::Ok } else { Verdict::Leak }
}

/// A layer that does not stand is a leak, whoever wanted that.
fn layers(scene: &Scene, plan: &Plan) -> Vec<Line> {
    let network = scene.policy.network.mode == NetworkMode::None;
    let all = [
        (Layer::Landlock, true),
        (Layer::LandlockScope, false),
        (Layer::Seccomp, true),
        (Layer::Network, network),
        (Layer::Cgroup, true),
    ];
    let mut lines = Vec::new();
    for (layer, is_asked) in all {
        let waiver = plan.waived.iter().find(|waiver| waiver.layer == layer);
        let has_no_domain = layer == Layer::Landlock
            && !plan.provider.iter().any(|step| matches!(step, Step::CreateRuleset { .. }));
        let (seen, verdict) = match waiver.map(|waiver| waiver.reason) {
            None | Some(Reason::Older) if has_no_domain => ("off, as it has nothing to hold", Verdict::Leak),
            Some(Reason::Older) => ("older than the policy requires", Verdict::Leak),
            None if !is_asked => continue,
            None => ("on", Verdict::Ok),
            Some(Reason::Without) => ("off, by --without", Verdict::Leak),
            Some(Reason::Missing) => ("off, as this host lacks it", Verdict::Leak),
        };
        lines.push(line(&format!("layer:{}", layer.name()), layer.name(), "on", seen, verdict));
    }
    lines
}

fn namespaces(kernel: Kernel<'_>) -> impl Iterator<Item = Line> + '_ {
    // The evidence has those that are not the launcher's.
    ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"].into_iter().map(move |name| {
        let own = kernel("namespaces", name);
        let seen = own.as_ref().and_then(Value::as_str).unwrap_or("the launcher's");
        let object = format!("/proc/PID/ns/{name}");
        line(&format!("namespace:{name}"), object, "own", seen, ok_or_leak(own.is_some()))
    })
}

fn credentials(scene: &Scene, kernel: Kernel) -> Vec<Line> {
    let text = |layer: &str, name: &str| {
        kernel(layer, name).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let mut lines = Vec::new();
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let seen = text("credentials", set);
        let is_empty = !seen.is_empty() && seen.bytes().all(|byte| byte == b'0');
        lines.push(line("credentials:capabilities", set, "none", seen, ok_or_leak(is_empty)));
    }
    let seen = text("credentials", "NoNewPrivs");
    let verdict = ok_or_leak(seen == "1");
    lines.push(line("credentials:no-new-privs", "NoNewPrivs", "1", seen, verdict));
    let own = scene.gid.to_string();
    let groups = text("credentials", "Groups");
    let others: Vec<&str> = groups.split(' ').filter(|group| !group.is_empty() && *group != own).collect();
    let (seen, verdict) = match others.is_empty() {
        true => ("none".to_owned(), Verdict::Ok),
        false => (
            format!(
                "{}: the kernel lets nobody drop them in a user namespace; start as root, or by an account without them",
                others.join(" ")
            ),
            Verdict::KnownLimit,
        ),
    };
    lines.push(line("credentials:groups", "supplementary groups", "none", seen, verdict));
    lines
}

fn filter(plan: &Plan, kernel: Kernel) -> [Line; 2] {
    let number = |name: &str| {
        let value = kernel("seccomp", name)?;
        value.as_str()?.parse::<usize>().ok()
    };
    let wanted =
        plan.provider.iter().filter(|step| matches!(step, Step::InstallFilter { .. })).count().max(1);
    let (mode, filters) = (number("Seccomp").unwrap_or(0), number("Seccomp_filters").unwrap_or(0));
    [
        line("seccomp:mode", "Seccomp", "2", mode.to_string(), ok_or_leak(mode == 2)),
        line(
            "seccomp:filters",
            "Seccomp_filters",
            &format!("{wanted} or more"),
            filters.to_string(),
            ok_or_leak(filters >= wanted),
        ),
    ]
}

/// What exec leaves open. The standard streams are the launcher's own making.
fn descriptors(kernel: Kernel) -> Vec<Line> {
    let open = kernel("descriptors", "open");
    let Some(open) = open.as_ref().and_then(Value::as_object) else {
        return vec![line(
            "descriptors:open",
            "/proc/PID/fd",
            "0-2 alone",
            "nothing could be read",
            Verdict::Broken,
        )];
    };
    let mut lines = Vec::new();
    for (number, target) in open {
        let target = target.as_str().unwrap_or_default();
        let is_stream = ["0", "1", "2"].contains(&&**number);
        let is_pipe = target.starts_with("pipe:");
        let is_own = target == "/dev/null" || target.starts_with("/dev/pts/") || is_pipe;
        let (seen, verdict) = match (is_stream, is_pipe) {
            (true, _) if is_own => continue,
            (false, true) => (
                format!("{target}: passed on; what others write to it can be read by /proc/self/fd"),
                Verdict::KnownLimit,
            ),
            _ => (target.to_owned(), Verdict::Leak),
        };
        lines.push(line("descriptors:inherited", number.as_str(), "closed", seen, verdict));
    }
    if lines.is_empty() {
        lines.push(line("descriptors:inherited", "from 3 on", "closed", "closed", Verdict::Ok));
    }
    lines
}

/// Views of processes, and what the table tells of the host.
fn mounts(scene: &Scene, kernel: Kernel) -> Vec<Line> {
    let table = kernel("mounts", "mountinfo");
    let table: Vec<Mount> = table
        .as_ref()
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|row| Mount::parse(row.as_str()?.as_bytes()))
        .collect::<Option<_>>()
        .unwrap_or_default();
    let mut lines = Vec::new();
    if table.is_empty() {
        lines.push(line(
            "mounts:table",
            "/proc/PID/mountinfo",
            "mounts",
            "none could be read",
            Verdict::Broken,
        ));
    }
    let others = table.iter().filter(|mount| mount.kind == "proc" && !mount.point.starts_with("/proc"));
    let others: Vec<Line> = others
        .map(|mount| {
            let place = mount.point.display().to_string();
            line("mounts:procfs", place, "none but /proc", "a second procfs", Verdict::Leak)
        })
        .collect();
    if others.is_empty() {
        lines.push(line("mounts:procfs", "mount table", "none but /proc", "none but /proc", Verdict::Ok));
    }
    lines.extend(others);

    let directory = scene.directory.as_deref();
    for path in scene.forbidden().chain(directory) {
        let Some((device, inside)) = scene.mounts.locate(path) else { continue };
        // The root of a file system is a name that tells nothing.
        if inside == Path::new("/") {
            continue;
        }
        let names = table.iter().filter(|mount| mount.device == device && mount.root.starts_with(&inside));
        let names: Vec<String> = names.map(|mount| mount.point.display().to_string()).collect();
        let (seen, verdict) = match names.is_empty() {
            true => ("not named".to_owned(), Verdict::Ok),
            false => (
                format!("named: mountinfo tells where the plain bind on {} comes from", names.join(", ")),
                Verdict::KnownLimit,
            ),
        };
        lines.push(line("mounts:names", path.display().to_string(), "not named", seen, verdict));
    }
    lines
}

/// Variables that name what is hidden, or that seem to hold a secret.
fn environment(scene: &Scene, plan: &Plan) -> Vec<Line> {
    let policy = &scene.policy.environment;
    let mut lines = Vec::new();
    for entry in &plan.environment {
        let entry = entry.to_bytes();
        let (name, value) = match entry.iter().position(|byte| *byte == b'=') {
            Some(at) => (&entry[..at], &entry[at + 1..]),
            None => (entry, &[][..]),
        };
        let name = String::from_utf8_lossy(name).into_owned();
        if let Some(path) = named(scene, value) {
            let seen = format!("names {}", path.display());
            lines.push(line("environment:value", &*name, "names nothing hidden", seen, Verdict::Leak));
        }
        let is_passed = policy.pass.contains(&name) && !policy.set.contains_key(&name);
        if is_passed && is_model_key(&name) {
            let seen = "there: the key of a model, which every command of the agent can read";
            lines.push(line("environment:secret", &*name, "absent", seen, Verdict::KnownLimit));
        } else if is_passed && looks_secret(&name) {
            let seen = "there: by its name it may be a secret of the launcher's";
            lines.push(line("environment:secret", &*name, "absent", seen, Verdict::Leak));
        }
    }
    if lines.iter().all(|line| line.verdict != Verdict::Leak) {
        let seen = format!("{} variables, none names what is hidden", plan.environment.len());
        lines.push(line("environment:value", "all", "names nothing hidden", seen, Verdict::Ok));
    }
    lines
}

/// The hidden path, canary or directory of the launcher that a value names;
/// what the cell is told anyway may be named.
fn named(scene: &Scene, value: &[u8]) -> Option<PathBuf> {
    let mut value = value.to_vec();
    value.dedup_by(|next, byte| (*next, *byte) == (b'/', b'/'));
    let forbidden = scene.forbidden().chain(scene.directory.as_deref());
    let named = |hidden| occurrences(&value, hidden).into_iter().find(|path| !scene.is_told(hidden, path));
    forbidden.into_iter().find_map(named)
}

/// The paths in a value that are `hidden` or lie below it.
fn occurrences(value: &[u8], hidden: &Path) -> Vec<PathBuf> {
    // As in a:b, file:/a, "a", [a], a|b; the path itself may hold such too.
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || b":,;=|&\"'`()[]{}<>?#".contains(byte);
    let name = hidden.as_os_str().as_bytes();
    let starts = (0..value.len()).filter(|&start| value[start..].starts_with(name));
    let paths = starts.filter_map(|start| {
        let (before, rest) = (&value[..start], &value[start + name.len()..]);
        // Not within another path; but as in -I/srv/x, or --dir@/srv/x.
        let word = before.rsplit(is_end).next().unwrap_or_default();
        let is_whole = rest.first().is_none_or(|byte| *byte == b'/' || is_end(byte));
        if word.contains(&b'/') || !is_whole {
            return None;
        }
        let below = rest.iter().position(is_end).unwrap_or(rest.len());
        Some(Path::new(OsStr::from_bytes(&value[start..start + name.len() + below])).to_owned())
    });
    paths.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_names_a_path_in_many_ways() {
        let named = |value: &str| occurrences(value.as_bytes(), Path::new("/srv/my keys"));
        for value in [
            "/srv/my keys",
            "/srv/my keys/a",
            "/opt/a:/srv/my keys",
            "/opt/a|/srv/my keys|/opt",
            "file:/srv/my keys",
            "-I/srv/my keys",
            "[\"/srv/my keys\"]",
            "(/srv/my keys)",
            "cd /srv/my keys; ls",
        ] {
            assert!(!named(value).is_empty(), "{value}");
        }
        for value in
            ["/mnt/srv/my keys", "/srv/my keyset", "srv/my keys", "/srv/my", "http:/host/srv/my keys"]
        {
            assert!(named(value).is_empty(), "{value}");
        }
    }
}
