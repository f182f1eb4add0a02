//! What follows the operands of vector ALU instructions: op_sel, signs of packed halves, clamp, SDWA, DPP, the
//! fields of matrix products.
use super::super::super::print::modifier::{write_dpp, write_list, write_packed};
use super::super::super::sdwa::write_sdwa;
use super::super::super::table::Row;
use super::super::super::{Encoding, Family, Inst};
use super::super::vector::{FIRST_VOP3_ONLY, is_matrix};
use std::fmt::Write;

/// All modifiers of a vector ALU instruction.
pub fn write_all(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    // Writing into a String cannot fail.
    let _ = match inst.encoding {
        Encoding::Vop3p if is_matrix(row) => write_matrix(text, family, inst),
        Encoding::Vop3p => write_packed(text, inst, row),
        Encoding::Vop3 => write_half_selection(text, inst, row),
        _ => Ok(()),
    };
    text.push_str(if inst.mods.clamp { " clamp" } else { "" });
    text.push_str(["", " mul:2", " mul:4", " div:2"][usize::from(inst.mods.omod & 3)]);
    if let Some(dpp) = &inst.dpp {
        let _ = write_dpp(text, family, dpp);
    }
    if let Some(sdwa) = &inst.sdwa {
        let _ = write_sdwa(text, sdwa, row.sources().count());
    }
}

/// `op_sel` of VOP3: the 16-bit instructions that exist only there have it.
fn write_half_selection(text: &mut String, inst: &Inst, row: &Row) -> std::fmt::Result {
    let only_vop3 = row.op >= FIRST_VOP3_ONLY && !inst.name.contains("_legacy_");
    // To fp8 and bf8, op_sel selects the part of the destination; stochastic rounding takes two bits.
    let to_fp8 =
        ["v_cvt_pk_fp8", "v_cvt_pk_bf8", "v_cvt_sr_"].iter().any(|prefix| inst.name.starts_with(prefix));
    if !only_vop3 || !to_fp8 && !row.slots().any(|slot| slot.is_half()) {
        return Ok(());
    }
    let sources = if inst.name.starts_with("v_cvt_sr_") { 3 } else { row.sources().count() };
    let mut bits: Vec<u8> = (0..sources).map(|at| inst.mods.op_sel >> at & 1).collect();
    bits.push(inst.mods.op_sel >> 3 & 1);
    if bits.contains(&1) { write_list(text, "op_sel", &bits) } else { Ok(()) }
}

/// How blocks are broadcast. On gfx942 the last field of f64 products holds signs.
fn write_matrix(text: &mut String, family: Family, inst: &Inst) -> std::fmt::Result {
    let signs = family == Family::Cdna3 && inst.name.ends_with("_f64");
    for (name, value) in [("cbsz", inst.mods.cbsz), ("abid", inst.mods.abid), ("blgp", inst.mods.blgp)] {
        match (name, value) {
            (_, 0) => {}
            ("blgp", value) if signs => write_list(text, "neg", &[value & 1, value >> 1 & 1, value >> 2])?,
            _ => write!(text, " {name}:{value}")?,
        }
    }
    Ok(())
}
