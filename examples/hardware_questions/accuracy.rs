//! Measures the errors of approximate instructions relative to f64.
use anyhow::Result;
use serde_json::json;

use crate::answer::{Answer, Question};
use crate::gpu::Gpu;
use crate::instructions::{OUTPUTS, TRANSCENDENTAL, run};

/// Number of operands per instruction.
const SAMPLES: u32 = 1 << 14;

/// Approximate instruction: range of operands, exact function, and allowed error.
struct Approximation {
    kernel: &'static str,
    question: Question,
    range: [f64; 2],
    exact: fn(f64) -> f64,
    /// Maximum error in ulps of f32, or of f64 if `wide`.
    max_error: f64,
    wide: bool,
}

const fn approximation(
    kernel: &'static str,
    name: &'static str,
    guess: &'static str,
    range: [f64; 2],
    exact: fn(f64) -> f64,
    max_error: f64,
) -> Approximation {
    let question =
        Question { name, guess, why: "tolerances of tests against the CPU", place: TRANSCENDENTAL };
    Approximation { kernel, question, range, exact, max_error, wide: false }
}

const ONE_ULP: &str = "error of at most 1 ulp; at most 0.51 on the software GPU";
const APPROXIMATIONS: &[Approximation] = &[
    approximation("exp2_f32", "the error of v_exp_f32", ONE_ULP, [-20.0, 20.0], f64::exp2, 1.0),
    approximation("log2_f32", "the error of v_log_f32", ONE_ULP, [2.0, 1e6], f64::log2, 1.0),
    approximation("rcp_f32", "the error of v_rcp_f32", ONE_ULP, [0.1, 10.0], f64::recip, 1.0),
    approximation("rsq_f32", "the error of v_rsq_f32", ONE_ULP, [0.1, 10.0], |x| 1.0 / x.sqrt(), 1.0),
    approximation("sqrt_f32", "the error of v_sqrt_f32", ONE_ULP, [0.1, 10.0], f64::sqrt, 1.0),
    approximation(
        "sin_f32",
        "the error of v_sin_f32",
        "absolute error of at most 2^-20, 8 ulps of 1",
        [-4.0, 4.0],
        |x| (x * std::f64::consts::TAU).sin(),
        8.0,
    ),
    approximation(
        "cos_f32",
        "the error of v_cos_f32",
        "absolute error of at most 2^-20, 8 ulps of 1",
        [-4.0, 4.0],
        |x| (x * std::f64::consts::TAU).cos(),
        8.0,
    ),
    Approximation {
        wide: true,
        ..approximation(
            "rcp_f64",
            "the error of v_rcp_f64",
            "error of at most 2^29 ulp; the software GPU is exact",
            [0.1, 10.0],
            f64::recip,
            536_870_912.0,
        )
    },
    Approximation {
        wide: true,
        ..approximation(
            "rsq_f64",
            "the error of v_rsq_f64",
            "error of at most 2^29 ulp; the software GPU is exact",
            [0.1, 10.0],
            |x| 1.0 / x.sqrt(),
            536_870_912.0,
        )
    },
];

pub fn ask(gpu: &Gpu) -> Result<Vec<Answer>> {
    APPROXIMATIONS.iter().map(|one| one.ask(gpu)).collect()
}

impl Approximation {
    fn ask(&self, gpu: &Gpu) -> Result<Answer> {
        let at = |i: u32| {
            self.range[0] + (self.range[1] - self.range[0]) * (f64::from(i) + 0.37) / f64::from(SAMPLES)
        };
        let operands: Vec<f64> =
            (0..SAMPLES).map(|i| if self.wide { at(i) } else { f64::from(at(i) as f32) }).collect();
        let words = |value: &f64| match self.wide {
            true => vec![value.to_bits() as u32, (value.to_bits() >> 32) as u32, 0, 0],
            false => vec![(*value as f32).to_bits(), 0, 0, 0],
        };
        let cases: Vec<Vec<u32>> = operands.iter().map(words).collect();
        let Some(found) = run(gpu, self.kernel, &cases)? else {
            return Ok(self.question.not_applicable("this GPU has no such instruction"));
        };
        let errors: Vec<f64> = operands
            .iter()
            .zip(found.chunks(OUTPUTS))
            .map(|(operand, out)| self.error(*operand, out))
            .collect();
        let largest = errors.iter().copied().fold(0.0, f64::max);
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        let share =
            |limit: f64| errors.iter().filter(|error| **error <= limit).count() as f64 / errors.len() as f64;
        // `f64::max` ignores NaN, which is a wrong result.
        let right = largest <= self.max_error && errors.iter().all(|error| !error.is_nan());
        let text = format!(
            "error of at most {largest:.3} ulp, {mean:.3} on average, {:.1}% correctly rounded",
            100.0 * share(0.5)
        );
        let figures =
            json!({"largest": largest, "mean": mean, "up_to_half": share(0.5), "up_to_one": share(1.0)});
        Ok(self.question.answer(right, text).with(figures))
    }

    fn error(&self, operand: f64, out: &[u32]) -> f64 {
        let exact = (self.exact)(operand);
        let (found, place) = match (self.wide, self.kernel) {
            (true, _) => {
                let bits = u64::from(out[1]) << 32 | u64::from(out[0]);
                (f64::from_bits(bits), exact.abs().to_bits().max(1 << 52) & 0x7ff << 52)
            }
            // The errors of sine and cosine are absolute.
            (false, "sin_f32" | "cos_f32") => (f64::from(f32::from_bits(out[0])), 1023 << 52),
            (false, _) => (f64::from(f32::from_bits(out[0])), exact.abs().to_bits() & 0x7ff << 52),
        };
        let last = if self.wide { 2f64.powi(-52) } else { 2f64.powi(-23) };
        (found - exact).abs() / (f64::from_bits(place) * last)
    }
}
