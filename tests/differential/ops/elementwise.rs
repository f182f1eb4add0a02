//! Elementwise operations.
use candle_core::{DType, Device, Result, Tensor};

use super::{Op, Plan};
use crate::case::Case;
use crate::compare::{Bound, Compare};
use crate::strategy::{Choices, DTYPES};
use crate::values::Domain;

pub fn ops() -> Vec<Op> {
    let mut ops = unary();
    ops.extend(parametrised());
    ops.extend(DTYPES.map(|to| {
        let run = move |_: &Case, t: &[Tensor]| match (t[0].device(), t[0].dtype(), to) {
            (Device::Cpu, DType::F64, DType::F16 | DType::BF16) => with_sticky_bit(&t[0])?.to_dtype(to),
            _ => t[0].to_dtype(to),
        };
        Op::new(format!("to_dtype/{}", to.as_str()), "x=3x4", one, run)
    }));
    ops.extend(binary());
    ops.extend(comparisons());
    ops.extend(["u8", "u32", "i16", "i32", "i64", "f32"].map(where_cond));
    ops
}

fn one(c: &mut Choices) -> Plan {
    let dims = c.shape(0, 4);
    Plan::of([c.operand("x", &dims)])
}

/// Sets the lowest bit that survives if the low half of an f64 is not 0. The CPU device drops the low half
/// before it rounds to 16 bits, and would otherwise see ties that are none.
fn with_sticky_bit(t: &Tensor) -> Result<Tensor> {
    let sticky = |x: f64| {
        let bits = x.to_bits();
        f64::from_bits(if bits as u32 == 0 { bits } else { bits | 1 << 32 })
    };
    let values = t.force_contiguous()?.flatten_all()?.to_vec1::<f64>()?.into_iter().map(sticky).collect();
    Tensor::from_vec(values, t.shape(), &Device::Cpu)
}

fn unary() -> Vec<Op> {
    type Method = fn(&Tensor) -> Result<Tensor>;
    // Library functions are correct to 1 or 2 ulps in f32, and then rounded.
    let library = || Compare::Close(Bound::ulps(2.0));
    // A few operations, each rounded to the tensor's dtype.
    let composite = || Compare::Close(Bound::ulps(4.0).underflowing());
    // 1 + tanh and 1 + erf suffer from cancellation: their error is relative to x.
    let cancelling =
        || Compare::Close(Bound::ulps(4.0).underflowing().stepwise().plus(4.0, |_, t| t[0].abs()));
    let table: [(&str, Method, Compare); 19] = [
        ("abs", Tensor::abs, Compare::Bits),
        ("neg", Tensor::neg, Compare::Bits),
        ("sign", Tensor::sign, Compare::Values),
        ("floor", Tensor::floor, Compare::Values),
        ("ceil", Tensor::ceil, Compare::Values),
        ("round", Tensor::round, Compare::Values),
        ("relu", Tensor::relu, Compare::Values),
        ("sqr", Tensor::sqr, Compare::Close(Bound::ulps(0.5))),
        ("sqrt", Tensor::sqrt, Compare::Close(Bound::ulps(0.5))),
        ("recip", Tensor::recip, Compare::Close(Bound::ulps(1.0))),
        ("exp", Tensor::exp, library()),
        ("log", Tensor::log, library()),
        ("sin", Tensor::sin, library()),
        ("cos", Tensor::cos, library()),
        ("tanh", Tensor::tanh, library()),
        ("erf", Tensor::erf, library()),
        ("silu", Tensor::silu, composite()),
        ("gelu", Tensor::gelu, cancelling()),
        ("gelu_erf", Tensor::gelu_erf, cancelling()),
    ];
    table
        .into_iter()
        .map(|(name, method, compare)| {
            Op::new(name, "x=3x4", one, move |_, t| method(&t[0])).compared(compare)
        })
        .collect()
}

