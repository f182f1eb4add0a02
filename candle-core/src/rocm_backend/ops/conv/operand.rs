//! Operands of convolutions: as library calls and products read them.
use crate::rocm_backend::layout::extent;
use crate::rocm_backend::ops::{strided, Operand};
use crate::rocm_backend::storage::RocmStorage;
use crate::rocm_backend::RocmError;
use crate::{Layout, Result};
use hip_kernels::contract::DevicePtr;

/// The layout of (b, c, l) as (b, c, 1, l).
pub(crate) fn flat(layout: &Layout) -> Layout {
    let (dims, strides) = (layout.dims(), layout.stride());
    let strides = vec![strides[0], strides[1], 0, strides[2]];
    Layout::new((dims[0], dims[1], 1, dims[2]).into(), strides, layout.start_offset())
}

/// An operand that is dense where it lies, or a copy that is.
pub(super) enum Dense {
    There,
    Copy(RocmStorage),
}

impl Dense {
    pub(super) fn ptr(&self, op: &'static str, (there, layout): Operand) -> Result<DevicePtr> {
        match self {
            Self::There => there.ptr(layout, op),
            Self::Copy(copy) => Ok(copy.slice.ptr()),
        }
    }
}

pub(super) fn dense(op: &'static str, (storage, layout): Operand) -> Result<Dense> {
    match layout.is_contiguous() {
        true => Ok(Dense::There),
        false => Ok(Dense::Copy(strided::dense(storage, layout, op)?)),
    }
}

/// A dense kernel, the one at hand or what `made` then holds, and the element that it begins at.
pub(super) fn dense_kernel<'a>(
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

/// (b, c, h, w) as (b, c, h * w), if one stride walks through all places.
pub(super) fn merged_places(layout: &Layout) -> Option<Layout> {
    let (dims, s) = (layout.dims(), layout.stride());
    let stride = if dims[3] == 1 { s[2] } else { s[3] };
    if dims[2] != 1 && dims[3] != 1 && s[2] != dims[3] * s[3] {
        return None;
    }
    let dims = (dims[0], dims[1], dims[2] * dims[3]);
    Some(Layout::new(dims.into(), vec![s[0], s[1], stride], layout.start_offset()))
}
