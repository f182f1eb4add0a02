//! cuBLAS, and rocBLAS' functions about handles. A handle of the one is a handle of the other.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use rocm_rs::rocblas::ffi::{
    self as rocblas, hipStream_t, rocblas_atomics_mode, rocblas_handle, rocblas_pointer_mode, rocblas_status,
};

use super::context::with_context;
use super::cuda::functions;
use super::library;
use crate::error::{LoadError, record_text};
use crate::forward::OnFailure as _;
use crate::library::Library;

/// `cublasStatus_t`.
type Status = c_uint;
/// `cudaDataType`.
pub(super) type DataType = c_uint;
/// `cublasComputeType_t`.
pub(super) type ComputeType = c_uint;

/// `CUBLAS_DEFAULT_MATH` with `CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`.
const EXACT_MATH: c_uint = 16;

functions! {
    /// libcublas.
    Cublas {
        create = "cublasCreate_v2": fn(*mut rocblas_handle) -> Status;
        destroy = "cublasDestroy_v2": fn(rocblas_handle) -> Status;
        set_stream = "cublasSetStream_v2": fn(rocblas_handle, hipStream_t) -> Status;
        get_stream = "cublasGetStream_v2": fn(rocblas_handle, *mut hipStream_t) -> Status;
        set_pointer_mode = "cublasSetPointerMode_v2": fn(rocblas_handle, c_uint) -> Status;
        get_pointer_mode = "cublasGetPointerMode_v2": fn(rocblas_handle, *mut c_uint) -> Status;
        set_atomics_mode = "cublasSetAtomicsMode": fn(rocblas_handle, c_uint) -> Status;
        get_atomics_mode = "cublasGetAtomicsMode": fn(rocblas_handle, *mut c_uint) -> Status;
        set_math_mode = "cublasSetMathMode": fn(rocblas_handle, c_uint) -> Status;
        set_workspace = "cublasSetWorkspace_v2": fn(rocblas_handle, *mut c_void, usize) -> Status;
        get_property = "cublasGetProperty": fn(c_uint, *mut c_int) -> Status;
        status_name = "cublasGetStatusName": fn(Status) -> *const c_char;
        status_string = "cublasGetStatusString": fn(Status) -> *const c_char;
        gemm_ex = "cublasGemmEx":
            fn(
                rocblas_handle, c_uint, c_uint, c_int, c_int, c_int, *const c_void, *const c_void, DataType, c_int,
                *const c_void, DataType, c_int, *const c_void, *mut c_void, DataType, c_int, ComputeType, c_int
            ) -> Status;
        gemm_batched_ex = "cublasGemmBatchedEx":
            fn(
                rocblas_handle, c_uint, c_uint, c_int, c_int, c_int, *const c_void, *const c_void, DataType, c_int,
                *const c_void, DataType, c_int, *const c_void, *mut c_void, DataType, c_int, c_int, ComputeType,
                c_int
            ) -> Status;
        gemm_strided_batched_ex = "cublasGemmStridedBatchedEx":
            fn(
                rocblas_handle, c_uint, c_uint, c_int, c_int, c_int, *const c_void, *const c_void, DataType, c_int,
                i64, *const c_void, DataType, c_int, i64, *const c_void, *mut c_void, DataType, c_int, i64, c_int,
                ComputeType, c_int
            ) -> Status;
    }
}

/// cuBLAS, opened at the first call.
pub(super) fn library() -> Result<&'static Cublas, LoadError> {
    static CUBLAS: OnceLock<Result<Cublas, LoadError>> = OnceLock::new();
    let open = || {
        let opened = library::cublas()?;
        Cublas::of(opened).map_err(|symbol| library::without(library::CUBLAS, &opened.path, symbol))
    };
    CUBLAS.get_or_init(open).as_ref().map_err(Clone::clone)
}

