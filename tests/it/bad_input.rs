//! Bad input: each mistake ends the launch before anything is started, with a
//! message that names the place and says what to write instead.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};

use crate::site::{Site, stderr};
use crate::skip;

/// One mistake. `{s}` stands for the site in every text.
struct Mistake {
    /// What is asked for, beside the exposure that the provider's mark goes to.
    options: &'static str,
    /// The provider's command; by default it leaves a mark.
    command: &'static [&'static str],
    /// How the shell redirects the launcher's descriptors.
    redirect: &'static str,
    exit: i32,
    /// What the message begins with, behind `cellblock: `.
    begins: &'static str,
    /// What it says besides.
    says: &'static [&'static str],
    /// Whether the status and the report have a last line that tells of it.
    told: Told,
}

/// Where a mistake is told beside standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// In the status and in the report.
    Both,
    /// In the status alone: there is no report to write.
    Status,
    /// Nowhere: the mistake is in the command line, or in the status itself.
    Nowhere,
}

const TOUCH: &[&str] = &["touch", "{s}/own/mark"];

const fn policy(options: &'static str, begins: &'static str, says: &'static [&'static str]) -> Mistake {
    Mistake { options, command: TOUCH, redirect: "", exit: 125, begins, says, told: Told::Both }
}

const fn command(
    command: &'static [&'static str],
    exit: i32,
    begins: &'static str,
    says: &'static [&'static str],
) -> Mistake {
    Mistake { command, exit, ..policy("", begins, says) }
}

const fn descriptor(
    options: &'static str,
    redirect: &'static str,
    begins: &'static str,
    says: &'static [&'static str],
) -> Mistake {
    Mistake { redirect, ..policy(options, begins, says) }
}

