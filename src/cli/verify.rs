//! The command line of `cellblock verify`.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::{Args, value_parser};

use super::CellOptions;

/// `cellblock verify`.
#[derive(Debug, Args)]
pub struct VerifyOptions {
    /// The cell.
    #[command(flatten)]
    pub cell: CellOptions,
    /// PATH, or PORT on loopback, must not be reached either.
    #[arg(long, value_name = "PATH|PORT", help_heading = "Verifying")]
    pub canary: Vec<PathBuf>,
    /// Count what cannot be tested as wrong.
    #[arg(long, help_heading = "Verifying")]
    pub strict: bool,
    /// Print JSON.
    #[arg(long, help_heading = "Verifying")]
    pub json: bool,
    /// Leave descriptor N open in the provider, as `run` would.
    #[arg(long, value_name = "N", value_parser = value_parser!(RawFd).range(3..), help_heading = "Cell")]
    pub pass_fd: Vec<RawFd>,
    /// The provider and its arguments, as they would be run.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  cellblock verify                            a cell of the demo's fixture
  cellblock verify --policy cell.toml --var run=r2 --canary /srv/instance/secrets
  cellblock verify --policy cell.toml --canary 5432 --strict --json
  cellblock run --verify --policy cell.toml -- sh agent.sh

  A number is a port; write a file of such a name as ./5432.
  With --net host no cell is sound: it reaches what listens on loopback.

Exit status:
  0 sound; 1 a leak, or a grant that does not work; 125 the cell could not be built";
