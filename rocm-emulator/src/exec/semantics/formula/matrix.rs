//! Products of 16x16 matrices of bytes or floats, which a whole wave makes whatever EXEC says.
//!
//! A's row and B's column of a number lie in the lanes of that number modulo 16. Which k stand where needs no saying:
//! A and B agree on it, and sums of whole numbers that the result can hold have no order. Floats are whole here
//! (`whole_floats` of the inputs); how sums of others are rounded is for the tests of `exec::matrix`.
use super::{Row, whole};
use crate::exec::semantics::kind::Kind;
use crate::exec::semantics::operands::{agpr_as_vgpr, raw};
use crate::exec::semantics::state::State;
use crate::exec::vector::half;
use crate::isa::{Family, Inst, Operand};

/// Rows of A, columns of B, and lanes that have one of each.
const SIDE: usize = 16;

/// What A and B are made of, and with it the result: i32 of bytes, f32 of floats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Element {
    Byte {
        signed: bool,
    },
    Half,
    /// The upper half of an f32.
    Bfloat,
    Single,
}

impl Element {
    /// Those of a lane, in `registers` registers.
    fn of_lane(self, inst: &Inst, before: &State, at: usize, registers: u16, lane: usize) -> Vec<f64> {
        let Operand::Vgpr(first) = agpr_as_vgpr(inst.src[at]) else { panic!("{}: no register", inst.name) };
        let words = (0..registers).map(|n| before.vector(first + n, lane));
        match self {
            Self::Byte { signed: true } => {
                words.flat_map(u32::to_le_bytes).map(|byte| f64::from(byte as i8)).collect()
            }
            Self::Byte { signed: false } => words.flat_map(u32::to_le_bytes).map(f64::from).collect(),
            Self::Single => words.map(|word| f64::from(f32::from_bits(word))).collect(),
            Self::Half | Self::Bfloat => {
                let widen = |bits: u32| match self {
                    Self::Half => half::widen(bits),
                    _ => f32::from_bits(bits << 16),
                };
                // Of halves the lower and the higher ones are negated by modifiers of their own.
                let signs =
                    [inst.mods.neg, inst.mods.neg_hi].map(|bits| 1.0 - 2.0 * f64::from(bits >> at & 1));
                words
                    .flat_map(|word| [word & 0xffff, word >> 16].map(widen))
                    .zip(signs.into_iter().cycle())
                    .map(|(value, sign)| f64::from(value) * sign)
                    .collect()
            }
        }
    }

    fn sum(self, inst: &Inst, bits: u32) -> f64 {
        if matches!(self, Self::Byte { .. }) {
            return f64::from(bits as i32);
        }
        let value = f64::from(f32::from_bits(bits));
        let value = if inst.mods.neg_hi & 4 != 0 { value.abs() } else { value };
        if inst.mods.neg & 4 != 0 { -value } else { value }
    }

    fn bits(self, sum: f64) -> u32 {
        if matches!(self, Self::Byte { .. }) { sum as i64 as u32 } else { (sum as f32).to_bits() }
    }
}

/// The lane whose part of B meets a lane's part of A, by the modifier blgp.
fn permuted(inst: &Inst, lane: usize) -> usize {
    match inst.mods.blgp {
        0 => lane,
        half @ (1 | 2) => lane % 32 + 32 * usize::from(half - 1),
        3 => (lane + 16) % 64,
        quarter => lane % SIDE + SIDE * usize::from(quarter - 4),
    }
}

