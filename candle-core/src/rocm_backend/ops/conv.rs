//! Convolutions of (batch, channel, length) and (batch, channel, height, width), plain and transposed.
//!
//! A plain one is a matrix product with the unfolded input (im2col), made in pieces of bounded size; or of the input
//! itself where kernels have one element; or, for very few output channels, one kernel that goes through the windows. One of
//! a single dimension is one of height 1. Transposed ones have a direct kernel for every dtype.
use super::matmul::{multiplies, product, Output};
use super::{check_rank, computing, found, same_computing_dtype, strided, MAX_GRID};
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::rocm_backend::device::{max_elements, LaunchConfig};
use crate::rocm_backend::error::unsupported_dtype;
use crate::rocm_backend::layout::{runs, Strided};
use crate::rocm_backend::storage::{carrier, further, RocmStorage};
use crate::rocm_backend::RocmError;
use crate::{Layout, Result};
use hip_kernels::contract::{Convolution, ConvolutionKind, KernelFamily, Unfold};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Up to this many output channels it costs less to go through the windows than to unfold them.
const DIRECT_CHANNELS: usize = 4;

static WORKSPACE: AtomicUsize = AtomicUsize::new(64 << 20);

/// How many bytes the unfolded input of a convolution may take.
pub fn conv_workspace() -> usize {
    WORKSPACE.load(Ordering::Relaxed)
}

/// Bounds the memory that a convolution takes for its unfolded input; larger ones are computed in pieces.
/// 64 MiB unless set. One output place is always unfolded whole.
pub fn set_conv_workspace(bytes: usize) {
    WORKSPACE.store(bytes, Ordering::Relaxed);
}

/// The sizes along one dimension.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    taps: usize,
    padding: usize,
    stride: usize,
    dilation: usize,
}

impl Axis {
    /// The vertical axis of a convolution of one dimension.
    const FLAT: Self = Self { size: 1, taps: 1, padding: 0, stride: 1, dilation: 1 };

    /// The size of the output, if the window fits at least once.
    fn out(self, op: &'static str) -> Result<usize> {
        let places = || {
            let span = self.taps.checked_sub(1)?.checked_mul(self.dilation)?;
            let padded = self.size.checked_add(self.padding.checked_mul(2)?)?;
            padded.checked_sub(span)?.checked_sub(1)?.checked_div(self.stride)?.checked_add(1)
        };
        self.counted(op, self.padding.saturating_mul(2))?;
        places().ok_or_else(|| self.misfit(op))
    }

    /// The size of a transposed convolution's output.
    fn transposed_out(self, op: &'static str, output_padding: usize) -> Result<usize> {
        let places = || {
            let span = self.taps.checked_sub(1)?.checked_mul(self.dilation)?;
            let walked = self.size.checked_sub(1)?.checked_mul(self.stride)?;
            let full = walked.checked_add(span)?.checked_add(output_padding)?.checked_add(1)?;
            full.checked_sub(self.padding.checked_mul(2)?)
        };
        // The kernel divides by the stride.
        let out = places().filter(|_| self.stride > 0).ok_or_else(|| self.misfit(op))?;
        self.counted(op, out)?;
        Ok(out)
    }

    /// The kernels count along a dimension, and what is `beside` its elements, in 32 bits.
    fn counted(self, op: &'static str, beside: usize) -> Result<()> {
        let Self { size, taps, padding, stride, dilation } = self;
        let spans = [size, padding, stride, dilation, taps.saturating_mul(dilation), beside];
        let limit = i32::MAX as usize / 2;
        match spans.into_iter().max() {
            Some(elements) if elements > limit => {
                Err(RocmError::TooManyElements { op, elements, limit }.into())
            }
            _ => Ok(()),
        }
    }

    fn misfit(self, op: &'static str) -> crate::Error {
        let Self { size, taps, padding, stride, dilation } = self;
        RocmError::Unsupported(format!(
            "{op}: a kernel of {taps} with padding {padding}, stride {stride} and dilation {dilation} gives no output \
             for {size} elements"
        ))
        .into()
    }

    /// Whether output places are the input's.
    fn is_pointwise(self) -> bool {
        self.taps == 1 && self.padding == 0 && self.stride == 1
    }
}

