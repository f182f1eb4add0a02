//! Tests of model loading, tokenizer and text encoder.
mod tiny_model;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::stable_diffusion::clip;
use sd_worker::model::{
    Activation, ClipConfig, ClipText, ClipTokenizer, LoadOptions, Model, UNet, UNetConfig, Vae, VaeConfig,
    Version,
};
use sd_worker::pipeline::Request;
use serde_json::{Value, json};
use tiny_model::{Kind, Outcome, TOKENS, difference};

#[test]
fn the_text_encoder_matches_candle_transformers() -> Outcome {
    let config = ClipConfig {
        vocab_size: 49408,
        hidden_size: 768,
        intermediate_size: 3072,
        max_position_embeddings: 77,
        num_hidden_layers: 12,
        num_attention_heads: 12,
        hidden_act: Activation::QuickGelu,
        layer_norm_eps: 1e-5,
        projection_dim: 768,
    };
    let mut state = 1u32;
    let mut weights: HashMap<String, Tensor> = HashMap::new();
    let mut add = |name: String, shape: &[usize], mean: f32, scale: f32| -> Outcome {
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                mean + scale * (state as f32 / u32::MAX as f32 - 0.5)
            })
            .collect();
        weights.insert(format!("text_model.{name}"), Tensor::from_vec(values, shape, &Device::Cpu)?);
        Ok(())
    };
    add("embeddings.token_embedding.weight".into(), &[49408, 768], 0.0, 2.0)?;
    add("embeddings.position_embedding.weight".into(), &[77, 768], 0.0, 1.0)?;
    let mut norms = vec!["final_layer_norm".to_string()];
    for layer in 0..12 {
        let layer = format!("encoder.layers.{layer}");
        norms.extend([format!("{layer}.layer_norm1"), format!("{layer}.layer_norm2")]);
        let linears =
            ["q_proj", "k_proj", "v_proj", "out_proj"].map(|part| (format!("self_attn.{part}"), 768, 768));
        let mlp = [("mlp.fc1".to_string(), 3072, 768), ("mlp.fc2".to_string(), 768, 3072)];
        for (part, outputs, inputs) in linears.into_iter().chain(mlp) {
            add(format!("{layer}.{part}.weight"), &[outputs, inputs], 0.0, 3.4 / (inputs as f32).sqrt())?;
            add(format!("{layer}.{part}.bias"), &[outputs], 0.0, 0.1)?;
        }
    }
    for norm in norms {
        add(format!("{norm}.weight"), &[768], 1.0, 0.2)?;
        add(format!("{norm}.bias"), &[768], 0.0, 0.2)?;
    }
    let vb = VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu);
    let upstream = clip::ClipTextTransformer::new(vb.clone(), &clip::Config::v1_5())?;
    let ours = ClipText::new(vb, &config, false)?;
    let mut tokens = vec![49406u32, 320, 736, 7651, 49407];
    tokens.resize(77, 49407);
    let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
    let encoded = ours.forward(&tokens, &[4])?;
    let (last, penultimate) = upstream.forward_until_encoder_layer(&tokens, usize::MAX, -2)?;
    let far = (difference(&encoded.last, &last)?, difference(&encoded.penultimate, &penultimate)?);
    assert!(far.0 < 1e-4 && far.1 < 1e-3, "{far:?}");
    Ok(())
}

