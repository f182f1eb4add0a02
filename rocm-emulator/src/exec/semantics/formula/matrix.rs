//! Products of 16x16 matrices of bytes, which a whole wave makes whatever EXEC says.
//!
//! A's row and B's column of a number lie in the lanes of that number modulo 16. Which k stand where needs no saying:
//! A and B agree on it, and sums of integers have no order.
use super::{Row, whole};
use crate::exec::semantics::kind::Kind;
use crate::exec::semantics::operands::{agpr_as_vgpr, raw};
use crate::exec::semantics::state::State;
use crate::isa::{Family, Inst, Operand};

/// Rows of A, columns of B, and lanes that have one of each.
const SIDE: usize = 16;

/// What a lane has of A or B: bytes in `registers` registers.
fn bytes(
    inst: &Inst,
    before: &State,
    at: usize,
    registers: u16,
    lane: usize,
    signed: bool,
) -> impl Iterator<Item = i64> {
    let Operand::Vgpr(first) = agpr_as_vgpr(inst.src[at]) else { panic!("{}: no register", inst.name) };
    let words: Vec<u32> = (0..registers).map(|n| before.vector(first + n, lane)).collect();
    words
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .map(move |byte| if signed { i64::from(byte as i8) } else { i64::from(byte) })
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
    registers: u16,
    place: impl Fn(usize, usize) -> usize,
    groups: impl Fn(usize) -> Vec<usize>,
) {
    let Operand::Vgpr(dst) = agpr_as_vgpr(inst.dst) else { panic!("{}: no destination", inst.name) };
    let is_mfma = inst.name.starts_with("v_mfma");
    let signed = [1, 2].map(|bit| is_mfma || inst.mods.neg & bit != 0);
    for lane in 0..before.lanes {
        for item in 0..SIDE * SIDE / before.lanes {
            let row = place(lane, item);
            let mut sum = match agpr_as_vgpr(inst.src[2]) {
                Operand::Vgpr(n) => i64::from(before.vector(n + item as u16, lane) as i32),
                constant => i64::from(raw(before, inst, constant, Kind::U32, lane) as i32),
            };
            for group in groups(lane) {
                let (a_lane, b_lane) = (row + SIDE * group, permuted(inst, lane % SIDE + SIDE * group));
                let a = bytes(inst, before, 0, registers, a_lane, signed[0]);
                let b = bytes(inst, before, 1, registers, b_lane, signed[1]);
                sum += a.zip(b).map(|(a, b)| a * b).sum::<i64>();
            }
            if inst.mods.clamp {
                sum = sum.clamp(i32::MIN.into(), i32::MAX.into());
            }
            after.set_vector(dst + item as u16, lane, sum as u32);
        }
    }
}

/// Four lanes share the k of a row; each has four rows in a row.
fn mfma(inst: &Inst, before: &State, after: &mut State, registers: u16) {
    multiply(inst, before, after, registers, |lane, item| 4 * (lane / SIDE) + item, |_| (0..4).collect());
}

/// gfx11: every 16 lanes have all k, and every so manieth row. gfx12: they share k, and have rows in a row, where there
/// are four of them 0..4, 8..12, 4..8 and 12..16.
fn wmma(inst: &Inst, before: &State, after: &mut State) {
    let count = before.lanes / SIDE;
    match before.family {
        Family::Rdna3 => multiply(
            inst,
            before,
            after,
            4,
            |lane, item| count * item + lane / SIDE,
            |lane| vec![lane / SIDE],
        ),
        _ if count == 2 => {
            multiply(inst, before, after, 2, |lane, item| 8 * (lane / SIDE) + item, |_| vec![0, 1])
        }
        _ => {
            let first = [0, 8, 4, 12];
            multiply(inst, before, after, 1, |lane, item| first[lane / SIDE] + item, |_| (0..4).collect());
        }
    }
}

pub const ROWS: &[Row] = &[
    whole("v_mfma_i32_16x16x16i8", |inst, before, after| mfma(inst, before, after, 1)),
    whole("v_mfma_i32_16x16x32_i8", |inst, before, after| mfma(inst, before, after, 2)),
    whole("v_wmma_i32_16x16x16_iu8", wmma),
];
