//! HIP's C types, with the layouts of ROCm 6's headers on x86-64.
#![allow(missing_docs, reason = "documented by HIP")]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Error code of HIP's enumeration.
pub type hipError_t = c_uint;
/// Device ordinal.
pub type hipDevice_t = c_int;
/// Address of device memory.
pub type hipDeviceptr_t = *mut c_void;
pub type hipStream_t = *mut c_void;
pub type hipEvent_t = *mut c_void;
pub type hipModule_t = *mut c_void;
pub type hipFunction_t = *mut c_void;
pub type hipCtx_t = *mut c_void;
pub type hipGraph_t = *mut c_void;
pub type hipGraphExec_t = *mut c_void;
pub type hipGraphNode_t = *mut c_void;
pub type hipStreamCaptureMode = c_uint;
pub type hipStreamCaptureStatus = c_uint;
pub type hipMemcpyKind = c_uint;
pub type hipDeviceAttribute_t = c_uint;
pub type hipFunction_attribute = c_uint;
pub type hipJitOption = c_uint;
/// Stream callback: the stream, the stream's error code, the caller's pointer.
pub type hipStreamCallback_t = Option<unsafe extern "C" fn(hipStream_t, hipError_t, *mut c_void)>;

pub const hipMemcpyHostToHost: hipMemcpyKind = 0;
pub const hipMemcpyHostToDevice: hipMemcpyKind = 1;
pub const hipMemcpyDeviceToHost: hipMemcpyKind = 2;
pub const hipMemcpyDeviceToDevice: hipMemcpyKind = 3;
pub const hipMemcpyDefault: hipMemcpyKind = 4;

pub const hipStreamCaptureModeGlobal: hipStreamCaptureMode = 0;
pub const hipStreamCaptureModeThreadLocal: hipStreamCaptureMode = 1;
pub const hipStreamCaptureModeRelaxed: hipStreamCaptureMode = 2;
pub const hipStreamCaptureStatusNone: hipStreamCaptureStatus = 0;
pub const hipStreamCaptureStatusActive: hipStreamCaptureStatus = 1;
pub const hipStreamCaptureStatusInvalidated: hipStreamCaptureStatus = 2;

pub const hipStreamDefault: c_uint = 0;
pub const hipStreamNonBlocking: c_uint = 1;
pub const hipEventDefault: c_uint = 0;
pub const hipEventDisableTiming: c_uint = 2;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct dim3 {
    pub x: c_uint,
    pub y: c_uint,
    pub z: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct hipUUID {
    pub bytes: [c_char; 16],
}

/// hipPointerAttribute_t: `type` is 1 for host, 2 for device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hipPointerAttribute_t {
    pub r#type: c_uint,
    pub device: c_int,
    pub devicePointer: *mut c_void,
    pub hostPointer: *mut c_void,
    pub isManaged: c_int,
    pub allocationFlags: c_uint,
}

