//! Tests of conversions.
use super::super::soft::{self, Rounding};
use super::half::{canonical_nan, nearest, value};
use super::*;

fn f32_of(bits: u64) -> f64 {
    f32::from_bits(bits as u32).into()
}

/// Truncates and saturates; NaN becomes 0.
fn whole(x: f64, low: f64, high: f64) -> i64 {
    if x.is_nan() { 0 } else { x.clamp(low, high).trunc() as i64 }
}

#[test]
fn between_floats() {
    check_inst(
        &inst("v_cvt_f32_f64"),
        &inputs_f64(),
        |(x, _)| canonical_nan32(x as u32),
        |[a, ..]| {
            canonical_nan32(soft::convert(a, &soft::DOUBLE, &soft::SINGLE, Rounding::NearestEven) as u32)
        },
    );
    check_inst(
        &inst("v_cvt_f64_f32"),
        &inputs_f32(),
        |(x, _)| canonical_nan64(x),
        |[a, ..]| canonical_nan64(soft::convert(a, &soft::SINGLE, &soft::DOUBLE, Rounding::NearestEven)),
    );
    check_inst(
        &inst("v_cvt_f16_f32"),
        &inputs_f32(),
        |(x, _)| (canonical_nan(x & 0xffff), x as u32 >> 16),
        |[a, ..]| (nearest(f32_of(a)), 0xdead),
    );
    check_inst(
        &inst("v_cvt_f32_f16"),
        &half::inputs(),
        |(x, _)| canonical_nan32(x as u32),
        |[a, ..]| canonical_nan32((value(a as u16) as f32).to_bits()),
    );
}

#[test]
fn widening_quiets_signalling_nans() {
    check_inst(
        &inst("v_cvt_f32_f16"),
        &[[0x7c01, 0, 0], [0xfdff, 0, 0]],
        |(x, _)| x as u32 & 0x7fc0_0000,
        |_| 0x7fc0_0000,
    );
}

#[test]
fn from_integers() {
    let inputs = inputs_u32();
    // The f64 is exact, and is rounded by software floating point.
    let round =
        |x: f64| soft::convert(x.to_bits(), &soft::DOUBLE, &soft::SINGLE, Rounding::NearestEven) as u32;
    check32("v_cvt_f32_u32", &inputs, |[a, ..]| round(a.into()));
    check32("v_cvt_f32_i32", &inputs, |[a, ..]| round((a as i32).into()));
    check_inst(&inst("v_cvt_f64_u32"), &inputs, |(x, _)| f64::from_bits(x), |[a, ..]| a as f64);
    check_inst(&inst("v_cvt_f64_i32"), &inputs, |(x, _)| f64::from_bits(x), |[a, ..]| (a as i32).into());
    for (i, name) in
        ["v_cvt_f32_ubyte0", "v_cvt_f32_ubyte1", "v_cvt_f32_ubyte2", "v_cvt_f32_ubyte3"].iter().enumerate()
    {
        check32(name, &inputs, |[a, ..]| round(a.to_le_bytes()[i].into()));
    }
    check32("v_cvt_off_f32_i4", &inputs, |[a, ..]| {
        let nibble = f64::from(a % 16);
        round((if nibble > 7.0 { nibble - 16.0 } else { nibble }) * 0.0625)
    });
    check_inst(&inst("v_cvt_f16_u16"), &inputs, |(x, _)| x as u16, |[a, ..]| nearest((a as u16).into()));
    check_inst(&inst("v_cvt_f16_i16"), &inputs, |(x, _)| x as u16, |[a, ..]| nearest((a as i16).into()));
    check32("v_cvt_i32_i16", &inputs, |[a, ..]| i64::from(a as i16) as u32);
    check32("v_cvt_u32_u16", &inputs, |[a, ..]| a % 65536);
}

