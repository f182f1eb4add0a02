//! Tests with waves of 64 lanes: masks in register pairs, and moves between lanes.
use super::*;
use crate::isa::{Dpp, DppControl};

/// Returns a wave whose v2 is 100 plus the lane, and whose destination is 7.
fn counting() -> Wave<64> {
    let mut wave = wave_of();
    wave.vgpr[2] = Lanes(std::array::from_fn(|lane| 100 + lane as u32));
    wave.vgpr[DST as usize] = Lanes::splat(7);
    wave
}

fn result(wave: &Wave<64>) -> [u32; 64] {
    wave.vgpr[DST as usize].0
}

#[test]
fn masks_are_register_pairs() {
    let (low, high) = (0x8765_4321_0fed_cba9u64, 0xf0f0_0000_ffff_0001u64);
    // A compare writes a pair, with zeros for inactive lanes.
    let mut compare = inst("v_cmp_gt_u32");
    compare.src[1] = Operand::Literal(139);
    let mut wave = counting();
    wave.set_sgpr64(126, low);
    wave.sgpr[MASK as usize + 2] = 0x55;
    step(&compare).run(&mut wave);
    assert_eq!(wave.sgpr64(MASK), u64::MAX << 40 & low);
    assert_eq!(wave.sgpr[MASK as usize + 2], 0x55);
    // v_cmpx writes all 64 bits of EXEC.
    compare.name = "v_cmpx_gt_u32";
    compare.dst = Operand::Scalar(126);
    step(&compare).run(&mut wave);
    assert_eq!(wave.exec(), u64::MAX << 40 & low);
    // v_cndmask and additions with carry read a pair.
    let mut wave = counting();
    wave.vgpr[4] = Lanes::splat(5);
    wave.set_sgpr64(CARRY_IN, high);
    step(&inst("v_cndmask_b32")).run(&mut wave);
    let bit = |mask: u64, lane: usize| (mask >> lane & 1) as u32;
    assert_eq!(result(&wave), std::array::from_fn(|l| if bit(high, l) == 1 { 5 } else { 100 + l as u32 }));
    wave.vgpr[4] = Lanes::splat(u32::MAX - 120);
    step(&inst("v_add_co_ci_u32")).run(&mut wave);
    let sum = |l: usize| (100 + l as u32).wrapping_add(u32::MAX - 120).wrapping_add(bit(high, l));
    assert_eq!(result(&wave), std::array::from_fn(sum));
    let carries =
        (0..64).filter(|&l| 100 + l as u32 + bit(high, l) > 120).fold(0, |mask, l| mask | 1u64 << l);
    assert_eq!(wave.sgpr64(MASK), carries);
    // VCCZ tests all 64 bits.
    let mut zero = inst("v_mov_b32");
    zero.src[0] = Operand::VccZ;
    wave.set_sgpr64(106, 1 << 50);
    step(&zero).run(&mut wave);
    assert_eq!(result(&wave), [0; 64]);
}

#[test]
fn the_null_register_reads_as_zero_in_a_pair() {
    let mut choose = inst("v_cndmask_b32");
    choose.src[2] = Operand::Scalar(124);
    let mut wave = counting();
    wave.sgpr[125] = u32::MAX;
    step(&choose).run(&mut wave);
    assert_eq!(result(&wave), wave.vgpr[2].0);
}

#[test]
fn division_steps_use_masks_of_64_lanes() {
    // 1 / 2^-100: the exponents differ by at least 96, so the quotient must be unscaled.
    let mut wave = counting();
    let far = (0..64).filter(|lane| lane % 3 == 0).fold(0, |mask, lane| mask | 1u64 << lane);
    let denominator = |lane: usize| if far >> lane & 1 != 0 { 2f32.powi(-100) } else { 3.0 };
    for register in [2, 4] {
        wave.vgpr[register] = Lanes(std::array::from_fn(|lane| denominator(lane).to_bits()));
    }
    wave.vgpr[6] = Lanes::splat(1f32.to_bits());
    step(&inst("v_div_scale_f32")).run(&mut wave);
    assert_eq!(wave.sgpr64(MASK), far);
    let scaled = |lane: usize| if far >> lane & 1 != 0 { 2f32.powi(-36) } else { 3.0 };
    assert_eq!(result(&wave), std::array::from_fn(|lane| scaled(lane).to_bits()));
    // 1 * 1 + 0, unscaled by 2^-64 in lanes whose VCC bit is set.
    for (register, value) in [(2, 1f32), (4, 1.0), (6, 0.0)] {
        wave.vgpr[register] = Lanes::splat(value.to_bits());
    }
    wave.set_sgpr64(106, far);
    step(&inst("v_div_fmas_f32")).run(&mut wave);
    let expected = |lane: usize| if far >> lane & 1 != 0 { 2f32.powi(-64) } else { 1.0 };
    assert_eq!(result(&wave), std::array::from_fn(|lane| expected(lane).to_bits()));
}

