//! Reductions of elements over the ranks.
use super::types::{DataType, Op};
use half::{bf16, f16};

/// A type of elements with the type in which it is reduced.
trait Reduced: Copy {
    type Work: Copy;
    fn widen(self) -> Self::Work;
    fn narrow(value: Self::Work) -> Self;
    fn add(left: Self::Work, right: Self::Work) -> Self::Work;
    fn max(left: Self::Work, right: Self::Work) -> Self::Work;
}

macro_rules! reduced {
    ($($type:ty => $work:ty, $widen:expr, $narrow:expr, $add:expr;)*) => {$(
        impl Reduced for $type {
            type Work = $work;

            fn widen(self) -> $work {
                $widen(self)
            }

            fn narrow(value: $work) -> Self {
                $narrow(value)
            }

            fn add(left: $work, right: $work) -> $work {
                $add(left, right)
            }

            fn max(left: $work, right: $work) -> $work {
                left.max(right)
            }
        }
    )*};
}
use std::convert::identity;
use std::ops::Add;
reduced! {
    f16 => f32, f16::to_f32, f16::from_f32, Add::add;
    bf16 => f32, bf16::to_f32, bf16::from_f32, Add::add;
    f32 => f32, identity, identity, Add::add;
    f64 => f64, identity, identity, Add::add;
    u8 => u8, identity, identity, u8::wrapping_add;
    i32 => i32, identity, identity, i32::wrapping_add;
    u32 => u32, identity, identity, u32::wrapping_add;
    i64 => i64, identity, identity, i64::wrapping_add;
}

/// Writes the reduction of `bytes` bytes of each source, in the order of the sources.
///
/// # Safety
/// The sources must be readable, the target writable and not referenced, and all aligned to the elements.
pub unsafe fn reduce(datatype: DataType, op: Op, sources: &[*const u8], target: *mut u8, bytes: usize) {
    // SAFETY: the caller guarantees it for every arm.
    unsafe {
        match datatype {
            DataType::U8 => reduce_as::<u8>(op, sources, target, bytes),
            DataType::I32 => reduce_as::<i32>(op, sources, target, bytes),
            DataType::U32 => reduce_as::<u32>(op, sources, target, bytes),
            DataType::I64 => reduce_as::<i64>(op, sources, target, bytes),
            DataType::F16 => reduce_as::<f16>(op, sources, target, bytes),
            DataType::Bf16 => reduce_as::<bf16>(op, sources, target, bytes),
            DataType::F32 => reduce_as::<f32>(op, sources, target, bytes),
            DataType::F64 => reduce_as::<f64>(op, sources, target, bytes),
        }
    }
}

/// # Safety
/// The conditions of [`reduce`].
unsafe fn reduce_as<T: Reduced>(op: Op, sources: &[*const u8], target: *mut u8, bytes: usize) {
    let combine = match op {
        Op::Sum => T::add,
        Op::Max => T::max,
    };
    for index in 0..bytes / size_of::<T>() {
        // SAFETY: the caller guarantees the sources.
        let values = sources.iter().map(|source| unsafe { source.cast::<T>().add(index).read() }.widen());
        if let Some(value) = values.reduce(combine) {
            // SAFETY: the caller guarantees the target.
            unsafe { target.cast::<T>().add(index).write(T::narrow(value)) };
        }
    }
}
