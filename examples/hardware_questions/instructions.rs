//! Questions about instructions whose results the manuals do not fully specify.
use anyhow::Result;

use crate::answer::{Answer, Question};
use crate::cases::*;
use crate::gpu::{Gpu, Grid, one_nan};
use crate::guesses;

const MODULE: &str = "instructions";
/// Number of words that a kernel writes per case.
pub const OUTPUTS: usize = 2;

struct Instruction {
    kernel: &'static str,
    question: Question,
    cases: fn(lanes: u32) -> Vec<Vec<u32>>,
}

const DIVISION: &str = "rocm-emulator/src/exec/vector/division.rs";
const FLOAT32: &str = "rocm-emulator/src/exec/vector/float32.rs";
pub const TRANSCENDENTAL: &str = "rocm-emulator/src/exec/vector/transcendental.rs";
const EXCHANGE: &str = "rocm-emulator/src/exec/memory/exchange.rs";
const ATOMICS: &str = "rocm-emulator/src/exec/memory/atomics.rs";

const fn query(
    kernel: &'static str,
    name: &'static str,
    guess: &'static str,
    why: &'static str,
    place: &'static str,
    cases: fn(u32) -> Vec<Vec<u32>>,
) -> Instruction {
    Instruction { kernel, question: Question { name, guess, why, place }, cases }
}

const INSTRUCTIONS: &[Instruction] = &[
    query(
        "frexp_f32",
        "v_frexp_f32 of denormals and specials",
        "denormals are normalised; infinities and NaN keep their value and have exponent 0",
        "log, pow and cbrt of denormals",
        FLOAT32,
        edges,
    ),
    query(
        "frexp_f16",
        "v_frexp_f16 of denormals and specials",
        "like f32",
        "log and pow of f16",
        "rocm-emulator/src/exec/vector/float16.rs",
        edges_f16,
    ),
    query(
        "frexp_mant_f64",
        "v_frexp_mant_f64 of denormals and specials",
        "like f32",
        "log and pow of f64",
        "rocm-emulator/src/exec/vector/float64.rs",
        edges_f64,
    ),
    query(
        "frexp_exp_f64",
        "v_frexp_exp_f64 of denormals and specials",
        "like f32",
        "log and pow of f64",
        "rocm-emulator/src/exec/vector/float64.rs",
        edges_f64,
    ),
    query(
        "div_scale_numerator",
        "v_div_scale_f32 of the numerator",
        "scaled by 2^64 near denormals, NaN for zeros, VCC as in the manual's pseudocode",
        "every division",
        DIVISION,
        pairs,
    ),
    query(
        "div_scale_denominator",
        "v_div_scale_f32 of the denominator",
        "like the numerator",
        "every division",
        DIVISION,
        pairs,
    ),
    query(
        "div_fixup",
        "v_div_fixup_f32",
        "overflow and underflow depend on exponents, signs and NaN on the operands",
        "every division",
        DIVISION,
        fixups,
    ),
    query(
        "division",
        "a complete f32 division",
        "correctly rounded, denormals kept",
        "every division",
        DIVISION,
        pairs,
    ),
    query(
        "exp2_f32",
        "v_exp_f32 near denormals",
        "denormal operands and results are zeros",
        "exp, softmax, gelu",
        TRANSCENDENTAL,
        exponents,
    ),
    query(
        "log2_f32",
        "v_log_f32 of denormals",
        "denormals are zeros: -infinity",
        "log, losses",
        TRANSCENDENTAL,
        log_edges,
    ),
    query(
        "rcp_f32",
        "v_rcp_f32 of denormals and large numbers",
        "denormal operands and results are zeros",
        "recip, division",
        TRANSCENDENTAL,
        powers,
    ),
    query(
        "rsq_f32",
        "v_rsq_f32 of denormals",
        "denormals are zeros: infinity",
        "norms",
        TRANSCENDENTAL,
        positive_powers,
    ),
    query(
        "sqrt_f32",
        "v_sqrt_f32 of denormals",
        "denormals are kept",
        "sqrt, norms, optimisers",
        TRANSCENDENTAL,
        positive_powers,
    ),
    query(
        "sin_f32",
        "v_sin_f32 of full and half turns, small and large",
        "exact for any magnitude",
        "rope, sin",
        TRANSCENDENTAL,
        angles,
    ),
    query(
        "cos_f32",
        "v_cos_f32 of full and half turns, small and large",
        "exact for any magnitude",
        "rope, cos",
        TRANSCENDENTAL,
        angles,
    ),
    query(
        "fract_f32",
        "v_fract_f32 just below zero",
        "the largest number below 1",
        "sin and cos of large numbers",
        FLOAT32,
        edges,
    ),
    query(
        "ldexp_f32",
        "v_ldexp_f32 into denormals",
        "rounded once, to nearest even",
        "exp, pow",
        FLOAT32,
        scalings,
    ),
    query(
        "to_f16",
        "v_cvt_f16_f32 above the largest f16 and near denormals",
        "rounds to nearest even: 65520 gives infinity, denormals are kept",
        "casts",
        "rocm-emulator/src/exec/vector/convert.rs",
        halves,
    ),
    query(
        "to_f16_towards_zero",
        "v_cvt_pkrtz_f16_f32 above the largest f16",
        "65504; denormals are truncated and kept",
        "packed casts",
        "rocm-emulator/src/exec/vector/packed.rs",
        halves,
    ),
    query(
        "dot2_f32_f16",
        "rounding and denormals of v_dot2_f32_f16",
        "order and rounding of the software GPU",
        "quantized and half products",
        "rocm-emulator/src/exec/vector/packed.rs",
        dots,
    ),
    query("med3_f32", "v_med3_f32 with NaN", "the minimum of the others", "clamp, relu6", FLOAT32, triples),
    query(
        "min_max_f32",
        "v_min_f32 and v_max_f32 of NaN and of both zeros",
        "quiet NaN is ignored, signalling NaN is returned (gfx12: ignored), -0 is below +0",
        "minimum, maximum, pooling",
        FLOAT32,
        pairs,
    ),
    query(
        "min_max_f16",
        "v_pk_min_f16 and v_pk_max_f16 of NaN and of both zeros",
        "like f32",
        "minimum, maximum of f16",
        "rocm-emulator/src/exec/vector/packed.rs",
        half_pairs,
    ),
    query(
        "bpermute",
        "ds_bpermute_b32 of a nonexistent lane",
        "the lane number wraps around",
        "shuffles in every reduction",
        EXCHANGE,
        lane_addresses,
    ),
    query(
        "bpermute_from_idle",
        "ds_bpermute_b32 of an inactive lane",
        "zero",
        "shuffles under a branch",
        EXCHANGE,
        lane_addresses,
    ),
    query(
        "readlane",
        "v_readlane_b32 of a nonexistent lane",
        "the lane number wraps around",
        "wave-uniform values",
        "rocm-emulator/src/exec/vector/cross_lane.rs",
        far_lane,
    ),
    query(
        "lds_atomic_add_f32",
        "ds_add_rtn_f32 with denormals and NaN",
        "like an ordinary addition, denormals are kept",
        "reductions in LDS",
        ATOMICS,
        atomic_pairs,
    ),
    query(
        "global_atomic_add_f32",
        "global_atomic_add_f32 with denormals and NaN",
        "like an ordinary addition, denormals are kept",
        "index_add, scatter_add",
        ATOMICS,
        atomic_pairs,
    ),
];

