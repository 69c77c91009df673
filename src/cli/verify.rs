//! The command line of `cellblock verify`.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};

use super::CellOptions;

/// `cellblock verify`.
#[derive(Debug, Args)]
pub struct VerifyOptions {
    /// The cell.
    #[command(flatten)]
    pub cell: CellOptions,
    /// Test that PATH, or PORT on loopback, cannot be reached either.
    #[arg(long, value_name = "PATH|PORT", value_parser = canary(), help_heading = "Verifying")]
    pub canary: Vec<PathBuf>,
    /// Count what cannot be tested as wrong.
    #[arg(long, help_heading = "Verifying")]
    pub strict: bool,
    /// Print JSON.
    #[arg(long, help_heading = "Verifying")]
    pub json: bool,
    /// Print each line that is well too.
    #[arg(short, long, help_heading = "Verifying")]
    pub verbose: bool,
    /// Leave descriptor N open in the provider, as `run` would.
    #[arg(long, value_name = "N", value_parser = super::descriptor(3), help_heading = "Cell")]
    pub pass_fd: Vec<RawFd>,
    /// The provider and its arguments. The test checks that `run` would find it.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The test of `cellblock run`.
#[derive(Debug, Args)]
pub struct TestOptions {
    /// Test the finished cell from within first. If a line is wrong, exit with 125 and do not
    /// run the provider.
    #[arg(long, help_heading = "Verifying")]
    pub verify: bool,
    /// With --verify, test that PATH, or PORT on loopback, cannot be reached either.
    #[arg(
        long,
        value_name = "PATH|PORT",
        value_parser = canary(),
        requires = "verify",
        help_heading = "Verifying"
    )]
    pub canary: Vec<PathBuf>,
}

/// A number that is no port is a mistake, and no file to look for in vain; and
/// the whole host is no canary.
fn canary() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|canary| {
        let text = canary.to_string_lossy();
        if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.parse().is_ok_and(|port: u16| port > 0) {
            return Err("a port is a number from 1 to 65535; write a file of that name as ./NUMBER");
        }
        if canary.has_root() && canary.components().count() == 1 {
            return Err("`/` is the whole host; name a path below it");
        }
        Ok(canary)
    })
}
