//! Sums, extrema and their indices over any set of dims, in one launch, or in two for few results of many elements each.
use super::{computing, found, strided};
use crate::error::bail;
use crate::op::{BackpropOp, ReduceOp};
use crate::rocm_backend::device::{max_elements, LaunchConfig, RocmDevice};
use crate::rocm_backend::error::unsupported_dtype;
use crate::rocm_backend::layout::{pieces, runs, Reduction, Strided};
use crate::rocm_backend::storage::{element, offset_by_elements, RocmStorage};
use crate::rocm_backend::RocmError;
use crate::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Storage, Tensor};
use hip_kernels::contract::{
    DevicePtr, ReduceExtreme, ReduceSum, ReduceSumSource, ReduceVariance, BLOCK, MAX_RESULTS_PER_THREAD,
    PACK_BYTES, PARTS_AS_BF16, PARTS_AS_F16, PARTS_AS_F8, ROW_BLOCK, SUM_AS_ELEMENTS, SUM_AS_F32,
};

const OP: &str = "reduce";
/// Number of threads that saturates a large GPU. Below it, more threads share each result.
const FULL_THREADS: usize = 1 << 17;
/// Minimum number of elements per thread, or one pack if that is more.
const MIN_PER_THREAD: usize = 4;
/// Minimum number of elements per thread for which results are split into parts, and the same if `across` is not 0.
const MIN_OF_PART: usize = 64;
const MIN_ACROSS: usize = 16;
/// Minimum number of parts; for fewer, a second launch costs more than it saves.
const MIN_PARTS: usize = 4;
const MAX_PARTS: usize = 1024;
/// A variance is computed in one launch, without parts, unless results have more elements and are fewer than this.
const MAX_VARIANCE_ELEMENTS: usize = 1 << 14;
const MIN_VARIANCES: usize = 128;
/// Maximum number of bytes of the adjacent elements for which a thread computes variances.
const VARIANCE_PACK_BYTES: usize = 8;

/// Reduces `dims` of `layout`. The result is dense and has the kept dims. Indices of extrema count along the reduced
/// dims in row-major order.
///
/// Integer sums wrap; f32 is summed in f64 and narrower floats in f32, and then rounded. An extremum is only replaced by
/// a strictly better element, so that a NaN is the result if it is the first element, and is ignored otherwise.
pub(crate) fn reduce(
    src: &RocmStorage,
    op: ReduceOp,
    layout: &Layout,
    dims: &[usize],
) -> Result<RocmStorage> {
    scaled(src, op, 1.0, layout, dims)
}

/// Like [`reduce`]; sums of floats are multiplied by `scale` before they are rounded.
fn scaled(
    src: &RocmStorage,
    op: ReduceOp,
    scale: f64,
    layout: &Layout,
    dims: &[usize],
) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    computing(OP, dtype)?;
    let kept = layout.dims().iter().enumerate().filter(|(d, _)| !dims.contains(d));
    let results: usize = kept.map(|(_, &size)| size).product();
    let elements = layout.shape().elem_count();
    if elements == 0 {
        return match op {
            ReduceOp::Sum => strided::zeros(&src.device, dtype, results),
            _ => Err(crate::Error::EmptyTensor { op: OP }.bt()),
        };
    }
    let result_dtype = match op {
        ReduceOp::ArgMin | ReduceOp::ArgMax => DType::U32,
        _ => dtype,
    };
    // SAFETY: the last launch writes every result.
    let dst = unsafe { RocmStorage::alloc(&src.device, result_dtype, results, OP)? };
    let per_result = elements / results;
    if results <= max_elements() && per_result <= max_elements() {
        let to = dst.slice.ptr();
        return run(src, op, scale, layout, dims, (results, per_result), to).map(|()| dst);
    }
    reduce_pieces(src, op, scale, layout, dims, dst)
}

