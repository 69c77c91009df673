//! `.git/index`: what git tracks (gitformat-index(5)), as far as it is asked for.
//!
//! It is read in one go through a small buffer, so that a repository of a
//! hundred thousand files costs a launch about two milliseconds.

use std::fs::File;
use std::io::{self, ErrorKind, Read};

/// How many entries are taken at the most.
pub const MOST: usize = 10_000;

/// No file system has a longer path.
const LONGEST_NAME: usize = 4096;

const BUFFER: usize = 128 << 10;

/// One tracked path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Below the top of the tree. That of a directory in a sparse index ends in `/`.
    pub name: Vec<u8>,
    /// Whether it is a repository of its own, by the commit it is at.
    pub is_gitlink: bool,
}

/// What an index says.
#[derive(Debug, Default)]
pub struct Index {
    /// The entries that were asked for, and every gitlink.
    pub entries: Vec<Entry>,
    /// The name of the file with all that did not change since it was split.
    pub shared: Option<String>,
}

/// Reads an index whose object names have `hash` bytes; the entries are those
/// that `is_wanted` asks for, and the gitlinks.
///
/// # Errors
///
/// What git would not read either, and more than [`MOST`] entries that are asked for.
pub fn read(file: File, hash: usize, is_wanted: impl Fn(&[u8]) -> bool) -> io::Result<Index> {
    let length = file.metadata()?.len();
    let mut bytes = Bytes::new(file);
    let header = bytes.take(12)?;
    let (version, count) = (number(&header[4..]), number(&header[8..]));
    if &header[..4] != b"DIRC" || !(2..=4).contains(&version) {
        return Err(malformed("it does not begin as an index of version 2, 3 or 4"));
    }
    let mut index = Index::default();
    let mut former = Vec::new();
    for _ in 0..count {
        let mode = next_entry(&mut bytes, version, hash, &mut former)?;
        let is_gitlink = mode & 0o170_000 == 0o160_000;
        if !is_gitlink && !is_wanted(&former) {
            continue;
        }
        if index.entries.len() == MOST {
            return Err(malformed("it tracks more protected paths and repositories than are looked at"));
        }
        index.entries.push(Entry { name: former.clone(), is_gitlink });
    }
    // Extensions, and the checksum behind the last.
    while bytes.position + 8 + hash as u64 <= length {
        let header = bytes.take(8)?;
        let (signature, size) = ([header[0], header[1], header[2], header[3]], number(&header[4..]));
        if &signature == b"link" && size as usize >= hash {
            let name = bytes.take(hash)?;
            let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
            index.shared = Some(format!("sharedindex.{name}")).filter(|_| name.bytes().any(|b| b != b'0'));
            return Ok(index);
        }
        bytes.skip(u64::from(size))?;
    }
    Ok(index)
}

/// Reads one entry; its name replaces the `former` one, and its mode is given.
fn next_entry(bytes: &mut Bytes, version: u32, hash: usize, former: &mut Vec<u8>) -> io::Result<u32> {
    let begin = bytes.position;
    let fixed = bytes.take(40 + hash + 2)?;
    let mode = number(&fixed[24..]);
    let flags = u16::from_be_bytes([fixed[40 + hash], fixed[41 + hash]]);
    if version >= 3 && flags & 0x4000 != 0 {
        bytes.take(2)?;
    }
    if version == 4 {
        let strip = bytes.variable_number()?;
        let kept =
            (former.len() as u64).checked_sub(strip).ok_or_else(|| malformed("a name is cut short"))?;
        former.truncate(kept as usize);
        bytes.text(former)?;
        return Ok(mode);
    }
    former.clear();
    bytes.text(former)?;
    // One to eight NUL bytes make the length a multiple of eight; one was taken.
    bytes.skip((8 - (bytes.position - begin) % 8) % 8)?;
    Ok(mode)
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// A file, a piece at a time.
struct Bytes {
    file: File,
    buffer: Vec<u8>,
    /// What of the buffer is not taken yet.
    at: usize,
    end: usize,
    /// How many bytes of the file were taken.
    position: u64,
}

impl Bytes {
    fn new(file: File) -> Bytes {
        Bytes { file, buffer: vec![0; BUFFER], at: 0, end: 0, position: 0 }
    }

    /// Reads on, with what is not taken yet moved to the front.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.at..self.end, 0);
        self.end -= self.at;
        self.at = 0;
        match self.file.read(&mut self.buffer[self.end..])? {
            0 => Err(malformed("it ends too early")),
            read => {
                self.end += read;
                Ok(())
            }
        }
    }

    /// The next `length` bytes, fewer than the buffer holds.
    fn take(&mut self, length: usize) -> io::Result<&[u8]> {
        while self.end - self.at < length {
            self.fill()?;
        }
        let taken = self.at..self.at + length;
        self.at += length;
        self.position += length as u64;
        Ok(&self.buffer[taken])
    }

    fn skip(&mut self, mut length: u64) -> io::Result<()> {
        while length > 0 {
            let part = length.min(BUFFER as u64 / 2);
            self.take(part as usize)?;
            length -= part;
        }
        Ok(())
    }

    /// Adds what stands before the next NUL to `text`, and takes both.
    fn text(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        let mut looked_at = 0;
        loop {
            let unread = &self.buffer[self.at..self.end];
            if let Some(end) = unread[looked_at..].iter().position(|byte| *byte == 0) {
                let end = looked_at + end;
                text.extend_from_slice(&unread[..end]);
                self.at += end + 1;
                self.position += end as u64 + 1;
                break;
            }
            looked_at = unread.len();
            if looked_at > LONGEST_NAME {
                break;
            }
            self.fill()?;
        }
        if text.len() > LONGEST_NAME || looked_at > LONGEST_NAME {
            return Err(malformed("a name is longer than any path"));
        }
        Ok(())
    }

    /// A number as pack files have it, by which version 4 shortens a name.
    fn variable_number(&mut self) -> io::Result<u64> {
        let mut byte = self.take(1)?[0];
        let mut value = u64::from(byte & 0x7f);
        while byte & 0x80 != 0 {
            byte = self.take(1)?[0];
            value = value
                .checked_add(1)
                .and_then(|value| value.checked_mul(128))
                .ok_or_else(|| malformed("a number is too large"))?
                | u64::from(byte & 0x7f);
        }
        Ok(value)
    }
}
