//! The HIP runtime: its functions, the types of their prototypes, and error codes for calls that reach no driver.
pub use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};

use rocm_rs::hip::bindings as declared;
pub use rocm_rs::hip::bindings::{
    HIP_LAUNCH_CONFIG, dim3, hipCtx_t, hipDevice_t, hipDeviceAttribute_t, hipDeviceProp_tR0600,
    hipDeviceptr_t, hipError_t, hipEvent_t, hipFunction_attribute, hipFunction_t, hipGraph_t, hipGraphExec_t,
    hipGraphNode_t, hipJitOption, hipMemcpyKind, hipModule_t, hipStream_t, hipStreamCallback_t,
    hipStreamCaptureMode, hipStreamCaptureStatus,
};

use crate::error::LoadError;

/// Returns the `hipError_t` of a call that fails before it reaches a driver.
pub fn status_of(error: &LoadError) -> hipError_t {
    match error {
        LoadError::UnknownDriver { .. } | LoadError::AlreadySelected { .. } => {
            declared::hipError_t_hipErrorInvalidValue
        }
        LoadError::NoGpu { .. } => declared::hipError_t_hipErrorNoDevice,
        LoadError::NoDevice { code, .. } => *code,
        LoadError::SymbolMissing { .. } => declared::hipError_t_hipErrorSharedObjectSymbolNotFound,
        LoadError::NotInDriver { .. } => declared::hipError_t_hipErrorNotSupported,
        LoadError::TooOld { .. } => declared::hipError_t_hipErrorInsufficientDriver,
        LoadError::ProcessEnds => declared::hipError_t_hipErrorDeinitialized,
        _ => declared::hipError_t_hipErrorSharedObjectInitFailed,
    }
}

