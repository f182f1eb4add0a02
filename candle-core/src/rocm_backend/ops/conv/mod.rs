//! Convolutions of (batch, channel, length) and (batch, channel, height, width): plain, transposed, and of the weights.
//!
//! The three are one another's gradients, and stand in a file each: [`output`], [`input`], [`weights`]. A shape goes to
//! MIOpen where that has a solution, else to our kernels ([`DeviceState::convolution`]). One of a single dimension is one
//! of height 1, and groups are computed together. [`gradients`] is what a graph keeps of them.
mod gradients;
mod input;
mod output;
mod pieces;
mod tiles;
mod weights;

pub use gradients::{conv1d_with_bias, conv2d_with_bias};
pub(crate) use gradients::{whole_conv1d, whole_conv2d, whole_conv_transpose1d, whole_conv_transpose2d};

use super::matmul::multiplies;
use super::{check_rank, computing, for_planes, found, same_computing_dtype, strided};
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::rocm_backend::device::{max_elements, Axis, Candidate, Computed, ConvShape, Direction, Plan, Way};
use crate::rocm_backend::error::unsupported_dtype;
use crate::rocm_backend::layout::{extent, magic, Strided};
use crate::rocm_backend::storage::RocmStorage;
use crate::rocm_backend::RocmError;
use crate::{DType, Layout, Result};
use hip_kernels::contract::{Convolution, ConvolutionKind, DevicePtr, CONV_PLACES, FOLD_CHANNELS};

/// Up to this many channels on one side of a group it costs less to go through the windows than to multiply.
const DIRECT_CHANNELS: usize = 4;

type Operand<'a> = (&'a RocmStorage, &'a Layout);

impl Axis {
    /// Returns an axis with the size of the output. `crate::sizes` has checked that there is one.
    fn plain(
        op: &'static str,
        (size, taps): (usize, usize),
        (padding, stride, dilation): (usize, usize, usize),
    ) -> Result<Self> {
        let axis = Self { size, taps, padding, stride, dilation, out: 0 };
        axis.counted(op, padding.saturating_mul(2))?;
        let axis = Self { out: (size + 2 * padding - dilation * (taps - 1) - 1) / stride + 1, ..axis };
        axis.countable(op)?;
        Ok(axis)
    }

    /// Returns the axis of the convolution whose input is the result of a transposed one of `from` places, likewise.
    fn transposed(
        op: &'static str,
        (from, taps): (usize, usize),
        (padding, stride, dilation): (usize, usize, usize),
        output_padding: usize,
    ) -> Result<Self> {
        let size = (from - 1) * stride + dilation * (taps - 1) + output_padding + 1 - 2 * padding;
        let axis = Self { size, taps, padding, stride, dilation, out: from };
        axis.counted(op, padding.saturating_mul(2))?;
        axis.countable(op)?;
        Ok(axis)
    }

    /// What the kernels divide when they walk back from the input to places is below the sum of these: see `period`.
    fn countable(self, op: &'static str) -> Result<()> {
        let lifted = self.period().0.saturating_mul(self.dilation);
        self.counted(op, self.size.saturating_add(self.padding).saturating_add(lifted))
    }

    /// From a tap of a transposed convolution that reaches a place to the next one, and how far back the input of that is:
    /// both make the same distance.
    fn period(self) -> (usize, usize) {
        let (mut common, mut rest) = (self.stride, self.dilation);
        while rest > 0 {
            (common, rest) = (rest, common % rest);
        }
        (self.stride / common.max(1), self.dilation / common.max(1))
    }

    /// The kernels count along a dimension, and what is `beside` its elements, in 32 bits.
    fn counted(self, op: &'static str, beside: usize) -> Result<()> {
        let Self { size, taps, padding, stride, dilation, out } = self;
        let spans = [size, out, padding, stride, dilation, taps.saturating_mul(dilation), beside];
        let limit = i32::MAX as usize / 2;
        match spans.into_iter().max() {
            Some(elements) if elements > limit => {
                Err(RocmError::TooManyElements { op, elements, limit }.into())
            }
            _ => Ok(()),
        }
    }

    fn steps_by_one(self) -> bool {
        self.stride == 1 && self.dilation == 1
    }

    /// Whether output places are the input's.
    fn is_pointwise(self) -> bool {
        self.taps == 1 && self.padding == 0 && self.stride == 1
    }
}

