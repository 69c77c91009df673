//! Why a program cannot be executed in a cell, and which flags would show it.
//!
//! All of this is looked up after the fact, or in place of a run, as the user of
//! the run, and is for words alone.

mod flags;
mod image;
mod tree;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{ids, probe};
use crate::error::Error;
use crate::host::Ids;
use crate::plan::{self, Plan, Request, Stage, Step, Text};
use crate::policy::{Bind, Policy};
use crate::sys::Errno;
use image::Image;
use tree::{End, Tree};

/// A run whose program is asked for.
pub struct Run<'a> {
    /// Its policy.
    pub policy: &'a Policy,
    /// Who it runs as.
    pub ids: Ids,
    /// Its command and environment.
    pub request: &'a Request,
    /// Its plan.
    pub plan: &'a Plan,
}

/// What is wrong with a program.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    /// Nothing has that name.
    Absent,
    /// A link leads to where nothing is.
    Dangling { link: PathBuf, target: PathBuf, at: PathBuf },
    /// A file cannot be run for want of another: its interpreter or loader.
    Needs { file: PathBuf, by: By, other: PathBuf, why: Box<Problem> },
    /// It is a directory.
    Directory,
    /// It is no regular file.
    NotAFile,
    /// Its mount is `noexec`.
    NoExec(PathBuf),
    /// Its mode lets nobody execute it.
    NotExecutable { file: PathBuf, looks_like_a_program: bool },
    /// Its mode and owner do not let the user of the run execute it.
    NotForUser(PathBuf),
    /// It is a program for another kind of machine.
    Foreign,
    /// The user may not enter a directory above it.
    Refused(PathBuf),
}

/// How a file names another that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Line,
    Header,
}

/// What keeps the run's program from being executed, as far as that can be told
/// without a cell; the exit code is that of the run.
pub fn check(run: &Run) -> Option<Error> {
    let found = ids::as_run(run.ids, || {
        let problem = first_problem(run.plan);
        Ok(problem.and_then(|problem| Some(explain(run, errno_of(&problem)?, Some(problem)))))
    });
    found.unwrap_or_else(Some)
}

/// What execve(2) would answer; `None` where the host may have registered an
/// interpreter for such files (binfmt_misc).
fn errno_of(problem: &Problem) -> Option<Errno> {
    match problem {
        Problem::Absent | Problem::Dangling { .. } => Some(Errno::ENOENT),
        Problem::Needs { why, .. } => errno_of(why),
        Problem::Foreign => None,
        _ => Some(Errno::EACCES),
    }
}

/// The words for an execve(2) that failed.
pub(super) fn not_executed(run: &Run, errno: Errno) -> Error {
    let told = ids::as_run(run.ids, || {
        let asks = matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ENOEXEC);
        Ok(explain(run, errno, asks.then(|| first_problem(run.plan)).flatten()))
    });
    told.unwrap_or_else(|error| error)
}

fn explain(run: &Run, errno: Errno, problem: Option<Problem>) -> Error {
    let command = run.request.command.first().map(|command| command.to_string_lossy()).unwrap_or_default();
    let error = Error::new(Stage::Exec.name(), format!("{command} cannot be executed")).errno(errno);
    let error = error.exit_code(if matches!(errno, Errno::ENOENT | Errno::ENOTDIR) { 127 } else { 126 });
    if run.request.command.len() == 1 && command.contains(' ') && problem == Some(Problem::Absent) {
        return error
            .cause("no shell takes the command apart: all of it is the name of a program")
            .remedy("give program and arguments as words of their own, or as one word after `sh -c`");
    }
    let (cause, remedy) = match (problem, errno) {
        (Some(problem), _) => words(run, &problem),
        (None, Errno::ENOENT | Errno::ENOTDIR) => (
            "the cell has no such program, or not the interpreter that its first line names".to_owned(),
            "show its directory with --ro-bind and name it by its path".to_owned(),
        ),
        (None, Errno::EACCES) => (
            "a channel's entry may be executed only where `execute` names it, and what a directory above it \
             does not let the run's user enter cannot be executed either"
                .to_owned(),
            "name it under `[channel] execute`, or give the run's user search permission".to_owned(),
        ),
        (None, Errno::ENOEXEC) => (
            "it is neither a program for this machine nor a script with an interpreter line".to_owned(),
            "begin the script with `#!` and its interpreter".to_owned(),
        ),
        (None, Errno::E2BIG) => (
            "arguments and environment together are larger than the kernel takes".to_owned(),
            "hand the data over in a file or by standard input".to_owned(),
        ),
        _ => return error,
    };
    error.cause(cause).remedy(remedy)
}

/// What is wrong with the first candidate that is there; `None` where one seems
/// right, or none can be looked at from outside.
fn first_problem(plan: &Plan) -> Option<Problem> {
    let tree = Tree::of(plan);
    let mut found = Problem::Absent;
    for candidate in &plan.candidates {
        let path: PathBuf =
            workdir(plan).join(OsStr::from_bytes(candidate.to_bytes())).components().collect();
        match problem(&tree, &path, 0)? {
            Problem::Absent => {}
            problem if found == Problem::Absent => found = problem,
            _ => {}
        }
    }
    Some(found)
}

