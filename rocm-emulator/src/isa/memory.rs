//! Decoders of memory encodings: SMEM, FLAT, GLOBAL, SCRATCH and MUBUF before gfx12, and DS of every family.
use super::fields::{Words, bit, bits, signed};
use super::table::{Class, Role, Row};
use super::{DecodeError, Encoding, Family, Inst, Operand};

/// Code for no scalar address on gfx9 and gfx10, and for no vector address in gfx10's scratch accesses.
const NO_ADDRESS: u32 = 0x7f;

/// Decodes an LDS (or GDS) access.
pub fn decode_ds(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    // On gfx9 the fields are one bit lower, and bit 25 selects accumulation registers for data.
    let gfx9 = words.family.is_gfx9();
    let gds = if gfx9 { 16 } else { 17 };
    let row = words.row(Encoding::Ds, bits(word, gds + 1, 8))?;
    let mut inst = Inst::blank(row.name, Encoding::Ds);
    inst.mods.gds = bit(word, gds);
    if has_two_offsets(row.name) {
        inst.offset0 = bits(word, 0, 8) as i32;
        inst.offset1 = bits(word, 8, 8) as i32;
    } else {
        inst.offset0 = bits(word, 0, 16) as i32;
    }
    let data = data_register(words, gfx9 && bit(word, 25))?;
    for slot in row.slots() {
        match slot.class {
            // ds_gws has data in the address field.
            Class::Address if row.name.starts_with("ds_gws_") => inst.src[0] = data(bits(high, 0, 8)),
            Class::Address => inst.src[0] = Operand::Vgpr(bits(high, 0, 8) as u16),
            Class::Data0 => inst.src[1] = data(bits(high, 8, 8)),
            Class::Data1 => inst.src[2] = data(bits(high, 16, 8)),
            _ => inst.dst = data(bits(high, 24, 8)),
        }
    }
    Ok(inst)
}

