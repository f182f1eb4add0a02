//! Operand access by the ISA's rules: constants, modifiers, halves, DPP and SDWA.
use super::formula::Out;
use super::kind::{Kind, Signature};
use super::number::{self, Format, Rounding};
use super::state::State;
use super::tolerance::{Approx, Dest, Tolerance};
use crate::exec::wave::{FIRST_AGPR, Mode};
use crate::exec::{PRIVATE_APERTURE, SHARED_APERTURE};
use crate::isa::{Dpp, DppControl, Family, Inst, Operand, SdwaSelect, SdwaUnused, sreg};

/// Returns the source lane of a DPP control, if it is in range.
fn dpp_lane(control: &DppControl, lane: usize) -> Option<usize> {
    let (row, at) = (lane / 16 * 16, lane % 16);
    Some(match control {
        DppControl::QuadPerm(order) => lane / 4 * 4 + usize::from(order[lane % 4]),
        DppControl::Dpp8(order) => lane / 8 * 8 + usize::from(order[lane % 8]),
        DppControl::RowShl(n) => (at + usize::from(*n) <= 15).then(|| lane + usize::from(*n))?,
        DppControl::RowShr(n) => (at >= usize::from(*n)).then(|| lane - usize::from(*n))?,
        DppControl::RowRor(n) => row + (at + 16 - usize::from(*n)) % 16,
        DppControl::RowMirror => row + (15 - at),
        DppControl::RowHalfMirror => lane / 8 * 8 + (7 - lane % 8),
        DppControl::RowShare(n) => row + usize::from(*n),
        DppControl::RowXmask(n) => row + (at ^ usize::from(*n)),
        DppControl::WaveShl => (lane < 63).then(|| lane + 1)?,
        DppControl::WaveShr => lane.checked_sub(1)?,
        DppControl::WaveRol => (lane + 1) % 64,
        DppControl::WaveRor => (lane + 63) % 64,
        DppControl::RowBcast15 => (lane >= 16).then(|| row - 1)?,
        DppControl::RowBcast31 => (lane >= 32).then_some(31)?,
    })
}

/// DPP's source of a lane: another lane, zero, or none, in which case the lane is not written.
enum Fetched {
    From(usize),
    Zero,
    NotWritten,
}

fn fetched(dpp: &Dpp, before: &State, lane: usize) -> Fetched {
    let eight = matches!(dpp.control, DppControl::Dpp8(_));
    let (row, bank) = (lane / 16, lane / 4 % 4);
    if !eight && (dpp.row_mask >> row & 1 == 0 || dpp.bank_mask >> bank & 1 == 0) {
        return Fetched::NotWritten;
    }
    match dpp_lane(&dpp.control, lane) {
        Some(from) if from < before.lanes && (before.is_active(from) || dpp.fetch_inactive) => {
            Fetched::From(from)
        }
        _ if dpp.bound_ctrl || eight => Fetched::Zero,
        _ => Fetched::NotWritten,
    }
}

/// Returns true if the lane's result is written.
pub fn is_written(before: &State, inst: &Inst, lane: usize) -> bool {
    let not_written = |dpp: &Dpp| matches!(fetched(dpp, before, lane), Fetched::NotWritten);
    before.is_active(lane) && !inst.dpp.as_ref().is_some_and(not_written)
}

