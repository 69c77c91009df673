//! A program as text, for those who review what a change of the source comes to.

use std::fmt::Write;

use super::bpf::{AND, AT_LEAST, EQUAL, Insn, JUMP, LOAD, RETURN};
use super::table::Arch;
use super::tree::{ARCH, ARGUMENTS, NUMBER};

/// One line an instruction, with jumps as line numbers and calls by name.
pub fn disassemble(program: &[Insn], arch: Arch) -> String {
    let mut text = String::new();
    // Which word is loaded when an instruction begins; jumps go forward, so it is known by then.
    let mut loaded = vec![NUMBER; program.len() + 1];
    for (index, insn) in program.iter().enumerate() {
        let offset = loaded[index];
        let target = |skip: u32| index + 1 + skip as usize;
        let _ = write!(text, "{index:4}  ");
        let _ = match insn.code {
            LOAD => {
                loaded[index + 1] = insn.k;
                writeln!(text, "load {}", word(insn.k))
            }
            AND => {
                loaded[index + 1] = offset;
                writeln!(text, "and {:#x}", insn.k)
            }
            JUMP => {
                loaded[target(insn.k)] = offset;
                writeln!(text, "jump {}", target(insn.k))
            }
            RETURN => writeln!(text, "return {}", answer(insn.k)),
            EQUAL | AT_LEAST => {
                let operator = if insn.code == EQUAL { "==" } else { ">=" };
                let (yes, no) = (target(insn.jt.into()), target(insn.jf.into()));
                writeln!(text, "if {operator} {} {yes} else {no}", operand(offset, insn.k, arch))
            }
            code => writeln!(text, "unknown {code:#x}"),
        };
    }
    text
}

fn word(offset: u32) -> String {
    match offset {
        NUMBER => "number".to_owned(),
        ARCH => "architecture".to_owned(),
        _ => {
            let half = if offset.is_multiple_of(8) { "low" } else { "high" };
            format!("argument {} {half}", (offset - ARGUMENTS) / 8)
        }
    }
}

fn operand(offset: u32, value: u32, arch: Arch) -> String {
    match offset {
        NUMBER => match arch.calls().name(value) {
            Some(name) => format!("{value} ({name})"),
            None => value.to_string(),
        },
        ARCH if value == arch.audit() => arch.to_string(),
        _ => format!("{value:#x}"),
    }
}

fn answer(value: u32) -> String {
    match value {
        0x7fff_0000 => "allow".to_owned(),
        0x0005_0000 => "ignore".to_owned(),
        0x8000_0000 => "kill".to_owned(),
        _ => format!("errno {}", value & 0xffff),
    }
}