/// `registers` of A and B in a lane; `place` says of which row of its column the lane's element is, and `groups` which
/// 16 lanes share the k of that row.
fn multiply(
    inst: &Inst,
    before: &State,
    after: &mut State,
    [a, b]: [Element; 2],
    registers: u16,
    place: impl Fn(usize, usize) -> usize,
    groups: impl Fn(usize) -> Vec<usize>,
) {
    let Operand::Vgpr(dst) = agpr_as_vgpr(inst.dst) else { panic!("{}: no destination", inst.name) };
    for lane in 0..before.lanes {
        for item in 0..SIDE * SIDE / before.lanes {
            let row = place(lane, item);
            let mut sum = a.sum(
                inst,
                match agpr_as_vgpr(inst.src[2]) {
                    Operand::Vgpr(n) => before.vector(n + item as u16, lane),
                    constant => raw(before, inst, constant, Kind::U32, lane) as u32,
                },
            );
            for group in groups(lane) {
                let (a_lane, b_lane) = (row + SIDE * group, permuted(inst, lane % SIDE + SIDE * group));
                let left = a.of_lane(inst, before, 0, registers, a_lane);
                let right = b.of_lane(inst, before, 1, registers, b_lane);
                sum += left.iter().zip(right).map(|(a, b)| a * b).sum::<f64>();
            }
            if inst.mods.clamp {
                sum = sum.clamp(i32::MIN.into(), i32::MAX.into());
            }
            after.set_vector(dst + item as u16, lane, a.bits(sum));
        }
    }
}

/// Four lanes share the k of a row; each has four rows in a row.
fn mfma(inst: &Inst, before: &State, after: &mut State, element: Element, registers: u16) {
    let place = |lane, item| 4 * (lane / SIDE) + item;
    multiply(inst, before, after, [element; 2], registers, place, |_| (0..4).collect());
}

/// gfx11: every 16 lanes have all k, and every so manieth row. gfx12: they share k, and have rows in a row, where there
/// are four of them 0..4, 8..12, 4..8 and 12..16. `registers` hold all k.
fn wmma(inst: &Inst, before: &State, after: &mut State, elements: [Element; 2], registers: u16) {
    let count = before.lanes / SIDE;
    let each = registers / count as u16;
    match before.family {
        Family::Rdna3 => {
            let place = |lane, item| count * item + lane / SIDE;
            multiply(inst, before, after, elements, registers, place, |lane| vec![lane / SIDE]);
        }
        _ if count == 2 => {
            let place = |lane, item| 8 * (lane / SIDE) + item;
            multiply(inst, before, after, elements, each, place, |_| vec![0, 1]);
        }
        _ => {
            let place = |lane, item| [0, 8, 4, 12][lane / SIDE] + item;
            multiply(inst, before, after, elements, each, place, |_| (0..4).collect());
        }
    }
}

/// Modifiers that negate floats say here whether bytes have a sign.
fn wmma_of_bytes(inst: &Inst, before: &State, after: &mut State) {
    let elements = [1, 2].map(|bit| Element::Byte { signed: inst.mods.neg & bit != 0 });
    wmma(inst, before, after, elements, 4);
}

const BYTE: Element = Element::Byte { signed: true };

pub const ROWS: &[Row] = &[
    whole("v_mfma_i32_16x16x16i8", |inst, before, after| mfma(inst, before, after, BYTE, 1)),
    whole("v_mfma_i32_16x16x32_i8", |inst, before, after| mfma(inst, before, after, BYTE, 2)),
    whole("v_mfma_f32_16x16x16f16", |inst, before, after| mfma(inst, before, after, Element::Half, 2)),
    whole("v_mfma_f32_16x16x16_f16", |inst, before, after| mfma(inst, before, after, Element::Half, 2)),
    whole("v_mfma_f32_16x16x8bf16", |inst, before, after| mfma(inst, before, after, Element::Bfloat, 1)),
    whole("v_mfma_f32_16x16x16bf16_1k", |inst, before, after| mfma(inst, before, after, Element::Bfloat, 2)),
    whole("v_mfma_f32_16x16x16_bf16", |inst, before, after| mfma(inst, before, after, Element::Bfloat, 2)),
    whole("v_mfma_f32_16x16x4f32", |inst, before, after| mfma(inst, before, after, Element::Single, 1)),
    whole("v_mfma_f32_16x16x4_f32", |inst, before, after| mfma(inst, before, after, Element::Single, 1)),
    whole("v_wmma_i32_16x16x16_iu8", wmma_of_bytes),
    whole("v_wmma_f32_16x16x16_bf16", |inst, before, after| {
        wmma(inst, before, after, [Element::Bfloat; 2], 8);
    }),
    whole("v_wmma_f32_16x16x16_f16", |inst, before, after| {
        wmma(inst, before, after, [Element::Half; 2], 8);
    }),
];
