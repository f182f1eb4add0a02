//! Weight gradient of a convolution: the product of the output gradient with the unfolded input, over all positions of all
//! images. Both are unfolded so that a row holds all positions of a piece; each piece is one product. If there are several
//! pieces, the products are summed.
use super::pieces::{scratch_limit, Pieces};
use super::unfolding::{padded, Unfolding};
use crate::rocm_backend::libraries::{Axis, ConvShape};
use crate::rocm_backend::ops::matmul::{product, Output};
use crate::rocm_backend::ops::{reduce, Operand};
use crate::rocm_backend::storage::{offset_by_elements, RocmStorage};
use crate::{Layout, Result};

pub(super) fn compute(
    op: &'static str,
    shape: &ConvShape,
    [(x, x_layout), (y, y_layout)]: [Operand; 2],
    dst: &RocmStorage,
) -> Result<()> {
    let ConvShape { dtype, batch, groups, c_out, h, w, .. } = *shape;
    let (width, places, columns) = (dtype.size_in_bytes(), shape.places(), shape.columns());
    let (rows, written) = (groups * columns, groups * c_out);
    let pieces = Pieces::of(batch, places, (rows + written) * width, scratch_limit());
    let count = pieces.all(batch, places).count();
    let pitch = padded(pieces.places, width);
    let scratch_len = pieces.images * pitch;
    let device = &x.device;
    // SAFETY: each piece is written before it is multiplied.
    let seen = unsafe { RocmStorage::alloc(device, dtype, scratch_len * rows, op)? };
    // SAFETY: as above.
    let wanted = unsafe { RocmStorage::alloc(device, dtype, scratch_len * written, op)? };
    let elements = written * columns;
    let partial = match count {
        1 => None,
        // SAFETY: all products are written before they are summed.
        _ => Some(unsafe { RocmStorage::alloc(device, dtype, count * elements, op)? }),
    };
    let to = partial.as_ref().unwrap_or(dst).slice.ptr();
    // Unfolding the output gradient with a kernel of one element copies it, with the images concatenated.
    let copied = |places: usize| Axis { size: places, out: places, ..Axis::UNIT };
    for (piece, (image, images, first, piece_places)) in pieces.all(batch, places).enumerate() {
        let pitch = padded(piece_places, width);
        let concatenated = |layout, axes| Unfolding {
            op,
            layout,
            axes,
            images: (image, images),
            places: (first, piece_places),
            pitch: images * pitch,
            image_stride: pitch,
        };
        concatenated(x_layout, (h, w)).launch(x, seen.slice.ptr())?;
        concatenated(y_layout, (copied(h.out), copied(w.out))).launch(y, wanted.slice.ptr())?;
        let depth = images * pitch;
        let lhs = Layout::new((groups, c_out, depth).into(), vec![c_out * depth, depth, 1], 0);
        let rhs = Layout::new((groups, depth, columns).into(), vec![columns * depth, 1, depth], 0);
        let output = Output {
            device,
            ptr: offset_by_elements(to, dtype, piece * elements),
            row_stride: columns,
            batch_stride: c_out * columns,
        };
        product((&wanted, &lhs), (&seen, &rhs), (groups, c_out, columns, depth), output)?;
    }
    match partial {
        None => Ok(()),
        Some(partial) => reduce::sum_rows(&partial, (count, elements), dst),
    }
}
