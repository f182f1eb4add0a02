//! Selecting, gathering, scattering and adding by index.
//!
//! Floats at repeated indices are added in an arbitrary order, each sum rounded to the dtype, unless deterministic results
//! are requested ([`set_deterministic`]). All other results are bitwise the same as on the CPU device.
//!
//! An index out of range causes no access; the next call that waits for the device reports it.
use super::{check_computes, check_rank, computing, found, same_computing_dtype, sort, strided, Operand};
use crate::rocm_backend::device::{max_elements, LaunchConfig};
use crate::rocm_backend::error::unsupported_dtype;
use crate::rocm_backend::layout::runs;
use crate::rocm_backend::storage::{copy_element, offset_by_elements, RocmStorage};
use crate::rocm_backend::RocmError;
use crate::{DType, Layout, Result};
use hip_kernels::contract::{
    dim_word, DevicePtr, KernelFamily, LastPlaces, LastPlacesOp, Put, PutKind, ScatterLines, Take, TakeUnit,
    GATHER_BYTES_PER_THREAD, GATHER_UNITS_PER_THREAD, IDS_I16, IDS_I32, IDS_I64, IDS_U32, IDS_U8, PACK_BYTES,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::LazyLock;

/// Index dtypes of operations that move elements, and of operations that add elements, as on the CPU device.
const MOVING_IDS: &[DType] = &[DType::U8, DType::U32, DType::I64];
const ADDING_IDS: &[DType] = &[DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];

/// Longest dim for which one thread adds a whole line in order if there are fewer lines than `MIN_LINES`.
const MAX_LINE: usize = 64;
const MIN_LINES: usize = 1 << 16;
/// Maximum number of elements of the destination for each scattered element if the last place of each is found first.
const MAX_DESTINATION: usize = 4;
/// Maximum number of lines for a workgroup that finds the last places in LDS, and minimum number if there are more lines.
const MAX_COLUMNS: usize = 32;
const MIN_COLUMNS: usize = 8;
/// LDS of such a workgroup in bytes, and the maximum number of elements that it scatters.
const LINES_LDS: usize = 32 << 10;
const LINES_ELEMENTS: usize = 1 << 16;

static DETERMINISTIC: LazyLock<AtomicBool> = LazyLock::new(|| {
    AtomicBool::new(std::env::var_os("CANDLE_ROCM_DETERMINISTIC").is_some_and(|value| value == "1"))
});

/// Returns true if floats with equal indices are added in a fixed order, as on the CPU device.
pub fn deterministic() -> bool {
    DETERMINISTIC.load(Ordering::Relaxed)
}

/// Sets [`deterministic`]. The default is false, or true if the environment variable `CANDLE_ROCM_DETERMINISTIC` is 1. If
/// true, one thread adds all elements with the same index; for long dims, the indices are sorted first. If false, each
/// element has a thread, and threads add atomically.
pub fn set_deterministic(in_order: bool) {
    DETERMINISTIC.store(in_order, Ordering::Relaxed);
}

/// Computes `dst[l, j, r] = src[l, ids[j], r]`, with the dims before `dim` flattened to l and the dims after it to r. The
/// ids may be strided.
pub(crate) fn index_select(
    (src, layout): Operand,
    (ids, ids_layout): Operand,
    dim: usize,
) -> Result<RocmStorage> {
    const OP: &str = "index-select";
    let dtype = src.slice.dtype();
    check_computes(OP, dtype)?;
    let ids_dtype = ids_dtype(ids, MOVING_IDS, OP)?;
    check_rank(ids_layout, 1)?;
    let inp = src.contiguous_ptr(layout, OP)?;
    let index = ids.ptr(ids_layout, OP)?;
    let (left, size, right) = split(layout, dim);
    let (count, ids_stride) = (ids_layout.shape().elem_count(), ids_layout.stride()[0]);
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, count * left * right, OP)? };
    if count * left * right == 0 {
        return Ok(dst);
    }
    src.order_after(ids)?;
    // The widest unit, a power of two, that divides the row size and the address.
    let width = dtype.size_in_bytes();
    let unit = (right * width) | inp.0.addr() | PACK_BYTES;
    let unit = unit & unit.wrapping_neg();
    let kernel = found(Take::kernel(units(unit)), OP, dtype)?;
    // Nearly always one launch; otherwise as many ids, or as many lists of ids, per launch as fit.
    let ids_step = groups_per_launch(OP, right)?.min(count);
    let left_step = if ids_step < count { 1 } else { groups_per_launch(OP, count * right)?.min(left) };
    for (first_left, left) in runs(left, left_step) {
        for (first_id, ids_dim_size) in runs(count, ids_step) {
            let right_size = right * width / unit;
            let arguments = Take {
                numel: left * ids_dim_size * right_size,
                ids: offset_by_elements(index, ids.slice.dtype(), first_id * ids_stride),
                inp: offset_by_elements(inp, dtype, first_left * size * right),
                out: offset_by_elements(dst.slice.ptr(), dtype, (first_left * count + first_id) * right),
                ids_stride,
                src_dim_size: size,
                src_right_size: right_size,
                right_size: dim_word(right_size),
                ids_dim_size: dim_word(ids_dim_size),
                ids_dtype,
                gathers: false,
            };
            let config = LaunchConfig::for_elements(
                OP,
                arguments.numel.div_ceil(GATHER_UNITS_PER_THREAD.min(GATHER_BYTES_PER_THREAD / unit)),
            )?;
            // SAFETY: source and ids were checked against their buffers; the kernel checks each index, and waits for earlier
            // launches at its start.
            unsafe { src.device.launch_overlapping(kernel, config, &arguments)? };
        }
    }
    Ok(dst)
}

