//! Decodes the vector memory encodings: DS, FLAT, GLOBAL, SCRATCH, MUBUF. On gfx90a and later a bit says that
//! the data are in accumulation registers.
use super::super::fields::{Words, bit, bits, signed};
use super::super::table::{Class, Role, Row, blank};
use super::super::{DecodeError, Encoding, Family, Inst, Operand};
use super::fields::scalar_base;
use super::table::tables;

/// Decodes an LDS (or GDS) access.
pub fn decode_ds(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(tables(words.family).ds.get(bits(word, 17, 8)))?;
    let mut inst = blank(row, Encoding::Ds);
    inst.mods.gds = bit(word, 16);
    if has_two_offsets(row.name) {
        inst.offset0 = bits(word, 0, 8) as i32;
        inst.offset1 = bits(word, 8, 8) as i32;
    } else {
        inst.offset0 = bits(word, 0, 16) as i32;
    }
    let data = data_register(words, bit(word, 25))?;
    for slot in row.slots() {
        match slot.class {
            // What ds_gws passes is data in the address field.
            Class::Address if row.name.starts_with("ds_gws_") => inst.src[0] = data(bits(high, 0, 8)),
            Class::Address => inst.src[0] = Operand::Vgpr(bits(high, 0, 8) as u16),
            Class::Data0 => inst.src[1] = data(bits(high, 8, 8)),
            Class::Data1 => inst.src[2] = data(bits(high, 16, 8)),
            _ => inst.dst = data(bits(high, 24, 8)),
        }
    }
    Ok(inst)
}

/// Two-address forms have an 8-bit offset per address instead of one of 16 bits.
pub fn has_two_offsets(name: &str) -> bool {
    ["ds_read2", "ds_write2", "ds_wrxchg2"].iter().any(|prefix| name.starts_with(prefix))
}

/// How a data register's number is to be read.
fn data_register(words: &Words, accumulation: bool) -> Result<fn(u32) -> Operand, DecodeError> {
    match (accumulation, words.family) {
        (false, _) => Ok(|n| Operand::Vgpr(n as u16)),
        (true, Family::Cdna1) => Err(words.error("gfx908 has no accumulation registers in memory accesses")),
        (true, _) => Ok(|n| Operand::Agpr(n as u16)),
    }
}

/// Decodes the three segments of the FLAT encoding.
pub fn decode_flat(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let tables = tables(words.family);
    let op = bits(word, 18, 7);
    let (encoding, row) = match bits(word, 14, 2) {
        0 => (Encoding::Flat, tables.flat.get(op)),
        1 => (Encoding::Scratch, tables.scratch.get(op)),
        2 => (Encoding::Global, tables.global.get(op)),
        _ => return Err(words.error("the memory segment is reserved")),
    };
    let row = words.known(row)?;
    let mut inst = blank(row, encoding);
    inst.mods.glc = bit(word, 16);
    inst.mods.slc = bit(word, 17);
    inst.mods.scc = words.family != Family::Cdna1 && bit(word, 25);
    // The bit of gfx90a's loads to LDS says on gfx942 that a scratch access has a vector address.
    let has_vector_and_scalar = words.family == Family::Cdna3;
    inst.mods.lds = bit(word, 13) && !has_vector_and_scalar || row.name.contains("_load_lds_");
    inst.offset0 =
        if encoding == Encoding::Flat { bits(word, 0, 12) as i32 } else { signed(bits(word, 0, 13), 13) };
    if encoding != Encoding::Flat {
        inst.src[2] = scalar_base(words, bits(high, 16, 7))?;
    }
    let has_vector = match (encoding, has_vector_and_scalar) {
        (Encoding::Scratch, true) => bit(word, 13),
        (Encoding::Scratch, false) => inst.src[2] == Operand::None,
        _ => true,
    };
    if has_vector {
        inst.src[0] = Operand::Vgpr(bits(high, 0, 8) as u16);
    }
    let data = data_register(words, bit(high, 23))?;
    set_data(&mut inst, row, data(bits(high, 8, 8)), data(bits(high, 24, 8)));
    Ok(inst)
}

/// Decodes a buffer access.
pub fn decode_mubuf(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(tables(words.family).mubuf.get(bits(word, 18, 7)))?;
    let mut inst = blank(row, Encoding::Mubuf);
    inst.mods.glc = bit(word, 14);
    inst.mods.slc = bit(word, 17);
    inst.mods.scc = words.family != Family::Cdna1 && bit(word, 15);
    if row.slots().next().is_none() {
        return Ok(inst);
    }
    if words.family == Family::Cdna1 && bit(high, 23) {
        return Err(words.error("buffer accesses with TFE are not decoded"));
    }
    inst.mods.lds = bit(word, 16);
    inst.mods.offen = bit(word, 12);
    inst.mods.idxen = bit(word, 13);
    inst.offset0 = bits(word, 0, 12) as i32;
    if inst.mods.offen || inst.mods.idxen {
        inst.src[0] = Operand::Vgpr(bits(high, 0, 8) as u16);
    }
    inst.src[2] = words.scalar_register(bits(high, 16, 5) << 2)?;
    inst.src[3] = words.scalar_source(bits(high, 24, 8))?;
    let data = data_register(words, bit(high, 23))?(bits(high, 8, 8));
    set_data(&mut inst, row, data, data);
    Ok(inst)
}

/// Sets the data source and the destination, as far as the row has them; a load to LDS has none.
fn set_data(inst: &mut Inst, row: &Row, data: Operand, destination: Operand) {
    for slot in row.slots() {
        match slot.role {
            Role::Source => inst.src[1] = data,
            Role::Destination if !inst.mods.lds => inst.dst = destination,
            Role::Returned if inst.mods.glc => inst.dst = destination,
            Role::Destination | Role::Returned => {}
        }
    }
}
