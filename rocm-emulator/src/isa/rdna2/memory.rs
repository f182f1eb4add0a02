//! Decodes the vector memory encodings: DS, FLAT, GLOBAL, SCRATCH, MUBUF.
use super::super::fields::{Words, bit, bits, signed};
use super::super::table::{Class, Role, Row, blank};
use super::super::{DecodeError, Encoding, Inst, Operand, sreg};
use super::table::GFX10;

/// The code that stands for no scalar address, and in scratch accesses for no vector address either.
const NO_ADDRESS: u32 = 0x7f;

/// Decodes an LDS (or GDS) access.
pub fn decode_ds(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(GFX10.ds.get(bits(word, 18, 8)))?;
    let mut inst = blank(row, Encoding::Ds);
    inst.mods.gds = bit(word, 17);
    if has_two_offsets(row.name) {
        inst.offset0 = bits(word, 0, 8) as i32;
        inst.offset1 = bits(word, 8, 8) as i32;
    } else {
        inst.offset0 = bits(word, 0, 16) as i32;
    }
    let register = |low: u32| Operand::Vgpr(bits(high, low, 8) as u16);
    for slot in row.slots() {
        match slot.class {
            Class::Address => inst.src[0] = register(0),
            Class::Data0 => inst.src[1] = register(8),
            Class::Data1 => inst.src[2] = register(16),
            _ => inst.dst = register(24),
        }
    }
    Ok(inst)
}

/// Two-address forms have an 8-bit offset per address instead of one of 16 bits.
pub fn has_two_offsets(name: &str) -> bool {
    ["ds_read2", "ds_write2", "ds_wrxchg2"].iter().any(|prefix| name.starts_with(prefix))
}

/// Decodes the three segments of the FLAT encoding.
pub fn decode_flat(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let op = bits(word, 18, 7);
    let (encoding, row) = match bits(word, 14, 2) {
        0 => (Encoding::Flat, GFX10.flat.get(op)),
        1 => (Encoding::Scratch, GFX10.scratch.get(op)),
        2 => (Encoding::Global, GFX10.global.get(op)),
        _ => return Err(words.error("the memory segment is reserved")),
    };
    let row = words.known(row)?;
    let mut inst = blank(row, encoding);
    inst.mods.dlc = bit(word, 12);
    inst.mods.lds = bit(word, 13);
    inst.mods.glc = bit(word, 16);
    inst.mods.slc = bit(word, 17);
    inst.offset0 =
        if encoding == Encoding::Flat { bits(word, 0, 11) as i32 } else { signed(bits(word, 0, 12), 12) };
    let base = bits(high, 16, 7);
    if encoding != Encoding::Flat && base != NO_ADDRESS {
        inst.src[2] = match words.scalar_register(base)? {
            Operand::Scalar(sreg::NULL) => Operand::None,
            register => register,
        };
    }
    let has_vector = match encoding {
        // NULL leaves the vector address, a register or NO_ADDRESS takes its place.
        Encoding::Scratch => base != NO_ADDRESS && inst.src[2] == Operand::None,
        _ => !row.name.ends_with("_addtid"),
    };
    if has_vector {
        inst.src[0] = Operand::Vgpr(bits(high, 0, 8) as u16);
    }
    set_data(&mut inst, row, bits(high, 8, 8), bits(high, 24, 8));
    Ok(inst)
}

/// Decodes a buffer access.
pub fn decode_mubuf(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(GFX10.mubuf.get(bits(word, 18, 8)))?;
    let mut inst = blank(row, Encoding::Mubuf);
    inst.mods.glc = bit(word, 14);
    inst.mods.dlc = bit(word, 15);
    inst.mods.slc = bit(high, 22);
    if row.slots().next().is_none() {
        return Ok(inst);
    }
    if bit(high, 23) {
        return Err(words.error("buffer accesses with TFE are not decoded"));
    }
    inst.mods.offen = bit(word, 12);
    inst.mods.idxen = bit(word, 13);
    inst.mods.lds = bit(word, 16);
    inst.offset0 = bits(word, 0, 12) as i32;
    if inst.mods.offen || inst.mods.idxen {
        inst.src[0] = Operand::Vgpr(bits(high, 0, 8) as u16);
    }
    inst.src[2] = words.scalar_register(bits(high, 16, 5) << 2)?;
    inst.src[3] = words.scalar_source(bits(high, 24, 8))?;
    let data = bits(high, 8, 8);
    set_data(&mut inst, row, data, data);
    Ok(inst)
}

/// Sets the data source and the destination, as far as the row has them; a load to LDS has none.
fn set_data(inst: &mut Inst, row: &Row, data: u32, destination: u32) {
    for slot in row.slots() {
        match slot.role {
            Role::Source => inst.src[1] = Operand::Vgpr(data as u16),
            Role::Destination if !inst.mods.lds => inst.dst = Operand::Vgpr(destination as u16),
            Role::Returned if inst.mods.glc => inst.dst = Operand::Vgpr(destination as u16),
            Role::Destination | Role::Returned => {}
        }
    }
}
