//! Class P: the harness as a process, and the state in which the provider is
//! started.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use crate::call::{call, call_fd, why};
use crate::facts::Facts;
use crate::files::pids;
use crate::verdict::{Denied, Leak, Na, Probe, Verdict, any_reached, filtered, in_child, probe, reached};

/// Probes on processes and on one's own state.
pub const PROBES: &[Probe] = &[
    probe("P01", "harness argv in /proc/PID/cmdline", |f| in_proc(f.get("CASE_ID"), "cmdline")),
    probe("P02", "harness environment", |f| in_proc(f.get("SECRET"), "environ")),
    probe("P03", "harness comm", |f| in_proc(f.get("COMM"), "comm")),
    probe("P04", "harness path in /proc/PID/maps", |f| in_proc(f.get("HARNESS_DIR"), "maps")),
    probe("P05", "argv of PID 1", |_| content("/proc/1/cmdline")),
    probe("P09", "memory and descriptors of PID 1", pid1),
    probe("P10", "secret in one's own environment", own_env),
    probe("P11", "signal the harness", |f| reached(call(libc::SYS_kill, &[f.harness(), 0]))),
    probe("P12", "signal any process but one's own", kill_all),
    probe("P13", "tell the harness's pid from one that is free", pid_oracles),
    probe("P14", "ptrace the harness", |f| ptrace(f.harness())),
    probe("P15", "process_vm_readv of the harness", |f| {
        reached(read_memory(f.harness(), f.number("HARNESS_ADDR")))
    }),
    probe("P16", "pidfd_getfd from the harness", take_fd),
    probe("P17", "list the harness's descriptors", |f| {
        reached(fs::read_dir(format!("/proc/{}/fd", f.harness())))
    }),
    probe("P18", "working directory of the harness", |f| {
        reached(fs::read_link(format!("/proc/{}/cwd", f.harness())))
    }),
    probe("P19", "mountinfo names the harness", |f| names("/proc/self/mountinfo", &[f.get("HARNESS_DIR")])),
    probe("P20", "mountinfo shows host source paths", source_paths),
    probe("P21", "/proc/mounts names the harness", |f| names("/proc/self/mounts", &[f.get("HARNESS_DIR")])),
    probe("P22", "mount table names hidden entries", |f| {
        names(
            "/proc/self/mountinfo",
            &["OTHER", "DB", "SECRETS", "DATA", "CONTROL_PLANE"].map(|key| f.get(key)),
        )
    }),
    probe("P24", "cgroup path names a job", cgroup),
    probe("P25", "list /sys/fs/cgroup", |_| reached(first_entry("/sys/fs/cgroup"))),
    probe("P28", "open kernel settings for writing", knobs),
    probe("P29", "read sensitive /proc and /sys files", sensitive),
    probe("P30", "files that tell one host from another", fingerprint),
    probe("P31", "the host's name", hostname),
    probe("P33", "/proc/net shows harness ports and sockets", net_tables),
    probe("P34", "/proc/locks shows a harness lock", |f| {
        names("/proc/locks", &[&format!(":{} ", f.get("LOCK_INODE"))])
    }),
    probe("P35", "/proc/sysvipc shows harness memory", sysvipc),
    probe("P36", "capabilities, no_new_privs and filter", credentials),
    probe("P38", "supplementary groups", groups),
    probe("P39", "umask of the parent", |f| {
        if f.umask & 0o22 == 0o22 {
            Denied(format!("{:03o}", f.umask))
        } else {
            Leak(format!("{:03o}", f.umask))
        }
    }),
    probe("P40", "core dumps", core_limit),
    probe("P41", "the host's controlling terminal", controlling_tty),
    probe("P42", "the parent's session", session),
    probe("P43", "type into a terminal on stdio", type_ahead),
    probe("P44", "TIOCSTI", |_| ioctl(libc::TIOCSTI as usize)),
    probe("P47", "TIOCSETD and TIOCLINUX, with high bits set too", line_discipline),
    probe("P48", "uid 0 inside", uid_zero),
    probe("P49", "forged SCM_CREDENTIALS", forged_credentials),
    probe("P50", "NSpid shows an outer pid", ns_pid),
    probe("P51", "loadavg counts the host's tasks", load),
    probe("P52", "a key of the harness's session", session_key),
];

