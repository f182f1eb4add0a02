//! Memory instructions: addresses, data, offsets, cache controls.
use super::super::super::print::memory::{List, write_flat_operands, write_number};
use super::super::super::table::{Class, Role, Row};
use super::super::super::{Family, Inst, Mods, Operand};
use std::fmt::Write;

pub fn write_flat(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    write_flat_operands(text, family, inst, row);
    write_number(text, "offset", inst.offset0);
    write_cache_policy(text, family, &inst.mods);
    write_to_lds(text, inst);
}

pub fn write_mubuf(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    if row.slots().next().is_some() {
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
    } else if family != Family::Cdna3 {
        // gfx90a's cache operations have the bits, but only gfx942's have names for them.
        return;
    }
    write_cache_policy(text, family, &inst.mods);
    write_to_lds(text, inst);
}

pub fn write_smem(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    let mut list = List::new(text, family);
    for slot in row.slots() {
        match (slot.class, slot.role) {
            (Class::Decimal, _) => list.push_immediate(inst.imm as u32),
            (Class::Data0, _) => list.push(inst.src[2], slot.dwords),
            (_, Role::Source) => list.push(inst.src[0], slot.dwords),
            _ => list.push(inst.dst, slot.dwords),
        }
    }
    let (sign, amount) = (if inst.offset0 < 0 { "-" } else { "" }, inst.offset0.unsigned_abs());
    // Writing into a String cannot fail.
    let _ = match (inst.src[0], inst.src[1]) {
        (Operand::None, _) => Ok(()),
        (_, Operand::None) => write!(text, ", {sign}0x{amount:x}"),
        (_, offset) => {
            list.push(offset, 1);
            if inst.mods.with_constant { write!(text, " offset:{sign}0x{amount:x}") } else { Ok(()) }
        }
    };
    text.push_str(if inst.mods.glc { " glc" } else { "" });
}

/// gfx942 has new names for the bits.
fn write_cache_policy(text: &mut String, family: Family, mods: &Mods) {
    let bits = match family {
        Family::Cdna3 => [(mods.glc, " sc0"), (mods.slc, " nt"), (mods.scc, " sc1")],
        _ => [(mods.glc, " glc"), (mods.slc, " slc"), (mods.scc, " scc")],
    };
    for (_, name) in bits.into_iter().filter(|(set, _)| *set) {
        text.push_str(name);
    }
}

/// The name may say it already.
fn write_to_lds(text: &mut String, inst: &Inst) {
    text.push_str(if inst.mods.lds && !inst.name.contains("_load_lds_") { " lds" } else { "" });
}
