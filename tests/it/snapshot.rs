//! A tree as it is, so that one can say that nothing has happened to it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Every name below `root` but what lies at or below `except`, and all that
/// stat(2) tells of it apart from the time of the last reading.
pub fn snapshot(root: &Path, except: &[&Path]) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        if except.contains(&path.as_path()) {
            continue;
        }
        let of = path.symlink_metadata().expect("facts");
        let facts = format!(
            "{:o} {}:{} inode {} links {} bytes {} at {}.{:09} and {}.{:09}",
            of.mode(),
            of.uid(),
            of.gid(),
            of.ino(),
            of.nlink(),
            of.size(),
            of.mtime(),
            of.mtime_nsec(),
            of.ctime(),
            of.ctime_nsec(),
        );
        if of.is_dir() {
            left.extend(
                fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()),
            );
        }
        found.insert(path, facts);
    }
    found
}