/// Adds the `rows` dense rows of `src` and writes the sum to `dst`.
pub(crate) fn sum_rows(src: &RocmStorage, (rows, columns): (usize, usize), dst: &RocmStorage) -> Result<()> {
    let limit = max_elements();
    if rows.max(columns) > limit || dst.slice.len() < columns {
        return Err(RocmError::TooManyElements { op: OP, elements: columns, limit }.into());
    }
    let layout = Layout::contiguous((rows, columns));
    run(src, ReduceOp::Sum, 1.0, &layout, &[0], (columns, rows), dst.slice.ptr())
}

/// Sums floats over `dims`, which become dims of 1, and multiplies by `scale` before rounding. Thus a mean of f16 does not
/// overflow if its sum would. Returns `None` on other devices and for other dtypes.
///
/// # Errors
/// If there is not enough memory for the result.
pub(crate) fn scaled_sum(x: &Tensor, dims: &[usize], scale: f64) -> Result<Option<Tensor>> {
    let has_kernel = x.device().is_rocm() && x.dtype().is_float() && element(x.dtype()).is_some();
    if !has_kernel || x.elem_count() == 0 {
        return Ok(None);
    }
    x.apply_op1(ScaledSum { dims: dims.to_vec(), scale }).map(Some)
}

struct ScaledSum {
    dims: Vec<usize>,
    scale: f64,
}

impl CustomOp1 for ScaledSum {
    fn name(&self) -> &'static str {
        "scaled-sum"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("scaled-sum is only supported on ROCm devices")
    }

    fn rocm_fwd(&self, x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
        let sums = scaled(x, ReduceOp::Sum, self.scale, layout, &self.dims)?;
        let size = |(dim, &size)| if self.dims.contains(&dim) { 1 } else { size };
        Ok((sums, layout.dims().iter().enumerate().map(size).collect::<Vec<_>>().into()))
    }

    /// Returns the gradient of a sum times a factor.
    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        gradient.affine(self.scale, 0.0)?.broadcast_as(x.shape()).map(Some)
    }
}

/// Computes the unbiased variance of floats along `dim`, which becomes a dim of 1: in one launch if gradients are not
/// tracked and there are enough results; otherwise in f32 for narrower floats. Returns `None` if upstream's operations
/// must be used.
///
/// # Errors
/// If there is not enough memory for the result.
pub(crate) fn variance(x: &Tensor, dim: usize) -> Result<Option<Tensor>> {
    let (dtype, per_result) = (x.dtype(), x.dims()[dim]);
    if !x.device().is_rocm() || x.elem_count() == 0 {
        return Ok(None);
    }
    let results = x.elem_count() / per_result;
    let is_one_launch = matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
        && !x.track_op()
        && (per_result <= MAX_VARIANCE_ELEMENTS || results >= MIN_VARIANCES)
        && results.max(per_result) <= max_elements();
    match is_one_launch {
        true => variance_in_one_launch(x, dim, results, per_result),
        false => in_f32(x, |x| x.var_keepdim(dim)),
    }
}

/// Computes the norm of narrow floats in f32, so that squares do not overflow. Returns `None` if upstream's operations
/// must be used.
///
/// # Errors
/// If there is not enough memory for the result.
pub(crate) fn norm(x: &Tensor) -> Result<Option<Tensor>> {
    in_f32(x, Tensor::norm)
}

