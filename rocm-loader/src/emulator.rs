//! The software GPU as a driver: started here, and checked to have the C interface it stands in for.
use rocm_rs::hip::bindings::hipStream_t;

use crate::error::LoadError;

/// Starts one software device per architecture.
#[cfg(feature = "emulator")]
pub(crate) fn start(archs: &[String]) -> Result<(), LoadError> {
    let names: Vec<&str> = archs.iter().map(String::as_str).collect();
    rocm_emulator::configure(&names)
        .map_err(|error| LoadError::Emulator { archs: archs.to_vec(), reason: error.to_string() })
}

/// Without the feature there is nothing to start.
#[cfg(not(feature = "emulator"))]
pub(crate) fn start(_archs: &[String]) -> Result<(), LoadError> {
    Err(LoadError::EmulatorNotBuilt)
}

/// What the software GPU has to say about a failing call of this thread, or its last fault.
#[cfg(feature = "emulator")]
pub(crate) fn last_error() -> Option<String> {
    rocm_emulator::last_error().or_else(rocm_emulator::last_fault)
}

/// Without the feature there is nothing to say.
#[cfg(not(feature = "emulator"))]
pub(crate) fn last_error() -> Option<String> {
    None
}

/// Part of an allocation is in use from here on; false if the software GPU refuses it.
#[cfg(feature = "emulator")]
pub(crate) fn part_taken(stream: hipStream_t, address: usize, len: usize) -> bool {
    rocm_emulator::parts::taken(stream.cast(), address, len)
}

/// Part of an allocation is given back; false if the software GPU refuses it.
#[cfg(feature = "emulator")]
pub(crate) fn part_given(stream: hipStream_t, address: usize) -> bool {
    rocm_emulator::parts::given(stream.cast(), address)
}

/// Without the feature nobody refuses.
#[cfg(not(feature = "emulator"))]
pub(crate) fn part_taken(_: hipStream_t, _: usize, _: usize) -> bool {
    true
}

/// Without the feature nobody refuses.
#[cfg(not(feature = "emulator"))]
pub(crate) fn part_given(_: hipStream_t, _: usize) -> bool {
    true
}

/// hipBLASLt's structures travel by pointer, too.
#[cfg(feature = "emulator")]
mod algorithms {
    use crate::hipblaslt::{hipblasLtMatmulAlgo_t, hipblasLtMatmulHeuristicResult_t as Declared};
    use rocm_emulator::hipblaslt::{MatmulAlgo, MatmulHeuristicResult as Ours};
    use std::mem::offset_of;

    const _: () = assert!(size_of::<Ours>() == size_of::<Declared>());
    const _: () = assert!(size_of::<MatmulAlgo>() == size_of::<hipblasLtMatmulAlgo_t>());
    const _: () = assert!(offset_of!(Ours, workspaceSize) == offset_of!(Declared, workspaceSize));
    const _: () = assert!(offset_of!(Ours, state) == offset_of!(Declared, state));
    const _: () = assert!(offset_of!(Ours, wavesCount) == offset_of!(Declared, wavesCount));
}

/// The structure that is filled by the driver must have rocm-rs' layout.
#[cfg(feature = "emulator")]
mod properties {
    use rocm_emulator::api::hipDeviceProp_tR0600 as Ours;
    use rocm_rs::hip::bindings::hipDeviceProp_tR0600 as Declared;
    use std::mem::offset_of;

    const _: () =
        assert!(size_of::<Ours>() == size_of::<Declared>() && align_of::<Ours>() == align_of::<Declared>());

    macro_rules! same_offsets {
        ($($field:ident)*) => {
            $(const _: () = assert!(
                offset_of!(Ours, $field) == offset_of!(Declared, $field),
                concat!("the software GPU has hipDeviceProp_tR0600.", stringify!($field), " elsewhere")
            );)*
        };
    }
    same_offsets! {
        name uuid luid luidDeviceNodeMask totalGlobalMem sharedMemPerBlock regsPerBlock warpSize memPitch
        maxThreadsPerBlock maxThreadsDim maxGridSize clockRate totalConstMem major minor textureAlignment
        multiProcessorCount integrated canMapHostMemory computeMode surfaceAlignment concurrentKernels
        ECCEnabled pciBusID pciDeviceID pciDomainID unifiedAddressing memoryClockRate memoryBusWidth l2CacheSize
        maxThreadsPerMultiProcessor sharedMemPerMultiprocessor regsPerMultiprocessor managedMemory
        cooperativeLaunch sharedMemPerBlockOptin maxBlocksPerMultiProcessor reservedSharedMemPerBlock
        memoryPoolsSupported reserved hipReserved gcnArchName maxSharedMemoryPerMultiProcessor
        clockInstructionRate arch hdpMemFlushCntl hdpRegFlushCntl isLargeBar asicRevision
    }
}
