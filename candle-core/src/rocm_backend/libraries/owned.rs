//! Handles and descriptors of C libraries, and the failures of their calls.
use std::fmt;

/// A call that failed: its name, and what the library and the driver say of it.
#[derive(Debug)]
pub(super) struct Failure(pub(super) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The function that ends what a library made.
type Destroy<T> = unsafe extern "C" fn(*mut T) -> u32;

/// A handle or a descriptor, destroyed when it is dropped.
pub(super) struct Owned<T> {
    pub(super) raw: *mut T,
    destroy: Destroy<T>,
}

// SAFETY: handles and descriptors may be used from any thread, one at a time; they are used under a mutex of the device.
unsafe impl<T> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// What `create` writes to the place that it is given, if `checked` takes its status.
    ///
    /// # Errors
    /// That of `checked`.
    ///
    /// # Safety
    /// `create` writes what `destroy` may end.
    pub(super) unsafe fn new(
        create: impl FnOnce(*mut *mut T) -> u32,
        checked: impl FnOnce(u32) -> Result<(), Failure>,
        destroy: Destroy<T>,
    ) -> Result<Self, Failure> {
        let mut raw = std::ptr::null_mut();
        checked(create(&mut raw))?;
        Ok(Self { raw, destroy })
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: by the word given to `new`. A failure has nobody left to go to.
        let _ = unsafe { (self.destroy)(self.raw) };
    }
}

/// Logs failures of a library: the first as a warning, since others will be alike.
#[derive(Default)]
pub(super) struct FailureLog {
    has_warned: bool,
}

impl FailureLog {
    pub(super) fn add(&mut self, subject: &str, device: &str, text: impl fmt::Display) {
        match std::mem::replace(&mut self.has_warned, true) {
            false => tracing::warn!("{subject} on {device}: {text}"),
            true => tracing::debug!("{subject} on {device}: {text}"),
        }
    }
}
