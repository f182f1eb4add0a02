//! Properties and attributes of a device.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{c_char, c_int, c_uint};

use rocm_rs::hip::bindings::{
    self as hip, hipDevice_t, hipDeviceAttribute_t, hipDeviceProp_tR0600, hipError_t,
    hipError_t_hipErrorNotSupported,
};

use super::context::{null_pointer, with_device, write_to};
use super::status::{SUCCESS, fail};

/// Maximum LDS of a workgroup in bytes on AMD GPUs, which this driver reports too.
pub(super) const SHARED_BYTES: c_int = 64 << 10;

/// CUDA's attribute numbers (`CU_DEVICE_ATTRIBUTE_...`) that are used outside the tables.
const SHARED_PER_BLOCK_OPTIN: c_uint = 97;
const MAJOR: c_uint = 75;
const MINOR: c_uint = 76;

/// Returns an attribute of a device; `None` if CUDA does not know it, which does not count as a failure.
fn attribute(ordinal: c_int, number: c_uint) -> Option<c_int> {
    let mut found = None;
    with_device(ordinal, "cuDeviceGetAttribute", |cuda, device| {
        let mut value = 0;
        // SAFETY: writes one int.
        let code = unsafe { (cuda.cuDeviceGetAttribute)(&mut value, number, device) };
        found = (code == 0).then_some(value);
        0
    });
    found
}

/// Returns the device's architecture: `sm_90`.
pub(super) fn arch(ordinal: c_int) -> Option<String> {
    Some(format!("sm_{}{}", attribute(ordinal, MAJOR)?, attribute(ordinal, MINOR)?))
}

/// Returns the maximum shared memory of a block in bytes, static and dynamic.
pub(super) fn shared_bytes(ordinal: c_int) -> c_int {
    attribute(ordinal, SHARED_PER_BLOCK_OPTIN).unwrap_or(48 << 10)
}

/// Maps CUDA's attribute numbers to HIP's property fields and attributes.
macro_rules! attributes {
    ($($number:literal: [$($field:ident $([$index:literal])?)*] [$($attribute:ident)*];)*) => {
        /// Sets the fields of the properties that CUDA has, too.
        fn fill(properties: &mut hipDeviceProp_tR0600, ordinal: c_int) {
            $(if let Some(_value) = attribute(ordinal, $number) {
                $(properties.$field$([$index])? = _value as _;)*
            })*
        }

        const ATTRIBUTES: &[(hipDeviceAttribute_t, c_uint)] = &[$($((hip::$attribute, $number),)*)*];
    };
}

attributes! {
    1: [maxThreadsPerBlock] [hipDeviceAttribute_t_hipDeviceAttributeMaxThreadsPerBlock];
    2: [maxThreadsDim[0]] [hipDeviceAttribute_t_hipDeviceAttributeMaxBlockDimX];
    3: [maxThreadsDim[1]] [hipDeviceAttribute_t_hipDeviceAttributeMaxBlockDimY];
    4: [maxThreadsDim[2]] [hipDeviceAttribute_t_hipDeviceAttributeMaxBlockDimZ];
    5: [maxGridSize[0]] [hipDeviceAttribute_t_hipDeviceAttributeMaxGridDimX];
    6: [maxGridSize[1]] [hipDeviceAttribute_t_hipDeviceAttributeMaxGridDimY];
    7: [maxGridSize[2]] [hipDeviceAttribute_t_hipDeviceAttributeMaxGridDimZ];
    9: [totalConstMem] [hipDeviceAttribute_t_hipDeviceAttributeTotalConstantMemory];
    10: [warpSize] [hipDeviceAttribute_t_hipDeviceAttributeWarpSize];
    11: [memPitch] [hipDeviceAttribute_t_hipDeviceAttributeMaxPitch];
    12: [regsPerBlock] [hipDeviceAttribute_t_hipDeviceAttributeMaxRegistersPerBlock];
    13: [clockRate] [hipDeviceAttribute_t_hipDeviceAttributeClockRate];
    14: [textureAlignment] [];
    15: [deviceOverlap] [];
    16: [multiProcessorCount] [hipDeviceAttribute_t_hipDeviceAttributeMultiprocessorCount hipDeviceAttribute_t_hipDeviceAttributePhysicalMultiProcessorCount];
    17: [kernelExecTimeoutEnabled] [hipDeviceAttribute_t_hipDeviceAttributeKernelExecTimeout];
    18: [integrated] [hipDeviceAttribute_t_hipDeviceAttributeIntegrated];
    19: [canMapHostMemory] [hipDeviceAttribute_t_hipDeviceAttributeCanMapHostMemory];
    20: [computeMode] [hipDeviceAttribute_t_hipDeviceAttributeComputeMode];
    30: [surfaceAlignment] [];
    31: [concurrentKernels] [hipDeviceAttribute_t_hipDeviceAttributeConcurrentKernels];
    32: [ECCEnabled] [hipDeviceAttribute_t_hipDeviceAttributeEccEnabled];
    33: [pciBusID] [hipDeviceAttribute_t_hipDeviceAttributePciBusId];
    34: [pciDeviceID] [hipDeviceAttribute_t_hipDeviceAttributePciDeviceId];
    35: [tccDriver] [];
    36: [memoryClockRate] [hipDeviceAttribute_t_hipDeviceAttributeMemoryClockRate];
    37: [memoryBusWidth] [hipDeviceAttribute_t_hipDeviceAttributeMemoryBusWidth];
    38: [l2CacheSize] [hipDeviceAttribute_t_hipDeviceAttributeL2CacheSize];
    39: [maxThreadsPerMultiProcessor] [hipDeviceAttribute_t_hipDeviceAttributeMaxThreadsPerMultiProcessor];
    40: [asyncEngineCount] [hipDeviceAttribute_t_hipDeviceAttributeAsyncEngineCount];
    41: [unifiedAddressing] [hipDeviceAttribute_t_hipDeviceAttributeUnifiedAddressing];
    50: [pciDomainID] [hipDeviceAttribute_t_hipDeviceAttributePciDomainId];
    51: [texturePitchAlignment] [];
    75: [major] [hipDeviceAttribute_t_hipDeviceAttributeComputeCapabilityMajor];
    76: [minor] [hipDeviceAttribute_t_hipDeviceAttributeComputeCapabilityMinor];
    78: [streamPrioritiesSupported] [hipDeviceAttribute_t_hipDeviceAttributeStreamPrioritiesSupported];
    79: [globalL1CacheSupported] [];
    80: [localL1CacheSupported] [];
    81: [sharedMemPerMultiprocessor maxSharedMemoryPerMultiProcessor] [hipDeviceAttribute_t_hipDeviceAttributeMaxSharedMemoryPerMultiprocessor];
    82: [regsPerMultiprocessor] [hipDeviceAttribute_t_hipDeviceAttributeMaxRegistersPerMultiprocessor];
    83: [managedMemory] [hipDeviceAttribute_t_hipDeviceAttributeManagedMemory];
    84: [isMultiGpuBoard] [];
    86: [hostNativeAtomicSupported] [];
    87: [singleToDoublePrecisionPerfRatio] [];
    88: [pageableMemoryAccess] [];
    89: [concurrentManagedAccess] [];
    95: [cooperativeLaunch] [hipDeviceAttribute_t_hipDeviceAttributeCooperativeLaunch];
    97: [sharedMemPerBlockOptin] [hipDeviceAttribute_t_hipDeviceAttributeSharedMemPerBlockOptin];
    99: [hostRegisterSupported] [];
    106: [maxBlocksPerMultiProcessor] [hipDeviceAttribute_t_hipDeviceAttributeMaxBlocksPerMultiProcessor];
    111: [reservedSharedMemPerBlock] [];
    115: [memoryPoolsSupported] [hipDeviceAttribute_t_hipDeviceAttributeMemoryPoolsSupported];
}

