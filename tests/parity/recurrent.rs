//! Model families with a recurrent state instead of, or in addition to, keys and values.
use candle_transformers::models::*;
use serde_json::{from_value, json};

use crate::family::{Family, VOCABULARY, config, forward, token_by_token};

pub fn families() -> Vec<Family> {
    vec![
        Family::new("mamba", |vb| {
            let config = mamba::Config {
                d_model: 64,
                n_layer: 2,
                vocab_size: VOCABULARY,
                pad_vocab_size_multiple: 16,
            };
            let mut state = mamba::State::new(1, &config, vb.dtype(), vb.device())?;
            let model = mamba::Model::new(&config, vb)?;
            token_by_token(move |ids, _| model.forward(&ids.squeeze(0)?, &mut state))
        }),
        Family::new("mamba2", |vb| {
            let config = mamba2::Config {
                d_model: 64,
                n_layer: 2,
                vocab_size: VOCABULARY,
                d_state: 16,
                expand: 2,
                headdim: 32,
                ngroups: 1,
                pad_vocab_size_multiple: 16,
            };
            let mut state = mamba2::State::new(1, &config, vb.dtype(), vb.device())?;
            let model = mamba2::Model::new(&config, vb)?;
            forward(move |ids, _| match ids.dim(1)? {
                1 => model.forward(&ids.squeeze(0)?, &mut state),
                _ => model.forward_prefill(ids, &mut state, 4),
            })
        }),
        Family::new("rwkv_v5", |vb| {
            let config = from_value(config(json!({
                "attention_hidden_size": 64, "num_attention_heads": 16, "head_size": 16,
                "layer_norm_epsilon": 1e-5, "rescale_every": 6,
            })))?;
            let mut state = rwkv_v5::State::new(1, &config, vb.device())?;
            let model = rwkv_v5::Model::new(&config, vb)?;
            token_by_token(move |ids, _| model.forward(ids, &mut state))
        })
        .unsupported_halves("its state is f32"),
        Family::new("rwkv_v6", |vb| {
            let config = from_value(config(json!({
                "attention_hidden_size": 64, "num_attention_heads": 16, "head_size": 16,
                "layer_norm_epsilon": 1e-5, "rescale_every": 6,
            })))?;
            let mut state = rwkv_v5::State::new(1, &config, vb.device())?;
            let model = rwkv_v6::Model::new(&config, vb)?;
            token_by_token(move |ids, _| model.forward(ids, &mut state))
        })
        .unsupported_halves("its state is f32"),
        Family::new("rwkv_v7", |vb| {
            let config = from_value(config(json!({"version": "V7", "head_size": 16})))?;
            let mut state = rwkv_v7::State::new_with_dtype(&config, vb.device(), vb.dtype())?;
            let model = rwkv_v7::Model::new(&config, vb)?;
            forward(move |ids, _| model.forward_seq(&ids.squeeze(0)?.to_vec1()?, &mut state))
        }),
        Family::new("recurrent_gemma", |vb| {
            let config = from_value(config(json!({
                "num_hidden_layers": 3, "lru_width": 64, "attention_window_size": 16, "conv1d_width": 4,
                "logits_soft_cap": 30.0, "hidden_activation": "gelu_pytorch_tanh",
                "partial_rotary_factor": 0.5, "max_seq_len": 32,
                "block_types": ["recurrent", "recurrent", "attention"],
            })))?;
            let mut model = recurrent_gemma::Model::new(&config, vb)?;
            forward(move |ids, before| model.forward(ids, before))
        })
        .of_layers(3),
        Family::new("lfm2", |vb| {
            let config: lfm2::Lfm2Config = from_value(config(json!({
                "norm_eps": 1e-5, "layer_types": ["conv", "full_attention"], "block_multiple_of": 32,
            })))?;
            let config = config.into_config(false);
            let mut cache = lfm2::Cache::new(true, vb.dtype(), &config, vb.device())?;
            let model = lfm2::Model::new(&config, vb)?;
            forward(move |ids, before| model.forward(ids, before, &mut cache))
        }),
        Family::new("based", |vb| {
            let config = from_value(config(json!({
                "n_embd": 64, "n_inner": 128, "n_layer": 3, "n_head": 4, "layer_norm_epsilon": 1e-5,
                "alt_mixer_layers": [1], "alt_mixer_2_layers": [2],
                "alt_mixer": {"num_heads": 4, "feature_dim": 8, "feature_map": {"input_dim": 8}},
                "alt_mixer_2": {"num_heads": 4, "window_size": 8},
            })))?;
            let mut model = based::Model::new(&config, vb)?;
            forward(move |ids, before| model.forward(ids, before))
        })
        .of_layers(3),
    ]
}
