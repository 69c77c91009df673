//! The profiles for a runner in a shared instance: an instance with two sessions,
//! and what a launch of one of them has of it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Output;

use crate::site::{Site, stderr};
use crate::skip;

/// The first launch's session, agent, run and trace; the second's are named alike.
const OWN: &str = "a1";
const OTHER: &str = "b2";

/// Builds an instance below `$1`, with a session, a home and a trace of each
/// further argument.
const BUILD: &str = r#"
set -eu
cd "$1"; shift
runner=runtime/paperclip-runner
mkdir -p db/base db/pg_wal secrets logs data/backups data/storage skills $runner/control-plane $runner/sessions
echo 15 > db/PG_VERSION
echo wal > db/pg_wal/000000010000000000000001
sqlite3 db/base/relations.sqlite "create table keys(x); insert into keys values('k3y')"
echo k3y > secrets/master.key
echo k3y > .env
echo '{}' > config.json
echo started > logs/server.log
echo dump > data/backups/nightly.sql
echo file > data/storage/attachment
echo shared > skills/README.md
echo '{}' > $runner/control-plane/control-plane-state.json
for id; do
    session=$runner/durable-sessions/$id
    mkdir -p $session/runner $session/control-plane $session/codex-home/sessions
    echo "$id" > $session/runner/runner-state.json
    echo "$id" > $session/control-plane/control-plane-state.json
    sqlite3 $session/codex-home/state.sqlite \
        "pragma journal_mode = wal; create table turns(x); insert into turns values('$id')" > wal.txt
    rm wal.txt
    for state in runner codex opencode acpx/acpx; do
        mkdir -p $runner/$state/$id
        echo "$id" > $runner/$state/$id/state
    done
    echo '{}' > $runner/sessions/$id.json
    mkdir -p data/run-logs/acme/$id data/provider-traces data/workspace-operation-logs
    echo "$id" > data/run-logs/acme/$id/run.ndjson
    echo "$id" > data/provider-traces/$id.ndjson
    echo "$id" > data/workspace-operation-logs/$id.ndjson
    mkdir -p workspaces/$id companies/acme/agents/$id/codex-home projects/acme/$id/repo
    echo "$id" > workspaces/$id/notes
    echo "$id" > companies/acme/agents/$id/codex-home/auth.json
    echo "$id" > projects/acme/$id/repo/file
done
"#;

/// An instance, and the user it belongs to.
struct Instance {
    site: Site,
}

impl Instance {
    fn new(ids: &[&str]) -> Option<Instance> {
        let site = Site::new()?;
        let root = site.directory("instance");
        let words = ["-c", BUILD, "sh", root.to_str().unwrap()];
        if !skip::has_programs(&["sqlite3"]) {
            return None;
        }
        let built = site.beside("sh", &[&words[..], ids].concat()).unwrap();
        assert!(built.status.success(), "{}", stderr(&built));
        Some(Instance { site })
    }

