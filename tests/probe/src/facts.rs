//! What the probes are told: the names of things that they must not be able
//! to reach, and the state in which this program was started.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

/// Names handed in by the fixture, and how this process began.
pub struct Facts {
    names: HashMap<String, String>,
    /// Descriptors above 2 that were open at the start.
    pub inherited: Vec<i32>,
    /// Working directory at the start, as the kernel names it.
    pub cwd: String,
    /// The umask at the start.
    pub umask: u32,
}

/// How this process began; taken before anything is opened.
pub struct Start {
    inherited: Vec<i32>,
    cwd: String,
    umask: u32,
}

impl Start {
    /// Looks at descriptors, working directory and umask.
    pub fn take() -> Start {
        let open = |fd: &i32| {
            // SAFETY: only asks whether the descriptor is open.
            unsafe { libc::fcntl(*fd, libc::F_GETFD) != -1 }
        };
        let inherited = (3..4096).filter(open).collect();
        // SAFETY: both change the umask of this process alone.
        let umask = unsafe {
            let umask = libc::umask(0o77);
            libc::umask(umask);
            umask
        };
        let cwd = match std::env::current_dir() {
            Ok(dir) => dir.to_string_lossy().into_owned(),
            Err(error) => format!("({})", crate::call::why(&error)),
        };
        Start { inherited, cwd, umask }
    }

    /// Descriptors above 2 that were open.
    pub fn inherited(&self) -> &[i32] {
        &self.inherited
    }

    /// The working directory, as the kernel named it.
    pub fn cwd(&self) -> &str {
        &self.cwd
    }
}

impl Facts {
    /// Reads KEY=VALUE lines.
    pub fn read(file: &Path, start: Start) -> io::Result<Facts> {
        let names = std::fs::read_to_string(file)?
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Ok(Facts { names, inherited: start.inherited, cwd: start.cwd, umask: start.umask })
    }

    /// The value of a key; a fixture without it is a fault of the test.
    pub fn get(&self, key: &str) -> &str {
        match self.names.get(key) {
            Some(value) => value,
            None => panic!("the fixture names no {key}"),
        }
    }

    /// The value of a key, where the fixture has it.
    pub fn find(&self, key: &str) -> Option<&str> {
        self.names.get(key).map(String::as_str)
    }

    /// As [`Facts::get`], a path.
    pub fn path(&self, key: &str) -> PathBuf {
        PathBuf::from(self.get(key))
    }

    /// As [`Facts::get`], a number.
    pub fn number(&self, key: &str) -> usize {
        self.get(key).parse().unwrap_or_else(|_| panic!("the fixture's {key} is no number"))
    }

    /// A path in the run's own state.
    pub fn own(&self, name: &str) -> PathBuf {
        self.path("OWN").join(name)
    }

    /// The harness's process id, as the host counts.
    pub fn harness(&self) -> usize {
        self.number("HARNESS_PID")
    }
}
