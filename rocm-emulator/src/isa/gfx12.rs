//! Decoders of gfx12's memory encodings: VFLAT, VGLOBAL, VSCRATCH and VBUFFER (96 bits), and SMEM (64 bits).
use super::fields::{Words, bit, bits, signed};
use super::table::{Class, Role, Row};
use super::{DecodeError, Encoding, Inst, Operand};

/// Bit of the temporal hint that makes an atomic return the old value.
pub const ATOMIC_RETURN: u8 = 1;

/// Rejects bit 7 of vector memory instructions, which only later GPUs use.
fn check_reserved(words: &Words, word: u32) -> Result<(), DecodeError> {
    if bit(word, 7) { Err(words.error("the non-volatile bit is reserved")) } else { Ok(()) }
}

/// Decodes the fields that all three segments and VBUFFER share in their second and third words.
fn decode_common(inst: &mut Inst, row: &Row, middle: u32, high: u32, store_data: u32) {
    inst.mods.scope = bits(middle, 18, 2) as u8;
    inst.mods.th = bits(middle, 20, 3) as u8;
    inst.offset0 = signed(bits(high, 8, 24), 24);
    for slot in row.slots() {
        match slot.role {
            Role::Source => inst.src[1] = Operand::Vgpr(store_data as u16),
            Role::Returned if inst.mods.th & ATOMIC_RETURN == 0 => {}
            Role::Destination | Role::Returned => inst.dst = Operand::Vgpr(bits(middle, 0, 8) as u16),
        }
    }
}

/// Decodes VFLAT, VGLOBAL and VSCRATCH.
pub fn decode_flat(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let (middle, high) = (words.next()?, words.next()?);
    check_reserved(words, word)?;
    let op = bits(word, 14, 8);
    let encoding = match bits(word, 24, 2) {
        0 => Encoding::Flat,
        1 => Encoding::Scratch,
        2 => Encoding::Global,
        _ => return Err(words.error("the memory segment is reserved")),
    };
    let row = words.row(encoding, op)?;
    let mut inst = Inst::blank(row.name, encoding);
    decode_common(&mut inst, row, middle, high, bits(middle, 23, 8));
    if !row.has_operands() {
        // Cache operations have no operands.
        inst.offset0 = 0;
        return Ok(inst);
    }
    let has_vector = encoding != Encoding::Scratch || bit(middle, 17);
    if has_vector && !row.name.contains("_addtid_") {
        inst.src[0] = Operand::Vgpr(bits(high, 0, 8) as u16);
    }
    if encoding != Encoding::Flat {
        inst.src[2] = words.optional_scalar(bits(word, 0, 7))?;
    }
    Ok(inst)
}

/// Decodes VBUFFER.
pub fn decode_buffer(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let (middle, high) = (words.next()?, words.next()?);
    check_reserved(words, word)?;
    if bit(word, 21) {
        return Err(words.error("typed buffer instructions are not decoded"));
    }
    if bit(word, 22) {
        return Err(words.error("buffer accesses with TFE are not decoded"));
    }
    let row = words.row(Encoding::Mubuf, bits(word, 14, 8))?;
    let mut inst = Inst::blank(row.name, Encoding::Mubuf);
    decode_common(&mut inst, row, middle, high, bits(middle, 0, 8));
    inst.mods.offen = bit(middle, 30);
    inst.mods.idxen = bit(middle, 31);
    if inst.mods.offen || inst.mods.idxen {
        inst.src[0] = Operand::Vgpr(bits(high, 0, 8) as u16);
    }
    inst.src[2] = Operand::Scalar(bits(middle, 9, 7) as u8);
    inst.src[3] = words.scalar_register(bits(word, 0, 7))?;
    Ok(inst)
}

/// Decodes a scalar memory instruction. `imm` is the length of a prefetch.
pub fn decode_smem(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.row(Encoding::Smem, bits(word, 13, 6))?;
    let mut inst = Inst::blank(row.name, Encoding::Smem);
    inst.mods.scope = bits(word, 21, 2) as u8;
    inst.mods.th = bits(word, 23, 2) as u8;
    if !row.has_operands() {
        return Ok(inst);
    }
    for slot in row.slots() {
        match (slot.class, slot.role) {
            (Class::Decimal, _) => inst.imm = bits(word, 6, 7) as i32,
            (_, Role::Source) => inst.src[0] = Operand::Scalar((bits(word, 0, 6) << 1) as u8 & 127),
            _ => inst.dst = Operand::Scalar(bits(word, 6, 7) as u8),
        }
    }
    inst.src[1] = words.optional_scalar(bits(high, 25, 7))?;
    inst.offset0 = signed(bits(high, 0, 24), 24);
    Ok(inst)
}
