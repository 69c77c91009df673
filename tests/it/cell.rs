//! Where the tests stand: a fixture instance with a harness of the same
//! ordinary user as the launcher, and ways to run a command in a cell of it or
//! beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use cellblock::demo::fixture::{Fixture, Owner};

use crate::install::install;
use crate::skip;

/// The user that tests drop to when root starts them.
const USER: Owner = Owner { uid: 54321, gid: 54321 };

/// Where a cell sees the probe.
pub const PROBE: &str = "/opt/probe";

/// A fixture, with the programs that the tests need at a place that the
/// ordinary user can reach.
pub struct Ground {
    /// The instance and its harness.
    pub fixture: Fixture,
    probe: PathBuf,
    cellblock: PathBuf,
}

impl Ground {
    /// Makes one; `None`, and a line that says so, where the host lacks what a
    /// cell is made of. `CELLBLOCK_TEST_REQUIRE` makes that a failure.
    pub fn new() -> Option<Ground> {
        let owner = nix::unistd::Uid::effective().is_root().then_some(USER);
        let fixture = Fixture::new(owner, probe_program(), &["harness"]).expect("fixture");
        let [probe, cellblock] = ["bin/probe", "bin/cellblock"].map(|name| fixture.root().join(name));
        install(probe_program(), &probe);
        install(env!("CARGO_BIN_EXE_cellblock"), &cellblock);
        let ground = Ground { fixture, probe, cellblock };
        std::fs::write(ground.policy(), ground.policy_text(PROBE, &ground.workspace())).expect("policy");
        ["userns", "landlock"].iter().all(|feature| ground.has(feature)).then_some(ground)
    }

    /// Whether the kernel has a feature that the probe knows.
    pub fn has(&self, feature: &str) -> bool {
        let output = self.beside([self.probe.to_str().unwrap(), "can", feature]);
        skip::has(feature, output.status.success())
    }

    /// The policy of the fixture's run.
    pub fn policy(&self) -> PathBuf {
        self.fixture.root().join("policy.toml")
    }

    fn workspace(&self) -> String {
        let work = self.fixture.get("WORK");
        format!("[workspace]\ndir = \"{work}\"\nat = \"/work\"\naccess = \"read-only\"\n")
    }

    /// The policy's text, with the probe at `at` and the section `place`.
    fn policy_text(&self, at: &str, place: &str) -> String {
        let get = |key| self.fixture.get(key);
        format!(
            r#"version = 1

[filesystem]
ro_bind = [{{ src = "{probe}", dest = "{at}" }}]

[run]
expose = ["{own}"]

[channel]
dir = "{channel}"
fifo = ["activity.fifo"]
lock = ["activity.lock"]
read_only = ["descriptor.json"]
execute = ["helper"]

{place}"#,
            probe = self.probe.display(),
            own = get("OWN"),
            channel = get("CHANNEL"),
        )
    }

    /// The user that the fixture belongs to.
    pub fn user(&self) -> Owner {
        USER
    }

    /// The words that run a command in a cell of the fixture.
    pub fn run_words<S: AsRef<str>>(&self, options: &[&str], command: impl AsRef<[S]>) -> Vec<String> {
        self.words(&self.policy(), options, command)
    }

    fn words<S: AsRef<str>>(&self, policy: &Path, options: &[&str], command: impl AsRef<[S]>) -> Vec<String> {
        let mut words = vec![self.cellblock.display().to_string(), "run".into()];
        words.extend(["--policy".into(), policy.display().to_string()]);
        words.extend(options.iter().map(|option| (*option).to_owned()));
        words.push("--".into());
        words.extend(command.as_ref().iter().map(|word| word.as_ref().to_owned()));
        words
    }

    /// Runs a command in a cell, started by the ordinary user from a parent
    /// that has descriptors, groups, signals and an environment to hide.
    pub fn cell<S: AsRef<str>>(&self, options: &[&str], command: impl AsRef<[S]>) -> Output {
        self.untidy(self.run_words(options, command))
    }

    /// As [`Ground::cell`], by another policy.
    pub fn cell_of<S: AsRef<str>>(
        &self,
        policy: &Path,
        options: &[&str],
        command: impl AsRef<[S]>,
    ) -> Output {
        self.untidy(self.words(policy, options, command))
    }

    /// Runs a command in a cell that root starts for the ordinary user.
    pub fn cell_by_root<S: AsRef<str>>(&self, options: &[&str], command: impl AsRef<[S]>) -> Output {
        let run_as = format!("{}:{}", USER.uid, USER.gid);
        let options = [options, &["--run-as", &run_as]].concat();
        self.by_root(&options, command)
    }

    /// As [`Ground::cell_by_root`], but with nobody named.
    pub fn cell_by_root_as_nobody<S: AsRef<str>>(&self, command: impl AsRef<[S]>) -> Output {
        self.by_root(&[], command)
    }

    fn by_root<S: AsRef<str>>(&self, options: &[&str], command: impl AsRef<[S]>) -> Output {
        let words = self.run_words(options, command);
        // Root may have been started without groups, and then has none to give up.
        let mut start = Command::new("setpriv");
        start.args(["--groups", "4,6"]).args(words);
        start.env_remove("SUDO_UID").env_remove("SUDO_GID").stdin(Stdio::null());
        start.output().expect("cellblock starts")
    }

