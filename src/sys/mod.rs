//! The system calls, and the only `unsafe` of the crate.
//!
//! Every function here is one call or one fixed sequence of calls on one
//! object. None locks or formats, and none but [`clone::Stack::new`] and
//! [`exec::Image::new`] allocates, which are called before the clone; so the
//! others may be used between clone and exec. A failure names the call that made it; the words are found by the
//! launcher, in [`Call::name`] and [`Errno::desc`].

pub mod clone;
pub mod credentials;
pub mod exec;
pub mod fd;
pub mod ipc;
pub mod landlock;
pub mod memory;
pub mod mount;
pub mod net;
pub mod reach;
pub mod seccomp;
pub mod signal;
pub mod trial;
pub mod tty;

pub use nix::errno::Errno;

/// What a wrapped call returns.
pub type Result<T> = std::result::Result<T, Failure>;

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The call.
    pub call: Call,
    /// Its error.
    pub errno: Errno,
}

macro_rules! calls {
    ($($variant:ident $name:literal)*) => {
        /// The calls that can fail, by the names of their man pages.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Call {
            $(#[doc = $name] $variant),*
        }

        impl Call {
            const ALL: &[Call] = &[$(Call::$variant),*];

            /// The name of its man page.
            pub fn name(self) -> &'static str {
                match self { $(Call::$variant => $name),* }
            }

            /// The call whose number a record carries.
            pub fn from_number(number: u8) -> Option<Call> {
                Call::ALL.get(usize::from(number)).copied()
            }
        }
    };
}

calls! {
    Capset "capset"
    Chdir "chdir"
    Clone "clone"
    CloseRange "close_range"
    Dup "dup3"
    Execve "execve"
    Fchdir "fchdir"
    Fsconfig "fsconfig"
    Fsmount "fsmount"
    Fsopen "fsopen"
    Fstat "fstat"
    Identity "fstat"
    Getrlimit "getrlimit"
    Ioctl "ioctl"
    Keyctl "keyctl"
    LandlockAddRule "landlock_add_rule"
    LandlockCreateRuleset "landlock_create_ruleset"
    LandlockRestrictSelf "landlock_restrict_self"
    Mkdirat "mkdirat"
    Mknodat "mknodat"
    Mount "mount"
    MountSetattr "mount_setattr"
    MoveMount "move_mount"
    Open "openat"
    Openat2 "openat2"
    OpenTree "open_tree"
    PidfdSendSignal "pidfd_send_signal"
    PivotRoot "pivot_root"
    Poll "poll"
    Prctl "prctl"
    Read "read"
    Seccomp "seccomp"
    Sendmsg "sendmsg"
    Sethostname "sethostname"
    Setpgid "setpgid"
    Setresgid "setresgid"
    Setresuid "setresuid"
    Setrlimit "setrlimit"
    Setsid "setsid"
    Sigaction "rt_sigaction"
    Sigprocmask "rt_sigprocmask"
    Socket "socket"
    Symlinkat "symlinkat"
    Umount "umount2"
    Unlinkat "unlinkat"
    Unshare "unshare"
    Setns "setns"
    Wait "wait4"
    Write "write"
}

/// The result of a raw call.
fn check(call: Call, result: libc::c_long) -> Result<libc::c_long> {
    if result < 0 {
        return Err(Failure { call, errno: Errno::last() });
    }
    Ok(result)
}

/// The kernel's answer behind an error of the standard library; EIO where the
/// library made the error itself.
pub fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
