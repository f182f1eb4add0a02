//! Properties and attributes of a device.
use super::*;
use crate::runtime::{Device, MAX_WORKGROUP_SIZE, Runtime};

/// Largest grid: in x limited by 32-bit work-item counts, in y and z by HIP.
const MAX_GRID: [i32; 3] = [i32::MAX, 65536, 65536];
/// Number of 32-bit registers per workgroup and multiprocessor that HIP reports.
const REGISTERS: i32 = 65536;
/// hipDeviceArch_t's bits: 32- and 64-bit atomics in global memory and LDS, exchange, float add, doubles, votes, ballots,
/// shuffles, funnel shift, fences, sync and three-dimensional grids are set; surfaces and dynamic parallelism (bits 15
/// and 18) are not.
const ARCH_FEATURES: u32 = 0x7_ffff & !(1 << 15) & !(1 << 18);

/// Returns all properties. Features that the software GPU lacks (textures, surfaces, ECC, ...) are zero.
pub(super) fn properties(runtime: &Runtime, device: &Device) -> hipDeviceProp_tR0600 {
    // SAFETY: the structure contains only numbers, arrays of numbers and pointers, for which zero is valid.
    let mut prop: hipDeviceProp_tR0600 = unsafe { std::mem::zeroed() };
    let arch = device.arch;
    set_text(&mut prop.name, &device.name());
    set_text(&mut prop.gcnArchName, arch.gcn_arch_name);
    set_text(&mut prop.uuid.bytes, &format!("SWGPU-{:010}", device.slot));
    prop.totalGlobalMem = runtime.options.total_memory as usize;
    prop.sharedMemPerBlock = arch.lds_per_workgroup as usize;
    prop.regsPerBlock = REGISTERS;
    prop.warpSize = arch.wave_size as i32;
    prop.memPitch = i32::MAX as usize;
    prop.maxThreadsPerBlock = MAX_WORKGROUP_SIZE as i32;
    prop.maxThreadsDim = [MAX_WORKGROUP_SIZE as i32; 3];
    prop.maxGridSize = MAX_GRID;
    prop.clockRate = arch.clock_khz as i32;
    prop.totalConstMem = i32::MAX as usize;
    prop.major = arch.major as i32;
    prop.minor = arch.minor as i32;
    prop.multiProcessorCount = arch.multiprocessors as i32;
    prop.integrated = i32::from(arch.integrated);
    prop.canMapHostMemory = 1;
    prop.concurrentKernels = 1;
    prop.pciBusID = device.slot as i32;
    prop.pciDomainID = 0xffff;
    prop.asyncEngineCount = 1;
    prop.unifiedAddressing = 1;
    prop.memoryClockRate = arch.memory_clock_khz as i32;
    prop.memoryBusWidth = arch.memory_bus_bits as i32;
    prop.l2CacheSize = arch.l2_cache_bytes as i32;
    prop.maxThreadsPerMultiProcessor = max_threads_per_multiprocessor(device);
    prop.streamPrioritiesSupported = 1;
    prop.sharedMemPerMultiprocessor = arch.lds_per_multiprocessor as usize;
    prop.regsPerMultiprocessor = REGISTERS;
    prop.canUseHostPointerForRegisteredMem = 1;
    prop.sharedMemPerBlockOptin = arch.lds_per_workgroup as usize;
    prop.maxBlocksPerMultiProcessor = max_threads_per_multiprocessor(device) / arch.wave_size as i32;
    prop.hostRegisterSupported = 1;
    prop.maxSharedMemoryPerMultiProcessor = arch.lds_per_multiprocessor as usize;
    prop.clockInstructionRate = 100_000;
    prop.arch = ARCH_FEATURES;
    prop.isLargeBar = 1;
    prop
}

fn max_threads_per_multiprocessor(device: &Device) -> i32 {
    let arch = device.arch;
    (arch.wave_size * arch.waves_per_simd * arch.simds) as i32
}

fn set_text(place: &mut [c_char], text: &str) {
    let room = place.len() - 1;
    for (place, byte) in place[..room].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
}

/// Returns an attribute by its hipDeviceAttribute_t number; `None` for numbers that HIP does not define.
pub(super) fn attribute(runtime: &Runtime, device: &Device, number: hipDeviceAttribute_t) -> Option<i32> {
    let prop = properties(runtime, device);
    let clamp = |bytes: usize| i32::try_from(bytes).unwrap_or(i32::MAX);
    Some(match number {
        0 => prop.ECCEnabled,
        2 => prop.asyncEngineCount,
        3 => prop.canMapHostMemory,
        4 => prop.canUseHostPointerForRegisteredMem,
        5 => prop.clockRate,
        6 => prop.computeMode,
        8 => prop.concurrentKernels,
        10 => prop.cooperativeLaunch,
        11 => prop.cooperativeMultiDeviceLaunch,
        12 => prop.deviceOverlap,
        16 => prop.integrated,
        17 => prop.isMultiGpuBoard,
        18 => prop.kernelExecTimeoutEnabled,
        19 => prop.l2CacheSize,
        23 => prop.major,
        24 => prop.managedMemory,
        25 => prop.maxBlocksPerMultiProcessor,
        26..=28 => prop.maxThreadsDim[number as usize - 26],
        29..=31 => prop.maxGridSize[number as usize - 29],
        56 => prop.maxThreadsPerBlock,
        57 => prop.maxThreadsPerMultiProcessor,
        58 => clamp(prop.memPitch),
        59 => prop.memoryBusWidth,
        60 => prop.memoryClockRate,
        61 => prop.minor,
        63 => prop.multiProcessorCount,
        67 => prop.pciBusID,
        68 => prop.pciDeviceID,
        69 => prop.pciDomainID,
        71 => prop.regsPerBlock,
        72 => prop.regsPerMultiprocessor,
        74 => clamp(prop.sharedMemPerBlock),
        75 => clamp(prop.sharedMemPerBlockOptin),
        76 => clamp(prop.sharedMemPerMultiprocessor),
        78 => prop.streamPrioritiesSupported,
        83 => clamp(prop.totalConstMem),
        84 => clamp(prop.totalGlobalMem),
        85 => prop.unifiedAddressing,
        87 => prop.warpSize,
        90 => prop.hostRegisterSupported,
        10000 => prop.clockInstructionRate,
        10002 => clamp(prop.maxSharedMemoryPerMultiProcessor),
        10011 => prop.isLargeBar,
        10012 => prop.asicRevision,
        10015 => prop.multiProcessorCount,
        10016 => 1,
        10017 => prop.clockInstructionRate,
        10018 => 1,
        10019 => device.arch.vgprs_per_simd.min(256) as i32,
        // HIP's other attributes describe features that the software GPU lacks.
        0..=91 | 10001..=10020 => 0,
        _ => return None,
    })
}
