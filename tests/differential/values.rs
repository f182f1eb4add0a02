//! Generates the values of operands from a seed.
use candle_core::{DType, Device, Result, Tensor};

use crate::case::Values;

/// Set of values that an operation is tested on.
#[derive(Debug, Clone)]
pub enum Domain {
    /// All values of the dtype.
    Any,
    /// Magnitudes up to this limit, and the special values NaN, infinities, zeros and denormals. Large finite
    /// numbers are excluded, since they could overflow in one order of computation and not in another.
    Within(f64),
    /// Like `Within`, without NaN and infinities, for operations where only one device multiplies some values
    /// with 0.
    Finite(f64),
    /// Divisors other than 0, and other than -1 for integers, whose division could overflow.
    Divisor,
    /// Indexes below this limit; special values are the index that means "none" and, seldom, an index out of
    /// range.
    Index(usize),
    /// These integers, repeated cyclically.
    Listed(Vec<i64>),
}

/// SplitMix64 random number generator.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in [-1, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// Creates a tensor on the CPU.
pub fn tensor(domain: &Domain, dtype: DType, dims: &[usize], values: Values, seed: u64) -> Result<Tensor> {
    let count = dims.iter().product();
    let mut numbers = Numbers(seed);
    if dtype.is_float() {
        let floats: Vec<f64> = (0..count).map(|_| float(&mut numbers, domain, dtype, values)).collect();
        return from_f64(&floats, dims, dtype);
    }
    let special = values == Values::Special;
    let ints: Vec<i64> = match domain {
        Domain::Listed(list) => list.iter().copied().cycle().take(count).collect(),
        _ => (0..count).map(|_| integer(&mut numbers, domain, dtype, special)).collect(),
    };
    macro_rules! of {
        ($type:ty) => {
            Tensor::from_vec(ints.into_iter().map(|v| v as $type).collect::<Vec<_>>(), dims, &Device::Cpu)
        };
    }
    match dtype {
        DType::U8 => of!(u8),
        DType::U32 => of!(u32),
        DType::I16 => of!(i16),
        DType::I32 => of!(i32),
        _ => of!(i64),
    }
}

/// Creates a tensor on the CPU, rounding to `dtype` once.
pub fn from_f64(values: &[f64], dims: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::from_slice(values, dims, &Device::Cpu)?.to_dtype(dtype)
}

/// Returns the smallest and the largest value of an integer dtype.
fn range(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::U8 => (0, u8::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN, i64::MAX),
    }
}

fn integer(numbers: &mut Numbers, domain: &Domain, dtype: DType, special: bool) -> i64 {
    let (min, max) = range(dtype);
    if let &Domain::Index(bound) = domain {
        return match numbers.below(64) {
            0..4 if special => max,
            4 if special => (bound as i64).min(max),
            5 if special => min,
            _ => numbers.below(bound as u64) as i64,
        };
    }
    let limit = match domain {
        Domain::Within(limit) | Domain::Finite(limit) => *limit as u64,
        _ => 100,
    };
    let small = numbers.below(2 * limit + 1) as i64 - limit as i64;
    let small = if min == 0 { small.abs() } else { small };
    match domain {
        Domain::Any if special => match numbers.below(16) {
            0 => max,
            1 => min,
            2 => max - 1,
            3 => min + 1,
            4 => 0,
            5 => (numbers.next() as i64).clamp(min, max),
            _ => small,
        },
        Domain::Divisor if matches!(small, 0 | -1) => 3,
        _ => small,
    }
}

fn float(numbers: &mut Numbers, domain: &Domain, dtype: DType, values: Values) -> f64 {
    let (smallest, normal, largest) = ends(dtype);
    let limit = match domain {
        Domain::Within(limit) | Domain::Finite(limit) => *limit,
        _ => 8.0,
    };
    if values == Values::Special {
        let zeros = [0.0, -0.0, smallest, -smallest, normal, -normal, 1.0, -1.0];
        let wild = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        match (numbers.below(16), domain) {
            (0..2, _) => return zeros[numbers.below(8) as usize],
            (2, Domain::Any | Domain::Divisor | Domain::Within(_)) => return wild[numbers.below(3) as usize],
            (3, Domain::Any | Domain::Divisor) => return [largest, -largest][numbers.below(2) as usize],
            (4, Domain::Any | Domain::Divisor) => return numbers.unit() * largest,
            _ => {}
        }
    }
    match numbers.below(4) {
        // Integers and halves test ties in rounding and equality in comparisons.
        0 => (numbers.unit() * 2.0 * limit.min(8.0)).trunc() / 2.0,
        1 => numbers.unit() * limit / 64.0,
        _ => numbers.unit() * limit,
    }
}

/// Returns the smallest denormal, the smallest normal and the largest number of a float dtype.
pub fn ends(dtype: DType) -> (f64, f64, f64) {
    let power = |exponent: i32| 2f64.powi(exponent);
    match dtype {
        DType::F8E4M3 => (power(-9), power(-6), 448.0),
        DType::F16 => (power(-24), power(-14), 65504.0),
        DType::BF16 => (power(-133), power(-126), power(127) * (2.0 - power(-7))),
        DType::F32 => (power(-149), power(-126), f64::from(f32::MAX)),
        _ => (f64::from_bits(1), f64::MIN_POSITIVE, f64::MAX),
    }
}

/// Returns the unit roundoff of a dtype: half the distance from 1 to the next number.
pub fn roundoff(dtype: DType) -> f64 {
    match dtype {
        DType::F8E4M3 => 2f64.powi(-4),
        DType::BF16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        DType::F32 => 2f64.powi(-24),
        _ => 2f64.powi(-53),
    }
}