/// The layout of (b, c, l) as (b, c, 1, l).
pub(crate) fn flat(layout: &Layout) -> Layout {
    let (dims, strides) = (layout.dims(), layout.stride());
    let strides = vec![strides[0], strides[1], 0, strides[2]];
    Layout::new((dims[0], dims[1], 1, dims[2]).into(), strides, layout.start_offset())
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
    let shape = shape1d(OP, src.slice.dtype(), p, groups)?;
    compute(OP, &shape, [(src, &flat(layout)), (kernel, &flat(kernel_layout))])
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
    const OP: &str = "conv2d";
    check_rank(layout, 4)?;
    check_rank(kernel_layout, 4)?;
    let shape = shape2d(OP, src.slice.dtype(), p, groups)?;
    compute(OP, &shape, [(src, layout), (kernel, kernel_layout)])
}

/// (b, c_in, l) with a kernel (c_in, c_out, k) to (b, c_out, l_out), for every dtype.
pub(crate) fn conv_transpose1d(
    src: &RocmStorage,
    layout: &Layout,
    kernel: &RocmStorage,
    kernel_layout: &Layout,
    p: &ParamsConvTranspose1D,
    groups: usize,
) -> Result<RocmStorage> {
    const OP: &str = "conv_transpose1d";
    check_rank(layout, 3)?;
    check_rank(kernel_layout, 3)?;
    let shape = transposed_shape1d(OP, src.slice.dtype(), p, groups)?;
    compute(OP, &shape, [(src, &flat(layout)), (kernel, &flat(kernel_layout))])
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
    let shape = transposed_shape2d(OP, src.slice.dtype(), p)?;
    compute(OP, &shape, [(src, layout), (kernel, kernel_layout)])
}

fn shape1d(op: &'static str, dtype: DType, p: &ParamsConv1D, groups: usize) -> Result<ConvShape> {
    let w = Axis::plain(op, (p.l_in, p.k_size), (p.padding, p.stride, p.dilation))?;
    Ok(plain(dtype, (p.b_size, groups, p.c_in, p.c_out), (Axis::FLAT, w)))
}

fn shape2d(op: &'static str, dtype: DType, p: &ParamsConv2D, groups: usize) -> Result<ConvShape> {
    let steps = (p.padding, p.stride, p.dilation);
    let axes = (Axis::plain(op, (p.i_h, p.k_h), steps)?, Axis::plain(op, (p.i_w, p.k_w), steps)?);
    Ok(plain(dtype, (p.b_size, groups, p.c_in, p.c_out), axes))
}

fn plain(
    dtype: DType,
    (batch, groups, c_in, c_out): (usize, usize, usize, usize),
    (h, w): (Axis, Axis),
) -> ConvShape {
    ConvShape { direction: Direction::Output, dtype, batch, groups, c_in, c_out, h, w }
}

/// The channels of the input of a transposed convolution are those of the output of the plain one. Upstream's parameters
/// hold the input channels of a group, and the output channels of a group.
fn transposed_shape1d(
    op: &'static str,
    dtype: DType,
    p: &ParamsConvTranspose1D,
    groups: usize,
) -> Result<ConvShape> {
    let w = Axis::transposed(op, (p.l_in, p.k_size), (p.padding, p.stride, p.dilation), p.output_padding)?;
    let shape = plain(dtype, (p.b_size, groups, p.c_out, p.c_in), (Axis::FLAT, w));
    Ok(shape.towards(Direction::Input))
}

fn transposed_shape2d(op: &'static str, dtype: DType, p: &ParamsConvTranspose2D) -> Result<ConvShape> {
    let steps = (p.padding, p.stride, p.dilation);
    let h = Axis::transposed(op, (p.i_h, p.k_h), steps, p.output_padding)?;
    let w = Axis::transposed(op, (p.i_w, p.k_w), steps, p.output_padding)?;
    Ok(plain(dtype, (p.b_size, 1, p.c_out, p.c_in), (h, w)).towards(Direction::Input))
}

