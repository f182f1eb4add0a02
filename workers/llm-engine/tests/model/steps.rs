//! Steps as an engine makes them: pieces of prompts, decoding, several sequences at once, blocks that are shared.
use std::path::Path;

use candle_core::{DType, Device};
use llm_engine::model::decoder::Decoder;
use llm_engine::model::{LoadOptions, load_decoder};
use llm_engine::step::{BLOCK, SequenceStep, Step, StepModel};

/// Logits behind all of these tokens.
pub type Reference<'a> = dyn FnMut(&[u32]) -> Vec<f32> + 'a;

/// Where the decoder computes, and in what.
pub fn device() -> (Device, DType) {
    #[cfg(feature = "rocm-emulator")]
    {
        // Where there is no other GPU, the software one.
        if matches!(rocm_loader::driver(), Err(rocm_loader::LoadError::NoGpu { .. })) {
            rocm_loader::select("emulator:gfx1100").unwrap();
        }
        (Device::new_rocm(0).unwrap(), DType::F16)
    }
    #[cfg(not(feature = "rocm-emulator"))]
    (Device::Cpu, DType::F32)
}

/// How far logits may be off: those of f16 are rounded.
pub fn tolerance(exact: f32) -> f32 {
    match device().1 {
        DType::F32 => exact,
        _ => exact.max(3e-2),
    }
}

/// Where products round rows to blocks first, a number may fall on the other side of a step: then the logits of that row
/// differ by so much. Half of the rows are still as good as those of floats.
const FALLEN: f32 = 0.1;

pub fn load(path: &Path) -> Decoder {
    let (device, dtype) = device();
    let options = LoadOptions { dtype: Some(dtype), cache_bytes: Some(1 << 20), ..LoadOptions::default() };
    load_decoder(path, &device, options, &mut |_| ()).unwrap()
}

/// Numbers between -1 and 1 that f16 can hold, the same for the same seed.
pub fn random(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) % 2048) as f32 / 1024.0 - 1.0
    }
}

pub struct Sequence {
    pub tokens: Vec<u32>,
    pub done: usize,
    pub blocks: Vec<u32>,
}

pub struct Runner {
    pub model: Decoder,
    pub sequences: Vec<Sequence>,
    free: Vec<u32>,
    off: Vec<f32>,
}

impl Runner {
    /// Sequences of so many random tokens.
    pub fn new(model: Decoder, lengths: &[usize]) -> Self {
        let capacity = model.capacity();
        let mut next = random(5);
        let mut token = || ((next() + 1.0) * 1e6) as u32 % capacity.vocabulary as u32;
        let sequence = |&length: &usize| Sequence {
            tokens: (0..length).map(|_| token()).collect(),
            done: 0,
            blocks: vec![],
        };
        let sequences = lengths.iter().map(sequence).collect();
        // Neighbours in a sequence are none in the cache.
        let (even, odd): (Vec<u32>, Vec<u32>) = (0..capacity.blocks as u32).partition(|block| block % 2 == 0);
        Self { model, sequences, free: [even, odd].concat(), off: Vec::new() }
    }

    pub fn block(&mut self) -> u32 {
        self.free.pop().unwrap()
    }

    /// Computes so many further rows of each of these sequences; the logits of those that want some.
    pub fn step(&mut self, shares: &[(usize, usize, bool)]) -> Vec<Vec<f32>> {
        let mut step = Step::default();
        for &(index, rows, logits) in shares {
            let (first, done) = (step.tokens.len(), self.sequences[index].done);
            while self.sequences[index].blocks.len() < (done + rows).div_ceil(BLOCK) {
                let block = self.block();
                self.sequences[index].blocks.push(block);
            }
            let Sequence { tokens, blocks, done } = &mut self.sequences[index];
            for position in *done..*done + rows {
                step.tokens.push(tokens[position]);
                step.positions.push(position as u32);
                step.slots.push(blocks[position / BLOCK] * BLOCK as u32 + (position % BLOCK) as u32);
            }
            *done += rows;
            let (rows, context) = (first..step.tokens.len(), *done);
            step.sequences.push(SequenceStep { rows, context, blocks: blocks.clone(), logits });
        }
        let logits = self.model.step(&step).unwrap();
        let wanted = shares.iter().filter(|share| share.2).count();
        assert_eq!(logits.dims(), [wanted, self.model.capacity().vocabulary]);
        assert_eq!(logits.dtype(), DType::F32);
        logits.to_vec2().unwrap()
    }

    /// [`Self::step`], held against the reference.
    pub fn hold(&mut self, shares: &[(usize, usize, bool)], reference: &mut Reference, tolerance: f32) {
        let logits = self.step(shares);
        let wanted = shares.iter().filter(|share| share.2);
        for (logits, (index, ..)) in logits.iter().zip(wanted) {
            let sequence = &self.sequences[*index];
            let expected = reference(&sequence.tokens[..sequence.done]);
            let what = format!("sequence {index} of {}", sequence.done);
            self.off.push(close(logits, &expected, tolerance, &what));
        }
    }
}

/// The largest difference, as a share of the largest value or of 1.
pub fn close(got: &[f32], expected: &[f32], tolerance: f32, what: &str) -> f32 {
    assert_eq!(got.len(), expected.len(), "{what}");
    let size = expected.iter().fold(1f32, |most, value| most.max(value.abs()));
    let off = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs() / size);
    // A maximum of f32 would pass over what is no number.
    let off = off.fold(0f32, |most, off| if off <= most { most } else { off });
    assert!(off <= tolerance, "{what}: {off} off, {got:?} instead of {expected:?}");
    off
}

/// [`run`] for weights in blocks.
pub fn run_blocks(model: Decoder, reference: &mut Reference) {
    let mut off = run(model, reference, FALLEN);
    off.sort_by(f32::total_cmp);
    assert!(off[off.len() / 2] <= tolerance(1e-4), "{off:?}");
}

/// A prompt in two pieces beside others, one that takes over its first block, and decoding beyond any window.
pub fn run(model: Decoder, reference: &mut Reference, exact: f32) -> Vec<f32> {
    let mut runner = Runner::new(model, &[40, 30, 40]);
    let tolerance = tolerance(exact);
    let first = runner.sequences[0].tokens[..BLOCK].to_vec();
    runner.sequences[2].tokens[..BLOCK].copy_from_slice(&first);
    runner.hold(&[(0, 7, false), (1, 5, true)], reference, tolerance);
    runner.hold(&[(1, 1, true), (0, 14, true)], reference, tolerance);
    let shared = runner.sequences[0].blocks[0];
    runner.sequences[2].blocks.push(shared);
    runner.sequences[2].done = BLOCK;
    runner.hold(&[(0, 1, true), (2, 3, true), (1, 1, true)], reference, tolerance);
    for _ in 0..10 {
        runner.hold(&[(0, 1, true), (1, 1, true), (2, 1, true)], reference, tolerance);
    }
    assert_eq!(runner.step(&[(0, 2, false)]), Vec::<Vec<f32>>::new());
    runner.hold(&[(0, 1, true), (2, 6, true)], reference, tolerance);
    runner.off
}
