//! Body of `POST /v1/messages`.
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use worker_core::body::{Limit, Nested, Others, Table, check, required};
use worker_core::{ApiError, fields};

use super::{content, tools};
use crate::api::conversation::{Conversation, ExtensionFields};
use crate::api::options::stops;
use crate::api::pictures::PictureParts;
use crate::api::request::SamplerFields;
use crate::served::ServedModel;

const ANY: &[&str] = &["*"];
const EMPTY: &[&str] = &["", "[]", "{}"];

/// Unsupported fields, with their values without effect.
const UNSUPPORTED: &[Table] = &[&[
    ("anthropic_beta", ANY),
    ("anthropic_version", ANY),
    ("betas", ANY),
    // All prompts are cached.
    ("cache_control", ANY),
    ("container", EMPTY),
    // Agents always request that old reasoning is cleared, which most templates leave out.
    ("context_management", ANY),
    ("diagnostics", ANY),
    ("inference_geo", ANY),
    ("mcp_servers", EMPTY),
    ("metadata", ANY),
    ("service_tier", ANY),
    ("speed", ANY),
]];

const THINKING: [&str; 4] = ["enabled", "disabled", "adaptive", "between_tools"];

fields! {
    /// Fields of the body, except sampler settings and extensions.
    pub struct MessagesFields, others: Others::Unsupported(UNSUPPORTED) => {
        /// Model name; may be omitted.
        model: String,
        /// Messages of the conversation.
        messages: Vec<Value>,
        /// System message: a text, or blocks of text.
        system: Value,
        /// Maximum number of tokens to generate; required.
        max_tokens: usize,
        /// Stop strings.
        stop_sequences: Vec<String>,
        /// If true, events are streamed.
        stream: bool,
        /// Tools that the model may call.
        tools: Vec<Value>,
        /// Tools that may or must be called.
        tool_choice: Value,
        /// Options of reasoning.
        thinking: Nested<ThinkingFields>,
        /// Format of the answer.
        output_config: Nested<OutputFields>,
        /// Older name of `output_config.format`.
        output_format: Nested<FormatFields>,
    }
}

fields! {
    /// Options of reasoning.
    pub struct ThinkingFields, others: Others::Unsupported(&[]) => {
        /// One of [`THINKING`], which sets the variable `enable_thinking` of the chat template.
        kind as "type": String,
        /// Accepted without effect.
        budget_tokens: usize,
        /// Accepted without effect: reasoning is returned in full.
        display: IgnoredAny,
    }
}

fields! {
    /// Options of the answer.
    pub struct OutputFields, others: Others::Unsupported(&[]) => {
        /// Variable `reasoning_effort` of the chat template.
        effort: String,
        /// Format.
        format: Nested<FormatFields>,
    }
}

fields! {
    /// Format of the answer.
    pub struct FormatFields, others: Others::Unsupported(&[]) => {
        /// Must be `json_schema`.
        kind as "type": String,
        /// Schema.
        schema: Map<String, Value>,
    }
}

/// Body of `POST /v1/messages`.
pub type MessagesBody = (MessagesFields, SamplerFields, ExtensionFields);

/// Validates a body. `generates` is false if only the tokens of the prompt are counted.
///
/// # Errors
/// Returns a 400 error that names the field.
pub fn validated(
    (own, sampler, extensions): MessagesBody,
    served: &ServedModel,
    generates: bool,
) -> Result<Conversation, ApiError> {
    let model = served.requested(own.model.as_deref())?;
    if generates {
        required(own.max_tokens, "max_tokens")?;
    }
    if let Some(tokens) = own.max_tokens {
        check(&[Limit("max_tokens", tokens as f64, 1.0..=f64::INFINITY, "tokens")])?;
    }
    let mut variables = Map::new();
    if let Some(Nested(thinking)) = own.thinking {
        let kind = required(thinking.kind, "thinking.type")?;
        if !THINKING.contains(&kind.as_str()) {
            let message = format!("is {kind:?}, but must be one of {}", THINKING.join(", "));
            return Err(ApiError::field("thinking.type", message));
        }
        variables.insert("enable_thinking".to_owned(), json!(kind != "disabled"));
    }
    let Nested(output) = own.output_config.unwrap_or_default();
    variables.extend(output.effort.map(|effort| ("reasoning_effort".to_owned(), json!(effort))));
    let format = |format: Option<Nested<FormatFields>>, name: &str| match format {
        None => Ok(None),
        Some(Nested(format)) => match required(format.kind, &format!("{name}.type"))?.as_str() {
            "json_schema" => Ok(Some(Value::Object(required(format.schema, &format!("{name}.schema"))?))),
            other => {
                let message = format!("is {other:?}, but must be json_schema");
                Err(ApiError::field(format!("{name}.type"), message))
            }
        },
    };
    let schema = format(output.format, "output_config.format")?;
    let schema = schema.or(format(own.output_format, "output_format")?);
    let mut pictures = PictureParts::of(served);
    let turns = content::turns(own.system.as_ref(), &required(own.messages, "messages")?, &mut pictures)?;
    let tools = tools::for_chat(&own.tools.unwrap_or_default(), own.tool_choice.as_ref())?;
    Ok(Conversation {
        model,
        turns,
        pictures: pictures.into_sources(),
        continues: true,
        tools: tools.functions,
        choice: tools.choice,
        variables,
        single_call: tools.single_call,
        schema,
        max_tokens: own.max_tokens,
        stop: stops("stop_sequences", own.stop_sequences.unwrap_or_default())?,
        sampler,
        extensions,
        ..Conversation::default()
    })
}
