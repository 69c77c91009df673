//! What a wrong source is answered with: the place, and what to write instead.

use super::parse;
use crate::filters::decide::Decisions;
use crate::filters::table::Arch;
use crate::filters::{compile, source, table};

/// The lines that make what follows a whole filter; five of them.
const HEAD: &str = "filter test: why\ngroup all: why\nforeign kill: why\nx32 kill: why\nunknown kill: why\n";

fn message(text: &str) -> String {
    let text = format!("{HEAD}{text}");
    let compiled = parse(&text).and_then(|source| {
        for arch in Arch::ALL {
            compile(&Decisions::new(&source, arch)?)?;
        }
        Ok(())
    });
    compiled.expect_err("an error").to_string()
}

#[track_caller]
fn says(text: &str, expected: &[&str]) {
    let message = message(text);
    for expected in expected {
        assert!(message.contains(expected), "{expected:?} is not in:\n{message}");
    }
}

#[test]
fn unknown_names() {
    says("allow\n    opnat\n", &["test.filter:7", "no call is named `opnat`", "openat"]);
    says("refuse EPREM: why\n    read\n", &["test.filter:6", "`EPREM`", "refuse EPERM"]);
    says(
        "call clone: why\n    allow if flags == CLONE_NEWUTZ\n    kill\n",
        &["test.filter:7", "CLONE_NEWUTS"],
    );
    says("include fils\n", &["test.filter:6", "groups/fils.filter"]);
    says("permit\n    read\n", &["test.filter:6", "`permit`", "allow"]);
}

#[test]
fn calls_of_one_architecture() {
    says("allow\n    open\n", &["test.filter:7", "`open` is a call of x86_64 only", "on x86_64"]);
    says("allow on aarch64\n    open\n", &["test.filter:7", "x86_64 only", "on x86_64"]);
    says("allow on riscv64\n    read\n", &["test.filter:6", "riscv64", "on x86_64, or on aarch64"]);
}

#[test]
fn conditions_on_what_is_not_there() {
    says(
        "call openat: why\n    allow if path == 0\n    kill\n",
        &["test.filter:7", "no argument `path`", "dfd filename flags mode"],
    );
    says("call getpid: why\n    allow if pid == 0\n    kill\n", &["test.filter:7", "takes no argument"]);
    says(
        "call socket: why\n    allow if type & 0x1ffffffff == 1\n    kill\n",
        &["test.filter:7", "mask of `type`", "32 bits"],
    );
    says(
        "call socket: why\n    allow if type & 0xf == 0x10\n    kill\n",
        &["test.filter:7", "bits 0xf", "never 0x10"],
    );
    says("call socket: why\n    allow if type > 1\n    kill\n", &["test.filter:7", "no condition", "not in"]);
    says(
        "set A = 1 2\ncall socket: why\n    allow if type == A\n    kill\n",
        &["test.filter:8", "A is a set", "in"],
    );
}

#[test]
fn decisions_that_clash_or_lack() {
    says(
        "allow\n    read write\nrefuse EPERM: why\n    write\n",
        &["test.filter:9", "`write` is decided already at filters/test.filter:7"],
    );
    says(
        "call socket: why\n    allow if type == 1\n",
        &["test.filter:6", "no condition holds", "without `if`"],
    );
    says("call socket: why\n    allow\n    kill\n", &["test.filter:8", "no call comes this far"]);
    says("allow\n", &["test.filter:6", "no call"]);
    says("refuse EPERM\n    read\n", &["test.filter:6", "without a reason", "refuse EPERM: why"]);
    says("unknown allow: why\n", &["test.filter:6", "already at filters/test.filter:5"]);
    says("set A = 1\nset A = 2\n", &["test.filter:7", "second set `A`"]);
    says("filter again: why\n", &["test.filter:6", "a second filter"]);
}

#[test]
fn groups_that_include_themselves() {
    let read = |file: &str| {
        Ok(match file {
            "test.filter" => "filter test: why\ninclude a\n",
            "groups/a.filter" => "group a: why\n\ninclude b\n",
            _ => "group b: why\ninclude a\n",
        }
        .to_owned())
    };
    let message = source::load("test.filter", &read).unwrap_err().to_string();
    assert!(message.contains("filters/groups/b.filter:2: groups/a.filter includes itself"), "{message}");
}

#[test]
fn programs_that_are_too_long() {
    // Conditions that have nothing in common share nothing.
    let calls = Arch::X86_64.calls().iter().map(|(_, name)| name);
    let wide = calls.filter(|name| Arch::Aarch64.calls().number(name).is_some()).filter_map(|name| {
        table::arguments(name).iter().find(|argument| argument.wide).map(|argument| (name, argument.name))
    });
    let decisions = wide.enumerate().map(|(index, (call, argument))| {
        let values: Vec<String> =
            (1..40).map(|n| format!("{:#x}", ((index * 40 + n) as u32).wrapping_mul(0x9e37_79b9))).collect();
        format!("call {call}: why\n    allow if {argument} in {}\n    kill\n", values.join(" "))
    });
    says(&decisions.collect::<String>(), &["test.filter:1", "the kernel takes 4096", "fewer conditions"]);
}
