//! The most likely tokens, for log probabilities.
use candle_core::{DType, Result, Tensor};

/// Rows are sorted in chunks of this width, which fits every device's sort, then the best of each.
const CHUNK_WIDTH: usize = 4096;

/// Returns the `count` largest values of each row of `values` (rows, width) in descending order, and their
/// positions, both f32 (rows, count). Positions at or beyond the width are padding, which occurs if fewer
/// than `count` values are above negative infinity.
pub(super) fn largest(values: &Tensor, count: usize) -> Result<(Tensor, Tensor)> {
    let (rows, width) = values.dims2()?;
    let pieces = width.div_ceil(CHUNK_WIDTH);
    if pieces == 1 {
        let (sorted, places) = values.contiguous()?.sort_last_dim(false)?;
        return Ok((sorted.narrow(1, 0, count)?, places.to_dtype(DType::F32)?.narrow(1, 0, count)?));
    }
    let device = values.device();
    let fill = Tensor::full(f32::NEG_INFINITY, (rows, pieces * CHUNK_WIDTH - width), device)?;
    let filled = Tensor::cat(&[values, &fill], 1)?.reshape((rows * pieces, CHUNK_WIDTH))?;
    let (sorted, places) = filled.sort_last_dim(false)?;
    let kept = count.min(CHUNK_WIDTH);
    let starts = Tensor::from_iter((0..pieces).map(|piece| (piece * CHUNK_WIDTH) as f32), device)?;
    let places = places.narrow(1, 0, kept)?.to_dtype(DType::F32)?.reshape((rows, pieces, kept))?;
    let places = places.broadcast_add(&starts.reshape((1, pieces, 1))?)?.reshape((rows, pieces * kept))?;
    let kept = sorted.narrow(1, 0, kept)?.reshape((rows, pieces * kept))?;
    let (sorted, order) = kept.sort_last_dim(false)?;
    let places = places.gather(&order, 1)?;
    Ok((sorted.narrow(1, 0, count)?, places.narrow(1, 0, count)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn finds_the_largest_across_chunks() -> Result<()> {
        for width in [5, CHUNK_WIDTH, CHUNK_WIDTH + 1, 3 * CHUNK_WIDTH + 17] {
            let rows: Vec<Vec<f32>> = (0..3)
                .map(|row| (0..width).map(|i| ((i * 7919 + row * 31) % 100_003) as f32).collect())
                .collect();
            let (values, places) = largest(&Tensor::new(rows.clone(), &Device::Cpu)?, 5)?;
            for (row, (values, places)) in
                rows.iter().zip(values.to_vec2::<f32>()?.into_iter().zip(places.to_vec2::<f32>()?))
            {
                let mut wanted = row.clone();
                wanted.sort_by(|a, b| b.total_cmp(a));
                assert_eq!(values, wanted[..5]);
                let at: Vec<f32> = places.iter().map(|place| row[*place as usize]).collect();
                assert_eq!(at, values);
            }
        }
        Ok(())
    }
}
