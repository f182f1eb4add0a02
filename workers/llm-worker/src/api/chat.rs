//! `POST /v1/chat/completions`: the model's answer in a conversation.
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream::iter;
use serde::Serialize;

use tokio_stream::StreamExt;
use worker_core::body::{check, required};
use worker_core::{ApiError, Body, Client, sse};

use super::answer::{ChatLogProb, TokenLogProb};
use super::envelope::{Answer, Envelope};
use super::extensions::ExtensionFields;
use super::generation::{ChoicePiece, FinishReason, Generation};
use super::options::{Options, top_logprobs};
use super::pictures::PictureParts;
use super::prompt_logprobs::PromptLogProbs;
use super::request::{ChatFields, CommonFields, SamplerFields};
use super::template_input::{Ending, TemplateInput};
use super::template_variables::variables;
use super::tool_calls::ToolCall;
use super::{messages, tokenizing};
use crate::models::Api;
use crate::served::ServedModel;

/// Body of `POST /v1/chat/completions`.
pub type ChatBody = (ChatFields, CommonFields, SamplerFields, ExtensionFields);

#[derive(Serialize)]
struct Choice {
    index: usize,
    message: AnswerMessage,
    logprobs: Option<LogProbs>,
    finish_reason: Option<FinishReason>,
}

#[derive(Serialize)]
struct AnswerMessage {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    content: Option<String>,
    refusal: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Serialize)]
struct Chunk {
    index: usize,
    delta: Delta,
    logprobs: Option<LogProbs>,
    finish_reason: Option<FinishReason>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Default, Serialize)]
struct LogProbs {
    content: Vec<ChatLogProb>,
}

/// Converts generated pieces to choices and chunks.
struct Writer {
    served: Arc<ServedModel>,
    logprobs: bool,
    prompt_logprobs: Option<usize>,
}

/// Handles `POST /v1/chat/completions`.
pub async fn create(
    State(api): State<Api>,
    client: Client,
    Body((own, mut common, sampler, extensions)): Body<ChatBody>,
) -> Result<Response, ApiError> {
    let served = api.served()?.model(common.model.as_deref()).await?;
    let model = served.requested(common.model.as_deref())?;
    let logprobs = logprobs(&own, extensions.n_probs)?;
    extensions.rename(&mut common)?;
    let ending = Ending::of(&own)?;
    let truncation = extensions.truncate_prompt_tokens;
    let vocabulary = served.engine.capacity().vocabulary;
    let options = Options::new(common, sampler, (vocabulary, &served.sampling), None, logprobs)?;
    let mut options = options.for_model(model);
    extensions.apply(&mut options)?;
    served.check_count(options.choices, "n")?;
    let tools = messages::tools(own.tools.unwrap_or_default(), own.tool_choice)?;
    let mut constrained = options.constraint_field;
    if let Some(schema) = tools.schema {
        constrained = "tools";
        options.constrain(schema, "tool_choice")?;
    }
    let mut pictures = PictureParts::of(&served);
    let conversation = messages::for_template(required(own.messages, "messages")?, &mut pictures)?;
    let pictures = pictures.into_sources();
    if truncation.is_some() && !pictures.is_empty() {
        return Err(ApiError::field("truncate_prompt_tokens", "cannot be combined with pictures"));
    }
    let variables = variables(own.chat_template_kwargs, own.reasoning_effort, own.documents)?;
    let tools_for_template = tools.for_template;
    let input = TemplateInput { conversation, pictures, tools: tools_for_template, variables, ending };
    let limit = tokenizing::limit(&served, truncation.is_some());
    let mut prompt = input.prompt(&served, limit, "messages").await?;
    if let Some(most) = truncation.map(|truncation| truncation.tokens(served.context())) {
        prompt.tokens.drain(..prompt.tokens.len().saturating_sub(most));
    }
    served.check_prompt(prompt.tokens.len(), options.request.max_tokens, "messages")?;
    let place = client.acquire(options.choices, "n")?;
    let single = own.parallel_tool_calls == Some(false);
    let parser = options.parser(&served, tools.callable, single, &prompt);
    let prompt_tokens = prompt.tokens.len() * options.choices;
    options.request.pictures = prompt.pictures;
    let requests = options.requests(vec![prompt.tokens], &client);
    let generation =
        Generation::start(&served, requests, options.choices, parser, ["messages", constrained]).await?;
    let served = served.queued();
    let generation = generation.measuring(options.timings, prompt_tokens);
    let prompt_logprobs = options.request.prompt_logprobs;
    let writer = Writer { served, logprobs: logprobs.is_some(), prompt_logprobs };
    let envelope = |object| Envelope::new("chatcmpl-", object, &options, place);
    if !options.stream {
        return Ok(Json(writer.whole(envelope("chat.completion"), options.choices, generation).await?)
            .into_response());
    }
    let envelope = envelope("chat.completion.chunk");
    let beginnings: Vec<_> = (0..options.choices)
        .map(|index| {
            let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
            Ok(envelope.chunk(Chunk { index, delta, logprobs: None, finish_reason: None }))
        })
        .collect();
    let chunks = envelope.chunks(generation, move |piece| writer.chunk(piece));
    Ok(sse::response(iter(beginnings).chain(chunks), &api.lifecycle, sse::Options::default()))
}

