//! Binary floating point in exact arithmetic. A finite value is an integer times a fixed power of two, wide
//! enough for every sum of products of f64. It is slow and simple, and independent of the executor.
use std::cmp::Ordering;

/// A binary floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    pub exponent: u32,
    pub fraction: u32,
}

pub const F16: Format = Format { exponent: 5, fraction: 10 };
pub const BF16: Format = Format { exponent: 8, fraction: 7 };
pub const F32: Format = Format { exponent: 8, fraction: 23 };
pub const F64: Format = Format { exponent: 11, fraction: 52 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    Even,
    Up,
    Down,
    Zero,
}

/// Value of a floating-point encoding.
#[allow(clippy::large_enum_variant, reason = "values live on the stack of a test, one or two at a time")]
#[derive(Clone, Debug)]
pub enum Number {
    Nan { signalling: bool },
    Infinite { negative: bool },
    Finite(Exact),
}

use Number::{Finite, Infinite, Nan};

/// Number of words of an exact value, and number of its fraction bits.
const WORDS: usize = 74;
const FRACTION_BITS: i32 = 2432;

/// A finite value. Zero has a sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exact {
    pub negative: bool,
    words: [u64; WORDS],
}

impl Rounding {
    /// Converts the two bits of the mode register.
    pub fn of_mode(bits: u8) -> Self {
        match bits {
            0 => Self::Even,
            1 => Self::Up,
            2 => Self::Down,
            _ => Self::Zero,
        }
    }
}

impl Format {
    pub fn sign(self) -> u64 {
        1 << (self.exponent + self.fraction)
    }

    /// Returns the biased exponent of infinities and NaN.
    fn special(self) -> u64 {
        (1 << self.exponent) - 1
    }

    pub fn infinity(self, negative: bool) -> u64 {
        self.special() << self.fraction | if negative { self.sign() } else { 0 }
    }

    pub fn zero(self, negative: bool) -> u64 {
        if negative { self.sign() } else { 0 }
    }

    pub fn nan(self) -> u64 {
        self.infinity(false) | 1 << (self.fraction - 1)
    }

    fn largest(self, negative: bool) -> u64 {
        self.infinity(negative) - 1
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    pub fn biased_exponent(self, bits: u64) -> i32 {
        (bits >> self.fraction & self.special()) as i32
    }

    fn fraction_of(self, bits: u64) -> u64 {
        bits & ((1 << self.fraction) - 1)
    }

    pub fn is_nan(self, bits: u64) -> bool {
        self.biased_exponent(bits) as u64 == self.special() && self.fraction_of(bits) != 0
    }

    pub fn is_denormal(self, bits: u64) -> bool {
        self.biased_exponent(bits) == 0 && self.fraction_of(bits) != 0
    }

    pub fn is_negative(self, bits: u64) -> bool {
        bits & self.sign() != 0
    }

    pub fn read(self, bits: u64) -> Number {
        let (exponent, fraction) = (self.biased_exponent(bits), self.fraction_of(bits));
        let negative = self.is_negative(bits);
        if exponent as u64 == self.special() {
            return if fraction == 0 {
                Infinite { negative }
            } else {
                Nan { signalling: fraction >> (self.fraction - 1) == 0 }
            };
        }
        let hidden = if exponent == 0 { 0 } else { 1u64 << self.fraction };
        let place = exponent.max(1) - self.bias() - self.fraction as i32;
        Finite(Exact::new(negative, u128::from(fraction | hidden), place))
    }
}

impl Exact {
    /// Creates ±magnitude * 2^exponent.
    pub fn new(negative: bool, magnitude: u128, place: i32) -> Self {
        let mut words = [0; WORDS];
        let at = (FRACTION_BITS + place) as usize;
        let (word, bit) = (at / 64, at % 64);
        let low = magnitude << bit;
        let high = if bit == 0 { 0 } else { (magnitude >> (128 - bit)) as u64 };
        words[word] = low as u64;
        words[word + 1] = (low >> 64) as u64;
        words[word + 2] = high;
        Self { negative, words }
    }

    pub fn of_integer(value: i128) -> Self {
        Self::new(value < 0, value.unsigned_abs(), 0)
    }

