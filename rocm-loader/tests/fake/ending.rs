//! A fake libamdhip64 that tears itself down in an exit handler, as HIP does, and aborts the process if a call is in
//! flight at that time or follows.
#![allow(non_snake_case)]
use std::ffi::{c_int, c_uint, c_void};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::time::Duration;

/// State that is shared with the program that uses this library.
#[repr(C)]
pub struct Shared {
    /// True while a call of hipDeviceSynchronize is in flight.
    waiting: AtomicBool,
    /// Set by the program to let hipDeviceSynchronize return.
    may_return: AtomicBool,
}

static SHARED: Shared = Shared { waiting: AtomicBool::new(false), may_return: AtomicBool::new(false) };
static IN_FLIGHT: AtomicI32 = AtomicI32::new(0);
static TORN_DOWN: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

extern "C" fn tear_down() {
    TORN_DOWN.store(true, SeqCst);
    // Calls in flight see TORN_DOWN and abort.
    while IN_FLIGHT.load(SeqCst) > 0 {
        spin_loop();
    }
}

fn check() {
    if TORN_DOWN.load(SeqCst) {
        std::process::abort();
    }
}

fn inside<T>(work: impl FnOnce() -> T) -> T {
    IN_FLIGHT.fetch_add(1, SeqCst);
    check();
    let result = work();
    check();
    IN_FLIGHT.fetch_sub(1, SeqCst);
    result
}

/// Registers the exit handler, as HIP does at its first call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipInit(_: c_uint) -> u32 {
    // SAFETY: the handler is in this library, which is never closed.
    unsafe { atexit(tear_down) as u32 }
}

/// Returns the address of [`SHARED`], whatever the arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipHostGetDevicePointer(to: *mut *mut c_void, _: *mut c_void, _: c_uint) -> u32 {
    // SAFETY: the caller passes a valid pointer.
    unsafe { *to = std::ptr::from_ref(&SHARED).cast_mut().cast() };
    0
}

/// Returns after the program has set `may_return`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceSynchronize() -> u32 {
    inside(|| {
        SHARED.waiting.store(true, SeqCst);
        while !SHARED.may_return.load(SeqCst) {
            check();
            std::thread::sleep(Duration::from_millis(1));
        }
        // Stays in the call for a while, in which an exit handler that does not wait would proceed.
        for _ in 0..50 {
            check();
            std::thread::sleep(Duration::from_millis(1));
        }
        0
    })
}

/// Returns immediately.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipPeekAtLastError() -> u32 {
    inside(|| 0)
}
