//! Sorting along the last dim.
use super::{computing, found};
use crate::rocm_backend::device::{max_elements, LaunchConfig};
use crate::rocm_backend::layout::runs;
use crate::rocm_backend::storage::{copy_element, offset_by_elements, RocmStorage};
use crate::rocm_backend::RocmError;
use crate::{DType, Layout, Result, Shape};
use hip_kernels::contract::{
    DevicePtr, SortCount, SortMove, SortRows, SortSum, SortSumOp, BLOCK, SORT_BLOCK,
    SORT_KEYS_PER_THREAD as HELD, SORT_TILE_KEYS_PER_THREAD,
};

const OP: &str = "argsort";

/// Number of elements per tile of the radix sort, and of values of a digit.
const TILE: usize = SORT_TILE_KEYS_PER_THREAD * BLOCK;
const DIGITS: usize = 256;

/// Returns the u32 indices that sort each row of `last_dim` elements.
///
/// The sort is stable in both directions, and NaN is larger than any number. Rows of up to 4096 elements (2048 of 64 bits)
/// take one launch of a bitonic sort. Longer rows take a radix sort with three launches per byte of an element, which read
/// each element twice and write it and its index once. It needs scratch memory for up to two copies of the elements and
/// one of the indices.
///
/// # Errors
/// [`crate::Error::RequiresContiguous`] for a strided layout, [`crate::Error::UnsupportedDTypeForOp`] for the packed
/// dtypes, [`RocmError::TooManyElements`] for rows above 2^31 elements.
pub fn arg_sort(
    storage: &RocmStorage,
    layout: &Layout,
    asc: bool,
    last_dim: usize,
) -> Result<(RocmStorage, Shape)> {
    let dtype = storage.slice.dtype();
    computing(OP, dtype)?;
    let elements = layout.shape().elem_count();
    let from = storage.contiguous_ptr(layout, OP)?;
    // SAFETY: the last kernel writes every index.
    let dst = unsafe { RocmStorage::alloc(&storage.device, DType::U32, elements, OP)? };
    let shape = layout.shape().clone();
    if elements == 0 || last_dim == 0 {
        return Ok((dst, shape));
    }
    let limit = max_elements();
    if last_dim > limit {
        return Err(RocmError::TooManyElements { op: OP, elements: last_dim, limit }.into());
    }
    let one_launch = SORT_BLOCK * HELD / if dtype.size_in_bytes() == 8 { 2 } else { 1 };
    for (first, rows) in runs(elements / last_dim, limit / last_dim) {
        let x = offset_by_elements(from, dtype, first * last_dim);
        let to = offset_by_elements(dst.slice.ptr(), DType::U32, first * last_dim);
        let sort = Sort { storage, x, keys: Keys::of(dtype, asc), rows, columns: last_dim, to };
        match last_dim <= one_launch {
            true => sort.in_one_launch()?,
            false => sort.radix_sort()?,
        }
    }
    Ok((dst, shape))
}

/// Parameters for converting elements to sort keys.
#[derive(Clone, Copy, Default)]
struct Keys {
    sign: usize,
    infinity: usize,
    descending_mask: usize,
}

impl Keys {
    fn of(dtype: DType, asc: bool) -> Self {
        let infinity = match dtype {
            DType::F8E4M3 => 0x7e,
            DType::F16 => 0x7c00,
            DType::BF16 => 0x7f80,
            DType::F32 => 0x7f80_0000,
            DType::F64 => 0x7ff0_0000_0000_0000,
            _ => 0,
        };
        let signed = !matches!(dtype, DType::U8 | DType::U32);
        let sign = usize::from(signed) << (8 * dtype.size_in_bytes() - 1);
        Self { sign, infinity, descending_mask: if asc { 0 } else { usize::MAX } }
    }
}

struct Sort<'a> {
    storage: &'a RocmStorage,
    x: DevicePtr,
    keys: Keys,
    rows: usize,
    columns: usize,
    to: DevicePtr,
}

