//! Body of `POST /v1/responses`.
use std::collections::HashMap;

use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use uuid::Uuid;
use worker_core::body::{Limit, Nested, Others, Table, check, required};
use worker_core::{ApiError, fields, unix_seconds};

use super::tools::ToolName;
use super::{input, tools};
use crate::api::answer::decimal;
use crate::api::conversation::{Conversation, ExtensionFields};
use crate::api::options::top_logprobs;
use crate::api::pictures::PictureParts;
use crate::api::request::{SamplerFields, StreamOptions};
use crate::served::ServedModel;

const ANY: &[&str] = &["*"];
const FALSE: &[&str] = &["false"];
const EMPTY: &[&str] = &["", "[]", "{}"];

/// Unsupported fields, with their values without effect.
const UNSUPPORTED: &[Table] = &[&[
    ("background", FALSE),
    ("client_metadata", ANY),
    ("context_management", EMPTY),
    // Limits the calls of tools that OpenAI runs.
    ("max_tool_calls", ANY),
    // SGLang's gateway adds these samplers with their neutral values.
    ("min_p", &["0", "0.0"]),
    ("priority", ANY),
    ("prompt_cache_key", ANY),
    ("prompt_cache_options", ANY),
    ("prompt_cache_retention", ANY),
    ("repetition_penalty", &["1", "1.0"]),
    ("safety_identifier", ANY),
    ("service_tier", ANY),
    ("store", &["true", "false"]),
    ("top_k", &["-1"]),
    ("truncation", &["auto", "disabled"]),
    ("user", ANY),
]];

/// Values of `include`. Only the log probabilities have an effect, since this server never has the other data.
const INCLUDABLE: [&str; 8] = [
    LOGPROBS,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
];
const LOGPROBS: &str = "message.output_text.logprobs";

const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

fields! {
    /// Fields of the body, except sampler settings and extensions.
    pub struct ResponsesFields, others: Others::Unsupported(UNSUPPORTED) => {
        /// Model name; may be omitted.
        model: String,
        /// A text, or items of the conversation.
        input: Value,
        /// System message.
        instructions: String,
        /// Tools that the model may call.
        tools: Vec<Value>,
        /// Tools that may or must be called.
        tool_choice: Value,
        /// If false, at most one tool call is returned.
        parallel_tool_calls: bool,
        /// Maximum number of tokens to generate.
        max_output_tokens: usize,
        /// Output format.
        text: Nested<TextFields>,
        /// Options of reasoning.
        reasoning: Nested<ReasoningFields>,
        /// Data of the client, which the response repeats.
        metadata: Map<String, Value>,
        /// If true, events are streamed.
        stream: bool,
        /// Options of the stream.
        stream_options: Nested<StreamOptions>,
        /// Additional data to return.
        include: Vec<String>,
        /// Number of alternatives to return with log probabilities.
        top_logprobs: usize,
    }
}

fields! {
    /// Format of the text.
    pub struct TextFields, others: Others::Unsupported(&[]) => {
        /// Format.
        format: Nested<FormatFields>,
        /// Accepted without effect.
        verbosity: String,
    }
}

fields! {
    /// Format of the text: `text`, `json_object` or `json_schema`.
    pub struct FormatFields, others: Others::Unsupported(&[]) => {
        /// Its type.
        kind as "type": String,
        /// Name of the schema.
        name: String,
        /// Description of the schema, which has no effect.
        description: String,
        /// Accepted and ignored, because the schema is always followed.
        strict: bool,
        /// Schema of the type `json_schema`.
        schema: Map<String, Value>,
    }
}

fields! {
    /// Options of reasoning.
    pub struct ReasoningFields, others: Others::Unsupported(&[]) => {
        /// One of [`EFFORTS`].
        effort: String,
        /// Accepted without effect: reasoning is returned in full.
        summary: IgnoredAny,
        /// Older name of `summary`.
        generate_summary: IgnoredAny,
    }
}

/// Body of `POST /v1/responses`.
pub type ResponsesBody = (ResponsesFields, SamplerFields, ExtensionFields);

/// A validated request.
pub struct Request {
    /// Turns, tools and options.
    pub conversation: Conversation,
    /// Response without output.
    pub response: Value,
    /// Names of the tools, by those that the model sees.
    pub tool_names: HashMap<String, ToolName>,
    /// If true, log probabilities are returned.
    pub logprobs: bool,
    /// If true, events are streamed.
    pub stream: bool,
}

