//! Tests of integer operations.
use super::*;

type Formula = fn(u32, u32, u32) -> u32;

fn wide(a: u32, b: u32, f: fn(i128, i128) -> i128, signed: bool) -> i128 {
    let value = |x: u32| if signed { i128::from(x as i32) } else { i128::from(x) };
    f(value(a), value(b))
}

fn bits(x: u32) -> impl Iterator<Item = bool> {
    (0..32).map(move |i| x >> i & 1 == 1)
}

fn from_bits(f: impl Fn(u32) -> bool) -> u32 {
    (0..32).filter(|i| f(*i)).fold(0, |sum, i| sum + (1 << i))
}

fn bytes(x: u32) -> [i64; 4] {
    x.to_le_bytes().map(i64::from)
}

const FORMULAS: &[(&str, Formula)] = &[
    ("v_add_nc_u32", |a, b, _| wide(a, b, |a, b| a + b, false) as u32),
    ("v_sub_nc_u32", |a, b, _| wide(a, b, |a, b| a - b, false) as u32),
    ("v_subrev_nc_u32", |a, b, _| wide(a, b, |a, b| b - a, false) as u32),
    ("v_add_nc_i32", |a, b, _| wide(a, b, |a, b| a + b, true) as u32),
    ("v_sub_nc_i32", |a, b, _| wide(a, b, |a, b| a - b, true) as u32),
    ("v_add3_u32", |a, b, c| (u64::from(a) + u64::from(b) + u64::from(c)) as u32),
    ("v_lshl_add_u32", |a, b, c| (u64::from(a) * (1 << (b % 32)) + u64::from(c)) as u32),
    ("v_add_lshl_u32", |a, b, c| ((u64::from(a) + u64::from(b)) as u32 as u64 * (1 << (c % 32))) as u32),
    ("v_xad_u32", |a, b, c| ((u64::from(a) ^ u64::from(b)) + u64::from(c)) as u32),
    ("v_min_u32", |a, b, _| if a < b { a } else { b }),
    ("v_max_u32", |a, b, _| if a > b { a } else { b }),
    ("v_min_i32", |a, b, _| if (a as i32) < b as i32 { a } else { b }),
    ("v_max_i32", |a, b, _| if a as i32 > b as i32 { a } else { b }),
    ("v_min3_u32", |a, b, c| *[a, b, c].iter().min().unwrap()),
    ("v_max3_u32", |a, b, c| *[a, b, c].iter().max().unwrap()),
    ("v_min3_i32", |a, b, c| *[a as i32, b as i32, c as i32].iter().min().unwrap() as u32),
    ("v_max3_i32", |a, b, c| *[a as i32, b as i32, c as i32].iter().max().unwrap() as u32),
    ("v_med3_u32", |a, b, c| {
        let mut x = [a, b, c];
        x.sort();
        x[1]
    }),
    ("v_med3_i32", |a, b, c| {
        let mut x = [a as i32, b as i32, c as i32];
        x.sort();
        x[1] as u32
    }),
    ("v_minmax_u32", |a, b, c| a.min(b).max(c)),
    ("v_maxmin_u32", |a, b, c| a.max(b).min(c)),
    ("v_minmax_i32", |a, b, c| (a as i32).min(b as i32).max(c as i32) as u32),
    ("v_maxmin_i32", |a, b, c| (a as i32).max(b as i32).min(c as i32) as u32),
    ("v_mul_lo_u32", |a, b, _| wide(a, b, |a, b| a * b, false) as u32),
    ("v_mul_hi_u32", |a, b, _| (wide(a, b, |a, b| a * b, false) >> 32) as u32),
    ("v_mul_hi_i32", |a, b, _| (wide(a, b, |a, b| a * b, true) >> 32) as u32),
    ("v_mul_u32_u24", |a, b, _| wide(a % (1 << 24), b % (1 << 24), |a, b| a * b, false) as u32),
    ("v_mul_hi_u32_u24", |a, b, _| (wide(a % (1 << 24), b % (1 << 24), |a, b| a * b, false) >> 32) as u32),
    ("v_mul_i32_i24", |a, b, _| wide(a << 8, b << 8, |a, b| (a / 256) * (b / 256), true) as u32),
    ("v_mul_hi_i32_i24", |a, b, _| (wide(a << 8, b << 8, |a, b| (a / 256) * (b / 256), true) >> 32) as u32),
    ("v_mad_u32_u24", |a, b, c| {
        (wide(a % (1 << 24), b % (1 << 24), |a, b| a * b, false) + i128::from(c)) as u32
    }),
    ("v_mad_i32_i24", |a, b, c| {
        (wide(a << 8, b << 8, |a, b| (a / 256) * (b / 256), true) + i128::from(c)) as u32
    }),
    ("v_and_b32", |a, b, _| from_bits(|i| a >> i & 1 == 1 && b >> i & 1 == 1)),
    ("v_or_b32", |a, b, _| from_bits(|i| a >> i & 1 == 1 || b >> i & 1 == 1)),
    ("v_xor_b32", |a, b, _| from_bits(|i| a >> i & 1 != b >> i & 1)),
    ("v_xnor_b32", |a, b, _| from_bits(|i| a >> i & 1 == b >> i & 1)),
    ("v_not_b32", |a, _, _| u32::MAX - a),
    ("v_or3_b32", |a, b, c| from_bits(|i| (a >> i & 1) + (b >> i & 1) + (c >> i & 1) != 0)),
    ("v_xor3_b32", |a, b, c| from_bits(|i| ((a >> i & 1) + (b >> i & 1) + (c >> i & 1)) % 2 == 1)),
    ("v_and_or_b32", |a, b, c| from_bits(|i| (a >> i & 1) * (b >> i & 1) + (c >> i & 1) != 0)),
    ("v_lshl_or_b32", |a, b, c| (u64::from(a) * (1 << (b % 32))) as u32 | c),
    ("v_bfi_b32", |a, b, c| from_bits(|i| if a >> i & 1 == 1 { b >> i & 1 == 1 } else { c >> i & 1 == 1 })),
    ("v_bfm_b32", |a, b, _| from_bits(|i| i >= b % 32 && i < b % 32 + a % 32)),
    ("v_bfe_u32", |a, b, c| from_bits(|i| i < c % 32 && i + b % 32 < 32 && a >> (i + b % 32) & 1 == 1)),
    ("v_bfe_i32", |a, b, c| {
        let wide = i64::from(a as i32);
        let width = c % 32;
        from_bits(|i| width != 0 && wide >> (i.min(width - 1) + b % 32) & 1 == 1)
    }),
    ("v_lshlrev_b32", |n, a, _| (u64::from(a) * (1 << (n % 32))) as u32),
    ("v_lshrrev_b32", |n, a, _| (u64::from(a) / (1 << (n % 32))) as u32),
    ("v_ashrrev_i32", |n, a, _| i64::from(a as i32).div_euclid(1 << (n % 32)) as u32),
    ("v_alignbit_b32", |a, b, c| ((u64::from(a) << 32 | u64::from(b)) / (1 << (c % 32))) as u32),
    ("v_alignbyte_b32", |a, b, c| ((u64::from(a) << 32 | u64::from(b)) / (1 << (c % 4 * 8))) as u32),
    ("v_perm_b32", |a, b, c| {
        let data = [b.to_le_bytes(), a.to_le_bytes()].concat();
        u32::from_le_bytes(c.to_le_bytes().map(|select| match select {
            0..=7 => data[select as usize],
            8..=11 => {
                if data[(select as usize - 8) * 2 + 1] > 127 {
                    255
                } else {
                    0
                }
            }
            12 => 0,
            _ => 255,
        }))
    }),
    ("v_bfrev_b32", |a, _, _| from_bits(|i| a >> (31 - i) & 1 == 1)),
    ("v_bcnt_u32_b32", |a, b, _| b.wrapping_add(bits(a).filter(|x| *x).count() as u32)),
    ("v_clz_i32_u32", |a, _, _| (0..32).find(|i| a >> (31 - i) & 1 == 1).unwrap_or(u32::MAX)),
    ("v_ctz_i32_b32", |a, _, _| (0..32).find(|i| a >> i & 1 == 1).unwrap_or(u32::MAX)),
    ("v_cls_i32", |a, _, _| (1..32).find(|i| a >> (31 - i) & 1 != a >> 31).unwrap_or(u32::MAX)),
    ("v_sad_u8", |a, b, c| {
        (0..4).map(|i| (bytes(a)[i] - bytes(b)[i]).abs()).sum::<i64>().wrapping_add(c.into()) as u32
    }),
    ("v_sad_hi_u8", |a, b, c| {
        ((0..4).map(|i| (bytes(a)[i] - bytes(b)[i]).abs()).sum::<i64>() * 65536 + i64::from(c)) as u32
    }),
    ("v_msad_u8", |a, b, c| {
        let counted = (0..4).filter(|i| bytes(b)[*i] != 0).map(|i| (bytes(a)[i] - bytes(b)[i]).abs());
        (counted.sum::<i64>() + i64::from(c)) as u32
    }),
    ("v_sad_u16", |a, b, c| {
        let parts = |x: u32| [i64::from(x as u16), i64::from(x >> 16)];
        ((0..2).map(|i| (parts(a)[i] - parts(b)[i]).abs()).sum::<i64>() + i64::from(c)) as u32
    }),
    ("v_sad_u32", |a, b, c| ((i64::from(a) - i64::from(b)).abs() + i64::from(c)) as u32),
    ("v_lerp_u8", |a, b, c| {
        let mean = |i: usize| ((bytes(a)[i] + bytes(b)[i] + bytes(c)[i] % 2) / 2) as u8;
        u32::from_le_bytes([mean(0), mean(1), mean(2), mean(3)])
    }),
    ("v_mov_b32", |a, _, _| a),
    ("v_cndmask_b32", |a, b, c| if c & 1 == 1 { b } else { a }),
];

