//! What other launchers call what has another name here, or none.

/// A flag of bubblewrap, Docker, firejail, landrun, nsjail or srt that is no flag here, and what
/// to write instead.
const HABITS: &[(&[&str], &str)] = &[
    // Views.
    (
        &["--ro", "--read-only-bind", "--allow-read", "--ro-bind-try", "--bindmount_ro", "-R"],
        "write '--ro-bind SRC[:DEST]'",
    ),
    (&["--rox"], "write '--ro-bind SRC[:DEST]'; what is shown may be executed too"),
    (&["--rw", "--rwx", "--allow-write", "--bind-try", "--bindmount", "-B"], "write '--bind SRC[:DEST]'"),
    (&["--volume", "--mount"], "write '--bind SRC:DEST', or '--ro-bind SRC:DEST'"),
    (
        &["--ldd", "--add-exec"],
        "libraries of /usr are in every cell; show another directory with '--ro-bind DIR'",
    ),
    (
        &["--whitelist", "--unrestricted-filesystem"],
        "name what the cell needs with '--ro-bind SRC' and '--bind SRC'",
    ),
    (
        &["--dev-bind", "--dev-bind-try", "--gpus"],
        "write '--device /dev/NAME', as in '--device /dev/dri/renderD128'",
    ),
    (&["--blacklist", "--noblacklist"], "write '--hide PATH'; what no view shows is absent by itself"),
    (
        &["--private", "--private-tmp", "--private-dev", "--private-bin", "--private-etc", "--private-home"],
        "leave it out: home, /tmp and /dev are the cell's own, and of /etc it has what programs need",
    ),
    (&["--tmpfsmount", "-T"], "write '--tmpfs PATH'"),
    (&["--proc", "--dev", "--mqueue"], "leave it out: the cell has its own /proc and /dev"),
    (
        &["--dir", "--symlink", "--file", "--bind-data", "--ro-bind-data", "--perms", "--chmod"],
        "make it in a directory, and show that with '--bind SRC:DEST'",
    ),
    (
        &["--overlay-src", "--overlay", "--tmp-overlay", "--ro-overlay"],
        "in a policy file, write 'ro_bind = [{ src = \"…\", overlay = true }]'",
    ),
    (&["--remount-ro", "--read-only"], "leave it out: what '--bind' does not show is read-only or absent"),
    (
        &["--size", "--shm-size"],
        "in a policy file, write 'tmpfs = [{ path = \"…\", size = \"512M\" }]', or 'tmp = \"512M\"' under [limits]",
    ),
    (
        &["--rootfs", "--root", "--chroot"],
        "show each directory with '--ro-bind SRC:DEST'; `/` of the cell is its own",
    ),
    // Environment and place.
    (&["--setenv", "-e", "--env-file"], "write '--env NAME=VALUE', or '--env NAME' to pass it on"),
    (
        &["--unsetenv", "--clearenv"],
        "leave it out: the cell has only the variables of '--env' and a few of its own",
    ),
    (&["--cwd", "--workdir", "--pwd"], "write '--chdir PATH'"),
    (&["-w"], "write '--workspace DIR', or '--chdir PATH' for where the program starts"),
    (
        &["--entrypoint", "--argv0", "--exec", "-c"],
        "write the program and its arguments after '--': -- sh -c '…'",
    ),
    // Users, processes, terminal.
    (&["--user", "-u", "--uid", "--gid"], "write '--run-as UID:GID', as root"),
    (
        &[
            "--unshare-all",
            "--unshare-user",
            "--unshare-user-try",
            "--unshare-ipc",
            "--unshare-pid",
            "--unshare-uts",
            "--unshare-cgroup",
            "--unshare-cgroup-try",
            "--die-with-parent",
            "--new-session",
            "--disable-userns",
            "--ipc",
            "--pid",
            "--uts",
            "--userns",
            "--userns2",
            "--pidns",
            "--cgroupns",
            "--init",
            "--rm",
            "--no-new-privileges",
            "--assert-userns-disabled",
            "-M",
            "--mode_once",
            "--noprofile",
            "--quiet",
            "--disable_clone_newnet",
            "--disable_clone_newuser",
            "--disable_clone_newpid",
            "--exec-label",
            "--file-label",
        ],
        "leave it out: every cell has its own namespaces and ends with the launcher",
    ),
    (&["--as-pid-1"], "leave it out: PID 1 of the cell belongs to cellblock"),
    (
        &["--cap-add", "--privileged"],
        "no flag gives a capability; for a program that makes namespaces, '--mode nested'",
    ),
    (
        &[
            "--cap-drop",
            "--caps.drop",
            "--caps",
            "--noroot",
            "--nonewprivs",
            "--seccomp.drop",
            "--security-opt",
        ],
        "leave it out: the provider has no capability, and '--seccomp' names its filter",
    ),
    (&["--add-seccomp-fd"], "write '--seccomp ./FILE.bpf'"),
    (
        &["-i", "-t", "-it", "--interactive", "--tty"],
        "leave it out: the cell has the terminal that the launcher has",
    ),
    (&["-d", "--detach"], "start the launcher in the background: cellblock run … &"),
    (&["--name"], "write '--hostname NAME'"),
    (&["--sync-fd", "--block-fd", "--userns-block-fd", "--info-fd"], "write '--json-status-fd N'"),
    // Network.
    (
        &[
            "--allow-net",
            "--share-net",
            "--network",
            "--unrestricted-network",
            "--connect-tcp",
            "--bind-tcp",
            "-p",
            "--publish",
            "--allowed-domains",
            "--dns",
            "--add-host",
        ],
        "the cell has no network, or with '--net host' all of the host's",
    ),
    (&["--unshare-net", "--no-network", "--no-net"], "leave it out, or write '--net none'"),
    // Limits.
    (
        &[
            "--memory",
            "-m",
            "--cpus",
            "--cpu",
            "--rlimit-as",
            "--cpu-shares",
            "--rlimit_as",
            "--cgroup_mem_max",
        ],
        "start the launcher in a limited scope: systemd-run --user --scope -p MemoryMax=2G cellblock run …",
    ),
    (&["--time_limit"], "write '--timeout DURATION', as in '--timeout 30m'"),
    (&["--pids-limit", "--rlimit-nproc", "--rlimit_nproc", "--cgroup_pids_max"], "write '--processes N'"),
    (
        &["--ulimit", "--rlimit-nofile", "--rlimit-fsize", "--rlimit_nofile", "--rlimit_fsize"],
        "write '--processes N'; for others write 'open_files' or 'file_size' under [limits] in a policy file",
    ),
    // Policy and reporting.
    (&["--config", "--settings", "-s", "-f", "--policy-file"], "write '--policy FILE'"),
    (&["--dry-run"], "write 'cellblock plan' instead of 'cellblock run'"),
    (&["--debug", "--log-level"], "write '-v', or '-vv' for still more"),
    (&["--best-effort"], "name what may be missing: '--allow-missing LAYER'"),
];

