//! Products fused with norm, bias, gate and residual, with float weights and weights of every block format.
use candle_core::quantized::GgmlDType;
use candle_core::quantized::rocm::block_types;
use candle_core::rocm::{FusedProduct, GateActivation, ProductWeight};
use candle_core::{D, DType, Result, Tensor};

use super::quantized::{blocks, half_steps, values};
use super::{Calls, Launches, Op, Plan};
use crate::case::{Case, Operand};
use crate::compare::Bound;
use crate::strategy::Choices;
use crate::values::{Domain, roundoff};

const EPS: f32 = 1e-5;
/// Places of the operands.
const X: usize = 0;
const W: usize = 1;
const NORM: usize = 2;
const BIAS: usize = 3;
const RESIDUAL: usize = 4;

pub fn ops() -> Vec<Op> {
    let kinds = block_types().map(|(kind, _)| Some(kind));
    std::iter::once(None).chain(kinds).map(fused_product).collect()
}

/// Weights of one format, or floats of the dtype of the case.
fn fused_product(kind: Option<GgmlDType>) -> Op {
    let (name, k, dtype) = match kind {
        None => ("fused_product".to_string(), 16, ""),
        Some(kind) => (format!("quantized_fused_product/{kind:?}").to_lowercase(), 256, "@f32"),
    };
    Op::new(
        name,
        format!("parts=[1,1,1,1] x=1x{k} w=6x{k}{dtype} norm={k} bias=6 residual=1x3"),
        move |c| plan(c, kind),
        move |case, t| {
            let quantized;
            let weight = match kind {
                None => ProductWeight::Float(&t[W]),
                Some(kind) => {
                    quantized = blocks(case, W, &t[W], kind)?;
                    ProductWeight::Quantized(&quantized)
                }
            };
            let parts = Parts::of(case);
            let product = FusedProduct::new(&t[X], weight)
                .bias(parts.bias.then_some(&t[BIAS]))
                .gated(parts.gate)
                .residual(parts.residual.then_some(&t[RESIDUAL]));
            match parts.norm {
                true => product.rms_norm(&t[NORM], EPS).forward(),
                false => product.forward(),
            }
        },
    )
    .with_reference(move |case, t| Ok(formula(case, t, kind)?.0))
    .within(Bound::ulps(2.0).and_steps(move |case, t| Ok(formula(case, t, kind)?.1)))
    .on(|_, _| Domain::Finite(0.5))
    // One launch for one row. Several rows: copies and casts of strided operands, norm, quantization, product, bias,
    // activation, gate, residual and casts.
    .calling(Calls { launches: Launches::AtMost(16), copies: 2 })
    .accepting_more()
}

const GATES: [Option<GateActivation>; 4] =
    [None, Some(GateActivation::Silu), Some(GateActivation::GeluTanh), Some(GateActivation::ClampedSwiglu)];
/// Limit of a clamped gate, as in gpt-oss.
const CLAMPED_LIMIT: f64 = 7.0;

/// Operations around the product.
struct Parts {
    norm: bool,
    bias: bool,
    gate: Option<GateActivation>,
    residual: bool,
}

impl Parts {
    fn of(case: &Case) -> Self {
        let parts = case.sizes("parts");
        Self { norm: parts[0] > 0, bias: parts[1] > 0, gate: GATES[parts[2]], residual: parts[3] > 0 }
    }
}

fn plan(c: &mut Choices, kind: Option<GgmlDType>) -> Plan {
    let k = match kind {
        None => c.one_of(&[8, 16, 1, 3, 32, 40, 72]),
        Some(kind) if kind.block_size() == 256 => 256 * c.between(1, 2),
        // The CPU device panics for an odd number of blocks.
        Some(_) => 32 * c.one_of(&[2, 4, 8, 10]),
    };
    let (rows, half) = (c.one_of(&[1, 2, 3, 5, 17]), c.one_of(&[1, 2, 3, 4]));
    let parts = [c.pick(2), c.pick(2), c.pick(GATES.len()), c.pick(2)];
    let (n, columns) = if parts[2] > 0 { (2 * half, half) } else { (half, half) };
    let weights = Operand::new("w", &[n, k]);
    Plan::of([
        c.mostly_dense("x", &[rows, k]),
        if kind.is_some() { weights.with_dtype(DType::F32) } else { c.mostly_dense("w", &[n, k]) },
        c.mostly_dense("norm", &[k]),
        c.mostly_dense("bias", &[n]),
        c.mostly_dense("residual", &[rows, columns]),
    ])
    .sizes("parts", &parts)
}

