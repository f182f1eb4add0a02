//! What happens when the process ends in an orderly way.
use std::ffi::c_int;

unsafe extern "C" {
    /// C's `atexit`.
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// Has the profile written when `main` returns or the process calls `exit`. False if the host cannot.
pub(super) fn write_profile() -> bool {
    // SAFETY: the function is C's, and what it gets neither unwinds nor ends before the process.
    unsafe { atexit(ended) == 0 }
}

extern "C" fn ended() {
    // An error cannot be reported any more; a panic must not leave C's exit.
    match super::catch_panic(|| super::RUNTIME.get().map_or(Ok(()), super::Runtime::finish_profile)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("the software GPU cannot write its profile: {error}"),
        Err(panic) => eprintln!("{panic}, while it wrote its profile"),
    }
}
