//! Top-k, top-p and min-p as thresholds on scaled logits.
use candle_core::{DType, Result, Tensor};

use super::cumulative::{Crossing, Cumulative};

/// Maximum row width that CUDA sorts in shared memory.
const MAX_CUDA_SORT_WIDTH: usize = 8192;
/// Logits below this have an f32 exponential of 0.
const ZERO_WEIGHT_LOGIT: f32 = -104.0;
/// Number of bisection steps. The remaining interval is below the resolution of f32 near 1.
const BISECTION_STEPS: usize = 32;

/// Truncation parameters of all rows, each f32 (rows, 1).
pub(super) struct Thresholds {
    /// Number of tokens to keep, from 1 to the size of the vocabulary.
    pub(super) top_k: Option<Tensor>,
    /// Fraction of the weight to keep, and an offset of the threshold: 0, or negative infinity to keep all.
    pub(super) top_p: Option<(Tensor, Tensor)>,
    /// Row indices.
    pub(super) row: Tensor,
}

impl Thresholds {
    /// Returns the smallest value of `scaled` (rows, vocabulary) that is kept, as (rows, 1); `None` keeps
    /// all. `scaled` contains logits with a row maximum of 0. `top_p` applies to what `top_k` keeps. All
    /// values equal to the threshold are kept.
    pub(super) fn threshold(&self, scaled: &Tensor, cumulative: &mut Cumulative) -> Result<Option<Tensor>> {
        if self.top_k.is_none() && self.top_p.is_none() {
            return Ok(None);
        }
        let sorts = !scaled.device().is_cuda() || scaled.dim(1)? <= MAX_CUDA_SORT_WIDTH;
        let threshold = if sorts { self.by_sort(scaled, cumulative) } else { self.by_bisection(scaled) };
        threshold.map(Some)
    }

    fn by_sort(&self, scaled: &Tensor, cumulative: &mut Cumulative) -> Result<Tensor> {
        let (sorted, _) = scaled.sort_last_dim(false)?;
        let top_k_threshold = match &self.top_k {
            Some(k) => Some(sorted.gather(&k.affine(1.0, -1.0)?.to_dtype(DType::U32)?, 1)?),
            None => None,
        };
        let top_p_threshold = match &self.top_p {
            Some((share, open)) => {
                let weights = weights(&sorted, top_k_threshold.as_ref())?;
                let position = cumulative.find(&weights, share, &self.row, Crossing::AtLeast)?;
                Some((sorted.gather(&position.to_dtype(DType::U32)?, 1)? + open)?)
            }
            None => None,
        };
        combine(top_k_threshold, top_p_threshold, scaled)
    }

    fn by_bisection(&self, scaled: &Tensor) -> Result<Tensor> {
        let top_k_threshold = match &self.top_k {
            Some(k) => Some(bisect(scaled, &scaled.ones_like()?, k)?),
            None => None,
        };
        let top_p_threshold = match &self.top_p {
            Some((share, open)) => {
                let weights = weights(scaled, top_k_threshold.as_ref())?;
                let wanted = (weights.sum_keepdim(1)? * share)?;
                Some((bisect(scaled, &weights, &wanted)? + open)?)
            }
            None => None,
        };
        combine(top_k_threshold, top_p_threshold, scaled)
    }
}

/// Returns the exponentials of `scaled`, with 0 for values below `threshold`.
pub(super) fn weights(scaled: &Tensor, threshold: Option<&Tensor>) -> Result<Tensor> {
    let weights = scaled.exp()?;
    match threshold {
        Some(threshold) => weights * scaled.broadcast_ge(threshold)?.to_dtype(DType::F32)?,
        None => Ok(weights),
    }
}

/// Finds the largest threshold for which the `amounts` of all values at or above it sum to at least `wanted`.
fn bisect(scaled: &Tensor, amounts: &Tensor, wanted: &Tensor) -> Result<Tensor> {
    let mut low = (wanted.zeros_like()? + f64::from(ZERO_WEIGHT_LOGIT))?;
    let mut high = wanted.zeros_like()?;
    for _ in 0..BISECTION_STEPS {
        let middle = ((&low + &high)? * 0.5)?;
        let sum = (amounts * scaled.broadcast_ge(&middle)?.to_dtype(DType::F32)?)?.sum_keepdim(1)?;
        let enough = sum.ge(wanted)?;
        low = enough.where_cond(&middle, &low)?;
        high = enough.where_cond(&high, &middle)?;
    }
    Ok(low)
}

fn combine(a: Option<Tensor>, b: Option<Tensor>, scaled: &Tensor) -> Result<Tensor> {
    match (a, b) {
        (Some(a), Some(b)) => a.maximum(&b),
        (Some(threshold), None) | (None, Some(threshold)) => Ok(threshold),
        (None, None) => Tensor::full(f32::NEG_INFINITY, (scaled.dim(0)?, 1), scaled.device()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// The values are far enough apart for bisection to distinguish them.
    #[test]
    fn bisection_and_sorting_keep_the_same_tokens() -> Result<()> {
        let (rows, width) = (6, 500);
        let values = (0..rows * width).map(|i| -((i * 7919 % 5003) as f32) * 0.003);
        let scaled = Tensor::from_iter(values, &Device::Cpu)?.reshape((rows, width))?;
        let scaled = scaled.broadcast_sub(&scaled.max_keepdim(1)?)?;
        let column = |values: [f32; 6]| Tensor::from_slice(&values, (rows, 1), &Device::Cpu);
        let k = column([1.0, 7.0, 500.0, 60.0, 500.0, 3.0])?;
        let none = f32::NEG_INFINITY;
        let p = (column([0.9, 0.5, 0.3, 1.0, 1.0, 0.0])?, column([0.0, 0.0, 0.0, none, none, 0.0])?);
        let row = column([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])?;
        for (top_k, top_p) in [(true, false), (false, true), (true, true)] {
            let cut = Thresholds {
                top_k: top_k.then(|| k.clone()),
                top_p: top_p.then(|| p.clone()),
                row: row.clone(),
            };
            let sorted = weights(&scaled, Some(&cut.by_sort(&scaled, &mut Cumulative::default())?))?;
            let bisected = weights(&scaled, Some(&cut.by_bisection(&scaled)?))?;
            assert_eq!(sorted.to_vec2::<f32>()?, bisected.to_vec2::<f32>()?);
            let stay = sorted.gt(0f32)?.to_dtype(DType::F32)?.sum(1)?.to_vec1::<f32>()?;
            assert!(stay.iter().any(|count| *count < width as f32), "nothing was cut: {stay:?}");
        }
        Ok(())
    }
}
