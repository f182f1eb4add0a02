//! Unfolded inputs (im2col) in scratch memory.
use crate::rocm_backend::layout::{magic, Strided};
use crate::rocm_backend::libraries::Axis;
use crate::rocm_backend::ops::{for_planes, found};
use crate::rocm_backend::storage::{copy_element, offset_by_elements, RocmStorage};
use crate::{Layout, Result};
use hip_kernels::contract::{DevicePtr, KernelFamily, Unfold};

/// Rounds the row length of an unfolded input up to whole vectors.
pub(super) fn padded(places: usize, bytes_per_element: usize) -> usize {
    places.next_multiple_of(Unfold::PACK_BYTES / bytes_per_element)
}

/// Unfolds the input for some output positions of some images: rows (channel, tap) of `pitch` elements, padded with zeros.
pub(super) struct Unfolding<'a> {
    pub(super) op: &'static str,
    /// Layout of the whole input.
    pub(super) layout: &'a Layout,
    pub(super) axes: (Axis, Axis),
    /// First image and number of images.
    pub(super) images: (usize, usize),
    /// First output position and number of positions.
    pub(super) places: (usize, usize),
    pub(super) pitch: usize,
    /// Stride of the images in the result, in elements.
    pub(super) image_stride: usize,
}

impl Unfolding<'_> {
    /// Enqueues the kernel. `dst` must have space for the result.
    pub(super) fn launch(&self, src: &RocmStorage, dst: DevicePtr) -> Result<()> {
        let Self { op, layout, axes: (h, w), .. } = *self;
        let dtype = src.slice.dtype();
        let kernel = found(Unfold::kernel(copy_element(dtype)), op, dtype)?;
        let ((image, images), (first, places)) = (self.images, self.places);
        let from = src.ptr(layout, op)?;
        let arguments = Unfold {
            first,
            places,
            pitch: self.pitch,
            images,
            image_stride: self.image_stride,
            w_out: w.out,
            w_magic: magic(w.out),
            k_h: h.taps,
            k_w: w.taps,
            stride: w.stride,
            dilation: w.dilation,
            padding_y: h.padding,
            padding_x: w.padding,
            info: &Strided::verbatim(op, &[layout.dims(), layout.stride()])?,
            src: offset_by_elements(from, dtype, image * layout.stride()[0]),
            dst,
        };
        let pack = Unfold::PACK_BYTES / dtype.size_in_bytes();
        let config = for_planes(op, places, pack, layout.dims()[1] * h.taps, images)?;
        // SAFETY: `from` was checked for all images, and the callers allocate `dst` for the result.
        unsafe { src.device.launch(kernel, config, &arguments) }
    }
}
