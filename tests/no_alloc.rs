//! The child allocates nothing between clone and exec.
//!
//! The allocator of this program counts, by process, in memory that a clone
//! does not copy. It has no test harness: a launch needs a process with one
//! thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use cellblock::host::Ids;
use cellblock::launch::{self, Options};
use cellblock::outcome::{Class, Outcome};
use cellblock::policy::{
    Access, Bind, Channel, Entry, Expose, ExposeKind, LockAccess, Origin, Policy, Tmpfs, Workspace,
};
use cellblock::verify::Request;
use nix::unistd::{Uid, getegid, geteuid, mkfifo};
use tempfile::TempDir;

/// What the launcher and its child have asked of the allocator.
struct Counts {
    launcher: AtomicI32,
    by_launcher: AtomicU64,
    by_others: AtomicU64,
}

static COUNTS: std::sync::atomic::AtomicPtr<Counts> = std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());

struct Counting;

impl Counting {
    fn count(&self) {
        // SAFETY: the pointer is null or leads to a page that is never unmapped, and atomics may be
        // shared between processes.
        let Some(counts) = (unsafe { COUNTS.load(Ordering::Relaxed).as_ref() }) else {
            return;
        };
        // What the C library keeps of a process id may be the parent's.
        // SAFETY: getpid takes nothing.
        let pid = unsafe { libc::syscall(libc::SYS_getpid) } as i32;
        match pid == counts.launcher.load(Ordering::Relaxed) {
            true => &counts.by_launcher,
            false => &counts.by_others,
        }
        .fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count();
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.count();
        // SAFETY: the caller's promises are handed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.count();
        // SAFETY: the caller's promises are handed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Maps the counts where every process of a launch sees the same.
fn share_counts() -> &'static Counts {
    // SAFETY: an anonymous mapping of one page, zeroed by the kernel, which is a valid value of
    // `Counts`, fits it, and stays until the process ends.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(page, libc::MAP_FAILED);
        let counts = page.cast::<Counts>();
        (*counts).launcher.store(libc::getpid(), Ordering::Relaxed);
        COUNTS.store(counts, Ordering::Relaxed);
        &*counts
    }
}

fn main() {
    let user = match Uid::effective().is_root() {
        true => Ids { uid: 54321, gid: 54321, started_by_root: true },
        false => Ids { uid: geteuid().as_raw(), gid: getegid().as_raw(), started_by_root: false },
    };
    let dir = instance(user);
    let policy = policy(dir.path());
    let counts = share_counts();

    // SAFETY: nothing is done in the child but to allocate and end, and this process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            drop(std::hint::black_box(Box::new(1)));
            // SAFETY: it does not return.
            unsafe { libc::_exit(0) }
        }
        child => {
            // SAFETY: no status is asked for.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
    let seen = counts.by_others.swap(0, Ordering::Relaxed);
    assert_eq!(seen, 2, "an allocation of a child is counted");

    let launch = |policy: &Policy, command: &[&str], report: bool, verify: bool| -> Outcome {
        let options = Options {
            ids: user,
            report: report.then(|| dir.path().join("report.jsonl")),
            test: verify.then(|| Request { runs: true, ..Request::default() }),
            ..Options::default()
        };
        counts.by_launcher.store(0, Ordering::Relaxed);
        let command = command.iter().map(OsString::from).collect();
        let outcome = launch::run(policy, command, &options);
        let (launcher, others) =
            (counts.by_launcher.load(Ordering::Relaxed), counts.by_others.swap(0, Ordering::Relaxed));
        println!("{:?}: launcher {launcher}, child {others}", outcome.class);
        assert!(launcher > 0, "the launcher's allocations are counted");
        assert_eq!(others, 0, "the child has used the allocator: {outcome:?}");
        outcome
    };

    let ends = |outcome: Outcome, class: Class| {
        if skipped(&outcome) {
            std::process::exit(0);
        }
        assert_eq!(outcome.class, class, "{outcome:?}");
    };
    for (report, verify) in [(false, false), (true, false), (false, true)] {
        ends(launch(&policy, &["true"], report, verify), Class::Exited);
        // The last step fails, behind all others.
        ends(launch(&policy, &["none"], report, verify), Class::ExecFailed);
        // One in the middle does: the tree is there, the place in it is not.
        let mut lost = policy.clone();
        lost.cell.workdir = Some("/nowhere".into());
        ends(launch(&lost, &["true"], report, verify), Class::SetupFailed);
        // One of init's does.
        let mut refused = policy.clone();
        refused.cell.hostname = "x".repeat(65);
        ends(launch(&refused, &["true"], report, verify), Class::SetupFailed);
    }
}