pub(crate) unsafe extern "C" fn hipGetDevicePropertiesR0600(
    prop: *mut hipDeviceProp_tR0600,
    deviceId: c_int,
) -> hipError_t {
    if prop.is_null() {
        return null_pointer();
    }
    // SAFETY: the structure is plain integers, arrays and raw pointers: all zero is valid.
    let mut found: hipDeviceProp_tR0600 = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer has the given length.
    let code = unsafe { hipDeviceGetName(found.name.as_mut_ptr(), found.name.len() as c_int, deviceId) };
    if code != SUCCESS {
        return code;
    }
    // SAFETY: the size is written to a live variable.
    let code = unsafe { hipDeviceTotalMem(&mut found.totalGlobalMem, deviceId) };
    if code != SUCCESS {
        return code;
    }
    fill(&mut found, deviceId);
    found.sharedMemPerBlock = shared_bytes(deviceId).min(SHARED_BYTES) as usize;
    let arch = format!("sm_{}{}", found.major, found.minor);
    for (to, byte) in found.gcnArchName.iter_mut().zip(arch.bytes()) {
        *to = byte as c_char;
    }
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { prop.write(found) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn hipDeviceGetName(
    name: *mut c_char,
    len: c_int,
    device: hipDevice_t,
) -> hipError_t {
    // SAFETY: the caller guarantees a valid pointer and length.
    with_device(device, "cuDeviceGetName", |cuda, device| unsafe {
        (cuda.cuDeviceGetName)(name, len, device)
    })
}

pub(crate) unsafe extern "C" fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t) -> hipError_t {
    // SAFETY: the caller guarantees a valid pointer.
    with_device(device, "cuDeviceTotalMem", |cuda, device| unsafe { (cuda.cuDeviceTotalMem)(bytes, device) })
}

pub(crate) unsafe extern "C" fn hipDeviceGetPCIBusId(
    pciBusId: *mut c_char,
    len: c_int,
    device: c_int,
) -> hipError_t {
    with_device(device, "cuDeviceGetPCIBusId", |cuda, device| {
        // SAFETY: the caller guarantees a valid pointer and length.
        unsafe { (cuda.cuDeviceGetPCIBusId)(pciBusId, len, device) }
    })
}

pub(crate) unsafe extern "C" fn hipDeviceGetAttribute(
    pi: *mut c_int,
    attr: hipDeviceAttribute_t,
    deviceId: c_int,
) -> hipError_t {
    if attr == hip::hipDeviceAttribute_t_hipDeviceAttributeMaxSharedMemoryPerBlock {
        // SAFETY: the caller guarantees a valid pointer.
        return unsafe { write_to(pi, Ok(shared_bytes(deviceId).min(SHARED_BYTES))) };
    }
    match ATTRIBUTES.iter().find(|(known, _)| *known == attr) {
        Some((_, number)) => with_device(deviceId, "cuDeviceGetAttribute", |cuda, device| {
            // SAFETY: the caller guarantees a valid pointer.
            unsafe { (cuda.cuDeviceGetAttribute)(pi, *number, device) }
        }),
        None => {
            let reason = format!("HIP's device attribute {attr} has no counterpart in CUDA");
            fail(hipError_t_hipErrorNotSupported, reason)
        }
    }
}
