//! hipBLASLt: matrix products with a fused bias, configured by descriptors. rocm-rs does not declare it, so its types and
//! constants are defined here under their C names. They come from hipblaslt/hipblaslt.h, hipblas-common/hipblas-common.h
//! and hip/library_types.h, which agree from ROCm 6.2 to 7.2.
//!
//! The library is optional: without it every function returns `HIPBLAS_STATUS_NOT_INITIALIZED`. A heuristic that
//! finds no algorithm (`returnAlgoCount` is 0) is not an error. A handle belongs to the device that is current when it
//! is created, and must not be used by two streams concurrently.
#![allow(non_camel_case_types, non_snake_case, reason = "named as in C")]
#![allow(missing_docs, reason = "documented in the C headers")]
pub use std::ffi::{c_int, c_void};

pub use rocm_rs::hip::bindings::hipStream_t;

use crate::error::LoadError;

/// Declared in hipblas-common.h.
pub type hipblasStatus_t = u32;
/// Declared in hipblas-common.h.
pub type hipblasOperation_t = u32;
/// Declared in hipblas-common.h.
pub type hipblasComputeType_t = u32;
/// Declared in library_types.h.
pub type hipDataType = u32;
pub type hipblasLtHandle_t = *mut c_void;
pub type hipblasLtMatrixLayoutAttribute_t = u32;
pub type hipblasLtMatmulDescAttributes_t = u32;
pub type hipblasLtMatmulPreferenceAttributes_t = u32;
/// The value of [`HIPBLASLT_MATMUL_DESC_EPILOGUE`].
pub type hipblasLtEpilogue_t = u32;

/// Defines opaque descriptors, each with its own pointer type so that they cannot be confused.
macro_rules! opaque {
    ($($opaque:ident $pointer:ident;)*) => {$(
        #[repr(C)]
        pub struct $opaque {
            _private: [u8; 0],
        }
        pub type $pointer = *mut $opaque;
    )*};
}
opaque! {
    hipblasLtMatrixLayoutOpaque_t hipblasLtMatrixLayout_t;
    hipblasLtMatmulDescOpaque_t hipblasLtMatmulDesc_t;
    hipblasLtMatmulPreferenceOpaque_t hipblasLtMatmulPreference_t;
}

/// An algorithm that the heuristic returned: 24 opaque bytes, to be passed back unchanged.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct hipblasLtMatmulAlgo_t {
    pub data: [u8; 16],
    /// The workspace limit of the preference, in bytes.
    pub max_workspace_bytes: usize,
}

/// One result of the heuristic (56 bytes).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct hipblasLtMatmulHeuristicResult_t {
    pub algo: hipblasLtMatmulAlgo_t,
    /// The workspace that the algorithm needs, in bytes.
    pub workspaceSize: usize,
    pub state: hipblasStatus_t,
    pub wavesCount: f32,
    pub reserved: [i32; 4],
}

const _: () = assert!(size_of::<hipblasLtMatmulAlgo_t>() == 24);
const _: () = assert!(size_of::<hipblasLtMatmulHeuristicResult_t>() == 56);

macro_rules! constants {
    ($($type:ident { $($name:ident = $value:literal)* })*) => {
        $($(pub const $name: $type = $value;)*)*
    };
}
constants! {
    hipblasStatus_t {
        HIPBLAS_STATUS_SUCCESS = 0
        HIPBLAS_STATUS_NOT_INITIALIZED = 1
        HIPBLAS_STATUS_ALLOC_FAILED = 2
        HIPBLAS_STATUS_INVALID_VALUE = 3
        HIPBLAS_STATUS_MAPPING_ERROR = 4
        HIPBLAS_STATUS_EXECUTION_FAILED = 5
        HIPBLAS_STATUS_INTERNAL_ERROR = 6
        HIPBLAS_STATUS_NOT_SUPPORTED = 7
        HIPBLAS_STATUS_ARCH_MISMATCH = 8
        HIPBLAS_STATUS_HANDLE_IS_NULLPTR = 9
        HIPBLAS_STATUS_INVALID_ENUM = 10
        HIPBLAS_STATUS_UNKNOWN = 11
    }
    hipblasOperation_t {
        HIPBLAS_OP_N = 111
        HIPBLAS_OP_T = 112
        HIPBLAS_OP_C = 113
    }
    hipblasComputeType_t {
        HIPBLAS_COMPUTE_32F = 2
    }
    hipDataType {
        HIP_R_32F = 0
        HIP_R_64F = 1
        HIP_R_16F = 2
        HIP_R_16BF = 14
        HIP_R_8F_E4M3 = 28
        HIP_R_8F_E4M3_FNUZ = 1000
    }
    hipblasLtEpilogue_t {
        HIPBLASLT_EPILOGUE_DEFAULT = 1
        HIPBLASLT_EPILOGUE_BIAS = 4
        HIPBLASLT_EPILOGUE_GELU = 32
        HIPBLASLT_EPILOGUE_GELU_BIAS = 36
    }
    hipblasLtMatrixLayoutAttribute_t {
        HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 0
        HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 1
        HIPBLASLT_MATRIX_LAYOUT_TYPE = 2
        HIPBLASLT_MATRIX_LAYOUT_ORDER = 3
        HIPBLASLT_MATRIX_LAYOUT_ROWS = 4
        HIPBLASLT_MATRIX_LAYOUT_COLS = 5
        HIPBLASLT_MATRIX_LAYOUT_LD = 6
    }
    hipblasLtMatmulDescAttributes_t {
        HIPBLASLT_MATMUL_DESC_TRANSA = 0
        HIPBLASLT_MATMUL_DESC_TRANSB = 1
        HIPBLASLT_MATMUL_DESC_EPILOGUE = 2
        HIPBLASLT_MATMUL_DESC_BIAS_POINTER = 3
        HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 4
    }
    hipblasLtMatmulPreferenceAttributes_t {
        HIPBLASLT_MATMUL_PREF_SEARCH_MODE = 0
        HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1
    }
}

