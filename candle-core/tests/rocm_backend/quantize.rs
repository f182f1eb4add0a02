//! Quantization gives the bytes of the CPU device.
use super::fixture::*;
use super::quantized::all;
use candle_core::quantized::rocm::block_types;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::rocm::hip_kernels::contract::{Quantize, QuantizeKind};
use candle_core::{Device, Result, Tensor};
use rand::distr::Uniform;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::Normal;
use GgmlDType::*;

/// Returns the type and the byte offsets of the floats in a block.
fn floats(dtype: GgmlDType) -> Floats {
    match dtype {
        F32 | Q8K => (Float::F32, &[0]),
        BF16 => (Float::BF16, &[0]),
        Q4_1 | Q5_1 | Q8_1 | Q4K | Q5K => (Float::F16, &[0, 2]),
        Q2K => (Float::F16, &[80, 82]),
        Q3K => (Float::F16, &[108]),
        Q6K => (Float::F16, &[208]),
        MXFP4 => (Float::F16, &[]),
        _ => (Float::F16, &[0]),
    }
}
type Floats = (Float, &'static [usize]);

#[derive(Clone, Copy)]
enum Float {
    F16,
    BF16,
    F32,
}

impl Float {
    /// Returns the size in bytes, the mask of the bits without the sign, and the bits of infinity.
    fn bits(self) -> (usize, u32, u32) {
        match self {
            Self::F16 => (2, 0x7fff, 0x7c00),
            Self::BF16 => (2, 0x7fff, 0x7f80),
            Self::F32 => (4, 0x7fff_ffff, 0x7f80_0000),
        }
    }
}

/// Returns the types that support importance weights.
fn weighted() -> Vec<GgmlDType> {
    let types =
        block_types().filter(|(_, of)| Quantize::kernel(QuantizeKind::QuantizeWeighted, *of).is_some());
    types.map(|(dtype, _)| dtype).collect()
}

const COLUMNS: usize = 512;

/// Rows with special values, by name.
type Rows = Vec<(&'static str, Vec<f32>)>;

fn row(value: impl FnMut(usize) -> f32) -> Vec<f32> {
    (0..COLUMNS).map(value).collect()
}

fn random(seed: u64, distribution: impl rand::distr::Distribution<f32>) -> Vec<f32> {
    StdRng::seed_from_u64(seed).sample_iter(distribution).take(COLUMNS).collect()
}

fn finite_rows() -> Rows {
    let normal = |seed, deviation| random(seed, Normal::new(0.0, deviation).unwrap());
    let uniform = |seed, low, high| random(seed, Uniform::new(low, high).unwrap());
    let mut rows: Rows = vec![
        ("zeros", row(|_| 0.0)),
        ("zeros with a sign", row(|_| -0.0)),
        ("a constant", row(|_| 0.7)),
        ("a negative constant", row(|_| -3.0)),
        ("all but one zero", row(|i| if i % 256 == 77 { 1.5 } else { 0.0 })),
        ("all but one of a sub-block zero", row(|i| if i % 16 == 9 { -0.3 } else { 0.0 })),
        (
            "an outlier",
            normal(3, 1.0).into_iter().enumerate().map(|(i, v)| if i == 300 { 900.0 } else { v }).collect(),
        ),
        ("both signs of one magnitude", row(|i| if i % 3 == 0 { -2.0 } else { 2.0 })),
        ("whole numbers", row(|i| (i * 7 % 31) as f32 - 15.0)),
        ("halves", row(|i| (i * 5 % 64) as f32 / 2.0 - 16.0)),
        ("an even slope", row(|i| i as f32 / 16.0 - 8.0)),
        ("subnormal", normal(4, 1e-39)),
        ("the smallest subnormal numbers", row(|i| f32::from_bits((i % 40) as u32))),
        ("below where a reciprocal is infinite", normal(5, 2e-38)),
        ("subnormal in f16", normal(6, 1e-6)),
        ("zero in f16", normal(7, 1e-9)),
        ("infinite in f16", normal(8, 1e6)),
        ("about the largest of f16", normal(9, 5e5)),
        ("huge", uniform(10, -1e38, 1e38)),
        ("squares that are infinite", normal(11, 1e20)),
        ("squares that are zero", normal(12, 1e-25)),
        (
            "magnitudes of all sizes",
            row(|i| (i as f32 * 0.3 - 76.0).exp2() * if i % 2 == 0 { 1.0 } else { -1.0 }),
        ),
        ("positive", uniform(13, 0.0, 1.0)),
        ("far from zero", uniform(14, 100.0, 101.0)),
        ("negative", uniform(15, -1.0, -0.5)),
        (
            "sub-blocks of zeros",
            normal(16, 1.0)
                .into_iter()
                .enumerate()
                .map(|(i, v)| if i / 16 % 3 == 0 { 0.0 } else { v })
                .collect(),
        ),
    ];
    rows.extend((20..36).map(|seed| ("normal", normal(seed, 0.02))));
    rows.extend((40..48).map(|seed| ("uniform", uniform(seed, -1.0, 1.0))));
    rows
}

/// Rows whose bits depend on the compiler of the CPU device, since the smaller of two zeros is not specified.
fn unspecified_rows() -> Rows {
    let with = |seed, every: usize, value: f32| -> Vec<f32> {
        let normal = random(seed, Normal::new(0.0, 1.0).unwrap());
        normal.into_iter().enumerate().map(|(i, v)| if i % every == every / 2 { value } else { v }).collect()
    };
    vec![
        ("zeros of both signs", row(|i| if i % 3 == 0 { -0.0 } else { 0.0 })),
        ("an infinity", with(1, 512, f32::INFINITY)),
        ("infinities below", with(2, 16, f32::NEG_INFINITY)),
        ("infinities only", row(|_| f32::INFINITY)),
        ("infinities of both signs", row(|i| if i % 5 == 0 { f32::INFINITY } else { f32::NEG_INFINITY })),
        ("a NaN", with(3, 512, f32::NAN)),
        ("a NaN with a sign", with(4, 512, -f32::NAN)),
        ("several NaN", with(5, 8, f32::NAN)),
        ("NaN only", row(|_| f32::NAN)),
        ("a NaN first", row(|i| if i % 32 == 0 { f32::NAN } else { i as f32 })),
        (
            "everything that is no number",
            row(|i| [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0, -2.0][i % 5]),
        ),
    ]
}

fn weights() -> Rows {
    vec![
        ("random weights", random(50, Uniform::new(0.0, 2.0).unwrap())),
        ("equal weights", row(|_| 1.0)),
        ("no weights", row(|_| 0.0)),
        ("few weights", row(|i| if i % 7 == 0 { 1.0 } else { 0.0 })),
        ("no weight of some sub-blocks", row(|i| if i / 32 % 2 == 0 { 0.0 } else { i as f32 })),
        ("large weights", random(51, Uniform::new(0.0, 1e30).unwrap())),
        ("small weights", random(52, Uniform::new(0.0, 1e-30).unwrap())),
        ("weights below zero", random(53, Normal::new(0.0, 1.0).unwrap())),
        ("weights that are no numbers", row(|i| [f32::NAN, f32::INFINITY, 1.0, 0.5][i % 4])),
    ]
}

fn matrix(rows: &Rows) -> Tensor {
    let values: Vec<f32> = rows.iter().flat_map(|(_, row)| row.iter().copied()).collect();
    Tensor::from_vec(values, (rows.len(), COLUMNS), &Device::Cpu).unwrap()
}

/// Makes all NaNs equal, since IEEE 754 does not specify their bits; if `open`, also both zeros.
fn normalize_unspecified_bits(data: &mut [u8], block: usize, (float, places): Floats, open: bool) {
    let (size, magnitude, infinity) = float.bits();
    for block in data.chunks_exact_mut(block) {
        for &at in places {
            let bytes = &mut block[at..at + size];
            let mut word = [0; 4];
            word[..size].copy_from_slice(bytes);
            let bits = u32::from_le_bytes(word) & magnitude;
            if bits > infinity || open && bits == 0 {
                bytes.copy_from_slice(&(if bits == 0 { 0 } else { magnitude }).to_le_bytes()[..size]);
            }
        }
    }
}

/// Asserts that both devices quantize all rows to the same bytes, ignoring unspecified bits of zeros if `open`.
fn assert_same(rows: &Rows, open: bool, weights: Option<&[f32]>, types: &[GgmlDType], what: &str) {
    let (cpu, gpu) = (matrix(rows), matrix(rows).to_device(&rocm()).unwrap());
    for &dtype in types {
        let (size, floats) = (dtype.type_size(), floats(dtype));
        let bytes = |source: &Tensor| -> Result<Vec<u8>> {
            let made = match weights {
                Some(weights) => QTensor::quantize_imatrix(source, weights, dtype)?,
                None => QTensor::quantize(source, dtype)?,
            };
            Ok(made.data()?.into_owned())
        };
        let (mut got, mut expected) = (bytes(&gpu).unwrap(), bytes(&cpu).unwrap());
        normalize_unspecified_bits(&mut got, size, floats, open);
        normalize_unspecified_bits(&mut expected, size, floats, open);
        assert_eq!(got.len(), expected.len(), "{dtype:?}");
        let row = expected.len() / rows.len();
        for (i, (got, expected)) in got.chunks(row).zip(expected.chunks(row)).enumerate() {
            let differing: Vec<_> = (0..row)
                .filter(|&at| got[at] != expected[at])
                .map(|at| (at / size, at % size, got[at], expected[at]))
                .collect();
            assert!(
                differing.is_empty(),
                "{dtype:?}, {}, {what}: {} of {row} bytes differ, as (block, byte, got, expected): {:?}",
                rows[i].0,
                differing.len(),
                &differing[..differing.len().min(16)]
            );
        }
    }
}

#[test]
fn blocks_of_all_types_equal_those_of_the_cpu() {
    assert_same(&finite_rows(), false, None, &all().collect::<Vec<_>>(), "");
}

#[test]
fn blocks_of_non_finite_values_equal_those_of_the_cpu() {
    assert_same(&unspecified_rows(), true, None, &all().collect::<Vec<_>>(), "");
}

#[test]
fn blocks_with_weights_equal_those_of_the_cpu() {
    for (name, weights) in weights() {
        assert_same(&finite_rows(), name.contains("numbers"), Some(&weights), &weighted(), name);
        assert_same(&unspecified_rows(), true, Some(&weights), &weighted(), name);
    }
}
