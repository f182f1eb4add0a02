//! Roles of a decoder's tensors, and their names in model files.

/// Role of a tensor in the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// All layers; not a tensor, but part of the names of theirs.
    Layers,
    /// Token embedding table.
    Embedding,
    /// Norm after the last layer.
    Norm,
    /// Output projection to logits.
    Head,
    /// Norm before attention.
    AttentionNorm,
    /// Norm before attention, in models with another norm before the feed-forward layer that has the same input.
    ParallelAttentionNorm,
    /// That other norm.
    ParallelMlpNorm,
    /// Query projection.
    Query,
    /// Projection to the vector from which queries are projected.
    QueryDown,
    /// Norm of that vector.
    QueryDownNorm,
    /// Query projection from that vector.
    QueryUp,
    /// Projection to the vector from which keys and values are projected, and to the rotated elements of keys.
    LatentDown,
    /// Norm of that vector.
    LatentNorm,
    /// Key and value projection from that vector.
    LatentUp,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Fused query, key and value projection.
    QueryKeyValue,
    /// Per-head norm of queries.
    QueryNorm,
    /// Per-head norm of keys.
    KeyNorm,
    /// Scores of the sinks that queries attend to.
    Sinks,
    /// Query, key and value projections of linear attention.
    DeltaQueryKeyValue,
    /// Projection to the gates of its norm.
    DeltaGate,
    /// Projection to its learning rates.
    DeltaLearningRate,
    /// Projection to its decays.
    DeltaDecay,
    /// Query, key, value and gate projections of linear attention, those of each head of keys together.
    DeltaGroups,
    /// Projections to learning rates and decays, those of each head of keys together.
    DeltaGroupFactors,
    /// Convolution of linear attention.
    DeltaConv,
    /// Norm of the heads of linear attention.
    DeltaNorm,
    /// Output projection of linear attention.
    DeltaOutput,
    /// Projection to gates, x, B, C and steps of Mamba 2, and to x and gates of Mamba 1.
    MambaInput,
    /// Convolution of Mamba 1 and 2.
    MambaConv,
    /// Norm after the state space of Mamba 2.
    MambaNorm,
    /// Output projection of Mamba 1 and 2.
    MambaOutput,
    /// Projection of x to the steps' inputs, B and C of Mamba 1.
    MambaSelection,
    /// Projection of the steps' inputs to the steps of Mamba 1.
    MambaStep,
    /// Norm of the steps' inputs.
    MambaStepNorm,
    /// Norm of B of Mamba 1.
    MambaKeyNorm,
    /// Norm of C of Mamba 1.
    MambaQueryNorm,
    /// Output projection of attention.
    Output,
    /// Norm after attention.
    AttentionPostNorm,
    /// Norm before the feed-forward layer, in models with pre-norms only.
    MlpNorm,
    /// Norm before the feed-forward layer, in models with pre- and post-norms.
    MlpNormBetween,
    /// Gate projection, whose output goes through the activation.
    Gate,
    /// Up projection, which is multiplied by the gate.
    Up,
    /// Fused gate and up projection.
    GateUp,
    /// Down projection to the hidden size.
    Down,
    /// Norm after the feed-forward layer.
    MlpPostNorm,
    /// Norm after the dense network of a layer that also has experts.
    DensePostNorm,
    /// Norm before the experts of such a layer.
    ExpertsNorm,
    /// Norm after its experts.
    ExpertsPostNorm,
    /// Table of the inputs of all layers for each token.
    LayerTable,
    /// Projection of embeddings to the inputs of all layers.
    LayerProjection,
    /// Norm of that projection's output for each layer.
    LayerProjectionNorm,
    /// Projection to the gates of a layer's input.
    InputGate,
    /// Projection of a layer's gated input to the hidden size.
    InputProjection,
    /// Norm after that projection.
    InputPostNorm,
    /// Factor of the states after a layer.
    LayerScale,
    /// Projections of embeddings to the other streams of states.
    StreamProjections,
    /// Projections of these streams before their mean.
    StreamMerging,
    /// Router of a layer, which reads a stream.
    StreamRouter,
    /// Norm of its input.
    StreamRouterNorm,
    /// Projection of the router's output to the coefficients of the prediction of streams.
    StreamPrediction,
    /// Projection of the router's output to the coefficients of the correction of streams.
    StreamCorrection,
    /// Factors of the corrected states that a layer's input gates.
    StreamScale,
    /// First projection of the learned residual layer.
    ResidualDown,
    /// Second projection of the learned residual layer.
    ResidualUp,
    /// Norm of its output.
    ResidualNorm,
    /// Projection of an embedding and a hidden state to the input of the head that predicts further tokens.
    MtpInput,
    /// Norm of that embedding.
    MtpEmbeddingNorm,
    /// Norm of that hidden state.
    MtpHiddenNorm,
    /// Norm after the layer of the head.
    MtpNorm,
}

