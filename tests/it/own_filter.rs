//! A filter of the user's own: what is taken, what is refused, and that the
//! kernel says the same.

use cellblock::plan::own_filter::{Error, read};
use cellblock::sys::seccomp::Insn;

use crate::user::User;

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
const LOAD: u16 = 0x20;
const RETURN: u16 = 0x06;
const RETURN_A: u16 = 0x16;
const JUMP: u16 = 0x05;
const EQUAL: u16 = 0x15;

fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
    Insn::new(code, jt, jf, k)
}

const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0001;

fn guarded(then: &[Insn]) -> Vec<Insn> {
    let guard = [insn(LOAD, 0, 0, 4), insn(EQUAL, 1, 0, NATIVE), insn(RETURN, 0, 0, REFUSE)];
    [&guard, then].concat()
}

fn bytes(program: &[Insn]) -> Vec<u8> {
    let bytes =
        |insn: &Insn| [&insn.code.to_ne_bytes()[..], &[insn.jt, insn.jf], &insn.k.to_ne_bytes()].concat();
    program.iter().flat_map(bytes).collect()
}

#[track_caller]
fn refused(program: &[Insn], expected: &str) {
    let message = read(&bytes(program), false).unwrap_err().to_string();
    assert!(message.contains(expected), "{message}");
    if !expected.contains("architecture") {
        assert!(!kernel_takes(program), "the kernel takes what we refuse");
    }
}

/// Whether the kernel installs it, tried in a process that may die of it.
fn kernel_takes(program: &[Insn]) -> bool {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut().cast() };
    let mut status = 0;
    // SAFETY: the child makes system calls only; the kernel reads `len` instructions and keeps
    // no pointer; the child is ours and reaped once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let refused = libc::prctl(libc::PR_SET_SECCOMP, 2, &filter) != 0;
            if refused {
                libc::_exit(77);
            }
            // Under a filter that refuses even to exit, this ends it.
            std::ptr::null_mut::<u8>().write_volatile(0);
            libc::_exit(0);
        }
        libc::waitpid(child, &mut status, 0);
    }
    !(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 77)
}

#[test]
fn size_and_length() {
    assert!(matches!(read(&[0; 12], false), Err(Error::Size(12))));
    refused(&[], "0 instructions");
    refused(&vec![insn(RETURN, 0, 0, REFUSE); 4097], "4097 instructions");
}

#[test]
fn every_code_as_the_kernel_has_it() {
    for code in 0..=0x1ff {
        for k in [0, 1, 3, 4, 15, 16, 31, 32, 60, 64] {
            let one = insn(code, 0, 0, k);
            // Padded, so that a jump lands, and so that scratch memory is written before read.
            let mut program = guarded(&[insn(0x02, 0, 0, k.min(15)), one]);
            program.extend(vec![insn(RETURN, 0, 0, ALLOW); 66]);
            let ours = read(&bytes(&program), false).is_ok();
            assert_eq!(ours, kernel_takes(&program), "code {code:#x}, operand {k}");
        }
    }
}

#[test]
fn jumps_past_the_end() {
    refused(&guarded(&[insn(EQUAL, 1, 0, 0), insn(RETURN, 0, 0, ALLOW)]), "instruction 3 leads past");
    refused(&guarded(&[insn(JUMP, 0, 0, u32::MAX), insn(RETURN, 0, 0, ALLOW)]), "instruction 3 leads past");
    refused(&guarded(&[insn(LOAD, 0, 0, 0)]), "instruction 3 leads past");
}

