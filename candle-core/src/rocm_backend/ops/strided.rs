//! Copies within a device that follow a layout, and filling with a value.
use super::{for_packs, found};
use crate::rocm_backend::device::{max_elements, LaunchConfig, RocmDevice};
use crate::rocm_backend::error::dtype_mismatch;
use crate::rocm_backend::layout::{in_pieces, runs, Strided};
use crate::rocm_backend::storage::{carrier, carrier_of, further, RocmStorage};
use crate::rocm_backend::stream::clear;
use crate::scalar::Scalar;
use crate::{DType, Layout, Result};
use hip_kernels::contract::{Bits, ConstSet, Copy2d, DevicePtr, Transpose, Unary, UnaryOp, BLOCK};

/// Copies what `layout` shows of `src` densely to `dst`, from element `dst_offset` on.
pub(crate) fn copy_strided(
    src: &RocmStorage,
    layout: &Layout,
    dst: &mut RocmStorage,
    dst_offset: usize,
) -> Result<()> {
    const OP: &str = "copy";
    let dtype = same_dtype(src, dst, OP)?;
    let elements = layout.shape().elem_count();
    if elements == 0 {
        return Ok(());
    }
    let to = dst.rows_ptr((1, elements), elements, dst_offset, OP)?;
    dst.order_after(src)?;
    run_copy(OP, &dst.device, dtype, src, layout, to)
}

/// A dense copy of what `layout` shows.
pub(crate) fn dense(src: &RocmStorage, layout: &Layout, op: &'static str) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    let elements = layout.shape().elem_count();
    // SAFETY: written by the copy below. Packed dtypes are made where their bytes are copied whole.
    let dst = unsafe { RocmStorage::alloc(&src.device, dtype, elements, op)? };
    run_copy(op, &src.device, dtype, src, layout, dst.slice.ptr())?;
    Ok(dst)
}

/// A copy of the whole storage, whatever part of it a layout shows. Does not wait.
pub(crate) fn duplicate(src: &RocmStorage) -> Result<RocmStorage> {
    let dst = RocmStorage { slice: src.slice.alloc_like()?, device: src.device.clone() };
    let (dtype, from, to, len) = (src.slice.dtype(), src.slice.ptr(), dst.slice.ptr(), src.slice.len());
    for (first, numel) in runs(len, max_elements()) {
        let (inp, out) = (further(from, dtype, first), further(to, dtype, first));
        // SAFETY: both ends hold all elements.
        unsafe { launch_copy("copy", &src.device, dtype, (numel, &Strided::CONTIGUOUS), inp, out)? };
    }
    Ok(dst)
}

/// Copies by a kernel, which costs less than a memory copy of HIP. `to` has room for all that `layout` shows.
fn run_copy(
    op: &'static str,
    device: &RocmDevice,
    dtype: DType,
    src: &RocmStorage,
    layout: &Layout,
    to: DevicePtr,
) -> Result<()> {
    in_pieces(op, [layout], |[layout], strided, first, numel| {
        let (inp, out) = (src.ptr(layout, op)?, further(to, dtype, first));
        // SAFETY: `inp` was checked against its buffer, and the caller has room for all pieces.
        unsafe { launch_copy(op, device, dtype, (numel, strided), inp, out) }
    })
}

/// Copies so many elements, strided where they are read.
///
/// # Safety
/// Both ends have all of them.
unsafe fn launch_copy(
    op: &'static str,
    device: &RocmDevice,
    dtype: DType,
    (numel, strided): (usize, &Strided),
    inp: DevicePtr,
    out: DevicePtr,
) -> Result<()> {
    let (size, ends) = (dtype.size_in_bytes().max(1), inp.0.addr() | out.0.addr());
    if let Some(exchange) = strided.transposition() {
        let arguments = Transpose {
            num_dims: exchange.matrices.num_dims,
            info: &exchange.matrices.layout,
            inp,
            out,
            batches: exchange.batches as u32,
            rows: exchange.rows as u32,
            columns: exchange.columns as u32,
            in_stride: exchange.in_stride,
            out_stride: exchange.out_stride,
            whole: exchange.in_packs(size, ends),
        };
        let config = LaunchConfig { grid: exchange.grid(size), ..LaunchConfig::for_elements(op, BLOCK)? };
        let kernel = found(Transpose::kernel(carrier(dtype)), op, dtype)?;
        // SAFETY: by the caller's word.
        return unsafe { device.launch(kernel, config, &arguments) };
    }
    let (strided, size, numel) = strided.widened(size, numel, 1, ends);
    let kernel = found(Unary::kernel(UnaryOp::Copy, carrier_of(size)), op, dtype)?;
    let config = for_packs(op, numel, &strided, &[size; 2], 1)?;
    let arguments = Unary { numel, num_dims: strided.num_dims, info: &strided.layout, inp, out };
    // SAFETY: by the caller's word.
    unsafe { device.launch(kernel, config, &arguments) }
}