/// Returns an operand's bits before modifiers.
pub fn raw(before: &State, inst: &Inst, operand: Operand, kind: Kind, lane: usize) -> u64 {
    match operand {
        Operand::Vgpr(n) if kind.is_wide() => before.vector_pair(n, lane),
        Operand::Vgpr(n) => before.vector(n, lane).into(),
        Operand::Agpr(n) => raw(before, inst, Operand::Vgpr(n + FIRST_AGPR), kind, lane),
        Operand::Scalar(n) if kind == Kind::Mask => before.mask(n),
        Operand::Scalar(n) if kind.is_wide() => before.pair(n),
        Operand::Scalar(n) => before.scalar(n).into(),
        Operand::Scc => before.scc.into(),
        Operand::VccZ => (before.mask(sreg::VCC_LO) == 0).into(),
        Operand::ExecZ => (before.exec() == 0).into(),
        Operand::Int(value) if kind.bits() == 64 || kind == Kind::Mask => i64::from(value) as u64,
        Operand::Int(value) => u64::from(value as u32),
        Operand::Literal(bits) => match kind {
            Kind::F64 | Kind::Raw64 => u64::from(bits) << 32,
            Kind::I64 => i64::from(bits as i32) as u64,
            _ => bits.into(),
        },
        Operand::Float(value) => match kind {
            Kind::F64 | Kind::Raw64 | Kind::U64 | Kind::I64 => value.bits_64(),
            Kind::F16 | Kind::Raw16 | Kind::U16 | Kind::I16 | Kind::PairF16 => value.bits_16().into(),
            // op_sel_hi selects f16 for a source of v_fma_mix.
            Kind::Mix
                if inst
                    .src
                    .iter()
                    .position(|src| *src == operand)
                    .is_some_and(|i| bit(inst.mods.op_sel_hi, i)) =>
            {
                value.bits_16().into()
            }
            _ => value.bits_32().into(),
        },
        Operand::SharedBase => SHARED_APERTURE,
        Operand::SharedLimit => SHARED_APERTURE | u64::from(u32::MAX),
        Operand::PrivateBase => PRIVATE_APERTURE,
        Operand::PrivateLimit => PRIVATE_APERTURE | u64::from(u32::MAX),
        Operand::None | Operand::HwReg { .. } => panic!("{}: operand has no value: {operand:?}", inst.name),
    }
}

fn bit(mask: u8, at: usize) -> bool {
    mask >> at & 1 != 0
}

fn is_constant(operand: Operand) -> bool {
    matches!(operand, Operand::Int(_) | Operand::Literal(_) | Operand::Float(_))
}

/// Returns the part of a value that SDWA selects.
fn part(bits: u64, select: SdwaSelect, signed: bool) -> u64 {
    let (shift, width) = select.range();
    let value = bits >> shift & ((1 << width) - 1);
    if signed && value >> (width - 1) & 1 != 0 { (value | u64::MAX << width) & 0xffff_ffff } else { value }
}

/// Returns source `index` of a lane with DPP, SDWA and modifiers applied.
pub fn source(before: &State, inst: &Inst, index: usize, kind: Kind, lane: usize) -> u64 {
    if kind == Kind::Immediate {
        return i64::from(inst.imm) as u64;
    }
    let operand = inst.src[index];
    let from = match (&inst.dpp, index) {
        (Some(dpp), 0) => match fetched(dpp, before, lane) {
            Fetched::From(from) => from,
            Fetched::Zero | Fetched::NotWritten => return modified(inst, index, kind, 0, before.mode),
        },
        _ => lane,
    };
    let mut bits = raw(before, inst, operand, kind, from);
    if kind == Kind::Mask {
        return bits >> lane & 1;
    }
    if let (Some(sdwa), true) = (&inst.sdwa, index < 2) {
        bits = part(bits, sdwa.src[index], bit(sdwa.sext, index));
    }
    modified(inst, index, kind, bits, before.mode)
}

/// Applies the selection of halves, sign modifiers and flushing of denormals.
fn modified(inst: &Inst, index: usize, kind: Kind, bits: u64, mode: Mode) -> u64 {
    let mods = &inst.mods;
    let (low, high) = (bit(mods.op_sel, index), bit(mods.op_sel_hi, index));
    let mut bits = bits;
    if kind.is_half() {
        bits = if low && !is_constant(inst.src[index]) { bits >> 16 } else { bits } & 0xffff;
    }
    if let Some(width) = kind.part() {
        let mask = (1u64 << width) - 1;
        let high_of = |upper: bool| if upper { bits >> width } else { bits } & mask;
        let high = if inst.encoding == crate::isa::Encoding::Vop3p { high } else { true };
        let (mut first, mut second) = (high_of(low), high_of(high));
        if kind != Kind::Pair16 && kind != Kind::Pair32 {
            first ^= u64::from(bit(mods.neg, index)) << (width - 1);
            second ^= u64::from(bit(mods.neg_hi, index)) << (width - 1);
        }
        bits = first | second << width;
    }
    if kind == Kind::Mix {
        if high {
            let half = if low { bits >> 16 } else { bits } & 0xffff;
            let half = flushed(number::F16, half, mode, 1);
            bits = widened(half);
        }
        let abs = bit(mods.neg_hi, index) || bit(mods.abs, index);
        bits = with_sign(bits & 0xffff_ffff, number::F32, abs, bit(mods.neg, index));
        return if high { bits } else { flushed(number::F32, bits, mode, 1) };
    }
    match kind.format() {
        Some(format) if kind.part().is_none() => {
            let bits = with_sign(bits, format, bit(mods.abs, index), bit(mods.neg, index));
            if kind.is_flushed() { flushed(format, bits, mode, 1) } else { bits }
        }
        Some(format) if kind.is_flushed() => {
            let width = kind.part().unwrap_or(0);
            let mask = (1u64 << width) - 1;
            flushed(format, bits & mask, mode, 1) | flushed(format, bits >> width & mask, mode, 1) << width
        }
        _ if kind.bits() == 32 && kind != Kind::Mask => bits & 0xffff_ffff,
        _ => bits,
    }
}

