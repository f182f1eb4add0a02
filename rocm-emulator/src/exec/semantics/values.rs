//! Edge values of every operand kind, and a random generator to select from them.
use super::kind::Kind;
use super::number::{Exact, F16, F32, F64, Format, Rounding};
use std::sync::LazyLock;

/// Reproducible pseudorandom generator (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit.max(1)
    }

    pub fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Integers at which operations change their behaviour.
const INTEGERS: &[u64] = &[
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    23,
    24,
    31,
    32,
    33,
    63,
    64,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7f_ffff,
    0x80_0000,
    0xff_ffff,
    0x100_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
];

pub fn integer(random: &mut Random) -> u64 {
    match random.below(8) {
        0..3 => random.choose(INTEGERS),
        3 => random.choose(INTEGERS).wrapping_neg(),
        4 => random.below(200),
        5 => random.below(200).wrapping_neg(),
        6 => random.bits() >> random.below(64),
        _ => random.bits(),
    }
}

/// Magnitudes as (integer, power of two), at which formats and conversions change their behaviour.
const FLOATS: &[(u128, i32)] = &[
    (0, 0),
    (1, 0),
    (1, -1),
    (3, -1),
    (5, -1),
    (7, -2),
    (2, 0),
    (255, 0),
    (255, 1),
    (65_504, 0),
    (65_519, 0),
    (65_520, 0),
    (0xff_ffff, 0),
    (0x100_0001, 0),
    (0x7fff_ffff, 0),
    (0x8000_0000, 0),
    (0xffff_ffff, 0),
    (0x1_0000_0000, 0),
    (0x7fff, 0),
    (0x8000, 0),
    (0xffff, 0),
    ((1 << 53) - 1, 0),
    (1, 60),
    (1, 127),
    (1, 128),
    (1, -14),
    (1, -15),
    (1, -24),
    (1, -25),
    (3, -25),
    (1, -126),
    (1, -127),
    (1, -149),
    (1, -150),
    (1, -1022),
    (1, -1074),
    (1, 64),
    (1, -64),
    (0xff_ffff, 104),
    (0x1ff_ffff, 103),
    ((1 << 24) - 1, -24),
    ((1 << 53) - 1, -53),
    ((1 << 11) - 1, -11),
    ((1 << 24) + 1, -24),
    (0xffff_ff01, -8),
];

/// Returns [`FLOATS`] rounded to a format.
fn table_of(format: Format) -> &'static [u64] {
    static TABLES: LazyLock<[Vec<u64>; 3]> = LazyLock::new(|| {
        [F16, F32, F64].map(|format| {
            let bits =
                |&(magnitude, place)| Exact::new(false, magnitude, place).rounded(format, Rounding::Zero);
            FLOATS.iter().map(bits).collect()
        })
    });
    &TABLES[[F16, F32, F64].iter().position(|one| *one == format).unwrap_or(1)]
}

/// Returns the bits of a random float of the format.
pub fn float(random: &mut Random, format: Format) -> u64 {
    let sign = if random.below(2) == 0 { format.sign() } else { 0 };
    let all = format.sign() - 1;
    let one = ((1 << (format.exponent - 1)) - 1) << format.fraction;
    match random.below(12) {
        0..4 => sign | random.choose(table_of(format)),
        // Values at the boundaries of the classes (zero, denormal, normal, infinity, NaN).
        4 | 5 => {
            let infinity = format.infinity(false);
            let normal = 1 << format.fraction;
            let payload = random.bits() & (normal - 1) | 1;
            sign | random.choose(&[
                0,
                1,
                2,
                normal - 1,
                normal,
                normal + 1,
                infinity - 1,
                infinity,
                format.nan(),
                infinity + 1,
                infinity | payload,
                one - 1,
                one,
                one + 1,
            ])
        }
        // Values around 1, so that sums and products interact; then values of moderate size.
        6 | 7 => sign | (one - (2 << format.fraction) + random.bits() % (4 << format.fraction)) & all,
        8 => sign | (one - (6 << format.fraction) + random.bits() % (11 << format.fraction)) & all,
        9 => sign | Exact::of_integer(i128::from(random.bits() >> 33)).rounded(format, Rounding::Even),
        10 => sign | random.bits() & ((1 << format.fraction) - 1),
        _ => random.bits() & (format.sign() | all),
    }
}

/// Returns a random value for an operand of a kind.
pub fn value(random: &mut Random, kind: Kind) -> u64 {
    match kind {
        Kind::F16 | Kind::Raw16 => float(random, F16) | random.bits() << 16,
        Kind::F32 | Kind::Raw32 => float(random, F32),
        Kind::Mix if random.below(2) == 0 => float(random, F32),
        Kind::PairF16 | Kind::Mix => float(random, F16) | float(random, F16) << 16,
        Kind::PairF32 => float(random, F32) | float(random, F32) << 32,
        Kind::F64 | Kind::Raw64 => float(random, F64),
        Kind::Pair16 => integer(random) & 0xffff | integer(random) << 16,
        Kind::Pair32 => integer(random) & 0xffff_ffff | integer(random) << 32,
        Kind::U16 | Kind::I16 => integer(random) & 0xffff | random.bits() << 16,
        Kind::Mask => random.bits(),
        _ => integer(random),
    }
}
