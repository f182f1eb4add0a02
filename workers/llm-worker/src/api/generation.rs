//! Concurrent streams of one request, merged into one.
use std::sync::Arc;
use std::time::Instant;

use llm_engine::engine::Stream;
use llm_engine::request::{Event, LogProb, Request, StopReason};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use worker_core::{ApiError, blocking};

use super::answer::{TokenLogProb, Usage};
use super::failure;
use super::timings::{Stopwatch, Timings};
use super::tool_calls::{Call, CallFinder};
use crate::metrics::TextLatency;
use crate::served::ServedModel;

/// Number of events per text that are buffered between the engine and the HTTP stream.
const BUFFERED_EVENTS: usize = 16;

/// Finish reason in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-text token or a stop string.
    Stop,
    /// The maximum number of tokens was reached.
    Length,
    /// The text consists of tool calls.
    ToolCalls,
}

/// Progress of one of the texts.
#[derive(Debug, Default)]
pub struct ChoicePiece {
    /// Index of the text: prompt × choices per prompt + choice.
    pub index: usize,
    /// Text to append.
    pub text: String,
    /// Log probabilities of the next prompt tokens, if requested.
    pub prompt: Vec<TokenLogProb>,
    /// Log probabilities of the new tokens, if requested.
    pub logprobs: Vec<TokenLogProb>,
    /// Tool calls found in the text.
    pub calls: Vec<Call>,
    /// Finish reason, set in the last piece of a text.
    pub finish: Option<FinishReason>,
}

struct Choice {
    finder: Option<CallFinder>,
    ended: bool,
}

/// The streams of one request. Dropping it cancels the unfinished ones.
pub struct Generation {
    events: mpsc::Receiver<(usize, Event)>,
    choices: Vec<Choice>,
    /// Number of texts per prompt. Only the first counts the prompt's tokens.
    choices_per_prompt: usize,
    usage: Usage,
    stopwatch: Option<Stopwatch>,
    _tasks: JoinSet<()>,
}

impl Generation {
    /// Submits all requests or none. Copies of `finder` extract tool calls from the texts. The last argument
    /// names the fields of prompt and constraint for errors.
    ///
    /// # Errors
    /// Returns an error if the engine rejects any request.
    pub async fn start(
        served: &Arc<ServedModel>,
        requests: impl Iterator<Item = Request> + Send + 'static,
        choices_per_prompt: usize,
        finder: Option<CallFinder>,
        [prompt, constraint]: [&'static str; 2],
    ) -> Result<Generation, ApiError> {
        let requested = Instant::now();
        let engine = served.engine.clone();
        // Submitting compiles grammars, which may take long.
        let streams = blocking(move || {
            let streams: Result<Vec<Stream>, _> = requests.map(|request| engine.submit(request)).collect();
            streams.map_err(|error| failure::request_error(error, prompt, constraint))
        });
        let streams = streams.await?;
        let (sender, events) = mpsc::channel(BUFFERED_EVENTS * streams.len().max(1));
        let choices = streams.iter().map(|_| Choice { finder: finder.clone(), ended: false }).collect();
        let mut tasks = JoinSet::new();
        for (index, stream) in streams.into_iter().enumerate() {
            let latency = served.metrics.observe(requested);
            tasks.spawn(forward(index, stream, sender.clone(), latency));
        }
        Ok(Generation {
            events,
            choices,
            choices_per_prompt,
            usage: Usage::default(),
            stopwatch: None,
            _tasks: tasks,
        })
    }

    /// Measures times if `enabled`, for prompts of `prompt_tokens` tokens in all.
    pub fn measuring(mut self, enabled: bool, prompt_tokens: usize) -> Self {
        self.stopwatch = enabled.then(|| Stopwatch::new(prompt_tokens));
        self
    }

    /// Returns the times until now, if they are measured.
    pub fn timings(&self) -> Option<Timings> {
        self.stopwatch.as_ref().map(Stopwatch::timings)
    }

    /// Returns the next piece of any text, or `None` when all have ended.
    pub async fn next(&mut self) -> Option<Result<ChoicePiece, ApiError>> {
        while self.choices.iter().any(|choice| !choice.ended) {
            let Some((index, event)) = self.events.recv().await else {
                return Some(Err(failure::engine_error(
                    "engine_ended",
                    "the engine stopped unexpectedly; see the worker's log",
                )));
            };
            match self.piece(index, event) {
                Ok(None) => {}
                Ok(Some(piece)) => return Some(Ok(piece)),
                Err(error) => {
                    self.events.close();
                    self.choices.clear();
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// Returns the token counts of the finished texts.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    fn piece(&mut self, index: usize, event: Event) -> Result<Option<ChoicePiece>, ApiError> {
        let Some(choice) = self.choices.get_mut(index) else { return Ok(None) };
        match event {
            Event::Started => {
                self.stopwatch.iter_mut().for_each(Stopwatch::start);
                Ok(None)
            }
            Event::Prompt { tokens } => {
                Ok(Some(ChoicePiece { index, prompt: tokens, ..ChoicePiece::default() }))
            }
            Event::Token { token, text, logprob, top } => {
                self.stopwatch.iter_mut().for_each(Stopwatch::token);
                let text = match &mut choice.finder {
                    Some(finder) => finder.push(&text),
                    None => text,
                };
                let own = logprob.map(|logprob| LogProb { token, logprob });
                let logprobs: Vec<_> = own.map(|own| TokenLogProb { own, top }).into_iter().collect();
                let empty = text.is_empty() && logprobs.is_empty();
                Ok((!empty).then(|| ChoicePiece { index, text, logprobs, ..ChoicePiece::default() }))
            }
            Event::End { text, reason, usage } => {
                let (text, calls) = match &mut choice.finder {
                    Some(finder) => {
                        let content = finder.push(&text);
                        let (rest, calls) = finder.finish();
                        (content + &rest, calls)
                    }
                    None => (text, Vec::new()),
                };
                choice.ended = true;
                self.stopwatch.iter_mut().for_each(|stopwatch| stopwatch.end(usage));
                if index.is_multiple_of(self.choices_per_prompt) {
                    self.usage.prompt_tokens += usage.prompt_tokens;
                    self.usage.prompt_tokens_details.cached_tokens += usage.cached_tokens;
                }
                self.usage.completion_tokens += usage.completion_tokens;
                self.usage.total_tokens = self.usage.prompt_tokens + self.usage.completion_tokens;
                let finish = match reason {
                    StopReason::Cancelled => return Err(failure::worker_stopped()),
                    _ if !calls.is_empty() => FinishReason::ToolCalls,
                    StopReason::Stop => FinishReason::Stop,
                    StopReason::Length => FinishReason::Length,
                };
                Ok(Some(ChoicePiece { index, text, calls, finish: Some(finish), ..ChoicePiece::default() }))
            }
            Event::Error { code, message } => Err(failure::engine_error(code, message)),
        }
    }
}

/// Forwards the events of a stream at the reader's pace.
async fn forward(
    index: usize,
    mut stream: Stream,
    sender: mpsc::Sender<(usize, Event)>,
    mut latency: TextLatency,
) {
    while let Some(event) = stream.next().await {
        latency.event(&event);
        if sender.send((index, event)).await.is_err() {
            return;
        }
    }
}