    pub fn is_zero(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    fn top(&self) -> Option<i32> {
        let word = self.words.iter().rposition(|word| *word != 0)?;
        Some(word as i32 * 64 + 63 - self.words[word].leading_zeros() as i32)
    }

    fn bit(&self, at: i32) -> bool {
        at >= 0 && self.words[at as usize / 64] >> (at % 64) & 1 != 0
    }

    fn any_below(&self, at: i32) -> bool {
        (0..at.max(0)).step_by(64).any(|start| {
            let word = self.words[start as usize / 64];
            let count = at - start;
            if count >= 64 { word != 0 } else { word & ((1 << count) - 1) != 0 }
        })
    }

    /// Returns 100 bits from bit `at` on.
    fn window(&self, at: i32) -> u128 {
        let (word, bit) = (at as usize / 64, at % 64);
        let word_at = |at: usize| u128::from(self.words.get(at).copied().unwrap_or(0));
        let low = word_at(word) | word_at(word + 1) << 64;
        let high = if bit == 0 { 0 } else { word_at(word + 2) << (128 - bit) };
        (low >> bit | high) & ((1 << 100) - 1)
    }

    pub fn compare_magnitude(&self, other: &Self) -> Ordering {
        self.words.iter().rev().cmp(other.words.iter().rev())
    }

    pub fn compare(&self, other: &Self) -> Ordering {
        match (self.negative && !self.is_zero(), other.negative && !other.is_zero()) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.compare_magnitude(other),
            (true, true) => other.compare_magnitude(self),
        }
    }

    pub fn negated(&self) -> Self {
        Self { negative: !self.negative, words: self.words }
    }

    /// Returns the sum. A zero sum of values with different signs has the sign that the rounding implies.
    pub fn plus(&self, other: &Self, rounding: Rounding) -> Self {
        if self.negative == other.negative {
            let (mut words, mut carry) = ([0; WORDS], 0u128);
            for (i, word) in words.iter_mut().enumerate() {
                carry += u128::from(self.words[i]) + u128::from(other.words[i]);
                *word = carry as u64;
                carry >>= 64;
            }
            return Self { negative: self.negative, words };
        }
        let (large, small) = match self.compare_magnitude(other) {
            Ordering::Equal => return Self { negative: rounding == Rounding::Down, words: [0; WORDS] },
            Ordering::Greater => (self, other),
            Ordering::Less => (other, self),
        };
        let (mut words, mut borrow) = ([0; WORDS], 0i128);
        for (i, word) in words.iter_mut().enumerate() {
            let difference = i128::from(large.words[i]) - i128::from(small.words[i]) - borrow;
            *word = difference as u64;
            borrow = i128::from(difference < 0);
        }
        Self { negative: large.negative, words }
    }

    /// Returns the product. Both values must have at most 64 significant bits.
    pub fn times(&self, other: &Self) -> Self {
        let negative = self.negative != other.negative;
        let (Some(a), Some(b)) = (self.top(), other.top()) else {
            return Self { negative, words: [0; WORDS] };
        };
        let low = |value: &Self, top: i32| {
            ((value.window((top - 63).max(0)) as u64), (top - 63).max(0) - FRACTION_BITS)
        };
        let ((a, a_place), (b, b_place)) = (low(self, a), low(other, b));
        let (a_zeros, b_zeros) = (a.trailing_zeros(), b.trailing_zeros());
        let magnitude = u128::from(a >> a_zeros) * u128::from(b >> b_zeros);
        Self::new(negative, magnitude, a_place + b_place + (a_zeros + b_zeros) as i32)
    }

    /// Returns the value times 2^n, for at most 64 significant bits. Huge exponents are clamped.
    pub fn scaled(&self, n: i128) -> Self {
        let Some(top) = self.top() else { return self.clone() };
        let base = (top - 99).max(0);
        let magnitude = self.window(base);
        let zeros = magnitude.trailing_zeros();
        let place = i128::from(base - FRACTION_BITS + zeros as i32) + n;
        Self::new(self.negative, magnitude >> zeros, place.clamp(-2400, 2100) as i32)
    }

