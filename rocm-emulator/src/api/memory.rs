//! HIP's memory functions: allocation, copies, fills.
use super::*;
use crate::runtime::{Direction, Found, Kind, Transfer};
use std::ffi::c_void;

/// Host allocation flags that HIP defines: portable, mapped, write-combined, uncached, NUMA, (non-)coherent.
const KNOWN_HOST_FLAGS: u32 = 1 | 2 | 4 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000 | 0x8000_0000;

fn address<T: ?Sized>(pointer: *const T) -> usize {
    pointer.cast::<c_void>().expose_provenance()
}

/// Allocates memory of the current device, aligned to 256 bytes. Returns null for zero bytes.
pub unsafe extern "C" fn hipMalloc(ptr: *mut *mut c_void, size: usize) -> hipError_t {
    call("hipMalloc", |runtime| {
        if ptr.is_null() {
            bail!(InvalidValue, "the pointer for the result is null");
        }
        runtime.refuse_in_captures("allocating memory")?;
        let device = runtime.current_device()?.ordinal;
        let base = if size == 0 { 0 } else { runtime.memory.allocate_device(device, size)? };
        // SAFETY: the caller's pointer.
        unsafe { put(ptr, std::ptr::with_exposed_provenance_mut(base)) }
    })
}

/// Frees device memory after waiting for its device. Null is ignored.
pub unsafe extern "C" fn hipFree(ptr: *mut c_void) -> hipError_t {
    call("hipFree", |runtime| {
        runtime.refuse_in_captures("freeing memory")?;
        if ptr.is_null() { Ok(()) } else { runtime.free_device(address(ptr)) }
    })
}

/// Allocates pinned host memory, which all devices access at the same address.
pub unsafe extern "C" fn hipHostMalloc(ptr: *mut *mut c_void, size: usize, flags: u32) -> hipError_t {
    call("hipHostMalloc", |runtime| {
        if ptr.is_null() || flags & !KNOWN_HOST_FLAGS != 0 {
            bail!(InvalidValue, "null result pointer {ptr:?} or invalid flags 0x{flags:x}");
        }
        runtime.refuse_in_captures("allocating memory")?;
        let base = if size == 0 { 0 } else { runtime.memory.allocate_pinned(size, flags)? };
        // SAFETY: the caller's pointer.
        unsafe { put(ptr, std::ptr::with_exposed_provenance_mut(base)) }
    })
}

/// Frees pinned memory after waiting for all devices. Null is ignored.
pub unsafe extern "C" fn hipHostFree(ptr: *mut c_void) -> hipError_t {
    call("hipHostFree", |runtime| {
        runtime.refuse_in_captures("freeing memory")?;
        if ptr.is_null() { Ok(()) } else { runtime.free_pinned(address(ptr)) }
    })
}

/// Returns the device address of pinned or registered memory, which equals the host address.
pub unsafe extern "C" fn hipHostGetDevicePointer(
    devPtr: *mut *mut c_void,
    hstPtr: *mut c_void,
    flags: u32,
) -> hipError_t {
    call("hipHostGetDevicePointer", |runtime| {
        if flags != 0 {
            bail!(InvalidValue, "flags 0x{flags:x}");
        }
        match runtime.memory.find(address(hstPtr)) {
            // SAFETY: the caller's pointer.
            Some(Found { kind: Kind::Pinned { .. } | Kind::Registered, .. }) => unsafe {
                put(devPtr, hstPtr)
            },
            _ => fail(ErrorCode::InvalidValue, format!("{hstPtr:?} is not pinned host memory")),
        }
    })
}

/// Makes the caller's memory accessible to all devices.
pub unsafe extern "C" fn hipHostRegister(hostPtr: *mut c_void, sizeBytes: usize, flags: u32) -> hipError_t {
    let _ = flags;
    call("hipHostRegister", |runtime| {
        if hostPtr.is_null() || sizeBytes == 0 {
            bail!(InvalidValue, "invalid range of {sizeBytes} bytes at {hostPtr:?}");
        }
        // SAFETY: the caller keeps the memory mapped until hipHostUnregister.
        unsafe { runtime.memory.adopt(address(hostPtr), sizeBytes, Kind::Registered) }
    })
}

/// Unregisters memory of [`hipHostRegister`].
pub unsafe extern "C" fn hipHostUnregister(hostPtr: *mut c_void) -> hipError_t {
    call("hipHostUnregister", |runtime| {
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
    })
}

