//! Prints the time that sampling of a batch takes, by settings: `sampling_time [rows] [vocabulary]`.
//!
//! Flat logits are spread like those of an untrained model, so that top-p keeps most of the vocabulary. Peaked logits keep
//! a few tokens. Penalties apply to a text of 1,000 tokens. Times contain the upload of the settings and the read back of the
//! tokens.
use std::borrow::Cow;
use std::time::Instant;

use anyhow::Result;
use candle_core::{Device, Tensor};
use llm_engine::request::Sampling;
use llm_engine::sampling::{self, Row, TokenCounts};

const REPEATS: u32 = 100;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let rows = arguments.next().transpose()?.unwrap_or(64);
    let vocabulary = arguments.next().transpose()?.unwrap_or(151_936);
    let device = device()?;
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let top_p = Sampling { top_p: 0.95, ..Sampling::default() };
    let settings = [
        ("greedy", greedy),
        ("temperature", Sampling { temperature: 0.8, ..Sampling::default() }),
        ("top_p 0.95", top_p.clone()),
        ("top_k 50", Sampling { top_k: Some(50), ..Sampling::default() }),
        ("top_k 50, top_p 0.95", Sampling { top_k: Some(50), ..top_p.clone() }),
        ("min_p 0.05", Sampling { min_p: 0.05, ..Sampling::default() }),
        ("top_p 0.95, repetition 1.1", Sampling { repetition_penalty: 1.1, ..top_p.clone() }),
        ("top_p 0.95, presence 0.5", Sampling { presence_penalty: 0.5, ..top_p }),
        ("bias", Sampling { logit_bias: vec![(1, f32::NEG_INFINITY)], ..Sampling::default() }),
    ];
    let text: Vec<u32> = (0..1000u32).map(|i| i.wrapping_mul(2_654_435_761) % vocabulary as u32).collect();
    for (name, spread) in [("flat", 1.0), ("peaked", 4.0)] {
        let logits = Tensor::randn(0f32, spread, (rows, vocabulary), &device)?;
        for (settings_name, sampling) in &settings {
            let mut counts = TokenCounts::new(sampling);
            counts.advance(&[], &text);
            let row = |row: usize| Row {
                sampling,
                draw: (row as f32 + 0.5) / rows as f32,
                occurrences: Cow::Borrowed(counts.occurrences()),
                allowed: None,
                logprobs: None,
            };
            let batch: Vec<Row> = (0..rows).map(row).collect();
            sampling::sample(&logits, &batch)?;
            let start = Instant::now();
            for _ in 0..REPEATS {
                sampling::sample(&logits, &batch)?;
            }
            let micros = start.elapsed().as_secs_f64() * 1e6 / f64::from(REPEATS);
            println!("{rows} x {vocabulary} {name} logits, {settings_name}: {micros:.0} us");
        }
    }
    Ok(())
}

/// Returns the ROCm device, or the CPU without the feature.
fn device() -> Result<Device> {
    #[cfg(feature = "rocm")]
    return Ok(Device::new_rocm(0)?);
    #[cfg(not(feature = "rocm"))]
    Ok(Device::Cpu)
}
