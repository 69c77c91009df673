//! What is asked from within.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::harness::Harness;
use super::scene::{Scene, View};
use super::{Canary, Check, Expect, sockets, text};
use crate::host::{File, Kind, Lookup, look_up};
use crate::mounts::join;
use crate::plan::{PROC_MASKS, Probe};
use crate::policy::{Access, Layer, LockAccess, ProtectMissing, ViewRole};

const NESTED_LOCK: &str = "in mode nested Landlock has no file rights, and the mount does not stop it";
const GRANTED_WHOLE: &str = "the channel is replaceable: what Landlock grants on it holds for all in it";
const NO_MASKS: &str = "in mode nested nothing of /proc is covered, or no inner one could be mounted";
/// What is said of a hidden path that is not there.
pub(super) const MISSING: &str = "the host has no such path now";
const NO_LISTING: &str = "in mode nested Landlock has no file rights; the names there are the cell's own";

/// Every check of this policy on this host.
pub(super) fn all(scene: &Scene) -> Vec<Check> {
    let mut checks = Vec::new();
    hidden(scene, &mut checks);
    siblings(scene, &mut checks);
    checks.extend(scene.request.checks.iter().cloned());
    canaries(scene, &mut checks);
    sockets::checks(scene, &mut checks);
    processes(scene, &mut checks);
    grants(scene, &mut checks);
    layers(scene, &mut checks);
    proc(scene, &mut checks);
    kernel(&mut checks);
    checks
}

/// What the launcher holds must not be found.
pub(super) fn of_harness(scene: &Scene, harness: &Harness) -> Vec<Check> {
    let mut checks = harness.checks();
    launchers(scene, harness, &mut checks);
    if let Some(name) = harness.queue() {
        for path in scene.queues().map(|mount| mount.join(name)) {
            unseen_at(scene, "harness:message-queue", &path, scene.places(&path), &mut checks);
        }
    }
    checks
}

/// A path of the host that must not be seen, at its own place and wherever a
/// view would show it.
fn unseen(scene: &Scene, name: &'static str, path: &Path, checks: &mut Vec<Check>) {
    let mut places = scene.places(path);
    places.extend(scene.parts(path));
    unseen_at(scene, name, path, places, checks);
}

fn unseen_at(
    scene: &Scene,
    name: &'static str,
    path: &Path,
    places: Vec<(PathBuf, &View)>,
    checks: &mut Vec<Check>,
) {
    let object = |place: &Path| match place == path {
        true => path.display().to_string(),
        false => format!("{}, at {}", path.display(), place.display()),
    };
    let own = places.iter().all(|(place, _)| place != path).then(|| (path.to_owned(), None));
    let places = places.into_iter().map(|(place, view)| (place, Some(view)));
    for (place, view) in own.into_iter().chain(places) {
        let mut below = children(scene, &place);
        // What a view shows is there by that view; without one, the cell has
        // something else of that name.
        let stands = below.remove(Path::new("")) || scene.shows(&place);
        let is_taken = stands && view.is_none();
        if !below.is_empty() && !is_taken {
            // What leads to the cell's own is there, and shows no more than that.
            let expect = Expect::AtMost(below.len() as i32);
            checks.push(Check::new(name, object(&place), expect, Probe::List { path: text(&place) }));
            continue;
        }
        let is_masked = view.is_some_and(|view| view.is_writable) && is_hidden(scene, path);
        let expect = match view {
            Some(_) if is_masked => Expect::Masked,
            None if is_taken || scene.has_own(path) => Expect::Other,
            _ => Expect::Denied,
        };
        let on_host = view.and_then(|view| Some(join(&view.source, place.strip_prefix(&view.place).ok()?)));
        let file = match expect {
            Expect::Denied => None,
            _ => found(on_host.as_deref().unwrap_or(path)),
        };
        let probe = Probe::Stat { path: text(&place), file: file.map(|file| file.identity) };
        checks.push(Check::new(name, object(&place), expect, probe));
        if is_masked && file.is_some_and(|file| file.kind == Kind::Directory) {
            checks.push(Check::new(
                name,
                object(&place),
                Expect::AtMost(0),
                Probe::List { path: text(&place) },
            ));
        }
    }
}

