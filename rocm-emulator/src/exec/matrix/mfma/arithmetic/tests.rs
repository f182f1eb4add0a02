//! Tests of sums that distinguish the chips, computed by hand, and of random sums compared with f64.
use super::*;
use Element::{Bf8, Bf16, F16, F32, Fp8, Xf32};

/// Returns the sum of one element on a GPU of the family.
fn sum(family: Family, element: Element, addend: f32, a: &[f32], b: &[f32]) -> f32 {
    let per_lane = if element == Bf16 && family == Family::Cdna1 { 2 } else { 4 };
    let shape = Shape { side: 4, k: a.len(), per_lane, a: element, b: element, sparse: false };
    Arithmetic::of(family, &shape).add_products(addend, a, b)
}

const ONES: [f32; 4] = [1.0; 4];

/// Returns 2^exponent.
fn two(exponent: i32) -> f32 {
    2f32.powi(exponent)
}

#[test]
fn gfx908_rounds_a_group_once() {
    // The exact sum is just above the middle between 2^24 and the next float.
    let a = [two(-10), 1.0, two(-14), -two(-14)];
    assert_eq!(sum(Family::Cdna1, F16, two(24), &a, &ONES), two(24) + 2.0);
    // If a small product is alone in its group, adding the addend rounds it away.
    assert_eq!(sum(Family::Cdna1, F16, two(24), &[1.0, 0.0, 0.0, 0.0], &ONES), two(24));
    // Large terms cancel, even where the sum needs more bits than f64 has.
    let a = [60000.0, two(-24), -60000.0, 0.0];
    let b = [60000.0, two(-24), 60000.0, 0.0];
    assert_eq!(sum(Family::Cdna1, F16, 0.0, &a, &b), two(-48));
    assert_eq!(sum(Family::Cdna1, Bf16, -two(120), &[two(60), two(-60)], &[two(60), two(-60)]), two(-120));
    // bf16 is summed in groups of two: 2^24 + 1 twice.
    assert_eq!(sum(Family::Cdna1, Bf16, two(24), &[1.0, 0.0, 1.0, 0.0], &ONES), two(24));
    assert_eq!(sum(Family::Cdna1, Bf16, two(24), &[1.0, 1.0, 0.0, 0.0], &ONES), two(24) + 2.0);
}

#[test]
fn gfx908_rounds_ties_to_even_only_if_they_are_ties() {
    for (rest, expected) in [(0.0, two(24)), (two(-24), two(24) + 2.0), (-two(-24), two(24))] {
        assert_eq!(sum(Family::Cdna1, F16, two(24), &[1.0, rest, 0.0, 0.0], &ONES), expected);
    }
    for (rest, expected) in [(0.0, two(24) + 4.0), (two(-24), two(24) + 4.0), (-two(-24), two(24) + 2.0)] {
        assert_eq!(sum(Family::Cdna1, F16, two(24), &[3.0, rest, 0.0, 0.0], &ONES), expected);
    }
}

#[test]
fn gfx90a_adds_pairs() {
    // (2^24 + 1) + (1 + 1): the first pair rounds its 1 away.
    let a = [two(12), 1.0, 1.0, 1.0];
    let b = [two(12), 1.0, 1.0, 1.0];
    assert_eq!(sum(Family::Cdna2, F16, 0.0, &a, &b), two(24) + 2.0);
    // gfx908 would round 2^24 + 3 up.
    assert_eq!(sum(Family::Cdna1, F16, 0.0, &a, &b), two(24) + 4.0);
}

#[test]
fn gfx90a_flushes_denormals() {
    let denormal = two(-15);
    assert_eq!(sum(Family::Cdna2, F16, 0.0, &[denormal, 0.0, 0.0, 0.0], &ONES), 0.0);
    assert_eq!(sum(Family::Cdna1, F16, 0.0, &[denormal, 0.0, 0.0, 0.0], &ONES), denormal);
    assert_eq!(sum(Family::Cdna2, F16, 0.0, &[two(-14), 0.0, 0.0, 0.0], &ONES), two(-14));
    assert_eq!(sum(Family::Cdna2, F16, two(-127), &[0.0; 4], &ONES), 0.0);
    // Products of bf16 that are denormal in f32.
    let small = [two(-70), 0.0, 0.0, 0.0];
    assert_eq!(sum(Family::Cdna2, Bf16, 0.0, &small, &small), 0.0);
    assert_eq!(sum(Family::Cdna3, Bf16, 0.0, &small, &small), two(-140));
}

