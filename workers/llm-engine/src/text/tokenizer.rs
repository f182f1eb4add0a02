//! A model's tokenizer and what goes with it.
use anyhow::{Context, Error, Result, bail, ensure};
use serde_json::Value;
use tokenizers::Tokenizer;

use super::grammar::{Grammar, Grammars};
use super::pieces::Pieces;
use super::template::ChatTemplate;
use crate::request::Constraint;

/// A model's tokenizer, the tokens that end a text, its chat template and the grammar's view of its tokens.
pub struct Text {
    tokenizer: Tokenizer,
    pieces: Pieces,
    ends: Vec<u32>,
    template: Option<ChatTemplate>,
    grammars: Grammars,
}

impl Text {
    /// Of parts; `ends` are the tokens that end a text.
    ///
    /// # Errors
    /// Where an end is no token of the tokenizer.
    pub fn new(mut tokenizer: Tokenizer, mut ends: Vec<u32>, template: Option<ChatTemplate>) -> Result<Text> {
        // What a file says about batches for training would cut or fill up a prompt.
        tokenizer.with_padding(None).with_truncation(None).map_err(Error::msg)?;
        let pieces = Pieces::of(&tokenizer);
        ends.sort_unstable();
        ends.dedup();
        if let Some(end) = ends.iter().find(|end| **end as usize >= pieces.count()) {
            bail!("token {end}, which ends a text, is none of the tokenizer's {}", pieces.count());
        }
        Ok(Self { tokenizer, pieces, ends, template, grammars: Grammars::default() })
    }

    /// Tokens of `text`, with those around it that the model wants if `special`. Text that is written like a special
    /// token is that token. A chat of [`Text::chat`] has its own special tokens already: encode it without.
    ///
    /// # Errors
    /// Where the tokenizer refuses it.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoded = self.tokenizer.encode_fast(text, special).map_err(Error::msg);
        Ok(encoded.context("the tokenizer refuses the text")?.get_ids().to_vec())
    }

    /// The text of tokens from its start on, without special ones: U+FFFD for bytes that are no character, and without
    /// the first space where the tokenizer puts one before each text. Numbers that are no token, as those that fill up a
    /// model's vocabulary, add nothing.
    ///
    /// # Errors
    /// Never so far.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let mut text = self.decode_after(tokens)?;
        if self.pieces.drops_first_space() && text.starts_with(' ') {
            text.remove(0);
        }
        Ok(text)
    }

    /// As [`Text::decode`], but of tokens that go on behind others: their first space is part of the text.
    ///
    /// # Errors
    /// Never so far.
    pub fn decode_after(&self, tokens: &[u32]) -> Result<String> {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| self.shown(*token)).copied().collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What a token is called in log probabilities: its text, special ones too, U+FFFD where it is part of a character.
    pub fn token_text(&self, token: u32) -> String {
        String::from_utf8_lossy(self.pieces.bytes(token).unwrap_or_default()).into_owned()
    }

    /// The bytes of a token, special ones too; none if there is no such token.
    pub fn token_bytes(&self, token: u32) -> Option<&[u8]> {
        self.pieces.bytes(token)
    }

    /// Tokens of the tokenizer: one above the highest. A model's vocabulary may be larger.
    pub fn vocabulary(&self) -> usize {
        self.pieces.count()
    }

    /// Whether a text ends with `token`.
    pub fn ends(&self, token: u32) -> bool {
        self.ends.binary_search(&token).is_ok()
    }

    /// Whether it can write chats.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The prompt that asks for the answer to `messages`, as OpenAI's API has them: an array of objects with `role`,
    /// `content` and what else the template knows. `tools` is an array as in that API.
    ///
    /// # Errors
    /// Where there is no template, or it refuses the messages.
    pub fn chat(&self, messages: &Value, tools: Option<&Value>) -> Result<String> {
        match &self.template {
            Some(template) => template.render(messages, tools),
            None => bail!("the model has no chat template: ask for a completion of a prompt"),
        }
    }

    /// A grammar at its start. The first one of a vocabulary takes longer: its tokens are sorted into a tree.
    ///
    /// # Errors
    /// Where the schema is none, asks for what is not known, or is too large.
    pub fn grammar(&self, constraint: &Constraint) -> Result<Grammar> {
        ensure!(!self.ends.is_empty(), "the model has no token that ends a text, which a grammar needs");
        self.grammars.start(&self.pieces, &self.ends, constraint)
    }

    /// What a token adds to a text.
    pub(super) fn shown(&self, token: u32) -> &[u8] {
        self.pieces.shown(token)
    }
}
