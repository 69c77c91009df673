//! What a cell sees of the host's own files: programs below `/usr` find their
//! settings, the cell keeps its own files of `/etc`, and links that only root can
//! change are followed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip;
use crate::user::{User, text};

/// Programs whose settings lie in `/etc` or `/var/lib`: what each needs, and what
/// is asked of it.
const PROGRAMS: [(&[&str], &str); 13] = [
    (&["javac"], "javac -version 2>&1"),
    (&["java"], "java -XshowSettings:security -version 2>&1 | grep -i -A3 provider | head"),
    (&["mvn"], "mvn -q -v"),
    (&["php"], "php -m"),
    (&["Rscript"], "Rscript -e 'cat(R.home(), nzchar(Sys.getenv(\"R_LIBS_SITE\")))'"),
    (&["fc-match"], "fc-match sans"),
    (&["python3"], "python3 -c 'import mimetypes; print(mimetypes.guess_type(\"a.webp\"))'"),
    (&["python3"], "python3 -c 'import matplotlib as m; print(m.matplotlib_fname())' 2>/dev/null || true"),
    (&["dpkg-query"], "dpkg-query -W bash"),
    (&["getent"], "getent services https; getent rpc portmapper; getent protocols tcp; true"),
    (&["date"], "date +%Z; readlink /etc/localtime"),
    (&["lscpu"], "lscpu -p=CPU,CORE"),
    (&["cat"], "cat /etc/debian_version /etc/os-release 2>/dev/null"),
];

#[test]
fn programs_of_usr_find_their_settings() {
    let Some(user) = User::new() else { return };
    for (needs, script) in PROGRAMS {
        if !skip::has_programs(needs) || needs == ["lscpu"] && !(skip::has_whole_proc() && has_sysfs()) {
            continue;
        }
        let mut outside = user.command("env");
        outside.args(["-i", "PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/tmp", "sh", "-c"]);
        let outside = text(&outside.arg(script).output().unwrap());
        let options = ["--env", "HOME=/tmp"];
        assert_eq!(text(&user.script(&options, script).output().unwrap()), outside, "{script}");
    }
}

/// The files that a cell has of its own, in one line each.
const OWN: &str =
    "cut -d: -f1 /etc/passwd; cat /etc/hostname /etc/machine-id; getent hosts \"$(hostname)\" | wc -l";

/// Whether the host tells of its processors by files.
fn has_sysfs() -> bool {
    skip::has("sysfs", Path::new("/sys/devices/system/cpu/possible").exists())
}

/// Whether the host has what a mount in its /etc can stand on.
fn has_hosts() -> bool {
    skip::has("/etc/hosts", Path::new("/etc/hosts").exists())
}

#[test]
fn the_cells_own_files_lie_over_a_view_of_etc() {
    let Some(user) = User::new().filter(|_| has_hosts()) else { return };
    let own = "root\nagent\nnobody\ncell\nce11b10cce11b10cce11b10cce11b10c\n1\n";
    let full = user.file("full.toml", "version = 1\n[filesystem]\nsystem = \"full\"\n");
    let overlay = "version = 1\n[filesystem]\nro_bind = [{ src = \"/etc\", overlay = true }]\n";
    let overlay = user.file("overlay.toml", overlay);
    let policies = [&full, &overlay].map(|path| path.to_str().unwrap());
    for options in [&[][..], &["--ro-bind", "/etc"], &["--policy", policies[0]], &["--policy", policies[1]]] {
        assert_eq!(text(&user.script(options, OWN).output().unwrap()), own, "{options:?}");
    }
    // What the policy itself puts there counts over them.
    let hosts = user.file("hosts", "192.0.2.1 elsewhere\n");
    let hosts = format!("{}:/etc/hosts", hosts.display());
    let options = ["--ro-bind", "/etc", "--ro-bind", &hosts];
    assert!(text(&user.cell(&options, &["cat", "/etc/hosts"]).output().unwrap()).contains("elsewhere"));
    // So does another directory in place of the host's.
    let other = user.directory("other");
    let other = format!("{}:/etc", other.display());
    assert_eq!(text(&user.cell(&["--ro-bind", &other], &["ls", "/etc"]).output().unwrap()), "");
}

#[test]
fn full_shows_of_etc_what_everybody_may_read() {
    let Some(user) = User::new() else { return };
    let full = user.file("full.toml", "version = 1\n[filesystem]\nsystem = \"full\"\n");
    let options = ["--policy", full.to_str().unwrap()];
    // Neither what only root reads nor what a group reads, at any depth.
    let not_for_all =
        "find /etc -mindepth 1 ! -type l ! -perm -o+r | head; ls /etc/shadow /etc/passwd- 2>/dev/null; true";
    assert_eq!(text(&user.script(&options, not_for_all).output().unwrap()), "");
    let outside = "find /etc -mindepth 1 -maxdepth 1 -type f -perm -o+r";
    let outside = text(&user.command("sh").args(["-c", outside]).output().unwrap());
    let inside = text(&user.script(&options, "find /etc -mindepth 1 -maxdepth 1").output().unwrap());
    let not_shown = ["passwd-", "group-", "subuid", "subgid", "subuid-", "subgid-", "resolv.conf", "shadow"];
    for path in outside.lines().filter(|path| not_shown.iter().all(|name| !path.ends_with(name))) {
        assert!(inside.lines().any(|shown| shown == path), "{path} is not shown");
    }
}

