//! Bias and penalties: the counts that are kept between steps, and the logits that the kernel changes and restores.
use llm_engine::request::Sampling;
use llm_engine::sampling::TokenCounts;
use proptest::prelude::*;

/// Returns pairs of a token and its number in the text, sorted, that penalties consider.
fn expected(sampling: &Sampling, prompt: &[u32], text: &[u32]) -> Vec<[u32; 2]> {
    let all = [prompt, text].concat();
    let skipped = sampling.penalty_window.map_or(0, |window| all.len().saturating_sub(window));
    let repeats = sampling.repetition_penalty != 1.0;
    let is_used = repeats || sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
    let is_counted =
        |position: usize| is_used && position >= skipped && (repeats || position >= prompt.len());
    let mut tokens: Vec<u32> = (0..all.len()).filter(|at| is_counted(*at)).map(|at| all[at]).collect();
    tokens.sort_unstable();
    tokens.dedup();
    let written = &all[skipped.max(prompt.len())..];
    let number = |token: u32| written.iter().filter(|other| **other == token).count() as u32;
    tokens.into_iter().map(|token| [token, number(token)]).collect()
}

fn sorted(pairs: &[[u32; 2]]) -> Vec<[u32; 2]> {
    let mut pairs = pairs.to_vec();
    pairs.sort_unstable();
    pairs
}

fn tokens(count: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..9, count)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each step has drafts, of which the text keeps none, some or all, and other tokens after them.
    #[test]
    fn counts_follow_the_text(
        prompt in tokens(1..30),
        steps in prop::collection::vec((tokens(0..6), 0usize..6, tokens(0..3)), 1..20),
        window in prop_oneof![Just(None), (0usize..25).prop_map(Some)],
        (repetition_penalty, presence_penalty, frequency_penalty) in
            (prop_oneof![Just(1.0f32), Just(1.5)], prop_oneof![Just(0.0f32), Just(0.5)], prop_oneof![Just(0.0f32), Just(0.5)]),
    ) {
        let sampling = Sampling {
            repetition_penalty, presence_penalty, frequency_penalty, penalty_window: window, ..Sampling::default()
        };
        let mut counts = TokenCounts::new(&sampling);
        let mut text = Vec::new();
        for (drafts, accepted, next) in steps {
            let with_drafts = [&text[..], &drafts[..]].concat();
            let ends = text.len()..=with_drafts.len();
            let found = counts.at_ends(&prompt, &with_drafts, ends.clone(), text.len());
            prop_assert_eq!(found.len(), 1 + drafts.len());
            for (end, found) in ends.zip(&found) {
                prop_assert_eq!(sorted(found.pairs()), expected(&sampling, &prompt, &with_drafts[..end]));
            }
            prop_assert_eq!(sorted(counts.occurrences().pairs()), expected(&sampling, &prompt, &text));
            text.extend(drafts.into_iter().take(accepted));
            text.extend(next);
            counts.advance(&prompt, &text);
            prop_assert_eq!(sorted(counts.occurrences().pairs()), expected(&sampling, &prompt, &text));
        }
    }
}

#[cfg(feature = "rocm-emulator")]
mod on_device {
    use candle_core::{DType, Device, Tensor};
    use llm_engine::request::Sampling;
    use llm_engine::sampling::{self, Row};

    use crate::adversarial::{cases, is_possible};
    use crate::reference::Case;
    use crate::rows::{logits, on_device, sample};

    fn bits(logits: &Tensor) -> Vec<u32> {
        let logits = logits.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
        logits.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    }

    /// Samples twice from the same logits, as the CPU does once, and checks that they are unchanged.
    fn assert_repeatable(batch: &[Case], dtype: DType, device: &Device) {
        let rows: Vec<Row> = batch.iter().map(Case::row).collect();
        let on_cpu = logits(batch, &Device::Cpu).to_dtype(dtype).unwrap();
        let on_gpu = on_cpu.to_device(device).unwrap();
        let expected = sampling::sample(&on_cpu, &rows).unwrap();
        for _ in 0..2 {
            let got = sampling::sample(&on_gpu, &rows).unwrap();
            for ((case, got), expected) in batch.iter().zip(got).zip(&expected) {
                assert_eq!(got, *expected, "{dtype:?} {:?}", case.sampling);
            }
            assert_eq!(bits(&on_gpu), bits(&on_cpu), "{dtype:?}");
        }
    }

