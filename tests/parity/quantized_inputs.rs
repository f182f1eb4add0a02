//! Quantized models with inputs other than ids: images, audio or encoded text.
use candle_core::quantized::GgmlDType::{Q4_0, Q8_0};
use candle_core::{DType, Module};
use candle_transformers::models::*;
use candle_transformers::quantized_var_builder::VarBuilder;
use serde_json::{from_value, json};

use crate::audio::whisper_config;
use crate::diffusion::{flux_config, flux_step};
use crate::family::{VOCABULARY, forward};
use crate::gguf::requested_by;
use crate::multimodal::{blip_config, moondream_config};
use crate::quantized::Quantized;
use crate::single::{numbers, random_image, text};
use crate::weights::weights;

/// Declares a family with the tensor names of the unquantized model. Inputs are created on the device of
/// `$on`.
macro_rules! quantized_model {
    ($name:literal, $kinds:expr, $layers:literal, |$vars:ident| $original:expr, |$vb:ident, $on:ident| $build:block) => {
        Quantized {
            name: $name,
            kinds: &$kinds,
            file: || {
                requested_by(|$vars| {
                    $original;
                    Ok(())
                })
            },
            layers: $layers,
            build: |bytes, device| {
                let $vb = VarBuilder::from_gguf_buffer(bytes, device)?;
                let $on = weights(DType::F32, DType::F32, device);
                $build
            },
            reference: None,
        }
    };
}

fn t5_config() -> serde_json::Value {
    json!({
        "vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4,
        "relative_attention_num_buckets": 8, "dropout_rate": 0.0, "layer_norm_epsilon": 1e-6,
        "initializer_factor": 1.0, "feed_forward_proj": "gated-gelu", "is_encoder_decoder": true,
        "pad_token_id": 0, "eos_token_id": 1,
    })
}

fn metavoice_config() -> anyhow::Result<metavoice::transformer::Config> {
    Ok(from_value(json!({
        "block_size": 32, "vocab_size": VOCABULARY, "n_layer": 2, "n_head": 4, "dim": 64,
        "speaker_emb_dim": 32, "intermediate_size": 96, "n_local_heads": 2, "norm_eps": 1e-5,
    }))?)
}

pub fn families() -> Vec<Quantized> {
    vec![
        quantized_model!(
            "quantized_t5",
            [Q4_0, Q8_0],
            4,
            |vb| t5::T5ForConditionalGeneration::load(vb, &from_value(t5_config())?)?,
            |vb, on| {
                let mut model =
                    quantized_t5::T5ForConditionalGeneration::load(vb, &from_value(t5_config())?)?;
                let read = model.encode(&text(9, &on)?)?;
                forward(move |ids, _| model.decode(ids, &read))
            }
        ),
        quantized_model!(
            "quantized_blip",
            [Q8_0],
            4,
            |vb| blip::BlipForConditionalGeneration::new(&from_value(blip_config())?, vb)?,
            |vb, on| {
                let config = from_value(blip_config())?;
                let mut model = quantized_blip::BlipForConditionalGeneration::new(&config, vb)?;
                let image = model.vision_model().forward(&random_image(32, &on)?)?;
                forward(move |ids, _| model.text_decoder().forward(ids, &image))
            }
        ),
        quantized_model!(
            "quantized_blip_text",
            [Q4_0],
            2,
            |vb| blip_text::TextLMHeadModel::new(&from_value(blip_config()["text_config"].clone())?, vb)?,
            |vb, on| {
                let config = from_value(blip_config()["text_config"].clone())?;
                let mut model = quantized_blip_text::TextLMHeadModel::new(&config, vb)?;
                let image = numbers(&[1, 6, 64], &on)?;
                forward(move |ids, _| model.forward(ids, &image))
            }
        ),
        quantized_model!(
            "quantized_moondream",
            [Q8_0],
            4,
            |vb| moondream::Model::new(&from_value(moondream_config())?, vb)?,
            |vb, on| {
                let config = from_value(moondream_config())?;
                let mut model = quantized_moondream::Model::new(&config, vb)?;
                let image = model.vision_encoder().forward(&random_image(28, &on)?)?;
                forward(move |ids, before| match before {
                    0 => model.text_model().forward_with_img(&ids.narrow(1, 0, 1)?, ids, &image),
                    _ => model.text_model().forward(ids),
                })
            }
        ),
        quantized_model!(
            "quantized_metavoice",
            [Q4_0, Q8_0],
            2,
            |vb| metavoice::transformer::Model::new(&metavoice_config()?, vb)?,
            |vb, on| {
                let mut model = quantized_metavoice::transformer::Model::new(&metavoice_config()?, vb)?;
                let speaker = numbers(&[1, 32], &on)?;
                forward(move |ids, before| model.forward(ids, &speaker, before))
            }
        ),
        quantized_model!(
            "whisper, quantized",
            [Q8_0],
            4,
            |vb| whisper::model::Whisper::load(&vb, from_value(whisper_config())?)?,
            |vb, on| {
                let mut model = whisper::quantized_model::Whisper::load(&vb, from_value(whisper_config())?)?;
                let audio = model.encoder.forward(&numbers(&[1, 8, 32], &on)?, true)?;
                forward(move |ids, _| {
                    let states = model.decoder.forward(ids, &audio, true)?;
                    model.decoder.final_linear(&states)
                })
            }
        ),
        quantized_model!(
            "flux, quantized",
            [Q8_0],
            2,
            |vb| flux::model::Flux::new(&flux_config(), vb)?,
            |vb, on| {
                let model = flux::quantized_model::Flux::new(&flux_config(), vb)?;
                // The id determines the time step.
                forward(move |ids, _| {
                    let step = (ids.narrow(1, 0, 1)?.flatten_all()?.to_dtype(DType::F32)? / 48.0)?;
                    flux_step(&model, &step, &on).map_err(candle_core::Error::wrap)
                })
            }
        ),
    ]
}
