//! A tree as it is, so that one can say that nothing has happened to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A tree by its names.
pub type Snapshot = BTreeMap<PathBuf, String>;

/// Every name below `root` but what lies at or below `except`, and all that
/// stat(2) tells of it apart from the time of the last reading. The programs under test
/// are left out: other tests give them further names meanwhile.
pub fn snapshot(root: &Path, except: &[&Path]) -> Snapshot {
    let mut found = Snapshot::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        if except.contains(&path.as_path()) {
            continue;
        }
        let of = path.symlink_metadata().expect("facts");
        let is_program = ["cellblock", "probe"].iter().any(|name| path.ends_with(name)) && of.is_file();
        if is_program && of.mode() & 0o111 != 0 {
            continue;
        }
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

/// What has come, gone or changed, one line each.
pub fn changes(before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let names: BTreeSet<&PathBuf> = before.keys().chain(after.keys()).collect();
    let changed = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    changed
        .map(|name| format!("{}: {:?}, now {:?}", name.display(), before.get(name), after.get(name)))
        .collect()
}

/// Asserts that a tree is as it was.
pub fn is_as_before(before: &Snapshot, after: &Snapshot, what: &str) {
    let changes = changes(before, after);
    assert!(changes.is_empty(), "{what}: {}", changes.join("\n"));
}
