//! `policy show`: what is shown loads to the same policy, for any policy.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use cellblock::cli;
use cellblock::policy::show::{show, show_json};
use cellblock::policy::{
    Access, Bind, Cell, Channel, Entry, Environment, Expose, ExposeKind, Filesystem, Layer, Limits,
    LockAccess, Mode, Network, NetworkMode, Origin, Policy, Protect, ProtectMissing, Require, RunScope,
    Seccomp, System, Telling, Tmpfs, Umask, WARNINGS, Workspace, profile, schema::schema,
};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::Value;

use crate::policy::{Case, EVERYTHING, without_origins};

fn origin() -> Origin {
    "a test".into()
}

/// A name with what TOML, variables, flags and shells take for more than a letter.
fn name() -> impl Strategy<Value = String> {
    "[a-c$:~{}\"'\\\\#= \n\u{e9}-]{1,5}".prop_map(|name| format!("n{name}"))
}

fn path() -> impl Strategy<Value = PathBuf> {
    prop::collection::vec(name(), 1..3).prop_map(|names| PathBuf::from("/").join(names.join("/")))
}

fn paths() -> impl Strategy<Value = Vec<PathBuf>> {
    prop::collection::vec(path(), 0..3)
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    paths().prop_map(|paths| paths.into_iter().map(|path| Entry { path, origin: origin() }).collect())
}

fn layers() -> impl Strategy<Value = Vec<Layer>> {
    use Layer::{Cgroup, Landlock, LandlockScope, Network, Seccomp};
    subsequence(vec![Landlock, LandlockScope, Seccomp, Network, Cgroup], 0..=5)
}

prop_compose! {
    fn cell()(
        hostname in "[a-z0-9.-]{1,9}",
        workdir in prop::option::of(path()),
        home in path(),
        timeout in prop::option::of(1u64..1 << 40),
        grace in 0u64..1 << 40,
        umask in prop::option::of(0u32..0o1000),
    ) -> Cell {
        Cell {
            hostname,
            workdir,
            home,
            timeout: timeout.map(Duration::from_millis),
            timeout_grace: Duration::from_millis(grace),
            umask: umask.map_or(Umask::Inherit, Umask::Mask),
        }
    }
}

fn bind() -> impl Strategy<Value = Bind> {
    (path(), path(), any::<[bool; 3]>()).prop_map(|(src, dest, [same, optional, overlay])| {
        let dest = if same { src.clone() } else { dest };
        Bind { src, dest, optional, overlay, origin: origin() }
    })
}

prop_compose! {
    fn filesystem()(
        system in select(vec![System::Minimal, System::Full, System::None]),
        ro_bind in prop::collection::vec(bind(), 0..3),
        bind in prop::collection::vec(bind(), 0..3),
        tmpfs in prop::collection::vec((path(), prop::option::of(1u64..1 << 50)), 0..3),
        devices in entries(),
    ) -> Filesystem {
        let devices = devices.into_iter().map(|Entry { path, origin }| {
            let path = PathBuf::from("/dev").join(path.strip_prefix("/").unwrap());
            Entry { path, origin }
        });
        let devices = devices.collect();
        let bind = bind.into_iter().map(|bind| Bind { overlay: false, ..bind }).collect();
        let tmpfs = tmpfs.into_iter().map(|(path, size)| Tmpfs { path, size, origin: origin() }).collect();
        Filesystem { system, ro_bind, bind, tmpfs, devices }
    }
}

prop_compose! {
    fn run()(
        hide in entries(),
        expose in prop::collection::vec((path(), any::<[bool; 2]>()), 0..3),
        create in entries(),
    ) -> RunScope {
        let expose = expose
            .into_iter()
            .map(|(path, [file, create])| {
                let kind = if file { ExposeKind::File } else { ExposeKind::Directory };
                Expose { path, kind, create, origin: origin() }
            })
            .collect();
        RunScope { hide, expose, create }
    }
}

