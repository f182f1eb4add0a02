//! The options that chats and completions share, checked and put as the engine takes them.
use llm_engine::request::{Constraint, Request, Sampling};
use llm_engine::sampling::{self, settings::LOGIT_BIAS};
use serde_json::Value;
use worker_core::ApiError;
use worker_core::body::{Limit, check};

use super::failure;
use super::request::{Common, ResponseFormat, SamplerFields};

/// Strings that may end a text, as OpenAI has it.
const STOPS: usize = 4;
/// Bytes that one of them may have.
const STOP_BYTES: usize = 1024;
/// Texts to one prompt.
const CHOICES: f64 = 128.0;

/// Bounds the number of alternatives told of a token, which is the field `name`.
pub fn top_logprobs(name: &'static str, count: usize) -> Limit<'static> {
    Limit(name, count as f64, 0.0..=20.0, "alternatives")
}

/// What is asked of the engine for each text, except the prompt.
#[derive(Clone, Debug)]
pub struct Options {
    request: Request,
    /// Texts to a prompt.
    pub choices: usize,
    /// Whether the texts are sent as they are written.
    pub stream: bool,
    /// Whether a stream ends with the number of tokens that were read and written.
    pub stream_usage: bool,
}

impl Options {
    /// Checks every value. `vocabulary` bounds the tokens of `logit_bias`; `max_tokens` is taken where none is asked.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn new(
        common: Common,
        SamplerFields(sampling): SamplerFields,
        vocabulary: usize,
        max_tokens: Option<usize>,
        logprobs: Option<usize>,
    ) -> Result<Options, ApiError> {
        let choices = common.n.unwrap_or(1);
        check(&[Limit("n", choices as f64, 1.0..=CHOICES, "texts")])?;
        let stream = common.stream.unwrap_or(false);
        if !stream && common.stream_options.is_some() {
            return Err(ApiError::field("stream_options", "requires `stream: true`"));
        }
        let stream_usage =
            common.stream_options.as_ref().is_some_and(|options| options.include_usage == Some(true));
        let sampling = Sampling {
            // The bits of a negative seed are as good as any.
            seed: common.seed.map(i64::cast_unsigned),
            logit_bias: logit_bias(&common, vocabulary)?,
            ..sampling
        };
        sampling::check(&sampling, vocabulary)
            .map_err(|refused| failure::refused(refused, "prompt", "response_format"))?;
        let request = Request {
            prompt: Vec::new(),
            max_tokens: limit(&common)?.or(max_tokens),
            sampling,
            stop: stops(common.stop.map(Vec::from).unwrap_or_default())?,
            ignore_eos: common.ignore_eos.unwrap_or(false),
            logprobs,
            constraint: common.response_format.map(constraint).transpose()?.flatten(),
        };
        Ok(Options { request, choices, stream, stream_usage })
    }

    /// Holds the texts to a schema.
    ///
    /// # Errors
    /// 400 where they are held to something else already.
    pub fn constrain(&mut self, schema: Value, param: &str) -> Result<(), ApiError> {
        if self.request.constraint.is_some() {
            return Err(ApiError::field(param, "cannot be combined with a `response_format` of JSON"));
        }
        self.request.constraint = Some(Constraint::JsonSchema(schema));
        Ok(())
    }

    /// One request for each text that continues one of `prompts`, made when it is asked for; the seeds of a prompt's texts
    /// are one apart.
    pub fn requests(&self, prompts: Vec<Vec<u32>>) -> impl Iterator<Item = Request> + Send + use<> {
        let (request, choices) = (self.request.clone(), self.choices);
        (0..prompts.len() * choices).map(move |text| {
            let mut request = Request { prompt: prompts[text / choices].clone(), ..request.clone() };
            request.sampling.seed =
                request.sampling.seed.map(|seed| seed.wrapping_add((text % choices) as u64));
            request
        })
    }
}

fn limit(common: &Common) -> Result<Option<usize>, ApiError> {
    let (old, later) = (common.max_tokens, common.max_completion_tokens);
    for (name, value) in [("max_tokens", old), ("max_completion_tokens", later)] {
        if let Some(tokens) = value {
            check(&[Limit(name, tokens as f64, 1.0..=f64::INFINITY, "tokens")])?;
        }
    }
    match (old, later) {
        (Some(one), Some(other)) if one != other => {
            Err(ApiError::field("max_completion_tokens", "differs from `max_tokens`: give one of them"))
        }
        _ => Ok(later.or(old)),
    }
}

fn stops(stops: Vec<String>) -> Result<Vec<String>, ApiError> {
    if stops.len() > STOPS {
        return Err(ApiError::field(
            "stop",
            format!("has {} strings, but at most {STOPS} are allowed", stops.len()),
        ));
    }
    if stops.iter().any(|stop| stop.is_empty() || stop.len() > STOP_BYTES) {
        return Err(ApiError::field("stop", format!("must hold strings of 1 to {STOP_BYTES} bytes")));
    }
    Ok(stops)
}

fn logit_bias(common: &Common, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let biases = common.logit_bias.iter().flatten();
    biases
        .map(|(key, &bias)| {
            let name = format!("logit_bias.{key}");
            let token = key.parse::<u32>().ok().filter(|&token| (token as usize) < vocabulary);
            let token = token.ok_or_else(|| {
                ApiError::field(&name, format!("is no token: they are numbers below {vocabulary}"))
            })?;
            let [least, most] = LOGIT_BIAS.map(f64::from);
            check(&[Limit(&name, bias.into(), least..=most, "")])?;
            Ok((token, bias))
        })
        .collect()
}

fn constraint(format: ResponseFormat) -> Result<Option<Constraint>, ApiError> {
    match (format.kind.as_str(), format.json_schema) {
        ("text", _) => Ok(None),
        ("json_object", _) => Ok(Some(Constraint::JsonObject)),
        ("json_schema", Some(named)) => match named.schema {
            Some(schema) if schema.is_object() || schema.is_boolean() => {
                Ok(Some(Constraint::JsonSchema(schema)))
            }
            Some(_) => Err(ApiError::field("response_format.json_schema.schema", "must be an object")),
            None => Ok(Some(Constraint::JsonObject)),
        },
        ("json_schema", None) => {
            Err(ApiError::field("response_format.json_schema", "is missing: give `name` and `schema`"))
        }
        (other, _) => Err(ApiError::field(
            "response_format.type",
            format!("is {other:?}: it may be text, json_object or json_schema"),
        )),
    }
}
