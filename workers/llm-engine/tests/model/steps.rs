//! Steps like an engine's: chunked prompts, decoding, several sequences, shared blocks.
#[cfg(feature = "rocm-emulator")]
#[path = "../common/gpu.rs"]
mod gpu;

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device};
use llm_engine::model::adapter::Adapter;
use llm_engine::model::decoder::Decoder;
use llm_engine::model::{LoadOptions, load_decoder};
use llm_engine::step::{BLOCK_SIZE, SequenceStep, Step, StepModel};

/// Computes the logits after the given tokens.
pub type Reference<'a> = dyn FnMut(&[u32]) -> Vec<f32> + 'a;

/// Returns the device and dtype of the tests.
pub fn device() -> (Device, DType) {
    #[cfg(feature = "rocm-emulator")]
    {
        (gpu::rocm(), DType::F16)
    }
    #[cfg(not(feature = "rocm-emulator"))]
    (Device::Cpu, DType::F32)
}

/// Returns the tolerance of logits, which is larger for f16.
pub fn tolerance(exact: f32) -> f32 {
    match device().1 {
        DType::F32 => exact,
        _ => exact.max(3e-2),
    }
}

/// Tolerance of single rows with quantized weights: rounding activations to blocks may put a value on the
/// other side of a rounding boundary. At least half of the rows must meet the normal
/// tolerance, or [`QUANTIZED_MEDIAN`] on GPUs, whose activations have 8 bits while those of the reference are exact.
const QUANTIZED_TOLERANCE: f32 = 0.1;
const QUANTIZED_MEDIAN: f32 = 4e-2;

pub fn load(path: &Path) -> Decoder {
    load_with(path, LoadOptions { dtype: Some(device().1), ..LoadOptions::default() })
}

/// Loads a model with a small cache.
pub fn load_with(path: &Path, options: LoadOptions) -> Decoder {
    let options = LoadOptions { cache_bytes: Some(1 << 20), ..options };
    load_decoder(path, &device().0, options, &mut |_| ()).unwrap()
}

/// Loads a model in f32 on the CPU.
pub fn load_on_cpu(path: &Path) -> Decoder {
    load_on_cpu_with(path, LoadOptions::default())
}

/// Like [`load_on_cpu`], with options.
pub fn load_on_cpu_with(path: &Path, options: LoadOptions) -> Decoder {
    let options = LoadOptions { dtype: Some(DType::F32), cache_bytes: Some(1 << 20), ..options };
    load_decoder(path, &Device::Cpu, options, &mut |_| ()).unwrap()
}

/// Returns a function that computes the logits of a model on the CPU in f32, without a cache from earlier calls.
pub fn reference_on_cpu(path: &Path) -> impl FnMut(&[u32]) -> Vec<f32> + use<> {
    reference_of(load_on_cpu(path))
}

/// Returns a function that computes the logits of a decoder, without a cache from earlier calls.
pub fn reference_of(decoder: Decoder) -> impl FnMut(&[u32]) -> Vec<f32> {
    let mut runner = Runner::new(decoder, &[40]);
    move |tokens| {
        let blocks = runner.sequences[0].blocks.clone();
        runner.sequences[0] = Sequence { tokens: tokens.to_vec(), done: 0, blocks, adapter: None };
        runner.step(&[(0, tokens.len(), true)]).remove(0)
    }
}

/// Returns a deterministic generator of numbers between -1 and 1 that are exact in f16.
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
    pub adapter: Option<Arc<Adapter>>,
}

pub struct Runner<M = Decoder> {
    pub model: M,
    pub sequences: Vec<Sequence>,
    free: Vec<u32>,
    /// Differences from the reference so far.
    pub errors: Vec<f32>,
}

impl<M: StepModel> Runner<M> {
    /// Creates sequences of random tokens with these lengths.
    pub fn new(model: M, lengths: &[usize]) -> Self {
        let capacity = model.capacity();
        let mut next = random(5);
        let mut token = || ((next() + 1.0) * 1e6) as u32 % capacity.vocabulary as u32;
        let sequence = |&length: &usize| Sequence {
            tokens: (0..length).map(|_| token()).collect(),
            done: 0,
            blocks: vec![],
            adapter: None,
        };
        let sequences = lengths.iter().map(sequence).collect();
        // Consecutive blocks of a sequence are not adjacent in the cache.
        let (even, odd): (Vec<u32>, Vec<u32>) = (0..capacity.blocks as u32).partition(|block| block % 2 == 0);
        Self { model, sequences, free: [even, odd].concat(), errors: Vec::new() }
    }

    pub fn block(&mut self) -> u32 {
        self.free.pop().unwrap()
    }

