//! CLIP tokenizer, which pads prompts to a fixed length.
use std::ops::Range;
use std::path::Path;

use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Lowercase, NFC, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use super::prompt::{Segment, parse};
use crate::{Error, Result};

const START: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";
/// Pattern of the pre-tokenizer of CLIP.
const WORDS: &str =
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

/// A tokenized prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids, as many as the encoder has positions.
    pub tokens: Vec<u32>,
    /// Index of the end token.
    pub end: usize,
    /// True if the text was too long and has been truncated.
    pub truncated: bool,
}

/// Maximum number of tokens after a comma that are moved to the next chunk, so that it begins after the comma.
const COMMA_DISTANCE: usize = 20;
/// Maximum number of chunks of a prompt.
const MAX_CHUNKS: usize = 32;

/// A part of a prompt that fits into the text encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// Token ids, as many as the encoder has positions.
    pub tokens: Vec<u32>,
    /// Weight of each token.
    pub weights: Vec<f32>,
    /// Index of the end token.
    pub end: usize,
}

/// Tokenizer with the start, end and padding tokens of prompts.
#[derive(Debug)]
pub struct ClipTokenizer {
    tokenizer: Tokenizer,
    start: u32,
    end: u32,
    pad: u32,
    length: usize,
    /// Names in lower case that stand for several tokens, the longest first, and these tokens.
    names: Vec<(String, Range<u32>)>,
}

impl ClipTokenizer {
    /// Loads tokenizer.json, or vocab.json and merges.txt; prompts will have `length` tokens.
    ///
    /// # Errors
    /// A file is missing or invalid, or the vocabulary lacks the start or end token.
    pub fn from_folder(folder: &Path, length: usize) -> Result<Self> {
        // Stable Diffusion 2 and XL have a separate padding token. The older file takes precedence.
        let pad = ["special_tokens_map.json", "tokenizer_config.json"]
            .iter()
            .find_map(|name| pad_token(&folder.join(name)));
        Self::with_padding(folder, length, pad.as_deref())
    }

    /// Like [`Self::from_folder`], for a folder or a tokenizer.json, with the padding token `pad`, or the end token.
    ///
    /// # Errors
    /// As [`Self::from_folder`].
    pub(super) fn with_padding(path: &Path, length: usize, pad: Option<&str>) -> Result<Self> {
        let bad = |e: tokenizers::Error| Error::model(format!("tokenizer in {}: {e}", path.display()));
        let whole = if path.is_file() { path.to_owned() } else { path.join("tokenizer.json") };
        for name in ["vocab.json", "merges.txt"] {
            if !whole.exists() && !path.join(name).exists() {
                return Err(Error::model(format!(
                    "{} has neither tokenizer.json nor {name}",
                    path.display()
                )));
            }
        }
        let tokenizer = match whole.exists() {
            true => Tokenizer::from_file(whole),
            false => from_merges(path),
        };
        let mut tokenizer = tokenizer.map_err(bad)?;
        // Discard stored padding and truncation, because `encode` does both.
        tokenizer.with_padding(None).with_truncation(None).map_err(bad)?;
        let id = |token: &str| {
            let id = tokenizer.token_to_id(token);
            id.ok_or_else(|| Error::model(format!("tokenizer in {}: no token {token}", path.display())))
        };
        let (start, end) = (id(START)?, id(END)?);
        let pad = pad.map_or(Ok(end), id)?;
        if length < 2 {
            return Err(Error::model(format!("a text encoder needs at least 2 positions, got {length}")));
        }
        Ok(Self { tokenizer, start, end, pad, length, names: Vec::new() })
    }

