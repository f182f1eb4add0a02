//! Compares two C prototypes by the way the calling convention passes each value, so that the software GPU's functions
//! may use other handle types than rocm-rs' bindings.
use std::ffi::c_void;

/// Class and size in bytes of a parameter or result. The class is `p` for an address, `i` for an integer or enumeration,
/// `f` for a floating-point number, `s` for a structure and `n` for nothing. Signedness does not affect how a value is passed.
type Passed = (char, usize);

/// A structure on the stack.
const UNIQUE_ID: Passed = ('s', 128);

/// A type that occurs in the forwarded prototypes.
pub(super) trait Value {
    const PASSED: Passed;
}

impl<T> Value for *const T {
    const PASSED: Passed = ('p', 8);
}
impl<T> Value for *mut T {
    const PASSED: Passed = ('p', 8);
}
impl<R, A, B, C> Value for Option<unsafe extern "C" fn(A, B, C) -> R> {
    const PASSED: Passed = ('p', 8);
}

impl Value for rocm_driver_api::rccl::ncclUniqueId {
    const PASSED: Passed = UNIQUE_ID;
}
impl Value for rocm_emulator::rccl::UniqueId {
    const PASSED: Passed = UNIQUE_ID;
}

macro_rules! passed {
    ($($kind:literal: $($type:ty)*;)*) => {
        $($(impl Value for $type { const PASSED: Passed = ($kind, size_of::<$type>()); })*)*
    };
}
passed! {
    'i': bool u8 i32 u32 i64 u64 usize;
    'f': f32 f64;
    'n': ();
}

/// A C function pointer type: its result first, then its parameters.
pub(super) trait Prototype: Copy {
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
// rocblas_gemm_strided_batched_ex has the most parameters: 30.
prototypes!(P1 P2 P3 P4 P5 P6 P7 P8 P9 P10 P11 P12 P13 P14 P15 P16 P17 P18 P19 P20 P21 P22 P23 P24 P25 P26 P27 P28 P29 P30);

/// Returns true if a caller of prototype `F` may call a function of prototype `G`.
pub(super) const fn is_compatible<F: Prototype, G: Prototype>(_function: G) -> bool {
    let (left, right) = (F::VALUES, G::VALUES);
    if left.len() != right.len() {
        return false;
    }
    let mut i = 0;
    while i < left.len() && left[i].0 == right[i].0 && left[i].1 == right[i].1 {
        i += 1;
    }
    i == left.len()
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
    fn prototypes_are_compared_by_how_values_are_passed() {
        type Expected = Four<*mut u8, i32, f32, Callback, u32>;
        assert!(is_compatible::<Expected, _>(reference as Expected));
        assert!(is_compatible::<Expected, _>(other_handle as Four<_, _, _, _, _>));
        assert!(!is_compatible::<Expected, _>(wider as Four<_, _, _, _, _>));
        assert!(!is_compatible::<Expected, _>(integer_for_float as Four<_, _, _, _, _>));
        assert!(!is_compatible::<Expected, _>(shorter as unsafe extern "C" fn(_, _, _) -> _));
        assert!(!is_compatible::<Expected, _>(no_result as Four<_, _, _, _, ()>));
    }
}
