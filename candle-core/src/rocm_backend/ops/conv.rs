//! Convolutions of (batch, channel, length) and (batch, channel, height, width), plain and transposed.
//!
//! A plain one is a matrix product with the unfolded input (im2col), made in pieces of bounded size; or of the input
//! itself where kernels have one element; or, for very few output channels, or input channels of a group, one kernel that
//! goes through the windows. One of a single dimension is one of height 1. Groups are computed together where nothing
//! needs a gradient. Transposed ones are the products of all taps, of which every place then sums those that reach it, in
//! pieces likewise; those of few input channels, or of dtypes without products, are one kernel.
use super::matmul::{multiplies, product, Output};
use super::{check_rank, computing, for_planes, found, same_computing_dtype, strided};
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::op::BackpropOp;
use crate::rocm_backend::device::max_elements;
use crate::rocm_backend::error::unsupported_dtype;
use crate::rocm_backend::layout::{extent, magic, Strided};
use crate::rocm_backend::storage::{carrier, further, RocmStorage};
use crate::rocm_backend::RocmError;
use crate::{Layout, Result, Storage, Tensor};
use hip_kernels::contract::{Convolution, ConvolutionKind, DevicePtr, KernelFamily, Unfold, CONV_PLACES};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Up to this many channels on one side of a group it costs less to go through the windows than to multiply.
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
        // What the kernel divides is below the sum of these: see `period`.
        let lifted = self.period().0.saturating_mul(self.dilation);
        self.counted(op, out.saturating_add(self.padding).saturating_add(lifted))?;
        Ok(out)
    }

    /// From a tap of a transposed convolution that reaches a place to the next one, and how far back the input of that is:
    /// both make the same distance.
    fn period(self) -> (usize, usize) {
        let (mut common, mut rest) = (self.stride, self.dilation);
        while rest > 0 {
            (common, rest) = (rest, common % rest);
        }
        (self.stride / common, self.dilation / common)
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

/// (b, c_in, l) with a kernel (c_out, c_in, k) to (b, c_out, l_out), for the dtypes of matmul; the channels of each of the
/// groups.
pub(crate) fn conv1d(
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    p: &ParamsConv1D,
    groups: usize,
) -> Result<RocmStorage> {
    const OP: &str = "conv1d";
    check_rank(layout, 3)?;
    check_rank(kernel_layout, 3)?;
    let (padding, stride, dilation) = (p.padding, p.stride, p.dilation);
    let w = Axis { size: p.l_in, taps: p.k_size, padding, stride, dilation };
    let (layout, kernel_layout) = (flat(layout), flat(kernel_layout));
    convolve(OP, src, &layout, kernel, &kernel_layout, (p.b_size, p.c_in, p.c_out, groups), (Axis::FLAT, w))
}

/// (b, c_in, h, w) with a kernel (c_out, c_in, k_h, k_w) to (b, c_out, h_out, w_out), likewise.
pub(crate) fn conv2d(
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    p: &ParamsConv2D,
    groups: usize,
) -> Result<RocmStorage> {
    check_rank(layout, 4)?;
    check_rank(kernel_layout, 4)?;
    let (padding, stride, dilation) = (p.padding, p.stride, p.dilation);
    let h = Axis { size: p.i_h, taps: p.k_h, padding, stride, dilation };
    let w = Axis { size: p.i_w, taps: p.k_w, padding, stride, dilation };
    convolve("conv2d", src, layout, kernel, kernel_layout, (p.b_size, p.c_in, p.c_out, groups), (h, w))
}

/// The layout of (b, c, l) as (b, c, 1, l).
pub(crate) fn flat(layout: &Layout) -> Layout {
    let (dims, strides) = (layout.dims(), layout.stride());
    let strides = vec![strides[0], strides[1], 0, strides[2]];
    Layout::new((dims[0], dims[1], 1, dims[2]).into(), strides, layout.start_offset())
}

/// All groups of a convolution at once, where they lie on one ROCm device and nothing needs a gradient.
pub(crate) fn grouped_conv1d(
    x: &Tensor,
    kernel: &Tensor,
    p: &ParamsConv1D,
    groups: usize,
) -> Result<Option<Tensor>> {
    grouped(x, kernel, groups, |src, kernel_storage| {
        Ok((conv1d(src, x.layout(), kernel_storage, kernel.layout(), p, groups)?, p.out_dims()))
    })
}

/// The same.
pub(crate) fn grouped_conv2d(
    x: &Tensor,
    kernel: &Tensor,
    p: &ParamsConv2D,
    groups: usize,
) -> Result<Option<Tensor>> {
    grouped(x, kernel, groups, |src, kernel_storage| {
        Ok((conv2d(src, x.layout(), kernel_storage, kernel.layout(), p, groups)?, p.out_dims()))
    })
}

/// `compute` gives the result and the dims of one group's.
fn grouped(
    x: &Tensor,
    kernel: &Tensor,
    groups: usize,
    compute: impl Fn(&RocmStorage, &RocmStorage) -> Result<(RocmStorage, Vec<usize>)>,
) -> Result<Option<Tensor>> {
    let whole =
        groups > 1 && kernel.dims()[0].is_multiple_of(groups) && x.device().same_device(kernel.device());
    if !whole || x.track_op() || kernel.track_op() {
        return Ok(None);
    }
    let (src, weights) = (x.storage(), kernel.storage());
    let (Storage::Rocm(src), Storage::Rocm(weights)) = (&*src, &*weights) else { return Ok(None) };
    let (dst, mut dims) = compute(src, weights)?;
    dims[1] *= groups;
    Ok(Some(crate::tensor::from_storage(Storage::Rocm(dst), dims, BackpropOp::none(), false)))
}

fn convolve(
    op: &'static str,
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    (batch, c_in, c_out, groups): (usize, usize, usize, usize),
    (h, w): (Axis, Axis),
) -> Result<RocmStorage> {
    let dtype = same_computing_dtype(op, src, kernel)?;
    if !multiplies(dtype) {
        return Err(unsupported_dtype(op, dtype));
    }
    let (h_out, w_out) = (h.out(op)?, w.out(op)?);
    let (places, columns) = (h_out * w_out, c_in * h.taps * w.taps);
    let elements = batch * groups * c_out * places;
    if places > max_elements() {
        return Err(RocmError::TooManyElements { op, elements: places, limit: max_elements() }.into());
    }
    // The kernels read where there is an element, whatever they make of it.
    if columns == 0 || h.size * w.size == 0 {
        return strided::zeros(&src.device, dtype, elements);
    }
    fits_32_bits(op, layout)?;
    // SAFETY: every element is written by the products below, or by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, elements, op)? };
    let out = dst.slice.ptr();
    if elements == 0 {
        return Ok(dst);
    }
    src.order_after(kernel)?;
    if c_out <= DIRECT_CHANNELS || (groups > 1 && c_in <= DIRECT_CHANNELS) {
        let info = [layout.dims(), layout.stride(), kernel_layout.dims(), kernel_layout.stride()];
        let ends = (src.ptr(layout, op)?, kernel.ptr(kernel_layout, op)?, out);
        walk(
            op,
            ConvolutionKind::Conv,
            src,
            info,
            ends,
            (h, w),
            (h_out, w_out),
            c_out,
            groups * c_out * places,
        )?;
        return Ok(dst);
    }
    let mut made = None;
    let (kernel, offset) = dense_kernel(op, kernel, kernel_layout, &mut made)?;
    // A kernel row times what each place sees is the output as it should lie: (c_out, places). `seen` begins at `start`
    // and has the strides of images, groups, rows and places. Each product is that of one group of all images, or of all
    // groups of one image.
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
                ptr: further(out, dtype, image * by_image[2] + first + to),
                row_stride: places,
                batch_stride: stride[2],
            };
            product(kernel, seen, (batch, c_out, count, columns), &lhs, &rhs, output)?;
        }
        Ok::<_, crate::Error>(())
    };
    if h.is_pointwise() && w.is_pointwise() {
        if let Some(seen) = merged_places(layout) {
            let s = seen.stride();
            let strides = [s[0], c_in * s[1], s[1], s[2]];
            multiply(src, seen.start_offset(), strides, (0, batch), (0, places))?;
            return Ok(dst);
        }
    }
    let (width, columns) = (dtype.size_in_bytes(), groups * columns);
    let pieces = Pieces::of(batch, places, columns * width, conv_workspace());
    let pack = Unfold::PACK_BYTES / width;
    let room = pieces.images * pieces.places.next_multiple_of(pack) * columns;
    // SAFETY: each piece is written before it is multiplied.
    let unfolded = unsafe { RocmStorage::alloc(&src.device, dtype, room, op)? };
    let unfold = found(Unfold::kernel(carrier(dtype)), op, dtype)?;
    let info = &Strided::verbatim(op, &[layout.dims(), layout.stride()])?;
    let from = src.ptr(layout, op)?;
    for (image, images, first, count) in pieces.all(batch, places) {
        let pitch = count.next_multiple_of(pack);
        let arguments = Unfold {
            first,
            places: count,
            pitch,
            images,
            w_out,
            w_magic: magic(w_out),
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
        let config = for_planes(op, count, pack, groups * c_in * h.taps, images)?;
        // SAFETY: `from` was checked for all images, and the workspace has room for the largest piece.
        unsafe { src.device.launch(unfold, config, &arguments)? };
        let strides = [columns * pitch, columns / groups * pitch, pitch, 1];
        multiply(&unfolded, 0, strides, (image, images), (first, count))?;
    }
    Ok(dst)
}

