//! The tables of gfx10.3 by opcode and by name.
use super::super::Encoding;
use super::super::scalar::Sop;
use super::super::table::{self, Names, Row, Rows, Table};
use super::rows::{lds, memory, scalar, vop1, vop2, vop3, vopc};
use std::sync::LazyLock;

pub static SOP: Sop = Sop {
    sop1: Table::new(scalar::SOP1),
    sop2: Table::new(scalar::SOP2),
    sopc: Table::new(scalar::SOPC),
    sopk: Table::new(scalar::SOPK),
    sopp: Table::new(scalar::SOPP),
};
pub static SMEM: Table<256> = Table::new(scalar::SMEM);
pub static VOP1: Table<128> = Table::new(vop1::VOP1);
pub static VOP2: Table<64> = Table::new(vop2::VOP2);
pub static VOPC: Table<256> = Table::new(vopc::VOPC);
pub static VOP3P: Table<128> = Table::new(vop3::VOP3P);
pub static DS: Table<256> = Table::new(lds::DS);
pub static FLAT: Table<128> = Table::new(memory::FLAT);
pub static SCRATCH: Table<128> = Table::new(memory::SCRATCH);
pub static GLOBAL: Table<128> = Table::new(memory::GLOBAL);
pub static MUBUF: Table<256> = Table::new(memory::MUBUF);
static VOP3_ONLY: Table<1024> = Table::new(vop3::VOP3);

/// The row of a VOP3 opcode: some repeat VOPC, VOP2 and VOP1.
pub fn vop3(op: u32) -> Option<&'static Row> {
    match op {
        0..0x100 => VOPC.get(op),
        0x100..0x140 => VOP2.get(op - 0x100),
        0x180..0x200 => VOP1.get(op - 0x180),
        _ => VOP3_ONLY.get(op),
    }
}

/// The rows of every encoding that has a table of its own.
const TABLES: [Rows; 17] = [
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
    (Encoding::Ds, lds::DS),
    (Encoding::Flat, memory::FLAT),
    (Encoding::Global, memory::GLOBAL),
    (Encoding::Scratch, memory::SCRATCH),
    (Encoding::Mubuf, memory::MUBUF),
];

/// Every row under the encoding in which it appears.
pub fn all() -> impl Iterator<Item = (Encoding, &'static Row)> {
    table::all(&TABLES)
}

/// The rows by name.
pub static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(all()));
