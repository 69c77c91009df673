//! The committed filters against the kernel: every door beside the front one, and the programs
//! that must not notice. What each line of a filter does is tried in `xtask`; here stand the ways
//! around it that filters have been passed by before.

use std::ffi::CString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use libc::{EAFNOSUPPORT, EINVAL, ENOSYS, EPERM, EPROTONOSUPPORT, c_int, c_long, c_ulong, sock_filter};

use crate::skip;
use crate::user::{User, text};

/// As the launcher has it, so that the generated expressions can be included.
struct Insn;

impl Insn {
    #[allow(clippy::new_ret_no_self, reason = "the kernel's own struct is what is wanted")]
    const fn new(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
        sock_filter { code, jt, jf, k }
    }
}

#[cfg(target_arch = "x86_64")]
const PROVIDER: &[sock_filter] = include!("../../filters/generated/provider.x86_64.rs");
#[cfg(target_arch = "x86_64")]
const NESTED: &[sock_filter] = include!("../../filters/generated/nested.x86_64.rs");
#[cfg(target_arch = "aarch64")]
const PROVIDER: &[sock_filter] = include!("../../filters/generated/provider.aarch64.rs");
#[cfg(target_arch = "aarch64")]
const NESTED: &[sock_filter] = include!("../../filters/generated/nested.aarch64.rs");

/// What a call returned, or its errno.
type Answer = Result<i64, i32>;

/// Puts the filter on this thread for good. Allocates nothing.
fn install(program: &[sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: `program` points to instructions that the kernel only reads.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the call in a process of its own under the filter. The call must allocate nothing, as
/// other threads of the test may hold the allocator's lock at the fork.
#[track_caller]
fn under(filter: Option<&[sock_filter]>, call: impl FnOnce() -> Answer) -> Answer {
    let (mut reader, mut writer) = io::pipe().unwrap();
    // SAFETY: the child makes system calls only and leaves by _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", io::Error::last_os_error());
    if child == 0 {
        let answer = match filter.map(install) {
            Some(Err(_)) => i64::MIN,
            _ => call().unwrap_or_else(|errno| -i64::from(errno)),
        };
        let _ = writer.write_all(&answer.to_le_bytes());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) }
    }
    drop(writer);
    let mut answer = [0; 8];
    let read = reader.read_exact(&mut answer);
    let mut status = 0;
    // SAFETY: `child` is ours and not reaped yet.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(read.is_ok(), "the process ended by signal {}", libc::WTERMSIG(status));
    match i64::from_le_bytes(answer) {
        i64::MIN => panic!("the kernel does not take the filter"),
        error @ -4095..0 => Err(-error as i32),
        value => Ok(value),
    }
}

/// A system call by number.
fn call(number: c_long, arguments: [u64; 6]) -> Answer {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: callers pass addresses that are valid for the call, or none that the kernel would
    // take for valid.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(io::Error::last_os_error().raw_os_error().unwrap_or_default()),
        value => Ok(value),
    }
}

/// The call is answered with `errno` under `filter`, and otherwise without it.
#[track_caller]
fn refuses(filter: &[sock_filter], errno: i32, what: &str, number: c_long, arguments: [u64; 6]) {
    let with = under(Some(filter), || call(number, arguments));
    let without = under(None, || call(number, arguments));
    assert_eq!(with, Err(errno), "{what}");
    assert_ne!(without, with, "{what}: refused without the filter too, so this proves nothing");
}

/// The filter changes nothing about the call.
#[track_caller]
fn passes(filter: &[sock_filter], what: &str, number: c_long, arguments: [u64; 6]) {
    let with = under(Some(filter), || call(number, arguments));
    let without = under(None, || call(number, arguments));
    assert_eq!(with.map(|_| ()), without.map(|_| ()), "{what}");
}

/// No valid address, descriptor, flag or size.
const BAD: [u64; 6] = [u64::MAX; 6];

fn first(value: impl Into<i64>) -> [u64; 6] {
    [value.into() as u64, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX]
}

