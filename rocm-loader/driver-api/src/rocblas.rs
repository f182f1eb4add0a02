//! rocBLAS' functions for handles and matrix products, the types of their prototypes, and the status codes for calls that
//! reach no driver.
pub use std::ffi::{c_char, c_void};

use rocm_rs::rocblas::ffi as declared;
pub use rocm_rs::rocblas::ffi::{
    hipStream_t, rocblas_atomics_mode, rocblas_datatype, rocblas_gemm_algo, rocblas_half, rocblas_handle,
    rocblas_int, rocblas_operation, rocblas_pointer_mode, rocblas_status, rocblas_stride,
};

use crate::error::LoadError;

/// Returns the `rocblas_status` of a call that fails before it reaches a driver.
pub fn status_of(error: &LoadError) -> rocblas_status {
    match error.is_missing_function() {
        true => declared::rocblas_status__rocblas_status_not_implemented,
        false => declared::rocblas_status__rocblas_status_internal_error,
    }
}

/// Passes rocBLAS' prototypes to `$macro`, like [`crate::hip_functions`].
#[macro_export]
macro_rules! rocblas_functions {
    ($macro:ident $($arguments:tt)*) => {
        $macro! { $($arguments)*
            required public {
                fn rocblas_create_handle(handle: *mut rocblas_handle) -> rocblas_status;
                fn rocblas_destroy_handle(handle: rocblas_handle) -> rocblas_status;
                fn rocblas_set_stream(handle: rocblas_handle, stream: hipStream_t) -> rocblas_status;
                fn rocblas_get_stream(handle: rocblas_handle, stream: *mut hipStream_t) -> rocblas_status;
                fn rocblas_set_pointer_mode(
                    handle: rocblas_handle, pointer_mode: rocblas_pointer_mode,
                ) -> rocblas_status;
                fn rocblas_get_pointer_mode(
                    handle: rocblas_handle, pointer_mode: *mut rocblas_pointer_mode,
                ) -> rocblas_status;
                fn rocblas_set_atomics_mode(
                    handle: rocblas_handle, atomics_mode: rocblas_atomics_mode,
                ) -> rocblas_status;
                fn rocblas_get_atomics_mode(
                    handle: rocblas_handle, atomics_mode: *mut rocblas_atomics_mode,
                ) -> rocblas_status;
                fn rocblas_set_workspace(handle: rocblas_handle, addr: *mut c_void, size: usize) -> rocblas_status;

                fn rocblas_status_to_string(status: rocblas_status) -> *const c_char;
                fn rocblas_get_version_string_size(len: *mut usize) -> rocblas_status;
                fn rocblas_get_version_string(buf: *mut c_char, len: usize) -> rocblas_status;

                fn rocblas_sgemm(
                    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                    n: rocblas_int, k: rocblas_int, alpha: *const f32, A: *const f32, lda: rocblas_int, B: *const f32,
                    ldb: rocblas_int, beta: *const f32, C: *mut f32, ldc: rocblas_int,
                ) -> rocblas_status;
                fn rocblas_dgemm(
                    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                    n: rocblas_int, k: rocblas_int, alpha: *const f64, A: *const f64, lda: rocblas_int, B: *const f64,
                    ldb: rocblas_int, beta: *const f64, C: *mut f64, ldc: rocblas_int,
                ) -> rocblas_status;
                fn rocblas_sgemm_strided_batched(
                    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                    n: rocblas_int, k: rocblas_int, alpha: *const f32, A: *const f32, lda: rocblas_int,
                    stride_a: rocblas_stride, B: *const f32, ldb: rocblas_int, stride_b: rocblas_stride,
                    beta: *const f32, C: *mut f32, ldc: rocblas_int, stride_c: rocblas_stride, batch_count: rocblas_int,
                ) -> rocblas_status;
                fn rocblas_dgemm_strided_batched(
                    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                    n: rocblas_int, k: rocblas_int, alpha: *const f64, A: *const f64, lda: rocblas_int,
                    stride_a: rocblas_stride, B: *const f64, ldb: rocblas_int, stride_b: rocblas_stride,
                    beta: *const f64, C: *mut f64, ldc: rocblas_int, stride_c: rocblas_stride, batch_count: rocblas_int,
                ) -> rocblas_status;
                fn rocblas_gemm_ex(
                    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                    n: rocblas_int, k: rocblas_int, alpha: *const c_void, a: *const c_void, a_type: rocblas_datatype,
                    lda: rocblas_int, b: *const c_void, b_type: rocblas_datatype, ldb: rocblas_int, beta: *const c_void,
                    c: *const c_void, c_type: rocblas_datatype, ldc: rocblas_int, d: *mut c_void,
                    d_type: rocblas_datatype, ldd: rocblas_int, compute_type: rocblas_datatype, algo: rocblas_gemm_algo,
                    solution_index: i32, flags: u32,
                ) -> rocblas_status;
            }
            required private {
                fn rocblas_hgemm(
                    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                    n: rocblas_int, k: rocblas_int, alpha: *const rocblas_half, A: *const rocblas_half,
                    lda: rocblas_int, B: *const rocblas_half, ldb: rocblas_int, beta: *const rocblas_half,
                    C: *mut rocblas_half, ldc: rocblas_int,
                ) -> rocblas_status;
                fn rocblas_hgemm_strided_batched(
                    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                    n: rocblas_int, k: rocblas_int, alpha: *const rocblas_half, A: *const rocblas_half,
                    lda: rocblas_int, stride_a: rocblas_stride, B: *const rocblas_half, ldb: rocblas_int,
                    stride_b: rocblas_stride, beta: *const rocblas_half, C: *mut rocblas_half, ldc: rocblas_int,
                    stride_c: rocblas_stride, batch_count: rocblas_int,
                ) -> rocblas_status;

                fn rocblas_gemm_batched_ex(
                    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                    n: rocblas_int, k: rocblas_int, alpha: *const c_void, a: *const c_void, a_type: rocblas_datatype,
                    lda: rocblas_int, b: *const c_void, b_type: rocblas_datatype, ldb: rocblas_int, beta: *const c_void,
                    c: *const c_void, c_type: rocblas_datatype, ldc: rocblas_int, d: *mut c_void,
                    d_type: rocblas_datatype, ldd: rocblas_int, batch_count: rocblas_int,
                    compute_type: rocblas_datatype, algo: rocblas_gemm_algo, solution_index: i32, flags: u32,
                ) -> rocblas_status;
                fn rocblas_gemm_strided_batched_ex(
                    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                    n: rocblas_int, k: rocblas_int, alpha: *const c_void, a: *const c_void, a_type: rocblas_datatype,
                    lda: rocblas_int, stride_a: rocblas_stride, b: *const c_void, b_type: rocblas_datatype,
                    ldb: rocblas_int, stride_b: rocblas_stride, beta: *const c_void, c: *const c_void,
                    c_type: rocblas_datatype, ldc: rocblas_int, stride_c: rocblas_stride, d: *mut c_void,
                    d_type: rocblas_datatype, ldd: rocblas_int, stride_d: rocblas_stride, batch_count: rocblas_int,
                    compute_type: rocblas_datatype, algo: rocblas_gemm_algo, solution_index: i32, flags: u32,
                ) -> rocblas_status;
            }
        }
    };
}
