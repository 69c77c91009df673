//! System V shared memory and POSIX message queues, which are found by name.

use std::ffi::{CStr, CString};

use super::Errno;

/// A segment of one page, which is there as long as this process has it: one that
/// is killed leaves nothing.
#[derive(Debug)]
pub struct SharedMemory {
    id: i32,
    address: *const libc::c_void,
}

impl SharedMemory {
    /// shmget(2) of a new segment, attached, and removed from the moment on that
    /// nobody is attached. It has no key, and can be found by its identifier.
    ///
    /// # Errors
    ///
    /// ENOSPC at the limit of the namespace.
    pub fn new() -> Result<SharedMemory, Errno> {
        // SAFETY: no memory is involved.
        let id = Errno::result(unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, 0o600) })?;
        // SAFETY: the kernel chooses an address where nothing is.
        let address = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        let attached = Errno::result(address as isize).map(drop);
        // SAFETY: IPC_RMID reads no buffer.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        attached.map(|()| SharedMemory { id, address })
    }

    /// Its identifier.
    pub fn id(&self) -> i32 {
        self.id
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: it is attached there, and nobody reads or writes it.
        unsafe { libc::shmdt(self.address) };
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
        unlink_queue(&self.name);
    }
}

/// mq_unlink(2); `name` without a slash. One that is not there is well.
pub fn unlink_queue(name: &CStr) {
    // SAFETY: the name ends in NUL.
    unsafe { libc::syscall(libc::SYS_mq_unlink, name.as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::reach;

    #[test]
    fn what_is_kept_is_found_by_who_shares_the_namespace_and_gone_when_dropped() {
        let memory = SharedMemory::new().unwrap();
        let id = memory.id();
        assert_eq!(reach::shared_memory(id), Ok(0));
        drop(memory);
        assert_eq!(reach::shared_memory(id), Err(Errno::EINVAL));

        let name = CString::new(format!("cellblock-test-{}", std::process::id())).unwrap();
        let queue = MessageQueue::new(name.clone()).unwrap();
        assert_eq!(reach::message_queue(&name), Ok(0));
        drop(queue);
        assert_eq!(reach::message_queue(&name), Err(Errno::ENOENT));
    }
}
