//! rocBLAS' handles, status names and version, implemented on cuBLAS. Handles are cuBLAS' own.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{c_char, c_uint, c_void};
use std::ptr::{self, null_mut};
use std::sync::{MutexGuard, PoisonError};

use rocm_rs::rocblas::ffi::{
    self as rocblas, hipStream_t, rocblas_atomics_mode, rocblas_handle, rocblas_pointer_mode, rocblas_status,
};

use super::cublas::CUBLAS;
use crate::hip::context;
use crate::running::{self, CublasHandle, Device};

const SUCCESS: rocblas_status = rocblas::rocblas_status__rocblas_status_success;

/// `CUBLAS_DEFAULT_MATH` with `CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`.
const EXACT_MATH: c_uint = 16;

/// Returns all handles of a device. They are never destroyed: `cublasDestroy` waits for the device's context, which
/// invalidates the captures of graphs on all threads. rocBLAS' function does not.
fn handles_of(device: &Device) -> MutexGuard<'_, Vec<CublasHandle>> {
    device.cublas_handles.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Resets an idle handle of a device to the default stream and to scalars from the host, and returns it. A handle that
/// cannot be reset is not used again.
fn reuse(device: &Device) -> Option<rocblas_handle> {
    let address = {
        let mut handles = handles_of(device);
        let place = handles.iter().position(|handle| handle.is_idle)?;
        handles.swap_remove(place).address
    };
    let handle: rocblas_handle = ptr::with_exposed_provenance_mut(address);
    // SAFETY: cuBLAS created the handle, and nobody uses it.
    let statuses = unsafe {
        [
            rocblas_set_stream(handle, null_mut()),
            rocblas_set_pointer_mode(handle, 0),
            rocblas_set_atomics_mode(handle, 0),
        ]
    };
    if statuses != [SUCCESS; 3] {
        return None;
    }
    handles_of(device).push(CublasHandle { address, is_idle: false });
    Some(handle)
}

pub(crate) unsafe extern "C" fn rocblas_create_handle(handle: *mut rocblas_handle) -> rocblas_status {
    let device = context::current_device();
    if let Some(reused) = device.and_then(reuse) {
        // SAFETY: the caller guarantees a valid pointer.
        unsafe { handle.write(reused) };
        return SUCCESS;
    }
    // SAFETY: the caller guarantees a valid pointer.
    let status = CUBLAS.call("cublasCreate", |cublas| unsafe { (cublas.create)(handle) });
    if status != SUCCESS {
        return status;
    }
    // SAFETY: just written.
    let created = unsafe { handle.read() };
    if let Some(device) = device {
        let address = created.expose_provenance();
        handles_of(device).push(CublasHandle { address, is_idle: false });
    }
    // SAFETY: a live handle.
    CUBLAS.call("cublasSetMathMode", |cublas| unsafe { (cublas.set_math_mode)(created, EXACT_MATH) })
}

/// Keeps the handle for a later call of [`rocblas_create_handle`].
pub(crate) unsafe extern "C" fn rocblas_destroy_handle(handle: rocblas_handle) -> rocblas_status {
    let devices = running::running().into_iter().flat_map(|running| &running.devices);
    for mut handles in devices.map(handles_of) {
        if let Some(found) = handles.iter_mut().find(|found| found.address == handle.addr() && !found.is_idle)
        {
            found.is_idle = true;
            return SUCCESS;
        }
    }
    rocblas::rocblas_status__rocblas_status_invalid_handle
}

/// Defines functions that forward a handle and plain values.
macro_rules! forwarded {
    ($($name:ident => $field:ident $call:literal ($($argument:ident: $type:ty),*);)*) => {
        $(pub(crate) unsafe extern "C" fn $name(handle: rocblas_handle, $($argument: $type),*) -> rocblas_status {
            // SAFETY: the caller's handle, values and pointers.
            CUBLAS.call($call, |cublas| unsafe { (cublas.$field)(handle, $($argument),*) })
        })*
    };
}

// Both libraries number the pointer and atomics modes alike.
forwarded! {
    rocblas_set_stream => set_stream "cublasSetStream" (stream: hipStream_t);
    rocblas_get_stream => get_stream "cublasGetStream" (stream: *mut hipStream_t);
    rocblas_set_pointer_mode => set_pointer_mode "cublasSetPointerMode" (pointer_mode: rocblas_pointer_mode);
    rocblas_get_pointer_mode => get_pointer_mode "cublasGetPointerMode" (pointer_mode: *mut rocblas_pointer_mode);
    rocblas_set_atomics_mode => set_atomics_mode "cublasSetAtomicsMode" (atomics_mode: rocblas_atomics_mode);
    rocblas_get_atomics_mode => get_atomics_mode "cublasGetAtomicsMode" (atomics_mode: *mut rocblas_atomics_mode);
    rocblas_set_workspace => set_workspace "cublasSetWorkspace" (addr: *mut c_void, size: usize);
}

pub(crate) unsafe extern "C" fn rocblas_status_to_string(status: rocblas_status) -> *const c_char {
    macro_rules! names {
        ($($status:ident)*) => {
            [$(concat!("rocblas_status_", stringify!($status), "\0")),*]
        };
    }
    const NAMES: [&str; 16] = names! {
        success invalid_handle not_implemented invalid_pointer invalid_size memory_error internal_error perf_degraded
        size_query_mismatch size_increased size_unchanged invalid_value continue check_numerics_fail
        excluded_from_build arch_mismatch
    };
    NAMES.get(status as usize).unwrap_or(&"<undefined rocblas_status value>\0").as_ptr().cast()
}

/// Returns the version with a terminating zero byte: `cuBLAS 13.1.0`.
fn version() -> Result<Vec<u8>, rocblas_status> {
    let cublas = CUBLAS.functions()?;
    let part = |number| {
        let mut value = 0;
        // SAFETY: writes one int.
        unsafe { (cublas.get_property)(number, &mut value) };
        value
    };
    Ok(format!("cuBLAS {}.{}.{}\0", part(0), part(1), part(2)).into_bytes())
}

pub(crate) unsafe extern "C" fn rocblas_get_version_string_size(len: *mut usize) -> rocblas_status {
    match version() {
        Err(status) => status,
        Ok(_) if len.is_null() => rocblas::rocblas_status__rocblas_status_invalid_pointer,
        Ok(text) => {
            // SAFETY: the caller guarantees a valid pointer.
            unsafe { len.write(text.len()) };
            rocblas::rocblas_status__rocblas_status_success
        }
    }
}

pub(crate) unsafe extern "C" fn rocblas_get_version_string(buf: *mut c_char, len: usize) -> rocblas_status {
    match version() {
        Err(status) => status,
        Ok(_) if buf.is_null() => rocblas::rocblas_status__rocblas_status_invalid_pointer,
        Ok(text) if text.len() > len => rocblas::rocblas_status__rocblas_status_invalid_size,
        Ok(text) => {
            // SAFETY: the caller's buffer holds `len` bytes.
            unsafe { buf.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
            rocblas::rocblas_status__rocblas_status_success
        }
    }
}
