//! Comparison with plain matrix products in f64. Elements are placed by the inverse of the layout: from lane
//! and item to coordinates.
use super::element::{Element, Sum};
use super::*;
use crate::exec::canonical::canonical;
use crate::exec::wave::{Mode, VGPRS};
use crate::isa;
use std::collections::BTreeSet;

const FIXTURES: [(Family, &str); 2] = [
    (Family::Rdna3, include_str!("../../../../tests/fixtures/gfx1100.txt")),
    (Family::Rdna4, include_str!("../../../../tests/fixtures/gfx1201.txt")),
];
/// First registers of A, B, C and D, and the register of a sparse A's column indices.
const A: u16 = 0;
const B: u16 = 16;
const C: u16 = 32;
const D: u16 = 64;
const INDICES: u16 = 80;

/// Returns the matrix instructions of a family, one per mnemonic, with the tests' registers as operands.
fn instructions(family: Family) -> Vec<Inst> {
    let (_, fixture) = FIXTURES.iter().find(|(each, _)| *each == family).expect("a family of FIXTURES");
    let lines = fixture.lines().filter(|line| line.contains("  v_wmma_") || line.contains("  v_swmmac_"));
    let decoded = lines.map(|line| {
        let words = line.split_once("  ").map_or("", |(words, _)| words);
        let words = words.split(' ').map(|word| u32::from_str_radix(word, 16).expect("a word"));
        let text: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        canonical(family, isa::decode(family, &text, 0).expect("a valid instruction"))
    });
    let mut seen = BTreeSet::new();
    let mut instructions: Vec<Inst> = decoded.filter(|inst| seen.insert(inst.name)).collect();
    for inst in &mut instructions {
        let third = if inst.name.starts_with("v_swmmac") { INDICES } else { C };
        inst.dst = Operand::Vgpr(D);
        inst.src = [Operand::Vgpr(A), Operand::Vgpr(B), Operand::Vgpr(third), Operand::None];
        inst.mods = isa::Mods::default();
    }
    instructions
}

fn instruction(family: Family, name: &str) -> Inst {
    instructions(family).into_iter().find(|inst| inst.name == name).expect(name)
}

/// Shape parsed from a mnemonic: rows of B, sparsity of A (half of its columns are stored), bits per element.
#[derive(Clone, Copy)]
struct ParsedShape {
    family: Family,
    lanes: usize,
    rows: usize,
    sparse: bool,
    bits: usize,
    sum_bits: usize,
}

impl ParsedShape {
    fn of(name: &str, family: Family, lanes: usize) -> Self {
        let parts: Vec<&str> = name.split('_').collect();
        let bits = match parts[4] {
            "f16" | "bf16" => 16,
            "iu4" => 4,
            _ => 8,
        };
        Self {
            family,
            lanes,
            rows: parts[3].rsplit('x').next().and_then(|k| k.parse().ok()).expect("rows of B"),
            sparse: parts[1] == "swmmac",
            bits,
            sum_bits: if parts[2].ends_with("16") { 16 } else { 32 },
        }
    }

    /// Returns the number of stored columns of A.
    fn columns(&self) -> usize {
        if self.sparse { self.rows / 2 } else { self.rows }
    }

    /// Returns row (or column) and k of a lane's element in a matrix with `count` k. Any assignment of k to
    /// lanes is valid as long as A and B agree.
    fn input(&self, count: usize, lane: usize, item: usize) -> Option<(usize, usize)> {
        let per_lane = match (self.family, self.lanes) {
            (Family::Rdna3, _) => count,
            // The smallest matrix fills only half of the lanes.
            (_, 64) if self.bits == 4 && count == 16 => 8,
            (_, lanes) => count * 16 / lanes,
        };
        let k = if self.family == Family::Rdna3 { item } else { lane / 16 * per_lane + item };
        (item < per_lane && k < count).then_some((lane % 16, k))
    }

    /// Returns row and column of a lane's result.
    fn result(&self, lane: usize, item: usize) -> (usize, usize) {
        let row = match (self.family, self.lanes) {
            (Family::Rdna3, lanes) => item * lanes / 16 + lane / 16,
            (_, 32) => 8 * (lane / 16) + item,
            _ => 8 * (lane / 16 % 2) + 4 * (lane / 32) + item,
        };
        (row, lane % 16)
    }

