//! CLIP's tokenizer: prompts of a fixed length.
use std::path::Path;

use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Lowercase, NFC, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use crate::{Error, Result};

const START: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";
/// What CLIP takes for a word.
const WORDS: &str =
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

/// A prompt as the text encoder takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// As many as the encoder has positions.
    pub tokens: Vec<u32>,
    /// Where the end token stands.
    pub end: usize,
    /// The text was longer and its end is left out.
    pub truncated: bool,
}

/// A tokenizer and the tokens that frame a prompt.
#[derive(Debug)]
pub struct ClipTokenizer {
    tokenizer: Tokenizer,
    start: u32,
    end: u32,
    pad: u32,
    length: usize,
}

impl ClipTokenizer {
    /// Reads tokenizer.json, or vocab.json and merges.txt, for prompts of `length` tokens.
    ///
    /// # Errors
    /// A file is missing or damaged, or the vocabulary lacks the tokens of start and end.
    pub fn from_folder(folder: &Path, length: usize) -> Result<Self> {
        let bad = |e: tokenizers::Error| Error::model(format!("tokenizer in {}: {e}", folder.display()));
        let whole = folder.join("tokenizer.json");
        for name in ["vocab.json", "merges.txt"] {
            if !whole.exists() && !folder.join(name).exists() {
                return Err(Error::model(format!(
                    "{} has neither tokenizer.json nor {name}",
                    folder.display()
                )));
            }
        }
        let tokenizer = match whole.exists() {
            true => Tokenizer::from_file(whole),
            false => from_merges(folder),
        };
        let mut tokenizer = tokenizer.map_err(bad)?;
        // Files keep what a tokenizer was last used with; the ends of prompts are made here.
        tokenizer.with_padding(None).with_truncation(None).map_err(bad)?;
        let id = |token: &str| {
            let id = tokenizer.token_to_id(token);
            id.ok_or_else(|| Error::model(format!("tokenizer in {}: no token {token}", folder.display())))
        };
        // Stable Diffusion 2 and XL pad with another token than the end, and the older file is the one that counts.
        let pad = ["special_tokens_map.json", "tokenizer_config.json"]
            .iter()
            .find_map(|name| pad_token(&folder.join(name)));
        let (start, end) = (id(START)?, id(END)?);
        let pad = pad.map_or(Ok(end), |token| id(&token))?;
        if length < 2 {
            return Err(Error::model(format!("a text encoder of {length} positions has no place for words")));
        }
        Ok(Self { tokenizer, start, end, pad, length })
    }

    /// Start, the text's tokens as far as there is room, end, and padding.
    ///
    /// # Errors
    /// The tokenizer cannot read the text.
    pub fn encode(&self, text: &str) -> Result<Prompt> {
        let encoding = self.tokenizer.encode(text, false);
        let encoding = encoding.map_err(|e| Error::request(format!("the prompt cannot be read: {e}")))?;
        let room = self.length - 2;
        let words = encoding.get_ids();
        let kept = words.len().min(room);
        let mut tokens = vec![self.start];
        tokens.extend(&words[..kept]);
        tokens.push(self.end);
        tokens.resize(self.length, self.pad);
        Ok(Prompt { tokens, end: kept + 1, truncated: words.len() > room })
    }
}

fn pad_token(path: &Path) -> Option<String> {
    let json: Value = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
    let token = &json["pad_token"];
    token.as_str().or_else(|| token["content"].as_str()).map(str::to_string)
}

/// The tokenizer that two files of merges stand for.
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
    // Tokens that the vocabulary lacks would be added behind it, where the text encoder has no weights.
    if let Some(missing) = [START, END].iter().find(|token| tokenizer.token_to_id(token).is_none()) {
        return Err(format!("no token {missing}").into());
    }
    tokenizer.add_special_tokens([AddedToken::from(START, true), AddedToken::from(END, true)])?;
    Ok(tokenizer)
}
