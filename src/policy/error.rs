//! What can be wrong with a policy, and the words for it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::policy::{Origin, profile};

/// What is wrong with a policy, and where it was written.
#[derive(Debug, Error)]
#[error("{place}: {problem}")]
pub struct PolicyError {
    /// The file and line, or the flag.
    pub place: Origin,
    /// What is wrong there.
    pub problem: Problem,
    /// What else is wrong in the same file.
    pub also: Vec<PolicyError>,
}

/// What is wrong at one place of a policy.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum Problem {
    #[error("cannot read {}: {}", path.display(), reason(source))]
    Read {
        path: PathBuf,
        source: io::Error,
        /// A file beside it that may be meant.
        near: Option<PathBuf>,
    },
    #[error("{} is larger than {limit} bytes", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("not UTF-8 at byte {offset}")]
    NotUtf8 { offset: usize },
    #[error("{message}")]
    Syntax {
        message: String,
        /// The line of the file, with a mark below the place.
        excerpt: Vec<String>,
        /// What to write instead, where that can be told.
        remedy: Option<String>,
    },
    #[error("no version")]
    NoVersion,
    #[error("version {0} is not known")]
    UnknownVersion(String),

    #[error("no built-in profile `{name}`")]
    UnknownProfile { name: String, suggestion: Option<String> },
    #[error("extends goes round in a circle: {0}")]
    ExtendsCircle(String),
    #[error("extends goes deeper than {0} files")]
    ExtendsDepth(usize),

    #[error("`${{{0}}}` is not defined")]
    UndefinedVariable(String),
    #[error("`${{{0}}}` is empty")]
    EmptyVariable(String),
    #[error("`${{{0}}}` is not one name")]
    NotOneName(String),
    #[error("the environment has no `{0}`")]
    UndefinedEnvironment(String),
    #[error("`{0}` is no variable")]
    BadReference(String),
    #[error("`{0}` cannot name a variable")]
    BadVariableName(String),

    #[error("an empty path")]
    EmptyPath,
    #[error("an empty value")]
    EmptyValue,
    #[error("a NUL byte")]
    NulByte,
    #[error("`{}` holds `..`", path.display())]
    DotDot {
        path: PathBuf,
        /// Where it leads if no part of it is a link.
        target: PathBuf,
    },
    #[error("`~` is not expanded: {}", .0.display())]
    Tilde(PathBuf),
    #[error("`{}` is a path in the cell and not absolute", .0.display())]
    RelativeDestination(PathBuf),
    #[error("`{0}` holds a colon")]
    Colon(String),
    #[error("`{0}` holds more than one colon")]
    SecondColon(String),
    #[error("`{}` holds a colon", .0.display())]
    TmpfsColon(PathBuf),
    #[error("a view of `/` would show the whole host")]
    WholeHost,
    #[error("`/` of the cell is its own")]
    CellRoot,
    #[error("a writable view cannot be shown through an overlay")]
    WritableOverlay,
    #[error("`/` is the whole host")]
    NotAPart,
    #[error("`{}` is not a path below the workspace", .0.display())]
    NotBelow(PathBuf),
    #[error("`{}` is given at {other} too", path.display())]
    Duplicate { path: PathBuf, other: Origin },
    #[error("`{}` is not below the channel `{}`", path.display(), dir.display())]
    OutsideChannel { path: PathBuf, dir: PathBuf },
    #[error("a channel without `dir`")]
    NoChannelDir,
    #[error("a workspace without `dir`")]
    NoWorkspaceDir,
    #[error("`{0}` after the workspace is neither a place in the cell nor `ro`")]
    BadWorkspace(String),

    #[error("`{0}` is no host name")]
    BadHostname(String),
    #[error("`{0}` cannot name an environment variable")]
    BadEnvironmentName(String),
    #[error("`{text}` is no duration")]
    BadDuration { text: String, instead: Option<String> },
    #[error("0 would leave the cell without any")]
    NoCount,
    #[error("`{text}` is no size")]
    BadSize { text: String, instead: Option<String> },
    #[error("there is no warning `{name}`")]
    UnknownWarning { name: String, suggestion: Option<&'static str> },
    #[error("`{0}` is no umask")]
    BadUmask(String),
    #[error("`{}` is not below /dev", .0.display())]
    NotADevice(PathBuf),
    #[error("Landlock ABI 0 does not exist")]
    NoLandlockAbi,
    #[error("the layer {0} cannot be turned off by itself")]
    NotALayerOfItsOwn(&'static str),
    #[error("`{}` is not UTF-8 and cannot be written to a policy file", .0.display())]
    Unwritable(PathBuf),
}

/// The kernel's words, without the number that the standard library adds.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or(&text).to_owned()
}

