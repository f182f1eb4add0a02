//! Comparison with plain matrix products. Elements are placed by the inverse of the layout: from register and
//! lane to coordinates.
use super::element::Element;
use super::*;
use crate::exec::canonical::canonical;
use crate::exec::wave::{Mode, VGPRS_AND_AGPRS};
use crate::isa::{self, InlineFloat};
use std::collections::BTreeSet;

const FIXTURES: [(Family, &str); 4] = [
    (Family::Cdna1, include_str!("../../../../tests/fixtures/gfx908.txt")),
    (Family::Cdna2, include_str!("../../../../tests/fixtures/gfx90a.txt")),
    (Family::Cdna3, include_str!("../../../../tests/fixtures/gfx942.txt")),
    // Its additions; the other products are the same as gfx942's.
    (Family::Cdna4, include_str!("../../../../tests/fixtures/gfx950.txt")),
];
/// First registers of A, B, C and D.
const A: u16 = 0;
const B: u16 = 8;
const C: u16 = 16;
const D: u16 = 64;

fn wave() -> Wave<64> {
    let mode = Mode::from_bits(0x3f0);
    // EXEC is 0, because matrix instructions ignore it.
    Wave { sgpr: [0; 128], scc: false, mode, vgpr: vec![Lanes::splat(0); VGPRS_AND_AGPRS] }
}

/// Returns the matrix instructions of a family, one per mnemonic, with the tests' registers as operands.
fn instructions(family: Family, fixture: &'static str) -> Vec<Inst> {
    let mut seen = BTreeSet::new();
    let lines = fixture.lines().filter(|line| line.contains("  v_mfma_") || line.contains("  v_smfmac_"));
    let decoded = lines.map(|line| {
        let words = line.split_once("  ").map_or("", |(words, _)| words);
        let words = words.split(' ').map(|word| u32::from_str_radix(word, 16).expect("a word"));
        let text: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        canonical(family, isa::decode(family, &text, 0).expect("a valid instruction"))
    });
    let mut instructions: Vec<Inst> = decoded.filter(|inst| seen.insert(inst.name)).collect();
    for inst in &mut instructions {
        inst.dst = Operand::Vgpr(D);
        inst.src = [Operand::Vgpr(A), Operand::Vgpr(B), Operand::Vgpr(C), Operand::None];
        inst.mods = isa::Mods::default();
    }
    instructions
}

fn instruction(family: Family, name: &str) -> Inst {
    let (_, fixture) = FIXTURES.iter().find(|(each, _)| *each == family).expect("a chip");
    instructions(family, fixture).into_iter().find(|inst| inst.name == name).expect(name)
}

/// Shape of a product, parsed from the mnemonic independently of the tables.
struct ParsedShape {
    side: usize,
    k: usize,
    per_lane: usize,
    blocks: usize,
}

impl ParsedShape {
    fn of(name: &str) -> Self {
        let sizes: Vec<usize> = name
            .split(['x', '_'])
            .filter(|part| part.starts_with(|c: char| c.is_ascii_digit()) && *part != "1k")
            .map(|part| {
                let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
                part[..digits].parse().expect("a number")
            })
            .collect();
        let (side, k) = (sizes[0], sizes[2]);
        let per_lane = match name {
            _ if name.contains("smfmac") => {
                if name.ends_with('8') {
                    16
                } else {
                    8
                }
            }
            _ if name.ends_with("xf32") => 2,
            _ if name.ends_with("f64") || name.ends_with("f32") => 1,
            _ if name.ends_with("fp8") || name.ends_with("bf8") => 8,
            "v_mfma_i32_32x32x16_i8" | "v_mfma_i32_16x16x32_i8" => 8,
            "v_mfma_i32_32x32x32_i8" | "v_mfma_i32_16x16x64_i8" => 16,
            _ if ["16x16x32_", "32x32x16_"].iter().any(|shape| name.contains(shape)) => 8,
            // gfx908's bf16 has two elements per lane.
            _ if name.ends_with("bf16") && !name.contains("_bf16") => 2,
            _ => 4,
        };
        Self { side, k, per_lane, blocks: 64 * per_lane / (side * k) }
    }

