//! Tests of execution masks, DPP, moves between lanes, dual issue, and scalar and constant sources.
use super::*;
use crate::isa::{Dpp, DppControl, InlineFloat};

/// Returns a wave whose v2 is 100 plus the lane.
fn counting() -> Wave<32> {
    let mut wave = wave();
    wave.vgpr[2] = Lanes(std::array::from_fn(|lane| 100 + lane as u32));
    wave.vgpr[DST as usize] = Lanes::splat(7);
    wave
}

fn dpp(control: DppControl) -> Dpp {
    Dpp { control, row_mask: 15, bank_mask: 15, bound_ctrl: false, fetch_inactive: false }
}

fn permuted(dpp: Dpp, exec: u32) -> [u32; 32] {
    let mut wave = counting();
    wave.sgpr[126] = exec;
    let mut inst = inst("v_mov_b32");
    inst.dpp = Some(dpp);
    step(&inst).run(&mut wave);
    wave.vgpr[DST as usize].0
}

#[test]
fn only_active_lanes_are_written() {
    for exec in [0, 1, 0x8000_0000, 0x1234_5678, u32::MAX] {
        for (name, wide) in [("v_mov_b32", false), ("v_mov_b16", false), ("v_cvt_f64_u32", true)] {
            let mut wave = counting();
            let before = wave.vgpr.clone();
            wave.sgpr[126] = exec;
            step(&inst(name)).run(&mut wave);
            for lane in 0..32 {
                let expected = match (exec >> lane & 1 != 0, name) {
                    (false, _) => get(&Wave { vgpr: before.clone(), ..self::wave() }, DST, lane),
                    (true, "v_cvt_f64_u32") => f64::from(100 + lane as u32).to_bits(),
                    (true, _) => 0xdead_beef << 32 | (100 + lane as u64),
                };
                assert_eq!(get(&wave, DST, lane), expected, "{name} lane {lane} wide {wide}");
            }
        }
    }
}

#[test]
fn patterns_of_dpp() {
    let all = u32::MAX;
    let check = |control, source: fn(i32) -> Option<i32>| {
        let found = permuted(dpp(control), all);
        for lane in 0..32 {
            // Lanes without a source are not written.
            let expected = source(lane).map_or(7, |from| 100 + from as u32);
            assert_eq!(found[lane as usize], expected, "{control:?} lane {lane}");
        }
    };
    check(DppControl::QuadPerm([3, 0, 0, 1]), |l| Some(l / 4 * 4 + [3, 0, 0, 1][l as usize % 4]));
    check(DppControl::RowShl(3), |l| (l % 16 + 3 < 16).then_some(l + 3));
    check(DppControl::RowShr(5), |l| (l % 16 >= 5).then_some(l - 5));
    check(DppControl::RowRor(4), |l| Some(l / 16 * 16 + (l + 12) % 16));
    check(DppControl::RowMirror, |l| Some(l / 16 * 16 + 15 - l % 16));
    check(DppControl::RowHalfMirror, |l| Some(l / 8 * 8 + 7 - l % 8));
    check(DppControl::RowShare(6), |l| Some(l / 16 * 16 + 6));
    check(DppControl::RowXmask(9), |l| Some(l / 16 * 16 + ((l % 16) ^ 9)));
    check(DppControl::Dpp8([7, 6, 5, 4, 3, 2, 1, 1]), |l| {
        Some(l / 8 * 8 + [7, 6, 5, 4, 3, 2, 1, 1][l as usize % 8])
    });
}