fn found(path: &Path) -> Option<File> {
    match look_up(path) {
        Lookup::Found(file) => Some(file),
        _ => None,
    }
}

fn is_hidden(scene: &Scene, path: &Path) -> bool {
    scene.policy.run.hide.iter().any(|entry| entry.path == path)
}

/// The names in `place` that lead to something of the cell's own; one name is
/// `place` itself, where something stands there.
fn children<'a>(scene: &'a Scene, place: &Path) -> BTreeSet<&'a Path> {
    let below = scene.own_places().filter_map(|own| own.strip_prefix(place).ok());
    below
        .map(|rest| rest.components().next().map_or(Path::new(""), |first| Path::new(first.as_os_str())))
        .collect()
}

fn hidden(scene: &Scene, checks: &mut Vec<Check>) {
    for entry in &scene.policy.run.hide {
        if look_up(&entry.path) == Lookup::Missing {
            let object = entry.path.display().to_string();
            checks.push(Check::untestable("run:hidden", object, MISSING));
        } else {
            unseen(scene, "run:hidden", &entry.path, checks);
        }
    }
}

/// As many neighbours of one directory are looked for.
const NEIGHBOURS: usize = 64;

/// What lies beside the run's own: other runs, most likely.
fn siblings(scene: &Scene, checks: &mut Vec<Check>) {
    let own = scene
        .views
        .iter()
        .filter(|view| matches!(view.role, ViewRole::Exposure | ViewRole::Channel | ViewRole::Workspace));
    let parents: BTreeSet<&Path> = own.filter_map(|view| view.source.parent()).collect();
    // What a view shows beside them is granted.
    let is_unseen = |parent: &&Path| *parent != Path::new("/") && !is_shown(scene, parent);
    for parent in parents.into_iter().filter(is_unseen) {
        let entries = match fs::read_dir(parent) {
            Ok(entries) => entries,
            Err(error) => {
                let why = format!("the run's user cannot list it on the host either: {}", error.kind());
                checks.push(Check::untestable("run:sibling", parent.display().to_string(), why));
                continue;
            }
        };
        let leads = |path: &Path| scene.views.iter().any(|view| view.source.starts_with(path));
        let neighbours = entries.flatten().map(|entry| entry.path());
        let neighbours = neighbours.filter(|path| !leads(path) && !scene.stands(path));
        for neighbour in neighbours.take(NEIGHBOURS) {
            let places = scene.places(&neighbour).into_iter().chain(scene.parts(&neighbour));
            // A view of its own is granted, by whatever name.
            let places = places.filter(|(place, view)| *place != view.place).collect();
            unseen_at(scene, "run:sibling", &neighbour, places, checks);
        }
        // A view of something else that has this place shows what is its own.
        let is_the_hosts = scene.places(parent).iter().any(|(place, _)| place == parent);
        if is_the_hosts || !scene.shows(parent) {
            let object = parent.display().to_string();
            let expect = Expect::AtMost(children(scene, parent).len() as i32);
            checks.push(Check::new("run:listing", object, expect, Probe::List { path: text(parent) }));
        }
    }
}

/// Whether a view shows the path, with nothing hidden between.
fn is_shown(scene: &Scene, path: &Path) -> bool {
    let hides = |view: &View| scene.policy.run.hides_in(&view.source, path);
    scene.views.iter().any(|view| path.starts_with(&view.source) && !hides(view))
}

fn canaries(scene: &Scene, checks: &mut Vec<Check>) {
    for path in &scene.canaries {
        let object = path.display().to_string();
        if look_up(path) == Lookup::Missing {
            checks.push(Check::untestable("canary:path", object, "the host has no such path"));
            continue;
        }
        unseen(scene, "canary:path", path, checks);
        // The run's own may lie in it; what else is shown of it is no more hidden than it.
        let parts = scene.views.iter().filter(|view| view.source != *path && view.source.starts_with(path));
        for view in parts.filter(|view| matches!(view.role, ViewRole::ReadOnly | ViewRole::Writable)) {
            let object = format!("{object}, of it {}, at {}", view.source.display(), view.place.display());
            let probe = Probe::Stat { path: text(&view.place), file: None };
            checks.push(Check::new("canary:path", object, Expect::Denied, probe));
        }
        let is_shown = scene.places(path).iter().any(|(place, _)| place == path);
        if is_shown || !scene.stands(path) && !scene.has_own(path) {
            let probe = Probe::Open { path: text(path), flags: libc::O_RDONLY };
            checks.push(Check::new("canary:path", object, Expect::Denied, probe));
        }
    }
    for canary in &scene.request.canaries {
        if let Canary::Port(port) = canary {
            port_of(*port, checks);
        }
    }
}

