//! Modifiers that are lists, and DPP.
use super::super::fields::is_mixed;
use super::super::table::Row;
use super::super::{Dpp, DppControl, Family, Inst};
use std::fmt::Write;

/// ` name:[0,1,...]`
pub fn write_list(text: &mut String, name: &str, bits: &[u8]) -> std::fmt::Result {
    write!(text, " {name}:[")?;
    for (i, bit) in bits.iter().enumerate() {
        write!(text, "{}{bit}", if i == 0 { "" } else { "," })?;
    }
    write!(text, "]")
}

/// Selected halves and signs of a packed operation; dot products of bytes select nothing.
pub fn write_packed(text: &mut String, inst: &Inst, row: &Row) -> std::fmt::Result {
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

/// The DPP control and masks.
pub fn write_dpp(text: &mut String, family: Family, dpp: &Dpp) -> std::fmt::Result {
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
