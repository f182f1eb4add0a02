//! Tests of f32 and f64 arithmetic.
use super::super::soft::{self, Rounding};
use super::*;

#[test]
fn sums_and_products_of_f32() {
    let inputs = inputs_f32();
    // f64 represents products exactly, and sums with over twice the precision, so there is a single rounding.
    let wide = |f: fn(f64, f64) -> f64| move |[a, b, _]: [f32; 3]| f(f64::from(a), f64::from(b)) as f32;
    check_f32("v_add_f32", &inputs, wide(|a, b| a + b));
    check_f32("v_sub_f32", &inputs, wide(|a, b| a - b));
    check_f32("v_subrev_f32", &inputs, wide(|a, b| b - a));
    check_f32("v_mul_f32", &inputs, wide(|a, b| a * b));
    check_f32("v_mul_dx9_zero_f32", &inputs, wide(|a, b| if a == 0.0 || b == 0.0 { 0.0 } else { a * b }));
}

#[test]
fn fused_multiply_add() {
    let single = |[a, b, c]: [f32; 3]| {
        let [a, b, c] = [a, b, c].map(|x| u64::from(x.to_bits()));
        f32::from_bits(soft::fma(a, b, c, 0, &soft::SINGLE, Rounding::NearestEven) as u32)
    };
    check_f32("v_fma_f32", &inputs_f32(), single);
    check_f64("v_fma_f64", &inputs_f64(), |[a, b, c]| {
        let [a, b, c] = [a, b, c].map(f64::to_bits);
        f64::from_bits(soft::fma(a, b, c, 0, &soft::DOUBLE, Rounding::NearestEven))
    });
    check_f32(
        "v_fma_dx9_zero_f32",
        &inputs_f32(),
        |[a, b, c]| {
            if a == 0.0 || b == 0.0 { c } else { single([a, b, c]) }
        },
    );
}

#[test]
fn accumulation_reads_the_destination() {
    for name in ["v_fmac_f32", "v_fmac_dx9_zero_f32"] {
        let mut wave = wave();
        wave.vgpr[2] = Lanes::splat(3f32.to_bits());
        wave.vgpr[4] = Lanes::splat(5f32.to_bits());
        wave.vgpr[DST as usize] = Lanes::splat(7f32.to_bits());
        step(&inst(name)).run(&mut wave);
        assert_eq!(wave.vgpr[DST as usize], Lanes::splat(22f32.to_bits()));
    }
    for (name, at) in [("v_fmamk_f32", 1), ("v_fmaak_f32", 2)] {
        let mut inst = inst(name);
        if at == 1 {
            inst.src[2] = inst.src[1];
        }
        inst.src[at] = Operand::Literal(100f32.to_bits());
        let mut wave = wave();
        wave.vgpr[2] = Lanes::splat(3f32.to_bits());
        wave.vgpr[4] = Lanes::splat(5f32.to_bits());
        step(&inst).run(&mut wave);
        let expected: f32 = if at == 1 { 305.0 } else { 115.0 };
        assert_eq!(f32::from_bits(wave.vgpr[DST as usize].0[9]), expected);
    }
}

#[test]
fn sums_and_products_of_f64() {
    let inputs = inputs_f64();
    let soft = |f: fn(u64, u64, &soft::Layout, Rounding) -> u64| {
        move |[a, b, _]: [f64; 3]| {
            f64::from_bits(f(a.to_bits(), b.to_bits(), &soft::DOUBLE, Rounding::NearestEven))
        }
    };
    check_f64("v_add_f64", &inputs, soft(soft::add));
    check_f64("v_mul_f64", &inputs, soft(soft::multiply));
}

/// Compares in the total order of numbers, where -0 precedes +0.
fn less(a: f64, b: f64) -> bool {
    a < b || (a == 0.0 && b == 0.0 && a.is_sign_negative() && b.is_sign_positive())
}

fn lesser(a: f64, b: f64) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ => {
            if less(b, a) {
                b
            } else {
                a
            }
        }
    }
}

fn greater(a: f64, b: f64) -> f64 {
    -lesser(-a, -b)
}