/// (b, c_in, l) with a kernel (c_out, c_in, k) to (b, c_out, l_out), for the dtypes of matmul.
pub(crate) fn conv1d(
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    p: &ParamsConv1D,
) -> Result<RocmStorage> {
    const OP: &str = "conv1d";
    check_rank(layout, 3)?;
    check_rank(kernel_layout, 3)?;
    let (padding, stride, dilation) = (p.padding, p.stride, p.dilation);
    let w = Axis { size: p.l_in, taps: p.k_size, padding, stride, dilation };
    let (layout, kernel_layout) = (flat(layout), flat(kernel_layout));
    convolve(OP, src, &layout, kernel, &kernel_layout, (p.b_size, p.c_in, p.c_out), (Axis::FLAT, w))
}

/// (b, c_in, h, w) with a kernel (c_out, c_in, k_h, k_w) to (b, c_out, h_out, w_out), for the dtypes of matmul.
pub(crate) fn conv2d(
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    p: &ParamsConv2D,
) -> Result<RocmStorage> {
    check_rank(layout, 4)?;
    check_rank(kernel_layout, 4)?;
    let (padding, stride, dilation) = (p.padding, p.stride, p.dilation);
    let h = Axis { size: p.i_h, taps: p.k_h, padding, stride, dilation };
    let w = Axis { size: p.i_w, taps: p.k_w, padding, stride, dilation };
    convolve("conv2d", src, layout, kernel, kernel_layout, (p.b_size, p.c_in, p.c_out), (h, w))
}

/// The layout of (b, c, l) as (b, c, 1, l).
pub(crate) fn flat(layout: &Layout) -> Layout {
    let (dims, strides) = (layout.dims(), layout.stride());
    let strides = vec![strides[0], strides[1], 0, strides[2]];
    Layout::new((dims[0], dims[1], 1, dims[2]).into(), strides, layout.start_offset())
}

fn convolve(
    op: &'static str,
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    (batch, c_in, c_out): (usize, usize, usize),
    (h, w): (Axis, Axis),
) -> Result<RocmStorage> {
    let dtype = same_computing_dtype(op, src, kernel)?;
    if !multiplies(dtype) {
        return Err(unsupported_dtype(op, dtype));
    }
    let (h_out, w_out) = (h.out(op)?, w.out(op)?);
    let (places, columns) = (h_out * w_out, c_in * h.taps * w.taps);
    let elements = batch * c_out * places;
    if places > max_elements() {
        return Err(RocmError::TooManyElements { op, elements: places, limit: max_elements() }.into());
    }
    if columns == 0 {
        return strided::zeros(&src.device, dtype, elements);
    }
    // SAFETY: every element is written by the products below, or by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, elements, op)? };
    let out = dst.slice.ptr();
    if elements == 0 {
        return Ok(dst);
    }
    if c_out <= DIRECT_CHANNELS {
        let operands = [(src, layout), (kernel, kernel_layout)];
        return direct(op, ConvolutionKind::Conv, operands, (h, w), (h_out, w_out), dst);
    }
    let dense;
    let (kernel, offset) = if kernel_layout.is_contiguous() {
        (kernel, kernel_layout.start_offset())
    } else {
        dense = strided::dense(kernel, kernel_layout, op)?;
        (&dense, 0)
    };
    src.order_after(kernel)?;
    // A kernel row times what each place sees is the output as it should lie: (c_out, places).
    let rows = |images: usize| Layout::new((images, c_out, columns).into(), vec![0, columns, 1], offset);
    let output = |image: usize, first: usize| Output {
        device: &src.device,
        ptr: further(out, dtype, image * c_out * places + first),
        row_stride: places,
        batch_stride: c_out * places,
    };
    if h.is_pointwise() && w.is_pointwise() {
        if let Some(seen) = merged_places(layout) {
            product(kernel, src, (batch, c_out, places, columns), &rows(batch), &seen, output(0, 0))?;
            return Ok(dst);
        }
    }
    let pieces = Pieces::of(batch, places, columns * dtype.size_in_bytes(), conv_workspace());
    let room = pieces.images * pieces.places * columns;
    // SAFETY: each piece is written before it is multiplied.
    let unfolded = unsafe { RocmStorage::alloc(&src.device, dtype, room, op)? };
    let unfold = found(Unfold::kernel(carrier(dtype)), op, dtype)?;
    let info = &Strided::verbatim(op, &[layout.dims(), layout.stride()])?;
    let from = src.ptr(layout, op)?;
    for (image, images, first, count) in pieces.all(batch, places) {
        let block = Unfold::BLOCK;
        let grid = (
            (count as u64).div_ceil(u64::from(block)) as u32,
            columns.min(MAX_GRID) as u32,
            images.min(MAX_GRID) as u32,
        );
        let config = LaunchConfig { grid, block: (block, 1, 1), lds_bytes: 0 };
        let arguments = Unfold {
            first,
            places: count,
            images,
            w_out,
            k_h: h.taps,
            k_w: w.taps,
            stride: w.stride,
            dilation: w.dilation,
            padding_y: h.padding,
            padding_x: w.padding,
            info,
            src: further(from, dtype, image * layout.stride()[0]),
            dst: unfolded.slice.ptr(),
        };
        // SAFETY: `from` was checked for all images, and the workspace has room for the largest piece.
        unsafe { src.device.launch(unfold, config, &arguments)? };
        let seen = Layout::contiguous((images, columns, count));
        let bmnk = (images, c_out, count, columns);
        product(kernel, &unfolded, bmnk, &rows(images), &seen, output(image, first))?;
    }
    Ok(dst)
}

