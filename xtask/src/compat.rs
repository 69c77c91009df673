//! `cargo xtask compat`: CPython's own tests, in and out of the `provider` filter.
//!
//! They try more of the kernel than any program does, and say for each test what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::filters::decide::Decisions;
use crate::filters::install::Loaded;
use crate::filters::table::Arch;
use crate::filters::{self, compile};

/// The modules tried when none is named.
const MODULES: &[&str] = &[
    "test_os",
    "test_subprocess",
    "test_socket",
    "test_threading",
    "test_multiprocessing_fork",
    "test_multiprocessing_spawn",
    "test_multiprocessing_forkserver",
    "test_asyncio",
    "test_mmap",
    "test_signal",
    "test_sqlite3",
    "test_tempfile",
    "test_shutil",
    "test_select",
    "test_ssl",
];

/// Tests, by a part of their names, that end otherwise because of what a filter refuses on purpose.
const DECIDED: &[(&str, &str)] = &[
    ("UDPLITE", "UDP-Lite is refused, and the tests do not ask whether it is there"),
    ("s_isgid_directory", "set-id bits are refused, and the test skips itself"),
];

/// A module may take so long.
const LIMIT: &str = "1200";

/// The id the tests run under when started by root: a cell never keeps uid 0 either.
const ORDINARY: u32 = 65534;

/// Runs a module's tests and notes how each ended: a line for each, the end and its name. CPython's
/// own runner writes no report of a module in which one test fails.
const DRIVER: &str = r#"
import importlib, sys, unittest
from test import support

importlib.import_module("test." + sys.argv[1])

support.use_resources = []
report = open(sys.argv[2], "w", buffering=1)

class Result(unittest.TestResult):
    def note(self, ended, test):
        print(ended, test.id(), sep="\t", file=report)
    def addSuccess(self, test):
        self.note("passed", test)
    def addFailure(self, test, error):
        self.note("failed", test)
    def addError(self, test, error):
        self.note("failed", test)
    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.note("failed", test)
    def addSkip(self, test, reason):
        self.note("skipped", test)
    def addExpectedFailure(self, test, error):
        self.note("passed", test)
    def addUnexpectedSuccess(self, test):
        self.note("failed", test)

unittest.defaultTestLoader.loadTestsFromName("test." + sys.argv[1]).run(Result())
print("finished", file=report)
"#;

/// Run CPython's test suite in and out of a filter, and print the difference
#[derive(clap::Args)]
pub struct Args {
    /// Test modules, as test_os
    modules: Vec<String>,
    /// The interpreter; Debian has the tests in libpython3.11-testsuite
    #[arg(long, default_value = "/usr/bin/python3")]
    python: PathBuf,
    /// The filter
    #[arg(long, default_value = "provider")]
    filter: String,
}

/// Runs `cargo xtask compat`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let source = filters::load(&args.filter)?;
    let program = compile(&Decisions::new(&source, Arch::NATIVE)?)?;
    let filter = Loaded::new(&program);
    let scratch = std::env::temp_dir().join(format!("cellblock-compat-{}", std::process::id()));
    fs::create_dir(&scratch).with_context(|| scratch.display().to_string())?;
    let done = compare(args, &filter, &scratch);
    let _ = fs::remove_dir_all(&scratch);
    ensure!(done?, "some tests do not end alike in and out of {}", args.filter);
    Ok(())
}

fn compare(args: &Args, filter: &Loaded, scratch: &Path) -> anyhow::Result<bool> {
    let named: Vec<&str> = args.modules.iter().map(String::as_str).collect();
    let modules = if named.is_empty() { MODULES } else { &named };
    let mut alike = true;
    for module in modules {
        let once = || -> anyhow::Result<_> {
            let without = tests(args, module, None, scratch)?;
            let with = tests(args, module, Some(filter), scratch)?;
            Ok((without.len(), differences(&without, &with)))
        };
        let (count, mut different) = once()?;
        // A test that hangs on time or load ends otherwise now and then; twice is the filter.
        if !different.is_empty() {
            let (_, again) = once()?;
            different.retain(|difference| again.contains(difference));
        }
        for (part, reason) in DECIDED {
            let before = different.len();
            different.retain(|difference| !difference.contains(part));
            if before > different.len() {
                println!("{module}: {} differ as decided: {reason}", before - different.len());
            }
        }
        alike &= count > 0 && different.is_empty();
        match count {
            0 => println!("{module}: not among the tests of {}", args.python.display()),
            _ => println!("{module}: {count} tests, {} differ", different.len()),
        }
        for difference in &different {
            println!("  {difference}");
        }
    }
    Ok(alike)
}

/// How each test of a module ended.
fn tests(
    args: &Args,
    module: &str,
    filter: Option<&Loaded>,
    scratch: &Path,
) -> anyhow::Result<BTreeMap<String, &'static str>> {
    let directory = scratch.join(module);
    fs::create_dir(&directory)?;
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
    let report = directory.join("report");
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=10", LIMIT])
        .arg(&args.python)
        .args(["-c", DRIVER, module])
        .arg(&report)
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8")])
        .env("HOME", &directory)
        .env("TMPDIR", &directory)
        .current_dir(&directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        chown(&directory, Some(ORDINARY), Some(ORDINARY))?;
        command.uid(ORDINARY).gid(ORDINARY);
    }
    if let Some(filter) = filter {
        filter.around(&mut command);
    }
    command.status().context("timeout (coreutils)")?;
    let report = fs::read_to_string(&report).unwrap_or_default();
    fs::remove_dir_all(&directory)?;
    Ok(ends(&report))
}

/// Reads the driver's report. A test that failed in part has failed; one that stopped all of them,
/// by a crash or by [`LIMIT`], shows in those that did not run.
fn ends(report: &str) -> BTreeMap<String, &'static str> {
    let mut ends = BTreeMap::new();
    for line in report.lines() {
        let (end, test) = line.split_once('\t').unwrap_or((line, "(all of them)"));
        let end = match end {
            "passed" => "passed",
            "skipped" => "skipped",
            "finished" => "finished",
            _ => "failed",
        };
        let so_far = ends.entry(test.to_owned()).or_insert(end);
        if *so_far != "failed" {
            *so_far = end;
        }
    }
    ends
}

fn differences(
    without: &BTreeMap<String, &'static str>,
    with: &BTreeMap<String, &'static str>,
) -> Vec<String> {
    let names: BTreeSet<&String> = without.keys().chain(with.keys()).collect();
    let mut differences = Vec::new();
    for name in names {
        let [without, with] = [without, with].map(|tests| *tests.get(name).unwrap_or(&"not run"));
        if without != with {
            differences.push(format!("{name}: {without} without, {with} with"));
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::{differences, ends};

    #[test]
    fn reports_are_compared_by_test() {
        let without = ends("passed\ta\nskipped\tb\npassed\tc\nfailed\td\npassed\td\nfinished\n");
        let with = ends("failed\ta\nskipped\tb\nfailed\td\n");
        assert_eq!(
            differences(&without, &with),
            [
                "(all of them): finished without, not run with",
                "a: passed without, failed with",
                "c: passed without, not run with",
            ]
        );
    }
}