    /// Returns a result's register and first bit. gfx11 has 16-bit results in one half of a register.
    fn result_at(&self, item: usize, high: bool) -> (usize, usize) {
        match (self.family, self.sum_bits) {
            (_, 32) => (item, 0),
            (Family::Rdna3, _) => (item, if high { 16 } else { 0 }),
            _ => (item / 2, 16 * (item % 2)),
        }
    }
}

/// Returns the bits of a float that the type represents exactly.
fn encode(element: Element, value: f64) -> u32 {
    // Numbers of exponent and fraction bits.
    let (exponent_bits, fraction) = match element {
        Element::F16 => (5, 10),
        Element::Bf16 => (8, 7),
        Element::Fp8 => (4, 3),
        Element::Bf8 => (5, 2),
        Element::Int8 => return value as i32 as u32 & 0xff,
        Element::Int4 => return value as i32 as u32 & 0xf,
    };
    let sign = u32::from(value.is_sign_negative()) << (exponent_bits + fraction);
    let infinity = ((1 << exponent_bits) - 1) << fraction;
    if value == 0.0 {
        return sign;
    } else if !value.is_finite() {
        return sign | infinity | if value.is_nan() { 1 << (fraction - 1) } else { 0 };
    }
    let bias = (1 << (exponent_bits - 1)) - 1;
    let exponent = (value.abs().log2().floor() as i32).max(1 - bias);
    let scaled = value.abs() / f64::from(exponent).exp2() * f64::from(1 << fraction);
    assert_eq!(scaled.fract(), 0.0, "{value} is not representable as {element:?}");
    let scaled = scaled as u32;
    // A denormal has no implicit leading one.
    let biased = if scaled >> fraction == 0 { 0 } else { (exponent + bias) as u32 };
    sign | biased << fraction | scaled & ((1 << fraction) - 1)
}

/// Pseudorandom generator of small numbers.
struct Generator(u64);

impl Generator {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// Matrices of a product, by rows.
#[derive(Clone)]
struct Matrices {
    a: Vec<Vec<f64>>,
    b: Vec<Vec<f64>>,
    c: Vec<Vec<f64>>,
    /// Indices of a sparse A's stored columns among each four.
    indices: Vec<Vec<usize>>,
}

impl Matrices {
    /// Fills the matrices with random numbers.
    fn new(parsed: ParsedShape, number: impl Fn(&mut Generator) -> f64) -> Self {
        let mut generator = Generator(parsed.rows as u64 + parsed.bits as u64);
        let mut matrix = |rows: usize, columns: usize| -> Vec<Vec<f64>> {
            (0..rows).map(|_| (0..columns).map(|_| number(&mut generator)).collect()).collect()
        };
        let (a, b, c) = (matrix(16, parsed.columns()), matrix(parsed.rows, 16), matrix(16, 16));
        const PAIRS: [[usize; 2]; 6] = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]];
        let mut row = || (0..parsed.columns() / 2).flat_map(|_| PAIRS[generator.next(6)]).collect();
        let indices = (0..16).map(|_| row()).collect();
        Self { a, b, c, indices }
    }

    /// Returns an element of A * B + C, and the sum of the terms' magnitudes.
    fn exact(&self, parsed: ParsedShape, i: usize, j: usize) -> (f64, f64) {
        let start = (self.c[i][j], self.c[i][j].abs());
        self.a[i].iter().enumerate().fold(start, |(sum, magnitude), (k, a)| {
            let row = if parsed.sparse { k / 2 * 4 + self.indices[i][k] } else { k };
            let product = a * self.b[row][j];
            (sum + product, magnitude + product.abs())
        })
    }
}

