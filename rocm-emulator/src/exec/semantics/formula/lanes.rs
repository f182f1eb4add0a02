//! Moves between lanes and between register files.
use super::{Args, Out, Row, each, whole};
use crate::exec::semantics::kind::Kind;
use crate::exec::semantics::operands::raw;
use crate::exec::semantics::state::State;
use crate::isa::{Inst, Operand};

fn destination(inst: &Inst) -> u16 {
    match inst.dst {
        Operand::Vgpr(n) => n,
        other => panic!("{}: no vector destination: {other:?}", inst.name),
    }
}

fn set_scalar(inst: &Inst, after: &mut State, value: u64) {
    if let Operand::Scalar(n) = inst.dst {
        after.set_scalar(n, value as u32);
    }
}

/// Reads the lowest active lane, or lane 0 if none is active.
fn read_first_lane(inst: &Inst, before: &State, after: &mut State) {
    let lane = before.active().first().copied().unwrap_or(0);
    set_scalar(inst, after, raw(before, inst, inst.src[0], Kind::U32, lane));
}

fn read_lane(inst: &Inst, before: &State, after: &mut State) {
    let lane = raw(before, inst, inst.src[1], Kind::U32, 0) as usize % before.lanes;
    set_scalar(inst, after, raw(before, inst, inst.src[0], Kind::U32, lane));
}

/// Writes a lane whether or not it is active.
fn write_lane(inst: &Inst, before: &State, after: &mut State) {
    let lane = raw(before, inst, inst.src[1], Kind::U32, 0) as usize % before.lanes;
    let value = raw(before, inst, inst.src[0], Kind::U32, 0);
    after.set_vector(destination(inst), lane, value as u32);
}

/// Counts the mask bits of lanes below the lane, among lanes `first` to `first + 31`.
fn count_below(x: &Args, first: usize) -> Out {
    let count = (0..32).filter(|bit| first + bit < x.lane && x.u(0) >> bit & 1 != 0).count();
    Out::bits(x.u(1) + count as u64)
}

/// Permutes within rows of 16 lanes, or from the neighbouring row. op_sel has fetch_inactive and bound_ctrl.
fn permute_rows(inst: &Inst, before: &State, after: &mut State, flip: usize) {
    let selects =
        raw(before, inst, inst.src[1], Kind::U32, 0) | raw(before, inst, inst.src[2], Kind::U32, 0) << 32;
    let [fetch_inactive, bounded] = [inst.mods.op_sel & 1 != 0, inst.mods.op_sel & 2 != 0];
    for lane in before.active() {
        let from = ((lane / 16 * 16) ^ flip) + (selects >> (4 * (lane % 16)) & 15) as usize;
        let value = if before.is_active(from) || fetch_inactive {
            raw(before, inst, inst.src[0], Kind::U32, from) as u32
        } else if bounded {
            0
        } else {
            continue;
        };
        after.set_vector(destination(inst), lane, value);
    }
}

fn swap(inst: &Inst, before: &State, after: &mut State) {
    let Operand::Vgpr(other) = inst.src[0] else { panic!("{}: no register", inst.name) };
    for lane in before.active() {
        after.set_vector(destination(inst), lane, before.vector(other, lane));
        after.set_vector(other, lane, before.vector(destination(inst), lane));
    }
}

/// Swaps lanes 0..31 and 32..63.
fn permute_halves(inst: &Inst, before: &State, after: &mut State) {
    for lane in before.active() {
        if before.lanes == 64 {
            after.set_vector(
                destination(inst),
                lane,
                raw(before, inst, inst.src[0], Kind::U32, lane ^ 32) as u32,
            );
        }
    }
}

pub const ROWS: &[Row] = &[
    whole("v_readfirstlane_b32", read_first_lane),
    whole("v_readlane_b32", read_lane),
    whole("v_writelane_b32", write_lane),
    each("v_mbcnt_lo_u32_b32", "u32 u32 -> u32", |x| count_below(x, 0)),
    each("v_mbcnt_hi_u32_b32", "u32 u32 -> u32", |x| count_below(x, 32)),
    whole("v_permlane16_b32", |inst, before, after| permute_rows(inst, before, after, 0)),
    whole("v_permlanex16_b32", |inst, before, after| permute_rows(inst, before, after, 16)),
    whole("v_permlane64_b32", permute_halves),
    whole("v_swap_b32", swap),
    whole("v_nop", |_, _, _| {}),
];
