//! Kinds of vision encoders: names of tensors in safetensors, and how each kind differs.
use serde_json::Value;

/// Kind of a vision encoder and its projector.
#[derive(Debug, PartialEq)]
pub(super) struct VisionFamily {
    /// Names in `"model_type"` of config.json.
    pub(super) model_types: &'static [&'static str],
    /// Name in `"model_type"` of the encoder's configuration, if the model's does not determine it.
    pub(super) encoder_type: Option<&'static str>,
    /// JSON object of transformers' defaults for fields that config.json omits.
    pub(super) defaults: &'static str,
    /// Names of tensors, relative to the prefix of the encoder.
    pub(super) names: EncoderNames,
    /// If true, norms are RMS norms; otherwise layer norms.
    pub(super) is_rms: bool,
    /// If true, the projections of the layers have biases.
    pub(super) has_bias: bool,
    /// If true, patches have several frames.
    pub(super) has_frames: bool,
    /// If true, layers have windows.
    pub(super) has_windows: bool,
    /// Epsilon of norms, unless the configuration has one.
    pub(super) norm_eps: f64,
    /// Positions of patches.
    pub(super) positions: Positions,
    /// Number of patches in a token.
    pub(super) merge: MergeFrom,
    /// If true, all tokens of a picture see each other in the decoder.
    pub(super) is_bidirectional: bool,
    /// Projection to the width of the decoder.
    pub(super) projector: ProjectorKind,
    /// Names of its tensors.
    pub(super) projector_names: ProjectorNames,
    /// If true, tensors are those of llama.cpp's mmproj files: each frame of the patches has a tensor, the norm of Gemma 3's
    /// projector includes 1, and Pixtral's rotary pairs are neighboring elements.
    pub(super) is_mmproj: bool,
}

impl VisionFamily {
    /// Returns true if rotary pairs are neighboring elements; otherwise they are elements of both halves.
    pub(super) fn is_interleaved(&self) -> bool {
        self.is_mmproj && matches!(self.projector, ProjectorKind::Pixtral | ProjectorKind::Mistral3)
    }
}

/// Names of an encoder's tensors.
#[derive(Debug, PartialEq)]
pub(super) struct EncoderNames {
    /// Projection of patches, which also determines the prefix.
    pub(super) patch: &'static str,
    /// If true, it has a bias.
    pub(super) patch_bias: bool,
    /// Table of positions.
    pub(super) table: Option<&'static str>,
    /// Norm before the first layer.
    pub(super) first_norm: Option<&'static str>,
    /// Norm after the last layer.
    pub(super) last_norm: Option<&'static str>,
    /// Layers.
    pub(super) layers: &'static str,
    /// Norms before attention and before the feed-forward layer.
    pub(super) norms: [&'static str; 2],
    /// One fused projection to queries, keys and values, or three.
    pub(super) query_key_value: &'static [&'static str],
    /// Output projection of attention.
    pub(super) output: &'static str,
    /// Projections of the feed-forward layer: gate and up, or up alone, and down.
    pub(super) mlp: &'static [&'static str],
    /// Norms of the heads of queries and of keys, after attention and after the feed-forward layer, if there are any.
    pub(super) further_norms: Option<[&'static str; 4]>,
}

/// Embedding of the positions of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Positions {
    /// Rotary embeddings by row and column. The frequencies of columns are those of rows, shifted by this fraction of a step.
    Rotary {
        /// Numerator of the shift; the denominator is 4.
        column_shift: usize,
    },
    /// A table that is interpolated to the size of the picture, and rotary embeddings.
    InterpolatedAndRotary,
    /// A table with a row for each patch of a picture of fixed size.
    Table,
    /// A table with a row for each column and another for each row, and rotary embeddings, which rotate each half of a head alone:
    /// the first by the column, the other by the row.
    TablesAndRotaryHalves,
}

/// Field with the number of patches in a row that become one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MergeFrom {
    /// Field `spatial_merge_size` of the encoder's configuration.
    Encoder,
    /// Field of the model's configuration, and its default.
    Model(&'static str, usize),
    /// Field `pooling_kernel_size` of the encoder's configuration.
    Pooling,
    /// It follows from `mm_tokens_per_image` of the model's configuration.
    TokensPerImage,
}

