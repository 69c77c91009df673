//! Git's files in a workspace, read without git.
//!
//! Git runs what its settings say, so nobody may start it on a tree that an
//! agent has written, only to find out what is there. All that is read here may
//! be the agent's: each file is opened below the workspace, also where links lead,
//! without waiting, and is read no further than a limit.

pub mod config;
pub mod deep;
pub mod fate;
pub mod file;
pub mod index;
pub mod repository;
pub mod runs;
pub mod settings;

pub use repository::{Repository, Tracked};
pub use settings::Settings;