fn port_of(port: u16, checks: &mut Vec<Check>) {
    let patience = Duration::from_millis(200);
    let answers = |address: SocketAddr| TcpStream::connect_timeout(&address, patience).is_ok();
    let v4 = answers((Ipv4Addr::LOCALHOST, port).into());
    let v6 = answers((std::net::Ipv6Addr::LOCALHOST, port).into());
    for (there, v6, address) in [(v4, false, "127.0.0.1"), (v6, true, "[::1]")] {
        if there {
            let probe = Probe::ConnectTcp { port, v6 };
            checks.push(Check::new("canary:port", format!("{address}:{port}"), Expect::Denied, probe));
        }
    }
    if !v4 && !v6 {
        checks.push(Check::untestable("canary:port", port.to_string(), "nobody listens there on the host"));
    }
}

/// The launcher and its parent, each by its number or by that of a stand-in of
/// the same namespace.
fn launchers(scene: &Scene, harness: &Harness, checks: &mut Vec<Check>) {
    for (pid, signal, cmdline, environment) in [
        (std::process::id() as i32, "harness:signal", "harness:cmdline", "harness:environment"),
        (scene.parent, "harness:parent-signal", "harness:parent-cmdline", "harness:parent-environment"),
    ] {
        if pid == 0 {
            // It lives outside of the launcher's own PID namespace.
            continue;
        }
        let object = format!("process {pid}");
        let Some(found) = harness.process(pid) else {
            let why = "the cell has a process of that number itself";
            checks.push(Check::untestable(signal, object, why));
            continue;
        };
        let object = if found == pid { object } else { format!("process {found}, for {pid}") };
        checks.push(Check::new(signal, object, Expect::Denied, Probe::Signal { pid: found }));
        for (name, file) in [(cmdline, "cmdline"), (environment, "environ")] {
            let path = format!("/proc/{found}/{file}");
            let probe = Probe::Open { path: text(&path), flags: libc::O_RDONLY };
            checks.push(Check::new(name, path, Expect::Denied, probe));
        }
    }
}

fn processes(scene: &Scene, checks: &mut Vec<Check>) {
    let init = Probe::Stat { path: c"/proc/1".into(), file: None };
    checks.push(Check::new("init:hidden", "/proc/1", Expect::Denied, init));
    checks.push(Check::new("harness:processes", "/proc", Expect::AtMost(0), Probe::Processes));
    if let Some(directory) = &scene.directory {
        unseen_at(scene, "harness:directory", directory, scene.places(directory), checks);
    }
}

/// What the policy grants must work, and no more than that.
fn grants(scene: &Scene, checks: &mut Vec<Check>) {
    for view in &scene.views {
        match (view.role, view.kind) {
            (ViewRole::System, _) | (_, Kind::Device | Kind::Socket) => {}
            (ViewRole::ReadOnly | ViewRole::Workspace, _) if !view.is_writable => {
                let (readable, changed) = match view.role {
                    ViewRole::ReadOnly => ("view:readable", "view:read-only"),
                    _ => ("workspace:readable", "workspace:read-only"),
                };
                checks
                    .extend([readable_check(readable, view), writable_check(changed, view, Expect::Denied)]);
            }
            (ViewRole::ReadOnly | ViewRole::Writable | ViewRole::Exposure | ViewRole::Workspace, _) => {
                let (readable, writable) = match view.role {
                    ViewRole::Writable => ("view:readable", "view:writable"),
                    ViewRole::Exposure => ("run:exposure-readable", "run:exposure-writable"),
                    _ => ("workspace:readable", "workspace:writable"),
                };
                checks
                    .extend([readable_check(readable, view), writable_check(writable, view, Expect::Works)]);
            }
            (ViewRole::Channel, _) => {
                let expect = if view.is_writable { Expect::Works } else { Expect::Denied };
                checks.push(writable_check("channel:entries", view, expect));
            }
            (ViewRole::Fifo, _) => fifo(scene, view, checks),
            (ViewRole::Lock, _) => {
                let may_read = scene.policy.channel.as_ref().map(|channel| channel.lock_access);
                let read = match may_read {
                    Some(LockAccess::Read) => Expect::Works,
                    _ => unread(scene),
                };
                checks.push(open("channel:lock-read", view, libc::O_RDONLY, read));
                checks.push(open("channel:lock-write", view, libc::O_WRONLY, Expect::Denied));
            }
            (ViewRole::Read | ViewRole::Execute, _) => {
                checks.push(readable_check("channel:readable", view));
                checks.push(writable_check("channel:read-only", view, Expect::Denied));
                if view.role == ViewRole::Execute && view.kind == Kind::File {
                    let probe = Probe::Access { path: text(&view.place), mode: libc::X_OK };
                    let object = view.place.display().to_string();
                    checks.push(Check::new("channel:executable", object, Expect::Works, probe));
                }
            }
        }
        elsewhere(scene, view, checks);
    }
    protected(scene, checks);
    ungranted(scene, checks);
}

