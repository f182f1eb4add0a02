//! cuBLAS' functions and status codes.
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use rocm_driver_api::Library;
use rocm_driver_api::rocblas::status_of;
use rocm_rs::rocblas::ffi::{self as rocblas, hipStream_t, rocblas_handle, rocblas_status};

use crate::cuda::functions;
use crate::library::CudaLibrary;
use crate::toolkit::{CUBLAS_ADVICE, Status, Toolkit, fail, search_by_version, text_of};

/// `cudaDataType`.
pub(super) type DataType = c_uint;
/// `cublasComputeType_t`.
pub(super) type ComputeType = c_uint;

functions! {
    /// The functions of libcublas.
    Cublas {
        create = "cublasCreate_v2": fn(*mut rocblas_handle) -> Status;
        set_stream = "cublasSetStream_v2": fn(rocblas_handle, hipStream_t) -> Status;
        get_stream = "cublasGetStream_v2": fn(rocblas_handle, *mut hipStream_t) -> Status;
        set_pointer_mode = "cublasSetPointerMode_v2": fn(rocblas_handle, c_uint) -> Status;
        get_pointer_mode = "cublasGetPointerMode_v2": fn(rocblas_handle, *mut c_uint) -> Status;
        set_atomics_mode = "cublasSetAtomicsMode": fn(rocblas_handle, c_uint) -> Status;
        get_atomics_mode = "cublasGetAtomicsMode": fn(rocblas_handle, *mut c_uint) -> Status;
        set_math_mode = "cublasSetMathMode": fn(rocblas_handle, c_uint) -> Status;
        set_workspace = "cublasSetWorkspace_v2": fn(rocblas_handle, *mut c_void, usize) -> Status;
        get_property = "cublasGetProperty": fn(c_uint, *mut c_int) -> Status;
        status_name = "cublasGetStatusName": fn(Status) -> *const c_char;
        status_string = "cublasGetStatusString": fn(Status) -> *const c_char;
        gemm_ex = "cublasGemmEx":
            fn(
                rocblas_handle, c_uint, c_uint, c_int, c_int, c_int, *const c_void, *const c_void, DataType, c_int,
                *const c_void, DataType, c_int, *const c_void, *mut c_void, DataType, c_int, ComputeType, c_int
            ) -> Status;
        gemm_batched_ex = "cublasGemmBatchedEx":
            fn(
                rocblas_handle, c_uint, c_uint, c_int, c_int, c_int, *const c_void, *const c_void, DataType, c_int,
                *const c_void, DataType, c_int, *const c_void, *mut c_void, DataType, c_int, c_int, ComputeType,
                c_int
            ) -> Status;
        gemm_strided_batched_ex = "cublasGemmStridedBatchedEx":
            fn(
                rocblas_handle, c_uint, c_uint, c_int, c_int, c_int, *const c_void, *const c_void, DataType, c_int,
                i64, *const c_void, DataType, c_int, i64, *const c_void, *mut c_void, DataType, c_int, i64, c_int,
                ComputeType, c_int
            ) -> Status;
    }
}

/// libcublas with rocBLAS' status codes.
pub(crate) static CUBLAS: Toolkit<Cublas> = Toolkit {
    library: CudaLibrary {
        serves: Library::RocBlas,
        name: "libcublas.so",
        advice: CUBLAS_ADVICE,
        search: || search_by_version("libcublas.so"),
        opened: OnceLock::new(),
    },
    status_of,
    internal_error: rocblas::rocblas_status__rocblas_status_internal_error,
    failed,
};

#[cold]
fn failed(cublas: &Cublas, call: &str, status: Status) -> rocblas_status {
    // SAFETY: both take any integer and return static texts.
    let (name, text) =
        unsafe { (text_of((cublas.status_name)(status)), text_of((cublas.status_string)(status))) };
    let code = match status {
        1 => rocblas::rocblas_status__rocblas_status_invalid_handle,
        3 => rocblas::rocblas_status__rocblas_status_memory_error,
        7 => rocblas::rocblas_status__rocblas_status_invalid_value,
        8 => rocblas::rocblas_status__rocblas_status_arch_mismatch,
        15 => rocblas::rocblas_status__rocblas_status_not_implemented,
        _ => rocblas::rocblas_status__rocblas_status_internal_error,
    };
    fail(code, format!("{call} returned {name} ({status}): {text}"))
}