/// A dense kernel, the one at hand or what `made` then holds, and the element that it begins at.
fn dense_kernel<'a>(
    op: &'static str,
    kernel: &'a RocmStorage,
    layout: &Layout,
    made: &'a mut Option<RocmStorage>,
) -> Result<(&'a RocmStorage, usize)> {
    match layout.is_contiguous() {
        true => Ok((kernel, layout.start_offset())),
        false => Ok((made.insert(strided::dense(kernel, layout, op)?), 0)),
    }
}

/// Kernels add up in 32 bits how far an element is from the first of its plane, the last two dims.
pub(crate) fn fits_32_bits(op: &'static str, layout: &Layout) -> Result<()> {
    let [.., h, w] = *layout.dims() else { return Ok(()) };
    let [.., s_h, s_w] = *layout.stride() else { return Ok(()) };
    let elements = extent(&Layout::new((h, w).into(), vec![s_h, s_w], 0)).unwrap_or(usize::MAX);
    let limit = u32::MAX as usize;
    match elements > limit {
        true => Err(RocmError::TooManyElements { op, elements, limit }.into()),
        false => Ok(()),
    }
}

/// One launch of a [`Convolution`]: `info` is the dims and strides of the input and of the kernel, whose output channels
/// are as many as those written; `ends` input, weights and output.
#[allow(clippy::too_many_arguments, reason = "a kernel's")]
fn walk(
    op: &'static str,
    kind: ConvolutionKind,
    src: &RocmStorage,
    info: [&[usize]; 4],
    (from, kernel, dst): (DevicePtr, DevicePtr, DevicePtr),
    (h, w): (Axis, Axis),
    (h_out, w_out): (usize, usize),
    group_out: usize,
    dst_stride: usize,
) -> Result<()> {
    let dtype = src.slice.dtype();
    let function = found(Convolution::kernel(kind, computing(op, dtype)?), op, dtype)?;
    let places = h_out * w_out;
    let (channels, per_thread) = match kind {
        ConvolutionKind::Conv => (info[2][0], CONV_PLACES),
        _ => (info[2][1], 1),
    };
    let config = for_planes(op, places, per_thread, channels, info[0][0])?;
    let (period, back) = w.period();
    let arguments = Convolution {
        places,
        w_out,
        w_magic: magic(w_out),
        group_out,
        stride: w.stride,
        stride_magic: magic(w.stride),
        dilation: w.dilation,
        padding_y: h.padding,
        padding_x: w.padding,
        period,
        back,
        dst_stride,
        info: &Strided::verbatim(op, &info)?,
        src: from,
        kernel,
        dst,
    };
    // SAFETY: input and weights were checked against their buffers; the output holds the results of all images.
    unsafe { src.device.launch(function, config, &arguments) }
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
    transposed(OP, [(src, &layout), (kernel, &kernel_layout)], (Axis::FLAT, w), sizes)
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
    transposed(OP, [(src, layout), (kernel, kernel_layout)], (h, w), sizes)
}

