//! Convolutions and transposed convolutions as implicit matrix products on tiles. One operand is read from the input in
//! place, so that there is no unfolded copy and only one launch.
use super::operand::dense_kernel;
use crate::rocm_backend::device::{LaunchConfig, RocmDevice};
use crate::rocm_backend::layout::{extent, Strided};
use crate::rocm_backend::libraries::{ConvShape, Direction};
use crate::rocm_backend::ops::{computing, found, Operand, MAX_GRID};
use crate::rocm_backend::storage::{offset_by_elements, RocmStorage};
use crate::rocm_backend::RocmError;
use crate::{DType, Layout, Result};
use hip_kernels::contract::{ConvolutionTiles, ConvolutionTilesKind, TileSide, BLOCK};

/// Limit for the bytes of an input and the elements of a result, which the kernels index with 32 bits.
const LIMIT: usize = u32::MAX as usize / 2;
/// Minimum number of workgroups per multiprocessor for which large tiles are used.
const MIN_LARGE_TILES: usize = 2;

/// Computes a convolution. Returns false if there is no kernel: for f64, and for images that exceed 32-bit indices.
pub(super) fn compute(
    op: &'static str,
    shape: &ConvShape,
    [(src, layout), (kernel, kernel_layout)]: [Operand; 2],
    dst: &RocmStorage,
) -> Result<bool> {
    let ConvShape { dtype, batch, groups, c_in, c_out, h, w, .. } = *shape;
    let width = dtype.size_in_bytes();
    let result = shape.result();
    let of_image = result[1..].iter().product::<usize>();
    let (image, stride) = (image_bytes(layout, width), layout.stride()[0] * width);
    let suited = matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
        && groups <= MAX_GRID
        && h.stride * w.stride <= MAX_GRID
        && image.max(of_image) <= LIMIT
        && extent(kernel_layout).is_some_and(|elements| elements * width <= LIMIT);
    if !suited {
        return Ok(false);
    }
    let mut copy = None;
    let (kind, rows, places, phases) = match shape.direction {
        Direction::Output => (ConvolutionTilesKind::ConvTiles, c_out, shape.places(), 1),
        _ => {
            // The largest phase; all phases have about the same number of positions.
            let places = h.size.div_ceil(h.stride) * w.size.div_ceil(w.stride);
            (ConvolutionTilesKind::ConvTransposeTiles, c_in, places, h.stride * w.stride)
        }
    };
    let (weights, strides) = match shape.direction {
        Direction::Output => {
            let (dense, offset) = dense_kernel(op, kernel, kernel_layout, &mut copy)?;
            let layout = Layout::contiguous_with_offset(kernel_layout.shape(), offset);
            (dense.ptr(&layout, op)?, layout)
        }
        _ => (kernel.ptr(kernel_layout, op)?, kernel_layout.clone()),
    };
    // Dims of the weights of one group.
    let k_dims = [strides.dims()[0] / groups, strides.dims()[1], h.taps, w.taps];
    let from = src.ptr(layout, op)?;
    let fitting =
        (LIMIT - image).checked_div(stride).map_or(batch, |more| more + 1).min(LIMIT / of_image.max(1));
    for first in (0..batch).step_by(fitting.max(1)) {
        let images = fitting.max(1).min(batch - first);
        let dims = [images, layout.dims()[1] / groups, layout.dims()[2], layout.dims()[3]];
        let info = [&dims[..], layout.stride(), &k_dims, strides.stride()];
        let (side, length) = tile_side(&src.device, rows, images * places, groups * phases);
        let parts = rows.div_ceil(length) * (images * places).div_ceil(length);
        let small = |value: usize| {
            u32::try_from(value).map_err(|_| {
                crate::Error::from(RocmError::TooManyElements { op, elements: value, limit: LIMIT })
            })
        };
        let arguments = ConvolutionTiles {
            src: offset_by_elements(from, dtype, first * layout.stride()[0]),
            kernel: weights,
            dst: offset_by_elements(dst.slice.ptr(), dtype, first * of_image),
            info: &Strided::verbatim(op, &info)?,
            h_out: small(result[2])?,
            w_out: small(result[3])?,
            stride_y: small(h.stride)?,
            stride_x: small(w.stride)?,
            dilation_y: small(h.dilation)?,
            dilation_x: small(w.dilation)?,
            padding_y: small(h.padding)?,
            padding_x: small(w.padding)?,
        };
        let function = found(ConvolutionTiles::kernel(kind, side, computing(op, dtype)?), op, dtype)?;
        let config = LaunchConfig {
            grid: (small(parts)?, phases as u32, groups as u32),
            block: (BLOCK as u32, 1, 1),
            lds_bytes: 0,
        };
        // SAFETY: operands were checked against their buffers, and the result holds all images.
        unsafe { src.device.launch(function, config, &arguments)? };
    }
    Ok(true)
}

/// Returns the number of bytes that an image spans.
fn image_bytes(layout: &Layout, width: usize) -> usize {
    let (dims, strides) = (&layout.dims()[1..], &layout.stride()[1..]);
    let image = Layout::new(dims.into(), strides.to_vec(), 0);
    extent(&image).and_then(|elements| elements.checked_mul(width)).unwrap_or(usize::MAX)
}

/// Chooses the tile size: large tiles read less memory, small tiles use more multiprocessors.
fn tile_side(device: &RocmDevice, rows: usize, places: usize, times: usize) -> (TileSide, usize) {
    let large = rows.div_ceil(128) * places.div_ceil(128) * times;
    match rows > 64 && large >= MIN_LARGE_TILES * device.multiprocessors() {
        true => (TileSide::S128, 128),
        false => (TileSide::S64, 64),
    }
}
