//! The tables of gfx12: its own rows, and those that it shares with gfx11 and others.
use super::super::Encoding;
use super::super::rdna3::rows as gfx11;
use super::super::rows as shared;
use super::super::table::{Names, RDNA4};
use super::super::tables::{Lists, Tables};
use super::rows::{memory, scalar, vector};

const LISTS: &[Lists] = &[
    (Encoding::Sop1, &[scalar::SOP1, gfx11::scalar::SOP1]),
    (Encoding::Sop2, &[scalar::SOP2, gfx11::scalar::SOP2, shared::scalar::SOP2]),
    (Encoding::Sopc, &[scalar::SOPC, gfx11::scalar::SOPC, shared::scalar::SOPC]),
    (Encoding::Sopk, &[scalar::SOPK, gfx11::scalar::SOPK, shared::scalar::SOPK]),
    (Encoding::Sopp, &[scalar::SOPP, gfx11::scalar::SOPP, shared::scalar::SOPP]),
    (Encoding::Smem, &[scalar::SMEM, gfx11::scalar::SMEM, shared::scalar::SMEM]),
    (Encoding::Vop1, &[vector::VOP1, gfx11::vop1::VOP1, shared::vop1::VOP1]),
    (Encoding::Vop2, &[vector::VOP2, gfx11::vop2::VOP2, shared::vop2::VOP2]),
    (Encoding::Vopc, shared::vopc::RDNA3_VOPC),
    (Encoding::Vop3, &[vector::VOP3, gfx11::vop3::VOP3, shared::vop3::VOP3]),
    (Encoding::Vop3p, &[vector::VOP3P, gfx11::vop3::VOP3P, shared::vop3::VOP3P]),
    (Encoding::Vopd, &[vector::VOPD, gfx11::vop2::VOPD]),
    (Encoding::Vinterp, &[gfx11::vop3::VINTERP]),
    (Encoding::LdsDir, &[vector::LDSDIR, gfx11::vop3::LDSDIR]),
    (Encoding::Ds, &[memory::DS, gfx11::lds::DS, shared::lds::DS]),
    (Encoding::Flat, &[memory::FLAT, gfx11::memory::FLAT, shared::memory::FLAT]),
    (Encoding::Global, &[memory::GLOBAL, gfx11::memory::GLOBAL, shared::memory::GLOBAL]),
    (Encoding::Scratch, &[memory::SCRATCH, gfx11::memory::SCRATCH, shared::memory::SCRATCH]),
    (Encoding::Mubuf, &[memory::MUBUF, gfx11::memory::MUBUF, shared::memory::MUBUF]),
];

pub static GFX12: Tables = Tables::new(LISTS, RDNA4, 0x180, || Names::new(GFX12.rows()));