impl Sort<'_> {
    fn in_one_launch(&self) -> Result<()> {
        let dtype = self.storage.slice.dtype();
        let Keys { sign, infinity, descending_mask } = self.keys;
        let width = self.columns.div_ceil(HELD).next_power_of_two();
        let block = width.max(128);
        let mut config = LaunchConfig::for_rows(OP, self.rows.div_ceil(block / width), block as u32)?;
        // Key and index of each element, unless a row fits into the registers of one wave.
        let word = 2 * dtype.size_in_bytes().max(2);
        config.lds_bytes = if width > 32 { (block * HELD * word) as u32 } else { 0 };
        let Self { x, to: dst, rows, columns, .. } = *self;
        let arguments = SortRows {
            x,
            dst,
            rows,
            ncols: columns as u32,
            width: width as u32,
            sign,
            infinity,
            descending_mask,
        };
        let kernel = found(SortRows::kernel(copy_element(dtype)), OP, dtype)?;
        // SAFETY: source and destination have all rows.
        unsafe { self.storage.device.launch(kernel, config, &arguments) }
    }

    fn radix_sort(&self) -> Result<()> {
        let (device, dtype) = (&self.storage.device, self.storage.slice.dtype());
        let (passes, tiles) = (dtype.size_in_bytes(), self.columns.div_ceil(TILE));
        let (elements, lists) = (self.rows * self.columns, self.rows * DIGITS);
        // SAFETY: each is written before it is read.
        let scratch = |dtype, elements| unsafe { RocmStorage::alloc(device, dtype, elements, OP) };
        let (keys, other_keys) = (
            scratch(dtype, if passes > 1 { elements } else { 0 })?,
            scratch(dtype, if passes > 2 { elements } else { 0 })?,
        );
        let places = scratch(DType::U32, if passes > 1 { elements } else { 0 })?;
        let (counts, totals) = (scratch(DType::U32, lists * tiles)?, scratch(DType::U32, lists)?);
        let (counts, totals) = (counts.slice.ptr(), totals.slice.ptr());
        let count = found(SortCount::kernel(copy_element(dtype)), OP, dtype)?;
        let sum = found(SortSum::kernel(SortSumOp::Sum), OP, dtype)?;
        let order = found(SortMove::kernel(copy_element(dtype)), OP, dtype)?;
        let config = LaunchConfig::for_rows(OP, self.rows * tiles, BLOCK as u32)?;
        let sums = LaunchConfig::for_elements(OP, lists * 32)?;
        // Source and destination are swapped with each pass, so that the last pass writes to `to`.
        let mut source = (self.x, DevicePtr::NULL);
        let mut target = (keys.slice.ptr(), self.to);
        let mut other = (other_keys.slice.ptr(), places.slice.ptr());
        if passes.is_multiple_of(2) {
            std::mem::swap(&mut target.1, &mut other.1);
        }
        let (ncols, tiles) = (self.columns as u32, tiles as u32);
        for pass in 0..passes {
            let Keys { sign, infinity, descending_mask } =
                if pass == 0 { self.keys } else { Keys::default() };
            let ((x, places), shift) = (source, 8 * pass as u32);
            let counting = SortCount { x, counts, ncols, tiles, shift, sign, infinity, descending_mask };
            // The keys of the last pass are not needed.
            let keys_out = if pass + 1 == passes { DevicePtr::NULL } else { target.0 };
            let (places_out, summing) = (target.1, SortSum { counts, totals, lists, tiles });
            #[rustfmt::skip]
            let moving = SortMove {
                x, places, keys_out, places_out, counts, totals, ncols, tiles, shift, sign, infinity, descending_mask,
            };
            // SAFETY: every buffer has the size that the contract documents for its argument.
            unsafe {
                device.launch(count, config, &counting)?;
                device.launch(sum, sums, &summing)?;
                device.launch(order, config, &moving)?;
            }
            source = target;
            std::mem::swap(&mut target, &mut other);
        }
        Ok(())
    }
}
