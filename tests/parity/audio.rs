//! Audio models: speech recognition, speech synthesis and codecs.
use candle_core::{DType, Module, Tensor};
use candle_transformers::models::*;
use serde_json::{from_value, json};

use crate::family::{VOCABULARY, config};
use crate::single::{Single, numbers, text};

/// Returns codes of shape (1, books, count).
fn codes(books: usize, count: u32, vb: &candle_nn::VarBuilder) -> anyhow::Result<Tensor> {
    Ok(Tensor::cat(&vec![text(count, vb)?; books], 0)?.unsqueeze(0)?)
}

pub fn whisper_config() -> serde_json::Value {
    json!({
        "num_mel_bins": 8, "max_source_positions": 16, "d_model": 64, "encoder_attention_heads": 4,
        "encoder_layers": 2, "vocab_size": VOCABULARY, "max_target_positions": 16,
        "decoder_attention_heads": 4, "decoder_layers": 2,
    })
}

macro_rules! snac {
    ($name:literal, $depthwise:literal) => {
        Single::new($name, 12, |vb| {
            let config = from_value(json!({
                "sampling_rate": 24000, "encoder_dim": 8, "encoder_rates": [2, 3], "decoder_dim": 32,
                "decoder_rates": [3, 2], "attn_window_size": 4, "codebook_size": 16, "codebook_dim": 8,
                "vq_strides": [2, 1], "noise": false, "depthwise": $depthwise,
            }))?;
            let model = snac::Model::new(&config, vb.clone())?;
            let codes = model.encode(&numbers(&[1, 1, 96], &vb)?)?;
            let mut outputs = vec![model.decode(&codes.iter().collect::<Vec<_>>())?];
            outputs.extend(codes);
            Ok(outputs)
        })
    };
}

pub fn models() -> Vec<Single> {
    vec![
        Single::new("whisper", 4, |vb| {
            let mut model = whisper::model::Whisper::load(&vb, from_value(whisper_config())?)?;
            let audio = model.encoder.forward(&numbers(&[1, 8, 32], &vb)?, true)?;
            let states = model.decoder.forward(&text(5, &vb)?, &audio, true)?;
            Ok(vec![model.decoder.final_linear(&states)?])
        }),
        Single::new("encodec", 12, |vb| {
            let config = encodec::Config {
                target_bandwidths: vec![2.0],
                sampling_rate: 600,
                hidden_size: 16,
                num_filters: 4,
                upsampling_ratios: vec![3, 2],
                codebook_size: 16,
                ..encodec::Config::default()
            };
            let model = encodec::Model::new(&config, vb.clone())?;
            let codes = model.encode(&numbers(&[1, 1, 60], &vb)?)?;
            Ok(vec![model.decode(&codes)?, codes])
        }),
        Single::new("dac", 14, |vb| {
            let encoder = dac::Encoder::new(8, &[2, 4], 16, vb.pp("encoder"))?;
            let quantizer = dac::ResidualVectorQuantizer::new(16, 2, VOCABULARY, 8, vb.pp("quantizer"))?;
            let decoder = dac::Decoder::new(16, 32, &[4, 2], 1, vb.pp("decoder"))?;
            let latents = encoder.forward(&numbers(&[1, 1, 64], &vb)?)?;
            Ok(vec![latents, decoder.forward(&quantizer.from_codes(&codes(2, 6, &vb)?)?)?])
        }),
        snac!("snac", false),
        snac!("snac, channel by channel", true)
            .without(|name, dims| name.ends_with("original1") && matches!(dims, [a, b, 7] if a == b)),
        Single::new("mimi", 16, |vb| {
            let mut config = mimi::Config::v0_1(Some(3));
            config.seanet.dimension = 32;
            config.seanet.n_filters = 4;
            config.seanet.ratios = vec![4, 2];
            config.transformer.d_model = 32;
            config.transformer.num_heads = 2;
            config.transformer.num_layers = 2;
            config.transformer.dim_feedforward = 64;
            config.transformer.max_seq_len = 64;
            // The codes have half the frame rate of the transformer.
            (config.sample_rate, config.frame_rate) = (400.0, 25.0);
            (config.quantizer_bins, config.quantizer_dim) = (VOCABULARY, 16);
            let mut model = mimi::Model::new(config, vb.clone())?;
            let latents = model.encode_pre_quantize(&numbers(&[1, 1, 128], &vb)?)?;
            Ok(vec![latents, model.decode(&codes(3, 6, &vb)?)?])
        }),
        Single::new("parler_tts", 2, |vb| {
            let config: parler_tts::DecoderConfig = from_value(config(json!({
                "ffn_dim": 96, "activation_function": "gelu", "scale_embedding": false, "num_codebooks": 3,
                "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "rope_embeddings": false,
                "num_key_value_heads": 4, "num_cross_attention_key_value_heads": 4,
            })))?;
            let mut decoder = parler_tts::Decoder::new(&config, vb.clone())?;
            let (prompt, described) = (numbers(&[1, 4, 64], &vb)?, numbers(&[1, 5, 64], &vb)?);
            Ok(decoder.forward(&codes(3, 1, &vb)?, Some(&prompt), None, &described, None, 0)?)
        }),
        Single::new("metavoice, its first stage", 2, |vb| {
            let config = from_value(json!({
                "block_size": 32, "vocab_size": VOCABULARY, "n_layer": 2, "n_head": 4, "dim": 64,
                "speaker_emb_dim": 16, "intermediate_size": 96, "n_local_heads": 2, "norm_eps": 1e-5,
            }))?;
            let mut model = metavoice::transformer::Model::new(&config, vb.clone())?;
            let (ids, speaker) = (text(6, &vb)?, numbers(&[1, 16], &vb)?);
            let first = model.forward(&ids, &speaker, 0)?;
            Ok(vec![first, model.forward(&ids.narrow(1, 2, 1)?, &speaker, 6)?])
        }),
        Single::new("metavoice, its second stage", 2, |vb| {
            let config = metavoice::gpt::Config {
                n_layer: 2,
                n_head: 4,
                n_embd: 64,
                ..metavoice::gpt::Config::cfg1b_v0_1()
            };
            Ok(metavoice::gpt::Model::new(config, vb.clone())?.forward(&codes(2, 6, &vb)?)?)
        }),
        Single::new("voxtral", 4, |vb| {
            let mut config = voxtral::VoxtralConfig::default();
            let (audio, text_config) = (&mut config.audio_config, &mut config.text_config);
            (audio.hidden_size, audio.intermediate_size, audio.num_hidden_layers) = (64, 128, 2);
            (audio.num_attention_heads, audio.num_key_value_heads, audio.head_dim) = (4, 4, 16);
            (audio.num_mel_bins, audio.max_source_positions) = (8, 16);
            (text_config.hidden_size, text_config.intermediate_size, text_config.num_hidden_layers) =
                (64, 96, 2);
            (text_config.num_attention_heads, text_config.num_key_value_heads, text_config.head_dim) =
                (4, 2, Some(16));
            (text_config.vocab_size, text_config.max_position_embeddings) = (VOCABULARY, 32);
            text_config.use_flash_attn = false;
            let mut cache = voxtral::VoxtralCache::new(true, DType::F32, &config.text_config, vb.device())?;
            let model = voxtral::VoxtralForConditionalGeneration::new(&config, vb.clone())?;
            // Id 24, the second one, is the audio placeholder.
            let audio = numbers(&[1, 8, 32], &vb)?;
            Ok(vec![model.forward(&text(6, &vb)?, Some(&audio), &mut cache, 0)?])
        }),
    ]
}
