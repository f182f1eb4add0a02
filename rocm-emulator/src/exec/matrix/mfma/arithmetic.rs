//! How matrix cores add the products of one element. AMD documents f32 and f64 alone, as a chain of fused
//! multiply-adds; the rest is what MMA-Sim (arXiv:2511.10909 and its program) has measured on the chips. Rounding is
//! to nearest even at every step but those that say something else, and MODE takes no part.
use super::element::Element;
use super::shape::Shape;
use crate::isa::Family;

/// Fraction bits, below the largest exponent, of what gfx942 adds; of a sum of products beside the addend.
const ALIGNED_BITS: i32 = 24;
const SUM_BITS: i32 = 31;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Arithmetic {
    /// f32: a chain of fused multiply-adds in the order of k.
    Chain,
    /// gfx908: this many products and the addend are summed exactly and rounded once.
    Exact(usize),
    /// gfx90a: products and sums are rounded one by one, pairs and pairs of pairs before the addend. Denormals are
    /// zeros everywhere, those of the inputs +0.
    Pairs { group: usize, smallest_normal: f32 },
    /// gfx942: this many products are cut off at a distance from the largest exponent and added, then sum and addend
    /// likewise, of which the floor is taken, and the result is rounded.
    Aligned { group: usize, exponents: [i32; 2] },
    /// gfx942's 8-bit floats: the same, with products of even and odd k apart first.
    AlignedHalves { group: usize, exponents: [i32; 2] },
}

impl Arithmetic {
    pub(super) fn of(family: Family, shape: &Shape) -> Self {
        let exponents = [shape.a, shape.b].map(Element::smallest_exponent);
        match (shape.a, family) {
            (Element::F32 | Element::F64 | Element::I8, _) => Self::Chain,
            (Element::Xf32, _) => Self::Aligned { group: 4, exponents },
            (Element::Fp8 | Element::Bf8, _) => Self::AlignedHalves { group: 16, exponents },
            (_, Family::Cdna1) => Self::Exact(shape.per_lane),
            (_, Family::Cdna2) => {
                let smallest_normal = power(exponents[0]) as f32;
                Self::Pairs { group: shape.per_lane, smallest_normal }
            }
            _ => Self::Aligned { group: 8, exponents },
        }
    }

    /// The addend and the sum of the products of a row and a column.
    pub(super) fn add_products(self, addend: f32, a: &[f32], b: &[f32]) -> f32 {
        let groups = |size: usize| a.chunks(size).zip(b.chunks(size));
        match self {
            Self::Chain => a.iter().zip(b).fold(addend, |sum, (a, b)| a.mul_add(*b, sum)),
            Self::Exact(group) => groups(group).fold(addend, |sum, (a, b)| exact(sum, a, b)),
            Self::Pairs { group, smallest_normal } => {
                let addend = normal_or_zero(addend, f32::MIN_POSITIVE);
                groups(group).fold(addend, |sum, (a, b)| flushed(sum + pairs(a, b, smallest_normal)))
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

/// The sum of all, rounded once.
fn exact(addend: f32, a: &[f32], b: &[f32]) -> f32 {
    // Products of 16-bit floats are exact in f64, and no sum of them is too large for it.
    let terms = || a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).chain([f64::from(addend)]);
    let rounded: f64 = terms().sum();
    if !rounded.is_finite() {
        return rounded as f32;
    }
    // The sum as parts that do not overlap, the largest last.
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
        // Rounded to odd, it keeps what rounding to f32 needs to know.
        let bits = top.to_bits();
        let odd = if (rest > 0.0) == (top > 0.0) { bits + 1 } else { bits - 1 };
        top = f64::from_bits(if bits & 1 == 0 { odd } else { bits });
    }
    // Zeros have the sign of their plain sum.
    if top.abs() > 0.0 { top as f32 } else { rounded as f32 }
}

/// The rounded sum, and what rounding took.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// The sum of products, added in pairs.
fn pairs(a: &[f32], b: &[f32], smallest_normal: f32) -> f32 {
    match (a, b) {
        ([a], [b]) => flushed(normal_or_zero(*a, smallest_normal) * normal_or_zero(*b, smallest_normal)),
        _ => {
            let half = a.len() / 2;
            let [a, b] = [a, b].map(|values| values.split_at(half));
            flushed(pairs(a.0, b.0, smallest_normal) + pairs(a.1, b.1, smallest_normal))
        }
    }
}

/// A denormal input becomes +0, whatever its sign.
fn normal_or_zero(value: f32, smallest_normal: f32) -> f32 {
    if value.abs() < smallest_normal { 0.0 } else { value }
}

/// A denormal result becomes a zero of its sign.
fn flushed(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0f32.copysign(value) } else { value }
}

/// Numbers whose exponents were the same when they were added: the sum, and the exponent.
#[derive(Clone, Copy)]
struct Sum {
    value: f64,
    exponent: i32,
}

impl Sum {
    const ZERO: Self = Self { value: 0.0, exponent: i32::MIN };

    /// Products, each cut off (towards zero) below the largest exponent's place.
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

    /// The value in units of the place `bits` below an exponent; zero has none.
    fn at(self, exponent: i32, bits: i32) -> f64 {
        if self.exponent == i32::MIN { 0.0 } else { self.value * power(bits - exponent) }
    }
}

/// Powers of two that products of numbers as small as bf16's need.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// A factor's exponent; that of denormals is the smallest.
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

/// What infinities and NaN make of the sum, and then products beyond f32.
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
    // A negative addend far below vanishes here, where its floor would be -1 otherwise.
    with_addend(Sum { value, exponent }, addend, ALIGNED_BITS + 1)
}

/// Sum and addend, which counts for nothing if its exponent is more than `reach` below the other.
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
