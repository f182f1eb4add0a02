//! Vision models: classification, depth and segmentation.
use std::sync::Arc;

use candle_core::{Module, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::*;
use serde_json::{from_value, json};

use crate::family::config;
use crate::single::{Single, numbers, random_image};

/// Declares a classifier with ten classes, run on a square image with the given side.
macro_rules! classifier {
    ($name:literal, $layers:literal, $new:path, $config:expr, $side:literal) => {
        Single::new($name, $layers, |vb| {
            Ok(vec![$new(&$config, 10, vb.clone())?.forward(&random_image($side, &vb)?)?])
        })
    };
}

macro_rules! resnet {
    ($name:literal, $layers:literal, $new:path) => {
        Single::new($name, $layers, |vb| Ok(vec![$new(10, vb.clone())?.forward(&random_image(32, &vb)?)?]))
    };
}

/// Declares a vision transformer with a fixed image size and the given depth, width and number of heads.
macro_rules! transformer {
    ($name:literal, $model:path, ($depth:literal, $width:literal, $heads:literal), $side:literal) => {
        Single::new($name, $depth, |vb| {
            let model = <$model>::new(vb.clone(), $depth, $width, $heads)?;
            Ok(vec![model.forward(&random_image($side, &vb)?)?])
        })
    };
}

/// Returns the configuration of the smallest FastViT with attention.
pub fn fastvit() -> fastvit::Config {
    fastvit::Config { exp_ratio: 2, in_channels: 8, blocks: [1; 4], attn: true, lkc_use_act: true }
}

/// Returns true if FastViT has no tensor of this name: some parts exist only in some stages.
pub fn is_absent_in_fastvit(name: &str, _: &[usize]) -> bool {
    let has = |part: &str| name.contains(part);
    has("stages.0.downsample")
        || (has("pos_emb") && !has("stages.3"))
        || has("stem.2.conv_scale")
        || has("proj.1.conv_scale")
        || (has(".se.") && !has("final_conv"))
        || (has("identity") && !has("token_mixer"))
}

pub fn models() -> Vec<Single> {
    vec![
        transformer!("beit", beit::BeitVisionTransformer, (1, 16, 2), 384),
        transformer!("dinov2", dinov2::DinoVisionTransformer, (2, 32, 2), 56),
        transformer!("dinov2reg4", dinov2reg4::DinoVisionTransformer, (1, 16, 1), 518),
        transformer!("eva2", eva2::EVA2VisionTransformer, (1, 64, 1), 448),
        Single::new("depth_anything_v2", 12, |vb| {
            let pretrained = dinov2::DinoVisionTransformer::new(vb.pp("pretrained"), 4, 32, 2)?;
            let config = depth_anything_v2::DepthAnythingV2Config::new(
                [8; 4],
                32,
                8,
                false,
                false,
                vec![0, 1, 2, 3],
                56,
                4,
            );
            let model = depth_anything_v2::DepthAnythingV2::new(Arc::new(pretrained), config, vb.clone())?;
            Ok(vec![model.forward(&random_image(56, &vb)?)?])
        }),
        Single::new("vit", 2, |vb| {
            let own = json!({"hidden_act": "gelu", "image_size": 32, "patch_size": 8, "num_channels": 3, "qkv_bias": true});
            let model = vit::Model::new(&from_value(config(own))?, 10, vb.clone())?;
            Ok(vec![model.forward(&random_image(32, &vb)?)?])
        }),
        classifier!("convnext", 12, convnext::convnext, convnext::Config::atto(), 32),
        classifier!("fastvit", 10, fastvit::fastvit, fastvit(), 64).without(is_absent_in_fastvit),
        classifier!(
            "hiera",
            4,
            hiera::hiera,
            from_value(json!({"channels": 8, "heads": 1, "stages": [1, 1, 1, 1]}))?,
            224
        )
        .without(|name, _| name.starts_with("blocks.0.proj")),
        classifier!("efficientvit", 6, efficientvit::efficientvit, efficientvit::Config::m0(), 224),
        classifier!("mobilenetv4", 16, mobilenetv4::mobilenetv4, mobilenetv4::Config::small(), 32),
        classifier!(
            "mobilenetv4 with attention",
            24,
            mobilenetv4::mobilenetv4,
            mobilenetv4::Config::hybrid_medium(),
            64
        ),
        classifier!("mobileone", 21, mobileone::mobileone, mobileone::Config::s1(), 32)
            .without(|name, _| name.contains("attn")),
        classifier!("repvgg", 22, repvgg::repvgg, repvgg::Config::a0(), 32),
        Single::new("efficientnet", 16, |vb| {
            let blocks = efficientnet::MBConvConfig::b0();
            Ok(vec![
                efficientnet::EfficientNet::new(vb.clone(), blocks, 10)?.forward(&random_image(32, &vb)?)?,
            ])
        }),
        Single::new("convmixer", 20, |vb| {
            Ok(vec![convmixer::c1024_20(10, vb.clone())?.forward(&random_image(28, &vb)?)?])
        }),
        resnet!("resnet, two convolutions per block", 8, resnet::resnet18),
        resnet!("resnet, three convolutions per block", 16, resnet::resnet50),
        Single::new("segformer", 5, |vb| {
            let config = from_value(json!({
                "id2label": {}, "num_channels": 3, "num_encoder_blocks": 4, "depths": [1, 1, 1, 1],
                "sr_ratios": [8, 4, 2, 1], "hidden_sizes": [16, 16, 32, 32], "patch_sizes": [7, 3, 3, 3],
                "strides": [4, 2, 2, 2], "num_attention_heads": [1, 1, 2, 2], "mlp_ratios": [2, 2, 2, 2],
                "hidden_act": "gelu", "layer_norm_eps": 1e-6, "decoder_hidden_size": 32,
            }))?;
            let model = segformer::SemanticSegmentationModel::new(&config, 5, vb.clone())?;
            Ok(vec![model.forward(&random_image(64, &vb)?)?])
        }),
        Single::new("segment_anything", 6, segment_anything),
    ]
}

/// Runs the parts of the model with an image encoder of 32 channels for images of 64 x 64 pixels.
fn segment_anything(vb: VarBuilder<'static>) -> anyhow::Result<Vec<Tensor>> {
    use segment_anything::{
        image_encoder::ImageEncoderViT, mask_decoder::MaskDecoder, prompt_encoder::PromptEncoder,
    };
    let image = vb.pp("image_encoder");
    let image = ImageEncoderViT::new(64, 16, 3, 32, 2, 2, 32, true, true, true, 2, &[1], image)?;
    let prompt = PromptEncoder::new(32, (4, 4), (64, 64), 16, vb.pp("prompt_encoder"))?;
    let decoder = MaskDecoder::new(32, 3, 3, 32, vb.pp("mask_decoder"))?;
    let points = (numbers(&[1, 2, 2], &vb)? * 30.0)?.abs()?;
    let labels = Tensor::new(&[[1f32, 0.0]], vb.device())?;
    let (sparse, dense) = prompt.forward(Some((&points, &labels)), None, None)?;
    let embeddings = image.forward(&random_image(64, &vb)?)?;
    let (masks, quality) = decoder.forward(&embeddings, &prompt.get_dense_pe()?, &sparse, &dense, true)?;
    Ok(vec![embeddings, masks, quality])
}
