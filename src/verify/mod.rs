//! The self-test: what a finished cell must hold and must grant, asked from
//! within, and what the launcher alone can see at the gate.
//!
//! The checks are made from the policy and the host, the child asks the kernel
//! ([`Probe`]), and the words are found here.

mod accept;
mod checks;
mod gate;
mod harness;
mod judge;
mod scene;
mod show;
mod sockets;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Error;
use crate::host::Host;
use crate::plan::{Plan, Probe};
use crate::policy::Policy;
use crate::sys::{Errno, signal};
use harness::Harness;
use scene::Scene;
pub use show::{Document, table};

/// What is asked for beside the policy.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// What else must not be reached.
    pub canaries: Vec<Canary>,
    /// Checks of a known instance.
    pub checks: Vec<Check>,
    /// Whether the provider is to run behind the test. It is not disturbed then:
    /// a FIFO is not opened, whose reader would take the tester for the provider.
    pub runs: bool,
}

/// Something that must not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A path of the host, absolute.
    Path(PathBuf),
    /// A port on loopback.
    Port(u16),
}

impl Canary {
    /// A number is a port, everything else a path, counted from `base`.
    pub fn new(text: &Path, base: &Path) -> Canary {
        match text.to_str().and_then(|text| text.parse().ok()) {
            Some(port) => Canary::Port(port),
            None => Canary::Path(base.join(text).components().collect()),
        }
    }
}

/// One thing that is tried from within.
#[derive(Clone, Debug)]
pub struct Check {
    /// Its stable name, `category:thing`.
    pub name: &'static str,
    /// What it is tried on.
    pub object: String,
    /// What should come of it.
    pub expect: Expect,
    /// How; `None` for what cannot be tried.
    pub probe: Option<Probe>,
}

impl Check {
    /// A check that is made by a probe.
    pub fn new(name: &'static str, object: impl Into<String>, expect: Expect, probe: Probe) -> Check {
        Check { name, object: object.into(), expect, probe: Some(probe) }
    }

    /// A check that cannot be made.
    pub fn untestable(name: &'static str, object: impl Into<String>, why: impl Into<String>) -> Check {
        Check { name, object: object.into(), expect: Expect::Untestable(why.into()), probe: None }
    }

    /// The line of this check where `take` asks the kernel.
    pub fn line(&self, take: impl Fn(&Probe) -> Answer) -> Line {
        judge::line(self, self.probe.as_ref().map(take))
    }
}

/// What should come of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It is refused, or not there.
    Denied,
    /// It works.
    Works,
    /// Something empty stands over it, or this kernel has no such thing.
    Covered,
    /// It is refused, or finds no more than so many.
    AtMost(i32),
    /// It should be refused, and a cell does not hold it, for this reason.
    Limit(&'static str),
    /// Its name may show, and nothing of what it is.
    Masked,
    /// What the host has there must not be seen; the cell may have its own.
    Other,
    /// Nothing can be said, for this reason.
    Untestable(String),
}

/// What came of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It worked, with a number.
    Works(i32),
    /// The kernel's refusal.
    Refused(Errno),
    /// A filter killed the tester by this signal.
    Killed(i32),
}

/// One line of the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Line {
    /// Its stable name, `category:thing`.
    pub name: String,
    /// What it is about: a path, a port, a variable.
    pub object: String,
    /// What should be seen.
    pub expected: String,
    /// What was seen.
    pub seen: String,
    /// What that means.
    pub verdict: Verdict,
}

/// What a line means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Something can be reached or seen that should not be, or a layer is off.
    Leak,
    /// Something that is granted does not work.
    Broken,
    /// A leak that the policy accepts, by the name of its warning.
    Accepted,
    /// Not as one would wish, and no cell holds it; see SECURITY.md.
    KnownLimit,
    /// It could not be tried.
    Untestable,
}

impl Verdict {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Leak => "leak",
            Verdict::Broken => "broken",
            Verdict::Accepted => "accepted",
            Verdict::KnownLimit => "known-limit",
            Verdict::Untestable => "untestable",
        }
    }
}

impl Line {
    /// Whether the program is there that a run would execute; `missing` says why not.
    pub fn of_program(program: String, missing: Option<String>) -> Line {
        Line {
            name: "command:program".to_owned(),
            object: program,
            expected: "can be executed".to_owned(),
            verdict: if missing.is_none() { Verdict::Ok } else { Verdict::Broken },
            seen: missing.unwrap_or_else(|| "can be executed".to_owned()),
        }
    }

    /// Whether it keeps the cell from being sound.
    pub fn is_wrong(&self, strict: bool) -> bool {
        match self.verdict {
            Verdict::Leak | Verdict::Broken => true,
            Verdict::Untestable => strict,
            Verdict::Ok | Verdict::Accepted | Verdict::KnownLimit => false,
        }
    }
}

