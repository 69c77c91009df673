//! What the kernel reads of a program before it runs it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, fstatvfs};

use crate::sys::fd;

/// As much of the first line as the kernel reads (BINPRM_BUF_SIZE).
const LINE: usize = 256;

/// What a file is to execve(2).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Image {
    /// A script: the interpreter of its first line, and the argument.
    Script(PathBuf, Vec<u8>),
    /// A program, with the loader that it names.
    Program(Option<PathBuf>),
    /// A program for other machines.
    Foreign,
    /// Neither.
    Other,
}

/// A regular file, held open so that all that is said is said of one file.
pub(super) struct Opened {
    pub is_noexec: bool,
    /// None where it cannot be read.
    pub image: Option<Image>,
}

/// Looks at a regular file: it is opened again for reading only once it is known
/// to be one, as to open a FIFO or a device does something.
pub(super) fn open(path: &Path) -> Option<Opened> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let found = fd::open_path(fd::CWD, &path).ok()?;
    let stat = fd::stat(found.as_fd()).ok()?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let is_noexec = fstatvfs(&found).is_ok_and(|fs| fs.flags().contains(FsFlags::ST_NOEXEC));
    let file = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()));
    Some(Opened { is_noexec, image: file.ok().map(|file| image(&file)) })
}

fn image(file: &File) -> Image {
    let mut head = [0; LINE];
    let length = file.read_at(&mut head, 0).unwrap_or(0);
    let head = &head[..length];
    if let Some(line) = head.strip_prefix(b"#!") {
        return script(line);
    }
    if !head.starts_with(b"\x7fELF") {
        return Image::Other;
    }
    program(file, head).unwrap_or(Image::Foreign)
}

fn script(line: &[u8]) -> Image {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.trim_ascii_start();
    let end = line.iter().position(|byte| *byte == b' ' || *byte == b'\t').unwrap_or(line.len());
    let interpreter = std::ffi::OsStr::from_bytes(&line[..end]);
    Image::Script(interpreter.into(), line[end..].trim_ascii().to_vec())
}

/// The machine of this build, as in an ELF header.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// A 64-bit program of this machine; `None` for others and for what is cut off.
fn program(file: &File, head: &[u8]) -> Option<Image> {
    let is_64_bit = *head.get(4)? == 2;
    if !is_64_bit || number(head, 0x12, 2)? != u64::from(MACHINE) {
        return None;
    }
    let (table, size, count) = (number(head, 0x20, 8)?, number(head, 0x36, 2)?, number(head, 0x38, 2)?);
    for index in 0..count {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, table.checked_add(index * size)?).ok()?;
        const INTERPRETER: u64 = 3;
        if number(&entry, 0, 4)? == INTERPRETER {
            let mut path =
                vec![0; usize::try_from(number(&entry, 32, 8)?).ok()?.min(libc::PATH_MAX as usize)];
            file.read_exact_at(&mut path, number(&entry, 8, 8)?).ok()?;
            let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
            return Some(Image::Program(Some(std::ffi::OsStr::from_bytes(path).into())));
        }
    }
    Some(Image::Program(None))
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + length)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_is_read_as_the_kernel_reads_it() {
        for (line, path, argument) in [
            ("/bin/sh\nx", "/bin/sh", ""),
            (" /usr/bin/env  node \n", "/usr/bin/env", "node"),
            ("/bin/sh\r\n", "/bin/sh\r", ""),
        ] {
            assert_eq!(script(line.as_bytes()), Image::Script(path.into(), argument.into()), "{line}");
        }
    }

    #[test]
    fn this_program_is_one_and_a_cut_off_one_is_foreign() {
        let own = open(&std::env::current_exe().unwrap()).unwrap();
        assert!(matches!(own.image, Some(Image::Program(_))), "{:?}", own.image);
        let cut = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(cut.path(), b"\x7fELF\x02").unwrap();
        assert_eq!(open(cut.path()).unwrap().image, Some(Image::Foreign));
        assert!(open(Path::new("/dev/null")).is_none());
    }
}
