//! Sums, extrema and their places over any set of dims; sorting along the last one.
use super::launch::LaunchConfig;
use super::layout::Strided;
use super::storage::RocmStorage;
use super::{strided, RocmError};
use crate::op::ReduceOp;
use crate::{DType, Layout, Result, Shape};
use hip_kernels::Module;

/// The most threads one workgroup of a reduction has: the kernels keep one element of LDS per thread.
const MAX_BLOCK: usize = 1024;
/// Up to this many elements per result a thread sums alone.
const SMALL: usize = 32;

/// Reduces `dims` of `layout`. The result is dense, its dims those that are kept.
pub(super) fn reduce(
    src: &RocmStorage,
    op: ReduceOp,
    layout: &Layout,
    dims: &[usize],
) -> Result<RocmStorage> {
    const OP: &str = "reduce";
    let (kernel, is_sum, is_index) = match op {
        ReduceOp::Sum => ("fast_sum", true, false),
        ReduceOp::Min => ("fast_min", false, false),
        ReduceOp::Max => ("fast_max", false, false),
        ReduceOp::ArgMin => ("fast_argmin", false, true),
        ReduceOp::ArgMax => ("fast_argmax", false, true),
    };
    let dtype = src.slice.dtype();
    let kept = layout.dims().iter().enumerate().filter(|(d, _)| !dims.contains(d));
    let results: usize = kept.map(|(_, &size)| size).product();
    let elements = layout.shape().elem_count();
    if elements == 0 {
        return if is_sum {
            strided::zeros(&src.device, dtype, results)
        } else {
            Err(crate::Error::EmptyTensor { op: OP }.bt())
        };
    }
    let per_result = elements / results;
    let packed = Strided::of_reduction(OP, layout, dims)?;
    let small = is_sum && per_result <= SMALL;
    let (kernel, counted, config) = if small {
        ("fast_sum_small", results, LaunchConfig::for_elements(OP, results)?)
    } else {
        (kernel, elements, workgroup_per_result(OP, results, per_result)?)
    };
    let result_dtype = if is_index { DType::U32 } else { dtype };
    // SAFETY: every result is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, result_dtype, results, OP)? };
    let (from, to) = (src.ptr(layout, OP)?, dst.slice.ptr());
    let function = src.device.kernel(Module::Reduce, &[kernel, dtype.as_str()])?;
    let launch = function.launch(config).arg(&counted).arg(&per_result).strided(&packed);
    // SAFETY: (numel, elements per result, num_dims, info, src, dst); `from` was checked against its buffer.
    unsafe { launch.arg(&from).arg(&to).run()? };
    Ok(dst)
}

/// One workgroup per result: a power of two of threads, as the tree in LDS needs, and not more than HIP can count.
fn workgroup_per_result(op: &'static str, results: usize, per_result: usize) -> Result<LaunchConfig> {
    let mut block = per_result.min(MAX_BLOCK).next_power_of_two();
    while block > SMALL && results.saturating_mul(block) > u32::MAX as usize {
        block /= 2;
    }
    LaunchConfig::for_rows(op, results, block as u32)
}

/// The order that sorts each row of `last_dim` elements, as u32 indices. Not stable; NaN has no fixed place.
///
/// # Errors
/// [`crate::Error::RequiresContiguous`] for a strided layout; an error naming the dtype where there is no kernel; rows
/// that do not fit a workgroup's LDS.
pub fn arg_sort(
    storage: &RocmStorage,
    layout: &Layout,
    asc: bool,
    last_dim: usize,
) -> Result<(RocmStorage, Shape)> {
    const OP: &str = "argsort";
    let elements = layout.shape().elem_count();
    let from = storage.contiguous_ptr(layout, OP)?;
    // SAFETY: every index is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&storage.device, DType::U32, elements, OP)? };
    if elements == 0 || last_dim == 0 {
        return Ok((dst, layout.shape().clone()));
    }
    // The bitonic network sorts a power of two of columns, one 32-bit index each, in LDS: 64 KiB on every AMD GPU.
    let padded = last_dim.next_power_of_two();
    const LDS: usize = 64 * 1024;
    if padded * size_of::<u32>() > LDS {
        return Err(
            RocmError::TooManyElements { op: OP, elements: last_dim, limit: LDS / size_of::<u32>() }.into()
        );
    }
    let to = dst.slice.ptr();
    let direction = if asc { "asort_asc" } else { "asort_desc" };
    let kernel = storage.device.kernel(Module::Sort, &[direction, storage.slice.dtype().as_str()])?;
    let mut config = LaunchConfig::for_rows(OP, elements / last_dim, padded.min(MAX_BLOCK) as u32)?;
    config.lds_bytes = (padded * size_of::<u32>()) as u32;
    let (columns, padded) = (last_dim as i32, padded as i32);
    let launch = kernel.launch(config).arg(&from).arg(&to);
    // SAFETY: asort(x, dst, ncols, ncols_pad) with 4 bytes of dynamic LDS per padded column.
    unsafe { launch.arg(&columns).arg(&padded).run()? };
    Ok((dst, layout.shape().clone()))
}
