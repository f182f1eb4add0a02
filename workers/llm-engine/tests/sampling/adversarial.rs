//! Rows that thresholds could get wrong, and vocabularies of all sizes, in every combination of settings.
use llm_engine::request::Sampling;
use llm_engine::sampling;

use crate::reference::Case;
use crate::rows::{on_device, sample};

const NONE: f32 = f32::NEG_INFINITY;

/// Returns rows of a vocabulary: random, equal, almost all impossible, dominated by one token, subnormal, with extremes.
pub fn rows_of(vocabulary: usize) -> Vec<Vec<f32>> {
    let row = |f: &dyn Fn(usize) -> f32| (0..vocabulary).map(f).collect::<Vec<f32>>();
    let noise = |token: usize| (token as u32).wrapping_mul(2_654_435_761) >> 8;
    vec![
        row(&|token| noise(token) as f32 / (1 << 21) as f32 - 4.0),
        row(&|_| -3.25),
        row(&|token| if token == vocabulary / 2 { 1.0 } else { NONE }),
        row(&|token| if token + 1 == vocabulary { 3e38 } else { noise(token) as f32 / 1e6 }),
        row(&|token| f32::from_bits(noise(token) % 1000 + 1)),
        row(&|token| [0.0, -0.0, f32::MIN_POSITIVE, -1e-40, f32::MIN, 5.5][token % 6]),
        row(&|token| (noise(token) >> 12) as f32 / (1 << 16) as f32),
    ]
}

/// Returns all combinations of temperature, top-k, top-p and min-p, with the other settings on some.
pub fn combinations(vocabulary: usize) -> Vec<Sampling> {
    let mut all = Vec::new();
    for temperature in [0.0, 0.6, 1.0, 2.0] {
        for top_k in [None, Some(2), Some(vocabulary.div_ceil(3)), Some(vocabulary + 5)] {
            for top_p in [1.0, 0.95, 0.3, 0.0] {
                for min_p in [0.0, 0.05] {
                    let changes = all.len() % 3 == 0;
                    all.push(Sampling {
                        temperature,
                        top_k,
                        top_p,
                        min_p,
                        repetition_penalty: if changes { 1.25 } else { 1.0 },
                        presence_penalty: if all.len() % 4 == 0 { 0.5 } else { 0.0 },
                        frequency_penalty: if changes { 0.125 } else { 0.0 },
                        logit_bias: if all.len() % 5 == 0 { vec![(0, 1.5)] } else { Vec::new() },
                        seed: None,
                        penalty_window: if all.len() % 7 == 0 { Some(4) } else { None },
                    });
                }
            }
        }
    }
    all
}

/// Returns a case for each combination of settings, cycling through the rows, draws, masks and log probabilities.
pub fn cases(vocabulary: usize) -> Vec<Case> {
    let rows = rows_of(vocabulary);
    let draws = [0.0, 0.25, 0.5, 0.75, 0.9375, 1.0f32.next_down()];
    let last = vocabulary as u32 - 1;
    let case = |(index, sampling): (usize, Sampling)| Case {
        logits: rows[index % rows.len()].clone(),
        sampling,
        draw: draws[index % draws.len()],
        prompt: vec![last, 0, last / 2],
        written: vec![last, last, last / 3],
        allowed: (index % 4 == 1).then(|| {
            (0..vocabulary.div_ceil(32))
                .map(|word| if word % 2 == 0 { 0x5555_5555 } else { u32::MAX })
                .collect()
        }),
        logprobs: [None, Some(0), Some(1), Some(7)][index % 4],
    };
    combinations(vocabulary).into_iter().enumerate().map(case).collect()
}

/// Returns false if the mask leaves only tokens of negative infinity.
pub fn is_possible(case: &Case) -> bool {
    case.adjusted().iter().any(|logit| *logit > NONE)
}

#[test]
fn adversarial_rows_match_the_reference() {
    for vocabulary in [1, 2, 3, 4, 31, 32, 33, 1000] {
        for case in cases(vocabulary).into_iter().filter(is_possible) {
            let token = sample(std::slice::from_ref(&case)).unwrap()[0].token;
            let acceptable = case.acceptable();
            assert!(
                acceptable.contains(&token),
                "{vocabulary}: {token} is none of {acceptable:?}: {:?}",
                case.sampling
            );
        }
    }
}

/// Draws at the centre of each token's interval, so that rounding cannot move them into another.
#[test]
fn each_kept_token_is_drawn_from_its_interval() {
    for vocabulary in [1, 2, 3, 50] {
        let logits: Vec<f32> = (0..vocabulary).map(|token| (token * 7 % 50) as f32 / 16.0).collect();
        for sampling in combinations(vocabulary).into_iter().filter(|sampling| sampling.temperature > 0.0) {
            let mut case = Case { logits: logits.clone(), sampling, ..Case::default() };
            if case.greedy() {
                continue;
            }
            let probabilities = case.probabilities();
            let mut before = 0.0;
            for (token, probability) in probabilities.into_iter().enumerate().filter(|(_, p)| *p > 1e-4) {
                case.draw = (before + probability / 2.0) as f32;
                before += probability;
                assert_eq!(sample(std::slice::from_ref(&case)).unwrap()[0].token, token as u32, "{case:?}");
            }
        }
    }
}

