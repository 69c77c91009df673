//! The interpreter: each step as the kernel is told of it.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};

use super::{Child, Stream};
use crate::plan::Step;
use crate::plan::step::{EMPTY_DIRECTORY, EMPTY_FILE};
use crate::sys::clone::exit;
use crate::sys::{
    Call, Errno, Failure, Result, clone, credentials, fd, landlock, mount, net, seccomp, signal, tty,
};
use crate::wire::Record;

/// What the kernel would say of a ruleset that was never made.
const NO_RULESET: Failure = Failure { call: Call::LandlockRestrictSelf, errno: Errno::EBADF };

/// What covers an entry of this mode. A link would be covered where it leads.
fn empty(mode: u32) -> Result<&'static CStr> {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => Ok(EMPTY_DIRECTORY),
        libc::S_IFLNK => Err(Failure { call: Call::Fstat, errno: Errno::ELOOP }),
        _ => Ok(EMPTY_FILE),
    }
}

impl Child<'_> {
    /// Takes one step. `StartProvider` and `Execute` are taken by who calls.
    pub(super) fn apply(&self, step: &Step, ruleset: &mut Option<OwnedFd>) -> Result<()> {
        match step {
            // To itself, whatever its number is in which namespace.
            Step::EnterCgroup => fd::write(self.cgroup, b"0"),
            Step::NewCgroupNamespace => clone::unshare(libc::CLONE_NEWCGROUP),
            Step::AwaitIdMaps => fd::wait_byte(self.report),
            Step::SetIds { uid, gid } => credentials::set_ids(*uid, *gid),
            Step::WriteIdMap { file, content } => fd::write_file(file.path(), content.to_bytes()),
            Step::DieWithLauncher => self.die_with_launcher(),
            Step::NewRoot => {
                let options = [(c"mode", c"0755")];
                let root = mount::make(c"tmpfs", options.into_iter(), mount::NO_SUID | mount::NO_DEV)?;
                mount::attach_over_root(&root)
            }
            Step::MakeDirectory { path, mode } => fd::make_directory(fd::CWD, path, *mode),
            Step::MakeSymlink { path, target } => fd::make_symlink(target, path),
            Step::MakeFile { path, content } => fd::make_file(path, content, 0o644),
            Step::MakeWhiteout { path } => fd::make_whiteout(path),
            Step::Bind { source, identity, may_vanish, path, attributes, .. } => {
                let attached = mount::copy(source, *identity).and_then(|tree| {
                    mount::restrict(&tree, *attributes)?;
                    mount::attach(&tree, path)
                });
                match attached {
                    // Removed or replaced since; what was removed cannot be attached either.
                    Err(Failure { errno: Errno::ENOENT | Errno::ESTALE, .. }) if *may_vanish => Ok(()),
                    attached => attached,
                }
            }
            Step::MustBe { path, identity } => mount::must_be_inside(path, *identity),
            Step::Mount { filesystem, options, path, attributes, .. } => {
                let options = options.iter().map(|(key, value)| (&**key, &**value));
                let tree = mount::make(filesystem, options, *attributes)?;
                mount::attach(&tree, path)
            }
            Step::Cover { source, inode, path, attributes } => {
                let tree = mount::copy_inside(source, *inode)?;
                mount::restrict(&tree, *attributes)?;
                mount::attach(&tree, path)
            }
            Step::Mask { path } => match fd::mode(path) {
                Ok(mode) => mount::bind_again(empty(mode)?, path),
                // Of the procfs that was just mounted, so this kernel has no such entry.
                Err(Failure { errno: Errno::ENOENT, .. }) => Ok(()),
                Err(failure) => Err(failure),
            },
            Step::WriteSysctl { path, value } => fd::write_file(path, value.to_bytes()),
            Step::Seal { path } => mount::restrict_one(path, mount::READ_ONLY),
            Step::Detach { path } => mount::detach(path),
            Step::RemoveDirectory { path } => fd::remove_directory(path),
            Step::PivotRoot => mount::pivot_root(),
            Step::DetachOldRoot => mount::detach_old_root(),
            Step::SetHostname { name } => credentials::set_hostname(name),
            Step::LoopbackUp => net::loopback_up(),
            Step::StartNetwork => net::begin().map(|pid| self.network.set(pid)),
            Step::EnterNetwork => net::join(self.network.get()),
            Step::ResetSignals => signal::reset_dispositions(),
            Step::NewSession { terminal } => self.new_session(*terminal),
            Step::NewSessionKeyring => credentials::join_new_session_keyring(),
            Step::DropCapabilities => credentials::drop_capabilities(),
            Step::ClearCommandLine => credentials::clear_command_line(),
            Step::ClearDumpable => credentials::set_dumpable(false),
            Step::NewProcessGroup { leads_session: true } => tty::new_session(),
            Step::NewProcessGroup { leads_session: false } => self.new_process_group(),
            Step::SetDescriptors { keep } => self.set_descriptors(keep),
            Step::SetLimit { resource, value } => credentials::set_limit(resource.number(), *value),
            Step::SetUmask { mask } => {
                credentials::set_umask(*mask);
                Ok(())
            }
            Step::ChangeDirectory { path } => mount::change_directory(path),
            Step::NoNewPrivs => credentials::set_no_new_privs(),
            Step::CreateRuleset { handled } => {
                *ruleset = Some(landlock::create(handled)?);
                Ok(())
            }
            Step::AllowPath { path, access } => {
                landlock::allow(ruleset.as_ref().ok_or(NO_RULESET)?, path, *access)
            }
            Step::RestrictSelf => landlock::restrict_self(&ruleset.take().ok_or(NO_RULESET)?),
            Step::InstallFilter { program, .. } => seccomp::install(program),
            Step::MustBeReadable { path } => {
                fd::open(fd::CWD, path, libc::O_RDONLY | libc::O_NONBLOCK, 0).map(drop)
            }
            Step::TestFromWithin => self.test_from_within(),
            Step::WaitAtGate => self.wait_at_gate(),
            Step::StartProvider | Step::Execute => Ok(()),
        }
    }

    fn die_with_launcher(&self) -> Result<()> {
        credentials::die_with_parent()?;
        // It may have died before that; then nobody reads the status any more.
        if fd::reader_is_gone(self.status)? {
            exit(125);
        }
        Ok(())
    }

    /// Init leads the session and the provider has a group of its own in it:
    /// such a group is not orphaned, so that Ctrl-Z can stop it (setpgid(2)).
    fn new_session(&self, terminal: bool) -> Result<()> {
        tty::new_session()?;
        if !terminal {
            return Ok(());
        }
        let (master, slave) = tty::open_pair(c"/dev/pts/ptmx")?;
        tty::take_control(slave.as_raw_fd())?;
        fd::send_descriptors(self.report, &Record::Terminal.encode(), [master.as_fd(), slave.as_fd()])?;
        self.terminal.set(slave.into_raw_fd());
        Ok(())
    }

    fn new_process_group(&self) -> Result<()> {
        tty::new_process_group()?;
        match self.terminal.get() {
            -1 => Ok(()),
            terminal => tty::take_foreground(terminal),
        }
    }

    fn set_descriptors(&self, keep: &[i32]) -> Result<()> {
        for (stream, target) in self.stdio.iter().zip(0..) {
            match stream {
                Stream::Descriptor(fd) => fd::duplicate_to(*fd, target)?,
                Stream::Terminal => fd::duplicate_to(self.terminal.get(), target)?,
                Stream::Null => {
                    let null = fd::open(fd::CWD, c"/dev/null", libc::O_RDWR, 0)?;
                    fd::duplicate_to(null.as_raw_fd(), target)?;
                }
            }
        }
        fd::close_on_exec(3)?;
        keep.iter().try_for_each(|&fd| fd::duplicate_to(fd, fd))
    }

    fn wait_at_gate(&self) -> Result<()> {
        // The launcher may look only into what is dumpable. Nobody else is in
        // the cell yet, and exec makes the memory anew.
        credentials::set_dumpable(true)?;
        // The cell's root is readable by its mode, and Landlock grants nothing
        // on it, so a refusal can only be the domain's.
        let root_listing = match fd::open(fd::CWD, c"/", libc::O_RDONLY | libc::O_DIRECTORY, 0) {
            Ok(_) => 0,
            Err(failure) => failure.errno as i32,
        };
        fd::write(self.report, &Record::AtGate { root_listing }.encode())?;
        fd::wait_byte(self.report)
    }
}
