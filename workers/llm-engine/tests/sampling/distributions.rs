//! Frequencies of sampled tokens, and edge cases of the random number.
use llm_engine::request::Sampling;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::reference::Case;
use crate::rows::sample;

/// Chi-square statistic of `counts` against the `wanted` probabilities.
fn chi_square(counts: &[usize], wanted: &[f64]) -> f64 {
    let total = counts.iter().sum::<usize>() as f64;
    let parts = counts.iter().zip(wanted).filter(|(_, share)| **share > 0.0);
    parts.map(|(count, share)| (*count as f64 - share * total).powi(2) / (share * total)).sum()
}

#[test]
fn tokens_are_sampled_by_probability() {
    let logits: Vec<f32> = (0..30).map(|token| ((token * 7 % 30) as f32) / 10.0).collect();
    let weight = |logit: f32, temperature: f32| f64::from(logit / temperature).exp();
    for (seed, temperature, top_k) in [(1, 1.0, None), (2, 0.5, None), (3, 2.0, None), (4, 1.0, Some(12))] {
        let mut order = logits.clone();
        order.sort_by(|a, b| b.total_cmp(a));
        let least = top_k.map_or(f32::NEG_INFINITY, |k: usize| order[k - 1]);
        let weights: Vec<f64> = logits
            .iter()
            .map(|logit| if *logit >= least { weight(*logit, temperature) } else { 0.0 })
            .collect();
        let total: f64 = weights.iter().sum();
        let wanted: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
        let mut random = StdRng::seed_from_u64(seed);
        let cases: Vec<Case> = (0..20_000)
            .map(|_| Case {
                logits: logits.clone(),
                sampling: Sampling { temperature, top_k, ..Sampling::default() },
                draw: random.random(),
                ..Case::default()
            })
            .collect();
        let mut counts = vec![0usize; logits.len()];
        for drawn in sample(&cases).unwrap() {
            counts[drawn.token as usize] += 1;
        }
        for (count, wanted) in counts.iter().zip(&wanted) {
            assert!(*wanted > 0.0 || *count == 0);
        }
        // With 29 degrees of freedom, one sample in 10,000 exceeds 66.
        let chi = chi_square(&counts, &wanted);
        assert!(chi < 66.0, "{chi} at temperature {temperature} and top_k {top_k:?}");
    }
}

#[test]
fn impossible_tokens_are_never_sampled() {
    let none = f32::NEG_INFINITY;
    let shapes = [
        vec![none, none, 1.0, 2.0, none, none],
        vec![none, 0.0, -200.0, -200.0, none],
        vec![-1e4, 3.0],
        vec![3.0, -1e4],
        [vec![none; 70], vec![0.0; 3], vec![none; 90]].concat(),
    ];
    for logits in shapes {
        let possible: Vec<u32> =
            (0..logits.len() as u32).filter(|token| logits[*token as usize] > -100.0).collect();
        for (draw, wanted) in [(0.0, possible[0]), (1.0f32.next_down(), possible[possible.len() - 1])] {
            let case = Case { logits: logits.clone(), draw, ..Case::default() };
            assert_eq!(sample(&[case]).unwrap()[0].token, wanted, "draw {draw} of {logits:?}");
        }
    }
}

#[test]
fn greedy_rows_take_the_first_largest_logit() {
    let logits = vec![0.0, 5.0, 1.0, 5.0, 5.0, -1.0];
    let with =
        |sampling: Sampling, draw: f32| Case { logits: logits.clone(), sampling, draw, ..Case::default() };
    let cold = Sampling { temperature: 0.0, ..Sampling::default() };
    let one = Sampling { top_k: Some(1), ..Sampling::default() };
    let greedy = [with(cold, 0.99), with(one, 0.99)];
    assert!(sample(&greedy).unwrap().iter().all(|drawn| drawn.token == 1));
    let warm = Sampling { top_p: 0.9, top_k: Some(4), min_p: 0.1, ..Sampling::default() };
    let mixed = [greedy[0].clone(), with(warm, 0.99), greedy[1].clone()];
    let tokens: Vec<u32> = sample(&mixed).unwrap().iter().map(|drawn| drawn.token).collect();
    assert_eq!(tokens, [1, 4, 1]);
}

#[test]
fn extreme_temperatures_do_not_overflow() {
    let logits = vec![1.0, 30.0, 29.999, -30.0];
    for temperature in [f32::from_bits(1), f32::MIN_POSITIVE, 1e-20, 1e-6] {
        for draw in [0.0, 0.5, 1.0f32.next_down()] {
            let sampling = Sampling { temperature, ..Sampling::default() };
            let case = Case { logits: logits.clone(), sampling, draw, ..Case::default() };
            assert_eq!(sample(&[case]).unwrap()[0].token, 1);
        }
    }
    // At this temperature all tokens are equally likely.
    let tokens = [0.1, 0.3, 0.6, 0.9].map(|draw| {
        let sampling = Sampling { temperature: 1e30, ..Sampling::default() };
        sample(&[Case { logits: logits.clone(), sampling, draw, ..Case::default() }]).unwrap()[0].token
    });
    assert_eq!(tokens, [0, 1, 2, 3]);
}

#[test]
fn a_tiny_top_p_keeps_the_most_likely_token() {
    let logits = vec![0.0, 1.0, 0.5];
    for top_p in [0.0, 1e-9, 0.01] {
        let sampling = Sampling { top_p, ..Sampling::default() };
        let case = Case { logits: logits.clone(), sampling, draw: 0.999, ..Case::default() };
        assert_eq!(sample(&[case]).unwrap()[0].token, 1);
    }
}

#[test]
fn penalties_follow_their_formulas() {
    // Greedy sampling makes the order of the adjusted logits visible.
    let greedy = |sampling: Sampling, logits: [f32; 4], prompt: &[u32], written: &[u32]| {
        let sampling = Sampling { temperature: 0.0, ..sampling };
        let (prompt, written) = (prompt.to_vec(), written.to_vec());
        let case = Case { logits: logits.to_vec(), sampling, prompt, written, ..Case::default() };
        sample(&[case]).unwrap()[0].token
    };
    let repeat = |repetition_penalty| Sampling { repetition_penalty, ..Sampling::default() };
    // 4 / 2 is less than 2.1, and -1 * 2 is less than -1.9.
    assert_eq!(greedy(repeat(2.0), [4.0, 2.1, 0.0, 0.0], &[0], &[]), 1);
    assert_eq!(greedy(repeat(2.0), [4.0, 1.9, 0.0, 0.0], &[], &[0]), 0);
    assert_eq!(greedy(repeat(2.0), [-1.0, -1.9, -9.0, -9.0], &[0], &[]), 1);
    let presence = Sampling { presence_penalty: 1.0, ..Sampling::default() };
    assert_eq!(greedy(presence.clone(), [4.0, 3.5, 2.9, 0.0], &[], &[0, 0, 0]), 1);
    // These penalties ignore the prompt.
    assert_eq!(greedy(presence, [4.0, 3.5, 0.0, 0.0], &[0], &[]), 0);
    let frequency = Sampling { frequency_penalty: 0.25, ..Sampling::default() };
    assert_eq!(greedy(frequency.clone(), [4.0, 3.5, 0.0, 0.0], &[], &[0]), 0);
    assert_eq!(greedy(frequency, [4.0, 3.5, 0.0, 0.0], &[], &[0, 0, 0]), 1);
    let bias = Sampling { logit_bias: vec![(2, 3.0), (2, 1.5)], ..Sampling::default() };
    assert_eq!(greedy(bias, [4.0, 3.5, 0.0, 0.0], &[], &[]), 2);
}
