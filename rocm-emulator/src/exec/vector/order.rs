//! Minima and maxima of floats. The ISA has three variants, which treat NaN differently.

/// f32 or f64.
pub trait Float: Copy + PartialOrd {
    /// An integer with the order of the floats, where -0 precedes +0.
    type Key: Ord;

    fn key(self) -> Self::Key;
    fn is_nan(self) -> bool;
    fn is_signalling(self) -> bool;
    /// Quiets a NaN.
    fn quiet(self) -> Self;
}

macro_rules! floats {
    ($($float:ident: $signed:ident, $unsigned:ident;)*) => {$(
        impl Float for $float {
            type Key = $signed;

            #[inline(always)]
            fn key(self) -> $signed {
                let bits = self.to_bits() as $signed;
                bits ^ ((bits >> ($signed::BITS - 1)) as $unsigned >> 1) as $signed
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self.is_nan()
            }
            #[inline(always)]
            fn is_signalling(self) -> bool {
                const INFINITY: $unsigned = $float::INFINITY.to_bits();
                (self.to_bits() & $unsigned::MAX >> 1).wrapping_sub(INFINITY + 1) < (1 << ($float::MANTISSA_DIGITS - 2)) - 1
            }
            #[inline(always)]
            fn quiet(self) -> $float {
                $float::from_bits(self.to_bits() | (1 << ($float::MANTISSA_DIGITS - 2)))
            }
        }
    )*};
}
floats! {
    f32: i32, u32;
    f64: i64, u64;
}

#[inline(always)]
fn smaller<F: Float>(a: F, b: F) -> F {
    if a.key() < b.key() { a } else { b }
}

#[inline(always)]
fn larger<F: Float>(a: F, b: F) -> F {
    if a.key() > b.key() { a } else { b }
}

/// Returns `result` unless an operand is NaN. A signalling NaN takes precedence; a quiet NaN is ignored.
#[inline(always)]
fn apply_ieee_nan<F: Float>(a: F, b: F, result: F) -> F {
    let number = if a.is_nan() { b } else { result };
    let number = if b.is_nan() { a } else { number };
    let number = if b.is_signalling() { b.quiet() } else { number };
    if a.is_signalling() { a.quiet() } else { number }
}

/// Computes v_min in IEEE mode.
#[inline(always)]
pub fn minimum<F: Float>(a: F, b: F) -> F {
    apply_ieee_nan(a, b, smaller(a, b))
}

/// Computes v_max in IEEE mode.
#[inline(always)]
pub fn maximum<F: Float>(a: F, b: F) -> F {
    apply_ieee_nan(a, b, larger(a, b))
}

/// Computes v_med3, which is the minimum if an operand is NaN.
#[inline(always)]
pub fn median<F: Float>(a: F, b: F, c: F) -> F {
    middle([a, b, c], minimum, maximum)
}

/// Computes gfx12's v_med3_num, which is the minimum if an operand is NaN.
#[inline(always)]
pub fn median_number<F: Float>(a: F, b: F, c: F) -> F {
    middle([a, b, c], min_number, max_number)
}

#[inline(always)]
fn middle<F: Float>([a, b, c]: [F; 3], min: impl Fn(F, F) -> F, max: impl Fn(F, F) -> F) -> F {
    let largest = max(max(a, b), c);
    let rest = if largest == b { max(a, c) } else { max(a, b) };
    let rest = if largest == a { max(b, c) } else { rest };
    if a.is_nan() || b.is_nan() || c.is_nan() { min(min(a, b), c) } else { rest }
}

/// Returns `result`, or the other operand if one is NaN, or a quiet NaN if both are.
#[inline(always)]
fn ignore_nan<F: Float>(a: F, b: F, result: F) -> F {
    let number = if a.is_nan() { b } else { result };
    let number = if b.is_nan() { a } else { number };
    if number.is_nan() { number.quiet() } else { number }
}

/// Computes gfx12's v_min_num: IEEE 754-2019's minimumNumber.
#[inline(always)]
pub fn min_number<F: Float>(a: F, b: F) -> F {
    ignore_nan(a, b, smaller(a, b))
}

/// Computes gfx12's v_max_num: IEEE 754-2019's maximumNumber.
#[inline(always)]
pub fn max_number<F: Float>(a: F, b: F) -> F {
    ignore_nan(a, b, larger(a, b))
}

/// Returns `result`, or the quieted NaN if an operand is NaN. Signalling NaNs take precedence.
#[inline(always)]
fn propagate_nan<F: Float>(a: F, b: F, result: F) -> F {
    let value = if b.is_nan() { b.quiet() } else { result };
    let value = if a.is_nan() { a.quiet() } else { value };
    if b.is_signalling() && !a.is_signalling() { b.quiet() } else { value }
}

/// Computes gfx12's v_minimum: IEEE 754-2019's minimum, which propagates NaN.
#[inline(always)]
pub fn min_or_nan<F: Float>(a: F, b: F) -> F {
    propagate_nan(a, b, smaller(a, b))
}

/// Computes gfx12's v_maximum: IEEE 754-2019's maximum, which propagates NaN.
#[inline(always)]
pub fn max_or_nan<F: Float>(a: F, b: F) -> F {
    propagate_nan(a, b, larger(a, b))
}
