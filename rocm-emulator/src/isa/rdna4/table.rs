//! The tables of gfx12: its own rows, and those that it shares with gfx11.
use super::super::Encoding;
use super::super::rdna3::rows as gfx11;
use super::super::rdna3::rows::RDNA4;
use super::super::rdna3::table::{TABLES as SHARED, Tables};
use super::super::scalar::Sop;
use super::super::table::{self, Names, Row, Rows, Table};
use super::rows::{memory, scalar, vector};
use std::sync::LazyLock;

pub static GFX12: Tables = Tables {
    sop: Sop {
        sop1: Table::with_shared(scalar::SOP1, gfx11::scalar::SOP1, RDNA4),
        sop2: Table::with_shared(scalar::SOP2, gfx11::scalar::SOP2, RDNA4),
        sopc: Table::with_shared(scalar::SOPC, gfx11::scalar::SOPC, RDNA4),
        sopk: Table::with_shared(scalar::SOPK, gfx11::scalar::SOPK, RDNA4),
        sopp: Table::with_shared(scalar::SOPP, gfx11::scalar::SOPP, RDNA4),
    },
    smem: Table::with_shared(scalar::SMEM, gfx11::scalar::SMEM, RDNA4),
    vop1: Table::with_shared(vector::VOP1, gfx11::vop1::VOP1, RDNA4),
    vop2: Table::with_shared(vector::VOP2, gfx11::vop2::VOP2, RDNA4),
    vopd: Table::with_shared(vector::VOPD, gfx11::vop2::VOPD, RDNA4),
    vopc: Table::on(gfx11::vopc::VOPC, RDNA4),
    vop3: Table::with_shared(vector::VOP3, gfx11::vop3::VOP3, RDNA4),
    vop3p: Table::with_shared(vector::VOP3P, gfx11::vop3::VOP3P, RDNA4),
    vinterp: Table::on(gfx11::vop3::VINTERP, RDNA4),
    ldsdir: Table::with_shared(vector::LDSDIR, gfx11::vop3::LDSDIR, RDNA4),
    ds: Table::with_shared(memory::DS, gfx11::lds::DS, RDNA4),
    flat: Table::with_shared(memory::FLAT, gfx11::memory::FLAT, RDNA4),
    scratch: Table::with_shared(memory::SCRATCH, gfx11::memory::SCRATCH, RDNA4),
    global: Table::with_shared(memory::GLOBAL, gfx11::memory::GLOBAL, RDNA4),
    mubuf: Table::with_shared(memory::MUBUF, gfx11::memory::MUBUF, RDNA4),
    names: LazyLock::new(|| Names::new(all())),
};

/// The rows of every encoding that has rows of its own.
const TABLES: [Rows; 18] = [
    (Encoding::Sop1, scalar::SOP1),
    (Encoding::Sop2, scalar::SOP2),
    (Encoding::Sopc, scalar::SOPC),
    (Encoding::Sopk, scalar::SOPK),
    (Encoding::Sopp, scalar::SOPP),
    (Encoding::Smem, scalar::SMEM),
    (Encoding::Vop1, vector::VOP1),
    (Encoding::Vop2, vector::VOP2),
    (Encoding::Vop3, vector::VOP3),
    (Encoding::Vop3Sd, vector::VOP3),
    (Encoding::Vop3p, vector::VOP3P),
    (Encoding::Vopd, vector::VOPD),
    (Encoding::LdsDir, vector::LDSDIR),
    (Encoding::Ds, memory::DS),
    (Encoding::Flat, memory::FLAT),
    (Encoding::Global, memory::GLOBAL),
    (Encoding::Scratch, memory::SCRATCH),
    (Encoding::Mubuf, memory::MUBUF),
];

/// Every row of gfx12 under the encoding in which it appears.
pub fn all() -> impl Iterator<Item = (Encoding, &'static Row)> {
    table::all(&TABLES).chain(table::all(&SHARED)).filter(|(_, row)| row.is_on(RDNA4))
}