/// Computes `dst[l, j, r] = src[l, ids[l, j, r], r]`.
pub(crate) fn gather((src, layout): Operand, (ids, ids_layout): Operand, dim: usize) -> Result<RocmStorage> {
    const OP: &str = "gather";
    let dtype = src.slice.dtype();
    check_computes(OP, dtype)?;
    let unit = dtype.size_in_bytes();
    let ids_dtype = ids_dtype(ids, MOVING_IDS, OP)?;
    let kernel = found(Take::kernel(units(unit)), OP, dtype)?;
    let index = ids.contiguous_ptr(ids_layout, OP)?;
    let inp = src.contiguous_ptr(layout, OP)?;
    let (_, src_dim_size, src_right_size) = split(layout, dim);
    let (left, ids_dim_size, right_size) = split(ids_layout, dim);
    let elements = ids_layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, elements, OP)? };
    if elements == 0 {
        return Ok(dst);
    }
    src.order_after(ids)?;
    let group = ids_dim_size * right_size;
    for (first, left) in runs(left, groups_per_launch(OP, group)?) {
        let arguments = Take {
            numel: left * group,
            ids: offset_by_elements(index, ids.slice.dtype(), first * group),
            inp: offset_by_elements(inp, dtype, first * src_dim_size * src_right_size),
            out: offset_by_elements(dst.slice.ptr(), dtype, first * group),
            ids_stride: 1,
            src_dim_size,
            src_right_size,
            right_size: dim_word(right_size),
            ids_dim_size: dim_word(ids_dim_size),
            ids_dtype,
            gathers: true,
        };
        let config = LaunchConfig::for_elements(
            OP,
            arguments.numel.div_ceil(GATHER_UNITS_PER_THREAD.min(GATHER_BYTES_PER_THREAD / unit)),
        )?;
        // SAFETY: as above.
        unsafe { src.device.launch_overlapping(kernel, config, &arguments)? };
    }
    Ok(dst)
}

/// Computes `dst[l, ids[l, j, r], r] = src[l, j, r]`, or `+=` if `add` is true.
pub(crate) fn scatter(
    (dst, layout): (&mut RocmStorage, &Layout),
    (ids, ids_layout): Operand,
    (src, src_layout): Operand,
    dim: usize,
    add: bool,
) -> Result<()> {
    let op = if add { "scatter-add" } else { "scatter" };
    let ids_dtype = ids_dtype(ids, if add { ADDING_IDS } else { MOVING_IDS }, op)?;
    same_computing_dtype(op, dst, src)?;
    let index = ids.contiguous_ptr(ids_layout, op)?;
    let to = dst.contiguous_ptr(layout, op)?;
    let kind = if add { PutKind::Add } else { PutKind::Scatter };
    let ids = (ids, ids_layout, ids_dtype, index);
    put(op, (kind, false), ids, (src, src_layout), (dst, to, layout.dims()[dim]), dim)
}

/// Copies `base` and adds `[l, ids[j], r] += src[l, j, r]`.
pub(crate) fn index_add(
    (base, layout): Operand,
    (ids, ids_layout): Operand,
    (src, src_layout): Operand,
    dim: usize,
) -> Result<RocmStorage> {
    const OP: &str = "index-add";
    let ids_dtype = ids_dtype(ids, ADDING_IDS, OP)?;
    let index = ids.contiguous_ptr(ids_layout, OP)?;
    same_computing_dtype(OP, base, src)?;
    // Checked before `base` is copied.
    src.contiguous_ptr(src_layout, OP)?;
    let dst = strided::dense(base, layout, OP)?;
    let to = (&dst, dst.slice.ptr(), layout.dims()[dim]);
    put(OP, (PutKind::Add, true), (ids, ids_layout, ids_dtype, index), (src, src_layout), to, dim)?;
    Ok(dst)
}