/// Describes the memory at an address. Returns hipErrorInvalidValue if the memory is not known to HIP.
pub unsafe extern "C" fn hipPointerGetAttributes(
    attributes: *mut hipPointerAttribute_t,
    ptr: *const c_void,
) -> hipError_t {
    call("hipPointerGetAttributes", |runtime| {
        let Some(found) = runtime.memory.find(address(ptr)) else {
            bail!(InvalidValue, "{ptr:?} is not memory known to HIP");
        };
        let device = found.kind.device();
        let host = if device.is_none() { ptr.cast_mut() } else { std::ptr::null_mut() };
        let flags = if let Kind::Pinned { flags } = found.kind { flags } else { 0 };
        let answer = hipPointerAttribute_t {
            r#type: if device.is_some() { 2 } else { 1 },
            device: device.unwrap_or(0) as i32,
            devicePointer: ptr.cast_mut(),
            hostPointer: host,
            isManaged: 0,
            allocationFlags: flags,
        };
        // SAFETY: the caller's pointer.
        unsafe { put(attributes, answer) }
    })
}

/// Returns the free and total bytes of the current device.
pub unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> hipError_t {
    call("hipMemGetInfo", |runtime| {
        let (free_bytes, total_bytes) = runtime.memory.info(runtime.current_device()?.ordinal);
        // SAFETY: the caller's pointers; HIP allows each to be null.
        unsafe {
            put_if_wanted(free, free_bytes as usize);
            put_if_wanted(total, total_bytes as usize);
        }
        Ok(())
    })
}

/// Copies one row on a stream.
///
/// # Safety
/// The conditions of hipMemcpyAsync.
unsafe fn copy_row(
    name: &str,
    (dst, src, bytes): (*mut c_void, *const c_void, usize),
    direction: Result<Direction>,
    (stream, wait): (hipStream_t, bool),
) -> hipError_t {
    call(name, |runtime| {
        if wait {
            runtime.refuse_in_captures("a copy that waits")?;
        }
        let transfer = Transfer::linear(address(dst), address(src), bytes, direction?);
        // SAFETY: the caller's memory.
        unsafe { runtime.copy(&runtime.stream(stream)?, transfer, wait) }
    })
}

/// Copies and waits.
pub unsafe extern "C" fn hipMemcpy(
    dst: *mut c_void,
    src: *const c_void,
    sizeBytes: usize,
    kind: hipMemcpyKind,
) -> hipError_t {
    let direction = Direction::from_kind(kind);
    // SAFETY: the caller's memory.
    unsafe { copy_row("hipMemcpy", (dst, src, sizeBytes), direction, (std::ptr::null_mut(), true)) }
}

/// Copies on a stream. Pageable sources are read during the call; a copy to pageable memory waits.
pub unsafe extern "C" fn hipMemcpyAsync(
    dst: *mut c_void,
    src: *const c_void,
    sizeBytes: usize,
    kind: hipMemcpyKind,
    stream: hipStream_t,
) -> hipError_t {
    let direction = Direction::from_kind(kind);
    // SAFETY: the caller's memory.
    unsafe { copy_row("hipMemcpyAsync", (dst, src, sizeBytes), direction, (stream, false)) }
}

/// Defines the copies whose name gives the direction: one that waits, and one on a stream.
macro_rules! copies {
    ($($waiting:ident, $queued:ident: $source:ty => $target:ty, $direction:ident, $what:literal;)*) => {$(
        #[doc = concat!("Copies ", $what, " and waits.")]
        pub unsafe extern "C" fn $waiting(dst: $target, src: $source, sizeBytes: usize) -> hipError_t {
            let (row, direction) = ((dst, src as *const c_void, sizeBytes), Ok(Direction::$direction));
            // SAFETY: the caller's memory.
            unsafe { copy_row(stringify!($waiting), row, direction, (std::ptr::null_mut(), true)) }
        }

        #[doc = concat!("Copies ", $what, " on a stream.")]
        pub unsafe extern "C" fn $queued(
            dst: $target,
            src: $source,
            sizeBytes: usize,
            stream: hipStream_t,
        ) -> hipError_t {
            let (row, direction) = ((dst, src as *const c_void, sizeBytes), Ok(Direction::$direction));
            // SAFETY: the caller's memory.
            unsafe { copy_row(stringify!($queued), row, direction, (stream, false)) }
        }
    )*};
}
copies! {
    hipMemcpyHtoD, hipMemcpyHtoDAsync: *const c_void => hipDeviceptr_t, HostToDevice, "to the device";
    hipMemcpyDtoH, hipMemcpyDtoHAsync: hipDeviceptr_t => *mut c_void, DeviceToHost, "to the host";
    hipMemcpyDtoD, hipMemcpyDtoDAsync: hipDeviceptr_t => hipDeviceptr_t, DeviceToDevice, "between device memory";
}