#[test]
fn patterns_of_dpp_repeat_in_all_four_rows() {
    let permuted = |dpp: Dpp, exec: u64| {
        let mut wave = counting();
        wave.set_sgpr64(126, exec);
        step(&Inst { dpp: Some(dpp), ..inst("v_mov_b32") }).run(&mut wave);
        result(&wave)
    };
    let dpp =
        |control| Dpp { control, row_mask: 15, bank_mask: 15, bound_ctrl: false, fetch_inactive: false };
    let check = |control, source: fn(usize) -> usize| {
        let expected = std::array::from_fn(|lane| 100 + source(lane) as u32);
        assert_eq!(permuted(dpp(control), u64::MAX), expected, "{control:?}");
    };
    check(DppControl::RowRor(4), |l| l / 16 * 16 + (l + 12) % 16);
    check(DppControl::RowShare(6), |l| l / 16 * 16 + 6);
    check(DppControl::RowXmask(9), |l| l / 16 * 16 + ((l % 16) ^ 9));
    check(DppControl::Dpp8([7, 6, 5, 4, 3, 2, 1, 0]), |l| l / 8 * 8 + 7 - l % 8);
    // Only bank 2 of row 3 is enabled, and the source of lane 57 is inactive.
    let shifted = Dpp { row_mask: 8, bank_mask: 4, ..dpp(DppControl::RowShr(1)) };
    let expected = |lane: usize| if (56..60).contains(&lane) && lane != 57 { 99 + lane as u32 } else { 7 };
    let found = permuted(shifted, !(1 << 56));
    assert_eq!(found[57..], std::array::from_fn::<u32, 64, _>(expected)[57..]);
    assert_eq!(found[..56], [7; 56]);
}

#[test]
fn permutations_of_rows_and_halves() {
    for (name, other) in [("v_permlane16_b32", 0), ("v_permlanex16_b32", 16)] {
        let mut permute = inst(name);
        (permute.src[1], permute.src[2]) = (Operand::Scalar(10), Operand::Scalar(11));
        let mut wave = counting();
        (wave.sgpr[10], wave.sgpr[11]) = (0x7654_3210, 0x0123_4567);
        step(&permute).run(&mut wave);
        let place = |lane: usize| if lane % 16 < 8 { lane % 16 } else { 15 - lane % 16 };
        let source = |lane: usize| ((lane & !15) ^ other) + place(lane);
        assert_eq!(result(&wave), std::array::from_fn(|lane| 100 + source(lane) as u32), "{name}");
    }
    // Inactive lanes are read, but not written.
    let mut wave = counting();
    wave.set_sgpr64(126, u64::MAX << 33);
    step(&inst("v_permlane64_b32")).run(&mut wave);
    let expected = |lane: usize| if lane > 32 { 100 + (lane as u32 ^ 32) } else { 7 };
    assert_eq!(result(&wave), std::array::from_fn(expected));
}

#[test]
fn single_lanes_of_the_upper_half() {
    let mut wave = counting();
    let mut read = inst("v_readlane_b32");
    (read.dst, read.src[1]) = (Operand::Scalar(5), Operand::Int(63));
    step(&read).run(&mut wave);
    assert_eq!(wave.sgpr[5], 163);
    // The lane number has six bits.
    read.src[1] = Operand::Scalar(6);
    wave.sgpr[6] = 64 + 40;
    step(&read).run(&mut wave);
    assert_eq!(wave.sgpr[5], 140);
    let mut first = inst("v_readfirstlane_b32");
    first.dst = Operand::Scalar(5);
    for (exec, value) in [(0, 100), (1 << 50 | 1 << 60, 150), (1 << 63, 163)] {
        wave.set_sgpr64(126, exec);
        step(&first).run(&mut wave);
        assert_eq!(wave.sgpr[5], value);
    }
    let mut write = inst("v_writelane_b32");
    (write.src[0], write.src[1]) = (Operand::Scalar(5), Operand::Int(62));
    wave.set_sgpr64(126, 0);
    step(&write).run(&mut wave);
    assert_eq!(result(&wave)[61..], [7, 163, 7]);
}

#[test]
fn bits_below_a_lane_are_counted_in_two_halves() {
    let mask = 0x8000_0001_f000_0001u64;
    let mut wave = counting();
    let mut count = inst("v_mbcnt_lo_u32_b32");
    (count.src[0], count.src[1]) = (Operand::Literal(mask as u32), Operand::Int(5));
    step(&count).run(&mut wave);
    let mut high = inst("v_mbcnt_hi_u32_b32");
    (high.src[0], high.src[1]) = (Operand::Literal((mask >> 32) as u32), Operand::Vgpr(DST));
    step(&high).run(&mut wave);
    let below = |lane: usize| (mask & ((1u64 << lane) - 1)).count_ones();
    assert_eq!(result(&wave), std::array::from_fn(|lane| 5 + below(lane)));
}

#[test]
fn only_active_lanes_are_written() {
    let exec = 0x8000_0001_1234_5678u64;
    for (name, wide) in [("v_mov_b32", false), ("v_mov_b16", false), ("v_cvt_f64_u32", true)] {
        let mut wave = counting();
        wave.set_sgpr64(126, exec);
        step(&inst(name)).run(&mut wave);
        for lane in 0..64 {
            let new = 100 + lane as u32;
            let expected = match (exec >> lane & 1 != 0, wide) {
                (false, _) => 0xdead_beef << 32 | 7,
                (true, true) => f64::from(new).to_bits(),
                (true, false) => 0xdead_beef << 32 | u64::from(new),
            };
            assert_eq!(get(&wave, DST, lane), expected, "{name} lane {lane}");
        }
    }
}
