//! Real programs work in a cell: what they say there is what they say outside,
//! byte for byte.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::skip;
use crate::user::{self, User, text};

/// What every program here has in its environment, inside and out; the cell's
/// own defaults, and what keeps git's hashes the same.
const ENVIRONMENT: [(&str, &str); 11] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("HOME", "/home/agent"),
    ("TMPDIR", "/tmp"),
    ("LANG", "C.UTF-8"),
    ("USER", "agent"),
    ("GIT_AUTHOR_NAME", "agent"),
    ("GIT_AUTHOR_EMAIL", "agent@cell"),
    ("GIT_AUTHOR_DATE", "2024-01-01T00:00:00Z"),
    ("GIT_COMMITTER_NAME", "agent"),
    ("GIT_COMMITTER_EMAIL", "agent@cell"),
    ("GIT_COMMITTER_DATE", "2024-01-01T00:00:00Z"),
];

/// A shell script, the programs it needs, and its files.
struct Work {
    needs: &'static [&'static str],
    files: &'static [(&'static str, &'static str)],
    script: &'static str,
    /// Part of what it says, so that saying nothing twice is no success.
    says: &'static str,
}

impl Work {
    /// Does the work outside and inside, and compares what it says.
    fn is_the_same_inside(&self) {
        let Some(user) = User::new() else { return };
        if !self.has_programs() {
            return;
        }
        let run = |words: Vec<String>| {
            self.lay_out(&user);
            let output = user.command(&words[0]).args(&words[1..]).output().expect("it starts");
            said(&output)
        };
        let outside = run(self.outside(&user, &[]));
        assert!(outside.contains(self.says), "outside it says {outside}");
        assert_eq!(run(self.inside(&user, &[], &[])), outside);
    }

    fn has_programs(&self) -> bool {
        skip::has_programs(self.needs)
    }

    /// The words that do the work as it is.
    fn outside(&self, user: &User, environment: &[String]) -> Vec<String> {
        let directory = user.path("work").display().to_string();
        let mut words = vec!["env".into(), "-i".into(), format!("--chdir={directory}")];
        words.extend(ENVIRONMENT.map(|(key, value)| format!("{key}={value}")));
        words.extend(environment.iter().cloned());
        words.extend(["sh", "-c", self.script].map(String::from));
        words
    }

    /// The words that do it in a cell.
    fn inside(&self, user: &User, environment: &[String], options: &[&str]) -> Vec<String> {
        let directory = user.path("work").display().to_string();
        let cellblock = user.path("cellblock").display().to_string();
        let mut words = vec![cellblock, "run".into()];
        words.extend(["--timeout", "120s", "--bind", &directory, "--chdir", &directory].map(String::from));
        let usual = ENVIRONMENT.map(|(key, value)| format!("{key}={value}"));
        let environment = usual.iter().chain(environment);
        words.extend(environment.flat_map(|entry| ["--env".to_owned(), entry.clone()]));
        words.extend(options.iter().map(|option| (*option).to_owned()));
        words.extend(["--", "sh", "-c", self.script].map(String::from));
        words
    }

    /// The same files for both, in the same place.
    fn lay_out(&self, user: &User) {
        let _ = fs::remove_dir_all(user.path("work"));
        user.directory("work");
        for (name, content) in self.files {
            let name = Path::new("work").join(name);
            user.directory(name.parent().and_then(Path::to_str).expect("a directory"));
            user.file(&name, content);
        }
    }
}