impl Role {
    /// Returns its names in safetensors and in GGUF, relative to the model's or the layer's prefix.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Layers => ("layers", "blk"),
            Self::Embedding => ("embed_tokens", "token_embd"),
            Self::Norm => ("norm", "output_norm"),
            Self::Head => ("lm_head", "output"),
            Self::AttentionNorm => ("input_layernorm", "attn_norm"),
            Self::ParallelAttentionNorm => ("ln_attn", "attn_norm_2"),
            Self::ParallelMlpNorm => ("ln_mlp", "attn_norm"),
            Self::Query => ("self_attn.q_proj", "attn_q"),
            Self::QueryDown => ("self_attn.q_a_proj", "attn_q_a"),
            Self::QueryDownNorm => ("self_attn.q_a_layernorm", "attn_q_a_norm"),
            Self::QueryUp => ("self_attn.q_b_proj", "attn_q_b"),
            Self::LatentDown => ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
            Self::LatentNorm => ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
            Self::LatentUp => ("self_attn.kv_b_proj", "attn_kv_b"),
            Self::Key => ("self_attn.k_proj", "attn_k"),
            Self::Value => ("self_attn.v_proj", "attn_v"),
            Self::QueryKeyValue => ("self_attn.qkv_proj", "attn_qkv"),
            Self::QueryNorm => ("self_attn.q_norm", "attn_q_norm"),
            Self::KeyNorm => ("self_attn.k_norm", "attn_k_norm"),
            Self::Sinks => ("self_attn.sinks", "attn_sinks"),
            Self::DeltaQueryKeyValue => ("linear_attn.in_proj_qkv", "attn_qkv"),
            Self::DeltaGate => ("linear_attn.in_proj_z", "attn_gate"),
            Self::DeltaLearningRate => ("linear_attn.in_proj_b", "ssm_beta"),
            Self::DeltaDecay => ("linear_attn.in_proj_a", "ssm_alpha"),
            Self::DeltaGroups => ("linear_attn.in_proj_qkvz", "ssm_in"),
            Self::DeltaGroupFactors => ("linear_attn.in_proj_ba", "ssm_ba"),
            Self::DeltaConv => ("linear_attn.conv1d", "ssm_conv1d"),
            Self::DeltaNorm => ("linear_attn.norm", "ssm_norm"),
            Self::DeltaOutput => ("linear_attn.out_proj", "ssm_out"),
            Self::MambaInput => ("mamba.in_proj", "ssm_in"),
            Self::MambaConv => ("mamba.conv1d", "ssm_conv1d"),
            Self::MambaNorm => ("mamba.norm", "ssm_norm"),
            Self::MambaOutput => ("mamba.out_proj", "ssm_out"),
            Self::MambaSelection => ("mamba.x_proj", "ssm_x"),
            Self::MambaStep => ("mamba.dt_proj", "ssm_dt"),
            Self::MambaStepNorm => ("mamba.dt_layernorm", "ssm_dt_norm"),
            Self::MambaKeyNorm => ("mamba.b_layernorm", "ssm_b_norm"),
            Self::MambaQueryNorm => ("mamba.c_layernorm", "ssm_c_norm"),
            Self::Output => ("self_attn.o_proj", "attn_output"),
            Self::AttentionPostNorm => ("post_attention_layernorm", "post_attention_norm"),
            Self::MlpNorm => ("post_attention_layernorm", "ffn_norm"),
            Self::MlpNormBetween => ("pre_feedforward_layernorm", "ffn_norm"),
            Self::Gate => ("mlp.gate_proj", "ffn_gate"),
            Self::Up => ("mlp.up_proj", "ffn_up"),
            Self::GateUp => ("mlp.gate_up_proj", "ffn_up"),
            Self::Down => ("mlp.down_proj", "ffn_down"),
            Self::MlpPostNorm => ("post_feedforward_layernorm", "post_ffw_norm"),
            Self::DensePostNorm => ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
            Self::ExpertsNorm => ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
            Self::ExpertsPostNorm => ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
            Self::LayerTable => ("embed_tokens_per_layer", "per_layer_token_embd"),
            Self::LayerProjection => ("per_layer_model_projection", "per_layer_model_proj"),
            Self::LayerProjectionNorm => ("per_layer_projection_norm", "per_layer_proj_norm"),
            Self::InputGate => ("per_layer_input_gate", "inp_gate"),
            Self::InputProjection => ("per_layer_projection", "proj"),
            Self::InputPostNorm => ("post_per_layer_input_norm", "post_norm"),
            Self::LayerScale => ("layer_scalar", "layer_output_scale"),
            Self::StreamProjections => ("altup_projections", "altup_proj"),
            Self::StreamMerging => ("altup_unembed_projections", "altup_unembd_proj"),
            Self::StreamRouter => ("altup.modality_router", "altup_router"),
            Self::StreamRouterNorm => ("altup.router_norm", "altup_router_norm"),
            Self::StreamPrediction => ("altup.prediction_coefs", "altup_predict_coef"),
            Self::StreamCorrection => ("altup.correction_coefs", "altup_correct_coef"),
            Self::StreamScale => ("altup.correct_output_scale", "altup_correct_scale"),
            Self::ResidualDown => ("laurel.linear_left", "laurel_l"),
            Self::ResidualUp => ("laurel.linear_right", "laurel_r"),
            Self::ResidualNorm => ("laurel.post_laurel_norm", "laurel_post_norm"),
            Self::MtpInput => ("eh_proj", "nextn.eh_proj"),
            Self::MtpEmbeddingNorm => ("enorm", "nextn.enorm"),
            Self::MtpHiddenNorm => ("hnorm", "nextn.hnorm"),
            Self::MtpNorm => ("shared_head.norm", "nextn.shared_head_norm"),
        }
    }

    /// Returns its name in safetensors if the head that predicts further tokens is a module of its own.
    pub(super) fn name_in_mtp_module(self) -> Option<&'static str> {
        match self {
            Self::MtpInput => Some("fc"),
            Self::MtpEmbeddingNorm => Some("pre_fc_norm_embedding"),
            Self::MtpHiddenNorm => Some("pre_fc_norm_hidden"),
            Self::MtpNorm => Some("norm"),
            _ => None,
        }
    }
}
