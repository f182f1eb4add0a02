//! The notation of the instruction rows, and their indexes by opcode and by name.
use super::super::Encoding;
use super::rows::{lds, memory, scalar, vop1, vop2, vop3, vopc};
use std::collections::HashMap;
use std::sync::LazyLock;

/// What kind of operand a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `v`: vector registers.
    Vgpr,
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
    /// s_waitcnt_depctr.
    Message,
    HwReg,
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
    slots: [Option<Slot>; 5],
}

impl Row {
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
    Row { op, name, slots }
}

const fn class(letter: u8) -> Class {
    match letter {
        b'v' => Class::Vgpr,
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
        b'l' => Class::Delay,
        b'w' => Class::WaitCount,
        b'p' => Class::Depctr,
        _ => panic!("unknown operand class in an instruction row"),
    }
}

/// Rows of one encoding by opcode.
pub struct Table<const N: usize> {
    rows: &'static [Row],
    /// Position in `rows` plus one; 0: no such opcode.
    position: [u16; N],
}

impl<const N: usize> Table<N> {
    const fn new(rows: &'static [Row]) -> Self {
        let mut position = [0; N];
        let mut i = 0;
        while i < rows.len() {
            assert!(position[rows[i].op as usize] == 0, "two rows of one encoding have the same opcode");
            position[rows[i].op as usize] = i as u16 + 1;
            i += 1;
        }
        Self { rows, position }
    }

    pub fn get(&self, op: u32) -> Option<&'static Row> {
        let position = *self.position.get(op as usize)?;
        self.rows.get(usize::from(position).checked_sub(1)?)
    }
}

pub static SOP1: Table<256> = Table::new(scalar::SOP1);
pub static SOP2: Table<128> = Table::new(scalar::SOP2);
pub static SOPC: Table<128> = Table::new(scalar::SOPC);
pub static SOPK: Table<32> = Table::new(scalar::SOPK);
pub static SOPP: Table<128> = Table::new(scalar::SOPP);
pub static SMEM: Table<256> = Table::new(scalar::SMEM);
pub static VOP1: Table<256> = Table::new(vop1::VOP1);
pub static VOP2: Table<64> = Table::new(vop2::VOP2);
pub static VOPD: Table<32> = Table::new(vop2::VOPD);
pub static VOPC: Table<256> = Table::new(vopc::VOPC);
pub static VOP3P: Table<128> = Table::new(vop3::VOP3P);
pub static VINTERP: Table<128> = Table::new(vop3::VINTERP);
pub static LDSDIR: Table<4> = Table::new(vop3::LDSDIR);
pub static DS: Table<256> = Table::new(lds::DS);
pub static FLAT: Table<128> = Table::new(memory::FLAT);
pub static SCRATCH: Table<128> = Table::new(memory::SCRATCH);
pub static GLOBAL: Table<128> = Table::new(memory::GLOBAL);
pub static MUBUF: Table<256> = Table::new(memory::MUBUF);
static VOP3_ONLY: Table<1024> = Table::new(vop3::VOP3);

/// The row of a VOP3 opcode: the first 0x200 repeat VOPC, VOP2 and VOP1.
pub fn vop3(op: u32) -> Option<&'static Row> {
    match op {
        0..0x100 => VOPC.get(op),
        0x100..0x180 => VOP2.get(op - 0x100),
        0x180..0x200 => VOP1.get(op - 0x180),
        _ => VOP3_ONLY.get(op),
    }
}

/// The rows of every encoding that has a table of its own.
const TABLES: [(Encoding, &[Row]); 20] = [
    (Encoding::Sop1, scalar::SOP1),
    (Encoding::Sop2, scalar::SOP2),
    (Encoding::Sopc, scalar::SOPC),
    (Encoding::Sopk, scalar::SOPK),
    (Encoding::Sopp, scalar::SOPP),
    (Encoding::Smem, scalar::SMEM),
    (Encoding::Vop1, vop1::VOP1),
    (Encoding::Vop2, vop2::VOP2),
    (Encoding::Vopc, vopc::VOPC),
    (Encoding::Vop3, vop3::VOP3),
    (Encoding::Vop3Sd, vop3::VOP3),
    (Encoding::Vop3p, vop3::VOP3P),
    (Encoding::Vopd, vop2::VOPD),
    (Encoding::Vinterp, vop3::VINTERP),
    (Encoding::LdsDir, vop3::LDSDIR),
    (Encoding::Ds, lds::DS),
    (Encoding::Flat, memory::FLAT),
    (Encoding::Global, memory::GLOBAL),
    (Encoding::Scratch, memory::SCRATCH),
    (Encoding::Mubuf, memory::MUBUF),
];

/// Every row under the encoding in which it appears.
pub fn all() -> impl Iterator<Item = (Encoding, &'static Row)> {
    TABLES.iter().flat_map(|(encoding, rows)| rows.iter().map(|row| (*encoding, row))).filter(
        |(encoding, row)| match encoding {
            Encoding::Vop3 => row.destinations().count() < 2,
            Encoding::Vop3Sd => row.destinations().count() == 2,
            _ => true,
        },
    )
}

/// The row of a decoded instruction, to print it.
pub fn by_name(encoding: Encoding, name: &str) -> Option<&'static Row> {
    static NAMES: LazyLock<HashMap<(Encoding, &'static str), &'static Row>> =
        LazyLock::new(|| all().map(|(encoding, row)| ((encoding, row.name), row)).collect());
    let get = |encoding| NAMES.get(&(encoding, name)).copied();
    // VOP3 repeats the rows of the 32-bit encodings.
    let repeated = || [Encoding::Vop1, Encoding::Vop2, Encoding::Vopc].into_iter().find_map(get);
    match encoding {
        Encoding::Vop3 | Encoding::Vop3Sd => get(encoding).or_else(repeated),
        _ => get(encoding),
    }
}
