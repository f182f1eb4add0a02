//! Text encoders and encoder-decoder models.
use std::collections::HashMap;

use candle_core::Module;
use candle_transformers::models::*;
use serde_json::{from_value, json};

use crate::family::config;
use crate::single::{Single, text};

/// Declares an encoder whose configuration is read from JSON.
macro_rules! encoder {
    ($name:literal, $own:tt, |$config:ident, $vb:ident, $ids:ident| $outputs:expr) => {
        encoder!($name, 2, $own, |$config, $vb, $ids| $outputs)
    };
    ($name:literal, $layers:literal, $own:tt, |$config:ident, $vb:ident, $ids:ident| $outputs:expr) => {
        Single::new($name, $layers, |$vb| {
            let $config = from_value(config(json!($own)))?;
            let $ids = text(9, &$vb)?;
            Ok($outputs.to_vec())
        })
    };
}

macro_rules! stella {
    ($name:literal, $variant:literal, $activation:literal) => {
        encoder!($name,
            {"variant": $variant, "embed_head": {"in_features": 64, "out_features": 32}, "norm_eps": 1e-6,
                "activation_fn": $activation, "type_vocab_size": 2, "scaling_factor": 2.0},
            |config, vb, ids| {
                let mut model = stella_en_v5::EmbeddingModel::new(&config, vb.clone(), vb.pp("head"))?;
                [model.forward_norm(&ids, &ids.ones_like()?)?]
            }
        )
    };
}

pub fn models() -> Vec<Single> {
    vec![
        encoder!("bert",
            {"hidden_act": "gelu", "hidden_dropout_prob": 0.0, "type_vocab_size": 2, "initializer_range": 0.02,
                "pad_token_id": 0},
            |config, vb, ids| {
                let model = bert::BertForMaskedLM::load(vb, &config)?;
                [model.forward(&ids, &ids.zeros_like()?, None)?]
            }
        ),
        encoder!("distilbert",
            {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96, "activation": "gelu",
                "initializer_range": 0.02, "pad_token_id": 0},
            |config, vb, ids| {
                let model = distilbert::DistilBertForMaskedLM::load(vb, &config)?;
                let sees_none = ids.zeros_like()?.to_dtype(candle_core::DType::U8)?;
                [model.forward(&ids, &sees_none.broadcast_as((9, 9))?)?]
            }
        ),
        encoder!("debertav2",
            {"hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
                "type_vocab_size": 0, "initializer_range": 0.02, "relative_attention": true,
                "max_relative_positions": -1, "position_buckets": 4, "norm_rel_ebd": "layer_norm",
                "share_att_key": true, "pos_att_type": "p2c|c2p", "position_biased_input": false,
                "pad_token_id": 0, "pooler_dropout": 0.0, "pooler_hidden_act": "gelu",
                "pooler_hidden_size": 64},
            |config, vb, ids| {
                let labels = HashMap::from([(0, "no".to_string()), (1, "yes".to_string())]);
                let model = debertav2::DebertaV2SeqClassificationModel::load(vb, &config, Some(labels))?;
                [model.forward(&ids, None, None)?]
            }
        ),
        encoder!("jina_bert",
            {"hidden_act": "gelu", "type_vocab_size": 2, "initializer_range": 0.02, "pad_token_id": 0,
                "position_embedding_type": "alibi"},
            |config, vb, ids| [jina_bert::BertModel::new(vb, &config)?.forward(&ids)?]
        ),
        encoder!("modernbert",
            {"global_attn_every_n_layers": 2, "global_rope_theta": 160000.0, "local_attention": 4,
                "local_rope_theta": 10000.0, "pad_token_id": 0},
            |config, vb, ids| {
                let model = modernbert::ModernBertForMaskedLM::load(vb, &config)?;
                [model.forward(&ids, &ids.ones_like()?)?]
            }
        ),
        encoder!("nomic_bert",
            {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": 96, "n_positions": 32},
            |config, vb, ids| {
                let states = nomic_bert::NomicBertModel::load(vb, &config)?.forward(&ids, None, None)?;
                let pooled = nomic_bert::mean_pooling(&states, &ids.ones_like()?)?;
                [nomic_bert::l2_normalize(&pooled)?]
            }
        ),
        encoder!("xlm_roberta",
            {"hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
                "type_vocab_size": 2, "pad_token_id": 1, "position_embedding_type": "absolute"},
            |config, vb, ids| {
                let model = xlm_roberta::XLMRobertaForMaskedLM::new(&config, vb)?;
                [model.forward(&ids, &ids.ones_like()?, &ids.zeros_like()?, None, None, None)?]
            }
        ),
        stella!("stella_en_v5, the large variant", "Large", "silu"),
        stella!("stella_en_v5, the small variant", "Small", "gelu"),
        // Decoder layers with cross attention count as 1.5 layers.
        encoder!("t5", 5,
            {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4,
                "relative_attention_num_buckets": 8, "dropout_rate": 0.0, "layer_norm_epsilon": 1e-6,
                "initializer_factor": 1.0, "feed_forward_proj": "gated-gelu", "is_encoder_decoder": true,
                "pad_token_id": 0, "eos_token_id": 1},
            |config, vb, ids| {
                let mut model = t5::T5ForConditionalGeneration::load(vb, &config)?;
                [model.forward(&ids, &ids.narrow(1, 3, 4)?)?]
            }
        ),
        encoder!("marian", 5,
            {"encoder_layers": 2, "encoder_ffn_dim": 96, "encoder_attention_heads": 4, "decoder_layers": 2,
                "decoder_ffn_dim": 96, "decoder_attention_heads": 4, "use_cache": true,
                "is_encoder_decoder": true, "activation_function": "swish", "d_model": 64,
                "decoder_start_token_id": 0, "scale_embedding": true, "pad_token_id": 0, "eos_token_id": 1,
                "forced_eos_token_id": 1, "share_encoder_decoder_embeddings": true},
            |config, vb, ids| {
                let mut model = marian::MTModel::new(&config, vb)?;
                let read = model.encoder().forward(&ids, 0)?;
                let first = model.decode(&ids.narrow(1, 0, 3)?, &read, 0)?;
                [first, model.decode(&ids.narrow(1, 3, 1)?, &read, 3)?]
            }
        ),
    ]
}
