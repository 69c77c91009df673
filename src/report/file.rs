//! The file of a report, which has no name before it is whole.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{
    AT_FDCWD, AtFlags, FallocateFlags, OFlag, OpenHow, ResolveFlag, fallocate, openat, openat2, renameat,
};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fsync, linkat, unlinkat};
use sha2::{Digest, Sha256};

use super::evidence::{hex, provider};
use super::{Evidence, ReportEvent, ReportLine};
use crate::error::{Error, Reason};
use crate::host::Ids;
use crate::outcome::Outcome;
use crate::plan::{Plan, Step};
use crate::sys::fd::Identity;
use crate::sys::mount::READ_ONLY;
use crate::sys::{Errno, errno};
use crate::verify::Line;

/// A report in the making: a file without a name, which gets one in the end.
/// A launcher that is killed leaves nothing behind.
#[derive(Debug)]
pub struct Report {
    file: File,
    directory: File,
    name: OsString,
    place: PathBuf,
}

/// What the first line of every report begins with.
const BEGINNING: &[u8] = br#"{"version":1,"event":""#;

/// Room for the lines of any run; a disk that has not that much is full.
const ROOM: i64 = 256 * 1024;

impl Report {
    /// Makes sure that a report can be written, before anything is started.
    ///
    /// # Errors
    ///
    /// When the directory takes no file, or its file system has no room.
    pub fn create(place: &Path, ids: Ids, owner: Option<(u32, u32)>) -> Result<Report, Error> {
        let failed = |what: &str, errno: Option<Errno>| {
            let mut error = Error::new("report", format!("--report {}: {what}", place.display()));
            error.errno = errno;
            error.remedy("name a file in a directory that takes it, on a file system with room")
        };
        let name = place.file_name().ok_or_else(|| failed("it names no file", None))?;
        let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Root follows no link that somebody else may have planted.
        let resolve = match ids.started_by_root {
            true => ResolveFlag::RESOLVE_NO_SYMLINKS,
            false => ResolveFlag::empty(),
        };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = openat2(AT_FDCWD, parent, OpenHow::new().flags(flags).resolve(resolve));
        let directory = directory.map_err(|errno| match errno {
            Errno::ELOOP => failed("its directory is reached through a symbolic link", Some(errno)),
            _ => failed("no such directory", Some(errno)),
        })?;
        let directory = File::from(directory);
        refuse_to_replace(&directory, name, place)?;
        let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let file = openat(&directory, ".", flags, Mode::S_IRUSR | Mode::S_IWUSR)
            .map_err(|errno| failed("it cannot be made", Some(errno)))?;
        let report = Report { file: file.into(), directory, name: name.to_owned(), place: place.to_owned() };
        // By descriptor, and before there is anything in it.
        if let Some((uid, gid)) = owner {
            fchown(&report.file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).map_err(|errno| {
                failed(&format!("it cannot be given to {uid}:{gid}, who called sudo"), Some(errno))
            })?;
        }
        match fallocate(&report.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, ROOM) {
            // Not every file system can reserve room.
            Ok(()) | Err(Errno::EOPNOTSUPP) => {}
            Err(errno) => return Err(failed("there is no room for it", Some(errno))),
        }
        // A former run's must not be taken for this one's, should this one be killed.
        match unlinkat(&report.directory, &*report.name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(report),
            Err(errno) => Err(failed("the former report cannot be removed", Some(errno))),
        }
    }

    /// Refuses a place that the cell can write to: the provider could put a
    /// report of its own there.
    pub fn refuse_inside(&self, plan: &Plan) -> Result<(), Error> {
        let above = self.ancestors().map_err(|errno| self.failed(&errno.into()))?;
        let detached = plan.init.iter().find_map(|step| match step {
            Step::Detach { path } => Some(path.clone()),
            _ => None,
        });
        let path = |text: &CStr| Path::new(OsStr::from_bytes(text.to_bytes())).to_owned();
        let stays = |place: &CStr| detached.as_ref().is_none_or(|gone| !path(place).starts_with(path(gone)));
        let writable = plan.init.iter().find_map(|step| match step {
            Step::Bind { source, identity: Some(identity), path, attributes, .. }
                if attributes & READ_ONLY == 0 && stays(path) =>
            {
                above.contains(identity).then(|| source.to_string())
            }
            // The upper layer of a workspace's overlay.
            Step::MustBe { identity, .. } => above.contains(identity).then(|| "the workspace".to_owned()),
            _ => None,
        });
        match writable {
            None => Ok(()),
            Some(view) => {
                Err(Error::new("report", format!("{} lies where the cell can write", self.place.display()))
                    .cause(format!("it is in the writable view of {view}"))
                    .remedy("put the report where only the harness can write"))
            }
        }
    }

    /// The report's directory and all that it lies in, by what they are: paths
    /// can have aliases.
    fn ancestors(&self) -> nix::Result<Vec<Identity>> {
        let mut directory = OwnedFd::from(self.directory.try_clone().map_err(|error| errno(&error))?);
        let mut ancestors = Vec::new();
        loop {
            let stat = fstat(&directory)?;
            let identity = Identity { device: stat.st_dev, inode: stat.st_ino };
            if ancestors.last() == Some(&identity) {
                return Ok(ancestors);
            }
            ancestors.push(identity);
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            directory = openat(&directory, "..", flags, Mode::empty())?;
        }
    }

