//! Tests of compiled matrix instructions of gfx11 and gfx12, compared with plain products. Some matrices do
//! not fill their tiles.
use super::code_object::{Arguments, CodeObject, Shape, readable, writable};
use half::{bf16, f16};
use rocm_emulator::isa::Family;

type Chip = (&'static str, Family);
/// Conversion from an element's bits to its value.
type Value<T> = fn(T) -> f64;

const CHIPS: [Chip; 2] = [("gfx1100", Family::Rdna3), ("gfx1201", Family::Rdna4)];
/// Numbers of rows of A, columns of B and columns of A.
const SIZES: [[usize; 3]; 3] = [[16, 16, 16], [5, 35, 40], [33, 16, 7]];

/// Pseudorandom generator.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn vector<T>(&mut self, count: usize, one: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..count).map(|_| one(self)).collect()
    }
}

/// A matrix product: a kernel, and matrices by rows.
struct Case<'a, I, S> {
    kernel: &'a str,
    sizes: [usize; 3],
    a: Vec<I>,
    b: Vec<I>,
    c: Vec<S>,
}

impl<I: Copy, S: Copy> Case<'_, I, S> {
    fn results(&self, chips: &[Chip]) -> Vec<(String, Vec<S>)> {
        let [m, n, k] = self.sizes;
        let mut all = Vec::new();
        for (chip, family) in chips {
            for lanes in [32, 64] {
                let mut d = self.c.clone();
                let code = CodeObject::for_chip(&format!("wmma.{chip}.wave{lanes}"), *family);
                let arguments =
                    Arguments::default().pointer(&self.a).pointer(&self.b).pointer(&self.c).pointer(&d);
                let arguments = arguments.u32(m as u32).u32(n as u32).u32(k as u32);
                let memory = [readable(&self.a), readable(&self.b), readable(&self.c), writable(&mut d)];
                let mut shape = Shape::new(n.div_ceil(16) as u32, lanes);
                shape.grid[1] = m.div_ceil(16) as u32;
                let what = format!("{} on {chip}, {lanes} lanes, {m}x{n}x{k}", self.kernel);
                code.launch(self.kernel, shape, &arguments, &memory)
                    .unwrap_or_else(|fault| panic!("{what}: {fault}"));
                all.push((what, d));
            }
        }
        all
    }

    /// Returns an element of A * B + C, and the sum of its terms' magnitudes.
    fn exact(
        &self,
        at: usize,
        a: impl Fn(I) -> f64,
        b: impl Fn(I) -> f64,
        c: impl Fn(S) -> f64,
    ) -> (f64, f64) {
        let [_, n, k] = self.sizes;
        let start = (c(self.c[at]), c(self.c[at]).abs());
        (0..k).fold(start, |(sum, magnitude), l| {
            let product = a(self.a[at / n * k + l]) * b(self.b[l * n + at % n]);
            (sum + product, magnitude + product.abs())
        })
    }
}

/// Checks that every result of a float product is within the error that `epsilon` and the roundings permit.
fn check_floats<I: Copy, S: Copy>(
    case: &Case<I, S>,
    chips: &[Chip],
    values: (Value<I>, Value<I>, Value<S>),
    epsilon: f64,
) {
    let (a, b, c) = values;
    for (what, results) in case.results(chips) {
        for (at, &found) in results.iter().enumerate() {
            let (exact, magnitude) = case.exact(at, a, b, c);
            let found = c(found);
            let bound = epsilon * magnitude * case.sizes[2].next_multiple_of(16) as f64 / 2.0;
            let close = (found - exact).abs() <= bound;
            let same = found == exact || found.is_nan() && exact.is_nan();
            assert!(close || same, "{what}, [{at}]: {found} for {exact}");
        }
    }
}

/// Returns 16-bit floats between -4 and 4, some of which are replaced by values of `special`.
fn halves(numbers: &mut Numbers, count: usize, encode: fn(f32) -> u16, special: &[u16]) -> Vec<u16> {
    numbers.vector(count, |numbers| match numbers.below(20) {
        0 if !special.is_empty() => special[numbers.below(special.len())],
        _ => encode((numbers.below(4096) as f32 - 2048.0) / 512.0),
    })
}

/// Both zeros, both infinities, NaN, the smallest and the largest denormals, the smallest normal number.
const SPECIAL_F16: [u16; 9] = [0, 0x8000, 0x7c00, 0xfc00, 0x7e00, 0x0001, 0x8001, 0x03ff, 0x0400];
const SPECIAL_BF16: [u16; 9] = [0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0x0001, 0x8001, 0x007f, 0x0080];

#[test]
fn f32_sums_of_16_bit_floats() {
    type Kind<'a> = (&'a str, fn(f32) -> u16, Value<u16>, &'a [u16]);
    let kinds: [Kind; 2] = [
        ("f32_f16", |x| f16::from_f32(x).to_bits(), |bits| f16::from_bits(bits).into(), &SPECIAL_F16),
        ("f32_bf16", |x| bf16::from_f32(x).to_bits(), |bits| bf16::from_bits(bits).into(), &SPECIAL_BF16),
    ];
    for (kernel, encode, decode, special) in kinds {
        for sizes in SIZES {
            let [m, n, k] = sizes;
            let mut numbers = Numbers(k as u64);
            // Some cases have no special values, because these affect many results and hide rounding errors.
            let special = if m == 16 { &[] } else { special };
            let a = halves(&mut numbers, m * k, encode, special);
            let b = halves(&mut numbers, k * n, encode, &[]);
            let c = numbers.vector(m * n, |numbers| match numbers.below(30) {
                0 => -0.0,
                1 => 1e-40,
                2 if m != 16 => f32::INFINITY,
                _ => numbers.below(1000) as f32 / 7.0,
            });
            let case = Case { kernel, sizes, a, b, c };
            check_floats(&case, &CHIPS, (decode, decode, f64::from), 2f64.powi(-24));
        }
    }
}

