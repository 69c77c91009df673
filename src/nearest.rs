//! "Did you mean": the known word that a mistyped one is nearest to.

/// The nearest of `known`; `None` where nothing is near enough to be meant.
///
/// One that goes on where `word` ends, or ends where it goes on, is nearest of all;
/// else one letter in three may be wrong, too many, missing or in its neighbour's place.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let rank = |known: &str| {
        let longer = word.len().max(known.len());
        let begins = word.len().min(known.len()) >= 3 && (known.starts_with(word) || word.starts_with(known));
        let distance = strsim::damerau_levenshtein(word, known);
        (begins || distance * 3 <= longer).then_some((!begins, distance))
    };
    known.into_iter().filter_map(|known| Some((rank(known)?, known))).min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn the_nearest_is_what_was_meant() {
        let known = ["report", "ro-bind", "bind", "tmpfs", "timeout", "policy", "profile", "env", "net"];
        for (word, meant) in [
            ("ro-bnd", Some("ro-bind")),
            ("ro-", Some("ro-bind")),
            ("robind", Some("ro-bind")),
            ("reprot", Some("report")),
            ("tiemout", Some("timeout")),
            ("time-out", Some("timeout")),
            ("polcy", Some("policy")),
            ("environment", Some("env")),
            ("nett", Some("net")),
            ("ro", None),
            ("memory", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
    }
}