/// What to write instead of a flag that is known elsewhere.
pub(super) fn instead_of(flag: &str) -> Option<&'static str> {
    HABITS.iter().find(|(flags, _)| flags.contains(&flag)).map(|(_, advice)| *advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The words of a text that look like flags.
    fn flags_in(text: &str) -> impl Iterator<Item = &str> {
        let words = text.split(|c: char| !(c.is_alphanumeric() || c == '-'));
        words.filter(|word| word.starts_with('-') && !word.trim_matches('-').is_empty())
    }

    #[test]
    fn every_counterpart_is_a_flag_and_no_habit_is() {
        let command = super::super::command();
        let run = command.find_subcommand("run").unwrap();
        let long = run.get_arguments().filter_map(|argument| argument.get_long());
        let known: BTreeSet<String> = long.map(|long| format!("--{long}")).collect();
        let of_others = ["-v", "-vv", "-p", "-c", "--user", "--scope"];
        let mut seen = BTreeSet::new();
        for (flags, advice) in HABITS {
            for flag in flags_in(advice) {
                assert!(known.contains(flag) || of_others.contains(&flag), "{flag} in: {advice}");
            }
            for flag in *flags {
                assert!(!known.contains(*flag), "{flag}");
                assert!(seen.insert(flag), "{flag} is there twice");
            }
        }
    }
}