#[test]
#[cfg(target_arch = "x86_64")]
fn another_numbering_is_not_there() {
    /// getpid, as a program of 32 bits asks for it.
    fn by_int_80() -> Answer {
        let answer: i64;
        // SAFETY: call 20 of i386 takes nothing; the entry may clear r8 to r11.
        unsafe {
            std::arch::asm!(
                "int 0x80", inlateout("rax") 20i64 => answer,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            );
        }
        if answer < 0 { Err(-answer as i32) } else { Ok(answer) }
    }
    for filter in [PROVIDER, NESTED] {
        assert_eq!(under(Some(filter), by_int_80), Err(ENOSYS));
        for number in [libc::SYS_getpid, 512, 520, libc::SYS_mount] {
            let x32 = 0x4000_0000 | number;
            assert_eq!(under(Some(filter), || call(x32, [0; 6])), Err(ENOSYS), "x32 {number}");
        }
    }
}

#[test]
fn what_nobody_has_weighed_is_not_there() {
    for filter in [PROVIDER, NESTED] {
        for number in [335, 400, 471, 600, 1023, 100_000, i64::from(i32::MAX)] {
            let known = cfg!(target_arch = "x86_64") && number == 335;
            if !known {
                assert_eq!(under(Some(filter), || call(number, [0; 6])), Err(ENOSYS), "{number}");
            }
        }
    }
}

#[test]
fn calls_whose_arguments_lie_in_memory_are_not_there() {
    // Valid ones: what clone3 and io_uring would do here is harmless, and they do not do it.
    let fork = [0u64, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0];
    let ring = [0u32; 30];
    for filter in [PROVIDER, NESTED] {
        let clone3 = || call(libc::SYS_clone3, [fork.as_ptr() as u64, 64, 0, 0, 0, 0]);
        assert_eq!(under(Some(filter), clone3), Err(ENOSYS));
        let setup = [1, ring.as_ptr() as u64, 0, 0, 0, 0];
        assert_eq!(under(Some(filter), || call(libc::SYS_io_uring_setup, setup)), Err(ENOSYS));
        refuses(filter, ENOSYS, "io_uring_enter", libc::SYS_io_uring_enter, BAD);
        refuses(filter, ENOSYS, "io_uring_register", libc::SYS_io_uring_register, BAD);
    }
    refuses(PROVIDER, ENOSYS, "openat2", libc::SYS_openat2, BAD);
    passes(NESTED, "openat2", libc::SYS_openat2, BAD);
}

#[test]
fn mounts_by_either_api() {
    let both = [
        ("mount", libc::SYS_mount),
        ("umount2", libc::SYS_umount2),
        ("pivot_root", libc::SYS_pivot_root),
        ("chroot", libc::SYS_chroot),
        ("open_tree", libc::SYS_open_tree),
        ("move_mount", libc::SYS_move_mount),
        ("fsopen", libc::SYS_fsopen),
        ("fsconfig", libc::SYS_fsconfig),
        ("fsmount", libc::SYS_fsmount),
        ("mount_setattr", libc::SYS_mount_setattr),
    ];
    for (name, number) in both {
        assert_eq!(under(Some(PROVIDER), || call(number, BAD)), Err(EPERM), "{name}");
        passes(NESTED, name, number, BAD);
    }
    for filter in [PROVIDER, NESTED] {
        for (name, number) in [("statmount", 457), ("listmount", 458), ("open_tree_attr", 467)] {
            assert_eq!(under(Some(filter), || call(number, BAD)), Err(EPERM), "{name}");
        }
        assert_eq!(under(Some(filter), || call(libc::SYS_fspick, BAD)), Err(EPERM), "fspick");
    }
}

#[test]
fn namespaces_by_every_call() {
    let bits = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ];
    for bit in bits {
        // The kernel drops the high half of these flags, so it must not matter.
        for high in [0, 1 << 32, 1 << 63] {
            let flags = bit as u32 as u64 | libc::SIGCHLD as u64 | high;
            let clone = || call(libc::SYS_clone, [flags, 0, 0, 0, 0, 0]);
            assert_eq!(under(Some(PROVIDER), clone), Err(EPERM), "clone {flags:#x}");
        }
        let unshare = || call(libc::SYS_unshare, [bit as u32 as u64, 0, 0, 0, 0, 0]);
        assert_eq!(under(Some(PROVIDER), unshare), Err(EPERM), "unshare {bit:#x}");
    }
    // clone takes this bit as part of the signal: parent and child are in one time namespace.
    let time = || {
        let namespace = || {
            let mut name = [0u8; 64];
            let path = c"/proc/self/ns/time".as_ptr() as u64;
            let into = name.as_mut_ptr() as u64;
            call(libc::SYS_readlinkat, [libc::AT_FDCWD as u64, path, into, 64, 0, 0]).map(|_| name)
        };
        let before = namespace()?;
        let flags = (libc::CLONE_NEWTIME | libc::CLONE_VFORK) as u64;
        // A child without a signal for its end is waited for with __WALL alone.
        let child = call(libc::SYS_clone, [flags, 0, 0, 0, 0, 0])?;
        if child == 0 {
            let same = namespace() == Ok(before);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!same)) }
        }
        let mut status = 0;
        // SAFETY: `child` is ours and not reaped yet.
        unsafe { libc::waitpid(child as i32, &mut status, libc::__WALL) };
        Ok(i64::from(status))
    };
    assert_eq!(under(Some(PROVIDER), time), Ok(0));
    passes(NESTED, "unshare", libc::SYS_unshare, BAD);
    for filter in [PROVIDER, NESTED] {
        refuses(filter, EPERM, "setns", libc::SYS_setns, BAD);
    }
}

