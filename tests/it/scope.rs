//! Two runs of one user in one instance: neither learns of the other, nor of
//! the harness, and each keeps what is its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use crate::cell::{Finding, PROBE, text};
use crate::escape::VISIBLE;
use crate::instance::{HIDDEN, Instance, VIEWS, View, are_absent, other};
use crate::skip;
use crate::user;

fn findings(output: &Output) -> BTreeMap<String, Finding> {
    let line = |line: &str| {
        let mut fields = line.splitn(3, '\t').map(str::to_owned);
        let mut next = || fields.next().unwrap_or_default();
        (next(), Finding { verdict: next(), detail: next() })
    };
    text(output).lines().map(line).collect()
}

/// What a probe may have where the view is writable, and why.
const OF_A_WRITABLE_VIEW: [(&str, &str); 4] = [
    ("F09", "a file that is masked can be read, and is empty"),
    ("F10", "what is masked can be listed"),
    ("F30", "the instance itself takes new entries"),
    ("P22", "a mask is a mount, which the mount table names"),
];

#[test]
fn no_probe_reaches_the_harness_or_a_run_beside_it() {
    let Some(instance) = Instance::new() else { return };
    for view in VIEWS {
        for run in ["A", "B"] {
            let live = instance.live(other(run), view);
            let facts = instance.text(&format!("runs/{run}/facts"));
            let beside = instance.write_facts(run, "beside", &live.facts);
            for (of, facts) in [("the harness", facts), ("the other run", beside)] {
                let found = findings(&instance.run(run, view, &[], &[PROBE, "run", &facts]));
                assert!(found.keys().eq(&crate::cell::ids("list")), "the probe came to its end");
                let is_wrong = |id: &str, verdict: &str| match id {
                    "P43" => verdict != "na",
                    id if VISIBLE.iter().any(|(name, _)| *name == id) => verdict == "killed",
                    id if OF_A_WRITABLE_VIEW.iter().any(|(name, _)| *name == id)
                        && view == View::Writable =>
                    {
                        verdict == "killed"
                    }
                    _ => verdict != "denied",
                };
                let wrong: Vec<_> =
                    found.iter().filter(|(id, finding)| is_wrong(id, &finding.verdict)).collect();
                assert!(wrong.is_empty(), "from {run}, of {of}, {view:?}: {wrong:#?}");
            }
        }
    }
}

#[test]
fn a_hidden_path_is_to_every_call_one_that_never_was() {
    let Some(instance) = Instance::new() else { return };
    for (view, options) in [
        (View::ReadOnly, &[][..]),
        (View::Writable, &[]),
        (View::None, &[]),
        (View::ReadOnly, &["--without", "landlock"]),
        (View::ReadOnly, &["--without", "seccomp"]),
        (View::ReadOnly, skip::NESTED),
        (View::Writable, &["--without", "landlock"]),
        (View::ReadOnly, &["--run-as", "54321:54321"]),
        (View::Writable, &["--run-as", "54321:54321"]),
    ] {
        for run in ["A", "B"] {
            let _live = instance.live(other(run), view);
            let paths = instance.hidden(run, view);
            for path in &paths {
                assert!(fs::symlink_metadata(path).is_ok(), "{path} is there");
            }
            let words = instance.reach_words(run, &paths);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let output = match options {
                ["--run-as", _] if !user::is_root() => continue,
                ["--run-as", _] => instance.run_by_root(run, view, options, &words),
                _ => instance.run(run, view, options, &words),
            };
            are_absent(&paths, &text(&output), &format!("from {run}, {view:?} {options:?}"));
        }
    }
}

#[test]
fn no_file_of_proc_names_the_harness_or_the_other_run() {
    let Some(instance) = Instance::new() else { return };
    let get = |key: &str| instance.ground.fixture.get(key).to_owned();
    for view in VIEWS {
        for run in ["A", "B"] {
            let live = instance.live(other(run), view);
            let mut tokens =
                ["CASE_ID", "SECRET", "COMM", "ABSTRACT", "HARNESS_DIR", "IN_TMP"].map(get).to_vec();
            tokens.extend(["CASE_ID", "SECRET", "COMM", "ABSTRACT"].map(|key| live.facts[key].clone()));
            let other = other(run);
            tokens.extend([format!("runs/{other}"), format!("chan/{other}")]);
            tokens.extend(["pg_wal", "run-logs", "provider-traces", "session.db"].map(String::from));
            if view != View::Writable {
                tokens.extend(["inst/db", "inst/secrets", "inst/data", "control-plane"].map(String::from));
            }
            let words = instance.file(&format!("runs/{run}/tokens"), &(tokens.join("\n") + "\n"));
            let words = [PROBE, "search", words.to_str().expect("a path")];
            for options in [&[][..], skip::NESTED] {
                let said = text(&instance.run(run, view, options, &words));
                let (found, read) = said.trim_end().rsplit_once('\n').unwrap_or(("", said.trim_end()));
                assert_eq!(found, "", "from {run}, {view:?} {options:?}");
                let read: usize = read.strip_prefix("read\t").and_then(|n| n.parse().ok()).expect("a number");
                assert!(read > 100, "only {read} files were read");
            }
        }
    }
    // Outside the same search finds the harness.
    let words = instance.path("runs/A/tokens");
    let beside = instance.ground.beside([
        instance.root().join("bin/probe").to_str().expect("a path"),
        "search",
        words.to_str().expect("a path"),
    ]);
    let said = text(&beside);
    assert!(said.lines().any(|line| line.ends_with(&get("CASE_ID"))), "{said}");
}