#[test]
fn prompts_are_framed_truncated_and_padded() -> Outcome {
    let folder = tempfile::tempdir()?;
    tiny_model::write(folder.path(), Kind::Xl)?;
    let plain = ClipTokenizer::from_folder(&folder.path().join("tokenizer"), TOKENS)?;
    let padded = ClipTokenizer::from_folder(&folder.path().join("tokenizer_2"), TOKENS)?;
    // Token ids: letters from 0, '!' 26, ',' 27; plus 28 at the end of a word; "red" 57, start 58, end 59.
    let (start, end, red) = (58, 59, 57);
    let cases: [(&str, &[u32]); 6] = [
        ("", &[]),
        ("red", &[red]),
        ("  A\tRED\n", &[28, red]),
        ("red,red", &[red, 27 + 28, red]),
        ("cab", &[2, 0, 1 + 28]),
        ("reds", &[56, 3, 18 + 28]),
    ];
    for (text, words) in cases {
        for (tokenizer, pad) in [(&plain, end), (&padded, 26)] {
            let mut expected = [&[start], words, &[end]].concat();
            expected.resize(TOKENS, pad);
            let prompt = tokenizer.encode(text)?;
            assert_eq!(
                (prompt.tokens, prompt.end, prompt.truncated),
                (expected, words.len() + 1, false),
                "{text:?}"
            );
        }
    }
    let long = plain.encode(&"red ".repeat(40))?;
    assert_eq!((long.tokens.len(), long.end, long.truncated), (TOKENS, TOKENS - 1, true));
    assert_eq!((long.tokens[TOKENS - 2], long.tokens[TOKENS - 1]), (red, end));
    Ok(())
}

