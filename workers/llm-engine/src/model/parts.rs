//! The tensors of a decoder by their roles, and what files call them.

/// Role of a tensor in the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A row for each token.
    Embedding,
    /// Behind the last layer.
    Norm,
    /// Makes the logits.
    Head,
    /// Before attention.
    AttentionNorm,
    /// Makes queries.
    Query,
    /// Makes keys.
    Key,
    /// Makes values.
    Value,
    /// Makes all three.
    QueryKeyValue,
    /// Of each head's queries.
    QueryNorm,
    /// Of each head's keys.
    KeyNorm,
    /// Behind attention.
    Output,
    /// Norm behind attention.
    AttentionPostNorm,
    /// Before feed-forward, where norms stand only before.
    MlpNorm,
    /// Before feed-forward, where norms stand on both sides.
    MlpNormBetween,
    /// What the activation is applied to.
    Gate,
    /// What its result is multiplied by.
    Up,
    /// Gate and up behind each other.
    GateUp,
    /// Back to the width of the state.
    Down,
    /// Norm behind feed-forward.
    MlpPostNorm,
}

impl Part {
    /// Its name in safetensors and in GGUF, behind that of the body or the layer.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Embedding => ("embed_tokens", "token_embd"),
            Self::Norm => ("norm", "output_norm"),
            Self::Head => ("lm_head", "output"),
            Self::AttentionNorm => ("input_layernorm", "attn_norm"),
            Self::Query => ("self_attn.q_proj", "attn_q"),
            Self::Key => ("self_attn.k_proj", "attn_k"),
            Self::Value => ("self_attn.v_proj", "attn_v"),
            Self::QueryKeyValue => ("self_attn.qkv_proj", "attn_qkv"),
            Self::QueryNorm => ("self_attn.q_norm", "attn_q_norm"),
            Self::KeyNorm => ("self_attn.k_norm", "attn_k_norm"),
            Self::Output => ("self_attn.o_proj", "attn_output"),
            Self::AttentionPostNorm => ("post_attention_layernorm", "post_attention_norm"),
            Self::MlpNorm => ("post_attention_layernorm", "ffn_norm"),
            Self::MlpNormBetween => ("pre_feedforward_layernorm", "ffn_norm"),
            Self::Gate => ("mlp.gate_proj", "ffn_gate"),
            Self::Up => ("mlp.up_proj", "ffn_up"),
            Self::GateUp => ("mlp.gate_up_proj", "ffn_up"),
            Self::Down => ("mlp.down_proj", "ffn_down"),
            Self::MlpPostNorm => ("post_feedforward_layernorm", "post_ffw_norm"),
        }
    }
}
