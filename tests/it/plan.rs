//! The plan: what it says for a policy and a host, and what holds for every
//! plan there can be.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use cellblock::host::{File, Host, Ids, Kind, Lookup, SystemEntry};
use cellblock::plan::landlock::rights;
use cellblock::plan::{self, Plan, Request, Step};
use cellblock::policy::{
    Access, Bind, Channel, Entry, Expose, ExposeKind, Layer, LockAccess, Mode, NetworkMode, Origin, Policy,
    Protect, ProtectMissing, System, Tmpfs, Workspace,
};
use cellblock::sys::fd::Identity;
use cellblock::sys::mount::{Attributes, NO_DEV, NO_EXEC, NO_SUID, READ_ONLY};
use proptest::prelude::*;

use crate::site::{Site, stderr};
use crate::skip;

/// A policy that asks for nothing.
fn nothing() -> Policy {
    Policy {
        mode: Mode::default(),
        cell: Default::default(),
        filesystem: Default::default(),
        run: Default::default(),
        channel: None,
        workspace: None,
        environment: Default::default(),
        network: Default::default(),
        seccomp: Default::default(),
        limits: Default::default(),
        require: Default::default(),
        accept: Vec::new(),
    }
}

fn origin() -> Origin {
    Origin("policy.toml:1".into())
}

fn view(src: &str, dest: &str) -> Bind {
    Bind { src: src.into(), dest: dest.into(), optional: false, overlay: false, origin: origin() }
}

fn memory(path: &str, size: Option<u64>) -> Tmpfs {
    Tmpfs { path: path.into(), size, origin: origin() }
}

fn exposure(path: &str, kind: ExposeKind, create: bool) -> Expose {
    Expose { path: path.into(), kind, create, origin: origin() }
}

fn entries(paths: &[&str]) -> Vec<Entry> {
    let entry = |path: &&str| Entry { path: path.into(), origin: origin() };
    paths.iter().map(entry).collect()
}

/// A host that has what the policy names: a name's first letter tells the kind,
/// and `g…` is gone.
fn host(policy: &Policy) -> Host {
    let inodes = std::cell::Cell::new(0);
    let file = |kind, character_device| {
        inodes.set(inodes.get() + 1);
        let identity = Identity { device: 1, inode: inodes.get() };
        Lookup::Found(File { identity, kind, character_device, is_on_proc: false, mode: 0o755, owner: 1000 })
    };
    let found = |kind| file(kind, None);
    let device = |path: &Path| {
        let of_every_cell = plan::DEVICES.iter().find(|(name, _)| path == Path::new("/dev").join(name));
        file(Kind::Device, of_every_cell.map(|(_, number)| *number))
    };
    let look_up = |path: &Path| match path.file_name().unwrap_or("/".as_ref()).as_encoded_bytes()[0] {
        _ if path.starts_with("/dev") => device(path),
        b'f' => found(Kind::File),
        b'p' => found(Kind::Fifo),
        b'g' => Lookup::Missing,
        _ => found(Kind::Directory),
    };
    let view = |path: &str, kind| match found(kind) {
        Lookup::Found(file) => SystemEntry::View(path.into(), file),
        _ => unreachable!(),
    };
    Host {
        repository: Default::default(),
        ids: Ids { uid: 1000, gid: 1000, started_by_root: false },
        landlock: 6,
        no_landlock: None,
        seccomp: true,
        system: match policy.filesystem.system {
            System::None => vec![],
            System::Minimal | System::Full => vec![
                ("/usr".into(), view("/usr", Kind::Directory)),
                ("/bin".into(), SystemEntry::Link("usr/bin".into())),
                ("/etc/ld.so.cache".into(), SystemEntry::Copy(b"cache".as_slice().into())),
                ("/etc/resolv.conf".into(), SystemEntry::Copy(b"nameserver".as_slice().into())),
                ("/etc/ssl".into(), view("/etc/ssl", Kind::Directory)),
            ],
        },
        own_filter: None,
        limits: Default::default(),
        refused: vec![],
        unreadable: vec![],
        links: vec![],
        salt: 0,
        beside: false,
        without_overlay: vec![],
        listings: BTreeMap::new(),
        files: plan::paths(policy)
            .into_iter()
            .map(|path| {
                let lookup = look_up(&path);
                (path, lookup)
            })
            .collect(),
    }
}

fn request() -> Request {
    Request {
        command: vec!["agent".into(), "--prompt".into(), "a b".into()],
        environment: BTreeMap::from([("TERM", "xterm"), ("SECRET", "s3cret")])
            .into_iter()
            .map(|(key, value)| (OsString::from(key), OsString::from(value)))
            .collect(),
        ..Request::default()
    }
}

