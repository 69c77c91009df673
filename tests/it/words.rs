//! What users are told: one look of all messages, and one document with `--json`.

use std::os::unix::ffi::OsStrExt;
use std::process::Output;

use serde_json::Value;

use crate::site::{Site, stderr};

fn schema(text: &str) -> jsonschema::Validator {
    jsonschema::validator_for(&serde_json::from_str(text).unwrap()).unwrap()
}

/// The one document that a command has printed.
fn document(output: &Output) -> Value {
    assert_eq!(stderr(output), "");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn with_json_an_error_is_the_document() {
    let Some(site) = Site::new() else { return };
    let error = schema(include_str!("../../docs/schema/error.json"));
    for (words, stage) in [
        ("verify --json --policy none.toml", "policy"),
        ("policy check --json --policy none.toml", "policy"),
        ("policy check --json --seccomp none", "policy"),
        ("policy show --json --timeout soon", "policy"),
        ("plan --json --ro-bind none -- true", "policy"),
        ("plan --json --policy none.toml -- true", "policy"),
        ("plan --json --memory 2g -- true", "usage"),
        ("verify --json --args 9", "usage"),
        ("policy chekc --json", "usage"),
    ] {
        let output = site.command(site.program()).args(words.split(' ')).output().unwrap();
        let document = document(&output);
        error.validate(&document).unwrap_or_else(|error| panic!("{words}: {error}\n{document:#}"));
        assert_eq!(document["error"]["stage"], stage, "{words}");
        assert_eq!(document["exit-code"], 125, "{words}");
        assert_eq!(output.status.code(), Some(125), "{words}");
        assert!(document["error"]["remedy"].is_string(), "{words}\n{document:#}");
    }
    // The flag may come by a descriptor.
    let script = "printf -- '--json\\0' | ./cellblock verify --args 0 --policy none.toml";
    let output = site.command("sh").args(["-c", script]).output().unwrap();
    error.validate(&document(&output)).unwrap();
    // What stands behind `--` is the provider's.
    let output =
        site.command(site.program()).args(["plan", "--ro-bind", "none", "--", "x", "--json"]).output();
    assert!(stderr(&output.unwrap()).starts_with("cellblock: policy: --ro-bind: "));
}

#[test]
fn with_json_every_result_has_a_schema() {
    let Some(site) = Site::new() else { return };
    let check = schema(include_str!("../../docs/schema/check.json"));
    let output =
        site.command(site.program()).args(["policy", "check", "--json", "--env", "API_KEY"]).output();
    let found = document(&output.unwrap());
    check.validate(&found).unwrap();
    assert_eq!(found["warnings"][0]["name"], "secret-variable");

    let verify = schema(include_str!("../../docs/schema/verify.json"));
    let output = site.command(site.program()).args(["verify", "--json", "--without", "landlock"]).output();
    let found = document(&output.unwrap());
    verify.validate(&found).unwrap();
    assert_eq!(found["notes"][0], "without landlock, which was turned off");

    let plan = schema(include_str!("../../docs/schema/plan.json"));
    site.directory("work");
    for words in [
        "plan --json -- true",
        "plan --json --workspace work --hide /usr/share/doc --mode nested --allow-missing landlock-scope -- true",
    ] {
        let output = site.command(site.program()).args(words.split(' ')).output().unwrap();
        let found = document(&output);
        plan.validate(&found).unwrap_or_else(|error| panic!("{words}: {error}"));
    }
    for shown in
        [include_str!("../snapshots/everything.json"), include_str!("../snapshots/layers-missing.json")]
    {
        plan.validate(&serde_json::from_str(shown).unwrap()).unwrap();
    }
}

#[test]
fn a_name_begins_no_line_of_a_message() {
    let Some(site) = Site::new() else { return };
    let hostile = "x\nremedy\n\x1b[2J\u{202e}\r";
    let directory = site.directory(hostile);
    site.file(&format!("{hostile}.toml"), "version = 1\n[cell]\nhostnam = 'x'\n", 0o644);
    for (words, lines) in [
        (&["run", "--ro-bind", &format!("{hostile}/none"), "--", "true"][..], 2),
        (&["run", "--policy", &format!("{hostile}.toml"), "--", "true"], 4),
        (&["run", "--policy", &format!("{hostile}/none.toml"), "--", "true"], 2),
        (&["run", "--workspace", hostile, "--", "./none\nremedy: x"], 3),
        (&["plan", &format!("--{hostile}"), "--", "true"], 2),
        (&["policy", "check", "--profile", hostile], 2),
        (&["run", "--mode", hostile, "--", "true"], 2),
        (&["run", "--timeout", hostile, "--", "true"], 2),
    ] {
        let said = stderr(&site.command(site.program()).args(words).output().unwrap());
        assert_eq!(said.lines().count(), lines, "{words:?}\n{said}");
        assert!(said.bytes().all(|byte| byte == b'\n' || byte >= b' '), "{words:?}\n{said}");
        assert!(!said.contains('\u{202e}'), "{words:?}\n{said}");
    }
    // Nor of a plan.
    let words = ["plan", "--workspace", hostile, "--", "true", "a\nverified: yes"];
    let output = site.command(site.program()).args(words).output().unwrap();
    let plan = String::from_utf8_lossy(&output.stdout);
    assert!(plan.contains("\\nremedy"), "{}{plan}", stderr(&output));
    assert!(
        !plan.contains("\nremedy") && !plan.contains("\nverified: yes") && !plan.contains('\x1b'),
        "{plan}"
    );
    assert!(directory.as_os_str().as_bytes().contains(&b'\n'));
}

#[test]
fn the_binary_has_its_manual_and_completions() {
    let Some(site) = Site::new() else { return };
    let print = |words: &[&str]| site.command(site.program()).args(words).output().unwrap();
    for page in ["cellblock", "run", "cellblock-verify", "policy-check.1", "policy", "policy.5"] {
        let output = print(&["man", page]);
        assert!(output.status.success(), "{page}: {}", stderr(&output));
        assert!(output.stdout.starts_with(b".ie") || output.stdout.starts_with(b".TH"), "{page}");
    }
    let output = print(&["man", "nosuch"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("cellblock-policy.5"));
    for shell in ["bash", "zsh", "fish"] {
        let output = print(&["completions", shell]);
        assert!(output.status.success() && output.stdout.len() > 1000, "{shell}");
    }
    let script = print(&["completions", "bash"]).stdout;
    site.file("complete.bash", script, 0o644);
    let complete = "source complete.bash; COMP_WORDS=(cellblock run --profile ''); COMP_CWORD=3; \
                    _cellblock cellblock '' --profile; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = site.beside("bash", &["-c", complete]).unwrap();
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(words.lines().any(|word| word == "claude"), "{words}{}", stderr(&output));
}

#[test]
fn all_that_is_wrong_with_a_file_is_said_at_once() {
    let Some(site) = Site::new() else { return };
    let policy = "version = 1\n\
                  [cell]\n\
                  hostnam = \"x\"\n\
                  timeout = 30\n\
                  home = \"home\"\n\
                  [filesystem]\n\
                  ro_bind = [\"/usr/../etc\", \"/opt\", { scr = \"/srv\" }]\n\
                  bind = [\"${one}\", \"${two}/${one}\",\n  \"${one}\"]\n\
                  [network]\n\
                  mode = \"on\"\n\
                  allow = []\n";
    site.file("p.toml", policy, 0o644);
    let output =
        site.command(site.program()).args(["policy", "check", "--policy", "p.toml"]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    for says in [
        "p.toml:3: unknown field `hostnam`",
        "did you mean `hostname`?",
        "p.toml:4: ",
        "write \"30s\"",
        "p.toml:5: `home` is a path in the cell and not absolute",
        "p.toml:7: ",
        "p.toml:8: `${one}` is not defined",
        "p.toml:8: `${two}` is not defined",
        "p.toml:11: unknown variant `on`",
        "p.toml:12: unknown field `allow`",
    ] {
        assert!(said.contains(says), "{says}\n{said}");
    }
    assert_eq!(said.matches("`${one}` is not defined").count(), 1, "{said}");
    let errors = said.lines().filter(|line| line.starts_with("cellblock: policy: p.toml:")).count();
    assert!(errors >= 7, "{said}");

    // Every variable of a profile, and each once.
    let mut check = site.command(site.program());
    let output = check.args(["policy", "check", "--json", "--profile", "runner-instance"]).output().unwrap();
    let found = document(&output);
    let also = found["error"]["also"].as_array().unwrap();
    assert_eq!(also.len(), 3, "{found:#}");
    let mut check = site.command(site.program());
    check.args(["policy", "check", "--json", "--profile", "runner-instance", "--var", "session=../x"]);
    for variable in ["instance=/srv/i", "runner=r", "workspace=/srv/w"] {
        check.args(["--var", variable]);
    }
    let found = document(&check.output().unwrap());
    assert!(found["error"]["also"].is_null(), "{found:#}");
}

#[test]
fn what_was_meant_is_said() {
    let Some(site) = Site::new() else { return };
    site.file("cell.toml", "version = 1\n[filesystem]\nro_bind = [\"place\"]\n", 0o644);
    site.directory("place");
    let said = |line: &str| {
        let output = site.command("sh").args(["-c", line]).output();
        let output = output.unwrap();
        (output.status.code(), stderr(&output) + &String::from_utf8_lossy(&output.stdout))
    };
    for (line, code, says) in [
        ("cellblock run --policy cel.toml -- true", 125, "did you mean cell.toml?"),
        ("cellblock run --policy place -- true", 125, "this is a directory"),
        ("cellblock run --policy - -- true", 125, "write /dev/stdin"),
        ("cellblock run --policy /dev/ptmx -- true", 125, "this is a terminal or another device"),
        ("cellblock run --seccomp /dev/zero -- true", 125, "cause: it is a terminal or another device"),
        ("cellblock run --private -- true", 125, "home, /tmp and /dev are the cell's own"),
        (
            "cellblock run --hide nowhere -- true",
            0,
            "nowhere is hidden and not there (--accept hidden-missing)",
        ),
        ("cellblock policy check --strict --hide nowhere", 1, "nowhere is hidden and not there"),
        ("cellblock policy check --strict --hide nowhere --accept hidden-missing", 0, "ok"),
        (
            "cellblock policy check --profile claude",
            125,
            "--var state=VALUE: its CLAUDE_CONFIG_DIR on the host",
        ),
        ("cellblock run --timeout -5s -- true", 125, "`-5s` is no duration"),
        ("cellblock policy show >&-", 125, "standard output is closed"),
        ("cellblock policy check --var rnu=r1 --policy cell.toml", 0, "no policy file asks for `${rnu}`"),
        ("cellblock policy check --strict --profile claude --var state=/opt --var x=1", 1, "unused-variable"),
        // What comes by a descriptor lies nowhere: its paths count from here.
        ("cellblock policy check --policy /dev/stdin <cell.toml", 0, "ok"),
    ] {
        let (status, text) = said(&line.replace("cellblock", "./cellblock"));
        assert_eq!(status, Some(code), "{line}\n{text}");
        assert!(text.contains(says), "{line}: {says}\n{text}");
        assert!(!text.contains("os error"), "{line}\n{text}");
    }
}

#[test]
fn a_limit_of_the_callers_is_named_where_it_is_in_the_way() {
    let Some(site) = Site::new() else { return };
    let run = |limit: String| {
        let script = format!("ulimit {limit}; exec ./cellblock run -- true");
        let output = site.command("sh").args(["-c", &script]).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    for files in 0..24 {
        let (code, said) = run(format!("-n {files}"));
        assert!(code != Some(125) || said.starts_with("cellblock: "), "{files}: {code:?} {said}");
    }
    for (limit, remedy) in [("-n 8", "ulimit -n"), ("-f 1", "ulimit -f")] {
        let (code, said) = run(limit.to_owned());
        assert!(code == Some(125) && said.contains(remedy), "{limit}: {code:?} {said}");
    }
}
