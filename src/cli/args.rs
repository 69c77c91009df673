//! `--args FD`: options that do not stand on the command line.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use thiserror::Error;

/// Why the data of `--args` cannot be used.
#[derive(Debug, Error)]
pub enum ArgsError {
    /// `--args` is the last word, or its value is no descriptor.
    #[error("--args: a descriptor number is needed")]
    NoDescriptor,
    /// The descriptor could not be read.
    #[error("--args {fd}: cannot read descriptor {fd}: {source}")]
    Read {
        /// The descriptor.
        fd: RawFd,
        /// What the kernel said.
        source: io::Error,
    },
    /// The data names `--args` again.
    #[error("--args {0}: the data holds --args itself")]
    Nested(RawFd),
    /// The data ends the options.
    #[error("--args {0}: the data holds `--`")]
    Command(RawFd),
}

impl ArgsError {
    /// What to write instead.
    pub(super) fn remedy(&self) -> String {
        match self {
            ArgsError::Read { fd, source } if source.raw_os_error() == Some(libc::EBADF) => {
                format!("open it in the shell: --args {fd} {fd}<FILE")
            }
            ArgsError::NoDescriptor | ArgsError::Read { .. } => {
                "name a descriptor that is open for reading: --args 3 3<FILE".to_owned()
            }
            ArgsError::Nested(_) => "name every descriptor on the command line".to_owned(),
            ArgsError::Command(_) => {
                "write the command on the command line, after `--`; the data holds options alone".to_owned()
            }
        }
    }
}

/// Puts what the descriptors of `--args FD` hold in the place of the flag.
/// Words from the first `--` on are the command's and are left alone.
///
/// # Errors
///
/// [`ArgsError`], which names the descriptor.
pub fn expand_args(
    args: Vec<OsString>,
    mut read: impl FnMut(RawFd) -> io::Result<Vec<u8>>,
) -> Result<Vec<OsString>, ArgsError> {
    let mut expanded = Vec::with_capacity(args.len());
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let fd = if arg == "--args" {
            args.next()
        } else if let Some(fd) = arg.as_bytes().strip_prefix(b"--args=") {
            Some(OsStr::from_bytes(fd).to_owned())
        } else if arg == "--" {
            expanded.push(arg);
            expanded.extend(args);
            break;
        } else {
            expanded.push(arg);
            continue;
        };
        let fd: RawFd = fd
            .and_then(|fd| fd.to_str()?.parse().ok())
            .filter(|fd| *fd >= 0)
            .ok_or(ArgsError::NoDescriptor)?;
        let data = read(fd).map_err(|source| ArgsError::Read { fd, source })?;
        for word in words(&data) {
            if word == b"--args" || word.starts_with(b"--args=") {
                return Err(ArgsError::Nested(fd));
            }
            if word == b"--" {
                return Err(ArgsError::Command(fd));
            }
            expanded.push(OsString::from_vec(word.to_vec()));
        }
    }
    Ok(expanded)
}

/// The words of NUL-separated data, with or without a NUL at the end.
fn words(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let data = data.strip_suffix(b"\0").unwrap_or(data);
    let count = if data.is_empty() { 0 } else { usize::MAX };
    data.split(|byte| *byte == 0).take(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(Into::into).collect()
    }

    fn expand(line: &str) -> Result<Vec<OsString>, String> {
        let read = |fd| match fd {
            3 => Ok(b"--env\0A=b c\0--net\0host\0".to_vec()),
            4 => Ok(b"--chdir\0/x".to_vec()),
            5 => Ok(Vec::new()),
            6 => Ok(b"--args\x003\0".to_vec()),
            7 => Ok(b"--env\0A\0--args=3\0".to_vec()),
            8 => Ok(b"--env\0A\0--\0true\0".to_vec()),
            10 => Ok(b"--env=\xff\0\0".to_vec()),
            _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
        };
        expand_args(args(line), read).map_err(|error| error.to_string())
    }

    #[test]
    fn the_data_stands_where_the_flag_stood() {
        let words = |line, words: &[&str]| {
            assert_eq!(expand(line).unwrap(), words, "{line}");
        };
        words(
            "a run --args 3 --chdir /y -- x --args 9",
            &["a", "run", "--env", "A=b c", "--net", "host", "--chdir", "/y", "--", "x", "--args", "9"],
        );
        words("a run --args=4 --args 5 -- x", &["a", "run", "--chdir", "/x", "--", "x"]);
        words("a run -- --args", &["a", "run", "--", "--args"]);
        let raw = expand("a --args 10").unwrap();
        assert_eq!(raw[1].as_bytes(), b"--env=\xff");
        assert_eq!(raw[2], "");
    }

    #[test]
    fn data_that_is_no_list_of_options_is_refused() {
        for (line, message) in [
            ("a --args", "--args: a descriptor number is needed"),
            ("a --args x", "--args: a descriptor number is needed"),
            ("a --args=-1", "--args: a descriptor number is needed"),
            ("a --args 9", "--args 9: cannot read descriptor 9: Bad file descriptor (os error 9)"),
            ("a --args 6", "--args 6: the data holds --args itself"),
            ("a --args 7", "--args 7: the data holds --args itself"),
            ("a --args 8", "--args 8: the data holds `--`"),
        ] {
            assert_eq!(expand(line), Err(message.to_owned()), "{line}");
        }
    }
}