/// Loads the matrices into registers and runs the instruction; returns D and the wave.
fn execute<const W: usize>(inst: &Inst, family: Family, matrices: &Matrices) -> (Vec<Vec<f64>>, Wave<W>) {
    let parsed = ParsedShape::of(inst.name, family, W);
    let step = prepare::<W>(inst, family).unwrap_or_else(|| panic!("{} is unknown", inst.name));
    let mode = Mode::from_bits(0x3f0);
    // EXEC is 0, because matrix instructions ignore it.
    let vgpr = vec![Lanes::splat(0); VGPRS];
    let mut wave = Wave { sgpr: [0; 128], scc: false, mode, vgpr };
    let mut put = |register: u16, bit: usize, lane: usize, bits: u32| {
        wave.vgpr[usize::from(register) + bit / 32].0[lane] |= bits << (bit % 32);
    };
    for lane in 0..W {
        for item in 0..parsed.rows {
            if let Some((i, k)) = parsed.input(parsed.columns(), lane, item) {
                put(A, item * parsed.bits, lane, encode(step.shape.a, matrices.a[i][k]));
                put(
                    INDICES,
                    2 * item + usize::from(16 * inst.mods.op_sel),
                    lane,
                    matrices.indices[i][k] as u32,
                );
            }
            if let Some((j, k)) = parsed.input(parsed.rows, lane, item) {
                put(B, item * parsed.bits, lane, encode(step.shape.b, matrices.b[k][j]));
            }
        }
    }
    let high = inst.mods.op_sel & 4 != 0;
    let c = if parsed.sparse { D } else { C };
    for lane in 0..W {
        for item in 0..256 / W {
            let (i, j) = parsed.result(lane, item);
            let (register, bit) = parsed.result_at(item, high);
            let bits = match step.shape.sum {
                Sum::F32 => (matrices.c[i][j] as f32).to_bits(),
                Sum::I32 => matrices.c[i][j] as i64 as u32,
                Sum::F16 => encode(Element::F16, matrices.c[i][j]),
                Sum::Bf16 => encode(Element::Bf16, matrices.c[i][j]),
            };
            put(c + register as u16, bit, lane, bits);
        }
    }
    step.run(&mut wave);
    let mut result = vec![vec![0.0; 16]; 16];
    for lane in 0..W {
        for item in 0..256 / W {
            let (i, j) = parsed.result(lane, item);
            let (register, bit) = parsed.result_at(item, high);
            let bits = wave.vgpr[usize::from(D) + register].0[lane] >> bit;
            result[i][j] = match step.shape.sum {
                Sum::F32 => f32::from_bits(bits).into(),
                Sum::I32 => (bits as i32).into(),
                Sum::F16 => half::f16::from_bits(bits as u16).into(),
                Sum::Bf16 => half::bf16::from_bits(bits as u16).into(),
            };
        }
    }
    (result, wave)
}

/// Runs the instruction on `matrices` and compares D with the product of `expected`.
fn check<const W: usize>(inst: &Inst, family: Family, matrices: &Matrices, expected: &Matrices) {
    let parsed = ParsedShape::of(inst.name, family, W);
    let (result, _) = execute::<W>(inst, family, matrices);
    for (i, row) in result.iter().enumerate() {
        for (j, value) in row.iter().enumerate() {
            let exact = expected.exact(parsed, i, j).0;
            assert_eq!(*value, exact, "{family:?} {W} {} {:?}: [{i}][{j}]", inst.name, inst.mods);
        }
    }
}

/// Checks all products of a family on small integers, whose sums are exact.
fn check_all<const W: usize>(family: Family) -> usize {
    let mut count = 0;
    for mut inst in instructions(family) {
        let parsed = ParsedShape::of(inst.name, family, W);
        if parsed.sparse && W == 64 {
            assert!(prepare::<W>(&inst, family).is_none(), "{}", inst.name);
            continue;
        }
        if inst.name.contains("_iu") {
            inst.mods.neg = 0b11;
        }
        let matrices = Matrices::new(parsed, |generator| generator.next(5) as f64 - 2.0);
        check::<W>(&inst, family, &matrices, &matrices);
        count += 1;
    }
    count
}

#[test]
fn products_agree_with_the_definition() {
    assert_eq!(check_all::<32>(Family::Rdna3), 6);
    assert_eq!(check_all::<64>(Family::Rdna3), 6);
    assert_eq!(check_all::<32>(Family::Rdna4), 22);
    assert_eq!(check_all::<64>(Family::Rdna4), 11);
}