    /// Runs a command as the ordinary user on a terminal.
    pub fn on_terminal<S: AsRef<str>>(&self, command: impl AsRef<[S]>) -> Output {
        let facts = self.fixture.facts_file();
        let mut words =
            vec![self.probe.display().to_string(), "terminal".into(), facts.display().to_string()];
        words.extend(command.as_ref().iter().map(|word| word.as_ref().to_owned()));
        self.beside(&words)
    }

    /// Runs a command as [`Ground::cell`] does, but in no cell.
    pub fn untidy<S: AsRef<str>>(&self, command: impl AsRef<[S]>) -> Output {
        let mut words = vec![
            self.probe.display().to_string(),
            "dirty".into(),
            self.fixture.facts_file().display().to_string(),
        ];
        words.extend(command.as_ref().iter().map(|word| word.as_ref().to_owned()));
        self.beside(&words)
    }

    /// Runs a command as the ordinary user.
    pub fn beside<S: AsRef<str>>(&self, command: impl AsRef<[S]>) -> Output {
        let mut start = Command::new(&self.probe);
        start
            .args(["user", &USER.uid.to_string(), &USER.gid.to_string()])
            .args(command.as_ref().iter().map(AsRef::as_ref))
            .stdin(Stdio::null());
        start.output().expect("the probe starts")
    }

    /// Runs probes or controls in a cell and gives what they found by id.
    pub fn inside(&self, options: &[&str], what: &str, ids: &[&str]) -> BTreeMap<String, Finding> {
        let facts = self.fixture.facts_file();
        let mut command = vec![PROBE, what, facts.to_str().unwrap()];
        command.extend(ids);
        findings(self.cell(options, command))
    }

    /// Runs probes in a cell that is left in the host's tree, by a hook that
    /// only test builds have.
    #[cfg(feature = "test-hooks")]
    pub fn inside_the_hosts_tree(&self, options: &[&str], ids: &[&str]) -> BTreeMap<String, Finding> {
        let probe = self.probe.to_str().unwrap();
        let facts = self.fixture.facts_file();
        let policy = self.fixture.root().join("hosts-tree.toml");
        // No entry but of paths that the host has: nothing is made there.
        let home = format!("[cell]\nhome = \"{0}\"\nworkdir = \"{0}\"\n", self.fixture.get("OWN"));
        std::fs::write(&policy, self.policy_text(probe, &home)).expect("policy");
        let mut command = vec![probe, "run", facts.to_str().unwrap()];
        command.extend(ids);
        let mut words = vec!["env".to_owned(), "CELLBLOCK_TEST_HOST_TREE=1".to_owned()];
        words.extend(self.words(&policy, options, command));
        findings(self.untidy(words))
    }

    /// Runs probes or controls in no cell.
    pub fn outside(&self, what: &str, ids: &[&str]) -> BTreeMap<String, Finding> {
        let facts = self.fixture.facts_file();
        let mut command = vec![self.probe.to_str().unwrap(), what, facts.to_str().unwrap()];
        command.extend(ids);
        findings(self.untidy(command))
    }

    /// Runs probes with every capability in namespaces of their own.
    pub fn able(&self, ids: &[&str]) -> BTreeMap<String, Finding> {
        let facts = self.fixture.facts_file();
        let probe = self.probe.to_str().unwrap();
        let mut command = vec![probe, "able", "run", facts.to_str().unwrap()];
        command.extend(ids);
        findings(self.beside(command))
    }

    /// What `probe show` says in a cell, by key.
    pub fn show(&self, options: &[&str], topics: &[&str]) -> BTreeMap<String, Vec<String>> {
        let mut command = vec![PROBE, "show"];
        command.extend(topics);
        let mut shown: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in text(&self.cell(options, command)).lines() {
            let (key, value) = line.split_once('\t').expect("a key and a value");
            shown.entry(key.into()).or_default().push(value.into());
        }
        shown
    }
}

/// What a probe or a control found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// `denied`, `leak`, `na`, `killed`; `ok`, `fail`.
    pub verdict: String,
    /// The errno's name, or what was had.
    pub detail: String,
}

/// The stdout of a command that must have succeeded.
pub fn text(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}\n{stdout}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}

fn findings(output: Output) -> BTreeMap<String, Finding> {
    text(&output)
        .lines()
        .map(|line| {
            let mut fields = line.splitn(3, '\t').map(str::to_owned);
            let mut next = || fields.next().unwrap_or_default();
            let id = next();
            let (verdict, detail) = (next(), next());
            (id, Finding { verdict, detail })
        })
        .collect()
}

/// The ids that the probe lists under `list` or `controls`, in order.
pub fn ids(of: &str) -> BTreeSet<String> {
    let output = Command::new(probe_program()).arg(of).output().expect("the probe starts");
    text(&output).lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
}

/// The probe, built by the cargo that built the tests: it is another package's
/// program, and cargo builds none of those for a test.
pub fn probe_program() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        // TARGET/TRIPLE/PROFILE/deps/it-HASH
        let test = std::env::current_exe().expect("this test's path");
        let place = |n| test.ancestors().nth(n).expect("a cargo target directory");
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "--package", "probe", "--target-dir"])
            .arg(place(4))
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        if place(2).ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo").success(), "the probe does not build");
        place(2).join("probe")
    })
}