fn workdir(plan: &Plan) -> PathBuf {
    let goes_to = |step: &Step| match step {
        Step::ChangeDirectory { path } => Some(path_of(path)),
        _ => None,
    };
    plan.provider.iter().find_map(goes_to).unwrap_or_else(|| "/".into())
}

fn path_of(text: &Text) -> PathBuf {
    OsStr::from_bytes(text.to_bytes()).into()
}

/// As deep as the kernel goes from interpreter to interpreter.
const DEPTH: usize = 5;

fn problem(tree: &Tree, path: &Path, depth: usize) -> Option<Problem> {
    let walk = tree.walk(path);
    let (host, metadata) = match walk.end {
        End::Own => return None,
        End::Made => return Some(Problem::NotExecutable { file: walk.at, looks_like_a_program: false }),
        End::Refused(directory) => return Some(Problem::Refused(directory)),
        End::Missing => {
            return Some(match walk.link {
                Some((link, target)) => {
                    // By its name outside: the cell may have links of its own on the way.
                    let at = match target.is_absolute() {
                        true => target.clone(),
                        false => walk.at,
                    };
                    Problem::Dangling { link, target, at }
                }
                None => Problem::Absent,
            });
        }
        End::Host(host, metadata) => (host, metadata),
    };
    if metadata.is_dir() {
        return Some(Problem::Directory);
    }
    if !metadata.is_file() {
        return Some(Problem::NotAFile);
    }
    let opened = image::open(&host)?;
    if opened.is_noexec {
        return Some(Problem::NoExec(host));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        let looks_like_a_program =
            matches!(opened.image, Some(Image::Script(..) | Image::Program(_) | Image::Foreign));
        return Some(Problem::NotExecutable { file: host, looks_like_a_program });
    }
    if !flags::may_execute(&host) {
        return Some(Problem::NotForUser(host));
    }
    let (by, other) = match opened.image? {
        Image::Script(interpreter, _) => (By::Line, interpreter),
        Image::Program(Some(loader)) => (By::Header, loader),
        Image::Foreign => return Some(Problem::Foreign),
        Image::Program(None) | Image::Other => return None,
    };
    if depth == DEPTH || !other.is_absolute() {
        return None;
    }
    let why = Box::new(problem(tree, &other, depth + 1)?);
    Some(Problem::Needs { file: walk.at, by, other, why })
}

/// Cause and remedy.
fn words(run: &Run, problem: &Problem) -> (String, String) {
    match problem {
        Problem::Absent => absent(run),
        Problem::Dangling { link, target, at } => {
            let link = format!("{} is a link to {}", link.display(), target.display());
            missing(run, Some(&link), at)
        }
        Problem::Needs { file, by, other, why } => needs(run, file, *by, other, why),
        Problem::Directory => ("it is a directory".to_owned(), "name the program in it".to_owned()),
        Problem::NotAFile => ("it is no regular file".to_owned(), "name a program".to_owned()),
        Problem::NoExec(file) => (
            format!("{} lies on a mount that is noexec: nothing on it may be executed", file.display()),
            "put it on another file system; or, for a script, run its interpreter: -- sh FILE".to_owned(),
        ),
        Problem::NotExecutable { file, looks_like_a_program: true } => (
            format!("{} is no executable file: its mode lets nobody execute it", file.display()),
            format!("make it executable (chmod +x {})", shell(file)),
        ),
        Problem::NotExecutable { file, .. } => (
            format!(
                "{} is no executable file: it is data, with neither a program's header nor a `#!` line",
                file.display()
            ),
            format!(
                "name a program; a script begins with `#!` and its interpreter, and is made executable (chmod +x {})",
                shell(file)
            ),
        ),
        Problem::NotForUser(file) => (
            format!("the mode and owner of {} do not let the run's user execute it", file.display()),
            format!(
                "make it executable for that user (chmod o+rx {}), or give it to that user (chown)",
                shell(file)
            ),
        ),
        Problem::Foreign => (
            "it is a program for another kind of machine, or a part of one".to_owned(),
            format!("give one that is built for {}", env::consts::ARCH),
        ),
        Problem::Refused(directory) => (
            format!("the user that the cell runs as may not enter {}", directory.display()),
            format!("give that user search permission (chmod o+x {}), or move the program", shell(directory)),
        ),
    }
}

/// Commands that a shell has and no file.
const BUILTINS: [&str; 12] =
    ["alias", "cd", "eval", "exit", "export", "read", "set", "source", "ulimit", "umask", "unset", "wait"];

