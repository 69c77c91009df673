//! Each layer alone: what two layers deny is denied with either of them off.

use crate::cell::Ground;
use crate::escape::VISIBLE;

/// What Landlock alone holds: a right on a file that a mount shows and that no
/// mount option takes away.
const LANDLOCK_ALONE: [&str; 3] = ["H06", "H07", "H12"];

/// What the network namespace alone holds. Abstract sockets are not among it:
/// Landlock's scope holds them too.
const NETWORK_ALONE: [&str; 3] = ["N05", "N07", "P33"];

/// What the filter alone holds, beside the calls of class S: it is there to
/// keep the kernel's own code out of reach, which nothing else can.
const FILTER_ALONE: [&str; 9] = ["F23", "F31", "N10", "N17", "N18", "N19", "P36", "P44", "P47"];

#[test]
fn without_landlock_the_tree_and_the_filter_hold() {
    held(&["landlock"], |id| LANDLOCK_ALONE.contains(&id));
}

#[test]
fn without_the_filter_the_tree_and_landlock_hold() {
    held(&["seccomp"], |id| id.starts_with(['S', 'R']) || FILTER_ALONE.contains(&id));
}

#[test]
fn without_a_network_of_its_own_the_scope_and_the_tree_hold() {
    held(&["network"], |id| NETWORK_ALONE.contains(&id));
}

#[test]
fn the_scope_was_what_held_the_abstract_socket() {
    let Some(ground) = Ground::new() else { return };
    let off = ["--without", "network", "--without", "landlock"];
    let found = ground.inside(&off, "run", &["N01"]);
    assert_eq!(found["N01"].verdict, "leak", "{found:?}");
}

#[test]
fn without_the_filter_there_is_still_no_user_namespace() {
    let Some(ground) = Ground::new() else { return };
    let found = ground.inside(&["--without", "seccomp"], "run", &["S25", "S26", "S28"]);
    assert_eq!(found["S25"].detail, "reached: ENOSPC");
    assert_eq!(found["S26"].detail, "unshare: ENOSPC");
    assert_eq!(found["S28"].detail, "reached: ENOSPC");
}

/// Every probe is denied with these layers off, but for what `alone` names; and
/// some of that is had, or the layers were not off.
fn held(off: &[&str], alone: impl Fn(&str) -> bool) {
    let Some(ground) = Ground::new() else { return };
    let options: Vec<&str> = off.iter().flat_map(|layer| ["--without", *layer]).collect();
    let found = ground.inside(&options, "run", &[]);
    let visible = |id: &str| VISIBLE.iter().any(|(name, _)| *name == id);
    let wrong: Vec<_> = found
        .iter()
        .filter(|(id, _)| !visible(id) && !alone(id))
        .filter(|(_, finding)| !["denied", "na"].contains(&finding.verdict.as_str()))
        .collect();
    assert!(wrong.is_empty(), "not held without {off:?}: {wrong:#?}");
    assert!(found.iter().any(|(id, finding)| alone(id) && finding.verdict == "leak"), "{off:?} was not off");
}

/// With the host's own tree in place of the private one, what is denied by
/// rights on files is still denied; what a path alone tells is not.
#[cfg(feature = "test-hooks")]
mod with_the_hosts_tree {
    use super::*;

    /// Files of others, and the channel's own rights.
    const HELD: [&str; 24] = [
        "F01", "F02", "F05", "F06", "F07", "F08", "F09", "F10", "F12", "F13", "F14", "F30", "H01", "H02",
        "H06", "H07", "H08", "H09", "H10", "H11", "H12", "H13", "N22", "N23",
    ];

    /// Landlock knows no right for these (landlock(7)): they show that the
    /// host's tree was there.
    const NOT_HELD: [&str; 4] = ["F03", "F15", "F16", "F20"];

    #[test]
    fn landlock_holds() {
        let Some(ground) = Ground::new() else { return };
        let found = ground.inside_the_hosts_tree(&[], &[&HELD[..], &NOT_HELD].concat());
        let wrong: Vec<_> = found
            .iter()
            .filter(|(id, finding)| {
                let held = HELD.contains(&id.as_str());
                finding.verdict != if held { "denied" } else { "leak" }
            })
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn landlock_was_what_held() {
        let Some(ground) = Ground::new() else { return };
        let found = ground.inside_the_hosts_tree(&["--without", "landlock"], &HELD);
        let wrong: Vec<_> = found.iter().filter(|(_, finding)| finding.verdict != "leak").collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
