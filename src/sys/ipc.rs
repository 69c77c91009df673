//! System V shared memory and POSIX message queues, which are found by name.

use std::ffi::CString;

use super::Errno;

/// A segment of one page, removed when it is dropped.
#[derive(Debug)]
pub struct SharedMemory {
    id: i32,
}

impl SharedMemory {
    /// shmget(2) of a new segment.
    ///
    /// # Errors
    ///
    /// EEXIST where the key is taken; ENOSPC at the limit of the namespace.
    pub fn new(key: i32) -> Result<SharedMemory, Errno> {
        let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
        // SAFETY: no memory is involved.
        let id = Errno::result(unsafe { libc::shmget(key, 4096, flags) })?;
        Ok(SharedMemory { id })
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: IPC_RMID reads no buffer, and nobody has attached the segment.
        unsafe { libc::shmctl(self.id, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// A queue of one message, removed when it is dropped.
#[derive(Debug)]
pub struct MessageQueue {
    name: CString,
}

impl MessageQueue {
    /// mq_open(2) of a new queue; `name` without a slash.
    ///
    /// # Errors
    ///
    /// EEXIST where the name is taken; EMFILE, ENOSPC at a limit.
    pub fn new(name: CString) -> Result<MessageQueue, Errno> {
        // SAFETY: an all-zero mq_attr is valid.
        let mut attributes: libc::mq_attr = unsafe { std::mem::zeroed() };
        attributes.mq_maxmsg = 1;
        attributes.mq_msgsize = 1;
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: `name` ends in NUL and `attributes` is a whole `mq_attr`, which the kernel only reads.
        let queue = unsafe {
            libc::syscall(libc::SYS_mq_open, name.as_ptr(), flags, 0o600u32, &raw const attributes)
        };
        super::fd::close(Errno::result(queue)? as i32);
        Ok(MessageQueue { name })
    }
}

impl Drop for MessageQueue {
    fn drop(&mut self) {
        // SAFETY: the name ends in NUL.
        unsafe { libc::syscall(libc::SYS_mq_unlink, self.name.as_ptr()) };
    }
}
