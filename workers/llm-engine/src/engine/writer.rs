//! What goes along with a request's tokens: its text, its random numbers, its grammar, and who listens.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use model_thread::error_summary;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::mpsc::UnboundedSender;

use crate::request::{Event, Request, Sampling, StopReason, Usage};
use crate::sampling::{Row, Sampled};
use crate::text::{Grammar, Text, TextStream};

use super::sequence::Sequence;
use super::status::{Place, Shared};

/// Turns a request's tokens into events. Whatever becomes of it, its stream gets one [`Event::End`] or
/// [`Event::Error`]: when it is dropped at the latest.
pub(super) struct Writer {
    sampling: Sampling,
    max_tokens: usize,
    ignore_eos: bool,
    logprobs: Option<usize>,
    text: Arc<Text>,
    stream: TextStream,
    grammar: Option<Grammar>,
    /// One number is drawn for each token, in order.
    generator: StdRng,
    events: UnboundedSender<Event>,
    cancelled: Arc<AtomicBool>,
    started: bool,
    usage: Usage,
    /// The last event, sent when the request's blocks are given back.
    ending: Option<Event>,
    place: Option<Place>,
    shared: Arc<Shared>,
}

impl Writer {
    /// The request's prompt and its writer; `max_tokens` is what fits and was asked for.
    pub(super) fn new(
        request: Request,
        max_tokens: usize,
        grammar: Option<Grammar>,
        text: &Arc<Text>,
        place: Place,
        events: UnboundedSender<Event>,
        cancelled: Arc<AtomicBool>,
    ) -> (Vec<u32>, Self) {
        let Request { prompt, sampling, stop, ignore_eos, logprobs, .. } = request;
        let generator = StdRng::seed_from_u64(sampling.seed.unwrap_or_else(rand::random));
        let writer = Self {
            sampling,
            max_tokens,
            ignore_eos,
            logprobs,
            stream: TextStream::new(text.clone(), stop),
            text: text.clone(),
            grammar,
            generator,
            events,
            cancelled,
            started: false,
            usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
            ending: None,
            shared: place.shared().clone(),
            place: Some(place),
        };
        (prompt, writer)
    }

    /// Its first rows are about to be computed, or rows again.
    pub(super) fn start(&mut self) {
        if !self.started {
            self.started = true;
            self.send(Event::Started);
        }
    }

    /// Whether it has nothing more to write, or nobody who reads.
    pub(super) fn is_over(&mut self) -> bool {
        if self.ending.is_none() && (self.cancelled.load(Ordering::Relaxed) || self.events.is_closed()) {
            self.end(StopReason::Cancelled);
        }
        self.ending.is_some()
    }

    /// What the sampler needs for its next token, behind `prompt` and `written`. Each call draws.
    fn row<'a>(&'a mut self, prompt: &'a [u32], written: &'a [u32]) -> Row<'a> {
        let draw = self.generator.random();
        let allowed = match self.grammar.as_mut().map(Grammar::allowed) {
            None => None,
            Some(Ok(allowed)) => Some(allowed),
            Some(Err(error)) => {
                self.ending = Some(fault("grammar", &error));
                None
            }
        };
        Row { sampling: &self.sampling, draw, prompt, written, allowed, logprobs: self.logprobs }
    }

    /// Its next token. Whether the token belongs to the text: one that ends it does not.
    fn write(&mut self, sampled: Sampled, cached: usize) -> bool {
        if self.ending.is_some() {
            return false;
        }
        self.usage.cached_tokens = cached;
        let token = sampled.token;
        if !self.ignore_eos && self.text.ends(token) {
            self.end(StopReason::Stop);
            return false;
        }
        if let Some(Err(error)) = self.grammar.as_mut().map(|grammar| grammar.accept(token)) {
            self.ending = Some(fault("grammar", &error));
            return false;
        }
        // Models have more tokens than their tokenizers, to fill up a size: those add no text.
        let piece = self.stream.push(token).unwrap_or_default();
        self.usage.completion_tokens += 1;
        self.send(Event::Token { token, text: piece.text, logprob: sampled.logprob, top: sampled.top });
        if piece.stopped {
            let usage = self.usage;
            self.ending = Some(Event::End { text: String::new(), reason: StopReason::Stop, usage });
        } else if self.grammar.as_ref().is_some_and(Grammar::finished) {
            self.end(StopReason::Stop);
        } else if self.usage.completion_tokens >= self.max_tokens {
            self.end(StopReason::Length);
        }
        true
    }

    /// Ends with an error.
    pub(super) fn fail(&mut self, code: &'static str, message: String) {
        self.ending = Some(Event::Error { code, message });
    }

    fn end(&mut self, reason: StopReason) {
        self.ending = Some(Event::End { text: self.stream.finish(), reason, usage: self.usage });
    }

    /// Whoever is gone need not be told: the next look at [`Self::is_over`] finds out.
    fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.place.take());
        match (self.ending.take(), self.shared.failed()) {
            (Some(ending), _) => self.send(ending),
            (None, Some(failure)) => {
                self.send(Event::Error { code: failure.code, message: failure.message.clone() });
            }
            (None, None) => {
                self.end(StopReason::Cancelled);
                if let Some(ending) = self.ending.take() {
                    self.send(ending);
                }
            }
        }
    }
}

impl Sequence<Writer> {
    /// What the sampler needs for its next token.
    pub(super) fn row(&mut self) -> Row<'_> {
        let (prompt, written, writer) = self.parts();
        writer.row(prompt, written)
    }

    /// Its next token, or why none could be drawn; gives back how many its text has more.
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

fn fault(code: &'static str, error: &anyhow::Error) -> Event {
    Event::Error { code, message: error_summary(error) }
}
