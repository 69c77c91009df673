//! execve(2).

use std::ffi::{CString, c_char};

use super::{Call, Errno, Failure};

/// A program to run, with every pointer that execve(2) wants already made.
#[derive(Debug)]
pub struct Image<'a> {
    /// Where the program may be, in the order to try.
    candidates: Vec<*const c_char>,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    strings: std::marker::PhantomData<&'a CString>,
}

impl<'a> Image<'a> {
    /// Points at strings that stay where they are.
    pub fn new(
        candidates: &'a [impl AsRef<std::ffi::CStr>],
        argv: &'a [impl AsRef<std::ffi::CStr>],
        envp: &'a [impl AsRef<std::ffi::CStr>],
    ) -> Image<'a> {
        Image {
            candidates: candidates.iter().map(|path| path.as_ref().as_ptr()).collect(),
            argv: null_terminated(argv),
            envp: null_terminated(envp),
            strings: std::marker::PhantomData,
        }
    }

    /// Becomes the first candidate that can be run; returns only on failure.
    ///
    /// As execvp(3) does, a candidate that is missing or not permitted lets the
    /// next one try, and EACCES is told rather than the ENOENT of a later one.
    pub fn execute(&self) -> Failure {
        let mut errno = Errno::ENOENT;
        for &path in &self.candidates {
            // SAFETY: `path` ends in NUL, and both arrays hold such strings and end in null; the
            // strings live as long as `self` by its lifetime.
            unsafe { libc::execve(path, self.argv.as_ptr(), self.envp.as_ptr()) };
            match Errno::last() {
                Errno::ENOENT | Errno::ENOTDIR => {}
                Errno::EACCES => errno = Errno::EACCES,
                other => {
                    errno = other;
                    break;
                }
            }
        }
        Failure { call: Call::Execve, errno }
    }
}

fn null_terminated(strings: &[impl AsRef<std::ffi::CStr>]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ref().as_ptr()).chain([std::ptr::null()]).collect()
}
