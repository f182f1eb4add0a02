//! Scalar unit: arithmetic, EXEC, control flow, the mode register, and instructions without effect.
use super::integer::{bits_up, leading_sign_bits, leading_zeros, reversed, trailing_zeros};
use super::{Args, Out, Row, each, whole};
use crate::exec::semantics::kind::Kind;
use crate::exec::semantics::operands::raw;
use crate::exec::semantics::state::State;
use crate::exec::wave::Mode;
use crate::isa::{Inst, Operand, sreg};

/// Returns a sum or difference, with the carry out of 32 bits in SCC.
fn unsigned(value: i128) -> Out {
    Out::scc(value as u64, !(0..=0xffff_ffff).contains(&value))
}

/// Returns a sum or difference, with signed overflow in SCC.
fn signed(value: i128) -> Out {
    Out::scc(value as u64, !(-0x8000_0000..=0x7fff_ffff).contains(&value))
}

fn count(x: &Args, wanted: bool) -> Out {
    let bits = x.kind(0).bits();
    Out::non_zero(bits_up(x.u(0), bits).filter(|bit| *bit == wanted).count() as u64)
}

/// Extracts a bit field of the first source. The second source holds offset and width.
fn field(x: &Args) -> Out {
    let bits = x.kind(0).bits();
    let offset = x.u(1) % u64::from(bits);
    let width = (x.u(1) >> 16 & 0x7f).min(u64::from(bits)) as u32;
    let value = (x.i(0) >> offset) & ((1 << width) - 1);
    let negative = x.kind(0).is_signed() && width > 0 && value >> (width - 1) & 1 != 0;
    let value = (if negative { value - (1 << width) } else { value }) as u64;
    let value = if bits == 32 { value & 0xffff_ffff } else { value };
    Out::non_zero(value)
}

fn field_mask(x: &Args, bits: u64) -> Out {
    Out::bits((((1u128 << (x.u(0) % bits)) - 1) << (x.u(1) % bits)) as u64)
}

fn logic(x: &Args, value: u64) -> Out {
    let bits = x.kind(0).bits();
    Out::non_zero(if bits == 64 { value } else { value & 0xffff_ffff })
}

/// Returns the groups of four bits in which any bit is set.
fn quads(x: &Args) -> impl Iterator<Item = u64> {
    let (value, bits) = (x.u(0), u64::from(x.kind(0).bits()));
    (0..bits / 4).filter(move |quad| value >> (4 * quad) & 15 != 0)
}

fn pack(x: &Args, first_high: bool, second_high: bool) -> Out {
    let half = |index: usize, high: bool| x.u(index) >> if high { 16 } else { 0 } & 0xffff;
    Out::bits(half(0, first_high) | half(1, second_high) << 16)
}

fn if_condition(x: &Args) -> Out {
    Out::bits(x.u(if x.before.scc { 0 } else { 1 }))
}

/// Shifts 32 or 64 bits by a count that wraps at the width.
fn shift(x: &Args, operation: fn(i128, u64) -> i128) -> Out {
    let bits = x.kind(0).bits();
    let value = operation(x.i(0), x.u(1) % u64::from(bits)) as u64;
    logic(x, value)
}

fn value_of(inst: &Inst, before: &State, wide: bool) -> u64 {
    raw(before, inst, inst.src[0], if wide { Kind::U64 } else { Kind::U32 }, 0)
}

/// Computes EXEC from the source and EXEC. The destination receives the old EXEC, or the new one (`_wrexec`).
fn exec_operation(inst: &Inst, before: &State, after: &mut State) {
    let (stem, wide) = match inst.name.strip_suffix("_b64") {
        Some(stem) => (stem, true),
        None => (inst.name.trim_end_matches("_b32"), false),
    };
    let old = if wide { before.pair(sreg::EXEC_LO) } else { before.scalar(sreg::EXEC_LO).into() };
    let source = value_of(inst, before, wide);
    let stores_new = stem.ends_with("_wrexec");
    let value = match stem.trim_end_matches("_wrexec").trim_end_matches("_saveexec") {
        "s_and" => source & old,
        "s_or" => source | old,
        "s_xor" => source ^ old,
        "s_nand" => !(source & old),
        "s_nor" => !(source | old),
        "s_xnor" => !(source ^ old),
        "s_andn1" | "s_and_not0" => !source & old,
        "s_orn1" | "s_or_not0" => !source | old,
        "s_andn2" | "s_and_not1" => source & !old,
        "s_orn2" | "s_or_not1" => source | !old,
        other => panic!("{other}"),
    };
    let value = if wide { value } else { value & 0xffff_ffff };
    let stored = if stores_new { value } else { old };
    if let Operand::Scalar(n) = inst.dst {
        if wide { after.set_pair(n, stored) } else { after.set_scalar(n, stored as u32) }
    }
    if wide {
        after.set_pair(sreg::EXEC_LO, value)
    } else {
        after.set_scalar(sreg::EXEC_LO, value as u32)
    }
    after.scc = value != 0;
}

