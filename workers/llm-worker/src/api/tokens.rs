//! `POST /tokenize`, `/detokenize` and `/apply-template`, with the fields of both vLLM and llama.cpp.
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use worker_core::body::{Others, Table, required};
use worker_core::{ApiError, Body, blocking, fields};

use super::chat::ChatBody;
use super::pictures::PictureParts;
use super::request::Message;
use super::template_input::{Ending, TemplateInput};
use super::template_variables::variables;
use super::{messages, prompts, tokenizing};
use crate::models::Api;
use crate::served::ServedModel;

const TRUE: &[&str] = &["true"];

/// Unsupported fields, with their values without effect.
const UNSUPPORTED: &[Table] = &[&[
    ("add_generation_prompt", TRUE),
    ("chat_template_kwargs", &["{}"]),
    ("continue_final_message", &["false"]),
    ("parse_special", TRUE),
]];

fields! {
    /// Body of `POST /tokenize`. It has one of `content`, `prompt` and `messages`.
    pub struct TokenizeBody, others: Others::Unsupported(UNSUPPORTED) => {
        /// Model name; may be omitted.
        model: String,
        /// A text, which is tokenized without special tokens by default, as in llama.cpp.
        content: String,
        /// A text, which is tokenized with special tokens by default, as in vLLM.
        prompt: String,
        /// Messages, which are rendered by the chat template.
        messages: Vec<Message>,
        /// Tools of the messages.
        tools: Vec<Value>,
        /// If true, adds the tokens that the model expects around a text.
        add_special: bool,
        /// vLLM's name of `add_special`.
        add_special_tokens: bool,
        /// If true, each token is returned with its text.
        with_pieces: bool,
        /// If true, the texts of the tokens are returned as a list.
        return_token_strs: bool,
    }
}

fields! {
    /// Body of `POST /detokenize`.
    pub struct DetokenizeBody, others: Others::Unsupported(&[]) => {
        /// Model name; may be omitted.
        model: String,
        /// Tokens of a text.
        tokens: Vec<u32>,
    }
}

/// Handles `POST /tokenize`.
pub async fn tokenize(
    State(api): State<Api>,
    Body(body): Body<TokenizeBody>,
) -> Result<Json<Value>, ApiError> {
    let served = api.served()?.model(body.model.as_deref()).await?;
    served.requested(body.model.as_deref())?;
    let (pieces, strings) = (body.with_pieces == Some(true), body.return_token_strs == Some(true));
    let source = Source::of(body, &served)?;
    tokenizing::run(&served, source.bytes(), move |served| {
        let tokens = source.encode(served)?;
        let text = served.engine.text();
        let listed: Vec<Value> = match pieces {
            true => tokens.iter().map(|&id| json!({ "id": id, "piece": piece(served, id) })).collect(),
            false => tokens.iter().map(|&id| json!(id)).collect(),
        };
        let strings = strings.then(|| tokens.iter().map(|&id| text.token_text(id)).collect::<Vec<_>>());
        Ok(Json(json!({
            "tokens": listed,
            "count": tokens.len(),
            "max_model_len": served.context(),
            "token_strs": strings,
        })))
    })
    .await
}

/// Text to tokenize.
struct Source {
    input: Input,
    /// If true, adds the tokens that the model expects around a text.
    special: bool,
    /// Field of the text.
    param: &'static str,
}

enum Input {
    Text(String),
    Messages(Box<TemplateInput>),
}