#[test]
fn tokenizer_json_is_equivalent_to_vocab_and_merges() -> Outcome {
    let folder = tempfile::tempdir()?;
    tiny_model::write(folder.path(), Kind::Plain)?;
    let path = folder.path().join("tokenizer");
    let merged = ClipTokenizer::from_folder(&path, TOKENS)?;
    let vocab: Value = serde_json::from_str(&fs::read_to_string(path.join("vocab.json"))?)?;
    let words = "'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+";
    let mut whole = json!({
        "version": "1.0", "added_tokens": [], "post_processor": null, "decoder": null,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Lowercase"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": words}, "behavior": "Removed", "invert": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<|endoftext|>", "continuing_subword_prefix": "",
            "end_of_word_suffix": "</w>", "fuse_unk": false, "vocab": vocab, "merges": ["r e", "re d</w>"]},
    });
    let long = "red ".repeat(40);
    // With and without stored padding and truncation.
    for stored in [false, true] {
        whole["padding"] = Value::Null;
        whole["truncation"] = Value::Null;
        if stored {
            whole["padding"] = json!({"strategy": {"Fixed": 6}, "direction": "Right", "pad_to_multiple_of": null,
                "pad_id": 3, "pad_type_id": 0, "pad_token": "d"});
            whole["truncation"] =
                json!({"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0});
        }
        fs::write(path.join("tokenizer.json"), whole.to_string())?;
        let single = ClipTokenizer::from_folder(&path, TOKENS)?;
        for text in ["", "a red circle", "Red,  blue!", "don't", "über 7", &long] {
            assert_eq!(single.encode(text)?, merged.encode(text)?, "{text:?} {stored}");
        }
    }
    Ok(())
}

#[test]
fn models_are_loaded_with_their_properties() -> Outcome {
    for (kind, is_inpainting) in [(Kind::Plain, false), (Kind::Inpaint, true), (Kind::Xl, false)] {
        let folder = tempfile::tempdir()?;
        tiny_model::write(folder.path(), kind)?;
        let reported = Arc::new(Mutex::new(Vec::new()));
        let listener = reported.clone();
        let model = Model::load(folder.path(), &Device::Cpu, LoadOptions::default(), move |part| {
            listener.lock().expect("no panic").push(part);
        })?;
        assert_eq!(
            (model.version, model.turbo, model.is_inpainting()),
            (Version::Other, false, is_inpainting)
        );
        assert_eq!((model.side(), model.dtype, model.zeros_for_empty), (32, DType::F32, kind == Kind::Xl));
        let reported = reported.lock().expect("no panic");
        assert!(reported.windows(2).all(|pair| pair[0] <= pair[1]), "{kind:?}");
        assert!(reported.last().is_some_and(|part| *part > 0.9), "{kind:?}: {:?}", reported.last());
        let request = Request::of(&model, "");
        assert_eq!((request.width, request.height, request.steps), (32, 32, 30));
    }
    Ok(())
}

/// Sets members of a JSON file.
fn edit(path: &Path, changes: &Value) -> Outcome {
    let mut json: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    for (key, value) in changes.as_object().ok_or("no object")? {
        json[key] = value.clone();
    }
    Ok(fs::write(path, json.to_string())?)
}

#[test]
fn turbo_models_are_detected_by_their_scheduler() -> Outcome {
    let folder = tempfile::tempdir()?;
    tiny_model::write(folder.path(), Kind::Plain)?;
    let path = folder.path().join("scheduler/scheduler_config.json");
    let turbo = json!({"_class_name": "EulerAncestralDiscreteScheduler", "timestep_spacing": "trailing",
        "prediction_type": "epsilon", "rescale_betas_zero_snr": false});
    for (change, expected) in [
        (json!({}), true),
        (json!({"_class_name": "EulerDiscreteScheduler"}), true),
        (json!({"_class_name": "DDIMScheduler"}), false),
        (json!({"timestep_spacing": "leading"}), false),
        (json!({"timestep_spacing": null}), false),
        (json!({"prediction_type": "v_prediction"}), false),
        (json!({"rescale_betas_zero_snr": true}), false),
    ] {
        edit(&path, &turbo)?;
        edit(&path, &change)?;
        let model = Model::load(folder.path(), &Device::Cpu, LoadOptions::default(), |_| ())?;
        let request = Request::of(&model, "");
        let (steps, guidance) = if expected { (4, 0.0) } else { (30, 7.5) };
        assert_eq!((model.turbo, request.steps, request.guidance), (expected, steps, guidance), "{change}");
    }
    Ok(())
}

#[test]
fn text_encoders_load_with_and_without_prefix() -> Outcome {
    let folder = tempfile::tempdir()?;
    tiny_model::write(folder.path(), Kind::Xl)?;
    let load = || Model::load(folder.path(), &Device::Cpu, LoadOptions::default(), |_| ());
    let expected = load()?.encode(&["a red circle"], 1)?;
    for encoder in ["text_encoder", "text_encoder_2"] {
        let path = folder.path().join(encoder).join("model.safetensors");
        let weights = candle_core::safetensors::load(&path, &Device::Cpu)?;
        let flat: HashMap<String, Tensor> = weights
            .into_iter()
            .map(|(name, weight)| (name.strip_prefix("text_model.").unwrap_or(&name).to_owned(), weight))
            .collect();
        assert!(flat.contains_key("final_layer_norm.weight"));
        candle_core::safetensors::save(&flat, &path)?;
        let read = load()?.encode(&["a red circle"], 1)?;
        assert_eq!(difference(&read.context, &expected.context)?, 0.0, "{encoder}");
        let (pooled, before) = (read.pooled.ok_or("none")?, expected.pooled.as_ref().ok_or("none")?);
        assert_eq!(difference(&pooled, before)?, 0.0, "{encoder}");
    }
    Ok(())
}

#[test]
fn sample_size_of_old_unets_is_at_least_64() -> Outcome {
    let mut config = tiny_model::unet_config(Kind::Plain);
    for (version, sample_size, expected) in [
        (json!(null), 8, 8),
        (json!("0.9.0"), 32, 32),
        (json!("0.9.0.dev0"), 32, 32),
        (json!("1.0"), 32, 32),
        (json!("0.10.2"), 32, 32),
        (json!("0.8.1"), 32, 64),
        (json!("0.6.0.dev0"), 8, 64),
        (json!("0.8"), 96, 96),
    ] {
        config["_diffusers_version"] = version.clone();
        config["sample_size"] = sample_size.into();
        assert_eq!(
            UNetConfig::from_json(&config.to_string())?.sample_size,
            expected,
            "{version} {sample_size}"
        );
    }
    Ok(())
}

#[test]
fn half_precision_and_split_weights_are_found() -> Outcome {
    let folder = tempfile::tempdir()?;
    tiny_model::write(folder.path(), Kind::Plain)?;
    let base = Model::load(folder.path(), &Device::Cpu, LoadOptions::default(), |_| ())?;
    let x = Tensor::randn(0f32, 1.0, (1, 4, 8, 8), &Device::Cpu)?;
    let text = base.encode(&["a red circle"], 1)?.context;
    let expected = base.unet()?.forward(&x, &[10.0], &text, None)?;
    let unet = folder.path().join("unet");
    let whole = unet.join("diffusion_pytorch_model.safetensors");
    let weights = candle_core::safetensors::load(&whole, &Device::Cpu)?;
    let forward = |dtype| -> Outcome<Tensor> {
        let options = LoadOptions { dtype: Some(dtype), ..Default::default() };
        let model = Model::load(folder.path(), &Device::Cpu, options, |_| ())?;
        Ok(model.unet()?.forward(&x.to_dtype(dtype)?, &[10.0], &text.to_dtype(dtype)?, None)?)
    };
    // Weights split into two files.
    let (first, second): (HashMap<_, _>, HashMap<_, _>) =
        weights.clone().into_iter().partition(|(name, _)| name.len() % 2 == 0);
    fs::remove_file(&whole)?;
    let part = |i: usize| unet.join(format!("diffusion_pytorch_model-0000{i}-of-00002.safetensors"));
    candle_core::safetensors::save(&first, part(1))?;
    let missing = Model::load(folder.path(), &Device::Cpu, LoadOptions::default(), |_| ());
    assert!(missing.is_err_and(|e| e.to_string().contains("1 of 2 parts")));
    candle_core::safetensors::save(&second, part(2))?;
    assert_eq!(difference(&forward(DType::F32)?, &expected)?, 0.0);
    // Half-precision weights are used if requested, or if there are no others.
    let half: Result<HashMap<String, Tensor>, candle_core::Error> =
        weights.into_iter().map(|(name, weight)| Ok((name, weight.to_dtype(DType::F16)?))).collect();
    candle_core::safetensors::save(&half?, unet.join("diffusion_pytorch_model.fp16.safetensors"))?;
    assert_eq!(difference(&forward(DType::F32)?, &expected)?, 0.0);
    let far = difference(&forward(DType::F16)?, &expected)?;
    assert!(far > 0.0 && far < 0.05, "{far}");
    fs::remove_file(part(1))?;
    fs::remove_file(part(2))?;
    let far = difference(&forward(DType::F32)?, &expected)?;
    assert!(far > 0.0 && far < 0.02, "{far}");
    Ok(())
}

#[test]
fn damaged_and_unsupported_models_are_rejected() -> Outcome {
    type Damage = fn(&Path) -> Outcome;
    let cases: [(&str, Damage); 22] = [
        ("with controlnet", |f| edit(&f.join("model_index.json"), &json!({"controlnet": ["a", "B"]}))),
        ("holds a LoRA adapter", |f| {
            fs::rename(f.join("model_index.json"), f.join("pytorch_lora_weights.safetensors"))?;
            Ok(())
        }),
        ("ControlNetModel", |f| {
            fs::remove_file(f.join("model_index.json"))?;
            Ok(fs::write(f.join("config.json"), r#"{"_class_name": "ControlNetModel"}"#)?)
        }),
        ("model_index.json", |f| Ok(fs::remove_file(f.join("model_index.json"))?)),
        ("without unet", |f| edit(&f.join("model_index.json"), &json!({"unet": [null, null]}))),
        ("second text encoder", |f| {
            edit(&f.join("model_index.json"), &json!({"text_encoder_2": ["a", "B"]}))
        }),
        ("class_embed_type", |f| edit(&f.join("unet/config.json"), &json!({"class_embed_type": "timestep"}))),
        ("time_cond_proj_dim", |f| edit(&f.join("unet/config.json"), &json!({"time_cond_proj_dim": 256}))),
        ("takes 8 channels", |f| edit(&f.join("unet/config.json"), &json!({"in_channels": 8}))),
        ("the UNet takes 768", |f| edit(&f.join("unet/config.json"), &json!({"cross_attention_dim": 768}))),
        ("block 1", |f| edit(&f.join("unet/config.json"), &json!({"block_out_channels": [32, 65]}))),
        ("down_blocks.1", |f| edit(&f.join("unet/config.json"), &json!({"block_out_channels": [32, 96]}))),
        ("SimpleCrossAttn", |f| {
            edit(&f.join("unet/config.json"), &json!({"up_block_types": ["SimpleCrossAttn", "UpBlock2D"]}))
        }),
        ("latents of 16", |f| edit(&f.join("vae/config.json"), &json!({"latent_channels": 16}))),
        ("latents_mean", |f| edit(&f.join("vae/config.json"), &json!({"latents_mean": [0.1]}))),
        ("merges.txt", |f| Ok(fs::remove_file(f.join("tokenizer/merges.txt"))?)),
        ("<|startoftext|>", |f| {
            let path = f.join("tokenizer/vocab.json");
            let text = fs::read_to_string(&path)?.replace("<|startoftext|>", "<|begin|>");
            Ok(fs::write(path, text)?)
        }),
        ("silu", |f| edit(&f.join("text_encoder/config.json"), &json!({"hidden_act": "silu"}))),
        ("3 heads", |f| edit(&f.join("text_encoder/config.json"), &json!({"num_attention_heads": 3}))),
        ("preview.json", |f| Ok(fs::write(f.join("preview.json"), r#"{"factors": [[1, 2, 3]]}"#)?)),
        ("vae", |f| Ok(fs::write(f.join("vae/diffusion_pytorch_model.safetensors"), [255; 40])?)),
        ("contains no safetensors", |f| {
            Ok(fs::remove_file(f.join("unet/diffusion_pytorch_model.safetensors"))?)
        }),
    ];
    for (named, damage) in cases {
        let folder = tempfile::tempdir()?;
        tiny_model::write(folder.path(), Kind::Plain)?;
        damage(folder.path())?;
        let loaded = Model::load(folder.path(), &Device::Cpu, LoadOptions::default(), |_| ());
        let error = match loaded {
            Ok(_) => panic!("{named}: loaded"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(named), "{named}: {error}");
    }
    // A truncated file.
    let folder = tempfile::tempdir()?;
    tiny_model::write(folder.path(), Kind::Plain)?;
    let path = folder.path().join("vae/diffusion_pytorch_model.safetensors");
    let single = Model::load(&path, &Device::Cpu, LoadOptions::default(), |_| ());
    assert!(single.is_err_and(|error| error.to_string().contains("a VAE alone")));
    let bytes = fs::read(&path)?;
    fs::write(&path, &bytes[..bytes.len() / 2])?;
    assert!(Model::load(folder.path(), &Device::Cpu, LoadOptions::default(), |_| ()).is_err());
    Ok(())
}

#[test]
fn all_networks_have_gradients() -> Outcome {
    use candle_nn::VarMap;
    let weights = VarMap::new();
    let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
    let unet =
        UNet::new(vb.pp("unet"), &UNetConfig::from_json(&tiny_model::unet_config(Kind::Plain).to_string())?)?;
    let clip: ClipConfig = serde_json::from_value(tiny_model::clip_config(60))?;
    let clip = ClipText::new(vb.pp("text"), &clip, false)?;
    let text = clip.forward(&Tensor::new(&[[58u32, 3, 59, 59]], &Device::Cpu)?, &[2])?.last;
    let x = Tensor::randn(0f32, 1.0, (1, 4, 8, 8), &Device::Cpu)?;
    let vae = Vae::new(vb.pp("vae"), &VaeConfig::from_json(&tiny_model::vae_config().to_string())?)?;
    let moments = vae.encode(&Tensor::randn(0f32, 1.0, (1, 3, 16, 16), &Device::Cpu)?, &|| Ok(()))?;
    let decoded = vae.decode(&moments.narrow(1, 0, 4)?, &|| Ok(()))?;
    let loss = (unet.forward(&x, &[300.0], &text, None)?.sqr()?.sum_all()? + decoded.sqr()?.sum_all()?)?;
    let grads = (loss + moments.sqr()?.sum_all()?)?.backward()?;
    for (name, var) in weights.data().lock().expect("no panic").iter() {
        let grad = grads.get(var).ok_or_else(|| format!("{name} has no gradient"))?;
        assert!(grad.abs()?.max_all()?.to_scalar::<f32>()?.is_finite(), "{name}");
    }
    Ok(())
}
