//! What memory instructions of every family share: lists of registers, offsets, swizzles.
use super::super::table::{Class, Row};
use super::super::{Encoding, Family, Inst, Operand};
use super::immediate::write_decimal;
use super::operand::write_register;
use std::fmt::Write;

/// Operands so far, for the commas between them.
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

/// ` name:value`, if there is one.
pub fn write_number(text: &mut String, name: &str, value: i32) {
    if value != 0 {
        let _ = write!(text, " {name}:{value}");
    }
}

/// LDS instructions; `two_offsets`: each of two addresses has its own.
pub fn write_ds(text: &mut String, family: Family, inst: &Inst, row: &Row, two_offsets: bool) {
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
    } else if two_offsets {
        write_number(text, "offset0", inst.offset0);
        write_number(text, "offset1", inst.offset1);
    } else {
        write_number(text, "offset", inst.offset0);
    }
    text.push_str(if inst.mods.gds { " gds" } else { "" });
}

/// The modes of ds_swizzle.
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
            // What becomes of a lane number's bit: 0, 1, preserved, inverted.
            let symbol = |bit: u32| match (or ^ xor, (and | or) ^ xor) {
                (zero, one) if (zero ^ one) >> bit & 1 == 0 => ["0", "1"][(zero >> bit & 1) as usize],
                (zero, _) => ["p", "i"][(zero >> bit & 1) as usize],
            };
            let mask: String = (0..5).rev().map(symbol).collect();
            write!(text, " offset:swizzle(BITMASK_PERM,\"{mask}\")")
        }
    };
}

/// The operands of a flat, global or scratch instruction: result, address, data, base.
pub fn write_flat_operands(text: &mut String, family: Family, inst: &Inst, row: &Row) {
    let mut list = List::new(text, family);
    let [address, data, base, _] = inst.src;
    for slot in row.destinations() {
        if inst.dst != Operand::None {
            list.push(inst.dst, slot.dwords);
        }
    }
    // A scalar base leaves 32 bits of offset to the vector address.
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
}
