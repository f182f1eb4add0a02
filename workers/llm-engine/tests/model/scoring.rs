//! Logits of several rows of a sequence, and the log probabilities of given tokens.
use std::borrow::Cow;

use llm_engine::request::Sampling;
use llm_engine::sampling::{self, Row};
use llm_engine::step::{BLOCK_SIZE, SequenceStep, Step, StepModel};

use super::configs::named;
use super::reference;
use super::steps::{close, load, random, tolerance};

/// (tokens, number of logits) of each sequence.
const SEQUENCES: [(usize, usize); 4] = [(20, 20), (7, 3), (1, 1), (5, 0)];

#[test]
fn the_last_rows_of_each_sequence_are_returned_and_scored() {
    let folder = tempfile::tempdir().unwrap();
    let case = named("llama");
    let (mut expected, weights) = reference::model(&case);
    reference::write(folder.path(), &case.config, &weights, 1);
    let mut model = load(folder.path());
    let vocabulary = model.capacity().vocabulary;
    let mut next = random(3);
    let (mut step, mut first_block, mut wanted) = (Step::default(), 0, Vec::new());
    for (length, logits) in SEQUENCES {
        let tokens: Vec<u32> =
            (0..length).map(|_| ((next() + 1.0) * 1e6) as u32 % vocabulary as u32).collect();
        let first = step.tokens.len();
        step.tokens.extend(&tokens);
        step.positions.extend(0..length as u32);
        step.slots.extend((0..length as u32).map(|position| first_block * BLOCK_SIZE as u32 + position));
        let blocks: Vec<u32> = (first_block..).take(length.div_ceil(BLOCK_SIZE)).collect();
        first_block += blocks.len() as u32;
        let rows = first..first + length;
        step.sequences.push(SequenceStep { rows, context: length, blocks, logits, adapter: None });
        wanted.extend((length - logits..length).map(|row| expected(&tokens[..=row])));
    }
    let logits = model.step(&step).unwrap();
    assert_eq!(logits.dims(), [wanted.len(), vocabulary]);
    for (row, (logits, wanted)) in logits.to_vec2::<f32>().unwrap().iter().zip(&wanted).enumerate() {
        close(logits, wanted, tolerance(1e-4), &format!("row {row}"));
    }
    // The largest bias selects a token, whose log probability is that of the unchanged logits.
    let target = |row: usize| (row * 7 % vocabulary) as u32;
    let sampling: Vec<Sampling> = (0..wanted.len())
        .map(|row| Sampling {
            temperature: 0.0,
            logit_bias: vec![(target(row), f32::MAX)],
            ..Sampling::default()
        })
        .collect();
    let row =
        |sampling| Row { sampling, draw: 0.0, occurrences: Cow::default(), allowed: None, logprobs: Some(2) };
    let rows: Vec<Row> = sampling.iter().map(row).collect();
    let sampled = sampling::sample(&logits, &rows).unwrap();
    for (row, (sampled, logits)) in sampled.iter().zip(logits.to_vec2::<f32>().unwrap()).enumerate() {
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let logprob = |token: u32| f64::from(logits[token as usize]) - sum.ln();
        assert_eq!(sampled.token, target(row));
        assert!((f64::from(sampled.logprob.unwrap()) - logprob(target(row))).abs() < 1e-5, "row {row}");
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(logits[sampled.top[0].token as usize], largest);
        for top in &sampled.top {
            assert!((f64::from(top.logprob) - logprob(top.token)).abs() < 1e-5, "row {row}");
        }
    }
    step.sequences[1].logits = 8;
    let error = model.step(&step).unwrap_err().to_string();
    assert!(error.contains("7 rows, but 8 logits"), "{error}");
}
