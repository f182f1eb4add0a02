//! Matrix products: of few rows by built-in kernels that are limited by memory bandwidth; otherwise by rocBLAS, or by
//! built-in tile kernels if rocBLAS has no kernels for the GPU.
use super::calls::Calls;
use super::operand::{Output, Side, OP};
use super::{kernels, library};
use crate::error::MatMulUnexpectedStriding;
use crate::rocm_backend::error::{dtype_mismatch, unsupported_dtype};
use crate::rocm_backend::libraries::ProductLibrary;
use crate::rocm_backend::ops::{strided, Operand};
use crate::rocm_backend::storage::{offset_by_elements, RocmStorage};
use crate::{DType, Layout, Result};

/// Multiplies `lhs` (b, m, k) with `rhs` (b, k, n) to a dense (b, m, n), in f16, bf16, f32 or f64. f16 and bf16 are summed
/// in f32 unless reduced precision is allowed.
pub(crate) fn matmul(
    (lhs, lhs_layout): Operand,
    (rhs, rhs_layout): Operand,
    bmnk: (usize, usize, usize, usize),
) -> Result<RocmStorage> {
    let dtype = lhs.slice.dtype();
    if dtype != rhs.slice.dtype() {
        return Err(dtype_mismatch(OP, dtype, rhs.slice.dtype()));
    }
    if !has_matmul(dtype) {
        return Err(unsupported_dtype(OP, dtype));
    }
    multiply((lhs, lhs_layout), (rhs, rhs_layout), bmnk)
}

/// Like [`matmul`], for every dtype that [`product`] supports.
pub(super) fn multiply(
    (lhs, lhs_layout): Operand,
    (rhs, rhs_layout): Operand,
    bmnk: (usize, usize, usize, usize),
) -> Result<RocmStorage> {
    let ((b, m, n, k), dtype) = (bmnk, lhs.slice.dtype());
    if k == 0 {
        return strided::zeros(&lhs.device, dtype, b * m * n);
    }
    // SAFETY: every element is written by the product.
    let dst = unsafe { RocmStorage::alloc(&lhs.device, dtype, b * m * n, OP)? };
    if b * m * n == 0 {
        return Ok(dst);
    }
    let out = Output { device: &lhs.device, ptr: dst.slice.ptr(), row_stride: n, batch_stride: m * n };
    product((lhs, lhs_layout), (rhs, rhs_layout), bmnk, out)?;
    Ok(dst)
}

/// Returns true if `matmul` supports the dtype: f16, bf16, f32 and f64, as on the CPU device.
pub(crate) fn has_matmul(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// Writes a product to existing memory. The operands must have one dtype that [`matmul`] supports, or f8e4m3, and no size
/// may be 0. The output must cover its sizes and strides.
pub(crate) fn product(
    (lhs, lhs_layout): Operand,
    (rhs, rhs_layout): Operand,
    bmnk: (usize, usize, usize, usize),
    out: Output,
) -> Result<()> {
    let (b, m, n, k) = bmnk;
    let fits = |layout: &Layout, rows, columns| {
        matches!(layout.dims(), [batch @ .., r, c]
            if *r == rows && *c == columns && batch.iter().product::<usize>() == b)
    };
    if !fits(lhs_layout, m, k) || !fits(rhs_layout, k, n) {
        return Err(crate::Error::MatMulUnexpectedStriding(Box::new(MatMulUnexpectedStriding {
            lhs_l: lhs_layout.clone(),
            rhs_l: rhs_layout.clone(),
            bmnk,
            msg: "the dims do not match the sizes",
        }))
        .bt());
    }
    let (mut left, mut right) = (Side::of(lhs, lhs_layout, m, k)?, Side::of(rhs, rhs_layout, k, n)?);
    let calls = Calls::of((b, m, k), &mut left, &mut right, (out.row_stride, out.batch_stride))?;
    // A copy of an operand was enqueued on the operand's stream.
    let device = out.device;
    for side in [left.storage(), right.storage()] {
        device.state().order_after(side.device.state())?;
        side.slice.record_stream(&device.state().stream);
    }
    let (dtype, sizes) = (lhs.slice.dtype(), (calls.batches, calls.m, n, k));
    let (a, w) = (left.ptr()?, right.ptr()?);
    for [to_a, to_w, to_c] in calls.offsets() {
        let (a, w) =
            ((calls.a, offset_by_elements(a, dtype, to_a)), (calls.w, offset_by_elements(w, dtype, to_w)));
        let ptr = offset_by_elements(out.ptr, dtype, to_c);
        let out = Output { device, ptr, row_stride: calls.c_row, batch_stride: calls.c_batch };
        // SAFETY: the operands were checked against their buffers, and the output covers its sizes and strides.
        if unsafe { kernels::few_rows(dtype, sizes, a, w, &out)? } {
            continue;
        }
        if dtype == DType::F8E4M3 {
            // SAFETY: as above.
            unsafe { kernels::tiled(dtype, sizes, a, w, &out)? };
            continue;
        }
        device.state().with_products(|library| match library {
            ProductLibrary::Rocblas(handle) => library::gemm(&handle.0, (dtype, dtype), sizes, a, w, &out),
            // SAFETY: as above.
            ProductLibrary::Own => unsafe { kernels::tiled(dtype, sizes, a, w, &out) },
        })?;
    }
    Ok(())
}
