//! What a provider must be able to do in a cell; each also works outside, so
//! that a failure is the cell's and not the host's.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use crate::cell::{self, Ground};

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
    let found = ground.outside("control", &[]);
    let wrong: Vec<_> = found.iter().filter(|(_, finding)| finding.verdict != "ok").collect();
    assert!(wrong.is_empty(), "fails on this host: {wrong:#?}");
    arrived(&mut fifo);
}

#[test]
fn every_control_works_with_the_hosts_network() {
    let Some(ground) = Ground::new() else { return };
    let mut fifo = reader(&ground);
    let found = ground.inside(&["--net", "host"], "control", &[]);
    let wrong: Vec<_> = found.iter().filter(|(_, finding)| finding.verdict != "ok").collect();
    assert!(wrong.is_empty(), "fails in a cell: {wrong:#?}");
    arrived(&mut fifo);
}

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
