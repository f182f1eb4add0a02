//! Convolution by products with an input that is unfolded along rows only: a third of the memory for 3 x 3 taps.
//!
//! The unfolded input has for each row of the (padded) input the elements (channel, tap_x, output column). The window of a
//! row of outputs is then `taps` neighbouring rows of it, which overlap those of the next row. Each row of outputs is a
//! product with weights ordered as (output channel, tap_y, channel, tap_x); all rows of a piece are one batch.
use super::unfolding::{padded, Unfolding};
use crate::rocm_backend::libraries::{Axis, ConvShape};
use crate::rocm_backend::ops::matmul::{product, Output};
use crate::rocm_backend::ops::{strided, Operand};
use crate::rocm_backend::storage::{offset_by_elements, RocmStorage};
use crate::rocm_backend::stream::clear;
use crate::{Layout, Result};

/// Minimum width of the output. Narrower rows fill only a part of the tiles of a product.
const MIN_WIDTH: usize = 128;

/// Returns true if the input can be unfolded along rows, and rows are wide enough for products.
pub(super) fn supports(shape: &ConvShape) -> bool {
    shape.groups == 1 && shape.h.taps > 1 && shape.h.dilation == 1 && shape.w.out >= MIN_WIDTH
}

/// Computes a convolution that [`supports`] accepts, with about `limit` bytes of scratch memory, or more if one row of outputs
/// needs more.
pub(super) fn compute(
    op: &'static str,
    shape: &ConvShape,
    [(src, layout), (kernel, kernel_layout)]: [Operand; 2],
    dst: &RocmStorage,
    limit: usize,
) -> Result<()> {
    let ConvShape { dtype, batch, c_in, c_out, h, w, .. } = *shape;
    let (width, places, columns) = (dtype.size_in_bytes(), shape.places(), shape.columns());
    let pitch = padded(w.out, width);
    let row = c_in * w.taps * pitch;
    let weights = strided::dense(kernel, &kernel_layout.transpose(1, 2)?, op)?;
    let rows_of = |outputs: usize| (outputs - 1) * h.stride + h.taps;
    let fitting = limit / (row * width).max(1);
    let outputs = (fitting.saturating_sub(h.taps) / h.stride + 1).min(h.out);
    // SAFETY: each piece is written before it is multiplied.
    let unfolded = unsafe { RocmStorage::alloc(&src.device, dtype, rows_of(outputs) * row, op)? };
    let row_at = |row_of_piece: usize| offset_by_elements(unfolded.slice.ptr(), dtype, row_of_piece * row);
    // The rows of an image, as images of one row.
    let (dims, s) = (layout.dims(), layout.stride());
    let rows_of_image = |image: usize, first: usize, count: usize| {
        let start = layout.start_offset() + image * s[0] + first * s[2];
        Layout::new((count, dims[1], 1, dims[3]).into(), vec![s[2], s[1], 0, s[3]], start)
    };
    for (image, first) in (0..batch).flat_map(|image| (0..h.out).step_by(outputs).map(move |y| (image, y))) {
        let count = outputs.min(h.out - first);
        let rows = rows_of(count);
        // Rows of the padded input from `begin` on, of which `above` and `below` are padding.
        let begin = first * h.stride;
        let above = h.padding.saturating_sub(begin).min(rows);
        let below = (begin + rows).saturating_sub(h.padding + h.size).min(rows - above);
        let inside = rows - above - below;
        for (at, padding) in [(0, above), (above + inside, below)] {
            // SAFETY: the rows are within the scratch memory.
            unsafe { clear(&src.device.state().stream, row_at(at), padding * row * width)? };
        }
        if inside > 0 {
            let layout = rows_of_image(image, begin + above - h.padding, inside);
            let unfolding = Unfolding {
                op,
                layout: &layout,
                axes: (Axis::UNIT, w),
                images: (0, inside),
                places: (0, w.out),
                pitch,
                image_stride: row,
            };
            unfolding.launch(src, row_at(above))?;
        }
        let lhs = Layout::new((count, c_out, columns).into(), vec![0, columns, 1], 0);
        let rhs = Layout::new((count, columns, w.out).into(), vec![h.stride * row, pitch, 1], 0);
        let output = Output {
            device: &src.device,
            ptr: offset_by_elements(dst.slice.ptr(), dtype, image * c_out * places + first * w.out),
            row_stride: places,
            batch_stride: w.out,
        };
        product((&weights, &lhs), (&unfolded, &rhs), (count, c_out, w.out, columns), output)?;
    }
    Ok(())
}
