//! What runs in the cells that are measured: this program once more.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::stage::Stage;
use super::{calls, cells, launch};

/// What runs inside a measured cell, or inside a measured namespace.
#[derive(clap::Subcommand)]
pub enum Task {
    /// Prints what the process is held by.
    Look,
    /// Makes system calls, a batch for each line of standard input.
    Calls {
        /// Enter a domain of one rule and a filter of one allow first.
        #[arg(long)]
        minimal: bool,
    },
    /// Fails unless a cell holds.
    Verify {
        /// What the outer `bench` has laid out.
        stage: PathBuf,
    },
    /// Measures launches in a namespace with 4,000 mounts.
    AmongMounts {
        /// What the outer `bench` has laid out.
        stage: PathBuf,
    },
}

/// Does the task.
pub fn run(task: Task) -> Result<()> {
    match task {
        Task::Look => println!("{}", serde_json::to_string(&Seen::look()?)?),
        Task::Calls { minimal } => {
            if minimal {
                calls::enter_minimal_layers()?;
            }
            for line in io::stdin().lock().lines() {
                line?;
                println!("{}", serde_json::to_string(&calls::batch()?)?);
                io::stdout().flush()?;
            }
        }
        Task::Verify { stage } => cells::verify(&Stage::enter(&stage)?, &[])?,
        Task::AmongMounts { stage } => {
            println!("{}", serde_json::to_string(&launch::in_namespace_with_mounts(&stage)?)?);
        }
    }
    Ok(())
}

/// What a process sees of what holds it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Seen {
    pub seccomp: u32,
    pub no_new_privs: u32,
    /// What listing `/` gave: 0, or the errno. No mount and no mode of a cell
    /// forbids it, so Landlock does.
    pub root_listing: i32,
    pub mounts: usize,
    /// By name, the link of `/proc/self/ns`.
    pub namespaces: BTreeMap<String, PathBuf>,
}

impl Seen {
    /// Looks at this process.
    pub fn look() -> Result<Seen> {
        let status = fs::read_to_string("/proc/self/status")?;
        let field = |name: &str| -> Result<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|line| line.strip_prefix(':'));
            value
                .and_then(|value| value.trim().parse().ok())
                .with_context(|| format!("/proc/self/status says nothing of {name}"))
        };
        let namespace = |name: &str| {
            let link = fs::read_link(format!("/proc/self/ns/{name}"))?;
            Ok((name.to_owned(), link))
        };
        Ok(Seen {
            seccomp: field("Seccomp")?,
            no_new_privs: field("NoNewPrivs")?,
            root_listing: match fs::read_dir("/") {
                Ok(_) => 0,
                Err(error) => error.raw_os_error().unwrap_or(-1),
            },
            mounts: fs::read_to_string("/proc/self/mountinfo")?.lines().count(),
            namespaces: ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"]
                .into_iter()
                .map(namespace)
                .collect::<Result<_>>()?,
        })
    }
}
