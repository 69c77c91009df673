//! The newcomer's first command: an instance to seal a run against, a scripted
//! agent in a cell of it, and what the agent could and could not do.

pub mod agent;
mod checks;
pub mod fixture;
pub mod harness;
mod place;

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::unistd::Uid;

use crate::error::Error;
use crate::policy::Layer;
use agent::{ACTIVITY, Group, Line};
use fixture::{Fixture, Owner};

/// The id that root hands the fixture to when sudo names no user: one that no
/// distribution gives to anybody, below systemd's range for services.
const NOBODY_ELSE: Owner = Owner { uid: 54321, gid: 54321 };

/// Runs the demo and prints it; whether every layer was on and every line is
/// as it should be.
///
/// # Errors
///
/// When the fixture cannot be made or the cell not be started.
pub fn run(without: &[Layer]) -> Result<bool, Error> {
    let demo = Demo::new(without, None)?;
    let page = demo.show()?;
    // Before anything is printed: a reader that has had enough ends this
    // process, and the fixture would stay.
    drop(demo);
    page.print().map_err(failed)
}

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
    /// The provider: a copy of this program, which needs nothing of the system.
    provider: PathBuf,
    owner: Option<Owner>,
    without: Vec<String>,
}

impl Demo {
    /// Makes it; started by root, for `owner` or, where none is named, for the
    /// user who called sudo.
    ///
    /// # Errors
    ///
    /// When a file cannot be made, or the harness not be started.
    pub fn new(without: &[Layer], owner: Option<Owner>) -> Result<Demo, Error> {
        Demo::make(without, owner).map_err(not_made)
    }

    fn make(without: &[Layer], owner: Option<Owner>) -> io::Result<Demo> {
        let owner = Uid::effective().is_root().then(|| owner.unwrap_or_else(owner_for_root));
        let program = Path::new("/proc/self/exe");
        let fixture = Fixture::new(owner, program, &["demo-harness"])?;
        let provider = fixture.install(program, "agent")?;
        let without = without.iter().map(|layer| name(*layer)).collect();
        let demo = Demo { fixture, provider, owner, without };
        fs::write(demo.policy(), demo.policy_text())?;
        Ok(demo)
    }

    /// Who it belongs to, where root has made it.
    pub fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// What a cell of its run is tested for.
    pub fn checks(&self) -> Vec<crate::verify::Check> {
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
ro_bind = [{{ src = "{provider}", dest = "/opt/agent" }}]

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
            provider = self.provider.display(),
            own = get("OWN"),
            channel = get("CHANNEL"),
            work = get("WORK"),
        )
    }

    /// `cellblock run`, from a parent that has a descriptor, a directory and
    /// an environment to hide.
    fn cell(&self, arguments: &[&str]) -> io::Result<Output> {
        let secret = File::open(self.fixture.path("SECRET_FILE"))?;
        fcntl(&secret, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let mut run = Command::new("/proc/self/exe");
        run.args(["run", "--policy"]).arg(self.policy());
        for layer in &self.without {
            run.args(["--without", layer]);
        }
        if let Some(Owner { uid, gid }) = self.owner {
            run.args(["--run-as", &format!("{uid}:{gid}")]);
        }
        run.args(["--", "/opt/agent"])
            .args(arguments)
            .current_dir(self.fixture.path("HARNESS_DIR"))
            .env("HARNESS_SECRET", self.fixture.get("SECRET"))
            .stdin(Stdio::null())
            .output()
    }

    fn show(&self) -> Result<Page, Error> {
        // Open before there is a writer, who would wait for it.
        let mut activity = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(self.fixture.path("FIFO"))
            .map_err(failed)?;
        let facts = self.fixture.facts_file();
        let output = self.cell(&["demo-agent", &facts.to_string_lossy()]).map_err(failed)?;
        if !output.status.success() {
            let what = format!("the agent's cell ended with {}", output.status);
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Error::new("demo", what).cause(said.trim()));
        }
        let mut arrived = Vec::new();
        activity.read_to_end(&mut arrived).map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<Line> = text.lines().filter_map(Line::parse).collect();

        let mut page = Page::new();
        page.title("an agent in a cell of its own, and what it could do there");
        page.note(&format!(
            "harness: process {} of the user that the agent runs as, files in {}",
            self.fixture.get("HARNESS_PID"),
            self.fixture.root().display()
        ));
        if !self.without.is_empty() {
            page.note(&format!("layers off: {}", self.without.join(", ")));
        }
        for (group, heading, right, wrong) in [
            (Group::Hidden, "what it must not reach", "denied", "LEAKED"),
            (Group::Work, "what it must be able to do", "", "FAILED"),
        ] {
            page.heading(heading);
            for line in lines.iter().filter(|line| line.group == group) {
                let verdict = if line.is_right() { right } else { wrong };
                let detail = format!("{verdict} {}", line.detail);
                page.line(line.is_right(), &line.what, detail.trim());
            }
        }
        page.heading("what came out of the FIFO");
        let detail = format!("\"{}\"", arrived.escape_ascii());
        page.line(arrived == ACTIVITY, "byte for byte what it wrote", &detail);
        page.heading("how long it took");
        page.note(&self.times().map_err(failed)?);
        // An agent that ended half way would otherwise have kept every rule.
        let whole = text.lines().last() == Some(agent::DONE);
        page.end(whole, &self.without);
        Ok(page)
    }

    /// Medians of the launch, and of the same program without a cell.
    fn times(&self) -> io::Result<String> {
        let cell = median(|| self.cell(&["--version"]).map(drop))?;
        let bare = median(|| {
            let mut program = Command::new(&self.provider);
            program.arg("--version").output().map(drop)
        })?;
        Ok(format!(
            "{:.1} ms for a whole run of a program that takes {:.1} ms by itself, median of {RUNS}",
            cell.as_secs_f64() * 1e3,
            bare.as_secs_f64() * 1e3
        ))
    }
}