#[test]
fn architectures() {
    let allow = insn(RETURN, 0, 0, ALLOW);
    assert!(read(&bytes(&guarded(&[allow])), false).is_ok());
    refused(&[allow], "another architecture");
    // Loads the number in place of the architecture.
    refused(
        &[insn(LOAD, 0, 0, 0), insn(EQUAL, 1, 0, NATIVE), insn(RETURN, 0, 0, REFUSE), allow],
        "another architecture",
    );
    // Compares with another one.
    refused(
        &[insn(LOAD, 0, 0, 4), insn(EQUAL, 1, 0, 7), insn(RETURN, 0, 0, REFUSE), allow],
        "another architecture",
    );
    // Compares what is no longer the architecture.
    refused(
        &[
            insn(LOAD, 0, 0, 4),
            insn(0x54, 0, 0, 0),
            insn(EQUAL, 1, 0, NATIVE),
            insn(RETURN, 0, 0, REFUSE),
            allow,
        ],
        "another architecture",
    );
    // Answers with what stands in A, or leaves it to a tracer.
    refused(&[insn(RETURN_A, 0, 0, 0)], "another architecture");
    refused(&[insn(RETURN, 0, 0, 0x7ff0_0000)], "another architecture");
    // Refuses everything, which needs no guard.
    assert!(read(&bytes(&[insn(RETURN, 0, 0, REFUSE)]), false).is_ok());
    assert!(read(&bytes(&[insn(RETURN, 0, 0, 0x8000_0000)]), false).is_ok());
}

#[test]
fn seccompilers_json() {
    let text = r#"{"main": {"mismatch_action": {"errno": 1}, "match_action": "allow",
        "filter": [{"syscall": "read"}, {"syscall": "socket", "args":
        [{"index": 0, "type": "dword", "op": "eq", "val": 1}]}]}}"#;
    let program = read(text.as_bytes(), true).unwrap();
    assert!(kernel_takes(&[insn(RETURN, 0, 0, ALLOW)]) && program.len() > 5);
    let two = format!("{},{}", &text[..text.len() - 1], &text[1..].replace("main", "other"));
    assert!(matches!(read(two.as_bytes(), true), Err(Error::Several(2))));
    assert!(matches!(read(b"{}", true), Err(Error::Several(0))));
    assert!(matches!(read(b"no", true), Err(Error::Json(_))));
}

/// seccompiler's JSON, in which everything goes but mkdir(2).
const NO_MKDIR: &str = r#"{"main": {"mismatch_action": "allow", "match_action": {"errno": 28},
    "filter": [{"syscall": "mkdir"}, {"syscall": "mkdirat"}]}}"#;

/// What `mkdir`, and keyctl(2), which the built-in filter refuses, come to.
fn mkdir_and_keyctl(options: &[&str]) -> Option<String> {
    let user = User::new()?;
    let filter = user.file("own.json", NO_MKDIR);
    let options = [options, &["--seccomp", filter.to_str().unwrap()]].concat();
    let keyctl = format!("print syscall({}, 0, -3, 0) == -1 ? $! : \"allowed\"", libc::SYS_keyctl);
    let script = format!("mkdir /tmp/d 2>&1 | grep -o 'No space'; perl -e '{keyctl}'; echo");
    let output = user.script(&options, &script).output().expect("cellblock runs");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn it_is_laid_on_top_of_the_built_in_one() {
    let Some(said) = mkdir_and_keyctl(&[]) else { return };
    assert_eq!(said, "No space\nOperation not permitted\n");
}

#[test]
fn it_stands_alone_where_the_built_in_one_is_turned_off() {
    let Some(said) = mkdir_and_keyctl(&["--without", "seccomp"]) else { return };
    assert_eq!(said, "No space\nallowed\n");
}

#[test]
fn a_bad_one_is_an_error_of_the_policy() {
    let Some(user) = User::new() else { return };
    user.file("odd.bpf", [0; 12]);
    for (path, words) in [
        ("./odd.bpf", "12 bytes are no program"),
        ("./gone.json", "it cannot be read: ENOENT"),
        ("unknown", "write one of: provider, provider-set-gid, nested, nested-set-gid"),
    ] {
        let output = user.cell(&["--seccomp", path], &["true"]).output().expect("cellblock runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.starts_with("cellblock: policy: --seccomp") && said.contains(words), "{said}");
    }
}
