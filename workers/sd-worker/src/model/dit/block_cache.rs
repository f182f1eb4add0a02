//! First-block cache: if the first block changes its input almost as in an earlier step, the other blocks are
//! skipped, and the change that they computed in that step is reused (first-block cache of ParaAttention and
//! diffusers, after TeaCache, Liu et al. 2024).
use candle_core::{DType, Result, Tensor};

/// Cache of one batch, from step to step. All rows of the batch are skipped together.
#[derive(Debug)]
pub struct BlockCache {
    threshold: f64,
    kept: Option<Kept>,
    /// Number of blocks that were computed.
    pub computed: usize,
    /// Number of blocks that were skipped.
    pub skipped: usize,
}

/// Changes of the image's tokens in the last step that was computed: (batch, tokens, width).
#[derive(Debug)]
struct Kept {
    by_first: Tensor,
    by_others: Tensor,
}

impl BlockCache {
    /// Creates a cache. Blocks are skipped if the mean absolute difference of the first block's change, divided by the mean
    /// absolute value of the earlier one, is at most `threshold`.
    pub fn new(threshold: f64) -> Self {
        Self { threshold, kept: None, computed: 0, skipped: 0 }
    }

    /// Returns the image's tokens after the last of `blocks` blocks if they can be reused. `before` and `after` are the tokens
    /// before and after the first block.
    pub(super) fn reuse(&mut self, before: &Tensor, after: &Tensor, blocks: usize) -> Result<Option<Tensor>> {
        self.computed += 1;
        let Some(kept) = self.kept.as_ref().filter(|kept| kept.by_first.dims() == after.dims()) else {
            return Ok(None);
        };
        let by_first = (after - before)?;
        let mean = |x: &Tensor| x.to_dtype(DType::F32)?.abs()?.mean_all()?.to_scalar::<f32>();
        let (change, before) = (mean(&(&by_first - &kept.by_first)?)?, mean(&kept.by_first)?);
        // A ratio that is not a number skips nothing.
        if f64::from(change / before) > self.threshold || !(change / before).is_finite() {
            return Ok(None);
        }
        self.skipped += blocks.saturating_sub(1);
        (after + &kept.by_others).map(Some)
    }

    /// Keeps the changes of a step that was computed. `last` are the image's tokens after the last of `blocks` blocks.
    pub(super) fn keep(
        &mut self,
        before: &Tensor,
        after: &Tensor,
        last: &Tensor,
        blocks: usize,
    ) -> Result<()> {
        self.computed += blocks.saturating_sub(1);
        self.kept = Some(Kept { by_first: (after - before)?, by_others: (last - after)? });
        Ok(())
    }

    /// Returns the share of the blocks that were skipped.
    pub fn skipped_share(&self) -> f64 {
        self.skipped as f64 / (self.skipped + self.computed).max(1) as f64
    }
}
