//! The text of an instruction, character for character as llvm-objdump 22 prints it.

mod immediate;
mod modifier;
mod operand;

use super::super::print::memory::write_ds;
use super::super::print::rdna as memory;
use super::super::table::{Class, Names, Role, Row};
use super::super::{Encoding, Family, Inst};
use super::memory::has_two_offsets;
use super::table::GFX11;
use std::fmt::Write;

/// The instruction as llvm-objdump prints it. Branch targets are distances, so the address does not matter.
pub fn format(inst: &Inst, _address: u64) -> String {
    Printer { family: Family::Rdna3, names: &GFX11.names, write_memory }.format(inst)
}

/// Writes a memory instruction after its mnemonic.
fn write_memory(text: &mut String, inst: &Inst, row: &Row) {
    match inst.encoding {
        Encoding::Ds => write_ds(text, Family::Rdna3, inst, row, has_two_offsets(inst.name)),
        Encoding::Flat | Encoding::Global | Encoding::Scratch => {
            memory::write_flat(text, Family::Rdna3, inst, row)
        }
        Encoding::Mubuf => memory::write_mubuf(text, Family::Rdna3, inst, row),
        _ => memory::write_smem(text, Family::Rdna3, inst, row),
    }
}

/// What differs between the families that spell their ALU instructions as gfx11 does.
pub struct Printer {
    pub family: Family,
    pub names: &'static Names,
    pub write_memory: fn(&mut String, &Inst, &Row),
}

impl Printer {
    pub fn format(&self, inst: &Inst) -> String {
        let Some(row) = self.names.get(inst.encoding, inst.name) else {
            return format!("{} /* not an instruction of {:?} */", inst.name, self.family);
        };
        let mut text = String::with_capacity(64);
        self.write_half(&mut text, inst, row);
        if let Some(pair) = &inst.pair {
            text.push_str(" :: ");
            match self.names.get(pair.encoding, pair.name) {
                Some(row) => self.write_half(&mut text, pair, row),
                None => text.push_str(pair.name),
            }
        }
        text
    }

    /// One instruction without its pair.
    fn write_half(&self, text: &mut String, inst: &Inst, row: &Row) {
        write_mnemonic(text, self.names, inst, row);
        match inst.encoding {
            Encoding::Ds
            | Encoding::Flat
            | Encoding::Global
            | Encoding::Scratch
            | Encoding::Mubuf
            | Encoding::Smem => (self.write_memory)(text, inst, row),
            _ => {
                write_operands(text, self.family, inst, row);
                modifier::write_all(text, self.family, inst, row);
            }
        }
    }
}

/// The mnemonic with the suffix of its encoding.
fn write_mnemonic(text: &mut String, names: &Names, inst: &Inst, row: &Row) {
    if inst.encoding == Encoding::Vopd {
        text.push_str("v_dual_");
        text.push_str(inst.name.strip_prefix("v_").unwrap_or(inst.name));
        return;
    }
    text.push_str(inst.name);
    match inst.encoding {
        Encoding::Vop1 | Encoding::Vop2 if inst.dpp.is_some() => text.push_str("_dpp"),
        Encoding::Vopc if inst.dpp.is_some() => {}
        Encoding::Vop1 | Encoding::Vop2 | Encoding::Vopc if !has_one_encoding(inst.name, row) => {
            text.push_str("_e32")
        }
        Encoding::Vop3 | Encoding::Vop3Sd | Encoding::Vop3p if inst.dpp.is_some() => {
            text.push_str("_e64_dpp")
        }
        Encoding::Vop3 | Encoding::Vop3Sd
            if names.get_short(inst.name).is_some() && !has_one_encoding(inst.name, row) =>
        {
            text.push_str("_e64")
        }
        _ => {}
    }
}

/// Instructions of the 32-bit encodings without a VOP3 form, which carry no suffix.
fn has_one_encoding(name: &str, row: &Row) -> bool {
    const NAMES: [&str; 9] = [
        "v_nop",
        "v_pipeflush",
        "v_readfirstlane_b32",
        "v_swap_b32",
        "v_swap_b16",
        "v_permlane64_b32",
        "v_swaprel_b32",
        "v_dot2acc_f32_f16",
        "v_pk_fmac_f16",
    ];
    NAMES.contains(&name) || row.slots().any(|slot| slot.class == Class::Literal)
}

/// The operands in the row's order, separated by commas.
fn write_operands(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    let mut separator = " ";
    let (mut sources, mut destinations) = (0, 0);
    for slot in row.slots() {
        let index = if slot.role == Role::Source { &mut sources } else { &mut destinations };
        let at = *index;
        if slot.class == Class::Exec || is_silent(inst, slot.class, slot.role) {
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
            operand::write_source(text, family, inst, slot, at);
        } else {
            operand::write_destination(text, family, inst, slot, at);
        }
    }
    if inst.encoding == Encoding::LdsDir && inst.name.ends_with("_param_load") {
        let channel = ["x", "y", "z", "w"][(inst.offset1 & 3) as usize];
        let _ = write!(text, ", attr{}.{channel}", inst.offset0);
    }
}

/// The VCC of a dual-issue conditional move is not printed.
fn is_silent(inst: &Inst, class: Class, role: Role) -> bool {
    inst.encoding == Encoding::Vopd && class == Class::Mask && role == Role::Source
}
