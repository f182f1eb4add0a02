//! Search for the position at which cumulative weights reach a fraction of their sum.
use candle_core::{DType, Device, Result, Tensor, bail};

/// Condition for the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crossing {
    /// The cumulative sum exceeds the target. With a uniform random target, positions are drawn in proportion
    /// to their weights.
    Above,
    /// The cumulative sum is at least the target: the fewest weights that make up the fraction.
    AtLeast,
}

/// Constant tensors for cumulative sums over `size` positions.
#[derive(Debug)]
struct PrefixConstants {
    size: usize,
    /// 1 at (i, j) where j < i, (size, size).
    before: Tensor,
    /// 1, 2, ... size, (1, size).
    up: Tensor,
    /// size, ... 2, 1, (1, size).
    down: Tensor,
}

/// Two-level search with blocks of the square root of the width. Keeps constants on the device between calls.
#[derive(Debug, Default)]
pub(super) struct Cumulative {
    constants: Vec<PrefixConstants>,
}

impl Cumulative {
    /// Returns for each row of non-negative `weights` (rows, width) the first position where the cumulative
    /// sum passes the fraction `share` (rows, 1) of the row's sum, as f32 (rows, 1). If no sum passes because
    /// of rounding, returns the last position with a weight. Never returns a position of weight 0, unless all
    /// are. `row` (rows, 1) contains the row indices in f32.
    pub(super) fn find(
        &mut self,
        weights: &Tensor,
        share: &Tensor,
        row: &Tensor,
        crossing: Crossing,
    ) -> Result<Tensor> {
        let (rows, width) = weights.dims2()?;
        let mut size = (width as f64).sqrt() as usize;
        while size * size < width {
            size += 1;
        }
        let constants = self.constants(size, weights.device())?;
        let blocks = weights.pad_with_zeros(1, 0, size * size - width)?.reshape((rows * size, size))?;
        let sums = blocks.sum(1)?.reshape((rows, size))?;
        let target = (share * sums.sum_keepdim(1)?)?;
        let (block, before) = constants.find(&sums, &target, crossing)?;
        let chosen = (row.affine(size as f64, 0.0)? + &block)?.flatten_all()?.to_dtype(DType::U32)?;
        let (position, _) =
            constants.find(&blocks.index_select(&chosen, 0)?, &(target - before)?, crossing)?;
        block.affine(size as f64, 0.0)? + position
    }

    fn constants(&mut self, size: usize, device: &Device) -> Result<&PrefixConstants> {
        self.constants.retain(|constants| constants.before.device().same_device(device));
        if !self.constants.iter().any(|constants| constants.size == size) {
            let before = (0..size).flat_map(|i| (0..size).map(move |j| f32::from(u8::from(j < i)))).collect();
            let up: Vec<f32> = (1..=size).map(|position| position as f32).collect();
            let down = up.iter().rev().copied().collect();
            self.constants.push(PrefixConstants {
                size,
                before: Tensor::from_vec::<_, f32>(before, (size, size), device)?,
                up: Tensor::from_vec(up, (1, size), device)?,
                down: Tensor::from_vec::<_, f32>(down, (1, size), device)?,
            });
        }
        match self.constants.iter().find(|constants| constants.size == size) {
            Some(constants) => Ok(constants),
            None => bail!("internal error: no constants for sums over {size} positions"),
        }
    }
}

impl PrefixConstants {
    /// Returns the position in each row of `values` (rows, size) and the sum before it, both (rows, 1).
    fn find(&self, values: &Tensor, target: &Tensor, crossing: Crossing) -> Result<(Tensor, Tensor)> {
        let size = self.size as f64;
        // Computed row by row: a matrix product could round differently depending on the batch.
        let before = values.unsqueeze(1)?.broadcast_mul(&self.before)?.sum(2)?;
        let sums = (&before + values)?;
        let passes = match crossing {
            Crossing::Above => sums.broadcast_gt(target)?,
            Crossing::AtLeast => sums.broadcast_ge(target)?,
        };
        let has_weight = values.gt(0f32)?.to_dtype(DType::F32)?;
        let passes = (passes.to_dtype(DType::F32)? * &has_weight)?;
        // First passing position (`size` if none), and last position with a weight (-1 if none).
        let first = passes.broadcast_mul(&self.down)?.max_keepdim(1)?.affine(-1.0, size)?;
        let last = has_weight.broadcast_mul(&self.up)?.max_keepdim(1)?.affine(1.0, -1.0)?;
        let position = first.minimum(&last)?.clamp(0f32, size as f32 - 1.0)?;
        let before = before.gather(&position.to_dtype(DType::U32)?, 1)?;
        Ok((position, before))
    }
}
