//! Tests of f16 arithmetic, compared with a search for the nearest f16.
use super::super::half::{narrow, narrow_toward_zero, widen};
use super::*;

/// Returns the value of an f16, computed from its fields.
pub fn value(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        0 => fraction * 2f64.powi(-24),
        e => (1024.0 + fraction) * 2f64.powi(e - 25),
    };
    if bits & 0x8000 != 0 { -magnitude } else { magnitude }
}

/// Returns the f16 nearest to `x`, ties to even, by bisection.
pub fn nearest(x: f64) -> u16 {
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = x.abs();
    if x.is_nan() {
        return 0x7e00;
    }
    let (mut low, mut high) = (0u16, 0x7c00);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if value(middle) <= magnitude { low = middle } else { high = middle }
    }
    // Infinity rounds as if it were the next number, 65536.
    let above = if high == 0x7c00 { 65536.0 } else { value(high) };
    let (down, up) = (magnitude - value(low), above - magnitude);
    sign | if up < down || (up == down && low & 1 == 1) { high } else { low }
}

pub fn canonical_nan(bits: u64) -> u16 {
    if value(bits as u16).is_nan() { 0x7e00 } else { bits as u16 }
}

pub fn inputs() -> Vec<[u64; 3]> {
    let edges = [
        0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x401, 0x3bff, 0x3c00, 0xbc00, 0x3c01, 0x3800, 0x4100, 0xc500,
        0x6400, 0x77ff, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00,
    ];
    // The upper half of the registers is not zero, and must be ignored.
    inputs_of(&edges, |random| random.bits() & 0xffff)
        .into_iter()
        .map(|v| v.map(|x| x | 0x5a5a_0000))
        .collect()
}

fn check_f16(name: &'static str, expect: impl Fn([f64; 3]) -> f64) {
    let signalling = |x: &u64| value(*x as u16).is_nan() && x >> 9 & 1 == 0;
    let quiet: Vec<_> = inputs().into_iter().filter(|v| !v.iter().any(signalling)).collect();
    check_inst(
        &inst(name),
        &quiet,
        |(x, _)| canonical_nan(x & 0xffff),
        |v| canonical_nan(nearest(expect(v.map(|x| value(x as u16)))).into()),
    );
}

#[test]
fn conversions_of_every_f16() {
    for bits in 0..=0xffffu16 {
        let wide = f64::from(widen(bits.into()));
        assert!(wide == value(bits) || (wide.is_nan() && value(bits).is_nan()), "{bits:x}");
        assert_eq!(wide.is_sign_negative(), bits & 0x8000 != 0);
        let back = narrow(widen(bits.into())) as u16;
        assert_eq!(canonical_nan(back.into()), canonical_nan(bits.into()));
    }
}

#[test]
fn rounding_to_f16() {
    let mut samples: Vec<u32> = EDGES_F32.to_vec();
    for bits in 0..0x7c00u16 {
        let middle = ((value(bits) + value(bits + 1).min(65536.0)) / 2.0) as f32;
        samples.extend([middle.to_bits() - 1, middle.to_bits(), middle.to_bits() + 1]);
    }
    let mut random = Random::new(5);
    samples.extend((0..100_000).map(|_| random.bits() as u32));
    for bits in samples {
        for bits in [bits, bits | 0x8000_0000] {
            let x = f32::from_bits(bits);
            assert_eq!(canonical_nan(narrow(x).into()), nearest(x.into()), "{x:e}");
            if !x.is_nan() {
                let toward_zero = value(narrow_toward_zero(x) as u16);
                let next = value(narrow_toward_zero(x) as u16 + 1);
                let within = toward_zero.abs() <= f64::from(x).abs() && (next.abs() > f64::from(x).abs());
                assert!(
                    within || x.is_infinite() && toward_zero == f64::from(x) || toward_zero.abs() == 65504.0,
                    "{x:e}"
                );
            }
        }
    }
}

