//! Failures of the software GPU, asked for by a test.
use rocm_emulator::{Injection, inject};

/// Ends what a test asked for, also when it fails.
pub struct Injected;

impl Injected {
    /// Asks for failures until this is dropped.
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
