//! The agent of the demo: it looks for everything that it has been told to be
//! hidden, then does an agent's work, and says of each how it went.
//!
//! One line each: `GROUP<TAB>VERDICT<TAB>WHAT<TAB>DETAIL`.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::ptrace;
use nix::sys::signal::kill;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::Pid;

use crate::sys::credentials::join_new_session_keyring;

/// What the agent writes to the channel: a line as a provider would write, and
/// bytes that a careless reader would change.
pub const ACTIVITY: &[u8] = b"{\"event\":\"turn\",\"n\":1}\n\x00\xff\r\n";

/// The agent's last line, so that one that ended half way is not taken for one
/// that could do nothing.
pub const DONE: &str = "done";

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// It must fail.
    Hidden,
    /// It must work.
    Work,
}

/// One thing the agent tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Whether it should have worked.
    pub group: Group,
    /// Whether it did.
    pub worked: bool,
    /// What it was.
    pub what: String,
    /// The errno's name, or what was had.
    pub detail: String,
}

impl Line {
    /// Whether it went as it should.
    pub fn is_right(&self) -> bool {
        self.worked == (self.group == Group::Work)
    }

    /// Reads a line of the agent's output.
    pub fn parse(text: &str) -> Option<Line> {
        let mut fields = text.splitn(4, '\t');
        let group = match fields.next()? {
            "hidden" => Group::Hidden,
            "work" => Group::Work,
            _ => return None,
        };
        let worked = fields.next()? == "worked";
        Some(Line { group, worked, what: fields.next()?.into(), detail: fields.next()?.into() })
    }

    fn print(&self) -> io::Result<()> {
        let group = match self.group {
            Group::Hidden => "hidden",
            Group::Work => "work",
        };
        let verdict = if self.worked { "worked" } else { "failed" };
        let detail = self.detail.replace(['\n', '\t'], " ");
        writeln!(io::stdout(), "{group}\t{verdict}\t{}\t{detail}", self.what)
    }
}

/// Tries everything; `facts` is the fixture's KEY=VALUE file.
///
/// # Errors
///
/// When the facts cannot be read or stdout takes no more lines.
pub fn run(facts: &Path) -> io::Result<()> {
    // Before anything of our own is open.
    let descriptors = open_descriptors();
    let text = fs::read_to_string(facts)?;
    let agent = Agent { facts: text.lines().filter_map(|line| line.split_once('=')).collect() };
    agent.look(&descriptors)?;
    agent.work()?;
    agent.overreach()?;
    writeln!(io::stdout(), "{DONE}")
}

/// An answer in the agent's words; an error is a refusal.
type Answer = Result<String, String>;

struct Agent<'a> {
    facts: HashMap<&'a str, &'a str>,
}

