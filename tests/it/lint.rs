//! `policy check`: the ways out that a policy leaves open, by plain facts and
//! by what there is on this host.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cellblock::cli::{self, CellOptions, PolicyCommand};
use cellblock::lint::{
    Facts, HarnessDirectory, Listener, Role, Service, SetGid, Socket, Unknown, Unread, Warning, lint,
};
use cellblock::policy::{Policy, load::load};
use cellblock::sys::Errno;

use super::site::{Site, stderr};
use super::user::is_root;

fn options(words: &[&str]) -> CellOptions {
    let start = ["cellblock", "policy", "check"];
    let words: Vec<OsString> = start.iter().chain(words).map(OsString::from).collect();
    match cli::parse(words, |fd| panic!("descriptor {fd} is read")).unwrap().command {
        cli::Command::Policy(PolicyCommand::Check(check)) => check.0.cell,
        other => panic!("{other:?}"),
    }
}

fn flags(words: &[&str]) -> Policy {
    load(&options(words), &|_| None, Path::new("/here")).unwrap()
}

fn text(text: &str) -> Policy {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.toml");
    fs::write(&path, format!("version = 1\n{text}")).unwrap();
    flags(&["--policy", path.to_str().unwrap()])
}

fn names(policy: &Policy, facts: &Facts) -> Vec<&'static str> {
    lint(policy, facts).into_iter().map(|warning| warning.name).collect()
}

/// A host where each rule finds something to look at.
fn host() -> Facts {
    let socket = |path: &str| Socket { path: path.into(), service: Service::of(path.as_ref()) };
    let directory = |path: &str, role| HarnessDirectory { path: path.into(), role };
    let listener =
        |protocol, address: &str, port| Listener { protocol, address: address.parse().unwrap(), port };
    Facts {
        landlock: 7,
        homes: vec!["/home/me".into()],
        path: ["/usr/local/bin", "/usr/bin", "/home/me/.local/bin"].map(PathBuf::from).into(),
        harness: vec![
            directory("/opt/harness/bin", Role::ParentsProgram),
            directory("/opt/cellblock", Role::Launcher),
            directory("/srv/harness", Role::WorkingDirectory),
        ],
        policy_files: vec!["/srv/harness/cell.toml".into()],
        missing: vec!["/srv/instance/x/none".into()],
        repository: None,
        set_gid: None,
        sockets: vec![socket("/run/docker.sock"), socket("/srv/instance/run/control.sock")],
        credentials: ["/home/me/.aws", "/home/me/.codex/auth.json"].map(PathBuf::from).into(),
        listeners: [
            listener("tcp", "127.0.0.1", 8080),
            listener("tcp", "0.0.0.0", 22),
            listener("udp", "192.0.2.1", 53),
        ]
        .into(),
        groups: vec!["me".into()],
        cloud: None,
        unread: Vec::new(),
    }
}

#[test]
fn a_sound_policy_gives_no_warning() {
    for words in [
        &[][..],
        &["--workspace", "/srv/repo", "--expose", "/srv/instance/runs/r2", "--channel", "/srv/instance/chan"],
        // Somebody works where they stand, and says so.
        &["--workspace", "/srv/harness/repo"],
        &["--ro-bind", "/opt/toolchain", "--env", "TERM", "--env", "RUN_ID=r2", "--tmpfs", "/scratch"],
        &["--profile", "codex", "--var", "state=/srv/instance/runs/r2/codex"],
    ] {
        assert_eq!(lint(&flags(words), &host()), [], "{words:?}");
    }
}

