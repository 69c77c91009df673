//! What `cellblock verify` looks for in the fixture, under names that stay.

use super::fixture::Fixture;
use crate::plan::{Probe, Text};
use crate::verify::{Check, Expect};

/// The checks of an instance whose run A is in the cell.
pub fn checks(fixture: &Fixture) -> Vec<Check> {
    let denied = |name, object: &str, probe| Check::new(name, object, Expect::Denied, probe);
    let open = |name, path: &str| denied(name, path, Probe::Open { path: text(path), flags: libc::O_RDONLY });
    let stat = |name, path: &str| denied(name, path, Probe::Stat { path: text(path), file: None });
    let list = |name, path: &str| denied(name, path, Probe::List { path: text(path) });
    let socket = |name, path: &str| {
        denied(name, path, Probe::ConnectPath { path: text(path), kind: libc::SOCK_STREAM })
    };
    let get = |key| fixture.get(key);
    let pid = get("HARNESS_PID");
    let process = |file: &str| format!("/proc/{pid}/{file}");
    let port = |key| get(key).parse::<u16>().unwrap_or_default();
    vec![
        open("run:other-durable-session", get("OTHER_DB")),
        stat("run:other-directory", get("OTHER")),
        // Of the instance's runs this cell's own may be listed, where anything may.
        Check::new("run:listing", get("RUNS"), Expect::AtMost(1), Probe::List { path: text(get("RUNS")) }),
        open("run:run-log", get("RUN_LOG")),
        list("run:pg-wal", get("PG_WAL")),
        open("run:control-plane-state", get("CONTROL_PLANE")),
        open("run:secret", get("SECRET_FILE")),
        list("run:secrets", get("SECRETS")),
        open("harness:file", get("HARNESS_FILE")),
        stat("harness:files", get("HARNESS_DIR")),
        stat("harness:temporary-files", get("IN_TMP")),
        denied(
            "harness:process",
            &format!("process {pid}"),
            Probe::Signal { pid: pid.parse().unwrap_or_default() },
        ),
        open("harness:cmdline", &process("cmdline")),
        open("harness:environment", &process("environ")),
        open("harness:memory", &process("mem")),
        list("harness:descriptors", &process("fd")),
        denied(
            "harness:abstract-socket",
            &format!("@{}", get("ABSTRACT")),
            Probe::ConnectAbstract { name: text(get("ABSTRACT")) },
        ),
        socket("harness:socket", get("SOCKET")),
        socket("harness:socket", get("TMP_SOCKET")),
        denied(
            "harness:tcp",
            &format!("127.0.0.1:{}", port("TCP_PORT")),
            Probe::ConnectTcp { port: port("TCP_PORT"), v6: false },
        ),
        denied(
            "harness:udp",
            &format!("127.0.0.1:{}", port("UDP_PORT")),
            Probe::SendUdp { port: port("UDP_PORT") },
        ),
    ]
}

/// The fixture's names hold no NUL.
fn text(path: &str) -> Text {
    Text::new(path).unwrap_or_else(|| c"".into())
}