impl Problem {
    /// This problem at `place`.
    pub fn at(self, place: impl Into<Origin>) -> PolicyError {
        PolicyError { place: place.into(), problem: self, also: Vec::new() }
    }
}

impl PolicyError {
    /// For syntax errors, the line of the file with a mark below the place.
    pub fn excerpt(&self) -> &[String] {
        match &self.problem {
            Problem::Syntax { excerpt, .. } => excerpt,
            _ => &[],
        }
    }

    /// What to write instead, where there is more to say than the error says.
    pub fn remedy(&self) -> Option<String> {
        let remedy = match &self.problem {
            Problem::Read { path, source, near } => {
                let profile = path.to_str().filter(|name| profile::find(name).is_some());
                match (profile, near, source.kind()) {
                    (Some(name), ..) => return Some(format!("a profile is given by --profile {name}")),
                    (None, Some(near), _) => return Some(format!("did you mean {}?", near.display())),
                    _ if path == Path::new("-") => "write /dev/stdin",
                    (.., io::ErrorKind::TimedOut) => {
                        "nobody writes to this pipe: start the writer first, or give a regular file"
                    }
                    (.., io::ErrorKind::Unsupported) => {
                        "this is a terminal or another device; give a regular file or a pipe"
                    }
                    (.., io::ErrorKind::IsADirectory) => "give a readable policy file; this is a directory",
                    _ => "give a readable policy file",
                }
            }
            Problem::TooLarge { .. } => "give a policy file; this is something else",
            Problem::NotUtf8 { .. } => "write the text in UTF-8",
            Problem::Syntax { remedy, .. } => return remedy.clone(),
            Problem::NoVersion => "write `version = 1` as the first line",
            Problem::UnknownVersion(_) => "this cellblock reads version 1",
            Problem::UnknownProfile { name, .. } if name.contains('/') || name.ends_with(".toml") => {
                return Some(format!("a file is given by --policy {name}"));
            }
            Problem::UnknownProfile { suggestion, .. } => {
                return Some(match suggestion {
                    Some(known) if self.place.0.starts_with("--") => format!("did you mean `{known}`?"),
                    Some(known) => {
                        format!("did you mean `{known}`? a file is written with a `/` or ends in .toml")
                    }
                    None => format!(
                        "use one of {}; a file is written with a `/` or ends in .toml",
                        profile::names().collect::<Vec<_>>().join(", ")
                    ),
                });
            }
            Problem::ExtendsCircle(_) | Problem::ExtendsDepth(_) => "take one of these out of `extends`",
            Problem::UndefinedVariable(name) => {
                // As the environment's names are written, and seldom a policy's.
                let like_environment = name
                    .bytes()
                    .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
                let words = self.place.0.strip_prefix("profile ").and_then(|place| {
                    let (profile, _) = place.split_once(':')?;
                    profile::variable(profile, name)
                });
                if let Some(words) = words {
                    return Some(format!("give it with --var {name}=VALUE: {words}"));
                }
                let or = if like_environment { format!(", or write ${{env:{name}}}") } else { String::new() };
                return Some(format!("give it with --var {name}=VALUE{or}"));
            }
            Problem::EmptyVariable(_) => {
                "give it a value; it is often a shell variable in quotes that is not set"
            }
            Problem::NotOneName(_) => {
                "give it a value without `/` that is not `.` or `..`; only a variable that a path begins with may be a path"
            }
            Problem::UndefinedEnvironment(name) => {
                return Some(format!("set {name} for the launcher, or give a value here"));
            }
            Problem::BadReference(_) => {
                "write ${name} or ${env:NAME}, of letters, digits, `_` and `-`; $$ is a dollar"
            }
            Problem::BadVariableName(_) => "use letters, digits, `_` and `-`",
            Problem::EmptyPath => "write a path",
            Problem::EmptyValue => "write a value, or leave the key out",
            Problem::NulByte => "no path, name or value can hold one",
            Problem::DotDot { target, .. } if target.as_os_str().is_empty() => "write the path without `..`",
            Problem::DotDot { target, .. } => {
                return Some(format!("write the path without `..`, as in {}", target.display()));
            }
            Problem::Tilde(path) => {
                let home = if self.place.0.starts_with("--") { "$HOME" } else { "${env:HOME}" };
                let below = path.strip_prefix("~").unwrap_or(path);
                return Some(format!("write {}", Path::new(home).join(below).display()));
            }
            Problem::RelativeDestination(_) => "begin it with `/`",
            Problem::Colon(path) => {
                return Some(match path.split_once(':') {
                    Some((src, dest)) if dest.starts_with('/') => {
                        format!("write {{ src = \"{src}\", dest = \"{dest}\" }}")
                    }
                    _ => format!("write {{ src = \"{path}\" }}"),
                });
            }
            Problem::SecondColon(_) => {
                "write --ro-bind SRC:DEST or --bind SRC:DEST; a path that holds a colon is written in a policy file"
            }
            Problem::TmpfsColon(_) => {
                "write a path alone; a size is written in a policy file: \
                 tmpfs = [{ path = \"/t\", size = \"512M\" }]"
            }
            Problem::WholeHost => "name the directories that the cell needs",
            Problem::CellRoot => "mount at a path below it",
            Problem::WritableOverlay => "leave `overlay` out, or write the view in `ro_bind`",
            Problem::NotAPart => "name a path below it; what no view shows is hidden anyway",
            Problem::NotBelow(_) => "write it relative to the workspace, as in .git/hooks/",
            Problem::Duplicate { .. } => "leave one of the two out",
            Problem::OutsideChannel { .. } => "put it below the channel's `dir`",
            Problem::NoChannelDir => "write channel.dir, or give --channel DIR",
            Problem::NoWorkspaceDir => "write workspace.dir, or give --workspace DIR",
            Problem::BadWorkspace(_) => {
                "write DIR[:DEST][:ro], where DEST is an absolute path or `same`; \
                 a path that holds a colon is written in a policy file"
            }
            Problem::BadHostname(_) => "use up to 64 letters, digits, `-` and `.`",
            Problem::BadEnvironmentName(_) => "write KEY or KEY=VALUE; KEY holds no `=`",
            Problem::BadDuration { instead: Some(instead), .. } => {
                return Some(format!("write {instead}; the units are d, h, m, s and ms"));
            }
            Problem::BadDuration { instead: None, .. } => "write one like 90s, 30m or 1h30m, above zero",
            Problem::NoCount => "write a number from 1 on, or leave it out",
            Problem::BadSize { instead: Some(instead), .. } => {
                return Some(format!("write {instead}; the units are K, M, G and T, of 1024 each"));
            }
            Problem::BadSize { instead: None, .. } => "write bytes, or a number with K, M, G or T: 512M",
            Problem::UnknownWarning { suggestion: Some(known), .. } => {
                return Some(format!("did you mean `{known}`?"));
            }
            Problem::UnknownWarning { suggestion: None, .. } => {
                return Some(format!("the warnings are {}", super::WARNINGS.join(", ")));
            }
            Problem::BadUmask(_) => "write an octal number such as 027, or `inherit`",
            Problem::NotADevice(_) => "name a device node below /dev; files and directories are views",
            Problem::NoLandlockAbi => {
                "write 1 or more; for hosts without Landlock, allow_missing = [\"landlock\"]"
            }
            Problem::NotALayerOfItsOwn(_) => "use landlock, seccomp or network",
            Problem::Unwritable(_) => "give it as a flag each time",
        };
        Some(remedy.to_owned())
    }
}
