//! What a host may lack. A test that needs it is skipped, and the last line of
//! the run counts the skipped tests by reason: the harness shows nothing that a
//! passing test prints.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

use crate::user;

/// How often each thing was missing.
static MISSING: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// Where the programs lie that both the host and every cell have.
const PROGRAMS: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// Whether the host has `feature`. Counts a skipped test where it has not, and
/// fails where `CELLBLOCK_TEST_REQUIRE`, a list with commas, names the feature.
pub fn has(feature: &str, there: bool) -> bool {
    let required = std::env::var("CELLBLOCK_TEST_REQUIRE").unwrap_or_default();
    assert!(there || required.split(',').all(|name| name != feature), "this host has no {feature}");
    if !there {
        static AT_THE_END: Once = Once::new();
        // SAFETY: the handler is a function of this program, and takes nothing.
        AT_THE_END.call_once(|| assert_eq!(unsafe { libc::atexit(tell) }, 0));
        let mut missing = MISSING.lock().unwrap_or_else(PoisonError::into_inner);
        *missing.entry(feature.to_owned()).or_default() += 1;
    }
    there
}

/// Whether the host has every one of these programs; each is a feature.
pub fn has_programs(names: &[&str]) -> bool {
    let has_file = |name: &str| PROGRAMS.iter().any(|directory| Path::new(directory).join(name).is_file());
    names.iter().all(|name| has(name, has_file(name)))
}

/// Whether the kernel has Landlock's scopes, without which a cell in the
/// host's network or of mode nested has to waive them.
pub fn has_scopes() -> bool {
    has("landlock-scope", cellblock::sys::landlock::version().is_ok_and(|abi| abi >= 6))
}

/// Whether `/proc` shows more than processes, which one with `subset=pid` does not.
pub fn has_whole_proc() -> bool {
    has("proc-whole", Path::new("/proc/stat").exists())
}

/// Mode nested, on a kernel without scopes as well.
pub const NESTED: &[&str] = &["--mode", "nested", "--allow-missing", "landlock-scope"];

/// Whether root has started the tests.
pub fn has_root() -> bool {
    has("root", user::is_root())
}

extern "C" fn tell() {
    let missing = MISSING.lock().unwrap_or_else(PoisonError::into_inner);
    let reasons: Vec<String> =
        missing.iter().map(|(what, times)| format!("{times} without {what}")).collect();
    println!("skipped, whole or in part: {}", reasons.join(", "));
}