fn absent(run: &Run) -> (String, String) {
    let Some(command) = run.request.command.first() else { return Default::default() };
    let path = Path::new(command);
    let name = command.to_string_lossy();
    if command.as_bytes().contains(&b'/') {
        let tidy = |path: PathBuf| -> PathBuf { path.components().collect() };
        let here = tidy(env::current_dir().unwrap_or_default().join(path));
        let start = workdir(run.plan);
        let place = tidy(start.join(path));
        if path.is_absolute() {
            return missing(run, None, &place);
        }
        let none = format!("{} has no such program", start.display());
        if !flags::is_program(&here) {
            let (cause, remedy) = missing(run, None, &place);
            return (format!("{none}, and {cause}"), remedy);
        }
        return (
            format!("{none}; the host has it at {}", here.display()),
            "show its directory and start there, as --workspace . does; or name it by its path in the cell"
                .to_owned(),
        );
    }
    if BUILTINS.contains(&&*name) {
        return (
            format!("`{name}` is a command of the shell, and no program"),
            format!("write it as one word after `sh -c`: -- sh -c '{name} …'"),
        );
    }
    let cells = run.plan.environment.iter().find_map(|entry| entry.to_bytes().strip_prefix(b"PATH="));
    let cells = String::from_utf8_lossy(cells.unwrap_or_default());
    let none = match cells.is_empty() {
        true => "the cell has no such program: its PATH is empty".to_owned(),
        false => format!("the cell has no such program in its PATH ({cells})"),
    };
    match flags::along_path(command) {
        Some(program) => (
            format!("{none}; the host has it at {}", program.display()),
            to_show(run, &program).unwrap_or_else(|| {
                "show its directory with --ro-bind, and name it by its path or pass your PATH with --env PATH".to_owned()
            }),
        ),
        None => (
            format!("{none}, and the host has none in yours"),
            "install it, or show its directory with --ro-bind and name it by its path".to_owned(),
        ),
    }
}

/// What `file` is run by is not to be had.
fn needs(run: &Run, file: &Path, by: By, other: &Path, why: &Problem) -> (String, String) {
    if other.as_os_str().as_bytes().ends_with(b"\r") {
        return (
            format!(
                "the first line of {} ends in a carriage return, which is taken for a part of the interpreter's name",
                file.display()
            ),
            format!("end its lines as Unix does: sed -i 's/\\r$//' {}", shell(file)),
        );
    }
    let names = match by {
        By::Line => format!("the first line of {} names the interpreter {}", file.display(), other.display()),
        By::Header => format!("{} is built for the loader {}", file.display(), other.display()),
    };
    match why {
        Problem::Absent => missing(run, Some(&names), other),
        Problem::Dangling { link, target, at } => {
            let names = format!("{names}; {} is a link to {}", link.display(), target.display());
            missing(run, Some(&names), at)
        }
        why => {
            let (cause, remedy) = words(run, why);
            (format!("{names}: {cause}"), remedy)
        }
    }
}

/// The words for a path that the cell has not, and that `because` leads to: what
/// would show it, or that the host has none either.
fn missing(run: &Run, because: Option<&str>, at: &Path) -> (String, String) {
    let because = because.map(|because| format!("{because}, and ")).unwrap_or_default();
    if !fs::metadata(at).is_ok_and(|metadata| metadata.is_file()) {
        let is_python = at.to_string_lossy().contains("python");
        let remedy = match because.is_empty() {
            true => "install it, or name it by its path in the cell, from / on",
            false if is_python => "install it, or make the environment anew: python3 -m venv --clear DIR",
            false => "install it, or correct what names it",
        };
        return (format!("{because}neither the cell nor the host has {}", at.display()), remedy.to_owned());
    }
    let remedy = to_show(run, at);
    (
        format!("{because}the cell does not show {} of the host", at.display()),
        remedy.unwrap_or_else(|| format!("show it with --ro-bind {}", shell(at.parent().unwrap_or(at)))),
    )
}

/// The flags with which the run would come to its program: they have been tried
/// on a plan.
fn to_show(run: &Run, program: &Path) -> Option<String> {
    let tree = Tree::of(run.plan);
    let is_seen = |path: &Path| match (tree.walk(path).end, fs::metadata(path)) {
        (End::Host(_, seen), Ok(meant)) => (seen.dev(), seen.ino()) == (meant.dev(), meant.ino()),
        _ => false,
    };
    let (views, looks_around) = flags::views(program, &is_seen);
    let by_name = !run.request.command.first()?.as_bytes().contains(&b'/');
    [by_name || looks_around, true].into_iter().find_map(|with_path| {
        let mut policy = run.policy.clone();
        policy.filesystem.ro_bind.extend(views.iter().map(|view| Bind {
            src: view.source.clone(),
            dest: view.place.clone(),
            optional: false,
            overlay: false,
            origin: "--ro-bind".into(),
        }));
        let mut flags: Vec<String> = views.iter().map(flags::View::flag).collect();
        if with_path {
            policy.environment.set.remove("PATH");
            policy.environment.pass.push("PATH".to_owned());
            flags.push("--env PATH".to_owned());
        }
        let (policy, host) = probe(&policy, run.ids).ok()?;
        let plan = plan::build(&policy, &host, run.request).ok()?;
        first_problem(&plan).is_none().then(|| format!("show it: {}", flags.join(" ")))
    })
}

/// A path as a word of a shell.
fn shell(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |character: char| character.is_alphanumeric() || "/._-+@%,=".contains(character);
    if text.chars().all(plain) { text.into_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}
