//! Sampling, compared with what the options say.
use std::collections::BTreeSet;

use anyhow::Result;
use candle_core::{Device, Tensor};
use clap::Parser;
use proptest::prelude::*;

use crate::generated;
use crate::options::{Options, SamplingOptions};
use crate::sampling::{Sampler, keep_likely};
use crate::tiny_models::{family, write_safetensors};

fn options(args: &[&str]) -> SamplingOptions {
    let program = ["generate", "model", "--prompt", "p"].into_iter().chain(args.iter().copied());
    Options::try_parse_from(program).expect("valid options").sampling
}

/// Between them no sum of probabilities comes near a half, so that rounding decides nothing.
const LOGITS: [f32; 6] = [0.3, 2.0, -1.0, 1.1, 1.6, 0.7];

/// The tokens that may come: those that no option leaves out.
fn allowed(temperature: f64, k: usize, top_p: f64, min_p: f64) -> BTreeSet<u32> {
    let powers = LOGITS.map(|logit| (f64::from(logit) / temperature).exp());
    let probability = |token: usize| powers[token] / powers.iter().sum::<f64>();
    let likelier = |token: usize| {
        (0..LOGITS.len()).filter(move |other| probability(*other) > probability(token)).map(probability)
    };
    let highest = (0..LOGITS.len()).map(probability).fold(0.0, f64::max);
    let kept = |token: &usize| {
        likelier(*token).count() < k
            && likelier(*token).sum::<f64>() < top_p
            && probability(*token) >= min_p * highest
    };
    (0..LOGITS.len()).filter(kept).map(|token| token as u32).collect()
}

#[test]
fn just_the_tokens_come_that_no_option_leaves_out() -> Result<()> {
    let logits = Tensor::new(&LOGITS, &Device::Cpu)?;
    let mut sizes = BTreeSet::new();
    for (temperature, k, top_p, min_p) in [
        (1.0, 6, 1.0, 0.0),
        (1.0, 3, 1.0, 0.0),
        (1.0, 6, 0.7, 0.0),
        (1.0, 6, 1.0, 0.3),
        (0.5, 6, 1.0, 0.3),
        (1.0, 4, 0.7, 0.0),
        (1.0, 2, 0.9, 0.5),
        (2.0, 5, 0.9, 0.2),
        (1.0, 1, 1.0, 0.0),
    ] {
        let text = [temperature.to_string(), k.to_string(), top_p.to_string(), min_p.to_string()];
        let [t, k_text, p, m] = text.each_ref().map(String::as_str);
        let args = ["--temperature", t, "--top-k", k_text, "--top-p", p, "--min-p", m];
        let mut sampler = Sampler::new(&options(&args));
        let come: Result<BTreeSet<u32>> =
            (0..2000).map(|_| Ok(sampler.choose(&logits, &[])?.token)).collect();
        let allowed = allowed(temperature, k, top_p, min_p);
        assert_eq!(come?, allowed, "{args:?}");
        sizes.insert(allowed.len());
    }
    assert!(sizes.len() >= 4, "the options leave out different numbers: {sizes:?}");
    Ok(())
}

#[test]
fn tokens_come_as_often_as_the_temperature_says() -> Result<()> {
    const DRAWS: usize = 20_000;
    let logits = Tensor::new(&LOGITS, &Device::Cpu)?;
    let mut sampler = Sampler::new(&options(&["--temperature", "0.7", "--seed", "3"]));
    let mut counts = [0; LOGITS.len()];
    for _ in 0..DRAWS {
        counts[sampler.choose(&logits, &[])?.token as usize] += 1;
    }
    let powers = LOGITS.map(|logit| (f64::from(logit) / 0.7).exp());
    for (token, count) in counts.into_iter().enumerate() {
        let p = powers[token] / powers.iter().sum::<f64>();
        // Five standard deviations of so many draws.
        let allowed = 5.0 * (p * (1.0 - p) * DRAWS as f64).sqrt();
        let difference = (f64::from(count) - p * DRAWS as f64).abs();
        assert!(difference < allowed, "token {token}: {count} of {DRAWS}, expected {p}");
    }
    Ok(())
}

#[test]
fn without_temperature_the_first_of_the_likeliest_is_taken_with_its_lead() -> Result<()> {
    let mut sampler = Sampler::new(&options(&["--temperature", "0"]));
    for (logits, token, lead) in [
        (vec![0.5f32, 2.0, 1.25], 1, 0.75),
        (vec![1.0, 3.0, 3.0], 1, 0.0),
        (vec![f32::NEG_INFINITY, -4.0, f32::NEG_INFINITY], 1, f32::INFINITY),
    ] {
        // Models give one row, or one row of one sentence.
        for shape in [vec![3], vec![1, 3], vec![1, 1, 3]] {
            let choice = sampler.choose(&Tensor::from_vec(logits.clone(), shape, &Device::Cpu)?, &[])?;
            assert_eq!((choice.token, choice.lead), (token, lead), "{logits:?}");
        }
    }
    Ok(())
}

#[test]
fn logits_that_are_no_numbers_are_an_error() -> Result<()> {
    for temperature in ["0", "1"] {
        let mut sampler = Sampler::new(&options(&["--temperature", temperature]));
        for bad in [f32::NAN, f32::INFINITY] {
            let logits = Tensor::new(&[0.0, bad, 1.0], &Device::Cpu)?;
            let error = sampler.choose(&logits, &[]).expect_err("no choice").to_string();
            assert!(error.contains("logits are"), "{error}");
        }
    }
    Ok(())
}

#[test]
fn the_penalty_counts_for_recent_tokens_only() -> Result<()> {
    let logits = Tensor::new(&[2.0f32, 1.5, -1.0], &Device::Cpu)?;
    let lead = |args: &[&str], tokens: &[u32]| -> Result<(u32, f32)> {
        let args = [&["--temperature", "0"], args].concat();
        let choice = Sampler::new(&options(&args)).choose(&logits, tokens)?;
        Ok((choice.token, choice.lead))
    };
    let twice = ["--repeat-penalty", "2", "--repeat-last-n", "2"];
    assert_eq!(lead(&[], &[0, 0])?, (0, 0.5));
    // 2 / 2 below 1.5, however often it came.
    assert_eq!(lead(&twice, &[0, 0])?, (1, 0.5));
    assert_eq!(lead(&twice, &[0, 2, 2])?, (0, 0.5));
    assert_eq!(lead(&twice, &[2, 1, 0])?, (0, 0.25));
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_text() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_safetensors(folder.path(), family("Llama"), 7, 1)?;
    let text = |seed: &str| -> Result<String> {
        let args = ["--prompt", "the cat", "--tokens", "24", "--device", "cpu", "--seed", seed];
        Ok(generated(folder.path(), &args)?.1)
    };
    let texts: Result<BTreeSet<String>> = ["1", "2", "3", "1", "2", "3"].into_iter().map(text).collect();
    assert_eq!(texts?.len(), 3);
    Ok(())
}

proptest! {
    #[test]
    fn min_p_keeps_what_is_near_the_highest(ps in prop::collection::vec(0f32..1.0, 1..40), min_p in 0f32..=1.0) {
        let mut kept = ps.clone();
        keep_likely(&mut kept, min_p);
        let highest = ps.iter().copied().fold(f32::MIN, f32::max);
        for (before, after) in ps.iter().zip(&kept) {
            prop_assert_eq!(*after, if *before >= min_p * highest { *before } else { 0.0 });
        }
        // The likeliest always stays.
        prop_assert!(kept.contains(&highest));
    }
}