/// A part of the channel that another view shows too has the rights of that view
/// there.
fn elsewhere(scene: &Scene, view: &View, checks: &mut Vec<Check>) {
    let may_read = scene.policy.channel.as_ref().is_some_and(|it| it.lock_access == LockAccess::Read);
    for (place, _) in scene.places(&view.source).into_iter().filter(|(place, _)| *place != view.place) {
        let other = View { place, ..view.clone() };
        let read = |name| open(name, &other, libc::O_RDONLY, Expect::Denied);
        match view.role {
            ViewRole::Fifo => checks.push(read("channel:fifo-read")),
            ViewRole::Lock => {
                checks.extend((!may_read).then(|| read("channel:lock-read")));
                checks.push(open("channel:lock-write", &other, libc::O_WRONLY, Expect::Denied));
            }
            ViewRole::Read | ViewRole::Execute => {
                checks.push(writable_check("channel:read-only", &other, Expect::Denied));
            }
            _ => {}
        }
    }
}

/// What else lies in the channel's directory must not be had, unless that is
/// granted whole. In a sealed cell its name shows, and Landlock holds the rest.
fn ungranted(scene: &Scene, checks: &mut Vec<Check>) {
    let Some(channel) = scene.policy.channel.as_ref().filter(|channel| !channel.replaceable) else { return };
    let entries: io::Result<Vec<PathBuf>> = fs::read_dir(&channel.dir)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect());
    let entries = match entries {
        Ok(entries) => entries.into_iter(),
        Err(error) => {
            let object = channel.dir.display().to_string();
            let why = format!("the run's user cannot list it on the host: {}", error.kind());
            return checks.push(Check::untestable("channel:ungranted", object, why));
        }
    };
    let others = entries.filter(|path| children(scene, path).is_empty());
    for place in others.take(NEIGHBOURS) {
        let path = text(&place);
        let probe = match found(&place).map(|file| file.kind) {
            _ if !scene.is_sealed() => Probe::Stat { path, file: None },
            Some(Kind::Directory) => Probe::List { path },
            Some(Kind::File) => Probe::Open { path, flags: libc::O_RDONLY },
            // To open a FIFO is to be noticed; a socket is tried as one in a view.
            _ => continue,
        };
        checks.push(Check::new("channel:ungranted", place.display().to_string(), Expect::Denied, probe));
    }
}

fn open(name: &'static str, view: &View, flags: i32, expect: Expect) -> Check {
    let probe = Probe::Open { path: text(&view.place), flags };
    Check::new(name, view.place.display().to_string(), expect, probe)
}

fn readable_check(name: &'static str, view: &View) -> Check {
    match view.kind {
        Kind::Directory => {
            let probe = Probe::List { path: text(&view.place) };
            Check::new(name, view.place.display().to_string(), Expect::Works, probe)
        }
        _ => open(name, view, libc::O_RDONLY, Expect::Works),
    }
}