/// Converts f16 to f32, which is exact.
fn widened(half: u64) -> u64 {
    if number::F16.is_nan(half) {
        // A NaN's payload moves to the top of the larger fraction.
        return (half & 0x8000) << 16 | 0x7f80_0000 | (half & 0x3ff) << 13;
    }
    number::F16.read(half).rounded(number::F32, Rounding::Even)
}

fn with_sign(bits: u64, format: Format, abs: bool, neg: bool) -> u64 {
    let bits = if abs { bits & !format.sign() } else { bits };
    if neg { bits ^ format.sign() } else { bits }
}

/// Flushes a denormal to a zero of its sign unless the mode allows it (bit 1: sources, bit 2: results).
pub fn flushed(format: Format, bits: u64, mode: Mode, allow: u8) -> u64 {
    let allowed = if format == number::F32 { mode.denorm_32 } else { mode.denorm_16_64 };
    if allowed & allow == 0 && format.is_denormal(bits) { bits & format.sign() } else { bits }
}

/// Returns the rounding of results in a format.
pub fn rounding(format: Format, mode: Mode) -> Rounding {
    Rounding::of_mode(if format == number::F32 { mode.round_32 } else { mode.round_16_64 })
}

/// Returns true if a 16-bit result clears the register's upper half. gfx9's older instructions do, except
/// those that accumulate or can select halves.
fn clears_upper_half(family: Family, name: &str) -> bool {
    let parts = [
        "_min3_", "_max3_", "_med3_", "_fma_mix", "_mac_", "_madmk_", "_madak_", "_fmac_", "_fmamk_",
        "_fmaak_", "_bitop3_",
    ];
    let keeps =
        ["v_fma_f16", "v_mad_f16", "v_mad_u16", "v_mad_i16", "v_div_fixup_f16", "v_add_i16", "v_sub_i16"];
    family.is_gfx9() && !keeps.contains(&name) && !parts.iter().any(|part| name.contains(part))
}

/// Clamps a float to 0..=1. -0 becomes 0, and so does NaN if the mode says so.
fn clamped(format: Format, bits: u64, mode: Mode) -> u64 {
    let one = number::Exact::of_integer(1).rounded(format, Rounding::Even);
    if format.is_nan(bits) {
        return if mode.dx10_clamp { 0 } else { bits };
    }
    if format.is_negative(bits) { 0 } else { bits.min(one) }
}

/// Returns the exponent of the output modifier's scale. It applies only if neither IEEE mode nor denormal
/// results are enabled.
fn scale(format: Format, mode: Mode, omod: u8) -> i32 {
    let denormals = if format == number::F32 { mode.denorm_32 } else { mode.denorm_16_64 };
    if mode.ieee || denormals & 2 != 0 { 0 } else { [0, 1, 2, -1][usize::from(omod & 3)] }
}

fn scaled(format: Format, bits: u64, mode: Mode, omod: u8) -> u64 {
    match (scale(format, mode, omod), format.read(bits)) {
        (power, number::Number::Finite(value)) if power != 0 => {
            flushed(format, value.scaled(power.into()).rounded(format, rounding(format, mode)), mode, 2)
        }
        _ => bits,
    }
}

