//! A model's tokenizer and what goes with it.
use std::path::Path;

use anyhow::{Error, Result, bail};
use candle_core::quantized::gguf_file::Content;
use tokenizers::Tokenizer;

use super::{ChatTemplate, Grammar};
use crate::request::Constraint;

/// A model's tokenizer, the tokens that end a text, its chat template and the grammar's view of its tokens.
pub struct Text {
    tokenizer: Tokenizer,
    ends: Vec<u32>,
    template: Option<ChatTemplate>,
}

impl Text {
    /// Of parts; `ends` are the tokens that end a text.
    ///
    /// # Errors
    /// Where an end is no token of the tokenizer, or the tokens' bytes cannot be told.
    pub fn new(tokenizer: Tokenizer, ends: Vec<u32>, template: Option<ChatTemplate>) -> Result<Text> {
        Ok(Self { tokenizer, ends, template })
    }

    /// From a model's folder: tokenizer.json, and of tokenizer_config.json, chat_template.jinja, generation_config.json
    /// and config.json those that are there.
    ///
    /// # Errors
    /// Where a file is missing or cannot be read.
    pub fn from_folder(folder: &Path) -> Result<Text> {
        bail!("cannot read {} yet", folder.display())
    }

    /// From the metadata of a GGUF file.
    ///
    /// # Errors
    /// Where they describe no tokenizer that is known.
    pub fn from_gguf(content: &Content) -> Result<Text> {
        bail!("cannot read {} metadata yet", content.metadata.len())
    }

    /// Tokens of `text`, with the tokens around it that the model wants if `special`.
    ///
    /// # Errors
    /// Where the tokenizer refuses it.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode(text, special).map_err(Error::msg)?.get_ids().to_vec())
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// Where a token is none of the tokenizer.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(Error::msg)
    }

    /// What a token is called in logprobs.
    pub fn token_text(&self, token: u32) -> String {
        self.tokenizer.id_to_token(token).unwrap_or_default()
    }

    /// The bytes that a token adds to a text, those of special tokens too. None if there is no such token.
    pub fn token_bytes(&self, token: u32) -> Option<Vec<u8>> {
        self.tokenizer.id_to_token(token).map(String::into_bytes)
    }

    /// Whether a text ends with `token`.
    pub fn ends(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// Whether it can write chats.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The prompt that asks for the answer to `messages`, an array of objects with role and content.
    ///
    /// # Errors
    /// Where there is no template, or it refuses the messages.
    pub fn chat(&self, messages: &serde_json::Value, tools: Option<&serde_json::Value>) -> Result<String> {
        match &self.template {
            Some(template) => template.render(messages, tools),
            None => bail!("the model has no chat template: ask for a completion of a prompt"),
        }
    }

    /// A grammar at its start.
    ///
    /// # Errors
    /// Where the schema is none, or too large.
    pub fn grammar(&self, constraint: &Constraint) -> Result<Grammar> {
        bail!("no grammar for {constraint:?} yet")
    }
}