/// Projection to the width of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProjectorKind {
    /// Qwen2.5-VL: a norm of each patch, and two layers.
    Qwen2,
    /// Qwen3-VL: like [`Self::Qwen2`], with other names.
    Qwen3,
    /// Gemma 3: the mean of patches, a norm and a matrix.
    Gemma3,
    /// Gemma 4: the mean of patches, which may be standardized, a norm without weights and a matrix.
    Gemma4,
    /// SmolVLM: one layer.
    Idefics3,
    /// Pixtral: two layers.
    Pixtral,
    /// Mistral 3: a norm, a layer that merges patches, and two layers.
    Mistral3,
}

/// Names of a projector's tensors.
#[derive(Debug, PartialEq)]
pub(super) struct ProjectorNames {
    /// Norm before the layers.
    pub(super) norm: Option<&'static str>,
    /// Layer that merges patches.
    pub(super) merger: Option<&'static str>,
    /// Layers, and the matrix of Gemma 3 by its full name.
    pub(super) layers: &'static [&'static str],
    /// Names of the projectors of earlier states: the text before a projector's number, and its norm and two layers.
    pub(super) deepstack: (&'static str, [&'static str; 3]),
}

impl ProjectorNames {
    /// Names of a projector that consists of layers.
    const fn layers(layers: &'static [&'static str]) -> Self {
        Self { norm: None, merger: None, layers, deepstack: ("", [""; 3]) }
    }
}

const QWEN_LAYER_NORMS: [&str; 2] = ["norm1", "norm2"];

const SIGLIP: EncoderNames = EncoderNames {
    patch: "embeddings.patch_embedding",
    patch_bias: true,
    table: Some("embeddings.position_embedding"),
    first_norm: None,
    last_norm: Some("post_layernorm"),
    layers: "encoder.layers",
    norms: ["layer_norm1", "layer_norm2"],
    query_key_value: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    output: "self_attn.out_proj",
    mlp: &["mlp.fc1", "mlp.fc2"],
    further_norms: None,
};

const PIXTRAL: EncoderNames = EncoderNames {
    patch: "patch_conv",
    patch_bias: false,
    table: None,
    first_norm: Some("ln_pre"),
    last_norm: None,
    layers: "transformer.layers",
    norms: ["attention_norm", "ffn_norm"],
    query_key_value: &["attention.q_proj", "attention.k_proj", "attention.v_proj"],
    output: "attention.o_proj",
    mlp: &["feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"],
    further_norms: None,
};

const PIXTRAL_DEFAULTS: &str = r#"{"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "image_size": 1024, "patch_size": 16, "hidden_act": "gelu"}"#;

const PIXTRAL_LAYERS: &[&str] = &["multi_modal_projector.linear_1", "multi_modal_projector.linear_2"];

const QWEN2_5_VL: VisionFamily = VisionFamily {
    model_types: &["qwen2_5_vl"],
    encoder_type: None,
    defaults: r#"{"depth": 32, "hidden_size": 3584, "hidden_act": "silu", "intermediate_size": 3420, "num_heads": 16,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31]}"#,
    names: EncoderNames {
        patch: "patch_embed.proj",
        patch_bias: false,
        table: None,
        first_norm: None,
        last_norm: None,
        layers: "blocks",
        norms: QWEN_LAYER_NORMS,
        query_key_value: &["attn.qkv"],
        output: "attn.proj",
        mlp: &["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
        further_norms: None,
    },
    is_rms: true,
    has_bias: true,
    has_frames: true,
    has_windows: true,
    norm_eps: 1e-6,
    positions: Positions::Rotary { column_shift: 0 },
    merge: MergeFrom::Encoder,
    is_bidirectional: false,
    projector: ProjectorKind::Qwen2,
    projector_names: ProjectorNames {
        norm: Some("merger.ln_q"),
        ..ProjectorNames::layers(&["merger.mlp.0", "merger.mlp.2"])
    },
    is_mmproj: false,
};

const QWEN3_VL: VisionFamily = VisionFamily {
    model_types: &["qwen3_vl", "qwen3_vl_moe"],
    encoder_type: None,
    defaults: r#"{"depth": 27, "hidden_size": 1152, "hidden_act": "gelu_pytorch_tanh", "intermediate_size": 4304,
        "num_heads": 16, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24]}"#,
    names: EncoderNames {
        patch: "patch_embed.proj",
        patch_bias: true,
        table: Some("pos_embed"),
        first_norm: None,
        last_norm: None,
        layers: "blocks",
        norms: QWEN_LAYER_NORMS,
        query_key_value: &["attn.qkv"],
        output: "attn.proj",
        mlp: &["mlp.linear_fc1", "mlp.linear_fc2"],
        further_norms: None,
    },
    is_rms: false,
    has_bias: true,
    has_frames: true,
    has_windows: false,
    norm_eps: 1e-6,
    positions: Positions::InterpolatedAndRotary,
    merge: MergeFrom::Encoder,
    is_bidirectional: false,
    projector: ProjectorKind::Qwen3,
    projector_names: ProjectorNames {
        norm: Some("merger.norm"),
        deepstack: ("deepstack_merger_list.", ["norm", "linear_fc1", "linear_fc2"]),
        ..ProjectorNames::layers(&["merger.linear_fc1", "merger.linear_fc2"])
    },
    is_mmproj: false,
};

