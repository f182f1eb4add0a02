//! Memory instructions: addresses, data, offsets, temporal hints and scopes.
use super::super::super::print::memory::{List, write_ds, write_flat_operands, write_number};
use super::super::super::rdna3::memory::has_two_offsets;
use super::super::super::table::{Class, Role, Row};
use super::super::super::{Encoding, Family, Inst, Operand};
use std::fmt::Write;

/// Writes a memory instruction after its mnemonic.
pub fn write(text: &mut String, inst: &Inst, row: &Row) {
    match inst.encoding {
        Encoding::Ds => return write_ds(text, Family::Rdna4, inst, row, has_two_offsets(inst.name)),
        Encoding::Mubuf => write_buffer(text, inst, row),
        Encoding::Smem => write_scalar(text, inst, row),
        _ => write_flat(text, inst, row),
    }
    // Writing into a String cannot fail.
    let _ = write_cache_policy(text, inst, row);
}

fn write_flat(text: &mut String, inst: &Inst, row: &Row) {
    if row.slots().next().is_none() {
        return;
    }
    write_flat_operands(text, Family::Rdna4, inst, row);
    write_number(text, "offset", inst.offset0);
}

fn write_buffer(text: &mut String, inst: &Inst, row: &Row) {
    let mut list = List::new(text, Family::Rdna4);
    let [address, data, resource, offset] = inst.src;
    let data = if data == Operand::None { inst.dst } else { data };
    let dwords = row.sources().next().or(row.slots().next()).map_or(1, |slot| slot.dwords);
    list.push(data, dwords);
    list.push(address, if inst.mods.offen && inst.mods.idxen { 2 } else { 1 });
    list.push(resource, 4);
    list.push(offset, 1);
    text.push_str(if inst.mods.idxen { " idxen" } else { "" });
    text.push_str(if inst.mods.offen { " offen" } else { "" });
    write_number(text, "offset", inst.offset0);
}

fn write_scalar(text: &mut String, inst: &Inst, row: &Row) {
    if row.slots().next().is_none() {
        return;
    }
    let is_prefetch = inst.name.contains("prefetch");
    let mut list = List::new(text, Family::Rdna4);
    for slot in row.slots() {
        match (slot.class, slot.role) {
            (Class::Decimal, _) if is_prefetch => {}
            (Class::Decimal, _) => list.push_immediate(inst.imm as u32),
            (_, Role::Source) => list.push(inst.src[0], slot.dwords),
            _ => list.push(inst.dst, slot.dwords),
        }
    }
    let (sign, amount) = (if inst.offset0 < 0 { "-" } else { "" }, inst.offset0.unsigned_abs());
    // Writing into a String cannot fail.
    let _ = match inst.src[1] {
        register if is_prefetch => {
            let comma = if inst.src[0] == Operand::None { "" } else { "," };
            let _ = write!(text, "{comma} {sign}0x{amount:x}, ");
            match register {
                Operand::None => text.push_str("null"),
                register => write_register(text, register),
            }
            write!(text, ", {}", inst.imm)
        }
        Operand::None => write!(text, ", {sign}0x{amount:x}"),
        register => {
            list.push(register, 1);
            write!(text, " offset:{sign}0x{amount:x}")
        }
    };
}

fn write_register(text: &mut String, register: Operand) {
    super::super::super::print::operand::write_register(text, Family::Rdna4, register, 1);
}

/// ` th:...` and ` scope:...`, unless they are the usual.
fn write_cache_policy(text: &mut String, inst: &Inst, row: &Row) -> std::fmt::Result {
    let (th, scope) = (usize::from(inst.mods.th & 7), usize::from(inst.mods.scope & 3));
    // The widest scopes give some hints another meaning.
    let (device, system) = (scope >= 2, scope == 3);
    let is_atomic = inst.name.contains("_atomic_");
    let is_store = row.destinations().next().is_none() && row.sources().next().is_some();
    if th != 0 && is_atomic {
        const HINTS: [&str; 4] = ["", "RETURN", "NT", "NT_RETURN"];
        match (th, device) {
            (0..4, _) => write!(text, " th:TH_ATOMIC_{}", HINTS[th])?,
            (4 | 5, true) => write!(text, " th:TH_ATOMIC_CASCADE_RT")?,
            (_, true) => write!(text, " th:TH_ATOMIC_CASCADE_NT")?,
            (_, false) => write!(text, " th:TH_ATOMIC_0x{th:x}")?,
        }
    } else if th != 0 {
        const HINTS: [&str; 8] = ["RT", "NT", "HT", "", "NT_RT", "RT_NT", "NT_HT", ""];
        let kind = if is_store && inst.encoding != Encoding::Smem { "STORE" } else { "LOAD" };
        match (th, kind) {
            (3, _) if system => write!(text, " th:TH_{kind}_BYPASS")?,
            (3, "LOAD") => write!(text, " th:TH_LOAD_LU")?,
            (3, _) => write!(text, " th:TH_STORE_WB")?,
            (7, "LOAD") => write!(text, " th:0x7")?,
            (7, _) => write!(text, " th:TH_STORE_NT_WB")?,
            _ => write!(text, " th:TH_{kind}_{}", HINTS[th])?,
        }
    }
    text.push_str(["", " scope:SCOPE_SE", " scope:SCOPE_DEV", " scope:SCOPE_SYS"][scope]);
    Ok(())
}