/// Returns the kernels of all instructions.
#[cfg(test)]
pub fn kernels() -> impl Iterator<Item = &'static str> {
    INSTRUCTIONS.iter().map(|instruction| instruction.kernel)
}

#[cfg(test)]
pub fn questions() -> impl Iterator<Item = Question> {
    INSTRUCTIONS.iter().map(|instruction| instruction.question)
}

fn cases_of(instruction: &Instruction, gpu: &Gpu) -> Vec<Vec<u32>> {
    let mut cases = (instruction.cases)(gpu.lanes());
    cases.iter_mut().for_each(|case| case.resize(4, 0));
    cases
}

/// Kernels whose results, which may be integers, are compared bitwise; for other kernels, all NaNs are equal.
const BITWISE: &[&str] = &[
    "frexp_f32",
    "frexp_f16",
    "frexp_mant_f64",
    "frexp_exp_f64",
    "to_f16",
    "to_f16_towards_zero",
    "med3_f32",
    "min_max_f32",
    "min_max_f16",
    "bpermute",
    "bpermute_from_idle",
    "readlane",
];

fn normalized_results(gpu: &Gpu, kernel: &str, cases: &[Vec<u32>]) -> Result<Option<Vec<u32>>> {
    let found = run(gpu, kernel, cases)?;
    let exact = BITWISE.contains(&kernel);
    Ok(found.map(|words| words.into_iter().map(|word| if exact { word } else { one_nan(word) }).collect()))
}

/// Runs a kernel; returns `None` if this GPU lacks the instruction.
pub fn run(gpu: &Gpu, kernel: &str, cases: &[Vec<u32>]) -> Result<Option<Vec<u32>>> {
    let groups = (cases.len() as u32).div_ceil(64);
    // Questions about lanes run in a single wave.
    let lanes = if groups == 1 { cases.len() as u32 } else { 64 };
    gpu.run(MODULE, kernel, cases, OUTPUTS, Grid { groups, lanes })
}

/// Returns the results of every kernel that this GPU supports.
pub fn answers(gpu: &Gpu) -> Result<Vec<(&'static str, Vec<u32>)>> {
    let mut all = Vec::new();
    for instruction in INSTRUCTIONS {
        if let Some(found) = normalized_results(gpu, instruction.kernel, &cases_of(instruction, gpu))? {
            all.push((instruction.kernel, found));
        }
    }
    Ok(all)
}

pub fn ask(gpu: &Gpu) -> Result<Vec<Answer>> {
    let one = |instruction: &Instruction| {
        let cases = cases_of(instruction, gpu);
        let Some(found) = normalized_results(gpu, instruction.kernel, &cases)? else {
            return Ok(instruction.question.not_applicable("this GPU has no such instruction"));
        };
        let Some(guess) = guesses::of(instruction.kernel, gpu.arch()) else {
            return Ok(instruction.question.not_applicable("there is no guess for this family"));
        };
        Ok(guesses::judge(instruction.question, &cases, OUTPUTS, &guess, &found))
    };
    INSTRUCTIONS.iter().map(one).collect()
}