/// Compares with `tests/snapshots/NAME`; `UPDATE_SNAPSHOTS=1` writes it.
fn snapshot(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        return fs::write(path, text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(text.lines()).position(|(a, b)| a != b);
    let line = differs.unwrap_or(kept.lines().count().min(text.lines().count()));
    assert!(
        kept == text,
        "{} differs at line {}:\n- {}\n+ {}\nUPDATE_SNAPSHOTS=1 writes it anew",
        path.display(),
        line + 1,
        kept.lines().nth(line).unwrap_or_default(),
        text.lines().nth(line).unwrap_or_default(),
    );
}

fn snapshots(name: &str, policy: &Policy, host: &Host) {
    let mut plan = plan::build(policy, host, &request()).unwrap();
    for step in &mut plan.provider {
        // Its length depends on the architecture and on every change of a filter.
        if let Step::InstallFilter { program, .. } = step {
            *program = [].as_slice().into();
        }
    }
    snapshot(&format!("{name}.txt"), &format!("{plan}\n"));
    snapshot(&format!("{name}.json"), &(plan.to_json() + "\n"));
}

#[test]
fn a_cell_without_a_policy() {
    let policy = nothing();
    snapshots("default", &policy, &host(&policy));
}

/// A policy with an entry of every kind.
fn everything() -> Policy {
    let mut policy = nothing();
    policy.cell.hostname = "r2".into();
    policy.cell.home = "/inst/runs/r2".into();
    policy.cell.workdir = Some("/inst/runs/r2".into());
    policy.filesystem.ro_bind = vec![
        view("/opt/toolchain", "/opt/toolchain"),
        Bind { optional: true, ..view("/opt/gone", "/opt/gone") },
    ];
    policy.filesystem.bind = vec![view("/srv/out", "/data")];
    policy.filesystem.tmpfs = vec![memory("/scratch", Some(512 << 20))];
    policy.run.expose = vec![
        exposure("/inst/runs/r2", ExposeKind::Directory, false),
        exposure("/inst/traces/gone.ndjson", ExposeKind::File, true),
    ];
    policy.channel = Some(Channel {
        dir: "/inst/chan/r2".into(),
        fifo: entries(&["/inst/chan/r2/pipe"]),
        lock: entries(&["/inst/chan/r2/flock"]),
        lock_access: LockAccess::None,
        read_only: entries(&["/inst/chan/r2/f.json", "/inst/discovery"]),
        execute: entries(&["/inst/chan/r2/fhelper"]),
        replaceable: false,
        origin: origin(),
    });
    policy.workspace = Some(Workspace {
        dir: "/home/me/repo".into(),
        at: "/work".into(),
        access: Access::ReadOnly,
        protect: Vec::new(),
        protect_missing: Default::default(),
        told: Default::default(),
        origin: origin(),
    });
    policy.environment.pass = vec!["TERM".into(), "NOT_THERE".into()];
    policy.environment.set = [("CODEX_HOME".into(), "/inst/runs/r2/codex".into())].into();
    policy
}

#[test]
fn a_policy_with_everything_started_by_root() {
    let policy = everything();
    let mut host = host(&policy);
    host.ids.started_by_root = true;
    snapshots("everything", &policy, &host);
    let plan = plan::build(&policy, &host, &request()).unwrap();
    let shown = format!("{plan}{}", plan.to_json());
    assert!(!shown.contains("xterm"), "values of variables are not shown");
    assert!(!shown.contains("SECRET"), "what is not passed is not named");
}

#[test]
fn a_nested_cell_on_the_hosts_network() {
    let mut policy = nothing();
    policy.mode = Mode::Nested;
    policy.network.mode = NetworkMode::Host;
    policy.filesystem.bind = vec![view("/srv/out", "/data")];
    snapshots("nested", &policy, &host(&policy));
}

#[test]
fn a_cell_that_lacks_layers() {
    let mut policy = nothing();
    policy.filesystem.system = System::None;
    policy.filesystem.ro_bind = vec![view("/srv/root/usr", "/usr")];
    policy.require.without = vec![Layer::Network];
    policy.require.allow_missing = vec![Layer::Landlock, Layer::Seccomp, Layer::Cgroup];
    let mut host = host(&policy);
    (host.landlock, host.seccomp) = (0, false);
    host.refused = vec![Layer::Cgroup];
    snapshots("layers-missing", &policy, &host);
}

#[test]
fn planning_changes_nothing() {
    let Some(site) = Site::new() else { return };
    if !skip::has_programs(&["strace"]) {
        return;
    }
    site.directory("own");
    site.file(
        "policy.toml",
        "version = 1\n[run]\nexpose = [\"own\", { path = \"made\", create = true }]\n",
        0o644,
    );
    let trace = site.file("trace", "", 0o644);
    let mut command = site.command("strace");
    command.args(["-f", "-qq", "-o"]).arg(&trace).arg(site.program()).args([
        "plan",
        "--policy",
        "policy.toml",
        "--",
        "true",
    ]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("bind {}", site.text("made"))), "{text}");
    assert!(text.ends_with("verified: no (this is what would be done)\n"));
    assert!(!site.path("made").exists(), "an exposure was made");

    /// What reads, and what a process does for itself alone.
    const HARMLESS: [&str; 40] = [
        "access",
        "arch_prctl",
        "brk",
        "close",
        "execve",
        "exit_group",
        "fcntl",
        "fstat",
        "fstatfs",
        "getcwd",
        "getdents64",
        "getegid",
        "geteuid",
        "getgid",
        "gettid",
        "getrandom",
        "getuid",
        "landlock_create_ruleset",
        "lseek",
        "lstat",
        "mmap",
        "mprotect",
        "munmap",
        "newfstatat",
        "poll",
        "prctl",
        "pread64",
        "prlimit64",
        "read",
        "readlink",
        "readlinkat",
        "rseq",
        "rt_sigaction",
        "rt_sigprocmask",
        "sched_getaffinity",
        "set_robust_list",
        "set_tid_address",
        "sigaltstack",
        "statx",
        "sysinfo",
    ];
    for line in fs::read_to_string(trace).unwrap().lines() {
        let call = line.split_whitespace().nth(1).unwrap_or_default();
        let name = call.split('(').next().unwrap();
        let harmless = match name {
            "openat" | "openat2" | "open" => {
                !["O_WRONLY", "O_RDWR", "O_CREAT"].iter().any(|flag| line.contains(flag))
            }
            "write" => call.starts_with("write(1,"),
            name => HARMLESS.contains(&name) || name.starts_with("+++"),
        };
        assert!(harmless, "{line}");
    }
}