#[test]
fn other_processes() {
    for filter in [PROVIDER, NESTED] {
        refuses(filter, EPERM, "pidfd_getfd", libc::SYS_pidfd_getfd, BAD);
        refuses(filter, EPERM, "kcmp", libc::SYS_kcmp, BAD);
        refuses(filter, EPERM, "process_madvise", libc::SYS_process_madvise, BAD);
        refuses(filter, EPERM, "process_vm_readv", libc::SYS_process_vm_readv, BAD);
        refuses(filter, EPERM, "process_vm_writev", libc::SYS_process_vm_writev, BAD);
        for request in [libc::PTRACE_ATTACH, libc::PTRACE_SEIZE] {
            refuses(filter, EPERM, "ptrace", libc::SYS_ptrace, first(request as i64));
        }
        refuses(filter, EPERM, "prlimit64 of another", libc::SYS_prlimit64, first(i32::MAX));
        let own = [0, libc::RLIMIT_NOFILE as u64, 0, 0, 0, 0];
        passes(filter, "prlimit64 of its own", libc::SYS_prlimit64, own);
        let own = [1 << 32, libc::RLIMIT_NOFILE as u64, 0, 0, 0, 0];
        passes(filter, "prlimit64 of its own, high half set", libc::SYS_prlimit64, own);
    }
}

#[test]
fn doors_of_the_kernel() {
    for filter in [PROVIDER, NESTED] {
        let doors = [
            ("bpf", libc::SYS_bpf),
            ("userfaultfd", libc::SYS_userfaultfd),
            ("name_to_handle_at", libc::SYS_name_to_handle_at),
            ("open_by_handle_at", libc::SYS_open_by_handle_at),
            ("add_key", libc::SYS_add_key),
            ("request_key", libc::SYS_request_key),
            ("quotactl", libc::SYS_quotactl),
            ("clock_settime", libc::SYS_clock_settime),
            ("move_pages", libc::SYS_move_pages),
        ];
        for (name, number) in doors {
            assert_eq!(under(Some(filter), || call(number, BAD)), Err(EPERM), "{name}");
        }
        let no_randomising = first(libc::ADDR_NO_RANDOMIZE);
        refuses(filter, EPERM, "personality", libc::SYS_personality, no_randomising);
        passes(filter, "personality query", libc::SYS_personality, first(0xffff_ffffi64));
        passes(filter, "adjtimex", libc::SYS_adjtimex, BAD);
    }
    for option in [0, 1, 2, 11] {
        refuses(PROVIDER, EPERM, "keyctl", libc::SYS_keyctl, first(option));
        match option {
            1 => passes(NESTED, "keyctl join", libc::SYS_keyctl, first(option)),
            _ => refuses(NESTED, EPERM, "keyctl", libc::SYS_keyctl, first(option)),
        }
    }
}

