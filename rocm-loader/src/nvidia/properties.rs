//! What a device is asked about itself.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{c_char, c_int, c_uint};

use rocm_rs::hip::bindings::{
    self as hip, hipDevice_t, hipDeviceAttribute_t, hipDeviceProp_tR0600, hipError_t,
    hipError_t_hipErrorNotSupported,
};

use super::context::{about_device, give, null_pointer};
use super::status::{SUCCESS, refused};

/// What a workgroup may use of LDS on AMD, and here as well.
pub(super) const SHARED_BYTES: c_int = 64 << 10;

/// Attributes as CUDA numbers them (`CU_DEVICE_ATTRIBUTE_...`) that are used outside of the tables.
const SHARED_PER_BLOCK_OPTIN: c_uint = 97;
const MAJOR: c_uint = 75;
const MINOR: c_uint = 76;

/// The attribute of a device; `None` if CUDA does not know it, which is no failure of the call that asks.
fn attribute(ordinal: c_int, number: c_uint) -> Option<c_int> {
    let mut found = None;
    about_device(ordinal, "cuDeviceGetAttribute", |cuda, device| {
        let mut value = 0;
        // SAFETY: writes one int.
        let code = unsafe { (cuda.cuDeviceGetAttribute)(&mut value, number, device) };
        found = (code == 0).then_some(value);
        0
    });
    found
}

/// `sm_90`.
pub(super) fn arch(ordinal: c_int) -> Option<String> {
    Some(format!("sm_{}{}", attribute(ordinal, MAJOR)?, attribute(ordinal, MINOR)?))
}

/// The most shared memory of a block, static and dynamic.
pub(super) fn shared_bytes(ordinal: c_int) -> c_int {
    attribute(ordinal, SHARED_PER_BLOCK_OPTIN).unwrap_or(48 << 10)
}

