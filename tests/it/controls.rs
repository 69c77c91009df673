//! What a provider must be able to do in a cell; each also works outside, so
//! that a failure is the cell's and not the host's.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::cell::{self, Ground, text};
use crate::skip;

/// Real programs at real work: a name, the programs it takes, and a script that
/// says the same whenever it is run.
const PROGRAMS: [(&str, &[&str], &str); 7] = [
    ("git", &["git"], GIT),
    ("python", &["python3"], PYTHON),
    ("node", &["node"], NODE),
    ("sqlite", &["sqlite3"], SQLITE),
    ("make", &["make", "gcc"], MAKE),
    ("bash", &["bash"], BASH),
    ("tools", &["awk", "tar", "ssh-keygen"], TOOLS),
];

const GIT: &str = r#"
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example GIT_AUTHOR_DATE=2020-01-01T00:00:00Z
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example GIT_COMMITTER_DATE=2020-01-01T00:00:00Z
git init -q -b main origin
seq 1000 > origin/numbers
git -C origin add numbers
git -C origin commit -q -m one
git clone -q origin copy
echo more >> copy/numbers
git -C copy commit -q -a -m two
git -C copy push -q origin HEAD:side
git -C copy worktree add -q ../tree HEAD~1
git -C copy gc -q
git -C copy fsck
git -C copy log --format='%H %s'
tail -n 1 tree/numbers
"#;

const PYTHON: &str = r#"
cat > work.py <<'END'
import asyncio, multiprocessing, os, sqlite3, subprocess, sys, tempfile, threading

def square(n):
    return n * n

def writer(path):
    for n in range(50):
        with sqlite3.connect(path, timeout=20) as base:
            base.execute("insert into t values (?)", (n,))

async def loopback():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"asyncio\n")
    line = await reader.readline()
    child = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    return line, (await child.communicate(b"child"))[0]