    /// Returns block, row (or column) and k of a lane's element.
    fn input(&self, lane: usize, item: usize) -> (usize, usize, usize) {
        let group = lane / (self.side * self.blocks);
        (lane / self.side % self.blocks, lane % self.side, group * self.per_lane + item)
    }

    /// Returns block, row and column of a lane's result.
    fn result(&self, lane: usize, item: usize, double: bool) -> (usize, usize, usize) {
        match (self.side, double) {
            (16, true) => (0, 4 * item + lane / 16, lane % 16),
            (4, true) => (lane / 4 % 4, lane / 16, lane % 4),
            (32, _) => (item / 16, 8 * (item % 16 / 4) + 4 * (lane / 32) + item % 4, lane % 32),
            (16, _) => (item / 4, 4 * (lane / 16) + item % 4, lane % 16),
            _ => (lane / 4, item % 4, lane % 4),
        }
    }
}

/// Returns a small integer, which every type represents and whose sums are exact.
fn entry(seed: usize, block: usize, row: usize, k: usize) -> i32 {
    let mixed = (seed + 31 * block + 131 * row + 1031 * k) * 2_654_435_761;
    (mixed >> 13) as i32 % 3 * if mixed & 64 == 0 { 1 } else { -1 }
}

/// Returns the bits of a small integer, and their number.
fn encode(element: Element, value: i32) -> (u64, usize) {
    let float = value as f32;
    match element {
        Element::F64 => (f64::from(value).to_bits(), 64),
        Element::F32 | Element::Xf32 => (u64::from(float.to_bits()), 32),
        Element::Bf16 => (u64::from(float.to_bits() >> 16), 16),
        Element::I8 => (u64::from(value as u8), 8),
        // 1 and 2 are powers of two: sign, exponent plus bias, no fraction.
        Element::F16 | Element::Fp8 | Element::Bf8 | Element::OcpFp8 | Element::OcpBf8 => {
            let (width, fraction, bias) = match element {
                Element::F16 => (16, 10, 15),
                Element::Fp8 => (8, 3, 8),
                Element::OcpFp8 => (8, 3, 7),
                Element::OcpBf8 => (8, 2, 15),
                _ => (8, 2, 16),
            };
            let sign = u64::from(value < 0) << (width - 1);
            let exponent =
                if value == 0 { 0 } else { (bias + u64::from(value.unsigned_abs()) - 1) << fraction };
            (if value == 0 { 0 } else { sign | exponent }, width)
        }
    }
}

fn put(wave: &mut Wave<64>, first: u16, item: usize, lane: usize, (bits, width): (u64, usize)) {
    let at = item * width;
    let register = usize::from(first) + at / 32;
    wave.vgpr[register].0[lane] |= (bits << (at % 32)) as u32;
    if width == 64 {
        wave.vgpr[register + 1].0[lane] = (bits >> 32) as u32;
    }
}

/// Returns the value of a result.
fn get(wave: &Wave<64>, first: u16, item: usize, lane: usize, element: Element) -> f64 {
    let word = |n: usize| wave.vgpr[usize::from(first) + n].0[lane];
    match element {
        Element::F64 => f64::from_bits(u64::from(word(2 * item)) | u64::from(word(2 * item + 1)) << 32),
        Element::I8 => f64::from(word(item) as i32),
        _ => f64::from(f32::from_bits(word(item))),
    }
}

