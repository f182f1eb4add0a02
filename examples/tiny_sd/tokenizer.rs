//! CLIP tokenizer with a small vocabulary: bytes, each within and at the end of a word, and merges that make
//! each word of the captions one token.
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Lowercase, NFC, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use super::images::words;

/// First token of a prompt.
pub const START: &str = "<|startoftext|>";
/// Ends a prompt and pads it to its length.
pub const END: &str = "<|endoftext|>";
/// Marks the last letter of a word.
const LAST: &str = "</w>";
/// Regular expression of CLIP's words.
const WORDS: &str =
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

/// Returns the tokens in the order of their IDs, and the merges in their order.
pub fn vocabulary() -> (Vec<String>, Vec<[String; 2]>) {
    let mut letters: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    letters.sort();
    let last = letters.iter().map(|letter| format!("{letter}{LAST}"));
    let mut tokens: Vec<String> = letters.iter().cloned().chain(last).collect();
    let mut merges: Vec<[String; 2]> = Vec::new();
    for word in words() {
        let mut parts: Vec<String> = word.chars().map(String::from).collect();
        parts.last_mut().into_iter().for_each(|part| part.push_str(LAST));
        // Earlier merges have precedence, as in the tokenizer.
        merges.iter().for_each(|merge| join(&mut parts, merge));
        while let [first, second, ..] = parts.as_slice() {
            let merge = [first.clone(), second.clone()];
            join(&mut parts, &merge);
            tokens.push(merge.concat());
            merges.push(merge);
        }
    }
    tokens.extend([START, END].map(String::from));
    (tokens, merges)
}

/// Applies a merge to neighbouring parts.
fn join(parts: &mut Vec<String>, merge: &[String; 2]) {
    let mut at = 0;
    while at + 1 < parts.len() {
        if parts[at] == merge[0] && parts[at + 1] == merge[1] {
            let second = parts.remove(at + 1);
            parts[at].push_str(&second);
        }
        at += 1;
    }
}

/// Writes the tokenizer's files to a folder.
///
/// # Errors
/// If a file cannot be written.
pub fn write(folder: &Path, length: usize) -> Result<()> {
    let (tokens, merges) = vocabulary();
    let ids: Map<String, Value> = tokens.into_iter().zip(0..).map(|(token, id)| (token, id.into())).collect();
    let lines: Vec<String> = merges.iter().map(|merge| merge.join(" ")).collect();
    let special = json!({ "bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END });
    let config = json!({
        "tokenizer_class": "CLIPTokenizer", "model_max_length": length, "do_lower_case": true, "errors": "replace",
        "add_prefix_space": false, "bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END,
    });
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let files = [
        ("vocab.json", Value::Object(ids).to_string()),
        ("merges.txt", format!("#version: 0.2\n{}\n", lines.join("\n"))),
        ("special_tokens_map.json", format!("{special:#}\n")),
        ("tokenizer_config.json", format!("{config:#}\n")),
    ];
    for (name, text) in files {
        let file = folder.join(name);
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Tokenizer of prompts.
pub struct Prompts {
    tokenizer: Tokenizer,
    ends: [u32; 2],
    length: usize,
}

impl Prompts {
    /// Reads a tokenizer's folder for prompts of `length` tokens.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn read(folder: &Path, length: usize) -> Result<Self> {
        let file = |name| folder.join(name).to_string_lossy().into_owned();
        let bpe = BPE::from_file(&file("vocab.json"), &file("merges.txt"));
        let bpe = bpe.unk_token(END.to_string()).end_of_word_suffix(LAST.to_string());
        let mut tokenizer = Tokenizer::new(bpe.build().map_err(failed)?);
        let spaces = Replace::new(ReplacePattern::Regex(r"\s+".to_string()), " ").map_err(failed)?;
        let normalizers = Normalizers::new(vec![NFC.into(), spaces.into(), Lowercase.into()]);
        tokenizer.with_normalizer(Some(normalizers)).map_err(failed)?;
        let split = SplitPattern::Regex(WORDS.to_string());
        let split = Split::new(split, SplitDelimiterBehavior::Removed, true).map_err(failed)?;
        let bytes = ByteLevel::new(false, true, false);
        tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![split.into(), bytes.into()])));
        let specials = [START, END].map(|token| AddedToken::from(token, true));
        tokenizer.add_special_tokens(specials).map_err(failed)?;
        let id = |token| tokenizer.token_to_id(token).with_context(|| format!("no token {token}"));
        Ok(Self { ends: [id(START)?, id(END)?], tokenizer, length })
    }

    /// Tokenizes a prompt, adds start and end tokens, and pads or truncates it to the length.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn tokens(&self, prompt: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode_fast(prompt, false).map_err(failed)?;
        let words = encoding.get_ids().iter().take(self.length - 2);
        let mut tokens: Vec<u32> = self.ends[..1].iter().chain(words).copied().collect();
        tokens.resize(self.length, self.ends[1]);
        Ok(tokens)
    }
}

fn failed(error: tokenizers::Error) -> anyhow::Error {
    anyhow::anyhow!("tokenizer: {error}")
}
