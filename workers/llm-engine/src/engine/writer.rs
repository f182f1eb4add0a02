//! A request's text, random numbers, grammar and events.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use model_thread::error_summary;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::request::{Event, Request, Sampling, StopReason, Usage};
use crate::sampling::{Row, Sampled};
use crate::text::{Grammar, TextCodec, TextStream};

use super::events::EventSink;
use super::sequence::Sequence;
use super::status::{QueueSlot, Shared};

/// Turns a request's tokens into events. Its stream always receives exactly one [`Event::End`] or
/// [`Event::Error`], at the latest when the writer is dropped.
pub(super) struct Writer {
    sampling: Sampling,
    /// Sampling parameters of the first `min_tokens` tokens, which exclude those that end the text.
    early_sampling: Sampling,
    min_tokens: usize,
    max_tokens: usize,
    stop_tokens: Vec<u32>,
    ignore_eos: bool,
    logprobs: Option<usize>,
    text: Arc<TextCodec>,
    stream: TextStream,
    grammar: Option<Grammar>,
    /// Random generator; each token consumes one number.
    random: StdRng,
    events: EventSink,
    cancelled: Arc<AtomicBool>,
    started: bool,
    usage: Usage,
    /// Final event, sent after the request's blocks are released.
    ending: Option<Event>,
    slot: Option<QueueSlot>,
    shared: Arc<Shared>,
}

impl Writer {
    /// Splits a request into its prompt and its writer. `max_tokens` is the requested limit, or what fits, of a model
    /// with `vocabulary` tokens.
    pub(super) fn new(
        request: Request,
        (max_tokens, vocabulary): (usize, usize),
        grammar: Option<Grammar>,
        text: &Arc<TextCodec>,
        slot: QueueSlot,
        events: EventSink,
        cancelled: Arc<AtomicBool>,
    ) -> (Vec<u32>, Self) {
        let Request { prompt, sampling, stop, stop_token_ids, min_tokens, .. } = request;
        let Request { ignore_eos, shown_tokens, logprobs, .. } = request;
        let ends = if ignore_eos { &[] } else { text.ends() };
        let ends = ends.iter().filter(|end| (**end as usize) < vocabulary).chain(&stop_token_ids);
        let mut early_sampling = sampling.clone();
        early_sampling.logit_bias.extend(ends.map(|end| (*end, f32::NEG_INFINITY)));
        let random = StdRng::seed_from_u64(sampling.seed.unwrap_or_else(rand::random));
        let writer = Self {
            sampling,
            early_sampling,
            min_tokens,
            max_tokens,
            stop_tokens: stop_token_ids,
            ignore_eos,
            logprobs,
            stream: TextStream::new(text.clone(), stop).searching_from(min_tokens).showing(shown_tokens),
            text: text.clone(),
            grammar,
            random,
            events,
            cancelled,
            started: false,
            usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
            ending: None,
            shared: slot.shared().clone(),
            slot: Some(slot),
        };
        (prompt, writer)
    }

    /// Announces the start of the computation, once.
    pub(super) fn start(&mut self) {
        if !self.started {
            self.started = true;
            self.send(Event::Started);
        }
    }

    /// Returns true if generation has ended or the client is gone.
    pub(super) fn is_finished(&mut self) -> bool {
        if self.ending.is_none() && (self.cancelled.load(Ordering::Relaxed) || self.events.is_closed()) {
            self.end(StopReason::Cancelled);
        }
        self.ending.is_some()
    }

    /// Computes the mask of the next token, if the text has a grammar.
    pub(super) fn prepare_mask(&mut self) {
        self.grammar.iter_mut().for_each(Grammar::prepare);
    }

    /// Returns true if the text has a grammar.
    pub(super) fn has_grammar(&self) -> bool {
        self.grammar.is_some()
    }

