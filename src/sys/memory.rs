//! The memory of this process.

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