/// Fields of the properties beside CUDA's attributes.
macro_rules! fill {
    ($properties:ident, $ordinal:ident; $($field:ident $([$index:literal])? = $number:literal;)*) => {
        $(if let Some(value) = attribute($ordinal, $number) {
            $properties.$field$([$index])? = value as _;
        })*
    };
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
    // SAFETY: a place for the text with its length.
    let code = unsafe { hipDeviceGetName(found.name.as_mut_ptr(), found.name.len() as c_int, deviceId) };
    if code != SUCCESS {
        return code;
    }
    // SAFETY: a place for one size.
    let code = unsafe { hipDeviceTotalMem(&mut found.totalGlobalMem, deviceId) };
    if code != SUCCESS {
        return code;
    }
    fill! { found, deviceId;
        maxThreadsPerBlock = 1;
        maxThreadsDim[0] = 2;
        maxThreadsDim[1] = 3;
        maxThreadsDim[2] = 4;
        maxGridSize[0] = 5;
        maxGridSize[1] = 6;
        maxGridSize[2] = 7;
        totalConstMem = 9;
        warpSize = 10;
        memPitch = 11;
        regsPerBlock = 12;
        clockRate = 13;
        textureAlignment = 14;
        deviceOverlap = 15;
        multiProcessorCount = 16;
        kernelExecTimeoutEnabled = 17;
        integrated = 18;
        canMapHostMemory = 19;
        computeMode = 20;
        surfaceAlignment = 30;
        concurrentKernels = 31;
        ECCEnabled = 32;
        pciBusID = 33;
        pciDeviceID = 34;
        tccDriver = 35;
        memoryClockRate = 36;
        memoryBusWidth = 37;
        l2CacheSize = 38;
        maxThreadsPerMultiProcessor = 39;
        asyncEngineCount = 40;
        unifiedAddressing = 41;
        pciDomainID = 50;
        texturePitchAlignment = 51;
        major = 75;
        minor = 76;
        streamPrioritiesSupported = 78;
        globalL1CacheSupported = 79;
        localL1CacheSupported = 80;
        sharedMemPerMultiprocessor = 81;
        maxSharedMemoryPerMultiProcessor = 81;
        regsPerMultiprocessor = 82;
        managedMemory = 83;
        isMultiGpuBoard = 84;
        hostNativeAtomicSupported = 86;
        singleToDoublePrecisionPerfRatio = 87;
        pageableMemoryAccess = 88;
        concurrentManagedAccess = 89;
        cooperativeLaunch = 95;
        sharedMemPerBlockOptin = 97;
        hostRegisterSupported = 99;
        maxBlocksPerMultiProcessor = 106;
        reservedSharedMemPerBlock = 111;
        memoryPoolsSupported = 115;
    }
    found.sharedMemPerBlock = shared_bytes(deviceId).min(SHARED_BYTES) as usize;
    let arch = format!("sm_{}{}", found.major, found.minor);
    for (to, byte) in found.gcnArchName.iter_mut().zip(arch.bytes()) {
        *to = byte as c_char;
    }
    // SAFETY: the caller's place.
    unsafe { prop.write(found) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn hipDeviceGetName(
    name: *mut c_char,
    len: c_int,
    device: hipDevice_t,
) -> hipError_t {
    // SAFETY: the caller's place and its length.
    about_device(device, "cuDeviceGetName", |cuda, device| unsafe {
        (cuda.cuDeviceGetName)(name, len, device)
    })
}

pub(crate) unsafe extern "C" fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t) -> hipError_t {
    // SAFETY: the caller's place.
    about_device(device, "cuDeviceTotalMem", |cuda, device| unsafe { (cuda.cuDeviceTotalMem)(bytes, device) })
}

pub(crate) unsafe extern "C" fn hipDeviceGetPCIBusId(
    pciBusId: *mut c_char,
    len: c_int,
    device: c_int,
) -> hipError_t {
    about_device(device, "cuDeviceGetPCIBusId", |cuda, device| {
        // SAFETY: the caller's place and its length.
        unsafe { (cuda.cuDeviceGetPCIBusId)(pciBusId, len, device) }
    })
}

/// HIP's attributes beside CUDA's numbers.
macro_rules! attributes {
    ($($name:ident = $number:literal;)*) => {
        const ATTRIBUTES: &[(hipDeviceAttribute_t, c_uint)] = &[$((hip::$name, $number)),*];
    };
}

attributes! {
    hipDeviceAttribute_t_hipDeviceAttributeMaxThreadsPerBlock = 1;
    hipDeviceAttribute_t_hipDeviceAttributeMaxBlockDimX = 2;
    hipDeviceAttribute_t_hipDeviceAttributeMaxBlockDimY = 3;
    hipDeviceAttribute_t_hipDeviceAttributeMaxBlockDimZ = 4;
    hipDeviceAttribute_t_hipDeviceAttributeMaxGridDimX = 5;
    hipDeviceAttribute_t_hipDeviceAttributeMaxGridDimY = 6;
    hipDeviceAttribute_t_hipDeviceAttributeMaxGridDimZ = 7;
    hipDeviceAttribute_t_hipDeviceAttributeTotalConstantMemory = 9;
    hipDeviceAttribute_t_hipDeviceAttributeWarpSize = 10;
    hipDeviceAttribute_t_hipDeviceAttributeMaxPitch = 11;
    hipDeviceAttribute_t_hipDeviceAttributeMaxRegistersPerBlock = 12;
    hipDeviceAttribute_t_hipDeviceAttributeClockRate = 13;
    hipDeviceAttribute_t_hipDeviceAttributeMultiprocessorCount = 16;
    hipDeviceAttribute_t_hipDeviceAttributePhysicalMultiProcessorCount = 16;
    hipDeviceAttribute_t_hipDeviceAttributeKernelExecTimeout = 17;
    hipDeviceAttribute_t_hipDeviceAttributeIntegrated = 18;
    hipDeviceAttribute_t_hipDeviceAttributeCanMapHostMemory = 19;
    hipDeviceAttribute_t_hipDeviceAttributeComputeMode = 20;
    hipDeviceAttribute_t_hipDeviceAttributeConcurrentKernels = 31;
    hipDeviceAttribute_t_hipDeviceAttributeEccEnabled = 32;
    hipDeviceAttribute_t_hipDeviceAttributePciBusId = 33;
    hipDeviceAttribute_t_hipDeviceAttributePciDeviceId = 34;
    hipDeviceAttribute_t_hipDeviceAttributeMemoryClockRate = 36;
    hipDeviceAttribute_t_hipDeviceAttributeMemoryBusWidth = 37;
    hipDeviceAttribute_t_hipDeviceAttributeL2CacheSize = 38;
    hipDeviceAttribute_t_hipDeviceAttributeMaxThreadsPerMultiProcessor = 39;
    hipDeviceAttribute_t_hipDeviceAttributeAsyncEngineCount = 40;
    hipDeviceAttribute_t_hipDeviceAttributeUnifiedAddressing = 41;
    hipDeviceAttribute_t_hipDeviceAttributePciDomainId = 50;
    hipDeviceAttribute_t_hipDeviceAttributeComputeCapabilityMajor = 75;
    hipDeviceAttribute_t_hipDeviceAttributeComputeCapabilityMinor = 76;
    hipDeviceAttribute_t_hipDeviceAttributeStreamPrioritiesSupported = 78;
    hipDeviceAttribute_t_hipDeviceAttributeMaxSharedMemoryPerMultiprocessor = 81;
    hipDeviceAttribute_t_hipDeviceAttributeMaxRegistersPerMultiprocessor = 82;
    hipDeviceAttribute_t_hipDeviceAttributeManagedMemory = 83;
    hipDeviceAttribute_t_hipDeviceAttributeCooperativeLaunch = 95;
    hipDeviceAttribute_t_hipDeviceAttributeSharedMemPerBlockOptin = 97;
    hipDeviceAttribute_t_hipDeviceAttributeMaxBlocksPerMultiProcessor = 106;
    hipDeviceAttribute_t_hipDeviceAttributeMemoryPoolsSupported = 115;
}

pub(crate) unsafe extern "C" fn hipDeviceGetAttribute(
    pi: *mut c_int,
    attr: hipDeviceAttribute_t,
    deviceId: c_int,
) -> hipError_t {
    if attr == hip::hipDeviceAttribute_t_hipDeviceAttributeMaxSharedMemoryPerBlock {
        // SAFETY: the caller's place.
        return unsafe { give(pi, Ok(shared_bytes(deviceId).min(SHARED_BYTES))) };
    }
    match ATTRIBUTES.iter().find(|(known, _)| *known == attr) {
        Some((_, number)) => about_device(deviceId, "cuDeviceGetAttribute", |cuda, device| {
            // SAFETY: the caller's place.
            unsafe { (cuda.cuDeviceGetAttribute)(pi, *number, device) }
        }),
        None => {
            let reason = format!("HIP's device attribute {attr} has no counterpart in CUDA");
            refused(hipError_t_hipErrorNotSupported, reason)
        }
    }
}
