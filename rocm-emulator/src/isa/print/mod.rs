//! Instruction printer, whose output is identical to that of llvm-objdump 22.
mod gfx12;
mod immediate;
mod memory;
mod modifier;
mod operand;
mod slot;

use super::table::{Class, Role, Row};
use super::tables::tables;
use super::vector::has_one_form;
use super::{Encoding, Family, Inst};
use std::fmt::Write;

/// Formats an instruction as llvm-objdump prints it.
pub fn format(family: Family, inst: &Inst) -> String {
    let Some(row) = tables(family).named(inst.encoding, inst.name) else {
        return format!("{} /* not an instruction of {family:?} */", inst.name);
    };
    let mut text = String::with_capacity(64);
    write_half(&mut text, family, inst, row);
    if let Some(pair) = &inst.pair {
        text.push_str(" :: ");
        match tables(family).named(pair.encoding, pair.name) {
            Some(row) => write_half(&mut text, family, pair, row),
            None => text.push_str(pair.name),
        }
    }
    text
}

/// Writes one instruction without its pair.
fn write_half(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    write_mnemonic(text, family, inst, row);
    match inst.encoding {
        Encoding::Ds => memory::write_ds(text, family, inst, row),
        Encoding::Flat | Encoding::Global | Encoding::Scratch => memory::write_flat(text, family, inst, row),
        Encoding::Mubuf => memory::write_mubuf(text, family, inst, row),
        Encoding::Smem if family == Family::Rdna4 => gfx12::write_smem(text, inst, row),
        Encoding::Smem => memory::write_smem(text, family, inst, row),
        _ => {
            write_operands(text, family, inst, row);
            modifier::write_all(text, family, inst, row);
        }
    }
}

/// Writes the mnemonic with its encoding suffix.
fn write_mnemonic(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    if inst.encoding == Encoding::Vopd {
        text.push_str("v_dual_");
        return text.push_str(inst.name.strip_prefix("v_").unwrap_or(inst.name));
    }
    let one_form = has_one_form(family, row) || !row.has_operands();
    text.push_str(inst.name);
    text.push_str(match inst.encoding {
        Encoding::Vop1 | Encoding::Vop2 | Encoding::Vopc => match (&inst.sdwa, &inst.dpp) {
            (Some(_), _) => "_sdwa",
            (_, Some(_)) if inst.encoding == Encoding::Vopc => "",
            (_, Some(_)) => "_dpp",
            _ if one_form => "",
            _ => "_e32",
        },
        Encoding::Vop3 | Encoding::Vop3Sd | Encoding::Vop3p if inst.dpp.is_some() => "_e64_dpp",
        Encoding::Vop3 | Encoding::Vop3Sd if !one_form && tables(family).short(inst.name).is_some() => "_e64",
        _ => "",
    });
}

/// Writes the operands in the row's order, separated by commas.
fn write_operands(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    let mut separator = " ";
    let (mut sources, mut destinations) = (0, 0);
    for slot in row.slots() {
        let index = if slot.role == Role::Source { &mut sources } else { &mut destinations };
        let at = *index;
        if slot.class == Class::Exec || is_omitted(inst, slot.class, slot.role) {
            *index += 1;
            continue;
        }
        if immediate::is_hidden(inst, slot.class) {
            continue;
        }
        text.push_str(separator);
        separator = ", ";
        if immediate::write(text, family, inst, slot.class) {
            continue;
        }
        *index += 1;
        if slot.role == Role::Source {
            slot::write_source(text, family, inst, slot, at);
        } else {
            slot::write_destination(text, family, inst, slot, at);
        }
    }
    if inst.encoding == Encoding::LdsDir && inst.name.ends_with("_param_load") {
        let channel = ["x", "y", "z", "w"][(inst.offset1 & 3) as usize];
        // Writing into a String cannot fail.
        let _ = write!(text, ", attr{}.{channel}", inst.offset0);
    }
}

/// Returns true for the VCC source of a dual-issue conditional move, which is not printed.
fn is_omitted(inst: &Inst, class: Class, role: Role) -> bool {
    inst.encoding == Encoding::Vopd && class == Class::Mask && role == Role::Source
}
