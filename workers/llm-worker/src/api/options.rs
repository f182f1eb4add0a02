//! Of what chats and completions share: values checked, and put as the engine takes them.
use std::ops::RangeInclusive;

use llm_engine::request::{Constraint, Request, Sampling};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use worker_core::{ApiError, body};

use super::request::{Common, ResponseFormat};

/// Strings that may end a text, as OpenAI has it.
const STOPS: usize = 4;
/// Bytes that one of them may have.
const STOP_BYTES: usize = 1024;
/// Texts to one prompt.
pub const CHOICES: usize = 128;
/// Alternatives told of a token.
pub const TOP_LOGPROBS: usize = 20;

/// A body read twice: what its endpoint has alone, and what is shared.
///
/// # Errors
/// 400 that names the field.
pub fn view<T: DeserializeOwned>(body: &Map<String, Value>) -> Result<T, ApiError> {
    let text = serde_json::to_vec(body).map_err(|error| ApiError::internal(error.to_string()))?;
    body::parse(&text)
}

type Range = (&'static str, fn(&Common) -> Option<f32>, RangeInclusive<f32>);

const RANGES: [Range; 6] = [
    ("temperature", |common| common.temperature, 0.0..=2.0),
    ("top_p", |common| common.top_p, 0.0..=1.0),
    ("min_p", |common| common.min_p, 0.0..=1.0),
    ("presence_penalty", |common| common.presence_penalty, -2.0..=2.0),
    ("frequency_penalty", |common| common.frequency_penalty, -2.0..=2.0),
    ("repetition_penalty", |common| common.repetition_penalty, f32::MIN_POSITIVE..=100.0),
];

/// What is asked of the engine for each text, but for prompt and seed.
#[derive(Clone, Debug)]
pub struct Options {
    request: Request,
    /// Texts to a prompt.
    pub choices: usize,
    /// Whether the texts come as they are written.
    pub stream: bool,
    /// Whether a stream ends with the tokens that were read and written.
    pub stream_usage: bool,
}

impl Options {
    /// Checks every value. `vocabulary` bounds the tokens of `logit_bias`; `max_tokens` is taken where none is asked.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn new(
        common: Common,
        vocabulary: usize,
        max_tokens: Option<usize>,
        logprobs: Option<usize>,
    ) -> Result<Options, ApiError> {
        for (name, value, range) in &RANGES {
            if value(&common).is_some_and(|value| !range.contains(&value)) {
                return Err(match *name {
                    "repetition_penalty" => ApiError::field(*name, "must be above 0, 100 at most"),
                    _ => ApiError::field(*name, format!("must lie in {} to {}", range.start(), range.end())),
                });
            }
        }
        let choices = common.n.unwrap_or(1);
        if !(1..=CHOICES).contains(&choices) {
            return Err(ApiError::field("n", format!("must be 1 to {CHOICES}")));
        }
        let stream = common.stream.unwrap_or(false);
        if !stream && common.stream_options.is_some() {
            return Err(ApiError::field("stream_options", "needs `stream: true`"));
        }
        let stream_usage =
            common.stream_options.as_ref().is_some_and(|options| options.include_usage == Some(true));
        let sampling = Sampling {
            temperature: common.temperature.unwrap_or(1.0),
            top_k: top_k(common.top_k)?,
            // 0 leaves the likeliest alone, as the least above it does.
            top_p: common.top_p.unwrap_or(1.0).max(f32::MIN_POSITIVE),
            min_p: common.min_p.unwrap_or(0.0),
            repeat_penalty: common.repetition_penalty.unwrap_or(1.0),
            presence_penalty: common.presence_penalty.unwrap_or(0.0),
            frequency_penalty: common.frequency_penalty.unwrap_or(0.0),
            // The bits of a negative seed are as good as any.
            seed: common.seed.map(i64::cast_unsigned),
            logit_bias: logit_bias(&common, vocabulary)?,
        };
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

    /// One request for each text that goes on behind one of `prompts`, made when it is asked for; the seeds of a prompt's
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

fn top_k(top_k: Option<i64>) -> Result<Option<usize>, ApiError> {
    match top_k {
        None | Some(0 | -1) => Ok(None),
        Some(count) => match usize::try_from(count) {
            Ok(count) => Ok(Some(count)),
            Err(_) => Err(ApiError::field("top_k", "must be 1 or more, or 0 or -1 for all")),
        },
    }
}

fn limit(common: &Common) -> Result<Option<usize>, ApiError> {
    let (old, later) = (common.max_tokens, common.max_completion_tokens);
    for (name, value) in [("max_tokens", old), ("max_completion_tokens", later)] {
        if value == Some(0) {
            return Err(ApiError::field(name, "must be 1 or more"));
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
        return Err(ApiError::field("stop", format!("may hold {STOPS} strings at most")));
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
            let param = || format!("logit_bias.{key}");
            let token = key.parse::<u32>().ok().filter(|&token| (token as usize) < vocabulary);
            let token = token.ok_or_else(|| {
                ApiError::field(param(), format!("is no token: they are numbers below {vocabulary}"))
            })?;
            if !(-100.0..=100.0).contains(&bias) {
                return Err(ApiError::field(param(), "must lie in -100 to 100"));
            }
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
