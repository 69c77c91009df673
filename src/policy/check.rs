//! Checks of single values; none of them needs the host.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::error::Problem;
use super::{Umask, WARNINGS};

/// Bytes of the kernel's `nodename` without its NUL.
const HOSTNAME_MAX: usize = 64;

/// A path on the host, made absolute from `base`.
///
/// # Errors
///
/// An empty path, a NUL byte, `..`, a `~` at its start.
pub fn host_path(path: &Path, base: &Path) -> Result<PathBuf, Problem> {
    plain(path, base)?;
    Ok(tidy(&base.join(path)))
}

/// A path in the cell.
///
/// # Errors
///
/// Those of [`host_path`], and a relative path.
pub fn cell_path(path: &Path) -> Result<PathBuf, Problem> {
    plain(path, Path::new("/"))?;
    if !path.is_absolute() {
        return Err(Problem::RelativeDestination(path.to_owned()));
    }
    Ok(tidy(path))
}

/// A path in the cell that something is mounted at.
///
/// # Errors
///
/// Those of [`cell_path`], and `/`.
pub fn mount_point(path: &Path) -> Result<PathBuf, Problem> {
    match cell_path(path)? {
        path if path == Path::new("/") => Err(Problem::CellRoot),
        path => Ok(path),
    }
}

/// A path on the host that the cell is shown.
///
/// # Errors
///
/// Those of [`host_path`], and `/`.
pub fn view(path: &Path, base: &Path) -> Result<PathBuf, Problem> {
    match host_path(path, base)? {
        path if path == Path::new("/") => Err(Problem::WholeHost),
        path => Ok(path),
    }
}

/// A path on the host that is not the whole of it.
///
/// # Errors
///
/// Those of [`host_path`], and `/`.
pub fn part_of_host(path: &Path, base: &Path) -> Result<PathBuf, Problem> {
    match host_path(path, base)? {
        path if path == Path::new("/") => Err(Problem::NotAPart),
        path => Ok(path),
    }
}

/// A path below a directory that is not known yet.
///
/// # Errors
///
/// Those of [`host_path`], and an absolute path or `.`.
pub fn below(path: &Path) -> Result<PathBuf, Problem> {
    plain(path, Path::new(""))?;
    match tidy(path) {
        path if path.is_absolute() || path == Path::new("") || path == Path::new(".") => {
            Err(Problem::NotBelow(path))
        }
        path => Ok(path),
    }
}

fn plain(path: &Path, base: &Path) -> Result<(), Problem> {
    no_nul(path.as_os_str())?;
    if path.as_os_str().is_empty() {
        return Err(Problem::EmptyPath);
    }
    if path.starts_with("~") {
        return Err(Problem::Tilde(path.to_owned()));
    }
    // The kernel takes `..` of a symlink's target, a reader that of its name.
    if path.components().any(|part| part == Component::ParentDir) {
        let target = by_name(&base.join(path));
        return Err(Problem::DotDot { path: path.to_owned(), target });
    }
    Ok(())
}

/// Where `path` leads if no part of it is a link.
fn by_name(path: &Path) -> PathBuf {
    let mut target = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(target.pop()),
            part => target.push(part),
        }
    }
    target
}

/// Without `.`, doubled and trailing slashes, so that equal places are equal.
fn tidy(path: &Path) -> PathBuf {
    path.components().collect()
}

/// A host name as `sethostname` and resolvers take it.
///
/// # Errors
///
/// Anything but 1 to 64 letters, digits, `-` and `.`.
pub fn hostname(name: &str) -> Result<String, Problem> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if name.is_empty() || name.len() > HOSTNAME_MAX || !name.bytes().all(known) {
        return Err(Problem::BadHostname(name.to_owned()));
    }
    Ok(name.to_owned())
}

/// The name of an environment variable.
///
/// # Errors
///
/// An empty name, `=`, a NUL byte.
pub fn env_name(name: &str) -> Result<String, Problem> {
    no_nul(OsStr::new(name))?;
    if name.is_empty() || name.contains('=') {
        return Err(Problem::BadEnvironmentName(name.to_owned()));
    }
    Ok(name.to_owned())
}

/// The value of an environment variable; it may be empty.
///
/// # Errors
///
/// A NUL byte.
pub fn env_value(value: &str) -> Result<String, Problem> {
    no_nul(OsStr::new(value))?;
    Ok(value.to_owned())
}

/// A device of the host, below `/dev`.
///
/// # Errors
///
/// Those of [`cell_path`], and a path elsewhere.
pub fn device(path: &Path) -> Result<PathBuf, Problem> {
    match cell_path(path)? {
        path if path.parent().is_some_and(|parent| parent.starts_with("/dev")) => Ok(path),
        path => Err(Problem::NotADevice(path)),
    }
}

