//! What a cell may use of what it shares with others.

pub mod cgroup;
pub mod rlimits;