/// Checks all products of a family on fractions, whose sums are rounded.
fn check_rounding<const W: usize>(family: Family) {
    for inst in instructions(family).iter().filter(|inst| inst.name.contains("16x16x16")) {
        let parsed = ParsedShape::of(inst.name, family, W);
        let epsilon = match inst.name {
            name if name.contains("_iu") || name.contains("f8") || name.contains("p8") => continue,
            name if name.starts_with("v_wmma_f32") => 2f64.powi(-24),
            name if name.starts_with("v_wmma_f16") => 2f64.powi(-11),
            _ => 2f64.powi(-8),
        };
        let matrices = Matrices::new(parsed, |generator| (generator.next(255) as f64 - 127.0) / 16.0);
        let (result, _) = execute::<W>(inst, family, &matrices);
        let mut rounded = 0;
        for (i, row) in result.iter().enumerate() {
            for (j, value) in row.iter().enumerate() {
                let (exact, magnitude) = matrices.exact(parsed, i, j);
                // The sum is rounded at most eight times.
                let bound = 8.0 * epsilon * magnitude;
                assert!((value - exact).abs() <= bound, "{}: {value} {exact} {bound}", inst.name);
                rounded += usize::from(*value != exact);
            }
        }
        assert!(parsed.sum_bits == 32 || rounded > 100, "{}: {rounded}", inst.name);
    }
}

#[test]
fn sums_are_accurate_to_their_type() {
    check_rounding::<32>(Family::Rdna3);
    check_rounding::<32>(Family::Rdna4);
}

#[test]
fn a_group_of_products_is_rounded_once() {
    // 2048 + 1 + 1 in f16: each 1 alone would be rounded away, but their sum is not.
    for (family, group) in [(Family::Rdna3, 2), (Family::Rdna4, 4)] {
        let inst = instruction(family, "v_wmma_f16_16x16x16_f16");
        let parsed = ParsedShape::of(inst.name, family, 32);
        let mut matrices = Matrices::new(parsed, |_| 0.0);
        matrices.c[3][4] = 2048.0;
        for (ones, expected) in [(1, 2048.0), (2, 2050.0)] {
            (0..ones).for_each(|k| matrices.a[3][k] = 1.0);
            (0..16).for_each(|k| matrices.b[k][4] = 1.0);
            assert_eq!(execute::<32>(&inst, family, &matrices).0[3][4], expected, "{family:?}");
        }
        // One product of each group is 1.
        matrices.a[3] = (0..16).map(|k| if k % group == 0 { 1.0 } else { 0.0 }).collect();
        assert_eq!(execute::<32>(&inst, family, &matrices).0[3][4], 2048.0, "{family:?}");
    }
}

#[test]
fn nans_and_infinities_propagate_along_row_and_column() {
    for (family, name) in [
        (Family::Rdna3, "v_wmma_f32_16x16x16_f16"),
        (Family::Rdna3, "v_wmma_bf16_16x16x16_bf16"),
        (Family::Rdna4, "v_wmma_f16_16x16x16_f16"),
        (Family::Rdna4, "v_wmma_f32_16x16x16_bf16"),
    ] {
        let inst = instruction(family, name);
        let parsed = ParsedShape::of(name, family, 32);
        let mut matrices = Matrices::new(parsed, |generator| 1.0 + generator.next(2) as f64);
        matrices.a[1][3] = f64::INFINITY;
        matrices.b[3][5] = 0.0;
        matrices.b[3][6] = -1.0;
        matrices.a[2][0] = f64::INFINITY;
        matrices.a[2][9] = f64::NEG_INFINITY;
        matrices.a[4][15] = f64::NAN;
        matrices.c[6][2] = f64::NEG_INFINITY;
        matrices.b[11][9] = f64::NAN;
        let result = execute::<32>(&inst, family, &matrices).0;
        for (i, row) in result.iter().enumerate() {
            for (j, value) in row.iter().enumerate() {
                let exact = matrices.exact(parsed, i, j).0;
                assert!(
                    *value == exact || value.is_nan() && exact.is_nan(),
                    "{name} [{i}][{j}]: {value} {exact}"
                );
            }
        }
        assert!(result[1][5].is_nan() && result[1][6] == f64::NEG_INFINITY && result[1][0] == f64::INFINITY);
        assert!(result[2][0].is_nan() && result[4][8].is_nan() && result[0][9].is_nan());
    }
}

