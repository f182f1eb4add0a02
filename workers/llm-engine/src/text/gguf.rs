//! A model's text side from the metadata of a GGUF file.
use anyhow::{Context, Result};
use candle_core::quantized::gguf_file::{Content, Value};

use super::{ChatTemplate, Text, gguf_models};

/// Tokens that end a text, or a turn of a chat.
const ENDS: [&str; 3] = ["eos_token_id", "eot_token_id", "eom_token_id"];
/// What ends a turn, where the chat template writes it: files of Gemma and Phi-3 do not say so.
const TURN_ENDS: [&str; 5] = ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>"];
const TEMPLATE: &str = "tokenizer.chat_template";

impl Text {
    /// From the metadata of a GGUF file: its tokenizer, of the kinds `llama` and `gpt2`, the tokens that end a text, and its
    /// chat template.
    ///
    /// # Errors
    /// Where they describe no tokenizer that is known.
    pub fn from_gguf(content: &Content) -> Result<Text> {
        let metadata = Metadata { content };
        let written = metadata.text(TEMPLATE).unwrap_or_default();
        let turn_ends = TURN_ENDS.into_iter().filter(|end| written.contains(end)).collect::<Vec<_>>();
        let tokenizer = gguf_models::tokenizer(&metadata, &turn_ends)?;
        let mut ends: Vec<u32> = ENDS.iter().filter_map(|key| metadata.token(key)).collect();
        ends.extend(turn_ends.iter().filter_map(|end| tokenizer.token_to_id(end)));
        if metadata.get("eos_token_ids").is_some() {
            let several = metadata.numbers("eos_token_ids")?;
            ends.extend(several.into_iter().filter_map(|end| u32::try_from(end).ok()));
        }
        let named = |key| metadata.token(key).and_then(|id| tokenizer.id_to_token(id)).unwrap_or_default();
        let template = match metadata.text(TEMPLATE) {
            Some(default) => {
                let tool_use = metadata.text(&format!("{TEMPLATE}.tool_use"));
                let (bos, eos) = (named("bos_token_id"), named("eos_token_id"));
                Some(ChatTemplate::new(default, tool_use, &bos, &eos)?)
            }
            None => None,
        };
        Text::new(tokenizer, ends, template)
    }
}

/// What a GGUF file says of its tokenizer. Keys are without `tokenizer.ggml.`.
pub(super) struct Metadata<'a> {
    content: &'a Content,
}

impl Metadata<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.content.metadata.get(&format!("tokenizer.ggml.{key}"))
    }

    /// By its whole key.
    fn text(&self, key: &str) -> Option<&str> {
        Some(self.content.metadata.get(key)?.to_string().ok()?.as_str())
    }

    pub(super) fn name(&self, key: &str) -> Option<&str> {
        Some(self.get(key)?.to_string().ok()?.as_str())
    }

    /// A token by what it is for, like `bos_token_id`.
    pub(super) fn token(&self, key: &str) -> Option<u32> {
        u32::try_from(whole(self.get(key)?).ok()?).ok()
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
        self.array(key, whole)
    }

    fn array<T>(&self, key: &str, item: impl Fn(&Value) -> candle_core::Result<T>) -> Result<Vec<T>> {
        let values =
            self.get(key).with_context(|| format!("the file has no metadata tokenizer.ggml.{key}"))?;
        let items = values.to_vec().and_then(|values| values.iter().map(item).collect());
        items.with_context(|| format!("the metadata tokenizer.ggml.{key}"))
    }
}

fn whole(value: &Value) -> candle_core::Result<i64> {
    Ok(match value {
        Value::I8(number) => (*number).into(),
        Value::I16(number) => (*number).into(),
        Value::I32(number) => (*number).into(),
        Value::I64(number) => *number,
        value => i64::try_from(value.to_u64()?).unwrap_or(i64::MAX),
    })
}