fn nothing(_: &Inst, _: &State, _: &mut State) {}

fn jump(inst: &Inst, after: &mut State) {
    after.pc = i64::from(inst.size) + 4 * i64::from(inst.imm as i16);
}

fn jump_if(condition: bool, inst: &Inst, after: &mut State) {
    if condition {
        jump(inst, after);
    }
}

/// Stores the address of the next instruction in the link register pair.
fn link(inst: &Inst, before: &State, after: &mut State) {
    if let Operand::Scalar(n) = inst.dst {
        after.set_pair(n, before.address + u64::from(inst.size));
    }
}

fn jump_to_register(inst: &Inst, before: &State, after: &mut State) {
    after.pc = value_of(inst, before, true).wrapping_sub(before.address) as i64;
}

fn set_mode(inst: &Inst, before: &State, after: &mut State) {
    let Operand::HwReg { id: 1, offset, size } = inst.dst else { return };
    let mask = (((1u64 << size) - 1) << offset) as u32;
    let value = (value_of(inst, before, false) << offset) as u32;
    after.mode = Mode::from_bits(before.mode.bits() & !mask | value & mask);
}

fn get_mode(inst: &Inst, before: &State, after: &mut State) {
    let Operand::HwReg { id: 1, offset, size } = inst.src[0] else { return };
    let value = u64::from(before.mode.bits()) >> offset & ((1 << size) - 1);
    if let Operand::Scalar(n) = inst.dst {
        after.set_scalar(n, value as u32);
    }
}