/// Looks for `token` in one file of every process, and of the harness by its
/// number.
fn in_proc(token: &str, file: &str) -> Verdict {
    let own = [std::process::id(), std::os::unix::process::parent_id()].map(|pid| pid.to_string());
    let mut read = 0;
    for pid in pids() {
        let Ok(content) = fs::read(format!("/proc/{pid}/{file}")) else {
            continue;
        };
        read += 1;
        // One's own environment is P10, one's own argv names no case.
        if !own.contains(&pid) && contains(&content, token) {
            return Leak(format!("in /proc/{pid}/{file}"));
        }
    }
    Denied(format!("not in {read} processes"))
}

/// Whether `token` occurs in `content`; two numbers below 256 are enough to
/// make a false hit, so tokens are long.
fn contains(content: &[u8], token: &str) -> bool {
    content.windows(token.len()).any(|window| window == token.as_bytes())
}

fn content(path: &str) -> Verdict {
    match fs::read(path) {
        Ok(content) if content.is_empty() => Denied("empty".into()),
        Ok(content) => Leak(format!(
            "{} bytes: {:?}",
            content.len(),
            String::from_utf8_lossy(&content[..content.len().min(60)])
        )),
        Err(error) => Denied(why(&error)),
    }
}

fn pid1(_: &Facts) -> Verdict {
    let open = |name: &str| File::open(format!("/proc/1/{name}")).map(drop);
    any_reached([
        ("mem", open("mem")),
        ("environ", open("environ")),
        ("maps", open("maps")),
        ("fd", fs::read_dir("/proc/1/fd").map(drop)),
        ("exe", fs::read_link("/proc/1/exe").map(drop)),
        ("cwd", fs::read_link("/proc/1/cwd").map(drop)),
        ("root", fs::read_link("/proc/1/root").map(drop)),
        ("memory", read_memory(1, 0x1000).map(drop)),
        (
            "ptrace",
            match ptrace(1) {
                Leak(_) => Ok(()),
                _ => Err(io::Error::from_raw_os_error(libc::EPERM)),
            },
        ),
    ])
}

fn own_env(f: &Facts) -> Verdict {
    match fs::read("/proc/self/environ") {
        Ok(content) if contains(&content, f.get("SECRET")) => Leak("there".into()),
        Ok(content) => Denied(format!("not in {} bytes", content.len())),
        Err(error) => Denied(why(&error)),
    }
}

/// Asks for every number up to the harness's, as an agent that has not been
/// told it would.
fn kill_all(f: &Facts) -> Verdict {
    let own = [1, std::process::id() as usize, std::os::unix::process::parent_id() as usize];
    let mut answered = 0;
    for pid in (2..=f.harness()).filter(|pid| !own.contains(pid)) {
        if call(libc::SYS_kill, &[pid, 0]).is_ok() {
            answered += 1;
        }
    }
    if answered == 0 { Denied("none answers".into()) } else { Leak(format!("{answered} answer")) }
}

fn pid_oracles(f: &Facts) -> Verdict {
    // The largest pid_max is 4194304, and no process has that number itself.
    const FREE: usize = 4_194_304;
    type Ask = fn(usize) -> io::Result<usize>;
    let calls: [(&str, Ask); 9] = [
        ("getpriority", |pid| call(libc::SYS_getpriority, &[libc::PRIO_PROCESS as usize, pid])),
        ("getsid", |pid| call(libc::SYS_getsid, &[pid])),
        ("getpgid", |pid| call(libc::SYS_getpgid, &[pid])),
        ("sched_getscheduler", |pid| call(libc::SYS_sched_getscheduler, &[pid])),
        ("sched_getaffinity", |pid| {
            let mut mask = [0u64; 128];
            call(libc::SYS_sched_getaffinity, &[pid, size_of_val(&mask), mask.as_mut_ptr() as usize])
        }),
        ("prlimit64", |pid| {
            let mut limit = [0u64; 2];
            call(libc::SYS_prlimit64, &[pid, libc::RLIMIT_NOFILE as usize, 0, limit.as_mut_ptr() as usize])
        }),
        ("pidfd_open", |pid| call_fd(libc::SYS_pidfd_open, &[pid, 0]).map(|_| 0)),
        ("ioprio_get", |pid| call(libc::SYS_ioprio_get, &[1, pid])),
        ("kill", |pid| call(libc::SYS_kill, &[pid, 0])),
    ];
    let answer = |result: io::Result<usize>| result.map_or_else(|error| why(&error), |_| "ok".into());
    let mut answers = Vec::new();
    for (name, ask) in calls {
        let (there, free) = (answer(ask(f.harness())), answer(ask(FREE)));
        if there != free {
            return Leak(format!("{name}: {there} against {free}"));
        }
        if !answers.contains(&there) {
            answers.push(there);
        }
    }
    Denied(answers.join(" "))
}

