//! Selecting, gathering, scattering and adding by index.
//!
//! An index out of range reads nothing and writes nothing; it is reported by the next call that waits for the device.
use super::{check_computes, check_rank, computing, found, same_computing_dtype, strided};
use crate::rocm_backend::device::{max_elements, LaunchConfig};
use crate::rocm_backend::error::unsupported_dtype;
use crate::rocm_backend::layout::{runs, Strided};
use crate::rocm_backend::storage::{carrier, further, RocmStorage};
use crate::rocm_backend::RocmError;
use crate::{DType, Layout, Result};
use hip_kernels::contract::{Element, Gather, IndexAdd, IndexSelect, Scatter, ScatterAdd};

/// The ids that ops which only move elements take, and those that adding ops take: as on the CPU device.
const MOVING_IDS: &[DType] = &[DType::U8, DType::U32, DType::I64];
const ADDING_IDS: &[DType] = &[DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];

/// `dst[l, j, r] = src[l, ids[j], r]`, the dims before `dim` flattened to l, those after it to r. The ids may be
/// strided.
pub(crate) fn index_select(
    src: &RocmStorage,
    ids: &RocmStorage,
    layout: &Layout,
    ids_layout: &Layout,
    dim: usize,
) -> Result<RocmStorage> {
    const OP: &str = "index-select";
    let dtype = src.slice.dtype();
    check_computes(OP, dtype)?;
    let kernel = IndexSelect::kernel(ids_element(ids, MOVING_IDS, OP)?, carrier(dtype));
    let kernel = found(kernel, OP, ids.slice.dtype())?;
    check_rank(ids_layout, 1)?;
    let inp = src.contiguous_ptr(layout, OP)?;
    let index = ids.ptr(ids_layout, OP)?;
    // Of the ids the kernel takes the stride alone.
    let Strided { num_dims, layout: info } = &Strided::of(OP, &[ids_layout])?;
    let (left, size, right) = split(layout, dim);
    let count = ids_layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, count * left * right, OP)? };
    if count * left * right == 0 {
        return Ok(dst);
    }
    src.order_after(ids)?;
    // Nearly always one launch: as many ids, then as many runs of them, as it can count.
    let ids_step = fitting(OP, right)?.min(count);
    let left_step = if ids_step < count { 1 } else { fitting(OP, count * right)?.min(left) };
    for (first_left, left) in runs(left, left_step) {
        for (first_id, ids_dim_size) in runs(count, ids_step) {
            let numel = left * ids_dim_size * right;
            let arguments = IndexSelect {
                numel,
                num_dims: *num_dims,
                info,
                ids: further(index, ids.slice.dtype(), first_id * ids_layout.stride()[0]),
                inp: further(inp, dtype, first_left * size * right),
                out: further(dst.slice.ptr(), dtype, (first_left * count + first_id) * right),
                left_size: left,
                src_dim_size: size,
                ids_dim_size,
                right_size: right,
            };
            // SAFETY: source and ids were checked against their buffers; the kernel checks each index.
            unsafe { src.device.launch(kernel, LaunchConfig::for_elements(OP, numel)?, &arguments)? };
        }
    }
    Ok(dst)
}

/// `dst[l, j, r] = src[l, ids[l, j, r], r]`.
pub(crate) fn gather(
    src: &RocmStorage,
    layout: &Layout,
    ids: &RocmStorage,
    ids_layout: &Layout,
    dim: usize,
) -> Result<RocmStorage> {
    const OP: &str = "gather";
    let dtype = src.slice.dtype();
    check_computes(OP, dtype)?;
    let kernel = Gather::kernel(ids_element(ids, MOVING_IDS, OP)?, carrier(dtype));
    let kernel = found(kernel, OP, ids.slice.dtype())?;
    let index = ids.contiguous_ptr(ids_layout, OP)?;
    let inp = src.contiguous_ptr(layout, OP)?;
    let (_, size, src_right) = split(layout, dim);
    let (left, count, right) = split(ids_layout, dim);
    let elements = ids_layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, elements, OP)? };
    if elements == 0 {
        return Ok(dst);
    }
    src.order_after(ids)?;
    let step = fitting(OP, count * right)?;
    for (first, left) in runs(left, step) {
        let numel = left * count * right;
        let arguments = Gather {
            numel,
            ids: further(index, ids.slice.dtype(), first * count * right),
            inp: further(inp, dtype, first * size * src_right),
            out: further(dst.slice.ptr(), dtype, first * count * right),
            left_size: left,
            src_dim_size: size,
            ids_dim_size: count,
            right_size: right,
            src_right_size: src_right,
        };
        // SAFETY: source and ids were checked against their buffers; the kernel checks each index.
        unsafe { src.device.launch(kernel, LaunchConfig::for_elements(OP, numel)?, &arguments)? };
    }
    Ok(dst)
}

