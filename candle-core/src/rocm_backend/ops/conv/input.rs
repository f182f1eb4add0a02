//! Transposed convolutions, by one of three algorithms: an implicit product on tiles for each phase of the stride, all in
//! one launch; a matrix product of all taps with all positions, followed by a fold (col2im), in pieces of bounded size;
//! or, for few channels and dtypes without matrix products, a direct convolution.
use super::direct::{Direct, DIRECT_CHANNELS};
use super::operand::{dense_kernel, merged_places};
use super::pieces::{scratch_limit, Pieces};
use super::tiles;
use crate::rocm_backend::libraries::{ConvMethod, ConvShape};
use crate::rocm_backend::ops::matmul::{has_matmul, product, Output};
use crate::rocm_backend::ops::Operand;
use crate::rocm_backend::storage::{offset_by_elements, RocmStorage};
use crate::{Layout, Result};
use hip_kernels::contract::{ConvolutionKind, DevicePtr};

/// Computes a transposed convolution. The channels of `shape` are those of the forward convolution, so that `c_out`
/// channels of a group are read and `c_in` are written.
pub(super) fn compute(
    op: &'static str,
    shape: &ConvShape,
    operands: [Operand; 2],
    dst: &RocmStorage,
    method: ConvMethod,
) -> Result<()> {
    let [(src, layout), (kernel, kernel_layout)] = operands;
    let ConvShape { dtype, batch, groups, c_in, c_out, h, w, .. } = *shape;
    let (places, written) = (h.size * w.size, groups * c_in);
    let (to, dst_stride) = (dst.slice.ptr(), written * places);
    let direct = Direct {
        op,
        kind: ConvolutionKind::ConvTranspose,
        info: [layout.dims(), layout.stride(), kernel_layout.dims(), kernel_layout.stride()],
        src: src.ptr(layout, op)?,
        kernel: kernel.ptr(kernel_layout, op)?,
        dst: to,
        out: (h.size, w.size),
        axes: (h, w),
        channels: written,
        group_out: c_in,
        dst_stride,
        lds_bytes: 0,
    };
    if method == ConvMethod::Tiles && c_out > DIRECT_CHANNELS && tiles::compute(op, shape, operands, dst)? {
        return Ok(());
    }
    let Some(seen) = merged_places(layout).filter(|_| has_matmul(dtype) && c_out > DIRECT_CHANNELS) else {
        return direct.launch(src);
    };
    let mut copy = None;
    let (kernel, offset) = dense_kernel(op, kernel, kernel_layout, &mut copy)?;
    // A piece has some of the channels of a group; each product is rounded to the dtype.
    let (taps, inputs) = (h.taps * w.taps, shape.places());
    let pieces = Pieces::of(batch, c_in, taps * inputs * dtype.size_in_bytes(), scratch_limit());
    let scratch_len = pieces.images * pieces.places * taps * inputs;
    // SAFETY: each piece is written before the fold reads it.
    let products = unsafe { RocmStorage::alloc(&src.device, dtype, scratch_len, op)? };
    let ptr = products.slice.ptr();
    for group in 0..groups {
        for (image, images, first, count) in pieces.all(batch, c_in) {
            let (rows, s) = (count * taps, seen.stride());
            let start = seen.start_offset() + image * s[0] + group * c_out * s[1];
            let from = offset + (group * c_out * c_in + first) * taps;
            let lhs = Layout::new((images, rows, c_out).into(), vec![0, 1, c_in * taps], from);
            let rhs = Layout::new((images, c_out, inputs).into(), s.to_vec(), start);
            let output = Output { device: &src.device, ptr, row_stride: inputs, batch_stride: rows * inputs };
            product((kernel, &lhs), (src, &rhs), (images, rows, inputs, c_out), output)?;
            let (sizes, strides) = ([images, rows, h.out, w.out], [rows * inputs, inputs, w.out, 1]);
            let fold = Direct {
                kind: ConvolutionKind::Fold,
                info: [&sizes, &strides, &[0, count, h.taps, w.taps], &[0; 4]],
                src: ptr,
                kernel: DevicePtr::NULL,
                dst: offset_by_elements(to, dtype, image * dst_stride + (group * c_in + first) * places),
                channels: count,
                group_out: count,
                ..direct
            };
            fold.launch(src)?;
        }
    }
    Ok(())
}
