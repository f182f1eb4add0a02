//! A HIP driver of two GPUs whose memory is the host's, and which do not reach each other: `hipMemcpyPeerAsync` fails
//! with the code that a variable names. The test `peer_access` compiles this file to a library and runs against it.
#![allow(non_snake_case)]
use std::alloc::Layout;
use std::ffi::{c_char, c_int, c_void};

/// The code of every copy from GPU to GPU.
const CODE_VARIABLE: &str = "APART_PEER_CODE";

/// Where members of hipDeviceProp_tR0600 lie.
const ARCH_OFFSET: usize = 1160;
const TOTAL_MEMORY_OFFSET: usize = 288;
const WARP_SIZE_OFFSET: usize = 308;
const MEMORY: usize = 8 << 30;

/// Functions that do nothing and succeed.
macro_rules! nothing {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> u32 {
                0
            }
        )*
    };
}

nothing! {
    hipInit hipSetDevice hipGetLastError hipPeekAtLastError hipDeviceSynchronize hipFree hipHostFree
    hipStreamDestroy hipStreamSynchronize hipStreamQuery hipStreamWaitEvent
    hipEventDestroy hipEventRecord hipEventSynchronize hipEventQuery hipModuleUnload
}

/// Functions that write one value through their first argument.
macro_rules! value {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(
            /// # Safety
            /// There is room for the value.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(to: *mut $type) -> u32 {
                // SAFETY: by the caller's word.
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
/// There is room for both numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> u32 {
    // SAFETY: by the caller's word.
    unsafe {
        free.write(MEMORY);
        total.write(MEMORY);
    }
    0
}

/// # Safety
/// There is room for the properties, which are zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevicePropertiesR0600(properties: *mut u8) -> u32 {
    let arch = b"gfx1100\0";
    // SAFETY: by the caller's word.
    unsafe {
        std::ptr::copy_nonoverlapping(arch.as_ptr(), properties.add(ARCH_OFFSET), arch.len());
        properties.add(TOTAL_MEMORY_OFFSET).cast::<usize>().write_unaligned(MEMORY);
        properties.add(WARP_SIZE_OFFSET).cast::<c_int>().write_unaligned(32);
    }
    0
}

/// # Safety
/// There is room for the identifier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetPCIBusId(text: *mut c_char) -> u32 {
    // SAFETY: by the caller's word.
    unsafe { text.write(0) };
    0
}

/// Memory of the host, which stays until the process ends.
///
/// # Safety
/// There is room for the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMalloc(address: *mut *mut u8, bytes: usize) -> u32 {
    let Ok(layout) = Layout::from_size_align(bytes.max(1), 4096) else { return 2 };
    // SAFETY: the size is not 0; by the caller's word.
    unsafe { address.write(std::alloc::alloc_zeroed(layout)) };
    0
}

/// # Safety
/// As hipMalloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipHostMalloc(address: *mut *mut u8, bytes: usize) -> u32 {
    // SAFETY: by the caller's word.
    unsafe { hipMalloc(address, bytes) }
}

/// # Safety
/// There are `bytes` bytes at both ends, which do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpyAsync(to: *mut u8, from: *const u8, bytes: usize) -> u32 {
    // SAFETY: by the caller's word.
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
