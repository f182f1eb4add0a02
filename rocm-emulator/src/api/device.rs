//! HIP's functions for devices and for the library itself.
use super::properties::{attribute, properties};
use super::*;

c_functions! {
    /// Does nothing: the software GPU starts when it is configured. `flags` must be 0.
    fn hipInit(flags: u32) |_| {
        match flags {
            0 => Ok(()),
            _ => fail(ErrorCode::InvalidValue, format!("flags 0x{flags:x}")),
        }
    }

    /// Returns [`HIP_VERSION`].
    fn hipDriverGetVersion(driverVersion: *mut i32) -> driverVersion {
        HIP_VERSION
    }

    /// Returns [`HIP_VERSION`].
    fn hipRuntimeGetVersion(runtimeVersion: *mut i32) -> runtimeVersion {
        HIP_VERSION
    }

    /// Returns the number of visible devices; 0 and hipErrorNoDevice if there is none or before [`crate::configure`].
    fn hipGetDeviceCount(count: *mut i32) {
        let devices = runtime::runtime().map_or(0, |runtime| runtime.devices().len());
        // SAFETY: the caller's pointer.
        let written: Result<()> = unsafe { put(count, devices as i32) };
        match devices {
            0 => written.and(fail(ErrorCode::NoDevice, "no software GPU is configured, or the environment hides all")),
            _ => written,
        }
    }

    /// Returns the current device.
    fn hipGetDevice(deviceId: *mut i32) -> deviceId |runtime| {
        runtime.current_device()?.ordinal as i32
    }

    /// Makes a device current for the calling thread.
    fn hipSetDevice(deviceId: i32) |runtime| {
        runtime::set_device(runtime.device(ordinal(deviceId)?)?.ordinal);
        Ok(())
    }

    /// Returns the device of an ordinal, which is the ordinal itself.
    fn hipDeviceGet(device: *mut hipDevice_t, ordinal_: i32) -> device |runtime| {
        runtime.device(ordinal(ordinal_)?)?.ordinal as i32
    }

    /// Returns the device's name.
    fn hipDeviceGetName(name: *mut c_char, len: i32, device: hipDevice_t) |runtime| {
        let found = runtime.device(ordinal(device)?)?;
        // SAFETY: the caller's buffer.
        unsafe { put_text(name, len, &found.name()) }
    }

    /// Returns the device's memory in bytes.
    fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t) -> bytes |runtime| {
        runtime.device(ordinal(device)?)?;
        runtime.options.total_memory as usize
    }

    /// Returns the major and minor version of the chip.
    fn hipDeviceComputeCapability(major: *mut i32, minor: *mut i32, device: hipDevice_t) |runtime| {
        let arch = runtime.device(ordinal(device)?)?.arch;
        // SAFETY: the caller's pointers.
        unsafe {
            put(major, arch.major as i32).and(put(minor, arch.minor as i32))
        }
    }

    /// Returns the device's PCI address, which no real device has.
    fn hipDeviceGetPCIBusId(pciBusId: *mut c_char, len: i32, device: i32) |runtime| {
        let found = runtime.device(ordinal(device)?)?;
        // SAFETY: the caller's buffer.
        unsafe { put_text(pciBusId, len, &found.pci_bus_id()) }
    }

    /// Returns all properties of a device.
    fn hipGetDevicePropertiesR0600(prop: *mut hipDeviceProp_tR0600, deviceId: i32) -> prop |runtime| {
        properties(runtime, runtime.device(ordinal(deviceId)?)?)
    }

    /// Returns one attribute of a device.
    fn hipDeviceGetAttribute(pi: *mut i32, attr: hipDeviceAttribute_t, deviceId: i32) -> pi |runtime| {
        match attribute(runtime, runtime.device(ordinal(deviceId)?)?, attr) {
            Some(value) => value,
            None => bail!(InvalidValue, "unknown device attribute {attr}"),
        }
    }

    /// Returns whether a device can access another's memory, which is true for any two devices.
    fn hipDeviceCanAccessPeer(
        canAccessPeer: *mut i32,
        deviceId: i32,
        peerDeviceId: i32,
    ) -> canAccessPeer |runtime| {
        let device = runtime.device(ordinal(deviceId)?)?.ordinal;
        let peer = runtime.device(ordinal(peerDeviceId)?)?.ordinal;
        i32::from(device != peer)
    }

    /// Allows kernels of the current device to access another device's memory.
    fn hipDeviceEnablePeerAccess(peerDeviceId: i32, flags: u32) |runtime| {
        let (device, peer) = (runtime.current_device()?, runtime.device(ordinal(peerDeviceId)?)?);
        if flags != 0 {
            bail!(InvalidValue, "flags 0x{flags:x}");
        }
        if device.ordinal == peer.ordinal {
            bail!(InvalidDevice, "device {} cannot be its own peer", peer.ordinal);
        }
        device.enable_peer(&runtime.memory, peer.ordinal)
    }

    /// Revokes the access granted by [`hipDeviceEnablePeerAccess`].
    fn hipDeviceDisablePeerAccess(peerDeviceId: i32) |runtime| {
        let peer = runtime.device(ordinal(peerDeviceId)?)?.ordinal;
        runtime.current_device()?.disable_peer(&runtime.memory, peer)
    }

    /// Waits for all streams of the current device. Returns a pending kernel fault once.
    fn hipDeviceSynchronize() |runtime| {
        runtime.current_device()?.synchronize()
    }

    /// Destroys everything on the current device: streams, events, modules and allocations.
    fn hipDeviceReset() |runtime| {
        runtime.reset(runtime.current_device()?)
    }
}
