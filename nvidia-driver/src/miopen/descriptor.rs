//! MIOpen's descriptors are structures of ours, checked when they are set. Each keeps cuDNN's descriptors of it, which
//! are made at the first use and given up when it is set again.
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::OnceLock;

use rocm_rs::miopen::ffi::miopenStatus_t;

use super::cudnn::{CUDNN, Cudnn, Object, bad, failed, give, told};
use crate::toolkit::Status;

/// A descriptor of cuDNN's.
pub(super) struct Built {
    object: Object,
    destroy: unsafe extern "C" fn(Object) -> Status,
}

impl Built {
    /// Makes one and sets it. `kind` names it in cuDNN's functions.
    pub(super) fn make(
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
        let built = Self { object, destroy };
        match set(object) {
            0 => Ok(built),
            status => Err(failed(CUDNN.functions()?, &format!("cudnnSet{kind}NdDescriptor"), status)),
        }
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        // SAFETY: made with its own function, and given to nobody who outlives this.
        unsafe { (self.destroy)(self.object) };
    }
}

/// What a place keeps, which is made at the first call.
#[inline]
pub(super) fn kept(
    place: &OnceLock<Built>,
    make: impl FnOnce(&'static Cudnn) -> Result<Built, miopenStatus_t>,
) -> Result<Object, miopenStatus_t> {
    if let Some(built) = place.get() {
        return Ok(built.object);
    }
    let built = make(CUDNN.functions()?)?;
    // Of two threads' one is kept, the other dropped.
    Ok(place.get_or_init(|| built).object)
}

/// Gives out a structure of ours as a descriptor of MIOpen's.
///
/// # Safety
/// `to` is null or a place for one.
pub(super) unsafe fn give_out<T, D>(to: *mut *mut D, descriptor: T) -> miopenStatus_t {
    if to.is_null() {
        return bad("a pointer to write to is null");
    }
    // SAFETY: the caller's place.
    told(unsafe { give(to, Box::into_raw(Box::new(descriptor)).cast()) })
}

/// Takes it back. Null is nothing.
///
/// # Safety
/// Null, or given out as a `T` and not used any more.
pub(super) unsafe fn take_back<T, D>(descriptor: *mut D) -> miopenStatus_t {
    if !descriptor.is_null() {
        // SAFETY: the caller's condition.
        drop(unsafe { Box::from_raw(descriptor.cast::<T>()) });
    }
    told(Ok(()))
}

/// A list of the caller's.
///
/// # Safety
/// Null, or `len` numbers.
pub(super) unsafe fn list<'a>(numbers: *const c_int, len: usize) -> Option<&'a [c_int]> {
    // SAFETY: the caller's condition.
    (!numbers.is_null()).then(|| unsafe { std::slice::from_raw_parts(numbers, len) })
}
