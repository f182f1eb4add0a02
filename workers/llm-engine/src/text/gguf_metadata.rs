//! Access to the tokenizer metadata of a GGUF file.
use anyhow::{Context, Result};
use candle_core::quantized::gguf_file::{Content, Value};

/// Tokenizer metadata of a GGUF file. Keys omit the prefix `tokenizer.ggml.`, except in [`Self::text`].
pub(super) struct Metadata<'a> {
    content: &'a Content,
}

impl<'a> Metadata<'a> {
    pub(super) fn new(content: &'a Content) -> Self {
        Self { content }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.content.metadata.get(&format!("tokenizer.ggml.{key}"))
    }

    /// Returns the string of a full key.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        Some(self.content.metadata.get(key)?.to_string().ok()?.as_str())
    }

    pub(super) fn name(&self, key: &str) -> Option<&str> {
        Some(self.get(key)?.to_string().ok()?.as_str())
    }

    /// Returns the id of a token by its key, such as `bos_token_id`.
    pub(super) fn token(&self, key: &str) -> Option<u32> {
        u32::try_from(integer(self.get(key)?).ok()?).ok()
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.get(key)?.to_bool().ok()
    }

    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>> {
        self.array(key, |value| value.to_string().cloned())
    }

    pub(super) fn scores(&self, key: &str) -> Result<Vec<f32>> {
        self.array(key, Value::to_f32)
    }

    pub(super) fn numbers(&self, key: &str) -> Result<Vec<i64>> {
        self.array(key, integer)
    }

    fn array<T>(&self, key: &str, item: impl Fn(&Value) -> candle_core::Result<T>) -> Result<Vec<T>> {
        let values =
            self.get(key).with_context(|| format!("the metadata tokenizer.ggml.{key} is missing"))?;
        let items = values.to_vec().and_then(|values| values.iter().map(item).collect());
        items.with_context(|| format!("the metadata tokenizer.ggml.{key} has the wrong type"))
    }
}

fn integer(value: &Value) -> candle_core::Result<i64> {
    Ok(match value {
        Value::I8(number) => (*number).into(),
        Value::I16(number) => (*number).into(),
        Value::I32(number) => (*number).into(),
        Value::I64(number) => *number,
        value => i64::try_from(value.to_u64()?).unwrap_or(i64::MAX),
    })
}
