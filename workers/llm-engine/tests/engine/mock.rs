//! A mock model whose next token depends on all cells of a sequence in its cache.
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use candle_core::{Device, Error, Result, Tensor, bail};
use llm_engine::engine::{Engine, Options, Stream};
use llm_engine::request::{Event, LogProb, Request, Sampling, StopReason, TokenLogProb, Usage};
use llm_engine::step::{Capacity, Step, StepModel};
use llm_engine::text::TextCodec;
use tokenizers::Tokenizer;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;

use super::cache::{Cache, digest_of, mix};

pub const VOCABULARY: usize = 64;
/// The end-of-text token.
pub const END: u32 = 0;

pub fn logits(digest: u64) -> Vec<f32> {
    (0..VOCABULARY as u64).map(|token| (mix(digest, token) >> 40) as f32 / (1 << 22) as f32).collect()
}

/// Returns the logits after `token` of a model whose texts mostly repeat the tokens 1 to `period`.
pub fn repeating_logits(digest: u64, token: u32, period: u32) -> Vec<f32> {
    let mut logits = logits(digest);
    logits[(token % period + 1) as usize] += 3.5;
    logits
}

/// Computes the greedy continuation of `prompt` without the engine: the tokens without the end-of-text token,
/// and the stop reason.
pub fn greedy(prompt: &[u32], max_tokens: usize, ignore_eos: bool) -> (Vec<u32>, StopReason) {
    let mut tokens = prompt.to_vec();
    while tokens.len() < prompt.len() + max_tokens {
        let logits = logits(digest_of(&tokens));
        let next = (0..VOCABULARY).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32;
        if next == END && !ignore_eos {
            return (tokens.split_off(prompt.len()), StopReason::Stop);
        }
        tokens.push(next);
    }
    (tokens.split_off(prompt.len()), StopReason::Length)
}

/// Failure that a mock simulates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// All further steps fail, and so does the device.
    DeviceLost,
    /// All further steps fail, but the device works.
    EveryStep,
    /// One step runs out of memory.
    OutOfMemory,
    Panic,
}

/// Calls that the mock received.
#[derive(Default)]
pub struct MockCalls {
    pub most_rows: AtomicUsize,
    pub most_logits: AtomicUsize,
    pub copies: AtomicUsize,
    /// Numbers of sequences and rows of each step.
    pub steps: Mutex<Vec<(usize, usize)>>,
}

pub struct Mock {
    /// Device of the logits.
    device: Device,
    cache: Cache,
    capacity: Capacity,
    fault: Option<(usize, Fault)>,
    /// After this token the logits are NaN.
    broken: Option<u32>,
    /// If set, texts mostly repeat so many tokens.
    period: Option<u32>,
    /// Changes all logits.
    noise: u64,
    draft: Option<Box<Mock>>,
    /// If set, each step waits for a message, until the sender is dropped.
    permits: Option<Receiver<()>>,
    /// Recurrent states: hashes of the tokens.
    states: Vec<u64>,
    pub calls: Arc<MockCalls>,
}

impl Mock {
    pub fn new(blocks: usize, context: usize) -> Self {
        let capacity = Capacity { vocabulary: VOCABULARY, context, blocks, states: None };
        Self {
            device: Device::Cpu,
            cache: Cache::new(blocks),
            capacity,
            fault: None,
            broken: None,
            period: None,
            noise: 0,
            draft: None,
            permits: None,
            states: Vec::new(),
            calls: Arc::default(),
        }
    }