#[test]
fn operations_of_32_bits() {
    let inputs = inputs_u32();
    for (name, formula) in FORMULAS {
        check32(name, &inputs, |[a, b, c]| formula(a, b, c));
    }
}

/// Formula of a 16-bit operation, on signed or unsigned values.
type Formula16 = fn(i64, i64, i64) -> i64;

const FORMULAS16: &[(&str, bool, Formula16)] = &[
    ("v_add_nc_u16", false, |a, b, _| a + b),
    ("v_sub_nc_u16", false, |a, b, _| a - b),
    ("v_add_nc_i16", true, |a, b, _| a + b),
    ("v_sub_nc_i16", true, |a, b, _| a - b),
    ("v_mul_lo_u16", false, |a, b, _| a * b),
    ("v_mad_u16", false, |a, b, c| a * b + c),
    ("v_mad_i16", true, |a, b, c| a * b + c),
    ("v_min_u16", false, |a, b, _| a.min(b)),
    ("v_max_u16", false, |a, b, _| a.max(b)),
    ("v_min_i16", true, |a, b, _| a.min(b)),
    ("v_max_i16", true, |a, b, _| a.max(b)),
    ("v_min3_u16", false, |a, b, c| a.min(b).min(c)),
    ("v_max3_u16", false, |a, b, c| a.max(b).max(c)),
    ("v_med3_u16", false, |a, b, c| a + b + c - a.min(b).min(c) - a.max(b).max(c)),
    ("v_min3_i16", true, |a, b, c| a.min(b).min(c)),
    ("v_max3_i16", true, |a, b, c| a.max(b).max(c)),
    ("v_med3_i16", true, |a, b, c| a + b + c - a.min(b).min(c) - a.max(b).max(c)),
    ("v_and_b16", false, |a, b, _| a & b),
    ("v_or_b16", false, |a, b, _| a | b),
    ("v_xor_b16", false, |a, b, _| a ^ b),
    ("v_not_b16", false, |a, _, _| -1 - a),
    ("v_lshlrev_b16", false, |n, a, _| a * (1 << (n % 16))),
    ("v_lshrrev_b16", false, |n, a, _| a / (1 << (n % 16))),
    ("v_ashrrev_i16", true, |n, a, _| a.div_euclid(1 << n.rem_euclid(16))),
    ("v_mov_b16", false, |a, _, _| a),
    ("v_cndmask_b16", false, |a, b, c| if c & 1 == 1 { b } else { a }),
];

