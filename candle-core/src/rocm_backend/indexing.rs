//! Selecting, gathering, scattering and adding by index.
//!
//! An index out of range reads nothing and writes nothing; it is reported by the next call that waits for the device.
use super::error::{dtype_mismatch, unsupported_dtype};
use super::launch::LaunchConfig;
use super::layout::Strided;
use super::storage::RocmStorage;
use crate::{DType, Layout, Result};
use hip_kernels::Module;

/// `dst[l, j, r] = src[l, ids[j], r]`, the dims before `dim` flattened to l, those after it to r.
pub(super) fn index_select(
    src: &RocmStorage,
    ids: &RocmStorage,
    layout: &Layout,
    ids_layout: &Layout,
    dim: usize,
) -> Result<RocmStorage> {
    const OP: &str = "index-select";
    let (left, size, right) = split(layout, dim);
    let count = ids_layout.shape().elem_count();
    let elements = count * left * right;
    let names = ["is", ids_dtype(ids, OP)?, dtype(src)];
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), elements, OP)? };
    if elements == 0 {
        return Ok(dst);
    }
    src.order_after(ids)?;
    // The kernel follows the strides of the source; the ids must be dense.
    let dense;
    let index = if ids_layout.is_contiguous() {
        ids.ptr(ids_layout, OP)?
    } else {
        dense = ids.dense(ids_layout, OP)?;
        dense.slice.ptr()
    };
    let (from, to) = (src.ptr(layout, OP)?, dst.slice.ptr());
    let strided = Strided::of(OP, &[layout])?;
    let kernel = src.device.kernel(Module::Indexing, &names)?;
    let launch = kernel.launch(LaunchConfig::for_elements(OP, elements)?);
    let launch = launch.arg(&elements).strided(&strided).arg(&index).arg(&from).arg(&to);
    // SAFETY: is(numel, num_dims, info, ids, inp, out, left, src_dim, ids_dim, right); the kernel checks each index.
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
    let index = ids.contiguous_ptr(ids_layout, OP)?;
    let from = src.contiguous_ptr(layout, OP)?;
    let (left, size, right) = split(layout, dim);
    let count = ids_layout.dims()[dim];
    let elements = ids_layout.shape().elem_count();
    let names = ["gather", ids_dtype(ids, OP)?, dtype(src)];
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(&src.device, src.slice.dtype(), elements, OP)? };
    if elements == 0 {
        return Ok(dst);
    }
    src.order_after(ids)?;
    let to = dst.slice.ptr();
    let kernel = src.device.kernel(Module::Indexing, &names)?;
    let launch = kernel.launch(LaunchConfig::for_elements(OP, elements)?);
    let launch = launch.arg(&elements).arg(&index).arg(&from).arg(&to);
    // SAFETY: gather(numel, ids, inp, out, left, src_dim, ids_dim, right); the kernel checks each index.
    unsafe { launch.arg(&left).arg(&size).arg(&count).arg(&right).run()? };
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
    let (op, kernel) = if add { ("scatter-add", "sa") } else { ("scatter", "s") };
    same_dtype(dst, src, op)?;
    let index = ids.contiguous_ptr(ids_layout, op)?;
    let to = dst.contiguous_ptr(layout, op)?;
    let from = src.contiguous_ptr(src_layout, op)?;
    let (left, size, right) = split(src_layout, dim);
    let dst_size = layout.dims()[dim];
    if left * size * right == 0 {
        return Ok(());
    }
    let names = [kernel, ids_dtype(ids, op)?, dtype(dst)];
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
    same_dtype(base, src, OP)?;
    let index = ids.contiguous_ptr(ids_layout, OP)?;
    let from = src.contiguous_ptr(src_layout, OP)?;
    let names = ["ia", ids_dtype(ids, OP)?, dtype(base)];
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

fn dtype(storage: &RocmStorage) -> &'static str {
    storage.slice.dtype().as_str()
}

fn same_dtype(dst: &RocmStorage, src: &RocmStorage, op: &'static str) -> Result<()> {
    let (lhs, rhs) = (dst.slice.dtype(), src.slice.dtype());
    if lhs == rhs {
        Ok(())
    } else {
        Err(dtype_mismatch(op, lhs, rhs))
    }
}

/// The dtype of the ids as kernels are named by it.
fn ids_dtype(ids: &RocmStorage, op: &'static str) -> Result<&'static str> {
    match ids.slice.dtype() {
        dtype @ (DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64) => Ok(dtype.as_str()),
        dtype => Err(unsupported_dtype(op, dtype)),
    }
}
