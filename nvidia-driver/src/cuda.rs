//! The functions of libcuda that the driver calls, by their names in CUDA's header (`cuMemAlloc` is `cuMemAlloc_v2`).
//! Handles have HIP's types, since both are opaque pointers. Device addresses are pointers here, 64-bit integers in CUDA.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};

use rocm_rs::hip::bindings::{
    HIP_LAUNCH_CONFIG, hipCtx_t, hipEvent_t, hipFunction_t, hipGraph_t, hipGraphExec_t, hipGraphNode_t,
    hipModule_t, hipStream_t,
};

/// `CUresult`.
pub(crate) type Code = c_uint;
/// `CUdevice`.
pub(crate) type Handle = c_int;
/// `CUdeviceptr`.
pub(crate) type Address = *mut c_void;
/// `CUstreamCallback`.
pub(crate) type Callback = unsafe extern "C" fn(hipStream_t, Code, *mut c_void);

/// Defines a table of a library's functions. Each row has the field, the symbol, and the prototype or its type alias.
macro_rules! functions {
    (@type fn($($argument:ty),*) -> $result:ty) => { unsafe extern "C" fn($($argument),*) -> $result };
    (@type $alias:ident) => { $alias };
    ($(#[$doc:meta])* $table:ident {
        $($name:ident = $symbol:literal: $(fn($($argument:ty),*) -> $result:ty)? $(as $alias:ident)?;)*
    }) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $name: functions!(@type $(fn($($argument),*) -> $result)? $($alias)?),)*
        }

        impl $crate::library::Functions for $table {
            const SYMBOLS: &'static [&'static str] = &[$($symbol),*];

            fn of(library: &rocm_driver_api::SharedLibrary) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let address = library.address($symbol).map_err(|_| $symbol)?;
                        // SAFETY: the C function of this name has this prototype.
                        unsafe {
                            std::mem::transmute::<
                                rocm_driver_api::Address,
                                functions!(@type $(fn($($argument),*) -> $result)? $($alias)?),
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;

functions! {
    /// The functions of libcuda.
    Cuda {
        cuInit = "cuInit": fn(c_uint) -> Code;
        cuDriverGetVersion = "cuDriverGetVersion": fn(*mut c_int) -> Code;
        cuGetErrorName = "cuGetErrorName": fn(Code, *mut *const c_char) -> Code;
        cuGetErrorString = "cuGetErrorString": fn(Code, *mut *const c_char) -> Code;

        cuDeviceGetCount = "cuDeviceGetCount": fn(*mut c_int) -> Code;
        cuDeviceGet = "cuDeviceGet": fn(*mut Handle, c_int) -> Code;
        cuDeviceGetName = "cuDeviceGetName": fn(*mut c_char, c_int, Handle) -> Code;
        cuDeviceTotalMem = "cuDeviceTotalMem_v2": fn(*mut usize, Handle) -> Code;
        cuDeviceGetAttribute = "cuDeviceGetAttribute": fn(*mut c_int, c_uint, Handle) -> Code;
        cuDeviceGetPCIBusId = "cuDeviceGetPCIBusId": fn(*mut c_char, c_int, Handle) -> Code;
        cuDeviceCanAccessPeer = "cuDeviceCanAccessPeer": fn(*mut c_int, Handle, Handle) -> Code;
        cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain": fn(*mut hipCtx_t, Handle) -> Code;
        cuDevicePrimaryCtxRelease = "cuDevicePrimaryCtxRelease_v2": fn(Handle) -> Code;
        cuDevicePrimaryCtxReset = "cuDevicePrimaryCtxReset_v2": fn(Handle) -> Code;
        cuCtxSetCurrent = "cuCtxSetCurrent": fn(hipCtx_t) -> Code;
        cuCtxSynchronize = "cuCtxSynchronize": fn() -> Code;
        cuCtxGetStreamPriorityRange = "cuCtxGetStreamPriorityRange": fn(*mut c_int, *mut c_int) -> Code;
        cuCtxEnablePeerAccess = "cuCtxEnablePeerAccess": fn(hipCtx_t, c_uint) -> Code;

        cuMemAlloc = "cuMemAlloc_v2": fn(*mut Address, usize) -> Code;
        cuMemFree = "cuMemFree_v2": fn(Address) -> Code;
        cuMemHostAlloc = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint) -> Code;
        cuMemFreeHost = "cuMemFreeHost": fn(*mut c_void) -> Code;
        cuMemHostGetDevicePointer = "cuMemHostGetDevicePointer_v2": fn(*mut Address, *mut c_void, c_uint) -> Code;
        cuMemGetInfo = "cuMemGetInfo_v2": fn(*mut usize, *mut usize) -> Code;
        cuMemcpyAsync = "cuMemcpyAsync": fn(Address, *const c_void, usize, hipStream_t) -> Code;
        cuMemcpyPeerAsync = "cuMemcpyPeerAsync":
            fn(Address, hipCtx_t, *const c_void, hipCtx_t, usize, hipStream_t) -> Code;
        cuMemsetD8Async = "cuMemsetD8Async": fn(Address, c_uchar, usize, hipStream_t) -> Code;
        cuMemsetD32Async = "cuMemsetD32Async": fn(Address, c_uint, usize, hipStream_t) -> Code;

        cuStreamCreate = "cuStreamCreate": fn(*mut hipStream_t, c_uint) -> Code;
        cuStreamCreateWithPriority = "cuStreamCreateWithPriority": fn(*mut hipStream_t, c_uint, c_int) -> Code;
        cuStreamDestroy = "cuStreamDestroy_v2": fn(hipStream_t) -> Code;
        cuStreamSynchronize = "cuStreamSynchronize": fn(hipStream_t) -> Code;
        cuStreamQuery = "cuStreamQuery": fn(hipStream_t) -> Code;
        cuStreamWaitEvent = "cuStreamWaitEvent": fn(hipStream_t, hipEvent_t, c_uint) -> Code;
        cuStreamAddCallback = "cuStreamAddCallback": fn(hipStream_t, Callback, *mut c_void, c_uint) -> Code;
        cuStreamGetFlags = "cuStreamGetFlags": fn(hipStream_t, *mut c_uint) -> Code;
        cuStreamGetPriority = "cuStreamGetPriority": fn(hipStream_t, *mut c_int) -> Code;
        cuStreamGetCtx = "cuStreamGetCtx": fn(hipStream_t, *mut hipCtx_t) -> Code;

        cuStreamBeginCapture = "cuStreamBeginCapture_v2": fn(hipStream_t, c_uint) -> Code;
        cuStreamEndCapture = "cuStreamEndCapture": fn(hipStream_t, *mut hipGraph_t) -> Code;
        cuStreamIsCapturing = "cuStreamIsCapturing": fn(hipStream_t, *mut c_uint) -> Code;
        cuGraphGetNodes = "cuGraphGetNodes": fn(hipGraph_t, *mut hipGraphNode_t, *mut usize) -> Code;
        cuGraphInstantiateWithFlags = "cuGraphInstantiateWithFlags": fn(*mut hipGraphExec_t, hipGraph_t, u64) -> Code;
        cuGraphLaunch = "cuGraphLaunch": fn(hipGraphExec_t, hipStream_t) -> Code;
        cuGraphDestroy = "cuGraphDestroy": fn(hipGraph_t) -> Code;
        cuGraphExecDestroy = "cuGraphExecDestroy": fn(hipGraphExec_t) -> Code;

        cuEventCreate = "cuEventCreate": fn(*mut hipEvent_t, c_uint) -> Code;
        cuEventDestroy = "cuEventDestroy_v2": fn(hipEvent_t) -> Code;
        cuEventRecord = "cuEventRecord": fn(hipEvent_t, hipStream_t) -> Code;
        cuEventSynchronize = "cuEventSynchronize": fn(hipEvent_t) -> Code;
        cuEventQuery = "cuEventQuery": fn(hipEvent_t) -> Code;
        cuEventElapsedTime = "cuEventElapsedTime": fn(*mut f32, hipEvent_t, hipEvent_t) -> Code;

        cuModuleLoadData = "cuModuleLoadData": fn(*mut hipModule_t, *const c_void) -> Code;
        cuModuleUnload = "cuModuleUnload": fn(hipModule_t) -> Code;
        cuModuleGetFunction = "cuModuleGetFunction": fn(*mut hipFunction_t, hipModule_t, *const c_char) -> Code;
        cuModuleGetGlobal = "cuModuleGetGlobal_v2": fn(*mut Address, *mut usize, hipModule_t, *const c_char) -> Code;
        cuFuncGetAttribute = "cuFuncGetAttribute": fn(*mut c_int, c_uint, hipFunction_t) -> Code;
        cuFuncSetAttribute = "cuFuncSetAttribute": fn(hipFunction_t, c_uint, c_int) -> Code;
        cuOccupancyMaxActiveBlocksPerMultiprocessor = "cuOccupancyMaxActiveBlocksPerMultiprocessor":
            fn(*mut c_int, hipFunction_t, c_int, usize) -> Code;
        cuLaunchKernel = "cuLaunchKernel":
            fn(
                hipFunction_t, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, hipStream_t,
                *mut *mut c_void, *mut *mut c_void
            ) -> Code;
        cuLaunchKernelEx = "cuLaunchKernelEx":
            fn(*const HIP_LAUNCH_CONFIG, hipFunction_t, *mut *mut c_void, *mut *mut c_void) -> Code;
    }
}
