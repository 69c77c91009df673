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
use super::set_gid::SetGid;
use super::views::Views;
use crate::host::{Host, Ids, Lookup, worktree};
use crate::policy::Policy;
use crate::sockets;
use crate::sys::{Errno, errno, landlock};

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
    /// The tree where programs set the set-group-id bit, which the filter refuses.
    pub set_gid: Option<SetGid>,
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
    /// What could not be looked at.
    pub unread: Vec<Unread>,
}

/// A file of the host that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Its path.
    pub path: String,
    /// Why.
    pub why: Errno,
    /// What is not known for that reason.
    pub unknown: Unknown,
}

/// What a file of the host would have told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Which sockets somebody listens on.
    Sockets,
    /// Which ports somebody listens on.
    Ports,
    /// Whether this is the machine of a cloud.
    Cloud,
    /// The home of the run's user.
    Home,
    /// The names of the groups that the cell keeps.
    Groups,
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
    pub(super) fn at_start(policy: &Policy, host: &Host) -> Facts {
        let homes = homes(Some(host.ids), &mut Vec::new());
        let views = Views::of(policy);
        let is_shown = |path: &PathBuf| views.all.iter().any(|view| views.shows(view, path));
        let credentials = in_homes(&homes, &CREDENTIALS).filter(is_shown).filter(|path| path.exists());
        let is_missing = |path: &&PathBuf| host.files.get(*path) == Some(&Lookup::Missing);
        let hidden = policy.run.hide.iter().map(|hidden| &hidden.path);
        Facts {
            credentials: credentials.collect(),
            harness: harness(),
            missing: hidden.filter(is_missing).cloned().collect(),
            homes,
            ..Facts::default()
        }
    }

    /// Looks at the host, for a policy. `policies` are the policy files that were named, `ids` who
    /// the cell would run as, where that is known. What cannot be read is in `unread`.
    pub fn probe(policy: &Policy, policies: &[PathBuf], ids: Option<Ids>) -> Facts {
        let mut unread = Vec::new();
        let homes = homes(ids, &mut unread);
        Facts {
            landlock: landlock::abi(),
            path: path_directories(),
            harness: harness(),
            policy_files: policies.iter().filter_map(|path| fs::canonicalize(path).ok()).collect(),
            missing: missing(policy),
            repository: worktree::unseen(policy),
            set_gid: SetGid::probe(policy),
            sockets: sockets(&homes, &mut unread),
            credentials: in_homes(&homes, &CREDENTIALS).filter(|path| path.exists()).collect(),
            listeners: listeners(&mut unread),
            groups: groups(ids, &mut unread),
            cloud: cloud(&mut unread),
            homes,
            unread,
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

/// Reads a file of the host.
fn read(path: &str, unknown: Unknown, unread: &mut Vec<Unread>) -> Option<String> {
    let content = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    content.map_err(|error| unread.push(Unread { path: path.to_owned(), why: errno(&error), unknown })).ok()
}

/// As [`read`], of a file whose absence says that there is nothing.
fn read_if_there(path: &str, unknown: Unknown, unread: &mut Vec<Unread>) -> Option<String> {
    let content = read(path, unknown, unread);
    unread.pop_if(|last| last.path == path && last.why == Errno::ENOENT);
    content
}

fn homes(ids: Option<Ids>, unread: &mut Vec<Unread>) -> Vec<PathBuf> {
    let own = std::env::var_os("HOME").map(PathBuf::from);
    let of_the_run = ids.and_then(|ids| {
        // Not by getpwuid(3), which a static program cannot do without loading libraries.
        let users = read_if_there("/etc/passwd", Unknown::Home, unread)?;
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

/// What the kernel's table has, and what stands at well-known places: a socket that
/// was bound in another network namespace is in no table that can be read here.
fn sockets(homes: &[PathBuf], unread: &mut Vec<Unread>) -> Vec<Socket> {
    let table = sockets::table().unwrap_or_else(|error| {
        let (path, why) = (sockets::TABLE.to_owned(), errno(&error));
        unread.push(Unread { path, why, unknown: Unknown::Sockets });
        Vec::new()
    });
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

fn listeners(unread: &mut Vec<Unread>) -> BTreeSet<Listener> {
    let mut listeners = BTreeSet::new();
    for protocol in ["tcp", "udp"] {
        let path = format!("/proc/self/net/{protocol}");
        let four = read(&path, Unknown::Ports, unread);
        // Absent where the kernel has no IPv6.
        let six = four.as_ref().and_then(|_| read_if_there(&format!("{path}6"), Unknown::Ports, unread));
        for table in four.iter().chain(&six) {
            listeners.extend(bound_ports(protocol, table));
        }
    }
    listeners
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
fn groups(ids: Option<Ids>, unread: &mut Vec<Unread>) -> Vec<String> {
    let supplementary = match ids {
        Some(ids) if !ids.started_by_root => getgroups().unwrap_or_default(),
        _ => Vec::new(),
    };
    let own: BTreeSet<u32> =
        ids.map(|ids| ids.gid).into_iter().chain(supplementary.iter().map(|gid| gid.as_raw())).collect();
    // Not by getgrgid(3), which a static program cannot do without loading libraries.
    let table = read_if_there("/etc/group", Unknown::Groups, unread).unwrap_or_default();
    let groups = table.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?, fields.nth(1)?.parse::<u32>().ok()?))
    });
    groups.filter(|(_, gid)| own.contains(gid)).map(|(name, _)| name.to_owned()).collect()
}

/// Whose machine it is, by what the firmware says.
fn cloud(unread: &mut Vec<Unread>) -> Option<&'static str> {
    const CLOUDS: [(&str, &str, &str); 6] = [
        ("sys_vendor", "Amazon EC2", "Amazon EC2"),
        ("product_name", "Google Compute Engine", "Google Compute Engine"),
        // Azure's alone; the vendor is that of every Hyper-V guest.
        ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77", "Azure"),
        ("sys_vendor", "DigitalOcean", "DigitalOcean"),
        ("sys_vendor", "Hetzner", "Hetzner"),
        ("chassis_asset_tag", "OracleCloud.com", "Oracle Cloud"),
    ];
    // Not every machine has the firmware's table; every sysfs has this directory.
    const SYSFS: &str = "/sys/class";
    if let Err(error) = fs::metadata(SYSFS) {
        unread.push(Unread { path: SYSFS.to_owned(), why: errno(&error), unknown: Unknown::Cloud });
    }
    let mut is = |(file, words, _): &(&str, &str, &str)| {
        let said = read_if_there(&format!("{SYSFS}/dmi/id/{file}"), Unknown::Cloud, unread);
        said.is_some_and(|said| said.trim() == *words)
    };
    CLOUDS.into_iter().find(|cloud| is(cloud)).map(|(_, _, name)| name)
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
