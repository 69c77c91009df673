//! The memory of this process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::Errno;

/// How long a process waits before it gives back its program: a short run would
/// only bring the pages back at its end.
pub const REST: Duration = Duration::from_millis(100);

/// Gives back the pages of the program itself. Those that are still needed come
/// back from the page cache as they are touched: while the provider runs, its
/// launcher and its init need a tenth of them.
pub fn give_back_program() {
    unsafe extern "C" {
        /// The linker's: the first byte of the program.
        static __executable_start: u8;
        /// The first byte behind its code.
        static etext: u8;
    }
    let start = &raw const __executable_start;
    let length = &raw const etext as usize - start as usize;
    // SAFETY: between these symbols lie constants and code, mapped from the file and never written,
    // so that each page reads the same when it comes back; what is written begins on a page of its
    // own. Nothing is lost where it fails.
    unsafe { libc::madvise(start.cast_mut().cast(), length, libc::MADV_DONTNEED) };
}

/// A number that this process shares with the children it makes from now on.
#[derive(Debug)]
pub struct Shared {
    page: *mut AtomicU32,
}

/// Bytes of the mapping; the kernel rounds them up to a page.
const SIZE: usize = size_of::<AtomicU32>();

impl Shared {
    /// Zero, in a mapping that a clone does not copy.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn new() -> Result<Shared, Errno> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, access, kind, -1, 0) };
        if page == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(Shared { page: page.cast() }) }
    }

    /// Its value.
    pub fn get(&self) -> u32 {
        self.number().load(Ordering::Relaxed)
    }

    /// Sets it.
    pub fn set(&self, value: u32) {
        self.number().store(value, Ordering::Relaxed);
    }

    fn number(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped as long as `self` lives, begins with zeroes, which are a valid
        // atomic, and is only ever used as this one.
        unsafe { &*self.page }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: nothing borrows from the page beyond `self`.
        unsafe { libc::munmap(self.page.cast(), SIZE) };
    }
}
