//! What the finished cell is asked from within: one operation of the kernel
//! each, that shows whether something can be reached and changes nothing.

use super::Text;
use crate::sys::fd::Identity;

/// One question. Paths are the cell's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Is there such a name? 1 where it is `file`.
    Stat {
        /// Where.
        path: Text,
        /// What the host has there.
        file: Option<Identity>,
    },
    /// Can the directory be listed? How many entries it has.
    List {
        /// Where.
        path: Text,
    },
    /// Can the file be opened so?
    Open {
        /// Where.
        path: Text,
        /// As in open(2).
        flags: i32,
    },
    /// Is an entry of `/proc` procfs's own? 0 where something else stands over it.
    Uncovered {
        /// Which.
        path: Text,
    },
    /// Can a file be made in the directory? It gets no name.
    Make {
        /// The directory.
        path: Text,
    },
    /// What does access(2) say?
    Access {
        /// Where.
        path: Text,
        /// `R_OK`, `W_OK`, `X_OK`
        mode: i32,
    },
    /// Does its mount take writes?
    WritableMount {
        /// Where.
        path: Text,
    },
    /// Can the process be signalled?
    Signal {
        /// Its pid on the host.
        pid: i32,
    },
    /// How many processes are seen that are not the cell's?
    Processes,
    /// Can the socket be connected to?
    ConnectPath {
        /// Where.
        path: Text,
        /// Its type, as in socket(2).
        kind: i32,
    },
    /// The same of an abstract stream socket.
    ConnectAbstract {
        /// Its name without the leading NUL.
        name: Text,
    },
    /// Can the port on loopback be connected to?
    ConnectTcp {
        /// Which.
        port: u16,
        /// By ::1, not 127.0.0.1.
        v6: bool,
    },
    /// Does the port on loopback take a datagram?
    SendUdp {
        /// Which.
        port: u16,
    },
    /// Is there such a System V segment?
    SharedMemory {
        /// Its identifier.
        id: i32,
    },
    /// Is there such a POSIX queue?
    MessageQueue {
        /// Its name without the slash.
        name: Text,
    },
    /// Is a call let through that the built-in filters refuse?
    RefusedCall,
    /// Can a user namespace be made? The last one to ask, as it changes who asks.
    UserNamespace,
}
