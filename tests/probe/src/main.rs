//! A small program that the tests run inside and outside a cell.
//!
//! ```text
//! probe run FACTS [ID…]       try to get out: ID<TAB>denied|leak|na|killed<TAB>detail
//! probe control FACTS [ID…]   do a provider's work: ID<TAB>ok|fail|killed<TAB>detail
//! probe list | controls       the ids, and what each tries
//! probe show TOPIC…           what this process is and sees
//! probe harness CASE DIR LOCK IN_TMP  the process that must stay hidden
//! probe user UID GID COMMAND…  become an ordinary user, where root, and run a command
//! probe dirty FACTS COMMAND…  run a command as an untidy parent would
//! probe terminal FACTS COMMAND…  run a command on a terminal of its own, named in FACTS as TTY
//! probe able run FACTS [ID…]  as run, with every capability in namespaces of its own
//! probe can FEATURE           whether the host has it
//! probe fifo send FIFO BYTES | records FIFO WRITERS COUNT LENGTH… | open FIFO wait|now |
//!       outlive FIFO dies|lives   what a writer does with a FIFO
//! probe journal ROUNDS FILE…  number the lines of files, and say what is written
//! probe entry ENTRY OWN [NAME…]  try what changes an entry of a channel: NAME<TAB>ok|ERRNO
//! probe entries               the names of these attempts
//! probe reach OWN PATH…       try every way to a path: PATH<TAB>WAY<TAB>ok|ERRNO
//! probe search WORDS          look for the lines of a file in all of /proc: FILE<TAB>WORD
//! probe hold ENTRY            take every lock on it until stdin ends
//! probe low-port              listen on port 80 and send a ping, on loopback
//! probe watch FILE…           watch files until stdin ends
//! probe echo TEXT… | true | sleep SECONDS | exit CODE
//! ```
//!
//! FACTS is a file of KEY=VALUE lines that names what is hidden.

mod call;
mod channel;
mod control;
mod dirty;
mod entry;
mod facts;
mod files;
mod harness;
mod network;
mod pipe;
mod pools;
mod process;
mod scope;
mod show;
mod syscalls;
mod terminal;
mod verdict;

use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::str::FromStr;

use facts::{Facts, Start};
use verdict::Probe;

/// What a control writes to the FIFO.
pub const ACTIVITY: &[u8] = b"{\"event\":\"turn\",\"n\":1}\n\x00\xff\n";

fn main() -> ExitCode {
    let start = Start::take();
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args, start) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("probe: {error}");
            ExitCode::from(2)
        }
    }
}

fn dispatch(args: &[String], start: Start) -> Result<ExitCode, String> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let told = |error: io::Error| error.to_string();
    match words.as_slice() {
        ["run", facts, ids @ ..] => {
            // SAFETY: only asks.
            if unsafe { libc::geteuid() } == 0 {
                return Err("root is let through everywhere: run the probes as an ordinary user".into());
            }
            let facts = Facts::read(Path::new(facts), start).map_err(told)?;
            for probe in probes().filter(|probe| ids.is_empty() || ids.contains(&probe.id)) {
                say(&verdict::line(probe, &facts).map_err(told)?).map_err(told)?;
            }
        }
        ["control", facts, ids @ ..] => {
            let facts = Facts::read(Path::new(facts), start).map_err(told)?;
            for control in
                control::CONTROLS.iter().filter(|control| ids.is_empty() || ids.contains(&control.id))
            {
                say(&control::line(control, &facts).map_err(told)?).map_err(told)?;
            }
        }
        ["list"] => probes().for_each(|probe| println!("{}\t{}", probe.id, probe.what)),
        ["controls"] => {
            control::CONTROLS.iter().for_each(|control| println!("{}\t{}", control.id, control.what))
        }
        ["show", ..] => show::show(&args[1..], &start)?,
        ["harness", case, dir, lock, in_tmp] => {
            harness::run(case, Path::new(dir), Path::new(lock), Path::new(in_tmp)).map_err(told)?
        }
        ["user", uid, gid, program, ..] => {
            dirty::become_user(number(uid)?, number(gid)?).map_err(told)?;
            return Err(Command::new(program).args(&args[4..]).exec().to_string());
        }
        ["dirty", facts, _program, ..] => {
            let facts = Facts::read(Path::new(facts), start).map_err(told)?;
            return Err(dirty::run(&facts, &args[2..]).to_string());
        }
        ["terminal", facts, _program, ..] => {
            let code = terminal::run(Path::new(facts), &args[2..]).map_err(told)?;
            return Ok(ExitCode::from(code));
        }
        ["able", "run", ..] => {
            dirty::become_able().map_err(told)?;
            return dispatch(&args[1..], start);
        }
        ["can", feature] => show::can(feature)?,
        ["fifo", "send", fifo, length] => pipe::send(Path::new(fifo), number(length)?).map_err(told)?,
        ["fifo", "records", fifo, writers, count, lengths @ ..] => {
            let lengths: Vec<usize> =
                lengths.iter().map(|length| number(length)).collect::<Result<_, String>>()?;
            pipe::records(Path::new(fifo), number(writers)?, number(count)?, &lengths).map_err(told)?;
        }
        ["fifo", "open", fifo, how] => {
            println!("opening");
            println!("{}", pipe::open(Path::new(fifo), *how == "wait"));
        }
        ["fifo", "outlive", fifo, how] => {
            println!("{}", pipe::outlive(Path::new(fifo), *how == "dies").map_err(told)?);
        }
        ["journal", rounds, files @ ..] => pipe::journal(number(rounds)?, files).map_err(told)?,
        ["entry", entry, own, names @ ..] => {
            entry::attempts(Path::new(entry), Path::new(own), names).map_err(told)?;
        }
        ["entries"] => entry::names().for_each(|name| println!("{name}")),
        ["reach", own, paths @ ..] => scope::reach(Path::new(own), paths).map_err(told)?,
        ["search", words] => scope::search(Path::new(words)).map_err(told)?,
        ["hold", entry] => entry::hold(Path::new(entry)).map_err(told)?,
        ["watch", files @ ..] => entry::watch(files).map_err(told)?,
        ["low-port"] => pools::low_port().map_err(told)?,
        ["echo", text @ ..] => println!("{}", text.join(" ")),
        ["true"] => {}
        ["sleep", seconds] => {
            let seconds = seconds.parse().map_err(|error| format!("{seconds}: {error}"))?;
            std::thread::sleep(std::time::Duration::from_secs(seconds));
        }
        ["exit", code] => {
            return Ok(ExitCode::from(code.parse::<u8>().map_err(|error| format!("{code}: {error}"))?));
        }
        _ => return Err("see the head of tests/probe/src/main.rs for what to ask".into()),
    }
    Ok(ExitCode::SUCCESS)
}

fn number<N: FromStr<Err: Display>>(text: &str) -> Result<N, String> {
    text.parse().map_err(|error| format!("{text}: {error}"))
}

fn probes() -> impl Iterator<Item = &'static Probe> {
    [files::PROBES, channel::PROBES, process::PROBES, network::PROBES, pools::PROBES, syscalls::PROBES]
        .into_iter()
        .flatten()
}

/// One line at a time, so that nothing is lost should this process be ended.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