#[test]
fn masks_and_bounds_of_dpp() {
    let shifted = DppControl::RowShr(1);
    // Only bank 2 of row 1 is enabled.
    let found = permuted(Dpp { row_mask: 2, bank_mask: 4, ..dpp(shifted) }, u32::MAX);
    let expected = std::array::from_fn(|lane| if (24..28).contains(&lane) { 99 + lane as u32 } else { 7 });
    assert_eq!(found, expected);
    // Sources outside the row or inactive: not written, or 0 with bound_ctrl.
    let off = !(1 << 4);
    assert_eq!(permuted(dpp(shifted), off)[0], 7);
    assert_eq!(permuted(dpp(shifted), off)[5], 7);
    let bounded = Dpp { bound_ctrl: true, ..dpp(shifted) };
    assert_eq!(permuted(bounded, off)[0], 0);
    assert_eq!(permuted(bounded, off)[5], 0);
    assert_eq!(permuted(bounded, off)[4], 7);
    let fetching = Dpp { fetch_inactive: true, ..dpp(shifted) };
    assert_eq!(permuted(fetching, off)[5], 104);
}

#[test]
fn dpp_applies_before_sign_modifiers_in_any_operation() {
    let mut wave = wave();
    wave.vgpr[2] = Lanes(std::array::from_fn(|lane| (lane as f32).to_bits()));
    wave.vgpr[4] = Lanes::splat(1000f32.to_bits());
    let mut sub = inst("v_subrev_f32");
    sub.dpp = Some(dpp(DppControl::RowXmask(1)));
    sub.mods.neg = 1;
    step(&sub).run(&mut wave);
    assert_eq!(f32::from_bits(wave.vgpr[DST as usize].0[6]), 1007.0);
}

#[test]
fn reading_and_writing_single_lanes() {
    let mut wave = counting();
    let mut read = inst("v_readlane_b32");
    (read.dst, read.src[1]) = (Operand::Scalar(5), Operand::Int(33));
    wave.sgpr[126] = 0;
    step(&read).run(&mut wave);
    assert_eq!(wave.sgpr[5], 101);
    read.src[1] = Operand::Scalar(6);
    wave.sgpr[6] = 31;
    step(&read).run(&mut wave);
    assert_eq!(wave.sgpr[5], 131);
    let mut first = inst("v_readfirstlane_b32");
    first.dst = Operand::Scalar(5);
    let step_first = step(&first);
    for (exec, value) in [(0, 100), (0x50, 104), (0x8000_0000, 131)] {
        wave.sgpr[126] = exec;
        step_first.run(&mut wave);
        assert_eq!(wave.sgpr[5], value);
    }
    let mut write = inst("v_writelane_b32");
    (write.src[0], write.src[1]) = (Operand::Scalar(6), Operand::Int(3));
    wave.sgpr[126] = 0;
    step(&write).run(&mut wave);
    assert_eq!(wave.vgpr[DST as usize].0[2..5], [7, 31, 7]);
}

#[test]
fn permuting_rows() {
    for (name, other) in [("v_permlane16_b32", 0), ("v_permlanex16_b32", 16)] {
        let mut permute = inst(name);
        permute.src[1] = Operand::Scalar(10);
        permute.src[2] = Operand::Scalar(11);
        let mut wave = counting();
        (wave.sgpr[10], wave.sgpr[11]) = (0x7654_3210, 0x0123_4567);
        step(&permute).run(&mut wave);
        for lane in 0..32usize {
            let place = if lane % 16 < 8 { lane % 16 } else { 15 - lane % 16 };
            assert_eq!(wave.vgpr[DST as usize].0[lane], 100 + ((lane & 16 ^ other) + place) as u32);
        }
        // An inactive source: not written, 0 with bit 1, fetched with bit 0.
        for (op_sel, expected) in [(0, 7), (2, 0), (1, 100 + other as u32)] {
            permute.mods.op_sel = op_sel;
            let mut wave = counting();
            wave.sgpr[126] = !(1 << other) | 2;
            step(&permute).run(&mut wave);
            // The lane whose source is lane 0 of its row or of the other row.
            let lane = if other == 0 { 15 } else { 0 };
            assert_eq!(wave.vgpr[DST as usize].0[lane], expected, "{name} {op_sel}");
        }
    }
    // Each lane's register selects its source.
    for (name, other) in [("v_permlane16_var_b32", 0), ("v_permlanex16_var_b32", 16)] {
        let mut wave = counting();
        for lane in 0..32u32 {
            wave.vgpr[4].0[lane as usize] = 0xfff0 | (7 * lane + 3) & 15;
        }
        step(&inst(name)).run(&mut wave);
        for lane in 0..32usize {
            let source = (lane & 16 ^ other) + (7 * lane + 3) % 16;
            assert_eq!(wave.vgpr[DST as usize].0[lane], 100 + source as u32, "{name} {lane}");
        }
    }
    let mut wave = counting();
    step(&inst("v_permlane64_b32")).run(&mut wave);
    assert_eq!(wave.vgpr[DST as usize], Lanes::splat(7));
}

