//! Rounding of the sums of products in matrix cores. AMD documents only f32 and f64: a chain of fused
//! multiply-adds. The rest follows the measurements of MMA-Sim (arXiv:2511.10909). Rounding is to nearest
//! even unless a comment says otherwise, and MODE has no effect.
use super::element::Element;
use super::shape::Shape;
use crate::isa::Family;

/// Fraction bits below the largest exponent that gfx942 keeps of each term.
const ALIGNED_BITS: i32 = 24;
/// Fraction bits that gfx942 keeps of the sum of products when it adds the addend.
const SUM_BITS: i32 = 31;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Arithmetic {
    /// f32 and f64: a chain of fused multiply-adds in the order of k.
    Chain,
    /// gfx908: groups of this many products and the addend are summed exactly and rounded once.
    Exact(usize),
    /// gfx90a: every product and sum is rounded. Pairs are added first, then pairs of pairs,
    /// then the addend. Denormals are flushed to zero, those of the inputs to +0.
    Pairs { group: usize, smallest_normal: f32 },
    /// gfx942: `group` products are truncated at [`ALIGNED_BITS`] below the largest exponent and added. The
    /// sum and the addend are aligned in the same manner, but rounded down, and the result is rounded.
    Aligned { group: usize, exponents: [i32; 2] },
    /// gfx942's 8-bit floats: like `Aligned`, but products of even and odd k are first summed separately.
    AlignedHalves { group: usize, exponents: [i32; 2] },
}

impl Arithmetic {
    pub(super) fn of(family: Family, shape: &Shape) -> Self {
        let exponents = [shape.a, shape.b].map(Element::smallest_exponent);
        match (shape.a, family) {
            (Element::F32 | Element::F64 | Element::I8, _) => Self::Chain,
            (Element::Xf32, _) => Self::Aligned { group: 4, exponents },
            _ if shape.a.width() == 8 => Self::AlignedHalves { group: 16, exponents },
            (_, Family::Cdna1) => Self::Exact(shape.per_lane),
            (_, Family::Cdna2) => {
                let smallest_normal = power(exponents[0]) as f32;
                Self::Pairs { group: shape.per_lane, smallest_normal }
            }
            _ => Self::Aligned { group: 8, exponents },
        }
    }

    /// Adds the products of a row and a column to the addend.
    pub(super) fn add_products(self, addend: f32, a: &[f32], b: &[f32]) -> f32 {
        let groups = |size: usize| a.chunks(size).zip(b.chunks(size));
        match self {
            Self::Chain => a.iter().zip(b).fold(addend, |sum, (a, b)| a.mul_add(*b, sum)),
            Self::Exact(group) => groups(group).fold(addend, |sum, (a, b)| exact(sum, a, b)),
            Self::Pairs { group, smallest_normal } => {
                let addend = normal_or_zero(addend, f32::MIN_POSITIVE);
                groups(group).fold(addend, |sum, (a, b)| flushed(sum + pairwise_sum(a, b, smallest_normal)))
            }
            Self::Aligned { group, exponents } => {
                groups(group).fold(addend, |sum, (a, b)| aligned(sum, a, b, exponents))
            }
            Self::AlignedHalves { group, exponents } => {
                groups(group).fold(addend, |sum, (a, b)| aligned_halves(sum, a, b, exponents))
            }
        }
    }
}

/// Returns the sum of the products and the addend, rounded once.
fn exact(addend: f32, a: &[f32], b: &[f32]) -> f32 {
    // Products of 16-bit floats are exact in f64, and their sums don't overflow it.
    let terms = || a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).chain([f64::from(addend)]);
    let rounded: f64 = terms().sum();
    if !rounded.is_finite() {
        return rounded as f32;
    }
    // The sum as a list of parts that do not overlap, the largest last.
    let mut parts = [0.0f64; 8];
    let mut count = 0;
    for mut term in terms() {
        let mut kept = 0;
        for i in 0..count {
            let (sum, error) = two_sum(term, parts[i]);
            if error.abs() > 0.0 {
                parts[kept] = error;
                kept += 1;
            }
            term = sum;
        }
        parts[kept] = term;
        count = kept + 1;
    }
    let (mut top, mut rest) = (parts[count - 1], 0.0f64);
    for part in parts[..count - 1].iter().rev() {
        (top, rest) = two_sum(top, *part);
        if rest.abs() > 0.0 {
            break;
        }
    }
    if top.abs() > 0.0 && rest.abs() > 0.0 {
        // Rounding to odd preserves the information that rounding to f32 needs.
        let bits = top.to_bits();
        let odd = if (rest > 0.0) == (top > 0.0) { bits + 1 } else { bits - 1 };
        top = f64::from_bits(if bits & 1 == 0 { odd } else { bits });
    }
    // A zero has the sign of the plain sum.
    if top.abs() > 0.0 { top as f32 } else { rounded as f32 }
}

/// Returns the rounded sum and the rounding error.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// Returns the sum of the products, added in pairs.
fn pairwise_sum(a: &[f32], b: &[f32], smallest_normal: f32) -> f32 {
    match (a, b) {
        ([a], [b]) => flushed(normal_or_zero(*a, smallest_normal) * normal_or_zero(*b, smallest_normal)),
        _ => {
            let half = a.len() / 2;
            let [a, b] = [a, b].map(|values| values.split_at(half));
            flushed(pairwise_sum(a.0, b.0, smallest_normal) + pairwise_sum(a.1, b.1, smallest_normal))
        }
    }
}

