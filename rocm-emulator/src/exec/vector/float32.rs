//! f32 arithmetic.
use super::kind::{B32, F32, I32, U32};
use super::operation::operations;

operations! { select;
    "v_fma_f32" Fma [Fma] (a: F32, b: F32, c: F32) -> F32 { a.mul_add(b, c) }
    // gfx9's multiply-add flushes denormals, whatever the mode.
    "v_mad_f32" Mad [Mad] (a: F32, b: F32, c: F32) -> F32 { mad(a, b, c) }
    "v_mad_legacy_f32" MadDx9Zero (a: F32, b: F32, c: F32) -> F32 {
        if a == 0.0 || b == 0.0 { flushed(c) } else { mad(a, b, c) }
    }
    "v_mul_dx9_zero_f32" MulDx9Zero (a: F32, b: F32) -> F32 { if a == 0.0 || b == 0.0 { 0.0 } else { a * b } }
    "v_fma_dx9_zero_f32" FmaDx9Zero (a: F32, b: F32, c: F32) -> F32 {
        if a == 0.0 || b == 0.0 { c } else { a.mul_add(b, c) }
    }
    "v_mullit_f32" Mullit (a: F32, b: F32, c: F32) -> F32 {
        let dark = b <= f32::MIN || b.is_nan() || c <= 0.0 || c.is_nan();
        if dark { f32::MIN } else { a * b }
    }
    "v_cubeid_f32" CubeFace (x: F32, y: F32, z: F32) -> F32 { cube(x, y, z).face }
    "v_cubesc_f32" CubeS (x: F32, y: F32, z: F32) -> F32 { cube(x, y, z).s }
    "v_cubetc_f32" CubeT (x: F32, y: F32, z: F32) -> F32 { cube(x, y, z).t }
    "v_cubema_f32" CubeMajor (x: F32, y: F32, z: F32) -> F32 { cube(x, y, z).twice_major }
    "v_fract_f32" Fract (a: F32) -> F32 { fract(a) }
    "v_ldexp_f32" Ldexp (a: F32, n: I32) -> F32 { ldexp(a, n) }
    "v_frexp_mant_f32" FrexpMantissa (a: F32) -> F32 { frexp(a).0 }
    "v_frexp_exp_i32_f32" FrexpExponent (a: F32) -> I32 { frexp(a).1 }
    "v_mov_b32" Move (a: B32) -> U32 { a }
}

/// Flushes a denormal to a zero of its sign.
#[inline(always)]
pub fn flushed(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits })
}

#[inline(always)]
fn mad(a: f32, b: f32, c: f32) -> f32 {
    flushed(flushed(flushed(a) * flushed(b)) + flushed(c))
}

/// Returns the difference to the next lower integer, which is always less than 1.
#[inline(always)]
pub fn fract(value: f32) -> f32 {
    let part = value - value.floor();
    if part >= 1.0 { f32::from_bits(0x3f7f_ffff) } else { part }
}

/// Returns value * 2^n, rounded once.
#[inline(always)]
pub fn ldexp(value: f32, n: i32) -> f32 {
    // Within these bounds every scaled f32 is exact in f64; beyond them all results are 0 or infinite.
    let n = n.clamp(-400, 400);
    (f64::from(value) * f64::from_bits(((1023 + n) as u64) << 52)) as f32
}

/// Returns mantissa in [0.5, 1) and exponent. Zeros, infinities and NaN are returned with exponent 0.
#[inline(always)]
pub fn frexp(value: f32) -> (f32, i32) {
    let wide = f64::from(value);
    let bits = wide.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1022;
    let mantissa = f64::from_bits(bits & !(0x7ff << 52) | 1022 << 52) as f32;
    let special = value == 0.0 || value.is_nan() || value.is_infinite();
    if special { (value, 0) } else { (mantissa, exponent) }
}

/// Intersection of a direction with a cube (v_cube*).
struct CubePoint {
    face: f32,
    s: f32,
    t: f32,
    twice_major: f32,
}

/// Faces are numbered +x, -x, +y, -y, +z, -z. Of equal coordinates, z precedes y, and y precedes x.
#[inline(always)]
fn cube(x: f32, y: f32, z: f32) -> CubePoint {
    let (width, height, depth) = (x.abs(), y.abs(), z.abs());
    let point = |major: f32, face: f32, s: f32, t: f32| CubePoint {
        face: if major < 0.0 { face + 1.0 } else { face },
        s,
        t,
        twice_major: 2.0 * major,
    };
    if depth >= width && depth >= height {
        point(z, 4.0, if z < 0.0 { -x } else { x }, -y)
    } else if height >= width {
        point(y, 2.0, x, if y < 0.0 { -z } else { z })
    } else {
        point(x, 0.0, if x < 0.0 { z } else { -z }, -y)
    }
}
