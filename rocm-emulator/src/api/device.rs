//! HIP's functions for devices and for the library itself.
use super::properties::{attribute, properties};
use super::*;

/// Does nothing: the software GPU starts when it is configured. `flags` must be 0.
pub unsafe extern "C" fn hipInit(flags: u32) -> hipError_t {
    call("hipInit", |_| match flags {
        0 => Ok(()),
        _ => fail(ErrorCode::InvalidValue, format!("flags 0x{flags:x}")),
    })
}

/// Returns [`HIP_VERSION`].
pub unsafe extern "C" fn hipDriverGetVersion(driverVersion: *mut i32) -> hipError_t {
    // SAFETY: the caller's pointer.
    answer("hipDriverGetVersion", || unsafe { put(driverVersion, HIP_VERSION) })
}

/// Returns [`HIP_VERSION`].
pub unsafe extern "C" fn hipRuntimeGetVersion(runtimeVersion: *mut i32) -> hipError_t {
    // SAFETY: the caller's pointer.
    answer("hipRuntimeGetVersion", || unsafe { put(runtimeVersion, HIP_VERSION) })
}

/// Returns the number of visible devices; 0 and hipErrorNoDevice if there is none or before [`crate::configure`].
pub unsafe extern "C" fn hipGetDeviceCount(count: *mut i32) -> hipError_t {
    answer("hipGetDeviceCount", || {
        let devices = runtime::runtime().map_or(0, |runtime| runtime.devices().len());
        // SAFETY: the caller's pointer.
        unsafe { put(count, devices as i32)? };
        match devices {
            0 => fail(ErrorCode::NoDevice, "no software GPU is configured, or the environment hides all"),
            _ => Ok(()),
        }
    })
}

/// Returns the current device.
pub unsafe extern "C" fn hipGetDevice(deviceId: *mut i32) -> hipError_t {
    // SAFETY: the caller's pointer.
    call("hipGetDevice", |runtime| unsafe { put(deviceId, runtime.current_device()?.ordinal as i32) })
}

/// Makes a device current for the calling thread.
pub unsafe extern "C" fn hipSetDevice(deviceId: i32) -> hipError_t {
    call("hipSetDevice", |runtime| {
        runtime::set_device(runtime.device(ordinal(deviceId)?)?.ordinal);
        Ok(())
    })
}

/// Returns the device of an ordinal, which is the ordinal itself.
pub unsafe extern "C" fn hipDeviceGet(device: *mut hipDevice_t, ordinal_: i32) -> hipError_t {
    call("hipDeviceGet", |runtime| {
        let found = runtime.device(ordinal(ordinal_)?)?.ordinal as i32;
        // SAFETY: the caller's pointer.
        unsafe { put(device, found) }
    })
}

/// Returns the device's name.
pub unsafe extern "C" fn hipDeviceGetName(name: *mut c_char, len: i32, device: hipDevice_t) -> hipError_t {
    call("hipDeviceGetName", |runtime| {
        let found = runtime.device(ordinal(device)?)?;
        // SAFETY: the caller's buffer.
        unsafe { put_text(name, len, &found.name()) }
    })
}

/// Returns the device's memory in bytes.
pub unsafe extern "C" fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t) -> hipError_t {
    call("hipDeviceTotalMem", |runtime| {
        runtime.device(ordinal(device)?)?;
        // SAFETY: the caller's pointer.
        unsafe { put(bytes, runtime.options.total_memory as usize) }
    })
}

/// Returns the major and minor version of the chip.
pub unsafe extern "C" fn hipDeviceComputeCapability(
    major: *mut i32,
    minor: *mut i32,
    device: hipDevice_t,
) -> hipError_t {
    call("hipDeviceComputeCapability", |runtime| {
        let arch = runtime.device(ordinal(device)?)?.arch;
        // SAFETY: the caller's pointers.
        unsafe {
            put(major, arch.major as i32)?;
            put(minor, arch.minor as i32)
        }
    })
}

/// Returns the device's PCI address, which no real device has.
pub unsafe extern "C" fn hipDeviceGetPCIBusId(pciBusId: *mut c_char, len: i32, device: i32) -> hipError_t {
    call("hipDeviceGetPCIBusId", |runtime| {
        let found = runtime.device(ordinal(device)?)?;
        // SAFETY: the caller's buffer.
        unsafe { put_text(pciBusId, len, &found.pci_bus_id()) }
    })
}

/// Returns all properties of a device.
pub unsafe extern "C" fn hipGetDevicePropertiesR0600(
    prop: *mut hipDeviceProp_tR0600,
    deviceId: i32,
) -> hipError_t {
    call("hipGetDevicePropertiesR0600", |runtime| {
        let device = runtime.device(ordinal(deviceId)?)?;
        // SAFETY: the caller's pointer.
        unsafe { put(prop, properties(runtime, device)) }
    })
}

/// Returns one attribute of a device.
pub unsafe extern "C" fn hipDeviceGetAttribute(
    pi: *mut i32,
    attr: hipDeviceAttribute_t,
    deviceId: i32,
) -> hipError_t {
    call("hipDeviceGetAttribute", |runtime| {
        let device = runtime.device(ordinal(deviceId)?)?;
        match attribute(runtime, device, attr) {
            // SAFETY: the caller's pointer.
            Some(value) => unsafe { put(pi, value) },
            None => fail(ErrorCode::InvalidValue, format!("unknown device attribute {attr}")),
        }
    })
}

/// Returns whether a device can access another's memory, which is true for any two devices.
pub unsafe extern "C" fn hipDeviceCanAccessPeer(
    canAccessPeer: *mut i32,
    deviceId: i32,
    peerDeviceId: i32,
) -> hipError_t {
    call("hipDeviceCanAccessPeer", |runtime| {
        let device = runtime.device(ordinal(deviceId)?)?.ordinal;
        let peer = runtime.device(ordinal(peerDeviceId)?)?.ordinal;
        // SAFETY: the caller's pointer.
        unsafe { put(canAccessPeer, i32::from(device != peer)) }
    })
}

/// Allows kernels of the current device to access another device's memory.
pub unsafe extern "C" fn hipDeviceEnablePeerAccess(peerDeviceId: i32, flags: u32) -> hipError_t {
    call("hipDeviceEnablePeerAccess", |runtime| {
        let (device, peer) = (runtime.current_device()?, runtime.device(ordinal(peerDeviceId)?)?);
        if flags != 0 {
            bail!(InvalidValue, "flags 0x{flags:x}");
        }
        if device.ordinal == peer.ordinal {
            bail!(InvalidDevice, "device {} cannot be its own peer", peer.ordinal);
        }
        device.enable_peer(&runtime.memory, peer.ordinal)
    })
}

/// Revokes the access granted by [`hipDeviceEnablePeerAccess`].
pub unsafe extern "C" fn hipDeviceDisablePeerAccess(peerDeviceId: i32) -> hipError_t {
    call("hipDeviceDisablePeerAccess", |runtime| {
        let peer = runtime.device(ordinal(peerDeviceId)?)?.ordinal;
        runtime.current_device()?.disable_peer(&runtime.memory, peer)
    })
}

/// Waits for all streams of the current device. Returns a pending kernel fault once.
pub unsafe extern "C" fn hipDeviceSynchronize() -> hipError_t {
    call("hipDeviceSynchronize", |runtime| runtime.current_device()?.synchronize())
}

/// Destroys everything on the current device: streams, events, modules and allocations.
pub unsafe extern "C" fn hipDeviceReset() -> hipError_t {
    call("hipDeviceReset", |runtime| runtime.reset(runtime.current_device()?))
}
