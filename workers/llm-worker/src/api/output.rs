//! The parts of one generated answer, and their events in APIs with typed streams.
use std::collections::VecDeque;

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{iter, unfold};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use tokio_stream::{Stream, StreamExt};
use worker_core::{ApiError, Lifecycle, WorkPermit, sse};

use super::answer::{TokenLogProb, Usage};
use super::call_ids;
use super::generation::{ChoicePiece, FinishReason, Generation};
use super::parsers::Delta;

/// Part of an answer.
#[derive(Debug)]
pub enum Output {
    /// Reasoning to append.
    Reasoning(String),
    /// Text to append, with the log probabilities of its tokens if they were requested.
    Text(String, Vec<TokenLogProb>),
    /// Start of a call.
    Call {
        /// Id that the result must refer to.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// JSON to append to the arguments of the last call.
    Arguments(String),
    /// End of the answer.
    End {
        /// Finish reason.
        finish: FinishReason,
        /// Stop string that ended the text, if one did.
        stop: Option<String>,
        /// Token counts.
        usage: Usage,
    },
}

/// The parts of the only text of a generation.
pub struct Outputs {
    generation: Generation,
    pending: VecDeque<Output>,
}

impl Outputs {
    /// Creates the parts of `generation`, which must have one text.
    pub fn new(generation: Generation) -> Self {
        Self { generation, pending: VecDeque::new() }
    }

    /// Returns the next part, or `None` after the end.
    pub async fn next(&mut self) -> Option<Result<Output, ApiError>> {
        loop {
            if let Some(output) = self.pending.pop_front() {
                return Some(Ok(output));
            }
            match self.generation.next().await? {
                Ok(piece) => self.split(piece),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn split(&mut self, piece: ChoicePiece) {
        let ChoicePiece { deltas, mut logprobs, finish, stop, .. } = piece;
        for delta in deltas {
            let output = match delta {
                Delta::Reasoning(text) => Output::Reasoning(text),
                Delta::Content(text) => Output::Text(text, std::mem::take(&mut logprobs)),
                Delta::CallBegin { name, .. } => Output::Call { id: call_ids::unique(), name },
                Delta::Arguments { text, .. } => Output::Arguments(text),
                Delta::CallEnd { .. } => continue,
            };
            self.pending.push_back(output);
        }
        if !logprobs.is_empty() {
            self.pending.push_back(Output::Text(String::new(), logprobs));
        }
        if let Some(finish) = finish {
            self.pending.push_back(Output::End { finish, stop, usage: self.generation.usage() });
        }
    }
}

/// Event of a stream whose events have a type, which is also their SSE name.
#[derive(Debug)]
pub struct TypedEvent {
    kind: &'static str,
    body: Value,
}

impl TypedEvent {
    /// Creates an event; `body` is an object, to which the type is added.
    pub fn new(kind: &'static str, mut body: Value) -> Self {
        body["type"] = json!(kind);
        Self { kind, body }
    }
}

impl Serialize for TypedEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.body.serialize(serializer)
    }
}

/// Converts the parts of an answer to the events and the response of an API.
pub trait AnswerWriter: Send + 'static {
    /// Returns the events at the start of a stream.
    fn start(&mut self) -> Vec<TypedEvent>;

    /// Adds a part and returns its events.
    fn push(&mut self, output: Output) -> Vec<TypedEvent>;

    /// Returns the last events of a failed answer. If there are none, the stream ends with the error itself.
    fn fail(&mut self, error: &ApiError) -> Vec<TypedEvent>;

    /// Returns the complete response.
    fn response(self) -> Value;
}

/// Returns the whole answer as JSON.
///
/// # Errors
/// Returns the error of the generation.
pub async fn whole(mut writer: impl AnswerWriter, mut outputs: Outputs) -> Result<Response, ApiError> {
    while let Some(output) = outputs.next().await {
        writer.push(output?);
    }
    Ok(Json(writer.response()).into_response())
}

/// Streams the answer. `error` is the format of errors that end the stream. The permit is released at its end.
pub fn streamed(
    writer: impl AnswerWriter,
    outputs: Outputs,
    permit: WorkPermit,
    lifecycle: &Lifecycle,
    error: fn(&ApiError) -> Value,
) -> Response {
    let events = events(writer, outputs, permit);
    let name = |event: &TypedEvent| Some(event.kind);
    let options = sse::Options { name: Some(name), error, done: false, ..sse::Options::default() };
    sse::response(events, lifecycle, options)
}

fn events<W: AnswerWriter>(
    mut writer: W,
    outputs: Outputs,
    permit: WorkPermit,
) -> impl Stream<Item = Result<TypedEvent, ApiError>> + Send + 'static {
    let start = writer.start();
    let state = (writer, Some(outputs), permit);
    let parts = unfold(state, |(mut writer, outputs, permit)| async move {
        let mut outputs = outputs?;
        let (events, rest) = match outputs.next().await? {
            Ok(output) => (writer.push(output).into_iter().map(Ok).collect(), Some(outputs)),
            Err(error) => match writer.fail(&error) {
                events if events.is_empty() => (vec![Err(error)], None),
                events => (events.into_iter().map(Ok).collect::<Vec<_>>(), None),
            },
        };
        Some((iter(events), (writer, rest, permit)))
    });
    let parts = futures_util::StreamExt::flatten(parts);
    iter(start.into_iter().map(Ok)).chain(parts)
}
