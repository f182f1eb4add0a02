//! Concurrent streams of one request, merged into one.
use std::sync::Arc;
use std::time::Instant;

use llm_engine::engine::Stream;
use llm_engine::request::{Event, LogProb, Request, StopReason};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use worker_core::{ApiError, blocking};

use super::answer::{CompletionDetails, PromptDetails, TokenLogProb, Usage};
use super::failure;
use super::parsers::{Delta, Parser};
use super::timings::{Stopwatch, Timings};
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
    /// Content, reasoning and calls to append, in the order of generation.
    pub deltas: Vec<Delta>,
    /// Log probabilities of the next prompt tokens, if requested.
    pub prompt: Vec<TokenLogProb>,
    /// Log probabilities of the new tokens, if requested.
    pub logprobs: Vec<TokenLogProb>,
    /// Finish reason, set in the last piece of a text.
    pub finish: Option<FinishReason>,
    /// Stop string that ended the text, if one did.
    pub stop: Option<String>,
}

impl ChoicePiece {
    /// Returns the content to append.
    pub fn content(&self) -> String {
        let text = |delta: &Delta| match delta {
            Delta::Content(text) => Some(text.clone()),
            _ => None,
        };
        self.deltas.iter().filter_map(text).collect()
    }

    /// Returns the reasoning to append.
    pub fn reasoning(&self) -> String {
        let text = |delta: &Delta| match delta {
            Delta::Reasoning(text) => Some(text.clone()),
            _ => None,
        };
        self.deltas.iter().filter_map(text).collect()
    }
}

struct Choice {
    /// Parser of the text; `None` if all of it is content.
    parser: Option<Parser>,
    has_calls: bool,
    ended: bool,
}

impl Choice {
    /// Returns the deltas of new text.
    fn push(&mut self, text: String) -> Vec<Delta> {
        let deltas = match &mut self.parser {
            Some(parser) => parser.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![Delta::Content(text)],
        };
        self.has_calls |= deltas.iter().any(|delta| matches!(delta, Delta::CallBegin { .. }));
        deltas
    }

    /// Returns the deltas of the last text.
    fn finish(&mut self, text: String) -> Vec<Delta> {
        let mut deltas = self.push(text);
        if let Some(parser) = &mut self.parser {
            let last = parser.finish();
            self.has_calls |= last.iter().any(|delta| matches!(delta, Delta::CallBegin { .. }));
            deltas.extend(last);
        }
        deltas
    }

    fn finish_reason(&self, reason: StopReason) -> FinishReason {
        let is_truncated = self.parser.as_ref().is_some_and(Parser::is_truncated);
        match reason {
            StopReason::Length if is_truncated || !self.has_calls => FinishReason::Length,
            _ if self.has_calls => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        }
    }
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
    /// Submits all requests or none. Copies of `parser` find reasoning and tool calls in the texts. The last
    /// argument names the fields of prompt and constraint for errors.
    ///
    /// # Errors
    /// Returns an error if the engine rejects any request.
    pub async fn start(
        served: &Arc<ServedModel>,
        requests: impl Iterator<Item = Request> + Send + 'static,
        choices_per_prompt: usize,
        parser: Option<Parser>,
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
        let choice = || Choice { parser: parser.clone(), has_calls: false, ended: false };
        let choices = streams.iter().map(|_| choice()).collect();
        let mut tasks = JoinSet::new();
        for (index, stream) in streams.into_iter().enumerate() {
            let latency = served.metrics.observe(requested);
            tasks.spawn(forward(index, stream, sender.clone(), latency));
        }
        let prompt_tokens_details = served.prompt_tokens_details.then(PromptDetails::default);
        let completion_tokens_details = (served.engine.max_drafts() > 0).then(CompletionDetails::default);
        let usage = Usage { prompt_tokens_details, completion_tokens_details, ..Usage::default() };
        Ok(Generation { events, choices, choices_per_prompt, usage, stopwatch: None, _tasks: tasks })
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
                let deltas = choice.push(text);
                let one = logprob.map(|logprob| LogProb { token, logprob });
                let logprobs: Vec<_> = one.map(|actual| TokenLogProb { actual, top }).into_iter().collect();
                let empty = deltas.is_empty() && logprobs.is_empty();
                Ok((!empty).then_some(ChoicePiece { index, deltas, logprobs, ..ChoicePiece::default() }))
            }
            Event::End { text, reason, stop, usage } => {
                let deltas = choice.finish(text);
                choice.ended = true;
                self.stopwatch.iter_mut().for_each(|stopwatch| stopwatch.end(usage));
                let finish = Some(choice.finish_reason(reason));
                if index.is_multiple_of(self.choices_per_prompt) {
                    self.usage.prompt_tokens += usage.prompt_tokens;
                    if let Some(details) = &mut self.usage.prompt_tokens_details {
                        details.cached_tokens += usage.cached_tokens;
                    }
                }
                if let Some(details) = &mut self.usage.completion_tokens_details {
                    details.accepted_prediction_tokens += usage.accepted_tokens;
                    details.rejected_prediction_tokens += usage.drafted_tokens - usage.accepted_tokens;
                }
                self.usage.completion_tokens += usage.completion_tokens;
                self.usage.total_tokens = self.usage.prompt_tokens + self.usage.completion_tokens;
                if reason == StopReason::Cancelled {
                    return Err(failure::worker_stopped());
                }
                Ok(Some(ChoicePiece { index, deltas, finish, stop, ..ChoicePiece::default() }))
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