prop_compose! {
    fn channel()(
        dir in path(),
        below in prop::collection::vec(name(), 2),
        elsewhere in prop::collection::vec(entries(), 2),
        read in any::<bool>(),
        replaceable in any::<bool>(),
    ) -> Channel {
        let [fifo, lock] = [0, 1].map(|nth| vec![Entry { path: dir.join(&below[nth]), origin: origin() }]);
        let lock_access = if read { LockAccess::Read } else { LockAccess::None };
        let [read_only, execute] = [0, 1].map(|nth| elsewhere[nth].clone());
        Channel { dir, fifo, lock, lock_access, read_only, execute, replaceable, origin: origin() }
    }
}

prop_compose! {
    fn workspace()(
        dir in path(),
        at in path(),
        writable in any::<bool>(),
        protect in prop::collection::vec((name(), any::<bool>()), 0..3),
        overlay in any::<bool>(),
        told in any::<bool>(),
    ) -> Workspace {
        let protect = protect
            .into_iter()
            .map(|(path, is_directory)| Protect { path: path.into(), is_directory, origin: origin() })
            .collect();
        Workspace {
            dir,
            at,
            access: if writable { Access::ReadWrite } else { Access::ReadOnly },
            protect,
            protect_missing: if overlay { ProtectMissing::Overlay } else { ProtectMissing::Sweep },
            told: if told { Telling::Error } else { Telling::Warn },
            origin: origin(),
        }
    }
}

prop_compose! {
    /// Every key, each at random. No `..`: a key that is forgotten here does not compile.
    fn any_policy()(
        mode in select(vec![Mode::Sealed, Mode::Nested]),
        cell in cell(),
        filesystem in filesystem(),
        run in run(),
        channel in prop::option::of(channel()),
        workspace in prop::option::of(workspace()),
        set in prop::collection::btree_map("[A-Z $]{1,4}", "[a $\n\"'é{}]{0,6}", 0..3),
        pass in prop::collection::btree_set("[A-Z$]{5,6}", 0..3),
        network in select(vec![NetworkMode::None, NetworkMode::Host]),
        filter in prop::option::of("[a-z$]{1,6}"),
        file in prop::option::of(path()),
        limits in (1u64..9999, prop::option::of(1u64..99), prop::option::of(1u64..1 << 40), prop::option::of(1u64..9)),
        landlock in 1u32..99,
        allow_missing in layers(),
        accept in subsequence(WARNINGS.to_vec(), 0..=WARNINGS.len()),
        without in subsequence(vec![Layer::Landlock, Layer::Seccomp, Layer::Network], 0..=3),
    ) -> Policy {
        Policy {
            mode,
            cell,
            filesystem,
            run,
            channel,
            workspace,
            environment: Environment { pass: pass.into_iter().collect(), set },
            network: Network { mode: network },
            seccomp: Seccomp { filter, file: file.map(|path| Entry { path, origin: origin() }) },
            limits: {
                let (processes, open_files, file_size, tmp) = limits;
                Limits { processes, open_files, file_size, tmp }
            },
            require: Require { landlock, allow_missing, without },
            accept: accept.into_iter().map(str::to_owned).collect(),
        }
    }
}

/// Loads what was shown, and shows it again.
fn again(case: &Case, shown: &str) -> Result<String, String> {
    case.file("shown.toml", shown);
    let policy = case.load(&["--policy=shown.toml"]).map_err(|error| error.to_string())?;
    Ok(without_origins(&policy))
}

/// What `show --json` prints as a policy file: there a dollar is a dollar.
fn as_toml(json: &str) -> String {
    fn escape(value: &mut Value) {
        match value {
            Value::String(text) => *text = text.replace('$', "$$"),
            Value::Array(values) => values.iter_mut().for_each(escape),
            Value::Object(members) => members.values_mut().for_each(escape),
            _ => {}
        }
    }
    let mut value: Value = serde_json::from_str(json).unwrap();
    escape(&mut value);
    toml::to_string(&value).unwrap()
}

