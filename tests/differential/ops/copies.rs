//! Copies, fills and random numbers.
use candle_core::scalar::Scalar;
use candle_core::{DType, Tensor};

use super::{Calls, Launches, Op, Plan, at_most};
use crate::compare::{self, Compare};
use crate::strategy::Choices;

/// Calls of an operation that is one copy or fill of the whole buffer.
const ONE_COPY: Calls = Calls { launches: Launches::Exactly(0), copies: 1 };

pub fn ops() -> Vec<Op> {
    vec![
        Op::new("copy_strided", "x=3x4:t01", one, |_, t| t[0].force_contiguous()),
        // A dense tensor is copied as a whole buffer.
        Op::new("copy_dense", "x=3x4", dense, |_, t| t[0].force_contiguous())
            .calling(Calls { launches: Launches::AtMost(1), copies: 1 }),
        Op::new("copy", "x=3x4", one, |_, t| t[0].copy()),
        Op::new(
            "cat",
            "dim=[1] x=2x3 y=2x4",
            |c| {
                let dims = c.shape(1, 4);
                let dim = c.pick(dims.len());
                let mut other = dims.clone();
                other[dim] = c.pick(5);
                if c.seldom(32) {
                    other[0] += 1;
                }
                Plan::of([c.operand("x", &dims), c.operand("y", &other)]).sizes("dim", &[dim])
            },
            |case, t| Tensor::cat(t, case.size("dim")),
        )
        // One copy per operand, after the result is cleared.
        .calling(Calls { launches: Launches::AtMost(2), copies: 3 }),
        Op::new("slice_set", "dim=[1] at=[1] x=2x4 src=2x2", slice, |case, t| {
            t[0].slice_set(&t[1], case.size("dim"), case.size("at"))?;
            Ok(t[0].clone())
        }),
        Op::new("slice_scatter", "dim=[1] at=[1] x=2x4 src=2x2", slice, |case, t| {
            t[0].slice_scatter(&t[1], case.size("dim"), case.size("at"))
        })
        .calling(Calls { launches: Launches::AtMost(5), copies: 3 }),
        Op::new(
            "const_set",
            "dim=[1] at=[1] len=[2] transposed=[1] number=[3] x=3x4",
            |c| {
                let dims = c.shape(1, 4);
                let dim = c.pick(dims.len());
                let at = c.pick(dims[dim] + 1);
                let len = dims[dim] - at;
                let (transposed, number) = (c.pick(2), c.one_of(&[0.0, 1.0, 3.0, 100.0]));
                Plan::of([c.mostly_dense("x", &dims)])
                    .sizes("dim", &[dim])
                    .sizes("at", &[at])
                    .sizes("len", &[len])
                    .sizes("transposed", &[transposed])
                    .param("number", &[number])
            },
            |case, t| {
                let part = t[0].narrow(case.size("dim"), case.size("at"), case.size("len"))?;
                let last = part.rank() - 1;
                let part = if case.size("transposed") == 1 { part.transpose(0, last)? } else { part };
                part.const_set(scalar(case.dtype, case.number("number")))?;
                Ok(t[0].clone())
            },
        ),
        Op::new("ones", "x=3x4", one, |_, t| t[0].ones_like()),
        Op::new("zeros", "x=3x4", one, |_, t| t[0].zeros_like()).calling(ONE_COPY),
        Op::new("rand_uniform", "lo=[0] up=[1] x=16x16", random, |case, t| {
            t[0].rand_like(case.number("lo"), case.number("up"))
        })
        .compared(Compare::Is(compare::uniform))
        .calling(at_most(2)),
        Op::new("rand_normal", "lo=[0] up=[1] x=16x16", random, |case, t| {
            t[0].randn_like(case.number("lo"), case.number("up"))
        })
        .compared(Compare::Is(compare::normal))
        .calling(at_most(2)),
    ]
}

fn one(c: &mut Choices) -> Plan {
    let dims = c.shape(0, 4);
    Plan::of([c.operand("x", &dims)])
}

fn dense(c: &mut Choices) -> Plan {
    let dims = c.shape(0, 4);
    Plan::of([c.mostly_dense("x", &dims)])
}

/// Generates the limits of a uniform distribution, or mean and standard deviation of a normal one.
fn random(c: &mut Choices) -> Plan {
    let dims = c.shape(0, 4);
    let (lo, width) = (c.one_of(&[0.0, -1.0, 2.0]), c.one_of(&[1.0, 0.5, 4.0]));
    Plan::of([c.mostly_dense("x", &dims)]).param("lo", &[lo]).param("up", &[lo.max(0.0) + width])
}

fn slice(c: &mut Choices) -> Plan {
    let dims = c.shape(1, 4);
    let dim = c.pick(dims.len());
    let mut part = dims.clone();
    part[dim] = c.pick(dims[dim] + 1);
    let at = if c.seldom(32) { dims[dim] + 1 } else { c.pick(dims[dim] - part[dim] + 1) };
    Plan::of([c.mostly_dense("x", &dims), c.mostly_dense("src", &part)])
        .sizes("dim", &[dim])
        .sizes("at", &[at])
}

/// Converts a number to a scalar of a dtype.
fn scalar(dtype: DType, number: f64) -> Scalar {
    match dtype {
        DType::U8 => Scalar::U8(number as u8),
        DType::U32 => Scalar::U32(number as u32),
        DType::I16 => Scalar::I16(number as i16),
        DType::I32 => Scalar::I32(number as i32),
        DType::I64 => Scalar::I64(number as i64),
        DType::F16 => Scalar::F16(half::f16::from_f64(number)),
        DType::BF16 => Scalar::BF16(half::bf16::from_f64(number)),
        DType::F8E4M3 => Scalar::F8E4M3(float8::F8E4M3::from_f64(number)),
        DType::F32 => Scalar::F32(number as f32),
        _ => Scalar::F64(number),
    }
}
