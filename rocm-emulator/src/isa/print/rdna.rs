//! Memory instructions of gfx10 and gfx11: addresses, data, offsets, cache controls.
use super::super::table::{Class, Role, Row};
use super::super::{Family, Inst, Mods, Operand};
use super::memory::{List, write_flat_operands, write_number};
use std::fmt::Write;

pub fn write_flat(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    write_flat_operands(text, family, inst, row);
    write_number(text, "offset", inst.offset0);
    write_cache_policy(text, &inst.mods);
    text.push_str(if inst.mods.lds { " lds" } else { "" });
}

pub fn write_mubuf(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    if row.slots().next().is_none() {
        return;
    }
    let mut list = List::new(text, family);
    let [address, data, resource, offset] = inst.src;
    let data = if data == Operand::None { inst.dst } else { data };
    let dwords = row.sources().next().or(row.slots().next()).map_or(1, |slot| slot.dwords);
    if !inst.mods.lds || data != Operand::None {
        list.push(data, dwords);
    }
    list.push(address, if inst.mods.offen && inst.mods.idxen { 2 } else { 1 });
    list.push(resource, 4);
    list.push(offset, 1);
    text.push_str(if inst.mods.idxen { " idxen" } else { "" });
    text.push_str(if inst.mods.offen { " offen" } else { "" });
    write_number(text, "offset", inst.offset0);
    write_cache_policy(text, &inst.mods);
    text.push_str(if inst.mods.lds { " lds" } else { "" });
}

pub fn write_smem(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    let mut list = List::new(text, family);
    for slot in row.slots() {
        match (slot.class, slot.role) {
            (Class::Decimal, _) => list.push_immediate(inst.imm as u32),
            (_, Role::Source) => list.push(inst.src[0], slot.dwords),
            _ => list.push(inst.dst, slot.dwords),
        }
    }
    let (sign, amount) = (if inst.offset0 < 0 { "-" } else { "" }, inst.offset0.unsigned_abs());
    // Writing into a String cannot fail.
    let _ = match (inst.src[0], inst.src[1], amount) {
        (Operand::None, ..) => Ok(()),
        (_, Operand::None, 0) => write!(text, ", null"),
        (_, Operand::None, _) => write!(text, ", {sign}0x{amount:x}"),
        (_, offset, _) => {
            list.push(offset, 1);
            if amount == 0 { Ok(()) } else { write!(text, " offset:{sign}0x{amount:x}") }
        }
    };
    write_cache_policy(text, &inst.mods);
}

fn write_cache_policy(text: &mut String, mods: &Mods) {
    text.push_str(if mods.glc { " glc" } else { "" });
    text.push_str(if mods.slc { " slc" } else { "" });
    text.push_str(if mods.dlc { " dlc" } else { "" });
}
