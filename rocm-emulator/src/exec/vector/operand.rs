//! Prepared operands: sources and destinations, with their modifiers resolved.
use std::mem::MaybeUninit;

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

/// A source with a permutation, a selection of halves, or sign modifiers.
#[derive(Clone, Debug)]
pub struct Modified {
    base: Source,
    dpp: Option<DppPattern>,
    select: Select,
    and: u64,
    xor: u64,
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
    shift: u8,
    width: u8,
}

impl Part {
    /// Returns the selected part, or `None` for the whole dword.
    fn of(select: SdwaSelect) -> Option<Self> {
        let (shift, width) = match select {
            SdwaSelect::Byte0 => (0, 8),
            SdwaSelect::Byte1 => (8, 8),
            SdwaSelect::Byte2 => (16, 8),
            SdwaSelect::Byte3 => (24, 8),
            SdwaSelect::Word0 => (0, 16),
            SdwaSelect::Word1 => (16, 16),
            SdwaSelect::Dword => return None,
        };
        Some(Self { shift, width })
    }

    #[inline(always)]
    fn apply(self, bits: u32, signed: bool) -> u32 {
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
    fn apply_pair(self, bits: u64) -> u64 {
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

/// Returns all ones in each lane whose bit of `mask` is set.
#[inline(always)]
pub fn expand<const W: usize>(mask: u64) -> [u32; W] {
    let halves = [mask as u32, (mask >> 32) as u32];
    let mut lanes = [0; W];
    for (i, lane) in lanes.iter_mut().enumerate() {
        *lane = (halves[i / 32] >> (i % 32) & 1).wrapping_neg();
    }
    lanes
}

/// Returns the mask of lanes that are all ones. Each lane must be all ones or zero.
#[inline(always)]
pub fn collect<const W: usize>(lanes: &[u32; W]) -> u64 {
    let (groups, _) = lanes.as_chunks::<16>();
    groups.iter().enumerate().fold(0, |mask, (i, group)| mask | u64::from(collect16(group)) << (16 * i))
}

/// Packs the lanes to bytes and extracts their signs, because compilers don't vectorise a loop over bits.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn collect16(lanes: &[u32; 16]) -> u16 {
    use std::arch::x86_64::{_mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_set_epi32};
    let four = |i: usize| {
        let [a, b, c, d] = [lanes[i], lanes[i + 1], lanes[i + 2], lanes[i + 3]].map(|x| x as i32);
        // SAFETY: every x86-64 has SSE2.
        unsafe { _mm_set_epi32(d, c, b, a) }
    };
    // SAFETY: every x86-64 has SSE2.
    unsafe {
        let low = _mm_packs_epi32(four(0), four(4));
        let high = _mm_packs_epi32(four(8), four(12));
        _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u16
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn collect16(lanes: &[u32; 16]) -> u16 {
    lanes.iter().enumerate().fold(0, |mask, (i, lane)| mask | (lane & 1 << i) as u16)
}

/// Returns a register's lanes. Registers out of range read as zero.
#[inline(always)]
pub fn vgpr<const W: usize>(wave: &Wave<W>, n: u16) -> &[u32; W] {
    match wave.vgpr.get(n as usize) {
        Some(lanes) => &lanes.0,
        None => const { &[0; W] },
    }
}

/// Returns the 32-bit lanes of a source.
#[inline(always)]
pub fn fetch32<'a, const W: usize>(
    wave: &'a Wave<W>,
    source: &Source,
    buffer: &'a mut MaybeUninit<[u32; W]>,
) -> &'a [u32; W] {
    match source {
        Source::Vgpr(n) => vgpr(wave, *n),
        Source::Scalar(n) => buffer.write([wave.sgpr[(n & 127) as usize]; W]),
        Source::Constant(bits) => buffer.write([*bits as u32; W]),
        other => fetch32_rare(wave, other, buffer),
    }
}

#[inline(never)]
fn fetch32_rare<'a, const W: usize>(
    wave: &'a Wave<W>,
    source: &Source,
    buffer: &'a mut MaybeUninit<[u32; W]>,
) -> &'a [u32; W] {
    let modified = match source {
        Source::Modified(modified) => modified,
        Source::Status(status) => return buffer.write([status.read(wave); W]),
        plain => return fetch32(wave, plain, buffer),
    };
    let mut base_buffer = MaybeUninit::uninit();
    let mut base = fetch32(wave, &modified.base, &mut base_buffer);
    let permuted;
    if let Some(pattern) = &modified.dpp {
        permuted = pattern.permute(base, wave.exec());
        base = &permuted;
    }
    let (and, xor) = (modified.and as u32, modified.xor as u32);
    // Each selection has a separate loop, so that it vectorises.
    buffer.write(match modified.select {
        Select::Whole => each(base, |x| x & and ^ xor),
        Select::High => each(base, |x| x >> 16 & and ^ xor),
        Select::Pair { low, high } => {
            let (low, high) = (u32::from(low) * 16, u32::from(high) * 16);
            each(base, |x| ((x >> low & 0xffff) | (x >> high) << 16) & and ^ xor)
        }
        Select::Widened { high } => {
            let shift = u32::from(high) * 16;
            each(base, |x| super::half::widen(x >> shift & 0xffff).to_bits() & and ^ xor)
        }
        Select::Part { part, signed } => each(base, |x| part.apply(x, signed) & and ^ xor),
    })
}