/// `dst[l, ids[l, j, r], r] = src[l, j, r]`, or `+=` if `add`.
#[allow(clippy::too_many_arguments, reason = "those of the backend's trait")]
pub(crate) fn scatter(
    dst: &mut RocmStorage,
    layout: &Layout,
    ids: &RocmStorage,
    ids_layout: &Layout,
    src: &RocmStorage,
    src_layout: &Layout,
    dim: usize,
    add: bool,
) -> Result<()> {
    let op = if add { "scatter-add" } else { "scatter" };
    let ids_element = ids_element(ids, if add { ADDING_IDS } else { MOVING_IDS }, op)?;
    let dtype = same_computing_dtype(op, dst, src)?;
    let index = ids.contiguous_ptr(ids_layout, op)?;
    let to = dst.contiguous_ptr(layout, op)?;
    let from = src.contiguous_ptr(src_layout, op)?;
    let (left, size, right) = split(src_layout, dim);
    let dst_size = layout.dims()[dim];
    if left * size * right == 0 {
        return Ok(());
    }
    dst.order_after(ids)?;
    dst.order_after(src)?;
    let step = fitting(op, right)?;
    for (first, left_size) in runs(left, step) {
        let config = LaunchConfig::for_elements(op, left_size * right)?;
        let ids_at = further(index, ids.slice.dtype(), first * size * right);
        let inp = further(from, dtype, first * size * right);
        let out = further(to, dtype, first * dst_size * right);
        let (src_dim_size, dst_dim_size, right_size) = (size, dst_size, right);
        if add {
            let kernel = found(ScatterAdd::kernel(ids_element, computing(op, dtype)?), op, dtype)?;
            let arguments =
                ScatterAdd { ids: ids_at, inp, out, left_size, src_dim_size, dst_dim_size, right_size };
            // SAFETY: all operands were checked against their buffers; the kernel checks each index.
            unsafe { dst.device.launch(kernel, config, &arguments)? };
        } else {
            let kernel = found(Scatter::kernel(ids_element, carrier(dtype)), op, dtype)?;
            let arguments =
                Scatter { ids: ids_at, inp, out, left_size, src_dim_size, dst_dim_size, right_size };
            // SAFETY: as above.
            unsafe { dst.device.launch(kernel, config, &arguments)? };
        }
    }
    Ok(())
}

/// A copy of `base` with `[l, ids[j], r] += src[l, j, r]`.
pub(crate) fn index_add(
    base: &RocmStorage,
    layout: &Layout,
    ids: &RocmStorage,
    ids_layout: &Layout,
    src: &RocmStorage,
    src_layout: &Layout,
    dim: usize,
) -> Result<RocmStorage> {
    const OP: &str = "index-add";
    let ids_element = ids_element(ids, ADDING_IDS, OP)?;
    let index = ids.contiguous_ptr(ids_layout, OP)?;
    let dtype = same_computing_dtype(OP, base, src)?;
    let kernel = found(IndexAdd::kernel(ids_element, computing(OP, dtype)?), OP, dtype)?;
    let from = src.contiguous_ptr(src_layout, OP)?;
    let dst = strided::dense(base, layout, OP)?;
    let (left, size, right) = split(src_layout, dim);
    let dst_size = layout.dims()[dim];
    let count = ids_layout.shape().elem_count();
    if left * size * right == 0 {
        return Ok(dst);
    }
    dst.order_after(ids)?;
    dst.order_after(src)?;
    let step = fitting(OP, right)?;
    for (first, left_size) in runs(left, step) {
        let arguments = IndexAdd {
            ids: index,
            ids_dim_size: count,
            inp: further(from, dtype, first * count * right),
            // `dst` is dense from its first element on.
            out: further(dst.slice.ptr(), dtype, first * dst_size * right),
            left_size,
            src_dim_size: size,
            dst_dim_size: dst_size,
            right_size: right,
        };
        // SAFETY: all operands were checked against their buffers; the kernel checks each index.
        unsafe { dst.device.launch(kernel, LaunchConfig::for_elements(OP, left_size * right)?, &arguments)? };
    }
    Ok(dst)
}

/// How many groups of `elements` one launch can count.
fn fitting(op: &'static str, elements: usize) -> Result<usize> {
    let limit = max_elements();
    match limit / elements.max(1) {
        0 => Err(RocmError::TooManyElements { op, elements, limit }.into()),
        groups => Ok(groups),
    }
}

/// Elements before, along and after `dim`.
fn split(layout: &Layout, dim: usize) -> (usize, usize, usize) {
    let dims = layout.dims();
    (dims[..dim].iter().product(), dims[dim], dims[dim + 1..].iter().product())
}

/// The dtype of the ids, if it is one that the operation takes.
fn ids_element(ids: &RocmStorage, taken: &[DType], op: &'static str) -> Result<Element> {
    let dtype = ids.slice.dtype();
    match taken.contains(&dtype) {
        true => computing(op, dtype),
        false => Err(unsupported_dtype(op, dtype)),
    }
}