fn ptrace(pid: usize) -> Verdict {
    let result = call(libc::SYS_ptrace, &[libc::PTRACE_SEIZE as usize, pid, 0, 0]);
    if result.is_ok() {
        // The tracee runs on: it was seized, not stopped, and is let go when
        // this child ends.
        return Leak("seized".into());
    }
    reached(result)
}

fn read_memory(pid: usize, address: usize) -> io::Result<usize> {
    let mut bytes = [0u8; 8];
    let local = [bytes.as_mut_ptr() as usize, bytes.len()];
    let remote = [address, bytes.len()];
    call(libc::SYS_process_vm_readv, &[pid, local.as_ptr() as usize, 1, remote.as_ptr() as usize, 1, 0])
}

fn take_fd(f: &Facts) -> Verdict {
    match call_fd(libc::SYS_pidfd_open, &[f.harness(), 0]) {
        Err(error) => Denied(format!("pidfd_open: {}", why(&error))),
        Ok(pidfd) => reached(call_fd(libc::SYS_pidfd_getfd, &[pidfd.as_raw_fd() as usize, 0, 0])),
    }
}

/// Leak when `path` names one of `tokens`.
fn names(path: &str, tokens: &[&str]) -> Verdict {
    match fs::read(path) {
        Err(error) => Denied(why(&error)),
        Ok(content) => match tokens.iter().find(|token| contains(&content, token)) {
            Some(token) => Leak((*token).to_owned()),
            None => Denied("not named".into()),
        },
    }
}

fn source_paths(f: &Facts) -> Verdict {
    let root = f.path("ROOT");
    let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Ok(table) = fs::read_to_string("/proc/self/mountinfo") else {
        return Denied("no table".into());
    };
    // Field 4: the path within the file system that is mounted here.
    let shown = table.lines().filter_map(|line| line.split(' ').nth(3)).find(|source| source.contains(&name));
    match shown {
        Some(source) => Leak(source.to_owned()),
        None => Denied("no source below the fixture".into()),
    }
}

fn cgroup(_: &Facts) -> Verdict {
    match fs::read_to_string("/proc/self/cgroup") {
        Err(error) => Denied(why(&error)),
        Ok(text) => match text.lines().find(|line| !line.ends_with(":/")) {
            Some(line) => Leak(line.to_owned()),
            None => Denied("only /".into()),
        },
    }
}

fn first_entry(dir: &str) -> io::Result<()> {
    match fs::read_dir(dir)?.next() {
        Some(entry) => entry.map(drop),
        None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
    }
}

fn knobs(_: &Facts) -> Verdict {
    any_reached(
        [
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/kernel/hostname",
            "/proc/sys/kernel/domainname",
            "/proc/sys/kernel/ns_last_pid",
            "/proc/sys/kernel/shmmax",
            "/proc/sys/net/ipv4/ip_forward",
            "/proc/sys/net/ipv4/ip_unprivileged_port_start",
            "/proc/sys/user/max_user_namespaces",
            "/proc/sys/vm/drop_caches",
            "/proc/sys/fs/mqueue/msg_max",
            "/proc/sysrq-trigger",
            "/proc/1/oom_score_adj",
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "/sys/power/state",
        ]
        .map(|path| (path, OpenOptions::new().write(true).open(path))),
    )
}

fn sensitive(_: &Facts) -> Verdict {
    let some = |path: &'static str| {
        let result =
            File::open(path).and_then(|mut file| file.read(&mut [0; 64])).and_then(|read| match read {
                0 => Err(io::Error::from_raw_os_error(libc::ENODATA)),
                _ => Ok(()),
            });
        (path, result)
    };
    any_reached(
        [
            "/proc/kcore",
            "/proc/keys",
            "/proc/latency_stats",
            "/proc/pagetypeinfo",
            "/proc/sched_debug",
            "/proc/slabinfo",
            "/proc/timer_list",
            "/proc/vmallocinfo",
            "/sys/firmware/dmi/tables/DMI",
            "/sys/kernel/debug/sched/debug",
            "/sys/kernel/security/lsm",
            "/sys/kernel/vmcoreinfo",
            "/dev/mem",
            "/dev/kmsg",
        ]
        .map(some),
    )
}

