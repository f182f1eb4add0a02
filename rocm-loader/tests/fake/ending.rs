//! A stand-in for libamdhip64 that tears itself down in an exit handler, as HIP does, and ends the process by
//! a signal if a call is in flight then, or comes later.
#![allow(non_snake_case)]
use std::ffi::{c_int, c_uint, c_void};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::time::Duration;

/// What the program that uses this library sees and sets.
#[repr(C)]
pub struct Shared {
    /// A call of hipDeviceSynchronize is in flight.
    waiting: AtomicBool,
    /// It may return.
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
    // Whoever is inside finds out and aborts.
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
    // SAFETY: the handler lies in this library, which is never closed.
    unsafe { atexit(tear_down) as u32 }
}

/// Gives the address of [`SHARED`], whatever it is asked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipHostGetDevicePointer(to: *mut *mut c_void, _: *mut c_void, _: c_uint) -> u32 {
    // SAFETY: the caller's place for one pointer.
    unsafe { *to = std::ptr::from_ref(&SHARED).cast_mut().cast() };
    0
}

/// Returns when the program lets it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceSynchronize() -> u32 {
    inside(|| {
        SHARED.waiting.store(true, SeqCst);
        while !SHARED.may_return.load(SeqCst) {
            check();
            std::thread::sleep(Duration::from_millis(1));
        }
        // Still inside for a while, in which a handler that does not wait would go on.
        for _ in 0..50 {
            check();
            std::thread::sleep(Duration::from_millis(1));
        }
        0
    })
}

/// A short call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipPeekAtLastError() -> u32 {
    inside(|| 0)
}