fn writable_check(name: &'static str, view: &View, expect: Expect) -> Check {
    match view.kind {
        Kind::Directory => {
            let probe = Probe::Make { path: text(&view.place) };
            Check::new(name, view.place.display().to_string(), expect, probe)
        }
        _ => open(name, view, libc::O_WRONLY, expect),
    }
}

fn fifo(scene: &Scene, view: &View, checks: &mut Vec<Check>) {
    let object = view.place.display().to_string();
    // A reader takes the end of the tester for the end of the provider.
    let write = match scene.request.runs {
        true => Probe::Access { path: text(&view.place), mode: libc::W_OK },
        false => Probe::Open { path: text(&view.place), flags: libc::O_WRONLY },
    };
    checks.push(Check::new("channel:fifo-write", object, Expect::Works, write));
    checks.push(open("channel:fifo-read", view, libc::O_RDONLY, unread(scene)));
}

/// A channel's lock and FIFO are not read, where Landlock can take that away.
fn unread(scene: &Scene) -> Expect {
    match scene.policy.channel.as_ref().is_some_and(|channel| channel.replaceable) {
        _ if !scene.is_sealed() => Expect::Limit(NESTED_LOCK),
        true => Expect::Limit(GRANTED_WHOLE),
        false => Expect::Denied,
    }
}

/// What of a writable workspace must stay as it is, as far as it is there.
fn protected(scene: &Scene, checks: &mut Vec<Check>) {
    let Some(workspace) = &scene.policy.workspace else { return };
    if workspace.access == Access::ReadOnly {
        return;
    }
    for protect in &scene.protected {
        let source = workspace.dir.join(&protect.path);
        let kind = match found(&source) {
            Some(file) => file.kind,
            None if workspace.protect_missing != ProtectMissing::Overlay => continue,
            None if protect.is_directory => Kind::Directory,
            None => Kind::File,
        };
        // Another view that can be written is another way to it.
        let places = scene.places(&source).into_iter().chain(scene.parts(&source));
        for (place, _) in places.filter(|(_, view)| view.is_writable) {
            let path = text(&place);
            let probe = match kind {
                Kind::Directory => Probe::Make { path },
                Kind::File => Probe::Open { path, flags: libc::O_WRONLY },
                // What is written to these is nothing that is kept there.
                Kind::Fifo | Kind::Socket | Kind::Device => Probe::WritableMount { path },
            };
            checks.push(Check::new(
                "workspace:protected",
                place.display().to_string(),
                Expect::Denied,
                probe,
            ));
        }
    }
}

fn layers(scene: &Scene, checks: &mut Vec<Check>) {
    let root = if scene.is_sealed() { Expect::Denied } else { Expect::Limit(NO_LISTING) };
    checks.push(Check::new("landlock:root-listing", "/", root, Probe::List { path: c"/".into() }));
    let is_filtered = |layer| !scene.policy.require.without.contains(&layer);
    // With a filter of the user's own alone, nobody knows what that refuses.
    if is_filtered(Layer::Seccomp) || scene.policy.seccomp.file.is_none() {
        checks.push(Check::new("seccomp:refused-call", "pidfd_getfd", Expect::Denied, Probe::RefusedCall));
    }
    if scene.is_sealed() {
        let probe = Probe::UserNamespace;
        checks.push(Check::new("seccomp:user-namespace", "unshare", Expect::Denied, probe));
    } else {
        checks.push(Check::new("nested:user-namespace", "unshare", Expect::Works, Probe::UserNamespace));
    }
}

/// What of `/proc` speaks of the host or commands it.
fn proc(scene: &Scene, checks: &mut Vec<Check>) {
    if !scene.is_sealed() {
        let probe = Probe::Open { path: c"/proc/cmdline".into(), flags: libc::O_RDONLY };
        checks.push(Check::new("proc:masked", "/proc", Expect::Limit(NO_MASKS), probe));
        return;
    }
    for name in PROC_MASKS {
        let path = Path::new("/proc").join(name);
        let probe = Probe::Uncovered { path: text(&path) };
        checks.push(Check::new("proc:masked", path.display().to_string(), Expect::Covered, probe));
    }
    let probe = Probe::WritableMount { path: c"/proc/sys".into() };
    checks.push(Check::new("proc:read-only", "/proc/sys", Expect::Denied, probe));
}