#[test]
fn each_way_out_has_its_warning() {
    for (words, expected) in [
        (&["--ro-bind", "/run"][..], &["socket-in-view"][..]),
        (&["--ro-bind", "/run/docker.sock:/var/run/docker.sock"], &["socket-in-view"]),
        (&["--workspace", "/srv/instance:ro"], &["socket-in-view"]),
        (&["--expose", "/srv/instance/run"], &["socket-in-view"]),
        (&["--channel", "/srv/instance/run"], &["socket-in-view"]),
        (&["--bind", "/usr/local:/data"], &["writable-path"]),
        (&["--bind", "/usr/bin"], &["writable-path", "writable-cell-path"]),
        // It is not there yet, and can be made.
        (&["--bind", "/home/me/.local"], &["writable-path", "writable-startup"]),
        (&["--bind", "/srv/tools:/usr/local/bin"], &["writable-cell-path"]),
        (&["--bind", "/srv/a:/a", "--env", "PATH=/bin:/a/bin"], &["writable-cell-path"]),
        (&["--ro-bind", "/srv/instance/x", "--hide", "/srv/instance/x/none"], &["hidden-missing"]),
        (&["--ro-bind", "/srv/instance/y", "--hide", "/srv/instance/x/none"], &["hidden-missing"]),
        // An exposure in it shows that the name is meant; one beside it does not.
        (&["--hide", "/srv/instance/x/none", "--expose", "/srv/instance/x/none/own"], &[]),
        (&["--hide", "/srv/instance/x/none", "--expose", "/srv/instance/x/nonesuch"], &["hidden-missing"]),
        (&["--ro-bind", "/home"], &["home-in-view", "credentials-in-view"]),
        (
            &["--workspace", "/home/me"],
            &["writable-path", "home-in-view", "writable-startup", "credentials-in-view"],
        ),
        (&["--bind", "/home/me/.config"], &["writable-startup"]),
        (&["--bind", "/home/me/.codex"], &["writable-startup", "credentials-in-view"]),
        (&["--ro-bind", "/home/me/.aws"], &["credentials-in-view"]),
        (&["--ro-bind", "/opt/cellblock"], &["harness-in-view"]),
        (&["--ro-bind", "/opt"], &["harness-in-view", "harness-in-view"]),
        (&["--ro-bind", "/srv/harness"], &["harness-in-view", "policy-in-view"]),
        // The directory is meant, the policy in it is not.
        (&["--workspace", "/srv/harness"], &["policy-in-view"]),
        (&["--net", "host"], &["host-network", "loopback-listener"]),
        (&["--net", "host", "--accept", "host-network"], &[]),
        (&["--net", "host", "--accept", "loopback-listener"], &["host-network"]),
        (&["--without", "network"], &["loopback-listener", "layer-off"]),
        (&["--env", "GITHUB_TOKEN", "--env", "DB_PASSWORD=x"], &["secret-variable", "secret-variable"]),
        (&["--profile", "claude", "--var", "state=/srv/state"], &[]),
        (&["--channel", "/tmp/chan"], &["channel-in-rights"]),
        (&["--channel", "/home/agent/chan"], &["channel-in-rights"]),
        (&["--channel", "/data/chan", "--tmpfs", "/data"], &["channel-in-rights"]),
        (&["--channel", "/data/chan", "--ro-bind", "/data:/elsewhere"], &["channel-in-rights"]),
        (&["--channel", "/data/chan", "--expose", "/data"], &["channel-in-rights"]),
        (&["--mode", "nested"], &["nested-mode"]),
        (&["--without", "seccomp", "--allow-missing", "cgroup"], &["layer-off", "layer-optional"]),
    ] {
        assert_eq!(names(&flags(words), &host()), expected, "{words:?}");
    }
}

#[test]
fn what_is_hidden_or_covered_is_no_way_out() {
    for words in [
        &["--ro-bind", "/run", "--hide", "/run/docker.sock"][..],
        &["--ro-bind", "/run:/host/run", "--tmpfs", "/host/run/docker.sock"],
        &["--ro-bind", "/srv", "--hide", "/srv/instance", "--hide", "/srv/harness"],
        &["--ro-bind", "/home", "--hide", "/home/me"],
        &[
            "--bind",
            "/home/me/.local",
            "--ro-bind",
            "/home/me/.local/bin",
            "--hide",
            "/home/me/.local/share/systemd",
        ],
        &["--bind", "/usr/local:/data", "--tmpfs", "/data/bin"],
    ] {
        assert_eq!(lint(&flags(words), &host()), [], "{words:?}");
    }
    // An exposure shows what lies below a hidden path.
    let words =
        ["--hide", "/srv/instance", "--expose", "/srv/instance/run", "--ro-bind", "/srv/instance/lib"];
    assert_eq!(names(&flags(&words), &host()), ["socket-in-view"]);
}

#[test]
fn what_is_protected_is_not_written() {
    let policy = |protect: &str| text(&format!("[workspace]\ndir = '/srv/harness'\nprotect = [{protect}]"));
    let why = |policy: &Policy| lint(policy, &host()).pop().unwrap().why;
    assert!(why(&policy("")).contains("can change"));
    assert!(why(&policy("'cell.toml'")).contains("names what is hidden"));
}

