//! Models of images or audio together with text.
use candle_core::{DType, Module, Tensor};
use candle_transformers::models::*;
use serde_json::{Value, from_value, json};

use crate::family::{VOCABULARY, config};
use crate::single::{Single, numbers, random_image, text};
use crate::vision::{fastvit, is_absent_in_fastvit};

/// Returns the configuration of a vision encoder with two layers for images of 32 x 32 pixels.
fn vision_config(act: &str) -> Value {
    config(
        json!({"hidden_act": act, "image_size": 32, "patch_size": 8, "num_channels": 3, "projection_dim": 32}),
    )
}

pub fn blip_config() -> Value {
    let text_config =
        json!({"encoder_hidden_size": 64, "projection_dim": 32, "is_decoder": true, "hidden_act": "gelu"});
    json!({
        "text_config": config(text_config), "vision_config": vision_config("gelu"), "projection_dim": 32,
        "image_text_hidden_size": 32,
    })
}

pub fn moondream_config() -> Value {
    let phi = json!({"n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "pad_vocab_size_multiple": 16});
    json!({
        "phi_config": config(phi),
        "vision_config": {"image_embedding_dim": 1152, "model_dim": 64, "hidden_dim": 96, "hidden_features": 96,
            "embed_len": 4, "embed_dim": 1152, "num_blocks": 1, "num_heads": 4, "act": "gelu"},
    })
}

fn clip_vision() -> clip::vision_model::ClipVisionConfig {
    clip::vision_model::ClipVisionConfig {
        embed_dim: 64,
        intermediate_size: 96,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        projection_dim: 32,
        image_size: 32,
        patch_size: 8,
        ..clip::vision_model::ClipVisionConfig::vit_base_patch32()
    }
}

fn openclip_text() -> openclip::text_model::Config {
    openclip::text_model::Config {
        vocab_size: VOCABULARY,
        embed_dim: 64,
        intermediate_size: 96,
        max_position_embeddings: 16,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        ..openclip::text_model::Config::vit_base_patch32()
    }
}

fn paligemma_config() -> Value {
    let text_config = json!({"hidden_act": "gelu_pytorch_tanh"});
    json!({"vision_config": vision_config("gelu_pytorch_tanh"), "text_config": config(text_config), "projection_dim": 64})
}

/// Returns the features of an image and of a text. Their product, which `forward` returns, is not compared:
/// random features are nearly orthogonal, so the product is much smaller than the rounding errors of its
/// terms.
macro_rules! features {
    ($model:ident, $vb:ident, $side:literal $(, $more:expr)*) => {
        Ok(vec![
            $model.get_image_features(&random_image($side, &$vb)?)?,
            $model.get_text_features(&text(7, &$vb)? $(, $more)*)?,
        ])
    };
}

pub fn models() -> Vec<Single> {
    vec![
        Single::new("clip", 4, |vb| {
            let text_config = clip::text_model::ClipTextConfig {
                vocab_size: VOCABULARY,
                embed_dim: 64,
                intermediate_size: 96,
                max_position_embeddings: 16,
                num_hidden_layers: 2,
                num_attention_heads: 4,
                projection_dim: 32,
                ..clip::text_model::ClipTextConfig::vit_base_patch32()
            };
            let config = clip::ClipConfig {
                text_config,
                vision_config: clip_vision(),
                logit_scale_init_value: 2.6,
                image_size: 32,
            };
            let model = clip::ClipModel::new(vb.clone(), &config)?;
            features!(model, vb, 32)
        }),
        Single::new("openclip", 2, |vb| {
            let model = openclip::text_model::OpenClipTextTransformer::new(vb.clone(), &openclip_text())?;
            Ok(vec![model.forward(&text(7, &vb)?)?])
        }),
        Single::new("mobileclip", 12, |vb| {
            let config = mobileclip::MobileClipConfig {
                text_config: openclip_text(),
                vision_config: fastvit(),
                image_size: 64,
            };
            let model = mobileclip::MobileClipModel::new(vb.clone(), &config)?;
            features!(model, vb, 64)
        })
        .without(is_absent_in_fastvit),
        Single::new("chinese_clip", 4, |vb| {
            let text_config = chinese_clip::text_model::ChineseClipTextConfig {
                vocab_size: VOCABULARY,
                hidden_size: 64,
                num_hidden_layers: 2,
                num_attention_heads: 4,
                intermediate_size: 96,
                max_position_embeddings: 16,
                ..chinese_clip::text_model::ChineseClipTextConfig::clip_vit_base_patch16()
            };
            let vision_config = chinese_clip::vision_model::ChineseClipVisionConfig {
                hidden_size: 64,
                intermediate_size: 96,
                num_hidden_layers: 2,
                num_attention_heads: 4,
                image_size: 32,
                patch_size: 8,
                ..chinese_clip::vision_model::ChineseClipVisionConfig::clip_vit_base_patch16()
            };
            let config = chinese_clip::ChineseClipConfig {
                text_config,
                vision_config,
                projection_dim: 32,
                ..chinese_clip::ChineseClipConfig::clip_vit_base_patch16()
            };
            let model = chinese_clip::ChineseClipModel::new(vb.clone(), &config)?;
            features!(model, vb, 32, None, None)
        })
        .without(|name, _| name == "text_model.pooler"),
        Single::new("siglip", 4, |vb| {
            let text_config =
                json!({"hidden_act": "gelu", "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3});
            let config = json!({"text_config": config(text_config), "vision_config": vision_config("gelu")});
            let model = siglip::Model::new(&from_value(config)?, vb.clone())?;
            features!(model, vb, 48)
        }),
        Single::new("blip", 4, |vb| {
            let mut model = blip::BlipForConditionalGeneration::new(&from_value(blip_config())?, vb.clone())?;
            let image = model.vision_model().forward(&random_image(32, &vb)?)?;
            Ok(vec![model.text_decoder().forward(&text(5, &vb)?, &image)?])
        }),
        Single::new("blip_text", 2, |vb| {
            let config = from_value(blip_config()["text_config"].clone())?;
            let mut model = blip_text::TextLMHeadModel::new(&config, vb.clone())?;
            let (ids, image) = (text(5, &vb)?, numbers(&[1, 6, 64], &vb)?);
            let first = model.forward(&ids, &image)?;
            Ok(vec![first, model.forward(&ids.narrow(1, 2, 1)?, &image)?])
        }),
        Single::new("trocr", 4, |vb| {
            let image =
                config(json!({"hidden_act": "gelu", "image_size": 32, "patch_size": 8, "num_channels": 3,
                "qkv_bias": false}));
            let text_config = config(json!({
                "d_model": 64, "cross_attention_hidden_size": 64, "decoder_layers": 2,
                "decoder_attention_heads": 4, "decoder_ffn_dim": 96, "activation_function": "relu",
                "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "init_std": 0.02,
                "decoder_start_token_id": 2, "decoder_layerdrop": 0.0, "use_cache": true,
                "scale_embedding": true, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
            }));
            let mut model =
                trocr::TrOCRModel::new(&from_value(image)?, &from_value(text_config)?, vb.clone())?;
            let image = model.encoder().forward(&random_image(32, &vb)?)?;
            // The model's mask supports only one token at a time.
            let ids = text(2, &vb)?;
            let first = model.decode(&ids.narrow(1, 0, 1)?, &image, 0)?;
            Ok(vec![first, model.decode(&ids.narrow(1, 1, 1)?, &image, 1)?])
        }),
        Single::new("moondream", 4, |vb| {
            let mut model = moondream::Model::new(&from_value(moondream_config())?, vb.clone())?;
            let image = model.vision_encoder().forward(&random_image(28, &vb)?)?;
            let ids = text(5, &vb)?;
            Ok(vec![model.text_model().forward_with_img(&ids.narrow(1, 0, 1)?, &ids, &image)?])
        }),
        Single::new("llava", 4, |vb| {
            let config: llava::config::LLaVAConfig = from_value(config(json!({
                "architectures": [], "bos_token_id": 1, "eos_token_id": 2, "image_aspect_ratio": "pad",
                "image_crop_resolution": 32, "image_grid_pinpoints": [], "image_split_resolution": 32,
                "mm_hidden_size": 64, "mm_patch_merge_type": "flat", "mm_projector_type": "mlp2x_gelu",
                "mm_use_im_start_end": false, "mm_vision_select_feature": "patch",
                "mm_vision_select_layer": -2, "model_type": "llava", "pad_token_id": 0,
                "torch_dtype": "float32", "use_cache": true, "image_token_index": 24, "hf": false,
            })))?;
            let model = llava::LLaVA::load(vb.clone(), &config, Some(clip_vision()))?;
            let mut cache = llama::Cache::new(true, DType::F32, &config.to_llama_config(), vb.device())?;
            // Id 24, the second one, is the image placeholder.
            let ids = text(5, &vb)?.to_dtype(DType::I64)?;
            let image =
                model.prepare_inputs_labels_for_multimodal(&ids, &[random_image(32, &vb)?], &[(32, 32)])?;
            Ok(vec![model.forward(&image, 0, &mut cache)?])
        }),
        Single::new("paligemma", 4, |vb| {
            let mut model = paligemma::Model::new(&from_value(paligemma_config())?, vb.clone())?;
            let ids = text(5, &vb)?;
            let first = model.setup(&random_image(32, &vb)?, &ids)?;
            Ok(vec![first, model.forward(&ids.narrow(1, 2, 1)?)?])
        }),
        Single::new("colpali", 4, |vb| {
            let mut model = colpali::Model::new(&from_value(paligemma_config())?, vb.clone())?;
            let ids = text(5, &vb)?;
            Ok(vec![model.forward_images(&random_image(32, &vb)?, &ids)?, model.forward_text(&ids)?])
        }),
        Single::new("pixtral", 4, |vb| {
            let mut image = vision_config("silu");
            image["head_dim"] = 16.into();
            let config = json!({
                "projector_hidden_act": "gelu", "text_config": config(json!({"sliding_window": 32})),
                "vision_config": image, "image_token_index": 24, "image_seq_length": 1,
            });
            let mut model = pixtral::Model::new(&from_value(config)?, vb.clone())?;
            let image = model.encode_image(&random_image(32, &vb)?)?;
            let first = model.lm_forward_embeds(&image)?;
            Ok(vec![first, model.lm_forward(&text(1, &vb)?)?])
        }),
        Single::new("qwen3_vl", 4, |vb| {
            let config = json!({
                "text_config": config(json!({"sliding_window": null})),
                "vision_config": {"depth": 2, "hidden_size": 32, "out_hidden_size": 64, "hidden_act": "gelu",
                    "intermediate_size": 48, "num_heads": 2, "in_chans": 3, "patch_size": 4,
                    "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 16,
                    "deepstack_visual_indexes": [0]},
                "image_token_id": 40, "video_token_id": 41, "vision_start_token_id": 42,
                "vision_end_token_id": 43,
            });
            let model = qwen3_vl::Qwen3VLModel::new(&from_value(config)?, vb.clone())?;
            // Four by four patches; every four of them become one token.
            let (patches, grid) = (numbers(&[16, 96], &vb)?, Tensor::new(&[[1u32, 4, 4]], vb.device())?);
            let image_positions = vec![vec![(2, 6)]];
            let (image, ids) = (Some(patches), text(9, &vb)?);
            Ok(vec![model.forward(
                &ids,
                image,
                None,
                Some(grid),
                None,
                vec![9],
                image_positions,
                vec![vec![]],
                &[0],
            )?])
        }),
        Single::new("paddleocr_vl", 4, |vb| {
            let mut config = config(json!({
                "rope_scaling": {"mrope_section": [2, 3, 3]}, "image_token_id": 40, "video_token_id": 41,
                "vision_start_token_id": 42, "vision_end_token_id": 43,
            }));
            config["vision_config"] = vision_config("gelu_pytorch_tanh");
            // `rms_norm_eps` is an alias of another field, which must not occur twice.
            config.as_object_mut().and_then(|config| config.remove("rms_norm_eps"));
            let mut model = paddleocr_vl::PaddleOCRVLModel::new(&from_value(config)?, vb.clone())?;
            let grid = Tensor::new(&[[1u32, 4, 4]], vb.device())?;
            let ids = Tensor::new(&[[5u32, 40, 40, 40, 40, 7, 3]], vb.device())?;
            Ok(vec![model.forward(&ids, Some(&random_image(32, &vb)?), Some(&grid), 0)?])
        }),
        Single::new("gemma4 with images and audio", 6, |vb| {
            let config = json!({
                "text_config": config(json!({
                    "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"],
                    "global_head_dim": 32, "num_global_key_value_heads": 1,
                })),
                "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4,
                    "position_embedding_size": 16, "pooling_kernel_size": 2, "default_output_length": 4},
                "audio_config": {"input_feat_size": 16, "hidden_size": 32, "output_proj_dims": 32,
                    "conf_attention_chunk_size": 4, "conf_attention_context_left": 5,
                    "conf_num_attention_heads": 2, "conf_num_hidden_layers": 2, "conf_conv_kernel_size": 3,
                    "sscp_conv_channel_size": [8, 4]},
                "image_token_id": 40, "audio_token_id": 41,
            });
            let mut model = gemma4::Model::new(&from_value(config)?, vb.clone())?;
            let ids = Tensor::new(&[[5u32, 40, 40, 40, 40, 41, 41, 41, 41, 7]], vb.device())?;
            let (image, audio) = ([random_image(16, &vb)?], numbers(&[1, 16, 16], &vb)?);
            let padding = Tensor::zeros((1, 16), DType::F32, vb.device())?;
            Ok(vec![model.forward_multimodal(&ids, Some(&image), Some(&audio), Some(&padding), 0)?])
        }),
    ]
}