/// Writes or adds `src` to `dst`, which must be dense from `to` on. If `are_shared`, there is one id per place along the
/// dim, otherwise one per element. The caller has checked the dtypes and the ids' layout.
fn put(
    op: &'static str,
    (kind, are_shared): (PutKind, bool),
    (ids, ids_layout, ids_dtype, index): (&RocmStorage, &Layout, usize, DevicePtr),
    (src, src_layout): Operand,
    (dst, to, dst_dim_size): (&RocmStorage, DevicePtr, usize),
    dim: usize,
) -> Result<()> {
    let dtype = src.slice.dtype();
    let element = if kind == PutKind::Scatter { copy_element(dtype) } else { computing(op, dtype)? };
    let kernel = found(Put::kernel(kind, element), op, dtype)?;
    let from = src.contiguous_ptr(src_layout, op)?;
    let (left, size, right) = split(src_layout, dim);
    if left * size * right == 0 {
        return Ok(());
    }
    dst.order_after(ids)?;
    dst.order_after(src)?;
    // If an index is repeated, the last element written must win. Integer sums do not depend on the order.
    let in_order = kind == PutKind::Scatter || (deterministic() && dtype.is_float());
    // Elements narrower than a word are added by atomics on the whole word, which must not reach into memory of others.
    // Buffers end at a multiple of a word.
    let elements = left * dst_dim_size * right;
    let end = to.0.addr() + elements * dtype.size_in_bytes();
    let is_whole = elements == dst.slice.len();
    let in_order = in_order || (!is_whole && (to.0.addr() | end) % size_of::<u32>() != 0);
    // With few long lines, one thread per line is slow. The last place of each element is found first, and each element of
    // the destination reads from there. To add, or if the destination is much larger, the ids are sorted.
    let fits = size * right <= max_elements();
    let is_slow = in_order && fits && size > MAX_LINE && left * right < MIN_LINES;
    let is_dense = kind == PutKind::Scatter
        && elements <= MAX_DESTINATION * left * size * right
        && dst_dim_size * right <= max_elements();
    let sizes = (left, size, right);
    if let Some(columns) = line_columns(sizes, dst_dim_size).filter(|_| is_slow && is_dense) {
        return scatter_lines(op, (index, ids_dtype), (from, dtype), (dst, to, dst_dim_size), sizes, columns);
    }
    let last = match is_slow && is_dense {
        true => Some(last_places(op, (ids, index, ids_dtype), sizes, (dst, dst_dim_size))?),
        false => None,
    };
    let order = match is_slow && !is_dense {
        true => Some(order(op, ids, ids_layout, if are_shared { 0 } else { dim })?),
        false => None,
    };
    // The order was computed on the stream of the ids.
    order.iter().try_for_each(|order| dst.order_after(order))?;
    let threads = match last {
        Some(_) => dst_dim_size,
        None if fits && (is_slow || !in_order) => size,
        None => 1,
    };
    let per_thread = if last.is_some() { GATHER_UNITS_PER_THREAD } else { 1 };
    for (first, left) in runs(left, groups_per_launch(op, threads * right)?) {
        let first_id = if are_shared { 0 } else { first * size * right };
        let arguments = Put {
            numel: left * threads * right,
            ids: offset_by_elements(index, ids.slice.dtype(), first_id),
            order: order
                .as_ref()
                .map_or(DevicePtr::NULL, |o| offset_by_elements(o.slice.ptr(), DType::U32, first_id)),
            last: last.as_ref().map_or(DevicePtr::NULL, |last| {
                offset_by_elements(last.slice.ptr(), DType::U32, first * dst_dim_size * right)
            }),
            inp: offset_by_elements(from, dtype, first * size * right),
            out: offset_by_elements(to, dtype, first * dst_dim_size * right),
            src_dim_size: size,
            dst_dim_size,
            right_size: dim_word(right),
            runs: dim_word(threads),
            ids_dtype,
            are_shared,
        };
        let config = LaunchConfig::for_elements(op, arguments.numel.div_ceil(per_thread))?;
        // SAFETY: all operands were checked against their buffers; the kernel checks each index.
        unsafe { dst.device.launch(kernel, config, &arguments)? };
    }
    Ok(())
}

/// Returns the number of neighbouring lines for a workgroup of [`scatter_lines`], or `None` if their destinations do not fit
/// into LDS, or if there is too little work for many workgroups.
fn line_columns((_, size, right): (usize, usize, usize), dst_dim_size: usize) -> Option<usize> {
    let fitting = (LINES_LDS / size_of::<u32>() / dst_dim_size.max(1)).min(LINES_ELEMENTS / size);
    let columns = right.next_power_of_two().min(MAX_COLUMNS);
    let columns = columns.min(1 << fitting.checked_ilog2()?);
    (columns >= right.min(MIN_COLUMNS)).then_some(columns)
}

