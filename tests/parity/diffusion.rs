//! Diffusion models: one denoising step of each, and autoencoders.
use candle_core::{Module, Tensor};
use candle_transformers::models::flux::WithForward;
use candle_transformers::models::*;
use serde_json::{from_value, json};

use crate::family::config;
use crate::single::{Single, numbers, random_image, text};

/// Blocks of an MMDiT only, since the rest of the model supports only f16.
macro_rules! mmdit {
    ($name:literal) => {
        Single::new($name, 2, |vb| {
            let blocks = mmdit::model::MMDiTCore::new(2, 32, 2, 2, 4, false, vb.clone())?;
            let (latents, words) = (numbers(&[1, 16, 32], &vb)?, numbers(&[1, 5, 32], &vb)?);
            Ok(vec![blocks.forward(&words, &latents, &numbers(&[1, 32], &vb)?, None)?])
        })
    };
}

pub fn flux_config() -> flux::model::Config {
    flux::model::Config {
        in_channels: 16,
        vec_in_dim: 32,
        context_in_dim: 32,
        hidden_size: 64,
        mlp_ratio: 2.0,
        num_heads: 4,
        depth: 1,
        depth_single_blocks: 1,
        axes_dim: vec![4, 6, 6],
        theta: 10_000,
        qkv_bias: true,
        guidance_embed: true,
    }
}

/// Runs one step of a Flux model with five text tokens and four by four patches.
pub fn flux_step(
    model: &impl WithForward,
    step: &Tensor,
    vb: &candle_nn::VarBuilder,
) -> anyhow::Result<Tensor> {
    let (words, pooled) = (numbers(&[1, 5, 32], vb)?, numbers(&[1, 32], vb)?);
    let state = flux::sampling::State::new(&words, &pooled, &numbers(&[1, 4, 8, 8], vb)?)?;
    let flux::sampling::State { img, img_ids, txt, txt_ids, vec } = state;
    Ok(model.forward(&img, &img_ids, &txt, &txt_ids, step, &vec, Some(step))?)
}

pub fn models() -> Vec<Single> {
    vec![
        Single::new("stable_diffusion, a step", 8, |vb| {
            use stable_diffusion::unet_2d::{BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig};
            let block =
                |use_cross_attn| BlockConfig { out_channels: 32, use_cross_attn, attention_head_dim: 2 };
            let config = UNet2DConditionModelConfig {
                blocks: vec![block(Some(1)), block(None)],
                layers_per_block: 1,
                norm_num_groups: 8,
                cross_attention_dim: 16,
                ..Default::default()
            };
            let model = UNet2DConditionModel::new(vb.clone(), 4, 4, false, config)?;
            Ok(vec![model.forward(&numbers(&[1, 4, 8, 8], &vb)?, 10.0, &numbers(&[1, 5, 16], &vb)?)?])
        }),
        Single::new("stable_diffusion, decoder", 6, |vb| {
            let config = stable_diffusion::vae::AutoEncoderKLConfig {
                block_out_channels: vec![16, 16],
                norm_num_groups: 8,
                ..Default::default()
            };
            let model = stable_diffusion::vae::AutoEncoderKL::new(vb.clone(), 3, 3, config)?;
            Ok(vec![model.decode(&numbers(&[1, 4, 8, 8], &vb)?)?])
        }),
        Single::new("wuerstchen, a step", 6, |vb| {
            let model = wuerstchen::prior::WPrior::new(2, 32, 16, 16, 2, 2, false, vb.clone())?;
            let (latents, words) = (numbers(&[1, 2, 3, 3], &vb)?, numbers(&[1, 5, 16], &vb)?);
            Ok(vec![model.forward(&latents, &numbers(&[1], &vb)?.abs()?, &words)?])
        }),
        Single::new("wuerstchen, autoencoder", 14, |vb| {
            let model = wuerstchen::paella_vq::PaellaVQ::new(vb.clone())?;
            Ok(vec![model.encode(&random_image(16, &vb)?)?, model.decode(&numbers(&[1, 4, 4, 4], &vb)?)?])
        }),
        Single::new("flux, a step", 2, |vb| {
            let model = flux::model::Flux::new(&flux_config(), vb.clone())?;
            Ok(vec![flux_step(&model, &numbers(&[1], &vb)?.abs()?, &vb)?])
        }),
        Single::new("flux, autoencoder", 6, |vb| {
            use flux::autoencoder::{Config, Decoder, Encoder};
            let config =
                Config { ch: 32, ch_mult: vec![1, 1], num_res_blocks: 1, z_channels: 4, ..Config::dev() };
            let encoder = Encoder::new(&config, vb.pp("encoder"))?;
            let decoder = Decoder::new(&config, vb.pp("decoder"))?;
            Ok(vec![
                encoder.forward(&random_image(16, &vb)?)?,
                decoder.forward(&numbers(&[1, 4, 8, 8], &vb)?)?,
            ])
        }),
        mmdit!("mmdit"),
        mmdit!("mmdit, one attention per block").without(|name, _| name.contains("attn2")),
        Single::new("z_image, a step", 3, |vb| {
            let config = from_value(json!({
                "all_patch_size": [2], "all_f_patch_size": [1], "in_channels": 4, "dim": 48, "n_layers": 1,
                "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2, "cap_feat_dim": 32,
                "axes_dims": [8, 8, 8], "axes_lens": [32, 16, 16],
            }))?;
            let model = z_image::transformer::ZImageTransformer2DModel::new(&config, vb.clone())?;
            let (latents, words) = (numbers(&[1, 4, 1, 8, 8], &vb)?, numbers(&[1, 5, 32], &vb)?);
            let sees_all = text(5, &vb)?.ones_like()?;
            Ok(vec![model.forward(&latents, &numbers(&[1], &vb)?.abs()?, &words, &sees_all)?])
        }),
        Single::new("z_image, text encoder", 3, |vb| {
            let own = json!({"num_hidden_layers": 3, "hidden_act": "silu"});
            let model = z_image::text_encoder::ZImageTextEncoder::new(&from_value(config(own))?, vb.clone())?;
            Ok(vec![model.forward(&text(6, &vb)?)?])
        }),
        Single::new("z_image, autoencoder", 6, |vb| {
            let config = from_value(json!({
                "in_channels": 3, "out_channels": 3, "latent_channels": 4, "block_out_channels": [16, 16],
                "layers_per_block": 1, "scaling_factor": 0.36, "shift_factor": 0.12, "norm_num_groups": 8,
            }))?;
            let encoder = z_image::vae::Encoder::new(&config, vb.pp("encoder"))?;
            let decoder = z_image::vae::Decoder::new(&config, vb.pp("decoder"))?;
            Ok(vec![
                encoder.forward(&random_image(16, &vb)?)?,
                decoder.forward(&numbers(&[1, 4, 8, 8], &vb)?)?,
            ])
        }),
    ]
}