pub const ROWS: &[Row] = &[
    each("s_mov_b32", "u32 -> u32", |x| Out::bits(x.u(0))),
    each("s_mov_b64", "u64 -> u64", |x| Out::bits(x.u(0))),
    each("s_movk_i32", "imm -> u32", |x| Out::bits(x.u(0))),
    each("s_cmov_b32", "u32 +u32 -> u32", if_condition),
    each("s_cmov_b64", "u64 +u64 -> u64", if_condition),
    each("s_cmovk_i32", "imm +u32 -> u32", if_condition),
    each("s_cselect_b32", "u32 u32 -> u32", if_condition),
    each("s_cselect_b64", "u64 u64 -> u64", if_condition),
    each("s_add_u32 s_add_co_u32", "u32 u32 -> u32", |x| unsigned(x.i(0) + x.i(1))),
    each("s_sub_u32 s_sub_co_u32", "u32 u32 -> u32", |x| unsigned(x.i(0) - x.i(1))),
    each("s_add_i32 s_add_co_i32", "i32 i32 -> i32", |x| signed(x.i(0) + x.i(1))),
    each("s_sub_i32 s_sub_co_i32", "i32 i32 -> i32", |x| signed(x.i(0) - x.i(1))),
    each("s_addk_i32 s_addk_co_i32", "imm +i32 -> i32", |x| signed(x.i(0) + x.i(1))),
    each("s_mulk_i32", "imm +i32 -> i32", |x| Out::bits((x.i(0) * x.i(1)) as u64)),
    each("s_addc_u32 s_add_co_ci_u32", "u32 u32 -> u32", |x| {
        unsigned(x.i(0) + x.i(1) + i128::from(x.before.scc))
    }),
    each("s_subb_u32 s_sub_co_ci_u32", "u32 u32 -> u32", |x| {
        unsigned(x.i(0) - x.i(1) - i128::from(x.before.scc))
    }),
    each("s_add_nc_u64 s_add_u64", "u64 u64 -> u64", |x| Out::bits((x.i(0) + x.i(1)) as u64)),
    each("s_sub_nc_u64 s_sub_u64", "u64 u64 -> u64", |x| Out::bits((x.i(0) - x.i(1)) as u64)),
    each("s_mul_i32", "i32 i32 -> i32", |x| Out::bits((x.i(0) * x.i(1)) as u64)),
    each("s_mul_u64", "u64 u64 -> u64", |x| Out::bits(x.u(0).wrapping_mul(x.u(1)))),
    each("s_mul_hi_u32", "u32 u32 -> u32", |x| Out::bits(((x.i(0) * x.i(1)) >> 32) as u64)),
    each("s_mul_hi_i32", "i32 i32 -> i32", |x| Out::bits(((x.i(0) * x.i(1)) >> 32) as u64)),
    each("s_lshl1_add_u32", "u32 u32 -> u32", |x| unsigned((x.i(0) << 1) + x.i(1))),
    each("s_lshl2_add_u32", "u32 u32 -> u32", |x| unsigned((x.i(0) << 2) + x.i(1))),
    each("s_lshl3_add_u32", "u32 u32 -> u32", |x| unsigned((x.i(0) << 3) + x.i(1))),
    each("s_lshl4_add_u32", "u32 u32 -> u32", |x| unsigned((x.i(0) << 4) + x.i(1))),
    each("s_min_u32", "u32 u32 -> u32", |x| Out::scc(x.u(0).min(x.u(1)), x.i(0) < x.i(1))),
    each("s_min_i32", "i32 i32 -> i32", |x| Out::scc(x.i(0).min(x.i(1)) as u64, x.i(0) < x.i(1))),
    each("s_max_u32", "u32 u32 -> u32", |x| Out::scc(x.u(0).max(x.u(1)), x.i(0) >= x.i(1))),
    each("s_max_i32", "i32 i32 -> i32", |x| Out::scc(x.i(0).max(x.i(1)) as u64, x.i(0) >= x.i(1))),
    each("s_abs_i32", "i32 -> i32", |x| logic(x, x.i(0).unsigned_abs() as u64)),
    each("s_absdiff_i32", "i32 i32 -> i32", |x| {
        // The difference wraps before its absolute value is taken.
        logic(x, ((x.i(0) - x.i(1)) as i32).unsigned_abs().into())
    }),
    each("s_brev_b32", "u32 -> u32", |x| Out::bits(reversed(x.u(0), 32))),
    each("s_brev_b64", "u64 -> u64", |x| Out::bits(reversed(x.u(0), 64))),
    each("s_ctz_i32_b32 s_ff1_i32_b32", "u32 -> i32", |x| Out::bits(trailing_zeros(x.u(0), 32) as u64)),
    each("s_ctz_i32_b64 s_ff1_i32_b64", "u64 -> i32", |x| Out::bits(trailing_zeros(x.u(0), 64) as u64)),
    each("s_clz_i32_u32 s_flbit_i32_b32", "u32 -> i32", |x| Out::bits(leading_zeros(x.u(0), 32) as u64)),
    each("s_clz_i32_u64 s_flbit_i32_b64", "u64 -> i32", |x| Out::bits(leading_zeros(x.u(0), 64) as u64)),
    each("s_cls_i32 s_flbit_i32", "u32 -> i32", |x| Out::bits(leading_sign_bits(x.u(0), 32) as u64)),
    each("s_cls_i32_i64 s_flbit_i32_i64", "u64 -> i32", |x| Out::bits(leading_sign_bits(x.u(0), 64) as u64)),
    each("s_sext_i32_i8", "u32 -> i32", |x| Out::bits(i64::from(x.u(0) as i8) as u64)),
    each("s_sext_i32_i16", "u32 -> i32", |x| Out::bits(i64::from(x.u(0) as i16) as u64)),
    each("s_bitset0_b32", "u32 +u32 -> u32", |x| Out::bits(x.u(1) & !(1 << (x.u(0) % 32)))),
    each("s_bitset1_b32", "u32 +u32 -> u32", |x| Out::bits(x.u(1) | 1 << (x.u(0) % 32))),
    each("s_bitset0_b64", "u32 +u64 -> u64", |x| Out::bits(x.u(1) & !(1 << (x.u(0) % 64)))),
    each("s_bitset1_b64", "u32 +u64 -> u64", |x| Out::bits(x.u(1) | 1 << (x.u(0) % 64))),
    each("s_bitreplicate_b64_b32", "u32 -> u64", |x| {
        Out::bits(bits_up(x.u(0), 32).zip(0..).map(|(bit, at)| if bit { 3 << (2 * at) } else { 0 }).sum())
    }),
    each("s_bcnt0_i32_b32", "u32 -> u32", |x| count(x, false)),
    each("s_bcnt1_i32_b32", "u32 -> u32", |x| count(x, true)),
    each("s_bcnt0_i32_b64", "u64 -> u32", |x| count(x, false)),
    each("s_bcnt1_i32_b64", "u64 -> u32", |x| count(x, true)),
    each("s_quadmask_b32", "u32 -> u32", |x| logic(x, quads(x).map(|quad| 1 << quad).sum())),
    each("s_quadmask_b64", "u64 -> u64", |x| logic(x, quads(x).map(|quad| 1 << quad).sum())),
    each("s_wqm_b32", "u32 -> u32", |x| logic(x, quads(x).map(|quad| 15 << (4 * quad)).sum())),
    each("s_wqm_b64", "u64 -> u64", |x| logic(x, quads(x).map(|quad| 15 << (4 * quad)).sum())),
    each("s_not_b32", "u32 -> u32", |x| logic(x, !x.u(0))),
    each("s_not_b64", "u64 -> u64", |x| logic(x, !x.u(0))),
    each("s_and_b32", "u32 u32 -> u32", |x| logic(x, x.u(0) & x.u(1))),
    each("s_and_b64", "u64 u64 -> u64", |x| logic(x, x.u(0) & x.u(1))),
    each("s_or_b32", "u32 u32 -> u32", |x| logic(x, x.u(0) | x.u(1))),
    each("s_or_b64", "u64 u64 -> u64", |x| logic(x, x.u(0) | x.u(1))),
    each("s_xor_b32", "u32 u32 -> u32", |x| logic(x, x.u(0) ^ x.u(1))),
    each("s_xor_b64", "u64 u64 -> u64", |x| logic(x, x.u(0) ^ x.u(1))),
    each("s_nand_b32", "u32 u32 -> u32", |x| logic(x, !(x.u(0) & x.u(1)))),
    each("s_nand_b64", "u64 u64 -> u64", |x| logic(x, !(x.u(0) & x.u(1)))),
    each("s_nor_b32", "u32 u32 -> u32", |x| logic(x, !(x.u(0) | x.u(1)))),
    each("s_nor_b64", "u64 u64 -> u64", |x| logic(x, !(x.u(0) | x.u(1)))),
    each("s_xnor_b32", "u32 u32 -> u32", |x| logic(x, !(x.u(0) ^ x.u(1)))),
    each("s_xnor_b64", "u64 u64 -> u64", |x| logic(x, !(x.u(0) ^ x.u(1)))),
    each("s_and_not1_b32 s_andn2_b32", "u32 u32 -> u32", |x| logic(x, x.u(0) & !x.u(1))),
    each("s_and_not1_b64 s_andn2_b64", "u64 u64 -> u64", |x| logic(x, x.u(0) & !x.u(1))),
    each("s_or_not1_b32 s_orn2_b32", "u32 u32 -> u32", |x| logic(x, x.u(0) | !x.u(1))),
    each("s_or_not1_b64 s_orn2_b64", "u64 u64 -> u64", |x| logic(x, x.u(0) | !x.u(1))),
    each("s_lshl_b32", "u32 u32 -> u32", |x| shift(x, |a, n| a << n)),
    each("s_lshl_b64", "u64 u32 -> u64", |x| shift(x, |a, n| a << n)),
    each("s_lshr_b32", "u32 u32 -> u32", |x| shift(x, |a, n| a >> n)),
    each("s_lshr_b64", "u64 u32 -> u64", |x| shift(x, |a, n| a >> n)),
    each("s_ashr_i32", "i32 u32 -> i32", |x| shift(x, |a, n| a >> n)),
    each("s_ashr_i64", "i64 u32 -> i64", |x| shift(x, |a, n| a >> n)),
    each("s_bfe_u32", "u32 u32 -> u32", field),
    each("s_bfe_i32", "i32 u32 -> i32", field),
    each("s_bfe_u64", "u64 u32 -> u64", field),
    each("s_bfe_i64", "i64 u32 -> i64", field),
    each("s_bfm_b32", "u32 u32 -> u32", |x| field_mask(x, 32)),
    each("s_bfm_b64", "u32 u32 -> u64", |x| field_mask(x, 64)),
    each("s_pack_ll_b32_b16", "u32 u32 -> u32", |x| pack(x, false, false)),
    each("s_pack_lh_b32_b16", "u32 u32 -> u32", |x| pack(x, false, true)),
    each("s_pack_hl_b32_b16", "u32 u32 -> u32", |x| pack(x, true, false)),
    each("s_pack_hh_b32_b16", "u32 u32 -> u32", |x| pack(x, true, true)),
    each("s_bitcmp0_b32", "u32 u32 -> none", |x| Out::scc(0, x.u(0) >> (x.u(1) % 32) & 1 == 0)),
    each("s_bitcmp1_b32", "u32 u32 -> none", |x| Out::scc(0, x.u(0) >> (x.u(1) % 32) & 1 == 1)),
    each("s_bitcmp0_b64", "u64 u32 -> none", |x| Out::scc(0, x.u(0) >> (x.u(1) % 64) & 1 == 0)),
    each("s_bitcmp1_b64", "u64 u32 -> none", |x| Out::scc(0, x.u(0) >> (x.u(1) % 64) & 1 == 1)),
    whole(
        "s_and_saveexec_b32 s_and_saveexec_b64 s_or_saveexec_b32 s_or_saveexec_b64 s_xor_saveexec_b32
         s_xor_saveexec_b64 s_nand_saveexec_b32 s_nand_saveexec_b64 s_nor_saveexec_b32 s_nor_saveexec_b64
         s_xnor_saveexec_b32 s_xnor_saveexec_b64 s_andn1_saveexec_b32 s_andn1_saveexec_b64
         s_andn2_saveexec_b32 s_andn2_saveexec_b64 s_orn1_saveexec_b32 s_orn1_saveexec_b64
         s_orn2_saveexec_b32 s_orn2_saveexec_b64 s_and_not0_saveexec_b32 s_and_not0_saveexec_b64
         s_and_not1_saveexec_b32 s_and_not1_saveexec_b64 s_or_not0_saveexec_b32 s_or_not0_saveexec_b64
         s_or_not1_saveexec_b32 s_or_not1_saveexec_b64 s_andn1_wrexec_b32 s_andn1_wrexec_b64
         s_andn2_wrexec_b32 s_andn2_wrexec_b64 s_and_not0_wrexec_b32 s_and_not0_wrexec_b64
         s_and_not1_wrexec_b32 s_and_not1_wrexec_b64",
        exec_operation,
    ),
];