/// Returns the product in f64, and a bound of the error other than the rounding of the result.
fn formula(case: &Case, t: &[Tensor], kind: Option<GgmlDType>) -> Result<(Tensor, Tensor)> {
    let parts = Parts::of(case);
    // Separate operations round each intermediate result.
    let u = 4.0 * roundoff(case.dtype).max(roundoff(DType::F32));
    let (x, w) = match kind {
        None => (t[X].clone(), t[W].clone()),
        Some(kind) => (t[X].clone(), values(case, W, &t[W], kind)?),
    };
    let x = match parts.norm {
        true => {
            let scale = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(EPS))?.sqrt()?.recip()?;
            x.broadcast_mul(&scale)?.broadcast_mul(&t[NORM])?
        }
        false => x,
    };
    let (k, rows) = (x.dim(D::Minus1)?, x.dim(0)?);
    let times = |x: &Tensor, w: &Tensor| x.matmul(&w.t()?);
    let largest = w.abs()?.max_keepdim(D::Minus1)?.broadcast_as(w.shape())?.contiguous()?;
    // Sums of scaled bytes and minimums are at most four times the largest weight.
    let magnitude = (times(&x.abs()?, &largest)? * 4.0)?;
    let mut error = (magnitude * (u + (8.0 + k as f64) * roundoff(DType::F32)))?;
    if let Some(kind) = kind {
        let span = if rows > 1 { kind.block_size().max(32) } else { 32 };
        error = (error + (times(&half_steps(&x.contiguous()?, span)?, &w.abs()?)? * (1.0 + u))?)?;
    }
    let mut value = times(&x, &w)?;
    if parts.bias {
        value = value.broadcast_add(&t[BIAS])?;
    }
    error = (error + (value.abs()? * u)?)?;
    if let Some(activation) = parts.gate {
        let half = value.dim(D::Minus1)? / 2;
        let both = |t: &Tensor| -> Result<[Tensor; 2]> {
            Ok([t.narrow(D::Minus1, 0, half)?, t.narrow(D::Minus1, half, half)?])
        };
        let ([gate, up], [gate_error, up_error]) = (both(&value)?, both(&error)?);
        let act = match activation {
            GateActivation::Silu => gate.silu()?,
            GateActivation::GeluTanh => gate.gelu()?,
            GateActivation::ClampedSwiglu => {
                let gate = gate.minimum(CLAMPED_LIMIT)?;
                (&gate / ((&gate * -1.702)?.exp()? + 1.0)?)?
            }
        };
        let up = match activation {
            GateActivation::ClampedSwiglu => (up.clamp(-CLAMPED_LIMIT, CLAMPED_LIMIT)? + 1.0)?,
            GateActivation::Silu | GateActivation::GeluTanh => up,
        };
        let up_error = (up_error + (up.abs()? * u)?)?;
        // The slope of all activations is below 1.2. GELU is the difference of numbers as large as its argument.
        let act_error = ((gate_error * 1.2)? + (gate.abs()? * u)?)?;
        value = (&act * &up)?;
        error = ((&act_error * up.abs()?)? + (up_error * (act.abs()? + act_error)?)?)?;
        error = (error + (value.abs()? * u)?)?;
    }
    if parts.residual {
        value = (value + &t[RESIDUAL])?;
        error = (error + (value.abs()? * u)?)?;
    }
    // Products of small numbers lose bits below the smallest normal number of f16.
    let floor = if case.dtype == DType::F16 { 2f64.powi(-20) } else { 1e-30 };
    Ok((value, (error + floor)?))
}
