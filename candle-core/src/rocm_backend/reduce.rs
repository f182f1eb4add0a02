//! Sums, extrema and their places over any set of dims: one launch, or two where results are few and long.
use super::error::unsupported_dtype;
use super::launch::{DevicePtr, LaunchConfig, MAX_ELEMENTS};
use super::layout::{Reduction, Strided};
use super::storage::{is_packed, RocmStorage};
use super::{strided, RocmError};
use crate::op::ReduceOp;
use crate::{DType, Layout, Result};
use hip_kernels::Module;

const OP: &str = "reduce";
/// Threads of a workgroup: the kernels have one element of LDS for each.
const BLOCK: usize = 256;
/// Fewer threads than this leave a large GPU idle, so results are shared by more of them.
const ENOUGH_THREADS: usize = 1 << 17;
/// A thread is worth starting for this many elements.
const PER_THREAD: usize = 4;
/// A second launch is worth it if each thread of the first one keeps this many.
const PER_THREAD_OF_PART: usize = 16;
const MAX_PARTS: usize = 1024;

/// Reduces `dims` of `layout`. The result is dense, its dims those that are kept; places count along the reduced
/// dims in row-major order.
///
/// Sums start from 0: integers wrap, f32 is summed in f64 and narrower floats in f32, then rounded. Extrema start from
/// the first element and are replaced only by strictly better ones: a NaN in first place stays, others are passed over.
pub(super) fn reduce(
    src: &RocmStorage,
    op: ReduceOp,
    layout: &Layout,
    dims: &[usize],
) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    if is_packed(dtype) {
        return Err(unsupported_dtype(OP, dtype));
    }
    let kept = layout.dims().iter().enumerate().filter(|(d, _)| !dims.contains(d));
    let results: usize = kept.map(|(_, &size)| size).product();
    let elements = layout.shape().elem_count();
    if elements == 0 {
        return match op {
            ReduceOp::Sum => strided::zeros(&src.device, dtype, results),
            _ => Err(crate::Error::EmptyTensor { op: OP }.bt()),
        };
    }
    let per_result = elements / results;
    if results > MAX_ELEMENTS || per_result > MAX_ELEMENTS {
        return Err(RocmError::TooManyElements { op: OP, elements, limit: MAX_ELEMENTS }.into());
    }
    let task = Task { results, per_result, layout: Strided::of_reduction(OP, layout, dims)? };
    let from = src.ptr(layout, OP)?;
    match op {
        ReduceOp::Sum => sum(src, from, &task),
        ReduceOp::Min => extreme(src, from, &task, "reduce_min", false),
        ReduceOp::Max => extreme(src, from, &task, "reduce_max", false),
        ReduceOp::ArgMin => extreme(src, from, &task, "reduce_min", true),
        ReduceOp::ArgMax => extreme(src, from, &task, "reduce_max", true),
    }
}

/// `results` results of `per_result` elements each.
struct Task {
    results: usize,
    per_result: usize,
    layout: Reduction,
}

/// How the threads of a launch share a [`Task`].
struct Plan {
    /// Threads per result and part, a power of two.
    width: u32,
    /// Not 0 if threads are numbered across the results.
    across: u32,
    /// Parts that each result's elements are cut into: more than one needs a second launch.
    parts: usize,
    config: LaunchConfig,
}

impl Task {
    fn plan(&self, max_parts: usize) -> Result<Plan> {
        let Self { results, per_result, layout } = *self;
        // HIP counts the threads in 32 bits.
        let countable = floor_power_of_two(MAX_ELEMENTS / results);
        let most = floor_power_of_two(per_result / PER_THREAD).min(BLOCK).min(countable);
        let wanted = (ENOUGH_THREADS / results).next_power_of_two();
        let width = if layout.across {
            // Some 32 neighbouring results keep the accesses of a wave together.
            wanted.min(most).min(BLOCK / results.next_power_of_two().min(32))
        } else {
            wanted.max(32).min(most)
        };
        let parts = (ENOUGH_THREADS / (results * width)).min(per_result / (width * PER_THREAD_OF_PART));
        let parts = parts.clamp(1, max_parts);
        let block = results.saturating_mul(width).next_power_of_two().clamp(32, BLOCK);
        let mut config = LaunchConfig::for_rows(OP, results.div_ceil(block / width), block as u32)?;
        config.grid.1 = parts as u32;
        Ok(Plan { width: width as u32, across: u32::from(layout.across), parts, config })
    }
}

fn floor_power_of_two(n: usize) -> usize {
    1 << n.max(1).ilog2()
}

