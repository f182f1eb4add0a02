//! HIP's memory functions: allocation, copies, fills.
use super::*;
use crate::runtime::{Direction, Found, Kind, Transfer};
use std::ffi::c_void;

/// Host allocation flags that HIP defines: portable, mapped, write-combined, uncached, NUMA, (non-)coherent.
const KNOWN_HOST_FLAGS: u32 = 1 | 2 | 4 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000 | 0x8000_0000;

fn address<T: ?Sized>(pointer: *const T) -> usize {
    pointer.cast::<c_void>().expose_provenance()
}

c_functions! {
    /// Allocates memory of the current device, aligned to 256 bytes. Returns null for zero bytes.
    fn hipMalloc(ptr: *mut *mut c_void, size: usize) -> ptr |runtime| {
        not_null(ptr)?;
        runtime.refuse_in_captures("allocating memory")?;
        let device = runtime.current_device()?.ordinal;
        let base = if size == 0 { 0 } else { runtime.memory.allocate_device(device, size)? };
        std::ptr::with_exposed_provenance_mut(base)
    }

    /// Frees device memory after waiting for its device. Null is ignored.
    fn hipFree(ptr: *mut c_void) |runtime| {
        runtime.refuse_in_captures("freeing memory")?;
        if ptr.is_null() { Ok(()) } else { runtime.free_device(address(ptr)) }
    }

    /// Allocates pinned host memory, which all devices access at the same address.
    fn hipHostMalloc(ptr: *mut *mut c_void, size: usize, flags: u32) -> ptr |runtime| {
        if ptr.is_null() || flags & !KNOWN_HOST_FLAGS != 0 {
            bail!(InvalidValue, "null result pointer {ptr:?} or invalid flags 0x{flags:x}");
        }
        runtime.refuse_in_captures("allocating memory")?;
        let base = if size == 0 { 0 } else { runtime.memory.allocate_pinned(size, flags)? };
        std::ptr::with_exposed_provenance_mut(base)
    }

    /// Frees pinned memory after waiting for all devices. Null is ignored.
    fn hipHostFree(ptr: *mut c_void) |runtime| {
        runtime.refuse_in_captures("freeing memory")?;
        if ptr.is_null() { Ok(()) } else { runtime.free_pinned(address(ptr)) }
    }

    /// Returns the device address of pinned or registered memory, which equals the host address.
    fn hipHostGetDevicePointer(
        devPtr: *mut *mut c_void,
        hstPtr: *mut c_void,
        flags: u32,
    ) -> devPtr |runtime| {
        if flags != 0 {
            bail!(InvalidValue, "flags 0x{flags:x}");
        }
        match runtime.memory.find(address(hstPtr)) {
            Some(Found { kind: Kind::Pinned { .. } | Kind::Registered, .. }) => hstPtr,
            _ => bail!(InvalidValue, "{hstPtr:?} is not pinned host memory"),
        }
    }

    /// Makes the caller's memory accessible to all devices.
    fn hipHostRegister(hostPtr: *mut c_void, sizeBytes: usize, _flags: u32) |runtime| {
        if hostPtr.is_null() || sizeBytes == 0 {
            bail!(InvalidValue, "invalid range of {sizeBytes} bytes at {hostPtr:?}");
        }
        // SAFETY: the caller keeps the memory mapped until hipHostUnregister.
        unsafe { runtime.memory.adopt(address(hostPtr), sizeBytes, Kind::Registered) }
    }

    /// Unregisters memory of [`hipHostRegister`].
    fn hipHostUnregister(hostPtr: *mut c_void) |runtime| {
        let base = address(hostPtr);
        let kind = runtime.memory.find(base).map(|found| (found.base, found.kind));
        if kind != Some((base, Kind::Registered)) {
            bail!(HostMemoryNotRegistered, "{hostPtr:?} is not registered");
        }
        for device in runtime.devices() {
            device.drain()?;
        }
        runtime.memory.forget(base);
        Ok(())
    }

    /// Describes the memory at an address. Returns hipErrorInvalidValue if the memory is not known to HIP.
    fn hipPointerGetAttributes(
        attributes: *mut hipPointerAttribute_t,
        ptr: *const c_void,
    ) -> attributes |runtime| {
        let Some(found) = runtime.memory.find(address(ptr)) else {
            bail!(InvalidValue, "{ptr:?} is not memory known to HIP");
        };
        let device = found.kind.device();
        let host = if device.is_none() { ptr.cast_mut() } else { std::ptr::null_mut() };
        let flags = if let Kind::Pinned { flags } = found.kind { flags } else { 0 };
        hipPointerAttribute_t {
            r#type: if device.is_some() { 2 } else { 1 },
            device: device.unwrap_or(0) as i32,
            devicePointer: ptr.cast_mut(),
            hostPointer: host,
            isManaged: 0,
            allocationFlags: flags,
        }
    }

    /// Returns the free and total bytes of the current device.
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) |runtime| {
        let (free_bytes, total_bytes) = runtime.memory.info(runtime.current_device()?.ordinal);
        // SAFETY: the caller's pointers; HIP allows each to be null.
        unsafe {
            put_if_wanted(free, free_bytes as usize);
            put_if_wanted(total, total_bytes as usize);
        }
        Ok(())
    }
}

