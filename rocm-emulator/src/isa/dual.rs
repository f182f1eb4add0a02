//! Decoders of the encodings that gfx11 introduced: VOPD, VINTERP and LDSDIR.
use super::fields::{Words, bit, bits};
use super::vector::{ShortFields, long_sources, short_operands};
use super::{DecodeError, Encoding, Family, Inst, Operand, sreg};

/// Decodes VINTERP; `imm` is the number of exports to wait for.
pub fn decode_vinterp(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.row(Encoding::Vinterp, bits(word, 16, 7))?;
    let mut inst = Inst::blank(row.name, Encoding::Vinterp);
    inst.mods.neg = bits(high, 29, 3) as u8;
    inst.mods.op_sel = bits(word, 11, 4) as u8;
    inst.mods.clamp = bit(word, 15);
    inst.imm = bits(word, 8, 3) as i32;
    inst.dst = Operand::Vgpr(bits(word, 0, 8) as u16);
    long_sources(words, &mut inst, row, high)?;
    Ok(inst)
}

/// Decodes LDSDIR: `offset0` is the attribute, `offset1` its channel, `imm` the number of VALU results to
/// wait for. On gfx12, bit 7 of `imm` says whether to wait for vector memory's sources, too.
pub fn decode_lds_direct(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let row = words.row(Encoding::LdsDir, bits(word, 20, 2))?;
    let mut inst = Inst::blank(row.name, Encoding::LdsDir);
    inst.dst = Operand::Vgpr(bits(word, 0, 8) as u16);
    inst.offset0 = bits(word, 10, 6) as i32;
    inst.offset1 = bits(word, 8, 2) as i32;
    inst.imm = bits(word, 16, if words.family == Family::Rdna4 { 8 } else { 4 }) as i32;
    Ok(inst)
}

/// Decodes VOPD. Returns the X half, with the Y half as its `pair`.
pub fn decode_dual(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let vdst_x = bits(high, 24, 8);
    // The halves write different banks: the low bit of Y's register number is the inverse of X's.
    let vdst_y = bits(high, 17, 7) << 1 | (!vdst_x & 1);
    let mut x = decode_half(words, bits(word, 22, 4), vdst_x, word)?;
    let mut y = decode_half(words, bits(word, 17, 5), vdst_y, high)?;
    y.size = words.size();
    x.pair = Some(Box::new(y));
    Ok(x)
}

/// Decodes a half of VOPD whose sources are in `word`.
fn decode_half(words: &mut Words, op: u32, vdst: u32, word: u32) -> Result<Inst, DecodeError> {
    let row = words.row(Encoding::Vopd, op)?;
    let mut half = Inst::blank(row.name, Encoding::Vopd);
    let src1 = Operand::Vgpr(bits(word, 9, 8) as u16);
    let mask = Operand::Scalar(sreg::VCC_LO);
    let fields = ShortFields { vdst, src0: Err(bits(word, 0, 9)), src1, mask };
    short_operands(words, &mut half, row, &fields)?;
    Ok(half)
}