#[test]
fn denormals_and_the_sign_of_zero_are_kept() {
    for (family, name, least, scale) in [
        (Family::Rdna3, "v_wmma_f32_16x16x16_f16", -24, 10),
        (Family::Rdna4, "v_wmma_f16_16x16x16_f16", -24, 0),
        (Family::Rdna4, "v_wmma_f32_16x16x16_bf16", -133, 0),
        (Family::Rdna4, "v_wmma_f32_16x16x16_fp8_bf8", -9, -16),
    ] {
        let inst = instruction(family, name);
        let mut matrices = Matrices::new(ParsedShape::of(name, family, 32), |_| 0.0);
        matrices.a[7][2] = 2f64.powi(least);
        matrices.b[2][8] = 2f64.powi(scale);
        matrices.c[1].fill(-0.0);
        matrices.a[1].fill(-0.0);
        let result = execute::<32>(&inst, family, &matrices).0;
        assert_eq!(result[7][8], 2f64.powi(least + scale), "{name}");
        assert!(result[1].iter().all(|value| *value == 0.0 && value.is_sign_negative()), "{name}");
        assert!(result[9].iter().all(|value| *value == 0.0 && value.is_sign_positive()), "{name}");
    }
}

#[test]
fn float_operands_can_be_negated() {
    for (family, name) in [
        (Family::Rdna3, "v_wmma_f32_16x16x16_bf16"),
        (Family::Rdna3, "v_wmma_f16_16x16x16_f16"),
        (Family::Rdna4, "v_wmma_f32_16x16x16_f16"),
        (Family::Rdna4, "v_wmma_bf16_16x16x16_bf16"),
        (Family::Rdna4, "v_swmmac_f16_16x16x32_f16"),
    ] {
        let parsed = ParsedShape::of(name, family, 32);
        let matrices = Matrices::new(parsed, |generator| generator.next(5) as f64 - 2.0);
        for bits in 0..if parsed.sparse { 16 } else { 64 } {
            let mut inst = instruction(family, name);
            // Bits 0 and 1 negate A and B; C has negation and absolute value.
            inst.mods.neg = bits & 3 | bits >> 2 & 4;
            inst.mods.neg_hi = bits >> 2 & 3 | bits >> 3 & 4;
            let mut expected = matrices.clone();
            let negative = |even: bool| {
                let mask = if even { inst.mods.neg } else { inst.mods.neg_hi };
                (mask & 1 != 0) != (mask & 2 != 0)
            };
            for row in &mut expected.a {
                for (k, value) in row.iter_mut().enumerate() {
                    *value = if negative(k % 2 == 0) { -*value } else { *value };
                }
            }
            for value in expected.c.iter_mut().flatten() {
                *value = if inst.mods.neg_hi & 4 != 0 { value.abs() } else { *value };
                *value = if inst.mods.neg & 4 != 0 { -*value } else { *value };
            }
            check::<32>(&inst, family, &matrices, &expected);
        }
    }
}

#[test]
fn integer_signedness_follows_the_modifiers() {
    for (family, name, signed_at) in [
        (Family::Rdna3, "v_wmma_i32_16x16x16_iu8", 128),
        (Family::Rdna3, "v_wmma_i32_16x16x16_iu4", 8),
        (Family::Rdna4, "v_wmma_i32_16x16x16_iu8", 128),
        (Family::Rdna4, "v_wmma_i32_16x16x32_iu4", 8),
        (Family::Rdna4, "v_swmmac_i32_16x16x64_iu4", 8),
    ] {
        let parsed = ParsedShape::of(name, family, 32);
        let matrices = Matrices::new(parsed, |generator| generator.next(2 * signed_at) as f64);
        for neg in 0..4u8 {
            let mut inst = instruction(family, name);
            inst.mods.neg = neg;
            let mut expected = matrices.clone();
            for (bit, matrix) in [&mut expected.a, &mut expected.b].into_iter().enumerate() {
                for value in matrix.iter_mut().flatten().filter(|value| **value >= signed_at as f64) {
                    *value -= if neg >> bit & 1 != 0 { 2.0 * signed_at as f64 } else { 0.0 };
                }
            }
            check::<32>(&inst, family, &matrices, &expected);
        }
    }
}

