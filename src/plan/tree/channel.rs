//! The directory by which the provider reports activity.

use super::{Content, Tree, VIEW, at, bind, scope, wrong_kind};
use crate::error::Error;
use crate::host::{File, Kind};
use crate::plan::landlock::Grant;
use crate::policy::{Channel, Entry, LockAccess, Origin, Policy};
use crate::sys::mount::READ_ONLY;

impl Tree<'_> {
    pub(super) fn channel(&mut self, policy: &Policy) -> Result<(), Error> {
        let Some(channel) = &policy.channel else {
            return Ok(());
        };
        scope::refuse_visible(policy, self.host, "the channel", &channel.dir, &channel.origin)?;
        let dir = self.find_trusted(&channel.dir, Some(Kind::Directory), &channel.origin)?;
        let has_own_inodes = self.has_own_inodes(channel);
        let (content, grant) = match channel.replaceable {
            true => (bind(&channel.dir, dir, VIEW), Grant::ReadWrite),
            false if has_own_inodes => {
                let source = channel.dir.clone();
                (Content::Overlay { source, file: dir, upper: Default::default() }, Grant::List)
            }
            false => (bind(&channel.dir, dir, READ_ONLY | VIEW), Grant::List),
        };
        self.put(&channel.dir, content, grant, &channel.origin)?;

        for entry in &channel.fifo {
            let fifo = self.find_trusted(&entry.path, Some(Kind::Fifo), &entry.origin)?;
            // Read-only: a FIFO takes writes all the same, but not chmod. The
            // host's own: one seen through an overlay is another FIFO.
            let view = bind(&entry.path, fifo, READ_ONLY | VIEW);
            self.put(&entry.path, view, Grant::Write, &entry.origin)?;
        }
        for entry in &channel.lock {
            let file = self.find_trusted(&entry.path, Some(Kind::File), &entry.origin)?;
            let (content, grant) = match channel.lock_access {
                LockAccess::None if has_own_inodes => (of_the_overlay(entry, file), Grant::Nothing),
                LockAccess::None => (bind(&entry.path, file, READ_ONLY | VIEW), Grant::Nothing),
                // Who takes it must take the harness's own.
                LockAccess::Read => (bind(&entry.path, file, READ_ONLY | VIEW), Grant::Read),
            };
            self.put(&entry.path, content, grant, &entry.origin)?;
        }
        let read = channel.read_only.iter().map(|entry| (entry, Grant::Read));
        let execute = channel.execute.iter().map(|entry| (entry, Grant::ReadExecute));
        for (entry, grant) in read.chain(execute) {
            let file = self.find_trusted(&entry.path, None, &entry.origin)?;
            let content = match file.kind {
                Kind::File if has_own_inodes && entry.path.starts_with(&channel.dir) => {
                    of_the_overlay(entry, file)
                }
                Kind::File | Kind::Directory => bind(&entry.path, file, READ_ONLY | VIEW),
                kind => return Err(wrong_kind(&entry.path, kind, "a file or a directory", &entry.origin)),
            };
            self.put(&entry.path, content, grant, &entry.origin)?;
        }
        Ok(())
    }

    /// Whether the channel's files are shown through an overlay: flock(2) and
    /// inotify(7) act on its inodes then, and not on the harness's.
    fn has_own_inodes(&mut self, channel: &Channel) -> bool {
        let mut files = channel.lock.iter().chain(&channel.read_only).chain(&channel.execute);
        if channel.replaceable || !files.any(|entry| entry.path.starts_with(&channel.dir)) {
            return false;
        }
        let is_refused = self.host.without_overlay.contains(&channel.dir);
        if is_refused {
            self.notes.push(format!(
                "{}: what can be read there can be locked, as the kernel refuses an overlay of it",
                channel.dir.display()
            ));
        }
        !is_refused
    }

    /// A file of the channel: whoever owns it could put another in its place.
    fn find_trusted(
        &self,
        entry: &std::path::Path,
        kind: Option<Kind>,
        origin: &Origin,
    ) -> Result<File, Error> {
        let file = match kind {
            Some(kind) => self.find_kind(entry, kind, origin)?,
            None => self.find(entry, origin)?,
        };
        if file.owner == self.host.ids.uid || file.owner == 0 {
            return Ok(file);
        }
        Err(at(origin, format!("{} belongs to the user {}", entry.display(), file.owner))
            .cause("the channel is between the harness and the run, and that is another user's")
            .remedy(format!("give it to the run's user (chown {}) or to root", self.host.ids.uid)))
    }
}

/// The overlay's file mounted on itself: nothing takes its place.
fn of_the_overlay(entry: &Entry, file: File) -> Content {
    Content::Cover {
        source: entry.path.clone(),
        inode: Some(file.identity.inode),
        is_directory: false,
        attributes: READ_ONLY | VIEW,
    }
}