fn in_f32(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Option<Tensor>> {
    let is_narrow = sum_dtype(x.dtype()) != x.dtype();
    (x.device().is_rocm() && is_narrow).then(|| f(&x.to_dtype(DType::F32)?)?.to_dtype(x.dtype())).transpose()
}

fn variance_in_one_launch(
    x: &Tensor,
    dim: usize,
    results: usize,
    per_result: usize,
) -> Result<Option<Tensor>> {
    let (storage, layout) = x.storage_and_layout();
    let Storage::Rocm(storage) = &*storage else { return Ok(None) };
    let (dtype, src) = (x.dtype(), storage.ptr(layout, OP)?);
    let task = Task { results, per_result, layout: Strided::of_reduction(OP, layout, &[dim])? };
    let size = dtype.size_in_bytes();
    let Plan { width, across, config, .. } =
        task.plan(task.neighbours(src, size).min(VARIANCE_PACK_BYTES / size), size, 1)?;
    // SAFETY: every result is written by the kernel.
    let variances = unsafe { RocmStorage::alloc(&storage.device, dtype, results, OP)? };
    let Reduction { strided: Strided { num_dims, layout: info }, kept_dims, .. } = &task.layout;
    let (kept_dims, num_dims, dst) = (*kept_dims, *num_dims, variances.slice.ptr());
    let arguments =
        ReduceVariance { results, per_result, width, across, kept_dims, num_dims, info, src, dst };
    let kernel = found(ReduceVariance::kernel(computing(OP, dtype)?), OP, dtype)?;
    // SAFETY: `src` was checked against its buffer, `dst` holds all results.
    unsafe { storage.device.launch(kernel, config, &arguments)? };
    let mut dims = x.dims().to_vec();
    dims[dim] = 1;
    Ok(Some(crate::tensor::from_storage(Storage::Rocm(variances), dims, BackpropOp::none(), false)))
}

/// Reduces a tensor with too many results or elements for one launch: results in pieces, and long sums in parts.
#[cold]
fn reduce_pieces(
    src: &RocmStorage,
    op: ReduceOp,
    scale: f64,
    layout: &Layout,
    dims: &[usize],
    dst: RocmStorage,
) -> Result<RocmStorage> {
    let limit = max_elements();
    // Only the kept dims are split into pieces.
    let mut kept = layout.dims().to_vec();
    dims.iter().for_each(|&dim| kept[dim] = 1);
    let results = Layout::new(kept.into(), layout.stride().to_vec(), layout.start_offset());
    for piece in pieces(&[&results], limit) {
        let mut shape = piece.layouts[0].dims().to_vec();
        let count = piece.layouts[0].shape().elem_count();
        dims.iter().for_each(|&dim| shape[dim] = layout.dims()[dim]);
        let piece_layout =
            Layout::new(shape.into(), layout.stride().to_vec(), piece.layouts[0].start_offset());
        let per_result = piece_layout.shape().elem_count() / count;
        let to = offset_by_elements(dst.slice.ptr(), dst.slice.dtype(), piece.first);
        match op {
            _ if per_result <= limit => run(src, op, scale, &piece_layout, dims, (count, per_result), to)?,
            ReduceOp::Sum => sum_of_long(src, scale, &piece_layout, dims, (count, per_result), to)?,
            // Indices are u32, as on the CPU device.
            _ => {
                return Err(RocmError::TooManyElements { op: OP, elements: per_result, limit }.into());
            }
        }
    }
    Ok(dst)
}

/// Sums more elements than fit into one launch: first runs along the longest reduced dim, then their sums.
fn sum_of_long(
    src: &RocmStorage,
    scale: f64,
    layout: &Layout,
    dims: &[usize],
    (results, per_result): (usize, usize),
    to: DevicePtr,
) -> Result<()> {
    let limit = max_elements();
    let Some(&longest) = dims.iter().max_by_key(|&&dim| layout.dims()[dim]) else { return Ok(()) };
    let size = layout.dims()[longest];
    let run_len = limit / (per_result / size);
    if run_len == 0 {
        return Err(RocmError::TooManyElements { op: OP, elements: per_result, limit }.into());
    }
    let between = sum_dtype(src.slice.dtype());
    let count = size.div_ceil(run_len);
    // SAFETY: the sums of every run are written below.
    let sums = unsafe { RocmStorage::alloc(&src.device, between, results * count, OP)? };
    for (number, (begin, len)) in runs(size, run_len).enumerate() {
        let run = layout.narrow(longest, begin, len)?;
        let per_result = run.shape().elem_count() / results;
        let task = Task { results, per_result, layout: Strided::of_reduction(OP, &run, dims)? };
        let to = offset_by_elements(sums.slice.ptr(), between, number * results);
        sum(&src.device, (src.slice.dtype(), between), 1.0, &task, src.ptr(&run, OP)?, to)?;
    }
    let task = Task { results, per_result: count, layout: Strided::of_parts(results, count) };
    sum(&src.device, (between, src.slice.dtype()), scale, &task, sums.slice.ptr(), to)
}

/// Reduces a tensor whose results and elements fit into one launch.
fn run(
    src: &RocmStorage,
    op: ReduceOp,
    scale: f64,
    layout: &Layout,
    dims: &[usize],
    (results, per_result): (usize, usize),
    to: DevicePtr,
) -> Result<()> {
    let task = Task { results, per_result, layout: Strided::of_reduction(OP, layout, dims)? };
    let from = src.ptr(layout, OP)?;
    let dtype = src.slice.dtype();
    match op {
        ReduceOp::Sum => sum(&src.device, (dtype, dtype), scale, &task, from, to),
        ReduceOp::Min => extreme(src, from, &task, true, (to, DevicePtr::NULL)),
        ReduceOp::Max => extreme(src, from, &task, false, (to, DevicePtr::NULL)),
        ReduceOp::ArgMin => extreme(src, from, &task, true, (DevicePtr::NULL, to)),
        ReduceOp::ArgMax => extreme(src, from, &task, false, (DevicePtr::NULL, to)),
    }
}

/// A reduction to `results` results of `per_result` elements each.
struct Task {
    results: usize,
    per_result: usize,
    layout: Reduction,
}

/// Distribution of a [`Task`] over the threads of a launch.
struct Plan {
    /// Number of threads per result and part, a power of two.
    width: u32,
    /// Number of adjacent results per thread if adjacent threads have adjacent results; 0 if they share a result.
    across: u32,
    /// Number of parts into which the elements of a result are split; more than one needs a second launch.
    parts: usize,
    config: LaunchConfig,
}

impl Task {
    /// Returns the plan for elements of `size` bytes. `neighbours` is the number of adjacent results that a thread can
    /// load as one vector.
    fn plan(&self, neighbours: usize, size: usize, max_parts: usize) -> Result<Plan> {
        let Self { results, per_result, layout } = *self;
        let across = if layout.across { neighbours } else { 0 };
        let tasks = results / across.max(1);
        // HIP limits the number of threads to 32 bits.
        let countable = floor_power_of_two((1 << 31) / tasks);
        let wanted = (FULL_THREADS / tasks).next_power_of_two();
        let in_packs = layout.inner_stride() == Some(1);
        let per_thread = if in_packs { MIN_PER_THREAD.max(PACK_BYTES / size) } else { MIN_PER_THREAD };
        let most = floor_power_of_two(per_result / per_thread).min(countable);
        let width = if across > 0 {
            // 32 adjacent accesses keep those of a wave coalesced.
            wanted.min(most).min(BLOCK / tasks.next_power_of_two().min(32))
        } else {
            // Twice as many threads cost nothing if they fit into a wave and need no barrier.
            let lanes = (2 * FULL_THREADS / tasks).next_power_of_two().clamp(8, 32);
            wanted.max(if in_packs { lanes } else { 32 }).min(most).min(ROW_BLOCK)
        };
        let kept = if across > 0 { MIN_ACROSS } else { MIN_OF_PART };
        let parts = (FULL_THREADS / (tasks * width)).min(per_result / (width * kept)).clamp(1, max_parts);
        let parts = if across == 0 && parts < MIN_PARTS { 1 } else { parts };
        let block = tasks.saturating_mul(width).next_power_of_two().clamp(32, BLOCK).max(width);
        let mut config = LaunchConfig::for_rows(OP, tasks.div_ceil(block / width), block as u32)?;
        config.grid.1 = parts as u32;
        Ok(Plan { width: width as u32, across: across as u32, parts, config })
    }

    /// Returns the number of adjacent results that can be loaded as one vector, or 1 if addresses are not aligned.
    fn neighbours(&self, from: DevicePtr, size: usize) -> usize {
        let Strided { num_dims, layout } = &self.layout.strided;
        if !self.layout.across {
            return 1;
        }
        let (dims, strides) = layout.0[..2 * num_dims].split_at(*num_dims);
        let (count, inner) = ((PACK_BYTES / size).min(MAX_RESULTS_PER_THREAD), self.layout.kept_dims - 1);
        let fits = |(dim, &stride): (usize, &usize)| dim == inner || stride % count == 0;
        let aligned =
            (from.0 as usize).is_multiple_of(count * size) && strides[inner] == 1 && dims[inner] % count == 0;
        if aligned && strides.iter().enumerate().all(fits) {
            count
        } else {
            1
        }
    }
}

fn floor_power_of_two(n: usize) -> usize {
    1 << n.max(1).ilog2()
}

/// Returns the dtype of partial sums between launches.
fn sum_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 => DType::F32,
        same => same,
    }
}

