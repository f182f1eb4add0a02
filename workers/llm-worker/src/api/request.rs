//! The bodies of requests, as OpenAI has them and vLLM extends them. What is not here is refused, unless
//! [`super::unsupported`] knows that it does no harm.
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// What chats and completions share.
#[derive(Debug, Default, Deserialize)]
pub struct Common {
    /// The model's name; any request without one means the only model.
    pub model: Option<String>,
    /// Whether the text comes as it is written.
    pub stream: Option<bool>,
    /// What else a stream tells.
    pub stream_options: Option<StreamOptions>,
    /// How many texts to a prompt.
    pub n: Option<usize>,
    /// Ends the text where one of them would come.
    pub stop: Option<Strings>,
    /// The same seed gives the same text.
    pub seed: Option<i64>,
    /// Tokens to write at most.
    pub max_tokens: Option<usize>,
    /// The same by its later name.
    pub max_completion_tokens: Option<usize>,
    /// 0 to 2.
    pub temperature: Option<f32>,
    /// 0 to 1.
    pub top_p: Option<f32>,
    /// 0 to 1.
    pub min_p: Option<f32>,
    /// A count; 0 and -1 take all.
    pub top_k: Option<i64>,
    /// -2 to 2.
    pub presence_penalty: Option<f32>,
    /// -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// Above 0; llama.cpp and Ollama call it `repeat_penalty`.
    #[serde(alias = "repeat_penalty")]
    pub repetition_penalty: Option<f32>,
    /// By token, -100 to 100.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Goes on behind tokens that end a text.
    pub ignore_eos: Option<bool>,
    /// What the text must be.
    pub response_format: Option<ResponseFormat>,
}

/// What else a stream tells.
#[derive(Debug, Default, Deserialize)]
pub struct StreamOptions {
    /// A last chunk with the tokens that were read and written.
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

/// What the text must be.
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

/// What only chats have.
#[derive(Debug, Deserialize)]
pub struct Chat {
    /// The conversation.
    pub messages: Vec<Message>,
    /// Whether to tell probabilities.
    pub logprobs: Option<bool>,
    /// Of how many alternatives.
    pub top_logprobs: Option<usize>,
    /// What the model may call.
    pub tools: Option<Vec<Tool>>,
    /// Whether it does.
    pub tool_choice: Option<ToolChoice>,
    /// False takes the first call alone.
    pub parallel_tool_calls: Option<bool>,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The one who set the model up.
    System,
    /// The same by its later name.
    Developer,
    /// The one who asks.
    User,
    /// The model.
    Assistant,
    /// What a tool answered.
    Tool,
}

/// One turn.
#[derive(Debug, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; may be missing beside `tool_calls`.
    pub content: Option<Content>,
    /// The speaker's or the tool's name.
    pub name: Option<String>,
    /// What the model called.
    pub tool_calls: Option<Vec<AskedCall>>,
    /// Which call a tool answers.
    pub tool_call_id: Option<String>,
}

/// What is said.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of parts with a type")]
pub enum Content {
    /// In one piece.
    Text(String),
    /// In parts.
    Parts(Vec<Part>),
}

/// A part of what is said.
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
    /// What a tool's answer names.
    pub id: Option<String>,
    /// What was called.
    pub function: AskedFunction,
}

/// What was called.
#[derive(Debug, Deserialize)]
pub struct AskedFunction {
    /// Its name.
    pub name: String,
    /// JSON in a string, as the API has it, or JSON itself.
    #[serde(default)]
    pub arguments: Value,
}

/// What the model may call.
#[derive(Debug, Deserialize)]
pub struct Tool {
    /// `function`; there is nothing else.
    #[serde(rename = "type")]
    pub kind: String,
    /// The function.
    pub function: Option<Function>,
}

/// A function that the model may call.
#[derive(Clone, Debug, Deserialize)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The schema of its arguments.
    pub parameters: Option<Value>,
}

/// Whether tools are called.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected none, auto, required or an object that names a function")]
pub enum ToolChoice {
    /// `none`, `auto` or `required`.
    Word(String),
    /// This one.
    Named {
        /// Which.
        function: NamedFunction,
    },
}

/// Which function.
#[derive(Debug, Deserialize)]
pub struct NamedFunction {
    /// Its name.
    pub name: String,
}

/// What only completions have.
#[derive(Debug, Deserialize)]
pub struct Completion {
    /// What the texts begin with.
    pub prompt: Prompts,
    /// Of how many alternatives to tell probabilities.
    pub logprobs: Option<usize>,
}

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

/// A request of embeddings.
#[derive(Debug, Deserialize)]
pub struct Embeddings {
    /// The model's name.
    pub model: Option<String>,
    /// What to embed.
    pub input: Prompts,
    /// `float` or `base64`.
    pub encoding_format: Option<String>,
}
