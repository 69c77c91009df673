//! Says what this process is and sees, one KEY, a tab and a VALUE a line.

use std::{fs, io};

use crate::call::{CWD, NONE, call, why};
use crate::facts::Start;
use crate::pools;
use crate::process::status;
use crate::syscalls::OPEN_TREE_ATTR;

/// Prints what each of `topics` asks for; an unknown topic is an error.
pub fn show(topics: &[String], start: &Start) -> Result<(), String> {
    for topic in topics {
        match topic.as_str() {
            "status" => {
                for field in [
                    "Name",
                    "Umask",
                    "Uid",
                    "Gid",
                    "Groups",
                    "NSpid",
                    "Pid",
                    "PPid",
                    "SigBlk",
                    "SigIgn",
                    "SigCgt",
                    "CapInh",
                    "CapPrm",
                    "CapEff",
                    "CapBnd",
                    "CapAmb",
                    "NoNewPrivs",
                    "Seccomp",
                    "Seccomp_filters",
                    "Threads",
                ] {
                    line(field, &status(field));
                }
            }
            "fds" => {
                for fd in (0..3).chain(start.inherited().iter().copied()) {
                    let target = fs::read_link(format!("/proc/self/fd/{fd}"));
                    line(
                        &format!("fd {fd}"),
                        &target.map_or_else(|error| error.to_string(), |path| path.display().to_string()),
                    );
                }
            }
            "cwd" => line("cwd", start.cwd()),
            "env" => {
                for (name, value) in std::env::vars_os() {
                    line(&format!("env {}", name.display()), &value.to_string_lossy());
                }
            }
            "args" => {
                for (n, argument) in std::env::args().enumerate() {
                    line(&format!("arg {n}"), &argument);
                }
            }
            "session" => {
                // SAFETY: the three only ask.
                let (pid, group, session) = unsafe { (libc::getpid(), libc::getpgid(0), libc::getsid(0)) };
                line("pid", &pid.to_string());
                line("pgid", &group.to_string());
                line("sid", &session.to_string());
            }
            "hostname" => {
                line("hostname", fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim())
            }
            "limits" | "mountinfo" | "uid_map" | "gid_map" | "cgroup" => {
                let text = fs::read_to_string(format!("/proc/self/{topic}"))
                    .map_err(|error| format!("{topic}: {error}"))?;
                for text in text.lines() {
                    line(topic, text);
                }
            }
            "pids" => line("pids", &crate::files::pids().join(" ")),
            "root" => {
                let mut names: Vec<String> = fs::read_dir("/")
                    .map_err(|error| format!("/: {error}"))?
                    .flatten()
                    .map(|entry| entry.file_name().to_string_lossy().into_owned())
                    .collect();
                names.sort();
                line("root", &names.join(" "));
            }
            other => return Err(format!("nothing to show by the name of {other}")),
        }
    }
    Ok(())
}

/// An error when the host lacks `feature`, or keeps it from this user.
pub fn can(feature: &str) -> Result<(), String> {
    let answer = match feature {
        "userns" => call(libc::SYS_unshare, &[(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as usize]),
        "landlock" => call(libc::SYS_landlock_create_ruleset, &[0, 0, 1]),
        "pidfd-info" => pools::pidfd_cgroup(64).map(|_| 0),
        "open_tree_attr" => is_there(call(OPEN_TREE_ATTR, &[NONE]), libc::ENOSYS),
        "connectable-handle" => connectable_handle(),
        other => return Err(format!("no feature by the name of {other}")),
    };
    answer.map(drop).map_err(|error| format!("{feature}: {}", why(&error)))
}

/// Refused by another errno than that of what is absent.
fn is_there(answer: io::Result<usize>, absent: i32) -> io::Result<usize> {
    match answer {
        Err(error) if error.raw_os_error() != Some(absent) => Ok(0),
        answer => answer,
    }
}

/// name_to_handle_at(2) with AT_HANDLE_CONNECTABLE. It came with the order of checks by
/// which open_by_handle_at(2) reads the handle before it asks for a capability.
fn connectable_handle() -> io::Result<usize> {
    const CONNECTABLE: usize = 2;
    let (mut handle, mut mount) = ([0u32; 2], 0i32);
    let out = [handle.as_mut_ptr() as usize, &raw mut mount as usize];
    let path = c"/".as_ptr() as usize;
    is_there(call(libc::SYS_name_to_handle_at, &[CWD, path, out[0], out[1], CONNECTABLE]), libc::EINVAL)
}

fn line(key: &str, value: &str) {
    println!("{key}\t{value}");
}