    /// Returns the sampler's input for the next token. Each call consumes a random number.
    fn row<'a>(&'a mut self, prompt: &'a [u32], written: &'a [u32]) -> Row<'a> {
        let draw = self.random.random();
        let allowed = match self.grammar.as_mut().map(Grammar::allowed) {
            None => None,
            Some(Ok(allowed)) => Some(allowed),
            Some(Err(error)) => {
                self.ending = Some(error_event("grammar", &error));
                None
            }
        };
        let is_early = self.usage.completion_tokens < self.min_tokens;
        let sampling = if is_early { &self.early_sampling } else { &self.sampling };
        Row { sampling, draw, prompt, written, allowed, logprobs: self.logprobs }
    }

    /// Handles the next token. Returns true if the token is part of the text; an end-of-text token is not.
    fn write(&mut self, sampled: Sampled, cached: usize) -> bool {
        if self.ending.is_some() {
            return false;
        }
        self.usage.cached_tokens = cached;
        let token = sampled.token;
        if (!self.ignore_eos && self.text.is_end(token)) || self.stop_tokens.contains(&token) {
            self.end(StopReason::Stop);
            return false;
        }
        if let Some(Err(error)) = self.grammar.as_mut().map(|grammar| grammar.accept(token)) {
            self.ending = Some(error_event("grammar", &error));
            return false;
        }
        // Ids beyond the tokenizer's vocabulary, which pad the model's, add no text.
        let piece = self.stream.push(token).unwrap_or_default();
        self.usage.completion_tokens += 1;
        self.send(Event::Token { token, text: piece.text, logprob: sampled.logprob, top: sampled.top });
        if self.ending.is_some() {
            return true;
        }
        if piece.stopped {
            let (usage, stop) = (self.usage, self.stream.found_stop().map(str::to_owned));
            self.ending = Some(Event::End { text: String::new(), reason: StopReason::Stop, stop, usage });
        } else if self.grammar.as_ref().is_some_and(Grammar::finished) {
            self.end(StopReason::Stop);
        } else if self.usage.completion_tokens >= self.max_tokens {
            self.end(StopReason::Length);
        }
        true
    }

    /// Ends generation with an error.
    pub(super) fn fail(&mut self, code: &'static str, message: String) {
        self.ending = Some(Event::Error { code, message });
    }

    fn end(&mut self, reason: StopReason) {
        self.ending = Some(Event::End { text: self.stream.finish(), reason, stop: None, usage: self.usage });
    }

    /// Sends an event. The receiver may be gone, which the next [`Self::is_finished`] notices.
    fn send(&mut self, event: Event) {
        if let Err(too_slow) = self.events.send(event) {
            self.ending = Some(too_slow);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.slot.take());
        match (self.ending.take(), self.shared.failed()) {
            (Some(ending), _) => self.events.finish(ending),
            (None, Some(failure)) => {
                let ending = Event::Error { code: failure.code, message: failure.message.clone() };
                self.events.finish(ending);
            }
            (None, None) => {
                self.end(StopReason::Cancelled);
                if let Some(ending) = self.ending.take() {
                    self.events.finish(ending);
                }
            }
        }
    }
}

impl Sequence<Writer> {
    /// Returns the sampler's input for the next token.
    pub(super) fn row(&mut self) -> Row<'_> {
        let (prompt, written, writer) = self.parts();
        writer.row(prompt, written)
    }

    /// Handles the next token or the sampling error. Returns the number of tokens that were added.
    pub(super) fn write(&mut self, sampled: Result<Sampled, String>) -> usize {
        let sampled = match sampled {
            Ok(sampled) => sampled,
            Err(message) => {
                self.writer.fail("sampling", message);
                return 0;
            }
        };
        let (token, cached) = (sampled.token, self.cached());
        let written = self.writer.write(sampled, cached);
        if written {
            self.push(token);
        }
        usize::from(written)
    }
}

fn error_event(code: &'static str, error: &anyhow::Error) -> Event {
    Event::Error { code, message: error_summary(error) }
}