/// Whether the host lacks what a cell is made of; `CELLBLOCK_TEST_REQUIRE`
/// makes that a failure.
fn skipped(outcome: &Outcome) -> bool {
    let fault = outcome.error.as_ref().and_then(|error| error.fault);
    let feature = match fault {
        Some("landlock-too-old") => "landlock",
        Some("userns-refused" | "uid-map-refused" | "namespace-limit") => "userns",
        _ => return false,
    };
    let required = std::env::var("CELLBLOCK_TEST_REQUIRE").unwrap_or_default();
    assert!(required.split(',').all(|name| name != feature), "{outcome:?}");
    println!("skipped: this host has no {feature}");
    true
}

/// A run's own directory, a channel and a workspace.
fn instance(user: Ids) -> TempDir {
    let dir = tempfile::Builder::new()
        .prefix("cellblock-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in("/var/tmp")
        .unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["own", "work", "channel"] {
        fs::create_dir(path(name)).unwrap();
    }
    for name in ["channel/activity.lock", "channel/descriptor.json"] {
        fs::write(path(name), "").unwrap();
    }
    mkfifo(&path("channel/activity.fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for name in [
        "",
        "own",
        "work",
        "channel",
        "channel/activity.fifo",
        "channel/activity.lock",
        "channel/descriptor.json",
    ] {
        chown(path(name), Some(user.uid), Some(user.gid)).unwrap();
    }
    dir
}

/// A policy with every kind of step.
fn policy(root: &Path) -> Policy {
    let origin = Origin("no_alloc.rs".into());
    let entry = |name: &str| Entry { path: root.join(name), origin: origin.clone() };
    let expose = |name: &str, create| Expose {
        path: root.join(name),
        kind: ExposeKind::Directory,
        create,
        origin: origin.clone(),
    };
    let mut policy = Policy {
        mode: Default::default(),
        cell: Default::default(),
        filesystem: Default::default(),
        run: Default::default(),
        channel: Some(Channel {
            dir: root.join("channel"),
            fifo: vec![entry("channel/activity.fifo")],
            lock: vec![entry("channel/activity.lock")],
            lock_access: LockAccess::None,
            read_only: vec![entry("channel/descriptor.json")],
            execute: vec![],
            replaceable: false,
            origin: origin.clone(),
        }),
        workspace: Some(Workspace {
            dir: root.join("work"),
            at: "/work".into(),
            access: Access::ReadOnly,
            protect: Vec::new(),
            protect_missing: Default::default(),
            told: Default::default(),
            origin: origin.clone(),
        }),
        environment: Default::default(),
        network: Default::default(),
        seccomp: Default::default(),
        limits: Default::default(),
        accept: Vec::new(),
        require: Default::default(),
    };
    policy.run.expose = vec![expose("own", false), expose("made/one", true)];
    policy.filesystem.ro_bind = vec![Bind {
        src: "/usr/lib".into(),
        dest: "/opt/lib".into(),
        optional: false,
        overlay: false,
        origin: origin.clone(),
    }];
    policy.filesystem.tmpfs = vec![Tmpfs { path: "/opt/scratch".into(), size: None, origin }];
    policy
}