#[test]
fn a_plan_as_json_is_the_plan_as_text() {
    let policy = everything();
    let plan = plan::build(&policy, &host(&policy), &request()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&plan.to_json()).unwrap();
    assert_eq!(json["verified"], false);
    assert_eq!(json["init"].as_array().unwrap().len(), plan.init.len());
    assert_eq!(json["provider"].as_array().unwrap().len(), plan.provider.len());
    let text = plan.to_string();
    let numbered = text.lines().filter(|line| {
        let number = line.split_whitespace().next();
        number.is_some_and(|number| number.parse::<usize>().is_ok())
    });
    assert_eq!(numbered.count(), plan.init.len() + plan.provider.len());
}

/// Places and sources, few and deep enough that they often meet.
const PATHS: [&str; 14] = [
    "/a",
    "/a/b",
    "/a/b/c",
    "/a/f",
    "/a/b/p",
    "/a/g",
    "/a/b/g",
    "/tmp/x",
    "/usr/x",
    "/etc/f",
    "/home/agent",
    "/home/agent/x",
    "/bin/x",
    "/var/tmp/x",
];

fn path() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&PATHS[..])
}

fn some<T: std::fmt::Debug>(of: impl Strategy<Value = T>, most: usize) -> impl Strategy<Value = Vec<T>> {
    prop::collection::vec(of, 0..=most)
}

prop_compose! {
    fn filesystem()(
        ro_bind in some((path(), path(), any::<bool>()), 3),
        bind in some((path(), path()), 2),
        tmpfs in some(path(), 2),
        expose in some((path(), any::<bool>(), any::<bool>()), 2),
        minimal in any::<bool>(),
    ) -> Policy {
        let mut policy = nothing();
        policy.filesystem.system = if minimal { System::Minimal } else { System::None };
        policy.filesystem.ro_bind = ro_bind
            .into_iter()
            .map(|(src, dest, optional)| Bind { optional, ..view(src, dest) })
            .collect();
        policy.filesystem.bind = bind.into_iter().map(|(src, dest)| view(src, dest)).collect();
        policy.filesystem.tmpfs = tmpfs.into_iter().map(|path| memory(path, None)).collect();
        policy.run.expose = expose
            .into_iter()
            .map(|(path, file, create)| {
                let kind = if file { ExposeKind::File } else { ExposeKind::Directory };
                exposure(path, kind, create)
            })
            .collect();
        policy
    }
}

/// A channel with an entry of each kind: what it holds is what the rights'
/// order is about.
fn channel() -> impl Strategy<Value = Option<Channel>> {
    let dirs = prop::sample::select(&["/a", "/a/b", "/chan", "/home/agent/chan"][..]);
    prop::option::of((dirs, any::<[bool; 6]>()).prop_map(|(dir, has)| {
        let below = |has: bool, name: &str| {
            let path = format!("{dir}/{name}");
            if has { entries(&[&path]) } else { vec![] }
        };
        Channel {
            dir: dir.into(),
            fifo: below(has[0], "p"),
            lock: below(has[1], "flock"),
            lock_access: if has[2] { LockAccess::Read } else { LockAccess::None },
            read_only: below(has[3], "dir"),
            execute: below(has[4], "fhelper"),
            replaceable: has[5],
            origin: origin(),
        }
    }))
}

