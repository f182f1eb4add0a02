//! Tiled evaluation of the VAE with overlapping tiles, which bounds memory for large images.
use candle_core::{DType, Device, Tensor};
use model_thread::is_out_of_memory;

use crate::{Check, Error, Result};

/// Maximum number of cells of latents without tiling if the free memory is unknown: 768 x 768 pixels.
const UNTILED_CELLS: usize = 96 * 96;

/// Maximum size in bytes of a tensor without tiling.
const MAX_TENSOR_BYTES: usize = i32::MAX as usize;

/// Tile sizes, in cells of latents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Maximum number of cells of latents that are processed without tiling; `None` selects as many as half of the free
    /// memory of the device holds, or 96 x 96 if that is unknown.
    pub untiled_cells: Option<usize>,
    /// Width and height of a tile.
    pub side: usize,
    /// Overlap of adjacent tiles, less than half a side.
    pub overlap: usize,
}

impl Default for Tiling {
    /// Returns tiles of 512 x 512 pixels that overlap by 128, for images that do not fit into the memory of the device.
    fn default() -> Self {
        Self { untiled_cells: None, side: 64, overlap: 16 }
    }
}

impl Tiling {
    /// Returns the tiling for a device with `free` bytes, if a cell needs `bytes_per_cell` in total and `widest` bytes in the
    /// largest tensor, whose size is limited because kernels have 32-bit offsets.
    pub(super) fn planned(self, free: Option<usize>, bytes_per_cell: usize, widest: usize) -> Self {
        let cells = free.map_or(UNTILED_CELLS, |free| free / 2 / bytes_per_cell.max(1));
        let cells = self.untiled_cells.unwrap_or(cells).min(MAX_TENSOR_BYTES / widest.max(1));
        Self { untiled_cells: Some(cells), ..self }
    }
}

/// Number of input and output elements per cell of latents, in each dimension.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub input: usize,
    pub output: usize,
}

