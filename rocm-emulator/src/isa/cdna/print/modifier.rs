//! What follows the operands of vector ALU instructions: op_sel, signs of packed halves, clamp, SDWA, DPP, the
//! fields of matrix products.
use super::super::super::print::modifier::{write_dpp, write_list};
use super::super::super::table::Row;
use super::super::super::{Encoding, Family, Inst, Sdwa, SdwaSelect, SdwaUnused};
use super::super::vector::{FIRST_VOP3_ONLY, is_matrix, is_mixed};
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

fn write_packed(text: &mut String, inst: &Inst, row: &Row) -> std::fmt::Result {
    let count = row.sources().count();
    let list = |mask: u8| -> Vec<u8> { (0..count).map(|at| mask >> at & 1).collect() };
    let mods = &inst.mods;
    let mixed = is_mixed(inst.name);
    let selects = !["v_dot4_", "v_dot8_", "v_accvgpr_"].iter().any(|prefix| inst.name.starts_with(prefix));
    if selects {
        let (low, high) = (list(mods.op_sel), list(mods.op_sel_hi));
        if low.contains(&1) {
            write_list(text, "op_sel", &low)?;
        }
        // A packed operation takes its second half from the high halves unless told otherwise.
        if high.contains(&u8::from(mixed)) {
            write_list(text, "op_sel_hi", &high)?;
        }
    }
    if !mixed {
        for (name, mask) in [("neg_lo", mods.neg), ("neg_hi", mods.neg_hi)] {
            let bits = list(mask);
            if bits.contains(&1) {
                write_list(text, name, &bits)?;
            }
        }
    }
    Ok(())
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

fn write_sdwa(text: &mut String, sdwa: &Sdwa, sources: usize) -> std::fmt::Result {
    if let Some((select, unused)) = sdwa.dst {
        let unused = match unused {
            SdwaUnused::Pad => "UNUSED_PAD",
            SdwaUnused::SignExtend => "UNUSED_SEXT",
            SdwaUnused::Preserve => "UNUSED_PRESERVE",
        };
        write!(text, " dst_sel:{} dst_unused:{unused}", selected(select))?;
    }
    for (at, select) in sdwa.src.iter().enumerate().take(sources) {
        write!(text, " src{at}_sel:{}", selected(*select))?;
    }
    Ok(())
}

fn selected(select: SdwaSelect) -> &'static str {
    match select {
        SdwaSelect::Byte0 => "BYTE_0",
        SdwaSelect::Byte1 => "BYTE_1",
        SdwaSelect::Byte2 => "BYTE_2",
        SdwaSelect::Byte3 => "BYTE_3",
        SdwaSelect::Word0 => "WORD_0",
        SdwaSelect::Word1 => "WORD_1",
        SdwaSelect::Dword => "DWORD",
    }
}
