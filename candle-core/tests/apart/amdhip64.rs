//! A mock HIP driver of two GPUs without peer access: `hipMemcpyPeerAsync` fails with the code in an environment variable.
//! Device memory is host memory. The test `peer_access` compiles this file to a library and runs against it.
#![allow(non_snake_case)]
use std::alloc::Layout;
use std::ffi::{c_char, c_int, c_void};

/// Environment variable with the error code of peer copies.
const CODE_VARIABLE: &str = "APART_PEER_CODE";

/// Offsets of members of hipDeviceProp_tR0600 in bytes.
const ARCH_OFFSET: usize = 1160;
const TOTAL_MEMORY_OFFSET: usize = 288;
const WARP_SIZE_OFFSET: usize = 308;
const MEMORY: usize = 8 << 30;

/// Defines functions that do nothing and return success.
macro_rules! no_op {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> u32 {
                0
            }
        )*
    };
}

no_op! {
    hipInit hipSetDevice hipGetLastError hipPeekAtLastError hipDeviceSynchronize hipFree hipHostFree
    hipStreamDestroy hipStreamSynchronize hipStreamQuery hipStreamWaitEvent
    hipEventDestroy hipEventRecord hipEventSynchronize hipEventQuery hipModuleUnload
}

/// Defines functions that write one value through their first argument.
macro_rules! value {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(
            /// # Safety
            /// `to` must be valid for writes.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(to: *mut $type) -> u32 {
                // SAFETY: guaranteed by the caller.
                unsafe { to.write($value) };
                0
            }
        )*
    };
}

value! {
    hipGetDeviceCount: c_int = 2;
    hipGetDevice: c_int = 0;
    hipRuntimeGetVersion: c_int = 70_000_000;
    hipDriverGetVersion: c_int = 70_000_000;
    hipDeviceGetAttribute: c_int = 0;
    hipDeviceCanAccessPeer: c_int = 0;
    hipStreamCreateWithFlags: usize = 16;
    hipEventCreateWithFlags: usize = 32;
}

/// # Safety
/// Both pointers must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> u32 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        free.write(MEMORY);
        total.write(MEMORY);
    }
    0
}

/// # Safety
/// `properties` must have room for the properties and be zeroed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevicePropertiesR0600(properties: *mut u8) -> u32 {
    let arch = b"gfx1100\0";
    // SAFETY: guaranteed by the caller.
    unsafe {
        std::ptr::copy_nonoverlapping(arch.as_ptr(), properties.add(ARCH_OFFSET), arch.len());
        properties.add(TOTAL_MEMORY_OFFSET).cast::<usize>().write_unaligned(MEMORY);
        properties.add(WARP_SIZE_OFFSET).cast::<c_int>().write_unaligned(32);
    }
    0
}

/// # Safety
/// `text` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetPCIBusId(text: *mut c_char) -> u32 {
    // SAFETY: guaranteed by the caller.
    unsafe { text.write(0) };
    0
}

/// Allocates host memory that is never freed.
///
/// # Safety
/// `address` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMalloc(address: *mut *mut u8, bytes: usize) -> u32 {
    let Ok(layout) = Layout::from_size_align(bytes.max(1), 4096) else { return 2 };
    // SAFETY: the size is not 0, and the caller guarantees the pointer.
    unsafe { address.write(std::alloc::alloc_zeroed(layout)) };
    0
}

/// # Safety
/// See hipMalloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipHostMalloc(address: *mut *mut u8, bytes: usize) -> u32 {
    // SAFETY: guaranteed by the caller.
    unsafe { hipMalloc(address, bytes) }
}

/// # Safety
/// Source and destination must have `bytes` bytes and must not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpyAsync(to: *mut u8, from: *const u8, bytes: usize) -> u32 {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn hipMemcpyPeerAsync(_to: *mut c_void) -> u32 {
    std::env::var(CODE_VARIABLE).ok().and_then(|code| code.parse().ok()).unwrap_or(999)
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorName(_code: u32) -> *const c_char {
    c"the name".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString(_code: u32) -> *const c_char {
    c"the text".as_ptr()
}
