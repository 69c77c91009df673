//! Mount tables, as `/proc/PID/mountinfo` has them (proc(5)).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::ops::Bound;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Of the file system, as MAJOR:MINOR.
    pub device: String,
    /// Which path of the file system is shown.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// The file system's type.
    pub kind: String,
}

impl Mount {
    /// From a line of the table, whose names need not be text.
    pub fn parse(line: &[u8]) -> Option<Mount> {
        let word = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let (device, root, point) = (fields.next()?, fields.next()?, fields.next()?);
        // The mount's options and any number of tags stand before it.
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some(Mount { device: word(device), root: path(root), point: path(point), kind: word(kind) })
    }
}

/// Blanks, ends of lines and backslashes are written as three octal digits.
fn path(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(u8::is_ascii_digit));
        match digits {
            Some(digits) => {
                let number = digits.iter().fold(0u32, |number, digit| number * 8 + u32::from(digit - b'0'));
                bytes.push(number as u8);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// A mount table.
#[derive(Clone, Debug, Default)]
pub struct Mounts {
    /// By where they are; of two on one place the later one is seen.
    places: BTreeMap<PathBuf, Mount>,
    /// Where each file system was mounted first.
    first: BTreeMap<String, PathBuf>,
}

impl Mounts {
    /// That of this process.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is no mount table; every process has a mount.
    pub fn own() -> io::Result<Mounts> {
        let table = std::fs::read("/proc/self/mountinfo")?;
        let lines = table.strip_suffix(b"\n").unwrap_or(&table).split(|byte| *byte == b'\n');
        let mounts: Option<Mounts> = lines.map(Mount::parse).collect();
        mounts.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Where a path lies: the file system, and the path in it.
    pub fn locate(&self, path: &Path) -> Option<(&str, PathBuf)> {
        let mount = path.ancestors().find_map(|above| self.places.get(above))?;
        let rest = path.strip_prefix(&mount.point).ok()?;
        Some((&mount.device, join(&mount.root, rest)))
    }

    /// The mounts at a path and below it.
    pub fn below<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Mount> {
        // Paths are ordered by their components.
        let range = (Bound::Included(path), Bound::Unbounded);
        let from = self.places.range::<Path, _>(range).map(|(_, mount)| mount);
        from.take_while(move |mount| mount.point.starts_with(path))
    }

    /// Whether something is mounted at a path.
    pub fn has(&self, path: &Path) -> bool {
        self.places.contains_key(path)
    }

    /// Whether a mount is where its file system was mounted first, and so no
    /// second view of something that lies elsewhere.
    pub fn is_first(&self, mount: &Mount) -> bool {
        self.first.get(&mount.device) == Some(&mount.point)
    }
}

impl FromIterator<Mount> for Mounts {
    fn from_iter<T: IntoIterator<Item = Mount>>(mounts: T) -> Mounts {
        let mut table = Mounts::default();
        for mount in mounts {
            table.first.entry(mount.device.clone()).or_insert_with(|| mount.point.clone());
            table.places.insert(mount.point.clone(), mount);
        }
        table
    }
}

/// `base` and what follows it, if anything does.
pub fn join(base: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { base.to_owned() } else { base.join(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [&str; 6] = [
        "33 22 8:2 / /srv/a rw - xfs /dev/sdb rw",
        "34 22 8:2 / /srv-a rw - xfs /dev/sdb rw",
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
        "30 22 0:5 / /proc rw - proc proc rw",
        "31 22 8:1 /srv/a\\040b /alias rw - ext4 /dev/sda1 rw",
        "32 22 8:2 / /srv rw - xfs /dev/sdb rw",
    ];

    #[test]
    fn a_path_lies_in_its_nearest_mount() {
        let mounts: Mounts = TABLE.iter().filter_map(|line| Mount::parse(line.as_bytes())).collect();
        let located = |path: &str| mounts.locate(Path::new(path)).unwrap();
        assert_eq!(located("/home/x"), ("8:1", "/home/x".into()));
        assert_eq!(located("/alias/x"), ("8:1", "/srv/a b/x".into()));
        assert_eq!(located("/srv"), ("8:2", "/".into()));
        assert_eq!(located("/srvx"), ("8:1", "/srvx".into()));
        let points: Vec<&Path> = mounts.below(Path::new("/srv")).map(|mount| &*mount.point).collect();
        assert_eq!(points, [Path::new("/srv"), Path::new("/srv/a")]);
    }
}
