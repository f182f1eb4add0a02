//! Exit handler that writes the profile.
use std::ffi::c_int;

unsafe extern "C" {
    /// C's `atexit`.
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// Registers an exit handler that writes the profile. Returns false if the C library cannot register it.
pub(super) fn write_profile() -> bool {
    // SAFETY: `ended` does not unwind, and it is never unloaded.
    unsafe { atexit(ended) == 0 }
}

extern "C" fn ended() {
    // Errors can only be printed, and a panic must not unwind into C's exit.
    match super::catch_panic(|| super::RUNTIME.get().map_or(Ok(()), super::Runtime::finish_profile)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("the software GPU cannot write its profile: {error}"),
        Err(panic) => eprintln!("{panic}, while it wrote its profile"),
    }
}
