//! The newcomer's first command: the fixture of an instance, what `verify` finds
//! of it from within a cell, and what the same probes find outside.

mod checks;
pub mod fixture;
pub mod harness;
mod place;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anstyle::{AnsiColor, Style};
use nix::unistd::Uid;

use crate::error::Error;
use crate::message::Look;
use crate::policy::Layer;
use crate::verify::{Check, Line, Verdict};
use fixture::{Fixture, Owner};

/// The id that root hands the fixture to when sudo names no user: one that no
/// distribution gives to anybody, below systemd's range for services.
const NOBODY_ELSE: Owner = Owner { uid: 54321, gid: 54321 };

fn failed(error: io::Error) -> Error {
    let text = error.to_string();
    Error::new("demo", text.split(" (os error ").next().unwrap_or(&text))
}

/// Why there is no fixture.
fn not_made(error: io::Error) -> Error {
    match error.kind() {
        // EPERM, and EINVAL of an id that this user namespace does not map.
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput if Uid::effective().is_root() => {
            failed(error)
                .cause("the fixture is made for an ordinary user, and root cannot give files to that id here")
                .remedy("start as an ordinary user, or name an id that is mapped here with --run-as UID:GID")
        }
        _ => failed(error).remedy("set TMPDIR to a directory that takes files and is not below /tmp or /dev"),
    }
}

/// The fixture, with the policy of its run. Dropping it removes all of it.
pub struct Demo {
    fixture: Fixture,
    owner: Option<Owner>,
}

impl Demo {
    /// Makes it; started by root, for `owner` or, where none is named, for the
    /// user who called sudo.
    ///
    /// # Errors
    ///
    /// When a file cannot be made, or the harness not be started.
    pub fn new(owner: Option<Owner>) -> Result<Demo, Error> {
        Demo::make(owner).map_err(not_made)
    }

    fn make(owner: Option<Owner>) -> io::Result<Demo> {
        let owner = Uid::effective().is_root().then(|| owner.unwrap_or_else(owner_for_root));
        let fixture = Fixture::new(owner, "/proc/self/exe".as_ref(), &["demo-harness"])?;
        let demo = Demo { fixture, owner };
        fs::write(demo.policy(), demo.policy_text())?;
        Ok(demo)
    }

    /// Who it belongs to, where root has made it.
    pub fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// What a cell of its run is tested for.
    pub fn checks(&self) -> Vec<Check> {
        checks::checks(&self.fixture)
    }

    /// The policy of its run.
    pub fn policy(&self) -> PathBuf {
        self.fixture.root().join("policy.toml")
    }

    fn policy_text(&self) -> String {
        let get = |key| self.fixture.get(key);
        format!(
            r#"version = 1

[filesystem]
ro_bind = [{{ src = "{helper}", dest = "/opt/agent" }}]

[run]
expose = ["{own}"]

[channel]
dir = "{channel}"
fifo = ["activity.fifo"]
lock = ["activity.lock"]
read_only = ["descriptor.json"]
execute = ["helper"]

[workspace]
dir = "{work}"
at = "/work"
access = "read-only"
"#,
            helper = get("HELPER"),
            own = get("OWN"),
            channel = get("CHANNEL"),
            work = get("WORK"),
        )
    }

    /// The result: what each of `outside` came to in the cell, what works there,
    /// and what else is wrong. `inside` holds all lines of `verify`.
    pub fn page(&self, outside: &[Line], inside: &[Line], without: &[Layer], look: Look) -> String {
        let mut text = format!(
            "cellblock demo: what a program can reach outside a cell, and inside one\n\n  \
             harness: process {}, files in {}\n",
            self.fixture.get("HARNESS_PID"),
            self.fixture.root().display()
        );
        let heading = |left: &str, middle: &str, right: &str| {
            let line = format!("{left:<30} {middle:<12} {right}");
            format!("\n  {}\n", look.paint(Style::new().bold(), line.trim_end()))
        };
        let same = |a: &Line, b: &Line| (&a.name, &a.object) == (&b.name, &b.object);
        text += &heading("must be denied", "outside", "in the cell");
        let row = |line: &Line, outside: &str| row(line, outside, self.fixture.root(), look);
        for control in outside {
            if let Some(line) = inside.iter().find(|line| same(control, line)) {
                text += &row(line, &control.seen);
            }
        }
        text += &heading("must work", "", "in the cell");
        for line in inside.iter().filter(|line| line.expected == "works") {
            text += &row(line, "");
        }
        let is_shown =
            |line: &Line| line.expected == "works" || outside.iter().any(|control| same(control, line));
        let rest: Vec<&Line> = inside.iter().filter(|line| line.is_wrong(false) && !is_shown(line)).collect();
        if !rest.is_empty() {
            text += &heading("also wrong", "", "in the cell");
        }
        text.extend(rest.into_iter().map(|line| row(line, "")));
        text + &summary(inside, without, look)
    }
}

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// A line, with its object counted from `root`.
fn row(line: &Line, outside: &str, root: &Path, look: Look) -> String {
    let (style, mark) = match line.verdict {
        Verdict::Ok => (GOOD, "✓"),
        _ if line.is_wrong(false) => (BAD, "✗"),
        _ => (Style::new(), "-"),
    };
    let seen = match line.verdict {
        // A FIFO without a reader is open to writers too.
        Verdict::Ok if line.expected == "works" => "works",
        _ => &line.seen,
    };
    let object = Path::new(&line.object).strip_prefix(root).unwrap_or(line.object.as_ref()).display();
    format!("  {} {:<28} {outside:<12} {seen:<14} {object}\n", look.paint(style, mark), line.name)
}

fn summary(inside: &[Line], without: &[Layer], look: Look) -> String {
    let (all, wrong) = (inside.len(), inside.iter().filter(|line| line.is_wrong(false)).count());
    let off: Vec<&str> = without.iter().map(|layer| layer.name()).collect();
    let text = match wrong {
        0 => format!("The cell is sound: none of the {all} lines of `cellblock verify` is wrong."),
        _ if off.is_empty() => format!("The cell leaks: {wrong} of {all} lines are wrong."),
        _ => format!("Without {}, {wrong} of {all} lines are wrong.", off.join(", ")),
    };
    format!("\n{}\n", look.paint(if wrong == 0 { GOOD } else { BAD }, &text))
}

/// The user who called sudo; else an id that is nobody's.
fn owner_for_root() -> Owner {
    let id = |name| std::env::var(name).ok()?.parse().ok().filter(|id| *id != 0);
    match (id("SUDO_UID"), id("SUDO_GID")) {
        (Some(uid), Some(gid)) => Owner { uid, gid },
        _ => NOBODY_ELSE,
    }
}
