//! The policy: reading, merging, refusing, showing.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use cellblock::cli::{self, CellOptions, Cli, Command, PolicyCommand};
use cellblock::policy::error::PolicyError;
use cellblock::policy::show::{show, show_json};
use cellblock::policy::{
    Access, Channel, Environment, ExposeKind, Layer, LockAccess, Mode, NetworkMode, Origin, Policy, System,
    load::load, profile, schema::schema,
};
use tempfile::TempDir;

/// A directory with a policy in it, and flags.
pub(crate) struct Case {
    dir: TempDir,
    env: BTreeMap<String, OsString>,
}

impl Case {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let env = [("HOME", "/home/me"), ("TOKEN", "t0k")];
        let env = env.map(|(name, value)| (name.to_owned(), value.into()));
        Case { dir, env: env.into() }
    }

    pub(crate) fn file(&self, name: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// The directory as the kernel names it.
    fn path(&self) -> String {
        let path = self.dir.path().canonicalize().unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn load<S: AsRef<OsStr>>(&self, flags: &[S]) -> Result<Policy, PolicyError> {
        let env = |name: &str| self.env.get(name).cloned();
        load(&options(flags), &env, Path::new(&self.path()))
    }
}

fn parse(args: Vec<OsString>) -> Cli {
    cli::parse(args, |fd| panic!("descriptor {fd} is read")).unwrap()
}

fn options<S: AsRef<OsStr>>(flags: &[S]) -> CellOptions {
    let start = ["cellblock", "policy", "check"].map(OsStr::new);
    let flags = flags.iter().map(AsRef::as_ref);
    let args: Vec<OsString> = start.into_iter().chain(flags).map(Into::into).collect();
    match parse(args).command {
        Command::Policy(PolicyCommand::Check(check)) => check.0.cell,
        other => panic!("{other:?}"),
    }
}

/// The policy of one file.
fn policy(text: &str) -> Policy {
    let case = Case::new();
    case.file("p.toml", text);
    case.load(&["--policy", "p.toml"]).unwrap()
}

fn flags(flags: &[&str]) -> Policy {
    Case::new().load(flags).unwrap()
}

/// Every key.
pub(crate) const EVERYTHING: &str = r#"
version = 1
mode = "nested"
accept = ["nested-mode"]

[cell]
hostname = "node-1.example"
workdir = "/work/sub"
home = "/home/me"
timeout = "1h30m"
timeout_grace = "500ms"
umask = "027"

[filesystem]
system = "none"
ro_bind = ["/opt/toolchain", { src = "/srv/a:b", dest = "/data", optional = true }]
bind = [{ src = "/srv/$$x", dest = "/x" }]
tmpfs = ["/tmp", { path = "/var/tmp", size = "512M" }]
devices = ["/dev/dri/renderD128"]

[run]
hide = ["/i/runs", "/i/traces"]
create = ["/i/runs/r2/tmp"]
expose = ["/i/runs/r2", { path = "/i/traces/r2.ndjson", kind = "file", create = true }]

[channel]
dir = "/i/chan/r2"
fifo = ["activity.fifo"]
lock = ["activity.lock"]
lock_access = "read"
read_only = ["/i/discovery"]
execute = ["/opt/helper"]
replaceable = true

[workspace]
dir = "/i/repo"
at = "/src"
access = "read-only"
protect = [".git/hooks/", "$$x"]
protect_missing = "overlay"

[environment]
pass = ["TERM"]
set = { A = "${env:HOME}", EMPTY = "" }

[network]
mode = "host"

[seccomp]
filter = "provider"
file = "own.json"

[limits]
processes = 99
open_files = 98
file_size = "1M"
tmp = "2M"

[require]
landlock = 4
allow_missing = ["landlock-scope", "cgroup"]
without = ["seccomp"]
"#;

#[test]
fn nothing_given_is_a_sealed_cell() {
    let policy = flags(&[]);
    assert_eq!(policy.mode, Mode::Sealed);
    assert_eq!(policy.cell.hostname, "cell");
    assert_eq!(policy.cell.home, Path::new("/home/agent"));
    assert_eq!(policy.cell.timeout, None);
    assert_eq!(policy.network.mode, NetworkMode::None);
    assert_eq!(policy.require.landlock, 1);
    assert_eq!(policy.filesystem, Default::default());
    assert_eq!(policy.environment, Environment::default());
    assert_eq!((policy.channel, policy.workspace), (None, None));
}

#[test]
fn every_key_is_read() {
    let policy = policy(EVERYTHING);
    assert_eq!(policy.mode, Mode::Nested);
    let cell = &policy.cell;
    assert_eq!(cell.hostname, "node-1.example");
    assert_eq!(cell.workdir.as_deref(), Some(Path::new("/work/sub")));
    assert_eq!(cell.home, Path::new("/home/me"));
    assert_eq!(cell.timeout, Some(Duration::from_secs(5400)));
    assert_eq!(cell.timeout_grace, Duration::from_millis(500));

    let files = &policy.filesystem;
    assert_eq!(files.system, System::None);
    assert_eq!(files.ro_bind[0].src, Path::new("/opt/toolchain"));
    assert_eq!(files.ro_bind[0].dest, Path::new("/opt/toolchain"));
    assert!(!files.ro_bind[0].optional);
    assert_eq!(files.ro_bind[1].src, Path::new("/srv/a:b"));
    assert_eq!(files.ro_bind[1].dest, Path::new("/data"));
    assert!(files.ro_bind[1].optional);
    assert_eq!(files.bind[0].src, Path::new("/srv/$x"));
    assert_eq!(files.tmpfs[0].size, None);
    assert_eq!(files.tmpfs[1].size, Some(512 << 20));

    let expose = &policy.run.expose;
    assert_eq!((expose[0].kind, expose[0].create), (ExposeKind::Directory, false));
    assert_eq!(expose[1].path, Path::new("/i/traces/r2.ndjson"));
    assert_eq!((expose[1].kind, expose[1].create), (ExposeKind::File, true));

    let channel = policy.channel.unwrap();
    assert_eq!(channel.fifo[0].path, Path::new("/i/chan/r2/activity.fifo"));
    assert_eq!(channel.lock[0].path, Path::new("/i/chan/r2/activity.lock"));
    assert_eq!(channel.lock_access, LockAccess::Read);
    assert_eq!(channel.read_only[0].path, Path::new("/i/discovery"));
    assert_eq!(channel.execute[0].path, Path::new("/opt/helper"));
    assert!(channel.replaceable);

    let workspace = policy.workspace.unwrap();
    assert_eq!(workspace.dir, Path::new("/i/repo"));
    assert_eq!(workspace.at, Path::new("/src"));
    assert_eq!(workspace.access, Access::ReadOnly);

    assert_eq!(policy.environment.pass, ["TERM"]);
    assert_eq!(policy.environment.set["A"], "/home/me");
    assert_eq!(policy.environment.set["EMPTY"], "");
    assert_eq!(policy.network.mode, NetworkMode::Host);
    assert_eq!(policy.seccomp.filter.as_deref(), Some("provider"));
    assert_eq!(policy.require.landlock, 4);
    assert_eq!(policy.require.allow_missing, [Layer::LandlockScope, Layer::Cgroup]);
    assert_eq!(policy.require.without, [Layer::Seccomp]);
}

#[test]
fn every_flag_is_read() {
    let case = Case::new();
    let here = case.path();
    let policy = case
        .load(&[
            "--mode=nested",
            "--ro-bind=tools/",
            "--ro-bind=/srv//a/./b:/b",
            "--bind=out:/data",
            "--tmpfs=/var/tmp",
            "--expose=./state",
            "--channel=chan",
            "--workspace=.:ro",
            "--env=TOKEN",
            "--env=A=b=c",
            "--chdir=/data",
            "--hostname=h",
            "--run-as=1000:1001",
            "--net=host",
            "--seccomp=provider",
            "--timeout=90s",
            "--allow-missing=landlock",
            "--allow-missing=landlock",
            "--without=seccomp",
        ])
        .unwrap();
    let at = |path: &str| Path::new(&here).join(path);
    assert_eq!(policy.mode, Mode::Nested);
    let files = &policy.filesystem;
    assert_eq!(files.ro_bind[0].src, at("tools"));
    assert_eq!(files.ro_bind[0].dest, at("tools"));
    assert_eq!(files.ro_bind[0].origin, Origin("--ro-bind".into()));
    assert_eq!(files.ro_bind[1].src, Path::new("/srv/a/b"));
    assert_eq!(files.ro_bind[1].dest, Path::new("/b"));
    assert_eq!(files.bind[0].src, at("out"));
    assert_eq!(files.tmpfs[0].path, Path::new("/var/tmp"));
    assert_eq!(policy.run.expose[0].path, at("state"));
    assert_eq!(
        policy.channel,
        Some(Channel {
            dir: at("chan"),
            fifo: vec![],
            lock: vec![],
            lock_access: LockAccess::None,
            read_only: vec![],
            execute: vec![],
            replaceable: false,
            origin: Origin("--channel".into()),
        })
    );
    let workspace = policy.workspace.unwrap();
    assert_eq!(workspace.dir, Path::new(&here));
    assert_eq!(workspace.at, Path::new(&here));
    assert_eq!(workspace.access, Access::ReadOnly);
    assert_eq!(policy.environment.pass, ["TOKEN"]);
    assert_eq!(policy.environment.set["A"], "b=c");
    assert_eq!(policy.cell.workdir.as_deref(), Some(Path::new("/data")));
    assert_eq!(policy.cell.hostname, "h");
    assert_eq!(policy.cell.timeout, Some(Duration::from_secs(90)));
    assert_eq!(policy.network.mode, NetworkMode::Host);
    assert_eq!(policy.seccomp.filter.as_deref(), Some("provider"));
    assert_eq!(policy.require.allow_missing, [Layer::Landlock]);
    assert_eq!(policy.require.without, [Layer::Seccomp]);
}

/// A policy file may be an evaluation's, where the path on the host tells the case.
#[test]
fn a_workspace_is_seen_at_its_own_path_or_at_work() {
    let case = Case::new();
    case.file("plain.toml", "version = 1");
    case.file("at.toml", "version = 1\n[workspace]\nat = '/src'");
    case.file("same.toml", "version = 1\n[workspace]\ndir = 'w'\nat = 'same'");
    case.file("none.toml", "version = 1\n[workspace]\ndir = 'w'");
    let own = case.path() + "/w";
    for (flags, at, access) in [
        (&["--workspace=w"][..], &*own, Access::ReadWrite),
        (&["--workspace=w:same:ro"], &own, Access::ReadOnly),
        (&["--workspace=w:/d"], "/d", Access::ReadWrite),
        (&["--workspace=w:/d:ro"], "/d", Access::ReadOnly),
        (&["--workspace=/dev/shm/w"], "/work", Access::ReadWrite),
        (&["--workspace=w", "--policy=plain.toml"], "/work", Access::ReadWrite),
        (&["--workspace=w:same", "--policy=plain.toml"], &own, Access::ReadWrite),
        (&["--workspace=w", "--policy=at.toml"], "/src", Access::ReadWrite),
        (&["--policy=same.toml"], &own, Access::ReadWrite),
        (&["--policy=none.toml"], "/work", Access::ReadWrite),
    ] {
        let workspace = case.load(flags).unwrap().workspace.unwrap();
        assert_eq!((&*workspace.at, workspace.access), (Path::new(at), access), "{flags:?}");
    }
}

#[test]
fn a_path_in_a_flag_may_be_any_bytes() {
    let case = Case::new();
    let name = OsStr::from_bytes(b"--bind=/srv/\xff:/data");
    let policy = case.load(&[name]).unwrap();
    let src = policy.filesystem.bind[0].src.as_os_str().as_bytes();
    assert_eq!(src, b"/srv/\xff");
    let error = show(&policy).unwrap_err().to_string();
    assert!(error.starts_with("--bind: "), "{error}");
}

#[test]
fn sources_add_up_in_order() {
    let case = Case::new();
    case.file(
        "base/base.toml",
        r#"version = 1
           mode = "nested"
           [cell]
           hostname = "base"
           timeout = "1m"
           [filesystem]
           ro_bind = ["/base", "near"]
           [channel]
           fifo = ["activity.fifo"]
           [environment]
           pass = ["TERM", "LATER"]
           set = { A = "base", B = "base", PASSED = "x" }
           [require]
           without = ["seccomp"]"#,
    )
    .file(
        "child.toml",
        r#"version = 1
           extends = ["base/base.toml"]
           [cell]
           hostname = "child"
           [filesystem]
           ro_bind = ["/child", "near"]
           [environment]
           pass = ["PASSED"]
           set = { B = "child", LATER = "set" }
           [require]
           without = ["seccomp", "network"]"#,
    );
    let flags = ["--policy=child.toml", "--channel=/c", "--ro-bind=/flag"];
    let policy = case.load(&flags).unwrap();
    assert_eq!(policy.mode, Mode::Nested);
    assert_eq!(policy.cell.hostname, "child");
    assert_eq!(policy.cell.timeout, Some(Duration::from_secs(60)));
    let here = case.path();
    let binds: Vec<_> = policy.filesystem.ro_bind.iter().map(|b| &b.src).collect();
    let near = [format!("{here}/base/near"), format!("{here}/near")];
    assert_eq!(binds, ["/base", &near[0], "/child", &near[1], "/flag"].map(Path::new));
    assert_eq!(policy.channel.unwrap().fifo[0].path, Path::new("/c/activity.fifo"));
    let set = &policy.environment.set;
    assert_eq!((&*set["A"], &*set["B"], &*set["LATER"]), ("base", "child", "set"));
    assert_eq!(policy.environment.pass, ["TERM", "PASSED"]);
    assert_eq!(policy.require.without, [Layer::Seccomp, Layer::Network]);
}

#[test]
fn a_later_policy_file_adds_to_a_former_one() {
    let case = Case::new();
    case.file("a.toml", "version = 1\ncell.hostname = 'a'\nrun.expose = ['/a']")
        .file("b.toml", "version = 1\ncell.hostname = 'b'\nrun.expose = ['/b']");
    let policy = case.load(&["--policy=a.toml", "--policy=b.toml"]).unwrap();
    assert_eq!(policy.cell.hostname, "b");
    assert_eq!(policy.run.expose.len(), 2);
}

#[test]
fn a_file_that_two_others_extend_counts_once() {
    let case = Case::new();
    case.file("top.toml", "version = 1\nextends = ['l.toml', 'r.toml']")
        .file("l.toml", "version = 1\nextends = ['base.toml']")
        .file("r.toml", "version = 1\nextends = ['base.toml']")
        .file("base.toml", "version = 1\nrun.expose = ['/a']");
    let policy = case.load(&["--policy=top.toml"]).unwrap();
    assert_eq!(policy.run.expose.len(), 1);
}

#[test]
fn a_file_above_is_found_and_its_paths_count_from_there() {
    let case = Case::new();
    case.file("sub/here", "").file("p.toml", "version = 1\nrun.expose = ['state']");
    let env = |_: &str| None;
    let cwd = Path::new(&case.path()).join("sub");
    let policy = load(&options(&["--policy=../p.toml"]), &env, &cwd).unwrap();
    let expose = &policy.run.expose[0];
    assert_eq!(expose.path, Path::new(&case.path()).join("state"));
    assert_eq!(expose.origin, Origin("../p.toml:2".into()));
}

#[test]
fn entries_know_their_line() {
    let case = Case::new();
    case.file("dir/p.toml", EVERYTHING.trim_start());
    let policy = case.load(&["--policy=dir/p.toml"]).unwrap();
    let line = |needle: &str| {
        let lines = EVERYTHING.trim_start().lines();
        let line = 1 + lines.take_while(|line| !line.contains(needle)).count();
        Origin(format!("dir/p.toml:{line}"))
    };
    assert_eq!(policy.filesystem.ro_bind[1].origin, line("/srv/a:b"));
    assert_eq!(policy.filesystem.tmpfs[1].origin, line("512M"));
    assert_eq!(policy.run.expose[0].origin, line("expose"));
    let channel = policy.channel.unwrap();
    assert_eq!(channel.origin, line("/i/chan"));
    assert_eq!(channel.execute[0].origin, line("execute"));
    assert_eq!(policy.workspace.unwrap().origin, line("/i/repo"));
}

#[test]
fn variables_come_from_flags_and_environment() {
    let case = Case::new();
    case.file(
        "p.toml",
        r#"version = 1
           mode = "${mode}"
           run.expose = ["${instance}/runs/${run}"]
           environment.set = { "${key}" = "${TOKEN} ${env:HOME} $$HOME" }"#,
    );
    let flags = [
        "--policy=p.toml",
        "--var=mode=sealed",
        "--var=mode=nested",
        "--var=instance=/i",
        "--var=run=${mode}",
        "--var=TOKEN",
    ];
    let policy = case.load(&flags).unwrap();
    assert_eq!(policy.mode, Mode::Nested);
    assert_eq!(policy.run.expose[0].path, Path::new("/i/runs/${mode}"));
    assert_eq!(policy.environment.set["${key}"], "t0k /home/me $HOME");
}

#[test]
fn an_empty_variable_widens_nothing() {
    let mut case = Case::new();
    case.env.insert("EMPTY".into(), "".into());
    for path in ["runs/${run}", "${env:EMPTY}/a"] {
        case.file("p.toml", format!("version = 1\nrun.expose = [{{ path = '{path}' }}]"));
        let error = case.load(&["--policy=p.toml", "--var=run="]).unwrap_err();
        assert!(error.to_string().ends_with("}` is empty"), "{error}");
    }
    case.file("p.toml", "version = 1\nenvironment.set = { A = '${run}', B = '${env:EMPTY}' }");
    let set = case.load(&["--policy=p.toml", "--var=run="]).unwrap().environment.set;
    assert_eq!((&*set["A"], &*set["B"]), ("", ""));
}

#[test]
fn a_variable_inside_a_path_is_one_name() {
    let mut case = Case::new();
    case.env.insert("RUN".into(), "r1/../r2".into());
    case.file("p.toml", "version = 1\nrun.expose = [\n'${instance}/runs/${run}']");
    for run in ["../r2", "r1/keys", "/etc", ".", "..", "r1/"] {
        let error = case.load(&["--policy=p.toml", "--var=instance=/i", &format!("--var=run={run}")]);
        refused(&error.unwrap_err(), "p.toml:3: `${run}` is not one name", "without `/`", run);
    }
    case.file("p.toml", "version = 1\nrun.expose = ['/i/${env:RUN}']");
    let error = case.load(&["--policy=p.toml"]).unwrap_err();
    refused(&error, "p.toml:2: `${env:RUN}` is not one name", "without `/`", "RUN");
}

/// A file that is refused, the message and what to write instead.
#[rustfmt::skip]
const REFUSED_FILES: &[(&str, &str, &str)] = &[
    ("mode = 'sealed'", "p.toml: no version", "`version = 1`"),
    ("version = 2\nnew = 1", "p.toml:1: version 2 is not known", "version 1"),
    ("version = '1'", "p.toml:1: invalid type: string \"1\", expected u32", "without quotes"),
    ("version = 1\nmode =", "p.toml:2: ", ""),
    ("version = 1\nversion = 1", "p.toml:2: duplicate key", ""),
    ("version = 1\nmdoe = 'sealed'", "p.toml:2: unknown field `mdoe`", "did you mean `mode`?"),
    ("version = 1\nmode = 'seald'", "p.toml:2: unknown variant `seald`", "did you mean `sealed`?"),
    ("version = 1\n[filesytem]\n", "p.toml:2: unknown field `filesytem`", "did you mean `filesystem`?"),
    ("version = 1\n[filesystem]\n\nro_bnd = []", "p.toml:4: unknown field `ro_bnd`", "did you mean `ro_bind`?"),
    ("version = 1\n[cell]\nxyzzy = 1", "p.toml:3: unknown field `xyzzy`", ""),
    ("version = 1\n[run]\nhde = ['/a']", "p.toml:3: unknown field `hde`", "did you mean `hide`?"),
    ("version = 1\n[run]\nhide = ['/']", "p.toml:3: `/` is the whole host", "name a path below it"),
    ("version = 1\n[run]\nhide = ['a/../b']", "p.toml:3: `a/../b` holds `..`", "without `..`"),
    ("version = 1\n[run]\nhide = ['~/.ssh']", "p.toml:3: `~` is not expanded", "${env:HOME}"),
    ("version = 1\n[run]\nhide = ['']", "p.toml:3: an empty path", "write a path"),
    ("version = 1\n[run]\ncreate = ['/']", "p.toml:3: `/` is the whole host", "name a path below it"),
    ("version = 1\n[workspace]\ndir = 'a'\nprotect = ['/etc']", "p.toml:4: `/etc` is not a path below", ".git/hooks/"),
    ("version = 1\n[workspace]\ndir = 'a'\nprotect = ['a/../../b']", "p.toml:4: `a/../../b` holds `..`", "without `..`, as in b"),
    ("version = 1\n[workspace]\ndir = 'a'\nprotect = ['a/..']", "p.toml:4: `a/..` holds `..`", "write the path without `..`"),
    ("version = 1\n[workspace]\ndir = 'a'\nprotect = ['.']", "p.toml:4: `.` is not a path below", ".git/hooks/"),
    ("version = 1\n[workspace]\ndir = 'a'\nprotect_missing = 'swep'", "p.toml:4: unknown variant `swep`", "did you mean `sweep`?"),
    ("version = 1\n[filesystem]\nbind = [\n '/a',\n {src = '/b', optinal = true}]", "p.toml:5: unknown field `optinal`", "did you mean `optional`?"),
    ("version = 1\n[filesystem]\nbind = [{dest = '/b'}]", "p.toml:3: missing field `src`", ""),
    ("version = 1\n[filesystem]\nbind = [1]", "p.toml:3: invalid type: integer `1`, expected a path or a table", ""),
    ("version = 1\n[filesystem]\nbind = '/a'", "p.toml:3: invalid type: string \"/a\", expected a sequence", "write a list: [\"…\"]"),
    ("version = 1\n[run]\nhide = [{ path = '/a' }]", "p.toml:3: invalid type: map, expected a string", "write one string"),
    ("version = 1\n[cell]\nhostname = 7", "p.toml:3: invalid type: integer `7`, expected a string", "in quotes: \"7\""),
    ("version = 1\n[cell]\nhostname = cell", "p.toml:3: string values must be quoted", "a string stands in quotes"),
    ("version = 1\n[cell]\nhostname = foo", "p.toml:3: invalid boolean", "a string stands in quotes"),
    ("version = 1\n[cell]\ntimeout = 30", "p.toml:3: invalid type: integer `30`, expected a string", "write \"30s\""),
    ("version = 1\nworkspace = '.'", "p.toml:2: invalid type: string \".\", expected the table [workspace]", "write [workspace] on a line"),
    ("version = 1\ntimeout = '30s'", "p.toml:2: unknown field `timeout`", "it belongs in [cell]"),
    ("version = 1\ndir = 'repo'", "p.toml:2: unknown field `dir`", "it belongs in [channel] or in [workspace]"),
    ("version = 1\n[workspace]\nextends = ['codex']", "p.toml:3: unknown field `extends`", "it belongs above the first [section]"),
    ("version = 1\n[environment]\nFOO = 'x'", "p.toml:3: unknown field `FOO`", "write set = { FOO = \"…\" }"),
    ("version = 1\nrun.expose = ['${HOME}/x']", "p.toml:2: `${HOME}` is not defined", "--var HOME=VALUE, or write ${env:HOME}"),
    ("version = 1\nrun.expose = ['~/repo']", "p.toml:2: `~` is not expanded: ~/repo", "write ${env:HOME}/repo"),
    ("version = 1\nrun.expose = ['${nope}/x']", "p.toml:2: `${nope}` is not defined", "--var nope=VALUE"),
    ("version = 1\nrun.expose = [\n'/a',\n'${env:NOPE}']", "p.toml:4: the environment has no `NOPE`", "set NOPE"),
    ("version = 1\nenvironment.set.A = '$HOME'", "p.toml:2: `$HOME` is no variable", "$$ is a dollar"),
    ("version = 1\nextends = ['codx']", "p.toml:2: no built-in profile `codx`", "did you mean `codex`? a file"),
    ("version = 1\nextends = ['xyzzy']", "p.toml:2: no built-in profile `xyzzy`", "claude, codex, opencode"),
    ("version = 1\nextends = ['./none.toml']", "p.toml:2: cannot read none.toml: No such file", "readable"),
    ("version = 1\nextends = ['p.toml']", "p.toml:2: extends goes round in a circle: p.toml → p.toml", "extends"),
    ("version = 1\nextends = ['./p.toml']", "p.toml:2: extends goes round in a circle: p.toml → p.toml", "extends"),
    ("version = 1\nrun.expose = ['']", "p.toml:2: an empty path", "write a path"),
    ("version = 1\nrun.expose = ['/a/../b']", "p.toml:2: `/a/../b` holds `..`", "without `..`, as in /b"),
    ("version = 1\nrun.expose = ['..']", "p.toml:2: `..` holds `..`", "without `..`"),
    ("version = 1\nrun.expose = ['/']", "p.toml:2: a view of `/` would show the whole host", "name the directories"),
    ("version = 1\nrun.expose = ['//.']", "p.toml:2: a view of `/` would show the whole host", "name the directories"),
    ("version = 1\nrun.expose = [\"/a\\u0000\"]", "p.toml:2: a NUL byte", "can hold one"),
    ("version = 1\nfilesystem.ro_bind = ['/a:/b']", "p.toml:2: `/a:/b` holds a colon", "{ src = \"/a\", dest = \"/b\" }"),
    ("version = 1\nfilesystem.ro_bind = ['/a:b']", "p.toml:2: `/a:b` holds a colon", "{ src = \"/a:b\" }"),
    ("version = 1\nfilesystem.ro_bind = [{src = '/a', dest = 'b'}]", "p.toml:2: `b` is a path in the cell and not absolute", "begin it with `/`"),
    ("version = 1\nfilesystem.ro_bind = [{src = '/a', dest = ''}]", "p.toml:2: an empty path", ""),
    ("version = 1\nfilesystem.ro_bind = [{src = '/a', dest = '/b/..'}]", "p.toml:2: `/b/..` holds `..`", ""),
    ("version = 1\nfilesystem.ro_bind = [{src = '/', dest = '/b'}]", "p.toml:2: a view of `/`", ""),
    ("version = 1\nfilesystem.bind = [{src = '/a', dest = '/'}]", "p.toml:2: `/` of the cell is its own", "below it"),
    ("version = 1\nfilesystem.tmpfs = ['tmp']", "p.toml:2: `tmp` is a path in the cell and not absolute", ""),
    ("version = 1\nfilesystem.tmpfs = [{path = '/tmp', size = '5X'}]", "p.toml:2: `5X` is no size", "512M"),
    ("version = 1\nfilesystem.tmpfs = [{path = '/tmp', size = 5}]", "p.toml:2: invalid type: integer `5`, expected a string", ""),
    ("version = 1\nfilesystem.tmpfs = ['/a',\n '/a/']", "p.toml:3: `/a` is given at p.toml:2 too", "leave one of the two out"),
    ("version = 1\nfilesystem.ro_bind = ['/a']\nrun.expose = ['/a']", "p.toml:3: `/a` is given at p.toml:2 too", ""),
    ("version = 1\n[workspace]\ndir = '/w'\n[filesystem]\nbind = [{src='/a', dest='/work'}]", "p.toml:3: `/work` is given at p.toml:5 too", ""),
    ("version = 1\n[channel]\ndir = '/c'\nfifo = ['f']\nlock = ['f']", "p.toml:5: `/c/f` is given at p.toml:4 too", ""),
    ("version = 1\n[channel]\nfifo = ['f']", "p.toml:2: a channel without `dir`", "--channel DIR"),
    ("version = 1\n[channel]\ndir = '/c'\nfifo = ['/d/f']", "p.toml:4: `/d/f` is not below the channel `/c`", "below"),
    ("version = 1\n[channel]\ndir = '/c'\nlock = ['../f']", "p.toml:4: `../f` holds `..`", ""),
    ("version = 1\n[channel]\ndir = '/c'\nlock = ['/cc/f']", "p.toml:4: `/cc/f` is not below the channel `/c`", ""),
    ("version = 1\n[channel]\ndir = '/c'\nlock = ['']", "p.toml:4: an empty path", ""),
    ("version = 1\n[channel]\ndir = '/'", "p.toml:3: a view of `/`", ""),
    ("version = 1\n[workspace]\nat = '/w'", "p.toml:2: a workspace without `dir`", "--workspace DIR"),
    ("version = 1\n[workspace]\ndir = '/w'\naccess = 'ro'", "p.toml:4: unknown variant `ro`", ""),
    ("version = 1\n[workspace]\ndir = '/w'\nat = '/'", "p.toml:4: `/` of the cell", ""),
    ("version = 1\ncell.hostname = ''", "p.toml:2: `` is no host name", "64 letters"),
    ("version = 1\ncell.hostname = 'a_b'", "p.toml:2: `a_b` is no host name", "64 letters"),
    ("version = 1\ncell.hostname = 'ä'", "p.toml:2: `ä` is no host name", "64 letters"),
    ("version = 1\ncell.workdir = 'x'", "p.toml:2: `x` is a path in the cell", ""),
    ("version = 1\ncell.home = '/'", "p.toml:2: `/` of the cell", ""),
    ("version = 1\ncell.timeout = '10'", "p.toml:2: `10` is no duration", "write 10s"),
    ("version = 1\ncell.timeout = '30M'", "p.toml:2: `30M` is no duration", "write 30m"),
    ("version = 1\ncell.timeout_grace = '2 months'", "p.toml:2: `2 months` is no duration", "write 60d"),
    (
        "version = 1\n[filesystem]\ntmpfs = [{ path = '/t', size = '512mb' }]",
        "p.toml:3: `512mb` is no size",
        "write 512M",
    ),
    ("version = 1\ncell.timeout = '0s'", "p.toml:2: `0s` is no duration", "above zero"),
    ("version = 1\ncell.timeout_grace = 'soon'", "p.toml:2: `soon` is no duration", "90s"),
    ("version = 1\nenvironment.pass = ['A=b']", "p.toml:2: `A=b` cannot name", "KEY=VALUE"),
    ("version = 1\nenvironment.pass = ['']", "p.toml:2: `` cannot name", ""),
    ("version = 1\nenvironment.set = {'A=b' = ''}", "p.toml:2: `A=b` cannot name", ""),
    ("version = 1\nenvironment.set = {A = \"\\u0000\"}", "p.toml:2: a NUL byte", ""),
    ("version = 1\nseccomp.filter = ''", "p.toml:2: an empty value", ""),
    ("version = 1\nnetwork.mode = 'egress'", "p.toml:2: unknown variant `egress`", ""),
    ("version = 1\nrequire.landlock = 0", "p.toml:2: Landlock ABI 0", "allow_missing"),
    ("version = 1\nrequire.landlock = -1", "p.toml:2: invalid value: integer `-1`, expected u32", "without quotes"),
    ("version = 1\nrequire.without = ['cgroup']", "p.toml:2: the layer cgroup cannot", "landlock, seccomp or network"),
    ("version = 1\nrequire.without = ['mounts']", "p.toml:2: unknown variant `mounts`", "use landlock, seccomp or network"),
    ("version = 1\nrequire.without = ['sccomp']", "p.toml:2: unknown variant `sccomp`", "did you mean `seccomp`?"),
];

#[test]
fn bad_files_are_refused_with_the_line() {
    for (text, message, remedy) in REFUSED_FILES {
        let case = Case::new();
        case.file("p.toml", text);
        let error = case.load(&["--policy", "p.toml"]).expect_err(text);
        refused(&error, message, remedy, text);
    }
}

fn refused(error: &PolicyError, message: &str, remedy: &str, input: &str) {
    let text = error.to_string();
    assert!(text.starts_with(message), "{input}\n{text}");
    assert!(!text.contains('\n'), "{text}");
    let given = error.remedy().unwrap_or_default();
    assert!(given.contains(remedy), "{input}\n{text}\n{given}");
}

/// Flags that are refused, the message and what to write instead.
#[rustfmt::skip]
const REFUSED_FLAGS: &[(&[&str], &str, &str)] = &[
    (&["--policy=none.toml"], "--policy: cannot read none.toml: No such file", "readable"),
    (&["--policy=codex"], "--policy: cannot read codex: No such file", "a profile is given by --profile codex"),
    (&["--profile=./cell.toml"], "--profile: no built-in profile `./cell.toml`", "a file is given by --policy ./cell.toml"),
    (&["--workspace=~/repo"], "--workspace: `~` is not expanded: ~/repo", "write $HOME/repo"),
    (&["--policy=."], "--policy: cannot read .: Is a directory", "readable"),
    (&["--policy=/dev/zero"], "--policy: cannot read /dev/zero: Operation not supported", "a regular file or a pipe"),
    (&["--profile=codx"], "--profile: no built-in profile `codx`", "did you mean `codex`?"),
    (&["--profile=codex"], "profile codex:15: `${state}` is not defined", "--var state=VALUE"),
    (&["--profile=codex", "--var=state="], "profile codex:15: `${state}` is empty", "a shell variable in quotes that is not set"),
    (&["--var=NOPE"], "--var: the environment has no `NOPE`", "set NOPE"),
    (&["--var=a b=c"], "--var: `a b` cannot name a variable", "letters"),
    (&["--var==c"], "--var: `` cannot name a variable", "letters"),
    (&["--ro-bind="], "--ro-bind: an empty path", ""),
    (&["--ro-bind=/a:"], "--ro-bind: an empty path", ""),
    (&["--ro-bind=:/a"], "--ro-bind: an empty path", ""),
    (&["--ro-bind=/a:b"], "--ro-bind: `b` is a path in the cell", "begin it with `/`"),
    (&["--ro-bind=../a"], "--ro-bind: `../a` holds `..`", "without `..`"),
    (&["--ro-bind=/"], "--ro-bind: a view of `/`", ""),
    (&["--bind=/a:/"], "--bind: `/` of the cell is its own", ""),
    (&["--bind=/a", "--ro-bind=/b:/a"], "--bind: `/a` is given at --ro-bind too", ""),
    (&["--bind=.:/data:ro"], "--bind: `.:/data:ro` holds more than one colon", "write --ro-bind SRC:DEST"),
    (&["--ro-bind=/a:/b:c"], "--ro-bind: `/a:/b:c` holds more than one colon", "in a policy file"),
    (&["--tmpfs=/t:size=1G"], "--tmpfs: `/t:size=1G` holds a colon", "size = \"512M\""),
    (&["--tmpfs=t"], "--tmpfs: `t` is a path in the cell", ""),
    (&["--expose=/"], "--expose: a view of `/`", ""),
    (&["--bind=/a/b/../c"], "--bind: `/a/b/../c` holds `..`", "without `..`, as in /a/c"),
    (&["--expose=/a/.."], "--expose: `/a/..` holds `..`", ""),
    (&["--workspace=/a:rw"], "--workspace: `rw` after the workspace is neither", "DIR[:DEST][:ro]"),
    (&["--workspace=/a:ro:/b"], "--workspace: `/b` after the workspace is neither", ""),
    (&["--workspace=/a:/b:ro:ro"], "--workspace: `ro` after the workspace is neither", ""),
    (&["--workspace=/a:b"], "--workspace: `b` after the workspace is neither", "DEST is an absolute path"),
    (&["--workspace=/a:/"], "--workspace: `/` of the cell is its own", ""),
    (&["--workspace=:ro"], "--workspace: an empty path", ""),
    (&["--env==x"], "--env: `` cannot name", ""),
    (&["--chdir=x"], "--chdir: `x` is a path in the cell", ""),
    (&["--hostname=a/b"], "--hostname: `a/b` is no host name", ""),
    (&["--timeout=30"], "--timeout: `30` is no duration", ""),
    (&["--seccomp="], "--seccomp: an empty value", ""),
];

#[test]
fn bad_flags_are_refused_with_the_flag() {
    for (flags, message, remedy) in REFUSED_FLAGS {
        let error = Case::new().load(flags).expect_err(message);
        refused(&error, message, remedy, flags[0]);
    }
}

#[test]
fn bytes_that_are_no_utf8_are_refused_with_the_offset() {
    let case = Case::new();
    case.file("p.toml", b"version = 1\n# caf\xe9\n");
    let error = case.load(&["--policy=p.toml"]).unwrap_err();
    assert_eq!(error.to_string(), "p.toml:2: not UTF-8 at byte 17");
    for flag in [&b"--env=A=\xff"[..], b"--var=a=\xff"] {
        let error = case.load(&[OsStr::from_bytes(flag)]).unwrap_err();
        assert!(error.to_string().ends_with(": not UTF-8 at byte 2"), "{error}");
    }
}

#[test]
fn extends_ends_somewhere() {
    let case = Case::new();
    for n in 0..10 {
        let text = format!("version = 1\nextends = ['{}.toml']", n + 1);
        case.file(&format!("{n}.toml"), text);
    }
    case.file("10.toml", "version = 1");
    let error = case.load(&["--policy=0.toml"]).unwrap_err().to_string();
    assert_eq!(error, "7.toml:2: extends goes deeper than 8 files");
    assert!(case.load(&["--policy=3.toml"]).is_ok());

    case.file("a.toml", "version = 1\nextends = ['b.toml']")
        .file("b.toml", "version = 1\n\nextends = ['a.toml']");
    let error = case.load(&["--policy=a.toml"]).unwrap_err().to_string();
    let circle = "b.toml:3: extends goes round in a circle: a.toml → b.toml → a.toml";
    assert_eq!(error, circle);
}

#[test]
fn a_syntax_error_shows_the_line_and_the_value_of_no_variable() {
    let case = Case::new();
    case.file("p.toml", "version = 1\n[filesystem]\nro_bnd = ['${TOKEN}']\n");
    let error = case.load(&["--policy=p.toml", "--var=TOKEN"]).unwrap_err();
    assert_eq!(error.excerpt(), ["3 | ro_bnd = ['${TOKEN}']", "  | ^^^^^^"]);
}

/// Origins are the one thing that a shown policy does not keep.
pub(crate) fn without_origins(policy: &Policy) -> String {
    let text = format!("{policy:#?}");
    let lines: Vec<&str> = text.lines().collect();
    let kept = lines.iter().enumerate().filter(|(n, _)| {
        let in_origin = |back: usize| *n >= back && lines[n - back].contains("origin: Origin(");
        !in_origin(0) && !in_origin(1) && !in_origin(2)
    });
    kept.map(|(_, line)| *line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_shown_policy_loads_to_the_same_policy() {
    let case = Case::new();
    case.file("everything.toml", EVERYTHING);
    let weird = ["--bind=/srv/${x}:/a", "--ro-bind=/\"q\\\n'", "--env=A=${b}$$"];
    for flags in [&[][..], &["--policy=everything.toml"], &weird] {
        let policy = case.load(flags).unwrap();
        case.file("shown.toml", show(&policy).unwrap());
        let again = case.load(&["--policy=shown.toml"]).unwrap();
        assert_eq!(without_origins(&policy), without_origins(&again));
        assert_eq!(show(&policy).unwrap(), show(&again).unwrap());
    }
}

#[test]
fn a_shown_policy_can_be_json() {
    let json = show_json(&policy(EVERYTHING)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["filesystem"]["bind"][0]["src"], "/srv/$x");
    assert_eq!(json["channel"]["fifo"][0], "/i/chan/r2/activity.fifo");
}

/// Whether `value` has only keys that `schema` knows, and all it requires.
fn fits(schema: &serde_json::Value, root: &serde_json::Value, value: &serde_json::Value) -> bool {
    if let Some(name) = schema["$ref"].as_str() {
        return fits(root.pointer(&name[1..]).unwrap(), root, value);
    }
    if let Some(choices) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        return choices.iter().any(|choice| fits(choice, root, value));
    }
    let types = match &schema["type"] {
        serde_json::Value::Array(types) => types.iter().filter_map(|name| name.as_str()).collect(),
        one => one.as_str().into_iter().collect::<Vec<_>>(),
    };
    let known = schema["enum"].as_array();
    let constant = schema.get("const");
    let of_type = |name: &str| types.is_empty() || types.contains(&name);
    match value {
        serde_json::Value::Object(members) => {
            let required = schema["required"].as_array().into_iter().flatten();
            let open = &schema["additionalProperties"];
            of_type("object")
                && required.flat_map(|key| key.as_str()).all(|key| members.contains_key(key))
                && members.iter().all(|(key, value)| match schema["properties"].get(key) {
                    Some(schema) => fits(schema, root, value),
                    None => open.is_object() && fits(open, root, value),
                })
        }
        serde_json::Value::Array(values) => {
            of_type("array") && values.iter().all(|value| fits(&schema["items"], root, value))
        }
        serde_json::Value::Null => of_type("null"),
        serde_json::Value::Bool(_) => of_type("boolean"),
        serde_json::Value::Number(_) => {
            of_type("integer") && constant.is_none_or(|constant| constant == value)
        }
        serde_json::Value::String(_) => {
            of_type("string")
                && known.is_none_or(|known| known.contains(value))
                && constant.is_none_or(|constant| constant == value)
        }
    }
}

#[test]
fn the_schema_describes_what_is_read() {
    let schema = schema();
    assert!(!schema.contains("null"), "TOML has no null");
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(schema["required"], serde_json::json!(["version"]));
    let fits = |text: &str| fits(&schema, &schema, &toml::from_str(text).unwrap());
    assert!(fits(EVERYTHING));
    assert!(fits(&show(&policy(EVERYTHING)).unwrap()));
    for name in profile::names() {
        assert!(fits(profile::find(name).unwrap()), "{name}");
    }
    for text in [
        "mode = 'sealed'",
        "version = 2",
        "version = 1\nmdoe = 'sealed'",
        "version = 1\nmode = 'seald'",
        "version = 1\n[filesystem]\nbind = [{src = '/b', optinal = true}]",
        "version = 1\n[filesystem]\nbind = [{dest = '/b'}]",
        "version = 1\n[filesystem]\nbind = [1]",
    ] {
        assert!(!fits(text), "{text}");
    }
}

#[test]
fn profiles_name_the_state_once() {
    for name in ["claude", "codex", "opencode"] {
        let flags = [format!("--profile={name}"), "--var=state=/s".into()];
        let policy = Case::new().load(&flags).unwrap();
        let sources = policy.filesystem.bind.iter().map(|bind| &bind.src);
        assert_eq!(sources.collect::<Vec<_>>(), [Path::new("/s")], "{name}");
        assert_eq!(policy.mode, Mode::Sealed);
    }
    let case = Case::new();
    let policy = case.load(&["--profile=codex", "--var=state=s"]).unwrap();
    assert_eq!(policy.filesystem.bind[0].src, Path::new(&case.path()).join("s"));
    let flags = ["--profile=codex", "--var=state=/s"];
    let set = Case::new().load(&flags).unwrap().environment.set;
    assert_eq!(set["CODEX_HOME"], "/home/agent/.codex");
}

/// The worked example of docs/policy.md, and the command below it.
#[test]
fn the_example_of_the_documentation_loads() {
    let docs = include_str!("../../docs/policy.md");
    let (_, example) = docs.split_once("```toml\n").unwrap();
    let (example, rest) = example.split_once("```").unwrap();
    let (_, command) = rest.split_once("```sh\n").unwrap();
    let (command, _) = command.split_once("```").unwrap();
    let words = command.split_whitespace().filter(|word| *word != "\\");
    let args: Vec<OsString> = words.map(Into::into).collect();
    let Command::Run(run) = parse(args).command else {
        panic!("{command}");
    };
    let case = Case::new();
    case.file("cell.toml", example);
    let env = |_: &str| None;
    let policy = load(&run.0.cell, &env, Path::new(&case.path())).unwrap();
    assert!(policy.channel.is_some() && policy.workspace.is_some());
}

#[test]
fn a_small_policy_costs_little_of_a_launch() {
    let case = Case::new();
    case.file("p.toml", EVERYTHING);
    let least = (0..50)
        .map(|_| {
            let begin = Instant::now();
            case.load(&["--policy=p.toml"]).unwrap();
            begin.elapsed()
        })
        .min();
    // 0.3 ms is the aim for the optimized binary; this is not one.
    println!("parsed and loaded in {least:?}");
    assert!(least.unwrap() < Duration::from_millis(10));
}
