//! Owned handles and descriptors of C libraries, and the failures of their calls.
use std::fmt;
use std::mem::MaybeUninit;

/// Message of a failed call: its name, and the errors of the library and the driver.
#[derive(Debug)]
pub(super) struct Failure(pub(super) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A library function that destroys a handle or a descriptor.
type Destroy<T> = unsafe extern "C" fn(T) -> u32;

/// A handle or a descriptor of the pointer type `T`, which is destroyed on drop.
pub(super) struct Owned<T: Copy> {
    pub(super) raw: T,
    destroy: Destroy<T>,
}

// SAFETY: handles and descriptors may be used from any thread, one at a time; a mutex of the device guards their use.
unsafe impl<T: Copy> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Sync for Owned<T> {}

impl<T: Copy> Owned<T> {
    /// Calls `create`, the library function `name`, and takes ownership of the handle that it writes.
    ///
    /// # Errors
    /// If `checked` returns an error for the name and the status.
    ///
    /// # Safety
    /// `T` must be a pointer type, and `create` must write a handle that `destroy` accepts.
    pub(super) unsafe fn new(
        name: &'static str,
        create: impl FnOnce(*mut T) -> u32,
        destroy: Destroy<T>,
        checked: fn(&'static str, u32) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let mut raw = MaybeUninit::<T>::zeroed();
        checked(name, create(raw.as_mut_ptr()))?;
        // SAFETY: the value is a null pointer or the handle that was written.
        Ok(Self { raw: unsafe { raw.assume_init() }, destroy })
    }
}

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: guaranteed by the caller of `new`. A drop cannot return the status.
        let _ = unsafe { (self.destroy)(self.raw) };
    }
}

/// Logs failures of a library. The first is a warning; later ones, which are likely similar, are debug messages.
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
