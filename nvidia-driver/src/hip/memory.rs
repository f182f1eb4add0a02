//! Device and host memory, copies and fills.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{c_int, c_uchar, c_uint, c_void};
use std::ptr::null_mut;

use rocm_rs::hip::bindings::{
    hipDeviceptr_t, hipError_t, hipError_t_hipErrorInvalidMemcpyDirection, hipMemcpyKind,
    hipMemcpyKind_hipMemcpyDefault, hipStream_t,
};

use super::context::{context, forwarded, null_pointer, running, with_context};
use super::status::{SUCCESS, fail};

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`: HIP's host memory is always both.
const HOST_FLAGS: c_uint = 1 | 2;
/// `CU_MEMHOSTALLOC_WRITECOMBINED`, which has the same value in HIP.
const WRITE_COMBINED: c_uint = 4;

pub(crate) unsafe extern "C" fn hipMalloc(ptr: *mut *mut c_void, size: usize) -> hipError_t {
    if size == 0 || ptr.is_null() {
        // SAFETY: the pointer is null or the caller guarantees that it is valid.
        return unsafe { write_null(ptr) };
    }
    // SAFETY: the caller guarantees a valid pointer.
    with_context("cuMemAlloc", |cuda| unsafe { (cuda.cuMemAlloc)(ptr, size) })
}

/// Returns null for an allocation of no bytes, which is not an error.
unsafe fn write_null(ptr: *mut *mut c_void) -> hipError_t {
    if ptr.is_null() {
        return null_pointer();
    }
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { ptr.write(null_mut()) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn hipFree(ptr: *mut c_void) -> hipError_t {
    if ptr.is_null() {
        return SUCCESS;
    }
    // SAFETY: the caller's allocation.
    with_context("cuMemFree", |cuda| unsafe { (cuda.cuMemFree)(ptr) })
}

pub(crate) unsafe extern "C" fn hipHostMalloc(
    ptr: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> hipError_t {
    if size == 0 || ptr.is_null() {
        // SAFETY: the pointer is null or the caller guarantees that it is valid.
        return unsafe { write_null(ptr) };
    }
    // CUDA has no flags for coherence or the NUMA node.
    let flags = HOST_FLAGS | (flags & WRITE_COMBINED);
    // SAFETY: the caller guarantees a valid pointer.
    with_context("cuMemHostAlloc", |cuda| unsafe { (cuda.cuMemHostAlloc)(ptr, size, flags) })
}

pub(crate) unsafe extern "C" fn hipHostFree(ptr: *mut c_void) -> hipError_t {
    if ptr.is_null() {
        return SUCCESS;
    }
    // SAFETY: the caller's allocation.
    with_context("cuMemFreeHost", |cuda| unsafe { (cuda.cuMemFreeHost)(ptr) })
}

forwarded! {
    hipHostGetDevicePointer =>
        cuMemHostGetDevicePointer(devPtr: *mut *mut c_void, hstPtr: *mut c_void, flags: c_uint);
    hipMemGetInfo => cuMemGetInfo(free: *mut usize, total: *mut usize);
}

/// Waits for the copy in every direction; CUDA's `cuMemcpy` does not.
pub(crate) unsafe extern "C" fn hipMemcpy(
    dst: *mut c_void,
    src: *const c_void,
    sizeBytes: usize,
    kind: hipMemcpyKind,
) -> hipError_t {
    // SAFETY: the caller's addresses.
    match unsafe { hipMemcpyAsync(dst, src, sizeBytes, kind, null_mut()) } {
        SUCCESS => wait(),
        code => code,
    }
}

/// Waits for the null stream.
fn wait() -> hipError_t {
    // SAFETY: the null stream always exists.
    with_context("cuStreamSynchronize", |cuda| unsafe { (cuda.cuStreamSynchronize)(null_mut()) })
}

/// Checks the direction, which CUDA derives from the addresses.
pub(crate) unsafe extern "C" fn hipMemcpyAsync(
    dst: *mut c_void,
    src: *const c_void,
    sizeBytes: usize,
    kind: hipMemcpyKind,
    stream: hipStream_t,
) -> hipError_t {
    if kind > hipMemcpyKind_hipMemcpyDefault {
        return fail(hipError_t_hipErrorInvalidMemcpyDirection, format!("{kind} is not a hipMemcpyKind"));
    }
    if sizeBytes == 0 {
        return SUCCESS;
    }
    // SAFETY: the caller's addresses.
    with_context("cuMemcpyAsync", |cuda| unsafe { (cuda.cuMemcpyAsync)(dst, src, sizeBytes, stream) })
}

/// Defines copies whose name gives the direction.
macro_rules! directed {
    ($($name:ident($dst:ty, $src:ty);)*) => {
        $(pub(crate) unsafe extern "C" fn $name(dst: $dst, src: $src, sizeBytes: usize) -> hipError_t {
            // SAFETY: the caller's addresses.
            unsafe { hipMemcpy(dst, src, sizeBytes, hipMemcpyKind_hipMemcpyDefault) }
        })*
    };
}
directed! {
    hipMemcpyHtoD(hipDeviceptr_t, *const c_void);
    hipMemcpyDtoH(*mut c_void, hipDeviceptr_t);
}

#[rustfmt::skip]
pub(crate) unsafe extern "C" fn hipMemcpyPeerAsync(
    dst: *mut c_void, dstDeviceId: c_int, src: *const c_void, srcDevice: c_int, sizeBytes: usize, stream: hipStream_t,
) -> hipError_t {
    let contexts = running().and_then(|r| Ok((context(r, dstDeviceId)?, context(r, srcDevice)?)));
    let (to, from) = match contexts {
        Ok(contexts) => contexts,
        Err(code) => return code,
    };
    if sizeBytes == 0 {
        return SUCCESS;
    }
    // SAFETY: the caller's addresses; the contexts stay retained.
    with_context("cuMemcpyPeerAsync", |cuda| unsafe {
        (cuda.cuMemcpyPeerAsync)(dst, to, src, from, sizeBytes, stream)
    })
}

pub(crate) unsafe extern "C" fn hipMemset(dst: *mut c_void, value: c_int, sizeBytes: usize) -> hipError_t {
    // SAFETY: the caller's address.
    match unsafe { hipMemsetAsync(dst, value, sizeBytes, null_mut()) } {
        SUCCESS => wait(),
        code => code,
    }
}

pub(crate) unsafe extern "C" fn hipMemsetAsync(
    dst: *mut c_void,
    value: c_int,
    sizeBytes: usize,
    stream: hipStream_t,
) -> hipError_t {
    // Like memset, only the lowest byte is used.
    // SAFETY: the caller's address.
    unsafe { hipMemsetD8Async(dst, value as c_uchar, sizeBytes, stream) }
}

pub(crate) unsafe extern "C" fn hipMemsetD8Async(
    dest: hipDeviceptr_t,
    value: c_uchar,
    count: usize,
    stream: hipStream_t,
) -> hipError_t {
    if count == 0 {
        return SUCCESS;
    }
    // SAFETY: the caller's address.
    with_context("cuMemsetD8Async", |cuda| unsafe { (cuda.cuMemsetD8Async)(dest, value, count, stream) })
}

pub(crate) unsafe extern "C" fn hipMemsetD32Async(
    dst: hipDeviceptr_t,
    value: c_int,
    count: usize,
    stream: hipStream_t,
) -> hipError_t {
    if count == 0 {
        return SUCCESS;
    }
    // SAFETY: the caller's address.
    with_context("cuMemsetD32Async", |cuda| unsafe {
        (cuda.cuMemsetD32Async)(dst, value.cast_unsigned(), count, stream)
    })
}