prop_compose! {
    fn any_policy()(
        filesystem in filesystem(),
        channel in channel(),
        workspace in prop::option::of((path(), path(), any::<bool>(), any::<bool>())),
        protect in some(prop::sample::select(&["b", "b/c", "f", "g", "b/g"][..]), 2),
        hide in some(prop::option::weighted(0.3, path()), 2),
        nested in any::<bool>(),
        on_host in any::<bool>(),
        without in some(prop::sample::select(
            &[Layer::Landlock, Layer::Seccomp, Layer::Network][..]), 1),
    ) -> Policy {
        let mut policy = filesystem;
        policy.channel = channel;
        policy.workspace = workspace.map(|(dir, at, read_only, overlay)| Workspace {
            dir: dir.into(),
            at: at.into(),
            access: if read_only { Access::ReadOnly } else { Access::ReadWrite },
            protect: protect
                .iter()
                .map(|path| Protect { path: path.into(), is_directory: false, origin: origin() })
                .collect(),
            protect_missing: if overlay { ProtectMissing::Overlay } else { ProtectMissing::Sweep },
            told: Default::default(),
            origin: origin(),
        });
        policy.run.hide = entries(&hide.into_iter().flatten().collect::<Vec<_>>());
        if nested {
            policy.mode = Mode::Nested;
        }
        if on_host {
            policy.network.mode = NetworkMode::Host;
        }
        policy.require.without = without;
        policy.require.allow_missing = vec![Layer::LandlockScope];
        policy
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_plan_is_sound(
        policy in any_policy(),
        abi in 1u32..8,
        by_root in any::<bool>(),
        gate in any::<bool>(),
        terminal in any::<bool>(),
        without_overlay in any::<bool>(),
    ) {
        let mut host = host(&policy);
        if without_overlay {
            refuse_overlays(&policy, &mut host);
        }
        host.landlock = abi;
        host.ids.started_by_root = by_root;
        let request = Request { gate, terminal, ..request() };
        // What does not fit is refused, with a place and a reason.
        match plan::build(&policy, &host, &request) {
            Ok(plan) => {
                check_places(&plan, &policy, &host);
                check_hidden(&plan, &policy);
                check_protected(&plan, &policy, &host);
                check_attributes(&plan, &policy, &host);
                check_order(&plan, gate);
                check_rights(&plan, &policy);
                check_mode(&plan, &policy);
            }
            Err(error) => prop_assert!(error.what.starts_with("policy.toml:1: "), "{error}"),
        }
    }
}

/// As on a host whose kernel has no overlay: each view is built of what is in it.
fn refuse_overlays(policy: &Policy, host: &mut Host) {
    let mut places: Vec<PathBuf> = policy.filesystem.ro_bind.iter().map(|bind| bind.dest.clone()).collect();
    places.extend(policy.workspace.iter().map(|workspace| workspace.at.clone()));
    places.extend(policy.channel.iter().map(|channel| channel.dir.clone()));
    host.without_overlay = places;
    for directory in plan::to_list(policy, host) {
        let named = host.files.keys().filter(|path| path.parent() == Some(&directory));
        let names = named.filter_map(|path| path.file_name()).map(Into::into).collect();
        host.listings.insert(directory, names);
    }
}

/// A file system that takes `Kept/Secret` for `kept/secret`, and a mount of what
/// is above the secret below it.
#[test]
fn a_view_of_binds_hides_by_every_spelling() {
    let mut policy = nothing();
    policy.filesystem.ro_bind = vec![view("/srv/d", "/srv/d")];
    policy.run.hide = entries(&["/srv/d/Kept/Secret"]);
    let mut host = host(&policy);
    host.without_overlay = vec!["/srv/d".into()];
    let same = |host: &Host, path: &str| host.files[Path::new(path)].clone();
    let (kept, secret) = (same(&host, "/srv/d/Kept"), same(&host, "/srv/d/Kept/Secret"));
    let mut list = |directory: &str, entries: &[(&str, &Lookup)]| {
        let names = entries.iter().map(|(name, _)| name.into()).collect();
        host.listings.insert(directory.into(), names);
        for (name, lookup) in entries {
            host.files.insert(Path::new(directory).join(name), (*lookup).clone());
        }
    };
    let file = |inode| {
        let identity = Identity { device: 1, inode };
        let kind = Kind::File;
        Lookup::Found(File {
            identity,
            kind,
            character_device: None,
            is_on_proc: false,
            mode: 0o644,
            owner: 1000,
        })
    };
    list("/srv/d", &[("kept", &kept), ("open", &file(1001))]);
    list("/srv/d/Kept", &[("secret", &secret), ("loop", &kept), ("public", &file(1002))]);
    let plan = plan::build(&policy, &host, &request()).expect("a plan");
    let shown: Vec<PathBuf> = plan
        .init
        .iter()
        .filter_map(|step| match step {
            Step::Bind { path, .. } => Some(place(path)),
            _ => None,
        })
        .filter(|place| place.starts_with("/srv"))
        .collect();
    assert_eq!(shown, ["/srv/d/kept/public", "/srv/d/open"].map(PathBuf::from));
}

/// The overlays: where the view that each shows is put together, and its place.
fn overlays(plan: &Plan) -> BTreeMap<PathBuf, PathBuf> {
    let overlay = |step: &Step| match step {
        Step::Mount { options, path, .. } => {
            let (_, layers) = options.iter().find(|(key, _)| key.to_bytes() == b"lowerdir")?;
            let layers = layers.to_string();
            let over = layers.split(':').next().unwrap();
            Some((Path::new("/").join(over).with_file_name("view"), place(path)))
        }
        _ => None,
    };
    plan.init.iter().filter_map(overlay).collect()
}

/// No view shows what is hidden: something else is mounted there or above it, or
/// an overlay has a whiteout there or above it.
fn check_hidden(plan: &Plan, policy: &Policy) {
    let mounted: BTreeSet<PathBuf> = plan
        .init
        .iter()
        .filter_map(|step| match step {
            Step::Bind { path, .. } | Step::Mount { path, .. } | Step::Cover { path, .. } => {
                Some(place(path))
            }
            _ => None,
        })
        .collect();
    let whiteouts: BTreeSet<PathBuf> = plan
        .init
        .iter()
        .filter_map(|step| match step {
            Step::MakeWhiteout { path } => Some(place(path)),
            _ => None,
        })
        .collect();
    let overlays = overlays(plan);
    let own = policy.run.expose.iter().map(|expose| expose.path.clone());
    let own = own.chain(policy.channel.iter().map(|channel| channel.dir.clone()));
    let own: Vec<PathBuf> =
        own.chain(policy.workspace.iter().map(|workspace| workspace.dir.clone())).collect();
    for step in &plan.init {
        let Step::Bind { source, path, .. } = step else { continue };
        let (source, shown) = (PathBuf::from(source.to_string()), place(path));
        // What an overlay of the workspace needs beside it is taken away again.
        if shown.starts_with("/scratch") && shown.ends_with("around") {
            continue;
        }
        for hidden in &policy.run.hide {
            if source.starts_with(&hidden.path) {
                let is_own = own.iter().any(|own| source.starts_with(own) && own.starts_with(&hidden.path));
                let of_the_channel = policy.channel.as_ref().is_some_and(|channel| {
                    channel.read_only.iter().chain(&channel.execute).any(|entry| entry.path == source)
                });
                assert!(is_own || of_the_channel, "{step} is hidden\n{plan}");
                continue;
            }
            let Ok(below) = hidden.path.strip_prefix(&source) else { continue };
            let parts = || below.ancestors().filter(|part| *part != Path::new(""));
            let (over, at) = match overlays.get(&shown) {
                Some(at) => (Some(shown.with_file_name("over")), at),
                None => (None, &shown),
            };
            let white = over.is_some_and(|over| parts().any(|part| whiteouts.contains(&over.join(part))));
            let covered = parts().any(|part| mounted.contains(&at.join(part)));
            assert!(white || covered, "{step} shows {}\n{plan}", hidden.path.display());
        }
    }
    assert_eq!(plan.hidden.is_empty(), policy.run.hide.is_empty());
}

/// What is protected is a read-only mount of its own, or another view's.
fn check_protected(plan: &Plan, policy: &Policy, host: &Host) {
    let Some(workspace) = policy.workspace.as_ref().filter(|w| w.access == Access::ReadWrite) else { return };
    let by_overlay = workspace.protect_missing == ProtectMissing::Overlay;
    for protect in &workspace.protect {
        // The one that it lies in holds it too.
        if workspace
            .protect
            .iter()
            .any(|other| other.path != protect.path && protect.path.starts_with(&other.path))
        {
            continue;
        }
        let source = workspace.dir.join(&protect.path);
        if policy
            .run
            .hide
            .iter()
            .any(|hidden| hidden.path.starts_with(&workspace.dir) && source.starts_with(&hidden.path))
        {
            continue;
        }
        let at = workspace.at.join(&protect.path);
        let is_there = host.file(&workspace.dir.join(&protect.path)) != Lookup::Missing;
        let nearer =
            |place: &Path| at.starts_with(place) && place.starts_with(&workspace.at) && place != workspace.at;
        let holds = |step: &Step| match step {
            Step::Bind { path, attributes, source, .. } => {
                let is_another = Path::new(&source.to_string())
                    != workspace.dir.join(place(path).strip_prefix(&workspace.at).unwrap_or(&place(path)));
                nearer(&place(path)) && (attributes & READ_ONLY != 0 || is_another)
            }
            Step::Cover { path, attributes, .. } => nearer(&place(path)) && attributes & READ_ONLY != 0,
            Step::Mount { path, .. } => nearer(&place(path)),
            _ => false,
        };
        assert!(!(is_there || by_overlay) || plan.init.iter().any(holds), "{at:?}\n{plan}");
    }
}

/// What stands at a place while the tree is built.
#[derive(Clone, Debug, PartialEq)]
enum Stands {
    Directory,
    File,
    Link,
    View { source: PathBuf },
    Fresh { filesystem: String },
}

fn place(path: &plan::Text) -> PathBuf {
    Path::new("/").join(path.to_string())
}

/// Every place is made or found before something is made or mounted there, and
/// nothing is made by name in a view of the host.
fn check_places(plan: &Plan, policy: &Policy, host: &Host) {
    let workspace = policy.workspace.as_ref().map(|workspace| workspace.dir.clone()).unwrap_or_default();
    let mut tree = BTreeMap::from([(PathBuf::from("/"), Stands::Directory)]);
    let holder = |tree: &BTreeMap<PathBuf, Stands>, place: &Path| {
        let above = place.ancestors().skip(1);
        let mut above = above.filter_map(|above| Some((above.to_owned(), tree.get(above)?.clone())));
        above.next().expect("/ stands")
    };
    for step in &plan.init {
        let (path, stands) = match step {
            Step::MakeDirectory { path, .. } => (path, Stands::Directory),
            Step::MakeFile { path, .. } => (path, Stands::File),
            Step::MakeSymlink { path, .. } => (path, Stands::Link),
            Step::Bind { path, source, .. } => {
                let source = source.to_string().into();
                (path, Stands::View { source })
            }
            Step::Mount { path, options, .. }
                if options.iter().any(|(key, _)| key.to_bytes() == b"lowerdir") =>
            {
                let (_, layers) = &options[0];
                let over = place(&plan::Text::new(layers.to_string().split(':').next().unwrap()).unwrap());
                let view = over.with_file_name("view");
                // What the upper layer has is there too.
                let upper: Vec<PathBuf> =
                    tree.keys().filter_map(|made| made.strip_prefix(&over).ok()).map(Into::into).collect();
                let source = match tree.get(&view) {
                    Some(Stands::View { source }) => source.clone(),
                    _ => workspace.clone(),
                };
                for below in upper.iter().filter(|below| **below != Path::new("")) {
                    if host.file(&source.join(below)) == Lookup::Missing {
                        tree.insert(place(path).join(below), Stands::Directory);
                    }
                }
                (path, Stands::View { source })
            }
            Step::Mount { path, filesystem, .. } => {
                let filesystem = filesystem.to_string();
                (path, Stands::Fresh { filesystem })
            }
            Step::Cover { path, source, .. } => {
                let (source, place) = (place(source), place(path));
                let over_itself = source == place;
                let is_mask = source == Path::new("/dev/null");
                assert!(tree.contains_key(&source) || over_itself, "{step}");
                let around = holder(&tree, &place);
                let in_a_view = matches!(around.1, Stands::View { .. });
                let is_empty = place == Path::new("/dev/empty") && over_itself;
                let fits = is_empty || in_a_view && (over_itself || is_mask);
                assert!(fits, "{step} in {around:?}");
                continue;
            }
            Step::Detach { path } | Step::RemoveDirectory { path } => {
                tree.retain(|other, _| !other.starts_with(place(path)));
                continue;
            }
            _ => continue,
        };
        let place = place(path);
        let (above, held_by) = holder(&tree, &place);
        match stands {
            Stands::Directory | Stands::File | Stands::Link => {
                assert!(!tree.contains_key(&place), "{step}: it stands already");
                assert_eq!(Some(&*above), place.parent(), "{step}: nothing to make it in");
                let own = matches!(&held_by, Stands::Directory)
                    || matches!(&held_by, Stands::Fresh { filesystem } if filesystem == "tmpfs");
                assert!(own, "{step}: made in {held_by:?}");
            }
            Stands::View { .. } | Stands::Fresh { .. } => match tree.get(&place) {
                Some(there) => {
                    assert!(matches!(there, Stands::Directory | Stands::File), "{step}: mounted on {there:?}")
                }
                None => {
                    let Stands::View { source } = held_by else {
                        panic!("{step}: nothing to mount on in {held_by:?}");
                    };
                    let point = source.join(place.strip_prefix(above).unwrap());
                    let made_first = matches!(&stands, Stands::View { source }
                        if *source == point && host.file(&point) == Lookup::Missing);
                    assert!(
                        made_first || matches!(host.file(&point), Lookup::Found(_)),
                        "{step}: nothing to mount on at {point:?}"
                    );
                }
            },
        }
        tree.insert(place, stands);
    }
}

/// No view brings a device or a set-user-id program, and what was asked for
/// read-only is.
fn check_attributes(plan: &Plan, policy: &Policy, host: &Host) {
    let mut binds: BTreeMap<PathBuf, (PathBuf, Attributes)> = plan
        .init
        .iter()
        .filter_map(|step| match step {
            Step::Bind { source, path, attributes, .. } => {
                Some((place(path), (source.to_string().into(), *attributes)))
            }
            Step::Cover { source, path, attributes, .. } if source == path => {
                Some((place(path), (place(source), *attributes | NO_SUID | NO_DEV)))
            }
            _ => None,
        })
        .collect();
    for (view, at) in overlays(plan) {
        let shown = match binds.remove(&view) {
            Some(shown) => shown,
            // The workspace's, which is the upper layer.
            None => {
                let around = &binds.remove(&view.with_file_name("around")).unwrap();
                let workspace = policy.workspace.as_ref().unwrap();
                assert_eq!(Some(&*around.0), workspace.dir.parent());
                (workspace.dir.clone(), around.1)
            }
        };
        binds.insert(at, shown);
    }
    for (place, (_, attributes)) in &binds {
        let needed = match place.starts_with("/dev") {
            true => NO_SUID | NO_EXEC,
            false => NO_SUID | NO_DEV,
        };
        assert_eq!(attributes & needed, needed, "{place:?}");
    }
    for step in &plan.init {
        if let Step::Mount { attributes, path, .. } = step {
            assert_ne!(attributes & NO_SUID, 0, "{step}");
            assert!(attributes & NO_DEV != 0 || path.to_string() == "dev/pts", "{step}");
        }
    }
    let asked = |place: &Path, source: &Path, read_only: bool| {
        if !binds.contains_key(place) && host.without_overlay.iter().any(|other| place.starts_with(other)) {
            // Built of what is in it.
            return;
        }
        let (found, attributes) = &binds[place];
        assert_eq!((&**found, attributes & READ_ONLY != 0), (source, read_only), "{place:?}");
    };
    for bind in &policy.filesystem.ro_bind {
        if !bind.optional || host.file(&bind.src) != Lookup::Missing {
            asked(&bind.dest, &bind.src, true);
        }
    }
    for bind in &policy.filesystem.bind {
        asked(&bind.dest, &bind.src, false);
    }
    for expose in &policy.run.expose {
        asked(&expose.path, &expose.path, false);
    }
    if let Some(workspace) = &policy.workspace {
        let read_only = workspace.access == Access::ReadOnly;
        asked(&workspace.at, &workspace.dir, read_only);
    }
    if let Some(channel) = &policy.channel {
        asked(&channel.dir, &channel.dir, !channel.replaceable);
        let lists = [&channel.fifo, &channel.lock, &channel.read_only, &channel.execute];
        for entry in lists.into_iter().flatten() {
            asked(&entry.path, &entry.path, true);
        }
    }
}

/// Each layer is laid on when nothing after it needs what it takes.
fn check_order(plan: &Plan, gate: bool) {
    let at = |wanted: fn(&Step) -> bool| -> Vec<usize> {
        let steps = plan.init.iter().chain(&plan.provider).enumerate();
        steps.filter(|(_, step)| wanted(step)).map(|(at, _)| at).collect()
    };
    let all = [
        at(|step| matches!(step, Step::AwaitIdMaps | Step::WriteIdMap { .. })),
        at(|step| matches!(step, Step::SetIds { .. })),
        at(|step| matches!(step, Step::DieWithLauncher)),
        at(|step| matches!(step, Step::NewRoot)),
        at(|step| {
            matches!(
                step,
                Step::Bind { .. }
                    | Step::Mount { .. }
                    | Step::MakeDirectory { .. }
                    | Step::MakeFile { .. }
                    | Step::MakeSymlink { .. }
            )
        }),
        // /proc/sys is covered read-only after this.
        at(|step| matches!(step, Step::WriteSysctl { .. })),
        at(|step| matches!(step, Step::Cover { .. } | Step::Mask { .. })),
        at(|step| matches!(step, Step::Seal { path } if path.to_bytes() == b".")),
        at(|step| matches!(step, Step::PivotRoot)),
        at(|step| matches!(step, Step::DetachOldRoot)),
        at(|step| matches!(step, Step::SetHostname { .. } | Step::LoopbackUp)),
        at(|step| matches!(step, Step::ResetSignals | Step::NewSession { .. })),
        at(|step| matches!(step, Step::DropCapabilities)),
        at(|step| matches!(step, Step::ClearCommandLine | Step::ClearDumpable)),
        at(|step| matches!(step, Step::StartProvider)),
        at(|step| matches!(step, Step::NewProcessGroup { .. } | Step::SetDescriptors { .. })),
        at(|step| matches!(step, Step::SetLimit { .. } | Step::SetUmask { .. })),
        at(|step| matches!(step, Step::ChangeDirectory { .. })),
        at(|step| matches!(step, Step::NoNewPrivs)),
        at(|step| matches!(step, Step::CreateRuleset { .. })),
        at(|step| matches!(step, Step::AllowPath { .. })),
        at(|step| matches!(step, Step::RestrictSelf)),
        at(|step| matches!(step, Step::InstallFilter { .. })),
        at(|step| matches!(step, Step::WaitAtGate)),
        at(|step| matches!(step, Step::Execute)),
    ];
    let order: Vec<usize> = all.iter().flatten().copied().collect();
    assert!(order.is_sorted(), "{plan}");
    let last = plan.init.len() - 1;
    assert!(matches!(plan.init[last], Step::StartProvider));
    assert_eq!(plan.provider.last(), Some(&Step::Execute));
    let once = |step: fn(&Step) -> bool| assert_eq!(at(step).len(), 1, "{plan}");
    once(|step| matches!(step, Step::DieWithLauncher));
    once(|step| matches!(step, Step::DetachOldRoot));
    once(|step| matches!(step, Step::DropCapabilities));
    once(|step| matches!(step, Step::ClearDumpable));
    once(|step| matches!(step, Step::SetDescriptors { .. }));
    once(|step| matches!(step, Step::NoNewPrivs));
    let has_no_domain = plan.notes.iter().any(|note| note.starts_with("there is no Landlock domain"));
    let landlock = usize::from(plan.has(Layer::Landlock) && !has_no_domain);
    assert_eq!(at(|step| matches!(step, Step::CreateRuleset { .. })).len(), landlock);
    assert_eq!(at(|step| matches!(step, Step::RestrictSelf)).len(), landlock);
    let seccomp = usize::from(plan.has(Layer::Seccomp));
    assert_eq!(at(|step| matches!(step, Step::InstallFilter { .. })).len(), seccomp);
    assert_eq!(at(|step| matches!(step, Step::WaitAtGate)).len(), usize::from(gate));
}

/// Landlock adds up along a path: no rule stands on `/`, and none stands above
/// something that has fewer rights, but for what the notes own up to.
fn check_rights(plan: &Plan, policy: &Policy) {
    let rules: BTreeMap<PathBuf, BTreeSet<String>> = plan
        .provider
        .iter()
        .filter_map(|step| match step {
            Step::AllowPath { path, access } => {
                Some((path.to_string().into(), rights(*access).into_iter().collect()))
            }
            _ => None,
        })
        .collect();
    assert!(!rules.contains_key(Path::new("/")), "{plan}");
    let noted = |place: &Path| {
        let note = format!("{}: held by its mount alone", place.display());
        plan.notes.iter().any(|known| known.starts_with(&note))
    };
    // Rights that matter for a file; the others are a directory's own.
    let for_files = |rights: &BTreeSet<String>| -> BTreeSet<String> {
        let names = ["Execute", "ReadFile", "WriteFile", "Truncate"];
        let names = names.map(String::from);
        rights.iter().filter(|right| names.contains(right)).cloned().collect()
    };
    let above = |place: &Path| {
        let mut all = BTreeSet::new();
        for above in place.ancestors().skip(1) {
            all.extend(rules.get(above).map(for_files).unwrap_or_default());
        }
        all
    };
    for (place, rights) in &rules {
        let fewer = !above(place).is_subset(rights);
        assert!(!fewer || noted(place), "{} has less than above\n{plan}", place.display());
    }
    if let Some(channel) = policy.channel.as_ref().filter(|_| !rules.is_empty()) {
        for lock in &channel.lock {
            let own = rules.get(&lock.path).map(for_files).unwrap_or_default();
            let wanted: &[&str] = match channel.lock_access {
                LockAccess::None => &[],
                LockAccess::Read => &["ReadFile"],
            };
            let around = above(&lock.path);
            // What an entry around it grants already has no rule of its own.
            assert!(!around.is_empty() || own.iter().eq(wanted), "{plan}");
            assert!(around.is_empty() || noted(&lock.path), "{plan}");
        }
        for fifo in &channel.fifo {
            let own = rules.get(&fifo.path).map(for_files).unwrap_or_default();
            let around = above(&fifo.path);
            assert!(own.contains("WriteFile") || around.contains("WriteFile"), "{plan}");
            assert!(!own.contains("ReadFile"), "{plan}");
            assert!(around.is_empty() || noted(&fifo.path), "{plan}");
        }
    }
}

/// Sealed: every mask, and no namespace inside. Nested: no mask, and no file
/// right, both of which would keep the provider's own sandbox from being made.
fn check_mode(plan: &Plan, policy: &Policy) {
    let covered: BTreeSet<String> = plan
        .init
        .iter()
        .filter_map(|step| match step {
            Step::Mask { path } => Some(path.to_string()),
            _ => None,
        })
        .collect();
    let no_namespaces = plan.init.iter().any(|step| {
        matches!(step, Step::WriteSysctl { path, value }
        if path.to_string() == "proc/sys/user/max_user_namespaces" && value.to_string() == "0")
    });
    let sealed = policy.mode == Mode::Sealed;
    let masks = plan::PROC_MASKS.into_iter().filter(|_| sealed).map(|name| format!("proc/{name}"));
    assert_eq!(covered, masks.collect(), "{plan}");
    assert_eq!(no_namespaces, sealed, "{plan}");
    for step in &plan.provider {
        match step {
            Step::CreateRuleset { handled } => assert_eq!(handled.fs != 0, sealed, "{plan}"),
            Step::AllowPath { .. } => assert!(sealed, "{plan}"),
            _ => {}
        }
    }
    let network = plan.namespaces.contains(&plan::Namespace::Network);
    let wanted = policy.network.mode == NetworkMode::None && plan.has(Layer::Network);
    assert_eq!(network, wanted, "{plan}");
    assert_eq!(plan.init.contains(&Step::LoopbackUp), wanted, "{plan}");
}

#[test]
fn a_network_namespace_that_is_made_beside_init_is_entered_before_its_sysctls_are_written() {
    let policy = nothing();
    let host = Host { beside: true, ..host(&policy) };
    let plan = plan::build(&policy, &host, &request()).unwrap();
    let at = |wanted: &dyn Fn(&Step) -> bool| plan.init.iter().position(wanted).expect("a step");
    let started = at(&|step| *step == Step::StartNetwork);
    let entered = at(&|step| *step == Step::EnterNetwork);
    let written = |name: &'static str| {
        at(&move |step| matches!(step, Step::WriteSysctl { path, .. } if path.to_string().ends_with(name)))
    };
    assert!(started < at(&|step| *step == Step::NewRoot), "{plan}");
    assert!(entered < written("ip_unprivileged_port_start"), "{plan}");
    assert!(written("ns_last_pid") < at(&|step| *step == Step::DropCapabilities), "{plan}");
    assert!(!plan.init.contains(&Step::LoopbackUp), "{plan}");
    assert_eq!(plan.flags() & libc::CLONE_NEWNET, 0);
    assert!(plan.namespaces.contains(&plan::Namespace::Network));

    let mut policy = policy;
    policy.network.mode = NetworkMode::Host;
    let plan = plan::build(&policy, &host, &request()).unwrap();
    assert!(!plan.init.contains(&Step::StartNetwork) && !plan.init.contains(&Step::EnterNetwork), "{plan}");
}