#[test]
fn integers_wrap_or_are_clamped() {
    for (family, name) in [
        (Family::Rdna3, "v_wmma_i32_16x16x16_iu8"),
        (Family::Rdna4, "v_wmma_i32_16x16x16_iu4"),
        (Family::Rdna4, "v_swmmac_i32_16x16x32_iu8"),
    ] {
        let mut inst = instruction(family, name);
        inst.mods.neg = 0b11;
        let parsed = ParsedShape::of(name, family, 32);
        let mut matrices = Matrices::new(parsed, |_| 3.0);
        matrices.a[5].fill(-3.0);
        matrices.c[4].fill(f64::from(i32::MAX - 100));
        matrices.c[5].fill(f64::from(i32::MIN + 100));
        let result = |inst: &Inst| execute::<32>(inst, family, &matrices).0;
        let wrapped = result(&inst);
        assert_eq!((wrapped[0][0], wrapped[4][1]), (147.0, f64::from(i32::MIN + 43)), "{name}");
        inst.mods.clamp = true;
        let clamped = result(&inst);
        assert_eq!((clamped[0][0], clamped[4][1], clamped[5][2]), (147.0, 2_147_483_647.0, -2_147_483_648.0));
    }
}

#[test]
fn gfx11_preserves_the_other_half_of_16_bit_results() {
    for (name, op_sel) in [("v_wmma_f16_16x16x16_f16", 0), ("v_wmma_bf16_16x16x16_bf16", 4)] {
        let mut inst = instruction(Family::Rdna3, name);
        inst.mods.op_sel = op_sel;
        // C and D are the same register, whose other half is not zero.
        inst.src[2] = Operand::Vgpr(C);
        inst.dst = Operand::Vgpr(C);
        let parsed = ParsedShape::of(name, Family::Rdna3, 64);
        let matrices = Matrices::new(parsed, |generator| generator.next(3) as f64);
        let step = prepare::<64>(&inst, Family::Rdna3).expect("known");
        let mut separate = inst.clone();
        separate.dst = Operand::Vgpr(D);
        let (_, mut wave) = execute::<64>(&separate, Family::Rdna3, &matrices);
        let (kept, shift) = if op_sel == 0 { (0xabcd_0000, 0) } else { (0x0000_abcd, 16) };
        for register in &mut wave.vgpr[usize::from(C)..usize::from(C) + 4] {
            register.0 = register.0.map(|word| word & 0xffff << shift | kept);
        }
        step.run(&mut wave);
        for n in 0..4 {
            for lane in 0..64 {
                let (found, alone) =
                    (wave.vgpr[usize::from(C) + n].0[lane], wave.vgpr[usize::from(D) + n].0[lane]);
                assert_eq!(found, alone & 0xffff << shift | kept, "{name} {n} {lane}");
            }
        }
    }
}

#[test]
fn gfx11_uses_the_copy_in_the_lanes_of_the_result() {
    let inst = instruction(Family::Rdna3, "v_wmma_i32_16x16x16_iu8");
    let matrices = Matrices::new(ParsedShape::of(inst.name, Family::Rdna3, 32), |_| 1.0);
    let (_, mut wave) = execute::<32>(&inst, Family::Rdna3, &matrices);
    // Clearing the copy of B in the upper lanes changes only the odd rows.
    for register in &mut wave.vgpr[usize::from(B)..usize::from(B) + 4] {
        register.0[16..].fill(0);
    }
    prepare::<32>(&inst, Family::Rdna3).expect("known").run(&mut wave);
    assert_eq!(wave.vgpr[usize::from(D)].0[3], 17);
    assert_eq!(wave.vgpr[usize::from(D)].0[19], 1);
}