#[test]
fn operations_of_16_bits() {
    let inputs = inputs_u32();
    for (name, signed, formula) in FORMULAS16 {
        let value = |x: u64| if *signed { i64::from(x as i16) } else { i64::from(x as u16) };
        check_inst(
            &inst(name),
            &inputs,
            |(x, _)| x as u32,
            |[a, b, c]| {
                // The other half of the destination is preserved.
                0xdead_0000 | (formula(value(a), value(b), value(c)) as u32 & 0xffff)
            },
        );
    }
    check32("v_mad_u32_u16", &inputs, |[a, b, c]| {
        (u64::from(a % 65536) * u64::from(b % 65536) + u64::from(c)) as u32
    });
    check32("v_mad_i32_i16", &inputs, |[a, b, c]| {
        (i64::from(a as i16) * i64::from(b as i16) + i64::from(c)) as u32
    });
}

#[test]
fn shifts_of_64_bits() {
    let inputs = inputs_u64();
    let check = |name, f: fn(u32, u64) -> u64| {
        check_inst(&inst(name), &inputs, |(x, _)| x, |[n, a, _]| f(n as u32 % 64, a));
    };
    check("v_lshlrev_b64", |n, a| (u128::from(a) << n) as u64);
    check("v_lshrrev_b64", |n, a| (u128::from(a) >> n) as u64);
    check("v_ashrrev_i64", |n, a| (i128::from(a as i64) >> n) as u64);
}

