//! A fake libcublas that logs the calls.
#![allow(non_snake_case)]
#[macro_use]
mod log;

use std::ffi::{c_char, c_int, c_uint, c_void};

use log::log;

#[derive(Default)]
pub struct Handle {
    stream: usize,
    pointer_mode: c_uint,
    atomics_mode: c_uint,
    math_mode: c_uint,
}

succeed! {
    fn cublasCreate_v2(to: *mut *mut Handle) { *to = Box::into_raw(Box::default()); }
    fn cublasSetStream_v2(handle: *mut Handle, stream: usize) { (*handle).stream = stream; }
    fn cublasGetStream_v2(handle: *mut Handle, to: *mut usize) { *to = (*handle).stream; }
    fn cublasSetPointerMode_v2(handle: *mut Handle, mode: c_uint) { (*handle).pointer_mode = mode; }
    fn cublasGetPointerMode_v2(handle: *mut Handle, to: *mut c_uint) { *to = (*handle).pointer_mode; }
    fn cublasSetAtomicsMode(handle: *mut Handle, mode: c_uint) { (*handle).atomics_mode = mode; }
    fn cublasGetAtomicsMode(handle: *mut Handle, to: *mut c_uint) { *to = (*handle).atomics_mode; }
    fn cublasSetMathMode(handle: *mut Handle, mode: c_uint) { (*handle).math_mode = mode; }
    fn cublasSetWorkspace_v2(_handle: *mut Handle, _to: *mut c_void, _size: usize) {}
    fn cublasGetProperty(number: c_uint, to: *mut c_int) { *to = [13, 1, 7][number as usize]; }
}

/// Logs a product. Fails with NOT_SUPPORTED if `m` is 99.
fn log_product(call: &str, m: c_int, handle: *mut Handle, arguments: String) -> u32 {
    let Handle { pointer_mode, math_mode, .. } = unsafe { &*handle };
    log(format!("{call} {arguments} | pointers {pointer_mode} math {math_mode}"));
    if m == 99 { 15 } else { 0 }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmEx(
    handle: *mut Handle, op_a: u32, op_b: u32, m: c_int, n: c_int, k: c_int, _alpha: *const c_void, a: usize,
    a_type: u32, lda: c_int, b: usize, b_type: u32, ldb: c_int, _beta: *const c_void, c: usize, c_type: u32,
    ldc: c_int, compute: u32, algo: c_int,
) -> u32 {
    let text = format!(
        "{op_a}{op_b} {m} {n} {k} a {a}:{a_type}:{lda} b {b}:{b_type}:{ldb} c {c}:{c_type}:{ldc} in {compute} by {algo}"
    );
    log_product("gemm", m, handle, text)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmBatchedEx(
    handle: *mut Handle, op_a: u32, op_b: u32, m: c_int, n: c_int, k: c_int, _alpha: *const c_void, a: usize,
    a_type: u32, lda: c_int, b: usize, b_type: u32, ldb: c_int, _beta: *const c_void, c: usize, c_type: u32,
    ldc: c_int, count: c_int, compute: u32, algo: c_int,
) -> u32 {
    let text = format!(
        "{op_a}{op_b} {m} {n} {k} a {a}:{a_type}:{lda} b {b}:{b_type}:{ldb} c {c}:{c_type}:{ldc} x {count} in {compute} by {algo}"
    );
    log_product("listed", m, handle, text)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmStridedBatchedEx(
    handle: *mut Handle, op_a: u32, op_b: u32, m: c_int, n: c_int, k: c_int, _alpha: *const c_void, a: usize,
    a_type: u32, lda: c_int, stride_a: i64, b: usize, b_type: u32, ldb: c_int, stride_b: i64, _beta: *const c_void,
    c: usize, c_type: u32, ldc: c_int, stride_c: i64, count: c_int, compute: u32, algo: c_int,
) -> u32 {
    let text = format!(
        "{op_a}{op_b} {m} {n} {k} a {a}:{a_type}:{lda}+{stride_a} b {b}:{b_type}:{ldb}+{stride_b} \
         c {c}:{c_type}:{ldc}+{stride_c} x {count} in {compute} by {algo}"
    );
    log_product("strided", m, handle, text)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusName(_: u32) -> *const c_char {
    c"CUBLAS_STATUS_NOT_SUPPORTED".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusString(_: u32) -> *const c_char {
    c"the functionality requested is not supported".as_ptr()
}