/// Passes the prototypes in groups to `$macro`, after `$arguments`. Every driver has the `required` functions and may lack
/// `optional` ones. rocm-rs declares them publicly (`public`), privately (`private`) or not at all (`ours`).
#[macro_export]
macro_rules! hip_functions {
    ($macro:ident $($arguments:tt)*) => {
        $macro! { $($arguments)*
            required public {
                fn hipInit(flags: c_uint) -> hipError_t;
                fn hipDriverGetVersion(driverVersion: *mut c_int) -> hipError_t;
                fn hipRuntimeGetVersion(runtimeVersion: *mut c_int) -> hipError_t;

                fn hipGetErrorName(hip_error: hipError_t) -> *const c_char;
                fn hipGetErrorString(hipError: hipError_t) -> *const c_char;
                fn hipGetLastError() -> hipError_t;
                fn hipPeekAtLastError() -> hipError_t;

                fn hipGetDeviceCount(count: *mut c_int) -> hipError_t;
                fn hipGetDevice(deviceId: *mut c_int) -> hipError_t;
                fn hipSetDevice(deviceId: c_int) -> hipError_t;
                fn hipDeviceGet(device: *mut hipDevice_t, ordinal: c_int) -> hipError_t;
                fn hipDeviceGetName(name: *mut c_char, len: c_int, device: hipDevice_t) -> hipError_t;
                fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t) -> hipError_t;
                fn hipGetDevicePropertiesR0600(prop: *mut hipDeviceProp_tR0600, deviceId: c_int) -> hipError_t;
                fn hipDeviceGetAttribute(pi: *mut c_int, attr: hipDeviceAttribute_t, deviceId: c_int) -> hipError_t;
                fn hipDeviceGetPCIBusId(pciBusId: *mut c_char, len: c_int, device: c_int) -> hipError_t;
                fn hipDeviceGetStreamPriorityRange(
                    leastPriority: *mut c_int, greatestPriority: *mut c_int,
                ) -> hipError_t;
                fn hipDeviceCanAccessPeer(
                    canAccessPeer: *mut c_int, deviceId: c_int, peerDeviceId: c_int,
                ) -> hipError_t;
                fn hipDeviceEnablePeerAccess(peerDeviceId: c_int, flags: c_uint) -> hipError_t;
                fn hipDeviceSynchronize() -> hipError_t;
                fn hipDeviceReset() -> hipError_t;

                fn hipCtxCreate(ctx: *mut hipCtx_t, flags: c_uint, device: hipDevice_t) -> hipError_t;
                fn hipCtxDestroy(ctx: hipCtx_t) -> hipError_t;
                fn hipCtxGetCurrent(ctx: *mut hipCtx_t) -> hipError_t;
                fn hipCtxSetCurrent(ctx: hipCtx_t) -> hipError_t;
                fn hipDevicePrimaryCtxRetain(pctx: *mut hipCtx_t, dev: hipDevice_t) -> hipError_t;
                fn hipDevicePrimaryCtxRelease(dev: hipDevice_t) -> hipError_t;

                fn hipMalloc(ptr: *mut *mut c_void, size: usize) -> hipError_t;
                fn hipFree(ptr: *mut c_void) -> hipError_t;
                fn hipHostMalloc(ptr: *mut *mut c_void, size: usize, flags: c_uint) -> hipError_t;
                fn hipHostFree(ptr: *mut c_void) -> hipError_t;
                fn hipHostGetDevicePointer(devPtr: *mut *mut c_void, hstPtr: *mut c_void, flags: c_uint) -> hipError_t;
                fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> hipError_t;
                fn hipMemcpy(dst: *mut c_void, src: *const c_void, sizeBytes: usize, kind: hipMemcpyKind) -> hipError_t;
                fn hipMemcpyAsync(
                    dst: *mut c_void, src: *const c_void, sizeBytes: usize, kind: hipMemcpyKind, stream: hipStream_t,
                ) -> hipError_t;
                fn hipMemcpyHtoD(dst: hipDeviceptr_t, src: *const c_void, sizeBytes: usize) -> hipError_t;
                fn hipMemcpyDtoH(dst: *mut c_void, src: hipDeviceptr_t, sizeBytes: usize) -> hipError_t;
                fn hipMemcpyPeerAsync(
                    dst: *mut c_void, dstDeviceId: c_int, src: *const c_void, srcDevice: c_int, sizeBytes: usize,
                    stream: hipStream_t,
                ) -> hipError_t;
                fn hipMemset(dst: *mut c_void, value: c_int, sizeBytes: usize) -> hipError_t;
                fn hipMemsetAsync(dst: *mut c_void, value: c_int, sizeBytes: usize, stream: hipStream_t) -> hipError_t;
                fn hipMemsetD8Async(
                    dest: hipDeviceptr_t, value: c_uchar, count: usize, stream: hipStream_t,
                ) -> hipError_t;
                fn hipMemsetD32Async(
                    dst: hipDeviceptr_t, value: c_int, count: usize, stream: hipStream_t,
                ) -> hipError_t;

                fn hipStreamCreate(stream: *mut hipStream_t) -> hipError_t;
                fn hipStreamCreateWithFlags(stream: *mut hipStream_t, flags: c_uint) -> hipError_t;
                fn hipStreamCreateWithPriority(stream: *mut hipStream_t, flags: c_uint, priority: c_int) -> hipError_t;
                fn hipStreamDestroy(stream: hipStream_t) -> hipError_t;
                fn hipStreamSynchronize(stream: hipStream_t) -> hipError_t;
                fn hipStreamQuery(stream: hipStream_t) -> hipError_t;
                fn hipStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, flags: c_uint) -> hipError_t;
                fn hipStreamAddCallback(
                    stream: hipStream_t, callback: hipStreamCallback_t, userData: *mut c_void, flags: c_uint,
                ) -> hipError_t;
                fn hipStreamGetFlags(stream: hipStream_t, flags: *mut c_uint) -> hipError_t;
                fn hipStreamGetPriority(stream: hipStream_t, priority: *mut c_int) -> hipError_t;
                fn hipStreamGetDevice(stream: hipStream_t, device: *mut hipDevice_t) -> hipError_t;

                fn hipStreamBeginCapture(stream: hipStream_t, mode: hipStreamCaptureMode) -> hipError_t;
                fn hipStreamEndCapture(stream: hipStream_t, pGraph: *mut hipGraph_t) -> hipError_t;
                fn hipStreamIsCapturing(
                    stream: hipStream_t, pCaptureStatus: *mut hipStreamCaptureStatus,
                ) -> hipError_t;
                fn hipGraphGetNodes(
                    graph: hipGraph_t, nodes: *mut hipGraphNode_t, numNodes: *mut usize,
                ) -> hipError_t;
                fn hipGraphInstantiate(
                    pGraphExec: *mut hipGraphExec_t, graph: hipGraph_t, pErrorNode: *mut hipGraphNode_t,
                    pLogBuffer: *mut c_char, bufferSize: usize,
                ) -> hipError_t;
                fn hipGraphLaunch(graphExec: hipGraphExec_t, stream: hipStream_t) -> hipError_t;
                fn hipGraphDestroy(graph: hipGraph_t) -> hipError_t;
                fn hipGraphExecDestroy(graphExec: hipGraphExec_t) -> hipError_t;

                fn hipEventCreate(event: *mut hipEvent_t) -> hipError_t;
                fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint) -> hipError_t;
                fn hipEventDestroy(event: hipEvent_t) -> hipError_t;
                fn hipEventRecord(event: hipEvent_t, stream: hipStream_t) -> hipError_t;
                fn hipEventSynchronize(event: hipEvent_t) -> hipError_t;
                fn hipEventQuery(event: hipEvent_t) -> hipError_t;
                fn hipEventElapsedTime(ms: *mut f32, start: hipEvent_t, stop: hipEvent_t) -> hipError_t;

                fn hipModuleLoad(module: *mut hipModule_t, fname: *const c_char) -> hipError_t;
                fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void) -> hipError_t;
                fn hipModuleLoadDataEx(
                    module: *mut hipModule_t, image: *const c_void, numOptions: c_uint, options: *mut hipJitOption,
                    optionValues: *mut *mut c_void,
                ) -> hipError_t;
                fn hipModuleUnload(module: hipModule_t) -> hipError_t;
                fn hipModuleGetFunction(
                    function: *mut hipFunction_t, module: hipModule_t, kname: *const c_char,
                ) -> hipError_t;
                fn hipModuleGetGlobal(
                    dptr: *mut hipDeviceptr_t, bytes: *mut usize, hmod: hipModule_t, name: *const c_char,
                ) -> hipError_t;
                fn hipModuleLaunchKernel(
                    f: hipFunction_t, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint,
                    blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, stream: hipStream_t,
                    kernelParams: *mut *mut c_void, extra: *mut *mut c_void,
                ) -> hipError_t;
                fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
                    numBlocks: *mut c_int, f: hipFunction_t, blockSize: c_int, dynSharedMemPerBlk: usize,
                ) -> hipError_t;
                fn hipFuncGetAttribute(
                    value: *mut c_int, attrib: hipFunction_attribute, hfunc: hipFunction_t,
                ) -> hipError_t;
            }
            optional public {
                fn hipLaunchKernel(
                    function_address: *const c_void, numBlocks: dim3, dimBlocks: dim3, args: *mut *mut c_void,
                    sharedMemBytes: usize, stream: hipStream_t,
                ) -> hipError_t;
                fn hipDrvLaunchKernelEx(
                    config: *const HIP_LAUNCH_CONFIG, f: hipFunction_t, params: *mut *mut c_void,
                    extra: *mut *mut c_void,
                ) -> hipError_t;
            }
        }
    };
}
