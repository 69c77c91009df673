//! What goes through the standard streams and what the launcher says itself:
//! all of it, to its reader alone, and never at the price of the run.

use std::process::Command;

use crate::user::{User, text};

/// A shell of the user's; `CELL` in its script is `cellblock run`.
fn shell(user: &User, script: &str) -> Command {
    let cell = format!("{} run", user.path("cellblock").display());
    let mut command = user.command("bash");
    command.args(["-c", &script.replace("CELL", &cell)]);
    command
}

fn said(user: &User, script: &str) -> String {
    text(&shell(user, script).output().expect("bash"))
}

#[test]
fn a_provider_cannot_choose_where_its_caller_reads_on() {
    let Some(user) = User::new() else { return };
    user.file("lines", "one\ntwo\nthree\n");
    // It takes what it was given, and writes as much as it likes in its place.
    let claims = |bytes: usize| {
        let forge = "dd bs=64k count=1 of=/dev/null 2> /dev/null; printf %s \"$0\" > /proc/self/fd/0";
        let claim = "x".repeat(bytes);
        let run = format!("CELL -- sh -c '{forge}' '{claim}'");
        said(&user, &format!("while read line; do echo \"<$line>\"; {run}; done < lines"))
    };
    for bytes in [0, 1, 4, 9, 11, 14, 17, 4000] {
        assert_eq!(claims(bytes), "<one>\n", "{bytes} bytes");
    }
    // As if it had read nothing; for the second run it is too much.
    assert_eq!(claims(10), "<one>\n<two>\n");

    user.file("big", vec![b'x'; 1 << 20]);
    let left = |run: &str| said(&user, &format!("{{ {run}; cat; }} < big | wc -c")).trim().to_owned();
    assert_eq!(left("CELL -- head -c 1 > /dev/null"), "0");
    assert_eq!(left("CELL -- head -c 300000 > /dev/null"), "0");
    assert_eq!(left("CELL -- true"), "1048576");
    // The provider has not run.
    assert_eq!(left("CELL -- no-such-program 2> /dev/null"), "1048576");
    assert_eq!(left("CELL --timeout 200ms -- sleep 60 2> /dev/null"), "1048576");
}
