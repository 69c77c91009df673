//! The Unix sockets that have a path, as the kernel tells of them: those of this
//! process's own network namespace.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where the table is. Not `/proc/net`, which a procfs with `subset=pid` has not.
pub const TABLE: &str = "/proc/self/net/unix";

/// The table of Unix sockets (proc(5)).
///
/// # Errors
///
/// When it cannot be read.
pub fn table() -> io::Result<Vec<u8>> {
    fs::read(TABLE)
}

/// Path and type of every socket of a [`table`] that takes connections or
/// datagrams. A path is told as it was given to bind(2): one that is relative
/// counts from a directory that is not told. An abstract name is no path.
pub fn bound(table: &[u8]) -> impl Iterator<Item = (&Path, i32)> {
    table.split(|byte| *byte == b'\n').filter_map(socket)
}

/// Path and type of a socket that takes connections or datagrams, from a line
/// `Num RefCount Protocol Flags Type St Inode Path`.
fn socket(line: &[u8]) -> Option<(&Path, i32)> {
    const LISTENS: u32 = 0x1_0000;
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let mut number = |skip| {
        let field = std::str::from_utf8(fields.nth(skip)?).ok()?;
        u32::from_str_radix(field, 16).ok()
    };
    let (flags, kind) = (number(3)?, number(0)? as i32);
    // State and inode, which is as wide as five digits at least.
    let inode = fields.nth(1)?;
    let name = &line[inode.as_ptr_range().end as usize - line.as_ptr() as usize..];
    let name = name.strip_prefix(b" ").filter(|name| !name.is_empty() && name[0] != b'@')?;
    let takes = flags & LISTENS != 0 || kind == libc::SOCK_DGRAM;
    takes.then(|| (Path::new(OsStr::from_bytes(name)), kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_nobody_can_connect_to_are_left_out() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 11 /run/a b.sock
0000000000000000: 00000002 00000000 00000000 0001 01 12 /run/bound-only.sock
0000000000000000: 00000003 00000000 00000000 0001 03 13 /run/accepted.sock
0000000000000000: 00000002 00000000 00000000 0002 01 1234567 /run/log
0000000000000000: 00000002 00000000 00010000 0005 01    14 /run/packets
0000000000000000: 00000002 00000000 00010000 0001 01 15 @abstract
0000000000000000: 00000002 00000000 00010000 0001 01 16 relative.sock
0000000000000000: 00000003 00000000 00000000 0001 03 17
short";
        let absolute = bound(table).map(|(path, _)| path).filter(|path| path.is_absolute());
        let paths: Vec<&Path> = absolute.collect();
        assert_eq!(paths, ["/run/a b.sock", "/run/log", "/run/packets"].map(Path::new));
    }

    #[test]
    fn sockets_that_take_something_are_found() {
        let listens = "0000000000000000: 00000002 00000000 00010000 0001 01 18041 /run/a b.sock";
        assert_eq!(socket(listens.as_bytes()), Some((Path::new("/run/a b.sock"), libc::SOCK_STREAM)));
        let takes = "0000000000000000: 00000002 00000000 00000000 0002 01 18042 /run/log";
        assert_eq!(socket(takes.as_bytes()), Some((Path::new("/run/log"), libc::SOCK_DGRAM)));
        let relative = b"0000000000000000: 00000002 00000000 00010000 0001 01    42 a\xff.sock";
        let name = Path::new(OsStr::from_bytes(b"a\xff.sock"));
        assert_eq!(socket(relative), Some((name, libc::SOCK_STREAM)));
        for other in [
            "0000000000000000: 00000003 00000000 00000000 0001 03 18043 /run/a.sock",
            "0000000000000000: 00000002 00000000 00010000 0001 01 18044 @abstract",
            "0000000000000000: 00000003 00000000 00000000 0001 03 18045",
        ] {
            assert_eq!(socket(other.as_bytes()), None);
        }
    }
}