/// Evaluates `apply` on `input` (1, channels, height, width), in tiles if it is large or memory runs out. Returns f32, on the
/// CPU if there are tiles.
///
/// Overlapping tiles are blended linearly. Results differ slightly, because norms are computed per tile.
pub(super) fn tiled(
    input: &Tensor,
    tiling: Tiling,
    scale: Scale,
    apply: &dyn Fn(&Tensor) -> Result<Tensor>,
    check: Check,
) -> Result<Tensor> {
    let host = |x: &Tensor| x.to_device(&Device::Cpu)?.to_dtype(DType::F32);
    let (_, _, height, width) = input.dims4()?;
    let (height, width) = (height / scale.input, width / scale.input);
    let side = tiling.side.max(1);
    let untiled_cells = tiling.untiled_cells.unwrap_or(UNTILED_CELLS);
    let fits_in_one = height <= side && width <= side;
    if height * width <= untiled_cells || fits_in_one {
        match apply(input) {
            Err(Error::Device(error)) if !fits_in_one && is_out_of_memory(&error) => {
                tracing::warn!("out of memory: the VAE processes {width} x {height} cells in tiles");
            }
            output => return Ok(output?.to_dtype(DType::F32)?),
        }
    }
    let overlap = tiling.overlap.min(side.saturating_sub(1) / 2);
    let (out_height, out_width) = (height * scale.output, width * scale.output);
    let mut channels = 0;
    let mut total: Vec<f32> = Vec::new();
    let mut weights = vec![0f32; out_height * out_width];
    for (top, tall) in tiles(height, side, overlap) {
        for (left, wide) in tiles(width, side, overlap) {
            check()?;
            let s = scale.input;
            let tile = input.narrow(2, top * s, tall * s)?.narrow(3, left * s, wide * s)?.contiguous()?;
            let tile = host(&apply(&tile)?)?;
            let s = scale.output;
            let (_, c, th, tw) = tile.dims4()?;
            if (th, tw) != (tall * s, wide * s) {
                return Err(Error::model(format!(
                    "a tile of {tall} x {wide} cells has output size {th} x {tw}, expected a scale of {s}"
                )));
            }
            if total.is_empty() {
                channels = c;
                total = vec![0.0; c * weights.len()];
            }
            let values = tile.flatten_all()?.to_vec1::<f32>()?;
            let rows = blend_weights(tall * s, overlap * s, top == 0, top + tall == height);
            let columns = blend_weights(wide * s, overlap * s, left == 0, left + wide == width);
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
    Ok(Tensor::from_vec(total, (1, channels, out_height, out_width), &Device::Cpu)?)
}

/// Returns start and length of the tiles along one dimension. The last tile is aligned with the end.
fn tiles(length: usize, side: usize, overlap: usize) -> Vec<(usize, usize)> {
    if length <= side {
        return vec![(0, length)];
    }
    let stride = side - overlap;
    let count = (length - side).div_ceil(stride) + 1;
    (0..count).map(|i| ((i * stride).min(length - side), side)).collect()
}

/// Returns blend weights along a tile: linear ramps over the overlap, except at the edges of the image.
fn blend_weights(length: usize, overlap: usize, first: bool, last: bool) -> Vec<f32> {
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
    fn tiling_does_not_change_a_local_function() -> Result<()> {
        for (height, width, side, overlap) in [(13, 9, 4, 1), (8, 8, 8, 2), (5, 21, 6, 2), (7, 3, 5, 9)] {
            let x = Tensor::arange(0f32, (2 * height * width) as f32, &Device::Cpu)?
                .reshape((1, 2, height, width))?;
            let twice = |x: &Tensor| Ok((x.upsample_nearest2d(2 * x.dim(2)?, 2 * x.dim(3)?)? * 2.0)?);
            let tiling = Tiling { untiled_cells: Some(0), side, overlap };
            let up = tiled(&x, tiling, Scale { input: 1, output: 2 }, &twice, &|| Ok(()))?;
            let difference = (up - twice(&x)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(difference < 1e-3, "{height} x {width}: {difference}");
        }
        Ok(())
    }

    #[test]
    fn tiles_are_used_if_memory_is_short() {
        let cells = |tiling: Tiling, free| tiling.planned(free, 1 << 10, 1 << 8).untiled_cells;
        assert_eq!(cells(Tiling::default(), Some(1 << 20)), Some(512));
        assert_eq!(cells(Tiling::default(), Some(0)), Some(0));
        assert_eq!(cells(Tiling::default(), None), Some(UNTILED_CELLS));
        assert_eq!(cells(Tiling { untiled_cells: Some(7), ..Tiling::default() }, Some(1 << 20)), Some(7));
        // No tensor exceeds 2 GiB - 1, however much memory is free.
        assert_eq!(cells(Tiling::default(), Some(usize::MAX)), Some((1 << 23) - 1));
    }

    #[test]
    fn tiles_are_used_after_memory_ran_out() -> Result<()> {
        let full = || candle_core::Error::from(std::io::Error::from(std::io::ErrorKind::OutOfMemory));
        let tiling = Tiling { untiled_cells: Some(1 << 20), side: 8, overlap: 2 };
        let scale = Scale { input: 1, output: 1 };
        for (side, most, fits) in [(16, 8, true), (16, 16, true), (16, 4, false), (8, 4, false)] {
            let x = Tensor::ones((1, 1, side, side), DType::F32, &Device::Cpu)?;
            let calls = std::cell::Cell::new(0);
            let same = |x: &Tensor| {
                calls.set(calls.get() + 1);
                if x.dim(2)? > most { Err(full().into()) } else { Ok(x.clone()) }
            };
            let found = tiled(&x, tiling, scale, &same, &|| Ok(()));
            assert_eq!(found.is_ok(), fits, "{side} {most}");
            let expected = if side == most || side == 8 {
                1
            } else if fits {
                10
            } else {
                2
            };
            assert_eq!(calls.get(), expected, "{side} {most}");
            if let Ok(found) = found {
                assert!((found - x)?.abs()?.max_all()?.to_scalar::<f32>()? < 1e-6);
            }
        }
        // Other errors are returned.
        let x = Tensor::ones((1, 1, 16, 16), DType::F32, &Device::Cpu)?;
        let failed = |_: &Tensor| Err(Error::model("wrong"));
        assert!(tiled(&x, tiling, scale, &failed, &|| Ok(())).is_err_and(|e| e.to_string() == "wrong"));
        Ok(())
    }

    #[test]
    fn a_failed_check_ends_the_computation() -> Result<()> {
        let x = Tensor::zeros((1, 1, 16, 16), DType::F32, &Device::Cpu)?;
        let (tiling, scale) =
            (Tiling { untiled_cells: Some(0), side: 8, overlap: 2 }, Scale { input: 1, output: 1 });
        let calls = std::cell::Cell::new(0);
        let same = |x: &Tensor| {
            calls.set(calls.get() + 1);
            Ok(x.clone())
        };
        let check = || if calls.get() < 2 { Ok(()) } else { Err(Error::request("stop")) };
        assert!(tiled(&x, tiling, scale, &same, &check).is_err_and(|error| error.to_string() == "stop"));
        assert_eq!(calls.get(), 2);
        Ok(())
    }

    #[test]
    fn cuts_cover_a_side_and_overlap() {
        for length in 1..60 {
            let all = tiles(length, 8, 3);
            assert_eq!(all[0].0, 0);
            let (start, size) = all[all.len() - 1];
            assert_eq!(start + size, length);
            assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 >= pair[1].0 + 3), "{length}: {all:?}");
        }
    }
}