/// The vocabularies of Llama 2 and Qwen 3.
#[test]
fn wide_adversarial_rows_match_the_reference() {
    for vocabulary in [32_000, 151_936] {
        for case in cases(vocabulary).into_iter().step_by(11).filter(is_possible) {
            let token = sample(std::slice::from_ref(&case)).unwrap()[0].token;
            assert!(case.acceptable().contains(&token), "{vocabulary}: {token} of {:?}", case.sampling);
        }
    }
}

/// The device gives the CPU's tokens and log probabilities, bit for bit.
#[cfg(feature = "rocm-emulator")]
#[test]
fn the_device_samples_what_the_cpu_samples() {
    use candle_core::{DType, Device};
    let device = crate::gpu::rocm();
    for vocabulary in [1, 2, 3, 4, 31, 33, 127, 128, 129, 1000, 1024, 1025] {
        let batch: Vec<_> = cases(vocabulary).into_iter().filter(is_possible).collect();
        for (dtype, step) in [(DType::F32, 1), (DType::F16, 9), (DType::BF16, 9)] {
            let batch: Vec<_> = batch.iter().step_by(step).cloned().collect();
            // Some values are infinite in f16.
            let batch: Vec<_> = batch
                .into_iter()
                .filter(|case| dtype != DType::F16 || case.logits.iter().all(|logit| logit.abs() < 6e4))
                .collect();
            if batch.is_empty() {
                continue;
            }
            let logits = crate::rows::logits(&batch, &Device::Cpu).to_dtype(dtype).unwrap();
            let rows: Vec<_> = batch.iter().map(Case::row).collect();
            let expected = sampling::sample(&logits, &rows);
            let got = sampling::sample(&logits.to_device(&device).unwrap(), &rows);
            match (expected, got) {
                (Ok(expected), Ok(got)) => {
                    for ((case, expected), got) in batch.iter().zip(expected).zip(got) {
                        assert_eq!(got, expected, "{vocabulary} {dtype:?} {:?}", case.sampling);
                    }
                }
                (expected, got) => {
                    panic!("{vocabulary} {dtype:?}: {expected:?} on the CPU, {got:?} on the device")
                }
            }
        }
    }
}

#[cfg(feature = "rocm-emulator")]
#[test]
fn the_device_samples_what_the_cpu_samples_from_wide_vocabularies() {
    let device = crate::gpu::rocm();
    for (vocabulary, step) in [(32_000, 7), (151_936, 29)] {
        let batch: Vec<_> = cases(vocabulary).into_iter().step_by(step).filter(is_possible).collect();
        let expected = sample(&batch).unwrap();
        for ((case, expected), got) in batch.iter().zip(expected).zip(on_device(&batch, &device).unwrap()) {
            assert_eq!(got, expected, "{vocabulary} {:?}", case.sampling);
        }
    }
}

#[cfg(feature = "rocm-emulator")]
#[test]
fn the_device_reports_the_errors_of_the_cpu() {
    let device = crate::gpu::rocm();
    for broken in [f32::NAN, f32::INFINITY, -f32::NAN] {
        for temperature in [0.0, 1.0] {
            let sampling = Sampling { temperature, top_p: 0.5, ..Sampling::default() };
            let logits = vec![1.0, 2.0, broken, broken, 3.0];
            let case = Case { logits, sampling, logprobs: Some(2), ..Case::default() };
            let first_line = |error: candle_core::Error| error.to_string().lines().next().unwrap().to_owned();
            let message = first_line(on_device(std::slice::from_ref(&case), &device).unwrap_err());
            assert_eq!(message, first_line(sample(&[case]).unwrap_err()));
            assert!(message.contains("token 2"), "{message}");
        }
    }
    let impossible = Case { logits: vec![NONE, 1.0], allowed: Some(vec![1]), ..Case::default() };
    assert!(on_device(&[impossible], &device).unwrap_err().to_string().contains("no token of row 0"));
}

/// Sampling a batch takes one launch, whatever its settings.
#[cfg(feature = "rocm-emulator")]
#[test]
fn a_batch_is_sampled_in_one_launch() {
    // Other tests launch kernels on the stream of the first device.
    crate::gpu::rocm();
    let device = candle_core::Device::new_rocm_with_stream(0).unwrap();
    let all: Vec<_> = cases(64).into_iter().filter(is_possible).collect();
    let greedy: Vec<_> = all.iter().filter(|case| case.greedy()).cloned().collect();
    let plain = Case {
        logits: vec![0.5; 64],
        sampling: Sampling { top_p: 0.95, ..Sampling::default() },
        ..Case::default()
    };
    for batch in [all, greedy, vec![plain.clone(); 64], vec![plain]] {
        let logits = crate::rows::logits(&batch, &device);
        let rows: Vec<_> = batch.iter().map(Case::row).collect();
        let launched = || device.as_rocm_device().unwrap().kernels_launched();
        let before = launched();
        sampling::sample(&logits, &rows).unwrap();
        assert_eq!(launched() - before, 1, "for a batch of {}", batch.len());
    }
}