/// Scatters in one launch, without a buffer for the last places.
fn scatter_lines(
    op: &'static str,
    (ids, ids_dtype): (DevicePtr, usize),
    (inp, dtype): (DevicePtr, DType),
    (dst, out, dst_dim_size): (&RocmStorage, DevicePtr, usize),
    (left, size, right): (usize, usize, usize),
    columns: usize,
) -> Result<()> {
    let kernel = found(ScatterLines::kernel(copy_element(dtype)), op, dtype)?;
    let arguments = ScatterLines {
        ids,
        inp,
        out,
        src_dim_size: size,
        dst_dim_size,
        right_size: right,
        columns,
        ids_dtype,
    };
    let mut config = LaunchConfig::for_rows(op, left * right.div_ceil(columns), ScatterLines::BLOCK)?;
    config.lds_bytes = (dst_dim_size * columns * size_of::<u32>()) as u32;
    // SAFETY: all operands were checked against their buffers; the kernel checks each index.
    unsafe { dst.device.launch(kernel, config, &arguments) }
}

/// Returns for each element of the destination one plus the last place along the dim whose id selects it, or 0.
fn last_places(
    op: &'static str,
    (ids, index, ids_dtype): (&RocmStorage, DevicePtr, usize),
    (left, size, right): (usize, usize, usize),
    (dst, dst_dim_size): (&RocmStorage, usize),
) -> Result<RocmStorage> {
    let group = dst_dim_size * right;
    let kernel = found(LastPlaces::kernel(LastPlacesOp::Last), op, DType::U32)?;
    let last = strided::zeros(&dst.device, DType::U32, left * group)?;
    for (first, left) in runs(left, groups_per_launch(op, size * right)?) {
        let arguments = LastPlaces {
            numel: left * size * right,
            ids: offset_by_elements(index, ids.slice.dtype(), first * size * right),
            last: offset_by_elements(last.slice.ptr(), DType::U32, first * group),
            dst_dim_size,
            right_size: dim_word(right),
            ids_dim_size: dim_word(size),
            ids_dtype,
        };
        let config = LaunchConfig::for_elements(op, arguments.numel)?;
        // SAFETY: the ids were checked against their buffer; the kernel checks each index.
        unsafe { dst.device.launch(kernel, config, &arguments)? };
    }
    Ok(last)
}

/// Returns the permutation that sorts the ids along `dim`, in the layout of the ids.
fn order(op: &'static str, ids: &RocmStorage, layout: &Layout, dim: usize) -> Result<RocmStorage> {
    let (last, size) = (layout.dims().len() - 1, layout.dims()[dim]);
    if dim == last {
        return Ok(sort::arg_sort(ids, layout, true, size)?.0);
    }
    let transposed = layout.transpose(dim, last)?;
    let dense = Layout::contiguous(transposed.shape());
    let (order, _) = sort::arg_sort(&strided::dense(ids, &transposed, op)?, &dense, true, size)?;
    strided::dense(&order, &dense.transpose(dim, last)?, op)
}

/// Returns the unit in which elements of this size are moved.
fn units(bytes: usize) -> TakeUnit {
    match bytes {
        1 => TakeUnit::B1,
        2 => TakeUnit::B2,
        4 => TakeUnit::B4,
        8 => TakeUnit::B8,
        _ => TakeUnit::B16,
    }
}

/// Returns the number of groups of `elements` elements that fit into one launch.
fn groups_per_launch(op: &'static str, elements: usize) -> Result<usize> {
    let limit = max_elements();
    match limit / elements.max(1) {
        0 => Err(RocmError::TooManyElements { op, elements, limit }.into()),
        groups => Ok(groups),
    }
}

/// Returns the number of elements before, along and after `dim`.
fn split(layout: &Layout, dim: usize) -> (usize, usize, usize) {
    let dims = layout.dims();
    (dims[..dim].iter().product(), dims[dim], dims[dim + 1..].iter().product())
}

/// Returns the contract's number of the ids' dtype, or an error if the operation does not support it.
fn ids_dtype(ids: &RocmStorage, accepted: &[DType], op: &'static str) -> Result<usize> {
    let dtype = ids.slice.dtype();
    match dtype {
        _ if !accepted.contains(&dtype) => Err(unsupported_dtype(op, dtype)),
        DType::U8 => Ok(IDS_U8),
        DType::U32 => Ok(IDS_U32),
        DType::I64 => Ok(IDS_I64),
        DType::I16 => Ok(IDS_I16),
        DType::I32 => Ok(IDS_I32),
        _ => Err(unsupported_dtype(op, dtype)),
    }
}