#[test]
fn sockets_by_family_type_and_protocol() {
    let socket = |family: c_int, kind: c_int, protocol: c_int| {
        move || call(libc::SYS_socket, [family as u64, kind as u64, protocol as u64, 0, 0, 0])
    };
    for filter in [PROVIDER, NESTED] {
        for family in 0..64 {
            let known = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
            if !known.contains(&family) {
                let answer = under(Some(filter), socket(family, libc::SOCK_STREAM, 0));
                assert_eq!(answer, Err(EAFNOSUPPORT), "family {family}");
            }
        }
        for flags in [0, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC] {
            for family in [libc::AF_INET, libc::AF_INET6] {
                let raw = socket(family, libc::SOCK_RAW | flags, libc::IPPROTO_ICMP);
                assert_eq!(under(Some(filter), raw), Err(EPERM));
                for protocol in [libc::IPPROTO_MPTCP, libc::IPPROTO_SCTP, 256] {
                    let stream = socket(family, libc::SOCK_STREAM | flags, protocol);
                    assert_eq!(under(Some(filter), stream), Err(EPROTONOSUPPORT));
                }
                assert!(under(Some(filter), socket(family, libc::SOCK_STREAM | flags, 0)).is_ok());
                assert!(under(Some(filter), socket(family, libc::SOCK_DGRAM | flags, 0)).is_ok());
            }
            let route = socket(libc::AF_NETLINK, libc::SOCK_RAW | flags, libc::NETLINK_ROUTE);
            assert!(under(Some(filter), route).is_ok());
            for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
                assert!(under(Some(filter), socket(libc::AF_UNIX, kind | flags, 0)).is_ok());
            }
        }
        for protocol in (1..24).filter(|&protocol| protocol != libc::NETLINK_ROUTE) {
            let netlink = socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol);
            assert_eq!(under(Some(filter), netlink), Err(EPERM), "netlink {protocol}");
        }
        // The kernel reads 32 bits of each; what stands above them must not make a difference.
        let high = |value: c_int| value as u64 | 7 << 32;
        let vsock = [high(libc::AF_VSOCK), high(libc::SOCK_STREAM), high(0), 0, 0, 0];
        assert_eq!(under(Some(filter), || call(libc::SYS_socket, vsock)), Err(EAFNOSUPPORT));
        let unix = [high(libc::AF_UNIX), high(libc::SOCK_STREAM), high(0), 0, 0, 0];
        assert!(under(Some(filter), || call(libc::SYS_socket, unix)).is_ok());
        let mut pair = [0 as c_int; 2];
        let kind = libc::SOCK_STREAM as u64;
        let tipc = [libc::AF_TIPC as u64, kind, 0, pair.as_mut_ptr() as u64, 0, 0];
        let answer = under(Some(filter), || call(libc::SYS_socketpair, tipc));
        assert_eq!(answer, Err(EAFNOSUPPORT));
    }
}

#[test]
fn commands_of_a_terminal_with_any_high_half() {
    let refused: [(&str, c_ulong); 6] = [
        ("TIOCSTI", libc::TIOCSTI),
        ("TIOCLINUX", libc::TIOCLINUX),
        ("TIOCSETD", libc::TIOCSETD),
        ("TIOCCONS", libc::TIOCCONS),
        ("TIOCVHANGUP", 0x5437),
        ("TIOCSSERIAL", 0x541f),
    ];
    for filter in [PROVIDER, NESTED] {
        for (name, command) in refused {
            for high in [0, 1 << 32, 1 << 63, 0xffff_ffff << 32] {
                let ioctl = [u64::MAX, command | high, 0, 0, 0, 0];
                refuses(filter, EPERM, name, libc::SYS_ioctl, ioctl);
            }
        }
        passes(filter, "TIOCSCTTY", libc::SYS_ioctl, [u64::MAX, libc::TIOCSCTTY, 0, 0, 0, 0]);
    }
}