/// Validates a body.
///
/// # Errors
/// Returns a 400 error that names the field.
pub fn validated(
    (own, sampler, extensions): ResponsesBody,
    served: &ServedModel,
) -> Result<Request, ApiError> {
    let model = served.requested(own.model.as_deref())?;
    let stream = own.stream.unwrap_or(false);
    if !stream && own.stream_options.is_some() {
        return Err(ApiError::field("stream_options", "requires `stream: true`"));
    }
    let top = own.top_logprobs.unwrap_or(0);
    check(&[top_logprobs("top_logprobs", top)])?;
    if let Some(tokens) = own.max_output_tokens {
        check(&[Limit("max_output_tokens", tokens as f64, 1.0..=f64::INFINITY, "tokens")])?;
    }
    let include = own.include.unwrap_or_default();
    if let Some(i) = include.iter().position(|item| !INCLUDABLE.contains(&item.as_str())) {
        return Err(ApiError::field(format!("include[{i}]"), "is not supported by this server")
            .with_code("unsupported_parameter"));
    }
    let logprobs = top > 0 || include.iter().any(|item| item == LOGPROBS);
    let Nested(reasoning) = own.reasoning.unwrap_or_default();
    if let Some(effort) = reasoning.effort.as_deref().filter(|effort| !EFFORTS.contains(effort)) {
        let message = format!("is {effort:?}, but must be one of {}", EFFORTS.join(", "));
        return Err(ApiError::field("reasoning.effort", message));
    }
    let Nested(text) = own.text.unwrap_or_default();
    let (format, schema) = format(text.format.map(|Nested(format)| format).unwrap_or_default())?;
    let mut pictures = PictureParts::of(served);
    let turns = input::turns(own.instructions.clone(), &required(own.input, "input")?, &mut pictures)?;
    let given = own.tools.unwrap_or_default();
    let tools = tools::for_chat(&given, own.tool_choice.as_ref())?;
    let conversation = Conversation {
        model,
        turns,
        pictures: pictures.into_sources(),
        tools: tools.functions,
        choice: tools.choice,
        single_call: own.parallel_tool_calls == Some(false),
        variables: variables(reasoning.effort.as_deref()),
        schema,
        logprobs: logprobs.then_some(top),
        max_tokens: own.max_output_tokens,
        sampler,
        extensions,
        ..Conversation::default()
    };
    let sampling = conversation.sampling(served);
    let response = json!({
        "id": format!("resp_{}", Uuid::new_v4().simple()),
        "object": "response",
        "created_at": unix_seconds(),
        "status": "in_progress",
        "background": false,
        "error": null,
        "incomplete_details": null,
        "instructions": own.instructions,
        "max_output_tokens": own.max_output_tokens,
        "max_tool_calls": null,
        "metadata": own.metadata.unwrap_or_default(),
        "model": conversation.model.name,
        "output": [],
        "parallel_tool_calls": own.parallel_tool_calls.unwrap_or(true),
        "previous_response_id": null,
        "reasoning": { "effort": reasoning.effort, "summary": null },
        "service_tier": "default",
        "store": false,
        "temperature": decimal(sampling.temperature),
        "text": { "format": format, "verbosity": text.verbosity },
        "tool_choice": own.tool_choice.unwrap_or_else(|| json!("auto")),
        "tools": given,
        "top_logprobs": top,
        "top_p": decimal(sampling.top_p),
        "truncation": "disabled",
        "usage": null,
        "user": null,
    });
    Ok(Request { conversation, response, tool_names: tools.names, logprobs, stream })
}

/// Returns the variables of the chat template for an effort.
fn variables(effort: Option<&str>) -> Map<String, Value> {
    let mut variables = Map::new();
    if let Some(effort) = effort {
        variables.insert("reasoning_effort".to_owned(), json!(effort));
    }
    if effort == Some("none") {
        variables.insert("enable_thinking".to_owned(), json!(false));
    }
    variables
}

/// Returns the format as the response repeats it, and the schema of the text.
fn format(format: FormatFields) -> Result<(Value, Option<Value>), ApiError> {
    let kind = format.kind.as_deref().unwrap_or("text");
    match kind {
        "text" => Ok((json!({ "type": kind }), None)),
        "json_object" => Ok((json!({ "type": kind }), Some(json!({ "type": "object" })))),
        "json_schema" => {
            let schema = Value::Object(required(format.schema, "text.format.schema")?);
            let repeated = json!({
                "type": kind,
                "name": format.name,
                "description": format.description,
                "strict": format.strict,
                "schema": schema,
            });
            Ok((repeated, Some(schema)))
        }
        other => {
            let message = format!("is {other:?}, but must be text, json_object or json_schema");
            Err(ApiError::field("text.format.type", message))
        }
    }
}