#[test]
fn sums_of_16_bits() {
    for sizes in SIZES {
        let [m, n, k] = sizes;
        let mut numbers = Numbers(n as u64);
        let mut matrix = |count, encode| halves(&mut numbers, count, encode, &[]);
        let encode: fn(f32) -> u16 = |x| f16::from_f32(x).to_bits();
        let (a, b, c) = (matrix(m * k, encode), matrix(k * n, encode), matrix(m * n, encode));
        let decode: Value<u16> = |bits| f16::from_bits(bits).into();
        let case = Case { kernel: "f16_f16", sizes, a, b, c };
        check_floats(&case, &CHIPS, (decode, decode, decode), 2f64.powi(-11));
        let encode: fn(f32) -> u16 = |x| bf16::from_f32(x).to_bits();
        let (a, b, c) = (matrix(m * k, encode), matrix(k * n, encode), matrix(m * n, encode));
        let decode: Value<u16> = |bits| bf16::from_bits(bits).into();
        let case = Case { kernel: "bf16_bf16", sizes, a, b, c };
        check_floats(&case, &CHIPS, (decode, decode, decode), 2f64.powi(-8));
    }
}

#[test]
fn sums_of_8_bit_floats() {
    /// Returns the value of OCP's E4M3 and E5M2 from their fields.
    fn value(bits: u8, fraction_bits: i32) -> f64 {
        let magnitude = i32::from(bits & 0x7f);
        let bias = (1 << (6 - fraction_bits)) - 1;
        let exponent = magnitude >> fraction_bits;
        let fraction = f64::from(magnitude & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
        let absolute = match (fraction_bits, magnitude) {
            (3, 0x7f) | (2, 0x7d..) => f64::NAN,
            (2, 0x7c) => f64::INFINITY,
            _ if exponent == 0 => fraction * f64::from(1 - bias).exp2(),
            _ => (1.0 + fraction) * f64::from(exponent - bias).exp2(),
        };
        if bits & 0x80 != 0 { -absolute } else { absolute }
    }
    for sizes in SIZES {
        let [m, n, k] = sizes;
        let mut numbers = Numbers(m as u64);
        let a = numbers.vector(m * k, |numbers| numbers.below(256) as u8);
        // Only some cases have NaN in B; otherwise all results would be NaN.
        let b = numbers.vector(k * n, |numbers| numbers.below(if m == 5 { 0x80 } else { 0x7c }) as u8);
        let c = numbers.vector(m * n, |numbers| numbers.below(1000) as f32);
        let case = Case { kernel: "f32_fp8_bf8", sizes, a, b, c };
        check_floats(&case, &CHIPS[1..], (|x| value(x, 3), |x| value(x, 2), f64::from), 2f64.powi(-24));
    }
}

#[test]
fn sums_of_integers() {
    let signed: Value<u8> = |bits| f64::from(bits as i8);
    let unsigned: Value<u8> = |bits| bits.into();
    let nibble: Value<u8> = |bits| f64::from(bits & 15);
    let signed_nibble: Value<u8> = |bits| f64::from((bits << 4) as i8 >> 4);
    type Kernel = (&'static str, Value<u8>, Value<u8>, &'static [Chip]);
    let kernels: [Kernel; 4] = [
        ("i32_iu8", signed, unsigned, &CHIPS),
        ("i32_iu8_clamped", signed, signed, &CHIPS),
        ("i32_iu4", nibble, signed_nibble, &CHIPS),
        ("i32_iu4_of_32", nibble, signed_nibble, &CHIPS[1..]),
    ];
    for (kernel, a_value, b_value, chips) in kernels {
        for mut sizes in SIZES {
            // Kernels with several tiles clamp the sum after each, so that these use a single tile.
            sizes[2] = if kernel.ends_with("clamped") { sizes[2].min(16) } else { sizes[2] };
            let [m, n, k] = sizes;
            let mut numbers = Numbers(n as u64);
            let mut matrix = |count| numbers.vector(count, |numbers| numbers.below(256) as u8);
            let (a, b) = (matrix(m * k), matrix(k * n));
            let c = numbers.vector(m * n, |numbers| match numbers.below(8) {
                0 => i32::MAX - 50,
                1 => i32::MIN + 50,
                _ => numbers.below(1 << 20) as i32 - (1 << 19),
            });
            let case = Case { kernel, sizes, a, b, c };
            for (what, results) in case.results(chips) {
                for (at, &found) in results.iter().enumerate() {
                    let exact = case.exact(at, a_value, b_value, f64::from).0 as i64;
                    let clamped = exact.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
                    let expected = if kernel.ends_with("clamped") { clamped } else { exact as i32 };
                    assert_eq!(found, expected, "{what}, [{at}]");
                }
            }
        }
    }
}