#[test]
fn set_id_files_by_every_call() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| CString::new(directory.path().join(name).as_os_str().as_bytes()).unwrap();
    let (file, new, made) = (path("file"), path("new"), path("made"));
    let here = path(".");
    fs::write(directory.path().join("file"), "").unwrap();
    let descriptor = fs::File::open(directory.path().join("file")).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&descriptor) as u64;
    let cwd = libc::AT_FDCWD as u64;
    let create = (libc::O_CREAT | libc::O_WRONLY) as u64;
    let tmpfile = (libc::O_TMPFILE | libc::O_WRONLY) as u64;
    let address = |path: &CString| path.as_ptr() as u64;
    for bits in [0o4000, 0o2000, 0o6000] {
        let mode = bits | 0o755;
        let ways = [
            ("fchmod", libc::SYS_fchmod, [fd, mode, 0, 0, 0, 0]),
            ("fchmodat", libc::SYS_fchmodat, [cwd, address(&file), mode, 0, 0, 0]),
            ("fchmodat2", 452, [cwd, address(&file), mode, 0, 0, 0]),
            ("openat", libc::SYS_openat, [cwd, address(&new), create, mode, 0, 0]),
            ("O_TMPFILE", libc::SYS_openat, [cwd, address(&here), tmpfile, mode, 0, 0]),
            ("mknodat", libc::SYS_mknodat, [cwd, address(&new), mode, 0, 0, 0]),
            ("high half", libc::SYS_fchmod, [fd, mode | 1 << 40, 0, 0, 0, 0]),
            #[cfg(target_arch = "x86_64")]
            ("chmod", libc::SYS_chmod, [address(&file), mode, 0, 0, 0, 0]),
            #[cfg(target_arch = "x86_64")]
            ("open", libc::SYS_open, [address(&new), create, mode, 0, 0, 0]),
            #[cfg(target_arch = "x86_64")]
            ("creat", libc::SYS_creat, [address(&new), mode, 0, 0, 0, 0]),
            #[cfg(target_arch = "x86_64")]
            ("mknod", libc::SYS_mknod, [address(&new), mode, 0, 0, 0, 0]),
        ];
        for (name, number, arguments) in ways {
            for filter in [PROVIDER, NESTED] {
                let answer = under(Some(filter), || call(number, arguments));
                assert_eq!(answer, Err(EPERM), "{name} {mode:o}");
            }
        }
    }
    // No bit, no refusal; and a mode that nothing is created with is not looked at.
    let plain = [
        ("fchmod", libc::SYS_fchmod, [fd, 0o1755, 0, 0, 0, 0]),
        ("openat", libc::SYS_openat, [cwd, address(&file), libc::O_RDONLY as u64, 0o6755, 0, 0]),
        ("O_DIRECTORY", libc::SYS_openat, [cwd, address(&here), libc::O_DIRECTORY as u64, 0o6755, 0, 0]),
        ("mkfifo", libc::SYS_mknodat, [cwd, address(&new), u64::from(libc::S_IFIFO | 0o600), 0, 0, 0]),
    ];
    for (name, number, arguments) in plain {
        assert!(under(Some(PROVIDER), || call(number, arguments)).is_ok(), "{name}");
    }
    // mkdir is not refused, as the kernel itself drops the bits.
    let mkdir = [cwd, address(&made), 0o6755, 0, 0, 0];
    assert!(under(Some(PROVIDER), || call(libc::SYS_mkdirat, mkdir)).is_ok());
    for entry in fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o6000, 0, "{} {mode:o}", entry.path().display());
    }
    for kind in [libc::S_IFCHR, libc::S_IFBLK] {
        let device = [cwd, address(&new), u64::from(kind | 0o600), 0x103, 0, 0];
        assert_eq!(under(Some(PROVIDER), || call(libc::SYS_mknodat, device)), Err(EPERM));
    }
    // The 0:0 that a rename leaves behind, where the control says that it does.
    for (name, filter, answer) in [("free", None, Ok(0)), ("filtered", Some(PROVIDER), Err(EPERM))] {
        let (old, new) = (path(name), path(&format!("{name}-moved")));
        fs::write(directory.path().join(name), "").unwrap();
        let rename = |flags| [cwd, address(&old), cwd, address(&new), flags, 0];
        let whiteout = rename(u64::from(libc::RENAME_WHITEOUT));
        assert_eq!(under(filter, || call(libc::SYS_renameat2, whiteout)), answer, "{name}");
        let is_left =
            directory.path().join(name).metadata().is_ok_and(|left| left.file_type().is_char_device());
        assert_eq!(is_left, answer.is_ok(), "{name}");
    }
    let plain = [cwd, address(&file), cwd, address(&new), u64::from(libc::RENAME_EXCHANGE), 0];
    assert!(under(Some(PROVIDER), || call(libc::SYS_renameat2, plain)).is_ok());
}