const QWEN3_5: VisionFamily = VisionFamily {
    model_types: &["qwen3_5", "qwen3_5_moe"],
    defaults: r#"{"depth": 27, "hidden_size": 1152, "hidden_act": "gelu_pytorch_tanh", "intermediate_size": 4304,
        "num_heads": 16, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "num_position_embeddings": 2304}"#,
    ..QWEN3_VL
};

const GEMMA3: VisionFamily = VisionFamily {
    model_types: &["gemma3"],
    encoder_type: Some("siglip_vision_model"),
    defaults: r#"{"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "image_size": 224, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh"}"#,
    names: SIGLIP,
    is_rms: false,
    has_bias: true,
    has_frames: false,
    has_windows: false,
    norm_eps: 1e-6,
    positions: Positions::Table,
    merge: MergeFrom::TokensPerImage,
    is_bidirectional: true,
    projector: ProjectorKind::Gemma3,
    projector_names: ProjectorNames {
        norm: Some("multi_modal_projector.mm_soft_emb_norm"),
        ..ProjectorNames::layers(&["multi_modal_projector.mm_input_projection_weight"])
    },
    is_mmproj: false,
};

const GEMMA4: VisionFamily = VisionFamily {
    model_types: &["gemma4"],
    encoder_type: Some("gemma4_vision"),
    defaults: r#"{"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
        "patch_size": 16, "hidden_activation": "gelu_pytorch_tanh", "pooling_kernel_size": 3, "rope_theta": 100.0,
        "position_embedding_size": 10240}"#,
    names: EncoderNames {
        patch: "patch_embedder.input_proj",
        patch_bias: false,
        table: Some("patch_embedder.position_embedding_table"),
        first_norm: None,
        last_norm: None,
        layers: "encoder.layers",
        norms: ["input_layernorm", "pre_feedforward_layernorm"],
        query_key_value: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        output: "self_attn.o_proj",
        mlp: &["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
        further_norms: Some([
            "self_attn.q_norm",
            "self_attn.k_norm",
            "post_attention_layernorm",
            "post_feedforward_layernorm",
        ]),
    },
    is_rms: true,
    has_bias: false,
    has_frames: false,
    has_windows: false,
    norm_eps: 1e-6,
    positions: Positions::TablesAndRotaryHalves,
    merge: MergeFrom::Pooling,
    is_bidirectional: true,
    projector: ProjectorKind::Gemma4,
    projector_names: ProjectorNames::layers(&["embed_vision.embedding_projection"]),
    is_mmproj: false,
};

const SMOLVLM: VisionFamily = VisionFamily {
    model_types: &["smolvlm", "idefics3"],
    encoder_type: None,
    defaults: r#"{"hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
        "image_size": 224, "patch_size": 32, "hidden_act": "gelu_pytorch_tanh"}"#,
    names: SIGLIP,
    is_rms: false,
    has_bias: true,
    has_frames: false,
    has_windows: false,
    norm_eps: 1e-6,
    positions: Positions::Table,
    merge: MergeFrom::Model("scale_factor", 2),
    is_bidirectional: false,
    projector: ProjectorKind::Idefics3,
    projector_names: ProjectorNames::layers(&["modality_projection.proj"]),
    is_mmproj: false,
};