#[test]
fn to_integers() {
    let (low, high) = (f64::from(i32::MIN), f64::from(i32::MAX));
    check32("v_cvt_i32_f32", &inputs_f32(), |[a, ..]| whole(f32_of(a.into()), low, high) as u32);
    check32("v_cvt_u32_f32", &inputs_f32(), |[a, ..]| whole(f32_of(a.into()), 0.0, u32::MAX.into()) as u32);
    check32("v_cvt_floor_i32_f32", &inputs_f32(), |[a, ..]| {
        whole(f32_of(a.into()).floor(), low, high) as u32
    });
    check32("v_cvt_nearest_i32_f32", &inputs_f32(), |[a, ..]| {
        whole((f32_of(a.into()) + 0.5).floor(), low, high) as u32
    });
    let double = |f: fn(f64) -> i64| move |[a, ..]: [u64; 3]| f(f64::from_bits(a)) as u32;
    check_inst(
        &inst("v_cvt_i32_f64"),
        &inputs_f64(),
        |(x, _)| x as u32,
        double(|x| whole(x, i32::MIN.into(), i32::MAX.into())),
    );
    check_inst(
        &inst("v_cvt_u32_f64"),
        &inputs_f64(),
        |(x, _)| x as u32,
        double(|x| whole(x, 0.0, u32::MAX.into())),
    );
    let every: Vec<_> = (0..0x10000).map(|x| [x, 0, 0]).collect();
    check_inst(
        &inst("v_cvt_u16_f16"),
        &every,
        |(x, _)| x as u16,
        |[a, ..]| whole(value(a as u16), 0.0, 65535.0) as u16,
    );
    check_inst(
        &inst("v_cvt_i16_f16"),
        &every,
        |(x, _)| x as u16,
        |[a, ..]| whole(value(a as u16), -32768.0, 32767.0) as u16,
    );
}

#[test]
fn pairs() {
    let pair = |low: i64, high: i64| (low as u32 & 0xffff) | (high as u32) << 16;
    let inputs = inputs_f32();
    let both = |f: fn(f64) -> i64| move |[a, b, _]: [u32; 3]| pair(f(f32_of(a.into())), f(f32_of(b.into())));
    check32("v_cvt_pk_i16_f32", &inputs, both(|x| whole(x, -32768.0, 32767.0)));
    check32("v_cvt_pk_u16_f32", &inputs, both(|x| whole(x, 0.0, 65535.0)));
    let norm = |x: f64, low: f64, scale: f64| {
        if x.is_nan() { 0 } else { (x.clamp(low, 1.0) * scale).round_ties_even() as i64 }
    };
    check32("v_cvt_pk_norm_i16_f32", &inputs, |[a, b, _]| {
        pair(norm(f32_of(a.into()), -1.0, 32767.0), norm(f32_of(b.into()), -1.0, 32767.0))
    });
    check32("v_cvt_pk_norm_u16_f32", &inputs, |[a, b, _]| {
        pair(norm(f32_of(a.into()), 0.0, 65535.0), norm(f32_of(b.into()), 0.0, 65535.0))
    });
    check32("v_cvt_pk_norm_i16_f16", &half::inputs(), |[a, b, _]| {
        pair(norm(value(a as u16), -1.0, 32767.0), norm(value(b as u16), -1.0, 32767.0))
    });
    check32("v_cvt_pk_norm_u16_f16", &half::inputs(), |[a, b, _]| {
        pair(norm(value(a as u16), 0.0, 65535.0), norm(value(b as u16), 0.0, 65535.0))
    });
    check_inst(
        &inst("v_cvt_norm_i16_f16"),
        &half::inputs(),
        |(x, _)| x as u16,
        |[a, ..]| norm(value(a as u16), -1.0, 32767.0) as u16,
    );
    check_inst(
        &inst("v_cvt_norm_u16_f16"),
        &half::inputs(),
        |(x, _)| x as u16,
        |[a, ..]| norm(value(a as u16), 0.0, 65535.0) as u16,
    );
    check32("v_cvt_pk_i16_i32", &inputs_u32(), |[a, b, _]| {
        pair(i64::from(a as i32).clamp(-32768, 32767), i64::from(b as i32).clamp(-32768, 32767))
    });
    check32("v_cvt_pk_u16_u32", &inputs_u32(), |[a, b, _]| {
        pair(i64::from(a).min(65535), i64::from(b).min(65535))
    });
    check32("v_pack_b32_f16", &inputs_u32(), |[a, b, _]| pair(a.into(), b.into()));
    check32("v_cvt_pk_u8_f32", &inputs, |[a, b, c]| {
        let mut bytes = c.to_le_bytes();
        bytes[b as usize % 4] = whole(f32_of(a.into()), 0.0, 255.0) as u8;
        u32::from_le_bytes(bytes)
    });
    check_inst(
        &inst("v_sat_pk_u8_i16"),
        &inputs_u32(),
        |(x, _)| x as u16,
        |[a, ..]| {
            let byte = |x: u64| i64::from(x as i16).clamp(0, 255) as u16;
            byte(a) | byte(a >> 16) << 8
        },
    );
    check32("v_cvt_pk_rtz_f16_f32", &inputs, |[a, b, _]| {
        let toward_zero = |x: u32| {
            let bits = soft::convert(x.into(), &soft::SINGLE, &soft::HALF, Rounding::Zero) as u32;
            if f32::from_bits(x).is_nan() { 0x7e00 | bits & 0x83ff } else { bits }
        };
        toward_zero(a) | toward_zero(b) << 16
    });
}