/// One value, or more, of every flag that says something of the policy.
const FLAGS: &[&str] = &[
    "--mode=nested",
    "--env=A=${b}$$",
    "--env=PASSED",
    "--chdir=/data",
    "--hostname=other",
    "--processes=99",
    "--accept=home-in-view",
    "--umask=inherit",
    "--told=error",
    "--device=/dev/kvm",
    "--timeout=1h30m500ms",
    "--ro-bind=/\"q\\\n'",
    "--ro-bind=/srv:/dest",
    "--bind=/srv/${x}:/a",
    "--tmpfs=/t$",
    "--hide=h",
    "--expose=/e",
    "--channel=/c",
    "--workspace=w:same:ro",
    "--net=host",
    "--seccomp=nested",
    "--seccomp=./own.json",
    "--allow-missing=landlock-scope",
    "--without=seccomp",
];

#[test]
fn every_flag_of_a_policy_is_tried() {
    let run = cli::command().find_subcommand("run").unwrap().clone();
    let of_no_policy = ["policy", "profile", "var", "args", "run-as", "report", "json-status-fd", "pass-fd"];
    let of_no_policy = [&of_no_policy[..], &["verify", "canary", "verbose", "help"]].concat();
    for flag in run.get_arguments().filter_map(|flag| flag.get_long()) {
        let tried = FLAGS.iter().any(|tried| tried.starts_with(&format!("--{flag}=")));
        assert!(tried || of_no_policy.contains(&flag), "--{flag} is in no test of what is shown");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_shown_loads_to_the_same_policy(policy in any_policy()) {
        let case = Case::new();
        let shown = show(&policy).unwrap();
        match again(&case, &shown) {
            Ok(loaded) => prop_assert_eq!(&without_origins(&policy), &loaded, "{}", shown),
            // At random, two entries may have one place.
            Err(error) => prop_assert!(error.contains("is given at"), "{}\n{}", error, shown),
        }
        if again(&case, &shown).is_ok() {
            let json = as_toml(&show_json(&policy).unwrap());
            prop_assert_eq!(again(&case, &json).unwrap(), without_origins(&policy), "{}", json);
        }
    }

    #[test]
    fn what_profiles_files_and_flags_come_to_is_shown_whole(
        profile in prop::option::of(select(profile::names().collect::<Vec<_>>())),
        with_file in any::<bool>(),
        flags in subsequence(FLAGS.to_vec(), 0..=FLAGS.len()),
    ) {
        let case = Case::new();
        case.file("everything.toml", EVERYTHING);
        let mut all: Vec<OsString> = flags.iter().map(Into::into).collect();
        all.extend(profile.map(|name| format!("--profile={name}").into()));
        for name in ["state", "instance", "workspace", "runner"] {
            all.push(format!("--var={name}=/v/{name}").into());
        }
        for name in ["run", "session", "trace", "acpx_session", "opencode_session"] {
            all.push(format!("--var={name}={name}").into());
        }
        all.extend(with_file.then(|| "--policy=everything.toml".into()));
        // What does not fit together is refused before there is anything to show.
        let Ok(policy) = case.load(&all) else { return Ok(()) };
        let shown = show(&policy).unwrap();
        prop_assert_eq!(again(&case, &shown).unwrap(), without_origins(&policy), "{}", shown);
        let json = as_toml(&show_json(&policy).unwrap());
        prop_assert_eq!(again(&case, &json).unwrap(), without_origins(&policy), "{}", json);
    }
}

/// The keys of a schema's tables, as `section.key`.
fn keys_of(schema: &Value) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for (section, at) in schema["properties"].as_object().unwrap() {
        let table = at["$ref"].as_str().and_then(|path| schema.pointer(&path[1..]));
        match table.and_then(|table| table["properties"].as_object()) {
            Some(table) => keys.extend(table.keys().map(|key| format!("{section}.{key}"))),
            None => drop(keys.insert(section.clone())),
        }
    }
    keys
}

#[test]
fn every_key_is_shown() {
    let case = Case::new();
    case.file("everything.toml", EVERYTHING);
    let policy = case.load(&["--policy=everything.toml"]).unwrap();
    let shown: Value = serde_json::from_str(&show_json(&policy).unwrap()).unwrap();
    let mut known = keys_of(&serde_json::from_str(&schema()).unwrap());
    // What a file adds to is in the policy that is shown.
    known.remove("extends");
    for key in known {
        let at = format!("/{}", key.replace('.', "/"));
        assert!(shown.pointer(&at).is_some(), "{key} is not shown, or not in EVERYTHING");
    }
}