/// Multiplies [`entry`] matrices and compares with the product that `a_block` and `b_lane` define.
fn check(family: Family, inst: &Inst, a_block: impl Fn(usize) -> usize, b_lane: impl Fn(usize) -> usize) {
    let parsed = ParsedShape::of(inst.name);
    let step = prepare::<64>(inst, family).unwrap_or_else(|| panic!("{} is unknown", inst.name));
    let (a, b) = (step.shape.a, step.shape.b);
    let double = a == Element::F64;
    let mut wave = wave();
    for lane in 0..64 {
        for item in 0..parsed.per_lane {
            let (block, row, k) = parsed.input(lane, item);
            put(&mut wave, A, item, lane, encode(a, entry(1, block, row, k)));
            put(&mut wave, B, item, lane, encode(b, entry(2, block, row, k)));
        }
    }
    let results = parsed.side * parsed.side * parsed.blocks / 64;
    for lane in 0..64 {
        for item in 0..results {
            let (block, i, j) = parsed.result(lane, item, double);
            let value = entry(3, block, i, j);
            let bits = match a {
                Element::F64 => (f64::from(value).to_bits(), 64),
                Element::I8 => (u64::from(value as u32), 32),
                _ => (u64::from((value as f32).to_bits()), 32),
            };
            put(&mut wave, C, item, lane, bits);
        }
    }
    step.run(&mut wave);
    for lane in 0..64 {
        for item in 0..results {
            let (block, i, j) = parsed.result(lane, item, double);
            let mut expected = f64::from(entry(3, block, i, j));
            for k in 0..parsed.k {
                // The lane of B's element, to find the element that a permutation puts there.
                let own = j + parsed.side * (block + parsed.blocks * (k / parsed.per_lane));
                let (b_block, column, b_k) = parsed.input(b_lane(own), k % parsed.per_lane);
                let product = entry(1, a_block(block), i, k) * entry(2, b_block, column, b_k);
                expected += f64::from(product);
            }
            let actual = get(&wave, D, item, lane, a);
            assert_eq!(actual, expected, "{} {:?}: block {block} [{i}][{j}]", inst.name, inst.mods);
        }
    }
}

#[test]
fn products_agree_with_the_definition() {
    let mut counts = Vec::new();
    for (family, fixture) in FIXTURES {
        let (sparse, dense): (Vec<_>, Vec<_>) =
            instructions(family, fixture).into_iter().partition(|inst| inst.name.starts_with("v_smfmac"));
        for inst in &dense {
            check(family, inst, |block| block, |lane| lane);
        }
        for inst in &sparse {
            for (cbsz, abid) in [(0, 0), (0, 1), (0, 3), (1, 1)] {
                check_sparse(family, inst, cbsz, abid);
            }
        }
        counts.push((dense.len(), sparse.len()));
    }
    assert_eq!(counts, [(20, 0), (27, 0), (32, 14), (6, 0)]);
    for inst in &instructions(Family::Cdna3, FIXTURES[2].1) {
        if inst.name.ends_with("fp8") || inst.name.ends_with("bf8") {
            match inst.name.starts_with("v_smfmac") {
                true => check_sparse(Family::Cdna4, inst, 0, 0),
                false => check(Family::Cdna4, inst, |block| block, |lane| lane),
            }
        }
    }
}

