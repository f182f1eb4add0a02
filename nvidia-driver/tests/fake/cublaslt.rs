//! A fake libcublasLt that logs the calls.
#![allow(non_snake_case)]
mod log;

use std::ffi::{c_char, c_int, c_void};

fn log(text: String) -> u32 {
    log::log(text);
    0
}

/// A handle or descriptor, with a text of its parameters.
pub struct Object(String);

unsafe fn make(to: *mut *mut Object, text: String) -> u32 {
    unsafe { *to = Box::into_raw(Box::new(Object(text.clone()))) };
    log(text)
}

unsafe fn end(object: *mut Object) -> u32 {
    let object = unsafe { Box::from_raw(object) };
    log(format!("end of {}", object.0))
}

unsafe fn set(object: *mut Object, attribute: u32, from: *const u8, len: usize) -> u32 {
    let value = if from.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(from, len) } };
    if value.is_empty() {
        return 7;
    }
    let number = value.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let name = unsafe { &(*object).0 };
    log(format!("{name}: {attribute} = {number} ({len} bytes)"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtCreate(to: *mut *mut Object) -> u32 {
    unsafe { make(to, "handle".into()) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    130_107
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    to: *mut *mut Object, kind: u32, rows: u64, columns: u64, ld: i64,
) -> u32 {
    unsafe { make(to, format!("layout {kind}:{rows}x{columns}:{ld}")) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescCreate(to: *mut *mut Object, compute: u32, scale: u32) -> u32 {
    unsafe { make(to, format!("matmul {compute}:{scale}")) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceCreate(to: *mut *mut Object) -> u32 {
    unsafe { make(to, "preference".into()) }
}

macro_rules! descriptors {
    ($($destroy:ident $($set:ident)?;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $destroy(object: *mut Object) -> u32 {
            unsafe { end(object) }
        }
        $(#[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set(object: *mut Object, attribute: u32, from: *const u8, len: usize) -> u32 {
            unsafe { set(object, attribute, from, len) }
        })?
    )*};
}
descriptors! {
    cublasLtDestroy;
    cublasLtMatrixLayoutDestroy cublasLtMatrixLayoutSetAttribute;
    cublasLtMatmulDescDestroy cublasLtMatmulDescSetAttribute;
    cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceSetAttribute;
}

#[repr(C)]
pub struct Found {
    algorithm: [u64; 8],
    workspace: usize,
    state: u32,
    waves: f32,
    reserved: [c_int; 4],
}

/// Returns two usable algorithms with an unusable one between them, none for 8-bit floats, and an error for 3 rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _: *mut Object, _: *mut Object, a: *mut Object, _: *mut Object, _: *mut Object, _: *mut Object, _: *mut Object,
    wanted: c_int, to: *mut Found, count: *mut c_int,
) -> u32 {
    let a = unsafe { &(*a).0 };
    log(format!("heuristic of {wanted} for {a}"));
    if a.starts_with("layout 28:") {
        return 15;
    }
    if a.contains(":3x") {
        return 14;
    }
    let results = [(7, 4096, 0), (6, 0, 15), (8, 0, 0)];
    let given = results.len().min(wanted as usize);
    for (index, (number, workspace, state)) in results[..given].iter().enumerate() {
        let found =
            Found { algorithm: [*number; 8], workspace: *workspace, state: *state, waves: 0.5, reserved: [0; 4] };
        unsafe { to.add(index).write(found) };
    }
    unsafe { *count = given as c_int };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmul(
    _: *mut Object, matmul: *mut Object, alpha: *const f32, a: usize, a_layout: *mut Object, b: usize, _: *mut Object,
    beta: *const f32, c: usize, _: *mut Object, d: usize, _: *mut Object, algorithm: *const [u64; 8],
    workspace: *mut c_void, size: usize, stream: usize,
) -> u32 {
    let (matmul, a_layout, alpha, beta) = unsafe { (&(*matmul).0, &(*a_layout).0, *alpha, *beta) };
    let algorithm = unsafe { algorithm.as_ref() };
    log(format!(
        "{matmul} of {alpha} {a}:{a_layout} {b} {beta} {c} to {d} by {algorithm:?} in {size} at {} on {stream}",
        workspace.addr()
    ));
    if alpha == 99.0 { 13 } else { 0 }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusName(_: u32) -> *const c_char {
    c"CUBLAS_STATUS_FAKE".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusString(_: u32) -> *const c_char {
    c"it was asked to fail".as_ptr()
}