impl Agent<'_> {
    fn get(&self, key: &str) -> &str {
        self.facts.get(key).copied().unwrap_or_default()
    }

    fn path(&self, key: &str) -> PathBuf {
        self.get(key).into()
    }

    fn own(&self, name: &str) -> PathBuf {
        self.path("OWN").join(name)
    }

    fn number<T: std::str::FromStr + Default>(&self, key: &str) -> T {
        self.get(key).parse().unwrap_or_default()
    }

    /// Looks for what must be hidden.
    fn look(&self, descriptors: &[String]) -> io::Result<()> {
        let read = |key: &str| answer(fs::read(self.path(key)));

        hidden("harness file", read("HARNESS_FILE"))?;
        hidden("another run's session database", read("OTHER_DB"))?;
        hidden("list of runs", self.other_run())?;
        hidden("database log, db/pg_wal", answer(fs::read_dir(self.path("PG_WAL"))))?;
        hidden("secrets/key", read("SECRET_FILE"))?;
        hidden("secrets/key by a symlink of its own", self.by_symlink())?;
        hidden("run log", read("RUN_LOG"))?;
        hidden("control-plane-state.json", read("CONTROL_PLANE"))?;
        hidden("harness directory, by stat", answer(fs::metadata(self.path("HARNESS_DIR"))))?;
        hidden("harness directory in the mount table", self.mount_table())?;

        let pid = Pid::from_raw(self.number("HARNESS_PID"));
        hidden("argv of the harness", self.in_proc("cmdline", "CASE_ID"))?;
        hidden("environment of the harness", self.in_proc("environ", "SECRET"))?;
        hidden("name of the harness", self.in_proc("comm", "COMM"))?;
        hidden("memory of the harness", answer(File::open(format!("/proc/{pid}/mem"))))?;
        hidden("signal to the harness", answer(kill(pid, None)))?;
        hidden("argv of PID 1", first_process())?;

        hidden("secret in its own environment", self.own_environment())?;
        hidden("working directory of the harness", self.working_directory())?;
        hidden("open descriptor of the harness", some(descriptors.join(" "), "none"))?;

        hidden("abstract socket of the harness", answer(connect_abstract(self.get("ABSTRACT"))))?;
        hidden("pathname socket of the harness", answer(UnixStream::connect(self.path("SOCKET"))))?;
        hidden("socket of the harness in /tmp", answer(UnixStream::connect(self.path("TMP_SOCKET"))))?;
        hidden(
            "TCP port of the harness",
            answer(TcpStream::connect((Ipv4Addr::LOCALHOST, self.number("TCP_PORT")))),
        )?;
        hidden("UDP port of the harness", answer(ask(self.number("UDP_PORT"))))?;

        let lock = self.path("LOCK");
        hidden("channel: open the lock", answer(File::open(&lock)))?;
        hidden("channel: write the lock", answer(OpenOptions::new().write(true).open(lock)))?;
        let fifo = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(self.path("FIFO"));
        hidden("channel: read the FIFO", answer(fifo))?;
        hidden(
            "channel: change the descriptor",
            answer(OpenOptions::new().write(true).open(self.path("DESCRIPTOR"))),
        )?;
        hidden("channel: put another helper there", self.replace_helper())?;
        hidden("channel: make an entry", answer(File::create_new(self.path("CHANNEL").join("new"))))?;
        hidden("write to the workspace", answer(File::create_new("/work/new")))?;
        hidden("write to the system", answer(File::create_new("/usr/bin/new")))
    }

    /// Asks the kernel for what a provider has no need of. Last, as what works
    /// here changes the process.
    fn overreach(&self) -> io::Result<()> {
        let pid = Pid::from_raw(self.number("HARNESS_PID"));
        hidden("job that its cgroup names", cgroup())?;
        hidden("capabilities, or new ones by exec", privileges())?;
        hidden("ptrace(2) of the harness", answer(ptrace::seize(pid, ptrace::Options::empty())))?;
        hidden("keyctl(2)", answer(join_new_session_keyring().map_err(|failure| failure.errno)))?;
        let vsock = socket(AddressFamily::Vsock, SockType::Stream, SockFlag::empty(), None);
        hidden("socket to the hypervisor, AF_VSOCK", answer(vsock))?;
        let unshared = unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS);
        hidden("unshare(2): a user namespace", answer(unshared))?;
        let nothing = None::<&str>;
        let mounted = mount(nothing, "/tmp", Some("tmpfs"), MsFlags::empty(), nothing);
        hidden("mount(2)", answer(mounted))
    }

    /// Does an agent's work.
    fn work(&self) -> io::Result<()> {
        work("write, rename and read its own state", answer(self.own_state()))?;
        work("read the workspace", answer(fs::read("/work/README")))?;
        work("write to the channel's FIFO", answer(self.report()))?;
        work("read the channel's descriptor", self.descriptor())?;
        work("run the channel's helper", said(&self.path("HELPER")))?;
        work("start a process and wait for it", said(Path::new("/proc/self/exe")))?;
        work("threads", threads())?;
        work("TCP on its own loopback", answer(own_tcp()))?;
        work("UDP on its own loopback", answer(own_udp()))?;
        work("abstract socket of its own", answer(own_abstract()))?;
        work("pathname socket of its own", answer(self.own_socket()))?;
        work("shared memory in /dev/shm", answer(fs::write("/dev/shm/own", b"x")))?;
        work("file lock of its own", answer(self.own_lock()))?;
        work("temporary file in /tmp", answer(fs::write("/tmp/own", b"x")))?;
        work("/dev/null and /dev/urandom", answer(devices()))?;
        work("/proc/self", answer(fs::read("/proc/self/status")))
    }

    fn other_run(&self) -> Answer {
        let other = self.path("OTHER");
        let runs = fs::read_dir(self.path("RUNS")).map_err(|error| why(&error))?;
        let found = runs.flatten().any(|entry| entry.path() == other);
        some(if found { "names the other" } else { "" }, "only its own")
    }

    fn by_symlink(&self) -> Answer {
        let link = self.own("link");
        std::os::unix::fs::symlink(self.path("SECRET_FILE"), &link).map_err(|error| why(&error))?;
        let result = fs::read(&link);
        let _ = fs::remove_file(link);
        answer(result)
    }

    fn mount_table(&self) -> Answer {
        let table = fs::read_to_string("/proc/self/mountinfo").map_err(|error| why(&error))?;
        let found = table.contains(self.get("HARNESS_DIR"));
        some(if found { "named" } else { "" }, "not named")
    }

    /// Looks for a token in one file of every process but its own.
    fn in_proc(&self, file: &str, key: &str) -> Answer {
        let token = self.get(key).as_bytes();
        let own = std::process::id().to_string();
        let mut seen = 0;
        for entry in fs::read_dir("/proc").map_err(|error| why(&error))?.flatten() {
            let pid = entry.file_name();
            let number = pid.as_bytes().iter().all(u8::is_ascii_digit);
            if !number || pid == OsStr::new(&own) {
                continue;
            }
            if let Ok(content) = fs::read(entry.path().join(file)) {
                seen += 1;
                if content.windows(token.len()).any(|window| window == token) {
                    return Ok(format!("in /proc/{}/{file}", pid.display()));
                }
            }
        }
        Err(format!("{seen} other processes"))
    }

    fn own_environment(&self) -> Answer {
        let found = std::env::vars_os().any(|(_, value)| value == self.get("SECRET"));
        some(if found { "there" } else { "" }, "not there")
    }

    fn working_directory(&self) -> Answer {
        let dir = std::env::current_dir().map_err(|error| why(&error))?;
        let text = dir.display().to_string();
        if dir.starts_with(self.path("HARNESS_DIR")) { Ok(text) } else { Err(text) }
    }

    fn replace_helper(&self) -> Answer {
        let new = self.own("helper");
        fs::write(&new, b"#!/bin/sh\n").map_err(|error| why(&error))?;
        let result = fs::rename(&new, self.path("HELPER"));
        let _ = fs::remove_file(new);
        answer(result)
    }

    fn own_state(&self) -> io::Result<()> {
        let (new, old) = (self.own("state.new"), self.own("state"));
        fs::write(&new, b"state")?;
        fs::rename(new, &old)?;
        same(&fs::read(&old)?, b"state")?;
        fs::remove_file(old)
    }

    fn report(&self) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.path("FIFO"))?.write_all(ACTIVITY)
    }

    fn descriptor(&self) -> Answer {
        let text = fs::read_to_string(self.path("DESCRIPTOR")).map_err(|error| why(&error))?;
        if text == self.get("DESCRIPTOR_TEXT") { Ok("as written".into()) } else { Err(text) }
    }

    fn own_socket(&self) -> io::Result<()> {
        let path = self.own("socket");
        let result = UnixListener::bind(&path).and_then(|_listener| UnixStream::connect(&path).map(drop));
        let _ = fs::remove_file(path);
        result
    }

    fn own_lock(&self) -> io::Result<()> {
        let path = self.own("lock");
        let file = File::create(&path)?;
        file.lock()?;
        file.write_at(b"x", 0)?;
        fs::remove_file(path)
    }
}