/// What a program that succeeded has said, warnings too.
fn said(output: &Output) -> String {
    text(output) + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn git_clones_commits_and_merges() {
    Work {
        needs: &["git"],
        files: &[("file", "one\n"), ("sub/file", "two\n")],
        script: r#"
            set -e
            export GIT_CONFIG_GLOBAL=$PWD/.gitconfig
            git init -q -b main . && git add file sub && git commit -q -m first
            git clone -q "$PWD" clone && cd clone
            git checkout -q -b side && echo three >> file && git commit -qam second
            git checkout -q main && echo four > new && git add new && git commit -qm third
            git merge -q side -m merged && git push -q origin side
            git tag -a v1 -m tagged && git gc -q && git fsck --full
            git worktree add -q ../tree side && git stash list && git status --short
            git log --graph --all --format='%H %T %s' && git archive HEAD | sha256sum
        "#,
        says: "merged",
    }
    .is_the_same_inside();
}

#[test]
fn python_runs_threads_processes_sqlite_and_asyncio() {
    Work {
        needs: &["python3"],
        files: &[(
            "work.py",
            r#"
import asyncio, multiprocessing, os, signal, socket, sqlite3, subprocess, sys, tempfile, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import shared_memory

def square(n):
    return n * n

def count(counter):
    for _ in range(1000):
        with counter.get_lock():
            counter.value += 1

async def talk():
    async def answer(reader, writer):
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b'hello\n')
    line = await reader.readline()
    writer.close()
    process = await asyncio.create_subprocess_exec('tr', 'a-z', 'A-Z', stdin=-1, stdout=-1)
    output, _ = await process.communicate(b'child')
    await asyncio.wait_for(asyncio.sleep(0.01), 5)
    server.close()
    return line, output

if __name__ == '__main__':
    with ThreadPoolExecutor(8) as pool:
        print('threads', sum(pool.map(square, range(1000))))
    for method in ('fork', 'spawn', 'forkserver'):
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(3, mp_context=context) as pool:
            print(method, list(pool.map(square, range(10))))
        counter = context.Value('i', 0)
        workers = [context.Process(target=count, args=(counter,)) for _ in range(3)]
        [worker.start() for worker in workers]
        [worker.join() for worker in workers]
        print(method, counter.value, [worker.exitcode for worker in workers])
    memory = shared_memory.SharedMemory(create=True, size=4096)
    memory.buf[:5] = b'shm-x'
    again = shared_memory.SharedMemory(memory.name)
    print('shared', bytes(again.buf[:5]))
    again.close(); memory.close(); memory.unlink()
    print('subprocess', subprocess.run(['sh', '-c', 'cat; exit 3'], input=b'in', capture_output=True))
    with subprocess.Popen(['sleep', '60']) as child:
        child.send_signal(signal.SIGTERM)
    print('signal', child.returncode)
    database = sqlite3.connect('base.db')
    print('sqlite', database.execute('pragma journal_mode=wal').fetchone())
    database.execute('create table t (n integer)')
    def insert(base):
        mine = sqlite3.connect('base.db', timeout=30)
        for n in range(50):
            with mine:
                mine.execute('insert into t values (?)', (base + n,))
    threads = [threading.Thread(target=insert, args=(100 * n,)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print('sqlite', database.execute('select count(*), sum(n) from t').fetchone())
    print('sqlite', database.execute('pragma integrity_check').fetchone(), os.path.exists('base.db-shm'))
    print('asyncio', asyncio.run(talk()))
    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [b'x'], [os.open('base.db', os.O_RDONLY)])
    print('descriptor', os.read(socket.recv_fds(theirs, 1, 1)[1][0], 15))
    with tempfile.TemporaryDirectory() as place:
        os.mkfifo(place + '/fifo')
        print('fifo', oct(os.stat(place + '/fifo').st_mode))
    print('random', len(os.urandom(32)), len(os.sched_getaffinity(0)) > 0, sys.stdin.read())
"#,
        )],
        script: "python3 -I work.py < /dev/null",
        says: "asyncio (b'HELLO\\n', b'CHILD')",
    }
    .is_the_same_inside();
}

#[test]
fn node_runs_worker_threads_and_child_processes() {
    Work {
        needs: &["node"],
        files: &[(
            "work.js",
            r#"
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const { execFileSync, fork, spawn } = require('child_process');
const fs = require('fs'), http = require('http'), crypto = require('crypto'), net = require('net');
if (!isMainThread) {
    const shared = new Int32Array(workerData);
    for (let i = 0; i < 1000; i++) Atomics.add(shared, 0, 1);
    parentPort.postMessage(crypto.createHash('sha256').update('x').digest('hex'));
} else if (process.argv[2] === 'child') {
    process.on('message', (m) => { process.send(m * 2); process.disconnect(); });
} else (async () => {
    const memory = new SharedArrayBuffer(4);
    const workers = [1, 2, 3].map(() => new Promise((done) =>
        new Worker(__filename, { workerData: memory }).on('message', done)));
    console.log('workers', await Promise.all(workers), new Int32Array(memory)[0]);
    console.log('exec', execFileSync('sh', ['-c', 'echo $((6 * 7))']).toString().trim());
    const child = fork(__filename, ['child']);
    child.send(21);
    console.log('fork', await new Promise((done) => child.on('message', done)));
    const piped = spawn('tr', ['a-z', 'A-Z']);
    piped.stdin.end('piped');
    let out = '';
    for await (const chunk of piped.stdout) out += chunk;
    console.log('spawn', out);
    const server = http.createServer((q, a) => a.end('served')).listen(0, '127.0.0.1');
    await new Promise((done) => server.on('listening', done));
    const page = await new Promise((done) => http.get({ port: server.address().port, host: '127.0.0.1' },
        (a) => a.on('data', (d) => done(d.toString()))));
    server.close();
    console.log('http', page);
    const unix = net.createServer((c) => c.end('local')).listen('socket');
    await new Promise((done) => unix.on('listening', done));
    console.log('unix', await new Promise((done) => net.connect('socket').on('data', (d) => done(`${d}`))));
    unix.close();
    const seen = new Promise((done) => { const w = fs.watch('.', (_, n) => { w.close(); done(n); }); });
    await fs.promises.writeFile('seen', 'x');
    console.log('watch', await seen, (await fs.promises.readdir('.')).sort());
    console.log('wasm', WebAssembly.validate(Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0)));
    process.exit(0);
})();
"#,
        )],
        script: "node work.js < /dev/null",
        says: "fork 42",
    }
    .is_the_same_inside();
}