#[test]
fn a_read_only_view_holds_sockets_where_landlock_does() {
    let newer = Facts { landlock: 9, ..host() };
    assert_eq!(names(&flags(&["--ro-bind", "/run"]), &newer), [""; 0]);
    assert_eq!(names(&flags(&["--bind", "/run"]), &newer), ["socket-in-view"]);
    assert_eq!(
        names(&flags(&["--ro-bind", "/run", "--mode", "nested"]), &newer),
        ["socket-in-view", "nested-mode"]
    );
    let without = flags(&["--ro-bind", "/run", "--without", "landlock"]);
    assert_eq!(names(&without, &newer), ["socket-in-view", "layer-off"]);
}

#[test]
fn a_harness_in_usr_is_seen_by_every_cell() {
    let path = "/usr/local/harness".into();
    let harness = vec![HarnessDirectory { path, role: Role::WorkingDirectory }];
    let facts = Facts { harness, ..Facts::default() };
    assert_eq!(names(&flags(&[]), &facts), ["harness-in-view"]);
    assert_eq!(names(&flags(&["--hide", "/usr/local/harness"]), &facts), [""; 0]);
    assert_eq!(names(&text("[filesystem]\nsystem = 'none'"), &facts), [""; 0]);
}

#[test]
fn groups_and_clouds_are_named() {
    let facts = Facts { groups: ["me", "sudo", "docker"].map(str::to_owned).into(), ..Facts::default() };
    let [warning] = &lint(&flags(&[]), &facts)[..] else { panic!() };
    assert_eq!(warning.name, "group-keeps-power");
    assert!(warning.what.ends_with("the groups docker, sudo"), "{}", warning.what);

    let facts = Facts { cloud: Some("Azure"), ..Facts::default() };
    assert_eq!(names(&flags(&[]), &facts), [""; 0]);
    assert_eq!(names(&flags(&["--net", "host"]), &facts), ["host-network", "cloud-metadata"]);
}

#[test]
fn what_cannot_be_read_is_no_clean_bill() {
    let unread = |unknown| Unread { path: "/some/file".into(), why: Errno::EACCES, unknown };
    for (unknown, isolated, in_hosts_network) in [
        (Unknown::Sockets, &["host-unread"][..], &["host-unread"][..]),
        (Unknown::Groups, &["host-unread"], &["host-unread"]),
        (Unknown::Ports, &[], &["host-unread"]),
        (Unknown::Cloud, &[], &["host-unread"]),
    ] {
        let facts = Facts { unread: vec![unread(unknown)], ..Facts::default() };
        let host = ["--net", "host", "--accept", "host-network"];
        assert_eq!(names(&flags(&[]), &facts), isolated);
        assert_eq!(names(&flags(&host), &facts), in_hosts_network);
        assert_eq!(names(&flags(&[&host[..], &["--accept", "host-unread"]].concat()), &facts), [""; 0]);
    }
}

#[test]
fn a_channel_may_be_granted_whole_and_hold_no_lock() {
    let channel = |rest: &str| text(&format!("[channel]\ndir = '/tmp/chan'\nreplaceable = true\n{rest}"));
    assert_eq!(names(&channel("fifo = ['f']"), &host()), [""; 0]);
    assert_eq!(names(&channel("lock = ['l']"), &host()), ["channel-granted-whole"]);
    // What lies elsewhere is not granted with it.
    assert_eq!(names(&channel("read_only = ['/tmp/d', '/srv/d']"), &host()), ["channel-in-rights"]);
    assert_eq!(names(&channel("execute = ['/usr/bin/helper']"), &host()), [""; 0]);
}

