//! Inputs of the chat template, and the prompt that it writes.
use std::sync::Arc;

use llm_engine::model::vision::Placement;
use serde_json::{Map, Value};
use worker_core::ApiError;

use super::failure::{self, rejected};
use super::pictures::{self, PictureSource};
use super::request::ChatFields;
use super::{call_ids, messages, tokenizing};
use crate::served::ServedModel;

/// End of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// With the beginning of an answer.
    #[default]
    Answer,
    /// With the last message.
    Message,
    /// Within the last message, which the answer continues.
    Open,
}

impl Ending {
    /// Reads the fields, whose names and meaning are those of vLLM and Transformers.
    ///
    /// # Errors
    /// Returns a 400 error if the fields contradict each other.
    pub fn of(own: &ChatFields) -> Result<Self, ApiError> {
        match (own.continue_final_message.unwrap_or(false), own.add_generation_prompt) {
            (true, Some(true)) => Err(ApiError::field(
                "continue_final_message",
                "cannot be combined with `add_generation_prompt: true`",
            )),
            (true, _) => Ok(Self::Open),
            (false, Some(false)) => Ok(Self::Message),
            (false, _) => Ok(Self::Answer),
        }
    }
}

/// A conversation with everything else that the chat template receives.
#[derive(Debug, Default)]
pub struct TemplateInput {
    /// List of messages.
    pub conversation: Value,
    /// Pictures of the messages, in order.
    pub pictures: Vec<PictureSource>,
    /// List of tools.
    pub tools: Option<Value>,
    /// Further variables.
    pub variables: Map<String, Value>,
    /// End of the prompt.
    pub ending: Ending,
}

/// A prompt.
#[derive(Debug)]
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its pictures and their places.
    pub pictures: Vec<Placement>,
    /// Its text.
    pub text: String,
    /// Text of the last message, if the answer continues it.
    pub continued: Option<String>,
}

impl TemplateInput {
    /// Returns the number of bytes of all texts.
    pub fn bytes(&self) -> usize {
        tokenizing::text_bytes(&self.conversation)
    }

    /// Renders the conversation, which is the field `param`, with the model's chat template.
    ///
    /// # Errors
    /// Returns a 400 error if there is no template or it rejects the conversation.
    pub fn render(&self, served: &ServedModel, param: &str) -> Result<String, ApiError> {
        let text = served.engine.text();
        if !text.has_template() {
            let message = format!("{} has no chat template; use /v1/completions", served.name.as_str());
            return Err(ApiError::invalid(message).with_code("no_chat_template").with_param(param));
        }
        let mut thinking = None;
        if text.template().is_some_and(|template| template.contains("message.thinking")) {
            messages::add_thinking(thinking.insert(self.conversation.clone()));
        }
        let conversation = thinking.as_ref().unwrap_or(&self.conversation);
        let (tools, variables) = (self.tools.as_ref(), Some(&self.variables));
        let write = |conversation: &Value| match self.ending {
            Ending::Answer => text.chat_with(conversation, tools, variables),
            Ending::Message => text.chat_history(conversation, tools, variables),
            Ending::Open => text.chat_continued(conversation, tools, variables),
        };
        let written = write(conversation).or_else(|refused| match call_ids::with_short_ids(conversation) {
            Some(conversation) => write(&conversation).map_err(|_| refused),
            None => Err(refused),
        });
        written.map_err(|error| rejected(param, &error))
    }

    /// Returns the prompt, which may have `limit` tokens.
    ///
    /// # Errors
    /// As [`Self::render`]; also returns a 400 error for a prompt that is too long.
    pub async fn prompt(
        mut self,
        served: &Arc<ServedModel>,
        limit: usize,
        param: &'static str,
    ) -> Result<Prompt, ApiError> {
        let files = pictures::fetch(std::mem::take(&mut self.pictures), served, param).await?;
        let bytes = self.bytes();
        tokenizing::check_bytes(served, bytes, limit, param)?;
        let processed = pictures::processed(served, files, limit, param).await?;
        tokenizing::run(served, bytes, move |served| {
            let text_of_token = |token| served.engine.text().token_text(token);
            let processor = served.engine.image_processor().ok();
            let processor = processor.filter(|_| !processed.is_empty());
            let misplaced = |error| ApiError::field(param, format!("cannot be written: {error}"));
            let mut text = self.render(served, param)?;
            if let Some(processor) = processor {
                text = processor.place(&text, &processed, &text_of_token).map_err(misplaced)?;
            }
            // The template's output already contains the BOS token.
            let mut tokens = tokenizing::encode_one(served, &text, false, limit, param)?;
            let mut pictures = Vec::new();
            if let Some(processor) = processor {
                (tokens, pictures) =
                    processor.expand(&tokens, &processed, &text_of_token).map_err(misplaced)?;
                if tokens.len() > limit {
                    return Err(failure::too_long(limit, param));
                }
            }
            let last = self.conversation.as_array().and_then(|messages| messages.last());
            let last = last.filter(|_| self.ending == Ending::Open);
            let continued = last.and_then(|last| last["content"].as_str()).map(str::to_owned);
            Ok(Prompt { tokens, pictures, text, continued })
        })
        .await
    }
}