/// Calls cuBLAS with a context. `call` names the function.
#[inline]
pub(super) fn with_cublas(call: &str, work: impl FnOnce(&'static Cublas) -> Status) -> rocblas_status {
    let cublas = match library() {
        Ok(cublas) => cublas,
        Err(error) => return rocblas_status::on_failure(Library::RocBlas, &error),
    };
    let mut status = 0;
    let code = with_context(call, |_| {
        status = work(cublas);
        0
    });
    match (code, status) {
        (0, 0) => rocblas::rocblas_status__rocblas_status_success,
        (0, status) => failed(cublas, call, status),
        _ => rocblas::rocblas_status__rocblas_status_internal_error,
    }
}

#[cold]
fn failed(cublas: &Cublas, call: &str, status: Status) -> rocblas_status {
    let text = |text: *const c_char| match text.is_null() {
        true => "an unknown status".into(),
        // SAFETY: cuBLAS' own text, which is never freed.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
    };
    // SAFETY: both take any integer.
    let (name, words) = unsafe { (text((cublas.status_name)(status)), text((cublas.status_string)(status))) };
    record_text(format!("{call} returned {name} ({status}): {words}"));
    match status {
        1 => rocblas::rocblas_status__rocblas_status_invalid_handle,
        3 => rocblas::rocblas_status__rocblas_status_memory_error,
        7 => rocblas::rocblas_status__rocblas_status_invalid_value,
        8 => rocblas::rocblas_status__rocblas_status_arch_mismatch,
        15 => rocblas::rocblas_status__rocblas_status_not_implemented,
        _ => rocblas::rocblas_status__rocblas_status_internal_error,
    }
}

#[cold]
pub(super) fn refused(status: rocblas_status, reason: &str) -> rocblas_status {
    record_text(reason.to_owned());
    status
}

pub(crate) unsafe extern "C" fn rocblas_create_handle(handle: *mut rocblas_handle) -> rocblas_status {
    // SAFETY: the caller's place.
    match with_cublas("cublasCreate", |cublas| unsafe { (cublas.create)(handle) }) {
        rocblas::rocblas_status__rocblas_status_success => {
            // SAFETY: just written.
            with_cublas("cublasSetMathMode", |cublas| unsafe {
                (cublas.set_math_mode)(handle.read(), EXACT_MATH)
            })
        }
        status => status,
    }
}

/// Functions that hand a handle and plain values on.
macro_rules! handed_on {
    ($($name:ident => $field:ident $call:literal ($($argument:ident: $type:ty),*);)*) => {
        $(pub(crate) unsafe extern "C" fn $name(handle: rocblas_handle, $($argument: $type),*) -> rocblas_status {
            // SAFETY: the caller's handle, values and places.
            with_cublas($call, |cublas| unsafe { (cublas.$field)(handle, $($argument),*) })
        })*
    };
}

// The numbers of both modes are the same on both sides.
handed_on! {
    rocblas_destroy_handle => destroy "cublasDestroy" ();
    rocblas_set_stream => set_stream "cublasSetStream" (stream: hipStream_t);
    rocblas_get_stream => get_stream "cublasGetStream" (stream: *mut hipStream_t);
    rocblas_set_pointer_mode => set_pointer_mode "cublasSetPointerMode" (pointer_mode: rocblas_pointer_mode);
    rocblas_get_pointer_mode => get_pointer_mode "cublasGetPointerMode" (pointer_mode: *mut rocblas_pointer_mode);
    rocblas_set_atomics_mode => set_atomics_mode "cublasSetAtomicsMode" (atomics_mode: rocblas_atomics_mode);
    rocblas_get_atomics_mode => get_atomics_mode "cublasGetAtomicsMode" (atomics_mode: *mut rocblas_atomics_mode);
    rocblas_set_workspace => set_workspace "cublasSetWorkspace" (addr: *mut c_void, size: usize);
}

pub(crate) unsafe extern "C" fn rocblas_status_to_string(status: rocblas_status) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"rocblas_status_success",
        c"rocblas_status_invalid_handle",
        c"rocblas_status_not_implemented",
        c"rocblas_status_invalid_pointer",
        c"rocblas_status_invalid_size",
        c"rocblas_status_memory_error",
        c"rocblas_status_internal_error",
        c"rocblas_status_perf_degraded",
        c"rocblas_status_size_query_mismatch",
        c"rocblas_status_size_increased",
        c"rocblas_status_size_unchanged",
        c"rocblas_status_invalid_value",
        c"rocblas_status_continue",
        c"rocblas_status_check_numerics_fail",
        c"rocblas_status_excluded_from_build",
        c"rocblas_status_arch_mismatch",
    ];
    NAMES.get(status as usize).copied().unwrap_or(c"<undefined rocblas_status value>").as_ptr()
}

/// `cuBLAS 13.1.0` and a zero byte.
fn version() -> Result<Vec<u8>, LoadError> {
    let cublas = library()?;
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
        Err(error) => rocblas_status::on_failure(Library::RocBlas, &error),
        Ok(_) if len.is_null() => rocblas::rocblas_status__rocblas_status_invalid_pointer,
        Ok(text) => {
            // SAFETY: the caller's place.
            unsafe { len.write(text.len()) };
            rocblas::rocblas_status__rocblas_status_success
        }
    }
}

pub(crate) unsafe extern "C" fn rocblas_get_version_string(buf: *mut c_char, len: usize) -> rocblas_status {
    match version() {
        Err(error) => rocblas_status::on_failure(Library::RocBlas, &error),
        Ok(_) if buf.is_null() => rocblas::rocblas_status__rocblas_status_invalid_pointer,
        Ok(text) if text.len() > len => rocblas::rocblas_status__rocblas_status_invalid_size,
        Ok(text) => {
            // SAFETY: the caller's place has room for `len` bytes.
            unsafe { buf.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
            rocblas::rocblas_status__rocblas_status_success
        }
    }
}