#[test]
fn make_and_gcc_build_in_parallel() {
    Work {
        needs: &["make", "gcc", "ar"],
        files: &[
            (
                "Makefile",
                "program: main.o part.a\n\tgcc -o $@ $^ -lpthread\npart.a: part.o\n\tar rcD $@ $^\n\
                 %.o: %.c\n\tgcc -O2 -c -o $@ $<\n",
            ),
            ("part.c", "int part(int n) { return n * 2; }\n"),
            (
                "main.c",
                "#include <pthread.h>\n#include <stdio.h>\nint part(int);\n\
                 static void *run(void *n) { *(int *)n = part(*(int *)n); return 0; }\n\
                 int main(void) { pthread_t t; int n = 21; pthread_create(&t, 0, run, &n);\n\
                 pthread_join(t, 0); printf(\"%d\\n\", n); return 0; }\n",
            ),
        ],
        script: "make -s -j2 && ./program && sha256sum program main.o part.a && make -q && echo current",
        says: "42\n",
    }
    .is_the_same_inside();
}

#[test]
fn the_tools_of_a_shell_work() {
    Work {
        needs: &["awk", "tar", "perl", "xz", "bash", "find", "sort"],
        files: &[("a/one", "1\n2\n3\n"), ("a/two", "4\n5\n")],
        script: r#"
            set -e
            awk '{ sum += $1 } END { print "awk", sum }' a/*
            tar --sort=name --mtime=@0 --owner=0 --group=0 -cf a.tar a && sha256sum a.tar
            xz -k a.tar && mkdir out && tar xJf a.tar.xz -C out && diff -r a out/a && echo tar
            perl -MSocket -MPOSIX -e 'socketpair(A, B, AF_UNIX, SOCK_STREAM, 0); if (!fork) { print B "perl"; exit }
                close B; wait; print <A>, "\n"; print strftime("%Y", gmtime 0), "\n"'
            bash -c 'diff <(sort -r a/one) <(tac a/one) && echo substituted; coproc { tr a-z A-Z; }
                echo coproc >&${COPROC[1]}; exec {COPROC[1]}>&-; cat <&${COPROC[0]}'
            seq 100000 | sort -R --random-source=/bin/sh | sort -n | sha256sum
            find . -type f -print0 | sort -z | xargs -0 -n 1 -P 2 wc -c | sort
            mkfifo pipe && (echo through > pipe &) && cat pipe
            (umask 077; umask) && (ulimit -n 64; ulimit -n)
            flock lock -c 'echo locked' && timeout 0.1 sleep 60 || echo "timeout $?"
            mktemp -u | cut -c 1-8 && date -u -d @0 && TZ=UTC date -d 2024-01-01 +%A && locale charmap
            ln -s a link && ln a/one hard && stat -c '%F %h' link hard && cp -a a b && rm -r b && truncate -s 1G big
            dd if=/dev/zero bs=1M count=8 status=none | sha256sum && head -c 8 /dev/urandom | wc -c
        "#,
        says: "awk 15\n",
    }
    .is_the_same_inside();
}

#[test]
fn ssh_keygen_makes_keys_and_signs() {
    let work = Work {
        needs: &["ssh-keygen"],
        files: &[("text", "signed\n")],
        script: "for kind in ed25519 rsa ecdsa; do ssh-keygen -q -t $kind -N '' -C '' -f $kind; \
                 ssh-keygen -y -f $kind | cut -d ' ' -f 1; done; \
                 ssh-keygen -q -Y sign -f ed25519 -n file text 2>/dev/null && \
                 ssh-keygen -Y check-novalidate -n file -s text.sig < text | cut -d ' ' -f 1-4",
        says: "Good \"file\" signature",
    };
    let Some(user) = User::new() else { return };
    if !work.has_programs() {
        return;
    }
    let run = |words: Vec<String>| {
        work.lay_out(&user);
        said(&user.command(&words[0]).args(&words[1..]).output().expect("it starts"))
    };
    // It wants a name for its user, which the host may have none for; the cell
    // names everybody.
    let inside = run(work.inside(&user, &[], &[]));
    assert!(inside.contains(work.says), "{inside}");
    let named = user.command("id").arg("-un").output().expect("id").status;
    if named.success() {
        assert_eq!(inside, run(work.outside(&user, &[])));
    }
}

#[test]
fn cargo_builds_and_tests_a_crate() {
    let work = Work {
        needs: &["gcc"],
        files: &[
            (
                "Cargo.toml",
                "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n\
                 [dependencies]\npart = { path = \"part\" }\n",
            ),
            ("part/Cargo.toml", "[package]\nname = \"part\"\nversion = \"0.1.0\"\nedition = \"2021\"\n"),
            ("part/src/lib.rs", "pub fn twice(n: u32) -> u32 { n * 2 }\n"),
            ("build.rs", "fn main() { println!(\"cargo:rustc-env=BUILT=by-a-script\"); }\n"),
            (
                "src/main.rs",
                "fn main() { println!(\"{} {}\", part::twice(21), env!(\"BUILT\")); }\n\
                 #[test]\nfn threads() { assert_eq!(std::thread::spawn(|| part::twice(2)).join().unwrap(), 4); }\n",
            ),
        ],
        script: "cargo build -q --offline && target/debug/small && \
                 cargo test -q --offline 2>&1 | sed 's/finished in .*//' && cargo --version",
        says: "42 by-a-script\n",
    };
    let Some(user) = User::new() else { return };
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map(|output| text(&output).trim_end().to_owned()).unwrap_or_default();
    // In a container root may not mount.
    let may_mount = || {
        let mounts = Command::new("unshare").args(["--mount", "true"]).status();
        !user::is_root() || mounts.is_ok_and(|status| status.success())
    };
    let found = Path::new(&sysroot).join("bin/cargo").exists() && may_mount();
    if !skip::has("toolchain that a mount can show", found) || !work.has_programs() {
        return;
    }
    // root's home is closed to the user: there, a mount of the test's own shows
    // the toolchain, and nothing else.
    let open = user.directory("toolchain").display().to_string();
    let toolchain = if user::is_root() { &open } else { &sysroot };
    let environment =
        [format!("PATH={toolchain}/bin:/usr/local/bin:/usr/bin:/bin"), "CARGO_HOME=/tmp/cargo".into()];
    // What lies in /usr is in the cell already.
    let view = if toolchain.starts_with("/usr/") { vec![] } else { vec!["--ro-bind", toolchain] };
    let run = |words: Vec<String>| {
        work.lay_out(&user);
        let mut command = if user::is_root() {
            let (uid, gid) = user.ids();
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", MOUNT, &sysroot, &open, "setpriv", "--clear-groups"]);
            command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
            command.args(&words);
            command
        } else {
            let mut command = user.command(&words[0]);
            command.args(&words[1..]);
            command
        };
        said(&command.current_dir(user.path("")).output().expect("it starts"))
    };
    let outside = run(work.outside(&user, &environment));
    assert!(outside.contains(work.says), "outside it says {outside}");
    assert_eq!(run(work.inside(&user, &environment, &view)), outside);
}

/// Shows `$0` at `$1`, and goes on with the rest.
const MOUNT: &str = "mount --bind \"$0\" \"$1\" && shift && exec \"$@\"";

/// As in a virtual environment: a script whose first line is an absolute path.
#[test]
fn what_was_made_outside_by_absolute_paths_works_in_the_workspace() {
    let Some(user) = User::new() else { return };
    user.directory("project/bin");
    let shell = user.path("project/bin/sh");
    std::os::unix::fs::symlink("/bin/sh", &shell).unwrap();
    let tool = user.file("project/bin/tool", format!("#!{}\npwd; cat /work/bin/name\n", shell.display()));
    fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    user.file("project/bin/name", "the same\n");
    let own = user.path("project").display().to_string();
    let script = format!("{} && cd /work && pwd -P", tool.display());
    let told = text(&user.script(&["--workspace", "project"], &script).output().unwrap());
    assert_eq!(told, format!("{own}\nthe same\n{own}\n"));
    // With a policy file the path is in no name of the cell's tree.
    user.file("p.toml", "version = 1");
    let script = format!("pwd; test ! -e {own}");
    let told = user.script(&["--workspace", "project", "--policy", "p.toml"], &script).output().unwrap();
    assert_eq!(text(&told), "/work\n");
}