fn hidden(what: &str, answer: Answer) -> io::Result<()> {
    say(Group::Hidden, what, answer)
}

fn work(what: &str, answer: Answer) -> io::Result<()> {
    say(Group::Work, what, answer)
}

fn say(group: Group, what: &str, answer: Answer) -> io::Result<()> {
    let worked = answer.is_ok();
    let detail = answer.unwrap_or_else(|why| why);
    let what = what.into();
    Line { group, worked, what, detail }.print()
}

/// What a call answered, in a word.
fn answer<T, E: Into<io::Error>>(result: Result<T, E>) -> Answer {
    match result {
        Ok(_) => Ok("ok".into()),
        Err(error) => Err(why(&error.into())),
    }
}

/// Ok for what was found; an error, in the words of `none`, for nothing.
fn some(found: impl Into<String>, none: &str) -> Answer {
    let found = found.into();
    if found.is_empty() { Err(none.into()) } else { Ok(found) }
}

fn why(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => format!("{:?}", Errno::from_raw(errno)),
        None => error.to_string(),
    }
}

fn same(got: &[u8], wanted: &[u8]) -> io::Result<()> {
    if got == wanted { Ok(()) } else { Err(io::Error::other("other bytes than were written")) }
}

/// What is open above 2, as `/proc` names it.
fn open_descriptors() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd");
    entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let number: u32 = entry.file_name().to_str()?.parse().ok()?;
            let target = fs::read_link(entry.path()).ok()?;
            // The directory that is being listed is open as well.
            let listing = target.starts_with("/proc");
            (number > 2 && !listing).then(|| format!("{number}: {}", target.display()))
        })
        .collect()
}

