//! Element types, and their conversion to and from the compute type.
use super::types::DataType;
use half::{bf16, f16};
use std::ffi::c_void;

/// A compute type of products.
pub trait Accumulator: Copy + PartialEq + Send + Sync + 'static {
    const ZERO: Self;

    /// Converts a scalar from the double that represents it exactly.
    fn from_scalar(value: f64) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn add(self, other: Self) -> Self;
    /// Returns GELU in its tanh approximation; integers have none.
    fn gelu(self) -> Self;

    /// Computes dst = beta * dst + alpha * lhs * rhs. dst is not read if beta is zero.
    ///
    /// # Safety
    /// All three matrices must be readable for the given sizes and strides; dst must be writable and disjoint from the
    /// others.
    unsafe fn gemm(
        dst: Output<Self>,
        lhs: Input<Self>,
        rhs: Input<Self>,
        alpha: Self,
        beta: Self,
        k: usize,
        threads: usize,
    );
}

/// A column-major output matrix.
#[derive(Clone, Copy)]
pub struct Output<T> {
    pub data: *mut T,
    pub rows: usize,
    pub columns: usize,
    pub ld: usize,
}

/// An input matrix with its row and column strides.
#[derive(Clone, Copy)]
pub struct Input<T> {
    pub data: *const T,
    pub row_step: usize,
    pub column_step: usize,
}

macro_rules! floating_point {
    ($($type:ty),*) => {$(
        impl Accumulator for $type {
            const ZERO: Self = 0.0;

            fn from_scalar(value: f64) -> Self {
                value as $type
            }

            fn multiply(self, other: Self) -> Self {
                self * other
            }

            fn add(self, other: Self) -> Self {
                self + other
            }

            fn gelu(self) -> Self {
                let inner = (2.0 / std::f64::consts::PI).sqrt() as $type * (self + 0.044715 * self * self * self);
                0.5 * self * (1.0 + inner.tanh())
            }

            unsafe fn gemm(
                dst: Output<Self>, lhs: Input<Self>, rhs: Input<Self>, alpha: Self, beta: Self, k: usize, threads: usize,
            ) {
                let parallelism =
                    if threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
                // SAFETY: the caller guarantees the three matrices. In the gemm crate, alpha scales the destination and
                // beta the product.
                unsafe {
                    gemm::gemm(
                        dst.rows, dst.columns, k,
                        dst.data, dst.ld as isize, 1, beta != 0.0,
                        lhs.data, lhs.column_step as isize, lhs.row_step as isize,
                        rhs.data, rhs.column_step as isize, rhs.row_step as isize,
                        beta, alpha, false, false, false, parallelism,
                    );
                }
            }
        }
    )*};
}
floating_point!(f32, f64);

impl Accumulator for i32 {
    const ZERO: Self = 0;

    fn from_scalar(value: f64) -> Self {
        value as i32
    }

    fn multiply(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }

    fn add(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    fn gelu(self) -> Self {
        self
    }

    unsafe fn gemm(
        dst: Output<Self>,
        lhs: Input<Self>,
        rhs: Input<Self>,
        alpha: Self,
        beta: Self,
        k: usize,
        _: usize,
    ) {
        for column in 0..dst.columns {
            for row in 0..dst.rows {
                // SAFETY: the caller guarantees the three matrices.
                unsafe {
                    let mut sum = 0i32;
                    for depth in 0..k {
                        let left = *lhs.data.add(row * lhs.row_step + depth * lhs.column_step);
                        let right = *rhs.data.add(depth * rhs.row_step + column * rhs.column_step);
                        sum = sum.wrapping_add(left.wrapping_mul(right));
                    }
                    let place = dst.data.add(column * dst.ld + row);
                    let before = if beta == 0 { 0 } else { (*place).wrapping_mul(beta) };
                    *place = before.wrapping_add(sum.wrapping_mul(alpha));
                }
            }
        }
    }
}

/// A storage type of matrices whose products are computed in `W`.
pub trait Element<W>: Copy + Send + Sync + 'static {
    /// True if the type is `W` itself, so that no widened copy is needed.
    const IS_ACCUMULATOR: bool;
    fn widen(self) -> W;
}

/// A storage type to which results are rounded.
pub trait Rounded<W>: Element<W> {
    fn narrow(value: W) -> Self;
}

