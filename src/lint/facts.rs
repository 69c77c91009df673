//! What the host has that a policy can give away: looked at once, and from then
//! on a plain value.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use nix::unistd::{getgroups, getppid};

use super::places::{CREDENTIALS, SOCKETS};
use super::service::{Service, Socket};
use super::views::Views;
use crate::host::{Ids, worktree};
use crate::policy::Policy;
use crate::sockets;
use crate::sys::landlock;

/// The facts about a host that warnings rest on. Every path is a real one,
/// through no symbolic link.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The newest Landlock ABI; 0 where Landlock is absent.
    pub landlock: u32,
    /// Home directories: of the caller, and of the user that the cell runs as.
    pub homes: Vec<PathBuf>,
    /// The directories of the caller's `PATH`, whether they exist or not.
    pub path: Vec<PathBuf>,
    /// Directories of what starts the run.
    pub harness: Vec<HarnessDirectory>,
    /// The policy files that were named.
    pub policy_files: Vec<PathBuf>,
    /// The paths of the policy that are not there.
    pub missing: Vec<PathBuf>,
    /// The repository of the workspace, where it lies elsewhere and no view shows it.
    pub repository: Option<PathBuf>,
    /// Path sockets that somebody listens on.
    pub sockets: Vec<Socket>,
    /// Files and directories with credentials, below the homes.
    pub credentials: Vec<PathBuf>,
    /// Sockets of IP that take what comes.
    pub listeners: BTreeSet<Listener>,
    /// The groups that the cell's processes have on the host, by name.
    pub groups: Vec<String>,
    /// Whose machine it is, where that is a cloud's.
    pub cloud: Option<&'static str>,
}

/// A directory of what starts the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HarnessDirectory {
    /// Where it is.
    pub path: PathBuf,
    /// Whose it is.
    pub role: Role,
}

/// Whose directory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The launcher stands there.
    WorkingDirectory,
    /// The process that has started the launcher stands there.
    ParentsWorkingDirectory,
    /// The program of that process lies there.
    ParentsProgram,
    /// The launcher's own program lies there.
    Launcher,
}

/// A socket of IP that takes what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listener {
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// The address it is bound to.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Listener { protocol, address, port } = self;
        match address {
            IpAddr::V4(address) => write!(f, "{protocol} {address}:{port}"),
            IpAddr::V6(address) => write!(f, "{protocol} [{address}]:{port}"),
        }
    }
}

impl Facts {
    /// The few facts that the warnings of a run rest on: of credentials alone, those
    /// that a view could show are looked for.
    pub(super) fn at_start(policy: &Policy, ids: Ids) -> Facts {
        let homes = homes(Some(ids));
        let views = Views::of(policy);
        let is_shown = |path: &PathBuf| views.all.iter().any(|view| views.shows(view, path));
        let credentials = in_homes(&homes, &CREDENTIALS).filter(is_shown).filter(|path| path.exists());
        Facts { credentials: credentials.collect(), harness: harness(), homes, ..Facts::default() }
    }

    /// Looks at the host, for a policy. `policies` are the policy files that were named, `ids` who
    /// the cell would run as, where that is known. What cannot be read is left out.
    pub fn probe(policy: &Policy, policies: &[PathBuf], ids: Option<Ids>) -> Facts {
        let homes = homes(ids);
        Facts {
            landlock: landlock::abi(),
            path: path_directories(),
            harness: harness(),
            policy_files: policies.iter().filter_map(|path| fs::canonicalize(path).ok()).collect(),
            missing: missing(policy),
            repository: worktree::unseen(policy),
            sockets: sockets(&homes),
            credentials: in_homes(&homes, &CREDENTIALS).filter(|path| path.exists()).collect(),
            listeners: listeners(),
            groups: groups(ids),
            cloud: cloud(),
            homes,
        }
    }
}

fn missing(policy: &Policy) -> Vec<PathBuf> {
    let hidden = policy.run.hide.iter().map(|hidden| &*hidden.path);
    let needed = super::missing::needed(policy).map(|(path, _)| path);
    let is_missing =
        |path: &&Path| fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    hidden.chain(needed).filter(is_missing).map(Path::to_owned).collect()
}

/// Each of `names` below each of `homes`.
pub(super) fn in_homes<'a>(homes: &'a [PathBuf], names: &'a [&str]) -> impl Iterator<Item = PathBuf> + 'a {
    homes.iter().flat_map(move |home| names.iter().map(move |name| home.join(name)))
}

fn homes(ids: Option<Ids>) -> Vec<PathBuf> {
    let own = std::env::var_os("HOME").map(PathBuf::from);
    let of_the_run = ids.and_then(|ids| {
        // Not by getpwuid(3), which a static program cannot do without loading libraries.
        let users = fs::read_to_string("/etc/passwd").ok()?;
        let mut users = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let user = users.find(|user| user.get(2).is_some_and(|uid| *uid == ids.uid.to_string()))?;
        user.get(5).map(PathBuf::from)
    });
    let mut homes = Vec::new();
    for home in [own, of_the_run].into_iter().flatten().filter(|home| home.is_absolute()) {
        let home = real(&home);
        // Those of services are often `/`, which no view shows, or `/usr/…` and empty.
        if home.parent().is_some() && !home.starts_with("/usr") && !homes.contains(&home) {
            homes.push(home);
        }
    }
    homes
}