const MISTAKES: &[Mistake] = &[
    // The policy file.
    policy(
        "--policy none.toml",
        "policy: --policy: cannot read none.toml: No such file or directory",
        &["remedy: give a readable policy file"],
    ),
    policy(
        "--policy secret.toml",
        "policy: --policy: cannot read secret.toml: Permission denied",
        &["remedy: give a readable policy file"],
    ),
    policy(
        "--policy own",
        "policy: --policy: cannot read own: Is a directory",
        &["remedy: give a readable policy file"],
    ),
    policy("--policy latin1.toml", "policy: latin1.toml:2: not UTF-8", &["remedy: write the text in UTF-8"]),
    policy(
        "--policy unknown.toml",
        "policy: unknown.toml:3: unknown field `ro_bnd`",
        &["ro_bnd = [\"/usr\"]", "^^^^^^", "remedy: did you mean `ro_bind`?"],
    ),
    policy("--policy type.toml", "policy: type.toml:3: ", &["timeout = 30", "string"]),
    policy("--policy syntax.toml", "policy: syntax.toml:2: ", &["[cell"]),
    policy(
        "--policy variable.toml",
        "policy: variable.toml:3: `${run}` is not defined",
        &["remedy: give it with --var run=VALUE"],
    ),
    policy(
        "--policy dots.toml",
        "policy: dots.toml:3: `/usr/../etc` holds `..`",
        &["remedy: write the path without `..`"],
    ),
    policy(
        "--policy twice.toml",
        "policy: twice.toml:3: `/data` is given at twice.toml:2 too",
        &["remedy: leave one of the two out"],
    ),
    policy("--policy missing.toml", "policy: missing.toml:3: {s}/gone does not exist", &["remedy: "]),
    // Sources and places.
    policy("--ro-bind gone", "policy: --ro-bind: {s}/gone does not exist", &["remedy: "]),
    policy(
        "--ro-bind own/../dir",
        "policy: --ro-bind: `own/../dir` holds `..`",
        &["remedy: write the path without `..`"],
    ),
    policy(
        "--bind link",
        "policy: --bind: {s}/link is reached through a symbolic link",
        &["remedy: write {s}/dir"],
    ),
    policy(
        "--bind dangling",
        "policy: --bind: {s}/dangling is reached through a symbolic link that leads nowhere",
        &["remedy: "],
    ),
    policy(
        "--expose link/inner",
        "policy: --expose: {s}/link/inner is reached through a symbolic link",
        &["remedy: write {s}/dir/inner"],
    ),
    policy(
        "--ro-bind locked/in",
        "policy: --ro-bind: {s}/locked/in cannot be looked at: EACCES Permission denied",
        &["remedy: "],
    ),
    policy(
        "--bind fifo",
        "policy: --bind: {s}/fifo is a FIFO",
        &["remedy: name its directory as `[channel] dir` and the FIFO under `fifo`"],
    ),
    policy(
        "--expose fifo",
        "policy: --expose: {s}/fifo is a FIFO, where a directory is needed",
        &["remedy: grant the private directory that holds it"],
    ),
    policy(
        "--expose socket",
        "policy: --expose: {s}/socket is a socket, where a directory is needed",
        &["remedy: grant the private directory that holds it"],
    ),
    policy(
        "--workspace /dev/zero",
        "policy: --workspace: /dev/zero is a device, where a directory is needed",
        &["remedy: "],
    ),
    policy("--bind /dev/zero:/data", "policy: --bind: /dev/zero is a device", &["remedy: "]),
    policy(
        "--workspace plain",
        "policy: --workspace: {s}/plain is a regular file, where a directory is needed",
        &["remedy: "],
    ),
    policy(
        "--channel plain",
        "policy: --channel: {s}/plain is a regular file, where a directory is needed",
        &["remedy: "],
    ),
    policy(
        "--ro-bind /usr/lib:/etc/passwd/x",
        "policy: --ro-bind: /etc/passwd/x lies below the file /etc/passwd",
        &["remedy: "],
    ),
    policy(
        "--ro-bind plain:/data --ro-bind /usr/lib:/data/x",
        "policy: --ro-bind: /data/x lies below the file /data",
        &["remedy: "],
    ),
    policy(
        "--ro-bind dir:/data --tmpfs /data/none",
        "policy: --tmpfs: there is no {s}/dir/none to mount on",
        &["cause: /data/none lies in the view /data", "remedy: make it on the host first"],
    ),
    policy(
        "--ro-bind /usr/lib:/data --bind dir:/data",
        "policy: --bind: `/data` is given at --ro-bind too",
        &["remedy: leave one of the two out"],
    ),
    policy(
        "--ro-bind /usr/lib:/proc/x",
        "policy: --ro-bind: /proc/x is the cell's own",
        &["remedy: put the entry elsewhere"],
    ),
    policy(
        "--ro-bind /proc:/hostproc",
        "policy: --ro-bind: /proc shows the host's processes",
        &["remedy: leave it out"],
    ),
    policy(
        "--ro-bind /usr/share:/home",
        "policy: cell.home: there is no /usr/share/agent to mount on",
        &["cause: /home/agent lies in the view /home (--ro-bind)"],
    ),
    policy(
        "--ro-bind dir:data",
        "policy: --ro-bind: `data` is a path in the cell and not absolute",
        &["remedy: begin it with `/`"],
    ),
    policy(
        "--expose /",
        "policy: --expose: a view of `/` would show the whole host",
        &["remedy: name the directories that the cell needs"],
    ),
    policy(
        "--ro-bind /usr:/",
        "policy: --ro-bind: `/` of the cell is its own",
        &["remedy: mount at a path below it"],
    ),
    policy(
        "--expose {s}",
        "policy: --expose: the exposure {s} holds {s}/own",
        &["remedy: expose the run's own directories one by one"],
    ),
    policy(
        "--bind {s}",
        "policy: --expose: the exposure {s}/own is visible already",
        &["cause: the view of {s} (--bind) shows it", "remedy: "],
    ),
    policy(
        "--chdir /nowhere",
        "workdir: go to /nowhere: chdir: ENOENT",
        &["cause: the cell has no such directory", "remedy: "],
    ),
    policy("--hostname a_b", "policy: --hostname: `a_b` is no host name", &["remedy: use up to 64 letters"]),
    policy("--timeout 30", "policy: --timeout: `30` is no duration", &["remedy: write 30s"]),
    policy("--timeout 30M", "policy: --timeout: `30M` is no duration", &["remedy: write 30m"]),
    policy("--timeout 1y", "policy: --timeout: `1y` is no duration", &["remedy: write 365d"]),
    policy(
        "--env =x",
        "policy: --env: `` cannot name an environment variable",
        &["remedy: write KEY or KEY=VALUE"],
    ),
    policy(
        "--seccomp none",
        "policy: --seccomp or seccomp.filter: there is no filter `none`",
        &["remedy: write one of: provider, provider-set-gid, nested, nested-set-gid"],
    ),
    policy(
        "--profile codx",
        "policy: --profile: no built-in profile `codx`",
        &["remedy: did you mean `codex`?"],
    ),
    // The command.
    command(
        &["no-such-program"],
        127,
        "exec: no-such-program cannot be executed: ENOENT",
        &["cause: the cell has no such program", "the host has none", "remedy: install it"],
    ),
    command(
        &["{s}/own/none"],
        127,
        "exec: {s}/own/none cannot be executed: ENOENT",
        &["cause: neither the cell nor the host has {s}/own/none"],
    ),
    command(
        &["ls -la /"],
        127,
        "exec: ls -la / cannot be executed: ENOENT",
        &["cause: no shell takes the command apart", "remedy: give program and arguments as words"],
    ),
    command(
        &["./mark"],
        127,
        "exec: ./mark cannot be executed: ENOENT",
        &["cause: /home/agent has no such program", "remedy: "],
    ),
    command(&[""], 127, "command: the command is an empty string", &["remedy: "]),
    command(
        &["{s}/own/plain"],
        126,
        "exec: {s}/own/plain cannot be executed: EACCES",
        &["is no executable file: its mode lets nobody", "remedy: make it executable (chmod +x"],
    ),
    command(&["{s}/own"], 126, "exec: {s}/own cannot be executed: EACCES", &["cause: it is a directory"]),
    command(
        &["{s}/own/no-line"],
        126,
        "exec: {s}/own/no-line cannot be executed: ENOEXEC",
        &["remedy: begin the script with `#!`"],
    ),
    command(
        &["{s}/own/bad-line"],
        127,
        "exec: {s}/own/bad-line cannot be executed: ENOENT",
        &["the first line of {s}/own/bad-line names the interpreter"],
    ),
    Mistake {
        options: "--args 3",
        redirect: "3<big",
        ..command(
            TOUCH,
            126,
            "exec: touch cannot be executed: E2BIG",
            &["cause: arguments and environment", "remedy: hand the data over in a file"],
        )
    },
    // Descriptors.
    descriptor(
        "",
        "<&-",
        "descriptors: stdin cannot be given to the provider",
        &["cause: it is closed", "remedy: redirect stdin"],
    ),
    Mistake {
        told: Told::Nowhere,
        ..descriptor(
            "",
            ">&-",
            "descriptors: stdout cannot be given to the provider",
            &["cause: it is closed", "remedy: redirect stdout"],
        )
    },
    descriptor(
        "",
        "</usr",
        "descriptors: stdin cannot be given to the provider",
        &["cause: it is a directory", "remedy: redirect stdin"],
    ),
    descriptor(
        "",
        "</dev/zero",
        "descriptors: stdin cannot be given to the provider",
        &["cause: it is a device of the host", "remedy: redirect stdin"],
    ),
    descriptor(
        "--pass-fd 9",
        "9<&-",
        "descriptors: --pass-fd 9: descriptor 9 is not open",
        &["remedy: open it in the shell"],
    ),
    // The lowest number that is free, which the report would take.
    descriptor(
        "--pass-fd 3",
        "3<&-",
        "descriptors: --pass-fd 3: descriptor 3 is not open",
        &["remedy: open it in the shell"],
    ),
    descriptor(
        "--pass-fd 9",
        "9</usr",
        "descriptors: --pass-fd 9: descriptor 9 is a directory",
        &["cause: by a directory `..` leads out", "remedy: show the directory"],
    ),
    Mistake {
        told: Told::Nowhere,
        ..descriptor(
            "--json-status-fd 9",
            "9<&-",
            "descriptors: --json-status-fd 9: descriptor 9 is not open",
            &["remedy: open it in the shell"],
        )
    },
    Mistake {
        told: Told::Nowhere,
        ..descriptor(
            "--json-status-fd 9",
            "9</dev/null",
            "status: --json-status-fd 9: it is not open for writing",
            &["remedy: open it in the shell"],
        )
    },
    // The report.
    Mistake {
        told: Told::Status,
        ..policy("--report own", "report: --report own: it is a directory", &["remedy: name a file"])
    },
    Mistake {
        told: Told::Status,
        ..policy(
            "--report gone/report",
            "report: --report gone/report: no such directory: ENOENT",
            &["remedy: name a file"],
        )
    },
    Mistake {
        told: Told::Status,
        ..policy(
            "--report /usr/report",
            "report: --report /usr/report: it cannot be made: EACCES",
            &["remedy: name a file"],
        )
    },
    Mistake {
        told: Told::Status,
        ..policy(
            "--report /dev/null",
            "report: --report /dev/null: it is no regular file",
            &["remedy: name a file"],
        )
    },
    Mistake {
        told: Told::Status,
        ..policy("--report fifo", "report: --report fifo: it is no regular file", &["remedy: name a file"])
    },
    // Who it runs as.
    policy(
        "--run-as 1:1",
        "ids: --run-as 1:1 names another user",
        &["cause: only root", "remedy: leave --run-as away"],
    ),
];