    /// Returns the number of tokens of the vocabulary.
    pub(super) fn vocabulary(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Adds a name that stands for `tokens` wherever it is a word of a prompt, in upper or lower case.
    pub(super) fn add_name(&mut self, name: &str, tokens: Range<u32>) {
        self.names.push((name.to_lowercase(), tokens));
        self.names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    }

    /// Splits a prompt with weights of words into chunks, as AUTOMATIC1111 does. Returns at least one chunk, and whether
    /// the prompt was too long and has been truncated.
    ///
    /// # Errors
    /// The tokenizer rejects the text, or a weight is too large.
    pub fn chunks(&self, prompt: &str) -> Result<(Vec<Chunk>, bool)> {
        let limit = self.length - 2;
        let comma = self.tokenizer.token_to_id(",</w>");
        let mut chunks = Vec::new();
        let mut words: Vec<(u32, f32)> = Vec::new();
        let mut after_comma = None;
        for segment in parse(prompt)? {
            let Segment::Text(text, weight) = segment else {
                chunks.push(self.chunk(std::mem::take(&mut words)));
                after_comma = None;
                continue;
            };
            for token in self.ids(&text)? {
                // The tokens of a name stay together.
                let count = self.names.iter().find(|(_, tokens)| tokens.start == token);
                let count = count.map_or(1, |(_, tokens)| tokens.len().min(limit));
                let is_full = words.len() + count > limit;
                if Some(token) == comma {
                    after_comma = Some(words.len() + 1);
                } else if is_full
                    && let Some(start) = after_comma.filter(|start| limit + 1 - start <= COMMA_DISTANCE)
                {
                    let moved = words.split_off(start);
                    chunks.push(self.chunk(std::mem::replace(&mut words, moved)));
                    after_comma = None;
                }
                if words.len() + count > limit {
                    chunks.push(self.chunk(std::mem::take(&mut words)));
                    after_comma = None;
                }
                words.push((token, weight as f32));
            }
        }
        if !words.is_empty() || chunks.is_empty() {
            chunks.push(self.chunk(words));
        }
        let truncated = chunks.len() > MAX_CHUNKS;
        chunks.truncate(MAX_CHUNKS);
        Ok((chunks, truncated))
    }

    /// Frames tokens by start and end token and pads them.
    fn chunk(&self, words: Vec<(u32, f32)>) -> Chunk {
        let end = words.len() + 1;
        let (mut tokens, mut weights) = (vec![self.start], vec![1.0]);
        for (token, weight) in words {
            tokens.push(token);
            weights.push(weight);
        }
        tokens.push(self.end);
        tokens.resize(self.length, self.pad);
        weights.resize(self.length, 1.0);
        Chunk { tokens, weights, end }
    }

    /// Returns a chunk without text, which lengthens a prompt to a number of chunks.
    pub(super) fn empty_chunk(&self) -> Chunk {
        self.chunk(Vec::new())
    }

    /// Tokenizes a text, and replaces the names of embeddings by their tokens.
    fn ids(&self, text: &str) -> Result<Vec<u32>> {
        let (mut ids, mut from) = (Vec::new(), 0);
        for (start, _) in text.char_indices() {
            let found =
                |(name, tokens): &(String, Range<u32>)| Some((word_end(text, start, name)?, tokens.clone()));
            if start >= from
                && let Some((end, tokens)) = self.names.iter().find_map(found)
            {
                ids.extend(self.plain_ids(&text[from..start])?);
                ids.extend(tokens);
                from = end;
            }
        }
        ids.extend(self.plain_ids(&text[from..])?);
        Ok(ids)
    }

    fn plain_ids(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, false);
        let encoding = encoding.map_err(|e| Error::request(format!("cannot tokenize the prompt: {e}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Encodes a text as start token, tokens of the text (truncated if necessary), end token and padding.
    ///
    /// # Errors
    /// The tokenizer rejects the text.
    pub fn encode(&self, text: &str) -> Result<Prompt> {
        let limit = self.length - 2;
        let words = self.ids(text)?;
        let kept = words.len().min(limit);
        let mut tokens = vec![self.start];
        tokens.extend(&words[..kept]);
        tokens.push(self.end);
        tokens.resize(self.length, self.pad);
        Ok(Prompt { tokens, end: kept + 1, truncated: words.len() > limit })
    }
}

/// Returns the end of `name`, which is in lower case, if the text has it at `start` and it is not a part of a longer word.
fn word_end(text: &str, start: usize, name: &str) -> Option<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    if name.starts_with(is_word) && text[..start].ends_with(is_word) {
        return None;
    }
    let (mut letters, mut end) = (name, start);
    for c in text[start..].chars() {
        if letters.is_empty() {
            break;
        }
        for lower in c.to_lowercase() {
            letters = letters.strip_prefix(lower)?;
        }
        end += c.len_utf8();
    }
    let is_part = name.ends_with(is_word) && text[end..].starts_with(is_word);
    (letters.is_empty() && !is_part).then_some(end)
}

fn pad_token(path: &Path) -> Option<String> {
    let json: Value = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
    let token = &json["pad_token"];
    token.as_str().or_else(|| token["content"].as_str()).map(str::to_string)
}

/// Builds the tokenizer from vocab.json and merges.txt.
fn from_merges(folder: &Path) -> tokenizers::Result<Tokenizer> {
    let path = |name| folder.join(name).to_string_lossy().into_owned();
    let bpe = BPE::from_file(&path("vocab.json"), &path("merges.txt"))
        .unk_token(END.into())
        .end_of_word_suffix("</w>".into())
        .build()?;
    let mut tokenizer = Tokenizer::new(bpe);
    let spaces = Replace::new(ReplacePattern::Regex(r"\s+".into()), " ")?;
    tokenizer.with_normalizer(Some(Normalizers::new(vec![NFC.into(), spaces.into(), Lowercase.into()])))?;
    let words = Split::new(SplitPattern::Regex(WORDS.into()), SplitDelimiterBehavior::Removed, true)?;
    let bytes = ByteLevel::new(false, true, false);
    tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(vec![words.into(), bytes.into()])));
    // The tokenizer would append missing tokens to the vocabulary, for which the text encoder has no weights.
    if let Some(missing) = [START, END].iter().find(|token| tokenizer.token_to_id(token).is_none()) {
        return Err(format!("the vocabulary lacks {missing}; use CLIP's tokenizer.json").into());
    }
    tokenizer.add_special_tokens([AddedToken::from(START, true), AddedToken::from(END, true)])?;
    Ok(tokenizer)
}
