//! A fake libamdhip64 for the native driver's tests. It has a device count, versions and counted memory; all other
//! functions are missing.
#![allow(non_snake_case)]
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

static LIVE: AtomicI32 = AtomicI32::new(0);

/// Returns the number of devices in FAKE_DEVICES; zero is an error, as in HIP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> u32 {
    let devices = std::env::var("FAKE_DEVICES").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    unsafe { *count = devices };
    if devices == 0 { 100 } else { 0 }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> u32 {
    unsafe { *version = 70_123_456 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDriverGetVersion(version: *mut c_int) -> u32 {
    unsafe { *version = 70_123_457 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevicePropertiesR0600(properties: *mut u8, device: c_int) -> u32 {
    // gcnArchName is at byte 1160 of the R0600 structure.
    let name: &[u8] = if device == 0 { b"gfx1100\0" } else { b"gfx90a:sramecc+:xnack-\0" };
    unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), properties.add(1160), name.len()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMalloc(pointer: *mut *mut c_void, size: usize) -> u32 {
    if size > 1 << 20 {
        return 2;
    }
    unsafe { *pointer = std::ptr::without_provenance_mut(0x1000 + LIVE.fetch_add(1, Ordering::SeqCst) as usize) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipFree(_: *mut c_void) -> u32 {
    LIVE.fetch_sub(1, Ordering::SeqCst);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetErrorName(error: u32) -> *const c_char {
    if error == 2 { c"hipErrorOutOfMemory".as_ptr() } else { c"fake error name".as_ptr() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetErrorString(_: u32) -> *const c_char {
    c"fake error text".as_ptr()
}