#[test]
fn a_constant_addend_applies_to_every_element() {
    let one = Operand::Float(isa::InlineFloat::One);
    for (family, name, constant, value) in [
        (Family::Rdna3, "v_wmma_f32_16x16x16_f16", one, 1.0),
        (Family::Rdna3, "v_wmma_f16_16x16x16_f16", one, 1.0),
        (Family::Rdna4, "v_wmma_bf16_16x16x16_bf16", one, 1.0),
        (Family::Rdna4, "v_wmma_f32_16x16x16_bf8_bf8", Operand::Int(0), 0.0),
        (Family::Rdna4, "v_wmma_i32_16x16x16_iu8", Operand::Int(-7), -7.0),
        (Family::Rdna4, "v_wmma_i32_16x16x16_iu4", one, f64::from(1.0f32.to_bits())),
    ] {
        let mut inst = instruction(family, name);
        inst.src[2] = constant;
        let matrices = Matrices::new(ParsedShape::of(name, family, 32), |generator| generator.next(3) as f64);
        let mut expected = matrices.clone();
        expected.c.iter_mut().for_each(|row| row.fill(value));
        check::<32>(&inst, family, &matrices, &expected);
    }
}

#[test]
fn column_indices_are_in_either_half() {
    for op_sel in [0, 1] {
        let mut inst = instruction(Family::Rdna4, "v_swmmac_f32_16x16x32_f16");
        inst.mods.op_sel = op_sel;
        let parsed = ParsedShape::of(inst.name, Family::Rdna4, 32);
        let matrices = Matrices::new(parsed, |generator| generator.next(5) as f64 - 2.0);
        check::<32>(&inst, Family::Rdna4, &matrices, &matrices);
    }
}

#[test]
fn unsupported_modifiers_are_unknown() {
    let unknown = |family, name: &str, change: fn(&mut isa::Mods)| {
        let mut inst = instruction(family, name);
        change(&mut inst.mods);
        assert!(prepare::<32>(&inst, family).is_none(), "{family:?} {name} {:?}", inst.mods);
    };
    unknown(Family::Rdna3, "v_wmma_i32_16x16x16_iu8", |mods| mods.neg = 4);
    unknown(Family::Rdna3, "v_wmma_i32_16x16x16_iu4", |mods| mods.neg_hi = 1);
    unknown(Family::Rdna3, "v_wmma_f32_16x16x16_f16", |mods| mods.op_sel = 4);
    unknown(Family::Rdna3, "v_wmma_f32_16x16x16_f16", |mods| mods.clamp = true);
    unknown(Family::Rdna4, "v_wmma_f16_16x16x16_f16", |mods| mods.op_sel = 4);
    unknown(Family::Rdna4, "v_wmma_f32_16x16x16_fp8_fp8", |mods| mods.neg = 1);
    unknown(Family::Rdna4, "v_swmmac_f32_16x16x32_f16", |mods| mods.neg = 4);
    unknown(Family::Rdna4, "v_swmmac_i32_16x16x64_iu4", |mods| mods.op_sel = 1);
}

#[test]
fn eight_bit_floats_use_the_ocp_formats() {
    // The largest number, the smallest normal, a denormal, and special values.
    for (element, bits, value) in [
        (Element::Fp8, 0x7e, 448.0),
        (Element::Fp8, 0x08, 1.0 / 64.0),
        (Element::Fp8, 0x81, -1.0 / 512.0),
        (Element::Bf8, 0x7b, 57344.0),
        (Element::Bf8, 0x04, 1.0 / 16384.0),
        (Element::Bf8, 0x81, -1.0 / 65536.0),
        (Element::Bf8, 0xfc, f64::NEG_INFINITY),
    ] {
        assert_eq!(element.value(bits), value, "{element:?} 0x{bits:x}");
    }
    for (element, bits) in [(Element::Fp8, 0x7f), (Element::Fp8, 0xff), (Element::Bf8, 0x7d)] {
        assert!(element.value(bits).is_nan(), "{element:?} 0x{bits:x}");
    }
}
