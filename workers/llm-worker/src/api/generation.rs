//! The texts of one request while they are written: several streams of the engine as one.
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
use super::tool_calls::{Call, CallFinder};
use crate::metrics::Observed;
use crate::served::Served;

/// Events between the engine and a reader of HTTP, for each text. What does not fit waits in the engine's stream.
const AHEAD: usize = 16;

/// Why a text ended, as the API says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model ended it, or a stop string.
    Stop,
    /// As many tokens as may be.
    Length,
    /// It is a call of tools.
    ToolCalls,
}

/// What came to one of the texts.
#[derive(Debug, Default)]
pub struct Piece {
    /// Which text: prompt times choices plus choice.
    pub index: usize,
    /// What it adds.
    pub text: String,
    /// Probabilities of the tokens that came, if asked for.
    pub logprobs: Vec<TokenLogProb>,
    /// The calls that the text turned out to be.
    pub calls: Vec<Call>,
    /// Set in the last piece of a text.
    pub finish: Option<Finish>,
}

struct Choice {
    finder: Option<CallFinder>,
    ended: bool,
}

/// The texts of one request. Dropping it cancels those that are not whole.
pub struct Generation {
    events: mpsc::Receiver<(usize, Event)>,
    choices: Vec<Choice>,
    /// Texts to a prompt: the prompt is counted with the first.
    to_a_prompt: usize,
    usage: Usage,
    _tasks: JoinSet<()>,
}

impl Generation {
    /// Submits all requests, or none; copies of `finder` take tool calls out of the texts. The fields that prompt and
    /// constraint came from are named where the engine refuses them.
    ///
    /// # Errors
    /// Where the engine refuses one of them.
    pub async fn start(
        served: &Arc<Served>,
        requests: impl Iterator<Item = Request> + Send + 'static,
        to_a_prompt: usize,
        finder: Option<CallFinder>,
        [prompt, constraint]: [&'static str; 2],
    ) -> Result<Generation, ApiError> {
        let asked = Instant::now();
        let engine = served.engine.clone();
        // Grammars are made here, which takes its time.
        let streams = blocking(move || {
            let streams: Result<Vec<Stream>, _> = requests.map(|request| engine.submit(request)).collect();
            streams.map_err(|refused| failure::refused(refused, prompt, constraint))
        });
        let streams = streams.await?;
        let (sender, events) = mpsc::channel(AHEAD * streams.len().max(1));
        let choices = streams.iter().map(|_| Choice { finder: finder.clone(), ended: false }).collect();
        let mut tasks = JoinSet::new();
        for (index, stream) in streams.into_iter().enumerate() {
            let observed = served.metrics.observe(asked);
            tasks.spawn(forward(index, stream, sender.clone(), observed));
        }
        Ok(Generation { events, choices, to_a_prompt, usage: Usage::default(), _tasks: tasks })
    }

    /// The next piece of any text; none when all are whole.
    pub async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        while self.choices.iter().any(|choice| !choice.ended) {
            let Some((index, event)) = self.events.recv().await else {
                return Some(Err(failure::error(
                    "engine_ended",
                    "the engine stopped unexpectedly: see the worker's log",
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

    /// Tokens of the texts that are whole.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    fn piece(&mut self, index: usize, event: Event) -> Result<Option<Piece>, ApiError> {
        let Some(choice) = self.choices.get_mut(index) else { return Ok(None) };
        match event {
            Event::Started => Ok(None),
            Event::Token { token, text, logprob, top } => {
                let text = match &mut choice.finder {
                    Some(finder) => finder.push(&text),
                    None => text,
                };
                let own = logprob.map(|logprob| LogProb { token, logprob });
                let logprobs: Vec<_> = own.map(|own| TokenLogProb { own, top }).into_iter().collect();
                let empty = text.is_empty() && logprobs.is_empty();
                Ok((!empty).then(|| Piece { index, text, logprobs, ..Piece::default() }))
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
                if index.is_multiple_of(self.to_a_prompt) {
                    self.usage.prompt_tokens += usage.prompt_tokens;
                    self.usage.prompt_tokens_details.cached_tokens += usage.cached_tokens;
                }
                self.usage.completion_tokens += usage.completion_tokens;
                self.usage.total_tokens = self.usage.prompt_tokens + self.usage.completion_tokens;
                let finish = match reason {
                    StopReason::Cancelled => return Err(failure::ended()),
                    _ if !calls.is_empty() => Finish::ToolCalls,
                    StopReason::Stop => Finish::Stop,
                    StopReason::Length => Finish::Length,
                };
                Ok(Some(Piece { index, text, calls, finish: Some(finish), ..Piece::default() }))
            }
            Event::Error { code, message } => Err(failure::error(code, message)),
        }
    }
}

/// Hands on what a stream of the engine tells, at the reader's pace.
async fn forward(
    index: usize,
    mut stream: Stream,
    sender: mpsc::Sender<(usize, Event)>,
    mut observed: Observed,
) {
    while let Some(event) = stream.next().await {
        observed.event(&event);
        if sender.send((index, event)).await.is_err() {
            return;
        }
    }
}
