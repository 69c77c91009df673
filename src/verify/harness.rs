//! The launcher as a harness: while a cell is tested it listens and shares
//! memory under names that nobody knows, and the cell must not find it.

use std::ffi::CString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use super::{Check, Expect, text};
use crate::plan::Probe;
use crate::sys::ipc::{MessageQueue, SharedMemory};

/// What it holds; dropping it takes all of it away. What could not be made is
/// told as untestable.
#[derive(Debug)]
pub(super) struct Harness {
    name: String,
    listener: Option<UnixListener>,
    tcp: Option<(TcpListener, u16)>,
    udp: Option<(UdpSocket, u16)>,
    memory: Option<(SharedMemory, i32)>,
    queue: Option<MessageQueue>,
}

impl Harness {
    /// Opens everything, as the id that the caller has.
    pub fn new() -> Harness {
        // The standard library takes the keys of its hashes from the kernel's random numbers.
        let number = RandomState::new().build_hasher().finish();
        let name = format!("cellblock-{number:016x}");
        let key = (number as i32 & i32::MAX).max(1);
        let address = SocketAddr::from_abstract_name(&name);
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok();
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok();
        Harness {
            listener: address.and_then(|address| UnixListener::bind_addr(&address)).ok(),
            tcp: tcp.and_then(|tcp| tcp.local_addr().ok().map(|address| (tcp, address.port()))),
            udp: udp.and_then(|udp| udp.local_addr().ok().map(|address| (udp, address.port()))),
            memory: SharedMemory::new(key).ok().map(|memory| (memory, key)),
            queue: CString::new(&*name).ok().and_then(|name| MessageQueue::new(name).ok()),
            name,
        }
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
        let key = self.memory.as_ref().map(|(_, key)| *key);
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
                key.map_or_else(String::new, |key| format!("key {key:#x}")),
                key.map(|key| Probe::SharedMemory { key }),
            ),
            denied(
                "harness:message-queue",
                format!("/{}", self.name),
                self.queue.as_ref().map(|_| Probe::MessageQueue { name: text(&self.name) }),
            ),
        ]
    }
}
