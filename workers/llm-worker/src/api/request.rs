//! The bodies of requests, as OpenAI has them and vLLM extends them.
use std::collections::BTreeMap;

use llm_engine::sampling::settings::{Kind, Sampling, Setting};
use serde::Deserialize;
use serde_json::Value;
use worker_core::body::{Fields, MapAccess, Others};
use worker_core::fields;

use super::unsupported;

fields! {
    /// Fields of both chats and completions, except the sampler's settings.
    pub struct Common => {
        /// The model's name; any request without one means the only model.
        model: String,
        /// If true, the text is sent as it is written.
        stream: bool,
        /// Additions to a stream of text.
        stream_options: StreamOptions,
        /// Number of texts for each prompt.
        n: usize,
        /// Strings that end the text.
        stop: Strings,
        /// The same seed gives the same text.
        seed: i64,
        /// Maximum number of tokens to write.
        max_tokens: usize,
        /// Newer name of `max_tokens`.
        max_completion_tokens: usize,
        /// Biases by token, -100 to 100.
        logit_bias: BTreeMap<String, f32>,
        /// If true, tokens that end a text do not end it.
        ignore_eos: bool,
        /// The form that the text must have.
        response_format: ResponseFormat,
    }
}

/// The sampler's settings: a field for each row of [`SETTINGS`](llm_engine::sampling::settings::SETTINGS).
#[derive(Clone, Debug, Default)]
pub struct SamplerFields(pub Sampling);

impl Fields for SamplerFields {
    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, values: &mut A) -> Result<bool, A::Error> {
        let Some(setting) = Setting::named(name) else { return Ok(false) };
        match setting.kind {
            Kind::Number { set, .. } => {
                let value: Option<f32> = values.next_value()?;
                value.into_iter().for_each(|value| set(&mut self.0, value));
            }
            Kind::Count { set, .. } => {
                let count: Option<Count> = values.next_value()?;
                set(&mut self.0, count.and_then(|Count(count)| count));
            }
        }
        Ok(true)
    }
}

/// A number of tokens; 0 and -1 mean all.
#[derive(Deserialize)]
#[serde(try_from = "i64")]
struct Count(Option<usize>);

impl TryFrom<i64> for Count {
    type Error = &'static str;

    fn try_from(count: i64) -> Result<Self, Self::Error> {
        match usize::try_from(count) {
            Ok(0) => Ok(Self(None)),
            Err(_) if count == -1 => Ok(Self(None)),
            Ok(count) => Ok(Self(Some(count))),
            Err(_) => Err("must be at least 1, or 0 or -1 for all"),
        }
    }
}

/// Additions to a stream of text.
#[derive(Debug, Default, Deserialize)]
pub struct StreamOptions {
    /// If true, the last chunk has the number of tokens read and written.
    pub include_usage: Option<bool>,
}

/// One string or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum Strings {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

impl From<Strings> for Vec<String> {
    fn from(strings: Strings) -> Self {
        match strings {
            Strings::One(string) => vec![string],
            Strings::Several(strings) => strings,
        }
    }
}

/// The form that the text must have.
#[derive(Debug, Deserialize)]
pub struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    /// With `json_schema`.
    pub json_schema: Option<NamedSchema>,
}

/// A JSON schema and what it is called.
#[derive(Debug, Deserialize)]
pub struct NamedSchema {
    /// The schema; none takes any object.
    pub schema: Option<Value>,
}

fields! {
    /// Fields that only chats have.
    pub struct Chat, others: Others::Unsupported(unsupported::CHAT) => {
        /// The conversation.
        messages: Vec<Message>,
        /// If true, probabilities are told.
        logprobs: bool,
        /// Number of alternatives whose probabilities are told.
        top_logprobs: usize,
        /// Functions that the model may call, as the chat template takes them.
        tools: Vec<Value>,
        /// Which of them may or must be called.
        tool_choice: ToolChoice,
        /// If false, at most one tool call is returned.
        parallel_tool_calls: bool,
    }
}

/// A body of `POST /v1/chat/completions`.
pub type ChatBody = (Chat, Common, SamplerFields);

/// Author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions for the model.
    System,
    /// Newer name of `system`.
    Developer,
    /// The end user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool.
    Tool,
}

/// One turn.
#[derive(Debug, Deserialize)]
pub struct Message {
    /// Its author.
    pub role: Role,
    /// Its text; may be missing beside `tool_calls`.
    pub content: Option<Content>,
    /// Name of the author or of the tool.
    pub name: Option<String>,
    /// Calls that the model made.
    pub tool_calls: Option<Vec<AskedCall>>,
    /// The call that a tool answers.
    pub tool_call_id: Option<String>,
}

/// Text of a message.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of parts with a type")]
pub enum Content {
    /// In one piece.
    Text(String),
    /// In parts.
    Parts(Vec<Part>),
}

/// A part of a message's text.
#[derive(Debug, Deserialize)]
pub struct Part {
    /// `text`; nothing else can be read.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its text.
    pub text: Option<String>,
}

/// A call that an earlier answer made.
#[derive(Debug, Deserialize)]
pub struct AskedCall {
    /// Identifier that the tool's answer names.
    pub id: Option<String>,
    /// The function that was called.
    pub function: AskedFunction,
}

/// The function that was called.
#[derive(Debug, Deserialize)]
pub struct AskedFunction {
    /// Its name.
    pub name: String,
    /// JSON in a string, as the API has it, or JSON itself.
    #[serde(default)]
    pub arguments: Value,
}

/// Which tools may or must be called.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected none, auto, required or an object that names a function")]
pub enum ToolChoice {
    /// `none`, `auto` or `required`.
    Word(String),
    /// This function must be called.
    Named {
        /// The function.
        function: NamedFunction,
    },
}

/// The name of a function.
#[derive(Debug, Deserialize)]
pub struct NamedFunction {
    /// Its name.
    pub name: String,
}

fields! {
    /// Fields that only completions have.
    pub struct Completion, others: Others::Unsupported(unsupported::COMPLETIONS) => {
        /// Prompts that the texts continue.
        prompt: Prompts,
        /// Number of alternatives whose probabilities are told.
        logprobs: usize,
    }
}

/// A body of `POST /v1/completions`.
pub type CompletionBody = (Completion, Common, SamplerFields);

/// One prompt or several, as text or tokens.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of tokens or a list of lists of tokens"
)]
pub enum Prompts {
    /// One, as text.
    Text(String),
    /// Several, as texts.
    Texts(Vec<String>),
    /// One, as tokens.
    Tokens(Vec<u32>),
    /// Several, as tokens.
    TokenLists(Vec<Vec<u32>>),
}

fields! {
    /// A body of `POST /v1/embeddings`.
    pub struct Embeddings, others: Others::Unsupported(unsupported::EMBEDDINGS) => {
        /// The model's name.
        model: String,
        /// Texts to embed.
        input: Prompts,
        /// `float` or `base64`.
        encoding_format: String,
    }
}
