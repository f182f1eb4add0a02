//! hipBLASLt's functions: handles, descriptors, the heuristic and the product.
use std::ffi::{c_int, c_void};

#[cfg(feature = "emulator")]
use rocm_emulator::hipblaslt as emulated;
use rocm_rs::hip::bindings::hipStream_t;

use crate::forward::forward;
use crate::hipblaslt::{
    hipDataType, hipblasComputeType_t, hipblasLtHandle_t, hipblasLtMatmulAlgo_t, hipblasLtMatmulDesc_t,
    hipblasLtMatmulDescAttributes_t, hipblasLtMatmulHeuristicResult_t, hipblasLtMatmulPreference_t,
    hipblasLtMatmulPreferenceAttributes_t, hipblasLtMatrixLayout_t, hipblasLtMatrixLayoutAttribute_t,
    hipblasStatus_t,
};
use crate::nvidia::hipblaslt as nvidia;

forward! { EMULATED: HipBlasLt, emulated, ours;
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
        handle: hipblasLtHandle_t, matmulDesc: hipblasLtMatmulDesc_t, Adesc: hipblasLtMatrixLayout_t, Bdesc:
        hipblasLtMatrixLayout_t, Cdesc: hipblasLtMatrixLayout_t, Ddesc: hipblasLtMatrixLayout_t, pref:
        hipblasLtMatmulPreference_t, requestedAlgoCount: c_int, heuristicResultsArray: *mut
        hipblasLtMatmulHeuristicResult_t, returnAlgoCount: *mut c_int,
    ) -> hipblasStatus_t;
    fn hipblasLtMatmul(
        handle: hipblasLtHandle_t, matmulDesc: hipblasLtMatmulDesc_t, alpha: *const c_void, A: *const c_void,
        Adesc: hipblasLtMatrixLayout_t, B: *const c_void, Bdesc: hipblasLtMatrixLayout_t, beta: *const c_void,
        C: *const c_void, Cdesc: hipblasLtMatrixLayout_t, D: *mut c_void, Ddesc: hipblasLtMatrixLayout_t,
        algo: *const hipblasLtMatmulAlgo_t, workspace: *mut c_void, workspaceSizeInBytes: usize, stream:
        hipStream_t,
    ) -> hipblasStatus_t;
}
