//! `cargo xtask compat`: CPython's own tests, in and out of the `provider` filter.
//!
//! They try more of the kernel than any program does, and say for each test what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

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

/// A module may take so long.
const LIMIT: &str = "1200";

/// The id the tests run under when started by root: a cell never keeps uid 0 either.
const ORDINARY: u32 = 65534;

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
    ensure!(
        done?,
        "some tests do not end alike in and out of {}",
        args.filter
    );
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
            Ok((with.len(), differences(&without, &with)))
        };
        let (count, mut different) = once()?;
        // A test that hangs on time or load ends otherwise now and then; twice is the filter.
        if !different.is_empty() {
            let (_, again) = once()?;
            different.retain(|difference| again.contains(difference));
        }
        println!("{module}: {count} tests, {} differ", different.len());
        for difference in &different {
            println!("  {difference}");
        }
        alike &= different.is_empty();
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
    let report = directory.join("report.xml");
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=10", LIMIT])
        .arg(&args.python)
        .args(["-m", "test", "--junit-xml"])
        .arg(&report)
        .arg(module)
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
    let status = command.status().context("timeout (coreutils)")?;
    let xml = fs::read_to_string(&report);
    fs::remove_dir_all(&directory)?;
    match xml {
        Ok(xml) => Ok(results(&xml)),
        Err(_) if filter.is_none() => bail!(
            "{} -m test {module}: {status}; is libpython3.11-testsuite installed?",
            args.python.display()
        ),
        // Under the filter that is a result: all tests are gone.
        Err(_) => Ok(BTreeMap::new()),
    }
}

/// Reads the report: an element for each test, with one inside for what went wrong.
fn results(xml: &str) -> BTreeMap<String, &'static str> {
    let tests = xml.split("<testcase ").skip(1);
    tests
        .filter_map(|test| {
            let name = test.split("name=\"").nth(1)?.split('"').next()?;
            let ended = [
                ("<failure", "failed"),
                ("<error", "failed"),
                ("<skipped", "skipped"),
            ];
            let ended = ended.into_iter().find(|(tag, _)| test.contains(tag));
            Some((name.to_owned(), ended.map_or("passed", |(_, word)| word)))
        })
        .collect()
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
    use super::{differences, results};

    #[test]
    fn reports_are_compared_by_test() {
        let without = results(
            "<testsuites><testsuite><testcase name=\"a\" time=\"1\"><system-out/></testcase>\
             <testcase name=\"b\"><skipped>why</skipped></testcase><testcase name=\"c\" /></testsuite>",
        );
        let with = results(
            "<testcase name=\"a\"><error type=\"OSError\">x</error></testcase><testcase name=\"b\"><skipped/></testcase>",
        );
        assert_eq!(
            differences(&without, &with),
            [
                "a: passed without, failed with",
                "c: passed without, not run with"
            ]
        );
    }
}
