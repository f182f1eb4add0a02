//! Request bodies of OpenAI's API with vLLM's extensions.
use std::fmt;

use llm_engine::sampling::settings::{Kind, Sampling, Setting};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::{Map, Value};
use worker_core::body::{Fields, MapAccess, Nested, Others};
use worker_core::fields;

use super::unsupported;

fields! {
    /// Fields of both chats and completions, except the sampler settings.
    pub struct CommonFields => {
        /// Model name; may be omitted.
        model: String,
        /// If true, the text is streamed.
        stream: bool,
        /// Options of the stream.
        stream_options: Nested<StreamOptions>,
        /// Number of texts per prompt.
        n: usize,
        /// Stop strings.
        stop: Strings,
        /// Tokens that end the text, in addition to the model's end-of-text tokens.
        stop_token_ids: Vec<u32>,
        /// Seed of the random numbers.
        seed: i64,
        /// Maximum number of tokens to generate.
        max_tokens: TokenLimit,
        /// Newer name of `max_tokens`.
        max_completion_tokens: TokenLimit,
        /// Number of tokens before which the text does not end.
        min_tokens: usize,
        /// Logit biases by token, from -100 to 100.
        logit_bias: Biases,
        /// If true, generation continues after an end-of-text token.
        ignore_eos: bool,
        /// Output format.
        response_format: Nested<ResponseFormat>,
        /// Salt of the prefix cache, as in vLLM: only requests with the same salt share cached prefixes.
        cache_salt: String,
    }
}

/// Value of a sampler setting, with the function that sets it.
#[derive(Clone, Debug)]
enum Change {
    Number(fn(&mut Sampling, f32), f32),
    Count(fn(&mut Sampling, Option<usize>), Option<usize>),
}

/// Sampler settings: a field for each row of [`SETTINGS`](llm_engine::sampling::settings::SETTINGS).
#[derive(Clone, Debug, Default)]
pub struct SamplerFields(Vec<Change>);

impl SamplerFields {
    /// Returns `defaults` with the settings of the request.
    pub fn over(self, defaults: &Sampling) -> Sampling {
        let mut sampling = defaults.clone();
        for change in self.0 {
            match change {
                Change::Number(set, value) => set(&mut sampling, value),
                Change::Count(set, count) => set(&mut sampling, count),
            }
        }
        sampling
    }
}