/// Flushes a denormal input to +0, whatever its sign.
fn normal_or_zero(value: f32, smallest_normal: f32) -> f32 {
    if value.abs() < smallest_normal { 0.0 } else { value }
}

/// Flushes a denormal result to a zero of its sign.
fn flushed(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0f32.copysign(value) } else { value }
}

/// A sum of aligned numbers, and the exponent to which they were aligned.
#[derive(Clone, Copy)]
struct Sum {
    value: f64,
    exponent: i32,
}

impl Sum {
    const ZERO: Self = Self { value: 0.0, exponent: i32::MIN };

    /// Adds products, each truncated at [`ALIGNED_BITS`] below the largest exponent.
    fn of_products(products: impl Iterator<Item = Self> + Clone) -> Self {
        let exponent = products.clone().map(|product| product.exponent).max().unwrap_or(i32::MIN);
        let cut = |product: Self| product.at(exponent, ALIGNED_BITS).trunc();
        let sum: f64 = products.map(cut).sum();
        if exponent == i32::MIN {
            Self::ZERO
        } else {
            Self { value: sum * power(exponent - ALIGNED_BITS), exponent }
        }
    }

    /// Returns the value in units of the bit `bits` places below `exponent`.
    fn at(self, exponent: i32, bits: i32) -> f64 {
        if self.exponent == i32::MIN { 0.0 } else { self.value * power(bits - exponent) }
    }
}

/// Returns 2^exponent, whose range covers products of numbers as small as bf16's.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// Returns a factor's exponent, or `smallest` for denormals.
fn exponent_of(value: f32, smallest: i32) -> i32 {
    ((value.to_bits() >> 23 & 0xff) as i32 - 127).max(smallest)
}

fn product(a: f32, b: f32, [a_smallest, b_smallest]: [i32; 2]) -> Sum {
    let value = f64::from(a) * f64::from(b);
    if value.abs() > 0.0 {
        Sum { value, exponent: exponent_of(a, a_smallest) + exponent_of(b, b_smallest) }
    } else {
        Sum::ZERO
    }
}

/// Returns the sum if it is infinite or NaN, or if a single product overflows f32.
fn special(addend: f32, a: &[f32], b: &[f32]) -> Option<f32> {
    let exact: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    let sum = exact + f64::from(addend);
    let single: f32 = a.iter().zip(b).map(|(a, b)| a * b).filter(|product| !product.is_finite()).sum();
    match (sum.is_finite(), single.is_finite()) {
        (false, _) => Some(sum as f32),
        (true, false) => Some(single),
        (true, true) => None,
    }
}

fn aligned(addend: f32, a: &[f32], b: &[f32], exponents: [i32; 2]) -> f32 {
    if let Some(special) = special(addend, a, b) {
        return special;
    }
    let products = a.iter().zip(b).map(|(a, b)| product(*a, *b, exponents));
    let addend = Sum { exponent: exponent_of(addend, -126), value: f64::from(addend) };
    with_addend(Sum::of_products(products), addend, i32::MAX)
}

fn aligned_halves(addend: f32, a: &[f32], b: &[f32], exponents: [i32; 2]) -> f32 {
    if let Some(special) = special(addend, a, b) {
        return special;
    }
    let products =
        |parity: usize| a.iter().zip(b).skip(parity).step_by(2).map(|(a, b)| product(*a, *b, exponents));
    let halves = [0, 1].map(|parity| Sum::of_products(products(parity)));
    let exponent = halves[0].exponent.max(halves[1].exponent);
    let sum: f64 = halves.iter().map(|half| half.at(exponent, ALIGNED_BITS).floor()).sum();
    let value = if exponent == i32::MIN { 0.0 } else { sum * power(exponent - ALIGNED_BITS) };
    let addend = Sum { exponent: exponent_of(addend, -126), value: f64::from(addend) };
    // A far smaller negative addend vanishes here, whereas its floor would be -1.
    with_addend(Sum { value, exponent }, addend, ALIGNED_BITS + 1)
}

/// Adds the addend, or ignores it if its exponent is more than `reach` below the sum's.
fn with_addend(sum: Sum, addend: Sum, reach: i32) -> f32 {
    let addend_exponent = if addend.value.abs() > 0.0 { addend.exponent } else { i32::MIN };
    let addend = Sum { exponent: addend_exponent, ..addend };
    let exponent = sum.exponent.max(addend.exponent);
    if exponent == i32::MIN {
        // Both are zeros.
        return (sum.value + addend.value) as f32;
    }
    let far = addend.exponent != i32::MIN && exponent - addend.exponent > reach;
    let low = if far { 0.0 } else { addend.at(exponent, ALIGNED_BITS).floor() };
    let high = sum.at(exponent, SUM_BITS).floor();
    let units = high + low * power(SUM_BITS - ALIGNED_BITS);
    (units * power(exponent - SUM_BITS)) as f32
}

#[cfg(test)]
mod tests;
