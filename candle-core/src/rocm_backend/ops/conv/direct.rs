//! Direct convolution by one kernel, for few channels and for dtypes without matrix products.
use crate::rocm_backend::layout::{magic, Strided};
use crate::rocm_backend::libraries::Axis;
use crate::rocm_backend::ops::{computing, for_planes, found};
use crate::rocm_backend::storage::RocmStorage;
use crate::Result;
use hip_kernels::contract::{Convolution, ConvolutionKind, DevicePtr, CONV_PLACES_PER_THREAD, FOLD_CHANNELS};

/// Maximum number of input or output channels of a group for which direct convolution is faster than matrix products.
pub(super) const DIRECT_CHANNELS: usize = 4;

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
