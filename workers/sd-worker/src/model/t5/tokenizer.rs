//! Tokenizers of T5, from tokenizer.json or the metadata of a GGUF file.
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Value;
use candle_transformers::models::t5::Config;
use model_thread::catch_panic;
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::Precompiled;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::{AddedToken, Tokenizer};

use super::super::weights::Weights;
use crate::{Error, Result};

/// Token that ends a text.
const END: &str = "</s>";
/// Start of the keys of the metadata.
const KEYS: &str = "tokenizer.ggml.";
/// Compiled map of characters that SentencePiece applies to texts.
const CHARACTERS: &str = "precompiled_charsmap";
/// Value of `token_type` of tokens that texts do not contain.
const CONTROL: i32 = 3;

/// Tokenizer that ends and pads texts.
#[derive(Debug)]
pub(in super::super) struct T5Tokenizer {
    tokenizer: Tokenizer,
    end: u32,
    pad: u32,
    length: usize,
    path: PathBuf,
}

impl T5Tokenizer {
    /// Loads tokenizer.json of a folder. Texts will have `length` tokens.
    ///
    /// # Errors
    /// The file is missing or invalid, or belongs to another text encoder.
    pub fn from_folder(folder: &Path, config: &Config, length: usize) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        if !path.exists() {
            let hint = match folder.join("spiece.model").exists() {
                true => {
                    "; convert its spiece.model with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
                }
                false => "",
            };
            return Err(Error::model(format!("{} has no tokenizer.json{hint}", folder.display())));
        }
        let tokenizer = Tokenizer::from_file(&path);
        let tokenizer = tokenizer.map_err(|e| Error::model(format!("{}: {e}", path.display())))?;
        Self::new(tokenizer, &path, config, length)
    }

    /// Builds the tokenizer from the metadata of a GGUF file, if it has one.
    ///
    /// # Errors
    /// The metadata is invalid, or belongs to another text encoder.
    pub fn from_gguf(weights: &Weights, config: &Config, length: usize) -> Result<Option<Self>> {
        if weights.value(&format!("{KEYS}tokens")).is_none() {
            return Ok(None);
        }
        let path = weights.path();
        let tokenizer = unigrams(weights)
            .map_err(|what| Error::model(format!("the tokenizer in {}: {what}", path.display())))?;
        Self::new(tokenizer, path, config, length).map(Some)
    }

    fn new(mut tokenizer: Tokenizer, path: &Path, config: &Config, length: usize) -> Result<Self> {
        let bad = |what: String| Error::model(format!("{}: {what}", path.display()));
        tokenizer.with_padding(None).with_truncation(None).map_err(|e| bad(e.to_string()))?;
        let end = tokenizer.token_to_id(END);
        let Some(end) = end.filter(|end| *end as usize == config.eos_token_id) else {
            let found = end.map_or("it has none".to_owned(), |id| format!("it is token {id}"));
            let expected = config.eos_token_id;
            return Err(bad(format!(
                "the text encoder ends texts with {END} as token {expected}, but {found}"
            )));
        };
        let (tokens, rows) = (tokenizer.get_vocab_size(true), config.vocab_size);
        if tokens > rows || config.pad_token_id >= rows {
            return Err(bad(format!("{tokens} tokens, but the text encoder has embeddings of {rows}")));
        }
        Ok(Self { tokenizer, end, pad: config.pad_token_id as u32, length, path: path.to_owned() })
    }

    /// Returns the tokens of a text, ended and padded, and true if it was too long and has been truncated.
    ///
    /// # Errors
    /// The tokenizer rejects the text, or is damaged.
    pub fn encode(&self, text: &str) -> Result<(Vec<u32>, bool)> {
        let path = self.path.display();
        // The library does not check the nodes of the compiled map of characters.
        let encoding = catch_panic(|| self.tokenizer.encode(text, false));
        let encoding =
            encoding.map_err(|panic| Error::model(format!("{path}: the tokenizer is damaged: {panic}")))?;
        let encoding =
            encoding.map_err(|e| Error::request(format!("{path} cannot tokenize the prompt: {e}")))?;
        let ids = encoding.get_ids();
        let kept = ids.len().min(self.length - 1);
        let mut tokens = ids[..kept].to_vec();
        tokens.push(self.end);
        tokens.resize(self.length, self.pad);
        Ok((tokens, kept < ids.len()))
    }
}

