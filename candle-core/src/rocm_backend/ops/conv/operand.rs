//! Operands of convolutions, made dense or reshaped for library calls and matrix products.
use crate::rocm_backend::layout::extent;
use crate::rocm_backend::ops::{strided, Operand};
use crate::rocm_backend::storage::RocmStorage;
use crate::rocm_backend::RocmError;
use crate::{Layout, Result};
use hip_kernels::contract::DevicePtr;

/// Converts the layout of (b, c, l) to (b, c, 1, l).
pub(crate) fn flat(layout: &Layout) -> Layout {
    let (dims, strides) = (layout.dims(), layout.stride());
    let strides = vec![strides[0], strides[1], 0, strides[2]];
    Layout::new((dims[0], dims[1], 1, dims[2]).into(), strides, layout.start_offset())
}

/// An operand that is dense itself, or a dense copy of it.
pub(super) enum Dense {
    InPlace,
    Copy(RocmStorage),
}

impl Dense {
    pub(super) fn ptr(&self, op: &'static str, (storage, layout): Operand) -> Result<DevicePtr> {
        match self {
            Self::InPlace => storage.ptr(layout, op),
            Self::Copy(copy) => Ok(copy.slice.ptr()),
        }
    }
}

pub(super) fn dense(op: &'static str, (storage, layout): Operand) -> Result<Dense> {
    match layout.is_contiguous() {
        true => Ok(Dense::InPlace),
        false => Ok(Dense::Copy(strided::dense(storage, layout, op)?)),
    }
}

/// Returns a dense kernel and the index of its first element. If a copy is needed, `copy` holds it.
pub(super) fn dense_kernel<'a>(
    op: &'static str,
    kernel: &'a RocmStorage,
    layout: &Layout,
    copy: &'a mut Option<RocmStorage>,
) -> Result<(&'a RocmStorage, usize)> {
    match layout.is_contiguous() {
        true => Ok((kernel, layout.start_offset())),
        false => Ok((copy.insert(strided::dense(kernel, layout, op)?), 0)),
    }
}

/// Checks that offsets within a plane, the last two dims, fit into 32 bits, as the kernels require.
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

/// Converts the layout of (b, c, h, w) to (b, c, h * w), if the strides permit it.
pub(super) fn merged_places(layout: &Layout) -> Option<Layout> {
    let (dims, s) = (layout.dims(), layout.stride());
    let stride = if dims[3] == 1 { s[2] } else { s[3] };
    if dims[2] != 1 && dims[3] != 1 && s[2] != dims[3] * s[3] {
        return None;
    }
    let dims = (dims[0], dims[1], dims[2] * dims[3]);
    Some(Layout::new(dims.into(), vec![s[0], s[1], stride], layout.start_offset()))
}
