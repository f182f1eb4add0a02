//! Which Rust types a device buffer may hold.
use float8::F8E4M3;
use half::{bf16, f16};

/// A type whose values may be copied to a device and back, whatever a kernel has written there.
///
/// # Safety
/// Every bit pattern of the type's size must be a valid value, without padding, and the type must hold no
/// pointer or reference.
pub unsafe trait DeviceElement: Copy + Send + Sync + 'static {}

/// A [`DeviceElement`] for which all bits zero is a value that makes sense: the type's own zero.
///
/// # Safety
/// See [`DeviceElement`], of which this is a part.
pub unsafe trait ZeroableElement: DeviceElement {}

macro_rules! elements {
    ($($t:ty),*) => {
        $(
            // SAFETY: a plain number: each bit pattern is one, and all bits zero is 0.
            unsafe impl DeviceElement for $t {}
            // SAFETY: as above.
            unsafe impl ZeroableElement for $t {}
        )*
    };
}
elements!(u8, i8, u16, i16, u32, i32, u64, i64, usize, isize, f32, f64, f16, bf16, F8E4M3);

// SAFETY: an array has the bit patterns of its elements one after the other, without padding.
unsafe impl<T: DeviceElement, const N: usize> DeviceElement for [T; N] {}
// SAFETY: as above.
unsafe impl<T: ZeroableElement, const N: usize> ZeroableElement for [T; N] {}
