//! The tables of gfx11 by opcode and by name.
use super::super::Encoding;
use super::super::scalar::Sop;
use super::super::table::{self, Names, Row, Rows, Table};
use super::rows::{RDNA3, lds, memory, scalar, vop1, vop2, vop3, vopc};
use std::sync::LazyLock;

/// What a chip of gfx11 or gfx12 can decode.
pub struct Tables {
    pub sop: Sop,
    pub smem: Table<256>,
    pub vop1: Table<128>,
    pub vop2: Table<64>,
    pub vopd: Table<32>,
    pub vopc: Table<256>,
    /// Opcodes that exist only as VOP3.
    pub vop3: Table<1024>,
    pub vop3p: Table<128>,
    pub vinterp: Table<128>,
    pub ldsdir: Table<4>,
    pub ds: Table<256>,
    pub flat: Table<256>,
    pub scratch: Table<256>,
    pub global: Table<256>,
    pub mubuf: Table<256>,
    /// The rows by name.
    pub names: LazyLock<Names>,
}

impl Tables {
    /// The row of a VOP3 opcode: the first 0x200 repeat VOPC, VOP2 and VOP1.
    pub fn vop3(&self, op: u32) -> Option<&'static Row> {
        match op {
            0..0x100 => self.vopc.get(op),
            0x100..0x180 => self.vop2.get(op - 0x100),
            0x180..0x200 => self.vop1.get(op - 0x180),
            _ => self.vop3.get(op),
        }
    }
}

pub static GFX11: Tables = Tables {
    sop: Sop {
        sop1: Table::on(scalar::SOP1, RDNA3),
        sop2: Table::on(scalar::SOP2, RDNA3),
        sopc: Table::on(scalar::SOPC, RDNA3),
        sopk: Table::on(scalar::SOPK, RDNA3),
        sopp: Table::on(scalar::SOPP, RDNA3),
    },
    smem: Table::on(scalar::SMEM, RDNA3),
    vop1: Table::on(vop1::VOP1, RDNA3),
    vop2: Table::on(vop2::VOP2, RDNA3),
    vopd: Table::on(vop2::VOPD, RDNA3),
    vopc: Table::on(vopc::VOPC, RDNA3),
    vop3: Table::on(vop3::VOP3, RDNA3),
    vop3p: Table::on(vop3::VOP3P, RDNA3),
    vinterp: Table::on(vop3::VINTERP, RDNA3),
    ldsdir: Table::on(vop3::LDSDIR, RDNA3),
    ds: Table::on(lds::DS, RDNA3),
    flat: Table::on(memory::FLAT, RDNA3),
    scratch: Table::on(memory::SCRATCH, RDNA3),
    global: Table::on(memory::GLOBAL, RDNA3),
    mubuf: Table::on(memory::MUBUF, RDNA3),
    names: LazyLock::new(|| Names::new(all())),
};

/// The rows of every encoding that has a table of its own; gfx12 shares those that are not marked as gfx11's.
pub const TABLES: [Rows; 20] = [
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

/// Every row of gfx11 under the encoding in which it appears.
pub fn all() -> impl Iterator<Item = (Encoding, &'static Row)> {
    table::all(&TABLES).filter(|(_, row)| row.is_on(RDNA3))
}