#[test]
fn arithmetic() {
    check_f16("v_add_f16", |[a, b, _]| a + b);
    check_f16("v_sub_f16", |[a, b, _]| a - b);
    check_f16("v_subrev_f16", |[a, b, _]| b - a);
    check_f16("v_mul_f16", |[a, b, _]| a * b);
    // f64 is precise enough that rounding the sum to f64 first has no effect on the f16 result.
    check_f16("v_fma_f16", |[a, b, c]| a * b + c);
    check_f16(
        "v_min_f16",
        |[a, b, _]| if a.is_nan() || b < a || (a == b && b.is_sign_negative()) { b } else { a },
    );
    check_f16(
        "v_max_f16",
        |[a, b, _]| if a.is_nan() || b > a || (a == b && a.is_sign_negative()) { b } else { a },
    );
    check_f16("v_trunc_f16", |[a, ..]| a.trunc());
    check_f16("v_floor_f16", |[a, ..]| a.floor());
    check_f16("v_ceil_f16", |[a, ..]| a.ceil());
    check_f16("v_rndne_f16", |[a, ..]| a.round_ties_even());
    check_f16("v_fract_f16", |[a, ..]| (a - a.floor()).min(value(0x3bff)) + (a - a));
}

#[test]
fn reciprocals_and_roots_are_accurate() {
    let near = |name, f: fn(f64) -> f64| {
        let all: Vec<_> = (0..0x10000).map(|x| [x, 0, 0]).collect();
        let expect = |v: [u64; 3]| f(value(v[0] as u16));
        // The error is at most one unit in the last place of f16.
        let place = |x: f64| f64::max(x.abs() * 2f64.powi(-10), 2f64.powi(-24));
        let step = step(&inst(name));
        for v in all {
            let mut wave = wave();
            set(&mut wave, SOURCES[0], 0, v[0]);
            step.run(&mut wave);
            let (found, expected) = (value(get(&wave, DST, 0) as u16), expect(v));
            let same = found == expected || (found.is_nan() && expected.is_nan());
            let big = expected.abs() >= 65504.0 && found.abs() >= 65504.0;
            assert!(
                same || big || (found - expected).abs() <= place(expected),
                "{name} of {:x}: {found}",
                v[0]
            );
        }
    };
    near("v_rcp_f16", |x| 1.0 / x);
    near("v_sqrt_f16", f64::sqrt);
    near("v_rsq_f16", |x| 1.0 / x.sqrt());
    near("v_exp_f16", f64::exp2);
    near("v_log_f16", f64::log2);
}

#[test]
fn scaling_and_exponents() {
    let inputs: Vec<_> =
        (0..0x10000u64).flat_map(|x| [[x, x >> 3 & 63, 0], [x, 0xffff - (x >> 5 & 63), 0]]).collect();
    check_inst(
        &inst("v_ldexp_f16"),
        &inputs,
        |(x, _)| canonical_nan(x & 0xffff),
        |v| canonical_nan(nearest(value(v[0] as u16) * 2f64.powi(i32::from(v[1] as i16))).into()),
    );
    check_inst(
        &inst("v_frexp_exp_i16_f16"),
        &inputs,
        |(x, _)| x as i16,
        |v| match value(v[0] as u16) {
            x if x == 0.0 || !x.is_finite() => 0,
            x => x.abs().log2().floor() as i16 + 1,
        },
    );
}

#[test]
fn halves_of_registers() {
    for selected in 0..16u8 {
        let mut inst = inst("v_fma_f16");
        inst.mods.op_sel = selected;
        let mut wave = wave();
        for (i, register) in SOURCES.iter().enumerate() {
            // The low halves are 1, 2, 3, and the high halves are 5, 6, 7.
            let bits = u32::from(nearest(i as f64 + 1.0)) | u32::from(nearest(i as f64 + 5.0)) << 16;
            wave.vgpr[*register as usize] = Lanes::splat(bits);
        }
        wave.vgpr[DST as usize] = Lanes::splat(0x1111_2222);
        step(&inst).run(&mut wave);
        let x = |i: u8| f64::from(i) + if selected >> i & 1 != 0 { 5.0 } else { 1.0 };
        let result = u32::from(nearest(x(0) * x(1) + x(2)));
        let expected = if selected & 8 != 0 { result << 16 | 0x2222 } else { 0x1111_0000 | result };
        assert_eq!(wave.vgpr[DST as usize].0[31], expected, "op_sel {selected:b}");
    }
    // The accumulator is the half that is written.
    let mut accumulate = inst("v_fmac_f16");
    accumulate.mods.op_sel = 8;
    let mut wave = wave();
    wave.vgpr[2] = Lanes::splat(nearest(3.0).into());
    wave.vgpr[4] = Lanes::splat(nearest(4.0).into());
    wave.vgpr[DST as usize] = Lanes::splat(u32::from(nearest(0.5)) << 16 | 0x77);
    step(&accumulate).run(&mut wave);
    assert_eq!(wave.vgpr[DST as usize].0[0], u32::from(nearest(12.5)) << 16 | 0x77);
}
