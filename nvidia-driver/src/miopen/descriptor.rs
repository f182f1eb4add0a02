//! Descriptors. MIOpen's are structures of this crate, validated when they are set. Each caches the corresponding
//! descriptors of cuDNN, which are created at the first use and destroyed when it is set again.
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::OnceLock;

use rocm_rs::miopen::ffi::miopenStatus_t;

use super::cudnn::{CUDNN, Cudnn, Object, bad_param, failed, to_status, write_to};
use crate::toolkit::Status;

/// A descriptor of cuDNN, destroyed on drop.
pub(super) struct Cached {
    object: Object,
    destroy: unsafe extern "C" fn(Object) -> Status,
}

impl Cached {
    /// Creates and sets a descriptor. `kind` is its name in cuDNN's functions.
    pub(super) fn of(
        kind: &str,
        create: unsafe extern "C" fn(*mut Object) -> Status,
        destroy: unsafe extern "C" fn(Object) -> Status,
        set: impl FnOnce(Object) -> Status,
    ) -> Result<Self, miopenStatus_t> {
        let mut object = null_mut();
        // SAFETY: writes one address.
        let status = unsafe { create(&mut object) };
        if status != 0 {
            return Err(failed(CUDNN.functions()?, &format!("cudnnCreate{kind}Descriptor"), status));
        }
        let descriptor = Self { object, destroy };
        match set(object) {
            0 => Ok(descriptor),
            status => Err(failed(CUDNN.functions()?, &format!("cudnnSet{kind}NdDescriptor"), status)),
        }
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        // SAFETY: created by the matching function; no use outlives this value.
        unsafe { (self.destroy)(self.object) };
    }
}

/// Returns the cached descriptor, which the first call creates.
#[inline]
pub(super) fn get_or_create(
    cached: &OnceLock<Cached>,
    create: impl FnOnce(&'static Cudnn) -> Result<Cached, miopenStatus_t>,
) -> Result<Object, miopenStatus_t> {
    if let Some(descriptor) = cached.get() {
        return Ok(descriptor.object);
    }
    let descriptor = create(CUDNN.functions()?)?;
    // If two threads create one, the second is dropped.
    Ok(cached.get_or_init(|| descriptor).object)
}

/// Returns a structure of this crate to the caller as a descriptor of MIOpen.
///
/// # Safety
/// `to` is null or valid for a write.
pub(super) unsafe fn write_descriptor<T, D>(to: *mut *mut D, descriptor: T) -> miopenStatus_t {
    if to.is_null() {
        return bad_param("a pointer to write to is null");
    }
    // SAFETY: the caller guarantees a valid pointer.
    to_status(unsafe { write_to(to, Box::into_raw(Box::new(descriptor)).cast()) })
}

/// Destroys a descriptor. Null is ignored.
///
/// # Safety
/// `descriptor` is null, or was created from a `T` and is not used any more.
pub(super) unsafe fn destroy<T, D>(descriptor: *mut D) -> miopenStatus_t {
    if !descriptor.is_null() {
        // SAFETY: the caller's condition.
        drop(unsafe { Box::from_raw(descriptor.cast::<T>()) });
    }
    to_status(Ok(()))
}

/// Returns the caller's list of numbers; `None` if it is null.
///
/// # Safety
/// `numbers` is null or points to `len` numbers.
pub(super) unsafe fn list<'a>(numbers: *const c_int, len: usize) -> Option<&'a [c_int]> {
    // SAFETY: the caller's condition.
    (!numbers.is_null()).then(|| unsafe { std::slice::from_raw_parts(numbers, len) })
}
