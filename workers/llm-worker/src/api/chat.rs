//! `POST /v1/chat/completions`: the next turn of a conversation.
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream::iter;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio_stream::{Stream, StreamExt};
use worker_core::{ApiError, Body, Client, Place, sse, unix_seconds};

use super::answer::{ChatLogProb, Usage, id};
use super::generation::{Finish, Generation, Piece};
use super::options::{Options, TOP_LOGPROBS, view};
use super::request::{Chat, Common};
use super::tool_calls::{Call, CallFinder, ToldCall, ToldFunction};
use super::{Api, call_ids, fields, messages, prompts, stream, unsupported};
use crate::served::Served;

#[derive(Serialize)]
struct Answer<C> {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    message: Said,
    logprobs: Option<LogProbs>,
    finish_reason: Option<Finish>,
}

#[derive(Serialize)]
struct Said {
    role: &'static str,
    content: Option<String>,
    refusal: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToldCall>,
}

#[derive(Serialize)]
struct Chunk {
    index: usize,
    delta: Delta,
    logprobs: Option<LogProbs>,
    finish_reason: Option<Finish>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToldCall>,
}

#[derive(Default, Serialize)]
struct LogProbs {
    content: Vec<ChatLogProb>,
}

/// What an answer is made with.
struct Writer {
    served: Arc<Served>,
    id: String,
    created: u64,
    logprobs: bool,
    stream_usage: bool,
    choices: usize,
    _place: Place,
}

/// Answers.
pub async fn create(
    State(api): State<Api>,
    client: Client,
    Body(body): Body<Map<String, Value>>,
) -> Result<Response, ApiError> {
    let served = api.served()?;
    unsupported::refuse(&body, &[fields::of::<Common>(), fields::of::<Chat>()], unsupported::OF_CHAT)?;
    let (common, own): (Common, Chat) = (view(&body)?, view(&body)?);
    served.check_name(common.model.as_deref())?;
    let logprobs = logprobs(&own)?;
    let vocabulary = served.engine.capacity().vocabulary;
    let mut options = Options::new(common, vocabulary, None, logprobs)?;
    served.check_count(options.choices, "n")?;
    let tools = messages::tools(own.tools.unwrap_or_default(), own.tool_choice)?;
    let mut constrained = "response_format";
    if let Some(schema) = tools.schema {
        constrained = "tools";
        options.constrain(schema, "tool_choice")?;
    }
    let conversation = messages::for_template(own.messages)?;
    // The template gets the tools as they came, with what their descriptions say.
    let told = (!tools.names.is_empty()).then(|| body.get("tools").cloned()).flatten();
    let prompt = prompt(&served, conversation, told).await?;
    served.check_prompt(prompt.len(), "messages")?;
    let place = client.begin(options.choices, "n")?;
    let single = own.parallel_tool_calls == Some(false);
    let finder = (!tools.names.is_empty()).then(|| CallFinder::new(tools.names, single));
    let requests = options.requests(vec![prompt]);
    let generation = stream::start(&served, requests, options.choices, finder, ["messages", constrained]);
    let generation = generation.await?;
    let writer = Writer {
        served,
        id: id("chatcmpl-"),
        created: unix_seconds(),
        logprobs: logprobs.is_some(),
        stream_usage: options.stream_usage,
        choices: options.choices,
        _place: place,
    };
    match options.stream {
        true => Ok(sse::response(writer.chunks(generation), &api.lifecycle, sse::Options::default())),
        false => Ok(Json(writer.whole(generation).await?).into_response()),
    }
}

/// How many alternatives to tell, if any probability is asked for.
fn logprobs(own: &Chat) -> Result<Option<usize>, ApiError> {
    match (own.logprobs.unwrap_or(false), own.top_logprobs) {
        (_, Some(top)) if top > TOP_LOGPROBS => {
            Err(ApiError::field("top_logprobs", format!("must be 0 to {TOP_LOGPROBS}")))
        }
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, Some(1..)) => Err(ApiError::field("top_logprobs", "needs `logprobs: true`")),
        (false, _) => Ok(None),
    }
}