const PIXTRAL_12B: VisionFamily = VisionFamily {
    model_types: &["llava"],
    encoder_type: Some("pixtral"),
    defaults: PIXTRAL_DEFAULTS,
    names: PIXTRAL,
    is_rms: true,
    has_bias: false,
    has_frames: false,
    has_windows: false,
    norm_eps: 1e-5,
    positions: Positions::Rotary { column_shift: 2 },
    merge: MergeFrom::Model("spatial_merge_size", 1),
    is_bidirectional: false,
    projector: ProjectorKind::Pixtral,
    projector_names: ProjectorNames::layers(PIXTRAL_LAYERS),
    is_mmproj: false,
};

const MISTRAL3: VisionFamily = VisionFamily {
    model_types: &["mistral3"],
    merge: MergeFrom::Model("spatial_merge_size", 2),
    projector: ProjectorKind::Mistral3,
    projector_names: ProjectorNames {
        norm: Some("multi_modal_projector.norm"),
        merger: Some("multi_modal_projector.patch_merger.merging_layer"),
        ..ProjectorNames::layers(PIXTRAL_LAYERS)
    },
    ..PIXTRAL_12B
};

/// Supported kinds.
const FAMILIES: &[VisionFamily] =
    &[QWEN2_5_VL, QWEN3_VL, QWEN3_5, GEMMA3, GEMMA4, SMOLVLM, PIXTRAL_12B, MISTRAL3];

/// Kind of an encoder and its projector in an mmproj file of llama.cpp.
pub(super) struct MmprojKind {
    /// Name in `clip.projector_type`.
    pub(super) projector: &'static str,
    /// Names in `general.architecture` of text models.
    pub(super) architectures: &'static [&'static str],
    /// The kind, with the names of tensors in GGUF.
    pub(super) family: VisionFamily,
    /// Activation for which `clip.use_gelu` stands.
    pub(super) gelu: &'static str,
    /// Options of the processor of pictures that the file does not contain, as JSON.
    pub(super) processor: &'static str,
    /// Fields of a config.json for tokens, and these tokens.
    pub(super) tokens: &'static [(&'static str, &'static str)],
}

const GGUF_NAMES: EncoderNames = EncoderNames {
    patch: "v.patch_embd",
    patch_bias: true,
    table: Some("v.position_embd"),
    first_norm: None,
    last_norm: Some("v.post_ln"),
    layers: "v.blk",
    norms: ["ln1", "ln2"],
    query_key_value: &["attn_q", "attn_k", "attn_v"],
    output: "attn_out",
    mlp: &["ffn_up", "ffn_down"],
    further_norms: None,
};

const GGUF_GATED: &[&str] = &["ffn_gate", "ffn_up", "ffn_down"];

const GGUF_PIXTRAL: EncoderNames = EncoderNames {
    patch_bias: false,
    table: None,
    first_norm: Some("v.pre_ln"),
    last_norm: None,
    mlp: GGUF_GATED,
    ..GGUF_NAMES
};

const GGUF_QWEN_PROJECTOR: ProjectorNames = ProjectorNames {
    norm: Some("v.post_ln"),
    merger: None,
    layers: &["mm.0", "mm.2"],
    deepstack: ("v.deepstack.", ["norm", "fc1", "fc2"]),
};

/// Files of Pixtral 12B, which differ from those of Mistral 3 by their projector.
const PIXTRAL_12B_MMPROJ: MmprojKind = MmprojKind {
    projector: "pixtral",
    architectures: &["llama"],
    family: VisionFamily {
        names: GGUF_PIXTRAL,
        projector_names: ProjectorNames::layers(&["mm.1", "mm.2"]),
        is_mmproj: true,
        ..PIXTRAL_12B
    },
    gelu: "gelu",
    processor: r#"{"resample": 3}"#,
    tokens: &[("image_token_id", "[IMG]")],
};