#[test]
fn a_run_sees_and_keeps_what_is_its_own() {
    let Some(instance) = Instance::new() else { return };
    for view in VIEWS {
        for run in ["A", "B"] {
            let _live = instance.live(other(run), view);
            let own = instance.text(&format!("runs/{run}"));
            let script = format!(
                "cd {own} && cat notes.md && mkdir made && echo content > made/new && mv made/new made/file && \
                cat {1}/chan/{run}/descriptor.json > seen && for name in {0}/* {0}/runs/* {0}/chan/*; do \
                echo $name; done > listed; ({1}/chan/{run}/helper true && echo helped) 2>&1; \
                (echo note > {0}/public/{run}) 2> /dev/null; cat {0}/public/README 2> /dev/null; true",
                instance.text("").trim_end_matches('/'),
                instance.root().display(),
            );
            let said = text(&instance.run(run, view, &[], &["sh", "-c", &script]));
            let what = format!("{run}, {view:?}");
            assert!(said.starts_with("a run's notes\n") && said.contains("helped\n"), "{what}: {said}");
            assert_eq!(said.contains("for every run\n"), view != View::None, "{what}: {said}");
            let made = instance.path(&format!("runs/{run}/made"));
            assert_eq!(fs::read_to_string(made.join("file")).expect("it is on the host"), "content\n");
            fs::remove_dir_all(made).expect("removed");
            let note = instance.path(&format!("public/{run}"));
            assert_eq!(note.exists(), view == View::Writable, "{what}");
            let _ = fs::remove_file(note);
            let seen = fs::read_to_string(instance.path(&format!("runs/{run}/seen"))).expect("it was read");
            assert_eq!(seen, instance.ground.fixture.get("DESCRIPTOR_TEXT"), "{what}");

            // What can be listed of the instance: no name that is hidden.
            let listed = fs::read_to_string(instance.path(&format!("runs/{run}/listed"))).expect("a list");
            let inst = instance.text("");
            let names: BTreeSet<&str> =
                listed.lines().map(|name| name.strip_prefix(&inst).expect("a path")).collect();
            let names = names.into_iter().filter(|name| !name.ends_with('*'));
            let known = |name: &str| {
                let shows = view == View::Writable && HIDDEN.contains(&name);
                let own = ["runs", &format!("runs/{run}")].contains(&name);
                shows || own || ["public", "latest"].contains(&name)
            };
            let strange: Vec<_> = names.filter(|name| !known(name)).collect();
            assert!(strange.is_empty(), "{what}: {strange:?}");
        }
    }
}

#[test]
fn each_run_works_on_its_own_database_while_the_other_does() {
    let Some(instance) = Instance::new() else { return };
    if !skip::has_programs(&["python3"]) {
        return;
    }
    let script = "import sqlite3, sys, time\n\
        db = sqlite3.connect(sys.argv[1], timeout=20)\n\
        for n in range(1000, 1200):\n    \
            db.execute('insert into turns values (?, ?)', (n, sys.argv[2]))\n    \
            db.commit()\n\
        print(db.execute('select count(*) from turns').fetchone()[0])\n";
    for (round, view) in VIEWS.into_iter().enumerate() {
        let start = |run: &str| {
            let database = instance.text(&format!("runs/{run}/session.db"));
            let words = ["/usr/bin/python3", "-c", script, &database, run];
            let mut command = instance.command(run, view, &[], &words);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
        };
        let runs = [start("A"), start("B")];
        for run in runs {
            let output = run.wait_with_output().expect("it ends");
            assert_eq!(text(&output), format!("{}\n", 500 + 200 * (round + 1)), "{view:?}");
        }
    }
}

#[test]
fn nothing_that_happens_in_a_hidden_place_can_be_watched() {
    let Some(instance) = Instance::new() else { return };
    let places: Vec<String> = ["", "runs", "chan", "public"].map(|name| instance.text(name)).to_vec();
    let places: Vec<&str> = places.iter().map(|place| place.trim_end_matches('/')).collect();
    let words = [&[PROBE, "watch"], &places[..]].concat();
    let mut watcher = instance.command("A", View::ReadOnly, &[], &words);
    let mut watcher = watcher.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(watcher.stdout.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it speaks");
    assert_eq!(line, "watching\n");
    for name in ["runs/C", "runs/B/made", "chan/C", "db/made", "secrets/made", "made"] {
        instance.directory(name);
        fs::remove_dir(instance.path(name)).expect("removed");
    }
    drop(watcher.stdin.take());
    let seen: Vec<String> = said.lines().map(|line| line.expect("it speaks")).collect();
    user::end(&mut watcher);
    assert_eq!(seen.len(), places.len(), "{seen:?}");
    assert!(seen.iter().all(|line| !line.ends_with("\tevents")), "{seen:?}");
}
