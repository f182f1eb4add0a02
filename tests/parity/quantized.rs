//! Model families with quantized weights, read from GGUF.
use std::collections::HashMap;

use anyhow::Result;
use candle_core::quantized::GgmlDType::{self, *};
use candle_core::quantized::gguf_file::Value;
use candle_core::{DType, Device};
use candle_transformers::models::*;
use candle_transformers::quantized_var_builder::VarBuilder;
use serde_json::{Value as Json, from_value, json};

use crate::family::{Forward, LAYERS, VOCABULARY, config, forward, token_by_token};
use crate::gguf::*;
use crate::weights::weights;

/// Builds a model from the bytes of a file.
type Reader = fn(&[u8]) -> Result<Forward>;

pub struct Quantized {
    pub name: &'static str,
    /// Quantized types that are tested.
    pub kinds: &'static [GgmlDType],
    pub file: fn() -> Result<File>,
    pub layers: usize,
    pub build: fn(&[u8], &Device) -> Result<Forward>,
    /// Reference model on the CPU, if different from `build`.
    pub reference: Option<Reader>,
}

/// Declares a family whose `from_gguf` takes content, file and device.
macro_rules! from_gguf {
    ($name:literal, $kinds:expr, $model:path, $file:expr) => {
        Quantized {
            name: $name,
            kinds: $kinds,
            file: || Ok($file),
            layers: LAYERS,
            build: |bytes, device| {
                let (content, mut reader) = read(bytes)?;
                let mut model = <$model>::from_gguf(content, &mut reader, device)?;
                forward(move |ids, before| model.forward(ids, before))
            },
            reference: None,
        }
    };
}

/// Declares a family with the tensor names of another one, whose `new` takes the configuration and a
/// `VarBuilder` of quantized tensors.
macro_rules! with_names_of {
    ($name:literal, $kinds:expr, $own:tt, $names_of:path, |$config:ident, $vb:ident| $build:block) => {
        Quantized {
            name: $name,
            kinds: $kinds,
            file: || {
                requested_by(|vb| {
                    <$names_of>::new(&from_value(wide_config(json!($own)))?, vb)?;
                    Ok(())
                })
            },
            layers: LAYERS,
            build: |bytes, device| {
                let $config = from_value(wide_config(json!($own)))?;
                let $vb = VarBuilder::from_gguf_buffer(bytes, device)?;
                $build
            },
            reference: None,
        }
    };
}

/// Returns a configuration whose widths are multiples of the block sizes.
fn wide_config(own: Json) -> Json {
    let mut all = config(json!({"hidden_size": WIDTH, "intermediate_size": WIDTH, "head_dim": HEAD}));
    if let (Json::Object(all), Json::Object(own)) = (&mut all, own) {
        all.extend(own);
    }
    all
}

const ALL: &[GgmlDType] = &[Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, MXFP4];
const EXPERTS: usize = 4;
const LLAMA2_C: llama2_c::Config = llama2_c::Config {
    dim: WIDTH,
    hidden_dim: WIDTH,
    n_layers: LAYERS,
    n_heads: 4,
    n_kv_heads: 2,
    vocab_size: VOCABULARY,
    seq_len: 32,
    norm_eps: 1e-5,
};

