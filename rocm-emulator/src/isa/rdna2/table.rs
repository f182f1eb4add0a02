//! The tables of gfx10.3.
use super::super::Encoding;
use super::super::rows as shared;
use super::super::table::{Names, RDNA2};
use super::super::tables::{Lists, Tables};
use super::rows::{lds, memory, scalar, vop1, vop2, vop3};

const LISTS: &[Lists] = &[
    (Encoding::Sop1, &[scalar::SOP1]),
    (Encoding::Sop2, &[scalar::SOP2, shared::scalar::SOP2]),
    (Encoding::Sopc, &[shared::scalar::SOPC]),
    (Encoding::Sopk, &[scalar::SOPK, shared::scalar::SOPK]),
    (Encoding::Sopp, &[scalar::SOPP, shared::scalar::SOPP]),
    (Encoding::Smem, &[scalar::SMEM, shared::scalar::SMEM]),
    (Encoding::Vop1, &[vop1::VOP1, shared::vop1::VOP1]),
    (Encoding::Vop2, &[vop2::VOP2, shared::vop2::VOP2]),
    (Encoding::Vopc, shared::vopc::RDNA2_VOPC),
    (Encoding::Vop3, &[vop3::VOP3, shared::vop3::VOP3]),
    (Encoding::Vop3p, &[vop3::VOP3P, shared::vop3::VOP3P]),
    (Encoding::Ds, &[lds::DS, shared::lds::DS]),
    (Encoding::Flat, &[memory::FLAT, shared::memory::FLAT]),
    (Encoding::Global, &[memory::GLOBAL, shared::memory::GLOBAL]),
    (Encoding::Scratch, &[memory::SCRATCH, shared::memory::SCRATCH]),
    (Encoding::Mubuf, &[memory::MUBUF, shared::memory::MUBUF]),
];

pub static GFX10: Tables = Tables::new(LISTS, RDNA2, 0x180, || Names::new(GFX10.rows()));