    fn root(&self) -> String {
        self.site.text("instance")
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.root())
    }

    fn state(&self, name: &str) -> String {
        self.path(&format!("runtime/paperclip-runner/{name}"))
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Runs a script in a cell of `profile`, with the variables of the launch `id`.
    /// `$1` is the instance, `$2` the session's directory, `$3` the workspace.
    fn launch(&self, profile: &str, id: &str, options: &[&str], script: &str) -> Output {
        let run = ["run", "--profile", profile].map(str::to_owned);
        let vars = [
            format!("instance={}", self.root()),
            "runner=paperclip-runner".into(),
            format!("session={id}"),
            format!("workspace={}", self.path(&format!("workspaces/{id}"))),
            format!("run={id}"),
            format!("opencode_session={id}"),
            format!("acpx_session={id}"),
            format!("trace={id}"),
        ];
        let vars = vars.into_iter().flat_map(|var| ["--var".to_owned(), var]);
        let mut command = self.site.command(self.site.program());
        command.args(run).args(vars).args(options).args(["--", "sh", "-c", script, "sh"]).args([
            self.root(),
            self.state(&format!("durable-sessions/{id}")),
            self.path(&format!("workspaces/{id}")),
        ]);
        command.output().unwrap()
    }

    /// As [`Instance::launch`], for a script that must succeed; gives its lines.
    fn lines(&self, profile: &str, id: &str, options: &[&str], script: &str) -> BTreeSet<String> {
        let output = self.launch(profile, id, options, script);
        assert!(output.status.success(), "{}\n{}", output.status, stderr(&output));
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

/// Whatever of the instance the launch can list, by its path in the instance. It
/// knows the names of what is its own, and begins at each: a directory that only
/// leads to another cannot be listed.
const FIND: &str = r#"
    id=${3##*/}; runner=$1/runtime/paperclip-runner
    find "$1" "$2" "$3" "$runner/runner/$id" "$runner/codex/$id" "$runner/opencode/$id" \
        "$runner/acpx/acpx/$id" "$1/data/provider-traces/$id.ndjson" 2> /dev/null |
        sed -n "s,^$1/,,p"
"#;

#[test]
fn the_launch_uses_what_is_its_own() {
    let Some(instance) = Instance::new(&[OWN, OTHER]) else { return };
    let script = r#"
        set -eu
        test "$(pwd)" = "$3"
        cat "$2/runner/runner-state.json" notes
        sqlite3 "$2/codex-home/state.sqlite" "insert into turns values('new'); select x from turns"
        echo next > "$2/runner/.tmp"; mv "$2/runner/.tmp" "$2/runner/runner-state.json"
        mkdir -p "$2/codex-home/sessions/2026/11"
        echo turn > "$2/codex-home/sessions/2026/11/rollout.jsonl"
        ln -s runner "$2/link"; mkfifo "$2/fifo"; ln notes hard
        echo made > made; rm notes
    "#;
    let said = instance.lines("runner-instance", OWN, &[], script);
    assert_eq!(said, ["a1", "new"].map(str::to_owned).into());
    let session = instance.state("durable-sessions/a1");
    assert_eq!(instance.read(&format!("{session}/runner/runner-state.json")), "next\n");
    assert_eq!(instance.read(&format!("{session}/codex-home/sessions/2026/11/rollout.jsonl")), "turn\n");
    assert_eq!(instance.read(&instance.path("workspaces/a1/made")), "made\n");
    assert!(!Path::new(&instance.path("workspaces/a1/notes")).exists());
    let database = format!("{session}/codex-home/state.sqlite");
    let rows = instance.site.beside("sqlite3", &[&database, "select x from turns"]).unwrap();
    assert_eq!(String::from_utf8_lossy(&rows.stdout), "a1\nnew\n");
}

#[test]
fn nothing_of_another_launch_is_there() {
    let Some(instance) = Instance::new(&[OWN, OTHER]) else { return };
    for (id, other) in [(OWN, OTHER), (OTHER, OWN)] {
        for options in [&[][..], &["--ro-bind", &instance.root()]] {
            let found = instance.lines("runner-instance", id, options, FIND);
            let leaked: Vec<_> = found.iter().filter(|path| path.contains(other)).collect();
            assert!(leaked.is_empty(), "{options:?}: {leaked:?}");
            let session = format!("runtime/paperclip-runner/durable-sessions/{id}");
            let home = format!("workspaces/{id}");
            let own = |path: &String| {
                let path = Path::new(path);
                [&*session, &*home, "skills"]
                    .iter()
                    .any(|own| path.starts_with(own) || Path::new(own).starts_with(path))
            };
            let strange: Vec<_> = found.iter().filter(|path| !own(path) && *path != "data").collect();
            assert!(strange.is_empty(), "{options:?}: {strange:?}");
            assert!(found.contains(&format!("{session}/codex-home/state.sqlite")), "{found:?}");
            assert_eq!(found.contains("skills/README.md"), !options.is_empty());
        }
    }
}

#[test]
fn what_is_hidden_is_absent_by_name() {
    let Some(instance) = Instance::new(&[OWN, OTHER]) else { return };
    // Each is there on the host.
    let hidden = [
        "runtime/paperclip-runner/durable-sessions/b2",
        "runtime/paperclip-runner/durable-sessions/b2/codex-home/state.sqlite",
        "runtime/paperclip-runner/control-plane",
        "runtime/paperclip-runner/control-plane/control-plane-state.json",
        "runtime/paperclip-runner/durable-sessions/a1/control-plane/control-plane-state.json",
        "runtime/paperclip-runner/runner/b2/state",
        "runtime/paperclip-runner/runner/a1/state",
        "runtime/paperclip-runner/codex/b2/state",
        "runtime/paperclip-runner/opencode/b2/state",
        "runtime/paperclip-runner/acpx/acpx/b2/state",
        "runtime/paperclip-runner/sessions/a1.json",
        "db",
        "db/pg_wal",
        "db/base/relations.sqlite",
        "secrets/master.key",
        ".env",
        "config.json",
        "logs/server.log",
        "data/run-logs/acme/a1/run.ndjson",
        "data/provider-traces",
        "data/backups/nightly.sql",
        "data/storage/attachment",
        "workspaces/b2/notes",
        "companies/acme/agents/a1/codex-home/auth.json",
        "projects/acme/b2/repo/file",
    ];
    let paths = hidden.map(|name| instance.path(name));
    let names = paths.iter().map(|path| format!("'{path}'")).collect::<Vec<_>>().join(" ");
    let script = format!(
        r#"for path in {names}; do
               said=$(stat -- "$path" 2>&1) && echo "seen: $path"
               case $said in *"No such file or directory"*) ;; *) echo "$said" ;; esac
           done"#
    );
    for path in &paths {
        assert!(Path::new(path).exists(), "{path}");
    }
    for options in [&[][..], &["--ro-bind", &instance.root()]] {
        let said = instance.lines("runner-instance", OWN, options, &script);
        assert!(said.is_empty(), "{options:?}: {said:?}");
    }
}

#[test]
fn the_control_planes_side_of_the_session_stays_as_it_is() {
    let Some(instance) = Instance::new(&[OWN]) else { return };
    let script = r#"
        ls -A "$2/control-plane" "$2/authority-epochs" | grep -v : || true
        echo forged > "$2/control-plane/control-plane-state.json"
        mv "$2/control-plane" "$2/gone" 2> /dev/null && echo moved
        true
    "#;
    let said = instance.lines("runner-instance", OWN, &[], script);
    assert!(said.iter().all(String::is_empty), "{said:?}");
    let state = instance.state("durable-sessions/a1/control-plane/control-plane-state.json");
    assert_eq!(instance.read(&state), "a1\n");
}

#[test]
fn a_first_launch_finds_its_directories_made() {
    let Some(instance) = Instance::new(&[]) else { return };
    let site = &instance.site;
    site.directory("instance/workspaces");
    site.directory("instance/workspaces/c3");
    for (profile, made) in [
        ("runner-instance", "durable-sessions/c3"),
        ("runner-instance-codex", "runner/c3"),
        ("runner-instance-codex", "codex/c3"),
        ("runner-instance-opencode", "opencode/c3"),
        ("runner-instance-acpx", "acpx/acpx/c3"),
    ] {
        let path = instance.state(made);
        let script = format!("mkdir '{path}/first' && echo made > '{path}/first/file'");
        instance.lines(profile, "c3", &[], &script);
        assert_eq!(instance.read(&format!("{path}/first/file")), "made\n");
        for made in Path::new(&path).ancestors().take_while(|above| !above.ends_with("paperclip-runner")) {
            let metadata = fs::symlink_metadata(made).unwrap();
            assert!(metadata.is_dir(), "{made:?}");
            assert_eq!(metadata.mode() & 0o7777, 0o700, "{made:?}");
            assert_eq!((metadata.uid(), metadata.gid()), (site.ids.uid, site.ids.gid), "{made:?}");
        }
    }
    let trace = instance.path("data/provider-traces/c3.ndjson");
    instance.lines("runner-instance-trace", "c3", &[], &format!("echo '{{}}' >> '{trace}'"));
    assert_eq!(instance.read(&trace), "{}\n");
    let metadata = fs::metadata(&trace).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.uid()), (0o600, site.ids.uid));
}