impl Fields for SamplerFields {
    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, values: &mut A) -> Result<bool, A::Error> {
        let Some(setting) = Setting::named(name) else { return Ok(false) };
        match setting.kind {
            Kind::Number { set, .. } => {
                let value: Option<f32> = values.next_value()?;
                self.0.extend(value.map(|value| Change::Number(set, value)));
            }
            Kind::Count { set, .. } => {
                let count: Option<Count> = values.next_value()?;
                self.0.extend(count.map(|Count(count)| Change::Count(set, count)));
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

/// Maximum number of tokens; -1 stands for as many as fit into the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub enum TokenLimit {
    /// As many as fit.
    Unlimited,
    /// This many.
    Tokens(usize),
}

impl TryFrom<i64> for TokenLimit {
    type Error = &'static str;

    fn try_from(count: i64) -> Result<Self, Self::Error> {
        match usize::try_from(count) {
            Ok(count) => Ok(Self::Tokens(count)),
            Err(_) if count == -1 => Ok(Self::Unlimited),
            Err(_) => Err("must be at least 0, or -1 for as many as fit"),
        }
    }
}

/// Biases of tokens: an object with tokens as names, or a list of pairs.
#[derive(Clone, Debug, Default)]
pub struct Biases(pub Vec<(String, f32)>);

impl<'de> Deserialize<'de> for Biases {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items;

        impl<'de> Visitor<'de> for Items {
            type Value = Biases;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of biases by token, or a list of pairs of token and bias")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Biases, A::Error> {
                let mut biases = Vec::new();
                while let Some(bias) = items.next_entry()? {
                    biases.push(bias);
                }
                Ok(Biases(biases))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Biases, A::Error> {
                let mut biases = Vec::new();
                while let Some((token, bias)) = items.next_element::<(u64, f32)>()? {
                    biases.push((token.to_string(), bias));
                }
                Ok(Biases(biases))
            }
        }

        deserializer.deserialize_any(Items)
    }
}

fields! {
    /// Options of a stream.
    #[derive(Clone)]
    pub struct StreamOptions, others: Others::Unsupported(unsupported::STREAM_OPTIONS) => {
        /// If true, the last chunk contains the token counts.
        include_usage: bool,
    }
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

fields! {
    /// Output format.
    pub struct ResponseFormat, others: Others::Unsupported(&[]) => {
        /// `text`, or the kind of a constraint.
        kind as "type": String,
        /// Schema of the type `json_schema`.
        json_schema: Nested<NamedSchema>,
        /// Schema of the type `json_object`, as in llama.cpp.
        schema: Value,
        /// Regular expression of the type `regex`.
        regex: String,
        /// Grammar of the type `gbnf`.
        gbnf: String,
        /// Grammar of the type `lark`.
        lark: String,
        /// Grammar of the type `grammar`, in GBNF or Lark.
        grammar: String,
        /// Texts of the type `choice`.
        choice: Vec<String>,
        /// Text of the types `regex`, `gbnf`, `lark` and `grammar`, in place of the field of that name.
        value: Value,
        /// Tags of the type `structural_tag`.
        structures: Value,
        /// Beginnings of these tags.
        triggers: Value,
        /// Nested format of the type `structural_tag`.
        format: Value,
    }
}

fields! {
    /// A named JSON schema.
    pub struct NamedSchema, others: Others::Unsupported(&[]) => {
        /// Name, which has no effect.
        name: IgnoredAny,
        /// Description, which has no effect.
        description: IgnoredAny,
        /// Accepted and ignored, because the schema is always followed.
        strict: IgnoredAny,
        /// Schema; `None` allows any object.
        schema: Value,
    }
}

fields! {
    /// Fields that only chats have.
    pub struct ChatFields, others: Others::Unsupported(unsupported::CHAT) => {
        /// Messages of the conversation.
        messages: Vec<Message>,
        /// If true, log probabilities are returned.
        logprobs: bool,
        /// Number of alternatives to return with their log probabilities.
        top_logprobs: usize,
        /// Tools that the model may call, as the chat template expects them.
        tools: Vec<Value>,
        /// Tools that may or must be called.
        tool_choice: ToolChoice,
        /// If false, at most one tool call is returned.
        parallel_tool_calls: bool,
        /// Variables of the chat template, such as `enable_thinking`.
        chat_template_kwargs: Map<String, Value>,
        /// Effort of reasoning, which is a variable of the chat template.
        reasoning_effort: String,
        /// Documents for the chat template.
        documents: Vec<Value>,
        /// If false, the prompt ends with the last message instead of the beginning of an answer.
        add_generation_prompt: bool,
        /// If true, the answer continues the last message.
        continue_final_message: bool,
    }
}

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

/// A message of the conversation.
#[derive(Debug, Deserialize)]
pub struct Message {
    /// Role of the author.
    pub role: Role,
    /// Text; optional with `tool_calls`.
    pub content: Option<Content>,
    /// Name of the author or of the tool.
    pub name: Option<String>,
    /// Reasoning of the model before its answer.
    pub reasoning_content: Option<String>,
    /// Newer name of `reasoning_content` in vLLM; other servers' objects are ignored.
    pub reasoning: Option<Value>,
    /// Tool calls that the model made.
    pub tool_calls: Option<Vec<MessageToolCall>>,
    /// Id of the call whose result this is.
    pub tool_call_id: Option<String>,
}

/// Text of a message.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of parts with a type")]
pub enum Content {
    /// Plain text.
    Text(String),
    /// List of parts.
    Parts(Vec<Part>),
}

/// A part of a message's text.
#[derive(Debug, Deserialize)]
pub struct Part {
    /// Type of the part: `text`, or `image_url` if the model reads pictures.
    #[serde(rename = "type")]
    pub kind: String,
    /// Text.
    pub text: Option<String>,
    /// URL of a picture.
    pub image_url: Option<Value>,
}

/// Tool call of an earlier response.
#[derive(Debug, Deserialize)]
pub struct MessageToolCall {
    /// Id that the tool's result refers to.
    pub id: Option<String>,
    /// Called function.
    pub function: MessageFunction,
}

/// Called function.
#[derive(Debug, Deserialize)]
pub struct MessageFunction {
    /// Its name.
    pub name: String,
    /// Arguments, as a JSON string or as JSON.
    #[serde(default)]
    pub arguments: Value,
}

/// Tools that may or must be called.
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
    pub struct CompletionFields, others: Others::Unsupported(unsupported::COMPLETIONS) => {
        /// Prompts that the texts continue.
        prompt: Prompts,
        /// Number of alternatives to return with their log probabilities.
        logprobs: usize,
        /// If true, the texts begin with the prompt.
        echo: bool,
        /// Number of texts per prompt to generate, of which the `n` most likely are returned.
        best_of: usize,
    }
}

/// One prompt or several, as text or tokens.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of tokens or a list of lists of tokens"
)]
pub enum Prompts {
    /// One prompt, as text.
    Text(String),
    /// Several prompts, as text.
    Texts(Vec<String>),
    /// One prompt, as tokens.
    Tokens(Vec<u32>),
    /// Several prompts, as tokens.
    TokenLists(Vec<Vec<u32>>),
}

impl Prompts {
    /// Returns the prompts that are given as text.
    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::Text(text) => vec![text.clone()],
            Self::Texts(texts) => texts.clone(),
            Self::Tokens(_) | Self::TokenLists(_) => Vec::new(),
        }
    }
}

fields! {
    /// Body of `POST /v1/embeddings`.
    pub struct Embeddings, others: Others::Unsupported(unsupported::EMBEDDINGS) => {
        /// The model's name.
        model: String,
        /// Texts to embed.
        input: Prompts,
        /// `float` or `base64`.
        encoding_format: String,
        /// Number of leading elements of each vector to return.
        dimensions: usize,
        /// Maximum number of tokens to keep of each text; -1 is the model's limit.
        truncate_prompt_tokens: i64,
        /// If false, vectors are returned as the model computes them instead of with length 1.
        normalize: bool,
    }
}
