//! Selecting, gathering, scattering and adding by index.
//!
//! An index out of range reads nothing and writes nothing; it is reported by the next call that waits for the device.
use super::conv::{check_computes, check_rank};
use super::error::{dtype_mismatch, unsupported_dtype};
use super::launch::LaunchConfig;
use super::layout::Strided;
use super::storage::{carrier, RocmStorage};
use crate::{DType, Layout, Result};
use hip_kernels::Module;

/// The ids that ops which only move elements take, and those that adding ops take: as on the CPU device.
const MOVING_IDS: &[DType] = &[DType::U8, DType::U32, DType::I64];
const ADDING_IDS: &[DType] = &[DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];

/// `dst[l, j, r] = src[l, ids[j], r]`, the dims before `dim` flattened to l, those after it to r. The ids may be
/// strided.
pub(super) fn index_select(
    src: &RocmStorage,
    ids: &RocmStorage,
    layout: &Layout,
    ids_layout: &Layout,
    dim: usize,
) -> Result<RocmStorage> {
    const OP: &str = "index-select";
    check_computes(OP, src.slice.dtype())?;
    let names = ["is", ids_dtype(ids, MOVING_IDS, OP)?, carrier(src.slice.dtype())];
    check_rank(ids_layout, 1)?;
    let from = src.contiguous_ptr(layout, OP)?;
    let index = ids.ptr(ids_layout, OP)?;
    let (left, size, right) = split(layout, dim);
    let count = ids_layout.shape().elem_count();
    let elements = count * left * right;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), elements, OP)? };
    if elements == 0 {
        return Ok(dst);
    }
    src.order_after(ids)?;
    let to = dst.slice.ptr();
    let strided = Strided::of(OP, &[ids_layout])?;
    let kernel = src.device.kernel(Module::Indexing, &names)?;
    let launch = kernel.launch(LaunchConfig::for_elements(OP, elements)?);
    let launch = launch.arg(&elements).strided(&strided).arg(&index).arg(&from).arg(&to);
    // SAFETY: is(numel, num_dims, info of the ids, ids, inp, out, left, src_dim, ids_dim, right); the kernel checks each
    // index.
    unsafe { launch.arg(&left).arg(&size).arg(&count).arg(&right).run()? };
    Ok(dst)
}

/// `dst[l, j, r] = src[l, ids[l, j, r], r]`.
pub(super) fn gather(
    src: &RocmStorage,
    layout: &Layout,
    ids: &RocmStorage,
    ids_layout: &Layout,
    dim: usize,
) -> Result<RocmStorage> {
    const OP: &str = "gather";
    check_computes(OP, src.slice.dtype())?;
    let names = ["gather", ids_dtype(ids, MOVING_IDS, OP)?, carrier(src.slice.dtype())];
    let index = ids.contiguous_ptr(ids_layout, OP)?;
    let from = src.contiguous_ptr(layout, OP)?;
    let (_, size, src_right) = split(layout, dim);
    let (left, count, right) = split(ids_layout, dim);
    let elements = ids_layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), elements, OP)? };
    if elements == 0 {
        return Ok(dst);
    }
    src.order_after(ids)?;
    let to = dst.slice.ptr();
    let kernel = src.device.kernel(Module::Indexing, &names)?;
    let launch = kernel.launch(LaunchConfig::for_elements(OP, elements)?);
    let launch = launch.arg(&elements).arg(&index).arg(&from).arg(&to).arg(&left).arg(&size);
    // SAFETY: gather(numel, ids, inp, out, left, src_dim, ids_dim, right, src_right); the kernel checks each index.
    unsafe { launch.arg(&count).arg(&right).arg(&src_right).run()? };
    Ok(dst)
}

/// `dst[l, ids[l, j, r], r] = src[l, j, r]`, or `+=` if `add`.
#[allow(clippy::too_many_arguments)]
pub(super) fn scatter(
    dst: &mut RocmStorage,
    layout: &Layout,
    ids: &RocmStorage,
    ids_layout: &Layout,
    src: &RocmStorage,
    src_layout: &Layout,
    dim: usize,
    add: bool,
) -> Result<()> {
    let dtype = dst.slice.dtype();
    let op = if add { "scatter-add" } else { "scatter" };
    let ids_name = ids_dtype(ids, if add { ADDING_IDS } else { MOVING_IDS }, op)?;
    same_dtype(dst, src, op)?;
    let names = if add { ["sa", ids_name, dtype.as_str()] } else { ["s", ids_name, carrier(dtype)] };
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
    let kernel = dst.device.kernel(Module::Indexing, &names)?;
    let launch = kernel.launch(LaunchConfig::for_elements(op, left * right)?);
    let launch = launch.arg(&index).arg(&from).arg(&to);
    // SAFETY: s(ids, inp, out, left, src_dim, dst_dim, right); the kernel checks each index.
    unsafe { launch.arg(&left).arg(&size).arg(&dst_size).arg(&right).run() }
}

/// A copy of `base` with `[l, ids[j], r] += src[l, j, r]`.
pub(super) fn index_add(
    base: &RocmStorage,
    layout: &Layout,
    ids: &RocmStorage,
    ids_layout: &Layout,
    src: &RocmStorage,
    src_layout: &Layout,
    dim: usize,
) -> Result<RocmStorage> {
    const OP: &str = "index-add";
    let names = ["ia", ids_dtype(ids, ADDING_IDS, OP)?, base.slice.dtype().as_str()];
    let index = ids.contiguous_ptr(ids_layout, OP)?;
    same_dtype(base, src, OP)?;
    let from = src.contiguous_ptr(src_layout, OP)?;
    let dst = base.dense(layout, OP)?;
    let (left, size, right) = split(src_layout, dim);
    let dst_size = layout.dims()[dim];
    let count = ids_layout.shape().elem_count();
    if left * size * right == 0 {
        return Ok(dst);
    }
    dst.order_after(ids)?;
    dst.order_after(src)?;
    let to = dst.slice.ptr();
    let kernel = dst.device.kernel(Module::Indexing, &names)?;
    let launch = kernel.launch(LaunchConfig::for_elements(OP, left * right)?);
    let launch = launch.arg(&index).arg(&count).arg(&from).arg(&to);
    // SAFETY: ia(ids, ids_dim, inp, out, left, src_dim, dst_dim, right); `dst` is dense from its first element on, and
    // the kernel checks each index.
    unsafe { launch.arg(&left).arg(&size).arg(&dst_size).arg(&right).run()? };
    Ok(dst)
}

/// Elements before, along and after `dim`.
fn split(layout: &Layout, dim: usize) -> (usize, usize, usize) {
    let dims = layout.dims();
    (dims[..dim].iter().product(), dims[dim], dims[dim + 1..].iter().product())
}

/// The data have one dtype, and it is one that computes.
fn same_dtype(dst: &RocmStorage, src: &RocmStorage, op: &'static str) -> Result<()> {
    let (lhs, rhs) = (dst.slice.dtype(), src.slice.dtype());
    if lhs != rhs {
        return Err(dtype_mismatch(op, lhs, rhs));
    }
    check_computes(op, lhs)
}

/// The dtype of the ids as kernels are named by it.
fn ids_dtype(ids: &RocmStorage, taken: &[DType], op: &'static str) -> Result<&'static str> {
    let dtype = ids.slice.dtype();
    if taken.contains(&dtype) {
        Ok(dtype.as_str())
    } else {
        Err(unsupported_dtype(op, dtype))
    }
}
