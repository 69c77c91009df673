//! The workspace while a policy's sources are added.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::set;
use crate::policy::error::{PolicyError, Problem};
use crate::policy::file::{At, WorkspaceTable};
use crate::policy::load::Source;
use crate::policy::{
    Access, Entry, Origin, PROTECT, Protect, ProtectMissing, Telling, WAYS_AROUND, Workspace, check,
};

#[derive(Default)]
pub struct DraftWorkspace {
    named: Option<Origin>,
    dir: Option<Entry>,
    at: Option<Place>,
    access: Access,
    /// `None` until a source speaks of it.
    protect: Option<Vec<Protect>>,
    protect_missing: ProtectMissing,
    pub told: Telling,
}

/// Where the cell sees the workspace.
enum Place {
    /// At the path that it has on the host.
    Same,
    At(PathBuf),
}

impl Place {
    fn read(text: &OsStr) -> Result<Place, Problem> {
        match text.as_bytes() {
            b"same" => Ok(Place::Same),
            _ => check::mount_point(Path::new(text)).map(Place::At),
        }
    }
}

/// The workspace of an evaluation: the path on the host may name the case.
const WORK: &str = "/work";

impl DraftWorkspace {
    /// Adds the table of a file.
    pub fn add(&mut self, table: &At<WorkspaceTable>, source: &Source) -> Result<(), PolicyError> {
        self.named.get_or_insert(source.origin(table.offset()));
        let table = table.value();
        if let Some(dir) = &table.dir {
            self.dir = Some(source.read(dir, |dir, origin| {
                let path = check::view(dir.as_ref(), source.dir)?;
                Ok(Entry { path, origin })
            })?);
        }
        if let Some(path) = &table.at {
            self.at = Some(source.read(path, |path, _| Place::read(path.as_ref()))?);
        }
        set(&mut self.access, table.access);
        for entry in table.protect.iter().flatten() {
            let protect = source.read(entry, |path, origin| protect(path, origin))?;
            self.protect.get_or_insert_default().push(protect);
        }
        // An empty list says something too.
        if table.protect.is_some() {
            self.protect.get_or_insert_default();
        }
        set(&mut self.protect_missing, table.protect_missing);
        set(&mut self.told, table.told);
        Ok(())
    }

    /// Adds `--workspace`; `by_flags_alone` where no policy file is given.
    pub fn add_flag(
        &mut self,
        text: &OsStr,
        cwd: &Path,
        origin: Origin,
        by_flags_alone: bool,
    ) -> Result<(), Problem> {
        let (dir, at, access) = workspace_flag(text, cwd, origin)?;
        // Whoever types a command works in that directory, and what was made there
        // with absolute paths is to be found. A policy file may be an evaluation's.
        let is_the_cells_own = ["/dev", "/proc"].iter().any(|own| dir.path.starts_with(own));
        let default = (by_flags_alone && !is_the_cells_own).then_some(Place::Same);
        self.at = at.or(self.at.take()).or(default);
        self.dir = Some(dir);
        set(&mut self.access, access);
        Ok(())
    }

    /// The workspace, if a source spoke of one.
    pub fn finish(self) -> Result<Option<Workspace>, PolicyError> {
        match (self.dir, self.named) {
            (Some(Entry { path: dir, origin }), _) => Ok(Some(Workspace {
                at: match self.at {
                    Some(Place::At(at)) => at,
                    Some(Place::Same) => dir.clone(),
                    None => WORK.into(),
                },
                dir,
                access: self.access,
                protect: self
                    .protect
                    .map_or_else(default_protect, Ok)
                    .map(with_ways_around)
                    .map_err(|problem| problem.at(&origin))?,
                protect_missing: self.protect_missing,
                told: self.told,
                origin,
            })),
            (None, Some(place)) => Err(Problem::NoWorkspaceDir.at(&place)),
            (None, None) => Ok(None),
        }
    }
}

fn default_protect() -> Result<Vec<Protect>, Problem> {
    PROTECT.iter().map(|path| protect(path, "default of workspace.protect".into())).collect()
}

/// With what leads git past a protected path in `.git`.
fn with_ways_around(mut all: Vec<Protect>) -> Vec<Protect> {
    let of_git = all.iter().find(|protect| protect.path.starts_with(".git"));
    let Some(origin) = of_git.map(|protect| protect.origin.clone()) else { return all };
    for path in WAYS_AROUND.map(Path::new) {
        if !all.iter().any(|protect| path.starts_with(&protect.path)) {
            all.push(Protect { path: path.to_owned(), is_directory: false, origin: origin.clone() });
        }
    }
    all
}

fn protect(text: &str, origin: Origin) -> Result<Protect, Problem> {
    let path = check::below(text.as_ref())?;
    Ok(Protect { path, is_directory: text.ends_with('/'), origin })
}

/// `DIR[:DEST][:ro]`.
fn workspace_flag(
    text: &OsStr,
    cwd: &Path,
    origin: Origin,
) -> Result<(Entry, Option<Place>, Option<Access>), Problem> {
    let mut parts = text.as_bytes().split(|byte| *byte == b':').map(OsStr::from_bytes);
    let path = check::view(Path::new(parts.next().unwrap_or_default()), cwd)?;
    let (mut at, mut access) = (None, None);
    for part in parts {
        match part.as_bytes() {
            b"ro" if access.is_none() => access = Some(Access::ReadOnly),
            [b'/', ..] | b"same" if at.is_none() && access.is_none() => at = Some(Place::read(part)?),
            _ => return Err(Problem::BadWorkspace(part.display().to_string())),
        }
    }
    Ok((Entry { path, origin }, at, access))
}