async fn prompt(
    served: &Arc<Served>,
    conversation: Value,
    tools: Option<Value>,
) -> Result<Vec<u32>, ApiError> {
    if !served.engine.text().has_template() {
        let message = format!("{} has no chat template: use /v1/completions", served.name);
        return Err(ApiError::invalid(message).with_code("no_chat_template").with_param("messages"));
    }
    let served = served.clone();
    prompts::blocking(move || {
        let text = served.engine.text();
        let write = |conversation: &Value| text.chat(conversation, tools.as_ref());
        let written = write(&conversation).or_else(|refused| match call_ids::rewritten(&conversation) {
            Some(conversation) => write(&conversation).map_err(|_| refused),
            None => Err(refused),
        });
        // The template writes the tokens around the text itself.
        let tokens = written.and_then(|written| text.encode(&written, false));
        tokens.map_err(|error| prompts::refused("messages", &error))
    })
    .await
}

impl Writer {
    async fn whole(self, mut generation: Generation) -> Result<Answer<Choice>, ApiError> {
        let said = || Said { role: "assistant", content: None, refusal: None, tool_calls: Vec::new() };
        let choice =
            |index| Choice { index, message: said(), logprobs: self.logprobs(&[]), finish_reason: None };
        let mut choices: Vec<Choice> = (0..self.choices).map(choice).collect();
        while let Some(piece) = generation.next().await {
            let piece = piece?;
            let Some(choice) = choices.get_mut(piece.index) else { continue };
            // An answer of calls alone has no content; any other has, be it empty.
            if !piece.text.is_empty() || (piece.finish.is_some() && piece.calls.is_empty()) {
                choice.message.content.get_or_insert_default().push_str(&piece.text);
            }
            if let (Some(told), Some(more)) = (&mut choice.logprobs, self.logprobs(&piece.logprobs)) {
                told.content.extend(more.content);
            }
            choice.message.tool_calls.extend(piece.calls.into_iter().map(|call| told(call, None)));
            choice.finish_reason = piece.finish.or(choice.finish_reason);
        }
        Ok(self.answer("chat.completion", choices, Some(Some(generation.usage()))))
    }

    fn chunks(
        self,
        generation: Generation,
    ) -> impl Stream<Item = Result<Answer<Chunk>, ApiError>> + Send + 'static {
        let beginnings: Vec<_> = (0..self.choices)
            .map(|index| {
                let delta =
                    Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
                Ok(self.chunk(vec![Chunk { index, delta, logprobs: None, finish_reason: None }]))
            })
            .collect();
        let pieces = stream::pieces(generation).filter_map(move |piece| match piece {
            Ok(stream::Told::Piece(piece)) => Some(Ok(self.chunk(vec![self.delta(piece)]))),
            Ok(stream::Told::Usage(usage)) => self
                .stream_usage
                .then(|| Ok(self.answer("chat.completion.chunk", Vec::new(), Some(Some(usage))))),
            Err(error) => Some(Err(error)),
        });
        iter(beginnings).chain(pieces)
    }

    fn delta(&self, piece: Piece) -> Chunk {
        let tool_calls =
            piece.calls.into_iter().enumerate().map(|(index, call)| told(call, Some(index))).collect();
        let content = (!piece.text.is_empty()).then_some(piece.text);
        let delta = Delta { role: None, content, tool_calls };
        let logprobs = self.logprobs(&piece.logprobs).filter(|told| !told.content.is_empty());
        Chunk { index: piece.index, delta, logprobs, finish_reason: piece.finish }
    }

    fn logprobs(&self, tokens: &[super::answer::TokenLogProb]) -> Option<LogProbs> {
        let text = self.served.engine.text();
        let content = || tokens.iter().map(|token| ChatLogProb::new(text, token)).collect();
        self.logprobs.then(|| LogProbs { content: content() })
    }

    fn chunk(&self, choices: Vec<Chunk>) -> Answer<Chunk> {
        self.answer("chat.completion.chunk", choices, self.stream_usage.then_some(None))
    }

    fn answer<C>(&self, object: &'static str, choices: Vec<C>, usage: Option<Option<Usage>>) -> Answer<C> {
        Answer {
            id: self.id.clone(),
            object,
            created: self.created,
            model: self.served.name.clone(),
            choices,
            usage,
        }
    }
}

fn told(call: Call, index: Option<usize>) -> ToldCall {
    let function = ToldFunction { name: call.name, arguments: call.arguments };
    ToldCall { index, id: call_ids::unique(), kind: "function", function }
}
