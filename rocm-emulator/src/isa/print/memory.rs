//! Printer of memory instructions: addresses, data, offsets, swizzles and cache controls.
use super::super::memory::has_two_offsets;
use super::super::table::{Class, Role, Row};
use super::super::{Encoding, Family, Inst, Operand};
use super::gfx12;
use super::immediate::write_decimal;
use super::operand::write_register;
use std::fmt::Write;

/// Writer of operands, which inserts the commas between them.
pub struct List<'a> {
    text: &'a mut String,
    family: Family,
    separator: &'static str,
}

impl<'a> List<'a> {
    pub fn new(text: &'a mut String, family: Family) -> Self {
        Self { text, family, separator: " " }
    }

    pub fn push_immediate(&mut self, value: u32) {
        self.text.push_str(self.separator);
        self.separator = ", ";
        // Writing into a String cannot fail.
        let _ = write_decimal(self.text, value);
    }

    pub fn push(&mut self, operand: Operand, dwords: u8) {
        self.text.push_str(self.separator);
        self.separator = ", ";
        write_register(self.text, self.family, operand, dwords);
    }
}

/// Writes ` name:value` if the value is not 0.
pub fn write_number(text: &mut String, name: &str, value: i32) {
    if value != 0 {
        let _ = write!(text, " {name}:{value}");
    }
}

pub fn write_ds(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    let mut list = List::new(text, family);
    for slot in row.slots() {
        let operand = match slot.class {
            Class::Address => inst.src[0],
            Class::Data0 => inst.src[1],
            Class::Data1 => inst.src[2],
            _ => inst.dst,
        };
        list.push(operand, slot.dwords);
    }
    if inst.name == "ds_swizzle_b32" {
        write_swizzle(text, inst.offset0 as u32 & 0xffff);
    } else if has_two_offsets(inst.name) {
        write_number(text, "offset0", inst.offset0);
        write_number(text, "offset1", inst.offset1);
    } else {
        write_number(text, "offset", inst.offset0);
    }
    text.push_str(if inst.mods.gds { " gds" } else { "" });
}

/// Writes the mode of ds_swizzle.
fn write_swizzle(text: &mut String, imm: u32) {
    let (and, or, xor) = (imm & 31, imm >> 5 & 31, imm >> 10 & 31);
    let group = 32 - and;
    // Writing into a String cannot fail.
    let _ = match imm {
        0 => Ok(()),
        0xe000.. => write!(text, " offset:swizzle(FFT,{and})"),
        0xc000..0xe000 => write!(text, " offset:swizzle(ROTATE,{},{or})", imm >> 10 & 1),
        0x8000..0x8100 => {
            let lane = |i: u32| imm >> (2 * i) & 3;
            write!(text, " offset:swizzle(QUAD_PERM,{},{},{},{})", lane(0), lane(1), lane(2), lane(3))
        }
        0x8100..0xc000 => write!(text, " offset:{imm}"),
        _ if and == 31 && or == 0 && xor.is_power_of_two() => write!(text, " offset:swizzle(SWAP,{xor})"),
        _ if and == 31 && or == 0 && xor > 0 && (xor + 1).is_power_of_two() => {
            write!(text, " offset:swizzle(REVERSE,{})", xor + 1)
        }
        _ if group > 1 && group.is_power_of_two() && or < group && xor == 0 => {
            write!(text, " offset:swizzle(BROADCAST,{group},{or})")
        }
        _ => {
            // Effect on each bit of the lane number: 0, 1, preserved or inverted.
            let symbol = |bit: u32| match (or ^ xor, (and | or) ^ xor) {
                (zero, one) if (zero ^ one) >> bit & 1 == 0 => ["0", "1"][(zero >> bit & 1) as usize],
                (zero, _) => ["p", "i"][(zero >> bit & 1) as usize],
            };
            let mask: String = (0..5).rev().map(symbol).collect();
            write!(text, " offset:swizzle(BITMASK_PERM,\"{mask}\")")
        }
    };
}

/// Writes a flat, global or scratch instruction: result, address, data, base, modifiers.
pub fn write_flat(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    if family == Family::Rdna4 && !row.has_operands() {
        return gfx12::write_cache_policy(text, inst, row);
    }
    let mut list = List::new(text, family);
    let [address, data, base, _] = inst.src;
    for slot in row.destinations() {
        if inst.dst != Operand::None {
            list.push(inst.dst, slot.dwords);
        }
    }
    // With a scalar base, the vector address is a 32-bit offset.
    let address_dwords = match inst.encoding {
        Encoding::Scratch => 1,
        Encoding::Global if base != Operand::None => 1,
        _ => 2,
    };
    if address != Operand::None || inst.encoding == Encoding::Scratch {
        list.push(address, address_dwords);
    }
    for slot in row.sources() {
        list.push(data, slot.dwords);
    }
    match inst.encoding {
        Encoding::Flat => {}
        Encoding::Scratch => list.push(base, 1),
        _ => list.push(base, 2),
    }
    write_number(text, "offset", inst.offset0);
    write_cache_policy(text, family, inst, row);
}

pub fn write_mubuf(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    if !row.has_operands() {
        // All families encode these bits in cache operations, but LLVM prints only gfx942's.
        if family.is_gfx94() {
            write_cache_policy(text, family, inst, row);
        }
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
    write_cache_policy(text, family, inst, row);
}

/// Writes a scalar memory instruction of gfx9, gfx10 or gfx11.
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
    let gfx9 = family.is_gfx9();
    // Writing into a String cannot fail.
    let _ = match (inst.src[0], inst.src[1]) {
        (Operand::None, _) => Ok(()),
        (_, Operand::None) if amount == 0 && !gfx9 => write!(text, ", null"),
        (_, Operand::None) => write!(text, ", {sign}0x{amount:x}"),
        (_, register) => {
            list.push(register, 1);
            let with_constant = if gfx9 { inst.mods.with_constant } else { amount != 0 };
            if with_constant { write!(text, " offset:{sign}0x{amount:x}") } else { Ok(()) }
        }
    };
    write_cache_policy(text, family, inst, row);
}

/// Writes cache controls, and ` lds` for loads to LDS unless the name contains it.
fn write_cache_policy(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    let mods = &inst.mods;
    let is_scalar = inst.encoding == Encoding::Smem;
    let bits = match family {
        Family::Rdna4 => return gfx12::write_cache_policy(text, inst, row),
        // gfx942 has different names for the bits.
        _ if family.is_gfx94() && !is_scalar => [(mods.glc, " sc0"), (mods.slc, " nt"), (mods.scc, " sc1")],
        _ if family.is_gfx9() => [(mods.glc, " glc"), (mods.slc, " slc"), (mods.scc, " scc")],
        _ => [(mods.glc, " glc"), (mods.slc, " slc"), (mods.dlc, " dlc")],
    };
    for (_, name) in bits.into_iter().filter(|(set, _)| *set) {
        text.push_str(name);
    }
    text.push_str(if mods.lds && !inst.name.contains("_load_lds_") { " lds" } else { "" });
}
