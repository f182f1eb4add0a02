//! Names of an encoder's tensors in safetensors and in GGUF.
use crate::model::files::{Description, ModelFiles};

/// Name in safetensors and in GGUF, relative to the prefix of the model or the layer.
pub type Name = (&'static str, &'static str);

pub const WORDS: Name = ("embeddings.word_embeddings", "token_embd");
pub const POSITIONS: Name = ("embeddings.position_embeddings", "position_embd");
pub const TYPES: Name = ("embeddings.token_type_embeddings", "token_types");
pub const EMBEDDING_NORM: Name = ("embeddings.LayerNorm", "token_embd_norm");
pub const QUERY_KEY_VALUE: [Name; 3] = [
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
];
pub const OUTPUT: Name = ("attention.output.dense", "attn_output");
pub const ATTENTION_NORM: Name = ("attention.output.LayerNorm", "attn_output_norm");
pub const UP: Name = ("intermediate.dense", "ffn_up");
pub const DOWN: Name = ("output.dense", "ffn_down");
pub const MLP_NORM: Name = ("output.LayerNorm", "layer_output_norm");

/// Naming scheme of a model's files.
pub struct Names {
    /// Prefix in safetensors; `None` for GGUF.
    prefix: Option<String>,
}

impl Names {
    /// Finds the prefix of a model's tensors.
    pub fn of(files: &ModelFiles) -> Self {
        let embedding = "embeddings.word_embeddings.weight";
        let prefix = || files.names().find_map(|name| name.strip_suffix(embedding)).unwrap_or_default();
        Self {
            prefix: match &files.description {
                Description::Config(_) => Some(prefix().to_owned()),
                Description::Metadata(_) => None,
            },
        }
    }

    /// Returns the name of a part of the whole model.
    pub fn part(&self, (safetensors, gguf): Name) -> String {
        match &self.prefix {
            Some(prefix) => format!("{prefix}{safetensors}"),
            None => gguf.to_owned(),
        }
    }

    /// Returns the name of a part of a layer.
    pub fn in_layer(&self, layer: usize, (safetensors, gguf): Name) -> String {
        match &self.prefix {
            Some(prefix) => format!("{prefix}encoder.layer.{layer}.{safetensors}"),
            None => format!("blk.{layer}.{gguf}"),
        }
    }
}
