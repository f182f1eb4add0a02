//! The tables of each chip by opcode and by name.
use super::super::scalar::Sop;
use super::super::table::{self, Names, Row, Rows, Table};
use super::super::{Encoding, Family};
use super::rows::{lds, memory, scalar, vop1, vop2, vop3, vopc};
use std::sync::LazyLock;

/// The chips as bits of a row: gfx908, gfx90a, gfx942.
pub const CDNA1: u8 = 1;
pub const CDNA2: u8 = 2;
pub const CDNA3: u8 = 4;

/// What one chip can decode.
pub struct Tables {
    pub sop: Sop,
    pub smem: Table<256>,
    pub vop1: Table<128>,
    pub vop2: Table<64>,
    pub vopc: Table<256>,
    vop3: Table<1024>,
    pub vop3p: Table<128>,
    pub ds: Table<256>,
    pub flat: Table<128>,
    pub scratch: Table<128>,
    pub global: Table<128>,
    pub mubuf: Table<128>,
    /// The rows by name.
    pub names: LazyLock<Names>,
}

impl Tables {
    const fn on(chip: u8, names: fn() -> Names) -> Self {
        Self {
            sop: Sop {
                sop1: Table::on(scalar::SOP1, chip),
                sop2: Table::on(scalar::SOP2, chip),
                sopc: Table::on(scalar::SOPC, chip),
                sopk: Table::on(scalar::SOPK, chip),
                sopp: Table::on(scalar::SOPP, chip),
            },
            smem: Table::on(scalar::SMEM, chip),
            vop1: Table::on(vop1::VOP1, chip),
            vop2: Table::on(vop2::VOP2, chip),
            vopc: Table::on(vopc::VOPC, chip),
            vop3: Table::on(vop3::VOP3, chip),
            vop3p: Table::on(vop3::VOP3P, chip),
            ds: Table::on(lds::DS, chip),
            flat: Table::on(memory::FLAT, chip),
            scratch: Table::on(memory::SCRATCH, chip),
            global: Table::on(memory::GLOBAL, chip),
            mubuf: Table::on(memory::MUBUF, chip),
            names: LazyLock::new(names),
        }
    }

    /// The row of a VOP3 opcode: the first 0x1c0 repeat VOPC, VOP2 and VOP1.
    pub fn vop3(&self, op: u32) -> Option<&'static Row> {
        match op {
            0..0x100 => self.vopc.get(op),
            0x100..0x140 => self.vop2.get(op - 0x100),
            0x140..0x1c0 => self.vop1.get(op - 0x140),
            _ => self.vop3.get(op),
        }
    }
}

static GFX908: Tables = Tables::on(CDNA1, || Names::new(all(Family::Cdna1)));
static GFX90A: Tables = Tables::on(CDNA2, || Names::new(all(Family::Cdna2)));
static GFX942: Tables = Tables::on(CDNA3, || Names::new(all(Family::Cdna3)));

/// The tables of the chip.
pub fn tables(family: Family) -> &'static Tables {
    match family {
        Family::Cdna1 => &GFX908,
        Family::Cdna2 => &GFX90A,
        _ => &GFX942,
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

/// Every row of the chip under the encoding in which it appears.
pub fn all(family: Family) -> impl Iterator<Item = (Encoding, &'static Row)> {
    let chip = match family {
        Family::Cdna1 => CDNA1,
        Family::Cdna2 => CDNA2,
        _ => CDNA3,
    };
    table::all(&TABLES).filter(move |(_, row)| row.is_on(chip))
}