/// Control flow, mode changes and waits.
pub const FLOW: &[Row] = &[
    whole("s_branch", |inst, _, after| jump(inst, after)),
    whole("s_cbranch_scc0", |inst, before, after| jump_if(!before.scc, inst, after)),
    whole("s_cbranch_scc1", |inst, before, after| jump_if(before.scc, inst, after)),
    whole("s_cbranch_vccz", |inst, before, after| jump_if(before.mask(sreg::VCC_LO) == 0, inst, after)),
    whole("s_cbranch_vccnz", |inst, before, after| jump_if(before.mask(sreg::VCC_LO) != 0, inst, after)),
    whole("s_cbranch_execz", |inst, before, after| jump_if(before.exec() == 0, inst, after)),
    whole("s_cbranch_execnz", |inst, before, after| jump_if(before.exec() != 0, inst, after)),
    whole("s_setpc_b64", jump_to_register),
    whole("s_swappc_b64", |inst, before, after| {
        link(inst, before, after);
        jump_to_register(inst, before, after);
    }),
    whole("s_call_b64", |inst, before, after| {
        link(inst, before, after);
        jump(inst, after);
    }),
    whole("s_getpc_b64", link),
    // The wave ends.
    whole("s_endpgm", |_, _, after| after.pc = i64::MAX),
    whole("s_setreg_b32 s_setreg_imm32_b32", set_mode),
    whole("s_getreg_b32", get_mode),
    whole("s_round_mode", |inst, _, after| {
        (after.mode.round_32, after.mode.round_16_64) = ((inst.imm & 3) as u8, (inst.imm >> 2 & 3) as u8);
    }),
    whole("s_denorm_mode", |inst, _, after| {
        (after.mode.denorm_32, after.mode.denorm_16_64) = ((inst.imm & 3) as u8, (inst.imm >> 2 & 3) as u8);
    }),
    // A single wave does not wait at barriers, memory is coherent, and accesses complete immediately.
    whole(
        "s_nop s_waitcnt s_waitcnt_depctr s_waitcnt_vscnt s_waitcnt_vmcnt s_waitcnt_expcnt s_waitcnt_lgkmcnt
         s_wait_idle s_wait_alu s_wait_loadcnt s_wait_storecnt s_wait_samplecnt s_wait_bvhcnt s_wait_expcnt
         s_wait_dscnt s_wait_kmcnt s_wait_loadcnt_dscnt s_wait_storecnt_dscnt s_delay_alu s_clause
         s_set_inst_prefetch_distance s_inst_prefetch s_barrier s_barrier_signal s_barrier_wait s_sleep
         s_setprio s_sendmsg s_icache_inv s_dcache_inv s_dcache_wb s_gl1_inv buffer_gl0_inv buffer_gl1_inv
         buffer_wbinvl1 buffer_wbinvl1_vol buffer_wbl2 buffer_invl2 buffer_inv global_inv global_wb global_wbinv",
        nothing,
    ),
];
