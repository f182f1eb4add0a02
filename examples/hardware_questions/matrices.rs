//! Questions about matrix cores: order, rounding, truncation and flushing when 16 products are added to an f32.
use anyhow::Result;
use candle_core::DType;
use half::{bf16, f16};

use crate::answer::{Answer, Question};
use crate::gpu::{Gpu, Grid, one_nan};
use crate::guesses;

const MODULE: &str = "matrices";
const K: usize = 16;

const QUESTIONS: [(&str, DType, Question); 2] = [
    (
        "matrix_f16",
        DType::F16,
        Question {
            name: "rounding inside MFMA and WMMA of f16",
            guess: "gfx908: exact in fours; gfx90a: in pairs without denormals; gfx942: truncated at the largest product; \
                    gfx11: rounded after two products; gfx12: rounded after four",
            why: "attention and products on matrix cores, and their tolerances",
            place: "rocm-emulator/src/exec/matrix/mfma/arithmetic.rs, rocm-emulator/src/exec/matrix/wmma.rs",
        },
    ),
    (
        "matrix_bf16",
        DType::BF16,
        Question {
            name: "rounding inside MFMA and WMMA of bf16",
            guess: "like f16",
            why: "attention and products on matrix cores, and their tolerances",
            place: "rocm-emulator/src/exec/matrix/mfma/arithmetic.rs, rocm-emulator/src/exec/matrix/wmma.rs",
        },
    ),
];

#[cfg(test)]
pub fn questions() -> impl Iterator<Item = Question> {
    QUESTIONS.iter().map(|(_, _, question)| *question)
}

/// Products with their indexes, and the addend; the other products are zero.
type Case = (Vec<(usize, f64, f64)>, f32);

fn cases() -> Vec<Case> {
    let p = |exponent: i32| 2f64.powi(exponent);
    let mut all: Vec<Case> = vec![
        // Half ulps of the addend: adjacent, apart, and four quarters.
        (vec![(0, p(-12), p(-12)), (1, p(-12), p(-12))], 1.0),
        (vec![(0, p(-12), p(-12)), (2, p(-12), p(-12))], 1.0),
        (vec![(0, p(-12), p(-12)), (4, p(-12), p(-12))], 1.0),
        (vec![(0, p(-12), p(-12)), (8, p(-12), p(-12))], 1.0),
        (vec![(0, p(-12), p(-13)), (1, p(-12), p(-13)), (2, p(-12), p(-13)), (3, p(-12), p(-13))], 1.0),
        (vec![(0, 1.0, 1.0), (1, 1.0, 1.0)], 16_777_216.0),
        // Cancellation with a small remainder.
        (vec![(0, p(10), p(10)), (1, -p(10), p(10)), (2, p(-5), p(-5))], 0.0),
        (vec![(0, p(10), p(10)), (2, p(-5), p(-5)), (3, -p(10), p(10))], 0.0),
        (vec![(0, p(10), p(10)), (1, p(-5), p(-5)), (15, -p(10), p(10))], 0.0),
        (vec![(0, p(12), p(12)), (1, p(-2), p(-2))], -16_777_216.0),
        // Small terms of either sign, to distinguish rounding towards zero from rounding down.
        (vec![(0, -p(-13), p(-13))], 1.0),
        (vec![(0, p(-13), p(-13))], -1.0),
        (vec![(0, -p(-12), 1.5 * p(-12))], 1.0),
        (vec![(0, 1.0, 1.0), (1, 3.0 * p(-12), p(-13))], 0.0),
        (vec![(0, 1.0, 1.0), (1, -3.0 * p(-12), p(-13))], 0.0),
        (vec![(0, 1.0, 1.0), (1, p(-12), p(-12)), (2, p(-12), p(-14))], 0.0),
        // Denormals: f16 operands, an addend, a denormal sum; zeros of either sign.
        (vec![(0, p(-24), 1.0)], 0.0),
        (vec![(0, p(-24), p(-24))], 0.0),
        (vec![(0, -p(-20), 1.0)], 0.0),
        (vec![], f32::from_bits(0x0001_0000)),
        (vec![], f32::from_bits(0x8001_0000)),
        (vec![(0, p(-14), p(-14))], -f32::from_bits(0x0080_0001)),
        (vec![(0, -0.0, 1.0)], -0.0),
        (vec![], -0.0),
        (vec![(0, 1.0, 1.0), (1, -1.0, 1.0)], -0.0),
        // Overflow of f32, infinities and NaN.
        (vec![(0, 65504.0, 65504.0), (1, 65504.0, 65504.0)], f32::MAX),
        (vec![(0, f64::INFINITY, 0.0)], 1.0),
        (vec![(0, f64::INFINITY, 1.0), (1, f64::NEG_INFINITY, 1.0)], 1.0),
        (vec![(0, f64::INFINITY, 1.0)], f32::NEG_INFINITY),
        (vec![(0, f64::NAN, 1.0)], 1.0),
    ];
    // Random rows and columns from a linear congruential generator.
    let mut state = 12345u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (mantissa, exponent) = (f64::from(state >> 21) / 1024.0 - 1.0, (state >> 8 & 15) as i32 - 8);
        mantissa * 2f64.powi(exponent)
    };
    for _ in 0..24 {
        let products = (0..K).map(|k| (k, next(), next())).collect();
        all.push((products, next() as f32));
    }
    all
}

fn words((products, addend): &Case, dtype: DType) -> Vec<u32> {
    let bits = |value: f64| match dtype {
        DType::F16 => f16::from_f64(value).to_bits(),
        _ => bf16::from_f64(value).to_bits(),
    };
    let mut elements = [[0u16; K]; 2];
    for (k, a, b) in products {
        elements[0][*k] = bits(*a);
        elements[1][*k] = bits(*b);
    }
    let pair = |pair: &[u16]| u32::from(pair[0]) | u32::from(pair[1]) << 16;
    let mut words: Vec<u32> = elements.iter().flat_map(|half| half.chunks(2).map(pair)).collect();
    words.push(addend.to_bits());
    words
}

fn run(gpu: &Gpu, kernel: &str, cases: &[Vec<u32>]) -> Result<Option<Vec<u32>>> {
    let found = gpu.run(MODULE, kernel, cases, 1, Grid { groups: cases.len() as u32, lanes: gpu.lanes() })?;
    // All NaNs are equal.
    Ok(found.map(|words| words.into_iter().map(one_nan).collect()))
}

fn all_words(dtype: DType) -> Vec<Vec<u32>> {
    cases().iter().map(|case| words(case, dtype)).collect()
}

/// Returns the results of every kernel that this GPU supports.
pub fn answers(gpu: &Gpu) -> Result<Vec<(&'static str, Vec<u32>)>> {
    let mut all = Vec::new();
    for (kernel, dtype, _) in QUESTIONS {
        all.extend(run(gpu, kernel, &all_words(dtype))?.map(|found| (kernel, found)));
    }
    Ok(all)
}

pub fn ask(gpu: &Gpu) -> Result<Vec<Answer>> {
    let one = |(kernel, dtype, question): &(&str, DType, Question)| {
        let cases = all_words(*dtype);
        let Some(found) = run(gpu, kernel, &cases)? else {
            return Ok(question.not_applicable("this GPU has no matrix cores of this kind"));
        };
        let Some(guess) = guesses::of(kernel, gpu.arch()) else {
            return Ok(question.not_applicable("there is no guess for this family"));
        };
        Ok(guesses::judge(*question, &cases, 1, &guess, &found))
    };
    QUESTIONS.iter().map(one).collect()
}