/// A convolution without a product: each thread goes through the window of its element. As many images at a time as one
/// launch can count.
fn direct(
    op: &'static str,
    kind: ConvolutionKind,
    [(src, layout), (kernel, kernel_layout)]: [(&RocmStorage, &Layout); 2],
    (h, w): (Axis, Axis),
    (h_out, w_out): (usize, usize),
    dst: RocmStorage,
) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    let (from, weights, to) = (src.ptr(layout, op)?, kernel.ptr(kernel_layout, op)?, dst.slice.ptr());
    let function = found(Convolution::kernel(kind, computing(op, dtype)?), op, dtype)?;
    src.order_after(kernel)?;
    let dims = layout.dims();
    let image = dst.slice.len().checked_div(dims[0]).unwrap_or(0);
    if image == 0 {
        return Ok(dst);
    }
    let step = (max_elements() / image).max(1);
    for (first, images) in runs(dims[0], step) {
        let sizes = [images, dims[1], dims[2], dims[3]];
        let lists = [&sizes[..], layout.stride(), kernel_layout.dims(), kernel_layout.stride()];
        let info = &Strided::verbatim(op, &lists)?;
        let arguments = Convolution {
            h_out,
            w_out,
            stride: w.stride,
            dilation: w.dilation,
            padding_y: h.padding,
            padding_x: w.padding,
            info,
            src: further(from, dtype, first * layout.stride()[0]),
            kernel: weights,
            dst: further(to, dtype, first * image),
        };
        let config = LaunchConfig::for_elements(op, images * image)?;
        // SAFETY: input and weights were checked against their buffers; the output holds the results of all images.
        unsafe { src.device.launch(function, config, &arguments)? };
    }
    Ok(dst)
}

/// (b, c, h, w) as (b, c, h * w), if one stride walks through all places.
fn merged_places(layout: &Layout) -> Option<Layout> {
    let (dims, s) = (layout.dims(), layout.stride());
    let stride = if dims[3] == 1 { s[2] } else { s[3] };
    if dims[2] != 1 && dims[3] != 1 && s[2] != dims[3] * s[3] {
        return None;
    }
    let dims = (dims[0], dims[1], dims[2] * dims[3]);
    Some(Layout::new(dims.into(), vec![s[0], s[1], stride], layout.start_offset()))
}

/// How an unfolded input is cut: into groups of whole images, or a single image into runs of places.
#[derive(Debug, PartialEq, Eq)]
struct Pieces {
    images: usize,
    places: usize,
}

impl Pieces {
    fn of(batch: usize, places: usize, bytes_per_place: usize, limit: usize) -> Self {
        let fitting = limit / bytes_per_place.max(1);
        if fitting >= places {
            return Self { images: (fitting / places.max(1)).clamp(1, batch.max(1)), places };
        }
        // Whole waves, so that the products stay aligned.
        let places = if fitting >= 64 { fitting / 64 * 64 } else { fitting.max(1) };
        Self { images: 1, places }
    }

