//! Convolutions, plain and transposed, as products on matrix tiles whose one side is read where it lies in the input: no
//! unfolded copy, and one launch.
use super::operand::dense_kernel;
use crate::rocm_backend::device::{LaunchConfig, RocmDevice};
use crate::rocm_backend::layout::{extent, Strided};
use crate::rocm_backend::libraries::{ConvShape, Direction};
use crate::rocm_backend::ops::{computing, found, Operand, MAX_GRID};
use crate::rocm_backend::storage::{offset_by_elements, RocmStorage};
use crate::rocm_backend::RocmError;
use crate::{DType, Layout, Result};
use hip_kernels::contract::{ConvolutionTiles, ConvolutionTilesKind, TileSide, BLOCK};

/// The kernels count bytes of an input, and elements of a result, in 32 bits.
const MOST: usize = u32::MAX as usize / 2;
/// Workgroups of the larger tiles are worth it if each multiprocessor has so many.
const LARGE_FOR_EACH: usize = 2;

/// Computes `shape`, unless there is no such kernel: for f64, or images beyond what 32 bits count.
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
        && image.max(of_image) <= MOST
        && extent(kernel_layout).is_some_and(|elements| elements * width <= MOST);
    if !suited {
        return Ok(false);
    }
    let mut made = None;
    let (kind, rows, places, phases) = match shape.direction {
        Direction::Output => (ConvolutionTilesKind::ConvTiles, c_out, shape.places(), 1),
        _ => {
            // The places of a phase are about equally many.
            let places = h.size.div_ceil(h.stride) * w.size.div_ceil(w.stride);
            (ConvolutionTilesKind::ConvTransposeTiles, c_in, places, h.stride * w.stride)
        }
    };
    let (weights, strides) = match shape.direction {
        Direction::Output => {
            let (dense, offset) = dense_kernel(op, kernel, kernel_layout, &mut made)?;
            let layout = Layout::contiguous_with_offset(kernel_layout.shape(), offset);
            (dense.ptr(&layout, op)?, layout)
        }
        _ => (kernel.ptr(kernel_layout, op)?, kernel_layout.clone()),
    };
    // Those of a group.
    let k_dims = [strides.dims()[0] / groups, strides.dims()[1], h.taps, w.taps];
    let from = src.ptr(layout, op)?;
    let fitting =
        (MOST - image).checked_div(stride).map_or(batch, |more| more + 1).min(MOST / of_image.max(1));
    for first in (0..batch).step_by(fitting.max(1)) {
        let images = fitting.max(1).min(batch - first);
        let dims = [images, layout.dims()[1] / groups, layout.dims()[2], layout.dims()[3]];
        let info = [&dims[..], layout.stride(), &k_dims, strides.stride()];
        let (side, length) = side(&src.device, rows, images * places, groups * phases);
        let parts = rows.div_ceil(length) * (images * places).div_ceil(length);
        let small = |value: usize| {
            u32::try_from(value).map_err(|_| {
                crate::Error::from(RocmError::TooManyElements { op, elements: value, limit: MOST })
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

/// Bytes from the first to the last element of an image.
fn image_bytes(layout: &Layout, width: usize) -> usize {
    let (dims, strides) = (&layout.dims()[1..], &layout.stride()[1..]);
    let image = Layout::new(dims.into(), strides.to_vec(), 0);
    extent(&image).and_then(|elements| elements.checked_mul(width)).unwrap_or(usize::MAX)
}

/// Large tiles read less; small ones keep more multiprocessors busy.
fn side(device: &RocmDevice, rows: usize, places: usize, times: usize) -> (TileSide, usize) {
    let large = rows.div_ceil(128) * places.div_ceil(128) * times;
    match rows > 64 && large >= LARGE_FOR_EACH * device.multiprocessors() {
        true => (TileSide::S128, 128),
        false => (TileSide::S64, 64),
    }
}
