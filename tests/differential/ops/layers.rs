//! Fused operations of candle-nn.
use candle_core::{D, Result, Tensor};
use candle_nn::{ops, rotary_emb};

use super::{Op, Plan, summable};
use crate::case::Case;
use crate::compare::{Bound, Compare, sequential_roundings};
use crate::strategy::Choices;
use crate::values::Domain;

pub fn ops() -> Vec<Op> {
    let mut ops =
        vec![
            Op::new(
                "sigmoid",
                "x=3x4",
                |c| {
                    let dims = c.shape(0, 4);
                    Plan::of([c.operand("x", &dims)])
                },
                |_, t| ops::sigmoid(&t[0]),
            )
            .within(Bound::ulps(4.0).underflowing()),
            Op::new("softmax_last_dim", "x=3x5", |c| rows(c, &[]), |_, t| ops::softmax_last_dim(&t[0]))
                .with_reference(|_, t| ops::softmax(&t[0], D::Minus1))
                // x - max is up to 16 and rounded to the dtype, as in upstream's kernel: an error of 8u in
                // the element and again in the sum; exp and the quotient are rounded, too.
                .within(Bound::ulps(10.0).underflowing()),
            Op::new(
                "rms_norm",
                "eps=[0.00001] x=3x5 alpha=5",
                |c| rows(c, &["alpha"]),
                |case, t| ops::rms_norm(&t[0], &t[1], case.number("eps") as f32),
            )
            .with_reference(|case, t| ops::rms_norm_slow(&t[0], &t[1], case.number("eps") as f32))
            .within(Bound::ulps(2.0).in_f32().underflowing().sum_with(columns, |case, t| {
                ops::rms_norm_slow(&t[0], &t[1], case.number("eps") as f32)?.abs()
            })),
            Op::new(
                "layer_norm",
                "eps=[0.00001] x=3x5 alpha=5 beta=5",
                |c| rows(c, &["alpha", "beta"]),
                |case, t| ops::layer_norm(&t[0], &t[1], &t[2], case.number("eps") as f32),
            )
            .with_reference(|case, t| ops::layer_norm_slow(&t[0], &t[1], &t[2], case.number("eps") as f32))
            .within(Bound::ulps(2.0).in_f32().underflowing().sum_with(columns, layer_norm_scale)),
        ];
    type Rope = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
    let ropes: [(&str, Rope, Rope, bool); 3] = [
        ("rope", rotary_emb::rope, rotary_emb::rope_slow, false),
        ("rope_i", rotary_emb::rope_i, rotary_emb::rope_i_slow, false),
        ("rope_thd", rotary_emb::rope_thd, rope_thd_slow, true),
    ];
    ops.extend(ropes.map(|(name, fused, slow, thd)| {
        // Positions are the third dim; in rope_thd the second.
        let example = if thd { "x=2x3x2x4 cos=3x2 sin=3x2" } else { "x=2x2x3x4 cos=3x2 sin=3x2" };
        let op = Op::new(name, example, move |c| rotary(c, thd), move |_, t| fused(&t[0], &t[1], &t[2]));
        op.with_reference(move |_, t| slow(&t[0], &t[1], &t[2]))
            // x * cos - y * sin, where all four values are up to 8.
            .compared(Compare::Close(
                Bound::ulps(1.0).stepwise().plus(2.0, |_, t| t[0].abs()?.affine(0.0, 128.0)),
            ))
    }));
    ops.into_iter().map(|op| if op.name == "sigmoid" { op } else { op.on(domain) }).collect()
}

/// Returns the domain of an operand. The vectors are finite: infinity times a quotient that underflows in
/// f32, but not in f64, would be NaN on one device only.
fn domain(case: &Case, operand: usize) -> Domain {
    match (summable(case.dtype), operand) {
        (Domain::Within(limit), 1..) => Domain::Finite(limit),
        (domain, _) => domain,
    }
}

/// Generates a tensor and vectors of the length of its rows.
fn rows(c: &mut Choices, vectors: &[&str]) -> Plan {
    let dims = c.shape(1, 4);
    let columns = dims[dims.len() - 1] + usize::from(c.seldom(32));
    let mut plan = Plan::of([c.mostly_dense("x", &dims)]);
    plan.operands.extend(vectors.iter().map(|name| c.mostly_dense(name, &[columns])));
    if vectors.is_empty() { plan } else { plan.param("eps", &[c.one_of(&[1e-5, 1e-2])]) }
}

fn columns(case: &Case) -> f64 {
    sequential_roundings(case.dtype, *case.dims(0).last().unwrap_or(&1))
}

/// Returns (|x| + mean |x|) / std * |alpha| + |beta|, increased if the variance is small relative to the mean
/// of the squares.
fn layer_norm_scale(case: &Case, t: &[Tensor]) -> Result<Tensor> {
    let x = &t[0];
    let mean = x.mean_keepdim(D::Minus1)?;
    let squares = x.sqr()?.mean_keepdim(D::Minus1)?;
    let variance = x.broadcast_sub(&mean)?.sqr()?.mean_keepdim(D::Minus1)?;
    let variance = (variance + case.number("eps"))?;
    let sizes = x.abs()?.broadcast_add(&x.abs()?.mean_keepdim(D::Minus1)?)?;
    let cancellation = ((squares / &variance)? + 1.0)?;
    sizes
        .broadcast_div(&variance.sqrt()?)?
        .broadcast_mul(&cancellation)?
        .broadcast_mul(&t[1].abs()?)?
        .broadcast_add(&t[2].abs()?)
}

fn rotary(c: &mut Choices, thd: bool) -> Plan {
    let (batch, heads, positions, half) =
        (c.between(1, 2), c.between(1, 3), c.between(1, 5), c.between(1, 9));
    let dims = if thd { [batch, positions, heads, 2 * half] } else { [batch, heads, positions, 2 * half] };
    // The tables may be longer than the sequence.
    let table = [positions + c.pick(3), half + usize::from(c.seldom(32))];
    Plan::of([c.mostly_dense("x", &dims), c.mostly_dense("cos", &table), c.mostly_dense("sin", &table)])
}

fn rope_thd_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotary_emb::rope_slow(&x.transpose(1, 2)?.contiguous()?, cos, sin)?.transpose(1, 2)
}