    /// Computes one step with (sequence, rows, logits) shares, the last of which are numbers of rows, or true for one.
    /// Returns the requested logits.
    pub fn step<L: Into<usize> + Copy>(&mut self, shares: &[(usize, usize, L)]) -> Vec<Vec<f32>> {
        let mut step = Step::default();
        for &(index, rows, logits) in shares {
            let (first, done) = (step.tokens.len(), self.sequences[index].done);
            while self.sequences[index].blocks.len() < (done + rows).div_ceil(BLOCK_SIZE) {
                let block = self.block();
                self.sequences[index].blocks.push(block);
            }
            let Sequence { tokens, blocks, done, adapter } = &mut self.sequences[index];
            for position in *done..*done + rows {
                step.tokens.push(tokens[position]);
                step.positions.push(position as u32);
                step.slots
                    .push(blocks[position / BLOCK_SIZE] * BLOCK_SIZE as u32 + (position % BLOCK_SIZE) as u32);
            }
            *done += rows;
            let (rows, context) = (first..step.tokens.len(), *done);
            // Each sequence has the slot of its index.
            step.states.extend(self.model.capacity().states.map(|_| index as u32));
            step.sequences.push(SequenceStep {
                rows,
                context,
                blocks: blocks.clone(),
                logits: logits.into(),
                adapter: adapter.clone(),
            });
        }
        let logits = self.model.step(&step).unwrap();
        let wanted: usize = shares.iter().map(|share| share.2.into()).sum();
        assert_eq!(logits.dims(), [wanted, self.model.capacity().vocabulary]);
        assert_eq!(logits.dtype(), DType::F32);
        logits.to_vec2().unwrap()
    }

    /// Runs [`Self::step`] and compares the logits with the reference.
    pub fn check_step(&mut self, shares: &[(usize, usize, bool)], reference: &mut Reference, tolerance: f32) {
        let logits = self.step(shares);
        let wanted = shares.iter().filter(|share| share.2);
        for (logits, (index, ..)) in logits.iter().zip(wanted) {
            let sequence = &self.sequences[*index];
            let expected = reference(&sequence.tokens[..sequence.done]);
            let what = format!("sequence {index} of {}", sequence.done);
            self.errors.push(close(logits, &expected, tolerance, &what));
        }
    }
}

/// Returns the largest difference, relative to the largest value or 1.
pub fn close(got: &[f32], expected: &[f32], tolerance: f32, what: &str) -> f32 {
    assert_eq!(got.len(), expected.len(), "{what}");
    let size = expected.iter().fold(1f32, |most, value| most.max(value.abs()));
    let off = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs() / size);
    // `f32::max` would ignore NaN.
    let off = off.fold(0f32, |most, off| if off <= most { most } else { off });
    assert!(off <= tolerance, "{what}: {off} off, {got:?} instead of {expected:?}");
    off
}

/// Like [`run`], for quantized weights.
pub fn run_blocks(model: Decoder, reference: &mut Reference) {
    let mut off = run(model, reference, QUANTIZED_TOLERANCE);
    off.sort_by(f32::total_cmp);
    println!("median {}, worst {}", off[off.len() / 2], off[off.len() - 1]);
    let limit = match device().1 {
        DType::F32 => 1e-4,
        _ => QUANTIZED_MEDIAN,
    };
    assert!(off[off.len() / 2] <= limit, "{off:?}");
}

/// Numbers of tokens of the texts of [`run_texts`].
pub const LENGTHS: [usize; 3] = [40, 30, 40];

/// Runs a prompt in two chunks beside others, a sequence that shares a block, and decoding beyond any window.
pub fn run(model: Decoder, reference: &mut Reference, exact: f32) -> Vec<f32> {
    run_texts(Runner::new(model, &LENGTHS), reference, exact)
}

/// Like [`run`], with the texts of a runner.
pub fn run_texts(mut runner: Runner, reference: &mut Reference, exact: f32) -> Vec<f32> {
    let tolerance = tolerance(exact);
    let first = runner.sequences[0].tokens[..BLOCK_SIZE].to_vec();
    runner.sequences[2].tokens[..BLOCK_SIZE].copy_from_slice(&first);
    runner.check_step(&[(0, 7, false), (1, 5, true)], reference, tolerance);
    let mut rows = 14;
    if runner.model.capacity().states.is_some() {
        // The state at the end of the shared block.
        runner.step(&[(0, 9, false)]);
        runner.model.copy_states(&[(0, 2)]).unwrap();
        rows -= 9;
    }
    runner.check_step(&[(1, 1, true), (0, rows, true)], reference, tolerance);
    let shared = runner.sequences[0].blocks[0];
    runner.sequences[2].blocks.push(shared);
    runner.sequences[2].done = BLOCK_SIZE;
    runner.check_step(&[(0, 1, true), (2, 3, true), (1, 1, true)], reference, tolerance);
    for _ in 0..10 {
        runner.check_step(&[(0, 1, true), (1, 1, true), (2, 1, true)], reference, tolerance);
    }
    assert_eq!(runner.step(&[(0, 2, false)]), Vec::<Vec<f32>>::new());
    runner.check_step(&[(0, 1, true), (2, 6, true)], reference, tolerance);
    // A preempted sequence is computed again in other blocks.
    let rows = runner.sequences[1].done;
    (runner.sequences[1].done, runner.sequences[1].blocks) = (0, Vec::new());
    runner.check_step(&[(0, 1, true), (1, rows, true)], reference, tolerance);
    runner.check_step(&[(1, 1, true), (2, 1, true)], reference, tolerance);
    runner.errors
}

/// Like [`run_texts`], for a model of [`load_on_cpu`].
pub fn run_on_cpu(runner: Runner, reference: &mut Reference) {
    let worst = run_texts(runner, reference, 1e-4).into_iter().fold(0f32, f32::max);
    println!("on the CPU: worst {worst}");
    assert!(worst <= 1e-4, "{worst}");
}
