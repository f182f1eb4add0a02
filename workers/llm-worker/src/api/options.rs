//! Validation of the options that chats and completions share.
use llm_engine::request::{Constraint, Request, Sampling};
use llm_engine::sampling::{self, settings::LOGIT_BIAS_RANGE};
use serde_json::Value;
use worker_core::body::{Limit, Nested, check};
use worker_core::{ApiError, Client};

use super::parsers::{Parser, ParserOptions, Tool};
use super::request::{Biases, CommonFields, SamplerFields, TokenLimit};
use super::template_input::Prompt;
use super::{constraints, failure};
use crate::adapters::RequestedModel;
use crate::served::ServedModel;

/// Maximum number of stop strings, all of which are searched for after each token.
const MAX_STOP_STRINGS: usize = 64;
/// Maximum number of tokens in `stop_token_ids`.
const MAX_STOP_TOKENS: usize = 256;
/// Maximum length of a stop string in bytes.
const MAX_STOP_BYTES: usize = 1024;
/// Maximum length of `cache_salt` in bytes.
const MAX_SALT_BYTES: usize = 1024;
/// Maximum number of texts per prompt.
const MAX_CHOICES: f64 = 128.0;

/// Returns the limit of the number of alternatives, which is the field `name`.
pub fn top_logprobs(name: &'static str, count: usize) -> Limit<'static> {
    Limit(name, count as f64, 0.0..=20.0, "alternatives")
}

/// Validated options: the engine request of each text, without its prompt.
#[derive(Clone, Debug)]
pub struct Options {
    /// Request of a text, without its prompt.
    pub request: Request,
    /// Name of the field of the constraint.
    pub constraint_field: &'static str,
    /// If true, responses contain times.
    pub timings: bool,
    /// Model of the request.
    pub model: RequestedModel,
    /// Salt of the prefix cache: only requests with the same salt share cached prefixes.
    cache_salt: Option<String>,
    /// Number of texts per prompt.
    pub choices: usize,
    /// If true, the texts are streamed.
    pub stream: bool,
    /// If true, a stream ends with the token counts.
    pub stream_usage: bool,
}

impl Options {
    /// Validates all fields. `vocabulary` bounds the tokens; `max_tokens` is the default limit, and `defaults` are those of
    /// the sampler settings.
    ///
    /// # Errors
    /// Returns a 400 error that names the field.
    pub fn new(
        common: CommonFields,
        sampler: SamplerFields,
        (vocabulary, defaults): (usize, &Sampling),
        max_tokens: Option<usize>,
        logprobs: Option<usize>,
    ) -> Result<Options, ApiError> {
        let choices = common.n.unwrap_or(1);
        check(&[Limit("n", choices as f64, 1.0..=MAX_CHOICES, "texts")])?;
        let stream = common.stream.unwrap_or(false);
        if !stream && common.stream_options.is_some() {
            return Err(ApiError::field("stream_options", "requires `stream: true`"));
        }
        let stream_usage =
            common.stream_options.as_ref().is_some_and(|Nested(options)| options.include_usage == Some(true));
        let sampling = Sampling {
            // Negative seeds are reinterpreted as unsigned.
            seed: common.seed.map(i64::cast_unsigned),
            logit_bias: logit_bias(&common, vocabulary)?,
            ..sampler.over(defaults)
        };
        sampling::check(&sampling, vocabulary)
            .map_err(|error| failure::request_error(error, "prompt", "response_format"))?;
        let request = Request {
            prompt: Vec::new(),
            max_tokens: max_tokens_of(&common)?.map_or(max_tokens, |limit| match limit {
                TokenLimit::Unlimited => None,
                TokenLimit::Tokens(tokens) => Some(tokens),
            }),
            min_tokens: common.min_tokens.unwrap_or(0),
            stop_token_ids: stop_tokens(common.stop_token_ids.unwrap_or_default(), vocabulary)?,
            sampling,
            stop: stops("stop", common.stop.map(Vec::from).unwrap_or_default())?,
            ignore_eos: common.ignore_eos.unwrap_or(false),
            logprobs,
            constraint: common
                .response_format
                .map(|Nested(format)| constraints::of_format(format))
                .transpose()?
                .flatten(),
            ..Request::default()
        };
        let cache_salt = common.cache_salt;
        if cache_salt.as_ref().is_some_and(|salt| salt.is_empty() || salt.len() > MAX_SALT_BYTES) {
            return Err(ApiError::field("cache_salt", format!("must have 1 to {MAX_SALT_BYTES} bytes")));
        }
        let constraint_field = "response_format";
        let model = RequestedModel::default();
        let timings = false;
        Ok(Options { request, constraint_field, timings, model, cache_salt, choices, stream, stream_usage })
    }

    /// Sets the model.
    pub fn for_model(mut self, model: RequestedModel) -> Options {
        self.request.adapter = model.adapter.clone();
        Options { model, ..self }
    }

    /// Constrains the texts to a JSON schema.
    ///
    /// # Errors
    /// Returns a 400 error if they are already constrained.
    pub fn constrain(&mut self, schema: Value, param: &str) -> Result<(), ApiError> {
        self.constrain_named(param, Constraint::JsonSchema(schema))
    }

    /// Constrains the texts as the field `field` requests.
    ///
    /// # Errors
    /// Returns a 400 error if they are already constrained.
    pub fn constrain_by(&mut self, field: &'static str, constraint: Constraint) -> Result<(), ApiError> {
        self.constrain_named(field, constraint)?;
        self.constraint_field = field;
        Ok(())
    }

    fn constrain_named(&mut self, param: &str, constraint: Constraint) -> Result<(), ApiError> {
        if self.request.constraint.is_some() {
            let why = format!("cannot be combined with the constraint of `{}`", self.constraint_field);
            return Err(ApiError::field(param, why));
        }
        self.request.constraint = Some(constraint);
        Ok(())
    }

    /// Returns the parser of answers to `prompt`. Answers may call `tools`, at most once if `single` is true. Special
    /// tokens that the parser needs are included in the texts.
    pub fn parser(
        &mut self,
        served: &ServedModel,
        tools: Vec<Tool>,
        single: bool,
        prompt: &Prompt,
    ) -> Option<Parser> {
        let constraint = self.request.constraint.as_ref();
        let is_json = matches!(constraint, Some(Constraint::JsonObject | Constraint::JsonSchema(_)));
        let options = ParserOptions { tools, single, is_constrained: constraint.is_some(), is_json };
        self.request.shown_tokens = served.shown_tokens(&options);
        let parser = served.formats.parser(options, &prompt.text)?;
        Some(match &prompt.continued {
            Some(text) if !is_json => parser.continuing(text),
            _ => parser,
        })
    }

    /// Removes the limit on generated tokens if it exceeds `most`, the number of tokens that fit into the context.
    pub fn limit_tokens(&mut self, most: usize) {
        self.request.max_tokens = self.request.max_tokens.filter(|tokens| *tokens <= most);
    }

    /// Returns one request of `client` per prompt and choice, lazily. The seeds of a prompt's texts are consecutive.
    pub fn requests(
        &self,
        prompts: Vec<Vec<u32>>,
        client: &Client,
    ) -> impl Iterator<Item = Request> + Send + use<> {
        let cache_salt = client.cache_salt(self.cache_salt.as_deref());
        let request = Request { client: client.id(), cache_salt, ..self.request.clone() };
        let choices = self.choices;
        (0..prompts.len() * choices).map(move |text| {
            let mut request = Request { prompt: prompts[text / choices].clone(), ..request.clone() };
            request.sampling.seed =
                request.sampling.seed.map(|seed| seed.wrapping_add((text % choices) as u64));
            request
        })
    }
}

fn max_tokens_of(common: &CommonFields) -> Result<Option<TokenLimit>, ApiError> {
    let (old, later) = (common.max_tokens, common.max_completion_tokens);
    for (name, value) in [("max_tokens", old), ("max_completion_tokens", later)] {
        if let Some(TokenLimit::Tokens(tokens)) = value {
            check(&[Limit(name, tokens as f64, 0.0..=f64::INFINITY, "tokens")])?;
        }
    }
    match (old, later) {
        (Some(one), Some(other)) if one != other => {
            Err(ApiError::field("max_completion_tokens", "differs from `max_tokens`; set only one of them"))
        }
        _ => Ok(later.or(old)),
    }
}

/// Checks stop strings, which are the field `name`.
///
/// # Errors
/// Returns a 400 error for too many strings, and for empty or long ones.
pub fn stops(name: &str, stops: Vec<String>) -> Result<Vec<String>, ApiError> {
    if stops.len() > MAX_STOP_STRINGS {
        return Err(ApiError::field(
            name,
            format!("has {} strings, but at most {MAX_STOP_STRINGS} are allowed", stops.len()),
        ));
    }
    if stops.iter().any(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        return Err(ApiError::field(name, format!("must contain strings of 1 to {MAX_STOP_BYTES} bytes")));
    }
    Ok(stops)
}

fn stop_tokens(tokens: Vec<u32>, vocabulary: usize) -> Result<Vec<u32>, ApiError> {
    let name = "stop_token_ids";
    check(&[Limit(name, tokens.len() as f64, 0.0..=MAX_STOP_TOKENS as f64, "tokens")])?;
    match tokens.iter().find(|token| **token as usize >= vocabulary) {
        Some(token) => {
            Err(ApiError::field(name, format!("contains {token}; tokens are numbers below {vocabulary}")))
        }
        None => Ok(tokens),
    }
}

fn logit_bias(common: &CommonFields, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let biases = common.logit_bias.iter().flat_map(|Biases(biases)| biases);
    biases
        .map(|&(ref key, bias)| {
            let name = format!("logit_bias.{key}");
            let token = key.parse::<u32>().ok().filter(|&token| (token as usize) < vocabulary);
            let token = token.ok_or_else(|| {
                ApiError::field(&name, format!("is not a token; tokens are numbers below {vocabulary}"))
            })?;
            let [least, most] = LOGIT_BIAS_RANGE.map(f64::from);
            check(&[Limit(&name, bias.into(), least..=most, "")])?;
            Ok((token, bias))
        })
        .collect()
}