/// Like [`check`], with two of four elements of A stored.
fn check_sparse(family: Family, inst: &Inst, cbsz: u8, abid: u8) {
    let parsed = ParsedShape::of(inst.name);
    let stored = parsed.per_lane / 2;
    let sets = 16 / stored;
    let mut inst = inst.clone();
    (inst.mods.cbsz, inst.mods.abid) = (cbsz, abid);
    let step = prepare::<64>(&inst, family).unwrap_or_else(|| panic!("{} is unknown", inst.name));
    let (a, b) = (step.shape.a, step.shape.b);
    // Index of the stored element among four; the sets that are not selected hold other indices.
    let place = |row: usize, k: usize| (entry(5, 0, row, k).unsigned_abs() as usize + row + k) % 4;
    let chosen = if cbsz == 0 { usize::from(abid) % sets } else { 0 };
    let mut wave = wave();
    let group = |lane: usize| lane / parsed.side;
    for lane in 0..64 {
        for item in 0..parsed.per_lane {
            let k = parsed.per_lane * group(lane) + item;
            put(&mut wave, B, item, lane, encode(b, entry(2, 0, lane % parsed.side, k)));
        }
        for item in 0..stored {
            let (row, k) = (lane % parsed.side, stored * group(lane) + item);
            put(&mut wave, A, item, lane, encode(a, entry(1, 0, row, k)));
            for set in 0..sets {
                let right = place(row, k);
                let bits = if set == chosen { right } else { right ^ 3 };
                wave.vgpr[usize::from(C)].0[lane] |= (bits as u32) << (2 * (set * stored + item));
            }
        }
    }
    let results = parsed.side * parsed.side / 64;
    let integer = a == Element::I8;
    for lane in 0..64 {
        for item in 0..results {
            let (_, i, j) = parsed.result(lane, item, false);
            let value = entry(3, 0, i, j);
            let bits = if integer { value as u32 } else { (value as f32).to_bits() };
            put(&mut wave, D, item, lane, (u64::from(bits), 32));
        }
    }
    step.run(&mut wave);
    for lane in 0..64 {
        for item in 0..results {
            let (_, i, j) = parsed.result(lane, item, false);
            let mut expected = entry(3, 0, i, j);
            for k in 0..parsed.k / 2 {
                expected += entry(1, 0, i, k) * entry(2, 0, j, k / 2 * 4 + place(i, k));
            }
            let actual = get(&wave, D, item, lane, a);
            assert_eq!(actual, f64::from(expected), "{} {:?}: [{i}][{j}]", inst.name, inst.mods);
        }
    }
}

#[test]
fn blocks_of_a_are_broadcast() {
    for name in ["v_mfma_f32_4x4x1f32", "v_mfma_i32_16x16x4i8", "v_mfma_f32_32x32x4f16"] {
        let blocks = ParsedShape::of(name).blocks;
        for cbsz in 1..=blocks.ilog2() as usize {
            for abid in [0, (1 << cbsz) - 1] {
                let mut inst = instruction(Family::Cdna1, name);
                (inst.mods.cbsz, inst.mods.abid) = (cbsz as u8, abid as u8);
                check(Family::Cdna1, &inst, |block| block - block % (1 << cbsz) + abid, |lane| lane);
            }
        }
    }
}

#[test]
fn lanes_of_b_are_permuted() {
    for name in ["v_mfma_f32_16x16x4f16", "v_mfma_f32_32x32x2f32"] {
        for blgp in 1..8 {
            let mut inst = instruction(Family::Cdna2, name);
            inst.mods.blgp = blgp;
            let from = |lane: usize| match blgp {
                1 => lane & 31,
                2 => lane | 32,
                3 => (lane + 16) & 63,
                _ => lane & 15 | (usize::from(blgp) & 3) << 4,
            };
            check(Family::Cdna2, &inst, |block| block, from);
        }
    }
}

/// Runs a 4x4 product with the same A, B and C in all elements.
fn one(family: Family, name: &str, a: u32, b: u32, c: u32) -> f32 {
    let mut wave = wave();
    for (register, bits) in [(A, a), (B, b), (C, c), (C + 1, c), (C + 2, c), (C + 3, c)] {
        wave.vgpr[usize::from(register)] = Lanes::splat(bits);
    }
    prepare::<64>(&instruction(family, name), family).expect(name).run(&mut wave);
    f32::from_bits(wave.vgpr[usize::from(D)].0[17])
}

#[test]
fn sums_are_rounded_once() {
    let (a, c) = (1.0 + 2f32.powi(-12), -1.0f32);
    for (family, name) in
        [(Family::Cdna1, "v_mfma_f32_4x4x1f32"), (Family::Cdna3, "v_mfma_f32_4x4x1_16b_f32")]
    {
        let sum = one(family, name, a.to_bits(), a.to_bits(), c.to_bits());
        // Rounding the product first would discard its last bit.
        assert_eq!(sum, 2f32.powi(-11) + 2f32.powi(-24));
    }
}

