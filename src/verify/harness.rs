//! The launcher as a harness: while a cell is tested it listens and shares
//! memory under names that nobody knows, and the cell must not find it.

use std::ffi::{CStr, CString};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use super::{Check, Expect, OWN_PIDS, text};
use crate::plan::Probe;
use crate::sys::clone::Idle;
use crate::sys::ipc::{self, MessageQueue, SharedMemory};
use crate::sys::{clone, fd, signal, tty};

/// Whether a process of the cell may have this number.
fn is_the_cells(pid: &i32) -> bool {
    *pid <= OWN_PIDS
}

/// What it holds; dropping it takes all of it away. What could not be made is
/// told as untestable.
#[derive(Debug)]
pub(super) struct Harness {
    name: String,
    listener: Option<UnixListener>,
    tcp: Option<(TcpListener, u16)>,
    udp: Option<(UdpSocket, u16)>,
    memory: Option<SharedMemory>,
    queue: Option<(MessageQueue, Keeper)>,
    /// A copy of the launcher, where one of the cell's processes may have the
    /// number of the launcher or its parent.
    stand_in: Option<Idle>,
}

impl Harness {
    /// Opens everything, as the id that the caller has. `pids` are those of the
    /// launcher and of its parent.
    pub fn new(pids: &[i32]) -> Harness {
        // The standard library takes the keys of its hashes from the kernel's random numbers.
        let number = RandomState::new().build_hasher().finish();
        let name = format!("cellblock-{number:016x}");
        let address = SocketAddr::from_abstract_name(&name);
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok();
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok();
        Harness {
            listener: address.and_then(|address| UnixListener::bind_addr(&address)).ok(),
            tcp: tcp.and_then(|tcp| tcp.local_addr().ok().map(|address| (tcp, address.port()))),
            udp: udp.and_then(|udp| udp.local_addr().ok().map(|address| (udp, address.port()))),
            memory: SharedMemory::new().ok(),
            stand_in: pids.iter().any(is_the_cells).then(|| Idle::new(OWN_PIDS).ok()).flatten(),
            queue: CString::new(&*name).ok().and_then(queue),
            name,
        }
    }

    /// The process to look for in place of `pid`; `None` where the cell may have
    /// one of that number, and no other could be made.
    pub fn process(&self, pid: i32) -> Option<i32> {
        if !is_the_cells(&pid) {
            return Some(pid);
        }
        let other = self.stand_in.as_ref().map(Idle::pid);
        other.filter(|other| !is_the_cells(other))
    }

    /// The queue's name, where there is one: a file, where queues are mounted.
    pub fn queue(&self) -> Option<&str> {
        self.queue.as_ref().map(|_| &*self.name)
    }

    /// How the cell looks for it.
    pub fn checks(&self) -> Vec<Check> {
        let denied = |name, object: String, probe: Option<Probe>| match probe {
            Some(probe) => Check::new(name, object, Expect::Denied, probe),
            None => Check::untestable(name, object, "the launcher could not make one"),
        };
        let port = |port: Option<u16>| port.map_or_else(String::new, |port| format!("127.0.0.1:{port}"));
        let tcp = self.tcp.as_ref().map(|(_, port)| *port);
        let udp = self.udp.as_ref().map(|(_, port)| *port);
        let memory = self.memory.as_ref().map(SharedMemory::id);
        vec![
            denied(
                "harness:abstract-socket",
                format!("@{}", self.name),
                self.listener.as_ref().map(|_| Probe::ConnectAbstract { name: text(&self.name) }),
            ),
            denied("harness:tcp", port(tcp), tcp.map(|port| Probe::ConnectTcp { port, v6: false })),
            denied("harness:udp", port(udp), udp.map(|port| Probe::SendUdp { port })),
            denied(
                "harness:shared-memory",
                memory.map_or_else(String::new, |id| format!("id {id}")),
                memory.map(|id| Probe::SharedMemory { id }),
            ),
            denied(
                "harness:message-queue",
                format!("/{}", self.name),
                self.queue.as_ref().map(|_| Probe::MessageQueue { name: text(&self.name) }),
            ),
        ]
    }
}

fn queue(name: CString) -> Option<(MessageQueue, Keeper)> {
    let keeper = Keeper::new(&name)?;
    Some((MessageQueue::new(name).ok()?, keeper))
}

/// A process that removes a queue should the launcher be killed: the kernel itself
/// never does.
#[derive(Debug)]
struct Keeper {
    pid: i32,
    _launcher_lives: OwnedFd,
}

impl Keeper {
    fn new(name: &CStr) -> Option<Keeper> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC).ok()?;
        match clone::copy().ok()? {
            0 => {
                // What is sent to the launcher's group is not meant for it.
                let _ = tty::new_session();
                // The end of the pipe is the launcher's, and that of all that it has started.
                let _ = fd::close_all_but(read.as_raw_fd()).and_then(|()| fd::wait_byte(read.as_raw_fd()));
                ipc::unlink_queue(name);
                clone::exit(0)
            }
            pid => Some(Keeper { pid, _launcher_lives: write }),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        signal::send(self.pid, libc::SIGKILL);
        let _ = clone::wait(self.pid);
    }
}
