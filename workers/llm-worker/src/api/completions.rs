//! `POST /v1/completions`: texts that go on behind prompts.
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use llm_engine::text::Text;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio_stream::{Stream, StreamExt};
use worker_core::{ApiError, Body, Client, Place, sse, unix_seconds};

use super::Api;
use super::answer::{TokenLogProb, Usage, finite, id};
use super::generation::{Finish, Generation, Piece};
use super::options::{Options, TOP_LOGPROBS, view};
use super::request::{Common, Completion};
use super::{fields, prompts, stream, unsupported};
use crate::served::Served;

/// Tokens where none are asked for, as OpenAI has it.
const MAX_TOKENS: usize = 16;

#[derive(Serialize)]
struct Answer {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<Choice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<LogProbs>,
    finish_reason: Option<Finish>,
}

/// Lists of one length, an entry for each token.
#[derive(Clone, Debug, Default, Serialize)]
struct LogProbs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    text_offset: Vec<usize>,
}

/// What an answer is made with.
struct Writer {
    served: Arc<Served>,
    id: String,
    created: u64,
    logprobs: bool,
    stream_usage: bool,
    /// Characters of each text so far.
    offsets: Vec<usize>,
    _place: Place,
}

/// Answers.
pub async fn create(
    State(api): State<Api>,
    client: Client,
    Body(body): Body<Map<String, Value>>,
) -> Result<Response, ApiError> {
    let served = api.served()?;
    let known = [fields::of::<Common>(), fields::of::<Completion>()];
    unsupported::refuse(&body, &known, unsupported::OF_COMPLETIONS)?;
    let (common, own): (Common, Completion) = (view(&body)?, view(&body)?);
    served.check_name(common.model.as_deref())?;
    if own.logprobs.is_some_and(|count| count > TOP_LOGPROBS) {
        return Err(ApiError::field("logprobs", format!("must be 0 to {TOP_LOGPROBS}")));
    }
    let vocabulary = served.engine.capacity().vocabulary;
    let options = Options::new(common, vocabulary, Some(MAX_TOKENS), own.logprobs)?;
    let check = |tokens, param: &str| served.check_prompt(tokens, param);
    let prompts = prompts::tokens(&served, own.prompt, "prompt", check).await?;
    let texts = prompts.len() * options.choices;
    served.check_count(texts, "prompt")?;
    let place = client.begin(texts, if prompts.len() > 1 { "prompt" } else { "n" })?;
    let requests = options.requests(prompts);
    let generation = stream::start(&served, requests, options.choices, None, ["prompt", "response_format"]);
    let generation = generation.await?;
    let writer = Writer {
        served,
        id: id("cmpl-"),
        created: unix_seconds(),
        logprobs: own.logprobs.is_some(),
        stream_usage: options.stream_usage,
        offsets: vec![0; texts],
        _place: place,
    };
    match options.stream {
        true => Ok(sse::response(writer.chunks(generation), &api.lifecycle, sse::Options::default())),
        false => Ok(Json(writer.whole(generation, texts).await?).into_response()),
    }
}

impl Writer {
    async fn whole(mut self, mut generation: Generation, texts: usize) -> Result<Answer, ApiError> {
        let mut choices: Vec<Choice> =
            (0..texts).map(|index| Choice { index, ..Choice::default() }).collect();
        while let Some(piece) = generation.next().await {
            let piece = self.choice(piece?);
            let Some(choice) = choices.get_mut(piece.index) else { continue };
            choice.text.push_str(&piece.text);
            choice.finish_reason = piece.finish_reason.or(choice.finish_reason);
            if let Some(more) = piece.logprobs {
                choice.logprobs.get_or_insert_default().extend(more);
            }
        }
        Ok(self.answer(choices, Some(Some(generation.usage()))))
    }

    fn chunks(
        mut self,
        generation: Generation,
    ) -> impl Stream<Item = Result<Answer, ApiError>> + Send + 'static {
        let usage_in_chunks = self.stream_usage.then_some(None);
        stream::pieces(generation).filter_map(move |piece| match piece {
            Ok(stream::Told::Piece(piece)) => {
                let choice = self.choice(piece);
                Some(Ok(self.answer(vec![choice], usage_in_chunks)))
            }
            Ok(stream::Told::Usage(usage)) => {
                self.stream_usage.then(|| Ok(self.answer(Vec::new(), Some(Some(usage)))))
            }
            Err(error) => Some(Err(error)),
        })
    }

    fn choice(&mut self, piece: Piece) -> Choice {
        let logprobs = self.logprobs.then(|| self.logprobs(piece.index, &piece.logprobs));
        Choice { index: piece.index, text: piece.text, logprobs, finish_reason: piece.finish }
    }

    fn logprobs(&mut self, index: usize, tokens: &[TokenLogProb]) -> LogProbs {
        let text = self.served.engine.text();
        let mut told = LogProbs::default();
        for token in tokens {
            if let Some(offset) = self.offsets.get_mut(index) {
                told.text_offset.push(*offset);
                *offset += text.token_text(token.own.token).chars().count();
            }
            told.tokens.push(name(text, token.own.token));
            told.token_logprobs.push(finite(token.own.logprob));
            let top = token.top.iter().map(|top| (name(text, top.token), finite(top.logprob)));
            told.top_logprobs.push(top.collect());
        }
        told
    }

    fn answer(&self, choices: Vec<Choice>, usage: Option<Option<Usage>>) -> Answer {
        Answer {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.served.name.clone(),
            choices,
            usage,
        }
    }
}

/// A token as a key among others: parts of characters would all look alike, so they are told as bytes.
fn name(text: &Text, token: u32) -> String {
    let bytes = text.token_bytes(token).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(_) => text.token_text(token),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| name + &format!("\\x{byte:02x}")),
    }
}

impl LogProbs {
    fn extend(&mut self, more: LogProbs) {
        self.tokens.extend(more.tokens);
        self.token_logprobs.extend(more.token_logprobs);
        self.top_logprobs.extend(more.top_logprobs);
        self.text_offset.extend(more.text_offset);
    }
}
