//! Tests of gfx12's minima and maxima: IEEE 754-2019's minimumNumber (`v_min_num`) and minimum (`v_minimum`).
use super::*;

/// Returns the smaller number, where -0 precedes +0.
fn least(a: f64, b: f64) -> f64 {
    if a < b || a == b && a.is_sign_negative() { a } else { b }
}

/// Returns the smaller number, ignoring NaN.
fn min_number(a: f64, b: f64) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ => least(a, b),
    }
}

/// Returns the smaller number, or NaN if either is NaN.
fn minimum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { least(a, b) }
}

fn max_number(a: f64, b: f64) -> f64 {
    -min_number(-a, -b)
}

fn maximum(a: f64, b: f64) -> f64 {
    -minimum(-a, -b)
}

/// Returns the median, or the smallest number if any is NaN.
fn median(a: f64, b: f64, c: f64) -> f64 {
    let mut sorted = [a, b, c];
    if sorted.iter().any(|x| x.is_nan()) {
        return min_number(min_number(a, b), c);
    }
    sorted.sort_by(|x, y| x.partial_cmp(y).expect("numbers"));
    sorted[1]
}

type Binary = fn(f64, f64) -> f64;

/// Stem of a mnemonic, its first operation, and its second (none for two operands).
const OPERATIONS: [(&str, Binary, Option<Binary>); 12] = [
    ("min_num", min_number, None),
    ("max_num", max_number, None),
    ("minimum", minimum, None),
    ("maximum", maximum, None),
    ("min3_num", min_number, Some(min_number)),
    ("max3_num", max_number, Some(max_number)),
    ("minimum3", minimum, Some(minimum)),
    ("maximum3", maximum, Some(maximum)),
    ("minmax_num", min_number, Some(max_number)),
    ("maxmin_num", max_number, Some(min_number)),
    ("minimummaximum", minimum, Some(maximum)),
    ("maximumminimum", maximum, Some(minimum)),
];

/// Returns the mnemonic of an operation on a type.
fn mnemonic(stem: &str, suffix: &str) -> &'static str {
    Box::leak(format!("v_{stem}_{suffix}").into_boxed_str())
}

#[test]
fn of_f32() {
    for (stem, first, then) in OPERATIONS {
        check_f32(mnemonic(stem, "f32"), &inputs_f32(), |[a, b, c]| {
            let two = first(a.into(), b.into());
            then.map_or(two, |then| then(two, c.into())) as f32
        });
    }
    // The sign of a zero median is not compared.
    let unsigned = |x: u32| if x == 1 << 31 { 0 } else { canonical_nan32(x) };
    check32("v_med3_num_f32", &[[0x3f80_0000, 0x4000_0000, 0xbf80_0000]], |_| 0x3f80_0000);
    check_inst(
        &inst("v_med3_num_f32"),
        &inputs_f32(),
        |(x, _)| unsigned(x as u32),
        |v| {
            let [a, b, c] = v.map(|x| f64::from(f32::from_bits(x as u32)));
            unsigned((median(a, b, c) as f32).to_bits())
        },
    );
}

#[test]
fn of_f64() {
    for (stem, first, then) in OPERATIONS {
        if then.is_none() {
            check_f64(mnemonic(stem, "f64"), &inputs_f64(), |[a, b, _]| first(a, b));
        }
    }
}

/// f16 edge cases: bits and value.
const HALVES: [(u64, f64); 9] = [
    (0x0000, 0.0),
    (0x8000, -0.0),
    (0x3c00, 1.0),
    (0xc000, -2.0),
    (0x0001, 5.960_464_477_539_063e-8),
    (0x7bff, 65504.0),
    (0x7c00, f64::INFINITY),
    (0xfc00, f64::NEG_INFINITY),
    (0x7d00, f64::NAN),
];

/// Returns the entry of f16 bits; all NaNs are equal.
fn half(bits: u64) -> (u64, f64) {
    let is_nan = bits & 0x7fff > 0x7c00;
    *HALVES.iter().find(|(other, x)| *other == bits || is_nan && x.is_nan()).expect("a value of HALVES")
}

/// Returns the f16 bits of a value; all NaNs are equal.
fn bits(value: f64) -> u64 {
    let same = |x: f64| x.to_bits() == value.to_bits() || x.is_nan() && value.is_nan();
    HALVES.iter().find(|(_, x)| same(*x)).expect("a value of HALVES").0
}

#[test]
fn of_f16_alone_and_in_pairs() {
    let mut inputs = Vec::new();
    for (a, _) in HALVES {
        for (b, _) in HALVES {
            inputs.extend(HALVES.map(|(c, _)| [a, b, c]));
        }
    }
    for (stem, first, then) in OPERATIONS {
        let expect = |[a, b, c]: [u64; 3]| {
            let two = first(half(a).1, half(b).1);
            bits(then.map_or(two, |then| then(two, half(c).1)))
        };
        check_inst(&inst(mnemonic(stem, "f16")), &inputs, |(x, _)| half(x & 0xffff).0, expect);
        if then.is_some() {
            continue;
        }
        let mut packed = inst(mnemonic(&format!("pk_{stem}"), "f16"));
        packed.encoding = Encoding::Vop3p;
        packed.mods.op_sel_hi = 7;
        let pairs: Vec<_> = inputs.iter().map(|[a, b, c]| [a | b << 16, b | c << 16, 0]).collect();
        check_inst(
            &packed,
            &pairs,
            |(x, _)| (half(x & 0xffff).0, half(x >> 16 & 0xffff).0),
            |[x, y, _]| {
                (expect([x & 0xffff, y & 0xffff, 0]), expect([x >> 16 & 0xffff, y >> 16 & 0xffff, 0]))
            },
        );
    }
}

#[test]
fn signalling_nans_are_quieted() {
    let signalling = 0x7f80_0001;
    for name in ["v_min_num_f32", "v_max_num_f32"] {
        check32(name, &[[signalling, 0x3f80_0000, 0], [0x3f80_0000, signalling, 0]], |_| 0x3f80_0000);
        check32(name, &[[signalling, signalling, 0]], |_| 0x7fc0_0001);
    }
    for name in ["v_minimum_f32", "v_maximum_f32"] {
        // A signalling NaN also takes precedence over a quiet one.
        check32(name, &[[signalling, 0x7fc0_1000, 0], [0x7fc0_1000, signalling, 0]], |_| 0x7fc0_0001);
        check32(name, &[[0x7fc0_1000, 0x7fc0_2000, 0]], |_| 0x7fc0_1000);
    }
}
