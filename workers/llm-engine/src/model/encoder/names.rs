//! Names of an encoder's tensors in safetensors and in GGUF.
use crate::model::files::{Description, ModelFiles};

/// Name in safetensors and in GGUF, relative to the prefix of the model or the layer.
pub type Name = (&'static str, &'static str);

pub const POSITIONS: Name = ("embeddings.position_embeddings", "position_embd");
pub const TYPES: Name = ("embeddings.token_type_embeddings", "token_types");
pub const FINAL_NORM: Name = ("final_norm", "output_norm");

/// Names of the tensors of a kind of encoder.
pub struct Parts {
    pub words: Name,
    pub embedding_norm: Name,
    /// Prefix of layers in safetensors.
    layers: &'static str,
    pub query_key_value: &'static [Name],
    pub output: Name,
    pub attention_norm: Name,
    pub up: Name,
    pub down: Name,
    pub mlp_norm: Name,
}

/// Names of BERT and RoBERTa.
pub const BERT: Parts = Parts {
    words: ("embeddings.word_embeddings", "token_embd"),
    embedding_norm: ("embeddings.LayerNorm", "token_embd_norm"),
    layers: "encoder.layer",
    query_key_value: &[
        ("attention.self.query", "attn_q"),
        ("attention.self.key", "attn_k"),
        ("attention.self.value", "attn_v"),
    ],
    output: ("attention.output.dense", "attn_output"),
    attention_norm: ("attention.output.LayerNorm", "attn_output_norm"),
    up: ("intermediate.dense", "ffn_up"),
    down: ("output.dense", "ffn_down"),
    mlp_norm: ("output.LayerNorm", "layer_output_norm"),
};

/// Names of ModernBERT.
pub const MODERN_BERT: Parts = Parts {
    words: ("embeddings.tok_embeddings", "token_embd"),
    embedding_norm: ("embeddings.norm", "token_embd_norm"),
    layers: "layers",
    query_key_value: &[("attn.Wqkv", "attn_qkv")],
    output: ("attn.Wo", "attn_output"),
    attention_norm: ("attn_norm", "attn_norm"),
    up: ("mlp.Wi", "ffn_up"),
    down: ("mlp.Wo", "ffn_down"),
    mlp_norm: ("mlp_norm", "ffn_norm"),
};

/// Naming scheme of a model's files.
pub struct Names {
    /// Prefix in safetensors; `None` for GGUF.
    prefix: Option<String>,
    pub parts: &'static Parts,
}

impl Names {
    /// Finds the prefix of a model's tensors.
    pub fn of(files: &ModelFiles, parts: &'static Parts) -> Self {
        let embedding = format!("{}.weight", parts.words.0);
        let prefix = || files.names().find_map(|name| name.strip_suffix(&embedding)).unwrap_or_default();
        Self {
            prefix: match &files.description {
                Description::Config(_) => Some(prefix().to_owned()),
                Description::Metadata(_) => None,
            },
            parts,
        }
    }

    /// Returns the name of a part of the whole model.
    pub fn part(&self, (safetensors, gguf): Name) -> String {
        match &self.prefix {
            Some(prefix) => format!("{prefix}{safetensors}"),
            None => gguf.to_owned(),
        }
    }

    /// Returns the name of a part of the head, which has no prefix.
    pub fn head(&self, (safetensors, gguf): Name) -> String {
        if self.prefix.is_some() { safetensors } else { gguf }.to_owned()
    }

    /// Returns the name of a part of a layer.
    pub fn in_layer(&self, layer: usize, (safetensors, gguf): Name) -> String {
        match &self.prefix {
            Some(prefix) => format!("{prefix}{}.{layer}.{safetensors}", self.parts.layers),
            None => format!("blk.{layer}.{gguf}"),
        }
    }
}
