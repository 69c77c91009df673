//! The programs under test, where an ordinary user can reach them: the build
//! directory may lie where that user cannot go.

use std::path::Path;
use std::process::Command;

/// Gives `program` a second name, or copies it where that is another file system.
pub fn install(program: impl AsRef<Path>, path: &Path) {
    let program = program.as_ref();
    if std::fs::hard_link(program, path).is_err() {
        // Not by this process: a child that another test forks meanwhile would hold the
        // copy open for writing, and exec answer ETXTBSY.
        let copied = Command::new("cp").args([program, path]).status();
        assert!(copied.is_ok_and(|status| status.success()), "cp {}", program.display());
    }
}
