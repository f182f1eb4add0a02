//! Convolutions, by one of four algorithms: an implicit product on tiles that reads the input in place; a matrix product
//! with the unfolded input (im2col), in pieces of bounded size, or for wide rows unfolded along rows only ([`rows`]); a
//! matrix product with the input itself, for kernels of one element; or a direct convolution, for few output channels or few
//! input channels of a group.
use super::direct::{self, Direct, DIRECT_CHANNELS};
use super::operand::{dense_kernel, merged_places};
use super::pieces::{scratch_limit, Pieces};
use super::unfolding::{padded, Unfolding};
use super::{rows, tiles};
use crate::rocm_backend::libraries::{ConvMethod, ConvShape};
use crate::rocm_backend::ops::matmul::{product, Output};
use crate::rocm_backend::ops::Operand;
use crate::rocm_backend::storage::{offset_by_elements, RocmStorage};
use crate::{Layout, Result};
use hip_kernels::contract::{ConvolutionKind, PACK_BYTES};

pub(super) fn compute(
    op: &'static str,
    shape: &ConvShape,
    operands: [Operand; 2],
    dst: &RocmStorage,
    method: ConvMethod,
) -> Result<()> {
    let [(src, layout), (kernel, kernel_layout)] = operands;
    let ConvShape { dtype, batch, groups, c_in, c_out, h, w, .. } = *shape;
    let (places, columns, out) = (shape.places(), shape.columns(), dst.slice.ptr());
    let by_groups = direct::weights_in_lds(shape);
    if c_out <= DIRECT_CHANNELS || (groups > 1 && c_in <= DIRECT_CHANNELS) || by_groups.is_some() {
        let packs = w.out.div_ceil(PACK_BYTES / dtype.size_in_bytes());
        let (kind, out_w) = match by_groups {
            Some(_) => (ConvolutionKind::ConvGroups, packs),
            None if direct::computes_rows(shape) => (ConvolutionKind::ConvRows, packs),
            None => (ConvolutionKind::Conv, w.out),
        };
        let direct = Direct {
            op,
            kind,
            info: [layout.dims(), layout.stride(), kernel_layout.dims(), kernel_layout.stride()],
            src: src.ptr(layout, op)?,
            kernel: kernel.ptr(kernel_layout, op)?,
            dst: out,
            out: (h.out, out_w),
            axes: (h, w),
            channels: groups * c_out,
            group_out: c_out,
            dst_stride: groups * c_out * places,
            lds_bytes: by_groups.unwrap_or(0),
        };
        return direct.launch(src);
    }
    let mut copy = None;
    let (kernel, offset) = dense_kernel(op, kernel, kernel_layout, &mut copy)?;
    // The product of the weights with the window of each position is the output (c_out, places). `seen` holds the windows
    // from `start` on, with strides of images, groups, rows and places. The batch of a product is the images of one group
    // or the groups of one image, whichever are more.
    let multiply = |seen: &RocmStorage, start, strides: [usize; 4], (image, images), (first, count)| {
        let [image_stride, group_stride, row, place] = strides;
        let by_image = [0, image_stride, groups * c_out * places];
        let by_group = [c_out * columns, group_stride, c_out * places];
        let ((runs, step), (batch, stride)) = match groups < images {
            true => ((groups, by_group), (images, by_image)),
            false => ((images, by_image), (groups, by_group)),
        };
        for run in 0..runs {
            let [weights, from, to] = step.map(|step| step * run);
            let lhs =
                Layout::new((batch, c_out, columns).into(), vec![stride[0], columns, 1], offset + weights);
            let rhs = Layout::new((batch, columns, count).into(), vec![stride[1], row, place], start + from);
            let output = Output {
                device: &src.device,
                ptr: offset_by_elements(out, dtype, image * by_image[2] + first + to),
                row_stride: places,
                batch_stride: stride[2],
            };
            product((kernel, &lhs), (seen, &rhs), (batch, c_out, count, columns), output)?;
        }
        Ok::<_, crate::Error>(())
    };
    if h.is_pointwise() && w.is_pointwise() {
        if let Some(seen) = merged_places(layout) {
            let s = seen.stride();
            let strides = [s[0], c_in * s[1], s[1], s[2]];
            return multiply(src, seen.start_offset(), strides, (0, batch), (0, places));
        }
    }
    if method == ConvMethod::Tiles && tiles::compute(op, shape, operands, dst)? {
        return Ok(());
    }
    let (width, rows) = (dtype.size_in_bytes(), groups * columns);
    let limit = scratch_limit();
    if rows * places * width > limit && rows::supports(shape) {
        return rows::compute(op, shape, operands, dst, limit);
    }
    let pieces = Pieces::of(batch, places, rows * width, limit);
    let scratch_len = pieces.images * padded(pieces.places, width) * rows;
    // SAFETY: each piece is written before it is multiplied.
    let unfolded = unsafe { RocmStorage::alloc(&src.device, dtype, scratch_len, op)? };
    for (image, images, first, count) in pieces.all(batch, places) {
        let pitch = padded(count, width);
        let unfolding = Unfolding {
            op,
            layout,
            axes: (h, w),
            images: (image, images),
            places: (first, count),
            pitch,
            image_stride: rows * pitch,
        };
        unfolding.launch(src, unfolded.slice.ptr())?;
        let strides = [rows * pitch, rows / groups * pitch, pitch, 1];
        multiply(&unfolded, 0, strides, (image, images), (first, count))?;
    }
    Ok(())
}
