//! Random batches: each row matches the reference, and is independent of the batch.
use candle_core::{Device, Tensor};
use llm_engine::request::Sampling;
use llm_engine::sampling::{self, Sampled, check};
use proptest::prelude::*;

use crate::reference::Case;

/// Returns the logits of cases of one vocabulary.
pub fn logits(cases: &[Case], device: &Device) -> Tensor {
    let logits: Vec<f32> = cases.iter().flat_map(|case| case.logits.clone()).collect();
    Tensor::from_vec(logits, (cases.len(), cases[0].logits.len()), device).unwrap()
}

pub fn on_device(cases: &[Case], device: &Device) -> candle_core::Result<Vec<Sampled>> {
    sampling::sample(&logits(cases, device), &cases.iter().map(Case::row).collect::<Vec<_>>())
}

pub fn sample(cases: &[Case]) -> candle_core::Result<Vec<Sampled>> {
    on_device(cases, &Device::Cpu)
}

fn sampling(vocabulary: u32) -> impl Strategy<Value = Sampling> {
    let temperature = prop_oneof![Just(0.0f32), Just(1.0), Just(1e-3), 0.05f32..2.0];
    let top_k = prop_oneof![2 => Just(None), 3 => (1usize..2 * vocabulary as usize).prop_map(Some)];
    let top_p = prop_oneof![2 => Just(1.0f32), 3 => 0.0f32..1.0];
    let min_p = prop_oneof![2 => Just(0.0f32), 1 => 0.0f32..0.5];
    let repeat = prop_oneof![Just(1.0f32), 0.5f32..2.0];
    let penalty = || prop_oneof![Just(0.0f32), -2.0f32..2.0];
    let bias = prop::collection::vec((0..vocabulary, -5.0f32..5.0), 0..4);
    let window = prop_oneof![2 => Just(None), 1 => (0usize..12).prop_map(Some)];
    (temperature, top_k, top_p, min_p, repeat, penalty(), penalty(), bias, window).prop_map(
        |(
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            penalty_window,
        )| {
            Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty,
                presence_penalty,
                frequency_penalty,
                seed: None,
                logit_bias,
                penalty_window,
            }
        },
    )
}

fn case(vocabulary: u32) -> impl Strategy<Value = Case> {
    // Logits with ties, whose differences f32 resolves at any temperature.
    let logits =
        prop::collection::vec((-80i16..80).prop_map(|step| f32::from(step) / 8.0), vocabulary as usize);
    let draw = prop_oneof![1 => Just(0.0f32), 1 => Just(1.0f32.next_down()), 8 => 0.0f32..1.0];
    let tokens = || prop::collection::vec(0..vocabulary, 0..12);
    let words = prop::collection::vec(any::<u32>(), 1..=vocabulary.div_ceil(32) as usize);
    let allowed = prop_oneof![
        2 => Just(None),
        1 => words.prop_map(|mut words| {
            words[0] |= 1;
            Some(words)
        }),
        // Only one token.
        1 => (0..vocabulary).prop_map(|token| {
            let mut words = vec![0; token as usize / 32 + 1];
            words[token as usize / 32] = 1 << (token % 32);
            Some(words)
        }),
    ];
    let logprobs = prop_oneof![Just(None), (0usize..6).prop_map(Some)];
    (logits, sampling(vocabulary), draw, tokens(), tokens(), allowed, logprobs).prop_map(
        |(logits, sampling, draw, prompt, written, allowed, logprobs)| Case {
            logits,
            sampling,
            draw,
            prompt,
            written,
            allowed,
            logprobs,
        },
    )
}

fn batch() -> impl Strategy<Value = Vec<Case>> {
    (2u32..150).prop_flat_map(|vocabulary| prop::collection::vec(case(vocabulary), 1..9))
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
    logits.iter().map(|logit| f64::from(*logit) - sum.ln()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn batches_match_the_reference(batch in batch()) {
        let drawn = sample(&batch).unwrap();
        prop_assert_eq!(drawn.len(), batch.len());
        for (case, drawn) in batch.iter().zip(&drawn) {
            check(&case.sampling, case.logits.len()).unwrap();
            let acceptable = case.acceptable();
            prop_assert!(acceptable.contains(&drawn.token), "{} is none of {acceptable:?}: {case:?}", drawn.token);
            let alone = sample(std::slice::from_ref(case)).unwrap();
            prop_assert_eq!(alone[0].token, drawn.token);
            let wanted = log_probabilities(&case.logits);
            prop_assert_eq!(drawn.logprob.is_some(), case.logprobs.is_some());
            if let Some(logprob) = drawn.logprob {
                prop_assert!((f64::from(logprob) - wanted[drawn.token as usize]).abs() < 1e-4);
            }
            prop_assert_eq!(drawn.top.len(), case.logprobs.unwrap_or(0).min(wanted.len()));
            let mut order = wanted.clone();
            order.sort_by(|a, b| b.total_cmp(a));
            let mut reported: Vec<u32> = drawn.top.iter().map(|top| top.token).collect();
            for (top, wanted_value) in drawn.top.iter().zip(order) {
                prop_assert!((f64::from(top.logprob) - wanted_value).abs() < 1e-4);
                prop_assert!((f64::from(top.logprob) - wanted[top.token as usize]).abs() < 1e-4);
            }
            reported.sort_unstable();
            reported.dedup();
            prop_assert_eq!(reported.len(), drawn.top.len());
        }
    }
}

/// The test above proves little if many tokens are acceptable.
#[test]
fn the_reference_is_rarely_ambiguous() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut counts = Vec::new();
    for _ in 0..200 {
        let batch = batch().new_tree(&mut runner).unwrap().current();
        counts.extend(batch.iter().map(|case| case.acceptable().len()));
    }
    assert!(counts.iter().all(|count| *count > 0));
    let single = counts.iter().filter(|count| **count == 1).count();
    assert!(single * 10 > counts.len() * 9, "{single} of {} rows have one token", counts.len());
}

/// A realistic vocabulary width, with all features combined.
#[test]
fn wide_vocabularies_match_the_reference() {
    let width = 128_256u32;
    let logits: Vec<f32> =
        (0..width).map(|token| (token.wrapping_mul(2_654_435_761) >> 20) as f32 / 256.0).collect();
    let last = [logits.clone(), vec![40.0]].concat();
    let with = |sampling: Sampling, draw: f32| Case {
        logits: last.clone(),
        sampling,
        draw,
        logprobs: Some(3),
        written: vec![5, width],
        ..Case::default()
    };
    let cold = Sampling { temperature: 0.7, top_p: 0.9, ..Sampling::default() };
    let cases = [
        with(Sampling::default(), 0.5),
        with(cold, 0.999),
        with(Sampling { temperature: 0.0, ..Sampling::default() }, 0.3),
        with(Sampling { top_k: Some(40), logit_bias: vec![(width, -40.0)], ..Sampling::default() }, 0.4),
    ];
    let drawn = sample(&cases).unwrap();
    for (case, drawn) in cases.iter().zip(&drawn) {
        assert!(case.acceptable().contains(&drawn.token), "{} of {:?}", drawn.token, case.sampling);
        assert_eq!(drawn.top[0].token, width);
    }
    assert_eq!(drawn[2].token, width);
}