#[test]
fn every_mistake_is_named_with_its_place() {
    let Some(site) = Site::new() else { return };
    lay_out(&site);
    let mut wrong = Vec::new();
    for mistake in MISTAKES {
        if let Err(what) = judge(&site, mistake) {
            wrong.push(what);
        }
    }
    // An ordinary user could not remove it otherwise.
    lock(&site, 0o700);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn lock(site: &Site, mode: u32) {
    fs::set_permissions(site.path("locked"), fs::Permissions::from_mode(mode)).unwrap();
}

fn lay_out(site: &Site) {
    for name in ["own", "dir", "dir/inner", "locked", "locked/in"] {
        site.directory(name);
    }
    site.file("plain", "", 0o644);
    site.fifo("fifo");
    drop(UnixListener::bind(site.path("socket")).unwrap());
    symlink("dir", site.path("link")).unwrap();
    symlink("none", site.path("dangling")).unwrap();
    for (name, text) in [
        ("unknown.toml", "version = 1\n[filesystem]\nro_bnd = [\"/usr\"]\n"),
        ("type.toml", "version = 1\n[cell]\ntimeout = 30\n"),
        ("syntax.toml", "version = 1\n[cell\n"),
        ("variable.toml", "version = 1\n[cell]\nworkdir = \"/${run}\"\n"),
        ("dots.toml", "version = 1\n[filesystem]\nro_bind = [\"/usr/../etc\"]\n"),
        (
            "twice.toml",
            "version = 1\nfilesystem.ro_bind = [{ src = \"/usr\", dest = \"/data\" }]\nfilesystem.tmpfs = [\"/data\"]\n",
        ),
        ("missing.toml", "version = 1\n[filesystem]\nro_bind = [\"gone\"]\n"),
    ] {
        site.file(name, text, 0o644);
    }
    site.file("latin1.toml", b"version = 1\n# caf\xe9\n", 0o644);
    site.file("secret.toml", "version = 1\n", 0o000);
    site.file("own/plain", "#!/bin/sh\n", 0o644);
    site.file("own/no-line", "echo\n", 0o755);
    site.file("own/bad-line", "#!/no/interpreter\n", 0o755);
    site.file("big", format!("--env\0BIG={}\0", "x".repeat(200_000)), 0o644);
    lock(site, 0o000);
}

fn judge(site: &Site, mistake: &Mistake) -> Result<(), String> {
    let fill = |text: &str| text.replace("{s}", site.root().to_str().unwrap());
    let mut words: Vec<String> = ["run", "--expose", "own"].map(String::from).to_vec();
    if mistake.told != Told::Nowhere {
        words.extend(["--json-status-fd", "1"].map(String::from));
    }
    if mistake.told == Told::Both {
        words.extend(["--report", "report"].map(String::from));
    }
    words.extend(mistake.options.split_whitespace().map(fill));
    words.push("--".into());
    words.extend(mistake.command.iter().map(|word| fill(word)));

    let mut shell = site.command("/bin/sh");
    let script = format!("exec \"$0\" \"$@\" {}", mistake.redirect);
    shell.args(["-c", &script]).arg(site.program()).args(&words);
    let output = shell.output().unwrap();
    let said = stderr(&output);
    let check = |right: bool, what: &str| match right {
        true => Ok(()),
        false => Err(format!(
            "{what}: {} {}\n{:?}\n{said}{}",
            mistake.options,
            mistake.redirect,
            mistake.command,
            String::from_utf8_lossy(&output.stdout)
        )),
    };
    check(output.status.code() == Some(mistake.exit), "the exit code")?;
    let begins = format!("cellblock: {}", fill(mistake.begins));
    check(said.starts_with(&begins), &begins)?;
    for words in mistake.says {
        let words = fill(words);
        check(said.contains(&words), &words)?;
    }
    check(!site.path("own/mark").exists(), "the provider has run")?;

    let report = fs::read_to_string(site.path("report"));
    let _ = fs::remove_file(site.path("report"));
    let outcome = match mistake.exit {
        125 => "\"outcome\":\"setup-failed\"",
        _ => "\"outcome\":\"exec-failed\"",
    };
    let told = |text: &str, event: &str| {
        let last = text.lines().last().unwrap_or_default();
        [event, outcome, "\"retryable\":false"].iter().all(|member| last.contains(member))
    };
    let status = String::from_utf8_lossy(&output.stdout);
    check(mistake.told == Told::Nowhere || told(&status, "\"event\":\"exit\""), "the status")?;
    check(mistake.told != Told::Both || told(&report.unwrap(), "\"event\":\"outcome\""), "the report")?;
    let left = fs::read_dir(site.root()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.as_encoded_bytes()[0] == b'.').collect();
    check(left.is_empty(), &format!("{left:?} are left"))
}

/// The mistakes that the command line's grammar finds.
#[test]
fn a_command_line_that_cannot_be_read_says_what_was_meant() {
    let Some(site) = Site::new() else { return };
    site.directory("own");
    for (words, says) in [
        ("run --expose own touch own/mark", "the command comes after '--': write '-- touch'"),
        ("run --ro-bind /usr /data -- touch own/mark", "write '--ro-bind /usr:/data'"),
        ("run --ro-bnd /usr -- touch own/mark", "'--ro-bind'"),
        ("run --expose own --", "required"),
        ("run --expose own", "required"),
        ("run --mode open -- touch own/mark", "[possible values: sealed, nested]"),
        ("run --run-as me -- touch own/mark", "write UID:GID, two numbers"),
        ("run --pass-fd 2 -- touch own/mark", "write the number of a descriptor, from 3 on"),
        ("run --args 9 -- touch own/mark", "--args 9: cannot read descriptor 9: Bad file descriptor"),
        ("run --expose own --report -- touch own/mark", "a value is required for '--report"),
        ("rum -- touch own/mark", "'run'"),
    ] {
        let mut command = site.command(site.program());
        let output = command.args(words.split(' ')).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{words}\n{said}");
        assert!(said.starts_with("cellblock: usage: "), "{words}\n{said}");
        assert!(said.contains("\nremedy: "), "{words}\n{said}");
        assert!(said.contains(says), "{words}\n{said}");
        assert!(!site.path("own/mark").exists(), "{words}");
    }
}

#[test]
fn root_must_name_an_ordinary_user() {
    if !skip::has_root() {
        return;
    }
    let Some(site) = Site::new() else { return };
    let own = site.directory("own");
    let start = |environment: &[(&str, &str)], options: &[&str]| -> Output {
        let mut command = Command::new(site.program());
        command
            .stdin(Stdio::null())
            .env_remove("SUDO_UID")
            .env_remove("SUDO_GID")
            .envs(environment.iter().copied())
            .args(["run", "--expose", own.to_str().unwrap()])
            .args(options)
            .args(["--", "touch", &site.text("own/mark")]);
        command.output().unwrap()
    };
    for environment in [&[][..], &[("SUDO_UID", "0"), ("SUDO_GID", "0")]] {
        let output = start(environment, &[]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.starts_with("cellblock: ids: started by root"), "{said}");
        assert!(said.contains("--run-as UID:GID"), "{said}");
        assert!(!site.path("own/mark").exists());
    }
    let output = start(&[], &["--run-as", "0:0"]);
    assert!(stderr(&output).contains("never runs as root"));
    assert!(!site.path("own/mark").exists());

    let id = site.ids.uid.to_string();
    let caller = [("SUDO_UID", &*id), ("SUDO_GID", &*id)];
    let output = start(&caller, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(site.path("own/mark").exists());
}

#[test]
fn a_report_needs_room_on_its_disk() {
    let Some(site) = Site::new() else { return };
    let disk = site.directory("disk");
    let own = site.directory("own");
    let script = "mount -t tmpfs -o size=64k tmpfs \"$1\" && shift && exec \"$@\"";
    let mut command = site.command("/usr/bin/unshare");
    command
        .args(["-Urm", "sh", "-c", script, "sh"])
        .arg(&disk)
        .arg(site.program())
        .args(["run", "--run-as", "1:1", "--json-status-fd", "1"])
        .arg("--expose")
        .arg(&own)
        .arg("--report")
        .arg(disk.join("report"))
        .args(["--", "touch", &site.text("own/mark")]);
    let output = command.output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    let begins = format!(
        "cellblock: report: --report {}: there is no room for it: ENOSPC",
        disk.join("report").display()
    );
    assert!(said.starts_with(&begins), "{said}");
    assert!(said.contains("remedy: "), "{said}");
    let status = String::from_utf8_lossy(&output.stdout);
    assert!(status.contains("\"outcome\":\"setup-failed\""), "{status}");
    assert!(!site.path("own/mark").exists());
}

#[test]
fn a_step_beyond_the_65535th_is_named_by_its_own_number() {
    let Some(site) = Site::new() else { return };
    // Each takes a step for every directory above it.
    let deep = "/d".repeat(480);
    let places: Vec<String> = (0..140).map(|place| format!("/{place}{deep}")).collect();
    let options = places.iter().flat_map(|place| ["--tmpfs", place]);
    let mut launch = site.command(site.program());
    launch.arg("run").args(options).args(["--chdir", "/nope", "--", "true"]);
    let said = stderr(&launch.output().unwrap());
    assert!(said.starts_with("cellblock: workdir: go to /nope: chdir: ENOENT"), "{said}");
}

#[test]
fn a_pipe_that_nobody_writes_to_keeps_no_launch() {
    let Some(site) = Site::new() else { return };
    let fifo = site.fifo("fifo").display().to_string();
    site.fifo("other");
    let shell = |script: &str| {
        let script = script.replace("CELL", "./cellblock run").replace("FIFO", &fifo);
        let mut command = site.command("bash");
        command.args(["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("bash")
    };
    // All at once, as each waits for a while.
    let scripts =
        ["CELL --policy FIFO -- true", "CELL --seccomp FIFO -- true", "CELL --args 3 -- true 3<>other"];
    let launches: Vec<_> = scripts.into_iter().map(shell).collect();
    for launch in launches {
        let output = launch.wait_with_output().expect("it ends");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("ETIMEDOUT") || said.contains("timed out"), "{said}");
    }
    // One with a writer is read to its end, however late that comes.
    let late = "(sleep 0.3; echo 'version = 1'; sleep 0.3; echo '[environment]'; echo 'set = { A = \"b\" }') > FIFO & \
                CELL --policy FIFO -- sh -c 'echo $A'; CELL --policy <(echo version = 1) -- echo c";
    let output = shell(late).wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "b\nc\n", "{}", stderr(&output));
}
