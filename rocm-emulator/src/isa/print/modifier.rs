//! Printer of modifiers after the operands of vector ALU instructions: op_sel, signs of packed halves, clamp,
//! SDWA, DPP, and the fields of matrix products.
use super::super::fields::is_mixed;
use super::super::sdwa::write_sdwa;
use super::super::table::{Class, Row};
use super::super::tables::tables;
use super::super::vector::{FIRST_VOP3_ONLY, is_matrix};
use super::super::{Dpp, DppControl, Encoding, Family, Inst, Operand};
use std::fmt::{Result, Write};

/// Writes all modifiers of a vector ALU instruction.
pub fn write_all(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    // Writing into a String cannot fail.
    let _ = match inst.encoding {
        Encoding::Vop3p if is_matrix(row) => write_matrix(text, family, inst),
        Encoding::Vop3p => write_packed(text, inst, row),
        Encoding::Vop3 => write_half_selection(text, family, inst, row),
        _ => Ok(()),
    };
    text.push_str(if inst.mods.clamp { " clamp" } else { "" });
    if inst.encoding == Encoding::Vinterp {
        let _ = write_half_selection(text, family, inst, row);
    }
    text.push_str(["", " mul:2", " mul:4", " div:2"][usize::from(inst.mods.omod & 3)]);
    if let Some(dpp) = &inst.dpp {
        let _ = write_dpp(text, family, dpp);
    }
    if let Some(sdwa) = &inst.sdwa {
        let _ = write_sdwa(text, sdwa, row.sources().count());
    }
    let _ = match inst.encoding {
        Encoding::Vinterp => write!(text, " wait_exp:{}", inst.imm),
        Encoding::LdsDir if family == Family::Rdna4 => {
            write!(text, " wait_va_vdst:{} wait_vm_vsrc:{}", inst.imm & 15, inst.imm >> 7 & 1)
        }
        Encoding::LdsDir => write!(text, " wait_vdst:{}", inst.imm),
        _ => Ok(()),
    };
}

/// Writes VOP3's `op_sel`. On gfx9 and gfx10 only 16-bit instructions without a short form have it. On gfx11
/// it repeats the halves that the register names show.
fn write_half_selection(text: &mut String, family: Family, inst: &Inst, row: &Row) -> Result {
    let op_sel = inst.mods.op_sel;
    match inst.src[3] {
        Operand::Literal(table @ 1..=10) => write!(text, " bitop3:{table}")?,
        Operand::Literal(table) if table > 0 => write!(text, " bitop3:0x{table:x}")?,
        _ => {}
    }
    let starts_with = |prefixes: &[&str]| prefixes.iter().any(|prefix| inst.name.starts_with(prefix));
    let true16 = family.has_true16();
    if true16 && let Some(byte) = selected_byte(inst) {
        return if byte == 0 { Ok(()) } else { write!(text, " byte_sel:{byte}") };
    }
    if starts_with(&["v_permlane"]) {
        let selected = [op_sel & 1, op_sel >> 1 & 1];
        return if selected == [0, 0] { Ok(()) } else { write_list(text, "op_sel", &selected) };
    }
    // In gfx942's conversions to fp8 and bf8, op_sel selects the part of the destination.
    let to_fp8 = family.is_gfx9() && starts_with(&["v_cvt_pk_fp8", "v_cvt_pk_bf8", "v_cvt_sr_"]);
    let has_selection = match family {
        Family::Rdna3 | Family::Rdna35 | Family::Rdna4 => inst.name != "v_cndmask_b16",
        Family::Rdna2 => tables(family).short(inst.name).is_none(),
        _ => row.op >= FIRST_VOP3_ONLY && !inst.name.contains("_legacy_"),
    };
    if !has_selection || !to_fp8 && !row.slots().any(|slot| slot.is_half()) {
        return Ok(());
    }
    // v_fmac reads its destination as third source, and stochastic rounding has two selection bits.
    let three = true16 && inst.name == "v_fmac_f16" || starts_with(&["v_cvt_sr_"]);
    let sources = if three { 3 } else { row.sources().count() };
    let mut bits: Vec<u8> = (0..sources).map(|at| op_sel >> at & 1).collect();
    // A mask destination has a bit, too, except with DPP.
    let lists_destination = row.destinations().all(|slot| match slot.class {
        Class::Exec => false,
        Class::Mask => inst.dpp.is_none(),
        _ => true,
    });
    if lists_destination || !true16 {
        bits.push(op_sel >> 3 & 1);
    }
    if bits.contains(&1) { write_list(text, "op_sel", &bits) } else { Ok(()) }
}