    /// Returns the value times 2^n for small n, with any number of bits.
    pub fn shifted(&self, n: i32) -> Self {
        let mut words = [0u64; WORDS];
        for at in 0..WORDS as i32 * 64 {
            let from = at - n;
            if (0..WORDS as i32 * 64).contains(&from) && self.bit(from) {
                words[at as usize / 64] |= 1 << (at % 64);
            }
        }
        Self { negative: self.negative, words }
    }

    /// Rounds to an integer.
    pub fn integer(&self, rounding: Rounding) -> Self {
        let mut words = self.words;
        let (half, below) = (self.bit(FRACTION_BITS - 1), self.any_below(FRACTION_BITS - 1));
        for at in 0..FRACTION_BITS / 64 {
            words[at as usize] = 0;
        }
        let whole = Self { negative: self.negative, words };
        let up = match rounding {
            Rounding::Even => half && (below || self.bit(FRACTION_BITS)),
            Rounding::Up => (half || below) && !self.negative,
            Rounding::Down => (half || below) && self.negative,
            Rounding::Zero => false,
        };
        if up { whole.plus(&Self::new(self.negative, 1, 0), Rounding::Even) } else { whole }
    }

    /// Returns the integer part, clamped to the bounds.
    pub fn to_integer(&self, least: i128, most: i128) -> i128 {
        let magnitude = match self.top() {
            Some(top) if top >= FRACTION_BITS + 100 => i128::MAX,
            _ => self.window(FRACTION_BITS) as i128,
        };
        (if self.negative { -magnitude } else { magnitude }).clamp(least, most)
    }

    /// Returns the exponent of the leading bit, or `None` for zero.
    pub fn exponent(&self) -> Option<i32> {
        self.top().map(|top| top - FRACTION_BITS)
    }

    /// Rounds to the format and returns the bits.
    pub fn rounded(&self, format: Format, rounding: Rounding) -> u64 {
        let sign = format.zero(self.negative);
        let Some(exponent) = self.exponent() else { return sign };
        let least = 1 - format.bias();
        let last = exponent.max(least) - format.fraction as i32;
        let at = FRACTION_BITS + last;
        let kept = self.window(at) as u64;
        let (half, below) = (self.bit(at - 1), self.any_below(at - 1));
        let up = match rounding {
            Rounding::Even => half && (below || kept & 1 != 0),
            Rounding::Up => (half || below) && !self.negative,
            Rounding::Down => (half || below) && self.negative,
            Rounding::Zero => false,
        };
        let kept = u128::from(kept) + u128::from(up);
        let bits = ((exponent.max(least) - least) as u128) << format.fraction;
        let bits = bits + kept;
        if bits < u128::from(format.infinity(false)) {
            return sign | bits as u64;
        }
        let to_infinity = match rounding {
            Rounding::Even => true,
            Rounding::Up => !self.negative,
            Rounding::Down => self.negative,
            Rounding::Zero => false,
        };
        if to_infinity { format.infinity(self.negative) } else { format.largest(self.negative) }
    }
}

impl Number {
    pub fn is_nan(&self) -> bool {
        matches!(self, Nan { .. })
    }

    pub fn is_zero(&self) -> bool {
        matches!(self, Finite(value) if value.is_zero())
    }

    pub fn is_infinite(&self) -> bool {
        matches!(self, Infinite { .. })
    }

    pub fn is_negative(&self) -> bool {
        match self {
            Nan { .. } => false,
            Infinite { negative } => *negative,
            Finite(value) => value.negative,
        }
    }

    pub fn negated(&self) -> Self {
        match self {
            Nan { signalling } => Nan { signalling: *signalling },
            Infinite { negative } => Infinite { negative: !negative },
            Finite(value) => Finite(value.negated()),
        }
    }

    /// Compares two numbers; `None` if either is NaN.
    pub fn order(&self, other: &Self) -> Option<Ordering> {
        let rank = |number: &Self| match number {
            Infinite { negative: true } => -1,
            Infinite { negative: false } => 1,
            _ => 0,
        };
        match (self, other) {
            (Nan { .. }, _) | (_, Nan { .. }) => None,
            (Finite(a), Finite(b)) => Some(a.compare(b)),
            _ => Some(rank(self).cmp(&rank(other))),
        }
    }

