//! Sums, extrema and their places over any set of dims: one launch, or two where results are few and long.
use super::{computing, found, strided};
use crate::error::bail;
use crate::op::{BackpropOp, ReduceOp};
use crate::rocm_backend::device::{max_elements, LaunchConfig, RocmDevice};
use crate::rocm_backend::layout::{pieces, runs, Reduction, Strided};
use crate::rocm_backend::storage::{element, offset_by_elements, RocmStorage};
use crate::rocm_backend::RocmError;
use crate::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Storage, Tensor};
use hip_kernels::contract::{
    DevicePtr, ReduceExtreme, ReduceExtremeOp, ReduceSum, ReduceVariance, BLOCK, NEIGHBOURS, PACK_BYTES,
    ROW_BLOCK,
};

const OP: &str = "reduce";
/// Fewer threads than this leave a large GPU idle, so results are shared by more of them.
const ENOUGH_THREADS: usize = 1 << 17;
/// A thread is worth starting for this many elements, or a pack.
const PER_THREAD: usize = 4;
/// A second launch is worth it if each thread of the first one keeps this many elements, of neighbours this many each.
const PER_THREAD_OF_PART: usize = 64;
const PER_THREAD_ACROSS: usize = 16;
/// Fewer parts of a lone row are not.
const LEAST_PARTS: usize = 4;
const MAX_PARTS: usize = 1024;
/// A variance is not cut into parts, and worth a launch of its own if results are not longer or not fewer.
const LONG: usize = 1 << 14;
const MANY: usize = 128;
/// Bytes of the neighbouring elements that a thread takes to so many variances.
const HELD_BYTES: usize = 8;

/// Reduces `dims` of `layout`. The result is dense, its dims those that are kept; places count along the reduced
/// dims in row-major order.
///
/// Sums start from 0: integers wrap, f32 is summed in f64 and narrower floats in f32, then rounded. Extrema start from
/// the first element and are replaced only by strictly better ones: a NaN in first place stays, others are passed over.
pub(crate) fn reduce(
    src: &RocmStorage,
    op: ReduceOp,
    layout: &Layout,
    dims: &[usize],
) -> Result<RocmStorage> {
    scaled(src, op, 1.0, layout, dims)
}

/// [`reduce`] with a factor of sums before they are rounded, for floats.
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
    // SAFETY: every result is written by the last launch.
    let dst = unsafe { RocmStorage::alloc(&src.device, result_dtype, results, OP)? };
    let per_result = elements / results;
    if results <= max_elements() && per_result <= max_elements() {
        let to = dst.slice.ptr();
        return run(src, op, scale, layout, dims, (results, per_result), to).map(|()| dst);
    }
    in_pieces(src, op, scale, layout, dims, dst)
}

/// The sum of `rows` dense rows of floats of a storage, into another one.
pub(crate) fn sum_rows(src: &RocmStorage, (rows, columns): (usize, usize), dst: &RocmStorage) -> Result<()> {
    let limit = max_elements();
    if rows.max(columns) > limit || dst.slice.len() < columns {
        return Err(RocmError::TooManyElements { op: OP, elements: columns, limit }.into());
    }
    let layout = Layout::contiguous((rows, columns));
    run(src, ReduceOp::Sum, 1.0, &layout, &[0], (columns, rows), dst.slice.ptr())
}

/// Sums over `dims`, which stay as dims of 1, times `scale`, rounded once, of floats on ROCm; none elsewhere. What is
/// rounded first and scaled then overflows in f16 where the mean does not.
///
/// # Errors
/// If there is no memory for the result.
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
        bail!("a scaled sum in one launch is ROCm's")
    }

    fn rocm_fwd(&self, x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
        let sums = scaled(x, ReduceOp::Sum, self.scale, layout, &self.dims)?;
        let size = |(dim, &size)| if self.dims.contains(&dim) { 1 } else { size };
        Ok((sums, layout.dims().iter().enumerate().map(size).collect::<Vec<_>>().into()))
    }

    /// That of a sum and a product.
    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        gradient.affine(self.scale, 0.0)?.broadcast_as(x.shape()).map(Some)
    }
}