    /// Returns logits on this device.
    #[cfg(feature = "rocm-emulator")]
    pub fn on(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Has slots of recurrent states, on which the logits depend.
    pub fn with_states(mut self, slots: usize) -> Self {
        self.capacity.states = Some(slots);
        self.states = (0..slots as u64).collect();
        self
    }

    /// Fails in step number `step`, counted from 0.
    pub fn failing(mut self, step: usize, fault: Fault) -> Self {
        self.fault = Some((step, fault));
        self
    }

    /// Returns NaN logits after `token`.
    pub fn broken_by(mut self, token: u32) -> Self {
        self.broken = Some(token);
        self
    }

    /// Mostly repeats the tokens 1 to `period`.
    pub fn repeating(mut self, period: u32) -> Self {
        self.period = Some(period);
        self
    }

    /// Has other logits than a mock without noise, except that texts repeat the same tokens.
    pub fn with_noise(mut self, noise: u64) -> Self {
        self.noise = noise;
        self
    }

    /// Has this draft model.
    pub fn drafted_by(mut self, draft: Mock) -> Self {
        self.draft = Some(Box::new(draft));
        self
    }

    /// Makes each step wait for a permit, until the sender is dropped.
    pub fn gated(mut self) -> (Self, Sender<()>) {
        let (sender, receiver) = channel();
        self.permits = Some(receiver);
        (self, sender)
    }
}

impl StepModel for Mock {
    fn draft_model(&mut self) -> Option<&mut dyn StepModel> {
        self.draft.as_deref_mut().map(|draft| draft as &mut dyn StepModel)
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn step(&mut self, step: &Step) -> Result<Tensor> {
        if let Some(permits) = &self.permits {
            let _ = permits.recv();
        }
        let mut steps = self.calls.steps.lock().unwrap();
        steps.push((step.sequences.len(), step.tokens.len()));
        match self.fault {
            Some((at, Fault::DeviceLost | Fault::EveryStep)) if at < steps.len() => {
                bail!("the mock device was lost")
            }
            Some((at, Fault::OutOfMemory)) if at + 1 == steps.len() => {
                return Err(Error::Io(ErrorKind::OutOfMemory.into()));
            }
            Some((at, Fault::Panic)) if at < steps.len() => {
                drop(steps);
                panic!("the mock panicked")
            }
            _ => {}
        }
        self.calls.most_rows.fetch_max(step.tokens.len(), Ordering::Relaxed);
        self.cache.step(step);
        let states = match self.capacity.states {
            Some(_) => Cache::step_states(&mut self.states, step),
            None => Vec::new(),
        };
        let mut rows: Vec<Vec<f32>> = Vec::new();
        for (place, sequence) in step.sequences.iter().enumerate() {
            // Zero, if the state is that of the tokens.
            let state = states.get(place);
            let state =
                state.map_or(0, |state| state ^ self.cache.at(&sequence.blocks, sequence.context - 1));
            for row in sequence.rows.end - sequence.logits..sequence.rows.end {
                let context = sequence.context - (sequence.rows.end - 1 - row);
                let digest = self.cache.digest_at(&sequence.blocks, context) ^ self.noise ^ state;
                rows.push(match (step.tokens[row], self.period) {
                    (token, _) if Some(token) == self.broken => vec![f32::NAN; VOCABULARY],
                    (token, Some(period)) => repeating_logits(digest, token, period),
                    _ => logits(digest),
                });
            }
        }
        self.calls.most_logits.fetch_max(rows.len(), Ordering::Relaxed);
        Tensor::from_vec(rows.concat(), (rows.len(), VOCABULARY), &self.device)
    }

    fn check(&mut self) -> Result<()> {
        match self.fault {
            Some((_, Fault::DeviceLost)) => bail!("the mock device does not respond"),
            _ => Ok(()),
        }
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.calls.copies.fetch_add(pairs.len(), Ordering::Relaxed);
        self.cache.copy(pairs);
        Ok(())
    }

    fn copy_states(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        Cache::copy_states(&mut self.states, pairs);
        Ok(())
    }

    fn embed(&mut self, prompts: &[Vec<u32>]) -> Result<Tensor> {
        let rows: Vec<f32> =
            prompts.iter().flat_map(|prompt| [prompt[0] as f32, prompt.len() as f32]).collect();
        Tensor::from_vec(rows, (prompts.len(), 2), &Device::Cpu)
    }
}

/// Returns a tokenizer in which token n is the word `wn`.
pub fn text() -> Arc<TextCodec> {
    let words = (0..VOCABULARY as u32).map(|token| (format!("w{token}"), token)).collect();
    let model = WordLevel::builder().vocab(words).unk_token("w1".into()).build().unwrap();
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(WhitespaceSplit));
    Arc::new(TextCodec::new(tokenizer, vec![END], None).unwrap())
}

pub fn start(model: Mock, options: Options) -> Engine {
    Engine::start(Box::new(model), text(), options).unwrap()
}

/// Creates a greedy request.
pub fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        prompt,
        max_tokens: Some(max_tokens),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        ..Request::default()
    }
}

/// Output of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamOutput {
    pub tokens: Vec<u32>,
    pub text: String,
    pub top: Vec<Vec<LogProb>>,
    pub prompt: Vec<TokenLogProb>,
    pub end: std::result::Result<(StopReason, Usage), (&'static str, String)>,
}

impl StreamOutput {
    pub fn reason(&self) -> StopReason {
        self.end.as_ref().unwrap().0
    }

    pub fn usage(&self) -> Usage {
        self.end.as_ref().unwrap().1
    }
}

/// Reads a stream to its end, and checks the order of events.
pub fn read(mut stream: Stream) -> StreamOutput {
    let (mut tokens, mut text, mut top, mut started) = (Vec::new(), String::new(), Vec::new(), false);
    let mut prompt = Vec::new();
    loop {
        let end = match stream.blocking_next().expect("a stream must end with `End` or `Error`") {
            Event::Started => {
                assert!(!started && tokens.is_empty());
                started = true;
                continue;
            }
            Event::Prompt { tokens: scored } => {
                assert!(started && tokens.is_empty());
                prompt.extend(scored);
                continue;
            }
            Event::Token { token, text: piece, top: likeliest, .. } => {
                assert!(started);
                tokens.push(token);
                text.push_str(&piece);
                top.push(likeliest);
                continue;
            }
            Event::End { text: piece, reason, usage, .. } => {
                text.push_str(&piece);
                assert_eq!(usage.completion_tokens, tokens.len());
                Ok((reason, usage))
            }
            Event::Error { code, message } => Err((code, message)),
        };
        assert_eq!(stream.blocking_next(), None);
        return StreamOutput { tokens, text, top, prompt, end };
    }
}

/// Returns the text of tokens that follow others.
pub fn words(tokens: &[u32]) -> String {
    tokens.iter().map(|token| format!(" w{token}")).collect()
}
