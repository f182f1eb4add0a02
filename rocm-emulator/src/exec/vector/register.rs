//! Registers: the lanes of sources, and the lanes that are written.
use std::mem::MaybeUninit;

use super::operand::{Operands, Select, Source, Target};
use crate::exec::wave::Wave;
use crate::isa::SdwaUnused;

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
    // A loop, because `fold` is not inlined into functions with more target features.
    let mut mask = 0;
    for (i, group) in lanes.as_chunks::<16>().0.iter().enumerate() {
        mask |= u64::from(collect16(group)) << (16 * i);
    }
    mask
}

/// Packs the lanes to bytes and extracts their signs, because compilers don't vectorise a loop over bits.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn collect16(lanes: &[u32; 16]) -> u16 {
    use std::arch::x86_64::{_mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_set_epi32};
    let four = |i: usize| {
        let lane = |j: usize| lanes[i + j] as i32;
        // SAFETY: every x86-64 has SSE2.
        unsafe { _mm_set_epi32(lane(3), lane(2), lane(1), lane(0)) }
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
pub fn each<S: Copy, T: Copy + Default, const W: usize>(lanes: &[S; W], f: impl Fn(S) -> T) -> [T; W] {
    let mut out = [T::default(); W];
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
        Source::Status(status) => [u64::from(status.read(wave)); W],
        Source::Modified(modified) => {
            let mut lanes = *fetch64(wave, &modified.base, &mut MaybeUninit::uninit());
            if let Some(pattern) = &modified.dpp {
                let low = pattern.permute(&each(&lanes, |x| x as u32), wave.exec());
                let high = pattern.permute(&each(&lanes, |x| (x >> 32) as u32), wave.exec());
                lanes = join(&low, &high);
            }
            let (and, xor) = (modified.and, modified.xor);
            lanes.iter_mut().for_each(|x| *x = modified.select.apply_pair(*x) & and ^ xor);
            lanes
        }
        plain => *fetch64(wave, plain, &mut MaybeUninit::uninit()),
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