    /// Tokens 0 and the last one are biased, seen by the prompt and by the text, and allowed by the mask or not.
    #[test]
    fn logits_are_the_same_after_sampling() {
        let device = crate::gpu::rocm();
        for vocabulary in [1, 33, 1000, 1025] {
            let last = vocabulary as u32 - 1;
            let mut batch: Vec<_> = cases(vocabulary).into_iter().step_by(5).collect();
            for (number, case) in batch.iter_mut().enumerate() {
                case.logits.iter_mut().for_each(|logit| *logit = logit.clamp(-6e4, 6e4));
                case.sampling.repetition_penalty = [1.25, 1.0, 0.5][number % 3];
                case.sampling.logit_bias =
                    [vec![], vec![(last, 2.5), (0, -1.5), (last, 0.25)]][number % 2].clone();
                // The list is longer than the workgroup.
                case.prompt.extend((number % 4 == 0).then_some(0..=last).into_iter().flatten());
            }
            batch.retain(is_possible);
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                assert_repeatable(&batch, dtype, &device);
                let unchanged: Vec<_> = batch
                    .iter()
                    .map(|case| {
                        let Sampling { temperature, top_k, top_p, min_p, .. } = case.sampling;
                        let sampling = Sampling { temperature, top_k, top_p, min_p, ..Sampling::default() };
                        Case { sampling, ..case.clone() }
                    })
                    .filter(is_possible)
                    .collect();
                assert_repeatable(&unchanged, dtype, &device);
            }
        }
    }

    /// Changed logits of more than the largest number are the largest number, and those of -infinity stay so.
    #[test]
    fn changes_do_not_overflow_to_infinity() {
        let device = crate::gpu::rocm();
        let smallest = f32::MIN_POSITIVE;
        let none = f32::NEG_INFINITY;
        for (logits, repetition_penalty, logit_bias, token) in [
            (vec![1.0, 3e38, 2.0, none], 1.0, vec![(1, f32::MAX)], 1),
            (vec![100.0, 200.0, 4.0, none], smallest, vec![], 0),
            (vec![-100.0, none, 4.0, 5.0], smallest, vec![(3, none)], 2),
            (vec![-1.0, 3e38, 3e38, none], smallest, vec![(0, f32::MAX), (1, none)], 0),
            (vec![f32::MAX, f32::MIN, 1.0, none], 100.0, vec![(1, f32::MAX), (3, f32::MAX)], 0),
        ] {
            for temperature in [0.0, 1.0] {
                let logit_bias = logit_bias.clone();
                let sampling =
                    Sampling { temperature, repetition_penalty, logit_bias, ..Sampling::default() };
                let (logits, prompt) = (logits.clone(), vec![0, 1]);
                let case = Case { logits, sampling, prompt, logprobs: Some(4), ..Case::default() };
                let sampled = sample(std::slice::from_ref(&case)).unwrap()[0].token;
                assert!(temperature > 0.0 || sampled == token, "{sampled}: {case:?}");
                assert_repeatable(&[case], DType::F32, &device);
            }
        }
    }

    #[test]
    fn changes_do_not_hide_logits_that_are_not_finite() {
        let device = crate::gpu::rocm();
        for broken in [f32::NAN, f32::INFINITY, -f32::NAN] {
            for bias in [1.0, f32::NEG_INFINITY, f32::MAX] {
                let broken = vec![1.0, 2.0, broken, broken, 3.0];
                let sampling = Sampling {
                    logit_bias: vec![(2, bias), (0, bias)],
                    repetition_penalty: 2.0,
                    presence_penalty: 1.0,
                    ..Sampling::default()
                };
                let (prompt, written) = (vec![2, 3], vec![2]);
                let case = Case { logits: broken, sampling, prompt, written, ..Case::default() };
                let alone = std::slice::from_ref(&case);
                for message in
                    [sample(alone), on_device(alone, &device)].map(|sampled| sampled.unwrap_err().to_string())
                {
                    assert!(message.contains("the first is that of token 2"), "{message}");
                }
                // The engine then samples the other rows of the batch again.
                let batch = [Case { logits: vec![1.0, 2.0, 4.0, 5.0, 3.0], ..case.clone() }, case];
                let rows: Vec<Row> = batch.iter().map(Case::row).collect();
                let on_cpu = logits(&batch, &Device::Cpu);
                let on_gpu = on_cpu.to_device(&device).unwrap();
                assert!(sampling::sample(&on_gpu, &rows).is_err());
                assert_eq!(bits(&on_gpu), bits(&on_cpu));
            }
        }
    }
}