    /// First image, number of images, first place and number of places of each piece.
    fn all(
        &self,
        batch: usize,
        places: usize,
    ) -> impl Iterator<Item = (usize, usize, usize, usize)> + use<'_> {
        (0..batch).step_by(self.images).flat_map(move |image| {
            let images = self.images.min(batch - image);
            (0..places)
                .step_by(self.places)
                .map(move |first| (image, images, first, self.places.min(places - first)))
        })
    }
}

/// (b, c_in, l) with a kernel (c_in, c_out, k) to (b, c_out, l_out), for every dtype.
pub(crate) fn conv_transpose1d(
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    p: &ParamsConvTranspose1D,
) -> Result<RocmStorage> {
    const OP: &str = "conv_transpose1d";
    check_rank(layout, 3)?;
    check_rank(kernel_layout, 3)?;
    let (padding, stride, dilation) = (p.padding, p.stride, p.dilation);
    let w = Axis { size: p.l_in, taps: p.k_size, padding, stride, dilation };
    let sizes = (1, w.transposed_out(OP, p.output_padding)?);
    let (layout, kernel_layout) = (flat(layout), flat(kernel_layout));
    let dst = transposed_result(OP, src, kernel, p.b_size * p.c_out, sizes)?;
    let operands = [(src, &layout), (kernel, &kernel_layout)];
    direct(OP, ConvolutionKind::ConvTranspose, operands, (Axis::FLAT, w), sizes, dst)
}

/// (b, c_in, h, w) with a kernel (c_in, c_out, k_h, k_w) to (b, c_out, h_out, w_out), for every dtype.
pub(crate) fn conv_transpose2d(
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    p: &ParamsConvTranspose2D,
) -> Result<RocmStorage> {
    const OP: &str = "conv_transpose2d";
    check_rank(layout, 4)?;
    check_rank(kernel_layout, 4)?;
    let (padding, stride, dilation) = (p.padding, p.stride, p.dilation);
    let h = Axis { size: p.i_h, taps: p.k_h, padding, stride, dilation };
    let w = Axis { size: p.i_w, taps: p.k_w, padding, stride, dilation };
    let sizes = (h.transposed_out(OP, p.output_padding)?, w.transposed_out(OP, p.output_padding)?);
    let dst = transposed_result(OP, src, kernel, p.b_size * p.c_out, sizes)?;
    let operands = [(src, layout), (kernel, kernel_layout)];
    direct(OP, ConvolutionKind::ConvTranspose, operands, (h, w), sizes, dst)
}

fn transposed_result(
    op: &'static str,
    src: &RocmStorage,
    kernel: &RocmStorage,
    planes: usize,
    (h_out, w_out): (usize, usize),
) -> Result<RocmStorage> {
    same_computing_dtype(op, src, kernel)?;
    // SAFETY: every element is written by the kernel, also where no input reaches.
    unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), planes * h_out * w_out, op) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(batch: usize, places: usize, limit: usize) -> Vec<(usize, usize, usize, usize)> {
        Pieces::of(batch, places, 4, limit).all(batch, places).collect()
    }

    #[test]
    fn pieces_are_images_or_runs_of_places() {
        assert_eq!(covered(3, 100, 4000), [(0, 3, 0, 100)]);
        assert_eq!(covered(3, 100, 800), [(0, 2, 0, 100), (2, 1, 0, 100)]);
        assert_eq!(covered(2, 100, 399), [(0, 1, 0, 64), (0, 1, 64, 36), (1, 1, 0, 64), (1, 1, 64, 36)]);
        assert_eq!(covered(1, 3, 0), [(0, 1, 0, 1), (0, 1, 1, 1), (0, 1, 2, 1)]);
        assert_eq!(covered(0, 3, 800), []);
    }

    #[test]
    fn sizes_that_32_bits_cannot_count_are_refused() {
        let axis = |size, padding, stride| Axis { size, taps: 3, padding, stride, dilation: 1 };
        assert_eq!(axis(10, 1, 2).out("conv1d").unwrap(), 5);
        assert_eq!(axis(5, 1, 2).transposed_out("conv_transpose1d", 1).unwrap(), 10);
        for odd in [axis(1 << 33, 0, 1), axis(10, 1 << 32, 1), axis(10, 0, 1 << 32), axis(10, usize::MAX, 1)]
        {
            assert!(odd.out("conv1d").is_err());
            assert!(odd.transposed_out("conv_transpose1d", 0).is_err());
        }
    }
}