/// Lays things over `/etc` and `/var/lib` in a mount namespace of root's, and runs
/// a cell in it.
fn in_layout(user: &User, layout: &str, options: &[&str], script: &str) -> Option<String> {
    if !skip::has_root() {
        return None;
    }
    let layers = user.directory("layers");
    let setup = format!(
        "set -e; mount --make-rprivate /; mount -t tmpfs none {0}; mkdir {0}/u {0}/w; \
         mount -t overlay overlay -o lowerdir=/etc,upperdir={0}/u,workdir={0}/w /etc; {layout}; exec \"$@\"",
        layers.display()
    );
    let cell = user.cell_by_root(options, &["sh", "-c", script]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &setup, "sh"]).arg(cell.get_program()).args(cell.get_args());
    Some(text(&command.current_dir(user.path("")).output().unwrap()))
}

#[test]
fn certificates_and_the_time_zone_are_found_in_other_layouts() {
    let Some(user) = User::new() else { return };
    let zone = "mkdir /etc/zone; ln -s /usr/share/zoneinfo/Asia/Tokyo /etc/zone/here; ln -sfn zone/here /etc/localtime";
    if Path::new("/usr/share/zoneinfo/Asia/Tokyo").exists() {
        assert!(in_layout(&user, zone, &[], "date +%Z").is_none_or(|said| said == "JST\n"));
    }
    let certificates = "mount -t tmpfs none /var/lib; mkdir -p /var/lib/ca/pem /etc/ssl; echo CERT > /var/lib/ca/pem/a.pem; \
         mv /etc/ssl/certs /etc/ssl/former 2>/dev/null || true; ln -s /var/lib/ca/pem /etc/ssl/certs";
    let read = "cat /etc/ssl/certs/a.pem";
    assert!(in_layout(&user, certificates, &[], read).is_none_or(|said| said == "CERT\n"));
}

#[test]
fn full_hides_at_any_depth_what_a_group_reads() {
    let Some(user) = User::new() else { return };
    let id = user.ids().0;
    // Readable by the run's own group: without the rule it would be seen.
    let layout = format!(
        "mkdir -p /etc/xx/deep/er /etc/xx/open; echo secret > /etc/xx/deep/er/key; chown 0:{id} /etc/xx/deep/er/key; \
         chmod 640 /etc/xx/deep/er/key; echo seen > /etc/xx/deep/er/seen; echo top > /etc/xx-key; chown 0:{id} /etc/xx-key; \
         chmod 640 /etc/xx-key; mkdir -m 750 /etc/xx/closed; chown 0:{id} /etc/xx/closed; echo in > /etc/xx/closed/in"
    );
    let full = user.file("full.toml", "version = 1\n[filesystem]\nsystem = \"full\"\n");
    let script = "cd /etc; find xx xx-key 2>/dev/null | sort; cat xx/deep/er/seen";
    let said = in_layout(&user, &layout, &["--policy", full.to_str().unwrap()], script);
    assert!(said.is_none_or(|said| said == "xx\nxx/deep\nxx/deep/er\nxx/deep/er/seen\nxx/open\nseen\n"));
    let control = in_layout(&user, &layout, &["--ro-bind", "/etc"], "cat /etc/xx-key /etc/xx/deep/er/key");
    assert!(control.is_none_or(|said| said == "top\nsecret\n"), "the control does not see them");
}