    /// Tells what is going to be done, in place of a former plan that came to
    /// nothing.
    pub fn plan(&mut self, plan: &Plan) -> Result<(), Error> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        emptied.map_err(|error| self.failed(&error))?;
        self.write(ReportEvent::Plan {
            digest: digest(plan),
            mode: plan.mode,
            waived: plan.waived.clone(),
            notes: plan.notes.clone(),
            hidden: plan.hidden.clone(),
            exposed: plan.exposed.clone(),
        })
    }

    /// Tells what was applied to the process that waits at the gate. The program
    /// is hashed for as long as `go_on` says.
    pub fn applied(
        &mut self,
        plan: &Plan,
        pid: i32,
        evidence: Vec<Evidence>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Error> {
        if let Some(provider) = provider(plan, pid, go_on)? {
            self.write(provider)?;
        }
        self.write(ReportEvent::Applied { evidence })
    }

    /// Tells what the test from within found.
    pub fn verified(&mut self, lines: Vec<Line>) -> Result<(), Error> {
        let sound = lines.iter().all(|line| !line.is_wrong(false));
        self.write(ReportEvent::Verified { sound, lines })
    }

    /// Tells how it ended, and gives the report its name.
    pub fn finish(mut self, outcome: &Outcome) -> Result<(), Error> {
        self.write(ReportEvent::Outcome {
            outcome: outcome.class,
            exit_code: outcome.exit_code(),
            code: outcome.code,
            signal: outcome.signal,
            wall_seconds: outcome.wall.as_secs_f64(),
            usage: outcome.usage,
            retryable: outcome.is_retryable(),
            error: outcome.error.as_ref().map(Reason::from),
            swept: outcome.swept.clone(),
            told: outcome.told.clone(),
        })?;
        self.settle().map_err(|errno| self.failed(&errno.into()))
    }

    /// Gives the file its name, in place of a former report's. A link cannot
    /// replace, so it gets another name first.
    fn settle(&self) -> nix::Result<()> {
        fsync(&self.file)?;
        // Something else may have come there while the run went on.
        refuse_to_replace(&self.directory, &self.name, &self.place)
            .map_err(|error| error.errno.unwrap_or(Errno::EEXIST))?;
        let temporary = self.link()?;
        let (from, to) = (&*temporary, &*self.name);
        renameat(&self.directory, from, &self.directory, to).inspect_err(|_| {
            let _ = unlinkat(&self.directory, from, UnlinkatFlags::NoRemoveDir);
        })?;
        match fsync(&self.directory) {
            // Not every file system can write a directory out by itself.
            Ok(()) | Err(Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(()),
            failed => failed,
        }
    }

    /// Links the file under a name that nobody can foresee, and so nobody take
    /// before.
    fn link(&self) -> nix::Result<String> {
        let unnamed = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let mut tries = 0..8;
        loop {
            // The standard library takes the keys of its hashes from the kernel's random numbers.
            let name = format!(".cellblock-report.{:016x}", RandomState::new().build_hasher().finish());
            let (from, to) = (unnamed.as_str(), name.as_str());
            match linkat(AT_FDCWD, from, &self.directory, to, AtFlags::AT_SYMLINK_FOLLOW) {
                Err(Errno::EEXIST) if tries.next().is_some() => {}
                linked => return linked.map(|()| name),
            }
        }
    }

    fn write(&mut self, event: ReportEvent) -> Result<(), Error> {
        let line = serde_json::to_string(&ReportLine { version: 1, event }).expect("plain values serialize");
        self.file.write_all(format!("{line}\n").as_bytes()).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        Error::new("report", format!("{} cannot be written", self.place.display())).errno(errno(error))
    }
}

/// Refuses to take the place of anything but an earlier report, or of an empty
/// file: a device, the file that a link leads to, or somebody's work would be lost.
fn refuse_to_replace(directory: &File, name: &OsStr, place: &Path) -> Result<(), Error> {
    let failed = |what: &str| Error::new("report", format!("--report {}: {what}", place.display()));
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let opened = match openat(directory, name, flags, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ELOOP) => Err(failed("it is no regular file")),
        Err(errno) => Err(failed("what is there cannot be looked at").errno(errno)),
        Ok(file) => Ok(File::from(file)),
    };
    let remedy = "name a file that is not there yet, or an earlier report";
    let file = opened.map_err(|error| error.remedy(remedy))?;
    let metadata = file.metadata().map_err(|error| failed("it cannot be looked at").errno(errno(&error)))?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "it is a directory" } else { "it is no regular file" };
        return Err(failed(what).remedy(remedy));
    }
    let mut start = Vec::new();
    let read = file.take(BEGINNING.len() as u64).read_to_end(&mut start);
    read.map_err(|error| failed("what is there cannot be read").errno(errno(&error)))?;
    if start.is_empty() || start == BEGINNING {
        return Ok(());
    }
    Err(failed("it is no earlier report").cause("what is there would be lost").remedy(remedy))
}

/// SHA-256 of the plan as `cellblock plan --json` prints it, which knows no
/// gate, no terminal and no passed descriptor.
pub fn digest(plan: &Plan) -> String {
    let mut plan = plan.clone();
    let mode = plan.mode;
    plan.provider.retain(|step| !matches!(step, Step::WaitAtGate | Step::TestFromWithin));
    for step in plan.init.iter_mut().chain(&mut plan.provider) {
        match step {
            Step::NewSession { terminal } => *terminal = false,
            Step::NewProcessGroup { leads_session } => *leads_session = mode == crate::policy::Mode::Nested,
            Step::SetDescriptors { keep } => keep.clear(),
            _ => {}
        }
    }
    hex(&Sha256::digest(plan.to_json() + "\n"))
}
