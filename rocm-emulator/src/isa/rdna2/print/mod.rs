//! The text of an instruction, character for character as llvm-objdump 22 prints it.

mod immediate;
mod modifier;

use super::super::print::memory::write_ds;
use super::super::print::rdna;
use super::super::print::slot::{write_destination, write_source};
use super::super::table::{Class, Role, Row};
use super::super::{Encoding, Family, Inst};
use super::memory::has_two_offsets;
use super::table::GFX10;
use super::vector::has_one_form;

/// The instruction as llvm-objdump prints it. Branch targets are distances, so the address does not matter.
pub fn format(inst: &Inst, _address: u64) -> String {
    let Some(row) = GFX10.names.get(inst.encoding, inst.name) else {
        return format!("{} /* not a gfx10 instruction */", inst.name);
    };
    let mut text = String::with_capacity(64);
    write_mnemonic(&mut text, inst, row);
    match inst.encoding {
        Encoding::Ds => write_ds(&mut text, Family::Rdna2, inst, row, has_two_offsets(inst.name)),
        Encoding::Flat | Encoding::Global | Encoding::Scratch => {
            rdna::write_flat(&mut text, Family::Rdna2, inst, row)
        }
        Encoding::Mubuf => rdna::write_mubuf(&mut text, Family::Rdna2, inst, row),
        Encoding::Smem => rdna::write_smem(&mut text, Family::Rdna2, inst, row),
        _ => {
            write_operands(&mut text, inst, row);
            modifier::write_all(&mut text, inst, row);
        }
    }
    text
}

/// The mnemonic with the suffix of its encoding.
fn write_mnemonic(text: &mut String, inst: &Inst, row: &Row) {
    text.push_str(inst.name);
    let one_form = has_one_form(row) || row.slots().next().is_none();
    text.push_str(match inst.encoding {
        Encoding::Vop1 | Encoding::Vop2 | Encoding::Vopc => match (&inst.sdwa, &inst.dpp) {
            (Some(_), _) => "_sdwa",
            (_, Some(_)) => "_dpp",
            _ if one_form => "",
            _ => "_e32",
        },
        Encoding::Vop3 | Encoding::Vop3Sd if !one_form && GFX10.names.get_short(inst.name).is_some() => {
            "_e64"
        }
        _ => "",
    });
}

/// The operands in the row's order, separated by commas.
fn write_operands(text: &mut String, inst: &Inst, row: &Row) {
    let mut separator = " ";
    let (mut sources, mut destinations) = (0, 0);
    for slot in row.slots() {
        if slot.class == Class::Exec {
            destinations += 1;
            continue;
        }
        if immediate::is_hidden(inst, slot.class) {
            continue;
        }
        text.push_str(separator);
        separator = ", ";
        if immediate::write(text, inst, slot.class) {
            continue;
        }
        if slot.role == Role::Source {
            write_source(text, Family::Rdna2, inst, slot, sources);
            sources += 1;
        } else {
            write_destination(text, Family::Rdna2, inst, slot, destinations);
            destinations += 1;
        }
    }
}