/// Sums elements of the first dtype to results of the second and multiplies them by `scale`. The dtypes are equal, or one of
/// them is f32 and the other a narrow float. `to` must have space for the results.
fn sum(
    device: &RocmDevice,
    (dtype, result): (DType, DType),
    scale: f64,
    task: &Task,
    from: DevicePtr,
    to: DevicePtr,
) -> Result<()> {
    let size = dtype.size_in_bytes();
    let plan = task.plan(task.neighbours(from, size), size, MAX_PARTS)?;
    if plan.parts == 1 {
        return run_sum(device, (dtype, result), scale, task, &plan, from, to);
    }
    let between = sum_dtype(dtype);
    // SAFETY: the first launch writes the sums of all parts.
    let sums = unsafe { RocmStorage::alloc(device, between, task.results * plan.parts, OP)? };
    let layout = Strided::of_parts(task.results, plan.parts);
    let rest = Task { results: task.results, per_result: plan.parts, layout };
    run_sum(device, (dtype, between), 1.0, task, &plan, from, sums.slice.ptr())?;
    let size = between.size_in_bytes();
    let plan = rest.plan(rest.neighbours(sums.slice.ptr(), size), size, 1)?;
    run_sum(device, (between, result), scale, &rest, &plan, sums.slice.ptr(), to)
}