/// The unbiased variance along `dim`, which stays as a dim of 1, of floats on ROCm: one launch where nothing tracks
/// gradients and results are not few and long, else that of narrow floats by way of f32. None elsewhere, where it is
/// upstream's.
///
/// # Errors
/// If there is no memory for the result.
pub(crate) fn variance(x: &Tensor, dim: usize) -> Result<Option<Tensor>> {
    let (dtype, per_result) = (x.dtype(), x.dims()[dim]);
    if !x.device().is_rocm() || x.elem_count() == 0 {
        return Ok(None);
    }
    let results = x.elem_count() / per_result;
    let is_one_launch = matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
        && !x.track_op()
        && (per_result <= LONG || results >= MANY)
        && results.max(per_result) <= max_elements();
    match is_one_launch {
        true => variance_in_one_launch(x, dim, results, per_result),
        false => in_f32(x, |x| x.var_keepdim(dim)),
    }
}

/// The norm of narrow floats on ROCm by way of f32, where squares do not overflow; none elsewhere, where it is upstream's.
///
/// # Errors
/// If there is no memory for the result.
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
        task.plan(task.neighbours(src, size).min(HELD_BYTES / size), size, 1)?;
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

/// Results that one launch cannot count are reduced in pieces; elements that it cannot count are summed in parts.
#[cold]
fn in_pieces(
    src: &RocmStorage,
    op: ReduceOp,
    scale: f64,
    layout: &Layout,
    dims: &[usize],
    dst: RocmStorage,
) -> Result<RocmStorage> {
    let limit = max_elements();
    // The kept dims alone are what the pieces are of.
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
            // Places are u32, as the CPU device's.
            _ => {
                return Err(RocmError::TooManyElements { op: OP, elements: per_result, limit }.into());
            }
        }
    }
    Ok(dst)
}

/// Sums of more elements than one launch counts: of runs along the longest reduced dim first, then of these.
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
    // SAFETY: every run's sums are written below.
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

/// Reduces what one launch can count.
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
        ReduceOp::Min => extreme(src, from, &task, ReduceExtremeOp::Min, (to, DevicePtr::NULL)),
        ReduceOp::Max => extreme(src, from, &task, ReduceExtremeOp::Max, (to, DevicePtr::NULL)),
        ReduceOp::ArgMin => extreme(src, from, &task, ReduceExtremeOp::Min, (DevicePtr::NULL, to)),
        ReduceOp::ArgMax => extreme(src, from, &task, ReduceExtremeOp::Max, (DevicePtr::NULL, to)),
    }
}

/// `results` results of `per_result` elements each.
struct Task {
    results: usize,
    per_result: usize,
    layout: Reduction,
}

/// Distribution of a [`Task`] over the threads of a launch.
struct Plan {
    /// Threads per result and part, a power of two.
    width: u32,
    /// Not 0 if threads are numbered across the results: how many neighbouring ones each has.
    across: u32,
    /// Parts that each result's elements are cut into: more than one needs a second launch.
    parts: usize,
    config: LaunchConfig,
}

impl Task {
    /// The elements are of `size` bytes; each thread may have so many `neighbours` among the results.
    fn plan(&self, neighbours: usize, size: usize, max_parts: usize) -> Result<Plan> {
        let Self { results, per_result, layout } = *self;
        let across = if layout.across { neighbours } else { 0 };
        let tasks = results / across.max(1);
        // HIP counts the threads in 32 bits.
        let countable = floor_power_of_two((1 << 31) / tasks);
        let wanted = (ENOUGH_THREADS / tasks).next_power_of_two();
        let in_packs = layout.inner_stride() == Some(1);
        let per_thread = if in_packs { PER_THREAD.max(PACK_BYTES / size) } else { PER_THREAD };
        let most = floor_power_of_two(per_result / per_thread).min(countable);
        let width = if across > 0 {
            // Some 32 neighbouring accesses keep those of a wave together.
            wanted.min(most).min(BLOCK / tasks.next_power_of_two().min(32))
        } else {
            // Twice as many threads cost nothing as long as no barrier joins them.
            let lanes = (2 * ENOUGH_THREADS / tasks).next_power_of_two().clamp(8, 32);
            wanted.max(if in_packs { lanes } else { 32 }).min(most).min(ROW_BLOCK)
        };
        let kept = if across > 0 { PER_THREAD_ACROSS } else { PER_THREAD_OF_PART };
        let parts = (ENOUGH_THREADS / (tasks * width)).min(per_result / (width * kept)).clamp(1, max_parts);
        let parts = if across == 0 && parts < LEAST_PARTS { 1 } else { parts };
        let block = tasks.saturating_mul(width).next_power_of_two().clamp(32, BLOCK).max(width);
        let mut config = LaunchConfig::for_rows(OP, tasks.div_ceil(block / width), block as u32)?;
        config.grid.1 = parts as u32;
        Ok(Plan { width: width as u32, across: across as u32, parts, config })
    }