fn fingerprint(f: &Facts) -> Verdict {
    for (path, host) in [
        ("/etc/machine-id", "MACHINE_ID"),
        ("/proc/sys/kernel/random/boot_id", "BOOT_ID"),
        ("/etc/hostname", "HOSTNAME"),
    ] {
        let host = f.find(host).unwrap_or_default();
        if let Ok(seen) = fs::read_to_string(path)
            && !host.is_empty()
            && seen.trim() == host
        {
            return Leak(format!("{path} is the host's"));
        }
    }
    match fs::read_dir("/sys/class") {
        Ok(_) => Leak("/sys is there".into()),
        Err(error) => Denied(why(&error)),
    }
}

fn hostname(f: &Facts) -> Verdict {
    let host = f.get("HOSTNAME");
    let mut names = [0u8; 6 * 65];
    let node = match call(libc::SYS_uname, &[names.as_mut_ptr() as usize]) {
        Ok(_) => String::from_utf8_lossy(&names[65..130]).trim_end_matches('\0').to_owned(),
        Err(error) => return Denied(why(&error)),
    };
    let file = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if node == host || file.trim() == host { Leak(node) } else { Denied(node) }
}

fn net_tables(f: &Facts) -> Verdict {
    let tcp = format!(":{:04X} ", f.number("TCP_PORT"));
    let udp = format!(":{:04X} ", f.number("UDP_PORT"));
    for (path, token) in [
        ("/proc/net/tcp", tcp.as_str()),
        ("/proc/net/udp", udp.as_str()),
        ("/proc/net/unix", f.get("ABSTRACT")),
        ("/proc/net/unix", f.get("SOCKET")),
    ] {
        if let Leak(found) = names(path, &[token]) {
            return Leak(format!("{path}: {found}"));
        }
    }
    Denied("not named".into())
}

fn sysvipc(f: &Facts) -> Verdict {
    let Ok(table) = fs::read_to_string("/proc/sysvipc/shm") else {
        return Denied("no table".into());
    };
    let shared = table.lines().find(|line| line.split_whitespace().nth(1) == Some(f.get("SHM_ID")));
    match shared {
        Some(_) => Leak("its segment is listed".into()),
        None => Denied("not listed".into()),
    }
}