#[test]
fn scopes_are_needed_wherever_the_cell_is_in_the_hosts_network() {
    type Change = fn(&mut Policy, &mut Host);
    let ways: [Change; 3] = [
        |policy, _| policy.network.mode = NetworkMode::Host,
        |policy, _| policy.require.without.push(Layer::Network),
        |policy, host| {
            host.refused.push(Layer::Network);
            policy.require.allow_missing.push(Layer::Network);
        },
    ];
    for (number, change) in ways.into_iter().enumerate() {
        for abi in [5, 6] {
            let mut policy = nothing();
            let mut host = Host { landlock: abi, ..host(&policy) };
            change(&mut policy, &mut host);
            let planned = plan::build(&policy, &host, &request()).map_err(|error| error.to_string());
            let is_refused = planned.is_err_and(|error| error.contains("--allow-missing landlock-scope"));
            assert_eq!(is_refused, abi < 6, "way {number}, ABI {abi}");
            policy.require.allow_missing.push(Layer::LandlockScope);
            assert!(plan::build(&policy, &host, &request()).is_ok(), "way {number}, ABI {abi}");
        }
    }
}

/// The waivers, and whether a ruleset has file rights and scopes.
type Domain = (Vec<String>, Option<(bool, bool)>);

/// What a host's Landlock comes to: the waivers, and what the ruleset handles;
/// or the cause of a refusal.
fn landlock_of(abi: u32, change: impl FnOnce(&mut Policy)) -> Result<Domain, String> {
    let mut policy = nothing();
    change(&mut policy);
    let host = Host { landlock: abi, ..host(&policy) };
    let plan = plan::build(&policy, &host, &request()).map_err(|error| error.to_string())?;
    let rulesets: Vec<_> = plan
        .provider
        .iter()
        .filter_map(|step| match step {
            Step::CreateRuleset { handled } => Some((handled.fs != 0, handled.scoped != 0)),
            _ => None,
        })
        .collect();
    let enters = plan.provider.contains(&Step::RestrictSelf);
    assert_eq!(rulesets.len(), usize::from(enters), "{plan}");
    assert!(rulesets.iter().all(|(files, scopes)| *files || *scopes), "an empty ruleset is ENOMSG");
    let names = |waiver: &plan::Waiver| format!("{} {:?}", waiver.layer.name(), waiver.reason);
    Ok((plan.waived.iter().map(names).collect(), rulesets.first().copied()))
}