#[test]
fn special_values_propagate() {
    const NAN: u32 = 0x7fc0_0000;
    const INF: u32 = 0x7f80_0000;
    for (family, f32_name, f16_name) in [
        (Family::Cdna1, "v_mfma_f32_4x4x1f32", "v_mfma_f32_4x4x4f16"),
        (Family::Cdna2, "v_mfma_f32_4x4x1f32", "v_mfma_f32_4x4x4f16"),
        (Family::Cdna3, "v_mfma_f32_4x4x1_16b_f32", "v_mfma_f32_4x4x4_16b_f16"),
    ] {
        let single = |a: f32, b: f32, c: u32| one(family, f32_name, a.to_bits(), b.to_bits(), c);
        assert_eq!(single(f32::INFINITY, 2.0, 0), f32::INFINITY);
        assert!(single(f32::INFINITY, 0.0, 0).is_nan());
        assert!(single(f32::INFINITY, -1.0, INF).is_nan());
        assert!(single(1.0, 1.0, NAN).is_nan());
        assert_eq!(single(f32::MAX, 2.0, 0), f32::INFINITY);
        // f32 preserves denormals and the sign of -0.
        assert_eq!(single(2f32.powi(-100), 2f32.powi(-49), 0), f32::from_bits(1));
        assert_eq!(single(f32::from_bits(3), 1.0, 0), f32::from_bits(3));
        assert!(single(-0.0, 1.0, 0x8000_0000).is_sign_negative());
        // Infinity, NaN, and infinity minus infinity of f16 in element 0 only.
        assert_eq!(one(family, f16_name, 0x7c00, 0xbc00, 0), f32::NEG_INFINITY);
        assert!(one(family, f16_name, 0x7e00, 0x3c00, 0).is_nan());
        assert!(one(family, f16_name, 0x7c00, 0x3c00, INF | 1 << 31).is_nan());
    }
}

#[test]
fn constants_are_addends_of_the_results_type() {
    let mut inst = instruction(Family::Cdna2, "v_mfma_f64_4x4x4f64");
    for (constant, value) in [(Operand::Float(InlineFloat::NegTwo), -2.0), (Operand::Int(0), 0.0)] {
        inst.src[2] = constant;
        let mut wave = wave();
        prepare::<64>(&inst, Family::Cdna2).expect("known").run(&mut wave);
        assert_eq!(get(&wave, D, 0, 5, Element::F64), value);
    }
    let mut inst = instruction(Family::Cdna1, "v_mfma_i32_4x4x4i8");
    inst.src[2] = Operand::Int(-3);
    let mut wave = wave();
    prepare::<64>(&inst, Family::Cdna1).expect("known").run(&mut wave);
    assert_eq!(get(&wave, D, 0, 5, Element::I8), -3.0);
}

#[test]
fn tuples_beyond_the_registers_are_unknown() {
    for (first, known) in [(224, true), (225, false), (FIRST_AGPR + 224, true), (FIRST_AGPR + 225, false)] {
        let mut inst = instruction(Family::Cdna2, "v_mfma_f32_32x32x1f32");
        inst.dst = Operand::Vgpr(first);
        assert_eq!(prepare::<64>(&inst, Family::Cdna2).is_some(), known, "{first}");
    }
}

#[test]
fn modifiers_beyond_the_shape_are_unknown() {
    for (family, name, cbsz, abid, blgp, known) in [
        (Family::Cdna2, "v_mfma_f32_4x4x1f32", 4, 15, 7, true),
        (Family::Cdna2, "v_mfma_f32_4x4x1f32", 5, 0, 0, false),
        (Family::Cdna2, "v_mfma_f32_4x4x1f32", 1, 2, 0, false),
        (Family::Cdna2, "v_mfma_f32_32x32x2f32", 1, 0, 0, false),
        (Family::Cdna2, "v_mfma_f64_4x4x4f64", 0, 0, 1, false),
        (Family::Cdna3, "v_mfma_f64_4x4x4_4b_f64", 0, 0, 1, true),
    ] {
        let mut inst = instruction(family, name);
        (inst.mods.cbsz, inst.mods.abid, inst.mods.blgp) = (cbsz, abid, blgp);
        assert_eq!(prepare::<64>(&inst, family).is_some(), known, "{name} {:?}", inst.mods);
    }
}

