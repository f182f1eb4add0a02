//! Sums, extrema and their places over any set of dims.
use super::launch::LaunchConfig;
use super::layout::Strided;
use super::storage::RocmStorage;
use super::strided;
use crate::op::ReduceOp;
use crate::{DType, Layout, Result};
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
