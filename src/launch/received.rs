//! What comes by the report socket.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg};

use crate::sys::fd::received;
use crate::wire::{self, Record};

/// One message of the report socket.
pub(super) struct Message {
    /// `None` where it is no record.
    pub record: Option<Record>,
    /// Of its sender, as the launcher counts.
    pub pid: i32,
    /// What came along.
    pub descriptors: Option<[OwnedFd; 2]>,
}

/// The next message; `None` at the end.
pub(super) fn receive(report: &OwnedFd) -> nix::Result<Option<Message>> {
    let mut bytes = [0; wire::LENGTH];
    let mut space = nix::cmsg_space!([RawFd; 2], UnixCredentials);
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(
        report.as_raw_fd(),
        &mut iov,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT,
    )?;
    let (mut pid, mut descriptors) = (0, None);
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::ScmCredentials(credentials) => pid = credentials.pid(),
            ControlMessageOwned::ScmRights(fds) => {
                descriptors = <[RawFd; 2]>::try_from(fds).ok().map(|fds| fds.map(received));
            }
            _ => {}
        }
    }
    let length = message.bytes;
    Ok((length > 0).then(|| Message { record: Record::decode(&bytes[..length]), pid, descriptors }))
}
