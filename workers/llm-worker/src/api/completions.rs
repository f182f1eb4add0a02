//! `POST /v1/completions`: continuation of prompts.
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use llm_engine::request::LogProb;
use llm_engine::text::TextCodec;
use serde::Serialize;
use worker_core::body::{Limit, check, required};
use worker_core::{ApiError, Body, Client, sse};

use super::answer::{TokenLogProb, finite};
use super::echo::{Echo, width};
use super::envelope::{Answer, Envelope};
use super::extensions::ExtensionFields;
use super::generation::{ChoicePiece, FinishReason, Generation};
use super::options::{Options, top_logprobs};
use super::prompt_logprobs::PromptLogProbs;
use super::request::{CommonFields, CompletionFields, SamplerFields};
use super::{prompts, tokenizing};
use crate::models::Api;
use crate::served::ServedModel;

/// Default of `max_tokens`, as in OpenAI's API.
const MAX_TOKENS: usize = 16;

/// Body of `POST /v1/completions`.
type CompletionBody = (CompletionFields, CommonFields, SamplerFields, ExtensionFields);

#[derive(Clone, Debug, Default, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<LogProbs>,
    finish_reason: Option<FinishReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogProbs>,
}

/// Lists of equal length, with one entry per token. The first token of a prompt has no log probability.
#[derive(Clone, Debug, Default, Serialize)]
struct LogProbs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    text_offset: Vec<usize>,
}

/// Progress of one text.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Number of characters of the tokens so far.
    characters: usize,
    /// True once the text has begun, with the prompt if that is wanted.
    has_begun: bool,
    /// Sum of the generated tokens' log probabilities, and their number.
    score: (f64, usize),
}

/// Converts generated pieces to choices.
struct Writer {
    served: Arc<ServedModel>,
    logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    special_tokens: bool,
    /// The prompts, if texts begin with them.
    echo: Option<Vec<Echo>>,
    /// Number of texts generated per prompt, and of those returned.
    choices: [usize; 2],
    texts: Vec<Progress>,
}

/// Handles `POST /v1/completions`.
pub async fn create(
    State(api): State<Api>,
    client: Client,
    Body((own, mut common, sampler, extensions)): Body<CompletionBody>,
) -> Result<Response, ApiError> {
    let served = api.served()?.model(common.model.as_deref()).await?;
    let model = served.requested(common.model.as_deref())?;
    let n_probs = extensions.n_probs.filter(|count| *count > 0);
    let logprobs = own.logprobs.or(n_probs);
    let name = if own.logprobs.is_some() { "logprobs" } else { "n_probs" };
    check(&[top_logprobs(name, logprobs.unwrap_or(0))])?;
    extensions.rename(&mut common)?;
    let truncation = extensions.truncate_prompt_tokens;
    let vocabulary = served.engine.capacity().vocabulary;
    let options = Options::new(common, sampler, (vocabulary, &served.sampling), Some(MAX_TOKENS), logprobs)?;
    let mut options = options.for_model(model);
    extensions.apply(&mut options)?;
    let returned = options.choices;
    set_best_of(&mut options, own.best_of)?;
    let is_echoed = own.echo.unwrap_or(false);
    let prompt_logprobs = options.request.prompt_logprobs;
    if is_echoed {
        options.request.prompt_logprobs = prompt_logprobs.max(logprobs);
    }
    let most = truncation.map_or(usize::MAX, |truncation| truncation.tokens(served.context()));
    let max_tokens = options.request.max_tokens;
    let fits = |tokens: usize, param: &str| served.check_prompt(tokens.min(most), max_tokens, param);
    let prompts = required(own.prompt, "prompt")?;
    let written = if is_echoed { prompts.texts() } else { Vec::new() };
    let limit = tokenizing::limit(&served, truncation.is_some());
    let mut prompts = prompts::tokens(&served, prompts, limit, "prompt", fits).await?;
    let cut = |prompt: &mut Vec<u32>| drop(prompt.drain(..prompt.len().saturating_sub(most)));
    let is_cut = prompts.iter().any(|prompt| prompt.len() > most);
    prompts.iter_mut().for_each(cut);
    let echo = is_echoed.then(|| {
        let written = if is_cut { Vec::new() } else { written };
        Echo::all(served.engine.text(), &prompts, written)
    });
    let texts = prompts.len() * options.choices;
    served.check_count(texts, "prompt")?;
    let place = client.acquire(texts, if prompts.len() > 1 { "prompt" } else { "n" })?;
    let prompt_tokens = prompts.iter().map(Vec::len).sum::<usize>() * options.choices;
    let requests = options.requests(prompts, &client);
    let fields = ["prompt", options.constraint_field];
    let generation = Generation::start(&served, requests, options.choices, None, fields).await?;
    let served = served.queued();
    let generation = generation.measuring(options.timings, prompt_tokens);
    let mut writer = Writer {
        served: served.clone(),
        logprobs,
        prompt_logprobs,
        special_tokens: options.request.special_tokens,
        echo,
        choices: [options.choices, returned],
        texts: vec![Progress::default(); texts],
    };
    let envelope = Envelope::new("cmpl-", "text_completion", &options, place);
    if options.stream {
        let chunks = envelope.chunks(generation, move |piece| writer.choice(piece));
        return Ok(sse::response(chunks, &api.lifecycle, sse::Options::default()));
    }
    Ok(Json(writer.whole(envelope, generation).await?).into_response())
}