/// Writes a vector result.
pub fn store(
    after: &mut State,
    inst: &Inst,
    signature: &Signature,
    lane: usize,
    out: &Out,
    approx: &mut Vec<Approx>,
) {
    let kind = signature.result;
    let Operand::Vgpr(register) = agpr_as_vgpr(inst.dst) else {
        // The caller writes the masks of gfx9's compares.
        return;
    };
    let mode = after.mode;
    let power = kind.format().map_or(0, |format| scale(format, mode, inst.mods.omod));
    let out = &Out { near: out.near.map(|(near, ulps)| (near * 2f64.powi(power), ulps)), ..out.clone() };
    let mut bits = out.bits;
    if let Some(format) = kind.format().filter(|_| kind.is_flushed()) {
        let width = kind.part().unwrap_or(64);
        let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
        let shape = |bits: u64| {
            let bits = flushed(format, bits, mode, 2);
            let bits = scaled(format, bits, mode, inst.mods.omod);
            if inst.mods.clamp { clamped(format, bits, mode) } else { bits }
        };
        bits =
            if width == 64 { shape(bits) } else { shape(bits & mask) | shape(bits >> width & mask) << width };
    }
    let high_half = inst.mods.op_sel & 8 != 0 && kind.is_half() || inst.name == "v_fma_mixhi_f16";
    let base = if high_half { 16 } else { 0 };
    if kind.is_wide() {
        after.set_vector(register, lane, bits as u32);
        after.set_vector(register + 1, lane, (bits >> 32) as u32);
    } else if let Some((select, unused)) = inst.sdwa.and_then(|sdwa| sdwa.dst) {
        let old = after.vector(register, lane);
        let bits = if kind.is_half() { bits & 0xffff } else { bits } as u32;
        after.set_vector(register, lane, inserted(old, bits, select, unused));
        approx_sdwa(kind, out, bits, register, lane, select, unused, approx);
        return;
    } else if kind.is_half() {
        let old = after.vector(register, lane);
        let kept = if clears_upper_half(after.family, inst.name) { 0 } else { old & !(0xffff << base) };
        after.set_vector(register, lane, kept | (bits as u32 & 0xffff) << base);
    } else {
        after.set_vector(register, lane, bits as u32);
    }
    let parts: Vec<u32> = match kind.part() {
        Some(width) => vec![0, width],
        None => vec![0],
    };
    for part in parts {
        let width = kind.part().unwrap_or(kind.bits());
        let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
        let value = bits >> part & mask;
        let tolerance = if out.unspecified {
            Tolerance::Anything
        } else if let (Some((near, ulps)), Some(format)) = (out.near, kind.format()) {
            let near = if inst.mods.clamp { near.clamp(0.0, 1.0) } else { near };
            Tolerance::Near(format, near, ulps)
        } else {
            match kind.format() {
                Some(format) if kind.is_flushed() && format.is_nan(value) => Tolerance::Nan(format),
                _ => continue,
            }
        };
        let (register, shift) = if part == 32 { (register + 1, 0) } else { (register, part + base) };
        approx.push(Approx { dest: Dest::Vector(register, lane), shift, bits: width, tolerance });
    }
}

/// Maps accumulation registers to the registers after the vector registers.
pub fn agpr_as_vgpr(operand: Operand) -> Operand {
    match operand {
        Operand::Agpr(n) => Operand::Vgpr(n + FIRST_AGPR),
        other => other,
    }
}

/// Inserts a result into the part of the destination that SDWA selects.
fn inserted(old: u32, bits: u32, select: SdwaSelect, unused: SdwaUnused) -> u32 {
    let (shift, width) = select.range();
    let mask = if width == 32 { u32::MAX } else { ((1 << width) - 1) << shift };
    let value = if width == 32 { bits } else { bits << shift & mask };
    match unused {
        SdwaUnused::Pad => value,
        SdwaUnused::Preserve => value | old & !mask,
        // The bits above are copies of the sign; those below are zero.
        SdwaUnused::SignExtend => {
            let above = if width == 32 { 0 } else { u32::MAX.checked_shl(shift + width).unwrap_or(0) };
            value | if value >> (shift + width - 1) & 1 != 0 { above } else { 0 }
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn approx_sdwa(
    kind: Kind,
    out: &Out,
    bits: u32,
    register: u16,
    lane: usize,
    select: SdwaSelect,
    unused: SdwaUnused,
    approx: &mut Vec<Approx>,
) {
    let (shift, width) = select.range();
    let Some(format) = kind.format().filter(|_| kind.is_flushed()) else { return };
    let nan = format.is_nan(bits.into());
    if !nan && out.near.is_none() {
        return;
    }
    let dest = Dest::Vector(register, lane);
    // Only a value that fills its part, without a sign extension, has a precise tolerance.
    let whole = width == kind.bits() && unused != SdwaUnused::SignExtend;
    let tolerance = match out.near {
        _ if !whole => Tolerance::Anything,
        Some((near, ulps)) => Tolerance::Near(format, near, ulps),
        None => Tolerance::Nan(format),
    };
    let (shift, width) = if whole { (shift, width) } else { (0, 32) };
    approx.push(Approx { dest, shift, bits: width, tolerance });
}