impl Source {
    fn of(body: TokenizeBody, served: &ServedModel) -> Result<Self, ApiError> {
        let (input, special, param) = match (body.content, body.prompt, body.messages) {
            (Some(content), None, None) => (Input::Text(content), false, "content"),
            (None, Some(prompt), None) => (Input::Text(prompt), true, "prompt"),
            (None, None, Some(messages)) => {
                let tools = messages::tools(body.tools.unwrap_or_default(), None)?.for_template;
                let mut parts = PictureParts::of(served);
                let conversation = messages::for_template(messages, &mut parts)?;
                let pictures = parts.into_sources();
                let input = TemplateInput { conversation, pictures, tools, ..TemplateInput::default() };
                (Input::Messages(Box::new(input)), false, "messages")
            }
            _ => return Err(ApiError::invalid("set exactly one of `content`, `prompt` and `messages`")),
        };
        let special = body.add_special.or(body.add_special_tokens).unwrap_or(special);
        Ok(Self { input, special, param })
    }

    fn bytes(&self) -> usize {
        match &self.input {
            Input::Text(text) => text.len(),
            Input::Messages(input) => input.bytes(),
        }
    }

    fn encode(self, served: &ServedModel) -> Result<Vec<u32>, ApiError> {
        let text = match self.input {
            Input::Text(text) => text,
            Input::Messages(input) => input.render(served, self.param)?,
        };
        let tokens = served.engine.text().encode(&text, self.special);
        tokens.map_err(|error| prompts::rejected(self.param, &error))
    }
}

/// Returns the text of a token, or its bytes if they are not UTF-8, as in llama.cpp.
fn piece(served: &ServedModel, token: u32) -> Value {
    let bytes = served.engine.text().token_bytes(token).unwrap_or_default();
    std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text))
}

/// Handles `POST /detokenize`. The text contains special tokens.
pub async fn detokenize(
    State(api): State<Api>,
    Body(body): Body<DetokenizeBody>,
) -> Result<Json<Value>, ApiError> {
    let served = api.served()?.model(body.model.as_deref()).await?;
    served.requested(body.model.as_deref())?;
    let tokens = required(body.tokens, "tokens")?;
    let vocabulary = served.engine.capacity().vocabulary;
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
        let message = format!("contains {token}, but tokens must be below {vocabulary}");
        return Err(ApiError::field("tokens", message));
    }
    let text = blocking(move || decode(&served, &tokens)).await?;
    Ok(Json(json!({ "content": text, "prompt": text })))
}

fn decode(served: &Arc<ServedModel>, tokens: &[u32]) -> Result<String, ApiError> {
    let text = served.engine.text();
    let failed = |error| prompts::rejected("tokens", &error);
    let bytes = tokens.iter().flat_map(|token| text.token_bytes(*token).unwrap_or_default());
    let mut whole = String::from_utf8_lossy(&bytes.copied().collect::<Vec<u8>>()).into_owned();
    // The tokenizer inserts a space before the first word, which is not part of the text.
    let inserts_space = text.decode(tokens).map_err(failed)? != text.decode_after(tokens).map_err(failed)?;
    if inserts_space && whole.starts_with(' ') {
        whole.remove(0);
    }
    Ok(whole)
}

/// Handles `POST /apply-template`: renders the prompt of a chat. It takes the fields of `/v1/chat/completions`.
pub async fn apply_template(
    State(api): State<Api>,
    Body((own, common, ..)): Body<ChatBody>,
) -> Result<Json<Value>, ApiError> {
    let served = api.served()?.model(common.model.as_deref()).await?;
    served.requested(common.model.as_deref())?;
    let ending = Ending::of(&own)?;
    let tools = messages::tools(own.tools.unwrap_or_default(), own.tool_choice)?.for_template;
    let variables = variables(own.chat_template_kwargs, own.reasoning_effort, own.documents)?;
    let mut parts = PictureParts::of(&served);
    let conversation = messages::for_template(required(own.messages, "messages")?, &mut parts)?;
    let input = TemplateInput { conversation, pictures: parts.into_sources(), tools, variables, ending };
    let bytes = input.bytes();
    let render = move |served: &ServedModel| input.render(served, "messages");
    let prompt = tokenizing::run(&served, bytes, render).await?;
    Ok(Json(json!({ "prompt": prompt })))
}
