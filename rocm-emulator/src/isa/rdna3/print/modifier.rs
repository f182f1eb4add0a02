//! What follows the operands of vector ALU instructions: op_sel, signs of packed halves, clamp, DPP.
use super::super::super::print::modifier::{write_dpp, write_list};
use super::super::super::table::{Class, Row};
use super::super::super::{Encoding, Family, Inst};
use super::super::vector::is_mixed;
use std::fmt::Write;

/// All modifiers of a vector ALU instruction.
pub fn write_all(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    // Writing into a String cannot fail.
    let _ = match inst.encoding {
        Encoding::Vop3p => write_packed(text, inst, row),
        Encoding::Vop3 => write_half_selection(text, inst, row),
        _ => Ok(()),
    };
    text.push_str(if inst.mods.clamp { " clamp" } else { "" });
    if inst.encoding == Encoding::Vinterp {
        let _ = write_half_selection(text, inst, row);
    }
    text.push_str(["", " mul:2", " mul:4", " div:2"][usize::from(inst.mods.omod & 3)]);
    if let Some(dpp) = &inst.dpp {
        let _ = write_dpp(text, family, dpp);
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

/// `op_sel` of VOP3: repeated though the registers show the halves.
fn write_half_selection(text: &mut String, inst: &Inst, row: &Row) -> std::fmt::Result {
    let op_sel = inst.mods.op_sel;
    if let Some(byte) = selected_byte(inst) {
        return if byte == 0 { Ok(()) } else { write!(text, " byte_sel:{byte}") };
    }
    if inst.name.starts_with("v_permlane") {
        if op_sel & 3 != 0 {
            write!(text, " op_sel:[{},{}]", op_sel & 1, op_sel >> 1 & 1)?;
        }
        return Ok(());
    }
    if inst.name == "v_cndmask_b16" || !row.slots().any(|slot| slot.is_half()) {
        return Ok(());
    }
    // v_fmac reads its destination as third source.
    let sources = if inst.name == "v_fmac_f16" { 3 } else { row.sources().count() };
    let mut bits: Vec<u8> = (0..sources).map(|at| op_sel >> at & 1).collect();
    // The bit of a mask is listed too, except with DPP.
    let lists_destination = row.destinations().all(|slot| match slot.class {
        Class::Exec => false,
        Class::Mask => inst.dpp.is_none(),
        _ => true,
    });
    if lists_destination {
        bits.push(op_sel >> 3 & 1);
    }
    if bits.contains(&1) { write_list(text, "op_sel", &bits) } else { Ok(()) }
}

/// The byte of a register that holds an 8-bit float: a conversion's source, or what stochastic rounding writes.
pub fn selected_byte(inst: &Inst) -> Option<u8> {
    let op_sel = inst.mods.op_sel;
    match inst.name {
        "v_cvt_f32_fp8" | "v_cvt_f32_bf8" => Some((op_sel & 1) << 1 | op_sel >> 1 & 1),
        "v_cvt_sr_fp8_f32" | "v_cvt_sr_bf8_f32" => Some(op_sel >> 2 & 3),
        _ => None,
    }
}

fn write_packed(text: &mut String, inst: &Inst, row: &Row) -> std::fmt::Result {
    let count = row.sources().count();
    let list = |mask: u8| -> Vec<u8> { (0..count).map(|at| mask >> at & 1).collect() };
    let mods = &inst.mods;
    let mixed = is_mixed(inst.name);
    let selects = !["v_dot4_", "v_dot8_", "v_wmma_f32_", "v_wmma_i32_"]
        .iter()
        .any(|prefix| inst.name.starts_with(prefix));
    if inst.name.starts_with("v_swmmac_") {
        // Which of the index register's parts belongs to the matrix.
        if mods.op_sel != 0 {
            write!(text, " index_key:{}", mods.op_sel)?;
        }
    } else if selects {
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
