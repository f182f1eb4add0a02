//! Tests of compiled matrix instructions of gfx908, gfx90a and gfx942, compared with plain products.
use super::code_object::{Arguments, CodeObject, Shape, readable, writable};
use half::{bf16, f16};
use rocm_emulator::isa::Family;

const CHIPS: [(&str, Family); 3] =
    [("gfx908", Family::Cdna1), ("gfx90a", Family::Cdna2), ("gfx942", Family::Cdna3)];
/// Number of waves, each of which has separate matrices.
const WAVES: usize = 3;

/// An element of a matrix.
trait Element: Copy {
    /// Returns a multiple of 1/4 between -7.75 and 7.75, or an integer if the type has no fractions.
    fn of(quarters: i32) -> Self;
    fn value(self) -> f64;
}

macro_rules! elements {
    ($($element:ty: $quarters:ident => $of:expr, $value:ident => $to:expr;)*) => {
        $(impl Element for $element {
            fn of($quarters: i32) -> Self { $of }
            fn value(self) -> f64 { let $value = self; $to }
        })*
    };
}

elements! {
    f32: q => q as f32 / 4.0, x => x.into();
    f64: q => f64::from(q) / 4.0, x => x;
    f16: q => Self::from_f32(q as f32 / 4.0), x => x.into();
    bf16: q => Self::from_f32(q as f32 / 4.0), x => x.into();
    i8: q => q as i8, x => x.into();
    i32: q => q * 1001, x => x.into();
}

/// Matrix sizes of one instruction.
#[derive(Clone, Copy)]
struct Sizes {
    side: usize,
    k: usize,
    blocks: usize,
}

/// Modifiers, and the block of A and column of B that they select for a block or column.
struct Modified {
    suffix: &'static str,
    a_block: fn(usize) -> usize,
    b_column: fn(Sizes, usize, usize) -> (usize, usize),
}

const PLAIN: Modified =
    Modified { suffix: "000", a_block: |block| block, b_column: |_, block, column| (block, column) };

fn numbers<T: Element>(count: usize, seed: u64) -> Vec<T> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        T::of((state >> 59) as i32 - if state >> 58 & 1 == 0 { 31 } else { 0 })
    };
    (0..count).map(|_| next()).collect()
}

/// Compares with the definition, bit for bit, because every product and sum is exact.
fn check<A: Element, D: Element + Default>(
    (chip, family): (&str, Family),
    name: &str,
    sizes: Sizes,
    modified: &Modified,
) {
    let Sizes { side, k, blocks } = sizes;
    let (a, b) = (numbers::<A>(WAVES * blocks * side * k, 1), numbers::<A>(WAVES * blocks * side * k, 2));
    let c = numbers::<D>(WAVES * blocks * side * side, 3);
    let mut d = vec![D::default(); c.len()];
    let code = CodeObject::for_chip(&format!("matrix.{chip}"), family);
    let arguments = Arguments::default().pointer(&a).pointer(&b).pointer(&c).pointer(&d);
    let memory = [readable(&a), readable(&b), readable(&c), writable(&mut d)];
    let kernel = format!("{name}_{}", modified.suffix);
    code.launch(&kernel, Shape::new(WAVES as u32, 64), &arguments, &memory).expect("no fault");
    for (at, found) in d.iter().enumerate() {
        let (wave, block) = (at / (blocks * side * side), at / (side * side) % blocks);
        let (i, j) = (at / side % side, at % side);
        let (b_block, column) = (modified.b_column)(sizes, block, j);
        let product = |l: usize| {
            let a = a[((wave * blocks + (modified.a_block)(block)) * side + i) * k + l];
            a.value() * b[((wave * blocks + b_block) * k + l) * side + column].value()
        };
        let expected = c[at].value() + (0..k).map(product).sum::<f64>();
        assert_eq!(found.value(), expected, "{chip} {kernel}: wave {wave}, block {block} [{i}][{j}]");
    }
}

fn plain<A: Element, D: Element + Default>(chips: &[usize], table: &[(&str, usize, usize, usize)]) {
    for chip in chips {
        for &(name, side, k, blocks) in table {
            check::<A, D>(CHIPS[*chip], name, Sizes { side, k, blocks }, &PLAIN);
        }
    }
}

#[test]
fn products_of_f32() {
    let table = [
        ("f32_32x32x1f32", 32, 1, 2),
        ("f32_16x16x1f32", 16, 1, 4),
        ("f32_4x4x1f32", 4, 1, 16),
        ("f32_32x32x2f32", 32, 2, 1),
        ("f32_16x16x4f32", 16, 4, 1),
    ];
    plain::<f32, f32>(&[0, 1, 2], &table);
    plain::<f32, f32>(&[2], &[("f32_32x32x4_xf32", 32, 4, 1), ("f32_16x16x8_xf32", 16, 8, 1)]);
}

#[test]
fn products_of_halves() {
    let table = [
        ("f32_32x32x4f16", 32, 4, 2),
        ("f32_16x16x4f16", 16, 4, 4),
        ("f32_4x4x4f16", 4, 4, 16),
        ("f32_32x32x8f16", 32, 8, 1),
        ("f32_16x16x16f16", 16, 16, 1),
    ];
    plain::<f16, f32>(&[0, 1, 2], &table);
    let narrow = [
        ("f32_32x32x2bf16", 32, 2, 2),
        ("f32_16x16x2bf16", 16, 2, 4),
        ("f32_4x4x2bf16", 4, 2, 16),
        ("f32_32x32x4bf16", 32, 4, 1),
        ("f32_16x16x8bf16", 16, 8, 1),
    ];
    plain::<bf16, f32>(&[0, 1], &narrow);
    let wide = [
        ("f32_32x32x4bf16_1k", 32, 4, 2),
        ("f32_16x16x4bf16_1k", 16, 4, 4),
        ("f32_4x4x4bf16_1k", 4, 4, 16),
        ("f32_32x32x8bf16_1k", 32, 8, 1),
        ("f32_16x16x16bf16_1k", 16, 16, 1),
    ];
    plain::<bf16, f32>(&[1, 2], &wide);
}

