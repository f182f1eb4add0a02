//! Traits for the Rust types that a device buffer can hold.
use float8::F8E4M3;
use half::{bf16, f16};

/// A type whose values can be copied to a device and back, with any bits that a kernel may have written.
///
/// # Safety
/// Every bit pattern must be a valid value, and the type must have no padding and contain no pointer or
/// reference.
pub unsafe trait DeviceElement: Copy + Send + Sync + 'static {}

/// A [`DeviceElement`] whose zero has all bits zero.
///
/// # Safety
/// See [`DeviceElement`].
pub unsafe trait ZeroableElement: DeviceElement {}

macro_rules! elements {
    ($($t:ty),*) => {
        $(
            // SAFETY: every bit pattern of a number is valid, and all bits zero is 0.
            unsafe impl DeviceElement for $t {}
            // SAFETY: as above.
            unsafe impl ZeroableElement for $t {}
        )*
    };
}
elements!(u8, i8, u16, i16, u32, i32, u64, i64, usize, isize, f32, f64, f16, bf16, F8E4M3);

// SAFETY: an array consists of its elements without padding.
unsafe impl<T: DeviceElement, const N: usize> DeviceElement for [T; N] {}
// SAFETY: as above.
unsafe impl<T: ZeroableElement, const N: usize> ZeroableElement for [T; N] {}
