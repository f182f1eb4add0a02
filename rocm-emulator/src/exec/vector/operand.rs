//! Prepared operands: sources and destinations, with their modifiers resolved.
use super::dpp::DppPattern;
use super::kind::Format;
use crate::exec::wave::Wave;
use crate::exec::{PRIVATE_APERTURE, SHARED_APERTURE};
use crate::isa::{Inst, Operand, Sdwa, SdwaSelect, SdwaUnused, sreg};

/// A source operand.
#[derive(Clone, Debug)]
pub enum Source {
    /// A vector register (or the first of a pair) without modifiers.
    Vgpr(u16),
    /// A scalar register (or the first of a pair), the same for all lanes.
    Scalar(u8),
    /// A constant with its modifiers applied, the same for all lanes.
    Constant(u64),
    Status(Status),
    /// A source with modifiers.
    Modified(Box<Modified>),
}

/// One-bit scalar sources.
#[derive(Clone, Copy, Debug)]
pub enum Status {
    Scc,
    VccZ,
    ExecZ,
}

impl Status {
    pub fn read<const W: usize>(self, wave: &Wave<W>) -> u32 {
        match self {
            Status::Scc => u32::from(wave.scc),
            Status::VccZ => u32::from(wave.mask(sreg::VCC_LO) == 0),
            Status::ExecZ => u32::from(wave.exec() == 0),
        }
    }
}

/// A source with a permutation, a selection of halves, or sign modifiers.
#[derive(Clone, Debug)]
pub struct Modified {
    pub base: Source,
    pub dpp: Option<DppPattern>,
    pub select: Select,
    pub and: u64,
    pub xor: u64,
}

/// Selection of the bits of a register that an operation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    Whole,
    /// The upper 16 bits.
    High,
    /// Packed operations: true selects the upper half for the low or high operation.
    Pair {
        low: bool,
        high: bool,
    },
    /// v_fma_mix: one half, converted from f16 to f32.
    Widened {
        high: bool,
    },
    /// SDWA: a byte or half, zero- or sign-extended.
    Part {
        part: Part,
        signed: bool,
    },
}

/// A byte or half of a dword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub shift: u32,
    pub width: u32,
}

impl Part {
    /// Returns the selected part, or `None` for the whole dword.
    fn of(select: SdwaSelect) -> Option<Self> {
        let (shift, width) = select.range();
        (width < 32).then_some(Self { shift, width })
    }

    #[inline(always)]
    pub fn apply(self, bits: u32, signed: bool) -> u32 {
        let top = bits << (32 - self.shift - self.width);
        if signed { (top as i32 >> (32 - self.width)) as u32 } else { top >> (32 - self.width) }
    }
}

impl Select {
    /// Applies the selection to a register.
    #[inline(always)]
    fn apply(self, bits: u32) -> u32 {
        let half = |high: bool| if high { bits >> 16 } else { bits & 0xffff };
        match self {
            Select::Whole => bits,
            Select::High => bits >> 16,
            Select::Pair { low, high } => half(low) | half(high) << 16,
            Select::Widened { high } => super::half::widen(half(high)).to_bits(),
            Select::Part { part, signed } => part.apply(bits, signed),
        }
    }

    /// Applies the selection to a register pair of a packed operation.
    #[inline(always)]
    pub fn apply_pair(self, bits: u64) -> u64 {
        let word = |high: bool| if high { bits >> 32 } else { bits & 0xffff_ffff };
        match self {
            Select::Pair { low, high } => word(low) | word(high) << 32,
            _ => bits,
        }
    }
}

/// A destination operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    None,
    Vgpr(u16),
    /// A scalar register, for a value or a lane mask.
    Scalar(u8),
    /// SDWA: a byte or half of a vector register, and the treatment of the remaining bits.
    Part(u16, Part, SdwaUnused),
}

