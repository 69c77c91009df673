//! What is known of the finished cell: read from the kernel, tried, or installed.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

use sha2::{Digest, Sha256};

use super::{Evidence, ReportEvent, Source};
use crate::error::Error;
use crate::plan::{Plan, Step, landlock};
use crate::sys::landlock::Handled;
use crate::sys::seccomp::Insn;
use crate::sys::{Errno, errno, fd};

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Finds the program as the provider's process will, in its own tree.
pub(super) fn provider(
    plan: &Plan,
    pid: i32,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Option<ReportEvent>, Error> {
    let failed = |what: String, error: &std::io::Error| Error::new("evidence", what).errno(errno(error));
    let process = format!("/proc/{pid}");
    let root =
        File::open(format!("{process}/root")).map_err(|error| failed(format!("{process}/root"), &error))?;
    let workdir =
        File::open(format!("{process}/cwd")).map_err(|error| failed(format!("{process}/cwd"), &error))?;
    for candidate in &plan.candidates {
        let Some(file) = open_in(&root, &workdir, candidate) else {
            continue;
        };
        let file = File::from(file);
        let Ok(metadata) = file.metadata() else {
            continue;
        };
        if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
            continue;
        }
        let is_small = metadata.len() <= 1 << 30;
        let sha256 = if is_small { hash(file, go_on) } else { Ok(None) };
        let sha256 = sha256.map_err(|error| failed(candidate.to_string(), &error))?;
        return Ok(Some(ReportEvent::Provider { path: candidate.to_string(), size: metadata.len(), sha256 }));
    }
    // Exec will say why.
    Ok(None)
}

fn open_in(root: &File, workdir: &File, path: &CStr) -> Option<OwnedFd> {
    let dir = if path.to_bytes().starts_with(b"/") { root } else { workdir };
    fd::open_in_root(dir.as_raw_fd(), path).ok()
}

/// `None` where it was cut short.
fn hash(mut file: File, go_on: &mut dyn FnMut() -> bool) -> std::io::Result<Option<String>> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Some(hex(&hasher.finalize()))),
            _ if !go_on() => return Ok(None),
            got => hasher.update(&buffer[..got]),
        }
    }
}

/// Reads what the kernel says of the process at the gate, and adds what was
/// tried and what was installed.
///
/// # Errors
///
/// When something cannot be read, a namespace is the launcher's own, or the
/// Landlock domain does not hold.
pub fn collect(plan: &Plan, pid: i32, root_listing: i32) -> Result<Vec<Evidence>, Error> {
    let mut evidence = namespaces(plan, pid)?;
    let mounts: Vec<serde_json::Value> = read(pid, "mountinfo")?.lines().map(Into::into).collect();
    evidence.push(member("mounts", "mountinfo", mounts, Source::Kernel));
    evidence.extend(status(&read(pid, "status")?));
    evidence.push(member("descriptors", "open", descriptors(pid)?, Source::Kernel));
    evidence.push(member("environment", "names", plan.environment_names(), Source::Installed));
    for step in &plan.provider {
        match step {
            Step::SetLimit { resource, value } => {
                evidence.push(member("limits", resource.name(), *value, Source::Installed));
            }
            Step::CreateRuleset { handled } => evidence.extend(domain(plan, handled, root_listing)?),
            Step::InstallFilter { name, program } => {
                evidence.push(member("seccomp", "filter", name.clone(), Source::Installed));
                evidence.push(member("seccomp", "sha256", digest(program), Source::Installed));
            }
            _ => {}
        }
    }
    Ok(evidence)
}

fn member(layer: &str, name: &str, value: impl Into<serde_json::Value>, source: Source) -> Evidence {
    Evidence { layer: layer.to_owned(), name: name.to_owned(), value: value.into(), source }
}