/// What is said of a channel is what a run does with it.
#[test]
fn a_channel_that_is_warned_of_is_refused() {
    let Some(site) = fixture() else { return };
    for name in ["place/chan", "home/chan", "chan"] {
        site.directory(name);
    }
    site.file("chan/lock", "", 0o644);
    let in_tmp = tempfile::Builder::new().prefix("cellblock-").tempdir_in("/tmp").unwrap();
    site.own(in_tmp.path());
    let (place, home) = (site.text("place"), site.text("home"));
    let elsewhere = format!("{place}:/elsewhere");
    let in_place = format!("dir = '{place}/chan'");
    let in_tmp = format!("dir = '{}'", in_tmp.path().display());
    let chan = format!("dir = '{}'", site.text("chan"));
    let whole = format!("{in_tmp}\nreplaceable = true");
    let in_home = format!("dir = '{home}/chan'\n[cell]\nhome = '{home}'");
    for (channel, words) in [
        (chan.clone(), &[][..]),
        (format!("{chan}\nlock = ['lock']"), &[]),
        (format!("{chan}\nexecute = ['/usr/bin/env']"), &[]),
        (format!("{chan}\nread_only = ['/usr/bin/env']"), &[]),
        (format!("{chan}\nreplaceable = true\nlock = ['lock']"), &[]),
        (in_tmp, &[]),
        (whole, &[]),
        (in_home, &[]),
        (in_place.clone(), &["--tmpfs", &place]),
        (in_place.clone(), &["--ro-bind", &elsewhere]),
        (in_place.clone(), &["--bind", &place]),
        (in_place.clone(), &["--workspace", &place]),
        (in_place, &[]),
    ] {
        let policy = site.file("p.toml", format!("version = 1\n[channel]\n{channel}\n"), 0o644);
        let words = [&["--policy", policy.to_str().unwrap()], words].concat();
        let is_warned_of = said(&mut check(&site, &words)).contains("channel-in-rights");
        let plan =
            site.command(site.program()).arg("plan").args(&words).args(["--", "true"]).output().unwrap();
        assert_eq!(plan.status.success(), !is_warned_of, "{channel} {words:?}\n{}", stderr(&plan));
    }
}

#[test]
fn what_contradicts_itself_is_refused_without_a_look_at_the_host() {
    let Some(site) = fixture() else { return };
    let (place, chan) = (site.text("place"), site.text("place/chan"));
    for (words, refusal) in [
        (&["--expose", &place, "--hide", &chan][..], "the exposure"),
        (&["--expose", &place, "--channel", &chan], "holds"),
        (&["--expose", &chan, "--ro-bind", &place], "is visible already"),
        (&["--ro-bind", &chan, "--hide", &place], "is hidden"),
    ] {
        let output = check(&site, words).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{words:?}");
        assert!(stderr(&output).contains(refusal), "{words:?} {}", stderr(&output));
    }
}

#[test]
fn of_many_some_are_named() {
    let listener = |port| Listener { protocol: "tcp", address: [127, 0, 0, 1].into(), port };
    let facts = Facts { listeners: (1..=20).map(listener).collect(), ..Facts::default() };
    let [_, warning] = &lint(&flags(&["--net", "host"]), &facts)[..] else { panic!() };
    assert!(warning.what.ends_with("tcp 127.0.0.1:8 and 12 more"), "{}", warning.what);
}

/// Each name stands in the manual, and each warning says all it has to.
#[test]
fn every_warning_is_explained() {
    let mut facts = Facts { groups: vec!["docker".into()], cloud: Some("Azure"), ..host() };
    facts.missing.push("/srv/instance/x".into());
    facts.repository = Some("/srv/main/.git".into());
    facts.set_gid = Some(SetGid::Directory("/srv/tree".into()));
    facts.unread.push(Unread { path: "/etc/group".into(), why: Errno::EACCES, unknown: Unknown::Groups });
    let words = [
        &["--bind", "/home", "--bind", "/usr/bin", "--ro-bind", "/srv/harness", "--ro-bind", "/run"][..],
        &["--net", "host", "--env", "TOKEN", "--channel", "/tmp/c", "--mode", "nested"],
        &["--without", "seccomp", "--allow-missing", "landlock"],
        &["--ro-bind", "/srv/instance/x", "--hide", "/srv/instance/x/none"],
        &["--workspace", "/srv/tree"],
        &["--device", "/dev/kvm"],
    ];
    let granted_whole = text("[channel]\ndir = '/chan'\nreplaceable = true\nlock = ['l']");
    let found = [lint(&flags(&words.concat()), &facts), lint(&granted_whole, &facts)].concat();
    for Warning { name, origin, what, why, remedy } in &found {
        assert!([origin, what, why, remedy].iter().all(|words| !words.is_empty()), "{name}");
    }
    let names: BTreeSet<&str> = found.iter().map(|warning| warning.name).collect();
    let (_, manual) = include_str!("../../docs/policy.md").split_once("## Policy check").unwrap();
    let (manual, _) = manual.split_once("\n## ").unwrap();
    let rows = manual.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(names, rows.collect());
}