fn transposed(
    op: &'static str,
    [(src, layout), (kernel, kernel_layout)]: [(&RocmStorage, &Layout); 2],
    (h, w): (Axis, Axis),
    (h_out, w_out): (usize, usize),
) -> Result<RocmStorage> {
    let dtype = same_computing_dtype(op, src, kernel)?;
    let (dims, k_dims) = (layout.dims(), kernel_layout.dims());
    let (batch, c_in, c_out, places) = (dims[0], dims[1], k_dims[1], h_out * w_out);
    let elements = batch * c_out * places;
    fits_32_bits(op, layout)?;
    // SAFETY: every element is written by a kernel, also where no input reaches.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, elements, op)? };
    let (to, dst_stride) = (dst.slice.ptr(), c_out * places);
    if elements == 0 {
        return Ok(dst);
    }
    src.order_after(kernel)?;
    let seen = merged_places(layout).filter(|_| multiplies(dtype) && c_in > DIRECT_CHANNELS);
    let Some(seen) = seen else {
        let info = [dims, layout.stride(), k_dims, kernel_layout.stride()];
        let ends = (src.ptr(layout, op)?, kernel.ptr(kernel_layout, op)?, to);
        walk(op, ConvolutionKind::ConvTranspose, src, info, ends, (h, w), (h_out, w_out), 0, dst_stride)?;
        return Ok(dst);
    };
    let mut made = None;
    let (kernel, offset) = dense_kernel(op, kernel, kernel_layout, &mut made)?;
    // The products of every tap with every input place, of some output channels at a time, each rounded to the dtype.
    let (taps, inputs) = (h.taps * w.taps, h.size * w.size);
    let pieces = Pieces::of(batch, c_out, taps * inputs * dtype.size_in_bytes(), conv_workspace());
    let room = pieces.images * pieces.places * taps * inputs;
    // SAFETY: each piece is written before it is summed.
    let products = unsafe { RocmStorage::alloc(&src.device, dtype, room, op)? };
    for (image, images, first, count) in pieces.all(batch, c_out) {
        let (rows, s) = (count * taps, seen.stride());
        let start = seen.start_offset() + image * s[0];
        let lhs = Layout::new((images, rows, c_in).into(), vec![0, 1, c_out * taps], offset + first * taps);
        let rhs = Layout::new((images, c_in, inputs).into(), s.to_vec(), start);
        let ptr = products.slice.ptr();
        let output = Output { device: &src.device, ptr, row_stride: inputs, batch_stride: rows * inputs };
        product(kernel, src, (images, rows, inputs, c_in), &lhs, &rhs, output)?;
        let sizes = [images, rows, h.size, w.size];
        let strides = [rows * inputs, inputs, w.size, 1];
        let info = [&sizes[..], &strides, &[0, count, h.taps, w.taps], &[0; 4]];
        let ends = (ptr, DevicePtr::NULL, further(to, dtype, image * dst_stride + first * places));
        walk(op, ConvolutionKind::Fold, src, info, ends, (h, w), (h_out, w_out), 0, dst_stride)?;
    }
    Ok(dst)
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
