//! Software floating point, rounded once in any direction. It is slow and used where the host's arithmetic is
//! insufficient: for directed rounding and scaled results.

/// Field widths of a binary float format.
#[derive(Debug)]
pub struct Layout {
    pub exponent_bits: u32,
    pub fraction_bits: u32,
}

pub const HALF: Layout = Layout { exponent_bits: 5, fraction_bits: 10 };
pub const SINGLE: Layout = Layout { exponent_bits: 8, fraction_bits: 23 };
pub const DOUBLE: Layout = Layout { exponent_bits: 11, fraction_bits: 52 };

/// Rounding directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    NearestEven,
    Up,
    Down,
    Zero,
}

impl Rounding {
    /// Converts the two bits of the mode register.
    pub fn from_mode(bits: u8) -> Self {
        [Self::NearestEven, Self::Up, Self::Down, Self::Zero][(bits & 3) as usize]
    }
}

impl Layout {
    pub const fn sign(&self) -> u64 {
        1 << (self.exponent_bits + self.fraction_bits)
    }

    const fn infinity(&self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.fraction_bits
    }

    const fn quiet_bit(&self) -> u64 {
        1 << (self.fraction_bits - 1)
    }

    /// Returns the exponent of the smallest normal number.
    const fn min_exponent(&self) -> i32 {
        2 - (1 << (self.exponent_bits - 1))
    }

    fn is_nan(&self, bits: u64) -> bool {
        bits & !self.sign() > self.infinity()
    }

    fn is_infinite(&self, bits: u64) -> bool {
        bits & !self.sign() == self.infinity()
    }

    pub fn is_denormal(&self, bits: u64) -> bool {
        let magnitude = bits & !self.sign();
        magnitude != 0 && magnitude >> self.fraction_bits == 0
    }

    /// Quiets a signalling NaN; other values are unchanged.
    pub fn quiet(&self, bits: u64) -> u64 {
        if self.is_nan(bits) { bits | self.quiet_bit() } else { bits }
    }

    fn nan(&self) -> u64 {
        self.infinity() | self.quiet_bit()
    }
}

/// The value (-1)^negative * magnitude * 2^exponent, plus less than one unit of the magnitude if `sticky`.
#[derive(Clone, Copy, Debug)]
struct Exact {
    negative: bool,
    magnitude: u128,
    exponent: i32,
    sticky: bool,
}

impl Exact {
    fn of(bits: u64, layout: &Layout) -> Self {
        let fraction = bits & ((1 << layout.fraction_bits) - 1);
        let biased = ((bits & !layout.sign()) >> layout.fraction_bits) as i32;
        let hidden = if biased == 0 { 0 } else { 1 << layout.fraction_bits };
        Self {
            negative: bits & layout.sign() != 0,
            magnitude: u128::from(fraction | hidden),
            exponent: layout.min_exponent() + (biased - 1).max(0) - layout.fraction_bits as i32,
            sticky: false,
        }
    }

    fn product(self, other: Self) -> Self {
        Self {
            negative: self.negative != other.negative,
            magnitude: self.magnitude * other.magnitude,
            exponent: self.exponent + other.exponent,
            sticky: false,
        }
    }

    fn sum(self, other: Self, rounding: Rounding) -> Self {
        if self.magnitude == 0 || other.magnitude == 0 {
            let mut sum = if self.magnitude == 0 { other } else { self };
            if sum.magnitude == 0 && self.negative != other.negative {
                sum.negative = rounding == Rounding::Down;
            }
            return sum;
        }
        let (mut high, mut low) = if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        // Two bits stay free for the carry.
        let shift = (high.magnitude.leading_zeros() as i32 - 2).min(high.exponent - low.exponent).max(0);
        high.magnitude <<= shift;
        high.exponent -= shift;
        let distance = (high.exponent - low.exponent) as u32;
        let shifted = low.magnitude.checked_shr(distance).unwrap_or(0);
        let sticky = distance > 0 && shifted.checked_shl(distance).unwrap_or(0) != low.magnitude;
        low.magnitude = shifted;
        let mut sum = high;
        sum.sticky = sticky;
        if high.negative == low.negative {
            sum.magnitude += low.magnitude;
        } else if high.magnitude >= low.magnitude {
            sum.magnitude = high.magnitude - low.magnitude - u128::from(sticky);
            if sum.magnitude == 0 && !sticky {
                sum.negative = rounding == Rounding::Down;
            }
        } else {
            // This occurs only without a shift, so no bits were shifted out.
            sum.magnitude = low.magnitude - high.magnitude;
            sum.negative = low.negative;
        }
        sum
    }

