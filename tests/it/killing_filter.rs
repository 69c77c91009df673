//! A filter around the launcher that kills, as systemd's `SystemCallFilter=`
//! does: the launch is refused in words, whichever call of it is meant.

use std::collections::BTreeSet;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};

use cellblock::sys::trial;
use serde_json::Value;

use crate::inject;
use crate::site::Site;
use crate::user::is_root;

/// What the launcher calls before it can say anything, or in order to say it. A
/// filter that kills for one of these leaves no message.
const BASIC: &[i64] = &[
    // The C library, before main and at the end.
    libc::SYS_execve,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_arch_prctl,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_prlimit64,
    libc::SYS_getrandom,
    libc::SYS_readlink,
    libc::SYS_rt_sigaction,
    libc::SYS_exit_group,
    // A file is opened, looked at, read and written.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_getcwd,
    // A message asks whether a terminal reads it, and waits until it is taken.
    libc::SYS_ioctl,
    libc::SYS_poll,
    // Who starts it, and whether a filter is there at all.
    libc::SYS_geteuid,
    libc::SYS_getegid,
    libc::SYS_prctl,
    // The child that would be killed in the launcher's stead.
    libc::SYS_clone,
];

/// The name that a message has for a call, where one has.
fn name(number: i64) -> &'static str {
    let groups = [
        trial::LAUNCHER,
        trial::CHILD,
        trial::LANDLOCK,
        trial::SECCOMP,
        trial::NETWORK,
        trial::ROOT,
        trial::REPORT,
    ];
    let tried = groups.concat().into_iter().find(|call| call.number == number);
    tried.map_or("no name", |call| call.name)
}

/// Lays a filter on the command that kills for one call.
fn kill_for(command: &mut Command, number: i64) {
    let insn = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let program = [
        // The number of the call; that one is killed for, every other is allowed.
        insn(0x20, 0, 0, 0),
        insn(0x15, 0, 1, number as u32),
        insn(0x06, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        insn(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let filter = libc::sock_fprog { len: 4, filter: program.as_ptr().cast_mut() };
        // SAFETY: the kernel reads `program`, which lives as long as this closure.
        let laid = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
        };
        if laid == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: prctl is safe after fork, and nothing here allocates or locks.
    unsafe { command.pre_exec(install) };
}

fn launches(site: &Site) -> Vec<(&'static str, Command)> {
    let report = site.text("own/report");
    let launch = |options: &[&str]| {
        let mut launch = site.command(site.program());
        launch.args(["run", "--json-status-fd", "1"]).args(options).args(["--", "/usr/bin/true"]);
        launch
    };
    let mut launches =
        vec![("a plain launch", launch(&[])), ("with a report", launch(&["--report", &report]))];
    if is_root() {
        let mut by_root = Command::new(site.program());
        let ids = format!("{}:{}", site.ids.uid, site.ids.gid);
        by_root.current_dir(site.root()).args(["run", "--json-status-fd", "1", "--run-as", &ids]);
        by_root.args(["--", "/usr/bin/true"]).stdin(std::process::Stdio::null());
        launches.push(("by root", by_root));
    }
    launches
}

/// What is wrong with how a launch took a filter that kills for this call.
fn judge(number: i64, output: &Output) -> Result<(), String> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    if output.status.signal() == Some(libc::SIGSYS) && BASIC.contains(&number) {
        return Ok(());
    }
    let last: Value =
        stdout.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let is_told =
        stderr.starts_with("cellblock: launch: a filter kills for ") && stderr.contains(name(number));
    match (output.status.code(), is_told, &last["event"], &last["fault"]) {
        (Some(125), true, Value::String(event), Value::String(fault))
            if event == "exit" && fault == "filter-kills" =>
        {
            Ok(())
        }
        _ => Err(format!("call {number}: {} {stderr}{stdout}", output.status)),
    }
}

#[test]
fn a_filter_that_kills_for_any_call_of_a_launch_is_told() {
    let Some(site) = Site::new() else { return };
    site.directory("own");
    let mut wrong = Vec::new();
    for index in 0..launches(&site).len() {
        let launch = || launches(&site).swap_remove(index);
        let (what, command) = launch();
        let calls: BTreeSet<i64> = inject::calls_of(command);
        for number in calls {
            let mut command = launch().1;
            kill_for(&mut command, number);
            let output = command.output().expect("a launch");
            wrong.extend(judge(number, &output).err().map(|error| format!("{what}: {error}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_filter_that_kills_for_another_call_changes_nothing() {
    let Some(site) = Site::new() else { return };
    site.directory("own");
    for (what, mut command) in launches(&site) {
        kill_for(&mut command, libc::SYS_reboot);
        let output = command.output().expect("a launch");
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
