//! A harness for the probes to look for: it has a case in its argv, a secret
//! in its environment, and holds one of every thing that two processes of one
//! user can share.
//!
//! It says on stdout what it holds, as KEY=VALUE lines and an empty one, and
//! ends when its stdin does.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::Path;

use crate::call::{CWD, c, call, call_fd};

/// Runs the harness of `case`, whose files are in `dir` and whose lock is
/// `lock`; `in_tmp` is its directory in `/tmp`.
pub fn run(case: &str, dir: &Path, lock: &Path, in_tmp: &Path) -> io::Result<()> {
    let comm = c(format!("judge-{}", &case[case.len().saturating_sub(6)..]));
    call(libc::SYS_prctl, &[libc::PR_SET_NAME as usize, comm.as_ptr() as usize, 0, 0, 0])?;
    std::env::set_current_dir(dir)?;

    let name = format!("cellblock-{case}");
    let _abstract = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name)?)?;
    let socket = dir.join("judge.sock");
    let _socket = UnixListener::bind(&socket)?;
    let tmp_socket = in_tmp.join("service.sock");
    let _tmp_socket = UnixListener::bind(&tmp_socket)?;
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let udp_port = udp.local_addr()?.port();

    let key = 0x4000_0000 | std::process::id() as usize;
    let shm = call(libc::SYS_shmget, &[key, 4096, (libc::IPC_CREAT | libc::IPC_EXCL | 0o600) as usize])?;
    let _ = call(libc::SYS_shmat, &[shm, 0, 0])?;
    let shm_file = format!("/dev/shm/{name}");
    fs::write(&shm_file, b"shared by the harness")?;
    let queue_name = c(&name);
    let flags = (libc::O_CREAT | libc::O_RDWR) as usize;
    let _queue = call_fd(libc::SYS_mq_open, &[queue_name.as_ptr() as usize, flags, 0o600, 0])?;

    let lock = File::options().read(true).write(true).open(lock)?;
    // SAFETY: all zeroes is a valid `flock`.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = libc::F_WRLCK as i16;
    call(libc::SYS_fcntl, &[lock.as_raw_fd() as usize, libc::F_SETLK as usize, &raw const whole as usize])?;

    let file = c(dir.join("verdict.json"));
    let mapped = call_fd(libc::SYS_openat, &[CWD, file.as_ptr() as usize, libc::O_RDONLY as usize])?;
    call(
        libc::SYS_mmap,
        &[0, 4096, libc::PROT_READ as usize, libc::MAP_PRIVATE as usize, mapped.as_raw_fd() as usize, 0],
    )?;
    let memory = Box::new(*b"secret in the harness's memory..");

    println!("COMM={}", comm.to_string_lossy());
    println!("HARNESS_ADDR={}", memory.as_ptr() as usize);
    println!("ABSTRACT={name}");
    println!("SOCKET={}", socket.display());
    println!("TMP_SOCKET={}", tmp_socket.display());
    println!("TCP_PORT={}", tcp.local_addr()?.port());
    println!("UDP_PORT={udp_port}");
    println!("SHM_ID={shm}");
    println!("SHM_KEY={key}");
    println!("SHM_FILE={shm_file}");
    println!("MQ={name}");
    println!("LOCK_INODE={}", lock.metadata()?.ino());
    println!();
    io::stdout().flush()?;

    std::thread::spawn(move || {
        let mut question = [0; 64];
        while let Ok((length, from)) = udp.recv_from(&mut question) {
            let _ = udp.send_to(&question[..length], from);
        }
    });
    io::stdin().read_to_end(&mut Vec::new())?;

    call(libc::SYS_shmctl, &[shm, libc::IPC_RMID as usize, 0])?;
    call(libc::SYS_mq_unlink, &[queue_name.as_ptr() as usize])?;
    fs::remove_file(shm_file)
}
