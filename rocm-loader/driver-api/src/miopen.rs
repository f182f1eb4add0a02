//! MIOpen: its functions, the types of their prototypes, and the status codes for calls that reach no driver. They cover
//! handles, descriptors, and convolutions in all three directions in immediate mode. The find mode, which rocm-rs' own
//! wrappers link to, is optional.
pub use std::ffi::{c_char, c_int, c_void};

pub use rocm_rs::hip::bindings::hipStream_t as miopenAcceleratorQueue_t;
use rocm_rs::miopen::ffi as declared;
pub use rocm_rs::miopen::ffi::{
    miopenConvAlgoPerf_t, miopenConvFwdAlgorithm_t, miopenConvSolution_t, miopenConvolutionDescriptor_t,
    miopenConvolutionMode_t, miopenDataType_t, miopenHandle_t, miopenStatus_t, miopenTensorDescriptor_t,
};

use crate::error::LoadError;

/// Returns the `miopenStatus_t` of a call that fails before it reaches a driver.
pub fn status_of(error: &LoadError) -> miopenStatus_t {
    match error.is_missing_function() {
        true => declared::miopenStatus_t_miopenStatusNotImplemented,
        false => declared::miopenStatus_t_miopenStatusNotInitialized,
    }
}

/// Passes MIOpen's prototypes to `$macro`, like [`crate::hip_functions`].
#[macro_export]
macro_rules! miopen_functions {
    ($macro:ident $($arguments:tt)*) => {
        $macro! { $($arguments)*
            required public {
                fn miopenGetVersion(major: *mut usize, minor: *mut usize, patch: *mut usize) -> miopenStatus_t;
                fn miopenGetErrorString(error: miopenStatus_t) -> *const c_char;
                fn miopenCreate(handle: *mut miopenHandle_t) -> miopenStatus_t;
                fn miopenDestroy(handle: miopenHandle_t) -> miopenStatus_t;

                fn miopenCreateTensorDescriptor(tensorDesc: *mut miopenTensorDescriptor_t) -> miopenStatus_t;
                fn miopenSet4dTensorDescriptor(
                    tensorDesc: miopenTensorDescriptor_t, dataType: miopenDataType_t, n: c_int, c: c_int, h: c_int,
                    w: c_int,
                ) -> miopenStatus_t;
                fn miopenSetTensorDescriptor(
                    tensorDesc: miopenTensorDescriptor_t, dataType: miopenDataType_t, nbDims: c_int,
                    dimsA: *const c_int, stridesA: *const c_int,
                ) -> miopenStatus_t;
                fn miopenDestroyTensorDescriptor(tensorDesc: miopenTensorDescriptor_t) -> miopenStatus_t;

                fn miopenCreateConvolutionDescriptor(convDesc: *mut miopenConvolutionDescriptor_t) -> miopenStatus_t;
                fn miopenInitConvolutionDescriptor(
                    convDesc: miopenConvolutionDescriptor_t, c_mode: miopenConvolutionMode_t, pad_h: c_int,
                    pad_w: c_int, stride_h: c_int, stride_w: c_int, dilation_h: c_int, dilation_w: c_int,
                ) -> miopenStatus_t;
                fn miopenInitConvolutionNdDescriptor(
                    convDesc: miopenConvolutionDescriptor_t, spatialDim: c_int, padA: *const c_int,
                    strideA: *const c_int, dilationA: *const c_int, c_mode: miopenConvolutionMode_t,
                ) -> miopenStatus_t;
                fn miopenSetConvolutionGroupCount(
                    convDesc: miopenConvolutionDescriptor_t, groupCount: c_int,
                ) -> miopenStatus_t;
                fn miopenDestroyConvolutionDescriptor(convDesc: miopenConvolutionDescriptor_t) -> miopenStatus_t;
                fn miopenGetConvolutionNdForwardOutputDim(
                    convDesc: miopenConvolutionDescriptor_t, inputTensorDesc: miopenTensorDescriptor_t,
                    filterDesc: miopenTensorDescriptor_t, nDim: *mut c_int, outputTensorDimA: *mut c_int,
                ) -> miopenStatus_t;

                fn miopenConvolutionForwardGetSolutionCount(
                    handle: miopenHandle_t, wDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, yDesc: miopenTensorDescriptor_t, solutionCount: *mut usize,
                ) -> miopenStatus_t;
                fn miopenConvolutionForwardGetSolution(
                    handle: miopenHandle_t, wDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, yDesc: miopenTensorDescriptor_t, maxSolutionCount: usize,
                    solutionCount: *mut usize, solutions: *mut miopenConvSolution_t,
                ) -> miopenStatus_t;
            }
            required private {
                fn miopenCreateWithStream(
                    handle: *mut miopenHandle_t, stream: miopenAcceleratorQueue_t,
                ) -> miopenStatus_t;
                fn miopenSetStream(handle: miopenHandle_t, streamID: miopenAcceleratorQueue_t) -> miopenStatus_t;
                fn miopenGetStream(handle: miopenHandle_t, streamID: *mut miopenAcceleratorQueue_t) -> miopenStatus_t;

                fn miopenConvolutionForwardGetSolutionWorkspaceSize(
                    handle: miopenHandle_t, wDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, yDesc: miopenTensorDescriptor_t, solution_id: u64,
                    workSpaceSize: *mut usize,
                ) -> miopenStatus_t;
                fn miopenConvolutionForwardCompileSolution(
                    handle: miopenHandle_t, wDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, yDesc: miopenTensorDescriptor_t, solution_id: u64,
                ) -> miopenStatus_t;
                fn miopenConvolutionForwardImmediate(
                    handle: miopenHandle_t, wDesc: miopenTensorDescriptor_t, w: *const c_void,
                    xDesc: miopenTensorDescriptor_t, x: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                    yDesc: miopenTensorDescriptor_t, y: *mut c_void, workSpace: *mut c_void, workSpaceSize: usize,
                    solution_id: u64,
                ) -> miopenStatus_t;

                fn miopenConvolutionBackwardDataGetSolutionCount(
                    handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, wDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, dxDesc: miopenTensorDescriptor_t,
                    solutionCount: *mut usize,
                ) -> miopenStatus_t;
                fn miopenConvolutionBackwardDataGetSolution(
                    handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, wDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, dxDesc: miopenTensorDescriptor_t, maxSolutionCount: usize,
                    solutionCount: *mut usize, solutions: *mut miopenConvSolution_t,
                ) -> miopenStatus_t;
                fn miopenConvolutionBackwardDataGetSolutionWorkspaceSize(
                    handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, wDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, dxDesc: miopenTensorDescriptor_t, solution_id: u64,
                    workSpaceSize: *mut usize,
                ) -> miopenStatus_t;
                fn miopenConvolutionBackwardDataCompileSolution(
                    handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, wDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, dxDesc: miopenTensorDescriptor_t, solution_id: u64,
                ) -> miopenStatus_t;
                fn miopenConvolutionBackwardDataImmediate(
                    handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
                    wDesc: miopenTensorDescriptor_t, w: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                    dxDesc: miopenTensorDescriptor_t, dx: *mut c_void, workSpace: *mut c_void, workSpaceSize: usize,
                    solution_id: u64,
                ) -> miopenStatus_t;

                fn miopenConvolutionBackwardWeightsGetSolutionCount(
                    handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, dwDesc: miopenTensorDescriptor_t,
                    solutionCount: *mut usize,
                ) -> miopenStatus_t;
                fn miopenConvolutionBackwardWeightsGetSolution(
                    handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, dwDesc: miopenTensorDescriptor_t, maxSolutionCount: usize,
                    solutionCount: *mut usize, solutions: *mut miopenConvSolution_t,
                ) -> miopenStatus_t;
                fn miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize(
                    handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, dwDesc: miopenTensorDescriptor_t, solution_id: u64,
                    workSpaceSize: *mut usize,
                ) -> miopenStatus_t;
                fn miopenConvolutionBackwardWeightsCompileSolution(
                    handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, dwDesc: miopenTensorDescriptor_t, solution_id: u64,
                ) -> miopenStatus_t;
                fn miopenConvolutionBackwardWeightsImmediate(
                    handle: miopenHandle_t, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
                    xDesc: miopenTensorDescriptor_t, x: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                    dwDesc: miopenTensorDescriptor_t, dw: *mut c_void, workSpace: *mut c_void, workSpaceSize: usize,
                    solution_id: u64,
                ) -> miopenStatus_t;
            }
            optional public {
                fn miopenConvolutionForwardGetWorkSpaceSize(
                    handle: miopenHandle_t, wDesc: miopenTensorDescriptor_t, xDesc: miopenTensorDescriptor_t,
                    convDesc: miopenConvolutionDescriptor_t, yDesc: miopenTensorDescriptor_t, workSpaceSize: *mut usize,
                ) -> miopenStatus_t;
                fn miopenFindConvolutionForwardAlgorithm(
                    handle: miopenHandle_t, xDesc: miopenTensorDescriptor_t, x: *const c_void,
                    wDesc: miopenTensorDescriptor_t, w: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                    yDesc: miopenTensorDescriptor_t, y: *mut c_void, requestAlgoCount: c_int,
                    returnedAlgoCount: *mut c_int, perfResults: *mut miopenConvAlgoPerf_t, workSpace: *mut c_void,
                    workSpaceSize: usize, exhaustiveSearch: bool,
                ) -> miopenStatus_t;
                fn miopenConvolutionForward(
                    handle: miopenHandle_t, alpha: *const c_void, xDesc: miopenTensorDescriptor_t, x: *const c_void,
                    wDesc: miopenTensorDescriptor_t, w: *const c_void, convDesc: miopenConvolutionDescriptor_t,
                    algo: miopenConvFwdAlgorithm_t, beta: *const c_void, yDesc: miopenTensorDescriptor_t,
                    y: *mut c_void, workSpace: *mut c_void, workSpaceSize: usize,
                ) -> miopenStatus_t;
            }
        }
    };
}
