//! Matrix products: rocBLAS' functions, implemented on cuBLAS' `GemmEx` functions.
//!
//! They have rocBLAS' precision: f32 is never computed as TF32, and f16 and bf16 that are computed in f32 are summed in
//! f32 throughout.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{c_int, c_uint, c_void};

use rocm_rs::rocblas::ffi::{
    self as rocblas, rocblas_datatype, rocblas_gemm_algo, rocblas_half, rocblas_handle, rocblas_int,
    rocblas_operation, rocblas_status, rocblas_stride,
};

use super::cublas::{CUBLAS, ComputeType, DataType};
use super::handle::rocblas_get_pointer_mode;
use crate::toolkit::fail;

/// `CUBLAS_GEMM_DEFAULT`.
const DEFAULT_ALGO: c_int = -1;

/// Converts an operation to `cublasOperation_t`.
fn operation(operation: rocblas_operation) -> Option<c_uint> {
    operation.checked_sub(rocblas::rocblas_operation__rocblas_operation_none).filter(|number| *number <= 2)
}

/// Converts a data type to `cudaDataType`.
fn data_type(data_type: rocblas_datatype) -> Option<DataType> {
    Some(match data_type {
        rocblas::rocblas_datatype__rocblas_datatype_f32_r => 0,
        rocblas::rocblas_datatype__rocblas_datatype_f64_r => 1,
        rocblas::rocblas_datatype__rocblas_datatype_f16_r => 2,
        rocblas::rocblas_datatype__rocblas_datatype_i8_r => 3,
        rocblas::rocblas_datatype__rocblas_datatype_i32_r => 10,
        rocblas::rocblas_datatype__rocblas_datatype_bf16_r => 14,
        _ => return None,
    })
}

/// Converts a compute type to `cublasComputeType_t`. Like rocBLAS' factors, cuBLAS' have this type.
fn compute_type(data_type: rocblas_datatype) -> Option<ComputeType> {
    Some(match data_type {
        rocblas::rocblas_datatype__rocblas_datatype_f16_r => 64,
        rocblas::rocblas_datatype__rocblas_datatype_f32_r => 68,
        rocblas::rocblas_datatype__rocblas_datatype_f64_r => 70,
        rocblas::rocblas_datatype__rocblas_datatype_i32_r => 72,
        _ => return None,
    })
}

/// Returns true if a factor on the host is zero, so that the matrix that it scales is not read.
unsafe fn is_zero(factor: *const c_void, compute: rocblas_datatype) -> bool {
    // SAFETY: the factor has the compute type. A negative zero is a zero too.
    unsafe {
        match compute {
            rocblas::rocblas_datatype__rocblas_datatype_f16_r => factor.cast::<u16>().read() & 0x7fff == 0,
            rocblas::rocblas_datatype__rocblas_datatype_f32_r => factor.cast::<f32>().read() == 0.0,
            rocblas::rocblas_datatype__rocblas_datatype_f64_r => factor.cast::<f64>().read() == 0.0,
            _ => factor.cast::<i32>().read() == 0,
        }
    }
}

/// Layout of a batch of matrices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Batch {
    One,
    /// The matrices' addresses are in arrays in device memory.
    PointerArray,
    Strided,
}

/// An operand of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Matrix {
    address: *const c_void,
    data_type: rocblas_datatype,
    leading: c_int,
    stride: rocblas_stride,
}

/// The product D = alpha A B + beta C.
struct Problem {
    operations: [rocblas_operation; 2],
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: Matrix,
    b: Matrix,
    beta: *const c_void,
    c: Matrix,
    d: Matrix,
    batch: Batch,
    batch_count: c_int,
    compute: rocblas_datatype,
}

impl Problem {
    /// # Safety
    /// The conditions of the corresponding rocBLAS function.
    unsafe fn run(&self, handle: rocblas_handle) -> rocblas_status {
        if self.m < 0 || self.n < 0 || self.k < 0 || self.batch_count < 0 {
            return fail(rocblas::rocblas_status__rocblas_status_invalid_size, "a size is negative");
        }
        if self.m == 0 || self.n == 0 || self.batch_count == 0 {
            return rocblas::rocblas_status__rocblas_status_success;
        }
        let types = || {
            let [op_a, op_b] = self.operations.map(operation);
            let of = |matrix: &Matrix| data_type(matrix.data_type);
            Some((op_a?, op_b?, of(&self.a)?, of(&self.b)?, of(&self.d)?, compute_type(self.compute)?))
        };
        let Some((op_a, op_b, a_type, b_type, d_type, compute)) = types() else {
            let reason = "the NVIDIA driver supports no products of these types or operations";
            return fail(rocblas::rocblas_status__rocblas_status_not_implemented, reason);
        };
        // cuBLAS computes in place: C must be the same matrix as D, or beta must be 0.
        // SAFETY: the caller's handle and factor.
        if self.c != self.d && !unsafe { self.ignores_c(handle) } {
            let reason =
                "the NVIDIA driver supports no product whose C and D differ, unless beta is 0 on the host";
            return fail(rocblas::rocblas_status__rocblas_status_not_implemented, reason);
        }
        let Self { m, n, k, alpha, a, b, beta, d, batch_count, .. } = *self;
        let out = d.address.cast_mut();
        macro_rules! product {
            ($call:literal $function:ident [$($stride:ident)?] [$($count:ident)?]) => {
                // SAFETY: the caller's matrices and factors.
                CUBLAS.call($call, |cublas| unsafe {
                    (cublas.$function)(
                        handle, op_a, op_b, m, n, k, alpha, a.address, a_type, a.leading, $(a.$stride,)?
                        b.address, b_type, b.leading, $(b.$stride,)? beta, out, d_type, d.leading, $(d.$stride,)?
                        $($count,)? compute, DEFAULT_ALGO,
                    )
                })
            };
        }
        match self.batch {
            Batch::One => product!("cublasGemmEx" gemm_ex [] []),
            Batch::PointerArray => product!("cublasGemmBatchedEx" gemm_batched_ex [] [batch_count]),
            Batch::Strided => {
                product!("cublasGemmStridedBatchedEx" gemm_strided_batched_ex [stride] [batch_count])
            }
        }
    }

