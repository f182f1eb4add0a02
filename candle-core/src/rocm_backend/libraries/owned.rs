//! Handles and descriptors of C libraries, and the failures of their calls.
use std::fmt;
use std::mem::MaybeUninit;

/// A call that failed: its name, and what the library and the driver say of it.
#[derive(Debug)]
pub(super) struct Failure(pub(super) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The function that ends what a library made.
type Destroy<T> = unsafe extern "C" fn(T) -> u32;

/// A handle or a descriptor of type `T`, which is a pointer; destroyed when it is dropped.
pub(super) struct Owned<T: Copy> {
    pub(super) raw: T,
    destroy: Destroy<T>,
}

// SAFETY: handles and descriptors may be used from any thread, one at a time; they are used under a mutex of the device.
unsafe impl<T: Copy> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Sync for Owned<T> {}

impl<T: Copy> Owned<T> {
    /// Takes over what `create`, the call of this name, writes to the place that it is given.
    ///
    /// # Errors
    /// The errors of `checked`, which gets the name and the status.
    ///
    /// # Safety
    /// `T` is a pointer, and `create` writes what `destroy` may end.
    pub(super) unsafe fn new(
        name: &'static str,
        create: impl FnOnce(*mut T) -> u32,
        destroy: Destroy<T>,
        checked: fn(&'static str, u32) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let mut raw = MaybeUninit::<T>::zeroed();
        checked(name, create(raw.as_mut_ptr()))?;
        // SAFETY: a null pointer, or what was written.
        Ok(Self { raw: unsafe { raw.assume_init() }, destroy })
    }
}

impl<T: Copy> Drop for Owned<T> {
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