#[test]
fn every_abi_mode_network_and_waiver_has_its_landlock() {
    let waivers: [&[Layer]; 4] =
        [&[], &[Layer::Landlock], &[Layer::LandlockScope], &[Layer::Landlock, Layer::LandlockScope]];
    for abi in 0..=8 {
        for (mode, network) in [
            (Mode::Sealed, NetworkMode::None),
            (Mode::Sealed, NetworkMode::Host),
            (Mode::Nested, NetworkMode::None),
            (Mode::Nested, NetworkMode::Host),
        ] {
            for allowed in waivers {
                let found = landlock_of(abi, |policy| {
                    (policy.mode, policy.network.mode) = (mode, network);
                    policy.require.allow_missing = allowed.to_vec();
                });
                let context = format!("ABI {abi}, {mode:?}, {network:?}, {allowed:?}: {found:?}");
                let sealed = mode == Mode::Sealed;
                let wants_scopes = !sealed || network == NetworkMode::Host;
                match abi {
                    0 if allowed.contains(&Layer::Landlock) => {
                        assert_eq!(found, Ok((vec!["landlock Missing".into()], None)), "{context}");
                    }
                    0 => assert!(found.unwrap_err().contains("this host has no Landlock"), "{context}"),
                    1..6 if !wants_scopes => {
                        assert_eq!(found, Ok((vec![], Some((true, false)))), "{context}")
                    }
                    1..6 if allowed.is_empty() => {
                        let error = found.clone().unwrap_err();
                        assert!(error.contains("--allow-missing landlock-scope"), "{context}");
                        assert!(error.contains("6.12") && !error.contains("lsm="), "{context}");
                    }
                    1..6 => {
                        let ruleset = sealed.then_some((true, false));
                        assert_eq!(found, Ok((vec!["landlock-scope Missing".into()], ruleset)), "{context}");
                    }
                    _ => assert_eq!(found, Ok((vec![], Some((sealed, true)))), "{context}"),
                }
            }
        }
    }
}

#[test]
fn an_older_landlock_than_required_is_refused_or_holds_as_far_as_it_goes() {
    let required = |policy: &mut Policy| policy.require.landlock = 99;
    let error = landlock_of(7, required).unwrap_err();
    assert!(error.contains("`landlock = 7`") && !error.contains("--allow-missing"), "{error}");
    let allowed = |policy: &mut Policy| {
        required(policy);
        policy.require.allow_missing = vec![Layer::Landlock];
    };
    assert_eq!(landlock_of(7, allowed), Ok((vec!["landlock Older".into()], Some((true, true)))));
    let without = |policy: &mut Policy| {
        policy.network.mode = NetworkMode::Host;
        policy.require.without = vec![Layer::Landlock];
    };
    assert_eq!(landlock_of(2, without), Ok((vec!["landlock Without".into()], None)));
}