#[test]
fn minimum_and_maximum() {
    let signalling = |x: &u64| matches!(*x as u32 & 0x7fff_ffff, 0x7f80_0001..0x7fc0_0000);
    let quiet: Vec<_> = inputs_f32().into_iter().filter(|v| !v.iter().any(signalling)).collect();
    let two = |f: fn(f64, f64) -> f64| move |[a, b, _]: [f32; 3]| f(a.into(), b.into()) as f32;
    check_f32("v_min_f32", &quiet, two(lesser));
    check_f32("v_max_f32", &quiet, two(greater));
    let three = |f: fn(f64, f64) -> f64, g: fn(f64, f64) -> f64| {
        move |[a, b, c]: [f32; 3]| g(f(a.into(), b.into()), c.into()) as f32
    };
    check_f32("v_min3_f32", &quiet, three(lesser, lesser));
    check_f32("v_max3_f32", &quiet, three(greater, greater));
    check_f32("v_minmax_f32", &quiet, three(lesser, greater));
    check_f32("v_maxmin_f32", &quiet, three(greater, lesser));
    let signalling = |x: &u64| f64::from_bits(*x).is_nan() && x >> 51 & 1 == 0;
    let quiet64: Vec<_> = inputs_f64().into_iter().filter(|v| !v.iter().any(signalling)).collect();
    check_f64("v_min_f64", &quiet64, |[a, b, _]| lesser(a, b));
    check_f64("v_max_f64", &quiet64, |[a, b, _]| greater(a, b));
}

#[test]
fn signalling_operands_are_returned_quieted() {
    for name in ["v_min_f32", "v_max_f32"] {
        check32(name, &[[0x7f80_0001, 0x3f80_0000, 0], [0x3f80_0000, 0x7f80_0001, 0]], |_| 0x7fc0_0001);
    }
    for name in ["v_min_f64", "v_max_f64"] {
        let signalling = 0x7ff0_0000_0000_0001;
        check_inst(
            &inst(name),
            &[[signalling, 0, 0], [0, signalling, 0]],
            |(x, _)| x,
            |_| 0x7ff8_0000_0000_0001,
        );
    }
}

#[test]
fn median() {
    let numbers: Vec<_> =
        inputs_f32().into_iter().filter(|v| v.iter().all(|x| !f32::from_bits(*x as u32).is_nan())).collect();
    check_inst(
        &inst("v_med3_f32"),
        &numbers,
        // Adding 0 ignores the sign of a zero result.
        |(bits, _)| f32::from_bits(bits as u32) + 0.0,
        |v| {
            let mut sorted = v.map(|x| f32::from_bits(x as u32));
            sorted.sort_by(f32::total_cmp);
            sorted[1] + 0.0
        },
    );
    check_f32("v_med3_f32", &[[0x7fc0_0000, 0x4000_0000, 0x3f80_0000]], |_| 1.0);
}

#[test]
fn whole_parts() {
    let inputs = inputs_f32();
    let truncated = |x: f32| if x.abs() < 8_388_608.0 { (x as i32 as f32).copysign(x) } else { x };
    let floor = move |x: f32| if truncated(x) > x { truncated(x) - 1.0 } else { truncated(x) };
    check_f32("v_trunc_f32", &inputs, |[x, ..]| truncated(x));
    check_f32("v_floor_f32", &inputs, |[x, ..]| floor(x));
    check_f32("v_ceil_f32", &inputs, |[x, ..]| -floor(-x));
    check_f32("v_rndne_f32", &inputs, |[x, ..]| {
        let below = floor(x);
        let even = below / 2.0 == floor(below / 2.0);
        let up = x - below > 0.5 || (x - below == 0.5 && !even);
        if up { below + 1.0 } else { below }.copysign(x)
    });
    check_f32("v_fract_f32", &inputs, |[x, ..]| {
        let part = (f64::from(x) - f64::from(x).floor()) as f32;
        if part >= 1.0 { 1.0 - f32::EPSILON / 2.0 } else { part }
    });
}

#[test]
fn whole_parts_of_f64() {
    let inputs = inputs_f64();
    let truncated =
        |x: f64| if x.abs() < 4_503_599_627_370_496.0 { (x as i64 as f64).copysign(x) } else { x };
    let floor = move |x: f64| if truncated(x) > x { truncated(x) - 1.0 } else { truncated(x) };
    check_f64("v_trunc_f64", &inputs, |[x, ..]| truncated(x));
    check_f64("v_floor_f64", &inputs, |[x, ..]| floor(x));
    check_f64("v_ceil_f64", &inputs, |[x, ..]| -floor(-x));
    check_f64("v_rndne_f64", &inputs, |[x, ..]| {
        let below = floor(x);
        let even = below / 2.0 == floor(below / 2.0);
        let up = x - below > 0.5 || (x - below == 0.5 && !even);
        if up { below + 1.0 } else { below }.copysign(x)
    });
    check_f64("v_fract_f64", &inputs, |[x, ..]| (x - floor(x)).min(1.0 - f64::EPSILON / 2.0) + (x - x));
}

