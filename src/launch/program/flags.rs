//! Which flags would show a program of the host to the cell.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, eaccess};

use super::image::{self, Image};

/// As many files as may stand behind each other: links, an interpreter, its loader.
const CHAIN: usize = 16;

/// The program that a name stands for along the caller's own PATH.
pub(super) fn along_path(name: &OsStr) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let places = env::split_paths(&path).filter(|place| place.is_absolute()).map(|place| place.join(name));
    places.into_iter().find(|place| is_program(place))
}

pub(super) fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) && may_execute(path)
}

/// Whether the user of the run may, as whom this is asked.
pub(super) fn may_execute(path: &Path) -> bool {
    eaccess(path, AccessFlags::X_OK).is_ok()
}

/// A view that a program needs: the place, and what the host has there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct View {
    pub place: PathBuf,
    pub source: PathBuf,
}

impl View {
    /// As the flag is written.
    pub fn flag(&self) -> String {
        let (place, source) = (super::shell(&self.place), super::shell(&self.source));
        if place == source { format!("--ro-bind {source}") } else { format!("--ro-bind {source}:{place}") }
    }
}

/// The views that a program needs beside what `is_seen`, and whether it looks
/// for others along PATH.
pub(super) fn views(program: &Path, is_seen: &dyn Fn(&Path) -> bool) -> (Vec<View>, bool) {
    let mut places = BTreeSet::new();
    let files = files(program);
    let looks_around = files.iter().any(|file| file.file_name() == Some(OsStr::new("env")));
    for file in files {
        if !is_seen(&file) {
            places.insert(place_to_show(&file));
        }
    }
    let all: Vec<PathBuf> = places.into_iter().collect();
    let is_inside = |place: &PathBuf| all.iter().any(|other| other != place && place.starts_with(other));
    let outer = all.iter().filter(|place| !is_inside(place));
    let view = |place: &PathBuf| Some(View { source: fs::canonicalize(place).ok()?, place: place.clone() });
    (outer.filter_map(view).collect(), looks_around)
}

/// A program with all that stands behind it: what its links lead to, the
/// interpreter, and what `env` looks for.
fn files(program: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    let mut next = vec![program.to_owned()];
    while let Some(file) = next.pop() {
        if files.len() == CHAIN || files.contains(&file) {
            continue;
        }
        if let Ok(target) = fs::read_link(&file) {
            next.push(tidy(&file.parent().unwrap_or(&file).join(target)));
        } else if let Some(image) = image::open(&file).and_then(|opened| opened.image) {
            match image {
                Image::Script(interpreter, argument) => {
                    let is_env = interpreter.file_name() == Some(OsStr::new("env"));
                    let words = argument.split(|byte| byte.is_ascii_whitespace());
                    let name = words.into_iter().find(|word| !word.is_empty() && word[0] != b'-');
                    next.extend(name.filter(|_| is_env).and_then(|name| along_path(OsStr::from_bytes(name))));
                    next.push(interpreter);
                }
                Image::Program(loader) => next.extend(loader),
                Image::Foreign | Image::Other => {}
            }
        }
        files.push(file);
    }
    files
}

/// The directory that a file's package is: that of all modules beside a module
/// of node's, the prefix of a `bin` with a `lib` beside it, else its own. Of a
/// home, and of what holds one, the file alone.
fn place_to_show(file: &Path) -> PathBuf {
    let modules =
        file.ancestors().filter(|above| above.file_name() == Some(OsStr::new("node_modules"))).last();
    let own = file.parent().unwrap_or(file);
    let prefix = own.parent().filter(|prefix| {
        own.file_name() == Some(OsStr::new("bin"))
            && prefix.join("lib").is_dir()
            && !prefix.ends_with(".local")
    });
    let place = modules.or(prefix).unwrap_or(own);
    let home = env::var_os("HOME").map(PathBuf::from);
    let is_wide = place.components().count() < 3 || home.is_some_and(|home| home.starts_with(place));
    if is_wide { file.to_owned() } else { place.to_owned() }
}

/// Without `.` and `..`, as far as names go.
fn tidy(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(tidy.pop()),
            part => tidy.push(part),
        }
    }
    tidy
}
