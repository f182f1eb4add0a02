//! Compares two C prototypes by how the calling convention passes each value, so that a function
//! of the software GPU may name its handle types differently from rocm-rs' bindings.
use std::ffi::c_void;

/// How a parameter or result travels. Signedness does not matter to the callee's registers.
#[derive(Clone, Copy)]
pub(crate) enum Passed {
    /// An address.
    Pointer,
    /// An integer or enumeration of so many bytes.
    Integer(usize),
    /// A floating-point number of so many bytes.
    Float(usize),
    /// No result.
    Nothing,
}

/// A type that occurs in the forwarded prototypes.
pub(crate) trait Value {
    const PASSED: Passed;
}

impl<T> Value for *const T {
    const PASSED: Passed = Passed::Pointer;
}
impl<T> Value for *mut T {
    const PASSED: Passed = Passed::Pointer;
}
impl<R, A, B, C> Value for Option<unsafe extern "C" fn(A, B, C) -> R> {
    const PASSED: Passed = Passed::Pointer;
}

macro_rules! passed {
    ($($type:ty => $passed:expr;)*) => {
        $(impl Value for $type { const PASSED: Passed = $passed; })*
    };
}
passed! {
    bool => Passed::Integer(1);
    u8 => Passed::Integer(1);
    i32 => Passed::Integer(4);
    u32 => Passed::Integer(4);
    i64 => Passed::Integer(8);
    u64 => Passed::Integer(8);
    usize => Passed::Integer(8);
    f32 => Passed::Float(4);
    f64 => Passed::Float(8);
    () => Passed::Nothing;
}

/// A C function pointer type: its result first, then its parameters.
pub(crate) trait Prototype: Copy {
    const VALUES: &'static [Passed];
}

macro_rules! prototypes {
    () => { prototypes!(@implement); };
    ($first:ident $($rest:ident)*) => {
        prototypes!(@implement $first $($rest)*);
        prototypes!($($rest)*);
    };
    (@implement $($parameter:ident)*) => {
        impl<R: Value, $($parameter: Value),*> Prototype for unsafe extern "C" fn($($parameter),*) -> R {
            const VALUES: &'static [Passed] = &[R::PASSED, $($parameter::PASSED),*];
        }
    };
}
// As many parameters as rocblas_gemm_strided_batched_ex has.
prototypes!(P1 P2 P3 P4 P5 P6 P7 P8 P9 P10 P11 P12 P13 P14 P15 P16 P17 P18 P19 P20 P21 P22 P23 P24 P25 P26 P27 P28 P29 P30);

/// Whether a caller of prototype `F` may call a function of prototype `G`.
pub(crate) const fn same<F: Prototype, G: Prototype>(_called_as: F, _defined_as: G) -> bool {
    let (left, right) = (F::VALUES, G::VALUES);
    if left.len() != right.len() {
        return false;
    }
    let mut i = 0;
    while i < left.len() {
        let equal = match (left[i], right[i]) {
            (Passed::Pointer, Passed::Pointer) | (Passed::Nothing, Passed::Nothing) => true,
            (Passed::Integer(a), Passed::Integer(b)) | (Passed::Float(a), Passed::Float(b)) => a == b,
            _ => false,
        };
        if !equal {
            return false;
        }
        i += 1;
    }
    true
}

const _: () = assert!(size_of::<usize>() == 8 && size_of::<*const c_void>() == 8, "HIP is 64-bit only");

#[cfg(test)]
mod tests {
    use super::*;

    type Callback = Option<unsafe extern "C" fn(*mut u8, u32, *mut c_void)>;
    unsafe extern "C" fn reference(_: *mut u8, _: i32, _: f32, _: Callback) -> u32 {
        0
    }
    unsafe extern "C" fn other_handle(_: *const u64, _: u32, _: f32, _: *mut c_void) -> i32 {
        0
    }
    unsafe extern "C" fn wider(_: *mut u8, _: i64, _: f32, _: Callback) -> u32 {
        0
    }
    unsafe extern "C" fn integer_for_float(_: *mut u8, _: i32, _: u32, _: Callback) -> u32 {
        0
    }
    unsafe extern "C" fn shorter(_: *mut u8, _: i32, _: f32) -> u32 {
        0
    }
    unsafe extern "C" fn no_result(_: *mut u8, _: i32, _: f32, _: Callback) {}

    type Four<A, B, C, D, R> = unsafe extern "C" fn(A, B, C, D) -> R;

    #[test]
    fn prototypes_are_compared_by_how_values_travel() {
        let expected = reference as Four<*mut u8, i32, f32, Callback, u32>;
        assert!(same(expected, other_handle as Four<_, _, _, _, _>));
        assert!(!same(expected, wider as Four<_, _, _, _, _>));
        assert!(!same(expected, integer_for_float as Four<_, _, _, _, _>));
        assert!(!same(expected, shorter as unsafe extern "C" fn(_, _, _) -> _));
        assert!(!same(expected, no_result as Four<_, _, _, _, ()>));
    }
}
