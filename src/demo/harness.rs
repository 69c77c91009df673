//! The harness of the demo: this program once more, with a case in its argv,
//! a secret in its environment, and sockets that only its own kind should
//! reach.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use nix::sys::prctl;
use nix::sys::signal::Signal;

/// Runs the harness of `case`, whose files are in `dir` and whose lock is
/// `lock`, until its stdin ends; `in_tmp` is its directory in `/tmp`.
///
/// # Errors
///
/// When a socket cannot be made or the lock not be taken.
pub fn run(case: &str, dir: &Path, lock: &Path, in_tmp: &Path) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The demo reads what the kernel keeps from strangers; a harness that was
    // started by root and changed its id would be kept from its own user too.
    prctl::set_dumpable(true)?;
    prctl::set_name(c"judge-of-demo")?;

    let name = format!("cellblock-{case}");
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let socket = dir.join("judge.sock");
    let _socket = UnixListener::bind(&socket)?;
    let tmp_socket = in_tmp.join("service.sock");
    let _tmp_socket = UnixListener::bind(&tmp_socket)?;
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let lock = File::options().read(true).write(true).open(lock)?;
    lock.lock()?;

    let mut out = io::stdout().lock();
    writeln!(out, "COMM=judge-of-demo")?;
    writeln!(out, "ABSTRACT={name}")?;
    writeln!(out, "SOCKET={}", socket.display())?;
    writeln!(out, "TMP_SOCKET={}", tmp_socket.display())?;
    writeln!(out, "TCP_PORT={}", tcp.local_addr()?.port())?;
    writeln!(out, "UDP_PORT={}", udp.local_addr()?.port())?;
    writeln!(out)?;
    out.flush()?;

    std::thread::spawn(move || {
        let mut question = [0; 64];
        while let Ok((length, from)) = udp.recv_from(&mut question) {
            let _ = udp.send_to(&question[..length], from);
        }
    });
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