#[test]
fn saturation() {
    let check = |name, f: fn(i64, i64) -> i64, signed: bool, low: i64, high: i64| {
        let mut clamped = inst(name);
        clamped.mods.clamp = true;
        let narrow = high < 0x10000;
        let value = move |x: u64| match (signed, narrow) {
            (true, true) => i64::from(x as i16),
            (false, true) => i64::from(x as u16),
            (true, false) => i64::from(x as i32),
            (false, false) => i64::from(x as u32),
        };
        let part = if narrow { 0xffff } else { 0xffff_ffff };
        check_inst(
            &clamped,
            &inputs_u32(),
            |(x, _)| x & part,
            |[a, b, _]| f(value(a), value(b)).clamp(low, high) as u64 & part,
        );
    };
    check("v_add_nc_u32", |a, b| a + b, false, 0, u32::MAX.into());
    check("v_sub_nc_u32", |a, b| a - b, false, 0, u32::MAX.into());
    check("v_add_nc_i32", |a, b| a + b, true, i32::MIN.into(), i32::MAX.into());
    check("v_sub_nc_i32", |a, b| a - b, true, i32::MIN.into(), i32::MAX.into());
    check("v_add_nc_u16", |a, b| a + b, false, 0, u16::MAX.into());
    check("v_sub_nc_u16", |a, b| a - b, false, 0, u16::MAX.into());
    check("v_add_nc_i16", |a, b| a + b, true, i16::MIN.into(), i16::MAX.into());
    check("v_sub_nc_i16", |a, b| a - b, true, i16::MIN.into(), i16::MAX.into());
}

#[test]
fn carries() {
    let inputs = inputs_u32();
    let check = |name, f: fn(i64, i64, i64) -> i64| {
        check_inst(
            &inst(name),
            &inputs,
            |(x, carry)| (x as u32, carry),
            |[a, b, c]| {
                let sum = f(a as i64, b as i64, c as i64 & 1);
                (sum as u32, !(0..1 << 32).contains(&sum))
            },
        );
    };
    check("v_add_co_u32", |a, b, _| a + b);
    check("v_sub_co_u32", |a, b, _| a - b);
    check("v_subrev_co_u32", |a, b, _| b - a);
    check("v_add_co_ci_u32", |a, b, c| a + b + c);
    check("v_sub_co_ci_u32", |a, b, c| a - b - c);
    check("v_subrev_co_ci_u32", |a, b, c| b - a - c);
}

#[test]
fn wide_multiply_add() {
    check_inst(
        &inst("v_mad_u64_u32"),
        &inputs_u64(),
        |x| x,
        |[a, b, c]| {
            let sum = u128::from(a as u32) * u128::from(b as u32) + u128::from(c);
            (sum as u64, sum >> 64 & 1 == 1)
        },
    );
    check_inst(
        &inst("v_mad_i64_i32"),
        &inputs_u64(),
        |x| x,
        |[a, b, c]| {
            let sum = i128::from(a as i32) * i128::from(b as i32) + i128::from(c as i64);
            (sum as u64, sum >> 64 & 1 == 1)
        },
    );
    // Without a second destination, no mask is written.
    let mut alone = inst("v_mad_u64_u32");
    alone.dst2 = Operand::Scalar(124);
    let mut wave = wave();
    wave.vgpr[2] = Lanes::splat(u32::MAX);
    wave.vgpr[4] = Lanes::splat(u32::MAX);
    step(&alone).run(&mut wave);
    assert!(wave.sgpr[..126].iter().all(|x| *x == 0));
}