#[test]
fn counting_bits_below_each_lane() {
    let mut count = inst("v_mbcnt_lo_u32_b32");
    (count.src[0], count.src[1]) = (Operand::Int(-1), Operand::Int(5));
    let mut wave = wave();
    step(&count).run(&mut wave);
    assert_eq!(wave.vgpr[DST as usize].0, std::array::from_fn(|lane| lane as u32 + 5));
    let mut high = inst("v_mbcnt_hi_u32_b32");
    (high.src[0], high.src[1]) = (Operand::Int(-1), Operand::Vgpr(DST));
    step(&high).run(&mut wave);
    assert_eq!(wave.vgpr[DST as usize].0[31], 36);
}

#[test]
fn swapping_registers() {
    let mut wave = counting();
    wave.sgpr[126] = 0xff;
    step(&inst("v_swap_b32")).run(&mut wave);
    assert_eq!((wave.vgpr[DST as usize].0[3], wave.vgpr[2].0[3]), (103, 7));
    assert_eq!((wave.vgpr[DST as usize].0[8], wave.vgpr[2].0[8]), (7, 108));
    let mut halves = inst("v_swap_b16");
    halves.mods.op_sel = 8;
    let mut wave = counting();
    step(&halves).run(&mut wave);
    assert_eq!((wave.vgpr[DST as usize].0[3], wave.vgpr[2].0[3]), (103 << 16 | 7, 0));
}

#[test]
fn registers_relative_to_m0() {
    let mut wave = counting();
    wave.sgpr[125] = 3;
    wave.vgpr[5] = Lanes::splat(55);
    step(&inst("v_movrels_b32")).run(&mut wave);
    assert_eq!(wave.vgpr[DST as usize], Lanes::splat(55));
    step(&inst("v_movreld_b32")).run(&mut wave);
    assert_eq!(wave.vgpr[DST as usize + 3].0[1], 101);
    // Registers out of range are neither read nor written.
    wave.sgpr[125] = u32::MAX;
    step(&inst("v_movreld_b32")).run(&mut wave);
    step(&inst("v_movrels_b32")).run(&mut wave);
    assert_eq!(wave.vgpr[DST as usize], Lanes::splat(0));
}