#[test]
fn each_driver_has_its_own_state_and_no_others() {
    let Some(instance) = Instance::new(&[OWN, OTHER]) else { return };
    for (profile, own) in [
        ("runner-instance-codex", &["runner/a1", "codex/a1"][..]),
        ("runner-instance-opencode", &["opencode/a1"]),
        ("runner-instance-acpx", &["acpx/acpx/a1"]),
    ] {
        let found = instance.lines(profile, OWN, &[], FIND);
        let states: BTreeSet<_> = found.iter().filter(|path| path.ends_with("/state")).cloned().collect();
        let own = own.iter().map(|state| format!("runtime/paperclip-runner/{state}/state"));
        assert_eq!(states, own.collect(), "{profile}");
    }
    let script = r#"echo "$CODEX_HOME""#;
    let said = instance.lines("runner-instance-codex", OWN, &[], script);
    assert_eq!(said, [instance.state("codex/a1")].into());
    let both = ["--profile", "runner-instance-trace"];
    let found = instance.lines("runner-instance-codex", OWN, &both, FIND);
    assert!(found.contains("data/provider-traces/a1.ndjson"), "{found:?}");
    assert!(!found.contains("data/provider-traces/b2.ndjson"), "{found:?}");
}

#[test]
fn bad_ids_are_refused_and_nothing_is_made() {
    let Some(instance) = Instance::new(&[OWN, OTHER]) else { return };
    let all = |root: &str| {
        let list = instance.site.beside("find", &[root, "-printf", "%p %m %U %T@\n"]).unwrap();
        String::from_utf8(list.stdout).unwrap()
    };
    let before = all(&instance.root());
    for (variable, value, says) in [
        ("session", "../b2", "`${session}` is not one name"),
        ("session", "b2/codex-home", "`${session}` is not one name"),
        ("session", "/etc", "`${session}` is not one name"),
        ("session", ".", "`${session}` is not one name"),
        ("session", "..", "`${session}` is not one name"),
        ("session", "", "`${session}` is empty"),
        ("runner", "", "`${runner}` is empty"),
        ("runner", "..", "`${runner}` is not one name"),
        ("run", "b2/.", "`${run}` is not one name"),
        ("opencode_session", "a1/../b2", "`${opencode_session}` is not one name"),
        ("acpx_session", ".", "`${acpx_session}` is not one name"),
        ("trace", "../run-logs/x", "`${trace}` is not one name"),
        ("instance", "", "`${instance}` is empty"),
        ("workspace", "repo", "`repo` is a path in the cell and not absolute"),
        ("workspace", "", "`${workspace}` is empty"),
    ] {
        let profiles = ["-codex", "-opencode", "-acpx", "-trace"].map(|end| format!("runner-instance{end}"));
        let mut options: Vec<_> = profiles.iter().flat_map(|name| ["--profile", name]).collect();
        let var = format!("{variable}={value}");
        options.extend(["--var", &var]);
        let refused = instance.launch("runner-instance", OWN, &options, "true");
        assert_eq!(refused.status.code(), Some(125), "{var}");
        let said = stderr(&refused);
        assert!(
            said.starts_with("cellblock: policy: profile runner-instance") && said.contains(says),
            "{said}"
        );
        assert!(said.contains("\nremedy: "), "{said}");
    }
    let undefined = instance.site.beside(
        instance.site.program().to_str().unwrap(),
        &["run", "--profile", "runner-instance", "--var", "instance=/i", "--", "true"],
    );
    let undefined = stderr(&undefined.unwrap());
    assert!(
        undefined.contains("`${runner}` is not defined\nremedy: give it with --var runner=VALUE"),
        "{undefined}"
    );
    assert_eq!(all(&instance.root()), before);
}
