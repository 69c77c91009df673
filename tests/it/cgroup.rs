//! The cgroup of a nested cell's own, in a cgroup that root hands to the user.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::skip::{NESTED, has, has_root};
use crate::user::{User, text};

/// A cgroup that belongs to the user, and a process in it as that of a harness.
struct Delegated {
    user: User,
    directory: PathBuf,
    harness: Child,
}

/// Runs a launcher in the cgroup `$CG`. Where the host has hierarchies of the first
/// version as well, the launcher is shown the second one alone: its table of cgroups
/// lists no other. A procfs of which nothing is covered lets it mount one.
const ENTER: &str = "echo $$ > $CG/cgroup.procs; \
    if grep -qv ^0:: /proc/$$/cgroup; then \
        mkdir -p whole; mount -t proc proc whole; grep ^0:: /proc/$$/cgroup > alone; \
        mount --bind alone /proc/$$/cgroup; \
    fi; exec ";

impl Delegated {
    fn new() -> Option<Delegated> {
        let user = User::new().filter(|_| has_root())?;
        let table = fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
        let mut mounts = table.lines().filter(|line| line.contains(" - cgroup2 "));
        let mount = mounts.next().and_then(|line| line.split(' ').nth(4));
        let home = user.path("").components().next_back().expect("a directory").as_os_str().to_owned();
        let directory = mount.map(|mount| Path::new(mount).join(home));
        let directory = directory.filter(|directory| fs::create_dir(directory).is_ok());
        if !has("cgroup2-writable", directory.is_some()) {
            return None;
        }
        let directory = directory?;
        for name in ["", "cgroup.procs", "cgroup.subtree_control"] {
            user.own(&directory.join(name));
        }
        let harness = Command::new("sleep").arg("60").spawn().expect("sleep");
        fs::write(directory.join("cgroup.procs"), harness.id().to_string()).expect("it takes processes");
        Some(Delegated { user, directory, harness })
    }

    /// A script of root's in mounts of its own, where `$CELLBLOCK` is the launcher as
    /// the user.
    fn script(&self, script: &str) -> Command {
        let (uid, gid) = self.user.ids();
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-ec", &format!("{ENTER}{script}")]);
        unshare.current_dir(self.user.path("")).stdin(Stdio::null()).env("CG", &self.directory);
        unshare.env("CELLBLOCK", format!("setpriv --reuid {uid} --regid {gid} --clear-groups ./cellblock"));
        unshare
    }

    fn run(&self, script: &str) -> Output {
        self.script(script).output().expect("unshare")
    }

    /// The cgroups that launchers have made here.
    fn leaves(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.directory).expect("it can be listed").flatten();
        entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.path()).collect()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        let _ = fs::write(self.directory.join("cgroup.kill"), "1");
        let _ = self.harness.kill().and_then(|()| self.harness.wait());
        let left = self.leaves();
        for directory in
            left.iter().map(|leaf| leaf.join("cell")).chain(left.clone()).chain([self.directory.clone()])
        {
            // A process that was killed leaves its cgroup a moment later.
            let gone = || fs::remove_dir(&directory).is_ok() || !directory.exists();
            (0..200).find(|_| {
                gone() || {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    false
                }
            });
        }
    }
}

/// Shows the cgroup that the cell is in, by a cgroup namespace made inside.
const INSIDE: &str = "unshare --user --map-root-user --mount --cgroup sh -ec \
    \"mount -t cgroup2 none /tmp; grep ^0:: /proc/self/cgroup; wc -l < /tmp/cgroup.procs; mkdir /tmp/own; ls -d /tmp/own\"";

#[test]
fn a_nested_cell_has_a_cgroup_of_its_own_and_leaves_none() {
    let Some(cgroup) = Delegated::new() else { return };
    let nested = NESTED.join(" ");
    let (uid, gid) = cgroup.user.ids();
    let said = text(&cgroup.run(&format!("$CELLBLOCK run {nested} -- sh -ec '{INSIDE}'")));
    let [own, processes, made] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert_eq!((own, made), ("0::/", "/tmp/own"));
    // PID 1, two shells and wc.
    assert!(processes.parse::<u32>().is_ok_and(|count| (3..=4).contains(&count)), "{said}");
    assert_eq!(cgroup.leaves(), [""; 0].map(PathBuf::from));
    // One that root has made is root's, and the cell is in it all the same.
    let own = "unshare --user --map-root-user --cgroup grep ^0:: /proc/self/cgroup";
    let said = text(&cgroup.run(&format!("./cellblock run --run-as {uid}:{gid} {nested} -- {own}")));
    assert_eq!(said, "0::/\n");
    assert_eq!(cgroup.leaves(), [""; 0].map(PathBuf::from));
    // Outside, the same namespace has the harness's cgroup as its root.
    text(&cgroup.run(&format!("setpriv --reuid {uid} --regid {gid} --clear-groups sh -ec '{INSIDE}'")));
    assert_eq!(cgroup.leaves(), [cgroup.directory.join("own")]);
}

#[test]
fn the_cgroup_of_a_killed_launcher_is_removed_by_the_next() {
    let Some(cgroup) = Delegated::new() else { return };
    let nested = NESTED.join(" ");
    let mut launcher =
        cgroup.script(&format!("$CELLBLOCK run {nested} -- sleep 60")).spawn().expect("unshare");
    let held = |leaf: &Path| {
        fs::read_to_string(leaf.join("cell/cgroup.procs")).is_ok_and(|held| held.lines().count() == 2)
    };
    let leaf = crate::user::eventually("PID 1 and 2 in a cgroup", || {
        cgroup.leaves().pop().filter(|leaf| held(leaf))
    });
    launcher.kill().and_then(|()| launcher.wait()).expect("it ends");
    assert!(leaf.exists(), "it is the next one's to remove");
    crate::user::eventually("the cell ends", || {
        fs::read_to_string(leaf.join("cell/cgroup.procs")).is_ok_and(|held| held.is_empty()).then_some(())
    });
    text(&cgroup.run(&format!("$CELLBLOCK run {nested} -- true")));
    assert_eq!(cgroup.leaves(), [""; 0].map(PathBuf::from));
}

#[test]
fn a_cgroup_that_takes_no_other_leaves_the_cell_without() {
    let Some(cgroup) = Delegated::new() else { return };
    fs::write(cgroup.directory.join("cgroup.max.descendants"), "0").expect("a limit");
    let output = cgroup.run(&format!("$CELLBLOCK run {} -- unshare --user --cgroup true", NESTED.join(" ")));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("No space left on device"), "{said}");
}