/// Returns the number of alternatives to report, if log probabilities are requested.
fn logprobs(own: &ChatFields, n_probs: Option<usize>) -> Result<Option<usize>, ApiError> {
    check(&[top_logprobs("n_probs", n_probs.unwrap_or(0))])?;
    let wanted = n_probs.filter(|count| *count > 0);
    let top = own.top_logprobs.or(wanted).unwrap_or(0);
    check(&[top_logprobs("top_logprobs", top)])?;
    match own.logprobs.unwrap_or(wanted.is_some()) {
        true => Ok(Some(top)),
        false if top > 0 => Err(ApiError::field("top_logprobs", "requires `logprobs: true`")),
        false => Ok(None),
    }
}

impl Writer {
    async fn whole(
        &self,
        envelope: Envelope,
        choices: usize,
        mut generation: Generation,
    ) -> Result<Answer<Choice>, ApiError> {
        let message = || AnswerMessage {
            role: "assistant",
            reasoning_content: None,
            content: None,
            refusal: None,
            tool_calls: Vec::new(),
        };
        let choice =
            |index| Choice { index, message: message(), logprobs: self.logprobs(&[]), finish_reason: None };
        let mut choices: Vec<Choice> = (0..choices).map(choice).collect();
        let mut prompt = self.prompt_logprobs.map(|_| PromptLogProbs::default());
        while let Some(piece) = generation.next().await {
            let piece = piece?;
            let Some(choice) = choices.get_mut(piece.index) else { continue };
            // All texts have the same prompt.
            if let (0, Some(prompt), Some(count)) = (piece.index, &mut prompt, self.prompt_logprobs) {
                prompt.extend(self.served.engine.text(), &piece.prompt, count);
            }
            let message = &mut choice.message;
            ToolCall::extend(&mut message.tool_calls, &piece.deltas);
            let (reasoning, content) = (piece.reasoning(), piece.content());
            if !reasoning.is_empty() {
                message.reasoning_content.get_or_insert_default().push_str(&reasoning);
            }
            // A response of only tool calls has no content; any other has, even if it is empty.
            if !content.is_empty() || (piece.finish.is_some() && message.tool_calls.is_empty()) {
                message.content.get_or_insert_default().push_str(&content);
            }
            if let (Some(logprobs), Some(more)) = (&mut choice.logprobs, self.logprobs(&piece.logprobs)) {
                logprobs.content.extend(more.content);
            }
            choice.finish_reason = piece.finish.or(choice.finish_reason);
        }
        let answer = envelope.whole(choices, generation.usage());
        Ok(answer.with_timings(generation.timings()).with_prompt_logprobs(prompt))
    }

    fn chunk(&self, piece: ChoicePiece) -> Chunk {
        let filled = |text: String| Some(text).filter(|text| !text.is_empty());
        let (reasoning_content, content) = (filled(piece.reasoning()), filled(piece.content()));
        let tool_calls = ToolCall::parts(&piece.deltas);
        let delta = Delta { role: None, reasoning_content, content, tool_calls };
        let logprobs = self.logprobs(&piece.logprobs).filter(|logprobs| !logprobs.content.is_empty());
        Chunk { index: piece.index, delta, logprobs, finish_reason: piece.finish }
    }

    fn logprobs(&self, tokens: &[TokenLogProb]) -> Option<LogProbs> {
        let text = self.served.engine.text();
        let content = || tokens.iter().map(|token| ChatLogProb::new(text, token)).collect();
        self.logprobs.then(|| LogProbs { content: content() })
    }
}