#[test]
fn programs_restrict_themselves_further() {
    let allow = [sock_filter { code: 6, jt: 0, jf: 0, k: 0x7fff_0000 }];
    let own = libc::sock_fprog { len: 1, filter: allow.as_ptr().cast_mut() };
    let seccomp = |flags: c_ulong| {
        let program = &raw const own as u64;
        call(libc::SYS_seccomp, [libc::SECCOMP_SET_MODE_FILTER.into(), flags, program, 0, 0, 0])
    };
    for filter in [PROVIDER, NESTED] {
        assert_eq!(under(Some(filter), || seccomp(0)), Ok(0));
        let by_prctl = || {
            let program = &raw const own as u64;
            call(libc::SYS_prctl, [libc::PR_SET_SECCOMP as u64, 2, program, 0, 0, 0])
        };
        assert_eq!(under(Some(filter), by_prctl), Ok(0));
    }
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    assert_eq!(under(Some(PROVIDER), || seccomp(listener)), Err(EPERM));
    assert_eq!(under(Some(PROVIDER), || seccomp(listener | 1 << 40)), Err(EPERM));
    assert!(under(Some(NESTED), || seccomp(listener)).is_ok());

    // Landlock beneath ours: a domain of one handled right, here "make a directory".
    let handled = 1u64 << 7;
    let landlock = || {
        let ruleset = call(444, [&raw const handled as u64, 8, 0, 0, 0, 0])?;
        call(446, [ruleset as u64, 0, 0, 0, 0, 0])?;
        let made =
            call(libc::SYS_mkdirat, [libc::AT_FDCWD as u64, c"/tmp/x".as_ptr() as u64, 0o700, 0, 0, 0]);
        if made == Err(libc::EACCES) { Ok(0) } else { made.and(Err(EINVAL)) }
    };
    if under(None, landlock).is_ok() {
        assert_eq!(under(Some(PROVIDER), landlock), Ok(0));
    }
}

#[test]
fn a_program_in_memory_runs() {
    let image = fs::read("/bin/true").unwrap();
    let run = || {
        let memory = call(libc::SYS_memfd_create, [c"x".as_ptr() as u64, 0, 0, 0, 0, 0])?;
        let (address, length) = (image.as_ptr() as u64, image.len() as u64);
        call(libc::SYS_write, [memory as u64, address, length, 0, 0, 0])?;
        // SAFETY: plain fork in a process of one thread; the child execs or exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let argv = [c"x".as_ptr(), std::ptr::null()];
            let empty = libc::AT_EMPTY_PATH as u64;
            let (path, argv) = (c"".as_ptr() as u64, argv.as_ptr() as u64);
            let _ = call(libc::SYS_execveat, [memory as u64, path, argv, 0, empty, 0]);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(1) }
        }
        let mut status = 0;
        // SAFETY: `child` is ours and not reaped yet.
        unsafe { libc::waitpid(child, &mut status, 0) };
        Ok(i64::from(status))
    };
    assert_eq!(under(Some(PROVIDER), run), Ok(0));
}

/// Runs a program out of a filter and in it, each in an empty directory.
fn both(filter: &'static [sock_filter], words: &[&str]) -> [Output; 2] {
    [None, Some(filter)].map(|filter| {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(&directory);
        if let Some(filter) = filter {
            // SAFETY: `install` makes two system calls and allocates nothing.
            unsafe { command.pre_exec(move || install(filter)) };
        }
        command.output().unwrap_or_else(|error| panic!("{}: {error}", words[0]))
    })
}