#[test]
fn gfx942_rounds_addends_down() {
    let one = [1.0, 0.0, 0.0, 0.0];
    for element in [F16, Bf16, Xf32] {
        let sum = |addend| sum(Family::Cdna3, element, addend, &one, &ONES);
        assert_eq!(sum(two(-30)), 1.0);
        assert_eq!(sum(-two(-30)), 1.0 - two(-24));
    }
    // 8-bit floats ignore an addend that is far smaller.
    for element in [Fp8, Bf8] {
        let sum = |addend| sum(Family::Cdna3, element, addend, &one, &ONES);
        assert_eq!(sum(-two(-30)), 1.0);
        assert_eq!(sum(-two(-25)), 1.0 - two(-24));
    }
    assert_eq!(sum(Family::Cdna3, F32, -two(-30), &one, &ONES), 1.0);
}

#[test]
fn gfx942_truncates_products() {
    // 2^-13 * 2^-13 is below the 24 kept bits of 1 * 1, so it counts only in a group of small products.
    let small = two(-13);
    let groups = |at: usize| {
        let mut a = [0.0; 16];
        (a[0], a[at]) = (1.0, small);
        let mut b = a;
        b[0] = 1.0;
        sum(Family::Cdna3, F16, -1.0, &a, &b)
    };
    assert_eq!(groups(1), 0.0);
    assert_eq!(groups(8), two(-26));
    // Truncation is towards zero, whatever the sign.
    let a = [1.0, -small, 0.0, 0.0];
    assert_eq!(sum(Family::Cdna3, F16, -1.0, &a, &[1.0, small, 0.0, 0.0]), 0.0);
}

#[test]
fn gfx942_truncates_xf32_inputs() {
    let a = 1.0 + two(-10) + two(-11);
    assert_eq!(Xf32.value(a.to_bits()), 1.0 + two(-10));
}

#[test]
fn overflowing_products_are_infinite_on_gfx942() {
    let large = two(100);
    assert_eq!(sum(Family::Cdna3, Bf16, 0.0, &[large; 4], &[large; 4]), f32::INFINITY);
    assert!(sum(Family::Cdna3, Bf16, 0.0, &[large, -large, 0.0, 0.0], &[large; 4]).is_nan());
    assert_eq!(sum(Family::Cdna3, Bf16, f32::NEG_INFINITY, &[1.0; 4], &[1.0; 4]), f32::NEG_INFINITY);
}

#[test]
fn random_sums_are_close_to_exact_sums() {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Eight significant bits, exponents of -3 to 3.
        let significand = 128.0 + (state >> 33 & 127) as f32;
        let sign = if state >> 40 & 1 == 0 { 1.0 } else { -1.0 };
        sign * significand * two((state >> 41 & 7) as i32 - 10)
    };
    for family in [Family::Cdna1, Family::Cdna2, Family::Cdna3] {
        for element in [F32, F16, Bf16] {
            for _ in 0..500 {
                let (a, b): (Vec<_>, Vec<_>) = (0..16).map(|_| (next(), next())).unzip();
                let addend = next();
                let terms = || a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b));
                let exact = terms().sum::<f64>() + f64::from(addend);
                // The error of each step is less than 2^-23 of the largest sum so far.
                let largest = terms().map(f64::abs).sum::<f64>() + f64::from(addend.abs());
                let error = (f64::from(sum(family, element, addend, &a, &b)) - exact).abs();
                let steps = 17.0;
                assert!(error <= steps * f64::from(two(-23)) * largest, "{family:?} {element:?}: {error}");
            }
        }
    }
}
