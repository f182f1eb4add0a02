//! Tests the reader of tokenizers in GGUF files.
use std::io::Cursor;

use candle_core::Result;
use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use tokenizers::Tokenizer;

use crate::assert_error;

/// Metadata entries: key and value.
pub type Entries = Vec<(&'static str, Value)>;

fn strings(words: &[&str]) -> Value {
    Value::Array(words.iter().map(|word| Value::String(word.to_string())).collect())
}

/// Returns a BPE vocabulary with a few letters.
pub fn entries() -> Entries {
    let kinds = [1, 1, 1, 1, 1, 1, 3].map(Value::I32);
    vec![
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.tokens", strings(&["a", "b", "c", "ab", "abc", "Ġ", "<s>"])),
        ("tokenizer.ggml.merges", strings(&["a b", "ab c"])),
        ("tokenizer.ggml.token_type", Value::Array(kinds.into())),
        ("tokenizer.ggml.bos_token_id", Value::U32(6)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
    ]
}

/// Returns a file with these entries and no tensors.
pub fn file(entries: &Entries) -> Result<Vec<u8>> {
    let mut file = Cursor::new(Vec::new());
    let entries: Vec<_> = entries.iter().map(|(key, value)| (*key, value)).collect();
    gguf_file::write(&mut file, &entries, &[])?;
    Ok(file.into_inner())
}

/// Reads the tokenizer of a file with these entries.
fn read(entries: &Entries) -> Result<Tokenizer> {
    Tokenizer::from_gguf(&Content::read(&mut Cursor::new(file(entries)?))?)
}

#[test]
fn a_valid_tokenizer_is_read() -> Result<()> {
    let tokenizer = read(&entries())?;
    let encoding = tokenizer.encode("abca", true).map_err(candle_core::Error::wrap)?;
    assert_eq!(encoding.get_ids(), [6, 5, 4, 0]);
    Ok(())
}

#[test]
fn invalid_entries_are_reported() {
    for (key, value, words) in [
        ("tokenizer.ggml.model", None, ["missing GGUF metadata key", "`tokenizer.ggml.model`"]),
        (
            "tokenizer.ggml.model",
            Some(Value::String("llama".into())),
            ["unsupported tokenizer model", "`llama`"],
        ),
        ("tokenizer.ggml.tokens", None, ["missing GGUF metadata key", "`tokenizer.ggml.tokens`"]),
        ("tokenizer.ggml.tokens", Some(Value::U8(1)), ["`tokenizer.ggml.tokens`", "not an array"]),
        (
            "tokenizer.ggml.tokens",
            Some(Value::Array(vec![Value::U8(1)])),
            ["`tokenizer.ggml.tokens`", "U8(1)"],
        ),
        ("tokenizer.ggml.merges", Some(strings(&["ab"])), ["invalid merge entry", "`ab`"]),
        ("tokenizer.ggml.merges", Some(strings(&["a x"])), ["`x`", "out of vocabulary"]),
        (
            "tokenizer.ggml.merges",
            Some(strings(&["a b", "abc c"])),
            ["`tokenizer.ggml.merges`, entry 1", "`abcc`"],
        ),
        (
            "tokenizer.ggml.merges",
            Some(strings(&["<s> <s>"])),
            ["`tokenizer.ggml.merges`, entry 0", "`<s><s>`"],
        ),
    ] {
        let mut damaged = entries();
        damaged.retain(|(name, _)| *name != key);
        damaged.extend(value.map(|value| (key, value)));
        assert_error(read(&damaged).map(|_| "read"), &words);
    }
}