/// `027`, or `inherit`.
///
/// # Errors
///
/// Anything but an octal number up to 777.
pub fn umask(text: &str) -> Result<Umask, Problem> {
    let is_octal =
        !text.is_empty() && text.len() <= 5 && text.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    let mask = u32::from_str_radix(text, 8).ok().filter(|mask| is_octal && *mask <= 0o777);
    match mask {
        _ if text == "inherit" => Ok(Umask::Inherit),
        Some(mask) => Ok(Umask::Mask(mask)),
        None => Err(Problem::BadUmask(text.to_owned())),
    }
}

/// `umask` as [`umask()`] reads it.
pub fn umask_text(umask: Umask) -> String {
    match umask {
        Umask::Inherit => "inherit".to_owned(),
        Umask::Mask(mask) => format!("{mask:03o}"),
    }
}

/// The name of a warning.
///
/// # Errors
///
/// A name that no warning has.
pub fn warning(name: &str) -> Result<String, Problem> {
    if WARNINGS.contains(&name) {
        return Ok(name.to_owned());
    }
    let alike = WARNINGS.into_iter().map(|known| (strsim::jaro(name, known), known));
    let nearest = alike.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness > 0.7);
    let suggestion = nearest.map(|(_, known)| known);
    Err(Problem::UnknownWarning { name: name.to_owned(), suggestion })
}

/// A name that must say something.
///
/// # Errors
///
/// An empty string, a NUL byte.
pub fn name(name: &str) -> Result<String, Problem> {
    no_nul(OsStr::new(name))?;
    if name.is_empty() {
        return Err(Problem::EmptyValue);
    }
    Ok(name.to_owned())
}

fn no_nul(text: &OsStr) -> Result<(), Problem> {
    if text.as_bytes().contains(&0) {
        return Err(Problem::NulByte);
    }
    Ok(())
}

/// The units of a duration, largest first, in milliseconds.
const DURATIONS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// `90s`, `30m`, `1h30m`.
///
/// # Errors
///
/// Anything else: a number without a unit, and units that are longer than a day
/// or could be taken for another, such as `M`.
pub fn duration(text: &str) -> Result<Duration, Problem> {
    milliseconds(text).map(Duration::from_millis).ok_or_else(|| {
        let (text, instead) = (text.to_owned(), duration_instead(text));
        Problem::BadDuration { text, instead }
    })
}

fn milliseconds(text: &str) -> Option<u64> {
    let parts = numbers_with_units(text).filter(|parts| !parts.is_empty())?;
    parts.into_iter().try_fold(0u64, |total, (number, unit)| {
        let (_, each) = DURATIONS.iter().find(|(known, _)| *known == unit)?;
        total.checked_add(number.checked_mul(*each)?)
    })
}

/// `1h 30m` as its numbers, each with the word behind it.
fn numbers_with_units(text: &str) -> Option<Vec<(u64, &str)>> {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (number, behind) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let behind = behind.trim_start();
        let (unit, behind) =
            behind.split_at(behind.find(|c: char| !c.is_alphabetic()).unwrap_or(behind.len()));
        parts.push((number.parse().ok()?, unit));
        rest = behind.trim_start();
    }
    Some(parts)
}

/// What was meant by other words for the units.
fn duration_instead(text: &str) -> Option<String> {
    let known = |(number, unit): (u64, &str)| {
        let in_days = |days: u64| Some(format!("{}d", number.checked_mul(days)?));
        match unit.to_ascii_lowercase().as_str() {
            "ms" | "msec" | "millis" | "milliseconds" => Some(format!("{number}ms")),
            "" | "s" | "sec" | "secs" | "second" | "seconds" => Some(format!("{number}s")),
            "m" | "min" | "mins" | "minute" | "minutes" => Some(format!("{number}m")),
            "h" | "hr" | "hrs" | "hour" | "hours" => Some(format!("{number}h")),
            "d" | "day" | "days" => in_days(1),
            "w" | "week" | "weeks" => in_days(7),
            "month" | "months" => in_days(30),
            "y" | "yr" | "year" | "years" => in_days(365),
            _ => None,
        }
    };
    let instead: Option<String> = numbers_with_units(text)?.into_iter().map(known).collect();
    instead.filter(|instead| milliseconds(instead).is_some())
}

