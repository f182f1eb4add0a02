//! The notation of the instruction rows, and their indexes by opcode and by name.
use super::{Encoding, Inst, Mods, Operand};
use std::collections::HashMap;

/// What kind of operand a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `v`: vector registers.
    Vgpr,
    /// `g`: accumulation registers.
    Agpr,
    /// `t`: a matrix in vector or accumulation registers, as the instruction says; the addend may be a constant.
    Matrix,
    /// `x`: vector registers, scalar registers or a constant.
    Any,
    /// `c` (source) or `s`: scalar registers or a constant.
    Scalar,
    /// `b`: a lane mask in scalar registers; VCC without being encoded in the 32-bit encodings.
    Mask,
    /// `e`: EXEC, never encoded.
    Exec,
    /// `k`: the literal dword that follows the instruction.
    Literal,
    /// `a`, `d`, `q`: the address and data registers of a memory instruction.
    Address,
    Data0,
    Data1,
    /// `i`: 16-bit immediate in hexadecimal; `n`: the same in decimal; `r`: branch distance.
    Immediate,
    Decimal,
    Branch,
    /// `m`: message; `h`: hardware register; `l`, `w`, `p`: the fields of s_delay_alu, s_waitcnt and
    /// s_waitcnt_depctr; `j`: which operands are indexed.
    Message,
    HwReg,
    GprIndex,
    Delay,
    WaitCount,
    Depctr,
}

/// How the instruction uses a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Source,
    /// `=`
    Destination,
    /// `?`: written only if the instruction is told to return the old value.
    Returned,
}

/// One operand of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub class: Class,
    pub role: Role,
    /// Dwords; 0 is half a register (`h` in the notation), which a 16-bit operation selects with `.l`/`.h`.
    pub dwords: u8,
}

impl Slot {
    pub const fn is_half(&self) -> bool {
        self.dwords == 0
    }
}

/// The chips as bits of a row: gfx908, gfx90a, gfx942; gfx10.3, gfx11, gfx12.
pub const CDNA1: u8 = 1;
pub const CDNA2: u8 = 2;
pub const CDNA3: u8 = 4;
pub const CDNA: u8 = CDNA1 | CDNA2 | CDNA3;
pub const RDNA2: u8 = 8;
pub const RDNA3: u8 = 16;
pub const RDNA4: u8 = 32;
pub const RDNA: u8 = RDNA2 | RDNA3 | RDNA4;

/// One instruction of an encoding.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub op: u16,
    pub name: &'static str,
    /// The chips that have it, a bit each.
    chips: u8,
    slots: [Option<Slot>; 5],
}

impl Row {
    /// The row restricted to some chips.
    pub const fn on(mut self, chips: u8) -> Self {
        self.chips = chips;
        self
    }

    pub const fn is_on(&self, chips: u8) -> bool {
        self.chips & chips != 0
    }

    /// The operands in the order in which they are printed.
    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().flatten()
    }

    pub fn sources(&self) -> impl Iterator<Item = &Slot> {
        self.slots().filter(|slot| slot.role == Role::Source)
    }

    pub fn destinations(&self) -> impl Iterator<Item = &Slot> {
        self.slots().filter(|slot| slot.role != Role::Source)
    }
}

/// A row from its notation: operands as printed, one word each, `=v2 x1 xh`: role (`=`, `?` or nothing), class
/// letter (see [`Class`]), dwords or `h`. A mistake in the notation fails the build.
pub const fn row(op: u16, name: &'static str, notation: &'static str) -> Row {
    let text = notation.as_bytes();
    let mut slots = [None; 5];
    let (mut at, mut count) = (0, 0);
    while at < text.len() {
        let role = match text[at] {
            b'=' => Role::Destination,
            b'?' => Role::Returned,
            _ => Role::Source,
        };
        if !matches!(role, Role::Source) {
            at += 1;
        }
        let class = class(text[at]);
        at += 1;
        let mut dwords = 1;
        if at < text.len() && text[at] == b'h' {
            dwords = 0;
            at += 1;
        } else if at < text.len() && text[at] != b' ' {
            dwords = 0;
            while at < text.len() && text[at] != b' ' {
                dwords = dwords * 10 + (text[at] - b'0');
                at += 1;
            }
        }
        slots[count] = Some(Slot { class, role, dwords });
        count += 1;
        at += 1;
    }
    Row { op, name, chips: u8::MAX, slots }
}

const fn class(letter: u8) -> Class {
    match letter {
        b'v' => Class::Vgpr,
        b'g' => Class::Agpr,
        b't' => Class::Matrix,
        b'x' => Class::Any,
        b'c' | b's' => Class::Scalar,
        b'b' => Class::Mask,
        b'e' => Class::Exec,
        b'k' => Class::Literal,
        b'a' => Class::Address,
        b'd' => Class::Data0,
        b'q' => Class::Data1,
        b'i' => Class::Immediate,
        b'n' => Class::Decimal,
        b'r' => Class::Branch,
        b'm' => Class::Message,
        b'h' => Class::HwReg,
        b'j' => Class::GprIndex,
        b'l' => Class::Delay,
        b'w' => Class::WaitCount,
        b'p' => Class::Depctr,
        _ => panic!("unknown operand class in an instruction row"),
    }
}

/// Rows of one encoding by opcode.
pub struct Table<const N: usize>([Option<&'static Row>; N]);

impl<const N: usize> Table<N> {
    /// The rows of all lists that one of these chips has.
    pub const fn new(lists: &[&'static [Row]], chips: u8) -> Self {
        let mut rows: [Option<&'static Row>; N] = [None; N];
        let mut list = 0;
        while list < lists.len() {
            let mut n = 0;
            while n < lists[list].len() {
                let row: &'static Row = &lists[list][n];
                if row.is_on(chips) {
                    assert!(rows[row.op as usize].is_none(), "two rows of one encoding have the same opcode");
                    rows[row.op as usize] = Some(row);
                }
                n += 1;
            }
            list += 1;
        }
        Self(rows)
    }

    pub fn get(&self, op: u32) -> Option<&'static Row> {
        *self.0.get(op as usize)?
    }
}

/// Rows by name, to print decoded instructions.
pub struct Names(HashMap<(Encoding, &'static str), &'static Row>);

impl Names {
    pub fn new(rows: impl Iterator<Item = (Encoding, &'static Row)>) -> Self {
        Self(rows.map(|(encoding, row)| ((encoding, row.name), row)).collect())
    }

    pub fn get(&self, encoding: Encoding, name: &str) -> Option<&'static Row> {
        let get = |encoding| self.0.get(&(encoding, name)).copied();
        match encoding {
            // VOP3 repeats the rows of the 32-bit encodings.
            Encoding::Vop3 | Encoding::Vop3Sd => get(encoding).or_else(|| self.get_short(name)),
            _ => get(encoding),
        }
    }

    /// The row of the name in VOP1, VOP2 or VOPC.
    pub fn get_short(&self, name: &str) -> Option<&'static Row> {
        const SHORT: [Encoding; 3] = [Encoding::Vop1, Encoding::Vop2, Encoding::Vopc];
        SHORT.into_iter().find_map(|encoding| self.0.get(&(encoding, name)).copied())
    }
}

/// An instruction of a row with nothing filled in.
pub fn blank(row: &Row, encoding: Encoding) -> Inst {
    Inst {
        name: row.name,
        encoding,
        size: 0,
        dst: Operand::None,
        dst2: Operand::None,
        src: [Operand::None; 4],
        imm: 0,
        offset0: 0,
        offset1: 0,
        mods: Mods::default(),
        dpp: None,
        sdwa: None,
        pair: None,
    }
}