#[test]
fn eight_bit_floats_have_the_encoding_that_the_name_says() {
    for (from, to, fraction, bias, largest, infinity) in [
        ("v_cvt_f32_fp8 fnuz", "v_cvt_pk_fp8_f32 fnuz", 3, 8, 0x7f, None),
        ("v_cvt_f32_bf8 fnuz", "v_cvt_pk_bf8_f32 fnuz", 2, 16, 0x7f, None),
        ("v_cvt_f32_fp8 ocp", "v_cvt_pk_fp8_f32 ocp", 3, 7, 0x7e, None),
        ("v_cvt_f32_bf8 ocp", "v_cvt_pk_bf8_f32 ocp", 2, 15, 0x7b, Some(0x7c)),
    ] {
        let value = |code: u64| {
            let (exponent, part) = ((code & 0x7f) >> fraction, code & ((1 << fraction) - 1));
            let significand = part + (u64::from(exponent > 0) << fraction);
            let magnitude = significand as f64 * 2f64.powi(exponent.max(1) as i32 - bias - fraction);
            let magnitude = match code & 0x7f {
                _ if from.ends_with("fnuz") && code == 0x80 => f64::NAN,
                code if infinity == Some(code) => f64::INFINITY,
                code if code > largest => f64::NAN,
                _ => magnitude,
            };
            if code & 0x80 != 0 { -magnitude } else { magnitude }
        };
        let single = |value: f64| u64::from((value as f32).to_bits());
        let codes: Vec<[u64; 3]> = (0..256).map(|code| [code, 0, 0]).collect();
        check_inst(
            &inst(from),
            &codes,
            |(bits, _)| canonical_nan32(bits as u32),
            |[code, ..]| canonical_nan32(single(value(code)) as u32),
        );
        // Every number, the middle to the next one, and what lies beyond the largest.
        let mut cases = vec![[single(f64::INFINITY), infinity.unwrap_or(u64::MAX), 0]];
        cases.push([single(1e9), infinity.unwrap_or(u64::MAX), 0]);
        cases.push([single(f64::NAN), u64::MAX, 0]);
        for code in (0..=largest).flat_map(|code| [code, code | 0x80]) {
            cases.push([single(value(code)), if value(code).is_nan() { u64::MAX } else { code }, 0]);
            if code & 0x7f < largest && code != 0x80 {
                cases.push([single((value(code) + value(code + 1)) / 2.0), code + (code & 1), 0]);
            }
        }
        let observed = |code: u64| if value(code & 0xff).is_nan() { u64::MAX } else { code & 0xff };
        for [bits, code, _] in cases {
            check_inst(&inst(to), &[[bits, bits, 0]], |(found, _)| observed(found), |_| code);
        }
    }
}