/// Copies rows of `width` bytes, which begin a pitch apart, on a stream.
pub unsafe extern "C" fn hipMemcpy2DAsync(
    dst: *mut c_void,
    dpitch: usize,
    src: *const c_void,
    spitch: usize,
    width: usize,
    height: usize,
    kind: hipMemcpyKind,
    stream: hipStream_t,
) -> hipError_t {
    call("hipMemcpy2DAsync", |runtime| {
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
    })
}

/// Copies between devices and waits.
pub unsafe extern "C" fn hipMemcpyPeer(
    dst: *mut c_void,
    dstDeviceId: i32,
    src: *const c_void,
    srcDeviceId: i32,
    sizeBytes: usize,
) -> hipError_t {
    call("hipMemcpyPeer", |runtime| {
        let stream = runtime.stream(std::ptr::null_mut())?;
        let target = (address(dst), ordinal(dstDeviceId)?);
        let source = (address(src), ordinal(srcDeviceId)?);
        // SAFETY: device memory only.
        unsafe { runtime.copy_peer(&stream, target, source, sizeBytes, true) }
    })
}

/// Copies between devices on a stream of one of them.
pub unsafe extern "C" fn hipMemcpyPeerAsync(
    dst: *mut c_void,
    dstDeviceId: i32,
    src: *const c_void,
    srcDevice: i32,
    sizeBytes: usize,
    stream: hipStream_t,
) -> hipError_t {
    call("hipMemcpyPeerAsync", |runtime| {
        let target = (address(dst), ordinal(dstDeviceId)?);
        let source = (address(src), ordinal(srcDevice)?);
        // SAFETY: device memory only.
        unsafe { runtime.copy_peer(&runtime.stream(stream)?, target, source, sizeBytes, false) }
    })
}

/// Sets elements on a stream.
fn fill(
    name: &str,
    target: *mut c_void,
    (value, width, count): (u32, usize, usize),
    (stream, wait): (hipStream_t, bool),
) -> hipError_t {
    call(name, |runtime| {
        if wait {
            runtime.refuse_in_captures("a fill that waits")?;
        }
        runtime.fill(&runtime.stream(stream)?, address(target), value, width, count, wait)
    })
}

/// Sets bytes on the null stream.
pub unsafe extern "C" fn hipMemset(dst: *mut c_void, value: i32, sizeBytes: usize) -> hipError_t {
    fill("hipMemset", dst, (value as u32, 1, sizeBytes), (std::ptr::null_mut(), true))
}

/// Sets bytes on a stream.
pub unsafe extern "C" fn hipMemsetAsync(
    dst: *mut c_void,
    value: i32,
    sizeBytes: usize,
    stream: hipStream_t,
) -> hipError_t {
    fill("hipMemsetAsync", dst, (value as u32, 1, sizeBytes), (stream, false))
}

/// Sets bytes on a stream.
pub unsafe extern "C" fn hipMemsetD8Async(
    dest: hipDeviceptr_t,
    value: u8,
    count: usize,
    stream: hipStream_t,
) -> hipError_t {
    fill("hipMemsetD8Async", dest, (u32::from(value), 1, count), (stream, false))
}

/// Sets 16-bit words on a stream.
pub unsafe extern "C" fn hipMemsetD16Async(
    dest: hipDeviceptr_t,
    value: u16,
    count: usize,
    stream: hipStream_t,
) -> hipError_t {
    fill("hipMemsetD16Async", dest, (u32::from(value), 2, count), (stream, false))
}

/// Sets 32-bit words on a stream.
pub unsafe extern "C" fn hipMemsetD32Async(
    dst: hipDeviceptr_t,
    value: i32,
    count: usize,
    stream: hipStream_t,
) -> hipError_t {
    fill("hipMemsetD32Async", dst, (value as u32, 4, count), (stream, false))
}