/// A layer as `--without` takes it.
fn name(layer: Layer) -> String {
    let value = layer.to_possible_value();
    value.map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The user who called sudo; else an id that is nobody's.
fn owner_for_root() -> Owner {
    let id = |name| std::env::var(name).ok()?.parse().ok().filter(|id| *id != 0);
    match (id("SUDO_UID"), id("SUDO_GID")) {
        (Some(uid), Some(gid)) => Owner { uid, gid },
        _ => NOBODY_ELSE,
    }
}

const RUNS: usize = 11;

fn median(mut run: impl FnMut() -> io::Result<()>) -> io::Result<Duration> {
    let mut times = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[RUNS / 2])
}

/// What will be printed: a mark, a text and a detail a line, in colour on a
/// terminal alone.
struct Page {
    text: String,
    colour: bool,
    lines: usize,
    wrong: usize,
    right: bool,
}

impl Page {
    fn new() -> Page {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Page {
            text: String::new(),
            colour: io::stdout().is_terminal() && !plain,
            lines: 0,
            wrong: 0,
            right: false,
        }
    }

    fn title(&mut self, text: &str) {
        self.text += &format!("cellblock demo: {text}\n");
    }

    fn heading(&mut self, text: &str) {
        let text = self.paint("1", text);
        self.text += &format!("\n  {text}\n");
    }

    fn note(&mut self, text: &str) {
        self.text += &format!("  {text}\n");
    }

    fn line(&mut self, right: bool, what: &str, detail: &str) {
        self.lines += 1;
        self.wrong += usize::from(!right);
        let (mark, colour) = if right { ("✓", "32") } else { ("✗", "1;31") };
        let mark = self.paint(colour, mark);
        self.text += &format!("  {mark} {what:<38} {detail}\n");
    }

    /// The summary. With a layer off nothing is as it should be, even where
    /// the others hold every line.
    fn end(&mut self, whole: bool, without: &[String]) {
        let (lines, off) = (self.lines, without.join(", "));
        let text = match (whole, self.wrong) {
            (false, _) => "The agent did not come to its end.".to_owned(),
            (true, 0) if off.is_empty() => format!("All {lines} lines are as they should be."),
            (true, 0) => format!("Without {off} the other layers hold all {lines} lines."),
            (true, wrong) if off.is_empty() => {
                format!("{wrong} of {lines} lines are not as they should be.")
            }
            (true, wrong) => format!("{off} alone held {wrong} of {lines} lines."),
        };
        self.right = whole && self.wrong == 0 && off.is_empty();
        let colour = if self.right { "32" } else { "1;31" };
        let text = self.paint(colour, &text);
        self.text += &format!("\n{text}\n");
    }

    /// Prints it; whether it is all as it should be.
    fn print(&self) -> io::Result<bool> {
        match io::stdout().write_all(self.text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(self.right),
        }
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
