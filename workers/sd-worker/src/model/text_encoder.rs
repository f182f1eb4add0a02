//! CLIP text encoder with its tokenizer, and the embeddings that text encoders return.
use candle_core::Tensor;

use super::clip::ClipText;
use super::tokenizer::ClipTokenizer;

/// Text embeddings of prompts, as input for the network.
#[derive(Debug, Clone)]
pub struct Texts {
    /// Embedding of each token: (prompts, tokens, width), in the dtype of the network.
    pub context: Tensor,
    /// Pooled embedding of each prompt: (prompts, width); only for XL and transformers.
    pub pooled: Option<Tensor>,
}

/// CLIP text encoder with its tokenizer.
#[derive(Debug)]
pub(super) struct TextEncoder {
    pub tokenizer: ClipTokenizer,
    pub clip: ClipText,
}