/// `d1` rows of `d2` elements, each side with its own row stride and offset, all in elements.
#[allow(clippy::too_many_arguments, reason = "those of the backend's trait")]
pub(crate) fn copy2d(
    src: &RocmStorage,
    dst: &mut RocmStorage,
    d1: usize,
    d2: usize,
    src_s: usize,
    dst_s: usize,
    src_offset: usize,
    dst_offset: usize,
) -> Result<()> {
    const OP: &str = "copy2d";
    let dtype = same_dtype(src, dst, OP)?;
    if d1 == 0 || d2 == 0 {
        return Ok(());
    }
    let from = src.rows_ptr((d1, d2), src_s, src_offset, OP)?;
    let to = dst.rows_ptr((d1, d2), dst_s, dst_offset, OP)?;
    dst.order_after(src)?;
    // Rows, or parts of rows, that one launch can count.
    let limit = max_elements();
    let (columns, rows) = (d2.min(limit), (limit / d2).clamp(1, d1));
    for (row, d1) in runs(d1, rows) {
        for (column, d2) in runs(d2, columns) {
            let inp = further(from, dtype, row * src_s + column);
            let out = further(to, dtype, row * dst_s + column);
            let rows = Strided::of_rows(d1, d2, &[src_s, dst_s]);
            let ends = inp.0.addr() | out.0.addr();
            let (strided, size, numel) = rows.widened(dtype.size_in_bytes().max(1), d1 * d2, 2, ends);
            let kernel = found(Copy2d::kernel(carrier_of(size)), OP, dtype)?;
            let config = for_packs(OP, numel, &strided, &[size; 2], 2)?;
            let arguments = Copy2d { numel, num_dims: strided.num_dims, info: &strided.layout, inp, out };
            // SAFETY: both ends were checked against their buffers for all rows.
            unsafe { dst.device.launch(kernel, config, &arguments)? };
        }
    }
    Ok(())
}

/// Writes `value` to every element that `layout` shows.
pub(crate) fn const_set(dst: &mut RocmStorage, value: Scalar, layout: &Layout) -> Result<()> {
    const OP: &str = "const-set";
    let (dtype, given) = (dst.slice.dtype(), value.dtype());
    if dtype != given {
        let message = format!("{OP} dtype mismatch, expected {dtype:?} but got {given:?}");
        return Err(crate::Error::Msg(message).bt());
    }
    let kernel = found(ConstSet::kernel(carrier(dtype)), OP, dtype)?;
    let value = bits_of(value);
    // One thread for each element in memory, not for each that is seen.
    let once;
    let layout = match layout.stride().contains(&0) {
        true => {
            once = without_repeats(layout);
            &once
        }
        false => layout,
    };
    in_pieces(OP, [layout], |[layout], strided, _, numel| {
        let Strided { num_dims, layout: info } = strided;
        let arguments = ConstSet { numel, num_dims: *num_dims, info, value, out: dst.ptr(layout, OP)? };
        let config = for_packs(OP, numel, strided, &[dtype.size_in_bytes().max(1)], 1)?;
        // SAFETY: the elements were checked against their buffer; the kernel's elements have the same size.
        unsafe { dst.device.launch(kernel, config, &arguments) }
    })
}

/// The same memory with each element seen once: broadcast dims become 1.
fn without_repeats(layout: &Layout) -> Layout {
    let dims = layout.dims().iter().zip(layout.stride());
    let once: Vec<usize> = dims.map(|(&dim, &stride)| if stride == 0 { dim.min(1) } else { dim }).collect();
    Layout::new(once.into(), layout.stride().to_vec(), layout.start_offset())
}

/// Zeros in the dtype of `src` and the shape of `layout`, by one launch.
pub(crate) fn zeros_of(src: &RocmStorage, layout: &Layout, op: &'static str) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    // SAFETY: every element is written below.
    let mut dst = unsafe { RocmStorage::alloc(&src.device, dtype, layout.shape().elem_count(), op)? };
    const_set(&mut dst, Scalar::zero(dtype), &Layout::contiguous(layout.shape()))?;
    Ok(dst)
}

/// The bits of `value`, as those of any element of its size.
fn bits_of(value: Scalar) -> Bits {
    Bits(match value {
        Scalar::U8(v) => v.into(),
        Scalar::F8E4M3(v) => v.to_bits().into(),
        Scalar::I16(v) => (v as u16).into(),
        Scalar::F16(v) => v.to_bits().into(),
        Scalar::BF16(v) => v.to_bits().into(),
        Scalar::U32(v) => v.into(),
        Scalar::I32(v) => (v as u32).into(),
        Scalar::F32(v) => v.to_bits().into(),
        Scalar::I64(v) => v as u64,
        Scalar::F64(v) => v.to_bits(),
    })
}

/// A dense storage of zeros.
pub(crate) fn zeros(device: &RocmDevice, dtype: DType, elements: usize) -> Result<RocmStorage> {
    // SAFETY: cleared right below.
    let storage = unsafe { RocmStorage::alloc(device, dtype, elements, "zeros")? };
    // SAFETY: the storage has just this size.
    unsafe { clear(&device.state().stream, storage.slice.ptr(), storage.slice.size_in_bytes())? };
    Ok(storage)
}

fn same_dtype(src: &RocmStorage, dst: &RocmStorage, op: &'static str) -> Result<DType> {
    let (lhs, rhs) = (src.slice.dtype(), dst.slice.dtype());
    if lhs == rhs {
        Ok(lhs)
    } else {
        Err(dtype_mismatch(op, lhs, rhs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_dims_are_written_once() {
        let once = |dims: &[usize], strides: &[usize]| {
            let layout = without_repeats(&Layout::new(dims.into(), strides.to_vec(), 3));
            assert_eq!((layout.stride(), layout.start_offset()), (strides, 3));
            layout.dims().to_vec()
        };
        assert_eq!(once(&[16, 7], &[0, 1]), [1, 7]);
        assert_eq!(once(&[2, 33, 4], &[33, 1, 0]), [2, 33, 1]);
        assert_eq!(once(&[0, 5], &[0, 1]), [0, 5]);
        assert_eq!(once(&[3, 5], &[5, 1]), [3, 5]);
    }
}
