//! What follows the operands of vector ALU instructions: op_sel, signs of packed halves, clamp, SDWA, DPP.
use super::super::super::print::modifier::{write_dpp, write_list, write_packed};
use super::super::super::sdwa::write_sdwa;
use super::super::super::table::Row;
use super::super::super::{Encoding, Family, Inst};
use super::super::table::GFX10;
use std::fmt::Write;

/// All modifiers of a vector ALU instruction.
pub fn write_all(text: &mut String, inst: &Inst, row: &Row) {
    // Writing into a String cannot fail.
    let _ = match inst.encoding {
        Encoding::Vop3p => write_packed(text, inst, row),
        Encoding::Vop3 => write_half_selection(text, inst, row),
        _ => Ok(()),
    };
    text.push_str(if inst.mods.clamp { " clamp" } else { "" });
    text.push_str(["", " mul:2", " mul:4", " div:2"][usize::from(inst.mods.omod & 3)]);
    if let Some(dpp) = &inst.dpp {
        let _ = write_dpp(text, Family::Rdna2, dpp);
    }
    if let Some(sdwa) = &inst.sdwa {
        let _ = write_sdwa(text, sdwa, row.sources().count());
    }
}

/// `op_sel` of VOP3: the 16-bit instructions that exist only there have it.
fn write_half_selection(text: &mut String, inst: &Inst, row: &Row) -> std::fmt::Result {
    let op_sel = inst.mods.op_sel;
    if inst.name.starts_with("v_permlane") {
        return if op_sel & 3 == 0 {
            Ok(())
        } else {
            write!(text, " op_sel:[{},{}]", op_sel & 1, op_sel >> 1 & 1)
        };
    }
    if GFX10.names.get_short(inst.name).is_some() || !row.slots().any(|slot| slot.is_half()) {
        return Ok(());
    }
    let mut bits: Vec<u8> = (0..row.sources().count()).map(|at| op_sel >> at & 1).collect();
    bits.push(op_sel >> 3 & 1);
    if bits.contains(&1) { write_list(text, "op_sel", &bits) } else { Ok(()) }
}