    fn round(self, layout: &Layout, rounding: Rounding) -> u64 {
        let sign = if self.negative { layout.sign() } else { 0 };
        if self.magnitude == 0 && !self.sticky {
            return sign;
        }
        let width = 128 - self.magnitude.leading_zeros() as i32;
        let leading = (self.exponent + width - 1).max(layout.min_exponent());
        let shift = leading - layout.fraction_bits as i32 - self.exponent;
        let (kept, above_half, exactly_half, inexact) = if shift <= 0 {
            (self.magnitude << -shift, false, false, self.sticky)
        } else {
            let shift = shift as u32;
            let kept = self.magnitude.checked_shr(shift).unwrap_or(0);
            let rest = self.magnitude - kept.checked_shl(shift).unwrap_or(0);
            match 1u128.checked_shl(shift - 1) {
                None => (kept, false, false, rest != 0 || self.sticky),
                Some(half) => (
                    kept,
                    rest > half || (rest == half && self.sticky),
                    rest == half && !self.sticky,
                    rest != 0 || self.sticky,
                ),
            }
        };
        let up = match rounding {
            Rounding::NearestEven => above_half || (exactly_half && kept & 1 == 1),
            Rounding::Up => inexact && !self.negative,
            Rounding::Down => inexact && self.negative,
            Rounding::Zero => false,
        };
        let kept = kept as u64 + u64::from(up);
        // The addition carries from the fraction into the exponent.
        let step = ((leading - layout.min_exponent()) as u64).min(1 << layout.exponent_bits);
        let magnitude = (step << layout.fraction_bits) + kept;
        if magnitude < layout.infinity() {
            return sign | magnitude;
        }
        let to_infinity = match rounding {
            Rounding::NearestEven => true,
            Rounding::Up => !self.negative,
            Rounding::Down => self.negative,
            Rounding::Zero => false,
        };
        sign | if to_infinity { layout.infinity() } else { layout.infinity() - 1 }
    }
}

pub fn add(a: u64, b: u64, layout: &Layout, rounding: Rounding) -> u64 {
    let one = ((1u64 << (layout.exponent_bits - 1)) - 1) << layout.fraction_bits;
    fma(a, one, b, 0, layout, rounding)
}

pub fn multiply(a: u64, b: u64, layout: &Layout, rounding: Rounding) -> u64 {
    match special_product(a, b, layout) {
        Some(special) => special,
        None => Exact::of(a, layout).product(Exact::of(b, layout)).round(layout, rounding),
    }
}

/// Returns (a * b + c) * 2^scale, rounded once.
pub fn fma(a: u64, b: u64, c: u64, scale: i32, layout: &Layout, rounding: Rounding) -> u64 {
    if let Some(product) = special_product(a, b, layout) {
        return if layout.is_nan(product) {
            product
        } else if layout.is_nan(c) {
            layout.quiet(c)
        } else if layout.is_infinite(c) && (c ^ product) & layout.sign() != 0 {
            layout.nan()
        } else {
            product
        };
    }
    if layout.is_nan(c) || layout.is_infinite(c) {
        return layout.quiet(c);
    }
    let product = Exact::of(a, layout).product(Exact::of(b, layout));
    let mut sum = product.sum(Exact::of(c, layout), rounding);
    sum.exponent += scale;
    sum.round(layout, rounding)
}

/// Returns the product if an operand is infinite or NaN.
fn special_product(a: u64, b: u64, layout: &Layout) -> Option<u64> {
    let zero = |bits: u64| bits & !layout.sign() == 0;
    if layout.is_nan(a) {
        Some(layout.quiet(a))
    } else if layout.is_nan(b) {
        Some(layout.quiet(b))
    } else if layout.is_infinite(a) || layout.is_infinite(b) {
        let sign = (a ^ b) & layout.sign();
        Some(if zero(a) || zero(b) { layout.nan() } else { sign | layout.infinity() })
    } else {
        None
    }
}

/// Converts `bits` to another format.
pub fn convert(bits: u64, from: &Layout, to: &Layout, rounding: Rounding) -> u64 {
    let sign = if bits & from.sign() != 0 { to.sign() } else { 0 };
    if from.is_infinite(bits) {
        return sign | to.infinity();
    }
    if from.is_nan(bits) {
        let fraction = bits & ((1 << from.fraction_bits) - 1);
        let kept = match to.fraction_bits.checked_sub(from.fraction_bits) {
            Some(wider) => fraction << wider,
            None => fraction >> (from.fraction_bits - to.fraction_bits),
        };
        return sign | to.nan() | kept;
    }
    Exact::of(bits, from).round(to, rounding)
}