/// Returns the byte of a gfx12 register that holds an 8-bit float: the source of a conversion, or the
/// destination of stochastic rounding.
fn selected_byte(inst: &Inst) -> Option<u8> {
    let op_sel = inst.mods.op_sel;
    match inst.name {
        "v_cvt_f32_fp8" | "v_cvt_f32_bf8" => Some((op_sel & 1) << 1 | op_sel >> 1 & 1),
        "v_cvt_sr_fp8_f32" | "v_cvt_sr_bf8_f32" => Some(op_sel >> 2 & 3),
        _ => None,
    }
}

/// Writes the broadcast modifiers of a matrix product. In gfx942's f64 products, blgp holds signs.
fn write_matrix(text: &mut String, family: Family, inst: &Inst) -> Result {
    let signs = family.is_gfx94() && inst.name.ends_with("_f64");
    for (name, value) in [("cbsz", inst.mods.cbsz), ("abid", inst.mods.abid), ("blgp", inst.mods.blgp)] {
        match (name, value) {
            (_, 0) => {}
            ("blgp", value) if signs => write_list(text, "neg", &[value & 1, value >> 1 & 1, value >> 2])?,
            _ => write!(text, " {name}:{value}")?,
        }
    }
    Ok(())
}

/// Writes ` name:[0,1,...]`.
fn write_list(text: &mut String, name: &str, bits: &[u8]) -> Result {
    write!(text, " {name}:[")?;
    for (i, bit) in bits.iter().enumerate() {
        write!(text, "{}{bit}", if i == 0 { "" } else { "," })?;
    }
    write!(text, "]")
}

/// Writes selected halves and signs of a packed operation. Dot products of bytes have no selection.
fn write_packed(text: &mut String, inst: &Inst, row: &Row) -> Result {
    let count = row.sources().count();
    let list = |mask: u8| -> Vec<u8> { (0..count).map(|at| mask >> at & 1).collect() };
    let mods = &inst.mods;
    let mixed = is_mixed(inst.name);
    let selects = !["v_dot4_", "v_dot8_", "v_accvgpr_", "v_wmma_f32_", "v_wmma_i32_"]
        .iter()
        .any(|prefix| inst.name.starts_with(prefix));
    if inst.name.starts_with("v_swmmac_") {
        // The part of the index register that applies to the matrix.
        if mods.op_sel != 0 {
            write!(text, " index_key:{}", mods.op_sel)?;
        }
    } else if selects {
        let (low, high) = (list(mods.op_sel), list(mods.op_sel_hi));
        if low.contains(&1) {
            write_list(text, "op_sel", &low)?;
        }
        // By default, the second operation of a packed instruction uses the high halves.
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

/// Writes the DPP control and masks.
fn write_dpp(text: &mut String, family: Family, dpp: &Dpp) -> Result {
    let full_row = match dpp.control {
        DppControl::Dpp8(lanes) => {
            write_list(text, "dpp8", &lanes)?;
            false
        }
        DppControl::QuadPerm(lanes) => {
            write_list(text, "quad_perm", &lanes)?;
            true
        }
        other => {
            let (name, amount) = match other {
                DppControl::RowShl(n) => ("row_shl", Some(n)),
                DppControl::RowShr(n) => ("row_shr", Some(n)),
                DppControl::RowRor(n) => ("row_ror", Some(n)),
                DppControl::RowShare(n) if family.is_gfx9() => ("row_newbcast", Some(n)),
                DppControl::RowShare(n) => ("row_share", Some(n)),
                DppControl::RowXmask(n) => ("row_xmask", Some(n)),
                DppControl::RowMirror => ("row_mirror", None),
                DppControl::RowHalfMirror => ("row_half_mirror", None),
                DppControl::WaveShl => ("wave_shl", Some(1)),
                DppControl::WaveRol => ("wave_rol", Some(1)),
                DppControl::WaveShr => ("wave_shr", Some(1)),
                DppControl::WaveRor => ("wave_ror", Some(1)),
                DppControl::RowBcast15 => ("row_bcast", Some(15)),
                DppControl::RowBcast31 => ("row_bcast", Some(31)),
                DppControl::QuadPerm(_) | DppControl::Dpp8(_) => return Ok(()),
            };
            write!(text, " {name}")?;
            if let Some(amount) = amount {
                write!(text, ":{amount}")?;
            }
            true
        }
    };
    if full_row {
        write!(text, " row_mask:0x{:x} bank_mask:0x{:x}", dpp.row_mask, dpp.bank_mask)?;
    }
    text.push_str(if dpp.bound_ctrl { " bound_ctrl:1" } else { "" });
    text.push_str(if dpp.fetch_inactive { " fi:1" } else { "" });
    Ok(())
}
