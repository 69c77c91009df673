//! The test from within: a copy of PID 2, under every layer, takes the probes
//! and tells what the kernel answered.

use super::Child;
use crate::plan::Probe;
use crate::sys::clone::{self, exit};
use crate::sys::memory::Shared;
use crate::sys::reach::{self, Answer};
use crate::sys::{Call, Errno, Failure, Result, fd};
use crate::wire::Record;

impl Child<'_> {
    /// Takes every probe, in a process of which nothing stays. A filter may kill
    /// it for a call; then another one goes on behind that probe.
    pub(super) fn test_from_within(&self) -> Result<()> {
        let Some(at) = &self.probe else { return Ok(()) };
        while (at.get() as usize) < self.plan.probes.len() {
            let pid = clone::copy()?;
            if pid == 0 {
                self.take_probes(at);
            }
            let status = clone::wait(pid)?.status;
            if libc::WIFSIGNALED(status) {
                let killed = Record::ProbeKilled { probe: at.get(), signal: libc::WTERMSIG(status) };
                fd::write(self.report, &killed.encode())?;
                at.set(at.get() + 1);
            } else if libc::WEXITSTATUS(status) != 0 {
                return Err(Failure { call: Call::Write, errno: Errno::EPIPE });
            }
        }
        Ok(())
    }

    fn take_probes(&self, at: &Shared) -> ! {
        while let Some(probe) = self.plan.probes.get(at.get() as usize) {
            let record = Record::Probed { probe: at.get(), answer: take(probe) };
            if fd::write(self.report, &record.encode()).is_err() {
                exit(1);
            }
            at.set(at.get() + 1);
        }
        exit(0)
    }
}

/// Asks the kernel, of this process.
pub fn take(probe: &Probe) -> Answer {
    match probe {
        Probe::Stat { path, file } => reach::stat(path, *file),
        Probe::List { path } => reach::list(path),
        Probe::Open { path, flags } => reach::open(path, *flags),
        Probe::Uncovered { path } => reach::uncovered(path),
        Probe::Make { path } => reach::make(path),
        Probe::Access { path, mode } => reach::access(path, *mode),
        Probe::WritableMount { path } => reach::writable_mount(path),
        Probe::Signal { pid } => reach::signal(*pid),
        Probe::Processes => reach::other_processes(),
        Probe::ConnectPath { path, kind } => reach::connect_unix(path, false, *kind),
        Probe::ConnectAbstract { name } => reach::connect_unix(name, true, libc::SOCK_STREAM),
        Probe::ConnectTcp { port, v6 } => reach::connect_tcp(*port, *v6),
        Probe::SendUdp { port } => reach::send_udp(*port),
        Probe::SharedMemory { id } => reach::shared_memory(*id),
        Probe::MessageQueue { name } => reach::message_queue(name),
        Probe::RefusedCall => reach::descriptor_of_another(),
        Probe::UserNamespace => reach::user_namespace(),
    }
}
