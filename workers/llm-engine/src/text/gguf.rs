//! Loading of tokenizer and chat template from a GGUF file.
use anyhow::Result;
use candle_core::quantized::gguf_file::Content;

use super::gguf_metadata::Metadata;
use super::template_override::turn_ends;
use super::{ChatTemplate, TextCodec, gguf_tokenizers};

/// Metadata keys of the tokens that end a text or a turn.
const END_TOKEN_KEYS: [&str; 3] = ["eos_token_id", "eot_token_id", "eom_token_id"];
const TEMPLATE: &str = "tokenizer.chat_template";

impl TextCodec {
    /// Builds the tokenizer, end-of-text tokens and chat template from the metadata of a GGUF file.
    /// Tokenizers of type `llama`, `gpt2`, `gemma4`, `bert` and `t5` are supported.
    ///
    /// # Errors
    /// Returns an error if the metadata describes no supported tokenizer.
    pub fn from_gguf(content: &Content) -> Result<TextCodec> {
        let metadata = Metadata::new(content);
        let template_text = metadata.text(TEMPLATE).unwrap_or_default();
        // In gpt-oss, this token ends a message but not the turn.
        let is_message_end = |end: &str| end == "<|end|>" && template_text.contains("<|channel|>");
        // Files of Gemma and Phi-3 only contain their end-of-turn tokens in the chat template.
        let turn_ends = turn_ends(template_text).filter(|end| !is_message_end(end)).collect::<Vec<_>>();
        let tokenizer = gguf_tokenizers::tokenizer(&metadata, &turn_ends)?;
        let mut ends: Vec<u32> = END_TOKEN_KEYS.iter().filter_map(|key| metadata.token(key)).collect();
        ends.extend(turn_ends.iter().filter_map(|end| tokenizer.token_to_id(end)));
        if metadata.get("eos_token_ids").is_some() {
            let several = metadata.numbers("eos_token_ids")?;
            ends.extend(several.into_iter().filter_map(|end| u32::try_from(end).ok()));
        }
        let token_text =
            |key| metadata.token(key).and_then(|id| tokenizer.id_to_token(id)).unwrap_or_default();
        let special_texts = ["bos_token_id", "eos_token_id"].map(token_text);
        let template = match metadata.text(TEMPLATE) {
            Some(default) => {
                let tool_use = metadata.text(&format!("{TEMPLATE}.tool_use"));
                let [bos, eos] = &special_texts;
                Some(ChatTemplate::new(default, tool_use, bos, eos)?)
            }
            None => None,
        };
        let mut codec = TextCodec::new(tokenizer, ends, template)?;
        codec.special_texts = special_texts;
        codec.pair_prompt = metadata.text(&format!("{TEMPLATE}.rerank")).map(str::to_owned);
        Ok(codec)
    }
}
