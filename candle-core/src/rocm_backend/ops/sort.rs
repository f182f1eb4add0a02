//! Sorting along the last dim.
use super::{computing, found};
use crate::rocm_backend::device::{max_elements, LaunchConfig};
use crate::rocm_backend::layout::runs;
use crate::rocm_backend::storage::{further, RocmStorage};
use crate::rocm_backend::RocmError;
use crate::{DType, Layout, Result, Shape};
use hip_kernels::contract::{
    DevicePtr, Element, KernelFamily, SortMerge, SortMergeKey, SortRows, SortRowsOrder, SortTiles,
    SortTilesOrder, SORT_MERGED, SORT_TILE as TILE,
};

const OP: &str = "argsort";

/// The order that sorts each row of `last_dim` elements, as u32 indices, of any length.
///
/// Stable in both directions; NaN is larger than any number. Rows of up to 1024 elements take one launch and
/// O(n log² n) comparisons; longer ones are merged from sorted tiles of that size, O(n log n) in
/// 1 + ⌈log2(n / 1024)⌉ launches, with memory for two keys and an index per element besides the result.
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
    let element = computing(OP, storage.slice.dtype())?;
    let elements = layout.shape().elem_count();
    let from = storage.contiguous_ptr(layout, OP)?;
    // SAFETY: every index is written by the last kernel.
    let dst = unsafe { RocmStorage::alloc(&storage.device, DType::U32, elements, OP)? };
    let shape = layout.shape().clone();
    if elements == 0 || last_dim == 0 {
        return Ok((dst, shape));
    }
    let limit = max_elements();
    if last_dim > limit {
        return Err(RocmError::TooManyElements { op: OP, elements: last_dim, limit }.into());
    }
    let (all_rows, to) = (elements / last_dim, dst.slice.ptr());
    let step = limit / last_dim;
    for (first, rows) in runs(all_rows, step) {
        let first = first * last_dim;
        let from = further(from, storage.slice.dtype(), first);
        let sort = Sort { storage, element, from, asc, rows, columns: last_dim };
        let to = further(to, DType::U32, first);
        match last_dim <= TILE {
            true => sort.in_one_tile(to)?,
            false => sort.by_merging(to)?,
        }
    }
    Ok((dst, shape))
}

struct Sort<'a> {
    storage: &'a RocmStorage,
    element: Element,
    from: DevicePtr,
    asc: bool,
    rows: usize,
    columns: usize,
}

impl Sort<'_> {
    /// The dtype that holds a key: 64 bits where the elements have as many.
    fn key(&self) -> (DType, SortMergeKey) {
        match self.storage.slice.dtype() {
            DType::I64 | DType::F64 => (DType::I64, SortMergeKey::U64),
            _ => (DType::U32, SortMergeKey::U32),
        }
    }

    /// Workgroups that each sort `padded` elements.
    fn config(&self, workgroups: usize, padded: usize) -> Result<LaunchConfig> {
        let block = (padded / 2).clamp(32, SortRows::BLOCK as usize) as u32;
        let mut config = LaunchConfig::for_rows(OP, workgroups, block)?;
        config.lds_bytes = (padded * (self.key().0.size_in_bytes() + size_of::<u32>())) as u32;
        Ok(config)
    }

    fn in_one_tile(&self, dst: DevicePtr) -> Result<()> {
        let order = if self.asc { SortRowsOrder::Asc } else { SortRowsOrder::Desc };
        let kernel = found(SortRows::kernel(order, self.element), OP, self.storage.slice.dtype())?;
        let padded = self.columns.next_power_of_two();
        let config = self.config(self.rows, padded)?;
        let (ncols, ncols_pad) = (self.columns as u32, padded as u32);
        // SAFETY: both ends hold all rows, LDS a key and an index per padded column.
        unsafe {
            self.storage.device.launch(kernel, config, &SortRows { x: self.from, dst, ncols, ncols_pad })
        }
    }

    fn by_merging(&self, to: DevicePtr) -> Result<()> {
        let device = &self.storage.device;
        let elements = self.rows * self.columns;
        let (key_dtype, key) = self.key();
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
        let kernel = found(SortMerge::kernel(key), OP, key_dtype)?;
        let threads = self.rows * self.columns.div_ceil(SORT_MERGED);
        let config = LaunchConfig::for_elements(OP, threads)?;
        for pass in 0..passes {
            let arguments = SortMerge {
                keys: source.0,
                places: source.1,
                // Nobody reads the keys of the last pass.
                keys_out: if pass + 1 == passes { DevicePtr::NULL } else { target.0 },
                places_out: target.1,
                threads,
                ncols: self.columns as u32,
                run: (TILE << pass) as u32,
            };
            // SAFETY: every buffer holds all elements.
            unsafe { device.launch(kernel, config, &arguments)? };
            std::mem::swap(&mut source, &mut target);
        }
        Ok(())
    }

    /// Sorts each tile of each row by itself into (keys, places).
    fn tiles(&self, (keys, places): (DevicePtr, DevicePtr)) -> Result<()> {
        let order = if self.asc { SortTilesOrder::Asc } else { SortTilesOrder::Desc };
        let kernel = found(SortTiles::kernel(order, self.element), OP, self.storage.slice.dtype())?;
        let config = self.config(self.rows * self.columns.div_ceil(TILE), TILE)?;
        let (ncols, tile) = (self.columns as u32, TILE as u32);
        // SAFETY: every buffer holds all elements, LDS a key and an index per element of a tile.
        unsafe {
            self.storage.device.launch(kernel, config, &SortTiles { x: self.from, keys, places, ncols, tile })
        }
    }
}
