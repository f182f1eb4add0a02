//! Decodes the vector memory encodings: DS, FLAT, GLOBAL, SCRATCH, MUBUF.
use super::super::fields::{Words, bit, bits, signed};
use super::super::table::{Class, Role, Row, blank};
use super::super::tables::Tables;
use super::super::{DecodeError, Encoding, Inst, Operand};
use super::fields::optional_scalar;
use super::table::GFX11;

/// Decodes an LDS (or GDS) access.
pub fn decode_ds(words: &mut Words, word: u32, tables: &Tables) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(tables.ds.get(bits(word, 18, 8)))?;
    let mut inst = blank(row, Encoding::Ds);
    inst.mods.gds = bit(word, 17);
    if has_two_offsets(row.name) {
        inst.offset0 = bits(word, 0, 8) as i32;
        inst.offset1 = bits(word, 8, 8) as i32;
    } else {
        inst.offset0 = bits(word, 0, 16) as i32;
    }
    for slot in row.slots() {
        let (at, operand) = match slot.class {
            Class::Address => (0, bits(high, 0, 8)),
            Class::Data0 => (1, bits(high, 8, 8)),
            Class::Data1 => (2, bits(high, 16, 8)),
            _ => {
                inst.dst = Operand::Vgpr(bits(high, 24, 8) as u16);
                continue;
            }
        };
        inst.src[at] = Operand::Vgpr(operand as u16);
    }
    Ok(inst)
}

/// Two-address forms have an 8-bit offset per address instead of one of 16 bits.
pub fn has_two_offsets(name: &str) -> bool {
    name.contains("_2addr_")
}

/// Decodes the three segments of the FLAT encoding.
pub fn decode_flat(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let op = bits(word, 18, 7);
    let (encoding, row) = match bits(word, 16, 2) {
        0 => (Encoding::Flat, GFX11.flat.get(op)),
        1 => (Encoding::Scratch, GFX11.scratch.get(op)),
        2 => (Encoding::Global, GFX11.global.get(op)),
        _ => return Err(words.error("the memory segment is reserved")),
    };
    let row = words.known(row)?;
    let mut inst = blank(row, encoding);
    inst.mods.dlc = bit(word, 13);
    inst.mods.glc = bit(word, 14);
    inst.mods.slc = bit(word, 15);
    inst.offset0 =
        if encoding == Encoding::Flat { bits(word, 0, 12) as i32 } else { signed(bits(word, 0, 13), 13) };
    let address = Operand::Vgpr(bits(high, 0, 8) as u16);
    inst.src[0] = match encoding {
        Encoding::Scratch if !bit(high, 23) => Operand::None,
        _ if row.name.contains("_addtid_") => Operand::None,
        _ => address,
    };
    if encoding != Encoding::Flat {
        inst.src[2] = optional_scalar(bits(high, 16, 7));
    }
    set_data(&mut inst, row, bits(high, 8, 8), bits(high, 24, 8));
    Ok(inst)
}

/// Decodes a buffer access.
pub fn decode_mubuf(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(GFX11.mubuf.get(bits(word, 18, 8)))?;
    let mut inst = blank(row, Encoding::Mubuf);
    inst.mods.slc = bit(word, 12);
    inst.mods.dlc = bit(word, 13);
    inst.mods.glc = bit(word, 14);
    if row.slots().next().is_none() {
        return Ok(inst);
    }
    if bit(high, 21) {
        return Err(words.error("buffer accesses with TFE are not decoded"));
    }
    inst.mods.offen = bit(high, 22);
    inst.mods.idxen = bit(high, 23);
    inst.offset0 = bits(word, 0, 12) as i32;
    if inst.mods.offen || inst.mods.idxen {
        inst.src[0] = Operand::Vgpr(bits(high, 0, 8) as u16);
    }
    inst.src[2] = Operand::Scalar((bits(high, 16, 5) << 2) as u8);
    inst.src[3] = words.scalar_source(bits(high, 24, 8))?;
    let data = bits(high, 8, 8);
    set_data(&mut inst, row, data, data);
    Ok(inst)
}

/// Sets the data source and the destination, as far as the row has them.
fn set_data(inst: &mut Inst, row: &Row, data: u32, destination: u32) {
    for slot in row.slots() {
        match slot.role {
            Role::Source => inst.src[1] = Operand::Vgpr(data as u16),
            Role::Destination => inst.dst = Operand::Vgpr(destination as u16),
            Role::Returned if inst.mods.glc => inst.dst = Operand::Vgpr(destination as u16),
            Role::Returned => {}
        }
    }
}