/// Version of hipDeviceProp_t that hipGetDevicePropertiesR0600 fills.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hipDeviceProp_tR0600 {
    pub name: [c_char; 256],
    pub uuid: hipUUID,
    pub luid: [c_char; 8],
    pub luidDeviceNodeMask: c_uint,
    pub totalGlobalMem: usize,
    pub sharedMemPerBlock: usize,
    pub regsPerBlock: c_int,
    pub warpSize: c_int,
    pub memPitch: usize,
    pub maxThreadsPerBlock: c_int,
    pub maxThreadsDim: [c_int; 3],
    pub maxGridSize: [c_int; 3],
    pub clockRate: c_int,
    pub totalConstMem: usize,
    pub major: c_int,
    pub minor: c_int,
    pub textureAlignment: usize,
    pub texturePitchAlignment: usize,
    pub deviceOverlap: c_int,
    pub multiProcessorCount: c_int,
    pub kernelExecTimeoutEnabled: c_int,
    pub integrated: c_int,
    pub canMapHostMemory: c_int,
    pub computeMode: c_int,
    pub maxTexture1D: c_int,
    pub maxTexture1DMipmap: c_int,
    pub maxTexture1DLinear: c_int,
    pub maxTexture2D: [c_int; 2],
    pub maxTexture2DMipmap: [c_int; 2],
    pub maxTexture2DLinear: [c_int; 3],
    pub maxTexture2DGather: [c_int; 2],
    pub maxTexture3D: [c_int; 3],
    pub maxTexture3DAlt: [c_int; 3],
    pub maxTextureCubemap: c_int,
    pub maxTexture1DLayered: [c_int; 2],
    pub maxTexture2DLayered: [c_int; 3],
    pub maxTextureCubemapLayered: [c_int; 2],
    pub maxSurface1D: c_int,
    pub maxSurface2D: [c_int; 2],
    pub maxSurface3D: [c_int; 3],
    pub maxSurface1DLayered: [c_int; 2],
    pub maxSurface2DLayered: [c_int; 3],
    pub maxSurfaceCubemap: c_int,
    pub maxSurfaceCubemapLayered: [c_int; 2],
    pub surfaceAlignment: usize,
    pub concurrentKernels: c_int,
    pub ECCEnabled: c_int,
    pub pciBusID: c_int,
    pub pciDeviceID: c_int,
    pub pciDomainID: c_int,
    pub tccDriver: c_int,
    pub asyncEngineCount: c_int,
    pub unifiedAddressing: c_int,
    pub memoryClockRate: c_int,
    pub memoryBusWidth: c_int,
    pub l2CacheSize: c_int,
    pub persistingL2CacheMaxSize: c_int,
    pub maxThreadsPerMultiProcessor: c_int,
    pub streamPrioritiesSupported: c_int,
    pub globalL1CacheSupported: c_int,
    pub localL1CacheSupported: c_int,
    pub sharedMemPerMultiprocessor: usize,
    pub regsPerMultiprocessor: c_int,
    pub managedMemory: c_int,
    pub isMultiGpuBoard: c_int,
    pub multiGpuBoardGroupID: c_int,
    pub hostNativeAtomicSupported: c_int,
    pub singleToDoublePrecisionPerfRatio: c_int,
    pub pageableMemoryAccess: c_int,
    pub concurrentManagedAccess: c_int,
    pub computePreemptionSupported: c_int,
    pub canUseHostPointerForRegisteredMem: c_int,
    pub cooperativeLaunch: c_int,
    pub cooperativeMultiDeviceLaunch: c_int,
    pub sharedMemPerBlockOptin: usize,
    pub pageableMemoryAccessUsesHostPageTables: c_int,
    pub directManagedMemAccessFromHost: c_int,
    pub maxBlocksPerMultiProcessor: c_int,
    pub accessPolicyMaxWindowSize: c_int,
    pub reservedSharedMemPerBlock: usize,
    pub hostRegisterSupported: c_int,
    pub sparseHipArraySupported: c_int,
    pub hostRegisterReadOnlySupported: c_int,
    pub timelineSemaphoreInteropSupported: c_int,
    pub memoryPoolsSupported: c_int,
    pub gpuDirectRDMASupported: c_int,
    pub gpuDirectRDMAFlushWritesOptions: c_uint,
    pub gpuDirectRDMAWritesOrdering: c_int,
    pub memoryPoolSupportedHandleTypes: c_uint,
    pub deferredMappingHipArraySupported: c_int,
    pub ipcEventSupported: c_int,
    pub clusterLaunch: c_int,
    pub unifiedFunctionPointers: c_int,
    pub reserved: [c_int; 63],
    pub hipReserved: [c_int; 32],
    pub gcnArchName: [c_char; 256],
    pub maxSharedMemoryPerMultiProcessor: usize,
    pub clockInstructionRate: c_int,
    /// hipDeviceArch_t: nineteen one-bit features, lowest bit first.
    pub arch: c_uint,
    pub hdpMemFlushCntl: *mut c_uint,
    pub hdpRegFlushCntl: *mut c_uint,
    pub cooperativeMultiDeviceUnmatchedFunc: c_int,
    pub cooperativeMultiDeviceUnmatchedGridDim: c_int,
    pub cooperativeMultiDeviceUnmatchedBlockDim: c_int,
    pub cooperativeMultiDeviceUnmatchedSharedMem: c_int,
    pub isLargeBar: c_int,
    pub asicRevision: c_int,
}

#[cfg(test)]
mod tests {
    use super::hipDeviceProp_tR0600 as Properties;
    use std::mem::offset_of;

    /// Compares with the offsets that a C compiler gives for the same declaration.
    #[test]
    fn the_properties_have_hips_layout() {
        let offsets = [
            (offset_of!(Properties, uuid), 256),
            (offset_of!(Properties, totalGlobalMem), 288),
            (offset_of!(Properties, sharedMemPerBlock), 296),
            (offset_of!(Properties, warpSize), 308),
            (offset_of!(Properties, maxThreadsPerBlock), 320),
            (offset_of!(Properties, clockRate), 348),
            (offset_of!(Properties, totalConstMem), 352),
            (offset_of!(Properties, major), 360),
            (offset_of!(Properties, multiProcessorCount), 388),
            (offset_of!(Properties, integrated), 396),
            (offset_of!(Properties, surfaceAlignment), 568),
            (offset_of!(Properties, pciBusID), 584),
            (offset_of!(Properties, l2CacheSize), 616),
            (offset_of!(Properties, sharedMemPerMultiprocessor), 640),
            (offset_of!(Properties, sharedMemPerBlockOptin), 696),
            (offset_of!(Properties, reservedSharedMemPerBlock), 720),
            (offset_of!(Properties, gcnArchName), 1160),
            (offset_of!(Properties, maxSharedMemoryPerMultiProcessor), 1416),
            (offset_of!(Properties, arch), 1428),
            (offset_of!(Properties, hdpMemFlushCntl), 1432),
            (offset_of!(Properties, asicRevision), 1468),
        ];
        for (index, (ours, hips)) in offsets.iter().enumerate() {
            assert_eq!(ours, hips, "offset {index}");
        }
        assert_eq!(size_of::<Properties>(), 1472);
        assert_eq!(align_of::<Properties>(), 8);
        assert_eq!(size_of::<super::hipPointerAttribute_t>(), 32);
    }
}