    /// Number of results that lie next to each other, wherever one begins that is a multiple of them; else 1.
    fn neighbours(&self, from: DevicePtr, size: usize) -> usize {
        let Strided { num_dims, layout } = &self.layout.strided;
        if !self.layout.across {
            return 1;
        }
        let (dims, strides) = layout.0[..2 * num_dims].split_at(*num_dims);
        let (count, inner) = ((PACK_BYTES / size).min(NEIGHBOURS), self.layout.kept_dims - 1);
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

/// Dtype in which sums of parts are kept between launches.
fn sum_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 => DType::F32,
        same => same,
    }
}

/// Sums elements of the first dtype to results of the second, which is the same, or f32 instead of a narrow float on
/// either side; `scale` is a factor of them. `to` has room for the results.
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
    // SAFETY: every part's sum is written by the first launch.
    let sums = unsafe { RocmStorage::alloc(device, between, task.results * plan.parts, OP)? };
    let layout = Strided::of_parts(task.results, plan.parts);
    let rest = Task { results: task.results, per_result: plan.parts, layout };
    run_sum(device, (dtype, between), 1.0, task, &plan, from, sums.slice.ptr())?;
    let size = between.size_in_bytes();
    let plan = rest.plan(rest.neighbours(sums.slice.ptr(), size), size, 1)?;
    run_sum(device, (between, result), scale, &rest, &plan, sums.slice.ptr(), to)
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
    let kernel = ReduceSum::kernel(computing(OP, from_dtype)?, computing(OP, to_dtype)?);
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
    };
    // SAFETY: `src` was checked against its buffer, `dst` holds a value for each result and part.
    unsafe { device.launch(found(kernel, OP, from_dtype)?, plan.config, &arguments) }
}

/// Values and places as u32; either may be null.
fn extreme(
    src: &RocmStorage,
    from: DevicePtr,
    task: &Task,
    op: ReduceExtremeOp,
    (values, places): (DevicePtr, DevicePtr),
) -> Result<()> {
    let dtype = src.slice.dtype();
    let kernel = found(ReduceExtreme::kernel(op, computing(OP, dtype)?), OP, dtype)?;
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
        };
        // SAFETY: `from` was checked against its buffer, null pointers are not used, the others hold an element for
        // each result and part.
        unsafe { src.device.launch(kernel, plan.config, &arguments) }
    };
    let size = dtype.size_in_bytes();
    let plan = task.plan(task.neighbours(from, size), size, MAX_PARTS)?;
    if plan.parts == 1 {
        return run(task, &plan, DevicePtr::NULL, values, places);
    }
    // SAFETY: every part's place is written by the first launch.
    let parts = unsafe { RocmStorage::alloc(&src.device, DType::U32, task.results * plan.parts, OP)? };
    run(task, &plan, DevicePtr::NULL, DevicePtr::NULL, parts.slice.ptr())?;
    let layout = Reduction { across: task.results > 1, ..task.layout };
    let rest = Task { results: task.results, per_result: plan.parts, layout };
    // Candidates lie anywhere: one result each thread.
    run(&rest, &rest.plan(1, size, 1)?, parts.slice.ptr(), values, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element of every result is some thread's, and no launch has more threads than HIP can count.
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
                    // Results across have an element of LDS for each of so many threads.
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
    fn neighbours_lie_in_packs() {
        let of = |dims: [usize; 2], at: usize| {
            let layout = Layout::contiguous(dims.as_slice());
            let layout = Strided::of_reduction("test", &layout, &[0]).unwrap();
            Task { results: dims[1], per_result: dims[0], layout }.neighbours(DevicePtr(at as *mut _), 2)
        };
        assert_eq!((of([5, 16], 32), of([5, 16], 34), of([5, 12], 32), of([16, 1], 32)), (8, 1, 1, 1));
    }
}
