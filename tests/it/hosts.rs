//! Hosts that forbid something: the message names what does, and no remedy is
//! printed that does not help there.

use std::process::{Command, Output};

use crate::site::{Site, stderr};
use crate::skip;

/// Runs a script as root in mounts of its own, and makes it run the launcher as
/// `$RUN`; the user's ids are `$ID` and `$GID`.
fn as_root(site: &Site, script: &str) -> Output {
    let script = format!("mount --make-rprivate / && {script}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).current_dir(site.root());
    command
        .env("RUN", site.program())
        .env("ID", site.ids.uid.to_string())
        .env("GID", site.ids.gid.to_string());
    command.env_remove("SUDO_UID").env_remove("SUDO_GID").output().unwrap()
}

#[track_caller]
fn says(output: &Output, wanted: &[&str], unwanted: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    for words in wanted {
        assert!(said.contains(words), "{words}\n{said}");
    }
    for words in unwanted {
        assert!(!said.contains(words), "{words}\n{said}");
    }
}

#[test]
fn a_namespace_that_denies_setgroups_is_named() {
    let Some(site) = Site::new() else { return };
    let program = site.program();
    let words =
        ["--user", "--map-root-user", program.to_str().unwrap(), "run", "--run-as", "1:1", "--", "true"];
    let output = site.beside("unshare", &words).unwrap();
    says(&output, &["denies setgroups(2)", "start as that user itself"], &["CAP_SETGID"]);
    let output = site.beside("unshare", &["--user", "--map-root-user", words[2], "verify"]).unwrap();
    says(
        &output,
        &["root cannot give files to that id here", "start as an ordinary user"],
        &["TMPDIR", "os error"],
    );
}

#[test]
fn a_chroot_is_named() {
    let Some(site) = Site::new() else { return };
    if !skip::has_root() {
        return;
    }
    site.directory("root");
    let enter = "cd root && for d in usr etc proc dev var; do mkdir $d && mount --rbind /$d $d; done && \
                 ln -s usr/bin usr/lib usr/lib64 usr/sbin . && cp $RUN cellblock";
    let start =
        "exec /usr/sbin/chroot . setpriv --reuid $ID --regid $GID --clear-groups /cellblock run -- true";
    let output = as_root(&site, &format!("{enter} && {start}"));
    says(&output, &["namespaces: ", "EPERM", "runs in a chroot"], &["sudo", "RestrictNamespaces"]);
    let output = as_root(
        &site,
        &format!(
            "rm -rf root && mkdir root && {enter} && exec /usr/sbin/chroot . /cellblock run --run-as $ID:$GID -- true"
        ),
    );
    says(&output, &["namespaces: ", "EPERM", "runs in a chroot"], &["sudo", "ordinary user"]);
}

#[test]
fn root_without_cap_chown_is_told_so() {
    let Some(site) = Site::new() else { return };
    if !skip::has_root() {
        return;
    }
    let output = as_root(&site, "setpriv --bounding-set=-chown $RUN run --run-as $ID:$GID -- true | cat");
    assert!(stderr(&output).contains("root lacks CAP_CHOWN"), "{}", stderr(&output));
    assert!(!stderr(&output).contains("redirect"), "{}", stderr(&output));
}

#[test]
fn a_read_only_proc_is_named() {
    let Some(site) = Site::new() else { return };
    if !skip::has_root() {
        return;
    }
    let read_only = "mount -o remount,bind,ro /proc";
    let user = "exec setpriv --reuid $ID --regid $GID --clear-groups $RUN run -- true";
    says(
        &as_root(&site, &format!("{read_only} && {user}")),
        &["EROFS", "/proc is mounted read-only"],
        &["not mapped"],
    );
    let root = "exec $RUN run --run-as $ID:$GID -- true";
    says(
        &as_root(&site, &format!("{read_only} && {root}")),
        &["EROFS", "/proc is mounted read-only"],
        &["not mapped"],
    );
}

/// Neither directory takes a file, as in a container with a read-only root.
#[test]
fn demo_and_verify_need_no_directory_that_takes_files() {
    let Some(site) = Site::new() else { return };
    if !skip::has_root() {
        return;
    }
    let read_only = "mount -t tmpfs -o ro none /var/tmp && mount -t tmpfs -o ro none /tmp";
    for command in ["verify --json", "demo"] {
        let user = format!("exec setpriv --reuid $ID --regid $GID --clear-groups /proc/self/fd/9 {command}");
        let root = format!("exec /proc/self/fd/9 {command}");
        for start in [user, root] {
            let output = as_root(&site, &format!("exec 9<$RUN && {read_only} && {start}"));
            let text = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(0), "{start}\n{}\n{text}", stderr(&output));
        }
    }
}

#[test]
fn the_fixture_stands_where_tmpdir_says() {
    let Some(site) = Site::new() else { return };
    let place = site.directory("elsewhere");
    let output = site.command(site.program()).arg("demo").env("TMPDIR", &place).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("files in {}/cell-", place.display())), "{}{text}", stderr(&output));
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    // What the cell has for itself is no place for it.
    for place in ["/tmp", "/dev/shm", "/nowhere", "relative"] {
        let output = site.command(site.program()).arg("demo").env("TMPDIR", place).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{place}: {}", stderr(&output));
    }
}