/// Operands and modifiers of a prepared instruction.
#[derive(Clone, Debug)]
pub struct Operands {
    pub src: [Source; 4],
    pub dst: Target,
    pub dst2: Target,
    /// Fast path for 32-bit results: the vector register, if all lanes enabled by EXEC are written without
    /// modifiers.
    pub direct: Option<u16>,
    /// 16-bit results are written to the upper half.
    pub dst_high: bool,
    /// 16-bit results clear the other half (gfx9).
    pub clears_other_half: bool,
    /// The condition of a compare is inverted.
    pub invert: bool,
    pub clamp: bool,
    /// Output modifier: 0 none, 1 multiplies by 2, 2 by 4, 3 divides by 2.
    pub omod: u8,
    /// DPP pattern, for the mask of written lanes. Source 0 contains the pattern, too.
    pub dpp: Option<Box<DppPattern>>,
    /// Modifier bits whose meaning depends on the operation.
    pub flags: u8,
}

impl Operands {
    /// Returns the mask of lanes whose results are written.
    #[inline(always)]
    pub fn write_mask<const W: usize>(&self, wave: &Wave<W>) -> u64 {
        let exec = wave.exec();
        match &self.dpp {
            None => exec,
            Some(pattern) => exec & pattern.write_mask::<W>(exec),
        }
    }

    /// Returns true if omod or clamp apply to float results.
    #[inline(always)]
    pub fn shapes_output(&self) -> bool {
        self.clamp || self.omod != 0
    }
}

/// Resolves the sources and destinations of `inst` for the given source formats. Returns `None` if vector
/// instructions don't support an operand.
pub fn resolve(inst: &Inst, formats: &[Format]) -> Option<Operands> {
    let mut src = [Source::Constant(0), Source::Constant(0), Source::Constant(0), Source::Constant(0)];
    for (i, format) in formats.iter().enumerate() {
        src[i] = source(inst, i, *format)?;
    }
    let dst = part_target(target(inst.dst)?, inst.sdwa.as_ref())?;
    let direct = match dst {
        Target::Vgpr(n) if !inst.mods.clamp && inst.mods.omod == 0 && inst.dpp.is_none() => Some(n),
        _ => None,
    };
    Some(Operands {
        src,
        dst,
        direct,
        dst2: target(inst.dst2)?,
        dst_high: inst.mods.op_sel & 8 != 0,
        clears_other_half: false,
        invert: false,
        clamp: inst.mods.clamp,
        omod: inst.mods.omod,
        dpp: inst.dpp.as_ref().map(|dpp| Box::new(DppPattern::new(dpp))),
        flags: 0,
    })
}

fn target(operand: Operand) -> Option<Target> {
    match operand {
        Operand::None | Operand::Scalar(sreg::NULL) => Some(Target::None),
        Operand::Vgpr(n) => Some(Target::Vgpr(n)),
        Operand::Scalar(n) => Some(Target::Scalar(n)),
        _ => None,
    }
}

/// Returns the destination with SDWA's selection applied.
fn part_target(whole: Target, sdwa: Option<&Sdwa>) -> Option<Target> {
    let Some(Sdwa { dst: Some((select, unused)), .. }) = sdwa else { return Some(whole) };
    match (Part::of(*select), whole) {
        (None, whole) => Some(whole),
        (Some(part), Target::Vgpr(n)) => Some(Target::Part(n, part, *unused)),
        _ => None,
    }
}