if __name__ == "__main__":
    done = []
    threads = [threading.Thread(target=done.append, args=(n,)) for n in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    print(sorted(done))
    with multiprocessing.Pool(3) as pool:
        print(sum(pool.map(square, range(100))))
    base = sqlite3.connect("base")
    print(base.execute("pragma journal_mode=wal").fetchone())
    base.execute("create table t (n)")
    base.commit()
    writers = [multiprocessing.Process(target=writer, args=("base",)) for _ in range(3)]
    [w.start() for w in writers], [w.join() for w in writers]
    print(base.execute("select count(*), sum(n) from t").fetchone())
    print(asyncio.run(loopback()))
    print(subprocess.run(["sh", "-c", "echo $0"], capture_output=True).stdout)
    with tempfile.NamedTemporaryFile() as file:
        print(os.path.exists(file.name))
END
python3 work.py
"#;

const NODE: &str = r#"
cat > work.js <<'END'
const { Worker, isMainThread, parentPort } = require('worker_threads');
const { execFileSync, fork } = require('child_process');
const fs = require('fs'), http = require('http'), crypto = require('crypto');
if (process.argv[2] === 'child') {
  process.on('message', n => process.send(n + 1, () => process.disconnect()));
} else if (!isMainThread) {
  let sum = 0;
  for (let n = 0; n < 1e6; n++) sum += n;
  parentPort.postMessage(sum);
} else (async () => {
  const sums = await Promise.all([1, 2, 3].map(() => new Promise(done =>
    new Worker(__filename).on('message', done))));
  console.log(sums);
  console.log(execFileSync('cat', { input: 'child' }).toString());
  const child = fork(__filename, ['child']);
  child.send(41);
  console.log(await new Promise(done => child.on('message', done)));
  const server = http.createServer((_, answer) => answer.end('served')).listen(0, '127.0.0.1');
  await new Promise(done => server.on('listening', done));
  const text = await new Promise(done => http.get({ port: server.address().port, host: '127.0.0.1' },
    answer => { let text = ''; answer.on('data', d => text += d).on('end', () => done(text)); }));
  console.log(text);
  server.close();
  const seen = new Promise(done => { const w = fs.watch('.', (_, name) => { if (name === 'new') { w.close(); done(name); } }); });
  fs.writeFileSync('new', 'x');
  console.log(await seen, crypto.randomBytes(8).length);
})();
END
node work.js
"#;

const SQLITE: &str = r#"
sqlite3 base 'pragma journal_mode=wal; create table t (n);'
for writer in 1 2 3; do
  (for n in 1 2 3 4 5 6 7 8 9 10; do
    sqlite3 -cmd '.timeout 20000' base "insert into t values ($n);"
  done) &
done
wait
sqlite3 base 'select count(*), sum(n) from t; pragma integrity_check;'
"#;

const MAKE: &str = r#"
cat > a.c <<'END'
#include <pthread.h>
#include <stdio.h>
int b(int);
static void *run(void *n) { *(int *)n = b(*(int *)n); return 0; }
int main(void) { int n = 20; pthread_t t; pthread_create(&t, 0, run, &n); pthread_join(t, 0); printf("%d\n", n); }
END
echo 'int b(int n) { return n + 22; }' > b.c
printf 'all: a.o b.o\n\tgcc -pthread -o all a.o b.o\n%%.o: %%.c\n\tgcc -O1 -g -c $<\n' > Makefile
make -s -j2
./all
"#;

const BASH: &str = r#"
bash -c '
  set -o pipefail
  diff <(seq 5) <(seq 1 5) && echo same
  coproc CAT { cat; }; echo through >&"${CAT[1]}"; read -r line <&"${CAT[0]}"; echo "$line"
  set -m; sleep 100 & kill $!; wait $!; echo $?
  trap "echo trapped" USR1; kill -USR1 $$
  seq 100000 | sort -rn | head -n 1
  exec 5<>/dev/null; ls /dev/fd/5
' 2>/dev/null
"#;

const TOOLS: &str = r#"
seq 100 | awk '{ n += $1 } END { print n }'
mkdir tree; seq 10 | (cd tree; xargs touch); ln -s 1 tree/link
tar cf - tree | tar tf - | sort | tr '\n' ' '
# It looks its user up, whom the host need not know; the cell does.
if id -un > /dev/null 2>&1; then
  ssh-keygen -q -t ed25519 -N '' -C me -f key; cut -d ' ' -f 1,3 key.pub
else
  echo 'ssh-ed25519 me'
fi
find tree -type f | wc -l
seq 10000 | gzip | gzip -d | md5sum
date -u -d @0; id -u
"#;

/// What the probe's FIFO control writes.
const ACTIVITY: &[u8] = b"{\"event\":\"turn\",\"n\":1}\n\x00\xff\n";

#[test]
fn every_control_works_inside() {
    let Some(ground) = Ground::new() else { return };
    let mut fifo = reader(&ground);
    let found = ground.inside(&[], "control", &[]);
    assert!(found.keys().eq(&cell::ids("controls")), "the probe came to its end");
    let wrong: Vec<_> = found.iter().filter(|(_, finding)| finding.verdict != "ok").collect();
    assert!(wrong.is_empty(), "fails in a cell: {wrong:#?}");
    arrived(&mut fifo);
}

#[test]
fn every_control_works_outside() {
    let Some(ground) = Ground::new() else { return };
    let mut fifo = reader(&ground);
    let mut found = ground.outside("control", &[]);
    if !skip::has_whole_proc() {
        // It reads /proc/cpuinfo.
        found.remove("C30");
    }
    let wrong: Vec<_> = found.iter().filter(|(_, finding)| finding.verdict != "ok").collect();
    assert!(wrong.is_empty(), "fails on this host: {wrong:#?}");
    arrived(&mut fifo);
}

#[test]
fn every_control_works_with_the_hosts_network() {
    let Some(ground) = Ground::new().filter(|_| skip::has_scopes()) else { return };
    let mut fifo = reader(&ground);
    let found = ground.inside(&["--net", "host"], "control", &[]);
    let wrong: Vec<_> = found.iter().filter(|(_, finding)| finding.verdict != "ok").collect();
    assert!(wrong.is_empty(), "fails in a cell: {wrong:#?}");
    arrived(&mut fifo);
}

#[test]
fn real_programs_say_the_same_inside_and_outside() {
    let Some(ground) = Ground::new() else { return };
    let mut wrong = Vec::new();
    for (name, programs, script) in PROGRAMS {
        if !skip::has_programs(programs) {
            continue;
        }
        let script = |place: &str| {
            let dir = format!("{}/{name}-{place}", ground.fixture.get("OWN"));
            format!(
                "set -e; export PATH={PATH} LC_ALL=C; \
                 mkdir {dir}; cd {dir}; export HOME=$PWD; umask 022; {script}"
            )
        };
        let outside = ground.beside(["/bin/sh", "-c", &script("outside")]);
        let inside = ground.cell(&["--timeout", "100s"], ["/bin/sh", "-c", &script("inside")]);
        let outside = text(&outside);
        if !inside.status.success() || String::from_utf8_lossy(&inside.stdout) != outside {
            wrong.push((name, outside, inside));
        }
    }
    assert!(wrong.is_empty(), "not the same in a cell: {wrong:#?}");
}

#[test]
fn cargo_builds_and_tests_a_crate() {
    let Some(ground) = Ground::new() else { return };
    // SYSROOT/bin/cargo, the toolchain that builds this test.
    let cargo = Path::new(env!("CARGO"));
    let sysroot = cargo.ancestors().nth(2).expect("a toolchain");
    // The policy takes no path through a link, as rustup's names are.
    let sysroot = sysroot.canonicalize().expect("a toolchain").display().to_string();
    let reachable = ground.beside(["/bin/sh", "-c", &format!("{} --version", cargo.display())]);
    if !skip::has("toolchain that the ordinary user can reach", reachable.status.success()) {
        return;
    }
    let script = |place: &str| {
        let dir = format!("{}/cargo-{place}", ground.fixture.get("OWN"));
        format!("export PATH={sysroot}/bin:{PATH} CARGO_HOME={dir}/home; mkdir {dir}; cd {dir}; {CARGO}")
    };
    let outside = text(&ground.beside(["/bin/sh", "-c", &script("outside")]));
    let options = ["--timeout", "100s", "--ro-bind", &sysroot];
    let inside = text(&ground.cell(&options, ["/bin/sh", "-c", &script("inside")]));
    assert_eq!(inside, outside);
}

const CARGO: &str = r#"
set -e
unset CARGO_TARGET_DIR RUSTFLAGS
cargo --offline init --quiet --name small --vcs none .
echo '#[test] fn holds() { assert_eq!(std::thread::spawn(|| 42).join().unwrap(), 42) }' >> src/main.rs
cargo --offline build --quiet
cargo --offline test --quiet 2>&1 | grep -c 'test result: ok. 1 passed'
cargo --offline run --quiet
"#;

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The harness's end of the channel, open before there is a writer, who would
/// wait for it.
fn reader(ground: &Ground) -> std::fs::File {
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(ground.fixture.path("FIFO"))
        .expect("the FIFO opens")
}

fn arrived(fifo: &mut std::fs::File) {
    let mut bytes = Vec::new();
    fifo.read_to_end(&mut bytes).expect("the FIFO reads");
    assert_eq!(bytes, ACTIVITY, "what came out of the FIFO");
}