/// Returns true if a compiled map of characters begins with the size in bytes of its trie, which is not empty and consists of
/// 32-bit nodes, and contains the trie.
fn has_trie(map: &[u8]) -> bool {
    let Some((size, rest)) = map.split_first_chunk() else { return false };
    let size = u32::from_le_bytes(*size) as usize;
    size > 0 && size.is_multiple_of(4) && size <= rest.len()
}

/// Builds a tokenizer of unigrams from the metadata.
fn unigrams(weights: &Weights) -> std::result::Result<Tokenizer, String> {
    let value = |key: &str| weights.value(&format!("{KEYS}{key}"));
    let invalid = |key: &str| format!("{KEYS}{key} is missing or invalid");
    let list = |key: &str| value(key).and_then(|list| list.to_vec().ok()).ok_or_else(|| invalid(key));
    match weights.metadata(&format!("{KEYS}model")) {
        Some("t5") => {}
        found => return Err(format!("{KEYS}model is {}, expected t5", found.unwrap_or("missing"))),
    }
    let tokens = list("tokens")?.iter().map(|token| token.to_string().cloned());
    let tokens: Vec<String> = tokens.collect::<candle_core::Result<_>>().map_err(|_| invalid("tokens"))?;
    let scores = list("scores")?.iter().map(Value::to_f32);
    let scores: Vec<f32> = scores.collect::<candle_core::Result<_>>().map_err(|_| invalid("scores"))?;
    if tokens.len() != scores.len() {
        return Err(format!("{} tokens and {} scores do not match", tokens.len(), scores.len()));
    }
    let unknown = value("unknown_token_id").and_then(|id| id.to_u32().ok());
    let unknown =
        unknown.filter(|id| (*id as usize) < tokens.len()).ok_or_else(|| invalid("unknown_token_id"))?;
    let control: Vec<AddedToken> = match value("token_type") {
        None => Vec::new(),
        Some(_) => {
            let is_control = |kind: &Value| matches!(kind, Value::I32(CONTROL));
            let control = list("token_type")?.iter().zip(&tokens).filter(|(kind, _)| is_control(kind));
            control.map(|(_, token)| AddedToken::from(token.as_str(), true)).collect()
        }
    };
    let vocabulary = tokens.into_iter().zip(scores.into_iter().map(f64::from)).collect();
    let model = Unigram::from(vocabulary, Some(unknown as usize), false).map_err(|e| e.to_string())?;
    let mut tokenizer = Tokenizer::new(model);
    if value(CHARACTERS).is_some() {
        let byte = |value: &Value| match value {
            Value::I8(byte) => Some(*byte as u8),
            value => value.to_u8().ok(),
        };
        let bytes: Option<Vec<u8>> = list(CHARACTERS)?.iter().map(byte).collect();
        let bytes = bytes.filter(|bytes| has_trie(bytes)).ok_or_else(|| invalid(CHARACTERS))?;
        let map = Precompiled::from(&bytes).map_err(|e| format!("{KEYS}{CHARACTERS}: {e}"))?;
        tokenizer.with_normalizer(Some(map)).map_err(|e| e.to_string())?;
    }
    let spaces = Metaspace::new('\u{2581}', PrependScheme::Always, true);
    let steps = vec![WhitespaceSplit.into(), spaces.into()];
    tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(steps)));
    tokenizer.add_special_tokens(control).map_err(|e| e.to_string())?;
    Ok(tokenizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_of_character_maps_are_checked() {
        let map = |size: u32, rest: usize| [&size.to_le_bytes()[..], &vec![0; rest]].concat();
        for (size, rest, is_valid) in [
            (4, 4, true),
            (4, 9, true),
            (8, 8, true),
            (0, 4, false),
            (4, 3, false),
            (6, 8, false),
            (u32::MAX, 8, false),
        ] {
            assert_eq!(has_trie(&map(size, rest)), is_valid, "{size} {rest}");
        }
        for short in [&[][..], &[4, 0, 0]] {
            assert!(!has_trie(short));
        }
    }
}
