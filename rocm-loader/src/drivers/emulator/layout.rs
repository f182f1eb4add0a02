//! Compile-time checks of structures that are passed by pointer: the software GPU's must have the layout of ROCm's.
/// hipBLASLt's structures.
mod algorithms {
    use rocm_driver_api::hipblaslt::{hipblasLtMatmulAlgo_t, hipblasLtMatmulHeuristicResult_t as Declared};
    use rocm_emulator::hipblaslt::{MatmulAlgo, MatmulHeuristicResult as Ours};
    use std::mem::offset_of;

    const _: () = assert!(size_of::<Ours>() == size_of::<Declared>());
    const _: () = assert!(size_of::<MatmulAlgo>() == size_of::<hipblasLtMatmulAlgo_t>());
    const _: () = assert!(offset_of!(Ours, workspaceSize) == offset_of!(Declared, workspaceSize));
    const _: () = assert!(offset_of!(Ours, state) == offset_of!(Declared, state));
    const _: () = assert!(offset_of!(Ours, wavesCount) == offset_of!(Declared, wavesCount));
}

/// RCCL's structures.
mod collectives {
    use rocm_driver_api::rccl::{ncclConfig_t, ncclUniqueId};
    use rocm_emulator::rccl::{Config, UniqueId};
    use std::mem::offset_of;

    const _: () = assert!(size_of::<UniqueId>() == size_of::<ncclUniqueId>());
    const _: () = assert!(size_of::<Config>() == size_of::<ncclConfig_t>());
    const _: () = assert!(offset_of!(Config, magic) == offset_of!(ncclConfig_t, magic));
    const _: () = assert!(offset_of!(Config, blocking) == offset_of!(ncclConfig_t, blocking));
}

/// HIP's device properties.
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
                concat!("the software GPU has hipDeviceProp_tR0600.", stringify!($field), " at another offset")
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
