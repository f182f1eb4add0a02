//! Reference attention in f64 with Candle's operations on the CPU device, and its gradients. It also computes both with the
//! intermediate roundings of the kernels, which gives the tolerance. Tests of several crates include this file.
use candle::{DType, Device, Result, Tensor, D};

/// Parameters of attention for q, k and v of shape (batch, heads, positions, width).
pub struct Formula<'a> {
    pub scale: f64,
    pub softcap: Option<f64>,
    /// ALiBi slope of each head.
    pub slopes: &'a [f32],
    /// Score of a further key of each head, whose value is zero; empty if there is none.
    pub sinks: &'a [f32],
    /// Returns true if a query at a position attends to a key; the last query is at the last key.
    pub sees: &'a dyn Fn(i64, i64) -> bool,
}

/// Repeats an operand for each query head that shares it.
fn repeat_heads(t: &Tensor, heads: usize) -> Result<Tensor> {
    let (b, h, n, d) = t.dims4()?;
    t.unsqueeze(2)?.broadcast_as((b, h, heads / h, n, d))?.reshape((b, heads, n, d))
}

/// Sums over the query heads that share an operand.
fn sum_shared_heads(t: &Tensor, key_heads: usize) -> Result<Tensor> {
    let (b, h, n, d) = t.dims4()?;
    t.reshape((b, key_heads, h / key_heads, n, d))?.sum(2)
}

fn transposed(t: &Tensor) -> Result<Tensor> {
    t.transpose(2, 3)?.contiguous()
}

impl Formula<'_> {
    fn products(&self, q: &Tensor, k: &Tensor) -> Result<Tensor> {
        q.matmul(&transposed(&repeat_heads(k, q.dim(1)?)?)?)? * self.scale
    }

    /// Returns the weights, and the scores before slopes and mask.
    fn weights(&self, mut scores: Tensor) -> Result<(Tensor, Tensor)> {
        let (_, heads, queries, keys) = scores.dims4()?;
        if let Some(cap) = self.softcap {
            scores = ((scores / cap)?.tanh()? * cap)?;
        }
        let mut summands = Vec::new();
        for slope in self.slopes {
            for position in (0..queries).map(|query| (query + keys) as i64 - queries as i64) {
                summands.extend((0..keys as i64).map(|key| match (self.sees)(position, key) {
                    true => -f64::from(*slope) * (position - key).abs() as f64,
                    false => f64::NEG_INFINITY,
                }));
            }
        }
        let summands = Tensor::from_vec(summands, (1, heads, queries, keys), &Device::Cpu)?;
        let sums = scores.broadcast_add(&summands)?;
        // The weights of a row without keys are zero.
        let highest = sums.max_keepdim(D::Minus1)?.detach().maximum(-1e300)?;
        let weights = sums.broadcast_sub(&highest)?.exp()?;
        let mut total = weights.sum_keepdim(D::Minus1)?.maximum(1e-30)?;
        if !self.sinks.is_empty() {
            let sinks =
                Tensor::new(self.sinks, &Device::Cpu)?.to_dtype(DType::F64)?.reshape((1, heads, 1, 1))?;
            total = (total + sinks.broadcast_sub(&highest)?.exp()?)?;
        }
        Ok((weights.broadcast_div(&total)?, scores))
    }

    /// Computes the result with operations that Candle can differentiate.
    pub fn result(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        self.weights(self.products(q, k)?)?.0.matmul(&repeat_heads(v, q.dim(1)?)?)
    }

    /// Computes the result and the gradients of q, k and v with the roundings of the kernels for a dtype.
    pub fn rounded(&self, [q, k, v]: [&Tensor; 3], grad: &Tensor, dtype: DType) -> Result<[Tensor; 4]> {
        let round = |t: Tensor| match dtype {
            DType::F32 => in_f32(t),
            _ => t.to_dtype(dtype)?.to_dtype(DType::F64),
        };
        // Matrix units of gfx90a flush subnormal f16 operands to zero.
        let operand = |t: Tensor| match dtype {
            DType::F16 => &t * t.abs()?.ge(2f64.powi(-14))?.to_dtype(DType::F64)?,
            _ => Ok(t),
        };
        let (heads, key_heads) = (q.dim(1)?, k.dim(1)?);
        let (all_keys, all_values) = (repeat_heads(k, heads)?, repeat_heads(v, heads)?);
        let (exact, scores) = self.weights(in_f32(self.products(q, k)?)?)?;
        let weights = round(exact.clone())?;
        let result = round(weights.matmul(&all_values)?)?;
        // Only one operand of the subtraction is rounded. If both were, their errors would cancel, unlike in the kernels.
        let mean = in_f32((&result * grad)?.sum_keepdim(D::Minus1)?)?;
        let mut shares = (exact
            * operand(grad.clone())?.matmul(&transposed(&operand(all_values)?)?)?.broadcast_sub(&mean)?)?;
        if let Some(cap) = self.softcap {
            shares = (shares * (1.0 - (scores / cap)?.sqr()?)?)?;
        }
        let shares = round(shares)?;
        let of_keys = sum_shared_heads(&transposed(&shares)?.matmul(q)?, key_heads)?;
        let of_values = sum_shared_heads(&transposed(&weights)?.matmul(grad)?, key_heads)?;
        Ok([
            result,
            round((shares.matmul(&all_keys)? * self.scale)?)?,
            round((of_keys * self.scale)?)?,
            round(of_values)?,
        ])
    }
}

/// Rounds to fewer bits than f32 has, which gives the error of a sum of hundreds of f32 products.
fn in_f32(t: Tensor) -> Result<Tensor> {
    let far = (&t * ((1u64 << (f64::MANTISSA_DIGITS - F32_BITS)) as f64 + 1.0))?;
    &far - (&far - &t)?
}
const F32_BITS: u32 = 20;

/// Asserts that the largest error of a result is at most 1.5 times that of the rounded formula, plus half a unit in the last
/// place of the largest number, since an element may be rounded twice.
#[track_caller]
pub fn assert_close(got: &[f64], right: &[f64], rounded: &[f64], dtype: DType, what: &str) -> f64 {
    assert_eq!((got.len(), rounded.len()), (right.len(), right.len()), "{what}");
    let most = |of: &[f64]| {
        let errors = of
            .iter()
            .zip(right)
            .map(|(x, right)| if x.is_finite() { (x - right).abs() } else { f64::INFINITY });
        errors.fold(0.0, f64::max)
    };
    let largest = right.iter().fold(0f64, |most, x| most.max(x.abs()));
    let bits = match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => F32_BITS as i32,
    };
    let half_unit = if largest > 0.0 { 2f64.powi(largest.log2().floor() as i32 - bits) } else { 0.0 };
    let (error, plain) = (most(got), most(rounded));
    let allowed = 1.5 * plain + half_unit;
    assert!(
        error <= allowed,
        "{what}: off by {error:.2e}, the rounded formula by {plain:.2e}, of {largest:.2e}"
    );
    if allowed > 0.0 {
        error / allowed
    } else {
        0.0
    }
}

/// Returns all elements as f64.
pub fn wide(t: &Tensor) -> Result<Vec<f64>> {
    t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}
