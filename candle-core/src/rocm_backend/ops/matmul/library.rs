//! Products by rocBLAS.
//!
//! rocBLAS is column-major: a row-major C = A B is computed as C' = B' A', with the operands, m and n swapped.
use super::operand::{Operand, Output, OP};
use super::precision::gemm_reduced_precision_f16;
use crate::rocm_backend::libraries::ProductLibrary;
use crate::rocm_backend::RocmError;
use crate::{DType, Result};
use half::f16;
use hip_kernels::contract::DevicePtr;
use rocm_rs::rocblas::{self, ffi};
use std::ffi::c_void;

/// Multiplies a dense (m, k) at `a` with the transpose of a dense (n, k) at `w` by rocBLAS. `dtypes` are those of the
/// operands and of the result: the same, or bf16 and f32. No size may be 0.
///
/// # Errors
/// If rocBLAS fails, or has no kernels for the GPU; check `has_product_library` first.
///
/// # Safety
/// The operands must have these sizes and be written by earlier work on the output's stream. The output must cover its
/// sizes and strides.
pub(crate) unsafe fn library_product(
    dtypes: (DType, DType),
    (m, n, k): (usize, usize, usize),
    a: DevicePtr,
    w: DevicePtr,
    out: &Output,
) -> Result<()> {
    let left = Operand::dense(m, k);
    let right = Operand { transposed: true, leading: k, batch_stride: n * k };
    out.device.state().with_products(|library| match library {
        ProductLibrary::Rocblas(handle) => gemm(&handle.0, dtypes, (1, m, n, k), (left, a), (right, w), out),
        ProductLibrary::Own => Err(RocmError::Unsupported(
            "matmul: products with dequantized weights need rocBLAS, which has no kernels for this GPU"
                .into(),
        )
        .into()),
    })
}

/// Enqueues a product by rocBLAS. The result has the dtype of the operands, or f32 for operands of bf16.
pub(super) fn gemm(
    handle: &rocblas::Handle,
    (dtype, out_dtype): (DType, DType),
    (b, m, n, k): (usize, usize, usize, usize),
    (a, a_ptr): (Operand, DevicePtr),
    (w, w_ptr): (Operand, DevicePtr),
    out: &Output,
) -> Result<()> {
    let state = &out.device.state();
    let int = |value: usize| {
        i32::try_from(value).map_err(|_| {
            let limit = i32::MAX as usize;
            crate::Error::from(RocmError::TooManyElements { op: OP, elements: value, limit })
        })
    };
    let type_of = |dtype| match dtype {
        DType::F16 => ffi::rocblas_datatype__rocblas_datatype_f16_r,
        DType::BF16 => ffi::rocblas_datatype__rocblas_datatype_bf16_r,
        DType::F64 => ffi::rocblas_datatype__rocblas_datatype_f64_r,
        _ => ffi::rocblas_datatype__rocblas_datatype_f32_r,
    };
    let (data_type, out_type) = (type_of(dtype), type_of(out_dtype));
    // The type of the factors is the compute type.
    let (one_f16, zero_f16) = (f16::ONE, f16::ZERO);
    let (one_f32, zero_f32) = (1f32, 0f32);
    let (one_f64, zero_f64) = (1f64, 0f64);
    fn address<T>(value: &T) -> *const c_void {
        (value as *const T).cast()
    }
    let (compute_type, alpha, beta) = match dtype {
        DType::F16 if gemm_reduced_precision_f16() => (data_type, address(&one_f16), address(&zero_f16)),
        DType::F64 => (data_type, address(&one_f64), address(&zero_f64)),
        _ => (ffi::rocblas_datatype__rocblas_datatype_f32_r, address(&one_f32), address(&zero_f32)),
    };
    let (rows, columns, inner, batches) = (int(n)?, int(m)?, int(k)?, int(b)?);
    let (lda, ldb, ldc) = (int(w.leading)?, int(a.leading)?, int(out.row_stride)?);
    state.stream.bind_and_flush()?;
    // SAFETY: the operands were checked against their buffers, and the output holds b * m * n elements. The factors are
    // only read during the call, since the pointer mode is host. The handle is locked.
    let status = unsafe {
        // The binding in rocm-rs is private.
        rocm_loader::rocblas::rocblas_gemm_strided_batched_ex(
            handle.as_raw(),
            operation(w),
            operation(a),
            rows,
            columns,
            inner,
            alpha,
            w_ptr.0,
            data_type,
            lda,
            w.batch_stride as i64,
            a_ptr.0,
            data_type,
            ldb,
            a.batch_stride as i64,
            beta,
            out.ptr.0,
            out_type,
            ldc,
            out.batch_stride as i64,
            out.ptr.0,
            out_type,
            ldc,
            out.batch_stride as i64,
            batches,
            compute_type,
            ffi::rocblas_gemm_algo__rocblas_gemm_algo_standard,
            0,
            ffi::rocblas_gemm_flags__rocblas_gemm_flags_none,
        )
    };
    let result = match status {
        ffi::rocblas_status__rocblas_status_success => Ok(()),
        status => Err(rocblas::Error::new(status)),
    };
    state.checked(result, || {
        format!("rocblas_gemm_strided_batched_ex({dtype:?} to {out_dtype:?}, batch {b}, m {m}, n {n}, k {k})")
    })
}

fn operation(operand: Operand) -> ffi::rocblas_operation {
    match operand.transposed {
        true => ffi::rocblas_operation__rocblas_operation_transpose,
        false => ffi::rocblas_operation__rocblas_operation_none,
    }
}
