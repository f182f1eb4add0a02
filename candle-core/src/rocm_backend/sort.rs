//! Sorting along the last dim.
use super::error::unsupported_dtype;
use super::launch::{DevicePtr, LaunchConfig, BLOCK, MAX_ELEMENTS};
use super::storage::{is_packed, RocmStorage};
use super::RocmError;
use crate::{DType, Layout, Result, Shape};
use hip_kernels::Module;

const OP: &str = "argsort";
/// The most elements that one workgroup sorts in LDS: 12 KiB with 64-bit keys.
const TILE: usize = 1024;
/// Elements that each thread of a merge writes, as in the kernel.
const MERGED_PER_THREAD: usize = 8;

/// The order that sorts each row of `last_dim` elements, as u32 indices, of any length.
///
/// Stable in both directions; NaN is larger than any number. Rows of up to 1024 elements take one launch and
/// O(n log² n) comparisons; longer ones are merged from sorted tiles of that size, O(n log n) in
/// 1 + ⌈log2(n / 1024)⌉ launches, with memory for two keys and an index per element besides the result.
///
/// # Errors
/// [`crate::Error::RequiresContiguous`] for a strided layout, [`crate::Error::UnsupportedDTypeForOp`] for the packed
/// dtypes, [`RocmError::TooManyElements`] above 2^31 elements.
pub fn arg_sort(
    storage: &RocmStorage,
    layout: &Layout,
    asc: bool,
    last_dim: usize,
) -> Result<(RocmStorage, Shape)> {
    let dtype = storage.slice.dtype();
    if is_packed(dtype) {
        return Err(unsupported_dtype(OP, dtype));
    }
    let elements = layout.shape().elem_count();
    let from = storage.contiguous_ptr(layout, OP)?;
    if elements > MAX_ELEMENTS {
        return Err(RocmError::TooManyElements { op: OP, elements, limit: MAX_ELEMENTS }.into());
    }
    // SAFETY: every index is written by the last kernel.
    let dst = unsafe { RocmStorage::alloc(&storage.device, DType::U32, elements, OP)? };
    let shape = layout.shape().clone();
    if elements == 0 || last_dim == 0 {
        return Ok((dst, shape));
    }
    let sort = Sort { storage, from, asc, rows: elements / last_dim, columns: last_dim };
    if last_dim <= TILE {
        sort.in_one_tile(dst.slice.ptr())?;
    } else {
        sort.by_merging(dst.slice.ptr())?;
    }
    Ok((dst, shape))
}

struct Sort<'a> {
    storage: &'a RocmStorage,
    from: DevicePtr,
    asc: bool,
    rows: usize,
    columns: usize,
}

impl Sort<'_> {
    /// The dtype that holds a key, and the keys' name in kernels: 64 bits where the elements have as many.
    fn key_dtype(&self) -> (DType, &'static str) {
        match self.storage.slice.dtype() {
            DType::I64 | DType::F64 => (DType::I64, "u64"),
            _ => (DType::U32, "u32"),
        }
    }

    /// Workgroups that each sort `padded` elements.
    fn config(&self, workgroups: usize, padded: usize) -> Result<LaunchConfig> {
        let block = (padded / 2).clamp(32, BLOCK as usize) as u32;
        let mut config = LaunchConfig::for_rows(OP, workgroups, block)?;
        config.lds_bytes = (padded * (self.key_dtype().0.size_in_bytes() + size_of::<u32>())) as u32;
        Ok(config)
    }

    fn in_one_tile(&self, to: DevicePtr) -> Result<()> {
        let kernel = if self.asc { "asort_asc" } else { "asort_desc" };
        let names = [kernel, self.storage.slice.dtype().as_str()];
        let padded = self.columns.next_power_of_two();
        let config = self.config(self.rows, padded)?;
        let (columns, padded) = (self.columns as i32, padded as i32);
        let kernel = self.storage.device.kernel(Module::Sort, &names)?;
        let launch = kernel.launch(config).arg(&self.from).arg(&to).arg(&columns);
        // SAFETY: asort(x, dst, ncols, ncols_pad) with LDS for a key and an index per padded column; both ends hold
        // all rows.
        unsafe { launch.arg(&padded).run() }
    }

    fn by_merging(&self, to: DevicePtr) -> Result<()> {
        let device = &self.storage.device;
        let elements = self.rows * self.columns;
        let (key_dtype, key_name) = self.key_dtype();
        let passes = self.columns.div_ceil(TILE).next_power_of_two().ilog2();
        // SAFETY: the tiles' launch writes one pair of buffers, the first merge the other.
        let buffers = unsafe {
            [
                RocmStorage::alloc(device, key_dtype, elements, OP)?,
                RocmStorage::alloc(device, key_dtype, elements, OP)?,
                RocmStorage::alloc(device, DType::U32, elements, OP)?,
            ]
        };
        let [keys, other_keys, places] = buffers.each_ref().map(|buffer| buffer.slice.ptr());
        // Pairs change roles with each pass, so that the last one ends in `to`.
        let (mut source, mut target) = ((keys, places), (other_keys, to));
        if passes.is_multiple_of(2) {
            std::mem::swap(&mut source.1, &mut target.1);
        }
        self.tiles(source)?;
        let merge = device.kernel(Module::Sort, &["asort_merge", key_name])?;
        let threads = self.rows * self.columns.div_ceil(MERGED_PER_THREAD);
        let config = LaunchConfig::for_elements(OP, threads)?;
        let columns = self.columns as u32;
        for pass in 0..passes {
            let run = (TILE << pass) as u32;
            // Nobody reads the keys of the last pass.
            let keys_out = if pass + 1 == passes { DevicePtr::NULL } else { target.0 };
            let launch = merge.launch(config).arg(&source.0).arg(&source.1).arg(&keys_out).arg(&target.1);
            // SAFETY: asort_merge(keys, places, keys_out, places_out, threads, ncols, run); every buffer holds all
            // elements.
            unsafe { launch.arg(&threads).arg(&columns).arg(&run).run()? };
            std::mem::swap(&mut source, &mut target);
        }
        Ok(())
    }

    /// Sorts each tile of each row by itself into (keys, places).
    fn tiles(&self, (keys, places): (DevicePtr, DevicePtr)) -> Result<()> {
        let kernel = if self.asc { "asort_tiles_asc" } else { "asort_tiles_desc" };
        let names = [kernel, self.storage.slice.dtype().as_str()];
        let config = self.config(self.rows * self.columns.div_ceil(TILE), TILE)?;
        let (columns, tile) = (self.columns as i32, TILE as i32);
        let kernel = self.storage.device.kernel(Module::Sort, &names)?;
        let launch = kernel.launch(config).arg(&self.from).arg(&keys).arg(&places).arg(&columns);
        // SAFETY: asort_tiles(x, keys, places, ncols, tile) with LDS for a key and an index per element of a tile.
        unsafe { launch.arg(&tile).run() }
    }
}