macro_rules! elements {
    ($($type:ty => $work:ty, $same:literal, $widen:expr, $narrow:expr;)*) => {$(
        impl Element<$work> for $type {
            const IS_ACCUMULATOR: bool = $same;
            fn widen(self) -> $work {
                $widen(self)
            }
        }

        impl Rounded<$work> for $type {
            fn narrow(value: $work) -> Self {
                $narrow(value)
            }
        }
    )*};
}
elements! {
    f64 => f64, true, std::convert::identity, std::convert::identity;
    f32 => f32, true, std::convert::identity, std::convert::identity;
    i32 => i32, true, std::convert::identity, std::convert::identity;
    f16 => f32, false, f16::to_f32, f16::from_f32;
    bf16 => f32, false, bf16::to_f32, bf16::from_f32;
    i8 => i32, false, i32::from, |value| value as i8;
    f32 => f64, false, f64::from, |value| value as f32;
    f16 => f64, false, f16::to_f64, |value| f16::from_f32(to_odd(value));
    bf16 => f64, false, bf16::to_f64, |value| bf16::from_f32(to_odd(value));
}

/// Rounds to f32 to odd, so that rounding again to a 16-bit type gives the same result as rounding once.
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    let widened = f64::from(near);
    if widened == value || value.is_nan() {
        return near;
    }
    let cut = near.to_bits() - u32::from(widened.abs() > value.abs());
    f32::from_bits(cut | 1)
}

/// Defines 8-bit floats with four exponent bits and three fraction bits. They are only read.
macro_rules! floats_of_8_bits {
    ($($(#[$doc:meta])* $type:ident: bias $bias:literal, NaN $($nan:literal)|+;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub struct $type(pub u8);

        impl Element<f32> for $type {
            const IS_ACCUMULATOR: bool = false;
            fn widen(self) -> f32 {
                match self.0 {
                    $($nan)|+ => f32::NAN,
                    code => e4m3(code, $bias),
                }
            }
        }
    )*};
}
floats_of_8_bits! {
    /// e4m3 of the Open Compute Project.
    F8: bias 7, NaN 0x7f | 0xff;
    /// e4m3 of gfx942.
    F8Fnuz: bias 8, NaN 0x80;
}

/// Returns the value of an e4m3 code.
fn e4m3(code: u8, bias: i32) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let significand = if exponent == 0 { fraction } else { 8.0 + fraction };
    // Exact: all of them are normal numbers of f32.
    let magnitude = significand * f32::from_bits(((127 - 3 - bias + exponent.max(1)) as u32) << 23);
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Reads a scalar or an element of a bias.
///
/// # Safety
/// `place` must point to an aligned value of that type.
pub unsafe fn read_scalar(kind: DataType, place: *const c_void) -> f64 {
    // SAFETY: the caller guarantees the pointer and its type.
    unsafe {
        match kind {
            DataType::F16 => place.cast::<f16>().read().to_f64(),
            DataType::Bf16 => place.cast::<bf16>().read().to_f64(),
            DataType::F32 => f64::from(place.cast::<f32>().read()),
            DataType::F64 => place.cast::<f64>().read(),
            DataType::I8 => f64::from(place.cast::<i8>().read()),
            DataType::I32 => f64::from(place.cast::<i32>().read()),
            DataType::F8 => f64::from(place.cast::<F8>().read().widen()),
            DataType::F8Fnuz => f64::from(place.cast::<F8Fnuz>().read().widen()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half_of(value: f64) -> f16 {
        f16::narrow(value)
    }

    fn bf16_of(value: f64) -> bf16 {
        bf16::narrow(value)
    }

    #[test]
    fn doubles_are_rounded_to_16_bits_once() {
        // At 1 the unit in the last place is 2^-10 in f16 and 2^-7 in bf16. Half a unit rounds to even, slightly more rounds up.
        let more = 1.0 + 2f64.powi(-50);
        assert_eq!(half_of(1.0 + 2f64.powi(-11)).to_bits(), f16::ONE.to_bits());
        assert_eq!(half_of(more + 2f64.powi(-11)).to_bits(), f16::ONE.to_bits() + 1);
        assert_eq!(half_of(-more - 2f64.powi(-11)).to_bits(), f16::NEG_ONE.to_bits() + 1);
        assert_eq!(bf16_of(1.0 + 2f64.powi(-8)).to_bits(), bf16::ONE.to_bits());
        assert_eq!(bf16_of(more + 2f64.powi(-8)).to_bits(), bf16::ONE.to_bits() + 1);
        assert_eq!(half_of(1e300), f16::INFINITY);
        assert_eq!(bf16_of(-f64::MAX), bf16::NEG_INFINITY);
        assert_eq!(half_of(-1e-300).to_bits(), f16::NEG_ZERO.to_bits());
        assert!(half_of(f64::NAN).is_nan());
    }
}
