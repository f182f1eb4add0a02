//! Attention of Candle's own operations on the CPU device in f64, its gradients in closed form, and what these are off
//! where values are rounded on the way: by so much results may differ. Tests of several crates have this file.
use candle::{DType, Device, Result, Tensor, D};

/// What goes into the scores of q, k and v (batch, heads, positions, width).
pub struct Formula<'a> {
    pub scale: f64,
    pub softcap: Option<f64>,
    /// Of each head.
    pub slopes: &'a [f32],
    /// Whether a query at a position sees a key; the last query is at the last key.
    pub sees: &'a dyn Fn(i64, i64) -> bool,
}

/// The operand for each head of queries.
fn shared(t: &Tensor, heads: usize) -> Result<Tensor> {
    let (b, h, n, d) = t.dims4()?;
    t.unsqueeze(2)?.broadcast_as((b, h, heads / h, n, d))?.reshape((b, heads, n, d))
}

/// The sum over the heads that share an operand.
fn gathered(t: &Tensor, key_heads: usize) -> Result<Tensor> {
    let (b, h, n, d) = t.dims4()?;
    t.reshape((b, key_heads, h / key_heads, n, d))?.sum(2)
}

fn turned(t: &Tensor) -> Result<Tensor> {
    t.transpose(2, 3)?.contiguous()
}

impl Formula<'_> {
    fn products(&self, q: &Tensor, k: &Tensor) -> Result<Tensor> {
        q.matmul(&turned(&shared(k, q.dim(1)?)?)?)? * self.scale
    }

    /// The weights, and the scores before slopes and mask.
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
        // A row of which nothing is seen has no weights.
        let highest = sums.max_keepdim(D::Minus1)?.detach().maximum(-1e300)?;
        let weights = sums.broadcast_sub(&highest)?.exp()?;
        let total = weights.sum_keepdim(D::Minus1)?.maximum(1e-30)?;
        Ok((weights.broadcast_div(&total)?, scores))
    }

    /// The result, as a graph that Candle differentiates.
    pub fn result(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        self.weights(self.products(q, k)?)?.0.matmul(&shared(v, q.dim(1)?)?)
    }

    /// The result and the gradients of q, k and v, rounded wherever kernels of a dtype round.
    pub fn rounded(&self, [q, k, v]: [&Tensor; 3], grad: &Tensor, dtype: DType) -> Result<[Tensor; 4]> {
        let round = |t: Tensor| match dtype {
            DType::F32 => in_f32(t),
            _ => t.to_dtype(dtype)?.to_dtype(DType::F64),
        };
        // Matrix units of gfx90a take operands of f16 below its least normal number for zero.
        let operand = |t: Tensor| match dtype {
            DType::F16 => &t * t.abs()?.ge(2f64.powi(-14))?.to_dtype(DType::F64)?,
            _ => Ok(t),
        };
        let (heads, key_heads) = (q.dim(1)?, k.dim(1)?);
        let (all_keys, all_values) = (shared(k, heads)?, shared(v, heads)?);
        let (exact, scores) = self.weights(in_f32(self.products(q, k)?)?)?;
        let weights = round(exact.clone())?;
        let result = round(weights.matmul(&all_values)?)?;
        // Of what is subtracted one part is rounded: both alike would cancel, as sums in different orders do not.
        let mean = in_f32((&result * grad)?.sum_keepdim(D::Minus1)?)?;
        let mut shares = (exact
            * operand(grad.clone())?.matmul(&turned(&operand(all_values)?)?)?.broadcast_sub(&mean)?)?;
        if let Some(cap) = self.softcap {
            shares = (shares * (1.0 - (scores / cap)?.sqr()?)?)?;
        }
        let shares = round(shares)?;
        let of_keys = gathered(&turned(&shares)?.matmul(q)?, key_heads)?;
        let of_values = gathered(&turned(&weights)?.matmul(grad)?, key_heads)?;
        Ok([
            result,
            round((shares.matmul(&all_keys)? * self.scale)?)?,
            round((of_keys * self.scale)?)?,
            round(of_values)?,
        ])
    }
}

/// Rounds to fewer bits than f32 has: as far off as sums of hundreds of products in it are.
fn in_f32(t: Tensor) -> Result<Tensor> {
    let far = (&t * ((1u64 << (f64::MANTISSA_DIGITS - F32_BITS)) as f64 + 1.0))?;
    &far - (&far - &t)?
}
const F32_BITS: u32 = 20;

/// Holds a result against what is right: its largest error is at most 1.5 times that of the rounded formula, and half a unit
/// of the largest number more, as a single element may be rounded twice.
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

/// All elements.
pub fn wide(t: &Tensor) -> Result<Vec<f64>> {
    t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}
