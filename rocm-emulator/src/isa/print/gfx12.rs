//! Printer of memory operands that only gfx12 has: prefetches, temporal hints and scopes.
use super::super::table::{Class, Role, Row};
use super::super::{Encoding, Family, Inst, Operand};
use super::memory::List;
use super::operand::write_register;
use std::fmt::Write;

pub fn write_smem(text: &mut String, inst: &Inst, row: &Row) {
    if row.has_operands() {
        write_smem_operands(text, inst, row);
    }
    write_cache_policy(text, inst, row);
}

fn write_smem_operands(text: &mut String, inst: &Inst, row: &Row) {
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
                register => write_register(text, Family::Rdna4, register, 1),
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

/// Writes ` th:...` and ` scope:...`, unless they have default values.
pub fn write_cache_policy(text: &mut String, inst: &Inst, row: &Row) {
    let (th, scope) = (usize::from(inst.mods.th & 7), usize::from(inst.mods.scope & 3));
    // Some hints have different meanings in the widest scopes.
    let (device, system) = (scope >= 2, scope == 3);
    let is_atomic = inst.name.contains("_atomic_");
    let is_store = row.destinations().next().is_none() && row.sources().next().is_some();
    let kind = if is_store && inst.encoding != Encoding::Smem { "STORE" } else { "LOAD" };
    const ATOMIC_HINTS: [&str; 4] = ["", "RETURN", "NT", "NT_RETURN"];
    const HINTS: [&str; 8] = ["RT", "NT", "HT", "", "NT_RT", "RT_NT", "NT_HT", ""];
    // Writing into a String cannot fail.
    let _ = match th {
        0 => Ok(()),
        1..4 if is_atomic => write!(text, " th:TH_ATOMIC_{}", ATOMIC_HINTS[th]),
        4 | 5 if is_atomic && device => write!(text, " th:TH_ATOMIC_CASCADE_RT"),
        _ if is_atomic && device => write!(text, " th:TH_ATOMIC_CASCADE_NT"),
        _ if is_atomic => write!(text, " th:TH_ATOMIC_0x{th:x}"),
        3 if system => write!(text, " th:TH_{kind}_BYPASS"),
        3 if kind == "LOAD" => write!(text, " th:TH_LOAD_LU"),
        3 => write!(text, " th:TH_STORE_WB"),
        7 if kind == "LOAD" => write!(text, " th:0x7"),
        7 => write!(text, " th:TH_STORE_NT_WB"),
        _ => write!(text, " th:TH_{kind}_{}", HINTS[th]),
    };
    text.push_str(["", " scope:SCOPE_SE", " scope:SCOPE_DEV", " scope:SCOPE_SYS"][scope]);
}
