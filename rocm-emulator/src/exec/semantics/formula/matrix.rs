//! Products of 16x16 matrices of bytes or floats, executed by a whole wave independently of EXEC.
//!
//! Row i of A and column i of B are in the lanes with number i modulo 16. The order of k is irrelevant: A and
//! B use the same, and sums of integers that the result can represent don't depend on it. Floats are integers
//! here (`whole_floats` of the inputs); the tests of `exec::matrix` check the rounding of other sums.
use super::{Row, whole};
use crate::exec::semantics::kind::Kind;
use crate::exec::semantics::operands::{agpr_as_vgpr, raw};
use crate::exec::semantics::state::State;
use crate::exec::vector::half;
use crate::isa::{Family, Inst, Operand};

/// Number of rows of A, of columns of B, and of lanes that hold one of each.
const SIDE: usize = 16;

/// Type of A and B. The result is i32 for bytes and f32 for floats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Element {
    Byte {
        signed: bool,
    },
    Half,
    /// bf16.
    Bfloat,
    Single,
}

impl Element {
    /// Returns a lane's elements in `registers` registers.
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
                // Separate modifiers negate the lower and the upper halves.
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

/// Returns the lane whose part of B is multiplied by a lane's part of A, according to blgp.
fn b_lane_of(inst: &Inst, lane: usize) -> usize {
    match inst.mods.blgp {
        0 => lane,
        half @ (1 | 2) => lane % 32 + 32 * usize::from(half - 1),
        3 => (lane + 16) % 64,
        quarter => lane % SIDE + SIDE * usize::from(quarter - 4),
    }
}

/// Multiplies matrices with `registers` registers of A and B per lane. `row_of` returns the row of a lane's
/// result element, and `groups` returns the groups of 16 lanes that share that row's k.
fn multiply(
    inst: &Inst,
    before: &State,
    after: &mut State,
    [a, b]: [Element; 2],
    registers: u16,
    row_of: impl Fn(usize, usize) -> usize,
    groups: impl Fn(usize) -> Vec<usize>,
) {
    let Operand::Vgpr(dst) = agpr_as_vgpr(inst.dst) else { panic!("{}: no destination", inst.name) };
    for lane in 0..before.lanes {
        for item in 0..SIDE * SIDE / before.lanes {
            let row = row_of(lane, item);
            let mut sum = a.sum(
                inst,
                match agpr_as_vgpr(inst.src[2]) {
                    Operand::Vgpr(n) => before.vector(n + item as u16, lane),
                    constant => raw(before, inst, constant, Kind::U32, lane) as u32,
                },
            );
            for group in groups(lane) {
                let (a_lane, b_lane) = (row + SIDE * group, b_lane_of(inst, lane % SIDE + SIDE * group));
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

/// Computes v_mfma: four lanes share the k of a row, and each holds four consecutive rows of the result.
fn mfma(inst: &Inst, before: &State, after: &mut State, element: Element, registers: u16) {
    let row_of = |lane, item| 4 * (lane / SIDE) + item;
    multiply(inst, before, after, [element; 2], registers, row_of, |_| (0..4).collect());
}

/// Computes v_wmma, whose k take `registers` registers. On gfx11 each group of 16 lanes holds all k and every
/// nth row. On gfx12 groups share k and hold consecutive rows; four groups hold 0..4, 8..12, 4..8 and 12..16.
fn wmma(inst: &Inst, before: &State, after: &mut State, elements: [Element; 2], registers: u16) {
    let count = before.lanes / SIDE;
    let each = registers / count as u16;
    match before.family {
        Family::Rdna3 | Family::Rdna35 => {
            let row_of = |lane, item| count * item + lane / SIDE;
            multiply(inst, before, after, elements, registers, row_of, |lane| vec![lane / SIDE]);
        }
        _ if count == 2 => {
            let row_of = |lane, item| 8 * (lane / SIDE) + item;
            multiply(inst, before, after, elements, each, row_of, |_| vec![0, 1]);
        }
        _ => {
            let row_of = |lane, item| [0, 8, 4, 12][lane / SIDE] + item;
            multiply(inst, before, after, elements, each, row_of, |_| (0..4).collect());
        }
    }
}

/// Computes v_wmma on bytes. The modifiers that negate floats select signed bytes here.
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
    whole("v_mfma_i32_16x16x64_i8", |inst, before, after| mfma(inst, before, after, BYTE, 4)),
    whole("v_mfma_f32_16x16x32_f16", |inst, before, after| mfma(inst, before, after, Element::Half, 4)),
    whole("v_mfma_f32_16x16x32_bf16", |inst, before, after| mfma(inst, before, after, Element::Bfloat, 4)),
    whole("v_wmma_i32_16x16x16_iu8", wmma_of_bytes),
    whole("v_wmma_f32_16x16x16_bf16", |inst, before, after| {
        wmma(inst, before, after, [Element::Bfloat; 2], 8);
    }),
    whole("v_wmma_f32_16x16x16_f16", |inst, before, after| {
        wmma(inst, before, after, [Element::Half; 2], 8);
    }),
];