/// What every cell shows of the machine.
fn kernel(checks: &mut Vec<Check>) {
    for (name, path, words) in [
        (
            "kernel:boot-id",
            "/proc/sys/kernel/random/boot_id",
            "the same in all cells of one boot; nothing covers it",
        ),
        (
            "kernel:loadavg",
            "/proc/loadavg",
            "it counts the host's threads, and tells how busy the machine is",
        ),
    ] {
        let probe = Probe::Open { path: text(path), flags: libc::O_RDONLY };
        checks.push(Check::new(name, path, Expect::Limit(words), probe));
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::CellOptions;
    use crate::host::{Host, Ids};
    use crate::policy::System;
    use crate::policy::load::load;
    use crate::verify::Request;

    /// The checks of a policy that hides runs and secrets of an instance, as
    /// `name object probe expectation`.
    fn checks(options: CellOptions) -> Vec<String> {
        checks_in(|_| options)
    }

    fn checks_in(options: impl FnOnce(&Path) -> CellOptions) -> Vec<String> {
        // Not in /tmp, which every cell has for itself.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        for name in ["inst/runs/a", "inst/runs/b", "inst/secrets", "inst/tool"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let hide = ["inst/runs", "inst/secrets"].map(Into::into).to_vec();
        let options = CellOptions { hide, ..options(dir.path()) };
        let policy = load(&options, &|_| None, dir.path()).unwrap();
        let host = Host::probe(Ids::default(), System::None, None, crate::plan::paths(&policy));
        let request = Request::default();
        let scene = Scene::new(&request, &policy, &host).unwrap();
        let mut checks = Vec::new();
        hidden(&scene, &mut checks);
        siblings(&scene, &mut checks);
        let root = format!("{}/", dir.path().display());
        let lines = checks.into_iter().map(|check| {
            let probe = check.probe.map(|probe| format!("{probe:?}")).unwrap_or_default();
            let kind = probe.split(' ').next().unwrap_or_default();
            format!("{} {} {kind} {:?}", check.name, check.object.replace(&root, ""), check.expect)
        });
        lines.collect()
    }

    #[test]
    fn below_a_read_only_view_hidden_paths_and_neighbours_are_absent() {
        let expected = [
            "run:hidden inst/runs List AtMost(1)",
            "run:hidden inst/secrets Stat Denied",
            "run:sibling inst/runs/b Stat Denied",
            "run:listing inst/runs List AtMost(1)",
        ];
        let expose = || vec!["inst/runs/a".into()];
        let ro_bind = vec![OsString::from("inst")];
        assert_eq!(checks(CellOptions { ro_bind, expose: expose(), ..CellOptions::default() }), expected);
        // Outside of every view it is an assertion.
        assert_eq!(checks(CellOptions { expose: expose(), ..CellOptions::default() }), expected);
    }

    #[test]
    fn below_a_writable_view_a_mask_may_show() {
        let bind = vec![OsString::from("inst:/opt/inst")];
        let found = checks(CellOptions { bind, ..CellOptions::default() });
        let expected = [
            "run:hidden inst/runs Stat Denied",
            "run:hidden inst/runs, at /opt/inst/runs Stat Masked",
            "run:hidden inst/runs, at /opt/inst/runs List AtMost(0)",
            "run:hidden inst/secrets Stat Denied",
            "run:hidden inst/secrets, at /opt/inst/secrets Stat Masked",
            "run:hidden inst/secrets, at /opt/inst/secrets List AtMost(0)",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_view_may_have_the_name_of_what_is_hidden() {
        let tool = |dir: &Path| OsString::from(format!("inst/tool:{}/inst/secrets", dir.display()));
        let found = checks_in(|dir| CellOptions { ro_bind: vec![tool(dir)], ..CellOptions::default() });
        let expected = ["run:hidden inst/runs Stat Denied", "run:hidden inst/secrets Stat Other"];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_lies_beside_a_workspace_in_a_view_is_granted() {
        let (ro_bind, workspace) = (vec![OsString::from("inst")], Some("inst/tool".into()));
        let found = checks(CellOptions { ro_bind, workspace, ..CellOptions::default() });
        assert_eq!(found, ["run:hidden inst/runs Stat Denied", "run:hidden inst/secrets Stat Denied"]);
    }
}
