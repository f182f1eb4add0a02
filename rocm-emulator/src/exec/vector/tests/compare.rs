//! Tests of compares.
use std::cmp::Ordering::{self, Equal, Greater, Less};

use super::*;
use crate::isa::sreg;

/// A relation, and a predicate for the orders of operands that satisfy it.
type Relation<O> = (&'static str, fn(O) -> bool);

const FLOAT: &[Relation<Option<Ordering>>] = &[
    ("f", |_| false),
    ("lt", |o| o == Some(Less)),
    ("eq", |o| o == Some(Equal)),
    ("le", |o| matches!(o, Some(Less | Equal))),
    ("gt", |o| o == Some(Greater)),
    ("lg", |o| matches!(o, Some(Less | Greater))),
    ("ge", |o| matches!(o, Some(Greater | Equal))),
    ("o", |o| o.is_some()),
    ("u", |o| o.is_none()),
    ("nge", |o| matches!(o, None | Some(Less))),
    ("nlg", |o| matches!(o, None | Some(Equal))),
    ("ngt", |o| matches!(o, None | Some(Less | Equal))),
    ("nle", |o| matches!(o, None | Some(Greater))),
    ("neq", |o| o != Some(Equal)),
    ("nlt", |o| matches!(o, None | Some(Greater | Equal))),
    ("t", |_| true),
];

const INTEGER: &[Relation<Ordering>] = &[
    ("f", |_| false),
    ("lt", |o| o == Less),
    ("eq", |o| o == Equal),
    ("le", |o| o != Greater),
    ("gt", |o| o == Greater),
    ("ne", |o| o != Equal),
    ("ge", |o| o != Less),
    ("t", |_| true),
];

fn name(relation: &str, format: &str) -> &'static str {
    Box::leak(format!("v_cmp_{relation}_{format}").into_boxed_str())
}

/// Replaces some pairs by pairs of equal values.
fn pairs(inputs: Vec<[u64; 3]>) -> Vec<[u64; 3]> {
    inputs.into_iter().enumerate().map(|(i, v)| if i % 7 == 0 { [v[0], v[0], v[2]] } else { v }).collect()
}

#[test]
fn floats() {
    for (relation, holds) in FLOAT {
        let check = |format: &str, inputs: Vec<[u64; 3]>, value: fn(u64) -> f64| {
            check_inst(
                &inst(name(relation, format)),
                &pairs(inputs),
                |(_, mask)| mask,
                |[a, b, _]| holds(value(a).partial_cmp(&value(b))),
            );
        };
        check("f32", inputs_f32(), |x| f32::from_bits(x as u32).into());
        check("f64", inputs_f64(), f64::from_bits);
        check("f16", half::inputs(), |x| half::value(x as u16));
    }
}

#[test]
fn integers() {
    for (relation, holds) in INTEGER {
        let check = |format: &str, inputs: Vec<[u64; 3]>, value: fn(u64) -> i128| {
            check_inst(
                &inst(name(relation, format)),
                &pairs(inputs),
                |(_, mask)| mask,
                |[a, b, _]| holds(value(a).cmp(&value(b))),
            );
        };
        check("u16", inputs_u32(), |x| (x as u16).into());
        check("i16", inputs_u32(), |x| (x as i16).into());
        check("u32", inputs_u32(), |x| (x as u32).into());
        check("i32", inputs_u32(), |x| (x as i32).into());
        check("u64", inputs_u64(), |x| x.into());
        check("i64", inputs_u64(), |x| (x as i64).into());
    }
}

#[test]
fn classes() {
    let class = |x: f64, smallest: f64, signalling: bool| {
        let below = x.is_sign_negative();
        match x {
            _ if x.is_nan() => {
                if signalling {
                    0
                } else {
                    1
                }
            }
            _ if x.is_infinite() => {
                if below {
                    2
                } else {
                    9
                }
            }
            _ if x == 0.0 => {
                if below {
                    5
                } else {
                    6
                }
            }
            _ if x.abs() < smallest => {
                if below {
                    4
                } else {
                    7
                }
            }
            _ => {
                if below {
                    3
                } else {
                    8
                }
            }
        }
    };
    let every = |values: Vec<u64>| -> Vec<[u64; 3]> {
        values.into_iter().flat_map(|x| (0..10).map(move |bit| [x, 1 << bit, 0])).collect()
    };
    let singles = every(EDGES_F32.iter().map(|x| u64::from(*x)).collect());
    check_inst(
        &inst("v_cmp_class_f32"),
        &singles,
        |(_, mask)| mask,
        |[a, b, _]| {
            let signalling = a as u32 & 0x40_0000 == 0;
            b >> class(f32::from_bits(a as u32).into(), f32::MIN_POSITIVE.into(), signalling) & 1 == 1
        },
    );
    check_inst(
        &inst("v_cmp_class_f64"),
        &every(EDGES_F64.to_vec()),
        |(_, mask)| mask,
        |[a, b, _]| b >> class(f64::from_bits(a), f64::MIN_POSITIVE, a >> 51 & 1 == 0) & 1 == 1,
    );
    let halves = every((0..0x10000).step_by(5).collect());
    check_inst(
        &inst("v_cmp_class_f16"),
        &halves,
        |(_, mask)| mask,
        |[a, b, _]| b >> class(half::value(a as u16), half::value(0x400), a >> 9 & 1 == 0) & 1 == 1,
    );
}

#[test]
fn inactive_lanes_give_zero_and_cmpx_writes_exec() {
    let mut wave = wave();
    wave.vgpr[2] = Lanes(std::array::from_fn(|lane| lane as u32));
    wave.vgpr[4] = Lanes::splat(8);
    wave.sgpr[126] = 0xff00_ff0f;
    wave.sgpr[MASK as usize] = u32::MAX;
    step(&inst("v_cmp_lt_u32")).run(&mut wave);
    assert_eq!(wave.sgpr[MASK as usize], 0xf);
    step(&inst("v_cmp_ge_u32")).run(&mut wave);
    assert_eq!(wave.sgpr[MASK as usize], 0xff00_ff00);
    let mut narrowing = inst("v_cmpx_gt_u32");
    narrowing.dst = Operand::Scalar(126);
    step(&narrowing).run(&mut wave);
    assert_eq!(wave.sgpr[126], 0xff00_fe00);
    assert_eq!(wave.sgpr[127], 0);
}

#[test]
fn masks_may_be_discarded_but_numbers_need_a_register() {
    let mut wave = wave();
    let vanishing = |name| Inst { dst: Operand::Scalar(sreg::NULL), ..inst(name) };
    step(&vanishing("v_cmp_eq_u32")).run(&mut wave);
    assert_eq!(wave.sgpr[usize::from(sreg::NULL)], 0);
    assert_eq!(wave.sgpr[usize::from(sreg::EXEC_LO)], u32::MAX);
    assert!(prepare::<32>(&vanishing("v_add_f32")).is_none());
}