#[test]
fn scaling_by_powers_of_two() {
    let scales: Vec<i32> =
        (-2300..2300).step_by(13).chain([i32::MIN, i32::MAX, -1, 0, 1, -149, -1074]).collect();
    let product = |bits: u64, n: i32, layout: &soft::Layout, one: u64| {
        // x * 1 + 0 is exact, so scaling is the only rounding.
        soft::fma(bits, one, bits & layout.sign(), n.clamp(-5000, 5000), layout, Rounding::NearestEven)
    };
    let mut inputs = Vec::new();
    for x in inputs_f32().iter().step_by(53) {
        inputs.extend(scales.iter().map(|n| [x[0], u64::from(*n as u32), 0]));
    }
    check_f32("v_ldexp_f32", &inputs, |[x, n, _]| {
        f32::from_bits(product(x.to_bits().into(), n.to_bits() as i32, &soft::SINGLE, 0x3f80_0000) as u32)
    });
    let mut inputs = Vec::new();
    for x in inputs_f64().iter().step_by(101) {
        inputs.extend(scales.iter().map(|n| [x[0], u64::from(*n as u32), 0]));
    }
    check_f64("v_ldexp_f64", &inputs, |[x, n, _]| {
        f64::from_bits(product(x.to_bits(), n.to_bits() as i32, &soft::DOUBLE, 0x3ff0 << 48))
    });
}

#[test]
fn mantissas_and_exponents() {
    let finite: Vec<_> = inputs_f64().into_iter().filter(|v| f64::from_bits(v[0]).is_finite()).collect();
    let halves = |x: f64| {
        // Normalise by repeated halving and doubling.
        let (mut m, mut e) = (x, 0);
        while m.abs() >= 1.0 {
            m /= 2.0;
            e += 1;
        }
        while m != 0.0 && m.abs() < 0.5 {
            m *= 2.0;
            e -= 1;
        }
        (m, e)
    };
    check_f64("v_frexp_mant_f64", &finite, |[x, ..]| halves(x).0);
    check_inst(&inst("v_frexp_exp_i32_f64"), &finite, |(e, _)| e as i32, |v| halves(f64::from_bits(v[0])).1);
    let finite: Vec<_> =
        inputs_f32().into_iter().filter(|v| f32::from_bits(v[0] as u32).is_finite()).collect();
    check_f32("v_frexp_mant_f32", &finite, |[x, ..]| halves(x.into()).0 as f32);
    check32("v_frexp_exp_i32_f32", &finite, |[x, ..]| halves(f32::from_bits(x).into()).1 as u32);
    let specials = [[0x7f80_0000, 0, 0], [0xff80_0000, 0, 0]];
    check32("v_frexp_exp_i32_f32", &specials, |_| 0);
    check32("v_frexp_mant_f32", &specials, |[x, ..]| x);
}

#[test]
fn clamp() {
    let mut clamped = inst("v_add_f32");
    clamped.mods.clamp = true;
    check_inst(
        &clamped,
        &inputs_f32(),
        |(x, _)| x as u32,
        |[a, b, _]| {
            let sum = f32::from_bits(a as u32) + f32::from_bits(b as u32);
            if sum >= 1.0 {
                0x3f80_0000
            } else if sum > 0.0 {
                sum.to_bits()
            } else {
                0
            }
        },
    );
}

#[test]
fn source_modifiers() {
    for mask in 0..64u8 {
        let mut inst = inst("v_fma_f32");
        (inst.mods.neg, inst.mods.abs) = (mask & 7, mask >> 3);
        let inputs: Vec<_> = inputs_f32().into_iter().step_by(97).collect();
        check_inst(
            &inst,
            &inputs,
            |(x, _)| canonical_nan32(x as u32),
            |v| {
                let mut i = 0;
                let [a, b, c] = v.map(|bits| {
                    let x = f32::from_bits(bits as u32);
                    let x = if mask >> (3 + i) & 1 != 0 { x.abs() } else { x };
                    i += 1;
                    if mask >> (i - 1) & 1 != 0 { -x } else { x }
                });
                canonical_nan32(a.mul_add(b, c).to_bits())
            },
        );
    }
    let mut negated = inst("v_add_f64");
    (negated.mods.neg, negated.mods.abs) = (1, 2);
    check_inst(
        &negated,
        &inputs_f64(),
        |(x, _)| canonical_nan64(x),
        |[a, b, _]| canonical_nan64((f64::from_bits(b).abs() - f64::from_bits(a)).to_bits()),
    );
}