/// Returns the `hipblasStatus_t` of a call that fails before it reaches a driver.
pub fn status_of(error: &LoadError) -> hipblasStatus_t {
    match error.is_missing_function() {
        true => HIPBLAS_STATUS_NOT_SUPPORTED,
        false => HIPBLAS_STATUS_NOT_INITIALIZED,
    }
}

/// Passes hipBLASLt's prototypes to `$macro`, like [`crate::hip_functions`].
#[macro_export]
macro_rules! hipblaslt_functions {
    ($macro:ident $($arguments:tt)*) => {
        $macro! { $($arguments)*
            required ours {
                fn hipblasLtCreate(handle: *mut hipblasLtHandle_t) -> hipblasStatus_t;
                fn hipblasLtDestroy(handle: hipblasLtHandle_t) -> hipblasStatus_t;
                fn hipblasLtGetVersion(handle: hipblasLtHandle_t, version: *mut c_int) -> hipblasStatus_t;

                fn hipblasLtMatrixLayoutCreate(
                    matLayout: *mut hipblasLtMatrixLayout_t, type_: hipDataType, rows: u64, cols: u64, ld: i64,
                ) -> hipblasStatus_t;
                fn hipblasLtMatrixLayoutDestroy(matLayout: hipblasLtMatrixLayout_t) -> hipblasStatus_t;
                fn hipblasLtMatrixLayoutSetAttribute(
                    matLayout: hipblasLtMatrixLayout_t, attr: hipblasLtMatrixLayoutAttribute_t, buf: *const c_void,
                    sizeInBytes: usize,
                ) -> hipblasStatus_t;

                fn hipblasLtMatmulDescCreate(
                    matmulDesc: *mut hipblasLtMatmulDesc_t, computeType: hipblasComputeType_t, scaleType: hipDataType,
                ) -> hipblasStatus_t;
                fn hipblasLtMatmulDescDestroy(matmulDesc: hipblasLtMatmulDesc_t) -> hipblasStatus_t;
                fn hipblasLtMatmulDescSetAttribute(
                    matmulDesc: hipblasLtMatmulDesc_t, attr: hipblasLtMatmulDescAttributes_t, buf: *const c_void,
                    sizeInBytes: usize,
                ) -> hipblasStatus_t;

                fn hipblasLtMatmulPreferenceCreate(pref: *mut hipblasLtMatmulPreference_t) -> hipblasStatus_t;
                fn hipblasLtMatmulPreferenceDestroy(pref: hipblasLtMatmulPreference_t) -> hipblasStatus_t;
                fn hipblasLtMatmulPreferenceSetAttribute(
                    pref: hipblasLtMatmulPreference_t, attr: hipblasLtMatmulPreferenceAttributes_t, buf: *const c_void,
                    sizeInBytes: usize,
                ) -> hipblasStatus_t;

                fn hipblasLtMatmulAlgoGetHeuristic(
                    handle: hipblasLtHandle_t, matmulDesc: hipblasLtMatmulDesc_t, Adesc: hipblasLtMatrixLayout_t,
                    Bdesc: hipblasLtMatrixLayout_t, Cdesc: hipblasLtMatrixLayout_t, Ddesc: hipblasLtMatrixLayout_t,
                    pref: hipblasLtMatmulPreference_t, requestedAlgoCount: c_int,
                    heuristicResultsArray: *mut hipblasLtMatmulHeuristicResult_t, returnAlgoCount: *mut c_int,
                ) -> hipblasStatus_t;
                fn hipblasLtMatmul(
                    handle: hipblasLtHandle_t, matmulDesc: hipblasLtMatmulDesc_t, alpha: *const c_void,
                    A: *const c_void, Adesc: hipblasLtMatrixLayout_t, B: *const c_void, Bdesc: hipblasLtMatrixLayout_t,
                    beta: *const c_void, C: *const c_void, Cdesc: hipblasLtMatrixLayout_t, D: *mut c_void,
                    Ddesc: hipblasLtMatrixLayout_t, algo: *const hipblasLtMatmulAlgo_t, workspace: *mut c_void,
                    workspaceSizeInBytes: usize, stream: hipStream_t,
                ) -> hipblasStatus_t;
            }
        }
    };
}