    pub fn rounded(&self, format: Format, rounding: Rounding) -> u64 {
        match self {
            Nan { .. } => format.nan(),
            Infinite { negative } => format.infinity(*negative),
            Finite(value) => value.rounded(format, rounding),
        }
    }

    pub fn plus(&self, other: &Self, rounding: Rounding) -> Self {
        match (self, other) {
            (Nan { .. }, _) | (_, Nan { .. }) => Nan { signalling: false },
            (Infinite { negative: a }, Infinite { negative: b }) if a != b => Nan { signalling: false },
            (Infinite { negative }, _) | (_, Infinite { negative }) => Infinite { negative: *negative },
            (Finite(a), Finite(b)) => Finite(a.plus(b, rounding)),
        }
    }

    pub fn times(&self, other: &Self) -> Self {
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (Nan { .. }, _) | (_, Nan { .. }) => Nan { signalling: false },
            (Infinite { .. }, b) if b.is_zero() => Nan { signalling: false },
            (a, Infinite { .. }) if a.is_zero() => Nan { signalling: false },
            (Infinite { .. }, _) | (_, Infinite { .. }) => Infinite { negative },
            (Finite(a), Finite(b)) => Finite(a.times(b)),
        }
    }

    /// Returns the value as f64, for formats that f64 can represent.
    pub fn to_f64(&self) -> f64 {
        f64::from_bits(self.rounded(F64, Rounding::Even))
    }
}

/// Compares with the host's arithmetic.
#[test]
fn exact_arithmetic_agrees_with_the_host() {
    let values =
        [0.0, -0.0, 1.0, -1.5, f64::MIN_POSITIVE, 5e-324, f64::MAX, 1e308, -3e-308, 0.1, f64::INFINITY];
    for a in values {
        for b in values {
            let (x, y) = (F64.read(a.to_bits()), F64.read(b.to_bits()));
            let same =
                |found: u64, host: f64| found == host.to_bits() || (F64.is_nan(found) && host.is_nan());
            let sum = x.plus(&y, Rounding::Even);
            assert!(same(sum.rounded(F64, Rounding::Even), a + b), "{a:e} + {b:e}");
            let product = x.times(&y);
            assert!(same(product.rounded(F64, Rounding::Even), a * b), "{a:e} * {b:e}");
            for c in values {
                let fused = product.plus(&F64.read(c.to_bits()), Rounding::Even);
                assert!(same(fused.rounded(F64, Rounding::Even), a.mul_add(b, c)), "{a:e} * {b:e} + {c:e}");
            }
            let narrowed = f64::from(f32::from_bits(x.rounded(F32, Rounding::Even) as u32));
            assert!(narrowed == f64::from(a as f32), "{a:e}");
            assert_eq!(x.order(&y), a.partial_cmp(&b));
        }
        if let Finite(x) = F64.read(a.to_bits()) {
            let host = [a.round_ties_even(), a.ceil(), a.floor(), a.trunc()];
            for (rounding, host) in
                [Rounding::Even, Rounding::Up, Rounding::Down, Rounding::Zero].into_iter().zip(host)
            {
                assert_eq!(x.integer(rounding).rounded(F64, Rounding::Even), host.to_bits(), "{a:e}");
            }
            assert_eq!(x.to_integer(i128::from(i64::MIN), i128::from(i64::MAX)), i128::from(a as i64));
        }
    }
    // 1 + 2^-60 lies between two f64 numbers.
    let above = Exact::new(false, (1 << 60) + 1, -60);
    let one = 1f64.to_bits();
    assert_eq!(above.rounded(F64, Rounding::Down), one);
    assert_eq!(above.rounded(F64, Rounding::Up), one + 1);
    assert_eq!(above.negated().rounded(F64, Rounding::Zero), one | 1 << 63);
    assert_eq!(Exact::new(false, 3, 2000).rounded(F32, Rounding::Zero), u64::from(f32::MAX.to_bits()));
}
