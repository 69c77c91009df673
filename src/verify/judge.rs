//! From the kernel's answer to a line.

use super::{Answer, Check, Expect, Line, Verdict};
use crate::plan::Probe;
use crate::sys::Errno;

/// The line of one check; an answer that never came is no good sign.
pub(super) fn line(check: &Check, answer: Option<Answer>) -> Line {
    let (seen, verdict) = match (&check.expect, answer) {
        (Expect::Untestable(why), _) => (why.clone(), Verdict::Untestable),
        (_, None) => ("no answer".to_owned(), Verdict::Broken),
        (expect, Some(answer)) => {
            let (verdict, words) = verdict(check, expect, answer);
            let seen = seen(check.probe.as_ref(), answer);
            (if words.is_empty() { seen } else { format!("{seen}: {words}") }, verdict)
        }
    };
    let expected = expected(&check.expect);
    Line { name: check.name.to_owned(), object: check.object.clone(), expected, seen, verdict }
}

fn expected(expect: &Expect) -> String {
    match expect {
        Expect::Denied | Expect::Limit(_) | Expect::Masked | Expect::Other | Expect::Untestable(_) => {
            "denied".to_owned()
        }
        Expect::Works => "works".to_owned(),
        Expect::Covered => "covered".to_owned(),
        Expect::AtMost(0) => "none".to_owned(),
        Expect::AtMost(count) => format!("at most {count}"),
    }
}

fn verdict(check: &Check, expect: &Expect, answer: Answer) -> (Verdict, &'static str) {
    // The provider would be killed for it too.
    if (expect, answer) == (&Expect::Works, Answer::Killed(libc::SIGSYS)) {
        return (Verdict::Broken, "");
    }
    let outcome = Outcome::of(check.probe.as_ref(), answer);
    match (expect, outcome) {
        (_, Outcome::Unclear) => (Verdict::Untestable, ""),
        (Expect::Works, Outcome::Refused) => (Verdict::Broken, ""),
        (_, Outcome::Refused) | (Expect::Works, Outcome::Reached(_)) => (Verdict::Ok, ""),
        (Expect::AtMost(most), Outcome::Reached(count)) if count <= *most => (Verdict::Ok, ""),
        (Expect::Covered, Outcome::Reached(0)) => (Verdict::Ok, ""),
        (Expect::Limit(words), Outcome::Reached(_)) => (Verdict::KnownLimit, words),
        (Expect::Masked, Outcome::Reached(0)) => {
            (Verdict::KnownLimit, "its name shows below a writable view, and nothing of what it holds")
        }
        (Expect::Other, Outcome::Reached(0)) => (Verdict::Ok, "the cell's own of that name"),
        (_, Outcome::Reached(_)) => (Verdict::Leak, ""),
    }
}

/// An answer as a yes or no.
enum Outcome {
    Refused,
    Reached(i32),
    /// A want of the tester's own.
    Unclear,
}

impl Outcome {
    fn of(probe: Option<&Probe>, answer: Answer) -> Outcome {
        let errno = match answer {
            Answer::Works(number) => return Outcome::Reached(number),
            Answer::Killed(signal) => match probe {
                // What is asked is the call itself.
                Some(
                    Probe::RefusedCall
                    | Probe::UserNamespace
                    | Probe::Signal { .. }
                    | Probe::SharedMemory { .. }
                    | Probe::MessageQueue { .. }
                    | Probe::ConnectPath { .. }
                    | Probe::ConnectAbstract { .. }
                    | Probe::ConnectTcp { .. }
                    | Probe::SendUdp { .. },
                ) if signal == libc::SIGSYS => return Outcome::Refused,
                // A file may be reached by another call, and another signal is no filter's.
                _ => return Outcome::Unclear,
            },
            Answer::Refused(errno) => errno,
        };
        match (probe, errno) {
            (_, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS | Errno::EIO) => {
                Outcome::Unclear
            }
            // These tell that it is there.
            (Some(Probe::Signal { .. }), errno) if errno != Errno::ESRCH => Outcome::Reached(0),
            (Some(Probe::SharedMemory { .. }), errno) if errno != Errno::EINVAL => Outcome::Reached(0),
            (Some(Probe::MessageQueue { .. }), errno) if errno != Errno::ENOENT => Outcome::Reached(0),
            // A filter's answer, as the kernel has no such; another call may tell.
            // Only that it is not there says that nothing is shown.
            (Some(Probe::Uncovered { .. }), errno) if errno != Errno::ENOENT => Outcome::Unclear,
            (Some(Probe::Stat { .. }), Errno::EPERM | Errno::ENOSYS)
            | (Some(Probe::List { .. } | Probe::Open { .. } | Probe::Make { .. }), Errno::ENOSYS) => {
                Outcome::Unclear
            }
            // No reader, a full disk, a full queue: the way is free.
            (Some(Probe::Open { .. }), Errno::ENXIO | Errno::EISDIR)
            | (Some(Probe::Make { .. }), Errno::ENOSPC | Errno::EDQUOT)
            | (
                Some(Probe::ConnectPath { .. } | Probe::ConnectAbstract { .. }),
                Errno::EAGAIN | Errno::EPROTOTYPE,
            )
            | (Some(Probe::RefusedCall), Errno::EBADF) => Outcome::Reached(0),
            (Some(Probe::ConnectTcp { .. }), Errno::ETIMEDOUT) | (_, Errno::ENAMETOOLONG) => Outcome::Unclear,
            _ => Outcome::Refused,
        }
    }
}