pub fn families() -> Vec<Quantized> {
    vec![
        from_gguf!("quantized_llama", ALL, quantized_llama::ModelWeights, {
            File::decoder("llama", &[ATTENTION, GATED])
        }),
        from_gguf!("quantized_llama, every expert", &[Q4_0, Q6K], quantized_llama::ModelWeights, {
            let mut file = File::decoder("llama", &[ATTENTION, &GATED[..1]])
                .with_metadata("llama.expert_count", Value::U32(EXPERTS as u32))
                .with_metadata("llama.expert_used_count", Value::U32(EXPERTS as u32));
            for layer in 0..LAYERS {
                file = file.with_layer(layer, &[("ffn_gate_inp.weight", &[EXPERTS, WIDTH])]);
                for expert in 0..EXPERTS {
                    for part in ["gate", "up", "down"] {
                        let name = format!("ffn_{part}.{expert}.weight");
                        file = file.with_layer(layer, &[(name.as_str(), &[WIDTH, WIDTH])]);
                    }
                }
            }
            file
        }),
        from_gguf!("quantized_qwen2", &[Q4_0, Q4K], quantized_qwen2::ModelWeights, {
            File::decoder("qwen2", &[ATTENTION, BIASES, GATED])
        }),
        from_gguf!("quantized_qwen3", &[Q4_1, Q5K], quantized_qwen3::ModelWeights, {
            File::decoder("qwen3", &[ATTENTION, HEAD_NORMS, GATED])
        }),
        from_gguf!("quantized_phi", &[Q5_0, Q3K], quantized_phi::ModelWeights, {
            let own: Tensors<'_> = &[
                ("attn_norm.weight", &[WIDTH]),
                ("attn_norm.bias", &[WIDTH]),
                ("attn_qkv.weight", &[3 * WIDTH, WIDTH]),
                ("attn_qkv.bias", &[3 * WIDTH]),
                ("attn_output.weight", &[WIDTH, WIDTH]),
                ("attn_output.bias", &[WIDTH]),
                ("ffn_up.weight", &[WIDTH, WIDTH]),
                ("ffn_up.bias", &[WIDTH]),
                ("ffn_down.weight", &[WIDTH, WIDTH]),
                ("ffn_down.bias", &[WIDTH]),
            ];
            File::decoder("phi2", &[own])
                .with_metadata("phi2.attention.head_count_kv", Value::U32((WIDTH / HEAD) as u32))
                .with(&[("output_norm.bias", &[WIDTH]), ("output.bias", &[VOCABULARY])])
        }),
        Quantized {
            name: "quantized_phi3",
            kinds: &[Q5_1, Q2K],
            file: || Ok(File::decoder("phi3", &[ATTENTION_IN_ONE, GATED_IN_ONE])),
            layers: LAYERS,
            build: |bytes, device| quantized_phi3(bytes, device, false),
            reference: None,
        },
        Quantized {
            name: "quantized_phi3 with flash attention",
            kinds: &[Q8_0],
            file: || Ok(File::decoder("phi3", &[ATTENTION_IN_ONE, GATED_IN_ONE])),
            layers: LAYERS,
            build: |bytes, device| quantized_phi3(bytes, device, device.is_rocm()),
            reference: None,
        },
        from_gguf!("quantized_gemma3", &[Q8_0, Q6K], quantized_gemma3::ModelWeights, {
            File::decoder("gemma3", &[ATTENTION, HEAD_NORMS, POST_NORMS, GATED])
        }),
        from_gguf!("quantized_lfm2", &[Q8_0, Q4K], quantized_lfm2::ModelWeights, {
            let convolution: Tensors<'_> = &[
                ("shortconv.in_proj.weight", &[3 * WIDTH, WIDTH]),
                ("shortconv.out_proj.weight", &[WIDTH, WIDTH]),
                ("shortconv.conv.weight", &[WIDTH, 3]),
            ];
            // A layer with 0 key heads is a convolution layer.
            let heads = [0, 2].map(Value::U32).to_vec();
            File::decoder("lfm2", &[ATTENTION, HEAD_NORMS, GATED, convolution])
                .with_metadata("lfm2.attention.head_count_kv", Value::Array(heads))
                .with_metadata("lfm2.shortconv.l_cache", Value::U32(3))
        }),
        Quantized {
            name: "quantized_glm4",
            kinds: &[Q4_0, Q5K],
            file: || Ok(File::decoder("glm4", &[ATTENTION, BIASES, POST_NORMS, GATED_IN_ONE])),
            layers: LAYERS,
            build: |bytes, device| {
                let (content, mut reader) = read(bytes)?;
                let mut model =
                    quantized_glm4::ModelWeights::from_gguf(content, &mut reader, device, DType::F32)?;
                forward(move |ids, before| model.forward(ids, before))
            },
            reference: None,
        },
        Quantized {
            name: "smol quantized_smollm3",
            kinds: &[Q4_1, Q4K],
            file: || {
                // The model requires a head width of 128.
                let attention: Tensors<'_> = &[
                    ("attn_norm.weight", &[WIDTH]),
                    ("attn_q.weight", &[WIDTH, WIDTH]),
                    ("attn_k.weight", &[WIDTH, WIDTH]),
                    ("attn_v.weight", &[WIDTH, WIDTH]),
                    ("attn_output.weight", &[WIDTH, WIDTH]),
                ];
                let file = File::decoder("smollm3", &[attention, GATED])
                    .with_metadata("smollm3.rope.dimension_count", Value::U32(128));
                let heads = ["smollm3.attention.head_count", "smollm3.attention.head_count_kv"];
                Ok(heads.iter().fold(file, |file, heads| file.with_metadata(heads, Value::U32(2))))
            },
            layers: LAYERS,
            build: |bytes, device| {
                let file = tempfile::NamedTempFile::new()?;
                std::fs::write(file.path(), bytes)?;
                let mut model = smol::quantized_smollm3::QuantizedModelForCausalLM::from_gguf(
                    file.path(),
                    device,
                    false,
                )?;
                forward(move |ids, before| model.forward(ids, before))
            },
            reference: None,
        },
        with_names_of!("quantized_mistral", &[Q4_0, Q4K], {"sliding_window": 4}, mistral::Model, |config, vb| {
            let mut model = quantized_mistral::Model::new(&config, vb)?;
            forward(move |ids, before| model.forward(ids, before))
        }),
        with_names_of!("quantized_stable_lm", &[Q5_0, Q5K],
            {"partial_rotary_factor": 0.25, "use_cache": true, "use_qkv_bias": true},
            stable_lm::Model,
            |config, vb| {
                let mut model = quantized_stable_lm::Model::new(&config, vb)?;
                forward(move |ids, before| model.forward(ids, before))
            }
        ),
        with_names_of!("quantized_mixformer", &[Q5_1, Q6K],
            {"n_positions": 32, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "rotary_dim": 32,
                "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
                "pad_vocab_size_multiple": 16},
            mixformer::MixFormerSequentialForCausalLM,
            |config, vb| {
                let mut model = quantized_mixformer::MixFormerSequentialForCausalLM::new(&config, vb)?;
                forward(move |ids, _| model.forward(ids))
            }
        ),
        with_names_of!("quantized_rwkv_v5", &[Q8_0, Q3K],
            {"attention_hidden_size": WIDTH, "num_attention_heads": HEAD, "head_size": HEAD,
                "layer_norm_epsilon": 1e-5, "rescale_every": 6},
            rwkv_v5::Model,
            |config, vb| {
                let mut state = rwkv_v5::State::new(1, &config, vb.device())?;
                let model = quantized_rwkv_v5::Model::new(&config, vb)?;
                token_by_token(move |ids, _| model.forward(ids, &mut state))
            }
        ),
        with_names_of!("quantized_rwkv_v6", &[Q8_0, Q2K],
            {"attention_hidden_size": WIDTH, "num_attention_heads": HEAD, "head_size": HEAD,
                "layer_norm_epsilon": 1e-5, "rescale_every": 6},
            rwkv_v6::Model,
            |config, vb| {
                let mut state = rwkv_v5::State::new(1, &config, vb.device())?;
                let model = quantized_rwkv_v6::Model::new(&config, vb)?;
                token_by_token(move |ids, _| model.forward(ids, &mut state))
            }
        ),
        with_names_of!("quantized_recurrent_gemma", &[Q4_1, Q5K],
            {"lru_width": WIDTH, "attention_window_size": 16, "conv1d_width": 4,
                "logits_soft_cap": 30.0, "hidden_activation": "gelu_pytorch_tanh",
                "partial_rotary_factor": 0.5, "max_seq_len": 32,
                "block_types": ["recurrent", "attention"]},
            recurrent_gemma::Model,
            |config, vb| {
                let mut model = quantized_recurrent_gemma::Model::new(&config, vb)?;
                forward(move |ids, before| model.forward(ids, before))
            }
        ),
        Quantized {
            name: "quantized_llama2_c",
            kinds: &[Q5_0, Q6K],
            file: || {
                requested_by(|vb| {
                    llama2_c::Llama::load(vb, LLAMA2_C.clone())?;
                    Ok(())
                })
            },
            layers: LAYERS,
            build: |bytes, device| {
                let angles = weights(DType::F32, DType::F32, device);
                let mut cache = llama2_c::Cache::new(true, &LLAMA2_C, angles)?;
                let vb = VarBuilder::from_gguf_buffer(bytes, device)?;
                let model = quantized_llama2_c::QLlama::load(vb, LLAMA2_C.clone())?;
                forward(move |ids, before| model.forward(ids, before, &mut cache))
            },
            reference: None,
        },
        Quantized {
            name: "quantized_qwen3_moe, every expert",
            kinds: &[Q8_0, Q4K],
            file: || {
                let experts: Tensors<'_> = &[
                    ("ffn_norm.weight", &[WIDTH]),
                    ("ffn_gate_inp.weight", &[EXPERTS, WIDTH]),
                    ("ffn_gate_exps.weight", &[EXPERTS, WIDTH, WIDTH]),
                    ("ffn_up_exps.weight", &[EXPERTS, WIDTH, WIDTH]),
                    ("ffn_down_exps.weight", &[EXPERTS, WIDTH, WIDTH]),
                ];
                let count = |value| Value::U32(value as u32);
                Ok(File::decoder("qwen3moe", &[ATTENTION, HEAD_NORMS, experts])
                    .with_metadata("qwen3moe.expert_count", count(EXPERTS))
                    .with_metadata("qwen3moe.expert_used_count", count(EXPERTS))
                    .with_metadata("qwen3moe.expert_feed_forward_length", count(WIDTH)))
            },
            layers: LAYERS,
            build: |bytes, device| {
                let (content, mut reader) = read(bytes)?;
                let mut model =
                    quantized_qwen3_moe::GGUFQWenMoE::from_gguf(content, &mut reader, device, DType::F32)?;
                forward(move |ids, before| model.forward(ids, before))
            },
            // The CPU device does not support `indexed_moe_forward`.
            reference: Some(dequantized_qwen3_moe),
        },
    ]
}