/// `duration` as [`duration()`] reads it.
pub fn duration_text(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, milliseconds) in DURATIONS {
        if rest >= milliseconds {
            text += &format!("{}{unit}", rest / milliseconds);
            rest %= milliseconds;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// A [`duration`] after which a run is ended.
///
/// # Errors
///
/// No duration, or one of zero.
pub fn timeout(text: &str) -> Result<Duration, Problem> {
    match duration(text)? {
        Duration::ZERO => Err(Problem::BadDuration { text: text.to_owned(), instead: None }),
        duration => Ok(duration),
    }
}

/// Binary units, largest first.
const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// Bytes: `4096`, or `512M` in binary units.
///
/// # Errors
///
/// No size, zero, or more than a `u64` holds.
pub fn size(text: &str) -> Result<u64, Problem> {
    bytes(text).ok_or_else(|| {
        let (text, instead) = (text.to_owned(), size_instead(text));
        Problem::BadSize { text, instead }
    })
}

/// A number of things, at least one.
pub fn count(count: u64) -> Result<u64, Problem> {
    if count == 0 { Err(Problem::NoCount) } else { Ok(count) }
}

fn bytes(text: &str) -> Option<u64> {
    let unit = UNITS.iter().find_map(|(unit, shift)| {
        let digits = text.strip_suffix(*unit)?;
        Some((digits, *shift))
    });
    let (digits, shift) = unit.unwrap_or((text, 0));
    let number = digits.parse::<u64>().ok().filter(|_| !digits.starts_with('+'));
    number.and_then(|number| number.checked_mul(1 << shift)).filter(|bytes| *bytes > 0)
}

/// What was meant by other words for the units.
fn size_instead(text: &str) -> Option<String> {
    let [(number, unit)] = numbers_with_units(text)?[..] else { return None };
    let unit = unit.to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
    let instead = format!("{number}{unit}");
    bytes(&instead).map(|_| instead)
}

/// `bytes` as [`size`] reads it.
pub fn size_text(bytes: u64) -> String {
    let whole = UNITS.iter().find(|(_, shift)| bytes.is_multiple_of(1 << shift));
    whole.map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_come_back() {
        for (text, bytes) in
            [("1", 1), ("4095", 4095), ("4K", 4 << 10), ("512M", 512 << 20), ("3G", 3 << 30), ("2T", 2 << 40)]
        {
            assert_eq!(size(text).ok(), Some(bytes), "{text}");
            assert_eq!(size_text(bytes), text);
        }
        assert_eq!(size("1024K").ok(), Some(1 << 20));
        for text in ["", "0", "K", "0M", "1.5G", "-1", "+1", "1 M", "1MM", "1m", "99999999T"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        for (text, seconds) in [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1h 30m", 5400)] {
            assert_eq!(duration(text).ok(), Some(Duration::from_secs(seconds)));
        }
        assert_eq!(duration("0s").ok(), Some(Duration::ZERO));
        for text in ["", "10", "m", "-1s", "soon", "1.5h", "99999999999999999999h", "9999999999999999d"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(timeout("0s").is_err());
    }

    #[test]
    fn a_unit_that_could_mean_another_is_refused_with_the_fix() {
        for (text, instead) in [
            ("30M", "30m"),
            ("30", "30s"),
            ("1y", "365d"),
            ("2 months", "60d"),
            ("1H 30 min", "1h30m"),
            ("3weeks", "21d"),
        ] {
            let told = match duration(text) {
                Err(Problem::BadDuration { instead, .. }) => instead,
                other => panic!("{text}: {other:?}"),
            };
            assert_eq!(told.as_deref(), Some(instead), "{text}");
        }
        for (text, instead) in [("512m", "512M"), ("512MB", "512M"), ("4 GiB", "4G"), ("1MM", ""), ("0k", "")]
        {
            let told = match size(text) {
                Err(Problem::BadSize { instead, .. }) => instead.unwrap_or_default(),
                other => panic!("{text}: {other:?}"),
            };
            assert_eq!(told, instead, "{text}");
        }
    }

    #[test]
    fn a_duration_comes_back() {
        for text in ["0s", "1ms", "1s500ms", "1h30m", "400d", "1d2h3m4s5ms"] {
            assert_eq!(duration_text(duration(text).unwrap()), text);
        }
    }

    #[test]
    fn host_names_fit_the_kernel() {
        assert!(hostname(&"a".repeat(64)).is_ok());
        assert!(hostname(&"a".repeat(65)).is_err());
        for name in ["", "a b", "a_b", "a/b", "a\0", "é"] {
            assert!(hostname(name).is_err(), "{name}");
        }
    }

    #[test]
    fn equal_places_become_equal_paths() {
        for path in ["/a/b", "/a/b/", "//a//b", "/a/./b/."] {
            assert_eq!(cell_path(path.as_ref()).unwrap(), Path::new("/a/b"));
        }
        let base = Path::new("/here");
        for path in ["a", "./a", "a/.", "/here/a"] {
            assert_eq!(host_path(path.as_ref(), base).unwrap(), Path::new("/here/a"));
        }
        assert_eq!(host_path(".".as_ref(), base).unwrap(), base);
    }
}