/// Maps the lanes. Unlike `array::map`, this vectorises.
#[inline(always)]
fn each<const W: usize>(lanes: &[u32; W], f: impl Fn(u32) -> u32) -> [u32; W] {
    let mut out = [0; W];
    for i in 0..W {
        out[i] = f(lanes[i]);
    }
    out
}

/// Returns the 64-bit lanes of a source, which are register pairs.
#[inline(always)]
pub fn fetch64<'a, const W: usize>(
    wave: &'a Wave<W>,
    source: &Source,
    buffer: &'a mut MaybeUninit<[u64; W]>,
) -> &'a [u64; W] {
    match source {
        Source::Vgpr(n) => buffer.write(join(vgpr(wave, *n), vgpr(wave, n.saturating_add(1)))),
        Source::Scalar(n) => buffer.write([wave.sgpr64(*n); W]),
        Source::Constant(bits) => buffer.write([*bits; W]),
        other => buffer.write(fetch64_rare(wave, other)),
    }
}

#[inline(always)]
fn join<const W: usize>(low: &[u32; W], high: &[u32; W]) -> [u64; W] {
    let mut lanes = [0; W];
    for i in 0..W {
        lanes[i] = u64::from(low[i]) | u64::from(high[i]) << 32;
    }
    lanes
}

#[inline(never)]
fn fetch64_rare<const W: usize>(wave: &Wave<W>, source: &Source) -> [u64; W] {
    match source {
        Source::Vgpr(n) => join(vgpr(wave, *n), vgpr(wave, n.saturating_add(1))),
        Source::Scalar(n) => [wave.sgpr64(*n); W],
        Source::Constant(bits) => [*bits; W],
        Source::Status(status) => [u64::from(status.read(wave)); W],
        Source::Modified(modified) => {
            let mut lanes = fetch64_rare(wave, &modified.base);
            if let Some(pattern) = &modified.dpp {
                let low = pattern.permute(&lanes.map(|x| x as u32), wave.exec());
                let high = pattern.permute(&lanes.map(|x| (x >> 32) as u32), wave.exec());
                lanes = join(&low, &high);
            }
            let (and, xor) = (modified.and, modified.xor);
            lanes.iter_mut().for_each(|x| *x = modified.select.apply_pair(*x) & and ^ xor);
            lanes
        }
    }
}

/// Returns the lane mask of a source.
#[inline(always)]
pub fn fetch_mask<const W: usize>(wave: &Wave<W>, source: &Source) -> u64 {
    match source {
        Source::Scalar(n) => wave.mask(*n),
        Source::Constant(bits) => *bits,
        _ => 0,
    }
}

impl Status {
    fn read<const W: usize>(self, wave: &Wave<W>) -> u32 {
        match self {
            Status::Scc => u32::from(wave.scc),
            Status::VccZ => u32::from(wave.mask(sreg::VCC_LO) == 0),
            Status::ExecZ => u32::from(wave.exec() == 0),
        }
    }
}

