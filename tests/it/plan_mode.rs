//! Plan mode, `[workspace] access = "read-only"`: the provider reads what it is
//! meant to read, reports what it does, and changes nothing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip;
use crate::user::{self, User, text};

/// Where programs keep what logs them in, below a home.
const CREDENTIALS: [&str; 24] = [
    ".aws/credentials",
    ".azure/accessTokens.json",
    ".cargo/credentials.toml",
    ".claude/.credentials.json",
    ".claude.json",
    ".codex/auth.json",
    ".config/gcloud/application_default_credentials.json",
    ".config/gh/hosts.yml",
    ".config/opencode/opencode.json",
    ".docker/config.json",
    ".gemini/oauth_creds.json",
    ".git-credentials",
    ".gitconfig",
    ".gnupg/private-keys-v1.d/key",
    ".kube/config",
    ".local/share/opencode/auth.json",
    ".local/share/keyrings/login.keyring",
    ".mozilla/firefox/p/logins.json",
    ".netrc",
    ".npmrc",
    ".pgpass",
    ".pypirc",
    ".ssh/id_ed25519",
    ".bash_history",
];

/// What a harness or a login shell has in its environment.
const AMBIENT: [&str; 14] = [
    "ANTHROPIC_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "CI_JOB_TOKEN",
    "DATABASE_URL",
    "DBUS_SESSION_BUS_ADDRESS",
    "DOCKER_HOST",
    "GH_TOKEN",
    "GITHUB_TOKEN",
    "HARNESS_CASE",
    "KUBECONFIG",
    "OPENAI_API_KEY",
    "SSH_AUTH_SOCK",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
];

/// A workspace to plan in, a channel, and a home full of credentials.
struct Desk {
    user: User,
}

impl Desk {
    fn new() -> Option<Desk> {
        let user = User::new()?;
        for (name, content) in [
            ("work/AGENTS.md", "be brief\n"),
            ("work/CLAUDE.md", "see AGENTS.md\n"),
            ("work/.github/copilot-instructions.md", "be brief\n"),
            ("work/src/main.c", "int main;\n"),
        ] {
            let directory = Path::new(name).parent().and_then(Path::to_str).expect("a directory");
            user.directory(directory);
            user.file(name, content);
        }
        for name in CREDENTIALS.map(|name| format!("home/{name}")) {
            let directory = Path::new(&name).parent().and_then(Path::to_str).expect("a directory");
            user.directory(directory);
            user.file(&name, "a secret");
        }
        user.directory("chan");
        let fifo = user.path("chan/activity.fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        user.own(&fifo);
        let policy = "version = 1\n\
            [workspace]\ndir = \"work\"\naccess = \"read-only\"\n\
            [channel]\ndir = \"chan\"\nfifo = [\"activity.fifo\"]\n";
        user.file("p.toml", policy);
        Some(Desk { user })
    }

    /// A command in a cell, started from a rich environment.
    fn cell(&self, by_root: bool, command: &[&str]) -> Command {
        let options = ["--policy", "p.toml"];
        let mut launch = match by_root {
            true => self.user.cell_by_root(&options, command),
            false => self.user.cell(&options, command),
        };
        launch.env("HOME", self.home()).envs(AMBIENT.map(|name| (name, "a secret")));
        launch
    }

    fn home(&self) -> PathBuf {
        self.user.path("home")
    }

    /// What stands in the workspace: path, inode, mode, size and times of each.
    fn workspace(&self) -> Vec<(PathBuf, u64, u32, u64, [i64; 4])> {
        let mut found = Vec::new();
        let mut directories = vec![self.user.path("work")];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).expect("it is there").map(|entry| entry.expect("an entry")) {
                let path = entry.path();
                let metadata = fs::symlink_metadata(&path).expect("it is there");
                let times =
                    [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
                found.push((path.clone(), metadata.ino(), metadata.mode(), metadata.len(), times));
                directories.extend(metadata.is_dir().then_some(path));
            }
        }
        found.sort();
        found
    }
}

fn starts() -> Vec<bool> {
    if user::is_root() { vec![false, true] } else { vec![false] }
}

#[test]
fn instructions_are_read() {
    let Some(desk) = Desk::new() else { return };
    for by_root in starts() {
        let script = "cat AGENTS.md CLAUDE.md .github/*; ls; cat /work/src/main.c";
        let read = text(&desk.cell(by_root, &["sh", "-c", script]).output().expect("a launch"));
        assert_eq!(read, "be brief\nsee AGENTS.md\nbe brief\nAGENTS.md\nCLAUDE.md\nsrc\nint main;\n");
    }
}

/// Each changes the workspace in another way, and prints what it got.
const WRITES: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result < 0: raise OSError(ctypes.get_errno(), "")
def exchange(): call(libc.renameat2(-100, b"AGENTS.md", -100, b"CLAUDE.md", 2))
def reopen():
    fd = os.open("AGENTS.md", os.O_RDONLY)
    os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
