//! One token after the other.
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};

use crate::families::Model;
use crate::sampling::Sampler;
use crate::text::{StopStrings, TextStream};
use crate::vocabulary::Vocabulary;

/// What to generate.
pub struct Request<'a> {
    /// Not empty, and below `context`.
    pub prompt: &'a [u32],
    pub tokens: usize,
    pub stops: &'a [String],
    /// Positions of prompt and text together.
    pub context: usize,
}

/// Why no more text came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As many tokens as were asked for.
    Enough,
    /// A token that ends a text.
    Complete,
    StopString,
    ContextFull,
    Interrupted,
}

impl End {
    pub fn reason(self) -> &'static str {
        match self {
            Self::Enough => "as many tokens as asked for",
            Self::Complete => "the text is complete",
            Self::StopString => "a text to stop at",
            Self::ContextFull => "the model's context is full",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What was generated.
pub struct Generated {
    /// Without one that ends the text.
    pub tokens: Vec<u32>,
    /// For each of them, and the one that ends the text, how clear a choice it was.
    pub leads: Vec<f32>,
    pub end: End,
    /// From the prompt to its logits on the host.
    pub prompt_time: Duration,
    /// For all tokens but the first, which the prompt gives.
    pub token_time: Duration,
    /// Runs of the model after the prompt's.
    pub steps: usize,
}

/// Continues a prompt, and gives its text to `on_text` as it comes.
pub fn generate(
    model: &mut Model,
    vocabulary: &Vocabulary,
    sampler: &mut Sampler,
    device: &Device,
    request: &Request,
    interrupted: &AtomicBool,
    on_text: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Generated> {
    let mut stream = TextStream::after(&vocabulary.tokenizer, request.prompt);
    let mut stops = StopStrings::new(request.stops);
    let mut give = |text: &str| if text.is_empty() { Ok(()) } else { on_text(text) };
    let mut all = request.prompt.to_vec();
    let mut leads = Vec::new();
    let (mut position, mut steps) = (0, 0);
    let mut started = Instant::now();
    let mut prompt_time = Duration::ZERO;
    let end = loop {
        let input = Tensor::new(&all[position..], device)?.unsqueeze(0)?;
        let logits = model(&input, position).with_context(|| format!("the model at position {position}"))?;
        position = all.len();
        let choice = sampler.choose(&logits, &all)?;
        match leads.is_empty() {
            true => {
                prompt_time = started.elapsed();
                started = Instant::now();
            }
            false => steps += 1,
        }
        leads.push(choice.lead);
        if vocabulary.ends.contains(&choice.token) {
            break End::Complete;
        }
        ensure!(
            vocabulary.tokenizer.id_to_token(choice.token).is_some(),
            "the tokenizer is not the model's: it does not know the token {}",
            choice.token
        );
        all.push(choice.token);
        let (text, stop) = stops.push(&stream.push(choice.token)?);
        give(&text)?;
        if stop {
            break End::StopString;
        }
        if leads.len() == request.tokens {
            break End::Enough;
        }
        if all.len() == request.context {
            break End::ContextFull;
        }
        if interrupted.load(Ordering::Relaxed) {
            break End::Interrupted;
        }
    };
    let token_time = started.elapsed();
    if end != End::StopString {
        let (text, stop) = stops.push(&stream.finish()?);
        give(&text)?;
        if !stop {
            give(&stops.finish())?;
        }
    }
    let tokens = all.split_off(request.prompt.len());
    Ok(Generated { tokens, leads, end, prompt_time, token_time, steps })
}