fn parametrised() -> Vec<Op> {
    vec![
        Op::new(
            "affine",
            "mul=[2] add=[1] x=3x4",
            |c| {
                let (mul, add) =
                    (c.one_of(&[2.0, 1.0, 0.0, -1.5, 3.25, 0.1]), c.one_of(&[0.0, 1.0, -2.0, 0.3]));
                one(c).param("mul", &[mul]).param("add", &[add])
            },
            |case, t| t[0].affine(case.number("mul"), case.number("add")),
        )
        // mul, add, the product and the sum are each rounded to the dtype.
        .within(
            Bound::ulps(1.0)
                .stepwise()
                .plus(2.0, |case, t| t[0].abs()?.affine(case.number("mul").abs(), case.number("add").abs())),
        )
        .on(|_, _| Domain::Within(100.0)),
        Op::new(
            "clamp",
            "limits=[-1,2] x=3x4",
            |c| {
                let limits = c.one_of(&[[-1.0, 2.0], [0.0, f64::INFINITY], [3.0, 1.0], [f64::NAN, 100.0]]);
                one(c).param("limits", &limits)
            },
            |case, t| t[0].clamp(case.numbers("limits")[0], case.numbers("limits")[1]),
        ),
        Op::new(
            "powf",
            "e=[2.5] x=3x4",
            |c| {
                let e = c.one_of(&[2.0, 1.0, 0.0, 0.5, -1.0, 3.0, 2.5, -0.5]);
                one(c).param("e", &[e])
            },
            |case, t| t[0].powf(case.number("e")),
        )
        .within(Bound::ulps(4.0)),
        Op::new(
            "elu",
            "alpha=[0.5] x=3x4",
            |c| {
                let alpha = c.one_of(&[1.0, 0.5, 2.0, -1.0]);
                one(c).param("alpha", &[alpha])
            },
            |case, t| t[0].elu(case.number("alpha")),
        )
        // exp(x) - 1 suffers from cancellation: its error is relative to alpha.
        .within(
            Bound::ulps(4.0)
                .stepwise()
                .plus(4.0, |case, t| t[0].abs()?.affine(0.0, case.number("alpha").abs())),
        ),
    ]
}

/// Generates two operands, usually with the same dims.
fn two(c: &mut Choices) -> Plan {
    let dims = c.shape(0, 4);
    let lhs = c.operand("lhs", &dims);
    let rhs = if c.seldom(32) { c.shape(0, 3) } else { dims };
    Plan::of([lhs, c.operand("rhs", &rhs)])
}

fn binary() -> Vec<Op> {
    type Method = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let table: [(&str, Method, Compare); 6] = [
        ("add", Tensor::add, Compare::Close(Bound::ulps(0.5))),
        ("sub", Tensor::sub, Compare::Close(Bound::ulps(0.5))),
        ("mul", Tensor::mul, Compare::Close(Bound::ulps(0.5))),
        ("div", Tensor::div, Compare::Close(Bound::ulps(1.0))),
        ("minimum", |a, b| a.minimum(b), Compare::Bits),
        ("maximum", |a, b| a.maximum(b), Compare::Bits),
    ];
    let domain = |case: &Case, operand| match (case.op.as_str(), operand) {
        ("div", 1) if case.dtype.is_int() => Domain::Divisor,
        _ => Domain::Any,
    };
    table
        .into_iter()
        .map(|(name, method, compare)| {
            let op = Op::new(name, "lhs=3x4 rhs=3x4", two, move |_, t| method(&t[0], &t[1]));
            op.compared(compare).on(domain)
        })
        .collect()
}

fn comparisons() -> Vec<Op> {
    type Method = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let table: [(&str, Method); 6] = [
        ("eq", |a, b| a.eq(b)),
        ("ne", |a, b| a.ne(b)),
        ("lt", |a, b| a.lt(b)),
        ("le", |a, b| a.le(b)),
        ("gt", |a, b| a.gt(b)),
        ("ge", |a, b| a.ge(b)),
    ];
    table
        .into_iter()
        .map(|(name, method)| Op::new(name, "lhs=3x4 rhs=3x4", two, move |_, t| method(&t[0], &t[1])))
        .collect()
}

fn where_cond(mask: &str) -> Op {
    let dtype = mask.parse().expect("the table's dtype");
    Op::new(
        format!("where_cond/{mask}"),
        format!("mask=3x4@{mask} yes=3x4 no=3x4"),
        move |c| {
            let dims = c.shape(0, 4);
            let mask = c.operand("mask", &dims).with_dtype(dtype);
            let yes = c.operand("yes", &dims);
            let no = if c.seldom(32) { c.shape(0, 3) } else { dims };
            Plan::of([mask, yes, c.operand("no", &no)])
        },
        |_, t| t[0].where_cond(&t[1], &t[2]),
    )
    .on(|_, operand| if operand == 0 { Domain::Within(1.0) } else { Domain::Any })
}
