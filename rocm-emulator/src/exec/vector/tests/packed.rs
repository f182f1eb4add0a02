//! Tests of packed operations (VOP3P).
use super::half::{canonical_nan, nearest, value};
use super::*;

fn halves(x: u64) -> [u16; 2] {
    [x as u16, (x >> 16) as u16]
}

fn check_packed(name: &'static str, expect: impl Fn([u16; 3]) -> u16, float: bool) {
    let mut inputs = half::inputs();
    inputs.extend(inputs_u32());
    // Combine special and other numbers in both halves.
    let inputs: Vec<_> =
        inputs.into_iter().map(|v| v.map(|x| (x ^ 0x5a5a_0000) | x << 16 & 0xffff_0000)).collect();
    let same = |x: u16| if float { canonical_nan(x.into()) } else { x };
    check_inst(
        &inst(name),
        &inputs,
        |(x, _)| halves(x).map(same),
        |v| {
            let part = |i: usize| same(expect(v.map(|x| halves(x)[i])));
            [part(0), part(1)]
        },
    );
}

#[test]
fn integers() {
    check_packed("v_pk_add_u16", |[a, b, _]| (u32::from(a) + u32::from(b)) as u16, false);
    check_packed("v_pk_sub_u16", |[a, b, _]| (i32::from(a) - i32::from(b)) as u16, false);
    check_packed("v_pk_add_i16", |[a, b, _]| (i32::from(a as i16) + i32::from(b as i16)) as u16, false);
    check_packed("v_pk_sub_i16", |[a, b, _]| (i32::from(a as i16) - i32::from(b as i16)) as u16, false);
    check_packed("v_pk_mul_lo_u16", |[a, b, _]| (u32::from(a) * u32::from(b)) as u16, false);
    check_packed("v_pk_mad_u16", |[a, b, c]| (u64::from(a) * u64::from(b) + u64::from(c)) as u16, false);
    check_packed("v_pk_mad_i16", |[a, b, c]| (u64::from(a) * u64::from(b) + u64::from(c)) as u16, false);
    check_packed("v_pk_min_u16", |[a, b, _]| if a < b { a } else { b }, false);
    check_packed("v_pk_max_u16", |[a, b, _]| if a > b { a } else { b }, false);
    check_packed("v_pk_min_i16", |[a, b, _]| if (a as i16) < b as i16 { a } else { b }, false);
    check_packed("v_pk_max_i16", |[a, b, _]| if a as i16 > b as i16 { a } else { b }, false);
    check_packed("v_pk_lshlrev_b16", |[n, a, _]| (u32::from(a) * (1 << (n % 16))) as u16, false);
    check_packed("v_pk_lshrrev_b16", |[n, a, _]| (u32::from(a) / (1 << (n % 16))) as u16, false);
    check_packed("v_pk_ashrrev_i16", |[n, a, _]| i32::from(a as i16).div_euclid(1 << (n % 16)) as u16, false);
}

#[test]
fn floats() {
    let float = |name, f: fn([f64; 3]) -> f64| check_packed(name, |v| nearest(f(v.map(value))), true);
    float("v_pk_add_f16", |[a, b, _]| a + b);
    float("v_pk_mul_f16", |[a, b, _]| a * b);
    float("v_pk_fma_f16", |[a, b, c]| a * b + c);
}

#[test]
fn modifiers_select_halves_and_signs() {
    for mask in 0..=0xffu8 {
        let mut inst = inst("v_pk_add_f16");
        (inst.mods.op_sel, inst.mods.op_sel_hi) = (mask & 3, mask >> 2 & 3);
        (inst.mods.neg, inst.mods.neg_hi) = (mask >> 4 & 3, mask >> 6);
        let sources = [[1.0, 2.0], [4.0, 16.0]];
        let pack = |x: [f64; 2]| u64::from(nearest(x[0])) | u64::from(nearest(x[1])) << 16;
        let half = |high: u8, negative: u8| -> f64 {
            (0..2)
                .map(|i| {
                    let x = sources[i][usize::from(high >> i & 1)];
                    if negative >> i & 1 == 1 { -x } else { x }
                })
                .sum()
        };
        let expected = pack([half(mask & 3, mask >> 4 & 3), half(mask >> 2 & 3, mask >> 6)]);
        check_inst(&inst, &[[pack(sources[0]), pack(sources[1]), 0]], |(x, _)| x as u32, |_| expected as u32);
    }
}