/// Writes the active lanes of a 32-bit result.
#[inline(always)]
pub fn store32<const W: usize>(operands: &Operands, wave: &mut Wave<W>, out: &[u32; W]) {
    if let Some(n) = operands.direct {
        let exec = wave.exec();
        return write_register(wave, n, exec, out);
    }
    let Target::Vgpr(n) = operands.dst else { return store_part(operands, wave, out) };
    let mask = operands.write_mask(wave);
    write_register(wave, n, mask, out);
}

/// Writes the active lanes of a result to the part that SDWA selects.
#[inline(never)]
fn store_part<const W: usize>(operands: &Operands, wave: &mut Wave<W>, out: &[u32; W]) {
    let Target::Part(n, part, unused) = operands.dst else { return };
    let mask = operands.write_mask(wave);
    let field = (u32::MAX >> (32 - part.width)) << part.shift;
    let sign = 1 << (part.shift + part.width - 1);
    let values = std::array::from_fn(|i| {
        let old = wave.vgpr.get(n as usize).map_or(0, |register| register.0[i]);
        let value = out[i] << part.shift & field;
        match unused {
            SdwaUnused::Pad => value,
            // Set all bits from the sign upwards.
            SdwaUnused::SignExtend if value & sign != 0 => value | (sign as i32).wrapping_neg() as u32,
            SdwaUnused::SignExtend => value,
            SdwaUnused::Preserve => value | old & !field,
        }
    });
    write_register(wave, n, mask, &values);
}

/// Writes the lanes of `mask` to register `n`. Writes to registers out of range are discarded.
#[inline(always)]
pub fn write_register<const W: usize>(wave: &mut Wave<W>, n: u16, mask: u64, out: &[u32; W]) {
    let Some(register) = wave.vgpr.get_mut(n as usize) else { return };
    if mask == Wave::<W>::full() {
        register.0 = *out;
    } else {
        let lanes = expand::<W>(mask);
        for i in 0..W {
            register.0[i] = out[i] & lanes[i] | register.0[i] & !lanes[i];
        }
    }
}

/// Writes the active lanes of a 16-bit result to its half. The other half is preserved, or cleared on gfx9.
#[inline(always)]
pub fn store16<const W: usize>(operands: &Operands, wave: &mut Wave<W>, out: &[u32; W]) {
    let Target::Vgpr(n) = operands.dst else { return store_part(operands, wave, out) };
    let mask = operands.write_mask(wave);
    let Some(register) = wave.vgpr.get_mut(n as usize) else { return };
    let lanes = expand::<W>(mask);
    let (shift, half) = if operands.dst_high { (16, 0xffff_0000) } else { (0, 0xffff) };
    let half = if operands.clears_other_half { u32::MAX } else { half };
    for i in 0..W {
        let written = lanes[i] & half;
        register.0[i] = out[i] << shift & written | register.0[i] & !written;
    }
}

/// Writes the active lanes of a 64-bit result to a register pair.
#[inline(always)]
pub fn store64<const W: usize>(operands: &Operands, wave: &mut Wave<W>, out: &[u64; W]) {
    let Target::Vgpr(n) = operands.dst else { return };
    let mask = operands.write_mask(wave);
    let (mut low, mut high) = ([0; W], [0; W]);
    for i in 0..W {
        low[i] = out[i] as u32;
        high[i] = (out[i] >> 32) as u32;
    }
    write_register(wave, n, mask, &low);
    write_register(wave, n.saturating_add(1), mask, &high);
}

/// Writes the mask of a compare to its destinations. gfx9's v_cmpx has two.
#[inline(always)]
pub fn store_masks<const W: usize>(operands: &Operands, wave: &mut Wave<W>, active: u64, mask: u64) {
    store_mask(operands.dst, operands.invert, wave, active, mask);
    if operands.dst2 != Target::None {
        store_mask(operands.dst2, operands.invert, wave, active, mask);
    }
}

/// Writes a lane mask to a scalar destination. The bits of inactive lanes become 0.
#[inline(always)]
pub fn store_mask<const W: usize>(target: Target, invert: bool, wave: &mut Wave<W>, active: u64, mask: u64) {
    if let Target::Scalar(n) = target {
        let mask = if invert { !mask } else { mask };
        wave.set_mask(n, mask & active);
    }
}