/// Returns the kernel that sums elements of the first dtype to results of the second, and its argument `to`.
fn sum_kernel(dtype: DType, result: DType) -> Option<(ReduceSumSource, usize)> {
    use ReduceSumSource as Source;
    let source = match dtype {
        DType::U8 => Source::U8,
        DType::I16 => Source::I16,
        DType::U32 | DType::I32 => Source::U32,
        DType::I64 => Source::I64,
        DType::F16 => Source::F16,
        DType::BF16 => Source::Bf16,
        DType::F8E4M3 => Source::F8e4m3,
        DType::F32 => Source::F32,
        DType::F64 => Source::F64,
        _ => return None,
    };
    Some(match (dtype, result) {
        (DType::F32, DType::F16) => (Source::Parts, PARTS_AS_F16),
        (DType::F32, DType::BF16) => (Source::Parts, PARTS_AS_BF16),
        (DType::F32, DType::F8E4M3) => (Source::Parts, PARTS_AS_F8),
        (from, to) if from == to => (source, SUM_AS_ELEMENTS),
        (DType::F16 | DType::BF16 | DType::F8E4M3, DType::F32) => (source, SUM_AS_F32),
        _ => return None,
    })
}

fn run_sum(
    device: &RocmDevice,
    (from_dtype, to_dtype): (DType, DType),
    scale: f64,
    task: &Task,
    plan: &Plan,
    src: DevicePtr,
    dst: DevicePtr,
) -> Result<()> {
    let (source, to) = sum_kernel(from_dtype, to_dtype).ok_or_else(|| unsupported_dtype(OP, from_dtype))?;
    let Strided { num_dims, layout: info } = &task.layout.strided;
    let arguments = ReduceSum {
        results: task.results,
        per_result: task.per_result,
        width: plan.width,
        across: plan.across,
        kept_dims: task.layout.kept_dims,
        num_dims: *num_dims,
        info,
        src,
        dst,
        scale,
        to,
    };
    // SAFETY: `src` was checked against its buffer, and `dst` has an element for each result and part.
    unsafe { device.launch(found(ReduceSum::kernel(source), OP, from_dtype)?, plan.config, &arguments) }
}

