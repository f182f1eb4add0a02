//! `POST /v1/completions`: continuation of prompts.
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use llm_engine::text::TextCodec;
use serde::Serialize;
use worker_core::body::{check, required};
use worker_core::{ApiError, Body, Client, sse};

use super::answer::{TokenLogProb, finite};
use super::envelope::{Answer, Envelope};
use super::generation::{ChoicePiece, FinishReason, Generation};
use super::options::{Options, top_logprobs};
use super::prompts;
use super::request::CompletionBody;
use crate::served::{Api, ServedModel};

/// Default of `max_tokens`, as in OpenAI's API.
const MAX_TOKENS: usize = 16;

#[derive(Clone, Debug, Default, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<LogProbs>,
    finish_reason: Option<FinishReason>,
}

/// Lists of equal length, with one entry per token.
#[derive(Clone, Debug, Default, Serialize)]
struct LogProbs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    text_offset: Vec<usize>,
}

/// Converts generated pieces to choices.
struct Writer {
    served: Arc<ServedModel>,
    logprobs: bool,
    /// Number of characters of each text so far.
    offsets: Vec<usize>,
}

/// Handles `POST /v1/completions`.
pub async fn create(
    State(api): State<Api>,
    client: Client,
    Body((own, common, sampler)): Body<CompletionBody>,
) -> Result<Response, ApiError> {
    let served = api.served()?;
    served.name.check(common.model.as_deref())?;
    check(&[top_logprobs("logprobs", own.logprobs.unwrap_or(0))])?;
    let vocabulary = served.engine.capacity().vocabulary;
    let options =
        Options::new(common, sampler, (vocabulary, &served.sampling), Some(MAX_TOKENS), own.logprobs)?;
    let fits = |tokens, param: &str| served.check_prompt(tokens, param);
    let prompts = prompts::tokens(&served, required(own.prompt, "prompt")?, "prompt", fits).await?;
    let texts = prompts.len() * options.choices;
    served.check_count(texts, "prompt")?;
    let place = client.acquire(texts, if prompts.len() > 1 { "prompt" } else { "n" })?;
    let requests = options.requests(prompts, &client);
    let generation =
        Generation::start(&served, requests, options.choices, None, ["prompt", "response_format"]).await?;
    let mut writer =
        Writer { served: served.clone(), logprobs: own.logprobs.is_some(), offsets: vec![0; texts] };
    let envelope = Envelope::new(served, "cmpl-", "text_completion", &options, place);
    if options.stream {
        let chunks = envelope.chunks(generation, move |piece| writer.choice(piece));
        return Ok(sse::response(chunks, &api.lifecycle, sse::Options::default()));
    }
    Ok(Json(writer.whole(envelope, generation).await?).into_response())
}

impl Writer {
    async fn whole(
        mut self,
        envelope: Envelope,
        mut generation: Generation,
    ) -> Result<Answer<Choice>, ApiError> {
        let mut choices: Vec<Choice> =
            (0..self.offsets.len()).map(|index| Choice { index, ..Choice::default() }).collect();
        while let Some(piece) = generation.next().await {
            let piece = self.choice(piece?);
            let Some(choice) = choices.get_mut(piece.index) else { continue };
            choice.text.push_str(&piece.text);
            choice.finish_reason = piece.finish_reason.or(choice.finish_reason);
            if let Some(more) = piece.logprobs {
                choice.logprobs.get_or_insert_default().extend(more);
            }
        }
        Ok(envelope.whole(choices, generation.usage()))
    }

    fn choice(&mut self, piece: ChoicePiece) -> Choice {
        let logprobs = self.logprobs.then(|| self.logprobs(piece.index, &piece.logprobs));
        Choice { index: piece.index, text: piece.content(), logprobs, finish_reason: piece.finish }
    }

    fn logprobs(&mut self, index: usize, tokens: &[TokenLogProb]) -> LogProbs {
        let text = self.served.engine.text();
        let mut logprobs = LogProbs::default();
        for token in tokens {
            if let Some(offset) = self.offsets.get_mut(index) {
                logprobs.text_offset.push(*offset);
                *offset += text.token_text(token.own.token).chars().count();
            }
            logprobs.tokens.push(name(text, token.own.token));
            logprobs.token_logprobs.push(finite(token.own.logprob));
            let top = token.top.iter().map(|top| (name(text, top.token), finite(top.logprob)));
            logprobs.top_logprobs.push(top.collect());
        }
        logprobs
    }
}

/// Returns a unique name for a token. Partial characters, which look alike as text, become bytes.
fn name(text: &TextCodec, token: u32) -> String {
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
