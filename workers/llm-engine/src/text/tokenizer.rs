//! A model's tokenizer with its end-of-text tokens, chat template and grammars.
use anyhow::{Context, Error, Result, bail, ensure};
use serde_json::Value;
use tokenizers::Tokenizer;

use super::grammar::{Grammar, GrammarCompiler};
use super::template::ChatTemplate;
use super::token_bytes::TokenBytes;
use crate::request::Constraint;

/// A model's tokenizer, end-of-text tokens, chat template and grammar compiler.
pub struct TextCodec {
    tokenizer: Tokenizer,
    token_bytes: TokenBytes,
    ends: Vec<u32>,
    template: Option<ChatTemplate>,
    grammar_compiler: GrammarCompiler,
}

impl TextCodec {
    /// Creates it from its parts; `ends` are the end-of-text tokens.
    ///
    /// # Errors
    /// Returns an error if an end-of-text token is not in the vocabulary.
    pub fn new(
        mut tokenizer: Tokenizer,
        mut ends: Vec<u32>,
        template: Option<ChatTemplate>,
    ) -> Result<TextCodec> {
        // Padding and truncation are training settings that would alter prompts.
        tokenizer.with_padding(None).with_truncation(None).map_err(Error::msg)?;
        let token_bytes = TokenBytes::of(&tokenizer);
        ends.sort_unstable();
        ends.dedup();
        if let Some(end) = ends.iter().find(|end| **end as usize >= token_bytes.count()) {
            bail!("end-of-text token {end} is not among the {} tokens of the tokenizer", token_bytes.count());
        }
        Ok(Self { tokenizer, token_bytes, ends, template, grammar_compiler: GrammarCompiler::default() })
    }

    /// Tokenizes `text`. If `special`, adds the tokens that the model expects around a text. Special tokens
    /// written in the text are recognized. Pass false for the output of [`TextCodec::chat`], which already
    /// contains them.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoded = self.tokenizer.encode_fast(text, special).map_err(Error::msg);
        Ok(encoded.context("the tokenizer rejected the text")?.get_ids().to_vec())
    }

    /// Decodes tokens from the start of a text, without special tokens. Invalid UTF-8 becomes U+FFFD, and a
    /// first space that the tokenizer inserted is dropped. Unused token ids, which pad a model's vocabulary,
    /// add nothing.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let mut text = self.decode_after(tokens)?;
        if self.token_bytes.drops_first_space() && text.starts_with(' ') {
            text.remove(0);
        }
        Ok(text)
    }

    /// Like [`TextCodec::decode`], for tokens that follow others: their first space is part of the text.
    pub fn decode_after(&self, tokens: &[u32]) -> Result<String> {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| self.visible_bytes(*token)).copied().collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the display text of a token for log probabilities, including special tokens. Partial
    /// characters become U+FFFD.
    pub fn token_text(&self, token: u32) -> String {
        String::from_utf8_lossy(self.token_bytes.bytes(token).unwrap_or_default()).into_owned()
    }

    /// Returns the bytes of a token, including special tokens; `None` if there is no such token.
    pub fn token_bytes(&self, token: u32) -> Option<&[u8]> {
        self.token_bytes.bytes(token)
    }

    /// Returns the highest token id of the tokenizer plus one. A model's vocabulary may be larger.
    pub fn vocabulary(&self) -> usize {
        self.token_bytes.count()
    }

    /// Returns the tokens that end a text.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Returns true if `token` ends a text.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.binary_search(&token).is_ok()
    }

    /// Returns true if the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Renders the prompt for the model's answer to `messages`, an array of objects with `role` and `content`
    /// as in OpenAI's API. Further fields are passed to the template. `tools` is an array as in that API.
    ///
    /// # Errors
    /// Returns an error if there is no template or it rejects the messages.
    pub fn chat(&self, messages: &Value, tools: Option<&Value>) -> Result<String> {
        match &self.template {
            Some(template) => template.render(messages, tools),
            None => bail!("the model has no chat template; request a completion instead"),
        }
    }

    /// Like [`TextCodec::chat`], but without the beginning of an answer after the messages.
    ///
    /// # Errors
    /// Returns an error if there is no template or it rejects the messages.
    pub fn chat_history(&self, messages: &Value, tools: Option<&Value>) -> Result<String> {
        match &self.template {
            Some(template) => template.render_history(messages, tools),
            None => bail!("the model has no chat template; request a completion instead"),
        }
    }

    /// Like [`TextCodec::chat`], but the last message, which is the beginning of the answer, stays open. As in
    /// Transformers, the text ends with that message's content.
    ///
    /// # Errors
    /// Returns an error if the last message has no text or the template does not write it.
    pub fn chat_continued(&self, messages: &Value, tools: Option<&Value>) -> Result<String> {
        let last = messages.as_array().and_then(|messages| messages.last());
        let content = last.and_then(|last| last["content"].as_str()).unwrap_or_default();
        let words = content.trim();
        ensure!(!words.is_empty(), "the last message has no text to continue");
        let mut text = self.chat_history(messages, tools)?;
        let start = text.rfind(words).context("the chat template does not write the last message's text")?;
        // Templates may trim the content.
        let kept = content.trim_start();
        let kept = if text[start..].starts_with(kept) { kept } else { words };
        text.truncate(start + kept.len());
        Ok(text)
    }

    /// Returns true for tokens that are no part of the text, such as those that begin or end it.
    pub fn is_special(&self, token: u32) -> bool {
        self.token_bytes.is_special(token)
    }

    /// Compiles a constraint. The first call takes longer because it builds a tree of the vocabulary.
    ///
    /// # Errors
    /// Returns an error if the schema is invalid, unsupported or too large.
    pub fn grammar(&self, constraint: &Constraint) -> Result<Grammar> {
        ensure!(!self.ends.is_empty(), "a grammar needs an end-of-text token, which the model does not have");
        self.grammar_compiler.compile(&self.token_bytes, &self.ends, constraint)
    }

    /// Returns the bytes that a token adds to a text.
    pub(super) fn visible_bytes(&self, token: u32) -> &[u8] {
        self.token_bytes.visible_bytes(token)
    }
}
