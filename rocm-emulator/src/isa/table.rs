//! The notation of the instruction rows, and their indexes by opcode and by name. The rows themselves are
//! each family's.
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

/// One instruction of an encoding.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub op: u16,
    pub name: &'static str,
    /// The chips that have it, a bit each; meaningful only within a family.
    chips: u8,
    slots: [Option<Slot>; 5],
}

impl Row {
    /// The row restricted to some chips of the family.
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
pub struct Table<const N: usize> {
    rows: &'static [Row],
    /// Rows of another family, which this one has too.
    shared: &'static [Row],
    /// Position in `rows` and then `shared`, plus one; 0: no such opcode.
    position: [u16; N],
}

impl<const N: usize> Table<N> {
    pub const fn new(rows: &'static [Row]) -> Self {
        Self::on(rows, u8::MAX)
    }

    /// The rows that one of these chips has.
    pub const fn on(rows: &'static [Row], chips: u8) -> Self {
        Self::with_shared(rows, &[], chips)
    }

    /// The rows of both lists that one of these chips has.
    pub const fn with_shared(rows: &'static [Row], shared: &'static [Row], chips: u8) -> Self {
        let mut position = [0; N];
        let mut i = 0;
        while i < rows.len() + shared.len() {
            let row = if i < rows.len() { rows[i] } else { shared[i - rows.len()] };
            if row.is_on(chips) {
                assert!(position[row.op as usize] == 0, "two rows of one encoding have the same opcode");
                position[row.op as usize] = i as u16 + 1;
            }
            i += 1;
        }
        Self { rows, shared, position }
    }

    pub fn get(&self, op: u32) -> Option<&'static Row> {
        let at = usize::from(*self.position.get(op as usize)?).checked_sub(1)?;
        self.rows.get(at).or_else(|| self.shared.get(at.wrapping_sub(self.rows.len())))
    }
}

/// The rows of one encoding.
pub type Rows = (Encoding, &'static [Row]);

/// Every row of these tables under the encoding in which it appears.
pub fn all(tables: &'static [Rows]) -> impl Iterator<Item = (Encoding, &'static Row)> {
    tables.iter().flat_map(|(encoding, rows)| rows.iter().map(|row| (*encoding, row))).filter(
        |(encoding, row)| match encoding {
            Encoding::Vop3 => row.destinations().count() < 2,
            Encoding::Vop3Sd => row.destinations().count() == 2,
            _ => true,
        },
    )
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
