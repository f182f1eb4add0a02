//! Injects failures into the software GPU.
use rocm_emulator::{Injection, inject};

/// Guard that removes the injected failures when dropped, also if the test panics.
pub struct Injected;

impl Injected {
    /// Injects failures until the guard is dropped.
    pub fn new(injection: Injection) -> Self {
        inject(injection);
        Self
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        inject(Injection::default());
    }
}