fn first_process() -> Answer {
    let argv = fs::read("/proc/1/cmdline").map_err(|error| why(&error))?;
    some(String::from_utf8_lossy(&argv).replace('\0', " "), "empty")
}

fn connect_abstract(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Only an answer shows that a datagram arrived.
fn ask(port: u16) -> io::Result<usize> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    socket.connect((Ipv4Addr::LOCALHOST, port))?;
    socket.send(b"?")?;
    socket.recv(&mut [0; 8])
}

/// An error when there is no privilege and no way to one.
fn privileges() -> Answer {
    let status = fs::read_to_string("/proc/self/status").map_err(|error| why(&error))?;
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or_default().trim()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        if field(set) != "0000000000000000" {
            return Ok(format!("{set} {}", field(set)));
        }
    }
    match field("NoNewPrivs:") {
        "1" => Err("none".into()),
        _ => Ok("NoNewPrivs is not set".into()),
    }
}

fn cgroup() -> Answer {
    let text = fs::read_to_string("/proc/self/cgroup").map_err(|error| why(&error))?;
    let named = text.lines().find(|line| !line.ends_with(":/"));
    some(named.unwrap_or_default(), "only /")
}

fn said(program: &Path) -> Answer {
    let output = Command::new(program).arg("--version").output().map_err(|error| why(&error))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() { Ok(text) } else { Err(output.status.to_string()) }
}

fn threads() -> Answer {
    let threads: Vec<_> = (0..4)
        .map(|number: u32| std::thread::Builder::new().spawn(move || number))
        .collect::<io::Result<_>>()
        .map_err(|error| why(&error))?;
    let sum: u32 = threads.into_iter().filter_map(|thread| thread.join().ok()).sum();
    if sum == 6 { Ok("four".into()) } else { Err("not all came back".into()) }
}

fn own_tcp() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut out = TcpStream::connect(listener.local_addr()?)?;
    let (mut back, _) = listener.accept()?;
    out.write_all(b"over")?;
    let mut got = [0; 4];
    back.read_exact(&mut got)?;
    same(&got, b"over")
}

fn own_udp() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.send_to(b"self", socket.local_addr()?)?;
    let mut got = [0; 4];
    socket.recv(&mut got)?;
    same(&got, b"self")
}

fn own_abstract() -> io::Result<()> {
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name("own")?)?;
    connect_abstract("own").map(drop)
}

fn devices() -> io::Result<()> {
    fs::write("/dev/null", b"x")?;
    File::open("/dev/urandom")?.read_exact(&mut [0; 8])
}
