//! Class N: sockets, ports, and memory that others share.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use crate::call::{c, call, call_fd, why};
use crate::facts::Facts;
use crate::verdict::{Denied, Leak, Probe, Verdict, any_reached, filtered, probe, reached};

/// Probes on sockets and shared memory.
pub const PROBES: &[Probe] = &[
    probe("N01", "the harness's abstract socket", |f| reached(abstract_connect(f.get("ABSTRACT")))),
    probe("N02", "a socket in a hidden directory", |f| reached(UnixStream::connect(f.path("SOCKET")))),
    probe("N03", "a socket in the host's /tmp", |f| reached(UnixStream::connect(f.path("TMP_SOCKET")))),
    probe("N04", "sockets of system services", services),
    probe("N05", "the harness's TCP port", |f| tcp(f.number("TCP_PORT") as u16)),
    probe("N07", "the harness's UDP port", |f| udp(f.number("UDP_PORT") as u16)),
    probe("N10", "AF_VSOCK", |_| socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    probe("N11", "AF_ALG", |_| socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
    probe("N12", "AF_PACKET", |_| socket(libc::AF_PACKET, libc::SOCK_RAW, 0)),
    probe("N13", "SOCK_RAW", |_| socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)),
    probe("N14", "AF_XDP", |_| socket(libc::AF_XDP, libc::SOCK_RAW, 0)),
    probe("N15", "AF_SMC", |_| socket(43, libc::SOCK_STREAM, 0)),
    probe("N16", "AF_KEY", |_| socket(libc::AF_KEY, libc::SOCK_RAW, 2)),
    probe("N17", "NETLINK_AUDIT", |_| netlink(libc::NETLINK_AUDIT)),
    probe("N18", "NETLINK_KOBJECT_UEVENT", |_| netlink(libc::NETLINK_KOBJECT_UEVENT)),
    probe("N19", "NETLINK_NETFILTER", |_| netlink(libc::NETLINK_NETFILTER)),
    probe("N20", "SysV memory of the harness", sysv),
    probe("N21", "POSIX message queue of the harness", queue),
    probe("N22", "the host's /dev/shm", |f| reached(fs::read(f.path("SHM_FILE")))),
    probe("N23", "a file in the host's /tmp", |f| reached(fs::read(f.path("TMP_FILE")))),
    probe("N24", "F_SETOWN to the harness", set_owner),
];

fn abstract_connect(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?)
}

fn services(_: &Facts) -> Verdict {
    let mut sockets: Vec<PathBuf> = [
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/dbus/system_bus_socket",
        "/run/systemd/private",
        "/run/containerd/containerd.sock",
    ]
    .map(PathBuf::from)
    .to_vec();
    // As deep as /run/user/UID/bus.
    let mut dirs = vec![(PathBuf::from("/run"), 0)];
    while let Some((dir, depth)) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_socket() {
                sockets.push(entry.path());
            } else if kind.is_dir() && depth < 3 {
                dirs.push((entry.path(), depth + 1));
            }
        }
    }
    any_reached(sockets.into_iter().map(|path| (path.display().to_string(), UnixStream::connect(path))))
}

fn tcp(port: u16) -> Verdict {
    let connect = |address: SocketAddr| TcpStream::connect_timeout(&address, Duration::from_secs(2));
    any_reached([
        ("v4", connect((Ipv4Addr::LOCALHOST, port).into())),
        ("mapped", connect((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), port).into())),
    ])
}

/// Only an answer shows that a datagram arrived.
fn udp(port: u16) -> Verdict {
    let ask = || {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        socket.connect((Ipv4Addr::LOCALHOST, port))?;
        socket.send(b"?")?;
        socket.recv(&mut [0; 16])
    };
    reached(ask())
}

fn socket(family: i32, kind: i32, protocol: i32) -> Verdict {
    filtered(call_fd(libc::SYS_socket, &[family as usize, kind as usize, protocol as usize]))
}

fn netlink(protocol: i32) -> Verdict {
    // EPROTONOSUPPORT is the kernel's own answer where it was built without
    // the protocol; it shows that the filter let the family through.
    socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)
}

fn sysv(f: &Facts) -> Verdict {
    any_reached([
        ("by id", call(libc::SYS_shmat, &[f.number("SHM_ID"), 0, libc::SHM_RDONLY as usize])),
        ("by key", call(libc::SYS_shmget, &[f.number("SHM_KEY"), 0, 0])),
    ])
}

fn queue(f: &Facts) -> Verdict {
    // The kernel's name is without the slash that the C library wants.
    let name = c(f.get("MQ").trim_start_matches('/'));
    match call_fd(libc::SYS_mq_open, &[name.as_ptr() as usize, libc::O_RDONLY as usize, 0, 0]) {
        Ok(_) => Leak("opened".into()),
        Err(error) => Denied(why(&error)),
    }
}

fn set_owner(f: &Facts) -> Verdict {
    use std::os::fd::AsRawFd;
    let Ok((_left, right)) = UnixStream::pair() else {
        return Leak("probe failed: no socketpair".into());
    };
    reached(call(libc::SYS_fcntl, &[right.as_raw_fd() as usize, libc::F_SETOWN as usize, f.harness()]))
}
