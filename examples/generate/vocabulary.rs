//! The tokenizer of a model, and which tokens end a text.
use std::path::Path;

use anyhow::{Context, Error, Result, bail, ensure};
use candle_core::quantized::gguf_file::{self, Content};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::limits::Limits;
use crate::model_files::ModelFiles;
use crate::sentence_piece;

/// GGUF's tokens that end a text, or a turn of a chat.
const GGUF_ENDS: [&str; 3] = ["eos_token_id", "eot_token_id", "eom_token_id"];

/// Text to tokens and back.
pub struct Vocabulary {
    pub tokenizer: Tokenizer,
    /// Tokens after which a text is complete.
    pub ends: Vec<u32>,
}

impl Vocabulary {
    /// From `given`, a tokenizer.json, else from the GGUF file or the tokenizer.json beside the weights.
    pub fn of(files: &ModelFiles, given: Option<&Path>) -> Result<Self> {
        let beside = files.folder().join("tokenizer.json");
        let tokenizer = match (given, files) {
            (Some(path), _) => from_file(path)?,
            (None, ModelFiles::Gguf { path, content }) => match from_gguf(content) {
                Ok(tokenizer) => tokenizer,
                Err(_) if beside.exists() => from_file(&beside)?,
                Err(error) => {
                    let what =
                        format!("{} has no tokenizer that can be used: give --tokenizer", path.display());
                    return Err(error.context(what));
                }
            },
            (None, ModelFiles::Safetensors { .. }) => from_file(&beside)?,
        };
        Ok(Self { tokenizer, ends: ends(files)? })
    }

    /// The prompt's tokens, if the model can take them.
    pub fn encode(&self, prompt: &str, add_special_tokens: bool, limits: Limits) -> Result<Vec<u32>> {
        let encoded = self.tokenizer.encode(prompt, add_special_tokens).map_err(Error::msg);
        let tokens = encoded.context("the tokenizer refuses the prompt")?.get_ids().to_vec();
        ensure!(!tokens.is_empty(), "the tokenizer makes no tokens of the prompt");
        if let Some(token) = tokens.iter().find(|token| **token as usize >= limits.vocabulary) {
            bail!(
                "the tokenizer is not the model's: {:?} is its token {token}, the model has {}",
                self.tokenizer.id_to_token(*token).unwrap_or_default(),
                limits.vocabulary
            );
        }
        ensure!(
            tokens.len() < limits.context,
            "the prompt has {} tokens, which leaves no room for an answer in the model's context of {}",
            tokens.len(),
            limits.context
        );
        Ok(tokens)
    }
}

fn from_file(path: &Path) -> Result<Tokenizer> {
    let mut tokenizer = Tokenizer::from_file(path)
        .map_err(Error::msg)
        .with_context(|| format!("cannot read the tokenizer {}", path.display()))?;
    // What a file says about batches for training would cut or fill up the prompt.
    tokenizer.with_padding(None).with_truncation(None).map_err(Error::msg)?;
    Ok(tokenizer)
}

fn from_gguf(content: &Content) -> Result<Tokenizer> {
    let kind = content.metadata.get("tokenizer.ggml.model").context("there is no tokenizer.ggml.model")?;
    match kind.to_string()?.as_str() {
        "llama" => sentence_piece::tokenizer(content),
        _ => Ok(Tokenizer::from_gguf(content)?),
    }
}

fn ends(files: &ModelFiles) -> Result<Vec<u32>> {
    let mut ends = Vec::new();
    match files {
        ModelFiles::Gguf { content, .. } => {
            ends.extend(GGUF_ENDS.iter().filter_map(|key| gguf_token(content, key)));
        }
        ModelFiles::Safetensors { .. } => {
            for name in ["config.json", "generation_config.json"] {
                let said = files.json_beside(name)?.unwrap_or_default()["eos_token_id"].take();
                let tokens = said.as_array().map_or(std::slice::from_ref(&said), Vec::as_slice);
                ends.extend(tokens.iter().filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok()));
            }
        }
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}

/// A token that GGUF's metadata name, like `bos_token_id`.
pub fn gguf_token(content: &Content, key: &str) -> Option<u32> {
    match content.metadata.get(&format!("tokenizer.ggml.{key}"))? {
        gguf_file::Value::I32(id) => u32::try_from(*id).ok(),
        value => value.to_u64().ok().and_then(|id| u32::try_from(id).ok()),
    }
}