/// Programs and what they are to do; each prints something that is the same every time. Threads
/// need clone3 to become clone; `stat`, `access` and directories use what is newest in libc.
const PROGRAMS: &[(&str, &str)] = &[
    (
        "bash",
        r#"bash -c 'coproc cat; echo hi >&${COPROC[1]}; read -r line <&${COPROC[0]}; echo $line $((6*7))
                 (sleep 0 & wait); test -r /etc/passwd && umask && ls -d / | tr / x'"#,
    ),
    (
        // A shell on a terminal: its own process group, stop and go on.
        "script",
        r#"script -qec "bash --norc -ic 'sleep 0.1 & fg; sleep 9 & kill -STOP %1; sleep 0.3; jobs; kill -9 %1; tty'" /dev/null \
             </dev/null | tr -d '\r' | sed 's,/dev/pts/.*,a pty,; /^.1. [0-9]/d'"#,
    ),
    (
        "python3",
        r#"python3 - <<'END'
import asyncio, mmap, multiprocessing, os, select, signal, socket, sqlite3, subprocess, threading
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(subprocess.run(["echo", "child"], capture_output=True).stdout)
print(os.access("/", os.R_OK, effective_ids=True), os.stat("/").st_mode, "etc" in os.listdir("/"))
database = sqlite3.connect("db"); print(*database.execute("pragma journal_mode=wal"))
database.execute("create table t(x)"); database.commit()
print(asyncio.run(asyncio.sleep(0, "loop")))
server = socket.create_server(("127.0.0.1", 0)); client = socket.create_connection(server.getsockname())
server.accept()[0].send(b"x"); print(client.recv(1), socket.getaddrinfo("127.0.0.1", 80)[0][4])
print(len(mmap.mmap(-1, 4096)), select.select([], [], [], 0), signal.getsignal(signal.SIGINT))
with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, -2]))
queue = multiprocessing.Queue(); queue.put(3); print(queue.get(), multiprocessing.Value("i", 5).value)
os.mkfifo("fifo"); print(os.stat("fifo").st_mode, os.memfd_create("m") > 0, os.eventfd(1) > 0)
END"#,
    ),
    (
        "node",
        r#"node -e 'const { Worker } = require("worker_threads"), fs = require("fs");
           const code = "require(\"worker_threads\").parentPort.postMessage(7)";
           new Worker(code, { eval: true }).on("message", (n) => {
             console.log(n, String(require("child_process").execSync("echo child")));
             const watch = fs.watch(".", () => { console.log("seen"); watch.close(); });
             fs.writeFileSync("file", ""); });' | sort -u"#,
    ),
    (
        "git",
        r#"export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_DATE="2000-01-01T00:00:00Z" GIT_COMMITTER_DATE="2000-01-01T00:00:00Z"
           git init -q one && cd one && echo text >file && git add file
           git -c user.name=a -c user.email=a@b commit -q -m first && cd .. && git clone -q one two
           git -C two log --format=%T && git -C two fsck --strict"#,
    ),
    (
        "gcc",
        r#"printf '#include <pthread.h>\n#include <stdio.h>\nvoid *f(void *p) { return p; }
int main(void) { pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0); puts("built"); }' >a.c
           printf 'all: a b\na b: a.c\n\tgcc -pthread -o $@ $<\n' >Makefile
           make -s -j2 && ./a && ./b | awk '{ print length }'; tar -cf - a.c | tar -tf -"#,
    ),
    (
        "cargo",
        r#"cargo init -q --offline --vcs none --name small . && cargo build -q --offline
           cargo test -q --offline 2>&1 | grep '^test result' | cut -d. -f1 && ./target/*/small ||
           ./target/debug/small"#,
    ),
    ("ssh-keygen", "ssh-keygen -q -t ed25519 -N '' -f key && ls key* && stat -c %a key"),
    (
        "perl",
        "perl -MSocket -e 'socketpair(A, B, AF_UNIX, SOCK_STREAM, 0) or die; print defined(fork) ? 1 : die'",
    ),
];

#[test]
fn programs_do_not_notice() {
    for (program, script) in PROGRAMS.iter().filter(|(program, _)| skip::has_programs(&[program])) {
        for filter in [PROVIDER, NESTED] {
            let [without, with] = both(filter, &["sh", "-c", script]);
            assert!(without.status.success() && !without.stdout.is_empty(), "{program}: {without:?}");
            assert_eq!(with, without, "{program}");
        }
    }
}

#[test]
fn debuggers_trace_their_own_children() {
    if !skip::has_programs(&["strace"]) {
        return;
    }
    let words = ["strace", "-f", "-e", "trace=execve,openat", "sh", "-c", "cat /etc/hostname"];
    let [_, with] = both(PROVIDER, &words);
    let seen = String::from_utf8_lossy(&with.stderr);
    assert!(with.status.success() && seen.contains("openat(AT_FDCWD, \"/etc/hostname\""), "{seen}");
}

#[test]
fn bubblewrap_builds_its_sandbox_in_nested_alone() {
    let words = [
        "bwrap",
        "--unshare-all",
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/bin",
        "/bin",
        "--symlink",
        "usr/lib",
        "/lib",
        "--symlink",
        "usr/lib64",
        "/lib64",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
        "--hostname",
        "box",
        "--",
        "sh",
        "-c",
        "echo $$; ls /",
    ];
    if !skip::has_programs(&["bwrap"]) {
        return;
    }
    let [without, with] = both(NESTED, &words);
    if without.status.success() {
        assert_eq!((with.status, with.stdout), (without.status, without.stdout), "{:?}", with.stderr);
    }
    let [_, with] = both(PROVIDER, &words);
    assert!(!with.status.success());
}

/// Sets a set-id bit by each call that takes a mode; prints what came of it.
const SET_BITS: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    result = libc.syscall(number, *args)
    return os.strerror(ctypes.get_errno()) if result < 0 else "done"
at, bit = -100, int(sys.argv[1], 8)
for name in ["f", "g", "h", "i", "d", "t"]:
    os.path.isdir(name) and os.rmdir(name) or os.path.exists(name) and not os.path.isdir(name) and os.unlink(name)
open("f", "w").close()
how = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0o644 | bit, 0)
MKNODAT, MKDIRAT, OPENAT, FCHMODAT = (259, 258, 257, 268) if os.uname().machine == "x86_64" else (33, 34, 56, 53)
print("fchmodat", call(FCHMODAT, at, b"f", 0o644 | bit))
print("fchmodat2", call(452, at, b"f", 0o644 | bit, 0))
print("openat", call(OPENAT, at, b"g", os.O_CREAT | os.O_WRONLY, 0o644 | bit))
print("openat2", call(437, at, b"h", how, len(how)))
print("mknodat", call(MKNODAT, at, b"i", 0o100644 | bit, 0))
call(MKDIRAT, at, b"d", 0o755 | bit)
print("mkdirat", "done" if os.stat("d").st_mode & bit else "the kernel takes no such bit here")
"#;

#[test]
fn a_set_gid_bit_is_set_by_no_call_but_under_the_filter_that_lets_it() {
    let Some(user) = User::new().filter(|_| skip::has_programs(&["python3"])) else { return };
    let done = |options: &[&str], bit: &str| {
        user.directory("work");
        let options = [&["--workspace", "work"], options].concat();
        let output = user.cell(&options, &["python3", "-c", SET_BITS, bit]).output().expect("a launch");
        let said = text(&output);
        let lines = said.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines.len(), 6, "{output:?}");
        let done = lines.iter().filter_map(|line| line.strip_suffix(" done"));
        done.map(str::to_owned).collect::<Vec<_>>()
    };
    // A kernel before 6.6 has no fchmodat2, and openat2 has its mode in memory, where no filter looks.
    let is_all = |found: Vec<String>| {
        let is_done = |call: &&str| found.iter().any(|done| done == call);
        ["fchmodat", "openat", "mknodat"].iter().all(is_done)
    };
    for (options, name) in [(&[][..], "provider-set-gid"), (&["--mode", "nested"], "nested-set-gid")] {
        let refused = |found: &[String]| found.iter().all(|done| done == "openat2");
        let found = done(options, "2000");
        assert!(refused(&found), "{found:?}");
        let with = [options, &["--seccomp", name]].concat();
        assert!(is_all(done(&with, "2000")), "{name}");
        let found = done(&with, "4000");
        assert!(refused(&found), "{name}: {found:?}");
    }
    // In sealed mode openat2 is refused whole.
    assert!(done(&[], "2000").is_empty());
}

#[test]
fn a_filter_by_name_lets_directories_hand_their_group_down_and_nothing_else() {
    let Some(user) = User::new().filter(|_| skip::has_programs(&["git"])) else { return };
    user.directory("work");
    let git = "git -c user.name=n -c user.email=n";
    let host = |script: &str| {
        let mut shell = user.command("sh");
        text(&shell.args(["-ec", script]).current_dir(user.path("work")).output().expect("sh"))
    };
    host(&format!("git init -q --shared .; echo 1 > f; git add f; {git} commit -qm x"));
    let run = |options: &[&str], script: &str| {
        let options = [&["--workspace", "work"], options].concat();
        let output = user.script(&options, script).output().expect("a launch");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let commit = format!("mkdir d; echo 2 > d/f; git add -A && {git} commit -qm y && git branch a/b");
    let (code, said) = run(&[], &commit);
    assert!(code != Some(0) && said.contains("--seccomp provider-set-gid"), "{said}");
    let with = &["--seccomp", "provider-set-gid"];
    let (code, said) = run(with, &commit);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("provider-set-gid"), "{said}");
    let (code, said) = run(with, "mkdir -m 2775 s; chmod g+s d; cp -a s t; test -g t");
    assert_eq!(code, Some(0), "{said}");
    for set_id in ["chmod u+s f", "chmod 6755 f", "install -m 4755 f g"] {
        let (code, said) = run(with, set_id);
        assert!(code != Some(0) && said.contains("Operation not permitted"), "{set_id}: {said}");
    }
}