/// Copies one row on a stream.
///
/// # Safety
/// The conditions of hipMemcpyAsync.
unsafe fn copy_row(
    runtime: &Runtime,
    (dst, src, bytes): (*mut c_void, *const c_void, usize),
    direction: Direction,
    (stream, wait): (hipStream_t, bool),
) -> Result<()> {
    if wait {
        runtime.refuse_in_captures("a copy that waits")?;
    }
    let transfer = Transfer::linear(address(dst), address(src), bytes, direction);
    // SAFETY: the caller's memory.
    unsafe { runtime.copy(&runtime.stream(stream)?, transfer, wait) }
}

c_functions! {
    /// Copies and waits.
    fn hipMemcpy(
        dst: *mut c_void,
        src: *const c_void,
        sizeBytes: usize,
        kind: hipMemcpyKind,
    ) |runtime| {
        let (row, stream) = ((dst, src, sizeBytes), (std::ptr::null_mut(), true));
        // SAFETY: the caller's memory.
        unsafe { copy_row(runtime, row, Direction::from_kind(kind)?, stream) }
    }

    /// Copies on a stream. Pageable sources are read during the call; a copy to pageable memory waits.
    fn hipMemcpyAsync(
        dst: *mut c_void,
        src: *const c_void,
        sizeBytes: usize,
        kind: hipMemcpyKind,
        stream: hipStream_t,
    ) |runtime| {
        // SAFETY: the caller's memory.
        unsafe { copy_row(runtime, (dst, src, sizeBytes), Direction::from_kind(kind)?, (stream, false)) }
    }
}

/// Defines the copies whose name gives the direction: one that waits, and one on a stream.
macro_rules! copies {
    ($($waiting:ident, $queued:ident: $source:ty => $target:ty, $direction:ident, $what:literal;)*) => {
        c_functions! {$(
            #[doc = concat!("Copies ", $what, " and waits.")]
            fn $waiting(dst: $target, src: $source, sizeBytes: usize) |runtime| {
                let (row, stream) = ((dst, src as *const c_void, sizeBytes), (std::ptr::null_mut(), true));
                // SAFETY: the caller's memory.
                unsafe { copy_row(runtime, row, Direction::$direction, stream) }
            }

            #[doc = concat!("Copies ", $what, " on a stream.")]
            fn $queued(dst: $target, src: $source, sizeBytes: usize, stream: hipStream_t) |runtime| {
                let row = (dst, src as *const c_void, sizeBytes);
                // SAFETY: the caller's memory.
                unsafe { copy_row(runtime, row, Direction::$direction, (stream, false)) }
            }
        )*}
    };
}
copies! {
    hipMemcpyHtoD, hipMemcpyHtoDAsync: *const c_void => hipDeviceptr_t, HostToDevice, "to the device";
    hipMemcpyDtoH, hipMemcpyDtoHAsync: hipDeviceptr_t => *mut c_void, DeviceToHost, "to the host";
    hipMemcpyDtoD, hipMemcpyDtoDAsync: hipDeviceptr_t => hipDeviceptr_t, DeviceToDevice, "between device memory";
}