fn sum(src: &RocmStorage, from: DevicePtr, task: &Task) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    // SAFETY: every result is written by the last launch.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, task.results, OP)? };
    let plan = task.plan(MAX_PARTS)?;
    if plan.parts == 1 {
        run_sum(src, &[dtype.as_str()], task, &plan, from, dst.slice.ptr())?;
        return Ok(dst);
    }
    let between = match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 => DType::F32,
        same => same,
    };
    // SAFETY: every part's sum is written by the first launch.
    let sums = unsafe { RocmStorage::alloc(&src.device, between, task.results * plan.parts, OP)? };
    let rest = Task {
        results: task.results,
        per_result: plan.parts,
        layout: Strided::of_parts(task.results, plan.parts),
    };
    let (first, second) = ([dtype.as_str(), between.as_str()], [between.as_str(), dtype.as_str()]);
    let names = if between == dtype { 1 } else { 2 };
    run_sum(src, &first[..names], task, &plan, from, sums.slice.ptr())?;
    run_sum(src, &second[..names], &rest, &rest.plan(1)?, sums.slice.ptr(), dst.slice.ptr())?;
    Ok(dst)
}

/// `dtypes`: of the elements and, if it is another, of the results.
fn run_sum(
    src: &RocmStorage,
    dtypes: &[&'static str],
    task: &Task,
    plan: &Plan,
    from: DevicePtr,
    to: DevicePtr,
) -> Result<()> {
    let kernel = match *dtypes {
        [elements, results] => src.device.kernel(Module::Reduce, &["reduce_sum", elements, results])?,
        _ => src.device.kernel(Module::Reduce, &["reduce_sum", dtypes[0]])?,
    };
    let launch = kernel.launch(plan.config).arg(&task.results).arg(&task.per_result);
    let launch = launch.arg(&plan.width).arg(&plan.across).arg(&task.layout.kept_dims);
    // SAFETY: reduce_sum(results, per_result, width, across, kept_dims, num_dims, info, src, dst); `from` was checked
    // against its buffer, `to` holds a value for each result and part.
    unsafe { launch.strided(&task.layout.strided).arg(&from).arg(&to).run() }
}

/// Values, or places as u32.
fn extreme(
    src: &RocmStorage,
    from: DevicePtr,
    task: &Task,
    kernel: &'static str,
    place: bool,
) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    let result_dtype = if place { DType::U32 } else { dtype };
    // SAFETY: every result is written by the last launch.
    let dst = unsafe { RocmStorage::alloc(&src.device, result_dtype, task.results, OP)? };
    let to = dst.slice.ptr();
    let (values, places) = if place { (DevicePtr::NULL, to) } else { (to, DevicePtr::NULL) };
    let kernel = src.device.kernel(Module::Reduce, &[kernel, dtype.as_str()])?;
    let run = |task: &Task, plan: &Plan, candidates: DevicePtr, values: DevicePtr, places: DevicePtr| {
        let launch = kernel.launch(plan.config).arg(&task.results).arg(&task.per_result);
        let launch = launch.arg(&plan.width).arg(&plan.across).arg(&task.layout.kept_dims);
        let launch = launch.strided(&task.layout.strided).arg(&from).arg(&candidates);
        // SAFETY: reduce_max(results, per_result, width, across, kept_dims, num_dims, info, src, candidates, values,
        // places); `from` was checked against its buffer, null pointers are not used, the others hold an element for
        // each result and part.
        unsafe { launch.arg(&values).arg(&places).run() }
    };
    let plan = task.plan(MAX_PARTS)?;
    if plan.parts == 1 {
        run(task, &plan, DevicePtr::NULL, values, places)?;
        return Ok(dst);
    }
    // SAFETY: every part's place is written by the first launch.
    let found = unsafe { RocmStorage::alloc(&src.device, DType::U32, task.results * plan.parts, OP)? };
    run(task, &plan, DevicePtr::NULL, DevicePtr::NULL, found.slice.ptr())?;
    let layout = Reduction { across: task.results > 1, ..task.layout };
    let rest = Task { results: task.results, per_result: plan.parts, layout };
    run(&rest, &rest.plan(1)?, found.slice.ptr(), values, places)?;
    Ok(dst)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element of every result is some thread's, and no launch has more threads than HIP can count.
    #[test]
    fn plans_cover_all_shapes() {
        for results in [1, 2, 3, 31, 100, 4096, 1 << 20, 1 << 31] {
            for per_result in [1, 2, 5, 16, 33, 1000, 1 << 16, (1 << 24) + 1] {
                for across in [false, true] {
                    let layout = Reduction { across, ..Strided::of_parts(results, per_result) };
                    let plan = Task { results, per_result, layout }.plan(MAX_PARTS).unwrap();
                    let (grid, block) = (plan.config.grid, plan.config.block.0);
                    let what = format!("{results} x {per_result}, across: {across}");
                    assert!(plan.width.is_power_of_two() && plan.width <= block, "{what}");
                    assert!(grid.0 as usize * (block / plan.width) as usize >= results, "{what}");
                    assert!(grid.1 as usize == plan.parts && plan.parts <= per_result, "{what}");
                    assert!(grid.0 as u64 * u64::from(block) <= u64::from(u32::MAX), "{what}");
                }
            }
        }
    }

    #[test]
    fn one_long_result_is_shared_by_many_workgroups() {
        let task = Task { results: 1, per_result: 1 << 22, layout: Strided::of_parts(1, 1 << 22) };
        assert!(task.plan(MAX_PARTS).unwrap().parts >= 256);
    }
}
