//! The tables of each chip of gfx9.
use super::super::rows as shared;
use super::super::table::{CDNA1, CDNA2, CDNA3, Names};
use super::super::tables::{Lists, Tables};
use super::super::{Encoding, Family};
use super::rows::{lds, memory, scalar, vop1, vop2, vop3};

const LISTS: &[Lists] = &[
    (Encoding::Sop1, &[scalar::SOP1]),
    (Encoding::Sop2, &[scalar::SOP2, shared::scalar::SOP2]),
    (Encoding::Sopc, &[scalar::SOPC, shared::scalar::SOPC]),
    (Encoding::Sopk, &[scalar::SOPK, shared::scalar::SOPK]),
    (Encoding::Sopp, &[scalar::SOPP, shared::scalar::SOPP]),
    (Encoding::Smem, &[scalar::SMEM, shared::scalar::SMEM]),
    (Encoding::Vop1, &[vop1::VOP1, shared::vop1::VOP1]),
    (Encoding::Vop2, &[vop2::VOP2, shared::vop2::VOP2]),
    (Encoding::Vopc, shared::vopc::CDNA_VOPC),
    (Encoding::Vop3, &[vop3::VOP3, shared::vop3::VOP3]),
    (Encoding::Vop3p, &[vop3::VOP3P, shared::vop3::VOP3P]),
    (Encoding::Ds, &[lds::DS, shared::lds::DS]),
    (Encoding::Flat, &[memory::FLAT, shared::memory::FLAT]),
    (Encoding::Global, &[memory::GLOBAL, shared::memory::GLOBAL]),
    (Encoding::Scratch, &[memory::SCRATCH, shared::memory::SCRATCH]),
    (Encoding::Mubuf, &[memory::MUBUF, shared::memory::MUBUF]),
];

const VOP1_IN_VOP3: u32 = 0x140;

static GFX908: Tables = Tables::new(LISTS, CDNA1, VOP1_IN_VOP3, || Names::new(GFX908.rows()));
static GFX90A: Tables = Tables::new(LISTS, CDNA2, VOP1_IN_VOP3, || Names::new(GFX90A.rows()));
static GFX942: Tables = Tables::new(LISTS, CDNA3, VOP1_IN_VOP3, || Names::new(GFX942.rows()));

/// The tables of the chip.
pub fn tables(family: Family) -> &'static Tables {
    match family {
        Family::Cdna1 => &GFX908,
        Family::Cdna2 => &GFX90A,
        _ => &GFX942,
    }
}
