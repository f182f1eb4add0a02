//! T5 text encoder with its tokenizer, from candle-transformers.
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::t5::{Config, T5EncoderModel};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::{Error, Result};

/// Token that ends a text.
const END: &str = "</s>";
/// Bounds of the values of config.json: key, minimum, maximum.
const BOUNDS: [(&str, u64, u64); 6] = [
    ("d_ff", 1, 1 << 20),
    ("d_kv", 1, 1 << 12),
    ("d_model", 1, 1 << 16),
    ("num_heads", 1, 1 << 10),
    ("num_layers", 1, 256),
    ("relative_attention_num_buckets", 4, 1 << 12),
];

/// Tokenizer that ends and pads texts.
#[derive(Debug)]
pub(super) struct T5Tokenizer {
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
        let bad = |what: String| Error::model(format!("{}: {what}", path.display()));
        let mut tokenizer = Tokenizer::from_file(&path).map_err(|e| bad(e.to_string()))?;
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
        Ok(Self { tokenizer, end, pad: config.pad_token_id as u32, length, path })
    }

    /// Returns the tokens of a text, ended and padded, and true if it was too long and has been truncated.
    ///
    /// # Errors
    /// The tokenizer rejects the text.
    pub fn encode(&self, text: &str) -> Result<(Vec<u32>, bool)> {
        let encoding = self.tokenizer.encode(text, false);
        let path = self.path.display();
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

/// Reads config.json.
///
/// # Errors
/// A value is missing, invalid or out of bounds. `path` is that of the file, for the message.
pub(super) fn config(json: Value, path: &Path) -> Result<Config> {
    let bad = |what: String| Error::model(format!("{}: {what}", path.display()));
    for (key, least, most) in BOUNDS {
        let value = &json[key];
        if !value.as_u64().is_some_and(|value| (least..=most).contains(&value)) {
            return Err(bad(format!("{key} = {value}: must be {least} to {most}")));
        }
    }
    serde_json::from_value(json).map_err(|e| bad(e.to_string()))
}

/// T5 text encoder.
#[derive(Debug)]
pub(super) struct T5 {
    /// Its forward pass takes a mutable reference for caches that an encoder does not have. Copies share all weights.
    model: T5EncoderModel,
    /// The tokenizer.
    pub tokenizer: T5Tokenizer,
}

impl T5 {
    /// Returns the dtype for a model that computes in `dtype`. Published encoders overflow in f16.
    pub fn dtype(dtype: DType, device: &Device) -> DType {
        if dtype == DType::F32 { dtype } else { device.bf16_default_to_f32() }
    }

    /// Loads weights with the names of T5EncoderModel.
    ///
    /// # Errors
    /// A weight is missing or has the wrong shape.
    pub fn new(vb: VarBuilder, config: &Config, tokenizer: T5Tokenizer) -> candle_core::Result<Self> {
        Ok(Self { model: T5EncoderModel::load(vb, config)?, tokenizer })
    }

    /// Encodes prompts: (prompts, tokens, width). Padding is attended to, as in diffusers.
    ///
    /// # Errors
    /// A prompt cannot be tokenized, or the device fails.
    pub fn encode(&self, prompts: &[&str]) -> Result<Tensor> {
        let mut model = self.model.clone();
        let mut rows = Vec::new();
        for prompt in prompts {
            let tokens = Tensor::new(self.tokenizer.encode(prompt)?.0, self.model.device())?;
            // One at a time, because the scores of a prompt take 134 MB.
            rows.push(model.forward(&tokens.unsqueeze(0)?)?);
        }
        Ok(Tensor::cat(&rows, 0)?)
    }
}