fn seen(probe: Option<&Probe>, answer: Answer) -> String {
    match (probe, answer) {
        (Some(Probe::List { .. }), Answer::Works(count)) => format!("{count} entries"),
        (Some(Probe::Processes), Answer::Works(count)) => format!("{count} processes"),
        (Some(Probe::Stat { .. }), Answer::Works(_)) => "there".to_owned(),
        (Some(Probe::Uncovered { .. }), Answer::Works(0)) => "covered".to_owned(),
        (Some(Probe::Uncovered { .. }), Answer::Works(_)) => "not covered".to_owned(),
        (Some(Probe::Uncovered { .. }), Answer::Refused(Errno::ENOENT)) => "this kernel has none".to_owned(),
        (_, Answer::Works(_)) => "works".to_owned(),
        (_, Answer::Refused(errno)) => format!("{errno:?}"),
        (_, Answer::Killed(signal)) => format!("killed by signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(expect: Expect, probe: Probe, answer: Answer) -> Verdict {
        line(&Check::new("a:b", "c", expect, probe), Some(answer)).verdict
    }

    fn open() -> Probe {
        Probe::Open { path: c"/x".into(), flags: libc::O_WRONLY }
    }

    #[test]
    fn a_refusal_is_what_a_denial_is() {
        use Answer::{Killed, Refused, Works};
        for (probe, answer, verdict) in [
            (open(), Refused(Errno::ENOENT), Verdict::Ok),
            (open(), Refused(Errno::EROFS), Verdict::Ok),
            (open(), Killed(libc::SIGSYS), Verdict::Untestable),
            (Probe::Signal { pid: 9 }, Killed(libc::SIGSYS), Verdict::Ok),
            (Probe::Signal { pid: 9 }, Killed(libc::SIGKILL), Verdict::Untestable),
            (Probe::Stat { path: c"/x".into(), file: None }, Refused(Errno::EPERM), Verdict::Untestable),
            (Probe::Make { path: c"/x".into() }, Refused(Errno::ENOSPC), Verdict::Leak),
            (open(), Works(0), Verdict::Leak),
            (open(), Refused(Errno::ENXIO), Verdict::Leak),
            (open(), Refused(Errno::EMFILE), Verdict::Untestable),
            (Probe::Signal { pid: 9 }, Refused(Errno::ESRCH), Verdict::Ok),
            (Probe::Signal { pid: 9 }, Refused(Errno::EPERM), Verdict::Leak),
            (Probe::SharedMemory { id: 9 }, Refused(Errno::EACCES), Verdict::Leak),
            (Probe::RefusedCall, Refused(Errno::EBADF), Verdict::Leak),
            (Probe::RefusedCall, Refused(Errno::EPERM), Verdict::Ok),
        ] {
            assert_eq!(judged(Expect::Denied, probe, answer), verdict, "{answer:?}");
        }
    }

    #[test]
    fn a_grant_that_is_refused_is_broken() {
        assert_eq!(judged(Expect::Works, open(), Answer::Refused(Errno::EACCES)), Verdict::Broken);
        assert_eq!(judged(Expect::Works, open(), Answer::Refused(Errno::ENXIO)), Verdict::Ok);
        assert_eq!(judged(Expect::Works, open(), Answer::Killed(libc::SIGSYS)), Verdict::Broken);
    }

    #[test]
    fn what_no_answer_came_to_is_wrong() {
        assert_eq!(line(&Check::new("a:b", "c", Expect::Denied, open()), None).verdict, Verdict::Broken);
    }

    #[test]
    fn counts_and_masks_are_judged_by_their_number() {
        let list = || Probe::List { path: c"/x".into() };
        assert_eq!(judged(Expect::AtMost(1), list(), Answer::Works(1)), Verdict::Ok);
        assert_eq!(judged(Expect::AtMost(1), list(), Answer::Works(2)), Verdict::Leak);
        let stat = || Probe::Stat { path: c"/x".into(), file: None };
        assert_eq!(judged(Expect::Masked, stat(), Answer::Works(0)), Verdict::KnownLimit);
        assert_eq!(judged(Expect::Masked, stat(), Answer::Works(1)), Verdict::Leak);
        assert_eq!(judged(Expect::Other, stat(), Answer::Works(0)), Verdict::Ok);
        assert_eq!(judged(Expect::Other, stat(), Answer::Works(1)), Verdict::Leak);
    }
}