/// `policy check` by the ordinary user, with a home and a PATH of its own.
fn check(site: &Site, words: &[&str]) -> Command {
    let mut command = site.command(site.program());
    command.args(["policy", "check"]).args(words);
    command.env_clear().env("HOME", site.path("home")).env("PATH", "/usr/bin:/bin");
    command
}

/// What is printed, but for what an ordinary user's own groups bring about.
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let text = String::from_utf8(output.stdout).unwrap();
    // What becomes of protected paths is tested with git.
    let is_kept = |part: &&str| {
        let is_warned = is_root() || !part.starts_with("warning: group-keeps-power");
        is_warned && !["held: ", "swept: ", "told: "].iter().any(|fate| part.starts_with(fate))
    };
    match text.trim_end().split("\n\n").filter(is_kept).collect::<Vec<_>>().join("\n\n") {
        kept if kept.is_empty() => "ok\n".to_owned(),
        kept => kept + "\n",
    }
}

fn fixture() -> Option<Site> {
    let site = Site::new()?;
    for name in ["home", "home/.aws", "home/bin", "job", "job/repo", "place"] {
        site.directory(name);
    }
    Some(site)
}

#[test]
fn the_example_of_the_readme_is_sound() {
    let Some(site) = fixture() else { return };
    let readme = include_str!("../../README.md");
    let (_, example) = readme.split_once("cat > cell.toml <<'END'\n").unwrap();
    let (example, _) = example.split_once("END\n").unwrap();
    let file = site.file("job/cell.toml", example, 0o644);
    let job = site.text("job");
    site.directory("job/answers");
    let var = format!("--var=job={job}");
    let mut command = check(&site, &["--policy", file.to_str().unwrap(), &var]);
    assert_eq!(said(command.current_dir(&job)), "ok\n");
}

#[test]
fn a_live_socket_is_found_and_a_dead_one_is_not() {
    let Some(site) = fixture() else { return };
    let place = site.text("place");
    let words = ["--bind", &place];
    assert_eq!(said(&mut check(&site, &words)), "ok\n");

    let path = site.path("place/control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let text = said(&mut check(&site, &words));
    assert!(text.starts_with("warning: socket-in-view: --bind: "), "{text}");
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    let hidden = [&words[..], &["--hide", path.to_str().unwrap()]].concat();
    assert_eq!(said(&mut check(&site, &hidden)), "ok\n");
    drop(listener);
    assert_eq!(said(&mut check(&site, &words)), "ok\n", "nobody listens any more");

    let datagrams = UnixDatagram::bind(site.path("place/log")).unwrap();
    assert!(said(&mut check(&site, &words)).contains("place/log"));
    drop(datagrams);

    // An agent that the environment names, by a link and in another network
    // namespace as it may be.
    let link = site.path("agent");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let text = said(check(&site, &words).env("SSH_AUTH_SOCK", &link));
    assert!(text.contains("control.sock of an ssh agent"), "{text}");
}

#[test]
fn listeners_on_loopback_count_in_the_hosts_network_alone() {
    let Some(site) = fixture() else { return };
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("[::1]:0").or_else(|_| UdpSocket::bind("127.0.0.1:0")).unwrap();
    assert_eq!(said(&mut check(&site, &[])), "ok\n");
    let text = said(&mut check(&site, &["--net", "host"]));
    assert!(text.starts_with("warning: host-network: network.mode: "), "{text}");
    assert!(text.contains("warning: loopback-listener: network.mode: "), "{text}");
    for port in [tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port()] {
        // On a busy machine it may be one of those that are only counted.
        assert!(text.contains(&format!(":{port}")) || text.contains(" more\n"), "{port}\n{text}");
    }
}

#[test]
fn a_home_a_path_and_a_harness_of_this_host_are_found() {
    let Some(site) = fixture() else { return };
    let policy = site.file("place/cell.toml", "version = 1", 0o644);
    let (home, place) = (site.text("home"), site.text("place"));
    let path = format!("/usr/bin:{home}/bin");
    let words = ["--bind", &home, "--ro-bind", &place, "--policy", policy.to_str().unwrap(), "--json"];
    let json = said(check(&site, &words).env("PATH", path).current_dir(&place));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["version"], &json["ok"]), (&1.into(), &false.into()));
    let warnings = json["warnings"].as_array().unwrap();
    let names = warnings.iter().map(|warning| warning["name"].as_str().unwrap());
    let names: Vec<&str> = names.filter(|name| *name != "group-keeps-power").collect();
    let ours = ["harness-in-view", "policy-in-view"];
    let theirs = ["writable-path", "home-in-view", "writable-startup", "credentials-in-view"];
    assert_eq!(names, [&ours[..], &theirs].concat(), "{json:#}");
    for key in ["name", "origin", "what", "why", "remedy"] {
        assert!(warnings.iter().all(|warning| warning[key].is_string()), "{key}");
    }
}

