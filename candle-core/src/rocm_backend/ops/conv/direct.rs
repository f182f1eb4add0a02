//! Direct convolution by one kernel, for few channels and for dtypes without matrix products.
use crate::rocm_backend::layout::{magic, Strided};
use crate::rocm_backend::libraries::{Axis, ConvShape};
use crate::rocm_backend::ops::{computing, for_planes, found};
use crate::rocm_backend::storage::RocmStorage;
use crate::{DType, Result};
use hip_kernels::contract::{
    Convolution, ConvolutionKind, DevicePtr, CONV_CHANNELS_PER_THREAD, CONV_PLACES_PER_THREAD,
    CONV_TAPS_AT_ONCE, FOLD_CHANNELS,
};

/// Maximum number of input or output channels of a group for which direct convolution is faster than matrix products.
pub(super) const DIRECT_CHANNELS: usize = 4;

/// Maximum number of input channels of a group that a direct convolution with weights in LDS computes.
const GROUP_CHANNELS: usize = 8;
/// Maximum number of output channels of such a group. With more, a product reuses its unfolded input more often.
const GROUP_OUTPUTS: usize = 32;
/// Maximum number of bytes of the weights that a workgroup holds in LDS.
const MAX_WEIGHTS: usize = 32 << 10;
/// Minimum output width for the kernels that compute several adjacent outputs per thread.
const MIN_ROW: usize = 4;

/// Returns true if a kernel can compute adjacent outputs of a row together.
pub(super) fn computes_rows(ConvShape { h, w, .. }: &ConvShape) -> bool {
    h.steps_by_one() && w.steps_by_one() && w.out >= MIN_ROW
}

/// Returns the number of bytes of LDS of [`ConvolutionKind::ConvGroups`], or `None` if another kernel or algorithm is faster.
pub(super) fn weights_in_lds(shape: &ConvShape) -> Option<usize> {
    let ConvShape { groups, c_in, c_out, h, w, dtype, .. } = *shape;
    let sum_bytes = dtype.size_in_bytes().max(DType::F32.size_in_bytes());
    let bytes =
        c_in * h.taps * w.taps.next_multiple_of(CONV_TAPS_AT_ONCE) * CONV_CHANNELS_PER_THREAD * sum_bytes;
    let is_small = c_in <= GROUP_CHANNELS && (DIRECT_CHANNELS + 1..=GROUP_OUTPUTS).contains(&c_out);
    let is_product = h.is_pointwise() && w.is_pointwise();
    (groups > 1 && is_small && !is_product && computes_rows(shape) && bytes <= MAX_WEIGHTS).then_some(bytes)
}

/// A launch of a [`Convolution`] kernel.
pub(super) struct Direct<'a> {
    pub(super) op: &'static str,
    pub(super) kind: ConvolutionKind,
    /// Dims and strides of the input, then of the weights.
    pub(super) info: [&'a [usize]; 4],
    pub(super) src: DevicePtr,
    pub(super) kernel: DevicePtr,
    pub(super) dst: DevicePtr,
    /// Height and width of the output.
    pub(super) out: (usize, usize),
    pub(super) axes: (Axis, Axis),
    /// Number of output channels.
    pub(super) channels: usize,
    pub(super) group_out: usize,
    /// Stride of the output's images in elements.
    pub(super) dst_stride: usize,
    pub(super) lds_bytes: usize,
}

impl Direct<'_> {
    pub(super) fn launch(&self, storage: &RocmStorage) -> Result<()> {
        let Self { op, kind, info, .. } = *self;
        let dtype = storage.slice.dtype();
        let function = found(Convolution::kernel(kind, computing(op, dtype)?), op, dtype)?;
        let ((h_out, w_out), (h, w)) = (self.out, self.axes);
        let places = h_out * w_out;
        let (per_thread, channels) = match kind {
            ConvolutionKind::Conv => (CONV_PLACES_PER_THREAD, self.channels),
            ConvolutionKind::Fold => (1, self.channels.div_ceil(FOLD_CHANNELS)),
            ConvolutionKind::ConvGroups => {
                (1, self.channels / self.group_out * self.group_out.div_ceil(CONV_CHANNELS_PER_THREAD))
            }
            _ => (1, self.channels),
        };
        let mut config = for_planes(op, places, per_thread, channels, info[0][0])?;
        config.lds_bytes = self.lds_bytes as u32;
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