fn path_directories() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = Vec::new();
    for directory in std::env::split_paths(&path).filter(|directory| directory.is_absolute()) {
        let directory = real(&directory);
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    directories
}

fn harness() -> Vec<HarnessDirectory> {
    let parent = Path::new("/proc").join(getppid().to_string());
    let directory_of = |program: PathBuf| Some(program.parent()?.to_owned());
    // What belongs to the system may be seen by every cell.
    let is_ours = |directory: &PathBuf| !directory.starts_with("/usr");
    // One that is several things is the first of them, which weighs most.
    let found = [
        (Role::Launcher, std::env::current_exe().ok().and_then(directory_of).filter(is_ours)),
        (Role::ParentsProgram, fs::read_link(parent.join("exe")).ok().and_then(directory_of).filter(is_ours)),
        (Role::WorkingDirectory, std::env::current_dir().ok()),
        (Role::ParentsWorkingDirectory, fs::read_link(parent.join("cwd")).ok()),
    ];
    let mut directories: Vec<HarnessDirectory> = Vec::new();
    for (role, path) in found.into_iter().filter_map(|(role, path)| Some((role, path?))) {
        if directories.iter().all(|former| former.path != path) {
            directories.push(HarnessDirectory { path, role });
        }
    }
    directories
}

/// What `/proc/net/unix` has, and what stands at well-known places: a socket that
/// was bound in another network namespace is in no table that can be read here.
fn sockets(homes: &[PathBuf]) -> Vec<Socket> {
    let table = sockets::table();
    // A relative path counts from a directory that is not told.
    let bound = sockets::bound(&table).filter(|(path, _)| path.is_absolute());
    let listening = bound.map(|(path, _)| (path.to_owned(), None));
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let places = SOCKETS.iter().flat_map(|name| match name.split_once('/') {
        Some(("~", rest)) => homes.iter().map(|home| home.join(rest)).collect(),
        Some(("$", rest)) => runtime.iter().map(|directory| directory.join(rest)).collect(),
        _ => vec![PathBuf::from(name)],
    });
    let places = places.map(|path| (path, None));
    let named = named_sockets().into_iter().map(|(service, path)| (path, Some(service)));

    let mut sockets: Vec<Socket> = Vec::new();
    let mut seen = BTreeSet::new();
    for (path, service) in named.chain(listening).chain(places) {
        let Ok(path) = fs::canonicalize(path) else { continue };
        let is_socket = path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket());
        if is_socket && seen.insert(path.clone()) {
            let service = service.unwrap_or_else(|| Service::of(&path));
            sockets.push(Socket { path, service });
        }
    }
    // The kernel's table has no order that stays.
    sockets.sort_by(|one, other| one.path.cmp(&other.path));
    sockets
}

/// Sockets that the environment names.
fn named_sockets() -> Vec<(Service, PathBuf)> {
    let value = |name| std::env::var_os(name).map(OsString::into_vec);
    let up_to = |mut value: Vec<u8>, end: u8| {
        value.truncate(value.iter().position(|byte| *byte == end).unwrap_or(value.len()));
        PathBuf::from(OsString::from_vec(value))
    };
    let after = |value: Vec<u8>, start: &[u8]| value.strip_prefix(start).map(<[u8]>::to_vec);
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).unwrap_or_default();
    [
        (Service::SshAgent, value("SSH_AUTH_SOCK").map(|path| up_to(path, 0))),
        (Service::Containers, value("DOCKER_HOST").and_then(|url| Some(up_to(after(url, b"unix://")?, 0)))),
        (
            Service::MessageBus,
            value("DBUS_SESSION_BUS_ADDRESS")
                .and_then(|address| Some(up_to(after(address, b"unix:path=")?, b','))),
        ),
        (Service::Terminals, value("TMUX").map(|value| up_to(value, b','))),
        (Service::Display, value("WAYLAND_DISPLAY").map(|name| runtime.join(up_to(name, 0)))),
    ]
    .into_iter()
    .filter_map(|(service, path)| Some((service, path?)))
    .filter(|(_, path)| path.is_absolute())
    .collect()
}

fn listeners() -> BTreeSet<Listener> {
    let tables = [("tcp", "tcp"), ("tcp", "tcp6"), ("udp", "udp"), ("udp", "udp6")];
    let read = |name| fs::read_to_string(Path::new("/proc/net").join(name)).unwrap_or_default();
    tables
        .into_iter()
        .flat_map(|(protocol, name)| bound_ports(protocol, &read(name)).collect::<Vec<_>>())
        .collect()
}

