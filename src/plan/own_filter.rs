//! A seccomp filter that the user brings: a raw program of classic BPF, or seccompiler's JSON.
//!
//! It is checked before anything starts, so that a bad one is an error of the command line and not
//! a launch that fails at its last step: every instruction is one the kernel takes, every jump
//! stays inside, and no call of another architecture is let through.

use crate::sys::seccomp::Insn;

/// The kernel takes no longer program.
const MAX_LENGTH: usize = 4096;

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

/// Why a filter is not used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is no whole number of instructions.
    #[error("{0} bytes are no program: an instruction has 8; write JSON with a name in .json")]
    Size(usize),
    /// No instruction, or more than the kernel takes.
    #[error("{0} instructions; the kernel takes 1 to {MAX_LENGTH}")]
    Length(usize),
    /// An instruction that seccomp does not know, or one with a bad operand.
    #[error("instruction {0} (code {1:#06x}, operand {2:#x}) is none that seccomp takes")]
    Instruction(usize, u16, u32),
    /// A jump past the end, or a last instruction that does not return.
    #[error("instruction {0} leads past the end of the program")]
    Jump(usize),
    /// A program that does not look at the architecture.
    #[error(
        "instruction {0} lets calls of another architecture through; \
         begin the program with: load the architecture, refuse all but {NATIVE:#x}"
    )]
    Architecture(usize),
    /// JSON that seccompiler does not take.
    #[error("not a filter in seccompiler's JSON: {0}")]
    Json(#[from] seccompiler::Error),
    /// JSON with no filter, or with several.
    #[error("{0} filters in the file; write one")]
    Several(usize),
}

/// Reads a filter from the text of a JSON file, or from the bytes of a program.
///
/// # Errors
///
/// What would make the kernel refuse it, or make it let another architecture through.
pub fn read(bytes: &[u8], json: bool) -> Result<Vec<Insn>, Error> {
    let program = if json { from_json(bytes)? } else { from_bytes(bytes)? };
    check(&program)?;
    Ok(program)
}

fn from_json(text: &[u8]) -> Result<Vec<Insn>, Error> {
    let arch = std::env::consts::ARCH.try_into().map_err(seccompiler::Error::Backend)?;
    let mut filters = seccompiler::compile_from_json(text, arch)?.into_values();
    let (Some(filter), None) = (filters.next(), filters.next()) else {
        return Err(Error::Several(seccompiler::compile_from_json(text, arch)?.len()));
    };
    Ok(filter.into_iter().map(|insn| Insn::new(insn.code, insn.jt, insn.jf, insn.k)).collect())
}

fn from_bytes(bytes: &[u8]) -> Result<Vec<Insn>, Error> {
    let (insns, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(Error::Size(bytes.len()));
    }
    let insn = |&[c0, c1, jt, jf, k0, k1, k2, k3]: &[u8; 8]| {
        Insn::new(u16::from_ne_bytes([c0, c1]), jt, jf, u32::from_ne_bytes([k0, k1, k2, k3]))
    };
    Ok(insns.iter().map(insn).collect())
}

// Classic BPF as seccomp takes it (kernel/seccomp.c and net/core/filter.c): the codes, by what
// must be true of the operand.
const LOAD: u16 = 0x20;
const RETURN: u16 = 0x06;
const RETURN_A: u16 = 0x16;
const JUMP: u16 = 0x05;
const EQUAL: u16 = 0x15;
/// Comparisons of A with the operand or with X: `==`, `>`, `>=`, `&`.
const BRANCHES: [u16; 8] = [0x15, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d];
/// A or X of the input's length or an operand, X from A and back; arithmetic on A.
const PLAIN: [u16; 24] = [
    0x80, 0x81, 0x00, 0x01, 0x07, 0x87, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x3c, 0x44, 0x4c, 0x54, 0x5c,
    0x64, 0x6c, 0x74, 0x7c, 0x84, 0xa4, 0xac,
];
const DIVIDE: u16 = 0x34;
/// Loads and stores of the 16 words of scratch memory.
const MEMORY: [u16; 4] = [0x60, 0x61, 0x02, 0x03];

/// Whether the kernel will take the program, and whether it stands guard over the architecture.
fn check(program: &[Insn]) -> Result<(), Error> {
    if program.is_empty() || program.len() > MAX_LENGTH {
        return Err(Error::Length(program.len()));
    }
    for (index, insn) in program.iter().enumerate() {
        let sound = match insn.code {
            LOAD => insn.k.is_multiple_of(4) && insn.k < 64,
            DIVIDE => insn.k != 0,
            // Shifts by a constant.
            0x64 | 0x74 => insn.k < 32,
            RETURN | RETURN_A | JUMP => true,
            code if MEMORY.contains(&code) => insn.k < 16,
            code => PLAIN.contains(&code) || BRANCHES.contains(&code),
        };
        if !sound {
            return Err(Error::Instruction(index, insn.code, insn.k));
        }
        if nexts(program, index).any(|next| next >= program.len()) {
            return Err(Error::Jump(index));
        }
    }
    guard(program)
}

/// Where the program may go on after an instruction.
fn nexts(program: &[Insn], index: usize) -> impl Iterator<Item = usize> {
    let Insn { code, jt, jf, k } = program[index];
    let skips = match code {
        RETURN | RETURN_A => [None, None],
        JUMP => [Some(k as usize), None],
        code if BRANCHES.contains(&code) => [Some(jt.into()), Some(jf.into())],
        _ => [Some(0), None],
    };
    skips.into_iter().flatten().map(move |skip| index + 1 + skip)
}

/// Follows every path a call of another architecture can take. Of such a call only this is known:
/// that its architecture is not ours; so one comparison is certain, and of others both ends count.
fn guard(program: &[Insn]) -> Result<(), Error> {
    /// Offset of the architecture in the input.
    const ARCH: u32 = 4;
    // For each instruction, whether it is reached with the architecture loaded, and without.
    let mut reached = vec![[false; 2]; program.len()];
    reached[0][0] = true;
    for index in 0..program.len() {
        for known in [false, true] {
            if !reached[index][usize::from(known)] {
                continue;
            }
            let insn = &program[index];
            let allows = match insn.code {
                RETURN => insn.k & 0xffff_0000 >= 0x7fc0_0000 && insn.k & 0x8000_0000 == 0,
                RETURN_A => true,
                _ => false,
            };
            if allows {
                return Err(Error::Architecture(index));
            }
            let ours = known && insn.code == EQUAL && insn.k == NATIVE;
            let still = match insn.code {
                LOAD => insn.k == ARCH,
                JUMP => known,
                code => known && (BRANCHES.contains(&code) || matches!(code, 0x07 | 0x02 | 0x03)),
            };
            let taken = nexts(program, index).skip(usize::from(ours));
            for next in taken {
                reached[next][usize::from(still)] = true;
            }
        }
    }
    Ok(())
}
