//! What the caller hands over to be read, bounded in size and in time.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How long a pipe may take to come to its end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads the file at `path`, which may be a FIFO that somebody is writing to.
///
/// # Errors
///
/// What the kernel answers; EFBIG where there are more than `limit` bytes,
/// ETIMEDOUT where a FIFO does not come to its end, and ENOTSUP for a device.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // To open a device may be to command it, as a watchdog.
    refuse_device(&fs::metadata(path)?)?;
    // Opening a FIFO waits for a writer, without the flag.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    read_from(&OpenOptions::new().read(true).custom_flags(flags).open(path)?, limit)
}

/// As [`read`], from a descriptor that is open already.
///
/// # Errors
///
/// As those of [`read`].
pub fn read_from(file: &File, limit: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let metadata = file.metadata()?;
    refuse_device(&metadata)?;
    if metadata.is_file() {
        file.take(limit + 1).read_to_end(&mut content)?;
        return if content.len() as u64 > limit { Err(Errno::EFBIG.into()) } else { Ok(content) };
    }
    let deadline = Instant::now() + PATIENCE;
    let mut chunk = vec![0; 64 * 1024];
    loop {
        wait(file, deadline)?;
        match (&*file).read(&mut chunk) {
            Ok(0) => return Ok(content),
            Ok(got) => content.extend_from_slice(&chunk[..got]),
            // Somebody else has read it first.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if content.len() as u64 > limit {
            return Err(Errno::EFBIG.into());
        }
    }
}

/// A terminal or another device has no end, or is read as nothing.
fn refuse_device(metadata: &Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    if kind.is_char_device() || kind.is_block_device() { Err(Errno::ENOTSUP.into()) } else { Ok(()) }
}

/// Waits until reading does not. A FIFO that nobody has ever opened for writing
/// is not at its end for poll(2), as it is for read(2).
fn wait(file: &File, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(0) => return Err(Errno::ETIMEDOUT.into()),
            Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}