#[test]
fn programs_find_processors_and_no_group_of_the_launchers() {
    let Some(user) = User::new().filter(|_| has_sysfs()) else { return };
    let script = "ls /sys; ls /sys/devices/system/cpu | grep -c '^possible$'; ls -A /sys/fs/cgroup | wc -l; \
                  echo x > /sys/devices/system/cpu/x 2>/dev/null || echo refused";
    let output = user.script(&[], script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n0\nrefused\n");
}

#[test]
fn the_cells_own_files_lie_over_etc_where_files_are_mounted_in_it() {
    let Some(user) = User::new().filter(|_| has_hosts()) else { return };
    // As containers have it. The kernel refuses an overlay of such a directory.
    let layout = "echo 192.0.2.1 host > /etc/own-hosts; mount --bind /etc/own-hosts /etc/hosts";
    let script = "cat /etc/hosts; test -e /etc/own-hosts && test ! -e /etc/resolv.conf && echo rest";
    let said = in_layout(&user, layout, &["--ro-bind", "/etc"], script);
    assert!(said.is_none_or(|said| said == "127.0.0.1\tlocalhost cell\n::1\tlocalhost cell\nrest\n"));
}

/// A link that only root can change, beside the system's directories.
struct RootsLink(PathBuf);

impl RootsLink {
    fn new(name: &str, target: &Path) -> Option<RootsLink> {
        if !skip::has_root() {
            return None;
        }
        let path = Path::new("/opt").join(format!("{name}-{}", std::process::id()));
        let is_made = symlink(target, &path).is_ok();
        skip::has("a writable /opt", is_made).then_some(RootsLink(path))
    }
}

impl Drop for RootsLink {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn links_that_only_root_can_change_are_followed() {
    let Some(user) = User::new() else { return };
    let Some(link) = RootsLink::new("cell-link", &user.path("")) else { return };
    let tree = user.directory("tree/inst/run");
    user.file("tree/file", "content\n");
    let named = |name: &str| link.0.join(name).display().to_string();
    // A view stands where it was named, and is the real one.
    let (view, file) = (named("tree"), named("tree/file"));
    let said = user.cell(&["--ro-bind", &view], &["cat", &file]).output().unwrap();
    assert_eq!(text(&said), "content\n");
    assert!(user.cell(&["--workspace", &view], &["touch", "made"]).status().unwrap().success());
    assert!(user.path("tree/made").exists());
    let policy = "version = 1\n[workspace]\ndir = \"${env:PWD}\"\nat = \"${env:PWD}\"\n";
    let policy = user.file("policy.toml", policy);
    let mut cell = user.cell(&["--policy", policy.to_str().unwrap()], &["pwd"]);
    assert_eq!(text(&cell.env("PWD", &view).output().unwrap()), format!("{view}\n"));
    // An exposure stands at its real path, with a link where it was named.
    let (inst, run) = (named("tree/inst"), named("tree/inst/run"));
    let script = format!("touch {run}/a {}/b", tree.display());
    assert!(user.script(&["--hide", &inst, "--expose", &run], &script).status().unwrap().success());
    assert!(tree.join("a").exists() && tree.join("b").exists());
    // What is hidden by the link's name is hidden.
    let script = format!("ls {view}");
    let said = text(&user.script(&["--ro-bind", &view, "--hide", &inst], &script).output().unwrap());
    assert!(!said.contains("inst") && said.contains("file"), "{said}");
}

#[test]
fn links_that_others_can_change_are_refused() {
    let Some(user) = User::new() else { return };
    user.directory("tree");
    symlink("tree", user.path("own")).unwrap();
    let refuses = |path: &Path| {
        let output = user.cell(&["--ro-bind", path.to_str().unwrap()], &["true"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(125) && said.contains("symbolic link"),
            "{}: {said}",
            path.display()
        );
    };
    refuses(&user.path("own"));
    refuses(Path::new("/proc/self/cwd"));
    if !skip::has_root() {
        return;
    }
    // Root's own link, in a directory of the user's: the user can replace it.
    symlink(user.path("tree"), user.path("roots")).unwrap();
    refuses(&user.path("roots"));
    // And one behind a link that is followed.
    let Some(link) = RootsLink::new("cell-chain", &user.path("")) else { return };
    refuses(&link.0.join("own"));
    // A directory that a group can write in, or everybody as in /tmp.
    let Ok(open) = tempfile::tempdir_in("/opt") else { return };
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    symlink(user.path("tree"), open.path().join("link")).unwrap();
    refuses(&open.path().join("link"));
}

#[test]
fn the_repository_of_a_linked_worktree_is_named() {
    let Some(user) = User::new() else { return };
    if !skip::has_programs(&["git"]) {
        return;
    }
    let make = "git init -q m && git -C m -c user.name=n -c user.email=n commit -q --allow-empty -m x \
                && git -C m worktree add -q ../w";
    text(&user.command("sh").args(["-c", make]).env("HOME", user.path("")).output().unwrap());
    let (tree, repository) = (user.path("w"), user.path("m/.git"));
    let (tree, repository) = (tree.to_str().unwrap(), repository.to_str().unwrap());
    let stderr = |options: &[&str]| {
        let output = user.cell(options, &["git", "status", "-s"]).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (works, said) = stderr(&["--workspace", tree]);
    assert!(!works && said.contains(repository), "{said}");
    let (works, said) = stderr(&["--workspace", tree, "--bind", repository]);
    assert!(works && said.is_empty(), "{said}");
    let check = |options: &[&str]| {
        let mut check = user.command(user.path("cellblock"));
        String::from_utf8(check.args(["policy", "check"]).args(options).output().unwrap().stdout).unwrap()
    };
    assert!(check(&["--workspace", tree]).contains(&format!("--bind {repository}")));
    assert!(!check(&["--workspace", tree, "--bind", repository]).contains("repository-not-shown"));
    // The file in the workspace is the agent's to write: it names nothing that does not confirm it.
    fs::write(user.path("w/.git"), format!("gitdir: {}\n", user.directory("m/secret").display())).unwrap();
    assert!(!check(&["--workspace", tree]).contains("secret"));
}