#[test]
fn products_of_bytes() {
    let table = [("i32_32x32x4i8", 32, 4, 2), ("i32_16x16x4i8", 16, 4, 4), ("i32_4x4x4i8", 4, 4, 16)];
    plain::<i8, i32>(&[0, 1, 2], &table);
    plain::<i8, i32>(&[0, 1], &[("i32_32x32x8i8", 32, 8, 1), ("i32_16x16x16i8", 16, 16, 1)]);
    plain::<i8, i32>(&[2], &[("i32_32x32x16_i8", 32, 16, 1), ("i32_16x16x32_i8", 16, 32, 1)]);
}

#[test]
fn products_of_f64() {
    plain::<f64, f64>(&[1, 2], &[("f64_16x16x4f64", 16, 4, 1), ("f64_4x4x4f64", 4, 4, 4)]);
}

#[test]
fn blocks_are_broadcast_and_lanes_permuted() {
    let first = Modified { suffix: "400", a_block: |_| 0, ..PLAIN };
    let odd = Modified { suffix: "110", a_block: |block| block | 1, ..PLAIN };
    // blgp 6 broadcasts lanes 32 to 47, which are the columns of block 2.
    let third = Modified { suffix: "006", b_column: |_, _, column| (2, column), ..PLAIN };
    for chip in CHIPS {
        check::<f32, f32>(chip, "f32_4x4x1f32", Sizes { side: 4, k: 1, blocks: 16 }, &first);
        check::<f16, f32>(chip, "f32_16x16x4f16", Sizes { side: 16, k: 4, blocks: 4 }, &odd);
        check::<f32, f32>(chip, "f32_16x16x1f32", Sizes { side: 16, k: 1, blocks: 4 }, &third);
    }
}

/// Returns the value of gfx942's 8-bit floats by definition: no infinities, bias 8 or 16, NaN as code of -0.
fn small_float(bits: u8, fraction_bits: u32) -> f64 {
    let bias = 1 << (6 - fraction_bits);
    let exponent = i32::from(bits & 0x7f) >> fraction_bits;
    let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
    let (leading, exponent) = if exponent == 0 { (0.0, 1) } else { (1.0, exponent) };
    let magnitude = (leading + fraction) * 2f64.powi(exponent - bias);
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

#[test]
fn products_of_eight_bit_floats() {
    for (kernel, side, k, [a_fraction, b_fraction]) in
        [("f32_32x32x16_fp8_bf8_000", 32, 16, [3, 2]), ("f32_16x16x32_bf8_fp8_000", 16, 32, [2, 3])]
    {
        // The exponents are in the middle of the range, so that sums are exact.
        let codes = |seed: u64, fraction: u32| -> Vec<u8> {
            let middle = 1u8 << (6 - fraction) << fraction;
            numbers::<i8>(side * k, seed)
                .into_iter()
                .map(|n| (n as u8 & 0x80) | (middle - 4 + (n as u8 & 7)))
                .collect()
        };
        let (a, b) = (codes(1, a_fraction), codes(2, b_fraction));
        let c = numbers::<f32>(side * side, 3);
        let mut d = vec![0f32; c.len()];
        let code = CodeObject::for_chip("matrix.gfx942", Family::Cdna3);
        let arguments = Arguments::default().pointer(&a).pointer(&b).pointer(&c).pointer(&d);
        let memory = [readable(&a), readable(&b), readable(&c), writable(&mut d)];
        code.launch(kernel, Shape::new(1, 64), &arguments, &memory).expect("no fault");
        for (at, found) in d.iter().enumerate() {
            let (i, j) = (at / side, at % side);
            let product =
                |l: usize| small_float(a[i * k + l], a_fraction) * small_float(b[l * side + j], b_fraction);
            let expected = f64::from(c[at]) + (0..k).map(product).sum::<f64>();
            assert_eq!(f64::from(*found), expected, "{kernel} [{i}][{j}]");
        }
    }
}

#[test]
fn signs_of_f64() {
    let (a, b, c) = (numbers::<f64>(64, 1), numbers::<f64>(64, 2), numbers::<f64>(64, 3));
    let mut d = vec![0f64; 64];
    let code = CodeObject::for_chip("matrix.gfx942", Family::Cdna3);
    let arguments = Arguments::default().pointer(&a).pointer(&b).pointer(&c).pointer(&d);
    let memory = [readable(&a), readable(&b), readable(&c), writable(&mut d)];
    code.launch("f64_4x4x4f64_005", Shape::new(1, 64), &arguments, &memory).expect("no fault");
    for (at, found) in d.iter().enumerate() {
        let (block, i, j) = (at / 16, at / 4 % 4, at % 4);
        let sum: f64 = (0..4).map(|l| a[(block * 4 + i) * 4 + l] * b[(block * 4 + l) * 4 + j]).sum();
        assert_eq!(*found, -sum - c[at], "block {block} [{i}][{j}]");
    }
}
