//! Models with optional flash attention, which is enabled on ROCm and disabled on the CPU.
//!
//! With flash attention, the models' code ignores sliding windows and score caps, so the configurations avoid
//! them.
use candle_nn::{Embedding, Module};
use candle_transformers::models::*;
use serde_json::{from_value, json};

use crate::family::{Family, VOCABULARY, config, forward};
use crate::transformers::llama;

/// Declares a family whose JSON configuration includes `use_flash_attn`; `flash` is its value.
macro_rules! switched {
    ($name:literal, $model:path, $own:tt) => {
        switched!($name, $own, |config, vb, _flash| {
            let mut model = <$model>::new(&config, vb)?;
            forward(move |ids, before| model.forward(ids, before))
        })
    };
    ($name:literal, $own:tt, |$config:ident, $vb:ident, $flash:ident| $build:block) => {
        Family::new(concat!($name, " with flash attention"), |$vb| {
            let $flash = $vb.device().is_rocm();
            let mut all = config(json!($own));
            all["use_flash_attn"] = $flash.into();
            let $config = from_value(all)?;
            $build
        })
    };
}

/// Declares the attention layer of z_image alone, which enables flash attention by itself.
macro_rules! z_image {
    ($name:literal, |$ids:ident| $mask:expr) => {
        Family::new($name, |vb| {
            let config = config(json!({"dim": 64, "n_heads": 4, "n_kv_heads": 4}));
            let attention =
                z_image::transformer::ZImageAttention::new(&from_value(config)?, vb.pp("attention"))?;
            let words = Embedding::new(vb.get((VOCABULARY, 64), "words")?, 64);
            forward(move |$ids, _| {
                let x = words.forward($ids)?;
                let angles = (x.get(0)?.narrow(1, 0, 8)?.ones_like()? * 0.5)?;
                attention.forward(&x, $mask, &angles.cos()?, &angles.sin()?)
            })
        })
        .of_layers(1)
    };
}

pub fn families() -> Vec<Family> {
    vec![
        switched!("llama", {}, |config, vb, flash| { llama(config, vb, flash) }),
        switched!("mistral", mistral::Model, {"sliding_window": 32}),
        switched!("mixtral", mixtral::Model,
        {"sliding_window": 32, "num_experts_per_tok": 2, "num_local_experts": 4})
        .unsupported_halves("its expert weights are f32"),
        switched!("gemma", {"hidden_act": "gelu", "attention_bias": true}, |config, vb, flash| {
            let mut model = gemma::Model::new(flash, &config, vb)?;
            forward(move |ids, before| model.forward(ids, before))
        }),
        switched!("gemma2",
            {"hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": 30.0,
                "query_pre_attn_scalar": 16},
            |config, vb, flash| {
                let mut model = gemma2::Model::new(flash, &config, vb)?;
                forward(move |ids, before| model.forward(ids, before))
            }
        ),
        switched!("gemma3",
            {"hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 1000.0,
                "query_pre_attn_scalar": 16, "sliding_window": 32, "sliding_window_pattern": 2,
                "num_key_value_heads": 1},
            |config, vb, flash| {
                let mut model = gemma3::Model::new(flash, &config, vb)?;
                forward(move |ids, before| model.forward(ids, before))
            }
        ),
        switched!("gemma4", gemma4::text::TextModel,
        {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"],
            "global_head_dim": 32, "num_global_key_value_heads": 1}),
        switched!("stable_lm", stable_lm::Model,
        {"partial_rotary_factor": 0.25, "use_cache": true, "use_qkv_bias": true}),
        switched!("helium", helium::Model,
        {"bos_token_id": 1, "eos_token_id": 2, "mlp_bias": false}),
        switched!("granite", {}, |config, vb, flash| {
            let config: granite::GraniteConfig = config;
            let config = config.into_config(flash);
            let mut cache = granite::Cache::new(true, vb.dtype(), &config, vb.device())?;
            let model = granite::Granite::load(vb, &config)?;
            forward(move |ids, before| model.forward(ids, before, &mut cache))
        }),
        switched!("granitemoehybrid",
            {"layer_types": ["attention", "attention"], "attention_multiplier": 0.25,
                "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "logits_scaling": 4.0,
                "shared_intermediate_size": 96},
            |config, vb, flash| {
                let config: granitemoehybrid::GraniteMoeHybridConfig = config;
                let config = config.into_config(flash);
                let mut cache =
                    granitemoehybrid::GraniteMoeHybridCache::new(true, vb.dtype(), &config, vb.device())?;
                let model = granitemoehybrid::GraniteMoeHybrid::load(vb, &config)?;
                forward(move |ids, before| model.forward(ids, before, &mut cache))
            }
        ),
        switched!("lfm2",
            {"norm_eps": 1e-5, "layer_types": ["conv", "full_attention"], "block_multiple_of": 32},
            |config, vb, flash| {
                let config: lfm2::Lfm2Config = config;
                let config = config.into_config(flash);
                let mut cache = lfm2::Cache::new(true, vb.dtype(), &config, vb.device())?;
                let model = lfm2::Model::new(&config, vb)?;
                forward(move |ids, before| model.forward(ids, before, &mut cache))
            }
        ),
        Family::new("voxtral_llama with flash attention", |vb| {
            let config = voxtral::VoxtralLlamaConfig {
                hidden_size: 64,
                intermediate_size: 96,
                vocab_size: VOCABULARY,
                num_hidden_layers: 2,
                num_attention_heads: 4,
                num_key_value_heads: 2,
                head_dim: Some(16),
                use_flash_attn: vb.device().is_rocm(),
                max_position_embeddings: 32,
                ..voxtral::VoxtralLlamaConfig::voxtral_3b()
            };
            let mut cache = voxtral::VoxtralLlamaCache::new(true, vb.dtype(), &config, vb.device())?;
            let model = voxtral::VoxtralLlama::load(vb, &config)?;
            forward(move |ids, before| model.forward(ids, before, &mut cache))
        }),
        z_image!("z_image", |ids| None),
        z_image!("z_image with a mask", |ids| Some(&ids.ne(5u32)?))
            .without_halves("its mask has values that f16 cannot represent"),
    ]
}