fn quantized_phi3(bytes: &[u8], device: &Device, flash: bool) -> Result<Forward> {
    let (content, mut reader) = read(bytes)?;
    let mut model = quantized_phi3::ModelWeights::from_gguf(flash, content, &mut reader, device)?;
    forward(move |ids, before| model.forward(ids, before))
}

/// Builds qwen3_moe on the CPU with the dequantized weights of a file for quantized_qwen3_moe.
fn dequantized_qwen3_moe(bytes: &[u8]) -> Result<Forward> {
    let (content, mut reader) = read(bytes)?;
    let mut tensors = HashMap::new();
    for name in content.tensor_infos.keys() {
        let tensor = content.tensor(&mut reader, name, &Device::Cpu)?.dequantize(&Device::Cpu)?;
        let renamed = NAMES_OF_QWEN3_MOE
            .iter()
            .fold(name.replace("blk.", "model.layers."), |name, (a, b)| name.replace(a, b));
        match renamed.split_once("EXPERT") {
            Some((before, after)) => {
                for (i, expert) in tensor.chunk(EXPERTS, 0)?.into_iter().enumerate() {
                    tensors.insert(format!("{before}{i}{after}"), expert.squeeze(0)?);
                }
            }
            None => {
                tensors.insert(renamed, tensor);
            }
        }
    }
    let config = from_value(wide_config(json!({
        "max_window_layers": 2, "use_sliding_window": false, "decoder_sparse_step": 1,
        "moe_intermediate_size": WIDTH, "num_experts_per_tok": EXPERTS, "num_experts": EXPERTS,
        "norm_topk_prob": true,
    })))?;
    let vb = candle_nn::VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let mut model = qwen3_moe::ModelForCausalLM::new(&config, vb)?;
    forward(move |ids, before| model.forward(ids, before))
}

/// Names of tensors in GGUF and in safetensors.
const NAMES_OF_QWEN3_MOE: [(&str, &str); 15] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("attn_output", "self_attn.o_proj"),
    ("output.", "lm_head."),
    ("attn_norm", "input_layernorm"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_q.", "self_attn.q_proj."),
    ("attn_k.", "self_attn.k_proj."),
    ("attn_v.", "self_attn.v_proj."),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.EXPERT.gate_proj"),
    ("ffn_up_exps", "mlp.experts.EXPERT.up_proj"),
    ("ffn_down_exps", "mlp.experts.EXPERT.down_proj"),
];