/// Returns true for two-address forms, which have two 8-bit offsets instead of one 16-bit offset.
pub fn has_two_offsets(name: &str) -> bool {
    name.contains("_2addr_")
        || ["ds_read2", "ds_write2", "ds_wrxchg2"].iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the conversion from a data register's number to an operand of its register file.
fn data_register(words: &Words, accumulation: bool) -> Result<fn(u32) -> Operand, DecodeError> {
    match (accumulation, words.family.has_unified_registers()) {
        (false, _) => Ok(|n| Operand::Vgpr(n as u16)),
        (true, false) => Err(words.error("the GPU has no accumulation registers in memory accesses")),
        (true, true) => Ok(|n| Operand::Agpr(n as u16)),
    }
}

/// Decodes the three segments of the FLAT encoding.
pub fn decode_flat(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let family = words.family;
    let encoding = match bits(word, if family.is_gfx11() { 16 } else { 14 }, 2) {
        0 => Encoding::Flat,
        1 => Encoding::Scratch,
        2 => Encoding::Global,
        _ => return Err(words.error("the memory segment is reserved")),
    };
    let row = words.row(encoding, bits(word, 18, 7))?;
    let mut inst = Inst::blank(row.name, encoding);
    let mods = &mut inst.mods;
    match family {
        Family::Rdna3 | Family::Rdna35 => {
            (mods.dlc, mods.glc, mods.slc) = (bit(word, 13), bit(word, 14), bit(word, 15))
        }
        _ => (mods.glc, mods.slc) = (bit(word, 16), bit(word, 17)),
    }
    match family {
        Family::Rdna3 | Family::Rdna35 => {}
        Family::Rdna2 => (mods.dlc, mods.lds) = (bit(word, 12), bit(word, 13)),
        _ => {
            mods.scc = family.has_unified_registers() && bit(word, 25);
            // gfx942 uses the bit of gfx90a's loads to LDS for scratch accesses with a vector address.
            mods.lds = bit(word, 13) && !family.is_gfx94() || row.name.contains("_load_lds_");
        }
    }
    let width = if family == Family::Rdna2 { 11 } else { 12 };
    inst.offset0 = match encoding {
        Encoding::Flat => bits(word, 0, width) as i32,
        _ => signed(bits(word, 0, width + 1), width + 1),
    };
    let base = bits(high, 16, 7);
    let has_no_base = base == NO_ADDRESS && !family.is_gfx11();
    if encoding != Encoding::Flat && !has_no_base {
        inst.src[2] = words.optional_scalar(base)?;
    }
    let has_vector = match (encoding, family) {
        (Encoding::Scratch, Family::Cdna3 | Family::Cdna4) => bit(word, 13),
        (Encoding::Scratch, Family::Rdna3 | Family::Rdna35) => bit(high, 23),
        // NULL as scalar address means that there is a vector address.
        (Encoding::Scratch, Family::Rdna2) => !has_no_base && inst.src[2] == Operand::None,
        (Encoding::Scratch, _) => inst.src[2] == Operand::None,
        _ => !row.name.contains("_addtid"),
    };
    if has_vector {
        inst.src[0] = Operand::Vgpr(bits(high, 0, 8) as u16);
    }
    let data = data_register(words, family.is_gfx9() && bit(high, 23))?;
    set_data(&mut inst, row, data(bits(high, 8, 8)), data(bits(high, 24, 8)));
    Ok(inst)
}

/// Decodes a buffer access.
pub fn decode_mubuf(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let family = words.family;
    let row = words.row(Encoding::Mubuf, bits(word, 18, if family.is_gfx9() { 7 } else { 8 }))?;
    let mut inst = Inst::blank(row.name, Encoding::Mubuf);
    let mods = &mut inst.mods;
    mods.glc = bit(word, 14);
    let has_tfe = match family {
        Family::Rdna3 | Family::Rdna35 => {
            (mods.slc, mods.dlc) = (bit(word, 12), bit(word, 13));
            bit(high, 21)
        }
        Family::Rdna2 => {
            (mods.dlc, mods.slc) = (bit(word, 15), bit(high, 22));
            bit(high, 23)
        }
        _ => {
            let unified = family.has_unified_registers();
            (mods.scc, mods.slc) = (unified && bit(word, 15), bit(word, 17));
            !unified && bit(high, 23)
        }
    };
    if !row.has_operands() {
        return Ok(inst);
    }
    if has_tfe {
        return Err(words.error("buffer accesses with TFE are not decoded"));
    }
    match family {
        Family::Rdna3 | Family::Rdna35 => (mods.offen, mods.idxen) = (bit(high, 22), bit(high, 23)),
        _ => (mods.offen, mods.idxen, mods.lds) = (bit(word, 12), bit(word, 13), bit(word, 16)),
    }
    if mods.offen || mods.idxen {
        inst.src[0] = Operand::Vgpr(bits(high, 0, 8) as u16);
    }
    inst.offset0 = bits(word, 0, 12) as i32;
    inst.src[2] = words.scalar_register(bits(high, 16, 5) << 2)?;
    inst.src[3] = words.scalar_source(bits(high, 24, 8))?;
    let data = data_register(words, family.is_gfx9() && bit(high, 23))?(bits(high, 8, 8));
    set_data(&mut inst, row, data, data);
    Ok(inst)
}

/// Sets the data source and the destination if the row has them. Loads to LDS have no destination.
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

/// Decodes a scalar memory instruction.
pub fn decode_smem(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.row(Encoding::Smem, bits(word, 18, 8))?;
    let mut inst = Inst::blank(row.name, Encoding::Smem);
    match words.family {
        Family::Rdna3 | Family::Rdna35 => (inst.mods.dlc, inst.mods.glc) = (bit(word, 13), bit(word, 14)),
        Family::Rdna2 => (inst.mods.dlc, inst.mods.glc) = (bit(word, 14), bit(word, 16)),
        _ => inst.mods.glc = bit(word, 16),
    }
    for slot in row.slots() {
        match (slot.class, slot.role) {
            // Probes and prefetches have an immediate in place of the data register.
            (Class::Decimal, _) => inst.imm = bits(word, 6, 7) as i32,
            (Class::Data0, role) => {
                inst.src[2] = words.scalar_register(bits(word, 6, 7))?;
                if role == Role::Returned && inst.mods.glc {
                    inst.dst = inst.src[2];
                }
            }
            (_, Role::Source) => inst.src[0] = words.scalar_register(bits(word, 0, 6) << 1)?,
            _ => inst.dst = words.scalar_register(bits(word, 6, 7))?,
        }
    }
    if inst.src[0] == Operand::None {
        return Ok(inst);
    }
    if !words.family.is_gfx9() {
        inst.offset0 = signed(bits(high, 0, 21), 21);
        inst.src[1] = words.optional_scalar(bits(high, 25, 7))?;
        return Ok(inst);
    }
    // gfx9's offset is a constant, a register, or both.
    let (has_constant, has_register) = (bit(word, 17), bit(word, 14));
    if has_constant {
        inst.offset0 = signed(bits(high, 0, 21), 21);
    }
    inst.mods.with_constant = has_constant && has_register;
    inst.src[1] = match (has_constant, has_register) {
        (_, true) => words.scalar_register(bits(high, 25, 7))?,
        (false, false) => words.scalar_register(bits(high, 0, 7))?,
        (true, false) => Operand::None,
    };
    Ok(inst)
}
