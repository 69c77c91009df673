//! What the kernel calls things: numbers, arguments and constants, for each architecture.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::LazyLock;

/// An architecture that filters are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Arch {
    /// 64-bit Intel and AMD.
    #[value(name = "x86_64")]
    X86_64,
    /// 64-bit ARM.
    #[value(name = "aarch64")]
    Aarch64,
}

impl Arch {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

    /// The architecture this program was built for.
    #[cfg(target_arch = "x86_64")]
    pub const NATIVE: Arch = Arch::X86_64;
    /// The architecture this program was built for.
    #[cfg(target_arch = "aarch64")]
    pub const NATIVE: Arch = Arch::Aarch64;

    /// The name, as the compiler and the kernel spell it.
    pub fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }

    /// The kernel's `AUDIT_ARCH_…`, which a filter finds in its input.
    pub fn audit(self) -> u32 {
        match self {
            Arch::X86_64 => 0xc000_003e,
            Arch::Aarch64 => 0xc000_00b7,
        }
    }

    /// The architecture of that name.
    pub fn named(name: &str) -> Option<Arch> {
        Arch::ALL.into_iter().find(|arch| arch.name() == name)
    }

    /// The calls of this architecture.
    pub fn calls(self) -> &'static Calls {
        static X86_64: LazyLock<Calls> = LazyLock::new(|| Calls::parse(include_str!("syscalls/x86_64.txt")));
        static AARCH64: LazyLock<Calls> =
            LazyLock::new(|| Calls::parse(include_str!("syscalls/aarch64.txt")));
        match self {
            Arch::X86_64 => &X86_64,
            Arch::Aarch64 => &AARCH64,
        }
    }

    /// The value of a constant here, by the kernel's name.
    pub fn constant(self, name: &str) -> Option<u64> {
        CONSTANTS.get(name).map(|values| match self {
            Arch::X86_64 => values[0],
            Arch::Aarch64 => values[1],
        })
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Numbers and names of one architecture's calls.
pub struct Calls {
    names: BTreeMap<u32, &'static str>,
    numbers: BTreeMap<&'static str, u32>,
}

impl Calls {
    fn parse(text: &'static str) -> Self {
        let names: BTreeMap<u32, &str> = lines(text)
            .map(|mut words| {
                let number = words.next().and_then(|word| word.parse().ok());
                (number.expect("a number"), words.next().expect("a name"))
            })
            .collect();
        let numbers = names.iter().map(|(&number, &name)| (name, number)).collect();
        Calls { names, numbers }
    }

    /// The call of that number.
    pub fn name(&self, number: u32) -> Option<&'static str> {
        self.names.get(&number).copied()
    }

    /// The number of that call.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// Every call, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &'static str)> {
        self.names.iter().map(|(&number, &name)| (number, name))
    }
}

/// One argument of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The kernel's name of it.
    pub name: &'static str,
    /// Its place, from 0.
    pub index: usize,
    /// Whether the kernel reads all 64 bits; it drops the high half otherwise, so a rule that
    /// looked at that half could be passed by setting it.
    pub wide: bool,
}

/// The arguments of a call; empty for one that takes none or is not known.
pub fn arguments(call: &str) -> &'static [Argument] {
    ARGUMENTS.get(call).map_or(&[], Vec::as_slice)
}

/// The known constants' names.
pub fn constant_names<'a>() -> impl Iterator<Item = &'a str> {
    CONSTANTS.keys().copied()
}

static ARGUMENTS: LazyLock<HashMap<&str, Vec<Argument>>> = LazyLock::new(|| {
    lines(include_str!("syscalls/arguments.txt"))
        .map(|mut words| {
            let call = words.next().expect("a name");
            let arguments = words.enumerate().map(|(index, word)| Argument {
                name: word.trim_end_matches(":32"),
                index,
                wide: !word.ends_with(":32"),
            });
            (call, arguments.collect())
        })
        .collect()
});

static CONSTANTS: LazyLock<HashMap<&str, [u64; 2]>> = LazyLock::new(|| {
    lines(include_str!("syscalls/constants.txt"))
        .map(|mut words| {
            let name = words.next().expect("a name");
            let mut values = words.map(|word| {
                let value = word.split_once('=').map_or(word, |(_, value)| value);
                number(value).expect("a number")
            });
            let first = values.next().expect("a value");
            (name, [first, values.next().unwrap_or(first)])
        })
        .collect()
});

/// A number as C writes it: decimal, `0x` or octal.
pub fn number(word: &str) -> Option<u64> {
    if let Some(digits) = word.strip_prefix("0x") {
        u64::from_str_radix(digits, 16).ok()
    } else if word.len() > 1 && word.starts_with('0') {
        u64::from_str_radix(word, 8).ok()
    } else {
        word.parse().ok()
    }
}

fn lines(text: &'static str) -> impl Iterator<Item = std::str::SplitWhitespace<'static>> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::split_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_agrees_with_the_constants() {
        macro_rules! agree {
            ($($name:ident)*) => {$(
                assert_eq!(
                    Arch::NATIVE.constant(stringify!($name)).map(|value| value as u32),
                    Some(libc::$name as u32),
                    stringify!($name)
                );
            )*};
        }
        agree! {
            EPERM ENOSYS EINVAL EAFNOSUPPORT EPROTONOSUPPORT
            S_ISUID S_ISGID S_IFMT S_IFREG S_IFIFO S_IFSOCK RENAME_WHITEOUT
            O_CREAT O_TMPFILE O_DIRECTORY O_NOFOLLOW O_DIRECT O_CLOEXEC
            AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_VSOCK AF_ALG AF_PACKET
            SOCK_STREAM SOCK_DGRAM SOCK_RAW SOCK_SEQPACKET SOCK_CLOEXEC
            IPPROTO_TCP IPPROTO_UDP IPPROTO_MPTCP IPPROTO_SCTP NETLINK_ROUTE
            CLONE_NEWNS CLONE_NEWCGROUP CLONE_NEWUTS CLONE_NEWIPC CLONE_NEWUSER CLONE_NEWPID
            CLONE_NEWNET CLONE_NEWTIME
            TIOCSTI TIOCLINUX TIOCSETD TIOCCONS TIOCSCTTY
            PTRACE_ATTACH PTRACE_SEIZE KEYCTL_JOIN_SESSION_KEYRING
            SECCOMP_SET_MODE_FILTER SECCOMP_FILTER_FLAG_NEW_LISTENER
            PR_SET_PDEATHSIG PR_SET_NAME PR_SET_MM PR_SET_VMA PR_SET_PTRACER PR_CAP_AMBIENT
            PR_SET_NO_NEW_PRIVS PR_SET_SECCOMP PR_SCHED_CORE
        }
    }

    #[test]
    fn libc_agrees_with_the_numbers() {
        macro_rules! agree {
            ($($name:ident $constant:ident)*) => {$(
                assert_eq!(
                    Arch::NATIVE.calls().number(stringify!($name)),
                    Some(libc::$constant as u32),
                    stringify!($name)
                );
            )*};
        }
        agree! {
            read SYS_read openat SYS_openat clone SYS_clone clone3 SYS_clone3 mount SYS_mount
            seccomp SYS_seccomp landlock_restrict_self SYS_landlock_restrict_self
            memfd_secret SYS_memfd_secret fchmodat2 SYS_fchmodat2 mseal SYS_mseal
        }
    }
}
