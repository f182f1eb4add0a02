//! The text of an instruction, character for character as llvm-objdump 22 prints it.

mod immediate;
mod memory;
mod modifier;

use super::super::print::memory::write_ds;
use super::super::print::slot::{write_destination, write_source};
use super::super::table::{Role, Row};
use super::super::{Encoding, Family, Inst};
use super::memory::has_two_offsets;
use super::table::tables;
use super::vector::has_one_form;

/// The instruction as llvm-objdump prints it. Branch targets are distances, so the address does not matter.
pub fn format(family: Family, inst: &Inst, _address: u64) -> String {
    let Some(row) = tables(family).names.get(inst.encoding, inst.name) else {
        return format!("{} /* not an instruction of {family:?} */", inst.name);
    };
    let mut text = String::with_capacity(64);
    write_mnemonic(&mut text, family, inst, row);
    match inst.encoding {
        Encoding::Ds => write_ds(&mut text, family, inst, row, has_two_offsets(inst.name)),
        Encoding::Flat | Encoding::Global | Encoding::Scratch => {
            memory::write_flat(&mut text, family, inst, row)
        }
        Encoding::Mubuf => memory::write_mubuf(&mut text, family, inst, row),
        Encoding::Smem => memory::write_smem(&mut text, family, inst, row),
        _ => {
            write_operands(&mut text, family, inst, row);
            modifier::write_all(&mut text, family, inst, row);
        }
    }
    text
}

/// The mnemonic with the suffix of its encoding.
fn write_mnemonic(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    text.push_str(inst.name);
    let one_form = has_one_form(row) || row.slots().next().is_none();
    text.push_str(match inst.encoding {
        Encoding::Vop1 | Encoding::Vop2 | Encoding::Vopc => match (&inst.sdwa, &inst.dpp) {
            (Some(_), _) => "_sdwa",
            (_, Some(_)) => "_dpp",
            _ if one_form => "",
            _ => "_e32",
        },
        Encoding::Vop3 | Encoding::Vop3Sd
            if !one_form && tables(family).names.get_short(inst.name).is_some() =>
        {
            "_e64"
        }
        _ => "",
    });
}

/// The operands in the row's order, separated by commas.
fn write_operands(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    let mut separator = " ";
    let (mut sources, mut destinations) = (0, 0);
    for slot in row.slots() {
        if immediate::is_hidden(inst, slot.class) {
            continue;
        }
        text.push_str(separator);
        separator = ", ";
        if immediate::write(text, family, inst, slot.class) {
            continue;
        }
        if slot.role == Role::Source {
            write_source(text, family, inst, slot, sources);
            sources += 1;
        } else {
            write_destination(text, family, inst, slot, destinations);
            destinations += 1;
        }
    }
}
