//! How long the loops run that look for what happens rarely. `cargo test` runs
//! them shortly; `CELLBLOCK_TEST_LONG=1` runs them to their end, as `.ci/run` does.

/// Whether the long run is asked for.
pub fn is_asked_for() -> bool {
    std::env::var_os("CELLBLOCK_TEST_LONG").is_some_and(|value| value == "1")
}

/// `many` rounds where the long run is asked for, and `few` elsewhere.
pub fn rounds(few: usize, many: usize) -> usize {
    if is_asked_for() { many } else { few }
}
