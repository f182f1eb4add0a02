//! Copies within a device that follow a layout, and filling with a value.
use super::copy;
use super::device::RocmDevice;
use super::error::dtype_mismatch;
use super::launch::{DevicePtr, LaunchConfig, MAX_ELEMENTS};
use super::layout::Strided;
use super::storage::{carrier, RocmStorage};
use crate::scalar::Scalar;
use crate::{DType, Layout, Result};
use hip_kernels::Module;

/// Copies what `layout` shows of `src` densely to `dst`, from element `dst_offset` on.
pub(super) fn copy_strided(
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
    let to = Layout::contiguous_with_offset(elements, dst_offset);
    let (from, to) = (src.ptr(layout, OP)?, dst.ptr(&to, OP)?);
    dst.order_after(src)?;
    if layout.is_contiguous() {
        return copy_dense(&dst.device, dtype, elements, from, to);
    }
    run_copy(&dst.device, dtype, elements, &Strided::of(OP, &[layout])?, from, to)
}

/// A copy of the whole storage, whatever part of it a layout shows. Does not wait.
pub(super) fn duplicate(src: &RocmStorage) -> Result<RocmStorage> {
    let dst = RocmStorage { slice: src.slice.alloc_like()?, device: src.device.clone() };
    let (from, to, len) = (src.slice.ptr(), dst.slice.ptr(), src.slice.len());
    if len > 0 {
        copy_dense(&src.device, src.slice.dtype(), len, from, to)?;
    }
    Ok(dst)
}

/// A kernel costs less than a memory copy of HIP, but counts elements in 32 bits.
fn copy_dense(
    device: &RocmDevice,
    dtype: DType,
    elements: usize,
    from: DevicePtr,
    to: DevicePtr,
) -> Result<()> {
    if elements > MAX_ELEMENTS {
        return copy::within(&device.state, from, to, elements * dtype.size_in_bytes().max(1));
    }
    run_copy(device, dtype, elements, &Strided::CONTIGUOUS, from, to)
}

/// One launch that copies `elements` elements; both ends hold them.
fn run_copy(
    device: &RocmDevice,
    dtype: DType,
    elements: usize,
    strided: &Strided,
    from: DevicePtr,
    to: DevicePtr,
) -> Result<()> {
    let kernel = device.kernel(Module::Unary, &["ucopy", carrier(dtype)])?;
    let launch = kernel.launch(LaunchConfig::for_packs("copy", elements, strided, 2)?);
    // SAFETY: ucopy(numel, num_dims, info, inp, out); the callers have checked both ends.
    unsafe { launch.arg(&elements).strided(strided).arg(&from).arg(&to).run() }
}

/// `d1` rows of `d2` elements, each side with its own row stride and offset, all in elements.
#[allow(clippy::too_many_arguments)]
pub(super) fn copy2d(
    src: &RocmStorage,
    dst: &mut RocmStorage,
    d1: usize,
    d2: usize,
    src_stride: usize,
    dst_stride: usize,
    src_offset: usize,
    dst_offset: usize,
) -> Result<()> {
    const OP: &str = "copy2d";
    let dtype = same_dtype(src, dst, OP)?;
    if d1 == 0 || d2 == 0 {
        return Ok(());
    }
    let rows = |stride, offset| Layout::new((d1, d2).into(), vec![stride, 1], offset);
    let from = src.ptr(&rows(src_stride, src_offset), OP)?;
    let to = dst.ptr(&rows(dst_stride, dst_offset), OP)?;
    dst.order_after(src)?;
    let elements = d1 * d2;
    let config = LaunchConfig::for_elements(OP, elements)?;
    let (rows, columns) = (d1 as u32, d2 as u32);
    let kernel = dst.device.kernel(Module::Fill, &["copy2d", carrier(dtype)])?;
    let launch = kernel.launch(config).arg(&from).arg(&to).arg(&rows).arg(&columns);
    // SAFETY: copy2d(src, dst, d1, d2, src_s, dst_s); both ends were checked against their buffers.
    unsafe { launch.arg(&src_stride).arg(&dst_stride).run() }
}

/// Writes `value` to every element that `layout` shows.
pub(super) fn const_set(dst: &mut RocmStorage, value: Scalar, layout: &Layout) -> Result<()> {
    const OP: &str = "const-set";
    let (dtype, given) = (dst.slice.dtype(), value.dtype());
    if dtype != given {
        let message = format!("{OP} dtype mismatch, expected {dtype:?} but got {given:?}");
        return Err(crate::Error::Msg(message).bt());
    }
    // One thread for each element in memory, not for each that is seen.
    let layout = &without_repeats(layout);
    let elements = layout.shape().elem_count();
    if elements == 0 {
        return Ok(());
    }
    let to = dst.ptr(layout, OP)?;
    let strided = Strided::of(OP, &[layout])?;
    let bits = carried(value);
    let kernel = dst.device.kernel(Module::Fill, &["const_set", carrier(dtype)])?;
    let launch = kernel.launch(LaunchConfig::for_elements(OP, elements)?);
    // SAFETY: const_set(numel, num_dims, info, value, out) of an element with the same size.
    unsafe { launch.arg(&elements).strided(&strided).scalar(&bits).arg(&to).run() }
}

/// The same memory with each element seen once: broadcast dims become 1.
fn without_repeats(layout: &Layout) -> Layout {
    let dims = layout.dims().iter().zip(layout.stride());
    let once: Vec<usize> = dims.map(|(&dim, &stride)| if stride == 0 { dim.min(1) } else { dim }).collect();
    Layout::new(once.into(), layout.stride().to_vec(), layout.start_offset())
}

/// Zeros in the dtype of `src` and the shape of `layout`, by one launch.
pub(super) fn zeros_of(src: &RocmStorage, layout: &Layout, op: &'static str) -> Result<RocmStorage> {
    let dtype = src.slice.dtype();
    // SAFETY: every element is written below.
    let mut dst = unsafe { RocmStorage::alloc(&src.device, dtype, layout.shape().elem_count(), op)? };
    const_set(&mut dst, Scalar::zero(dtype), &Layout::contiguous(layout.shape()))?;
    Ok(dst)
}

/// The bits of `value` as the element of its [`carrier`] (an f16 is passed as 16 bits).
fn carried(value: Scalar) -> Scalar {
    match value {
        Scalar::F8E4M3(v) => Scalar::U8(v.to_bits()),
        Scalar::BF16(v) => Scalar::F16(half::f16::from_bits(v.to_bits())),
        Scalar::I16(v) => Scalar::F16(half::f16::from_bits(v as u16)),
        Scalar::I32(v) => Scalar::U32(v as u32),
        Scalar::F32(v) => Scalar::U32(v.to_bits()),
        Scalar::F64(v) => Scalar::I64(v.to_bits() as i64),
        same @ (Scalar::U8(_) | Scalar::U32(_) | Scalar::I64(_) | Scalar::F16(_)) => same,
    }
}

/// A dense storage of zeros.
pub(super) fn zeros(device: &RocmDevice, dtype: DType, elements: usize) -> Result<RocmStorage> {
    // SAFETY: cleared right below.
    let storage = unsafe { RocmStorage::alloc(device, dtype, elements, "zeros")? };
    copy::clear(&device.state, storage.slice.ptr(), storage.slice.size_in_bytes())?;
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