#[test]
fn integers_wrap() {
    // -128 * -128 four times.
    let sum = one(Family::Cdna1, "v_mfma_i32_4x4x4i8", 0x8080_8080, 0x8080_8080, i32::MAX as u32).to_bits();
    assert_eq!(sum as i32, i32::MAX.wrapping_add(4 * 128 * 128));
}

#[test]
fn only_gfx90a_flushes_denormals_of_16_bits() {
    // 2^-24 in f16 times 1024, in element 0 only.
    let product = |family, name: &str| one(family, name, 0x0001, 0x6400, 0);
    assert_eq!(product(Family::Cdna1, "v_mfma_f32_4x4x4f16"), 2f32.powi(-14));
    assert_eq!(product(Family::Cdna2, "v_mfma_f32_4x4x4f16"), 0.0);
    assert_eq!(product(Family::Cdna3, "v_mfma_f32_4x4x4_16b_f16"), 2f32.powi(-14));
}

#[test]
fn gfx942_negates_f64_operands() {
    let mut inst = instruction(Family::Cdna3, "v_mfma_f64_4x4x4_4b_f64");
    inst.mods.blgp = 0b101;
    let mut wave = wave();
    for (register, value) in [(A, 3.0f64), (B, 5.0), (C, 7.0)] {
        wave.vgpr[usize::from(register) + 1] = Lanes::splat((value.to_bits() >> 32) as u32);
    }
    prepare::<64>(&inst, Family::Cdna3).expect("known").run(&mut wave);
    assert_eq!(get(&wave, D, 0, 9, Element::F64), -(4.0 * 15.0) - 7.0);
}

#[test]
fn the_family_selects_the_encoding_of_8_bit_floats() {
    // The largest number, the smallest normal, a denormal, and NaN (the code of -0).
    for (element, bits, value) in [
        (Element::Fp8, 0x7f, 240.0),
        (Element::Fp8, 0x08, 1.0 / 128.0),
        (Element::Fp8, 0x81, -1.0 / 1024.0),
        (Element::Bf8, 0x7f, 57344.0),
        (Element::Bf8, 0x04, 1.0 / 32768.0),
        (Element::Bf8, 0x81, -1.0 / 131_072.0),
        (Element::OcpFp8, 0x7e, 448.0),
        (Element::OcpFp8, 0x08, 1.0 / 64.0),
        (Element::OcpFp8, 0x81, -1.0 / 512.0),
        (Element::OcpBf8, 0x7b, 57344.0),
        (Element::OcpBf8, 0x7c, f32::INFINITY),
        (Element::OcpBf8, 0x81, -1.0 / 65536.0),
    ] {
        assert_eq!(element.value(bits), value, "{element:?} 0x{bits:x}");
    }
    for (own, family, expected) in [
        (Element::Fp8, Family::Cdna3, Element::Fp8),
        (Element::Fp8, Family::Cdna4, Element::OcpFp8),
        (Element::Bf8, Family::Cdna4, Element::OcpBf8),
        (Element::F16, Family::Cdna4, Element::F16),
    ] {
        assert_eq!(own.on(family), expected, "{own:?} on {family:?}");
    }
    assert!(Element::Fp8.value(0x80).is_nan() && Element::Bf8.value(0x80).is_nan());
}

#[test]
fn waves_of_32_lanes_have_no_mfma() {
    assert!(prepare::<32>(&instruction(Family::Cdna2, "v_mfma_f32_4x4x1f32"), Family::Cdna2).is_none());
}