#[test]
fn the_launcher_itself_is_part_of_the_harness() {
    let Some(site) = fixture() else { return };
    // It is the working directory too, where a workspace would be meant.
    let text = said(&mut check(&site, &["--workspace", &site.text("")]));
    assert!(text.contains("the directory of cellblock itself"), "{text}");
    assert!(text.contains("put another program in its place"), "{text}");
}

/// As an ordinary user that is in one more group; only root can make one.
#[test]
fn a_group_of_the_caller_is_found() {
    let Some(site) = fixture().filter(|_| is_root()) else { return };
    let groups = fs::read_to_string("/etc/group").unwrap();
    let Some(line) = groups.lines().find(|line| line.starts_with("adm:")) else { return };
    let gid = line.split(':').nth(2).unwrap();
    let id = site.ids.uid.to_string();
    let user = |groups: &[&str]| {
        let mut command = Command::new("/usr/bin/setpriv");
        command.args(["--reuid", &id, "--regid", &id]).args(groups).arg(site.program());
        command.args(["policy", "check"]).env_clear().current_dir(site.root());
        said(&mut command)
    };
    let text = user(&["--groups", gid]);
    assert!(text.starts_with("warning: group-keeps-power: caller: "), "{text}");
    assert!(text.contains("the group adm\n"), "{text}");
    assert_eq!(user(&["--clear-groups"]), "ok\n");

    // Root's own groups are dropped, and the one it names is kept.
    let root = |run_as: &str| {
        let mut command = Command::new("/usr/bin/setpriv");
        command.args(["--groups", gid]).arg(site.program());
        command.args(["policy", "check", "--run-as", run_as]).env_clear().current_dir(site.root());
        said(&mut command)
    };
    assert_eq!(root(&format!("{id}:{id}")), "ok\n");
    assert!(root(&format!("{id}:{gid}")).contains("the group adm\n"));
}

#[test]
fn strict_makes_a_failure_of_a_warning() {
    let Some(site) = fixture() else { return };
    let status = |words: &[&str]| -> (Option<i32>, Output) {
        let output = check(&site, words).output().unwrap();
        (output.status.code(), output)
    };
    let (code, output) = status(&["--env", "API_KEY", "--strict"]);
    assert_eq!((code, stderr(&output)), (Some(1), String::new()));
    assert!(String::from_utf8_lossy(&output.stdout).contains("secret-variable"));
    assert_eq!(status(&["--env", "API_KEY"]).0, Some(0));

    // An ordinary user may be in a group that is warned of.
    if is_root() {
        assert_eq!(status(&["--strict"]).0, Some(0));
        let (code, output) = status(&["--strict", "--json"]);
        assert_eq!(code, Some(0));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json, serde_json::json!({ "version": 1, "ok": true, "warnings": [], "protected": [] }));
    }

    // What is wrong with the policy itself is an error, as everywhere.
    let (code, output) = status(&["--seccomp", "none"]);
    assert_eq!((code, output.stdout.len()), (Some(125), 0));
    assert!(stderr(&output).starts_with("cellblock: policy: "));
}

#[test]
fn a_name_of_the_agents_choice_does_not_reach_the_terminal() {
    let Some(site) = fixture() else { return };
    let _listener = UnixListener::bind(site.path("place/\x1b[2Jx")).unwrap();
    let text = said(&mut check(&site, &["--bind", &site.text("place")]));
    assert!(text.contains("socket-in-view") && !text.contains('\x1b'), "{text:?}");
}