c_functions! {
    /// Copies rows of `width` bytes, which begin a pitch apart, on a stream.
    fn hipMemcpy2DAsync(
        dst: *mut c_void,
        dpitch: usize,
        src: *const c_void,
        spitch: usize,
        width: usize,
        height: usize,
        kind: hipMemcpyKind,
        stream: hipStream_t,
    ) |runtime| {
        let transfer = Transfer {
            target: address(dst),
            target_pitch: dpitch,
            source: address(src),
            source_pitch: spitch,
            width,
            rows: height,
            direction: Direction::from_kind(kind)?,
        };
        // SAFETY: the caller's memory.
        unsafe { runtime.copy(&runtime.stream(stream)?, transfer, false) }
    }

    /// Copies between devices and waits.
    fn hipMemcpyPeer(
        dst: *mut c_void,
        dstDeviceId: i32,
        src: *const c_void,
        srcDeviceId: i32,
        sizeBytes: usize,
    ) |runtime| {
        let stream = runtime.stream(std::ptr::null_mut())?;
        let target = (address(dst), ordinal(dstDeviceId)?);
        let source = (address(src), ordinal(srcDeviceId)?);
        // SAFETY: device memory only.
        unsafe { runtime.copy_peer(&stream, target, source, sizeBytes, true) }
    }

    /// Copies between devices on a stream of one of them.
    fn hipMemcpyPeerAsync(
        dst: *mut c_void,
        dstDeviceId: i32,
        src: *const c_void,
        srcDevice: i32,
        sizeBytes: usize,
        stream: hipStream_t,
    ) |runtime| {
        let target = (address(dst), ordinal(dstDeviceId)?);
        let source = (address(src), ordinal(srcDevice)?);
        // SAFETY: device memory only.
        unsafe { runtime.copy_peer(&runtime.stream(stream)?, target, source, sizeBytes, false) }
    }
}

/// Sets elements on a stream.
fn fill(
    runtime: &Runtime,
    target: *mut c_void,
    (value, width, count): (u32, usize, usize),
    (stream, wait): (hipStream_t, bool),
) -> Result<()> {
    if wait {
        runtime.refuse_in_captures("a fill that waits")?;
    }
    runtime.fill(&runtime.stream(stream)?, address(target), value, width, count, wait)
}

c_functions! {
    /// Sets bytes on the null stream.
    fn hipMemset(dst: *mut c_void, value: i32, sizeBytes: usize) |runtime| {
        fill(runtime, dst, (value as u32, 1, sizeBytes), (std::ptr::null_mut(), true))
    }

    /// Sets bytes on a stream.
    fn hipMemsetAsync(dst: *mut c_void, value: i32, sizeBytes: usize, stream: hipStream_t) |runtime| {
        fill(runtime, dst, (value as u32, 1, sizeBytes), (stream, false))
    }

    /// Sets bytes on a stream.
    fn hipMemsetD8Async(dest: hipDeviceptr_t, value: u8, count: usize, stream: hipStream_t) |runtime| {
        fill(runtime, dest, (u32::from(value), 1, count), (stream, false))
    }

    /// Sets 16-bit words on a stream.
    fn hipMemsetD16Async(dest: hipDeviceptr_t, value: u16, count: usize, stream: hipStream_t) |runtime| {
        fill(runtime, dest, (u32::from(value), 2, count), (stream, false))
    }

    /// Sets 32-bit words on a stream.
    fn hipMemsetD32Async(dst: hipDeviceptr_t, value: i32, count: usize, stream: hipStream_t) |runtime| {
        fill(runtime, dst, (value as u32, 4, count), (stream, false))
    }
}