/// A field of `/proc/self/status`.
pub fn status(field: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

fn credentials(_: &Facts) -> Verdict {
    let caps = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    for (field, wanted) in
        caps.map(|cap| (cap, "0000000000000000")).into_iter().chain([("NoNewPrivs", "1"), ("Seccomp", "2")])
    {
        let value = status(field);
        if value != wanted {
            return Leak(format!("{field} {value}"));
        }
    }
    Denied("all as they should be".into())
}

fn groups(_: &Facts) -> Verdict {
    let gid = status("Gid");
    let own = gid.split_whitespace().next().unwrap_or_default();
    let groups = status("Groups");
    if groups.split_whitespace().any(|group| group != own) { Leak(groups) } else { Denied("none".into()) }
}

fn core_limit(_: &Facts) -> Verdict {
    let mut limit = [0u64; 2];
    match call(libc::SYS_prlimit64, &[0, libc::RLIMIT_CORE as usize, 0, limit.as_mut_ptr() as usize]) {
        // With 1 no file is written, and no helper of a piped core_pattern started.
        Ok(_) if limit[1] <= 1 => Denied(format!("hard limit {}", limit[1])),
        Ok(_) => Leak(format!("hard limit {}", limit[1])),
        Err(error) => Denied(why(&error)),
    }
}

fn controlling_tty(f: &Facts) -> Verdict {
    match File::open("/dev/tty") {
        Err(error) => Denied(why(&error)),
        // A terminal of the cell's own is another device than the host's.
        Ok(_) => match (host_tty(f), f.find("TTY")) {
            (Some(seen), Some(host)) if seen != host => Denied("one of the cell's own".into()),
            _ => Leak("open".into()),
        },
    }
}

/// File system and device number of a terminal on stdio.
fn host_tty(_: &Facts) -> Option<String> {
    let meta = (0..3).find_map(|fd| {
        // SAFETY: only asks about the descriptor.
        let tty = unsafe { libc::isatty(fd) } == 1;
        tty.then(|| fs::metadata(format!("/proc/self/fd/{fd}")).ok()).flatten()
    })?;
    Some(format!("{}:{}", meta.dev(), meta.rdev()))
}

fn session(_: &Facts) -> Verdict {
    match call(libc::SYS_getsid, &[0]) {
        Ok(0) => Leak("session of a process outside".into()),
        Ok(sid) => Denied(format!("sid {sid}")),
        Err(error) => Denied(why(&error)),
    }
}

fn type_ahead(f: &Facts) -> Verdict {
    // SAFETY: only asks about the descriptor.
    let Some(fd) = (0..3).find(|fd| unsafe { libc::isatty(*fd) } == 1) else {
        return Na("no terminal on stdio".into());
    };
    if host_tty(f).as_deref() != f.find("TTY") {
        return Denied("one of the cell's own".into());
    }
    reached(call(libc::SYS_ioctl, &[fd as usize, libc::TIOCSTI as usize, b" ".as_ptr() as usize]))
}

/// On no descriptor at all: only a filter can answer otherwise than EBADF.
fn ioctl(request: usize) -> Verdict {
    filtered(call(libc::SYS_ioctl, &[usize::MAX, request, 0]))
}

fn line_discipline(_: &Facts) -> Verdict {
    const TIOCLINUX: usize = 0x541C;
    // The kernel takes the low 32 bits of the request; a filter that compares
    // all 64 is passed by.
    const HIGH: usize = 1 << 32;
    for request in [TIOCLINUX, HIGH | libc::TIOCSTI as usize, HIGH | TIOCLINUX, libc::TIOCSETD as usize] {
        if let Leak(found) = ioctl(request) {
            return Leak(format!("{request:#x} {found}"));
        }
    }
    ioctl(HIGH | libc::TIOCSETD as usize)
}

fn uid_zero(_: &Facts) -> Verdict {
    let uids = status("Uid");
    if uids.split_whitespace().any(|uid| uid == "0") { Leak(uids) } else { Denied(uids) }
}

fn forged_credentials(_: &Facts) -> Verdict {
    let mut pair = [0i32; 2];
    if let Err(error) = call(
        libc::SYS_socketpair,
        &[libc::AF_UNIX as usize, libc::SOCK_DGRAM as usize, 0, pair.as_mut_ptr() as usize],
    ) {
        return Leak(format!("probe failed: no socketpair: {}", why(&error)));
    }
    let credentials = libc::ucred { pid: 1, uid: 0, gid: 0 };
    let mut control = [0usize; 6];
    let mut byte = *b"x";
    let mut io = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: all zeroes is a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut io;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the control buffer is aligned and large enough for one header
    // with a `ucred`, and outlives the message.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_CREDENTIALS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<libc::ucred>() as u32) as _;
        libc::CMSG_DATA(header).cast::<libc::ucred>().write_unaligned(credentials);
    }
    reached(call(libc::SYS_sendmsg, &[pair[0] as usize, &raw const message as usize, 0]))
}

fn ns_pid(_: &Facts) -> Verdict {
    let pids = status("NSpid");
    if pids.split_whitespace().count() > 1 { Leak(pids) } else { Denied(pids) }
}

fn load(_: &Facts) -> Verdict {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let total = text.split(['/', ' ']).nth(4).and_then(|total| total.parse::<usize>().ok());
    match total {
        Some(total) if total > pids().len() + 8 => Leak(format!("{total} tasks")),
        Some(total) => Denied(format!("{total} tasks")),
        None => Denied("not told".into()),
    }
}

fn session_key(_: &Facts) -> Verdict {
    const SEARCH: usize = 10;
    const SESSION: usize = -3isize as usize;
    let (kind, name) = (c"user", c"cellblock-harness");
    reached(call(libc::SYS_keyctl, &[SEARCH, SESSION, kind.as_ptr() as usize, name.as_ptr() as usize, 0]))
}

/// Whether the process can be traced by a child of its own; used by a control.
pub fn trace_own_child() -> io::Result<String> {
    in_child(4, || match call(libc::SYS_ptrace, &[libc::PTRACE_TRACEME as usize]) {
        Ok(_) => "ok".into(),
        Err(error) => why(&error),
    })
}
