//! The VAE in overlapping tiles, so that memory does not grow with the picture.
use candle_core::{DType, Device, Result, Tensor};

/// When and how pictures are cut, in cells of latents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Latents of at most so many cells are taken whole.
    pub whole: usize,
    /// Side of a tile.
    pub side: usize,
    /// What neighbours share, less than half a side.
    pub overlap: usize,
}

impl Default for Tiling {
    /// Whole up to 768 x 768 pixels, then tiles of 512 that share 128.
    fn default() -> Self {
        Self { whole: 96 * 96, side: 64, overlap: 16 }
    }
}

/// What one cell of latents is on either side of `apply`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub input: usize,
    pub output: usize,
}

/// `apply` on `input` (1, channels, height, width), in tiles if it is too large; f32 on the CPU.
///
/// Where tiles overlap, each counts less towards its edge. Norms see a tile only, therefore results differ a little.
pub(super) fn tiled(
    input: &Tensor,
    tiling: Tiling,
    scale: Scale,
    apply: &dyn Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let host = |x: &Tensor| x.to_device(&Device::Cpu)?.to_dtype(DType::F32);
    let (_, _, height, width) = input.dims4()?;
    let (height, width) = (height / scale.input, width / scale.input);
    let side = tiling.side.max(1);
    if height * width <= tiling.whole || (height <= side && width <= side) {
        return host(&apply(input)?);
    }
    let overlap = tiling.overlap.min(side.saturating_sub(1) / 2);
    let (out_height, out_width) = (height * scale.output, width * scale.output);
    let mut channels = 0;
    let mut total: Vec<f32> = Vec::new();
    let mut weights = vec![0f32; out_height * out_width];
    for (top, tall) in cuts(height, side, overlap) {
        for (left, wide) in cuts(width, side, overlap) {
            let s = scale.input;
            let tile = input.narrow(2, top * s, tall * s)?.narrow(3, left * s, wide * s)?.contiguous()?;
            let tile = host(&apply(&tile)?)?;
            let s = scale.output;
            let (_, c, th, tw) = tile.dims4()?;
            if (th, tw) != (tall * s, wide * s) {
                candle_core::bail!(
                    "a tile of {tall} x {wide} cells became {th} x {tw}, not {s} times as much"
                )
            }
            if total.is_empty() {
                channels = c;
                total = vec![0.0; c * weights.len()];
            }
            let values = tile.flatten_all()?.to_vec1::<f32>()?;
            let rows = ramp(tall * s, overlap * s, top == 0, top + tall == height);
            let columns = ramp(wide * s, overlap * s, left == 0, left + wide == width);
            for (y, row) in rows.iter().enumerate() {
                let to = (top * s + y) * out_width + left * s;
                for (x, column) in columns.iter().enumerate() {
                    weights[to + x] += row * column;
                    for c in 0..channels {
                        total[c * out_height * out_width + to + x] +=
                            row * column * values[(c * th + y) * tw + x];
                    }
                }
            }
        }
    }
    for plane in total.chunks_exact_mut(weights.len()) {
        plane.iter_mut().zip(&weights).for_each(|(value, weight)| *value /= weight);
    }
    Tensor::from_vec(total, (1, channels, out_height, out_width), &Device::Cpu)
}

/// Beginnings and lengths of tiles along a side; the last one reaches back as far as it must.
fn cuts(length: usize, side: usize, overlap: usize) -> Vec<(usize, usize)> {
    if length <= side {
        return vec![(0, length)];
    }
    let stride = side - overlap;
    let count = (length - side).div_ceil(stride) + 1;
    (0..count).map(|i| ((i * stride).min(length - side), side)).collect()
}

/// Weights along a tile: rising and falling over the overlap, except at the picture's own edges.
fn ramp(length: usize, overlap: usize, first: bool, last: bool) -> Vec<f32> {
    let part = |distance: usize| ((distance as f32 + 0.5) / overlap.max(1) as f32).min(1.0);
    (0..length)
        .map(|i| {
            let rise = if first { 1.0 } else { part(i) };
            let fall = if last { 1.0 } else { part(length - 1 - i) };
            rise * fall
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_of_a_local_function_are_the_whole() -> Result<()> {
        for (height, width, side, overlap) in [(13, 9, 4, 1), (8, 8, 8, 2), (5, 21, 6, 2), (7, 3, 5, 9)] {
            let x = Tensor::arange(0f32, (2 * height * width) as f32, &Device::Cpu)?
                .reshape((1, 2, height, width))?;
            let twice = |x: &Tensor| x.upsample_nearest2d(2 * x.dim(2)?, 2 * x.dim(3)?)? * 2.0;
            let tiling = Tiling { whole: 0, side, overlap };
            let up = tiled(&x, tiling, Scale { input: 1, output: 2 }, &twice)?;
            let difference = (up - twice(&x)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(difference < 1e-3, "{height} x {width}: {difference}");
        }
        Ok(())
    }

    #[test]
    fn cuts_cover_a_side_and_overlap() {
        for length in 1..60 {
            let cuts = cuts(length, 8, 3);
            assert_eq!(cuts[0].0, 0);
            let (start, size) = cuts[cuts.len() - 1];
            assert_eq!(start + size, length);
            assert!(cuts.windows(2).all(|pair| pair[0].0 + pair[0].1 >= pair[1].0 + 3), "{length}: {cuts:?}");
        }
    }
}