/// Computes minima if `smallest`, otherwise maxima, and their indices as u32; either pointer may be null.
fn extreme(
    src: &RocmStorage,
    from: DevicePtr,
    task: &Task,
    smallest: bool,
    (values, places): (DevicePtr, DevicePtr),
) -> Result<()> {
    let dtype = src.slice.dtype();
    let kernel = found(ReduceExtreme::kernel(computing(OP, dtype)?), OP, dtype)?;
    let run = |task: &Task, plan: &Plan, candidates: DevicePtr, values: DevicePtr, places: DevicePtr| {
        let Strided { num_dims, layout: info } = &task.layout.strided;
        let arguments = ReduceExtreme {
            results: task.results,
            per_result: task.per_result,
            width: plan.width,
            across: plan.across,
            kept_dims: task.layout.kept_dims,
            num_dims: *num_dims,
            info,
            src: from,
            candidates,
            values,
            places,
            smallest,
        };
        // SAFETY: `from` was checked against its buffer; null pointers are not used; the others have an element for each
        // result and part.
        // The kernel waits for earlier launches at its start.
        unsafe { src.device.launch_overlapping(kernel, plan.config, &arguments) }
    };
    let size = dtype.size_in_bytes();
    let plan = task.plan(task.neighbours(from, size), size, MAX_PARTS)?;
    if plan.parts == 1 {
        return run(task, &plan, DevicePtr::NULL, values, places);
    }
    // SAFETY: the first launch writes the indices of all parts.
    let parts = unsafe { RocmStorage::alloc(&src.device, DType::U32, task.results * plan.parts, OP)? };
    run(task, &plan, DevicePtr::NULL, DevicePtr::NULL, parts.slice.ptr())?;
    let layout = Reduction { across: task.results > 1, ..task.layout };
    let rest = Task { results: task.results, per_result: plan.parts, layout };
    // The candidates are not adjacent in memory, so each thread has one result.
    run(&rest, &rest.plan(1, size, 1)?, parts.slice.ptr(), values, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that plans cover all elements of all results, and that no launch exceeds HIP's number of threads.
    #[test]
    fn plans_cover_all_shapes() {
        for results in [1, 2, 3, 31, 100, 4096, 1 << 20, 1 << 31] {
            for per_result in [1, 2, 5, 16, 33, 1000, 1 << 16, (1 << 24) + 1] {
                for across in [0, 1, 4, 8].into_iter().filter(|&n| n == 0 || results % n == 0) {
                    let layout = Reduction { across: across > 0, ..Strided::of_parts(results, per_result) };
                    let plan = Task { results, per_result, layout }.plan(across, 2, MAX_PARTS).unwrap();
                    let (grid, block) = (plan.config.grid, plan.config.block.0);
                    let what = format!("{results} x {per_result}, across: {across}");
                    assert!(plan.width.is_power_of_two() && plan.width <= block, "{what}");
                    let tasks = grid.0 as usize * (block / plan.width) as usize;
                    assert!(tasks * across.max(1) >= results, "{what}");
                    assert!(grid.1 as usize == plan.parts && plan.parts <= per_result, "{what}");
                    assert!(grid.0 as u64 * u64::from(block) <= u64::from(u32::MAX), "{what}");
                    // If `across` is not 0, LDS has an element for each of BLOCK threads.
                    assert!(block as usize <= if across > 0 { BLOCK } else { ROW_BLOCK }, "{what}");
                }
            }
        }
    }

    #[test]
    fn one_long_result_is_shared_by_many_workgroups() {
        let task = Task { results: 1, per_result: 1 << 22, layout: Strided::of_parts(1, 1 << 22) };
        assert!(task.plan(1, 4, MAX_PARTS).unwrap().parts >= 64);
    }

    #[test]
    fn adjacent_results_are_loaded_as_vectors_if_aligned() {
        let of = |dims: [usize; 2], at: usize| {
            let layout = Layout::contiguous(dims.as_slice());
            let layout = Strided::of_reduction("test", &layout, &[0]).unwrap();
            Task { results: dims[1], per_result: dims[0], layout }.neighbours(DevicePtr(at as *mut _), 2)
        };
        assert_eq!((of([5, 16], 32), of([5, 16], 34), of([5, 12], 32), of([16, 1], 32)), (8, 1, 1, 1));
    }
}