/// A file of the process in `/proc`. A path in the mount table, and a program's
/// name, need not be text.
fn read(pid: i32, name: &str) -> Result<String, Error> {
    let path = format!("/proc/{pid}/{name}");
    let content = fs::read(&path).map_err(|error| Error::new("evidence", path).errno(errno(&error)))?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

fn namespaces(plan: &Plan, pid: i32) -> Result<Vec<Evidence>, Error> {
    let mut evidence = Vec::new();
    for namespace in &plan.namespaces {
        let name = namespace.name();
        let link = |pid: &str, what: &str| {
            let link = fs::read_link(format!("/proc/{pid}/ns/{name}"));
            link.map_err(|error| Error::new("evidence", format!("{what}ns/{name}")).errno(errno(&error)))
        };
        let own = link(&pid.to_string(), "")?;
        if link("self", "the launcher's own ")? == own {
            return Err(Error::new("evidence", format!("the {name} namespace is the launcher's own")));
        }
        evidence.push(member("namespaces", name, &*own.to_string_lossy(), Source::Kernel));
    }
    for name in ["uid_map", "gid_map"] {
        let map: serde_json::Value = read(pid, name)?.split_whitespace().collect();
        evidence.push(member("namespaces", name, map, Source::Kernel));
    }
    Ok(evidence)
}

/// The members of `/proc/PID/status` that belong to a layer.
fn status(text: &str) -> impl Iterator<Item = Evidence> {
    text.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        let layer = match name {
            "CapInh" | "CapPrm" | "CapEff" | "CapBnd" | "CapAmb" | "NoNewPrivs" | "Uid" | "Gid"
            | "Groups" => "credentials",
            "Seccomp" | "Seccomp_filters" => "seccomp",
            _ => return None,
        };
        let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(member(layer, name, value, Source::Kernel))
    })
}

/// The Landlock domain, of which the kernel tells nothing: what was installed, and
/// that it holds.
fn domain(plan: &Plan, handled: &Handled, root_listing: i32) -> Result<Vec<Evidence>, Error> {
    let rules = plan.provider.iter().filter(|step| matches!(step, Step::AllowPath { .. })).count();
    let mut evidence = vec![
        member("landlock", "fs", landlock::rights(handled.fs), Source::Installed),
        member("landlock", "scoped", landlock::scopes(handled.scoped), Source::Installed),
        member("landlock", "rules", rules, Source::Installed),
    ];
    if handled.fs == 0 {
        return Ok(evidence);
    }
    let answer = Errno::from_raw(root_listing);
    if answer != Errno::EACCES {
        let what = "listing / from within the Landlock domain: not refused with EACCES";
        let mut error = Error::new("evidence", what);
        error.errno = (root_listing != 0).then_some(answer);
        return Err(error
            .cause("the domain does not hold, or another filter stands around the launcher")
            .remedy("find out which with strace, or start outside that filter"));
    }
    evidence.push(member("landlock", "list /", format!("{answer:?}"), Source::Probed));
    Ok(evidence)
}

/// SHA-256 of a filter's program.
fn digest(program: &[Insn]) -> String {
    let mut hasher = Sha256::new();
    for insn in program {
        hasher.update(insn.code.to_ne_bytes());
        hasher.update([insn.jt, insn.jf]);
        hasher.update(insn.k.to_ne_bytes());
    }
    hex(&hasher.finalize())
}

/// A member of the evidence.
pub fn value(evidence: &[Evidence], layer: &str, name: &str) -> Option<serde_json::Value> {
    let member = evidence.iter().find(|member| member.layer == layer && member.name == name);
    member.map(|member| member.value.clone())
}

/// The descriptors that exec will leave open, and where they lead.
fn descriptors(pid: i32) -> Result<serde_json::Value, Error> {
    let path = format!("/proc/{pid}/fd");
    let failed = |error: std::io::Error| Error::new("evidence", path.clone()).errno(errno(&error));
    let mut open = serde_json::Map::new();
    for entry in fs::read_dir(&path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let number = entry.file_name().to_string_lossy().into_owned();
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).map_err(failed)?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
        if flags & libc::O_CLOEXEC == 0 {
            let target = fs::read_link(entry.path()).map_err(failed)?;
            open.insert(number, target.to_string_lossy().into());
        }
    }
    Ok(open.into())
}
