//! Operands of attention, as rows that kernels read in vectors.
use crate::backend::{BackendDevice, BackendStorage};
use crate::rocm_backend::storage::RocmStorage;
use crate::{Layout, Result, Shape};
use hip_kernels::contract::{DevicePtr, PACK_BYTES};

/// A storage and the layout of its elements.
pub type AttentionOperand<'a> = (&'a RocmStorage, &'a Layout);

/// Limit for the row stride of keys in elements, so that 64 rows span less than 4 GiB.
pub(super) const MAX_ROW_STRIDE: usize = 1 << 24;

/// Aligned rows of an operand, with the strides of batches, heads and rows in elements.
pub(super) struct Rows {
    /// Keeps the copy, if there is one, alive until the launch.
    pub(super) copy: Option<RocmStorage>,
    pub(super) at: DevicePtr,
    pub(super) strides: [usize; 3],
}

impl Rows {
    /// Returns true if the rows are those of a copy.
    pub(super) fn is_copy(&self) -> bool {
        self.copy.is_some()
    }
}

/// Returns the operand if its rows begin and end at multiples of 16 bytes, otherwise a copy padded with zeros.
pub(super) fn aligned_rows(op: &'static str, (storage, layout): AttentionOperand) -> Result<Rows> {
    let (outer, heads, rows, width) = layout.shape().dims4()?;
    let pack = PACK_BYTES / storage.dtype().size_in_bytes();
    let at = storage.ptr(layout, op)?;
    let strides: Vec<_> = layout
        .dims()
        .iter()
        .zip(layout.stride())
        .map(|(dim, stride)| if *dim > 1 { *stride } else { 0 })
        .collect();
    let [batch, head, row, column] = *strides else { return Err(invalid(format!("{op}: {layout:?}"))) };
    let aligned =
        [batch, head, row, at.0.addr() / storage.dtype().size_in_bytes()].iter().all(|n| n % pack == 0);
    if aligned
        && (column == 1 || width == 1)
        && width % pack == 0
        && row < MAX_ROW_STRIDE
        && batch.max(head) < u32::MAX as usize
    {
        return Ok(Rows { copy: None, at, strides: [batch, head, row] });
    }
    let (device, dtype) = (storage.device(), storage.dtype());
    let (count, padded) = (outer * heads * rows, width.next_multiple_of(pack));
    // SAFETY: every element is written by the copy.
    let mut copy = unsafe { RocmStorage::alloc(device, dtype, count * width, op)? };
    storage.copy_strided_src(&mut copy, 0, layout)?;
    if padded != width {
        let mut wider = device.zeros_impl(&Shape::from(count * padded), dtype)?;
        copy.copy2d(&mut wider, count, width, width, padded, 0, 0)?;
        copy = wider;
    }
    let at = copy.slice.ptr();
    Ok(Rows { copy: Some(copy), at, strides: [heads * rows * padded, rows * padded, padded] })
}

pub(super) fn invalid(text: String) -> crate::Error {
    crate::Error::Msg(text).bt()
}