#[test]
fn dot_products_of_bytes() {
    for signs in 0..4u8 {
        let mut inst = inst("v_dot4_i32_iu8");
        inst.mods.neg = signs;
        check_inst(
            &inst,
            &inputs_u32(),
            |(x, _)| x as u32,
            |[a, b, c]| {
                let byte = |x: u64, i: usize, signed: bool| {
                    let byte = (x as u32).to_le_bytes()[i];
                    if signed { i64::from(byte as i8) } else { i64::from(byte) }
                };
                let sum: i64 = (0..4).map(|i| byte(a, i, signs & 1 != 0) * byte(b, i, signs & 2 != 0)).sum();
                (sum + i64::from(c as u32)) as u32
            },
        );
        let mut inst = super::inst("v_dot8_i32_iu4");
        inst.mods.neg = signs;
        check_inst(
            &inst,
            &inputs_u32(),
            |(x, _)| x as u32,
            |[a, b, c]| {
                let nibble = |x: u64, i: u32, signed: bool| {
                    let nibble = (x >> (4 * i) & 15) as i64;
                    if signed && nibble > 7 { nibble - 16 } else { nibble }
                };
                let sum: i64 =
                    (0..8).map(|i| nibble(a, i, signs & 1 != 0) * nibble(b, i, signs & 2 != 0)).sum();
                (sum + i64::from(c as u32)) as u32
            },
        );
    }
    check32("v_dot4_u32_u8", &inputs_u32(), |[a, b, c]| {
        (a.to_le_bytes().iter().zip(b.to_le_bytes()).map(|(a, b)| u64::from(*a) * u64::from(b)).sum::<u64>()
            + u64::from(c)) as u32
    });
}

#[test]
fn dot_products_of_halves() {
    let inputs: Vec<_> = inputs_u32().into_iter().map(|v| v.map(|x| x & 0x83ff_83ff | 0x3c00_3c00)).collect();
    check_inst(
        &inst("v_dot2_f32_f16"),
        &inputs,
        |(x, _)| f32::from_bits(x as u32),
        |[a, b, c]| {
            let product = |i: usize| value(halves(a)[i]) * value(halves(b)[i]);
            let first = (product(0) + f64::from(f32::from_bits(c as u32))) as f32;
            (product(1) + f64::from(first)) as f32
        },
    );
}

#[test]
fn mixed_precision() {
    for chosen in 0..64u8 {
        for name in ["v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"] {
            let mut inst = inst(name);
            (inst.mods.op_sel, inst.mods.op_sel_hi) = (chosen & 7, chosen >> 3);
            (inst.mods.neg, inst.mods.neg_hi) = (2, 4);
            let inputs: Vec<_> = half::inputs()
                .into_iter()
                .step_by(211)
                .map(|v| v.map(|x| x << 16 | x >> 3 & 0x7fff))
                .collect();
            let same = |bits: u32| match name {
                "v_fma_mix_f32" => canonical_nan32(bits),
                "v_fma_mixlo_f16" => bits & 0xffff_0000 | u32::from(canonical_nan(u64::from(bits & 0xffff))),
                _ => bits & 0xffff | u32::from(canonical_nan(u64::from(bits >> 16))) << 16,
            };
            check_inst(
                &inst,
                &inputs,
                |(x, _)| same(x as u32),
                |v| {
                    let mut i = 0;
                    let [a, b, c] = v.map(|bits| {
                        let part = halves(bits)[usize::from(chosen >> i & 1)];
                        let wide = if chosen >> (3 + i) & 1 == 1 {
                            value(part) as f32
                        } else {
                            f32::from_bits(bits as u32)
                        };
                        i += 1;
                        wide
                    });
                    let sum = a.mul_add(-b, c.abs());
                    let half = u32::from(nearest(sum.into()));
                    same(match name {
                        "v_fma_mix_f32" => sum.to_bits(),
                        "v_fma_mixlo_f16" => 0xdead_0000 | half,
                        _ => half << 16 | 0xbeef,
                    })
                },
            );
        }
    }
}
