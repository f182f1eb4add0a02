//! Bit fields, operand codes and trailing words of instructions, common to all families.
use super::table::Row;
use super::tables::tables;
use super::{DecodeError, Dpp, DppControl, Encoding, Family, InlineFloat, Operand, sreg};

/// Operand codes for which another dword follows.
pub const DPP16: u32 = 250;
pub const DPP8: u32 = 233;
pub const DPP8_FETCH_INACTIVE: u32 = 234;
pub const LITERAL: u32 = 255;
/// First vector register among the 9-bit operand codes.
pub const FIRST_VGPR: u32 = 256;

/// Returns `width` bits of `word` from bit `low` on.
pub const fn bits(word: u32, low: u32, width: u32) -> u32 {
    (word >> low) & ((1 << width) - 1)
}

pub const fn bit(word: u32, at: u32) -> bool {
    word >> at & 1 != 0
}

/// Returns the `width` low bits of `value` as a signed number.
pub const fn signed(value: u32, width: u32) -> i32 {
    ((value << (32 - width)) as i32) >> (32 - width)
}

/// Returns true for mixed-precision FMAs, which have operand signs and absolute values.
pub fn is_mixed(name: &str) -> bool {
    name.starts_with("v_fma_mix")
}

/// Reader of the dwords of one instruction.
pub struct Words<'a> {
    pub family: Family,
    text: &'a [u8],
    start: usize,
    size: usize,
    literal: Option<u32>,
}

impl<'a> Words<'a> {
    pub fn new(family: Family, text: &'a [u8], start: usize) -> Self {
        Self { family, text, start, size: 0, literal: None }
    }

    /// Returns the number of bytes read so far.
    pub fn size(&self) -> u8 {
        self.size as u8
    }

    /// Creates an error for this instruction.
    pub fn error(&self, reason: &'static str) -> DecodeError {
        let word = self.word_at(self.start).unwrap_or(0);
        DecodeError { family: self.family, offset: self.start, word, reason }
    }

    /// Returns the table row of the opcode, or an error.
    pub fn row(&self, encoding: Encoding, op: u32) -> Result<&'static Row, DecodeError> {
        let row = tables(self.family).get(encoding, op);
        row.ok_or_else(|| self.error("unknown opcode of this encoding"))
    }

    pub fn next(&mut self) -> Result<u32, DecodeError> {
        let at = self.start.checked_add(self.size).ok_or_else(|| self.error("offset out of range"))?;
        let word = self.word_at(at).ok_or_else(|| self.error("the text ends within the instruction"))?;
        self.size += 4;
        Ok(word)
    }

    fn word_at(&self, at: usize) -> Option<u32> {
        let bytes = self.text.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Returns the literal dword. Several operands may refer to it, but it is encoded once.
    pub fn literal(&mut self) -> Result<u32, DecodeError> {
        match self.literal {
            Some(literal) => Ok(literal),
            None => {
                let literal = self.next()?;
                self.literal = Some(literal);
                Ok(literal)
            }
        }
    }

    /// Decodes a 9-bit source: a scalar source, or a vector register.
    pub fn source(&mut self, code: u32) -> Result<Operand, DecodeError> {
        if code >= FIRST_VGPR {
            return Ok(Operand::Vgpr((code - FIRST_VGPR) as u16));
        }
        self.scalar_source(code)
    }

    /// Decodes an 8-bit source: a scalar register, a constant or the literal.
    pub fn scalar_source(&mut self, code: u32) -> Result<Operand, DecodeError> {
        Ok(match code {
            0..=127 => return self.scalar_register(code),
            128..=192 => Operand::Int(code as i32 - 128),
            193..=208 => Operand::Int(192 - code as i32),
            235 => Operand::SharedBase,
            236 => Operand::SharedLimit,
            237 => Operand::PrivateBase,
            238 => Operand::PrivateLimit,
            240..=248 => Operand::Float(InlineFloat::ALL[code as usize - 240].0),
            251 => Operand::VccZ,
            252 => Operand::ExecZ,
            253 => Operand::Scc,
            LITERAL => Operand::Literal(self.literal()?),
            _ => return Err(self.error("the operand code is reserved")),
        })
    }

    /// Decodes the 7-bit code of a scalar register.
    pub fn scalar_register(&self, code: u32) -> Result<Operand, DecodeError> {
        match self.family.scalar_register(code as u8) {
            Some(number) => Ok(Operand::Scalar(number)),
            None => Err(self.error("the scalar register code is reserved")),
        }
    }

    /// Decodes the 7-bit code of an optional scalar register; NULL means that it is absent.
    pub fn optional_scalar(&self, code: u32) -> Result<Operand, DecodeError> {
        match self.scalar_register(code)? {
            Operand::Scalar(sreg::NULL) => Ok(Operand::None),
            register => Ok(register),
        }
    }
}

/// A DPP dword, and the vector register of source 0 that it contains.
pub struct DppWord {
    pub dpp: Dpp,
    pub src0: u16,
    /// Source modifiers, bit i for source i. DPP8 has none.
    pub neg: u8,
    pub abs: u8,
}

/// Decodes the dword after an instruction whose source 0 is `code`: [`DPP16`], [`DPP8`] or its variant.
pub fn dpp(family: Family, code: u32, word: u32) -> Option<DppWord> {
    let src0 = bits(word, 0, 8) as u16;
    if code != DPP16 {
        let dpp = Dpp {
            control: DppControl::Dpp8(std::array::from_fn(|lane| bits(word, 8 + 3 * lane as u32, 3) as u8)),
            row_mask: 15,
            bank_mask: 15,
            bound_ctrl: false,
            fetch_inactive: code == DPP8_FETCH_INACTIVE,
        };
        return Some(DppWord { dpp, src0, neg: 0, abs: 0 });
    }
    let control = bits(word, 8, 9);
    let amount = (control & 15) as u8;
    let gfx9 = family.is_gfx9();
    let control = match control {
        0x000..=0x0ff => DppControl::QuadPerm(std::array::from_fn(|i| (control >> (2 * i) & 3) as u8)),
        0x101..=0x10f => DppControl::RowShl(amount),
        0x111..=0x11f => DppControl::RowShr(amount),
        0x121..=0x12f => DppControl::RowRor(amount),
        0x130 if gfx9 => DppControl::WaveShl,
        0x134 if gfx9 => DppControl::WaveRol,
        0x138 if gfx9 => DppControl::WaveShr,
        0x13c if gfx9 => DppControl::WaveRor,
        0x140 => DppControl::RowMirror,
        0x141 => DppControl::RowHalfMirror,
        0x142 if gfx9 => DppControl::RowBcast15,
        0x143 if gfx9 => DppControl::RowBcast31,
        0x150..=0x15f if !gfx9 || family.has_unified_registers() => DppControl::RowShare(amount),
        0x160..=0x16f if !gfx9 => DppControl::RowXmask(amount),
        _ => return None,
    };
    let dpp = Dpp {
        control,
        row_mask: bits(word, 28, 4) as u8,
        bank_mask: bits(word, 24, 4) as u8,
        bound_ctrl: bit(word, 19),
        fetch_inactive: bit(word, 18),
    };
    let neg = bits(word, 20, 1) | bits(word, 22, 1) << 1;
    let abs = bits(word, 21, 1) | bits(word, 23, 1) << 1;
    Some(DppWord { dpp, src0, neg: neg as u8, abs: abs as u8 })
}
