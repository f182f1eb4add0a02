//! A model's tokenizer with its end-of-text tokens, chat template and grammars.
use anyhow::{Context, Error, Result, bail, ensure};
use serde_json::{Map, Value};
use tokenizers::Tokenizer;

use super::grammar::{Grammar, GrammarCompiler};
use super::template::ChatTemplate;
use super::text_splitter::TextSplitter;
use super::token_bytes::TokenBytes;
use crate::request::Constraint;

/// Text that marks the end of a message that stays open, as in Transformers. Some templates recognize it.
const CONTINUATION_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A model's tokenizer, end-of-text tokens, chat template and grammar compiler.
pub struct TextCodec {
    tokenizer: Tokenizer,
    token_bytes: TokenBytes,
    splitter: TextSplitter,
    /// Tokens that the model expects before and after a text.
    added_tokens: Option<[Vec<u32>; 2]>,
    ends: Vec<u32>,
    pub(super) template: Option<ChatTemplate>,
    /// Prompt for pairs of texts, with `{query}` and `{document}`.
    pub(super) pair_prompt: Option<String>,
    /// Texts of the BOS and EOS tokens, which templates use.
    pub(super) special_texts: [String; 2],
    grammar_compiler: GrammarCompiler,
}

impl TextCodec {
    /// Creates a codec from its parts; `ends` are the end-of-text tokens.
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
        let splitter = TextSplitter::of(&tokenizer, &token_bytes);
        let added_tokens = tokens_around(&tokenizer);
        ends.sort_unstable();
        ends.dedup();
        if let Some(end) = ends.iter().find(|end| **end as usize >= token_bytes.count()) {
            bail!("end-of-text token {end} is not among the {} tokens of the tokenizer", token_bytes.count());
        }
        let (special_texts, grammar_compiler) = Default::default();
        let pair_prompt = None;
        Ok(Self {
            tokenizer,
            token_bytes,
            splitter,
            added_tokens,
            ends,
            template,
            pair_prompt,
            special_texts,
            grammar_compiler,
        })
    }

    /// Tokenizes `text`. If `special`, adds the tokens that the model expects around a text. Special tokens
    /// written in the text are recognized. Pass false for the output of [`TextCodec::chat`], which already
    /// contains them.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        Ok(self.encode_within(text, special, usize::MAX)?.unwrap_or_default())
    }

    /// Like [`TextCodec::encode`]. Returns `None`, without tokenizing all of it, for a long text that has more than
    /// `limit` tokens. Short texts are always tokenized. Time and memory are linear in the length of the text up to the
    /// limit.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn encode_within(&self, text: &str, special: bool, limit: usize) -> Result<Option<Vec<u32>>> {
        if text.len() > self.max_bytes(limit) {
            return Ok(None);
        }
        let mut pieces = self.splitter.pieces(text).peekable();
        let (Some(first), Some([before, after])) = (pieces.next(), &self.added_tokens) else {
            return Ok(Some(self.encode_piece(text, special)?));
        };
        if pieces.peek().is_none() && self.splitter.samples(first).is_none() {
            return Ok(Some(self.encode_piece(first, special)?));
        }
        let mut tokens = if special { before.clone() } else { Vec::new() };
        for piece in std::iter::once(first).chain(pieces) {
            if self.exceeds(piece, limit.saturating_sub(tokens.len()))? {
                return Ok(None);
            }
            tokens.extend(self.encode_piece(piece, false)?);
            if tokens.len() > limit {
                return Ok(None);
            }
        }
        if special {
            tokens.extend_from_slice(after);
        }
        Ok(Some(tokens))
    }

    /// Returns the length in bytes above which a text has more than `tokens` tokens, whatever it contains.
    pub fn max_bytes(&self, tokens: usize) -> usize {
        self.splitter.max_bytes(tokens)
    }

    /// Returns true if a piece that cannot be split certainly has more than `limit` tokens.
    fn exceeds(&self, piece: &str, limit: usize) -> Result<bool> {
        if limit == usize::MAX {
            return Ok(false);
        }
        // Splits inside of tokens add few tokens, so twice the limit leaves a sufficient margin.
        let mut left = limit.saturating_mul(2);
        for sample in self.splitter.samples(piece).into_iter().flatten() {
            match left.checked_sub(self.encode_piece(sample, false)?.len()) {
                Some(rest) => left = rest,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    fn encode_piece(&self, text: &str, special: bool) -> Result<Vec<u32>> {
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

    /// Adds tokens that end a text, as far as the vocabulary has them.
    pub(super) fn add_ends<'a>(&mut self, texts: impl IntoIterator<Item = &'a str>) {
        self.ends.extend(texts.into_iter().filter_map(|text| self.tokenizer.token_to_id(text)));
        self.ends.sort_unstable();
        self.ends.dedup();
    }

    /// Returns the id of a token by its text.
    pub(super) fn token_id(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    /// Returns true if `token` ends a text.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.binary_search(&token).is_ok()
    }

    /// Returns the special token with this text.
    pub fn special_token(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text).filter(|token| self.token_bytes.is_special(*token))
    }

    /// Returns true if the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Returns the chat template, if the model has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// Renders the prompt for the model's answer to `messages`, an array of objects with `role` and `content`
    /// as in OpenAI's API. Further fields are passed to the template. `tools` is an array as in that API.
    ///
    /// # Errors
    /// Returns an error if there is no template or it rejects the messages.
    pub fn chat(&self, messages: &Value, tools: Option<&Value>) -> Result<String> {
        self.chat_with(messages, tools, None)
    }

    /// Like [`TextCodec::chat`], with further variables of the template, such as `enable_thinking`.
    ///
    /// # Errors
    /// Returns an error if there is no template or it rejects the messages.
    pub fn chat_with(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        variables: Option<&Map<String, Value>>,
    ) -> Result<String> {
        match &self.template {
            Some(template) => template.prompt(messages, tools, variables),
            None => bail!("the model has no chat template; request a completion instead"),
        }
    }

    /// Like [`TextCodec::chat_with`], but without the beginning of an answer after the messages.
    ///
    /// # Errors
    /// Returns an error if there is no template or it rejects the messages.
    pub fn chat_history(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        variables: Option<&Map<String, Value>>,
    ) -> Result<String> {
        let mut variables = variables.cloned().unwrap_or_default();
        variables.insert("add_generation_prompt".into(), false.into());
        self.chat_with(messages, tools, Some(&variables))
    }

    /// Like [`TextCodec::chat_with`], but the last message, which is the beginning of the answer, stays open. As in
    /// Transformers, the text ends with that message's content.
    ///
    /// # Errors
    /// Returns an error if the last message has no text or the template does not write it.
    pub fn chat_continued(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        variables: Option<&Map<String, Value>>,
    ) -> Result<String> {
        let mut tagged = messages.clone();
        let last = tagged.as_array_mut().and_then(|messages| messages.last_mut());
        let content = last.and_then(|last| last.get_mut("content"));
        let content = match content {
            Some(Value::String(content)) if !content.trim().is_empty() => content,
            _ => bail!("the last message has no text to continue"),
        };
        content.push_str(CONTINUATION_TAG);
        let mut text = self.chat_history(&tagged, tools, variables)?;
        let end = text.rfind(CONTINUATION_TAG.trim_end());
        let end = end.context("the chat template does not write the last message's text")?;
        // A template that trims the tag would also have trimmed the content.
        let is_trimmed = !text[end..].starts_with(CONTINUATION_TAG);
        text.truncate(end);
        if is_trimmed {
            text.truncate(text.trim_end().len());
        }
        Ok(text)
    }

    /// Returns true for tokens that are not part of the text, such as those that begin or end it.
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

    /// Returns the tokenizer.
    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns the bytes that a token adds to a text.
    pub(super) fn visible_bytes(&self, token: u32) -> &[u8] {
        self.token_bytes.visible_bytes(token)
    }
}

/// Returns the tokens that the tokenizer adds before and after a text; `None` if it changes the text otherwise.
fn tokens_around(tokenizer: &Tokenizer) -> Option<[Vec<u32>; 2]> {
    let encode = |special| Some(tokenizer.encode_fast("a", special).ok()?.get_ids().to_vec());
    let (plain, whole) = (encode(false)?, encode(true)?);
    let start = whole.windows(plain.len().max(1)).position(|window| window == plain)?;
    Some([whole[..start].to_vec(), whole[start + plain.len()..].to_vec()])
}