/// A test under way.
#[derive(Debug)]
pub struct Test<'a> {
    scene: Scene<'a>,
    checks: Vec<Check>,
    /// The checks with a probe, in the order of asking.
    asked: Vec<usize>,
    answers: Vec<Option<Answer>>,
    /// What the launcher holds for the cell to find.
    harness: Harness,
}

impl<'a> Test<'a> {
    /// Finds out what to ask. Done as the id of the run, before the clone.
    ///
    /// # Errors
    ///
    /// When the host's mounts are not known.
    pub fn new(request: &'a Request, policy: &'a Policy, host: &Host) -> Result<Test<'a>, Error> {
        let scene = Scene::new(request, policy, host)?;
        let mut checks = checks::all(&scene);
        // What it holds outlasts a launcher that a signal ends: from here on
        // signals wait for the supervisor to read them.
        let _ = signal::block_all();
        let harness = Harness::new(&[std::process::id() as i32, scene.parent]);
        checks.extend(checks::of_harness(&scene, &harness));
        if checks.len() > LIMIT {
            let why = format!("{} checks more than fit into one test", checks.len() - LIMIT);
            checks.truncate(LIMIT);
            checks.push(Check::untestable("verify:limit", "checks", why));
        }
        let probed = |check: &Check| check.probe.is_some();
        let mut asked: Vec<usize> = (0..checks.len()).filter(|&index| probed(&checks[index])).collect();
        // What works there changes who asks.
        asked.sort_by_key(|&index| checks[index].probe == Some(Probe::UserNamespace));
        let answers = vec![None; asked.len()];
        Ok(Test { scene, checks, asked, answers, harness })
    }

    /// What the child is to ask.
    pub fn probes(&self) -> Vec<Probe> {
        self.asked.iter().filter_map(|&index| self.checks[index].probe.clone()).collect()
    }

    /// Takes the answer to one probe.
    pub fn take(&mut self, probe: u32, answer: Answer) {
        if let Some(place) = self.answers.get_mut(probe as usize) {
            *place = Some(answer);
        }
    }

    /// Judges the answers, and the process at the gate by what the kernel says
    /// of it: `kernel` gives a member of the evidence. The launcher has no part
    /// in the cell's surroundings from here on.
    pub fn judge(self, plan: &Plan, kernel: &dyn Fn(&str, &str) -> Option<serde_json::Value>) -> Vec<Line> {
        drop(self.harness);
        let mut answers: Vec<Option<Answer>> = vec![None; self.checks.len()];
        for (&index, answer) in self.asked.iter().zip(&self.answers) {
            answers[index] = *answer;
        }
        let judged = self.checks.iter().zip(answers).map(|(check, answer)| judge::line(check, answer));
        let lines = judged.chain(gate::lines(&self.scene, plan, kernel));
        lines.map(|line| accept::line(self.scene.policy, plan, line)).collect()
    }
}

/// Numbers up to this one a process of the cell may have itself: init, the
/// provider and its first children, testers. What is looked for by its number
/// has a higher one.
pub const OWN_PIDS: i32 = 64;

/// More checks than these are not made: a launch waits for each of them.
const LIMIT: usize = 20_000;

/// Of a message, in bytes. A pipe takes 64 KiB before somebody reads, and who
/// waits for the end of the launcher may read standard error only then.
const WORDS: usize = 16 << 10;

/// Whether it was asked for by name and could not be tried: a mistyped canary never sings.
pub fn is_silent(line: &Line) -> bool {
    line.verdict == Verdict::Untestable && line.name.starts_with("canary:")
}

/// What a run comes to whose test has found these lines; `None` where none of
/// them is wrong.
pub fn leak(lines: &[Line]) -> Option<Error> {
    let wrong: Vec<&Line> = lines.iter().filter(|line| line.is_wrong(false)).collect();
    if wrong.is_empty() {
        return None;
    }
    let what = format!("{} of {} lines of the test from within are wrong", wrong.len(), lines.len());
    let mut detail = Vec::new();
    let mut words = 0;
    for (told, line) in wrong.iter().enumerate() {
        if words > WORDS {
            detail.push(format!("and {} more", wrong.len() - told));
            break;
        }
        let (verdict, object) = (line.verdict.name(), &line.object);
        let text = format!("{verdict}: {} {object}: {}, not {}", line.name, line.seen, line.expected);
        words += text.len();
        detail.push(text);
    }
    Some(
        Error::new("verify", what)
            .detail(detail)
            .cause("the cell that this policy makes on this host does not hold what it should")
            .remedy("take away what shows it; `cellblock verify` with the same flags prints every line"),
    )
}

/// A path as the kernel is given it. The policy holds no NUL.
fn text(path: impl AsRef<OsStr>) -> crate::plan::Text {
    crate::plan::Text::new(path.as_ref().as_bytes()).unwrap_or_else(|| c"".into())
}