writes = {
    "write": lambda: os.open("AGENTS.md", os.O_WRONLY),
    "append": lambda: os.open("AGENTS.md", os.O_WRONLY | os.O_APPEND),
    "reopen": reopen,
    "open with O_TRUNC": lambda: os.open("AGENTS.md", os.O_RDONLY | os.O_TRUNC),
    "truncate": lambda: os.truncate("AGENTS.md", 0),
    "create": lambda: os.open("new", os.O_WRONLY | os.O_CREAT),
    "O_TMPFILE": lambda: os.open(".", os.O_TMPFILE | os.O_WRONLY),
    "mkdir": lambda: os.mkdir("new"),
    "mkfifo": lambda: os.mkfifo("new"),
    "symlink": lambda: os.symlink("x", "new"),
    "link": lambda: os.link("AGENTS.md", "new"),
    "unlink": lambda: os.unlink("AGENTS.md"),
    "rename": lambda: os.rename("AGENTS.md", "new"),
    "exchange": exchange,
    "chmod": lambda: os.chmod("AGENTS.md", 0o600),
    "chown": lambda: os.chown("AGENTS.md", os.getuid(), -1),
    "utime": lambda: os.utime("AGENTS.md"),
    "setxattr": lambda: os.setxattr("AGENTS.md", "user.a", b"b"),
    "rmdir": lambda: os.rmdir("empty"),
    "chmod of the root": lambda: os.chmod(".", 0o700),
}
for name in sys.argv[1:] or writes:
    try: writes[name](); print(f"{name}: done")
    except OSError as error: print(f"{name}: {os.strerror(error.errno)}")
"#;

#[test]
fn every_write_to_the_workspace_is_erofs() {
    let Some(desk) = Desk::new() else { return };
    if !skip::has_programs(&["python3"]) {
        return;
    }
    desk.user.directory("work/empty");
    let before = desk.workspace();
    let mut names = Vec::new();
    for by_root in starts() {
        let output = desk.cell(by_root, &["python3", "-c", WRITES]).output().expect("a launch");
        let said = text(&output);
        names =
            said.lines().filter_map(|line| line.split_once(": ")).map(|(name, _)| name.to_owned()).collect();
        assert_eq!(names.len(), 20, "{said}");
        for line in said.lines() {
            assert!(line.ends_with(": Read-only file system"), "{line}");
        }
        assert_eq!(desk.workspace(), before);
    }
    // Outside each of them is done.
    for name in names {
        let desk = Desk::new().expect("as before");
        desk.user.directory("work/empty");
        let mut python = desk.user.command("python3");
        python.args(["-c", WRITES, &name]).current_dir(desk.user.path("work"));
        assert_eq!(text(&python.output().expect("python3")), format!("{name}: done\n"));
    }
}

#[test]
fn the_channel_still_takes_writes() {
    let Some(desk) = Desk::new() else { return };
    for by_root in starts() {
        let fifo = desk.user.path("chan/activity.fifo");
        let reader = std::thread::spawn({
            let fifo = fifo.clone();
            move || {
                let mut got = String::new();
                File::open(fifo).expect("a FIFO").read_to_string(&mut got).expect("it reads");
                got
            }
        });
        let script = format!("echo reading > {0}; echo planning > {0}", fifo.display());
        // One writer to the end, so that the reader sees one end.
        let script = format!("exec 3> {}; {script}", fifo.display());
        text(&desk.cell(by_root, &["sh", "-c", &script]).output().expect("a launch"));
        assert_eq!(reader.join().expect("it reads"), "reading\nplanning\n");
    }
}

#[test]
fn credentials_are_absent() {
    let Some(desk) = Desk::new() else { return };
    let real = desk.home().display().to_string();
    // Every name, and every directory that leads there.
    let names: BTreeSet<String> = CREDENTIALS
        .iter()
        .flat_map(|name| Path::new(name).ancestors().map(|path| path.display().to_string()))
        .collect();
    let script = r#"real=$1; shift; for name; do for home in "$HOME" "$real"; do
        if test -e "$home/$name" || test -L "$home/$name"; then echo "$home/$name"; fi; done; done; ls -A "$HOME""#;
    for by_root in starts() {
        let mut command = vec!["sh", "-c", script, "sh", &real];
        command.extend(names.iter().map(|name| &**name).filter(|name| !name.is_empty()));
        assert_eq!(text(&desk.cell(by_root, &command).output().expect("a launch")), "");
    }
    // Outside the same script finds them all.
    let mut shell = desk.user.command("sh");
    shell.env("HOME", "/none").args(["-c", script, "sh", &real]).args(CREDENTIALS);
    let found = String::from_utf8(shell.output().expect("sh").stdout).expect("UTF-8");
    assert_eq!(found.lines().count(), CREDENTIALS.len(), "{found}");
    for secret in CREDENTIALS {
        let mode = fs::metadata(desk.home().join(secret)).expect("it is there").permissions().mode();
        assert_ne!(mode & 0o400, 0, "{secret} could not be read anyway");
    }
}

#[test]
fn ambient_variables_are_gone() {
    let Some(desk) = Desk::new() else { return };
    for by_root in starts() {
        let said = text(&desk.cell(by_root, &["env"]).output().expect("a launch"));
        let names: Vec<&str> =
            said.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
        assert_eq!(BTreeSet::from_iter(names), BTreeSet::from(["HOME", "LANG", "PATH", "TMPDIR", "USER"]));
        assert!(said.contains("HOME=/home/agent\n"), "{said}");
    }
}

#[test]
fn a_plan_by_root_finds_what_the_run_would_find() {
    let Some(user) = User::new().filter(|_| skip::has_root()) else { return };
    // Root may look into it, and the user it names may not.
    let locked = user.directory("locked");
    user.file("locked/in", "");
    std::os::unix::fs::chown(&locked, Some(0), Some(0)).expect("root");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o700)).expect("root");
    let view = user.path("locked/in").display().to_string();
    let run = user.cell_by_root(&["--ro-bind", &view], &["true"]).output().expect("a launch");
    let mut plan = user.cell_by_root(&["--ro-bind", &view], &["true"]);
    let arguments: Vec<_> = plan.get_args().skip(1).map(ToOwned::to_owned).collect();
    plan = Command::new(plan.get_program());
    let plan = plan.current_dir(user.path("")).arg("plan").args(arguments).output().expect("a plan");
    assert_eq!(run.status.code(), Some(125));
    assert_eq!((plan.status.code(), plan.stderr), (Some(125), run.stderr));
}
