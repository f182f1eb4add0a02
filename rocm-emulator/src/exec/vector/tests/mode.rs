//! Tests of the mode register's rounding and denormal bits.
use super::super::soft::{self, Rounding};
use super::*;

fn run(name: &'static str, mode: Mode, v: [u64; 3]) -> u64 {
    let mut wave = wave();
    wave.mode = mode;
    for (register, bits) in SOURCES.iter().zip(v) {
        set(&mut wave, *register, 0, bits);
    }
    step(&inst(name)).run(&mut wave);
    get(&wave, DST, 0)
}

#[test]
fn directed_rounding_brackets_the_nearest() {
    for name in ["v_add_f32", "v_mul_f32", "v_fma_f32", "v_sub_f32"] {
        for v in inputs_f32().iter().step_by(37) {
            let with = |round_32| f32::from_bits(run(name, Mode { round_32, ..MODE }, *v) as u32);
            let (nearest, up, down, zero) = (with(0), with(1), with(2), with(3));
            if nearest.is_nan() {
                assert!(up.is_nan() && down.is_nan() && zero.is_nan());
                continue;
            }
            assert!(down <= nearest && nearest <= up, "{name} {v:x?}: {down:e} {nearest:e} {up:e}");
            assert!(nearest == up || nearest == down);
            assert!(up == down || up == down.next_up(), "{name} {v:x?}: {down:e} {up:e}");
            assert_eq!(zero, if up > 0.0 { down } else { up });
        }
    }
}

#[test]
fn directed_rounding_of_f32_rounds_the_exact_value() {
    // Products of f32 are exact in f64.
    for v in inputs_f32().iter().skip(32_768).step_by(7) {
        let exact = f64::from(f32::from_bits(v[0] as u32)) * f64::from(f32::from_bits(v[1] as u32));
        if !exact.is_finite() {
            continue;
        }
        let up = f32::from_bits(run("v_mul_f32", Mode { round_32: 1, ..MODE }, *v) as u32);
        assert!(f64::from(up) >= exact && (up == f32::NEG_INFINITY || f64::from(up.next_down()) < exact));
        let down = f32::from_bits(run("v_mul_f32", Mode { round_32: 2, ..MODE }, *v) as u32);
        assert!(f64::from(down) <= exact && (down == f32::INFINITY || f64::from(down.next_up()) > exact));
    }
}

#[test]
fn narrowing_follows_the_mode_of_its_result() {
    let third = (1f32 / 3.0).to_bits().into();
    let half = |round_16_64| run("v_cvt_f16_f32", Mode { round_16_64, ..MODE }, [third, 0, 0]) as u16;
    assert_eq!([half(0), half(1), half(2), half(3)], [0x3555, 0x3556, 0x3555, 0x3555]);
    let third = (1f64 / 3.0).to_bits();
    let single = |round_32| run("v_cvt_f32_f64", Mode { round_32, ..MODE }, [third, 0, 0]) as u32;
    assert_eq!([single(0), single(1), single(2)], [0x3eaa_aaab, 0x3eaa_aaab, 0x3eaa_aaaa]);
    let integer = |name, bits, round_32| run(name, Mode { round_32, ..MODE }, [bits, 0, 0]) as u32;
    assert_eq!(
        [0, 1, 2, 3].map(|r| integer("v_cvt_f32_u32", 0xffff_ffff, r)),
        [0x4f80_0000, 0x4f80_0000, 0x4f7f_ffff, 0x4f7f_ffff]
    );
    assert_eq!(
        [0, 1, 2, 3].map(|r| integer("v_cvt_f32_i32", 0x8000_0001, r)),
        [0xcf00_0000, 0xceff_ffff, 0xcf00_0000, 0xceff_ffff]
    );
    let sum = |round_16_64| run("v_add_f64", Mode { round_16_64, ..MODE }, [1f64.to_bits(), 1, 0]);
    assert_eq!([sum(0), sum(1), sum(2)], [1f64.to_bits(), 1f64.to_bits() + 1, 1f64.to_bits()]);
}

#[test]
fn the_sign_of_a_zero_sum_follows_the_rounding() {
    let one = 1f32.to_bits().into();
    for (round_32, zero) in [(0, 0), (1, 0), (2, 0x8000_0000), (3, 0)] {
        assert_eq!(run("v_sub_f32", Mode { round_32, ..MODE }, [one, one, 0]) as u32, zero);
    }
}

#[test]
fn denormals_are_flushed() {
    let denormal = 0x8000_0001u64;
    let one = 1f32.to_bits().into();
    let flush_inputs = Mode { denorm_32: 2, ..MODE };
    assert_eq!(run("v_mul_f32", flush_inputs, [denormal, one, 0]) as u32, 0x8000_0000);
    let flush_outputs = Mode { denorm_32: 1, ..MODE };
    let smallest = f32::MIN_POSITIVE.to_bits().into();
    let half = 0.5f32.to_bits().into();
    assert_eq!(run("v_mul_f32", flush_outputs, [smallest, half, 0]) as u32, 0);
    assert_eq!(run("v_mul_f32", MODE, [smallest, half, 0]) as u32, 0x40_0000);
    // Other formats have separate mode bits.
    assert_eq!(run("v_add_f64", flush_inputs, [1, 1, 0]), 2);
    assert_eq!(run("v_add_f64", Mode { denorm_16_64: 0, ..MODE }, [1, 1, 0]), 0);
    assert_eq!(
        run("v_pk_add_f16", Mode { denorm_16_64: 0, ..MODE }, [0x3c00_0001, 0x3c00_0001, 0]) as u32,
        0x4000_0000
    );
    // Moves don't flush denormals.
    assert_eq!(run("v_mov_b32", Mode { denorm_32: 0, ..MODE }, [1, 0, 0]) as u32, 1);
}

#[test]
fn signalling_operands_are_ignored_without_ieee() {
    let (signalling, one) = (0x7f80_0001, 1f32.to_bits().into());
    assert_eq!(
        run("v_min_f32", Mode { ieee: false, ..MODE }, [signalling, one, 0]),
        run("v_mov_b32", MODE, [one, 0, 0])
    );
    assert_eq!(run("v_min_f32", MODE, [signalling, one, 0]) as u32, 0x7fc0_0001);
}

#[test]
fn arithmetic_on_integers_agrees_with_the_host() {
    for v in inputs_f64().iter().step_by(3) {
        let [a, b, c] = v.map(f64::from_bits);
        let soft = |bits: u64| canonical_nan64(bits);
        assert_eq!(
            soft(soft::add(v[0], v[1], &soft::DOUBLE, Rounding::NearestEven)),
            canonical_nan64((a + b).to_bits())
        );
        assert_eq!(
            soft(soft::multiply(v[0], v[1], &soft::DOUBLE, Rounding::NearestEven)),
            canonical_nan64((a * b).to_bits())
        );
        let fused = soft::fma(v[0], v[1], v[2], 0, &soft::DOUBLE, Rounding::NearestEven);
        assert_eq!(soft(fused), canonical_nan64(a.mul_add(b, c).to_bits()), "{a:e} {b:e} {c:e}");
        let narrow = soft::convert(v[0], &soft::DOUBLE, &soft::SINGLE, Rounding::NearestEven);
        assert_eq!(canonical_nan32(narrow as u32), canonical_nan32((a as f32).to_bits()));
    }
}