/// Supported kinds of mmproj files. Of those with the same projector, the first one whose tensors exist is used.
pub(super) const MMPROJ: &[MmprojKind] = &[
    MmprojKind {
        projector: "qwen2.5vl_merger",
        architectures: &["qwen2vl"],
        family: VisionFamily {
            names: EncoderNames {
                patch_bias: false,
                table: None,
                last_norm: None,
                mlp: GGUF_GATED,
                ..GGUF_NAMES
            },
            projector_names: GGUF_QWEN_PROJECTOR,
            is_mmproj: true,
            ..QWEN2_5_VL
        },
        gelu: "gelu",
        processor: r#"{"resample": 3, "min_pixels": 3136, "max_pixels": 12845056}"#,
        tokens: &[("image_token_id", "<|image_pad|>")],
    },
    MmprojKind {
        projector: "qwen3vl_merger",
        architectures: &["qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"],
        family: VisionFamily {
            names: EncoderNames { last_norm: None, query_key_value: &["attn_qkv"], ..GGUF_NAMES },
            projector_names: GGUF_QWEN_PROJECTOR,
            is_mmproj: true,
            ..QWEN3_VL
        },
        gelu: "gelu_pytorch_tanh",
        processor: r#"{"resample": 3, "min_pixels": 65536, "max_pixels": 16777216}"#,
        tokens: &[("image_token_id", "<|image_pad|>")],
    },
    MmprojKind {
        projector: "gemma3",
        architectures: &["gemma3"],
        family: VisionFamily {
            names: GGUF_NAMES,
            projector_names: ProjectorNames {
                norm: Some("mm.soft_emb_norm"),
                ..ProjectorNames::layers(&["mm.input_projection.weight"])
            },
            is_mmproj: true,
            ..GEMMA3
        },
        gelu: "gelu_pytorch_tanh",
        processor: r#"{"resample": 2}"#,
        tokens: &[
            ("image_token_id", "<image_soft_token>"),
            ("boi_token_index", "<start_of_image>"),
            ("eoi_token_index", "<end_of_image>"),
        ],
    },
    MmprojKind {
        projector: "gemma4v",
        architectures: &["gemma4"],
        family: VisionFamily {
            names: EncoderNames {
                patch_bias: false,
                last_norm: None,
                mlp: GGUF_GATED,
                further_norms: Some(["attn_q_norm", "attn_k_norm", "attn_post_norm", "ffn_post_norm"]),
                ..GGUF_NAMES
            },
            projector_names: ProjectorNames::layers(&["mm.input_projection"]),
            is_mmproj: true,
            ..GEMMA4
        },
        gelu: "gelu_pytorch_tanh",
        processor: r#"{"resample": 3}"#,
        tokens: &[
            ("image_token_id", "<|image|>"),
            ("boi_token_id", "<|image>"),
            ("eoi_token_id", "<image|>"),
        ],
    },
    MmprojKind {
        projector: "idefics3",
        architectures: &["llama"],
        family: VisionFamily {
            names: GGUF_NAMES,
            projector_names: ProjectorNames::layers(&["mm.model.fc"]),
            is_mmproj: true,
            ..SMOLVLM
        },
        gelu: "gelu_pytorch_tanh",
        processor: r#"{"resample": 1}"#,
        tokens: &[("image_token_id", "<image>")],
    },
    MmprojKind {
        family: VisionFamily {
            names: GGUF_PIXTRAL,
            projector_names: ProjectorNames {
                norm: Some("mm.input_norm"),
                merger: Some("mm.patch_merger"),
                ..PIXTRAL_12B_MMPROJ.family.projector_names
            },
            is_mmproj: true,
            ..MISTRAL3
        },
        ..PIXTRAL_12B_MMPROJ
    },
    PIXTRAL_12B_MMPROJ,
];

/// Returns the kind of the encoder of a config.json.
pub(super) fn of_config(config: &Value) -> Option<&'static VisionFamily> {
    let (model, encoder) = (config["model_type"].as_str()?, config["vision_config"]["model_type"].as_str());
    let is_kind = |family: &&VisionFamily| {
        family.model_types.contains(&model)
            && family.encoder_type.is_none_or(|own| encoder.is_none_or(|kind| kind == own))
    };
    FAMILIES.iter().find(is_kind)
}