/// What `shape` says, of two operands in the order of its direction's words, as a dense result.
fn compute(op: &'static str, shape: &ConvShape, operands: [Operand; 2]) -> Result<RocmStorage> {
    let [(a, a_layout), (b, b_layout)] = operands;
    let dtype = same_computing_dtype(op, a, b)?;
    if shape.direction != Direction::Input && !multiplies(dtype) {
        return Err(unsupported_dtype(op, dtype));
    }
    for places in [shape.places(), shape.h.size * shape.w.size] {
        if places > max_elements() {
            return Err(RocmError::TooManyElements { op, elements: places, limit: max_elements() }.into());
        }
    }
    let elements: usize = shape.result().iter().product();
    let multiplied: usize = match shape.direction {
        Direction::Output => shape.columns() * shape.h.size * shape.w.size,
        Direction::Input => shape.c_out * shape.h.taps * shape.w.taps * shape.places(),
        Direction::Weights => shape.batch * shape.places() * shape.h.size * shape.w.size,
    };
    // The kernels read where there is an element, whatever they make of it.
    if elements == 0 || multiplied == 0 {
        return strided::zeros(&a.device, dtype, elements);
    }
    fits_32_bits(op, a_layout)?;
    fits_32_bits(op, b_layout)?;
    // SAFETY: every element is written, by the library or by our kernels.
    let dst = unsafe { RocmStorage::alloc(&a.device, dtype, elements, op)? };
    a.order_after(b)?;
    let own = |way: Way| match shape.direction {
        Direction::Output => output::compute(op, shape, operands, &dst, way),
        Direction::Input => input::compute(op, shape, operands, &dst, way),
        Direction::Weights => weights::compute(op, shape, operands, &dst),
    };
    let state = a.device.state();
    match state.convolution(shape) {
        Computed::Own(way) => own(way)?,
        Computed::Library(plan) => {
            if !by_library(op, shape, &plan, operands, &dst)? {
                own(state.own_convolution(dtype))?;
            }
        }
        Computed::Measured(plans) => {
            state.tune_convolution(shape, &plans, |candidate| match candidate {
                Candidate::Own(way) => own(way).map(|()| true),
                Candidate::Library(plan) => by_library(op, shape, plan, operands, &dst),
            })?;
            // What was measured last may have been a solution that fails.
            own(state.own_convolution(dtype))?;
        }
    }
    Ok(dst)
}

/// One call of the library; dense copies of operands that are not.
fn by_library(
    op: &'static str,
    shape: &ConvShape,
    plan: &Plan,
    operands: [Operand; 2],
    dst: &RocmStorage,
) -> Result<bool> {
    let [a, b] = operands;
    let (dense_a, dense_b) = (dense(op, a)?, dense(op, b)?);
    let pointers = [dense_a.ptr(op, a)?, dense_b.ptr(op, b)?];
    // SAFETY: what the library leaves in it, nobody reads.
    let workspace = unsafe { RocmStorage::alloc(&dst.device, DType::U8, plan.workspace(), op)? };
    let at = workspace.slice.ptr();
    // SAFETY: dense operands and a result of the shape's sizes, and the workspace that the solution asks for.
    unsafe { dst.device.state().convolve_by_library(shape, plan, pointers, dst.slice.ptr(), at) }
}

/// An operand that is dense where it lies, or a copy that is.
enum Dense {
    There,
    Copy(RocmStorage),
}

impl Dense {
    fn ptr(&self, op: &'static str, (there, layout): Operand) -> Result<DevicePtr> {
        match self {
            Self::There => there.ptr(layout, op),
            Self::Copy(copy) => Ok(copy.slice.ptr()),
        }
    }
}

fn dense(op: &'static str, (storage, layout): Operand) -> Result<Dense> {
    match layout.is_contiguous() {
        true => Ok(Dense::There),
        false => Ok(Dense::Copy(strided::dense(storage, layout, op)?)),
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

/// One launch of a [`Convolution`].
struct Walk<'a> {
    op: &'static str,
    kind: ConvolutionKind,
    /// Dims and strides of what is read, then of the weights.
    info: [&'a [usize]; 4],
    src: DevicePtr,
    kernel: DevicePtr,
    dst: DevicePtr,
    /// Places written, and the axes' other sizes.
    out: (usize, usize),
    axes: (Axis, Axis),
    /// Output channels, and those of a group.
    channels: usize,
    group_out: usize,
    /// From image to image of the output.
    dst_stride: usize,
}

impl Walk<'_> {
    fn launch(&self, storage: &RocmStorage) -> Result<()> {
        let Self { op, kind, info, .. } = *self;
        let dtype = storage.slice.dtype();
        let function = found(Convolution::kernel(kind, computing(op, dtype)?), op, dtype)?;
        let ((h_out, w_out), (h, w)) = (self.out, self.axes);
        let places = h_out * w_out;
        let (per_thread, channels) = match kind {
            ConvolutionKind::Conv => (CONV_PLACES, self.channels),
            ConvolutionKind::Fold => (1, self.channels.div_ceil(FOLD_CHANNELS)),
            _ => (1, self.channels),
        };
        let config = for_planes(op, places, per_thread, channels, info[0][0])?;
        let (period, back) = w.period();
        let arguments = Convolution {
            places,
            w_out,
            w_magic: magic(w_out),
            channels: self.channels,
            group_out: self.group_out,
            stride: w.stride,
            stride_magic: magic(w.stride),
            dilation: w.dilation,
            padding_y: h.padding,
            padding_x: w.padding,
            period,
            back,
            dst_stride: self.dst_stride,
            info: &Strided::verbatim(op, &info)?,
            src: self.src,
            kernel: self.kernel,
            dst: self.dst,
        };
        // SAFETY: input and weights were checked against their buffers; the output holds the results of all images.
        unsafe { storage.device.launch(function, config, &arguments) }
    }
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