/// Generates `best_of` texts per prompt, with the log probabilities by which they are compared.
fn set_best_of(options: &mut Options, best_of: Option<usize>) -> Result<(), ApiError> {
    let Some(best_of) = best_of.filter(|best_of| *best_of != options.choices) else { return Ok(()) };
    check(&[Limit("best_of", best_of as f64, options.choices as f64..=128.0, "texts")])?;
    if options.stream {
        return Err(ApiError::field("best_of", "must equal `n` with `stream: true`"));
    }
    options.choices = best_of;
    options.request.logprobs.get_or_insert(0);
    Ok(())
}

impl Writer {
    async fn whole(
        mut self,
        envelope: Envelope,
        mut generation: Generation,
    ) -> Result<Answer<Choice>, ApiError> {
        let choice = |index| Choice {
            index,
            prompt_logprobs: self.prompt_logprobs.map(|_| PromptLogProbs::default()),
            ..Choice::default()
        };
        let mut choices: Vec<Choice> = (0..self.texts.len()).map(choice).collect();
        while let Some(piece) = generation.next().await {
            let piece = piece?;
            let Some(choice) = choices.get_mut(piece.index) else { continue };
            if let (Some(prompt), Some(count)) = (&mut choice.prompt_logprobs, self.prompt_logprobs) {
                prompt.extend(self.served.engine.text(), &piece.prompt, count);
            }
            let piece = self.choice(piece);
            choice.text.push_str(&piece.text);
            choice.finish_reason = piece.finish_reason.or(choice.finish_reason);
            if let Some(more) = piece.logprobs {
                choice.logprobs.get_or_insert_default().extend(more);
            }
        }
        let choices = self.best(choices);
        Ok(envelope.whole(choices, generation.usage()).with_timings(generation.timings()))
    }

    /// Returns the most likely texts of each prompt, with consecutive indices.
    fn best(&self, mut choices: Vec<Choice>) -> Vec<Choice> {
        let [generated, returned] = self.choices;
        if generated == returned {
            return choices;
        }
        let mean = |choice: &Choice| {
            let (sum, count) = self.texts[choice.index].score;
            sum / count.max(1) as f64
        };
        let mut best = Vec::new();
        while !choices.is_empty() {
            let rest = choices.split_off(generated.min(choices.len()));
            choices.sort_by(|one, other| mean(other).total_cmp(&mean(one)));
            best.extend(choices.into_iter().take(returned));
            choices = rest;
        }
        best.iter_mut().enumerate().for_each(|(index, choice)| choice.index = index);
        best
    }

    fn choice(&mut self, piece: ChoicePiece) -> Choice {
        let mut text = piece.content();
        let ChoicePiece { index, prompt, logprobs: tokens, finish: finish_reason, .. } = piece;
        let mut logprobs = LogProbs::default();
        let echo = self.echo.as_ref().and_then(|echo| echo.get(index / self.choices[0]));
        let inserted = echo.map_or(0, |echo| echo.inserted);
        let codec = self.served.engine.text();
        if let Some(progress) = self.texts.get_mut(index) {
            let mut push = |token: u32, own: Option<&TokenLogProb>| {
                let offset = progress.characters.saturating_sub(inserted);
                progress.characters += width(codec, token, self.special_tokens);
                logprobs.push(codec, offset, token, own, self.logprobs.unwrap_or(0));
            };
            if let Some(echo) = echo {
                if !progress.has_begun {
                    text.insert_str(0, &echo.text);
                    push(echo.first, None);
                }
                prompt.iter().for_each(|token| push(token.actual.token, Some(token)));
            }
            tokens.iter().for_each(|token| push(token.actual.token, Some(token)));
            progress.has_begun = true;
            progress.score.0 += tokens.iter().map(|token| f64::from(token.actual.logprob)).sum::<f64>();
            progress.score.1 += tokens.len();
        }
        let logprobs = self.logprobs.map(|_| logprobs);
        Choice { index, text, logprobs, finish_reason, prompt_logprobs: None }
    }
}

impl LogProbs {
    /// Adds a token with at most `count` alternatives, among which the token itself is always listed, as in OpenAI's API.
    fn push(
        &mut self,
        codec: &TextCodec,
        offset: usize,
        token: u32,
        own: Option<&TokenLogProb>,
        count: usize,
    ) {
        self.text_offset.push(offset);
        self.tokens.push(name(codec, token));
        self.token_logprobs.push(own.map(|own| finite(own.actual.logprob)));
        let candidate = |of: &LogProb| (name(codec, of.token), finite(of.logprob));
        let top = |of: &TokenLogProb| of.top.iter().take(count).chain([&of.actual]).map(candidate).collect();
        self.top_logprobs.push(own.map(top));
    }

    fn extend(&mut self, more: LogProbs) {
        self.tokens.extend(more.tokens);
        self.token_logprobs.extend(more.token_logprobs);
        self.top_logprobs.extend(more.top_logprobs);
        self.text_offset.extend(more.text_offset);
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