/// The sockets of a table of `/proc/net` that take what comes.
fn bound_ports(protocol: &'static str, table: &str) -> impl Iterator<Item = Listener> {
    /// `TCP_LISTEN`, and for UDP `TCP_CLOSE`: connected to nobody.
    const TCP: &str = "0A";
    const UDP: &str = "07";
    table.lines().skip(1).filter_map(move |line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let (address, port) = columns.next()?.split_once(':')?;
        let state = columns.nth(1)?;
        let port = u16::from_str_radix(port, 16).ok().filter(|port| *port != 0)?;
        let takes = state == if protocol == "tcp" { TCP } else { UDP };
        takes.then_some(Listener { protocol, address: address_of(address)?, port })
    })
}

/// An address as those tables print it: words of 32 bits, each as the machine
/// reads the bytes of the network.
fn address_of(hex: &str) -> Option<IpAddr> {
    let words = (0..hex.len()).step_by(8).map(|at| u32::from_str_radix(hex.get(at..at + 8)?, 16).ok());
    let bytes: Vec<u8> =
        words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()),
        _ => None,
    }
}

/// The groups of the cell by name. Root's child has the one that root names.
fn groups(ids: Option<Ids>) -> Vec<String> {
    let supplementary = match ids {
        Some(ids) if !ids.started_by_root => getgroups().unwrap_or_default(),
        _ => Vec::new(),
    };
    let own: BTreeSet<u32> =
        ids.map(|ids| ids.gid).into_iter().chain(supplementary.iter().map(|gid| gid.as_raw())).collect();
    // Not by getgrgid(3), which a static program cannot do without loading libraries.
    let table = fs::read_to_string("/etc/group").unwrap_or_default();
    let groups = table.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?, fields.nth(1)?.parse::<u32>().ok()?))
    });
    groups.filter(|(_, gid)| own.contains(gid)).map(|(name, _)| name.to_owned()).collect()
}

/// Whose machine it is, by what the firmware says.
fn cloud() -> Option<&'static str> {
    const CLOUDS: [(&str, &str, &str); 6] = [
        ("sys_vendor", "Amazon EC2", "Amazon EC2"),
        ("product_name", "Google Compute Engine", "Google Compute Engine"),
        // Azure's alone; the vendor is that of every Hyper-V guest.
        ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77", "Azure"),
        ("sys_vendor", "DigitalOcean", "DigitalOcean"),
        ("sys_vendor", "Hetzner", "Hetzner"),
        ("chassis_asset_tag", "OracleCloud.com", "Oracle Cloud"),
    ];
    let says = |name: &str| fs::read_to_string(Path::new("/sys/class/dmi/id").join(name));
    CLOUDS
        .into_iter()
        .find(|(file, words, _)| says(file).is_ok_and(|said| said.trim() == *words))
        .map(|(_, _, name)| name)
}

/// The path through no link; of what does not exist, that of the directory it
/// would be made in.
fn real(path: &Path) -> PathBuf {
    let above = path.ancestors().find_map(|above| Some((above, fs::canonicalize(above).ok()?)));
    let Some((above, real)) = above else { return path.to_owned() };
    let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
    real.join(rest).components().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_with_their_addresses() {
        let words = |bytes: &[u8]| -> String {
            let words = bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
            words.map(|word| format!("{word:08X}")).collect()
        };
        let loopback = words(&[127, 0, 0, 1]);
        let six = words(&Ipv6Addr::LOCALHOST.octets());
        let mapped = words(&Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
        let table = format!(
            "  sl  local_address rem_address   st
   0: {loopback}:1F90 00000000:0000 0A 00000000:00000000
   1: {loopback}:1F91 {loopback}:1F90 01 00000000:00000000
   2: {six}:0016 {six}:0000 0A 00000000:00000000
   3: {mapped}:0017 {mapped}:0000 0A 00000000:00000000
   4: zz:0017 00:0000 0A\n"
        );
        let ports: Vec<String> = bound_ports("tcp", &table).map(|listener| listener.to_string()).collect();
        assert_eq!(ports, ["tcp 127.0.0.1:8080", "tcp [::1]:22", "tcp 127.0.0.1:23"]);
        let table =
            format!("head\n 1: {loopback}:0035 00000000:0000 07 0\n 2: {loopback}:0000 00000000:0000 07 0\n");
        let ports: Vec<String> = bound_ports("udp", &table).map(|listener| listener.to_string()).collect();
        assert_eq!(ports, ["udp 127.0.0.1:53"]);
    }

    #[test]
    fn what_does_not_exist_is_named_through_no_link_either() {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        fs::create_dir(root.join("there")).unwrap();
        std::os::unix::fs::symlink("there", root.join("link")).unwrap();
        assert_eq!(real(&root.join("link/bin/x")), root.join("there/bin/x"));
        assert_eq!(real(&root.join("link/")), root.join("there"));
    }
}