#[test]
fn scalar_and_constant_sources() {
    let value = |name: &'static str, source: Operand| {
        let mut inst = inst(name);
        inst.src = [source, Operand::Int(0), Operand::None, Operand::None];
        let mut wave = wave();
        (wave.sgpr[8], wave.sgpr[9], wave.scc) = (0x1234, 0x5678, true);
        step(&inst).run(&mut wave);
        get(&wave, DST, 17)
    };
    let one = Operand::Float(InlineFloat::One);
    assert_eq!(value("v_mov_b32", Operand::Scalar(8)) as u32, 0x1234);
    assert_eq!(value("v_mov_b32", Operand::Scc) as u32, 1);
    assert_eq!(value("v_mov_b32", Operand::ExecZ) as u32, 0);
    assert_eq!(value("v_mov_b32", Operand::VccZ) as u32, 1);
    assert_eq!(value("v_mov_b32", Operand::Int(-5)) as u32, -5i32 as u32);
    assert_eq!(value("v_mov_b32", one) as u32, 0x3f80_0000);
    assert_eq!(value("v_mov_b16", one) as u16, 0x3c00);
    assert_eq!(value("v_mov_b32", Operand::Float(InlineFloat::InvTwoPi)) as u32, 0x3e22_f983);
    // 64-bit sources: register pairs, sign-extended integers, literals as the high half of a float.
    let shift = |source: Operand| {
        let mut inst = inst("v_lshlrev_b64");
        inst.src = [Operand::Int(0), source, Operand::None, Operand::None];
        let mut wave = wave();
        (wave.sgpr[8], wave.sgpr[9]) = (0x1234, 0x5678);
        step(&inst).run(&mut wave);
        get(&wave, DST, 0)
    };
    assert_eq!(shift(Operand::Scalar(8)), 0x5678_0000_1234);
    assert_eq!(shift(Operand::Int(-2)), -2i64 as u64);
    assert_eq!(shift(Operand::Literal(0xffff_0000)), 0xffff_0000);
    let mut sum = inst("v_add_f64");
    sum.src = [one, Operand::Literal(0x4008_0000), Operand::None, Operand::None];
    let mut wave = wave();
    step(&sum).run(&mut wave);
    assert_eq!(f64::from_bits(get(&wave, DST, 3)), 4.0);
}

#[test]
fn dual_issue_reads_before_it_writes() {
    let half = |name, dst: u16, a: u16, b: u16| {
        let mut half = inst(name);
        half.dst = Operand::Vgpr(dst);
        half.src = [Operand::Vgpr(a), Operand::Vgpr(b), Operand::None, Operand::None];
        half
    };
    let run = |mut x: Inst, y: Inst| {
        x.pair = Some(Box::new(y));
        let mut wave = wave();
        for n in 0..8u16 {
            wave.vgpr[n as usize] = Lanes::splat((f32::from(n) + 1.0).to_bits());
        }
        wave.sgpr[106] = 0xffff;
        step(&x).run(&mut wave);
        [0, 1, 2, 3].map(|n: usize| f32::from_bits(wave.vgpr[n].0[9]))
    };
    // Neither, the second, the first, or both read the other's destination; v0..v3 are 1, 2, 3, 4.
    assert_eq!(run(half("v_dual_add_f32", 0, 4, 5), half("v_dual_mul_f32", 1, 2, 3)), [11.0, 12.0, 3.0, 4.0]);
    assert_eq!(run(half("v_dual_add_f32", 0, 4, 5), half("v_dual_mul_f32", 1, 0, 3)), [11.0, 4.0, 3.0, 4.0]);
    assert_eq!(run(half("v_dual_add_f32", 0, 1, 5), half("v_dual_mul_f32", 1, 2, 3)), [8.0, 12.0, 3.0, 4.0]);
    assert_eq!(run(half("v_dual_add_f32", 0, 1, 1), half("v_dual_mul_f32", 1, 0, 3)), [4.0, 4.0, 3.0, 4.0]);
    // Accumulators are read, too.
    assert_eq!(run(half("v_dual_fmac_f32", 0, 1, 2), half("v_dual_mov_b32", 1, 0, 0)), [7.0, 1.0, 3.0, 4.0]);
    assert_eq!(run(half("v_dual_mov_b32", 0, 1, 1), half("v_dual_fmac_f32", 1, 0, 0)), [2.0, 3.0, 3.0, 4.0]);
    assert_eq!(
        run(half("v_dual_cndmask_b32", 0, 2, 3), half("v_dual_sub_f32", 1, 3, 2)),
        [4.0, 1.0, 3.0, 4.0]
    );
}

#[test]
fn registers_beyond_the_wave_read_as_zero() {
    let mut beyond = inst("v_add_nc_u32");
    beyond.src[1] = Operand::Vgpr(200);
    let mut wave = counting();
    step(&beyond).run(&mut wave);
    assert_eq!(wave.vgpr[DST as usize].0[4], 104);
    beyond.dst = Operand::Vgpr(255);
    step(&beyond).run(&mut wave);
}