    /// Returns true if beta is known to be zero.
    unsafe fn ignores_c(&self, handle: rocblas_handle) -> bool {
        let mut mode = 0;
        // SAFETY: the caller's handle; the mode is written to a live variable.
        let status = unsafe { rocblas_get_pointer_mode(handle, &mut mode) };
        status == rocblas::rocblas_status__rocblas_status_success
            && mode == rocblas::rocblas_pointer_mode__rocblas_pointer_mode_host
            && !self.beta.is_null()
            // SAFETY: the caller's factor, on the host.
            && unsafe { is_zero(self.beta, self.compute) }
    }
}

/// Defines in-place products of a single type. Only batched products have strides and a count.
macro_rules! typed {
    ($type:ty, $datatype:ident: $($name:ident $batch:ident [$($a:ident $b:ident $c:ident)?] [$($count:ident)?];)*) => { $(
        pub(crate) unsafe extern "C" fn $name(
            handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
            n: rocblas_int, k: rocblas_int, alpha: *const $type, A: *const $type, lda: rocblas_int,
            $($a: rocblas_stride,)? B: *const $type, ldb: rocblas_int, $($b: rocblas_stride,)? beta: *const $type,
            C: *mut $type, ldc: rocblas_int, $($c: rocblas_stride, $count: rocblas_int,)?
        ) -> rocblas_status {
            let strides: [rocblas_stride; 4] = mixed!(@strides $($a $b $c $c)?);
            let matrix = |address: *const $type, leading, side: usize| Matrix {
                address: address.cast(), data_type: rocblas::$datatype, leading, stride: strides[side],
            };
            let problem = Problem {
                operations: [transA, transB], m, n, k, alpha: alpha.cast(), a: matrix(A, lda, 0),
                b: matrix(B, ldb, 1), beta: beta.cast(), c: matrix(C, ldc, 2), d: matrix(C, ldc, 3),
                batch: Batch::$batch, batch_count: mixed!(@count $($count)?), compute: rocblas::$datatype,
            };
            // SAFETY: the caller's matrices and factors.
            unsafe { problem.run(handle) }
        }
    )* };
}

/// Defines products of mixed types. Only batched products have strides and a count.
macro_rules! mixed {
    ($name:ident $batch:ident [$($stride_a:ident $stride_b:ident $stride_c:ident $stride_d:ident)?] [$($count:ident)?]) => {
        pub(crate) unsafe extern "C" fn $name(
            handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
            n: rocblas_int, k: rocblas_int, alpha: *const c_void,
            a: *const c_void, a_type: rocblas_datatype, lda: rocblas_int, $($stride_a: rocblas_stride,)?
            b: *const c_void, b_type: rocblas_datatype, ldb: rocblas_int, $($stride_b: rocblas_stride,)?
            beta: *const c_void,
            c: *const c_void, c_type: rocblas_datatype, ldc: rocblas_int, $($stride_c: rocblas_stride,)?
            d: *mut c_void, d_type: rocblas_datatype, ldd: rocblas_int, $($stride_d: rocblas_stride,)?
            $($count: rocblas_int,)?
            compute_type: rocblas_datatype, _: rocblas_gemm_algo, _: i32, _: u32,
        ) -> rocblas_status {
            let strides: [rocblas_stride; 4] = mixed!(@strides $($stride_a $stride_b $stride_c $stride_d)?);
            let matrix = |address, data_type, leading, side: usize| Matrix {
                address, data_type, leading, stride: strides[side],
            };
            let problem = Problem {
                operations: [transA, transB], m, n, k, alpha, a: matrix(a, a_type, lda, 0),
                b: matrix(b, b_type, ldb, 1), beta, c: matrix(c, c_type, ldc, 2), d: matrix(d, d_type, ldd, 3),
                batch: Batch::$batch, batch_count: mixed!(@count $($count)?), compute: compute_type,
            };
            // SAFETY: the caller's matrices and factors.
            unsafe { problem.run(handle) }
        }
    };
    (@strides) => { [0; 4] };
    (@strides $a:ident $b:ident $c:ident $d:ident) => { [$a, $b, $c, $d] };
    (@count) => { 1 };
    (@count $count:ident) => { $count };
}

mixed!(rocblas_gemm_ex One [] []);
mixed!(rocblas_gemm_batched_ex PointerArray [] [batch_count]);
mixed!(rocblas_gemm_strided_batched_ex Strided [stride_a stride_b stride_c stride_d] [batch_count]);

typed!(f32, rocblas_datatype__rocblas_datatype_f32_r:
    rocblas_sgemm One [] []; rocblas_sgemm_strided_batched Strided [sa sb sc] [count];);
typed!(f64, rocblas_datatype__rocblas_datatype_f64_r:
    rocblas_dgemm One [] []; rocblas_dgemm_strided_batched Strided [sa sb sc] [count];);
typed!(rocblas_half, rocblas_datatype__rocblas_datatype_f16_r:
    rocblas_hgemm One [] []; rocblas_hgemm_strided_batched Strided [sa sb sc] [count];);
