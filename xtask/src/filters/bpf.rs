//! From the graph to a program of classic BPF, and a machine that runs it.

use super::decide::Call;
use super::source::{Error, Place};
use super::tree::{Graph, Id, Node};

/// One instruction: the kernel's `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if the comparison holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// `A = word at k`.
pub const LOAD: u16 = 0x20;
/// `A &= k`.
pub const AND: u16 = 0x54;
/// Skip `k`.
pub const JUMP: u16 = 0x05;
/// Compare `A == k`.
pub const EQUAL: u16 = 0x15;
/// Compare `A > k`; seccompiler writes it, we do not.
pub const GREATER: u16 = 0x25;
/// Compare `A >= k`.
pub const AT_LEAST: u16 = 0x35;
/// Return `k`.
pub const RETURN: u16 = 0x06;

/// The kernel takes no longer program.
pub const MAX_LENGTH: usize = 4096;

impl Insn {
    const fn new(code: u16, jt: u8, jf: u8, k: u32) -> Self {
        Insn { code, jt, jf, k }
    }
}

/// Lays the graph out; `place` is blamed when it is too long.
pub fn assemble(graph: &Graph, start: Id, place: &Place) -> Result<Vec<Insn>, Error> {
    let mut layout = Layout { graph, code: Vec::new(), at: vec![None; graph.nodes.len()] };
    layout.emit(start);
    if layout.code.len() > MAX_LENGTH {
        let length = layout.code.len();
        let what = format!("the program has {length} instructions, the kernel takes {MAX_LENGTH}");
        return Err(Error::new(place, what, "fewer conditions, or the same ones for more calls"));
    }
    layout.code.reverse();
    Ok(layout.code)
}

/// Code is laid out from its end, as jumps go forward only: an instruction's index here is its
/// distance from the last one.
struct Layout<'a> {
    graph: &'a Graph,
    code: Vec<Insn>,
    at: Vec<Option<usize>>,
}

impl Layout<'_> {
    fn emit(&mut self, id: Id) {
        if self.at[id].is_some() {
            return;
        }
        match self.graph.nodes[id] {
            Node::Return(ref action) => self.code.push(Insn::new(RETURN, 0, 0, action.code())),
            Node::Load { offset, mask, then } => {
                self.emit(then);
                let distance = self.distance(then);
                if distance > 0 {
                    self.code.push(Insn::new(JUMP, 0, 0, distance as u32));
                }
                if mask != u32::MAX {
                    self.code.push(Insn::new(AND, 0, 0, mask));
                }
                self.code.push(Insn::new(LOAD, 0, 0, offset));
            }
            Node::Equal { value, yes, no } => self.branch(EQUAL, value, yes, no),
            Node::AtLeast { value, yes, no } => self.branch(AT_LEAST, value, yes, no),
        }
        self.at[id] = Some(self.code.len() - 1);
    }

    fn branch(&mut self, code: u16, value: u32, yes: Id, no: Id) {
        self.emit(no);
        self.emit(yes);
        // What is brought near for `no` puts `yes` one further away.
        self.bring_near(yes, usize::from(u8::MAX) - 1);
        self.bring_near(no, usize::from(u8::MAX));
        let (yes, no) = (self.distance(yes) as u8, self.distance(no) as u8);
        self.code.push(Insn::new(code, yes, no, value));
    }

    /// How many instructions the next one must skip to go on at `id`.
    fn distance(&self, id: Id) -> usize {
        self.code.len() - 1 - self.at[id].expect("what a node leads to is laid out before it")
    }

    /// A comparison skips 255 at most: beyond that an end is repeated, anything else jumped to.
    fn bring_near(&mut self, id: Id, limit: usize) {
        let distance = self.distance(id);
        if distance <= limit {
            return;
        }
        self.code.push(match &self.graph.nodes[id] {
            Node::Return(action) => Insn::new(RETURN, 0, 0, action.code()),
            _ => Insn::new(JUMP, 0, 0, distance as u32),
        });
        self.at[id] = Some(self.code.len() - 1);
    }
}

/// Runs a program as the kernel would; gives its answer and how many instructions that took.
///
/// # Errors
///
/// What the kernel would have refused at installation: an unknown instruction, a load off the
/// input, a jump past the end.
pub fn run(program: &[Insn], call: &Call) -> Result<(u32, usize), String> {
    let mut input = [0; 16];
    input[..2].copy_from_slice(&[call.number, call.audit]);
    for (halves, argument) in input[4..].chunks_exact_mut(2).zip(call.arguments) {
        halves.copy_from_slice(&[argument as u32, (argument >> 32) as u32]);
    }

    let mut word = 0u32;
    let mut next = 0;
    for steps in 1.. {
        let Some(&Insn { code, jt, jf, k }) = program.get(next) else {
            return Err(format!("jump to {next}, past the end"));
        };
        next += 1;
        let skip = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            LOAD => {
                let there = input.get(k as usize / 4).filter(|_| k.is_multiple_of(4));
                word = *there.ok_or_else(|| format!("{}: load of byte {k}", next - 1))?;
            }
            AND => word &= k,
            JUMP => next += k as usize,
            EQUAL => next += skip(word == k),
            GREATER => next += skip(word > k),
            AT_LEAST => next += skip(word >= k),
            RETURN => return Ok((k, steps)),
            _ => return Err(format!("{}: instruction {code:#x}", next - 1)),
        }
    }
    unreachable!("jumps go forward only")
}