fn source(inst: &Inst, index: usize, format: Format) -> Option<Source> {
    let mods = &inst.mods;
    let bit = |mask: u8| mask >> index & 1 != 0;
    let part = inst.sdwa.as_ref().filter(|_| index < 2).and_then(|sdwa| Part::of(sdwa.src[index]));
    let select = match format {
        _ if part.is_some() => {
            Select::Part { part: part?, signed: inst.sdwa.is_some_and(|sdwa| bit(sdwa.sext)) }
        }
        Format::Bits16 | Format::Half if bit(mods.op_sel) => Select::High,
        Format::PackedHalf | Format::PackedInt | Format::PackedSingle => {
            match (bit(mods.op_sel), bit(mods.op_sel_hi)) {
                (false, true) => Select::Whole,
                (low, high) => Select::Pair { low, high },
            }
        }
        Format::Mix if bit(mods.op_sel_hi) => Select::Widened { high: bit(mods.op_sel) },
        _ => Select::Whole,
    };
    let base = match inst.src[index] {
        Operand::Vgpr(n) => Source::Vgpr(n),
        // NULL reads as zero. As a pair it would include M0, the next register.
        Operand::Scalar(sreg::NULL) => Source::Constant(0),
        Operand::Scalar(n) => Source::Scalar(n),
        Operand::Scc => Source::Status(Status::Scc),
        Operand::VccZ => Source::Status(Status::VccZ),
        Operand::ExecZ => Source::Status(Status::ExecZ),
        constant => Source::Constant(constant_bits(constant, format, select)?),
    };
    // A 16-bit constant has no upper half to select.
    let select = match (&base, select) {
        (Source::Constant(_), Select::High) => Select::Whole,
        (_, select) => select,
    };
    let sign: u64 = match format {
        Format::Bits16 | Format::Half => 0x8000,
        Format::Bits64 | Format::Signed64 | Format::Double => 1 << 63,
        Format::PackedHalf | Format::PackedInt | Format::PackedSingle | Format::Mask => 0,
        _ => 0x8000_0000,
    };
    let (mut and, mut xor) = (u64::MAX, 0);
    match format {
        // Sign modifiers apply only to floats.
        Format::Bits16
        | Format::Bits32
        | Format::Bits64
        | Format::Signed64
        | Format::PackedInt
        | Format::Mask => {}
        Format::PackedHalf => {
            xor |= if bit(mods.neg) { 0x8000 } else { 0 };
            xor |= if bit(mods.neg_hi) { 0x8000_0000 } else { 0 };
        }
        Format::PackedSingle => {
            xor |= if bit(mods.neg) { 1 << 31 } else { 0 };
            xor |= if bit(mods.neg_hi) { 1 << 63 } else { 0 };
        }
        // v_fma_mix encodes abs in the bits of neg_hi.
        Format::Mix => {
            and = if bit(mods.neg_hi) || bit(mods.abs) { !sign } else { and };
            xor = if bit(mods.neg) { sign } else { 0 };
        }
        _ => {
            and = if bit(mods.abs) { !sign } else { and };
            xor = if bit(mods.neg) { sign } else { 0 };
        }
    }
    let dpp = if index == 0 { inst.dpp.as_ref().map(DppPattern::new) } else { None };
    match base {
        Source::Constant(bits) if dpp.is_none() => {
            let bits = match select {
                Select::Whole => bits,
                select if format == Format::PackedSingle => select.apply_pair(bits),
                // Other 64-bit formats have no halves to select.
                select => u64::from(select.apply(bits as u32)),
            };
            Some(Source::Constant(bits & and ^ xor))
        }
        base if select == Select::Whole && dpp.is_none() && and == u64::MAX && xor == 0 => Some(base),
        base => Some(Source::Modified(Box::new(Modified { base, dpp, select, and, xor }))),
    }
}

/// Returns the bits of a constant for an operand format.
fn constant_bits(operand: Operand, format: Format, select: Select) -> Option<u64> {
    let half = |bits: u16| u64::from(bits);
    Some(match (operand, format) {
        (Operand::SharedBase, _) => SHARED_APERTURE,
        (Operand::SharedLimit, _) => SHARED_APERTURE + u64::from(u32::MAX),
        (Operand::PrivateBase, _) => PRIVATE_APERTURE,
        (Operand::PrivateLimit, _) => PRIVATE_APERTURE + u64::from(u32::MAX),
        (Operand::Int(value), Format::Bits16 | Format::Half) => half(value as u16),
        (Operand::Int(value), Format::Bits64 | Format::Signed64 | Format::Double | Format::Mask) => {
            i64::from(value) as u64
        }
        (Operand::Int(value), _) => u64::from(value as u32),
        (Operand::Literal(bits), Format::Bits16 | Format::Half) => half(bits as u16),
        (Operand::Literal(bits), Format::Double) => u64::from(bits) << 32,
        (Operand::Literal(bits), Format::Signed64) => i64::from(bits as i32) as u64,
        (Operand::Literal(bits), _) => u64::from(bits),
        (Operand::Float(value), Format::Bits16 | Format::Half | Format::PackedHalf) => half(value.bits_16()),
        (Operand::Float(value), Format::Mix) if matches!(select, Select::Widened { .. }) => {
            half(value.bits_16())
        }
        (Operand::Float(value), Format::Bits64 | Format::Signed64 | Format::Double) => value.bits_64(),
        (Operand::Float(value), _) => u64::from(value.bits_32()),
        _ => return None,
    })
}
